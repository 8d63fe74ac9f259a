/* SPDX-License-Identifier: MIT */
/* row: Quire's own codecs (r) and TurboQuant (tq): a rotated row, a small table, one scale. */
#include "codec/lanes.h"
#include "codec/registry.h"

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

/* A row on its way: x rotated, c the table entries of its codes. */
typedef struct work {
    const float *x;
    uint32_t d, n; /* values, table entries */
    const int8_t *table;
    float energy, start; /* x.x and the scale that a normal row would have */
    float middle[63];    /* between neighbouring entries */
    float c[QUIRE_MAX_D];
} work;

static bool usable(float s)
{
    return s > 0 && isfinite(s);
}

/* False: the row is zero, or so small that its squares are. */
static bool begin(work *w, const quire_coder *coder, const float *x)
{
    uint32_t bits = coder->codec->info.bits;
    w->x = x;
    w->d = coder->d;
    w->n = 1u << bits;
    w->table = coder->codec->table;
    for (uint32_t k = 0; k + 1 < w->n; k++) w->middle[k] = (float)(w->table[k] + w->table[k + 1]) / 2;
    w->energy = quire_lane_dot(x, x, w->d);
    w->start = sqrtf(w->energy / (float)w->d) * (unit[bits] / 127.0f);
    return usable(w->start);
}

/*
 * Codes and c for scale s. A value midway between two entries takes the lower one. Counting the middles below each
 * value is more work than a search by halves, but compilers turn it into vectors: twice as fast for 3 and 4 bits.
 */
static void assign(work *w, float s, uint8_t *code)
{
    float v[QUIRE_MAX_D];
    int32_t below[QUIRE_MAX_D];
    for (uint32_t i = 0; i < w->d; i++) {
        v[i] = w->x[i] / s;
        below[i] = 0;
    }
    for (uint32_t k = 0; k + 1 < w->n; k++)
        for (uint32_t i = 0; i < w->d; i++) below[i] += v[i] > w->middle[k];
    for (uint32_t i = 0; i < w->d; i++) {
        code[i] = (uint8_t)below[i];
        w->c[i] = (float)w->table[below[i]];
    }
}

static float least_squares(const work *w)
{
    return quire_lane_dot(w->x, w->c, w->d) / quire_lane_dot(w->c, w->c, w->d);
}

static float squared_error(const work *w, float s)
{
    float rest[QUIRE_MAX_D];
    for (uint32_t i = 0; i < w->d; i++) rest[i] = w->x[i] - s * w->c[i];
    return quire_lane_dot(rest, rest, w->d);
}

/*
 * The scale with the least squared error. Assigning codes and fitting the scale in turn gets stuck in the nearest of
 * many shallow minima, so it starts from five places; against one start that takes a fifth off the error. 0: none.
 */
static float search(work *w, uint8_t *code)
{
    static const float starts[] = {0.75f, 0.875f, 1.0f, 1.125f, 1.25f};
    float best = 0, least = 0;
    for (uint32_t i = 0; i < sizeof starts / sizeof starts[0]; i++) {
        float s = starts[i] * w->start;
        for (int round = 0; round < 2; round++) {
            if (!usable(s)) return 0;
            assign(w, s, code);
            s = least_squares(w);
        }
        if (!usable(s)) return 0;
        float e = squared_error(w, s);
        if (i == 0 || e < least) {
            best = s;
            least = e;
        }
    }
    return best;
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

void quire_encode_r(const quire_coder *coder, const float *x, quire_coded_row *row, quire_counts *counts)
{
    work w;
    float s = begin(&w, coder, x) ? search(&w, row->code) : 0;
    if (!usable(s)) {
        zero_row(coder, row);
        return;
    }
    assign(&w, s, row->code);
    /* Least squares shrinks coarse rows (2 bits: by an eighth), and the shrinking does not average out. So V, and K
     * with few bits, take the scale that keeps x.y = x.x. */
    if (coder->side == QUIRE_K && coder->codec->info.bits >= 4)
        s = least_squares(&w);
    else
        s = w.energy / quire_lane_dot(x, w.c, w.d);
    finish(coder, row, s, counts);
}

/* TurboQuant: no search; the scale gives the row its length back. */
void quire_encode_tq(const quire_coder *coder, const float *x, quire_coded_row *row, quire_counts *counts)
{
    work w;
    if (!begin(&w, coder, x)) {
        zero_row(coder, row);
        return;
    }
    assign(&w, w.start, row->code);
    finish(coder, row, sqrtf(w.energy) / sqrtf(quire_lane_dot(w.c, w.c, w.d)), counts);
}

/* 127, not 128: the codes are symmetric. They are taken with the rounded scale, so the error is half a step. */
void quire_encode_r8(const quire_coder *coder, const float *x, quire_coded_row *row, quire_counts *counts)
{
    float most = 0;
    for (uint32_t i = 0; i < coder->d; i++)
        if (fabsf(x[i]) > most) most = fabsf(x[i]);
    row->scale[0] = quire_store_scale(most / 127.0f, counts);
    float s = quire_f16_to_f32(row->scale[0]);
    for (uint32_t i = 0; i < coder->d; i++) {
        float q = s > 0 ? rintf(x[i] / s) : 0;
        if (q > 127) q = 127;
        if (q < -127) q = -127;
        row->code[i] = (uint8_t)((int)q + 128);
    }
}
