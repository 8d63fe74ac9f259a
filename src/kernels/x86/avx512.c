/* SPDX-License-Identifier: MIT */
/* kernels: AVX-512 with VNNI and VBMI. */
#include "core/cpu.h"

#if defined(QUIRE_X86)

#include "kernels/x86/products_avx512.h"

/* Expanded codes are bytes whatever they were; one loop serves all. */
VNNI_ALL(expanded, .expanded = true)
#define VNNI(name, bits, table) VNNI_ALL(name, false, bits, table)
CODE_PACKINGS(VNNI)

#include "kernels/families.h"

#include "kernels/float_tmpl.h"

#define VNNI_LOOPS(name, bits, table)                                                                      \
    SIMD_CALL void dot_k_##name(const quire_source *k, uint32_t from, uint32_t to, const quire_queries *q, \
                                uint32_t first, uint32_t n, const k_epilogue *epilogue, void *memory)      \
    {                                                                                                      \
        (void)memory;                                                                                      \
        dot_k_rows(k->expanded ? k_expanded : k_##name, k, from, to, q, first, n, epilogue);               \
    }                                                                                                      \
    SIMD_CALL void dot_v_##name(const quire_source *v, uint32_t from, uint32_t to, const int8_t *z,        \
                                uint32_t n, const v_epilogue *epilogue, void *memory)                      \
    {                                                                                                      \
        (void)memory;                                                                                      \
        dot_v_rows(v->expanded ? v_expanded : v_##name, v, from, to, z, n, epilogue);                      \
    }

CODE_PACKINGS(VNNI_LOOPS)
CODE_PACKINGS(UNPACK_PACKING)
const code_loops quire_loops_avx512[] = PACKING_LOOPS_TABLE;
#define LOOPS quire_loops_avx512
INTEGER_FAMILIES(INTEGER_FAMILY)

const quire_kernels quire_kernels_avx512 = {
    .load_queries = load_queries,
    COMMON_ROLES,
    .expand_from = {8, 8, 8, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5},
    .whole_channels = 32,
};

#endif
