/* SPDX-License-Identifier: MIT */
/* check: expand or transpose, mix and add_bias_sums. As with scores, a first call with 16 rows is compared with the C table, and
 * every other call must give the same bits. */
#include "check.h"

#include <math.h>

/* One tile and the weights it is tried with. */
typedef struct work {
    const check_isas *isas;
    const quire_tile_format *format;
    bool in_k; /* V is the first d_out channels of a K tile */
    uint32_t d_out;
    size_t stride; /* floats of an accumulator */
    rng random;
    _Alignas(64) uint8_t tile[CHECK_TILE_BYTES];
    _Alignas(64) uint8_t other[CHECK_TILE_BYTES];
    uint64_t visible[ROWS];
    float p[ROWS][TOKENS], factor[ROWS];
    float before[ROWS * CHECK_ACC_FLOATS], want[ROWS * CHECK_ACC_FLOATS];
    double allowed[ROWS], size[ROWS]; /* norms: of the error, and of what was there and sum p|v| */
} work;

typedef struct basis {
    bool is_set;
    float acc[ROWS * CHECK_ACC_FLOATS];
} basis;

typedef struct call {
    const quire_kernels *kernels;
    quire_source source;
    uint32_t n, d_out;
    const float *p, *factor;
    const uint64_t *visible;
    float *acc;
    size_t stride;
    void *expanded, *scratch;
    uint32_t row[ROWS]; /* number of the row that lies at each place */
} call;

static quire_family family_of(const call *c)
{
    return quire_family_of(c->source.format->coder.codec);
}

static void run_expand(void *arg)
{
    call *c = (call *)arg;
    c->kernels->expand[family_of(c)](&c->source, c->expanded);
}

static void run_transpose(void *arg)
{
    call *c = (call *)arg;
    c->kernels->transpose_k_to_v[family_of(c)](&c->source, c->expanded);
}

static void run_mix(void *arg)
{
    call *c = (call *)arg;
    c->kernels->mix[family_of(c)](&c->source, c->d_out, c->p, c->visible, c->factor, c->n, c->acc, c->stride,
                                  c->scratch);
}

static void run_bias_sums(void *arg)
{
    call *c = (call *)arg;
    c->kernels->add_bias_sums(c->source.format, c->acc);
}

/* --------------------------------------------------------------- reference */

/* Sizes of the numbers of a tile as kernels see them: scale * (code + shift) + rest. */
typedef struct sizes {
    float value[TOKENS][MOST_D];
    float scale[TOKENS][MOST_D]; /* |scale| */
    float step[TOKENS][MOST_D];  /* |code + shift| */
    float apart[TOKENS][MOST_D]; /* |scale| (code + |shift|) + |rest|: the terms before they cancel */
} sizes;

static void measure(const quire_tile_format *f, const uint8_t *tile, uint32_t t, sizes *s)
{
    const quire_coder *coder = &f->coder;
    const quire_codec *codec = coder->codec;
    bool table = codec->values == QUIRE_VALUES_TABLE, calibrated = codec->info.flags & QUIRE_CODEC_CALIBRATED;
    quire_coded_row row;
    float scale = 0, shift = table ? -128.0f : -(float)codec->zero, rest = 0;
    quire_tile_get(f, tile, t, &row);
    for (uint32_t c = 0; c < coder->d; c++) {
        uint32_t g = coder->n_groups ? c / coder->group : 0;
        float code = table ? (float)(codec->table[row.code[c]] + 128) : (float)row.code[c];
        if (!coder->n_groups) {
            rest = row.value[c];
            code = shift = 0;
        } else if (c % coder->group == 0) {
            scale = quire_f16_to_f32(row.scale[g] & (calibrated ? 0xfff0 : 0xffff));
            float bias = codec->has_bias ? quire_f16_to_f32(row.bias[g]) : 0;
            float most = codec->info.bits == 8 ? 256 : 64;
            if (codec->has_bias) shift = scale == 0 ? 0 : rintf(fminf(fmaxf(bias / scale, -most), most));
            if (codec->has_bias) rest = bias - shift * scale;
        }
        s->value[t][c] = fabsf(scale * (code + shift) + rest);
        s->scale[t][c] = fabsf(scale);
        s->step[t][c] = fabsf(code + shift);
        s->apart[t][c] = fabsf(scale) * (code + fabsf(shift)) + fabsf(rest);
    }
}

