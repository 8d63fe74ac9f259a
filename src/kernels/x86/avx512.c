/* SPDX-License-Identifier: MIT */
/* kernels: AVX-512 with VNNI and VBMI, which looks up codes of any width at once. The rest is that of avx512vnni.c. */
#include "core/cpu.h"

#if defined(QUIRE_X86)

#define HAS_VBMI
#define SIMD_TARGET "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx2,fma,f16c,bmi2"
#include "kernels/x86/products_avx512.h"

#define DOT_NAME(name) vnni_##name
#define MULTIPLY_NAME MULTIPLY_VNNI
#define TABLE_MULTIPLY_NAME MULTIPLY_VBMI
#define FLOAT_NAME SHARED_NAME
#define COMMON_NAME SHARED_NAME
#define COMMON_ELSEWHERE
#define OPERAND_NAME SHARED_NAME
#define OPERAND_ELSEWHERE
#include "kernels/families.h"

const code_loops quire_loops_avx512[] = PACKING_LOOPS;
#define LOOPS quire_loops_avx512
CODE_PACKINGS(UNPACK_PACKING)
INTEGER_FAMILIES(INTEGER_FAMILY)

const quire_kernels quire_kernels_avx512 = {
    .load_queries = SHARED_NAME(load_in_fours),
    COMMON_ROLES,
    .expand_from = {8, 8, 8, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5},
    .whole_channels = 32,
};

#endif
