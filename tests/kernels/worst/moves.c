/* SPDX-License-Identifier: MIT */
/* worst: where a search begins, and what it changes. */
#include "worst.h"

#include "kernels/kernels.h"

#include <math.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

static bool heads(rng *r)
{
    return rng_below(r, 2);
}

static const quire_coder *coder_of(const worst_input *in, uint32_t side)
{
    return &in->side[side].format->coder;
}

/* --------------------------------------------------------------------- rows */

/* Group g of a row at the end of its range that has this sign; floats: plus or minus 1. */
static void put_extreme(const quire_coder *coder, quire_coded_row *row, uint32_t c, int sign)
{
    const quire_codec *codec = coder->codec;
    if (!coder->n_groups) {
        row->value[c] = (float)sign;
        return;
    }
    bool negative = row->scale[c / coder->group] >> 15;
    row->code[c] = (uint8_t)((sign > 0) != negative ? (1u << codec->info.bits) - 1 : 0);
}

static void put_scales(const quire_coder *coder, quire_coded_row *row, uint32_t g, float scale, float bias)
{
    uint16_t keep = coder->codec->info.flags & QUIRE_CODEC_CALIBRATED ? QUIRE_MEAN_BITS : 0;
    row->scale[g] = (uint16_t)((quire_f32_to_f16(scale) & ~keep) | (row->scale[g] & keep));
    row->bias[g] = coder->codec->has_bias ? quire_f32_to_f16(bias) : 0;
    if (!quire_f16_is_finite(row->scale[g])) row->scale[g] = 0x7bff & (uint16_t)~keep;
    if (!quire_f16_is_finite(row->bias[g])) row->bias[g] = 0x7bff;
}

/* Scales as large as those of rows of values of this size, the middle of the range at 0. */
static void put_even_scales(const quire_coder *coder, quire_coded_row *row, float size)
{
    if (!coder->n_groups) return; /* floats */
    float top = (float)((1u << coder->codec->info.bits) - 1);
    float span = coder->codec->values == QUIRE_VALUES_TABLE ? 127 : top / 2;
    for (uint32_t g = 0; g < coder->n_groups; g++) put_scales(coder, row, g, size / span, -size);
}

static void put_normal(worst_input *in, uint32_t side, uint32_t t, float size)
{
    float x[QUIRE_MAX_D];
    const quire_tile_format *format = in->side[side].format;
    quire_calibration cal = quire_tile_format_head(format, 0);
    for (uint32_t c = 0; c < format->coder.d; c++) x[c] = size * rng_normal(&in->random);
    quire_encode_row(&format->coder, &cal, x, worst_change(in, side, t), NULL);
}

/* A size between 2^-20 and 2^12, or 1. */
static float any_size(rng *r)
{
    return heads(r) ? 1 : ldexpf(1 + (float)rng_below(r, 1024) / 1024, (int)rng_below(r, 32) - 20);
}

/* ------------------------------------------------------------------ queries */

/* The query from what kernels see of it. */
static void set_prepared(worst_input *in, float *row)
{
    const quire_tile_format *format = in->side[QUIRE_K].format;
    quire_calibration cal = quire_tile_format_head(format, 0);
    quire_unrotate(&format->coder, row);
    for (uint32_t c = 0; c < format->coder.d; c++)
        in->terms.q[c] = cal.weight ? row[c] * cal.weight[c] : row[c];
}

static void get_prepared(const worst_input *in, float *row)
{
    float mean_score[QUIRE_MEAN_SLOTS];
    const quire_tile_format *format = in->side[QUIRE_K].format;
    quire_calibration cal = quire_tile_format_head(format, 0);
    quire_prepare_query(&format->coder, &cal, in->terms.q, row, mean_score);
}

/* z + r / 256 of the query, as whole part and rest. */
static void split_query(const worst_input *in, float *whole, float *rest)
{
    float row[QUIRE_MAX_D], most = 1e-30f;
    uint32_t d = coder_of(in, QUIRE_K)->d;
    get_prepared(in, row);
    for (uint32_t c = 0; c < d; c++) most = fmaxf(most, fabsf(row[c]));
    for (uint32_t c = 0; c < d; c++) {
        float y = row[c] / most * QUIRE_MAX_Z;
        whole[c] = nearbyintf(y);
        rest[c] = y - whole[c];
    }
}

