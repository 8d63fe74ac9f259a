/* SPDX-License-Identifier: MIT */
/* check: load, expand and score. A first call with 16 rows is compared with the C table; every other call, whatever its
 * number of rows, its form and its guards, must give the same bits. */
#include "check.h"

#include <math.h>

/* One tile and the rows it is tried with. */
typedef struct work {
    const check_isas *isas;
    const quire_tile_format *format;
    rng random;
    _Alignas(64) uint8_t tile[CHECK_TILE_BYTES];
    _Alignas(64) uint8_t other[CHECK_TILE_BYTES];
    float rows[ROWS * MOST_D], mean_score[ROWS][QUIRE_MEAN_SLOTS], skip_r_below[ROWS];
    float want[ROWS][TOKENS];
    double allowed[2][ROWS][TOKENS]; /* without r and with it */
} work;

/* What the first call on an instruction set gave, by the bit of a row in `partial`. */
typedef struct basis {
    bool is_set;
    float unit[ROWS], score[2][ROWS][TOKENS];
} basis;

/* One call. */
typedef struct call {
    const quire_kernels *kernels;
    quire_source source;
    quire_queries q;
    uint32_t first, n, partial;
    float *scores;
    void *expanded, *scratch;
    uint32_t row[2 * ROWS]; /* number of the row that lies at each place */
} call;

static void run_load(void *arg)
{
    call *c = (call *)arg;
    c->kernels->load_queries(c->source.format, &c->q);
}

static void run_expand(void *arg)
{
    call *c = (call *)arg;
    c->kernels->expand[quire_family_of(c->source.format->coder.codec)](&c->source, c->expanded);
}

static void run_score(void *arg)
{
    call *c = (call *)arg;
    quire_score_fn *score = c->kernels->score[quire_family_of(c->source.format->coder.codec)];
    score(&c->source, &c->q, c->first, c->n, c->partial, c->scores, c->scratch);
}

/* --------------------------------------------------------------- reference */

/* What rounding may do to the scores of one token: see the bounds. */
static void allow(work *w, uint32_t t, const quire_coded_row *row)
{
    const quire_coder *coder = &w->format->coder;
    const quire_codec *codec = coder->codec;
    bool calibrated = codec->info.flags & QUIRE_CODEC_CALIBRATED;
    double one_by_one = coder->n_groups ? 0 : coder->d * check_bounds[BOUND_SCORE_FLOAT].value;
    double value = 0; /* sum of |k| */
    double coded =
        0; /* of what r is not multiplied with where it is left out: all, or beside a bias the distance to the middle */
    double size[MOST_D];
    for (uint32_t c = 0; c < coder->d; c++) {
        if (!coder->n_groups) {
            size[c] = fabs((double)row->value[c]);
            value += size[c];
            coded += size[c];
            continue;
        }
        uint32_t g = c / coder->group;
        double scale = (double)quire_f16_to_f32(row->scale[g] & (calibrated ? 0xfff0 : 0xffff));
        double bias = codec->has_bias ? (double)quire_f16_to_f32(row->bias[g]) : 0;
        int code =
            codec->values == QUIRE_VALUES_TABLE ? codec->table[row->code[c]] : row->code[c] - codec->zero;
        size[c] = fabs(scale * code) + fabs(bias);
        value += fabs(scale * code + bias);
        coded += codec->has_bias ? fabs(scale) * ((1u << codec->info.bits) - 1) / 2 : fabs(scale * code);
    }
    for (uint32_t i = 0; i < FINITE_ROWS; i++) {
        const float *q = w->rows + i * coder->d;
        double most = 32600e-36, sum = 0; /* no step is below LEAST_STEP (queries_tmpl.h) */
        for (uint32_t c = 0; c < coder->d; c++) {
            double x = fabs((double)q[c]);
            most = x > most ? x : most;
            sum += x * size[c];
        }
        double mean_score = (double)w->mean_score[i][quire_row_mean(coder, row)];
        sum = (check_bounds[BOUND_SCORE].value + one_by_one) * (sum + fabs(mean_score));
        sum += coder->d * 1.2e-38 * (most + value + 1); /* denormals count as 0 */
        if (!coder->n_groups) most = 0;
        w->allowed[1][i][t] = sum + most * value * check_bounds[BOUND_Q_WITH_R].value;
        w->allowed[0][i][t] = w->allowed[1][i][t] + most * coded * check_bounds[BOUND_Q_WITHOUT_R].value;
    }
}

