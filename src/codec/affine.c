/* SPDX-License-Identifier: MIT */
/* affine: MLX's groups, value = scale * code + bias. */
#include "codec/row_kernels.h"

#include <math.h>

/*
 * The rule of mx.quantize on the CPU, operation by operation: the end of the range that lies further from zero
 * gets code 0 and is met exactly, and the scale is adjusted so that zero falls on a code too. Codes come from
 * the scale and bias before they are rounded. Divisions, because a reciprocal changes codes.
 */
static void encode_group(const float *x, uint32_t n, uint32_t top, uint8_t *code, float *scale, float *bias)
{
    float lo = x[0], hi = x[0];
    for (uint32_t i = 1; i < n; i++) {
        if (x[i] < lo) lo = x[i];
        if (x[i] > hi) hi = x[i];
    }
    float limit = (float)top;
    float s = (hi - lo) / limit, edge = lo;
    if (s < 1e-7f) s = 1e-7f;
    if (!(fabsf(lo) > fabsf(hi))) {
        edge = hi;
        s = -s;
    }
    float b = 0, q0 = rintf(edge / s);
    if (q0 != 0) {
        s = edge / q0;
        b = edge;
    }
    for (uint32_t i = 0; i < n; i++) {
        float q = rintf((x[i] - b) / s);
        code[i] = (uint8_t)(q > 0 ? q < limit ? q : limit : 0);
    }
    *scale = s;
    *bias = b;
}

void quire_encode_affine_c(const quire_coder *coder, const float *x, quire_coded_row *row,
                           quire_counts *counts)
{
    uint32_t top = (1u << coder->codec->info.bits) - 1;
    for (uint32_t g = 0; g < coder->n_groups; g++) {
        uint32_t at = g * coder->group;
        float s, b;
        encode_group(x + at, quire_group_size(coder, g), top, row->code + at, &s, &b);
        row->scale[g] = quire_store_scale(s, counts);
        row->bias[g] = quire_store_scale(b, counts);
    }
}
