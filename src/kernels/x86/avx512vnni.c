/* SPDX-License-Identifier: MIT */
/* kernels: AVX-512 with VNNI, without VBMI: Cascade Lake and Cooper Lake. */
#include "core/cpu.h"

#if defined(QUIRE_X86)

#include "kernels/x86/products_avx512.h"

#define DOT_NAME(name) vnni_##name
#define MULTIPLY_NAME MULTIPLY_VNNI
#define FLOAT_NAME SHARED_NAME
#define FLOAT_CALL SHARED_CALL
#define COMMON_NAME SHARED_NAME
#define COMMON_CALL SHARED_CALL
#define OPERAND_NAME SHARED_NAME
#define OPERAND_CALL SHARED_CALL
#include "kernels/families.h"

#include "kernels/float_tmpl.h"

SIMD_GLOBAL void SHARED_NAME(load_in_fours)(const quire_tile_format *format, quire_queries *q)
{
    q->fours = true;
    SHARED_NAME(load_queries)(format, q);
}

/* Expanded codes are bytes whatever they were; one loop serves all. */
VNNI_EXPANDED
static const code_loops loops[] = PACKING_LOOPS;
#define LOOPS loops
CODE_PACKINGS(UNPACK_PACKING)
INTEGER_FAMILIES(INTEGER_FAMILY)

const quire_kernels quire_kernels_avx512vnni = {
    .load_queries = SHARED_NAME(load_in_fours),
    COMMON_ROLES,
    .expand_from = {8, 8, 8, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5},
    .whole_channels = 32,
};

#endif