/* ------------------------------------------------------------------- calls */

/* Memory of `total` rows, as attend lays it out; row i is number from + i. False: a fault. */
static bool load(const work *w, call *c, check_side side, uint32_t total, uint32_t from)
{
    const quire_coder *coder = &w->format->coder;
    uint32_t whole = (total + ROWS - 1) / ROWS * ROWS, stride = quire_z_stride(coder->d);
    size_t floats = total * sizeof(float);
    quire_queries *q = &c->q;
    *q = (quire_queries){
        .n = total,
        .d = coder->d,
        .n_parts = quire_n_parts(coder),
        .z_stride = stride,
        .copies = 1,
        .row = (float *)check_room(MEMORY_ROW, side, floats * coder->d),
        .z = (int8_t *)check_room(MEMORY_Z, side, (size_t)2 * whole * 2 * stride),
        .r = (int8_t *)check_room(MEMORY_R, side, (size_t)whole * 2 * stride),
        .sum = (int32_t *)check_room(MEMORY_SUM, side, 2 * floats * quire_n_parts(coder)),
        .unit = (float *)check_room(MEMORY_UNIT, side, floats),
        .mean_score = (float *)check_room(MEMORY_MEAN_SCORE, side, QUIRE_MEAN_SLOTS * floats),
        .skip_r_below = (float *)check_room(MEMORY_SKIP_R, side, floats),
    };
    for (uint32_t i = 0; i < total; i++) {
        uint32_t row = c->row[i] = (from + i) % ROWS;
        memcpy(q->row + (size_t)i * coder->d, w->rows + (size_t)row * coder->d, coder->d * sizeof(float));
        memcpy(q->mean_score + (size_t)i * QUIRE_MEAN_SLOTS, w->mean_score[row], sizeof w->mean_score[row]);
    }
    check_at.call = "load";
    check_at.n = total;
    if (!check_call(c->kernels, run_load, c) || !check_rims()) return false;
    for (uint32_t i = 0; i < total; i++) q->skip_r_below[i] *= w->skip_r_below[c->row[i]];
    return true;
}

static bool expand(call *c, check_side side)
{
    c->expanded = check_room(MEMORY_EXPANDED, side, quire_expanded_bytes(c->source.format->coder.d_pad));
    check_at.call = "expand";
    return check_call(c->kernels, run_expand, c) && check_rims();
}

static bool score(call *c, check_side side, bool expanded)
{
    c->scratch = check_room(MEMORY_SCRATCH, side, quire_kernel_scratch(c->source.format->coder.d_pad));
    c->scores = (float *)check_room(MEMORY_SCORES, side, (size_t)c->n * TOKENS * sizeof(float));
    c->source.expanded = expanded ? c->expanded : NULL;
    check_at.call = expanded ? "score, expanded" : "score, direct";
    check_at.n = c->n;
    bool ok = check_call(c->kernels, run_score, c) && check_rims();
    c->source.expanded = NULL;
    return ok;
}

/* Bits of what a call gave against the first one. If `seen` is not all tokens, only theirs, and only in rows that see no
 * others. */
static void compare_bits(const call *c, const basis *b, uint64_t seen)
{
    for (uint32_t i = 0; i < c->n; i++) {
        uint32_t row = c->row[c->first + i], fine = c->partial >> i & 1;
        if (seen != ALL_TOKENS && !fine) continue;
        if (!check_same(c->q.unit[c->first + i], b->unit[row]))
            check_fail("row %u: unit %.9g, with 16 rows %.9g", row, (double)c->q.unit[c->first + i],
                       (double)b->unit[row]);
        for (uint32_t t = 0; t < TOKENS; t++) {
            float got = c->scores[i * TOKENS + t], want = b->score[fine][row][t];
            if (!(seen >> t & 1) || check_same(got, want)) continue;
            check_fail("row %u, token %u, partial %u: %.9g, with 16 rows and clean %.9g", row, t, fine,
                       (double)got, (double)want);
            return;
        }
    }
}

