/* SPDX-License-Identifier: MIT */
/* row_scaled: Quire's own codecs (r) and TurboQuant (tq): a rotated row, a small table, one scale. */
#include "simd/lane_dot.h"
#include "codec/row_kernels.h"

#include <math.h>

/*
 * Lloyd-Max tables of the normal distribution, which is what a rotated row looks like, scaled so that the last entry
 * is 127 and rounded: kernels multiply them as bytes. The rounding costs at most 1.2 % of squared error (5 bits).
 */
const int8_t quire_table_r2[4] = {-127, -38, 38, 127};
const int8_t quire_table_r3[8] = {-127, -79, -45, -14, 14, 45, 79, 127};
const int8_t quire_table_r4[16] = {-127, -96, -75, -58, -44, -31, -18, -6, 6, 18, 31, 44, 58, 75, 96, 127};
const int8_t quire_table_r5[32] = {
    -127, -105, -90, -79, -70, -61, -54, -47, -41, -35, -29, -24, -18, -13, -8,  -3,
    3,    8,    13,  18,  24,  29,  35,  41,  47,  54,  61,  70,  79,  90,  105, 127,
};
const int8_t quire_table_r6[64] = {
    -127, -110, -99, -91, -84, -78, -73, -68, -64, -60, -56, -53, -49, -46, -43, -40,
    -38,  -35,  -32, -30, -27, -24, -22, -20, -17, -15, -13, -10, -8,  -6,  -3,  -1,
    1,    3,    6,   8,   10,  13,  15,  17,  20,  22,  24,  27,  30,  32,  35,  38,
    40,   43,   46,  49,  53,  56,  60,  64,  68,  73,  78,  84,  91,  99,  110, 127,
};

/* What the last entry of the unscaled table is, by bits: unit / 127 is the scale of a row whose mean square is 1. */
static const float unit[7] = {0, 0, 1.51042f, 2.15195f, 2.73259f, 3.26073f, 3.74410f};

const float quire_row_starts[QUIRE_N_STARTS] = {0.75f, 0.875f, 1.0f, 1.125f, 1.25f};

float quire_first_scale(float energy, uint32_t d, uint32_t bits)
{
    return sqrtf(energy / (float)d) * (unit[bits] / 127.0f);
}

static bool usable(float s)
{
    return s > 0 && isfinite(s);
}

float quire_dot_c(const float *a, const float *b, uint32_t n)
{
    return quire_lane_dot(a, b, n);
}

/*
 * below: how many middles between entries lie below each value; one midway between two entries takes the lower one.
 * Counting them is more work than a search by halves, but compilers turn it into vectors: twice as fast for 3 and 4 bits.
 */
static quire_row_dots nearest(const quire_row_work *w, float s, int32_t *below, float *c)
{
    float v[QUIRE_MAX_D], middle[63];
    uint32_t d = w->d, n = (1u << w->bits) - 1;
    for (uint32_t k = 0; k < n; k++) middle[k] = (float)(w->table[k] + w->table[k + 1]) / 2;
    for (uint32_t i = 0; i < d; i++) {
        v[i] = w->x[i] / s;
        below[i] = 0;
    }
    for (uint32_t k = 0; k < n; k++)
        for (uint32_t i = 0; i < d; i++) below[i] += v[i] > middle[k];
    for (uint32_t i = 0; i < d; i++) c[i] = (float)w->table[below[i]];
    return (quire_row_dots){quire_lane_dot(w->x, c, d), quire_lane_dot(c, c, d)};
}

quire_row_dots quire_assign_c(const quire_row_work *w, float s, uint8_t *code)
{
    float c[QUIRE_MAX_D];
    int32_t below[QUIRE_MAX_D];
    quire_row_dots dots = nearest(w, s, below, c);
    for (uint32_t i = 0; i < w->d; i++) code[i] = (uint8_t)below[i];
    return dots;
}

static float least_squares(quire_row_dots dots)
{
    return dots.xc / dots.cc;
}

void quire_refit_c(const quire_row_work *w, float s[QUIRE_N_STARTS], float *error)
{
    float c[QUIRE_MAX_D], rest[QUIRE_MAX_D];
    int32_t below[QUIRE_MAX_D];
    for (uint32_t k = 0; k < QUIRE_N_STARTS; k++) {
        s[k] = least_squares(nearest(w, s[k], below, c));
        if (!error) continue;
        for (uint32_t i = 0; i < w->d; i++) rest[i] = w->x[i] - s[k] * c[i];
        error[k] = quire_lane_dot(rest, rest, w->d);
    }
}

/* A row before its scale is known. */
typedef struct start {
    const quire_row_kernels *kernels;
    float energy, scale; /* x.x, and the scale that a normal row would have */
} start;

