/* SPDX-License-Identifier: MIT */
/* check: softmax_update. Rows of every kind of scores and masks; 16 at once against the C table, fewer against those bits. */
#include "check.h"

#include <math.h>

enum { STRIDE = 48, N_TURNS = 400, N_TURNS_QUICK = 60 };

/* What 16 rows have before and after. */
typedef struct rows {
    float score[ROWS][TOKENS], unit[ROWS], max[ROWS], sum[ROWS][QUIRE_BIAS_LANES], acc[ROWS][STRIDE];
    float factor[ROWS];
    uint64_t visible[ROWS];
} rows;

typedef struct call {
    const quire_kernels *kernels;
    float *scores, *unit, *factor;
    const uint64_t *visible;
    uint32_t n;
    quire_softmax s;
} call;

static void run(void *arg)
{
    call *c = (call *)arg;
    c->kernels->softmax_update(c->scores, c->visible, c->unit, c->n, &c->s, c->factor);
}

/* Rows from number `from` on through one call. */
static bool softmax_update(const quire_kernels *kernels, check_side side, const rows *in, uint32_t from,
                           uint32_t n, rows *out)
{
    call c = {.kernels = kernels,
              .scores = (float *)check_room(MEMORY_SCORES, side, n * sizeof in->score[0]),
              .unit = (float *)check_room(MEMORY_UNIT, side, n * sizeof in->unit[0]),
              .factor = (float *)check_room(MEMORY_FACTOR, side, n * sizeof in->factor[0]),
              .visible = (uint64_t *)check_room(MEMORY_VISIBLE, side, n * sizeof in->visible[0]),
              .n = n,
              .s = {.max = (float *)check_room(MEMORY_MAX, side, n * sizeof in->max[0]),
                    .sum = (float *)check_room(MEMORY_LANES, side, n * sizeof in->sum[0]),
                    .acc = (float *)check_room(MEMORY_ACC, side, n * sizeof in->acc[0]),
                    .stride = STRIDE}};
    memcpy(c.scores, in->score[from], n * sizeof in->score[0]);
    memcpy(c.unit, in->unit + from, n * sizeof in->unit[0]);
    check_copy(MEMORY_VISIBLE, side, in->visible + from, n * sizeof in->visible[0]);
    memcpy(c.s.max, in->max + from, n * sizeof in->max[0]);
    memcpy(c.s.sum, in->sum[from], n * sizeof in->sum[0]);
    memcpy(c.s.acc, in->acc[from], n * sizeof in->acc[0]);
    check_at.n = n;
    check_at.call = "softmax_update";
    if (!check_call(kernels, run, &c) || !check_rims()) return false;
    memcpy(out->score[from], c.scores, n * sizeof in->score[0]);
    memcpy(out->factor + from, c.factor, n * sizeof in->factor[0]);
    memcpy(out->max + from, c.s.max, n * sizeof in->max[0]);
    memcpy(out->sum[from], c.s.sum, n * sizeof in->sum[0]);
    memcpy(out->acc[from], c.s.acc, n * sizeof in->acc[0]);
    return true;
}

/* ----------------------------------------------------------------- contents */

typedef enum kind {
    KIND_NORMAL,
    KIND_EQUAL,
    KIND_WIDE,
    KIND_LARGE,
    KIND_HUGE,
    KIND_TINY,
    KIND_LOWEST,
    KIND_INFINITE,
    KIND_LIMITS,
    N_KINDS
} kind;

static float score_value(kind k, rng *r)
{
    static const float ends[] = {-INFINITY, INFINITY, -1e30f, 1e30f, 3e38f, -3e38f};
    static const float limits[] = {-126, -126.5f, -125.99999f, -127, -149, -150, 8191, 8192, -8192, 0, -0.0f};
    float x = rng_normal(r);
    switch (k) {
    case KIND_EQUAL: return 2.5f;
    case KIND_WIDE: return 60 * x;
    case KIND_LARGE: return 6000 + 1000 * x;
    case KIND_HUGE: return 1e9f * x;
    case KIND_TINY: return 1e-30f * x;
    case KIND_LOWEST: return rng_below(r, 8) ? -1e30f : -2e30f;
    case KIND_INFINITE: return ends[rng_below(r, COUNT(ends))];
    case KIND_LIMITS: return limits[rng_below(r, COUNT(limits))];
    default: return 3 * x;
    }
}