/* What steps and rounding may do to row i: see the bounds. */
static void allow(work *w, const sizes *s, uint32_t i)
{
    float value[MOST_D], steps[MOST_D], apart[MOST_D], most[MOST_D];
    const float half = (float)check_bounds[BOUND_MIX_STEP].value;
    const uint32_t d = w->d_out, group = w->format->coder.group;
    for (uint32_t c = 0; c < d; c++) {
        value[c] = apart[c] = fabsf(w->before[i * w->stride + c]);
        steps[c] = 0;
        most[c] = 1e-30f;
        if (c % group) { /* the same for a group */
            most[c] = most[c - 1];
            continue;
        }
        float product = 0;
        for (uint32_t t = 0; t < TOKENS; t++) {
            if (!(w->visible[i] >> t & 1)) continue;
            most[c] = fmaxf(most[c], s->scale[t][c]);
            product = fmaxf(product, w->p[i][t] * s->scale[t][c]);
        }
        if (product < 0.502f * most[c]) most[c] = product; /* QUIRE_SMALL_Z */
    }
    for (uint32_t t = 0; t < TOKENS; t++) {
        if (!(w->visible[i] >> t & 1)) continue;
        float p = w->p[i][t] * w->factor[i], by = half * w->factor[i];
        for (uint32_t c = 0; c < d; c++) {
            float step = by * most[c], all = p * s->scale[t][c];
            value[c] += p * s->value[t][c];
            steps[c] += (step < all ? step : all) * s->step[t][c];
            apart[c] += p * s->apart[t][c];
        }
    }
    double size = 0, error = 0;
    for (uint32_t c = 0; c < d; c++) {
        /* 1e-29: products below 2^-126 count as 0, 64 of them, in units of 1/32600, times codes. */
        double e = (double)steps[c] + (double)apart[c] * check_bounds[BOUND_MIX].value + 1e-29;
        size += (double)value[c] * (double)value[c];
        error += e * e;
    }
    w->size[i] = sqrt(size);
    w->allowed[i] = sqrt(error);
}

/* ------------------------------------------------------------------- calls */

/* n rows, the first of them number `from`. False: a fault. */
static bool mix(const work *w, call *c, check_side side, uint32_t n, uint32_t from, bool expanded)
{
    float *p = (float *)check_room(MEMORY_SCORES, side, n * sizeof w->p[0]);
    float *factor = (float *)check_room(MEMORY_FACTOR, side, n * sizeof *factor);
    uint64_t *visible = (uint64_t *)check_room(MEMORY_VISIBLE, side, n * sizeof *visible);
    c->acc = (float *)check_room(MEMORY_ACC, side, n * w->stride * sizeof(float));
    for (uint32_t i = 0; i < n; i++) {
        uint32_t row = c->row[i] = (from + i) % ROWS;
        memcpy(p + i * TOKENS, w->p[row], sizeof w->p[row]);
        factor[i] = w->factor[row];
        visible[i] = w->visible[row];
        memcpy(c->acc + i * w->stride, w->before + row * w->stride, w->stride * sizeof(float));
    }
    c->n = n;
    c->d_out = w->d_out;
    c->stride = w->stride;
    c->p = p;
    c->factor = factor;
    c->visible = visible;
    c->scratch = check_room(MEMORY_SCRATCH, side, quire_kernel_scratch(w->format->coder.d_pad));
    c->source.expanded = expanded ? c->expanded : NULL;
    check_at.call = expanded ? w->in_k ? "mix, transposed" : "mix, expanded" : "mix, direct";
    check_at.n = n;
    bool ok = check_call(c->kernels, run_mix, c) && check_rims();
    c->source.expanded = NULL;
    return ok;
}

