/* SPDX-License-Identifier: MIT */
/* ops: which variants are in use. */
#include "tile/ops.h"

static const quire_tile_ops ops_c = {
    .put_codes = {quire_put_codes_c, quire_put_codes_c},
    .get_codes = {quire_get_codes_c, quire_get_codes_c},
    .put_values = {quire_put_values_c, quire_put_values_c},
    .put_four_values = {quire_put_four_values_c, quire_put_four_values_c},
    .get_values = {quire_get_values_c, quire_get_values_c},
};

static const quire_tile_ops *const by_isa[QUIRE_N_ISAS] = {
    [QUIRE_ISA_C] = &ops_c,
    [QUIRE_ISA_NEON] = &ops_c,
#if defined(QUIRE_X86)
    [QUIRE_ISA_AVX2] = &quire_tile_ops_avx2,
    [QUIRE_ISA_AVXVNNI] = &quire_tile_ops_avx2,
    [QUIRE_ISA_AVX512] = &quire_tile_ops_avx512,
    [QUIRE_ISA_AMX] = &quire_tile_ops_avx512,
#endif
};

const quire_tile_ops *quire_tile_ops_for(uint32_t d)
{
    return d % 16 ? &ops_c : by_isa[quire_isa_now()];
}
