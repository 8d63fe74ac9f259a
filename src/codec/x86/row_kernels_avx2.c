/* SPDX-License-Identifier: MIT */
/* row_kernels_avx2: the loops over a row with AVX2, FMA and F16C. */
#include "codec/row_kernels.h"

#include <math.h>

#if defined(QUIRE_X86)

#include "simd/avx2_encode.h"

#include "codec/x86/values_tmpl.h"
#include "codec/x86/encode_groups_tmpl.h"
#include "codec/x86/fit_rows_tmpl.h"

const quire_row_kernels quire_row_kernels_avx2 = {
    .load = load,
    .store = store,
    .hadamard = hadamard,
    .encode_float = encode_float,
    .encode_affine = encode_affine,
    .encode_q8_0 = encode_q8_0,
    .encode_q5_1 = encode_q5_1,
    .encode_q5_0 = encode_q5_0,
    .encode_q4_1 = encode_q4_1,
    .encode_q4_0 = encode_q4_0,
    .encode_r8 = encode_r8,
    .assign = assign,
    .refit = refit,
    .dot = dot,
    .weigh = weigh,
    .distance = distance,
    .unweigh = unweigh,
    .add_mean = add_mean,
    .expand = expand,
};

#endif