/* A few channels are large, the others lie just below half a step, on whole steps of up to `steps`. */
static void query_of_half_steps(worst_input *in, uint32_t n_large, uint32_t steps)
{
    float row[QUIRE_MAX_D];
    rng *r = &in->random;
    uint32_t d = coder_of(in, QUIRE_K)->d;
    bool same_sign = rng_below(r, 4) == 0;
    for (uint32_t c = 0; c < d; c++) {
        float sign = same_sign || heads(r) ? 1 : -1;
        row[c] = (sign * 0.496f + (float)rng_below(r, 2 * steps + 1) - (float)steps) / QUIRE_MAX_Z;
        if (c < n_large) row[c] = c && heads(r) ? -1 : 1;
    }
    set_prepared(in, row);
}

static void query_normal(worst_input *in)
{
    for (uint32_t c = 0; c < coder_of(in, QUIRE_K)->d; c++) in->terms.q[c] = rng_normal(&in->random);
}

static void change_query(worst_input *in)
{
    rng *r = &in->random;
    uint32_t d = coder_of(in, QUIRE_K)->d;
    float row[QUIRE_MAX_D];
    if (rng_below(r, 8) == 0) {
        float by = ldexpf(1, (int)rng_below(r, 41) - 20);
        for (uint32_t c = 0; c < d; c++) in->terms.q[c] *= by;
        if (heads(r)) in->terms.scale /= by;
        return;
    }
    if (rng_below(r, 20) == 0) {
        heads(r) ? query_normal(in) : query_of_half_steps(in, 1 + rng_below(r, 4), rng_below(r, 3));
        return;
    }
    get_prepared(in, row);
    float step = 0;
    for (uint32_t c = 0; c < d; c++) step = fmaxf(step, fabsf(row[c]) / QUIRE_MAX_Z);
    uint32_t c = rng_below(r, d);
    row[c] += heads(r) ? ((float)rng_below(r, 3) - 1) * step : 0.5f * rng_normal(r) * step;
    set_prepared(in, row);
}

/* ------------------------------------------------------------ changes of rows */

/* Codes along the signs of the query's rests, or against them, where whole steps are few. */
static void align_keys(worst_input *in, uint32_t t, int sign, const float *whole, const float *rest)
{
    const quire_coder *coder = coder_of(in, QUIRE_K);
    quire_coded_row *row = worst_change(in, QUIRE_K, t);
    for (uint32_t c = 0; c < coder->d; c++)
        if (fabsf(whole[c]) < 8) put_extreme(coder, row, c, rest[c] < 0 ? -sign : sign);
}

static void align_all_keys(worst_input *in)
{
    float whole[QUIRE_MAX_D], rest[QUIRE_MAX_D];
    split_query(in, whole, rest);
    uint32_t one_in = rng_between(&in->random, 2, 5);
    for (uint32_t t = 0; t < in->n_tokens; t++)
        align_keys(in, t, rng_below(&in->random, one_in) ? 1 : -1, whole, rest);
}

static void change_codes(worst_input *in, uint32_t side, uint32_t t)
{
    rng *r = &in->random;
    const quire_coder *coder = coder_of(in, side);
    quire_coded_row *row = worst_change(in, side, t);
    uint32_t kind = rng_below(r, 7), c = rng_below(r, coder->d), other = rng_below(r, in->n_tokens);
    int sign = heads(r) ? 1 : -1;
    switch (kind) {
    case 0: /* one code */
        row->code[c] = (uint8_t)rng_below(r, 1u << coder->codec->info.bits % 16);
        if (!coder->n_groups) row->value[c] = rng_normal(r);
        break;
    case 1: put_extreme(coder, row, c, sign); break;
    case 2: /* flat */
        for (c = 0; c < coder->d; c++) put_extreme(coder, row, c, sign);
        break;
    case 3: /* one value, the others near 0 */
        for (uint32_t i = 0; i < coder->d; i++) {
            uint32_t n = 1u << coder->codec->info.bits % 16;
            row->code[i] = (uint8_t)(n / 2 - heads(r));
            if (!coder->n_groups) row->value[i] = 0;
        }
        put_extreme(coder, row, c, sign);
        break;
    case 4: /* extremes */
        for (c = 0; c < coder->d; c++) put_extreme(coder, row, c, heads(r) ? 1 : -1);
        break;
    case 5: *row = in->side[side].row[other]; break;
    default: put_normal(in, side, t, any_size(r)); break;
    }
}

