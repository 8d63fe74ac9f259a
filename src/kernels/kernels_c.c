/* SPDX-License-Identifier: MIT */
/* kernels: portable C. A tile is expanded row after row, then multiplied as floats; this is the reference. */
#include "kernels/kernels.h"

#include "simd/lane_dot.h"

static void load_c(const quire_tile_format *f, quire_queries *q)
{
    (void)f;
    for (uint32_t i = 0; i < q->n; i++) q->unit[i] = 1, q->skip_r_below[i] = 0;
}

static void score_c(const quire_source *k, const quire_queries *q, uint32_t first, uint32_t n,
                    uint32_t partial, float *scores, void *scratch)
{
    (void)partial;
    float *y = (float *)scratch;
    for (uint32_t t = 0; t < QUIRE_TILE_ROWS; t++) {
        uint32_t mean = quire_tile_expand(k->format, k->tile, t, y);
        for (uint32_t i = 0; i < n; i++) {
            float s = quire_lane_dot(q->row + (size_t)(first + i) * q->d, y, q->d);
            scores[i * QUIRE_TILE_ROWS + t] =
                mean ? s + q->mean_score[(size_t)(first + i) * QUIRE_MEAN_SLOTS + mean] : s;
        }
    }
}

static void softmax_update_c(float *scores, const uint64_t *visible, const float *unit, uint32_t n,
                             quire_softmax *s, float *factor)
{
    for (uint32_t i = 0; i < n; i++) {
        float *x = scores + (size_t)i * QUIRE_TILE_ROWS, top = -QUIRE_LARGEST_SCORE * 2, sum = 0;
        factor[i] = 0;
        if (!visible[i]) continue;
        for (uint32_t t = 0; t < QUIRE_TILE_ROWS; t++) {
            x[t] *= unit[i];
            if (x[t] > QUIRE_LARGEST_SCORE) x[t] = QUIRE_LARGEST_SCORE;
            if (x[t] < -QUIRE_LARGEST_SCORE) x[t] = -QUIRE_LARGEST_SCORE;
            if (visible[i] >> t & 1 && !(x[t] <= top)) top = x[t];
        }
        for (uint32_t t = 0; t < QUIRE_TILE_ROWS; t++) {
            x[t] = visible[i] >> t & 1 ? quire_exp2(x[t] - top) : 0;
            sum += x[t];
        }
        float most = s->max[i] > top ? s->max[i] : top, shrink = quire_exp2(s->max[i] - most);
        factor[i] = quire_exp2(top - most);
        for (size_t c = 0; c < s->stride && shrink != 1; c++) s->acc[i * s->stride + c] *= shrink;
        float *total = s->sum + (size_t)i * 16; /* the first lane holds all of it */
        *total = *total * shrink + factor[i] * sum;
        s->max[i] = most;
    }
}

static void mix_c(const quire_source *v, uint32_t d_out, const float *p, const uint64_t *visible,
                  const float *factor, uint32_t n, float *acc, size_t stride, void *scratch)
{
    float *y = (float *)scratch;
    for (uint32_t t = 0; t < QUIRE_TILE_ROWS; t++) {
        uint64_t any = 0;
        for (uint32_t i = 0; i < n; i++) any |= visible[i];
        if (!(any >> t & 1)) continue;
        quire_tile_expand(v->format, v->tile, t, y);
        for (uint32_t i = 0; i < n; i++) {
            if (!(visible[i] >> t & 1)) continue;
            float weight = p[i * QUIRE_TILE_ROWS + t] * factor[i], *row = acc + i * stride;
            for (uint32_t c = 0; c < d_out; c++) row[c] += weight * y[c];
        }
    }
}

static void add_bias_sums_c(const quire_tile_format *f, float *acc)
{
    (void)f;
    (void)acc;
}

#define EVERY(x)                                          \
    {                                                     \
        x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x \
    }

const quire_kernels quire_kernels_c = {
    .load_queries = load_c,
    .softmax_update = softmax_update_c,
    .add_bias_sums = add_bias_sums_c,
    .score = EVERY(score_c),
    .mix = EVERY(mix_c),
};
