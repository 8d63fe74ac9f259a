/* SPDX-License-Identifier: MIT */
/* kernels: NEON with the dot product. */
#include "core/cpu.h"

#if defined(QUIRE_ARM)

#include "kernels/arm/engine_dotprod.h"

#define DOT_NAME(name) neon_##name
#define FLOAT_NAME SHARED_NAME
#define COMMON_NAME SHARED_NAME
#define COMMON_ELSEWHERE
#include "kernels/families.h"

MULTIPLY_EXPANDED
static const code_loops loops[] = PACKING_LOOPS;
#define LOOPS loops
CODE_PACKINGS(UNPACK_PACKING)
INTEGER_FAMILIES(INTEGER_FAMILY)

const quire_kernels quire_kernels_dotprod = {
    .load_queries = load_queries,
    COMMON_ROLES,
    .expand_from = {NEVER, 24, 24, 17, 9, 17, 9, 9, 17, 17, 9, 17, 9, 9, 9, 9, 9},
    .whole_channels = 32,
};

#endif