static void change_scales(worst_input *in, uint32_t side, uint32_t t)
{
    rng *r = &in->random;
    const quire_coder *coder = coder_of(in, side);
    quire_coded_row *row = worst_change(in, side, t);
    if (!coder->n_groups) {
        float by = ldexpf(1, (int)rng_below(r, 9) - 4);
        for (uint32_t c = 0; c < coder->d; c++)
            if (fabsf(row->value[c]) * by < 1e12f) row->value[c] *= by;
        /* A row of any size is a row of f32 only. */
        for (uint32_t c = 0; c < coder->d && coder->codec->float_form != QUIRE_F32; c++)
            row->value[c] = fminf(fmaxf(row->value[c], -60000), 60000);
        return;
    }
    uint32_t from = rng_below(r, coder->n_groups), to = heads(r) ? coder->n_groups : from + 1;
    float size = any_size(r), by = heads(r) ? 2 : 0.5f;
    uint32_t kind = rng_below(r, 5);
    for (uint32_t g = from; g < to; g++) {
        float scale = quire_f16_to_f32(row->scale[g]), bias = quire_f16_to_f32(row->bias[g]);
        switch (kind) {
        case 0: put_scales(coder, row, g, scale * by, bias * by); break;
        case 1: put_scales(coder, row, g, scale * by, bias); break;
        case 2: put_scales(coder, row, g, scale, bias + scale * (float)((int)rng_below(r, 201) - 100)); break;
        case 3: put_scales(coder, row, g, size / 127, heads(r) ? -size : size); break;
        default: put_scales(coder, row, g, rng_below(r, 8) ? -scale : 0, -bias); break;
        }
    }
}

/* Some rows at a time: one, a tile without one, every second one. */
static void change_rows(worst_input *in, uint32_t side)
{
    rng *r = &in->random, same = *r;
    uint32_t t = rng_below(r, in->n_tokens), kind = rng_below(r, 8);
    bool scales = heads(r);
    same.state += rng_bits(r);
    for (uint32_t i = 0; i < in->n_tokens; i++) {
        bool change = kind == 0 ? i != t : kind == 1 ? i % 2 == t % 2 : i == t;
        if (!change) continue;
        if (kind < 2) *r = same; /* alike in all of them */
        scales ? change_scales(in, side, i) : change_codes(in, side, i);
    }
}

/* ------------------------------------------------------------ terms of scores */

static float any_term(rng *r)
{
    static const float terms[] = {0, -INFINITY, -11.09f, -11.15f, -11.5f, -1, 1, -0.001f, -8, -30, -100, 300};
    uint32_t i = rng_below(r, 3 * (uint32_t)COUNT(terms));
    return i < COUNT(terms) ? terms[i] : -12 * (float)rng_below(r, 1000) / 999;
}

static void change_mask(worst_input *in)
{
    worst_terms *x = &in->terms;
    rng *r = &in->random;
    uint32_t t = rng_below(r, in->n_tokens), kind = rng_below(r, 6);
    float term = any_term(r);
    if (!x->has_mask) memset(x->mask, 0, sizeof x->mask);
    x->has_mask = true;
    for (uint32_t i = 0; i < in->n_tokens; i++) {
        bool change = kind == 0 ? i != t : kind == 1 ? i % 2 == t % 2 : i == t;
        if (change && kind == 5) x->mask[i] += 0.1f * rng_normal(r);
        if (change && kind != 5) x->mask[i] = term;
    }
}

