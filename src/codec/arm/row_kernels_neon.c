/* SPDX-License-Identifier: MIT */
/* row_kernels_neon: the loops over a row with NEON. */
#include "codec/row_kernels.h"

#include <math.h>

#if defined(QUIRE_ARM)

#include "simd/neon_encode.h"

#include "codec/values_tmpl.h"
#include "codec/encode_groups_tmpl.h"
#include "codec/fit_rows_tmpl.h"

const quire_row_kernels quire_row_kernels_neon = {ROW_KERNELS, .refit = refit};

#endif
