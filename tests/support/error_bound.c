/* SPDX-License-Identifier: MIT */
/* error_bound: exact attention and the bound on its error. */
#include "error_bound.h"

#include "codec/tv.h"
#include "kernels/kernels.h"

#include <assert.h>
#include <math.h>

#define ROUNDING (1.0 / (1 << 24)) /* relative, of one operation in f32 */

/* Relative errors of powers of 2: those of lanes, and of the version in C that folds splits (simd/exp2.h). */
#define LANES_EXP2 3.1e-6
#define PLAIN_EXP2 3.1e-7

/* Roundings of f32 that a score goes through, each relative to its largest possible size: in kernels for codes 4 sqrt(d)
 * of the query's last bits, 6 for each of at most d / 32 parts, and 26 for rotations, the conversion to log 2 and the
 * difference to the largest score; in those for floats one for each channel. */
static double score_roundings(uint32_t d)
{
    return d + 64;
}

/* The same of values: sums of weights, accumulators, biases, the rotation of the output. */
#define VALUE_ROUNDINGS 256

/* By tile: what units of weights are lost if they are too small for a f32 (mix_tmpl.h). 64 weights of 32600 are 2.1e6 units,
 * each below 2^-126, and the range is at least half of 6e-8, the smallest scale: 8.3e-25. */
#define LOST 1e-24

static double largest_of_group(const quire_codec *codec, double scale, double bias)
{
    double top = (double)((1u << codec->info.bits) - 1);
    if (codec->values == QUIRE_VALUES_TABLE) return 127 * fabs(scale);
    if (codec->has_bias) return fmax(fabs(bias), fabs(bias + scale * top));
    return fabs(scale) * (top + 1) / 2;
}

double bound_range(const quire_tile_format *format, const quire_coded_row *row)
{
    const quire_coder *coder = &format->coder;
    bool calibrated = coder->codec->info.flags & QUIRE_CODEC_CALIBRATED;
    double squares = 0;
    for (uint32_t c = 0; c < coder->d && !coder->n_groups; c++)
        squares += (double)row->value[c] * (double)row->value[c];
    for (uint32_t g = 0; g < coder->n_groups; g++) {
        uint32_t begin = g * coder->group, end = begin + coder->group;
        uint16_t bits = calibrated ? row->scale[g] & (uint16_t)~QUIRE_MEAN_BITS : row->scale[g];
        double bias = coder->codec->has_bias ? (double)quire_f16_to_f32(row->bias[g]) : 0;
        double most = largest_of_group(coder->codec, (double)quire_f16_to_f32(bits), bias);
        squares += most * most * ((end < coder->d ? end : coder->d) - begin);
    }
    return sqrt(squares);
}

static double norm_of(const float *x, uint32_t d)
{
    double squares = 0;
    for (uint32_t c = 0; c < d; c++) squares += (double)x[c] * (double)x[c];
    return sqrt(squares);
}

/* The norm of the query as the kernels see it; and by mean, the norms of the query and of the mean multiplied. */
static double prepared_norm(const bound_job *job, double *mean_size)
{
    float row[QUIRE_MAX_D], mean_score[QUIRE_MEAN_SLOTS];
    uint32_t d = job->k_format->coder.d;
    quire_calibration cal = quire_tile_format_head(job->k_format, 0);
    quire_prepare_query(&job->k_format->coder, &cal, job->q, row, mean_score);
    for (uint32_t i = 0; i < QUIRE_MEAN_SLOTS; i++) {
        const float *mean = quire_mean_at(&cal, d, i);
        mean_size[i] = mean ? norm_of(mean, d) * norm_of(job->q, d) : 0;
    }
    return norm_of(row, d);
}

/* A score, and the size that it could have reached. */
typedef struct sized_score {
    double score, size;
} sized_score;

static sized_score score_of(const bound_job *job, uint32_t t, double norm, const double *mean_size)
{
    uint32_t d = job->k_format->coder.d;
    const float *k = job->k + (size_t)t * d;
    double x = 0, scale = (double)job->scale;
    for (uint32_t c = 0; c < d; c++) x += (double)job->q[c] * (double)k[c];
    sized_score s = {x * scale, fabs(scale) * (norm * job->k_range[t] + mean_size[job->k_mean[t]])};
    if (job->softcap > 0) {
        s.score = (double)job->softcap * tanh(s.score / (double)job->softcap);
        s.size += (double)job->softcap;
    }
    double terms = (double)job->alibi * ((double)t - (job->n - 1));
    s.score += terms;
    s.size += fabs(terms);
    if (job->mask) {
        s.score += (double)job->mask[t];
        s.size += fabs((double)job->mask[t]);
    }
    return s;
}