static void make_rows(rng *r, rows *x)
{
    static const float bad[] = {NAN, -NAN, INFINITY, -INFINITY, 3e38f};
    check_masks(r, 0, x->visible);
    for (uint32_t i = 0; i < ROWS; i++) {
        kind k = (kind)rng_below(r, N_KINDS);
        float by = k >= KIND_INFINITE ? 1 : ldexpf(1 + fabsf(rng_normal(r)), -(int)rng_below(r, 30));
        float top = -INFINITY;
        x->unit[i] = by;
        for (uint32_t t = 0; t < TOKENS; t++) {
            x->score[i][t] = score_value(k, r) / by;
            if (x->visible[i] >> t & 1) top = fmaxf(top, x->score[i][t] * by);
            if (!(x->visible[i] >> t & 1) && rng_bits(r) & 1) x->score[i][t] = bad[rng_below(r, COUNT(bad))];
        }
        bool is_new = rng_below(r, 3) == 0;
        const float before[] = {-INFINITY, 4 * rng_normal(r), score_value(k, r),
                                top + 0.01f * rng_normal(r)}; /* the last: a maximum that grows little */
        x->max[i] = before[is_new ? 0 : rng_between(r, 1, COUNT(before) - 1)];
        if (!is_new && !check_is_finite(x->max[i])) x->max[i] = 1e30f;
        for (uint32_t l = 0; l < QUIRE_BIAS_LANES; l++)
            x->sum[i][l] = is_new || l ? 0 : 1 + fabsf(rng_normal(r)); /* C has one lane */
        for (uint32_t c = 0; c < STRIDE; c++) x->acc[i][c] = is_new ? 0 : rng_normal(r);
    }
}

/* --------------------------------------------------------------- comparison */

/* A result against that of C, where the exponent may be wrong by a part of `score`. */
static bool is_far(float got, float want, double score, check_bound_id bound)
{
    double part = check_bounds[bound].value + check_bounds[BOUND_WEIGHT_SCORE].value * score;
    /* 2^-126, below which everything is 0, lies half a step above or below what both have. */
    double floor = 1.2e-38 * (1 + part) * TOKENS;
    return check_share(fabs((double)got - (double)want), part * fabs((double)want) + floor);
}

static void compare_row(const rows *in, const rows *got, const rows *want, uint32_t i)
{
    uint64_t seen = in->visible[i];
    double lanes = 0, size = fabs((double)want->max[i]),
           old = in->max[i] > -1e30f ? fabs((double)in->max[i]) : 0;
    for (uint32_t l = 0; l < QUIRE_BIAS_LANES; l++) lanes += (double)got->sum[i][l];
    for (uint32_t t = 0; t < TOKENS; t++) {
        float p = got->score[i][t], q = want->score[i][t];
        double score = fabs((double)in->score[i][t] * (double)in->unit[i]);
        double top = fmax(score < 2e30 ? score : 2e30, size);
        if (!(seen >> t & 1)) {
            /* C leaves the scores of a row that sees nothing as they are; nobody reads them. */
            if (p != 0 && (seen || got != want))
                check_fail("row %u, token %u is hidden: weight %g", i, t, (double)p);
        } else if (is_far(p, q, top > 8192 && q > 0 ? 8192 : top, BOUND_WEIGHT)) {
            check_fail("row %u, token %u: weight %.9g, expected %.9g, score %g", i, t, (double)p, (double)q,
                       score);
            return;
        }
    }
    if (!seen) {
        bool same = check_same(got->max[i], in->max[i]) && got->factor[i] == 0 &&
                    !memcmp(got->sum[i], in->sum[i], sizeof in->sum[i]) &&
                    !memcmp(got->acc[i], in->acc[i], sizeof in->acc[i]);
        if (!same) check_fail("row %u sees nothing, and its state changed", i);
        return;
    }
    double exponent = fmin(size + old, 8192);
    if (got->max[i] != want->max[i])
        check_fail("row %u: max %.9g, expected %.9g", i, (double)got->max[i], (double)want->max[i]);
    if (is_far((float)lanes, want->sum[i][0], exponent, BOUND_SUM))
        check_fail("row %u: sum %.9g, expected %.9g", i, lanes, (double)want->sum[i][0]);
    if (is_far(got->factor[i], want->factor[i], exponent, BOUND_WEIGHT))
        check_fail("row %u: factor %.9g, expected %.9g", i, (double)got->factor[i], (double)want->factor[i]);
    for (uint32_t c = 0; c < STRIDE; c++) {
        if (!is_far(got->acc[i][c], want->acc[i][c], exponent, BOUND_WEIGHT)) continue;
        check_fail("row %u: accumulator %u is %.9g, expected %.9g", i, c, (double)got->acc[i][c],
                   (double)want->acc[i][c]);
        return;
    }
}

