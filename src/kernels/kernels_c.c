/* SPDX-License-Identifier: MIT */
/* kernels: portable C. A tile is expanded into scratch, row after row, then multiplied; this is the reference. */
#include "kernels/kernels.h"

#include "codec/lanes.h"

static void score_c(const quire_format *f, const void *tile, uint32_t n_rows, const float *q, size_t q_stride,
                    uint32_t n_q, float *scores, uint64_t *centred, float *scratch)
{
    uint32_t d = f->coder.d;
    uint64_t mean = 0;
    for (uint32_t t = 0; t < n_rows; t++) {
        if (quire_tile_expand(f, tile, t, scratch)) mean |= (uint64_t)1 << t;
        for (uint32_t i = 0; i < n_q; i++)
            scores[i * QUIRE_TILE_ROWS + t] = quire_lane_dot(q + i * q_stride, scratch, d);
    }
    *centred = mean;
}

static void mix_c(const quire_format *f, const void *tile, uint32_t n_rows, uint32_t d_out, const float *p,
                  const uint64_t *visible, uint32_t n_q, float *acc, size_t acc_stride, float *mean_sum,
                  float *scratch)
{
    for (uint32_t t = 0; t < n_rows; t++) {
        uint64_t bit = (uint64_t)1 << t, any = 0;
        for (uint32_t i = 0; i < n_q; i++) any |= visible[i] & bit;
        if (!any) continue;
        bool centred = quire_tile_expand(f, tile, t, scratch);
        for (uint32_t i = 0; i < n_q; i++) {
            if (!(visible[i] & bit)) continue;
            float weight = p[i * QUIRE_TILE_ROWS + t], *row = acc + i * acc_stride;
            for (uint32_t c = 0; c < d_out; c++) row[c] += weight * scratch[c];
            if (centred) mean_sum[i] += weight;
        }
    }
}

const quire_kernels *quire_kernels_get(void)
{
    static const quire_kernels table = {.score = score_c, .mix = mix_c};
    return &table;
}
