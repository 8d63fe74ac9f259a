/* SPDX-License-Identifier: MIT */
/* kernels: NEON alone. */
#include "core/cpu.h"

#if defined(QUIRE_ARM)

#include "kernels/arm/engine_neon.h"

#define DOT_NAME(name) neon_##name
#define FLOAT_NAME SHARED_NAME
#define FLOAT_CALL SHARED_CALL
#define COMMON_NAME SHARED_NAME
#define COMMON_CALL SHARED_CALL
#include "kernels/families.h"

#define FLOAT_ROWS 4u /* 16 registers of sums */
#define FLOAT_VECTORS 1u
#include "kernels/float_tmpl.h"

MULTIPLY_EXPANDED
static const code_loops loops[] = PACKING_LOOPS;
#define LOOPS loops
CODE_PACKINGS(UNPACK_PACKING)
INTEGER_FAMILIES(INTEGER_FAMILY)

const quire_kernels quire_kernels_neon = {
    .load_queries = load_queries,
    COMMON_ROLES,
    .expand_from = {NEVER, 24, 24, 9, 5, 9, 5, 5, 9, 9, 5, 9, 5, 5, 5, 5, 5},
    .whole_channels = 32,
};

#endif