static void compare_bits(const rows *got, const rows *want, uint32_t from, uint32_t n)
{
    for (uint32_t i = from; i < from + n; i++) {
        if (check_difference(got->score[i], want->score[i], TOKENS) < TOKENS ||
            check_difference(got->sum[i], want->sum[i], QUIRE_BIAS_LANES) < QUIRE_BIAS_LANES ||
            check_difference(got->acc[i], want->acc[i], STRIDE) < STRIDE ||
            !check_same(got->max[i], want->max[i]) || !check_same(got->factor[i], want->factor[i])) {
            check_fail("row %u of %u rows: other bits than with 16 rows", i, n);
            return;
        }
    }
}

/* A NaN that a query sees may not become a number. */
static void check_nan(const check_isas *isas, const rows *clean, uint32_t isa)
{
    static rows in, out;
    in = *clean;
    for (uint32_t i = 0; i < ROWS; i++) {
        in.visible[i] |= (uint64_t)1 << (i * 4 + 1);
        in.score[i][i * 4 + 1] = NAN;
    }
    if (!softmax_update(isas->kernels[isa], GUARD_BEHIND, &in, 0, ROWS, &out)) return;
    for (uint32_t i = 0; i < ROWS; i++) {
        float lanes = 0;
        for (uint32_t l = 0; l < QUIRE_BIAS_LANES; l++) lanes += out.sum[i][l];
        if (lanes == lanes) check_fail("row %u sees a NaN, and its sum is %g", i, (double)lanes);
    }
}

void check_softmax(const check_isas *isas)
{
    static rows in, want, basis, some;
    check_at = (check_where){.role = ROLE_SOFTMAX};
    for (uint32_t turn = 0; turn < (check_given.quick ? N_TURNS_QUICK : N_TURNS); turn++) {
        rng r = check_rng("softmax_update", turn, 0);
        make_rows(&r, &in);
        for (uint32_t i = 0; i < isas->n; i++) {
            check_use(isas, i);
            rows *to = i ? &basis : &want;
            if (!softmax_update(isas->kernels[i], GUARD_BEHIND, &in, 0, ROWS, to)) continue;
            for (uint32_t row = 0; row < ROWS; row++) compare_row(&in, to, &want, row);
            for (uint32_t n = 1; n <= ROWS; n++) {
                check_side side = (n + turn) & 1 ? GUARD_BEHIND : GUARD_BEFORE;
                uint32_t from = rng_below(&r, ROWS - n + 1);
                if (softmax_update(isas->kernels[i], side, &in, from, n, &some))
                    compare_bits(&some, to, from, n);
            }
            if (turn % 16 == 0) check_nan(isas, &in, i);
        }
    }
}