static void change_terms(worst_input *in)
{
    static const float caps[] = {0, 0, 0, 1, 5, 30, 50, 1000},
                       slopes[] = {0, 0, 0, 0.01f, -0.01f, 0.25f, 1, 8},
                       sinks[] = {-INFINITY, -INFINITY, -INFINITY, 0, 5, 20, -20, 100};
    rng *r = &in->random;
    worst_terms *x = &in->terms;
    switch (rng_below(r, 12)) {
    case 0: x->softcap = caps[rng_below(r, COUNT(caps))]; break;
    case 1: x->alibi = slopes[rng_below(r, COUNT(slopes))]; break;
    case 2: x->sink = sinks[rng_below(r, COUNT(sinks))]; break;
    case 3: x->has_mask = false; break;
    case 4: x->scale = -x->scale; break;
    default: /* in steps of any size, because the rule that leaves r out is a cliff */
        x->scale *= expf(rng_normal(r) * powf(10, -(float)rng_below(r, 5)));
        if (!(fabsf(x->scale) > 1e-18f && fabsf(x->scale) < 1e18f)) x->scale = 1;
    }
}

void worst_move(worst_input *in)
{
    rng *r = &in->random;
    uint32_t n = rng_between(r, 1, 2);
    for (uint32_t i = 0; i < n; i++) {
        switch (rng_below(r, 10)) {
        case 0:
        case 1: change_rows(in, QUIRE_K); break;
        case 2:
        case 3:
        case 4: change_rows(in, QUIRE_V); break;
        case 5: change_query(in); break;
        case 6: rng_below(r, 4) ? change_terms(in) : align_all_keys(in); break;
        case 7: change_mask(in); break;
        default: change_terms(in); break;
        }
    }
}

/* --------------------------------------------------------------------- starts */

static void start_rows(worst_input *in, float size)
{
    for (uint32_t t = 0; t < in->n_tokens; t++) {
        put_normal(in, QUIRE_K, t, size);
        put_normal(in, QUIRE_V, t, 1);
    }
}

/* V: two kinds of rows, orthogonal; those of the first have weights of about e^-7 and are as much longer. */
static void start_two_kinds(worst_input *in, uint32_t one_in, float term)
{
    const quire_coder *coder = coder_of(in, QUIRE_V);
    in->terms.has_mask = term != 0;
    for (uint32_t t = 0; t < in->n_tokens; t++) {
        quire_coded_row *row = worst_change(in, QUIRE_V, t);
        bool far = t % one_in == 0;
        float size = far && term != 0 ? 10 * expf(-term) : 1;
        put_even_scales(coder, row, size);
        in->terms.mask[t] = far ? term : 0;
        for (uint32_t c = 0; c < coder->d; c++) {
            put_extreme(coder, row, c, (c % 2 == 0) == far ? 1 : -1);
            row->value[c] *= size;
        }
    }
}

/* Leaving out r moves the scores of one kind of rows up and those of the other down. */
static void start_half_steps(worst_input *in, uint32_t number)
{
    float whole[QUIRE_MAX_D], rest[QUIRE_MAX_D];
    const quire_coder *coder = coder_of(in, QUIRE_K);
    uint32_t one_in = number % 2 ? 2 : 8;
    query_of_half_steps(in, 1, 0);
    split_query(in, whole, rest);
    start_two_kinds(in, one_in, number % 2 ? 0 : -5);
    for (uint32_t t = 0; t < in->n_tokens; t++) {
        quire_coded_row *row = worst_change(in, QUIRE_K, t);
        put_even_scales(coder, row, 1);
        put_extreme(coder, row, 0, 1);
        align_keys(in, t, t % one_in ? 1 : -1, whole, rest);
    }
    /* Half steps move a score of rows of 1 by about d / 2 steps of 1 / 32600. */
    in->terms.scale =
        QUIRE_SKIP_R_ERROR * QUIRE_MAX_Z * 2 / sqrtf((float)coder->d) * (number % 4 < 2 ? 0.9f : 8);
}

/* One token has nearly all of the weight, and the others too little for half a step: of a flat row, and of one that has a single
 * value. */