/* The first call: its bits become those of all others. */
static bool set_basis(work *w, call *c, check_side side, bool expanded, basis *b)
{
    for (uint32_t fine = 0; fine < 2; fine++) {
        c->partial = fine ? 0xffff : 0;
        if (!score(c, side, expanded)) return false;
        memcpy(b->score[fine], c->scores, sizeof b->score[fine]);
    }
    memcpy(b->unit, c->q.unit, sizeof b->unit);
    b->is_set = true;
    for (uint32_t fine = 0; fine < 2; fine++) {
        for (uint32_t i = 0; i < ROWS * TOKENS; i++) {
            uint32_t row = i / TOKENS, t = i % TOKENS;
            double got = (double)b->score[fine][row][t] * (double)b->unit[row],
                   want = (double)w->want[row][t];
            if (row >= FINITE_ROWS ? !isfinite(got)
                                   : !check_share(fabs(got - want), w->allowed[fine][row][t]))
                continue;
            check_fail("row %u, token %u, partial %u: %.9g, expected %.9g, allowed %.2g", row, t, fine, got,
                       want, row < FINITE_ROWS ? w->allowed[fine][row][t] : 0);
            return true;
        }
    }
    return true;
}

/* All ways to call score with the rows that are loaded. */
static void try_forms(work *w, call *c, check_side side, basis *b, uint64_t seen)
{
    bool direct =
        !quire_must_expand(c->kernels, w->format, c->q.n); /* for all rows of a block, not those of a strip */
    bool has_expanded = c->kernels->expand[quire_family_of(w->format->coder.codec)];
    for (uint32_t expanded = !direct; expanded <= has_expanded; expanded++) {
        if (!b->is_set && !set_basis(w, c, side, expanded, b)) continue;
        const uint32_t partials[] = {0, 0xffff, (uint32_t)rng_bits(&w->random) & 0xffff};
        for (uint32_t i = seen != ALL_TOKENS; i < COUNT(partials); i++) {
            c->partial = partials[i] & (uint32_t)check_low_bits(c->n);
            if (score(c, side, expanded)) compare_bits(c, b, seen);
        }
    }
}

static bool open_tile(work *w, call *c, check_side side, const uint8_t *tile)
{
    const quire_tile_format *f = w->format;
    c->source =
        (quire_source){.format = f, .tile = (uint8_t *)check_copy(MEMORY_TILE, side, tile, f->tile_bytes)};
    const uint8_t *next = (uint8_t *)check_copy(MEMORY_NEXT, side, w->other, f->tile_bytes);
    if (side == GUARD_BEHIND) c->source.next = next;
    if (!c->kernels->expand[quire_family_of(f->coder.codec)]) return true;
    return expand(c, side);
}

/* One instruction set and side: 16 rows first, then other numbers of rows; all of them, or two. */
static void try_rows(work *w, call *c, check_side side, basis *b, const uint8_t *tile, uint64_t seen,
                     bool all)
{
    if (!open_tile(w, c, side, tile)) return;
    const uint32_t one = rng_between(&w->random, 1, 4), more = rng_between(&w->random, 5, 15);
    for (uint32_t n = ROWS; n; n--) {
        if (!all && n != ROWS && n != one && n != more) continue;
        c->first = 0;
        c->n = n;
        if (load(w, c, side, n, n == ROWS ? 0 : rng_below(&w->random, ROWS))) try_forms(w, c, side, b, seen);
        if (!b->is_set) return;
    }
    if (all) { /* the second strip of a block */
        c->first = ROWS;
        c->n = rng_between(&w->random, 1, ROWS);
        if (load(w, c, side, ROWS + c->n, 3)) try_forms(w, c, side, b, seen);
    }
    if (memcmp(c->source.tile, tile, w->format->tile_bytes)) check_fail("wrote into the tile");
}

