/* SPDX-License-Identifier: MIT */
/* calibrate: the "c:" codecs, K rows without their static mean and with weighted channels. */
#include "codec/lanes.h"
#include "codec/ops.h"

/*
 * Much of K's energy is constant per channel, and channels where K is large are those where Q is small. So a row is
 * coded as w (k - m); the query is divided by w, which leaves the score as it was.
 */

/* One of the two ways to code a row, and its error where queries would notice it. */
typedef struct attempt {
    quire_coded_row row;
    quire_counts counts;
    float error;
} attempt;

void quire_weigh_c(const float *x, const float *mean, const float *weight, uint32_t d, float *y)
{
    for (uint32_t i = 0; i < d; i++) y[i] = weight[i] * (mean ? x[i] - mean[i] : x[i]);
}

void quire_unweigh_c(float *x, const float *mean, float mean_part, const float *weight, uint32_t d)
{
    for (uint32_t i = 0; i < d; i++) x[i] = x[i] / weight[i] + mean[i] * mean_part;
}

float quire_weighted_c(const float *x, const float *y, const float *weight, uint32_t d)
{
    float e[QUIRE_MAX_D];
    for (uint32_t i = 0; i < d; i++) e[i] = weight[i] * (y[i] - x[i]);
    return quire_lane_dot(e, e, d);
}

static void try_row(const quire_coder *coder, const quire_calibration *cal, const float *x, bool with_mean,
                    attempt *a)
{
    const quire_codec_ops *ops = quire_codec_ops_for(coder->d);
    float y[QUIRE_MAX_D];
    ops->weigh(x, with_mean ? cal->mean : NULL, cal->weight, coder->d, y);
    quire_rotate(coder, y);
    a->counts = (quire_counts){0};
    coder->codec->encode(coder, y, &a->row, &a->counts);
    if (!with_mean) a->row.scale[0] |= QUIRE_F16_SIGN;

    quire_decode_row(coder, cal, &a->row, y);
    a->error = ops->weighted(x, y, cal->q_rms, coder->d);
}

/*
 * The first tokens of a text (attention sinks) do not have the mean that all others have; subtracting it would give
 * them a larger error than none. So each row says whether its mean was taken out: the sign bit of its scale is set
 * if it was not.
 */
void quire_encode_calibrated(const quire_coder *coder, const quire_calibration *cal, const float *x,
                             quire_coded_row *row, quire_counts *counts)
{
    attempt with, without;
    try_row(coder, cal, x, true, &with);
    try_row(coder, cal, x, false, &without);
    const attempt *best = without.error < with.error ? &without : &with;
    memcpy(row->code, best->row.code, coder->d);
    row->scale[0] = best->row.scale[0];
    counts->saturated += best->counts.saturated;
}

bool quire_row_is_centred(const quire_coder *coder, const quire_coded_row *row)
{
    return (coder->codec->info.flags & QUIRE_CODEC_CALIBRATED) && !(row->scale[0] & QUIRE_F16_SIGN);
}

void quire_uncalibrate(const quire_coder *coder, const quire_calibration *cal, float *x, float mean_part)
{
    quire_codec_ops_for(coder->d)->unweigh(x, cal->mean, mean_part, cal->weight, coder->d);
}

void quire_prepare_query(const quire_coder *coder, const quire_calibration *cal, const float *q, float *out,
                         float *mean_score)
{
    uint32_t d = coder->d;
    bool calibrated = quire_is_calibrated(coder, cal);
    *mean_score = calibrated ? quire_codec_ops_for(d)->dot(q, cal->mean, d) : 0;
    for (uint32_t i = 0; i < d; i++) out[i] = calibrated ? q[i] / cal->weight[i] : q[i];
    quire_rotate(coder, out);
}

void quire_finish_value(const quire_coder *coder, const quire_calibration *cal, float *acc, float mean_sum)
{
    quire_unrotate(coder, acc);
    if (quire_is_calibrated(coder, cal)) quire_uncalibrate(coder, cal, acc, mean_sum);
}
