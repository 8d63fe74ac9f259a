/* SPDX-License-Identifier: MIT */
/* kernels: the work on one tile, as a table of functions. Every slot is always filled. */
#ifndef QUIRE_KERNELS_KERNELS_H
#define QUIRE_KERNELS_KERNELS_H

#include "tile/tile.h"

/* Rows of queries that one kernel call may carry. */
#define QUIRE_MAX_QUERY_ROWS 32u

/* Floats of scratch that a kernel may use for a head size. */
static inline size_t quire_kernel_scratch(uint32_t d_pad)
{
    return (size_t)QUIRE_TILE_ROWS * d_pad;
}

/*
 * score: dot products of n_q prepared queries (rows of d floats, q_stride apart) with rows [0, n_rows) of a tile:
 * scores[i * 64 + t]. Bit t of *centred: the mean is taken out of row t. The value of one (i, t) does not depend on
 * any other query or row.
 *
 * mix: acc[i * acc_stride + c] += sum over t, ascending, of p[i * 64 + t] * value(t, c), for the rows t whose bit
 * is set in visible[i]; other rows are not touched, whatever they hold. c runs over d_out values. mean_sum[i] is
 * raised by the sum of p over the visible rows that have their mean taken out.
 *
 * A format of side K may be mixed: V is then the first d_out channels of K.
 */
typedef void quire_score_fn(const quire_format *format, const void *tile, uint32_t n_rows, const float *q,
                            size_t q_stride, uint32_t n_q, float *scores, uint64_t *centred, float *scratch);
typedef void quire_mix_fn(const quire_format *format, const void *tile, uint32_t n_rows, uint32_t d_out,
                          const float *p, const uint64_t *visible, uint32_t n_q, float *acc,
                          size_t acc_stride, float *mean_sum, float *scratch);

typedef struct quire_kernels {
    quire_score_fn *score;
    quire_mix_fn *mix;
} quire_kernels;

/* The best table for this machine. */
const quire_kernels *quire_kernels_get(void);

#define QUIRE_LOG2_E 1.44269504f
#define QUIRE_LN_2 0.693147181f

/*
 * 2^x for x <= 0, relative error below 3e-7 down to 2^-126, 0 below. Every instruction set uses this polynomial:
 * the series of 2^f on [-1/2, 1/2] to degree 6, whose remainder is (ln 2 / 2)^7 / 7! = 1.2e-7.
 */
static inline float quire_exp2(float x)
{
    if (!(x >= -126.0f)) return x < -126.0f ? 0.0f : x; /* NaN stays NaN */
    float rounded = x + 12582912.0f;                    /* 1.5 * 2^23: the sum rounds x to a whole number */
    int32_t n = (int32_t)(quire_bits_of(rounded) - 0x4b400000u);
    float f = x - (rounded - 12582912.0f);
    float r = 1.54035304e-4f;
    r = r * f + 1.33335581e-3f;
    r = r * f + 9.61812911e-3f;
    r = r * f + 5.55041087e-2f;
    r = r * f + 2.40226507e-1f;
    r = r * f + 6.93147181e-1f;
    r = r * f + 1.0f;
    return quire_float_of((uint32_t)(n + 127) << 23) * r;
}

#endif
