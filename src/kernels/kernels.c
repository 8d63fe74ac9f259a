/* SPDX-License-Identifier: MIT */
/* kernels: which table is in use, and what family a codec belongs to. */
#include "kernels/kernels.h"

quire_family quire_family_of(const quire_codec *codec)
{
    if (codec->values == QUIRE_VALUES_FLOAT) {
        if (codec->float_form == QUIRE_F32) return QUIRE_FAMILY_F32;
        return codec->float_form == QUIRE_F16 ? QUIRE_FAMILY_F16 : QUIRE_FAMILY_BF16;
    }
    bool table = codec->values == QUIRE_VALUES_TABLE;
    switch (codec->info.bits) {
    case 2: return table ? QUIRE_FAMILY_T2 : QUIRE_FAMILY_L2;
    case 3: return table ? QUIRE_FAMILY_T3 : QUIRE_FAMILY_L3;
    case 4: return table ? QUIRE_FAMILY_T4 : QUIRE_FAMILY_L4;
    case 5: return table ? QUIRE_FAMILY_T5 : QUIRE_FAMILY_L5;
    case 6: return table ? QUIRE_FAMILY_T6 : QUIRE_FAMILY_L6;
    default: return QUIRE_FAMILY_L8;
    }
}

const quire_kernels *quire_kernels_get(void)
{
    switch (quire_isa_now()) {
#if defined(QUIRE_X86)
    case QUIRE_ISA_AVX512: return &quire_kernels_avx512;
    case QUIRE_ISA_AMX: return &quire_kernels_amx;
#elif defined(QUIRE_ARM)
#endif
    default: return &quire_kernels_c;
    }
}
