/* SPDX-License-Identifier: MIT */
/* kernels: AVX2 with AVX-VNNI. */
#include "core/cpu.h"

#if defined(QUIRE_X86)

#include "kernels/x86/engine_avxvnni.h"

#define FLOAT_NAME SHARED_NAME
#define COMMON_NAME SHARED_NAME
#define COMMON_ELSEWHERE
#include "kernels/families.h"

MULTIPLY_EXPANDED
static const code_loops loops[] = PACKING_LOOPS;
#define LOOPS loops
CODE_PACKINGS(UNPACK_PACKING)
INTEGER_FAMILIES(INTEGER_FAMILY)

const quire_kernels quire_kernels_avxvnni = {
    .load_queries = load_queries,
    COMMON_ROLES,
    .expand_from = {NEVER, 24, 24, 17, 8, 17, 8, 8, NEVER, 17, 8, NEVER, 9, 8, 9, 5, 4},
    .whole_channels = 32,
};

#endif
