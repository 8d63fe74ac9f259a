/* SPDX-License-Identifier: MIT */
/* row_kernels_avx2: the loops over a row with AVX2, FMA and F16C. */
#include "codec/row_kernels.h"

#include <math.h>

#if defined(QUIRE_X86)

#include "simd/avx2_encode.h"

#include "codec/values_tmpl.h"
#include "codec/encode_groups_tmpl.h"
#include "codec/fit_rows_tmpl.h"

const quire_row_kernels quire_row_kernels_avx2 = {ROW_KERNELS, .refit = refit};

#endif