/* Rows whose unit is not finite are NaN whatever their scores are. */
static void compare_isas(const basis *a, const basis *b, const char *name)
{
    check_at.call = "bits of another level";
    if (!a->is_set || !b->is_set) return;
    if (check_difference(a->unit, b->unit, ROWS) < ROWS) check_fail("units differ");
    for (uint32_t i = 0; i < 2 * ROWS; i++) {
        const float *x = a->score[i / ROWS][i % ROWS], *y = b->score[i / ROWS][i % ROWS];
        size_t at = check_difference(x, y, TOKENS);
        if (!isfinite(b->unit[i % ROWS]) || at == TOKENS) continue;
        check_fail("row %u, token %zu: %.9g, %s %.9g", i % ROWS, at, (double)y[at], name, (double)x[at]);
    }
}

/* --------------------------------------------------------------------- all */

static void reference(work *w)
{
    call c = {.kernels = &quire_kernels_c, .n = ROWS};
    check_use(w->isas, 0);
    if (!open_tile(w, &c, GUARD_BEHIND, w->tile) || !load(w, &c, GUARD_BEHIND, ROWS, 0)) return;
    if (score(&c, GUARD_BEHIND, false)) memcpy(w->want, c.scores, sizeof w->want);
    for (uint32_t t = 0; t < TOKENS; t++) {
        quire_coded_row row;
        quire_tile_get(w->format, w->tile, t, &row);
        allow(w, t, &row);
    }
}

static void try_fill(work *w, check_fill fill, bool poison)
{
    basis first = {0}, b; /* of the level whose bits others have */
    const char *first_name = NULL;
    static _Alignas(64) uint8_t poisoned[CHECK_TILE_BYTES];
    uint64_t hidden = rng_bits(&w->random) | 1;
    check_use(w->isas, 0);
    check_tile(w->format, fill, &w->random, w->tile);
    memcpy(poisoned, w->tile, w->format->tile_bytes);
    if (poison) check_poison(w->format, hidden, &w->random, poisoned);
    reference(w);
    for (uint32_t i = fill == FILL_RANDOM ? 0 : 1; i < w->isas->n; i++) { /* C by itself: once is enough */
        call c = {.kernels = w->isas->kernels[i]};
        b = (basis){0};
        check_use(w->isas, i);
        bool all = i && fill == FILL_RANDOM && !check_given.quick;
        for (uint32_t side = 0; side < (all ? N_SIDES : 1); side++) {
            try_rows(w, &c, (check_side)side, &b, w->tile, ALL_TOKENS, all);
            if (!poison) continue;
            check_at.fill = "hidden rows not finite";
            try_rows(w, &c, (check_side)side, &b, poisoned, ~hidden, false);
            check_at.fill = check_fill_names[fill];
        }
        const char *same = check_same_bits(w->isas->name[i]);
        if (!same) {
            first = b;
            first_name = w->isas->name[i];
        } else if (first_name && strcmp(first_name, same) == 0 && w->format->coder.n_groups) {
            compare_isas(&first, &b, first_name);
        }
    }
}

void check_scores(const check_isas *isas, const check_case *c)
{
    static work w;
    check_at = (check_where){.role = ROLE_SCORE, .codec = c->codec, .d = c->d};
    w.isas = isas;
    w.format = c->k;
    for (uint32_t fill = 0; fill < N_FILLS; fill++) {
        check_at.fill = check_fill_names[fill];
        w.random = check_rng(c->codec, c->d, fill);
        check_queries(&w.random, c->d, w.rows);
        check_use(isas, 0);
        check_tile(w.format, FILL_WILD, &w.random, w.other);
        for (uint32_t i = 0; i < ROWS; i++) {
            for (uint32_t m = 0; m < QUIRE_MEAN_SLOTS; m++)
                w.mean_score[i][m] = c->k->profile && m ? 10 * rng_normal(&w.random) : 0;
            /* Never without r; always, if the query sees the whole tile; by the rule of attend, with a scale of 1/8. */
            const float rules[] = {0, INFINITY, QUIRE_SKIP_R_ERROR * sqrtf((float)c->d) * 8};
            w.skip_r_below[i] = rules[rng_below(&w.random, COUNT(rules))];
        }
        try_fill(&w, (check_fill)fill, fill == FILL_MODEL || fill == FILL_RANDOM);
    }
}