static void start_small_weights(worst_input *in, uint32_t number)
{
    const quire_coder *coder = coder_of(in, QUIRE_V);
    static const float terms[] = {-16.1f, -17.1f, -15.9f, -12};
    query_normal(in);
    in->terms.has_mask = true;
    for (uint32_t t = 0; t < in->n_tokens; t++) {
        memset(worst_change(in, QUIRE_K, t), 0, sizeof(quire_coded_row));
        quire_coded_row *row = worst_change(in, QUIRE_V, t);
        put_even_scales(coder, row, 1);
        in->terms.mask[t] = t ? terms[number % COUNT(terms)] * 0.6931f : 0;
        bool one_hot = t == 0 && number % 8 < 4;
        for (uint32_t c = 0; c < coder->d; c++) {
            put_extreme(coder, row, c, c % 3 ? 1 : -1);
            if (one_hot && c) row->code[c] = (uint8_t)(1u << coder->codec->info.bits % 16 >> 1);
            if (one_hot && c) row->value[c] = 0;
        }
    }
}

/* The same with a token whose scale is so small that its weight is barely kept in the units of the others; biases of the others at
 * one end of their range, or far from 0. */
static void start_edge(worst_input *in, uint32_t number)
{
    const quire_coder *coder = coder_of(in, QUIRE_V);
    float top = (float)((1u << coder->codec->info.bits % 16) - 1), largest = 0.5f;
    float least = largest * (float)(QUIRE_SMALL_Z + 12) / QUIRE_MAX_Z;
    if (number & 2) least /= 2; /* it gets units of its own */
    start_small_weights(in, 4);
    for (uint32_t t = 0; t < in->n_tokens; t++) {
        quire_coded_row *row = worst_change(in, QUIRE_V, t);
        if (t) in->terms.mask[t] = logf(0.49f / QUIRE_MAX_Z);
        for (uint32_t c = 0; c < coder->d; c++) put_extreme(coder, row, c, 1);
        for (uint32_t g = 0; g < coder->n_groups; g++)
            put_scales(coder, row, g, t ? largest : least,
                       !t           ? -least * top / 2
                       : number % 2 ? largest * 64
                                    : 0);
    }
}

static void start_wide_scales(worst_input *in)
{
    query_normal(in);
    for (uint32_t side = 0; side < 2; side++)
        for (uint32_t t = 0; t < in->n_tokens; t++) {
            put_normal(in, side, t, 1);
            quire_coded_row *row = worst_change(in, side, t);
            for (uint32_t g = 0; g < coder_of(in, side)->n_groups; g++)
                put_scales(coder_of(in, side), row, g, ldexpf(1, -(int)rng_below(&in->random, 25)), 0);
        }
}

/* The largest score grows by a little from tile to tile. */
static void start_growing(worst_input *in)
{
    query_normal(in);
    start_rows(in, 0);
    in->terms.has_mask = true;
    for (uint32_t t = 0; t < in->n_tokens; t++)
        in->terms.mask[t] = 1e-5f * (float)(t / QUIRE_TILE_ROWS) - (t % QUIRE_TILE_ROWS ? 3 : 0);
}

const uint32_t worst_n_starts = 24;

void worst_start(worst_input *in, uint32_t number)
{
    worst_terms *x = &in->terms;
    memset(x, 0, sizeof *x);
    x->scale = 1 / sqrtf((float)coder_of(in, QUIRE_K)->d);
    x->sink = -INFINITY;
    uint32_t kind = number % 12, round = number / 12;
    switch (kind) {
    case 0:
    case 1:
    case 2:
    case 3: start_half_steps(in, kind + 4 * round); break;
    case 4:
    case 5: start_small_weights(in, kind + 2 * round); break;
    case 6:
    case 7: start_edge(in, kind % 2 * 2 + round % 2); break;
    case 8: start_wide_scales(in); break;
    case 9: start_growing(in); break;
    default: /* rows of a model: scores of deviation 2, or so large that f32 loses their differences */
        query_normal(in);
        start_rows(in, 1);
        if (kind == 10) x->scale *= 2;
        if (kind == 11) x->scale *= ldexpf(1, 2 + 3 * (int)(round % 4));
    }
}