/* False: the row is zero, or so small that its squares are. */
static bool begin(quire_row_work *w, const quire_coder *coder, const float *x, start *from)
{
    uint32_t bits = coder->codec->info.bits;
    w->x = x;
    w->d = coder->d;
    w->bits = bits;
    w->table = coder->codec->table;
    from->kernels = quire_row_kernels_for(coder->d);
    from->energy = from->kernels->dot(x, x, w->d);
    from->scale = quire_first_scale(from->energy, w->d, bits);
    return usable(from->scale);
}

static bool all_usable(const float s[QUIRE_N_STARTS])
{
    bool all = true;
    for (uint32_t k = 0; k < QUIRE_N_STARTS; k++) all &= usable(s[k]);
    return all;
}

/*
 * The scale with the least squared error. Assigning codes and fitting the scale in turn gets stuck in the nearest of
 * many shallow minima, so it starts from five places; against one start that takes a fifth off the error. 0: none.
 */
static float search(const quire_row_work *w, const start *from)
{
    float s[QUIRE_N_STARTS], error[QUIRE_N_STARTS];
    for (uint32_t k = 0; k < QUIRE_N_STARTS; k++) s[k] = quire_row_starts[k] * from->scale;
    if (!all_usable(s)) return 0;
    from->kernels->refit(w, s, NULL);
    if (!all_usable(s)) return 0;
    from->kernels->refit(w, s, error);
    if (!all_usable(s)) return 0;
    uint32_t best = 0;
    for (uint32_t k = 1; k < QUIRE_N_STARTS; k++) best = error[k] < error[best] ? k : best;
    return s[best];
}

/* Least squares shrinks coarse rows (2 bits: by an eighth), and the shrinking does not average out. So V, and K with few
 * bits, take the scale that keeps x.y = x.x. */
bool quire_row_shrinks(const quire_coder *coder)
{
    return coder->side == QUIRE_K && coder->codec->info.bits >= 4;
}

static void zero_row(const quire_coder *coder, quire_coded_row *row)
{
    memset(row->code, 1 << (coder->codec->info.bits - 1), coder->d);
    row->scale[0] = 0;
}

/* Stores the scale; a row without a usable one becomes zero. */
static void finish(const quire_coder *coder, quire_coded_row *row, float s, quire_counts *counts)
{
    if (usable(s))
        row->scale[0] = quire_store_scale(s, counts);
    else
        zero_row(coder, row);
}

/*
 * Calibrated rows: half of a step of their scale is 1/128 of it, more than 6 bits of code bear. So the codes, which were taken
 * with the scale s, follow the scale that is stored; fit: what would be stored exactly.
 */
static void finish_calibrated(const quire_coder *coder, const quire_row_work *w, const start *from, float s,
                              float fit, quire_coded_row *row, quire_counts *counts)
{
    row->scale[0] = usable(fit) ? quire_store_row_scale(coder->codec, fit, counts) : 0;
    float stored = quire_f16_to_f32(row->scale[0]);
    if (stored > 0)
        from->kernels->assign(w, quire_row_shrinks(coder) ? stored : s * (stored / fit), row->code);
    else
        zero_row(coder, row);
}

void quire_encode_r(const quire_coder *coder, const float *x, quire_coded_row *row, quire_counts *counts)
{
    quire_row_work w;
    start from;
    float s = begin(&w, coder, x, &from) ? search(&w, &from) : 0;
    if (!usable(s)) {
        zero_row(coder, row);
        return;
    }
    quire_row_dots dots = from.kernels->assign(&w, s, row->code);
    float fit = quire_row_shrinks(coder) ? least_squares(dots) : from.energy / dots.xc;
    if (quire_codec_is_calibrated(coder->codec))
        finish_calibrated(coder, &w, &from, s, fit, row, counts);
    else
        finish(coder, row, fit, counts);
}

/* TurboQuant: no search; the scale gives the row its length back. */
void quire_encode_tq(const quire_coder *coder, const float *x, quire_coded_row *row, quire_counts *counts)
{
    quire_row_work w;
    start from;
    if (!begin(&w, coder, x, &from)) {
        zero_row(coder, row);
        return;
    }
    quire_row_dots dots = from.kernels->assign(&w, from.scale, row->code);
    finish(coder, row, sqrtf(from.energy) / sqrtf(dots.cc), counts);
}

/* 127, not 128: the codes are symmetric. They are taken with the rounded scale, so the error is half a step. */
void quire_encode_r8_c(const quire_coder *coder, const float *x, quire_coded_row *row, quire_counts *counts)
{
    float most = 0;
    for (uint32_t i = 0; i < coder->d; i++)
        if (fabsf(x[i]) > most) most = fabsf(x[i]);
    row->scale[0] = quire_store_row_scale(coder->codec, most / 127.0f, counts);
    float s = quire_f16_to_f32(row->scale[0]);
    for (uint32_t i = 0; i < coder->d; i++) {
        float q = s > 0 ? rintf(x[i] / s) : 0;
        if (q > 127) q = 127;
        if (q < -127) q = -127;
        row->code[i] = (uint8_t)((int)q + 128);
    }
}
