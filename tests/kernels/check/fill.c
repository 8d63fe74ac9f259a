/* SPDX-License-Identifier: MIT */
/* check: contents of tiles, queries and weights. */
#include "check.h"

#include "support/reference.h"

#include <math.h>

#define LARGEST_HALF 0x7bffu /* 65504 */
#define SIGN 0x8000u

const char *const check_fill_names[N_FILLS] = {"model",     "random", "wild",    "zero",
                                               "saturated", "cancel", "denormal"};

/* The same for a codec and head size whatever else is tried. */
rng check_rng(const char *codec, uint32_t d, uint32_t number)
{
    quire_hash h;
    quire_hash_begin(&h);
    quire_hash_u64(&h, check_given.seed);
    quire_hash_text(&h, codec);
    quire_hash_u64(&h, (uint64_t)d << 32 | number);
    return (rng){quire_hash_end(&h)};
}

static void random_bytes(rng *r, uint8_t *to, size_t n)
{
    for (size_t i = 0; i < n; i++) to[i] = (uint8_t)rng_bits(r);
}

uint16_t check_finite_half(rng *r)
{
    uint16_t h = (uint16_t)rng_bits(r);
    return quire_f16_is_finite(h) ? h : (uint16_t)(h ^ 0x4000u);
}

/* 2^-7 to 2^3, both signs. */
static uint16_t ordinary_half(rng *r)
{
    return (uint16_t)((rng_bits(r) & 0x83ffu) | rng_between(r, 8, 17) << 10);
}

static uint16_t denormal_half(rng *r)
{
    return (uint16_t)(rng_bits(r) & 0x83ffu);
}

/* ------------------------------------------------------------------- tiles */

static void encoded_rows(const quire_tile_format *f, rng *r, uint8_t *tile)
{
    static float x[TOKENS * MOST_D];
    if (f->coder.side == QUIRE_K)
        ref_k_rows(&r->state, x, TOKENS, 1, f->coder.d);
    else
        ref_normals(&r->state, x, (size_t)TOKENS * f->coder.d, 1);
    quire_rows rows = {.size = sizeof(quire_rows), .form = QUIRE_F32, .data = x};
    memset(tile, 0, f->tile_bytes);
    REF_OK(quire_tile_encode(f, 0, tile, 0, TOKENS, &rows, NULL));
}

static float power_of_two(rng *r, uint32_t most)
{
    float x = ldexpf(1 + rng_normal(r) / 16, (int)rng_between(r, 0, 2 * most) - (int)most);
    return rng_bits(r) & 1 ? x : -x;
}

/* Value i of token t. f32 and bf16 have no scale to be large in; 1e15 leaves room for sums of products. */
static float float_value(quire_form form, check_fill fill, uint32_t t, size_t i, rng *r)
{
    float most = form == QUIRE_F16 ? QUIRE_F16_MAX : 1e15f;
    switch (fill) {
    case FILL_WILD: return form == QUIRE_F16 ? quire_f16_to_f32(check_finite_half(r)) : power_of_two(r, 40);
    case FILL_ZERO: return 0;
    case FILL_SATURATED: return most;
    case FILL_CANCEL: return (t ^ i) & 1 ? most : -most;
    case FILL_DENORMAL:
        return form == QUIRE_F16 ? quire_f16_to_f32(denormal_half(r)) : 1e-39f * rng_normal(r);
    default: return rng_normal(r);
    }
}

static void float_tile(const quire_tile_format *f, check_fill fill, rng *r, uint8_t *tile)
{
    const quire_coder *c = &f->coder;
    quire_form form = c->codec->float_form;
    for (size_t i = 0; i < (size_t)TOKENS * c->d_pad; i++) {
        bool k = c->side == QUIRE_K;
        uint32_t t = (uint32_t)(k ? i / 16 / c->d_pad * 16 + i % 16 : i / 16 % TOKENS);
        size_t channel = k ? i / 16 % c->d_pad : i / 16 / TOKENS * 16 + i % 16;
        quire_store_value(form, tile, i, float_value(form, fill, t, channel, r));
    }
}

/* The scale of group g and token t, or the bias that goes with it. */
static uint16_t scale_value(check_fill fill, bool bias, uint32_t g, uint32_t t, rng *r)
{
    switch (fill) {
    case FILL_WILD: return check_finite_half(r);
    case FILL_SATURATED: return LARGEST_HALF;
    case FILL_CANCEL: return (uint16_t)(LARGEST_HALF | (((t ^ g) & 1) != bias ? SIGN : 0));
    case FILL_DENORMAL: return denormal_half(r);
    default: return ordinary_half(r);
    }
}