/* Floats that belong to no channel of d_out and to no lane. */
static void compare_untouched(const work *w, const call *c, uint32_t i)
{
    const quire_coder *coder = &w->format->coder;
    const float *got = c->acc + i * w->stride, *before = w->before + c->row[i] * w->stride;
    uint32_t end = (w->d_out + 15) / 16 * 16;
    size_t floats = quire_acc_floats(w->format);
    if (check_difference(got + end, before + end, coder->d_pad - end) < coder->d_pad - end)
        check_fail("row %u: wrote channels behind d_out %u", c->row[i], w->d_out);
    if (check_difference(got + floats, before + floats, w->stride - floats) < w->stride - floats)
        check_fail("row %u: wrote behind the accumulator", c->row[i]);
}

/* Bits of what a call gave against the first one; not of rows that see what is in `hidden`. */
static void compare_bits(const work *w, const call *c, const basis *b, uint64_t hidden)
{
    for (uint32_t i = 0; i < c->n; i++) {
        if (w->visible[c->row[i]] & hidden) continue;
        const float *got = c->acc + i * w->stride, *want = b->acc + c->row[i] * w->stride;
        size_t at = check_difference(got, want, w->stride);
        if (at < w->stride) {
            check_fail("row %u, float %zu: %.9g, with 16 rows and clean %.9g", c->row[i], at, (double)got[at],
                       (double)want[at]);
            return;
        }
    }
}

/* Settles the rows of the first call and compares them with those of C. */
static void compare_values(const work *w, call *c, bool is_model)
{
    check_role role = check_at.role;
    for (uint32_t i = 0; i < ROWS; i++) {
        call one = *c;
        one.acc = c->acc + i * w->stride;
        check_at.role = ROLE_BIAS_SUMS;
        check_at.call = "add_bias_sums after mix";
        if (!check_call(c->kernels, run_bias_sums, &one)) return;
        check_at.role = role;
        check_at.call = "values";
        double error = 0;
        for (uint32_t k = 0; k < w->d_out; k++) {
            double e = (double)one.acc[k] - (double)w->want[i * w->stride + k];
            error += e * e;
        }
        error = sqrt(error);
        if (check_share(error, w->allowed[i]))
            check_fail(
                "row %u: error %.3g, allowed %.3g, norm of sum p|v| %.3g; first channel %.9g, expected %.9g",
                i, error, w->allowed[i], w->size[i], (double)one.acc[0], (double)w->want[i * w->stride]);
        if (is_model && error > check_bounds[BOUND_MIX_MODEL].value * w->size[i] + 1e-27)
            check_fail("row %u: error %.3g, norm of sum p|v| %.3g", i, error, w->size[i]);
    }
}

static bool open_tile(work *w, call *c, check_side side, const uint8_t *tile)
{
    const quire_tile_format *f = w->format;
    c->source =
        (quire_source){.format = f, .tile = (uint8_t *)check_copy(MEMORY_TILE, side, tile, f->tile_bytes)};
    const uint8_t *next = (uint8_t *)check_copy(MEMORY_NEXT, side, w->other, f->tile_bytes);
    quire_expand_tile_fn *make = (w->in_k ? c->kernels->transpose_k_to_v : c->kernels->expand)[family_of(c)];
    if (make) {
        c->expanded = check_room(MEMORY_EXPANDED, side, quire_expanded_bytes(f->coder.d_pad));
        check_at.call = w->in_k ? "transpose_k_to_v" : "expand";
        if (!check_call(c->kernels, w->in_k ? run_transpose : run_expand, c) || !check_rims()) return false;
    }
    if (side == GUARD_BEHIND && !w->in_k) c->source.next = next;
    return true;
}

static void try_forms(work *w, call *c, check_side side, basis *b, uint32_t n, uint32_t from, uint64_t hidden,
                      bool is_model)
{
    quire_family family = family_of(c);
    bool has_made = (w->in_k ? c->kernels->transpose_k_to_v : c->kernels->expand)[family];
    bool direct = w->in_k ? !has_made : !quire_must_expand(c->kernels, w->format, n);
    for (uint32_t expanded = !direct; expanded <= has_made; expanded++) {
        if (!mix(w, c, side, n, from, expanded)) continue;
        for (uint32_t i = 0; i < n; i++) compare_untouched(w, c, i);
        if (b->is_set) {
            compare_bits(w, c, b, hidden);
            continue;
        }
        b->is_set = true;
        memcpy(b->acc, c->acc, n * w->stride * sizeof(float));
        compare_values(w, c, is_model);
    }
}

