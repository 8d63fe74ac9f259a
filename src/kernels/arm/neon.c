/* SPDX-License-Identifier: MIT */
/* kernels: NEON with the dot product. */
#include "core/cpu.h"

#if defined(QUIRE_ARM)

#include "kernels/arm/engine_neon.h"

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
    .expand_from = {NEVER, 24, 24, 17, 9, 17, 9, 9, 17, 17, 9, 17, 9, 9, 9, 9, 9},
    .whole_channels = 32,
};

#endif
