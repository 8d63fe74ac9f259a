/* SPDX-License-Identifier: MIT */
/* row_kernels: which variants are in use. */
#include "codec/row_kernels.h"

static const quire_row_kernels kernels_c = {
    .load = quire_load_c,
    .store = quire_store_c,
    .hadamard = quire_hadamard_c,
    .encode_float = quire_encode_float_c,
    .encode_affine = quire_encode_affine_c,
    .encode_q8_0 = quire_encode_q8_0_c,
    .encode_q5_1 = quire_encode_q5_1_c,
    .encode_q5_0 = quire_encode_q5_0_c,
    .encode_q4_1 = quire_encode_q4_1_c,
    .encode_q4_0 = quire_encode_q4_0_c,
    .encode_r8 = quire_encode_r8_c,
    .assign = quire_assign_c,
    .refit = quire_refit_c,
    .count_middles = quire_count_middles_c,
    .dot = quire_dot_c,
    .weigh = quire_weigh_c,
    .distance = quire_distance_c,
    .unweigh = quire_unweigh_c,
    .add_mean = quire_add_mean_c,
    .expand = quire_expand_c,
};

static const quire_row_kernels *const by_isa[QUIRE_N_ISAS] = {
    [QUIRE_ISA_C] = &kernels_c,
#if defined(QUIRE_X86)
    [QUIRE_ISA_AVX2] = &quire_row_kernels_avx2,
    [QUIRE_ISA_AVXVNNI] = &quire_row_kernels_avx2,
    [QUIRE_ISA_AVX512VNNI] = &quire_row_kernels_avx512,
    [QUIRE_ISA_AVX512VBMI] = &quire_row_kernels_avx512,
    [QUIRE_ISA_AMX] = &quire_row_kernels_avx512,
#elif defined(QUIRE_ARM)
    [QUIRE_ISA_NEON] = &quire_row_kernels_neon,
    [QUIRE_ISA_DOTPROD] = &quire_row_kernels_neon,
    [QUIRE_ISA_I8MM] = &quire_row_kernels_neon,
#endif
};

const quire_row_kernels *quire_row_kernels_for(uint32_t d)
{
    return d % 16 ? &kernels_c : by_isa[quire_isa_now()];
}

/* What the registry names. */
#define DISPATCH(NAME)                                                                       \
    void quire_encode_##NAME(const quire_coder *coder, const float *x, quire_coded_row *row, \
                             quire_counts *counts)                                           \
    {                                                                                        \
        quire_row_kernels_for(coder->d)->encode_##NAME(coder, x, row, counts);               \
    }

DISPATCH(float)
DISPATCH(affine)
DISPATCH(q8_0)
DISPATCH(q5_1)
DISPATCH(q5_0)
DISPATCH(q4_1)
DISPATCH(q4_0)
DISPATCH(r8)
