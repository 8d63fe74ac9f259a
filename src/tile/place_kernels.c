/* SPDX-License-Identifier: MIT */
/* place_kernels: which variants are in use. */
#include "tile/place_kernels.h"

static const quire_place_kernels kernels_c = {
    .put_codes = {quire_put_codes_c, quire_put_codes_c},
    .get_codes = {quire_get_codes_c, quire_get_codes_c},
    .put_values = {quire_put_values_c, quire_put_values_c},
    .put_four_values = {quire_put_four_values_c, quire_put_four_values_c},
    .get_values = {quire_get_values_c, quire_get_values_c},
};

static const quire_place_kernels *const by_isa[QUIRE_N_ISAS] = {
    [QUIRE_ISA_C] = &kernels_c,
#if defined(QUIRE_X86)
    [QUIRE_ISA_AVX2] = &quire_place_kernels_avx2,
    [QUIRE_ISA_AVXVNNI] = &quire_place_kernels_avx2,
    [QUIRE_ISA_AVX512VNNI] = &quire_place_kernels_avx512,
    [QUIRE_ISA_AVX512VBMI] = &quire_place_kernels_avx512,
    [QUIRE_ISA_AMX] = &quire_place_kernels_avx512,
#elif defined(QUIRE_ARM)
    [QUIRE_ISA_NEON] = &quire_place_kernels_neon,
    [QUIRE_ISA_DOTPROD] = &quire_place_kernels_neon,
    [QUIRE_ISA_I8MM] = &quire_place_kernels_neon,
#endif
};

const quire_place_kernels *quire_place_kernels_for(uint32_t d)
{
    return d % 16 ? &kernels_c : by_isa[quire_isa_now()];
}