static void coded_tile(const quire_tile_format *f, check_fill fill, rng *r, uint8_t *tile)
{
    if (fill == FILL_SATURATED || fill == FILL_CANCEL)
        memset(tile, 0xff, f->code_bytes);
    else
        random_bytes(r, tile, f->code_bytes);
    for (uint32_t g = 0; g < f->coder.n_groups; g++) {
        for (uint32_t t = 0; t < TOKENS; t++) {
            size_t at = ((size_t)g * TOKENS + t) * 2;
            quire_store16(tile + f->code_bytes + at, scale_value(fill, false, g, t, r));
            if (f->coder.codec->has_bias)
                quire_store16(tile + f->bias_offset + at, scale_value(fill, true, g, t, r));
        }
    }
}

void check_tile(const quire_tile_format *f, check_fill fill, rng *r, uint8_t *tile)
{
    if (fill == FILL_MODEL)
        encoded_rows(f, r, tile);
    else if (fill == FILL_ZERO)
        memset(tile, 0, f->tile_bytes);
    else if (f->coder.n_groups)
        coded_tile(f, fill, r, tile);
    else
        float_tile(f, fill, r, tile);
}

void check_poison(const quire_tile_format *f, uint64_t hidden, rng *r, uint8_t *tile)
{
    static const uint16_t bad[] = {0x7c00, 0xfc00, 0x7e00, 0xfe00, 0x7c01, LARGEST_HALF};
    static const float bad_value[] = {INFINITY, -INFINITY, NAN, -NAN, 1e38f};
    for (uint32_t t = 0; t < TOKENS; t++) {
        if (!(hidden >> t & 1)) continue;
        quire_coded_row row;
        random_bytes(r, row.code, sizeof row.code);
        for (uint32_t g = 0; g < QUIRE_MAX_GROUPS; g++) {
            row.scale[g] = bad[rng_below(r, COUNT(bad))];
            row.bias[g] = bad[rng_below(r, COUNT(bad))];
        }
        for (uint32_t c = 0; c < MOST_D; c++) row.value[c] = bad_value[rng_below(r, COUNT(bad_value))];
        quire_tile_put(f, tile, t, &row);
    }
}

/* ----------------------------------------------------------------- queries */

/* Value c of a row of kind i. */
static float query_value(uint32_t i, uint32_t c, uint32_t chosen, rng *r)
{
    float x = rng_normal(r);
    switch (i) {
    case 1: return c == chosen ? 1000 * x : x;                    /* one channel decides about the step */
    case 2: return c == chosen ? 32600 : floorf(x * 8000) + 0.5f; /* r is as large as it gets */
    case 3: return c & 1 ? 3 : -3;
    case 4: return 1.25f;
    case 5: return 0;
    case 6: return 1e-40f * x; /* below every step */
    case 7: return c == chosen ? x : 0;
    case 8: return 1e-20f * x;
    case 9: return 1e15f * x;
    case 10: return c & 1 ? 32600 : 0.4f; /* z small, r large */
    case 11: return fabsf(x);
    case 12: return ldexpf(x, (int)(c % 24) - 12);
    case 14: return c == chosen ? NAN : x;
    case 15: return c == chosen ? -INFINITY : x;
    default: return x;
    }
}

void check_queries(rng *r, uint32_t d, float *rows)
{
    for (uint32_t i = 0; i < ROWS; i++) {
        uint32_t chosen = rng_below(r, d);
        for (uint32_t c = 0; c < d; c++) rows[i * d + c] = query_value(i, c, chosen, r);
    }
}

void check_masks(rng *r, uint64_t hidden, uint64_t *visible)
{
    for (uint32_t i = 0; i < ROWS; i++) {
        uint64_t some = rng_bits(r);
        switch (i % 6) {
        case 0:
        case 1: visible[i] = ALL_TOKENS; break;
        case 2: visible[i] = some; break;
        case 3: visible[i] = (uint64_t)1 << (some & 63); break;
        case 4: visible[i] = check_low_bits((uint32_t)(some & 63)); break;
        default: visible[i] = i == 5 ? 0 : some & some >> 7 & some >> 21; break;
        }
        if (i % 6) visible[i] &= ~hidden;
    }
}
