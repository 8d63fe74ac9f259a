/* SPDX-License-Identifier: MIT */
/* encode: one row through its codec and back, whatever the codec. */
#include "codec/row_kernels.h"

#include <float.h>

/* The largest value a codec takes in. f16 for all that have f16 scales, so that every scale stays in reach. */
static float limit_of(const quire_codec *codec)
{
    if (codec->values != QUIRE_VALUES_FLOAT || codec->float_form == QUIRE_F16) return QUIRE_F16_MAX;
    return codec->float_form == QUIRE_BF16 ? QUIRE_BF16_MAX : FLT_MAX;
}

const float *quire_load_c(quire_form form, const void *data, uint32_t d, float limit, float *y,
                          quire_counts *counts)
{
    for (uint32_t i = 0; i < d; i++) {
        float v = quire_load_value(form, data, i);
        if (v >= -limit && v <= limit) {
            y[i] = v;
        } else if (v != v) {
            y[i] = 0;
            counts->nan++;
        } else {
            y[i] = v > 0 ? limit : -limit;
            counts->saturated++;
        }
    }
    return y;
}

void quire_store_c(quire_form form, const float *x, uint32_t d, void *data)
{
    for (uint32_t i = 0; i < d; i++) quire_store_finite(form, data, i, x[i]);
}

const float *quire_clean_row(const quire_coder *coder, quire_form form, const void *data, float *y,
                             quire_counts *counts)
{
    quire_counts unused = {0};
    return quire_row_kernels_for(coder->d)->load(form, data, coder->d, limit_of(coder->codec), y,
                                                 counts ? counts : &unused);
}

void quire_encode_values(const quire_coder *coder, const quire_calibration *cal, quire_form form,
                         const void *data, quire_coded_row *row, quire_counts *counts)
{
    float y[QUIRE_MAX_D];
    quire_counts unused = {0};
    if (!counts) counts = &unused;
    const float *x = quire_clean_row(coder, form, data, y, counts);
    if (quire_is_calibrated(coder, cal)) {
        quire_encode_calibrated(coder, cal, x, row, counts);
    } else {
        coder->codec->encode(coder, coder->codec->tv ? x : quire_rotated(coder, x, y), row, counts);
    }
    quire_row_pad(coder, row);
}

bool quire_takes_rows(const quire_coder *coder)
{
    const quire_row_kernels *kernels = quire_row_kernels_for(coder->d);
    return kernels->takes_rows && kernels->takes_rows(coder);
}

uint32_t quire_encode_rows(const quire_coder *coder, quire_form form, const uint8_t *data, size_t stride,
                           quire_coded_rows *out)
{
    return quire_row_kernels_for(coder->d)->encode_rows(coder, form, data, stride, out);
}

void quire_encode_row(const quire_coder *coder, const quire_calibration *cal, const float *x,
                      quire_coded_row *row, quire_counts *counts)
{
    quire_encode_values(coder, cal, QUIRE_F32, x, row, counts);
}

void quire_row_pad(const quire_coder *coder, quire_coded_row *row)
{
    for (uint32_t i = coder->d; i < coder->d_pad; i++) {
        if (coder->n_groups)
            row->code[i] = 0;
        else
            row->value[i] = 0;
    }
}

static void expand_group(const quire_codec *codec, const uint8_t *code, uint32_t n, float s, float b,
                         float *y)
{
    if (codec->values == QUIRE_VALUES_TABLE)
        for (uint32_t i = 0; i < n; i++) y[i] = s * (float)codec->table[code[i]];
    else
        for (uint32_t i = 0; i < n; i++) y[i] = s * (float)(code[i] - codec->zero);
    if (codec->has_bias)
        for (uint32_t i = 0; i < n; i++) y[i] += b;
}

void quire_expand_c(const quire_coder *coder, const quire_coded_row *row, float *y)
{
    const quire_codec *codec = coder->codec;
    if (codec->values == QUIRE_VALUES_FLOAT) {
        memcpy(y, row->value, coder->d * sizeof *y);
        return;
    }
    for (uint32_t g = 0; g < coder->n_groups; g++) {
        uint32_t at = g * coder->group;
        float s = quire_f16_to_f32(row->scale[g] & quire_scale_mask(codec));
        float b = codec->has_bias ? quire_f16_to_f32(row->bias[g]) : 0;
        expand_group(codec, row->code + at, quire_group_size(coder, g), s, b, y + at);
    }
}

void quire_store_row(const quire_coder *coder, quire_form form, const float *x, void *data)
{
    quire_row_kernels_for(coder->d)->store(form, x, coder->d, data);
}

void quire_expand_row(const quire_coder *coder, const quire_coded_row *row, float *y)
{
    quire_row_kernels_for(coder->d)->expand(coder, row, y);
}

void quire_decode_row(const quire_coder *coder, const quire_calibration *cal, const quire_coded_row *row,
                      float *x)
{
    quire_expand_row(coder, row, x);
    quire_unrotate(coder, x);
    quire_apply_unit(coder, x);
    if (quire_is_calibrated(coder, cal)) quire_uncalibrate(coder, cal, quire_row_mean(coder, row), x);
}