/* One instruction set and side: 16 rows first, then other numbers of rows; all of them, or two. */
static void try_rows(work *w, call *c, check_side side, basis *b, const uint8_t *tile, uint64_t hidden,
                     bool all, bool is_model)
{
    if (!open_tile(w, c, side, tile)) return;
    const uint32_t one = rng_between(&w->random, 1, 4), more = rng_between(&w->random, 5, 15);
    for (uint32_t n = ROWS; n && (n == ROWS || b->is_set); n--)
        if (all || n == ROWS || n == one || n == more)
            try_forms(w, c, side, b, n, n == ROWS ? 0 : rng_below(&w->random, ROWS), hidden, is_model);
    if (memcmp(c->source.tile, tile, w->format->tile_bytes)) check_fail("wrote into the tile");
}

/* --------------------------------------------------------------------- all */

static void reference(work *w)
{
    static sizes s;
    call c = {.kernels = &quire_kernels_c};
    check_use(w->isas, 0);
    if (!open_tile(w, &c, GUARD_BEHIND, w->tile) || !mix(w, &c, GUARD_BEHIND, ROWS, 0, false)) return;
    memcpy(w->want, c.acc, ROWS * w->stride * sizeof(float));
    for (uint32_t t = 0; t < TOKENS; t++) measure(w->format, w->tile, t, &s);
    for (uint32_t i = 0; i < ROWS; i++) allow(w, &s, i);
}

/* Weights between 0 and 1, of which one is 1, as softmax_update() leaves them. */
static void make_weights(work *w, uint64_t hidden)
{
    rng *r = &w->random;
    check_masks(r, hidden, w->visible);
    for (uint32_t i = 0; i < ROWS; i++) {
        const float spreads[] = {0.7f, 2, 6, 40, 0};
        float spread = spreads[rng_below(r, COUNT(spreads))];
        for (uint32_t t = 0; t < TOKENS; t++)
            w->p[i][t] = w->visible[i] >> t & 1 ? exp2f(-spread * fabsf(rng_normal(r))) : 0;
        uint32_t top = rng_below(r, TOKENS);
        while (w->visible[i] && !(w->visible[i] >> top & 1)) top = (top + 1) % TOKENS;
        if (w->visible[i]) w->p[i][top] = 1;
        const float factors[] = {1, 1, 0.37f, 1e-9f, 1e-20f};
        w->factor[i] = w->visible[i] ? factors[rng_below(r, COUNT(factors))] : 0;
    }
    for (size_t i = 0; i < ROWS * w->stride; i++) {
        size_t at = i % w->stride;
        bool lane = at >= w->format->coder.d_pad && at < quire_acc_floats(w->format);
        w->before[i] = lane ? 0 : i / w->stride % 3 ? rng_normal(r) : 0;
    }
}

static void try_fill(work *w, check_fill fill, bool poison)
{
    static basis first, b; /* of the level whose bits others have */
    static _Alignas(64) uint8_t poisoned[CHECK_TILE_BYTES];
    uint64_t hidden = poison ? rng_bits(&w->random) & rng_bits(&w->random) : 0;
    check_use(w->isas, 0);
    check_tile(w->format, fill, &w->random, w->tile);
    memcpy(poisoned, w->tile, w->format->tile_bytes);
    check_poison(w->format, hidden, &w->random, poisoned);
    make_weights(w, hidden);
    reference(w);
    const char *first_name = NULL;
    first.is_set = false;
    for (uint32_t i = fill == FILL_RANDOM ? 0 : 1; i < w->isas->n; i++) { /* C by itself: once is enough */
        call c = {.kernels = w->isas->kernels[i]};
        b.is_set = false;
        check_use(w->isas, i);
        bool all = i && fill == FILL_RANDOM && !check_given.quick;
        for (uint32_t side = 0; side < (all ? N_SIDES : 1); side++) {
            try_rows(w, &c, (check_side)side, &b, w->tile, 0, all, fill == FILL_MODEL);
            if (!poison) continue;
            check_at.fill = "hidden rows not finite";
            try_rows(w, &c, (check_side)side, &b, poisoned, hidden, false, false);
            check_at.fill = check_fill_names[fill];
        }
        const char *same = check_same_bits(w->isas->name[i]);
        if (!same) {
            first = b;
            first_name = w->isas->name[i];
            continue;
        }
        if (!first_name || strcmp(first_name, same) || !w->format->coder.n_groups || !first.is_set ||
            !b.is_set)
            continue;
        size_t n = ROWS * w->stride, at = check_difference(b.acc, first.acc, n);
        check_at.call = "bits of another level";
        if (at < n)
            check_fail("row %zu, float %zu: %.9g, %s %.9g", at / w->stride, at % w->stride, (double)b.acc[at],
                       first_name, (double)first.acc[at]);
    }
}

