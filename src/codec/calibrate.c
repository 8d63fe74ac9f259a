/* SPDX-License-Identifier: MIT */
/* calibrate: the "c:" codecs, K rows without the nearest of a head's means and with weighted channels. */
#include "simd/lane_dot.h"
#include "codec/row_kernels.h"

/*
 * Much of K's energy is the same for many rows, and channels where K is large are those where Q is small. So a row is
 * coded as w (k - m); the query is divided by w, which leaves the score as it was.
 */

void quire_weigh_c(const float *x, const float *mean, const float *weight, uint32_t d, float *y)
{
    for (uint32_t i = 0; i < d; i++) y[i] = weight[i] * (mean ? x[i] - mean[i] : x[i]);
}

float quire_distance_c(const float *x, const float *mean, const float *weight, uint32_t d)
{
    float y[QUIRE_MAX_D];
    quire_weigh_c(x, mean, weight, d, y);
    return quire_lane_dot(y, y, d);
}

void quire_unweigh_c(float *x, const float *weight, uint32_t d)
{
    for (uint32_t i = 0; i < d; i++) x[i] = x[i] / weight[i];
}

void quire_add_mean_c(float *x, const float *mean, float factor, uint32_t d)
{
    for (uint32_t i = 0; i < d; i++) x[i] = x[i] + mean[i] * factor;
}

/*
 * The error of a code is in proportion to the length of what is coded, so the shortest rest is the best. None of the means
 * may be near: the first tokens of a text (attention sinks) are unlike all others.
 */
uint32_t quire_nearest_mean(const quire_calibration *cal, const float *x, uint32_t d, float *distance)
{
    const quire_row_kernels *kernels = quire_row_kernels_for(d);
    uint32_t nearest = 0;
    float least = kernels->distance(x, NULL, cal->weight, d);
    for (uint32_t i = 1; i <= cal->n_means; i++) {
        float e = kernels->distance(x, quire_mean_at(cal, d, i), cal->weight, d);
        if (!(e < least)) continue;
        least = e;
        nearest = i;
    }
    if (distance) *distance = least;
    return nearest;
}

void quire_encode_calibrated(const quire_coder *coder, const quire_calibration *cal, const float *x,
                             quire_coded_row *row, quire_counts *counts)
{
    uint32_t d = coder->d, nearest = quire_nearest_mean(cal, x, d, NULL);
    float y[QUIRE_MAX_D];
    quire_row_kernels_for(d)->weigh(x, quire_mean_at(cal, d, nearest), cal->weight, d, y);
    quire_rotate(coder, y);
    coder->codec->encode(coder, y, row, counts);
    row->scale[0] |= (uint16_t)nearest;
}

uint32_t quire_row_mean(const quire_coder *coder, const quire_coded_row *row)
{
    return quire_codec_is_calibrated(coder->codec) ? row->scale[0] & QUIRE_MEAN_BITS : 0;
}

void quire_uncalibrate(const quire_coder *coder, const quire_calibration *cal, uint32_t mean, float *x)
{
    const quire_row_kernels *kernels = quire_row_kernels_for(coder->d);
    const float *m = quire_mean_at(cal, coder->d, mean);
    kernels->unweigh(x, cal->weight, coder->d);
    if (m) kernels->add_mean(x, m, 1, coder->d);
}

void quire_prepare_query(const quire_coder *coder, const quire_calibration *cal, const float *q, float *out,
                         float *mean_score)
{
    uint32_t d = coder->d;
    memset(mean_score, 0, QUIRE_MEAN_SLOTS * sizeof *mean_score);
    if (!quire_is_calibrated(coder, cal)) {
        if (quire_rotated(coder, q, out) == q && q != out) memcpy(out, q, d * sizeof *out);
        quire_apply_unit(coder, out);
        return;
    }
    for (uint32_t i = 1; i <= cal->n_means; i++)
        mean_score[i] = quire_row_kernels_for(d)->dot(q, quire_mean_at(cal, d, i), d);
    for (uint32_t i = 0; i < d; i++) out[i] = q[i] / cal->weight[i];
    quire_rotate(coder, out);
}

void quire_finish_value(const quire_coder *coder, const quire_calibration *cal, float *acc,
                        const float *mean_sum)
{
    quire_unrotate(coder, acc);
    quire_apply_unit(coder, acc);
    if (!quire_is_calibrated(coder, cal)) return;
    quire_uncalibrate(coder, cal, 0, acc);
    for (uint32_t i = 1; i <= cal->n_means; i++)
        quire_row_kernels_for(coder->d)->add_mean(acc, quire_mean_at(cal, coder->d, i), mean_sum[i],
                                                  coder->d);
}
