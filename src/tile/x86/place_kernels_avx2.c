/* SPDX-License-Identifier: MIT */
/* place_kernels_avx2: rows into and out of tiles with AVX2. */
#include "tile/place_kernels.h"

#if defined(QUIRE_X86)

#include "simd/avx2.h"

#include "tile/x86/four_rows_avx2.h"

#include "tile/place_rows_tmpl.h"

const quire_place_kernels quire_place_kernels_avx2 = {
    .put_codes = {quire_put_codes_words, put_codes_v},
    .get_codes = {quire_get_codes_words, get_codes_v},
    .put_values = {put_values_k, put_values_v},
    .put_four_values = {put_four_values_k, put_four_values_v},
    .get_values = {get_values_k, get_values_v},
};

#endif