/* What a weight may be wrong by, as an error of its score. */
static double weight_error(const bound_job *job)
{
    double lanes = job->portable ? PLAIN_EXP2 : LANES_EXP2;
    return lanes * (2 + job->tiles_of_split) + (PLAIN_EXP2 + 2 * ROUNDING) * (job->n_splits + 1) +
           64 * ROUNDING;
}

/* What rounding weights to integers, and sums to f32, does to values, relative to their range. */
static double value_error(const bound_job *job)
{
    const quire_codec *codec = job->v_format->coder.codec;
    double e = (VALUE_ROUNDINGS + 2.0 * job->n_splits) * ROUNDING;
    if (job->portable) return e + QUIRE_TILE_ROWS * job->tiles_of_split * ROUNDING;
    if (codec->values == QUIRE_VALUES_FLOAT) return e + QUIRE_TILE_ROWS * ROUNDING;
    return e + QUIRE_MIX_ERROR * (codec->has_bias ? 2 : 1);
}

void bound_attend(const bound_job *job, bound_answer *a)
{
    enum { MOST = 8192 };
    static double score[MOST], error[MOST];
    double mean_size[QUIRE_MEAN_SLOTS], norm = prepared_norm(job, mean_size), top = (double)job->sink,
                                        sum = 0, most_range = 0, most_key = 0;
    bool codes = job->k_format->coder.codec->values != QUIRE_VALUES_FLOAT;
    double roundings = score_roundings(job->k_format->coder.d) * ROUNDING;
    double without_r = (double)QUIRE_SKIP_R_ERROR * sqrt(job->k_format->coder.d);
    const quire_tv *tv = job->v_format->coder.codec->tv;
    double unit = tv ? (double)tv->unit : 1; /* prepared queries have that of K */
    double every = weight_error(job) + (codes && !job->portable ? without_r : 0);
    assert(job->n <= MOST);
    for (uint32_t t = 0; t < job->n; t++) {
        sized_score s = score_of(job, t, norm, mean_size);
        score[t] = s.score;
        error[t] = every + roundings * s.size;
        if (s.score > top) top = s.score;
    }
    for (uint32_t t = 0; t < job->n; t++) sum += exp(score[t] - top);
    a->lse = top + log(sum);
    double sink = exp((double)job->sink - top), moved = sink, moved_alone = 0;
    double total = top + log(sum + sink);
    for (uint32_t t = 0; t < job->n; t++) {
        if (score[t] == -INFINITY) continue;
        moved += exp(score[t] - top + error[t]);
        moved_alone += exp(score[t] - top + error[t]);
    }
    double shift = log(moved / (sum + sink)) + (sink > 0 ? 4 * ROUNDING * fabs((double)job->sink) : 0);
    a->lse_allowed = log(moved_alone / sum) + 8 * ROUNDING * (fabs(a->lse) + 1);
    a->allowed = a->range = 0;
    memset(a->out, 0, sizeof a->out);
    for (uint32_t t = 0; t < job->n; t++) {
        if (score[t] == -INFINITY) continue;
        double weight = exp(score[t] - total), most = exp(score[t] - total + error[t] + shift);
        double v_range = unit * job->v_range[t];
        a->range += weight * v_range;
        a->allowed += (most - weight + value_error(job) * most) * v_range;
        most_range = fmax(most_range, v_range);
        most_key = fmax(most_key, job->k_range[t]);
        for (uint32_t c = 0; c < job->d_v; c++)
            a->out[c] += weight * (double)job->v[(size_t)t * job->d_v + c];
    }
    a->allowed += LOST * job->tiles_of_split * job->n_splits * most_range + 1e-30;
    double q_size = fmax(norm, norm_of(job->q, job->k_format->coder.d)) *
                    fmax(1, fmax(fabs((double)job->scale), most_key));
    if (!(fabs((double)job->scale) <= 1e22)) a->allowed = INFINITY;
    if (!(q_size < (double)QUIRE_LARGEST_SCORE)) a->allowed = INFINITY; /* products may overflow */
}
