/* SPDX-License-Identifier: MIT */
/* float: rows that stay f32, f16 or bf16. */
#include "codec/row_kernels.h"

void quire_encode_float_c(const quire_coder *coder, const float *x, quire_coded_row *row,
                          quire_counts *counts)
{
    (void)counts; /* the values are within the form's range already */
    for (uint32_t i = 0; i < coder->d; i++) {
        switch (coder->codec->float_form) {
        case QUIRE_F16: row->value[i] = quire_f16_to_f32(quire_f32_to_f16(x[i])); break;
        case QUIRE_BF16: row->value[i] = quire_bf16_to_f32(quire_f32_to_bf16(x[i])); break;
        default: row->value[i] = x[i];
        }
    }
}

void quire_pack_float(const quire_coder *coder, const quire_coded_row *row, uint8_t *bytes)
{
    for (uint32_t i = 0; i < coder->d; i++) {
        switch (coder->codec->float_form) {
        case QUIRE_F16: quire_store16(bytes + 2 * i, quire_f32_to_f16(row->value[i])); break;
        case QUIRE_BF16: quire_store16(bytes + 2 * i, quire_f32_to_bf16(row->value[i])); break;
        default: quire_store32(bytes + 4 * i, quire_bits_of(row->value[i]));
        }
    }
}

bool quire_unpack_float(const quire_coder *coder, const uint8_t *bytes, quire_coded_row *row)
{
    uint32_t odd = 0;
    for (uint32_t i = 0; i < coder->d; i++) {
        float x;
        switch (coder->codec->float_form) {
        case QUIRE_F16: x = quire_f16_to_f32(quire_load16(bytes + 2 * i)); break;
        case QUIRE_BF16: x = quire_bf16_to_f32(quire_load16(bytes + 2 * i)); break;
        default: x = quire_float_of(quire_load32(bytes + 4 * i));
        }
        odd |= (quire_bits_of(x) & 0x7f800000u) == 0x7f800000u;
        row->value[i] = x;
    }
    return !odd;
}