/* add_bias_sums by itself: any accumulator, any lanes. */
static void check_bias_sums(const check_isas *isas, const quire_tile_format *f, rng *r)
{
    static float before[CHECK_ACC_FLOATS];
    size_t n = quire_acc_floats(f);
    check_at.role = ROLE_BIAS_SUMS;
    check_at.fill = NULL;
    check_at.call = "add_bias_sums";
    check_at.n = 0;
    for (size_t i = 0; i < n; i++) before[i] = rng_normal(r) * (i % 7 ? 1 : 1000.0f);
    for (uint32_t i = 1; i < isas->n; i++) { /* C has no lanes */
        for (uint32_t side = 0; side < N_SIDES; side++) {
            check_use(isas, i);
            call c = {.kernels = isas->kernels[i], .source = {.format = f}};
            c.acc = (float *)check_copy(MEMORY_ACC, (check_side)side, before, n * sizeof *before);
            if (!check_call(c.kernels, run_bias_sums, &c) || !check_rims()) continue;
            for (uint32_t k = 0; k < f->coder.d; k++) {
                double want = (double)before[k], size = fabs(want);
                bool lanes = f->coder.codec->has_bias;
                uint32_t first = f->coder.d_pad + (lanes ? k / f->coder.group : 0) * QUIRE_BIAS_LANES;
                for (uint32_t l = first; l < first + QUIRE_BIAS_LANES && lanes; l++) {
                    want += (double)before[l];
                    size += fabs((double)before[l]);
                }
                if (check_share(fabs((double)c.acc[k] - want), size * check_bounds[BOUND_BIAS_SUMS].value))
                    check_fail("channel %u: %.9g, expected %.9g", k, (double)c.acc[k], want);
            }
        }
    }
}

static void check_format(const check_isas *isas, const check_case *c, const quire_tile_format *f,
                         uint32_t d_out)
{
    static work w;
    w.isas = isas;
    w.format = f;
    w.in_k = f->coder.side == QUIRE_K;
    w.d_out = d_out;
    check_at = (check_where){.role = w.in_k ? ROLE_TRANSPOSE : ROLE_MIX, .codec = c->codec, .d = c->d};
    for (uint32_t fill = 0; fill < N_FILLS; fill++) {
        check_at.fill = check_fill_names[fill];
        w.random = check_rng(c->codec, c->d, 100 + fill + 10 * w.in_k);
        /* Accumulators lie close together, or with those of other formats between them. */
        w.stride = quire_acc_floats(f) + 16 * rng_below(&w.random, 4);
        check_use(isas, 0);
        check_tile(f, FILL_WILD, &w.random, w.other);
        try_fill(&w, (check_fill)fill, fill == FILL_MODEL || fill == FILL_RANDOM);
    }
}

void check_mixes(const check_isas *isas, const check_case *c)
{
    rng r = check_rng(c->codec, c->d, 200);
    if (c->v) check_format(isas, c, c->v, c->d);
    /* As with latent attention, 512 of 576; or any other part. */
    check_format(isas, c, c->k, c->d == 576 ? 512 : rng_between(&r, c->d / 2, c->d));
    check_bias_sums(isas, c->v ? c->v : c->k, &r);
}
