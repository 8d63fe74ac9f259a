/* SPDX-License-Identifier: MIT */
/* kernels: which table is in use, and what family a codec belongs to. */
#include "kernels/kernels.h"

quire_family quire_family_of(const quire_codec *codec)
{
    if (codec->values == QUIRE_VALUES_FLOAT) {
        if (codec->float_form == QUIRE_F32) return QUIRE_FAMILY_F32;
        return codec->float_form == QUIRE_F16 ? QUIRE_FAMILY_F16 : QUIRE_FAMILY_BF16;
    }
    if (codec->values == QUIRE_VALUES_TABLE) {
        switch (codec->info.bits) {
        case 2: return QUIRE_FAMILY_T2;
        case 3: return QUIRE_FAMILY_T3;
        case 4: return QUIRE_FAMILY_T4;
        case 5: return QUIRE_FAMILY_T5;
        default: return QUIRE_FAMILY_T6;
        }
    }
    switch (codec->info.bits) {
    case 2: return QUIRE_FAMILY_A2;
    case 3: return QUIRE_FAMILY_A3;
    case 4: return codec->has_bias ? QUIRE_FAMILY_A4 : QUIRE_FAMILY_Z4;
    case 5: return codec->has_bias ? QUIRE_FAMILY_A5 : QUIRE_FAMILY_Z5;
    case 6: return QUIRE_FAMILY_A6;
    default: return codec->has_bias ? QUIRE_FAMILY_A8 : QUIRE_FAMILY_Z8;
    }
}

const quire_kernels *quire_kernels_get(void)
{
    switch (quire_isa_now()) {
#if defined(QUIRE_X86)
    case QUIRE_ISA_AVX2: return &quire_kernels_avx2;
    case QUIRE_ISA_AVXVNNI: return &quire_kernels_avxvnni;
    case QUIRE_ISA_AVX512VNNI: return &quire_kernels_avx512vnni;
    case QUIRE_ISA_AVX512VBMI: return &quire_kernels_avx512;
    case QUIRE_ISA_AMX: return &quire_kernels_amx;
#elif defined(QUIRE_ARM)
    case QUIRE_ISA_NEON: return &quire_kernels_neon;
    case QUIRE_ISA_DOTPROD: return &quire_kernels_dotprod;
    case QUIRE_ISA_I8MM: return &quire_kernels_i8mm;
#endif
    default: return &quire_kernels_c;
    }
}
