/* SPDX-License-Identifier: MIT */
/* row_kernels_avx512: the loops over a row with AVX-512. */
#include "codec/row_kernels.h"

#include <math.h>

#if defined(QUIRE_X86)

#include "simd/avx512_encode.h"

#include "codec/values_tmpl.h"
#include "codec/encode_groups_tmpl.h"
#include "codec/fit_rows_tmpl.h"
#include "codec/x86/refit_avx512.h"

const quire_row_kernels quire_row_kernels_avx512 = {
    ROW_KERNELS,
    .refit = refit_by_buckets,
    .takes_rows = quire_takes_rows_avx512,
    .encode_rows = quire_encode_rows_avx512,
};

#endif
