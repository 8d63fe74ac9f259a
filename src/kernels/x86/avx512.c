/* SPDX-License-Identifier: MIT */
/* kernels: AVX-512 with VNNI and VBMI. */
#include "core/cpu.h"

#if defined(QUIRE_X86)

#include "kernels/x86/products_avx512.h"

SIMD_FN void dot_k(const quire_source *k, uint32_t from, uint32_t to, const quire_queries *q, uint32_t first,
                   uint32_t n, const k_epilogue *epilogue, void *memory, const code_loops *loops)
{
    (void)memory;
    vnni_dot_k(k, from, to, q, first, n, epilogue, loops);
}

SIMD_FN void dot_v(const quire_source *v, uint32_t from, uint32_t to, const int8_t *z, uint32_t n,
                   const v_epilogue *epilogue, void *memory, const code_loops *loops)
{
    (void)memory;
    vnni_dot_v(v, from, to, z, n, epilogue, loops);
}

#define MULTIPLY_NAME(name) quire_multiply_##name##_avx512
#define FLOAT_NAME SHARED_NAME
#define FLOAT_CALL SHARED_CALL
#include "kernels/families.h"

#include "kernels/float_tmpl.h"

/* Expanded codes are bytes whatever they were; one loop serves all. */
VNNI_EXPANDED
const code_loops quire_loops_avx512[] = PACKING_LOOPS;
#define LOOPS quire_loops_avx512

/* K as V. The second half of the memory is for the tile as it is. */
SIMD_CALL void transpose_tile(quire_expand_tile_fn *expand, const quire_source *s, uint8_t *to)
{
    uint8_t *k = to + (size_t)QUIRE_TILE_ROWS * s->format->coder.d_pad;
    expand(s, k);
    transpose_codes(&s->format->coder, k, to);
}

#define UNPACK_PACKING(name, bits, table)                            \
    SIMD_CALL void expand_##name(const quire_source *s, void *to)    \
    {                                                                \
        expand_codes(s, NULL, (uint8_t *)to, bits, table, false);    \
    }                                                                \
    SIMD_CALL void transpose_##name(const quire_source *s, void *to) \
    {                                                                \
        transpose_tile(expand_##name, s, (uint8_t *)to);             \
    }

CODE_PACKINGS(UNPACK_PACKING)
INTEGER_FAMILIES(INTEGER_FAMILY)

const quire_kernels quire_kernels_avx512 = {
    .load_queries = load_queries,
    COMMON_ROLES,
    .expand_from = {8, 8, 8, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5},
    .whole_channels = 32,
};

#endif
