/* SPDX-License-Identifier: MIT */
/* Parts of a long random run that move rows: steps, padded import and export. */
#include "support/model_game.h"

#include "core/core.h"
#include "support/cache_kit.h"

#define MAX_COLUMNS 400u

void game_expect_status(const game *g, quire_status status, quire_status due)
{
    if (status != due) game_fail(g, "%s, not %s", quire_status_name(status), quire_status_name(due));
}

uint32_t game_list(const game *g, const model_pool *pool, model_seq **list)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->n_seqs; i++)
        if (g->seq[i]->pool == pool) list[n++] = g->seq[i];
    for (uint32_t b = 0; b < g->n_batches; b++)
        for (uint32_t i = 0; i < g->batch[b].n && g->batch[b].pool == pool; i++)
            list[n++] = g->batch[b].seq[i];
    return n;
}

/* ---------------------------------------------------------------------- worlds */

/* Windows shorter and longer than rings, padded head sizes, several heads, d_k and d_v that differ. */
static const quire_layer shapes[][3] = {
    {{2, 1, 32, 32, 0, 0}, {2, 1, 32, 32, 24, 0}, {2, 1, 32, 32, 0, 0}},
    {{2, 2, 16, 16, 0, 0}, {2, 2, 16, 16, 70, 0}},
    {{4, 2, 32, 16, 0, 0}, {2, 1, 16, 32, 40, 0}, {2, 1, 20, 20, 150, 0}},
    {{1, 1, 32, 32, 100, 0}, {2, 1, 24, 32, 0, 0}},
    {{2, 1, 16, 16, 0, 0}, {1, 1, 32, 16, 0, 0}},
};
static const uint32_t n_layers[] = {3, 2, 3, 2, 2};

static const char *const policies[] = {
    "a4g32/a8g64",
    "r3/r5",
    "q4_0/q8_0",
    "f16",
    "h:a4g64/tq2",
    "c:r4/r3",
    "r5/r3,window=q8_0,sinks=4:f16",
    "a8g64/a4g32,window=a4g32",
    "k=r5,v=q4_0,edge=1:a8g64,sinks=100:bf16",
    "c:r4/tq2,window=r5,sinks=1:r8",
    "a4g32/a8g64,window=r3",
    "r3/q8_0", /* one side as in others: it stays as it is when the other is converted */
    "r5/tq2",
};
#define N_POLICIES (sizeof policies / sizeof *policies)

void game_create(game *g, uint64_t seed)
{
    memset(g, 0, sizeof *g);
    g->seed = seed;
    g->r.state = seed;
    g->doing = "create";
    uint32_t shape = rng_below(&g->r, sizeof n_layers / sizeof *n_layers), n_plans = rng_between(&g->r, 2, 5);
    const char *chosen[N_POLICIES];
    memcpy(chosen, policies, sizeof chosen);
    for (uint32_t i = 0; i < n_plans; i++) {
        uint32_t at = rng_between(&g->r, i, N_POLICIES - 1);
        const char *policy = chosen[at];
        chosen[at] = chosen[i];
        chosen[i] = policy;
    }
    quire_geometry geometry = {sizeof(quire_geometry), .n_layers = n_layers[shape],
                               .layer_stride = sizeof(quire_layer), .layers = shapes[shape]};
    row_world_create(&g->world, &geometry, chosen, n_plans, seed);

    fail_alloc_init(&g->memory, 0);
    quire_allocator a = fail_alloc_allocator(&g->memory);
    size_t page = 0;
    for (uint32_t i = 0; i < g->world.n_groups; i++) page += quire_plan_page_bytes(g->world.plan[0], i);
    for (uint32_t i = 0; i < GAME_POOLS; i++) {
        g->pool[i].budget = page * rng_between(&g->r, 6, i ? 20 : 70) + rng_below(&g->r, 1000);
        g->pool[i].real = kit_pool(g->world.plan[0], g->pool[i].budget, &a);
        for (uint32_t p = 1; p < n_plans; p++)
            game_expect_status(g, quire_pool_add_plan(g->pool[i].real, g->world.plan[p]), QUIRE_OK);
    }
}

void game_destroy(game *g)
{
    g->doing = "end";
    for (uint32_t i = 0; i < g->n_seqs; i++) {
        quire_seq_destroy(g->seq[i]->real);
        model_seq_destroy(&g->world, g->seq[i]);
    }
    for (uint32_t i = 0; i < g->n_batches; i++) {
        quire_batch_destroy(g->batch[i].real);
        for (uint32_t k = 0; k < g->batch[i].n; k++) model_seq_destroy(&g->world, g->batch[i].seq[k]);
    }
    for (uint32_t i = 0; i < GAME_POOLS; i++) {
        quire_pool_stats stats = {.size = sizeof stats};
        quire_pool_stats_get(g->pool[i].real, &stats);
        GAME_EXPECT(g, !stats.used_bytes && !stats.n_pages, "pool %u: %zu bytes are in use", i,
                    stats.used_bytes);
        quire_pool_destroy(g->pool[i].real);
    }
    GAME_EXPECT(g, !g->memory.outstanding && !g->memory.bytes, "%llu blocks, %llu bytes are left",
                (unsigned long long)g->memory.outstanding, (unsigned long long)g->memory.bytes);
    row_world_destroy(&g->world);
}

/* ----------------------------------------------------------------------- step */

typedef struct plan_of_step {
    uint32_t n, n_tokens[GAME_STEP_SEQS], total;
    model_seq *seq[GAME_STEP_SEQS];
    uint32_t token[GAME_STEP_SEQS][GAME_MOST_TOKENS];
    model_page *replaced[GAME_STEP_SEQS][ROW_MAX_GROUPS];
} plan_of_step;

static uint32_t some_tokens(rng *r)
{
    uint32_t kind = rng_below(r, 100);
    if (kind < 66) return rng_between(r, 1, 3);
    if (kind < 89) return rng_between(r, 1, 20);
    if (kind < 97) return rng_between(r, 1, 70);
    return kind < 99 ? rng_between(r, 1, GAME_MOST_TOKENS) : 0;
}

static void choose(game *g, model_pool *pool, plan_of_step *p)
{
    model_seq *list[GAME_SEQS + GAME_BATCHES * GAME_MEMBERS];
    uint32_t n = game_list(g, pool, list);
    p->n = rng_below(&g->r, 3) ? 1 : rng_between(&g->r, 1, GAME_STEP_SEQS);
    if (p->n > n) p->n = n;
    p->total = 0;
    for (uint32_t i = 0; i < p->n; i++) {
        uint32_t at = rng_between(&g->r, i, n - 1);
        model_seq *s = list[at];
        list[at] = list[i];
        list[i] = p->seq[i] = s;
        p->n_tokens[i] = some_tokens(&g->r);
        p->total += p->n_tokens[i];
        for (uint32_t t = 0; t < p->n_tokens[i]; t++) p->token[i][t] = rng_below(&g->r, ROW_BANK);
    }
}

/* Rows of one sequence in a form of its own, with gaps between tokens and heads. */
static void fill_rows(const game *g, const plan_of_step *p, uint32_t i, uint32_t layer, quire_side side,
                      quire_form form, size_t gap, uint8_t *to, quire_rows *rows)
{
    const row_world *w = &g->world;
    uint32_t heads = w->layer[layer].n_kv_heads, d = row_width(w, layer, side) / heads;
    uint32_t group = w->group[layer], first = p->seq[i]->length;
    size_t row = form == QUIRE_NATIVE ? 0 : d * quire_value_bytes(form);
    if (form == QUIRE_NATIVE) /* every page has the same codec, the caller has looked */
        row = w->layout[w->node[p->seq[i]->node[group][first]].layout].row_bytes[layer][side];
    *rows = (quire_rows){.size = sizeof(quire_rows),
                         .form = form,
                         .data = to,
                         .head_stride = row + gap,
                         .token_stride = (row + gap) * heads + gap};
    for (uint32_t t = 0; t < p->n_tokens[i]; t++)
        for (uint32_t h = 0; h < heads; h++) {
            uint8_t *at = to + t * rows->token_stride + h * rows->head_stride;
            const float *x = row_input(w, p->token[i][t], layer, side) + (size_t)h * d;
            if (form == QUIRE_NATIVE)
                memcpy(at, row_native(w, p->seq[i]->node[group][first + t], layer, side) + h * row, row);
            else
                for (uint32_t c = 0; c < d; c++) quire_store_value(form, at, c, x[c]);
        }
}

/* Whether the rows to be appended go to pages with the plan's ordinary codec. */
static bool fits_native(const game *g, const plan_of_step *p, uint32_t i, uint32_t layer)
{
    const row_world *w = &g->world;
    const model_seq *s = p->seq[i];
    uint32_t group = w->group[layer], plain = s->plan * 2 * w->n_groups + group;
    for (uint32_t page = s->length / QUIRE_PAGE_TOKENS; page < model_pages(s->length + p->n_tokens[i]);
         page++)
        for (uint32_t side = 0; side < 2; side++) {
            const quire_tile_format *have = w->layout[s->page[group][page]->layout].format[layer][side];
            const quire_tile_format *want = w->layout[plain].format[layer][side];
            if (quire_tile_format_fingerprint(have) != quire_tile_format_fingerprint(want)) return false;
        }
    return true;
}

#define SIDE_BYTES (GAME_MOST_TOKENS * (ROW_WIDEST * 4 + 64))

static void append_one(game *g, quire_step *step, const plan_of_step *p, uint32_t i, uint32_t layer)
{
    static uint8_t bytes[2][SIDE_BYTES];
    static const quire_form forms[] = {QUIRE_F32, QUIRE_F16, QUIRE_BF16, QUIRE_NATIVE};
    quire_form form = forms[rng_below(&g->r, 4)];
    size_t gap = rng_below(&g->r, 2) * 4;
    quire_rows k = {.size = sizeof(quire_rows)}, v = {.size = sizeof(quire_rows)};
    if (form == QUIRE_NATIVE && !fits_native(g, p, i, layer)) {
        k = v = (quire_rows){.size = sizeof(quire_rows), .form = QUIRE_NATIVE, .data = bytes};
        if (p->n_tokens[i])
            game_expect_status(g, quire_step_append_rows(step, layer, i, &k, &v), QUIRE_EUNSUPPORTED);
        form = QUIRE_F32;
    }
    if (p->n_tokens[i]) {
        fill_rows(g, p, i, layer, QUIRE_K, form, gap, bytes[0], &k);
        fill_rows(g, p, i, layer, QUIRE_V, form, gap, bytes[1], &v);
    }
    game_expect_status(g, quire_step_append_rows(step, layer, i, &k, &v), QUIRE_OK);
}

static void append_layer(game *g, quire_step *step, const plan_of_step *p, uint32_t layer)
{
    static float x[2][GAME_STEP_SEQS * GAME_MOST_TOKENS * ROW_WIDEST];
    if (rng_below(&g->r, 4) == 0) {
        for (uint32_t i = 0; i < p->n; i++) append_one(g, step, p, i, layer);
        return;
    }
    for (uint32_t side = 0; side < 2; side++) {
        float *to = x[side];
        uint32_t width = row_width(&g->world, layer, side ? QUIRE_V : QUIRE_K);
        for (uint32_t i = 0; i < p->n; i++)
            for (uint32_t t = 0; t < p->n_tokens[i]; t++, to += width)
                memcpy(to, row_input(&g->world, p->token[i][t], layer, side ? QUIRE_V : QUIRE_K),
                       width * sizeof(float));
    }
    game_expect_status(g, quire_step_append(step, layer, x[0], x[1]), QUIRE_OK);
}

static void attend_layer(game *g, quire_step *step, const plan_of_step *p, uint32_t layer)
{
    const quire_layer *l = &g->world.layer[layer];
    size_t n_q = (size_t)l->n_q_heads * l->d_k, n_out = (size_t)l->n_q_heads * l->d_v;
    float *q = (float *)calloc(n_q * p->total + 1, sizeof(float));
    float *out = (float *)calloc(n_out * p->total + 1, sizeof(float));
    KIT_REQUIRE(q && out);
    for (size_t i = 0; i < n_q * p->total; i++) q[i] = rng_normal(&g->r);
    game_expect_status(g, quire_step_attend(step, layer, q, out), QUIRE_OK);
    size_t at = 0;
    for (uint32_t i = 0; i < p->n; at += p->n_tokens[i++]) {
        model_why why;
        if (!model_check_attend(&g->world, p->seq[i], layer, p->seq[i]->length, p->n_tokens[i], q + at * n_q,
                                out + at * n_out, &why))
            game_fail(g, "%s", why.text);
    }
    g->n_attended++;
    free(q);
    free(out);
}

/* While the step is open nobody else may touch its sequences. */
static void poke(game *g, const plan_of_step *p)
{
    quire_seq *fork = NULL, *real = p->seq[0]->real;
    quire_step *other = NULL;
    kit_bytes none = {0};
    uint32_t one = 1;
    game_expect_status(g, quire_seq_fork(&fork, real), QUIRE_EBUSY);
    game_expect_status(g, quire_seq_trim(real, 0), QUIRE_EBUSY);
    game_expect_status(g, quire_seq_convert(real, g->world.plan[0], 0), QUIRE_EBUSY);
    game_expect_status(g, quire_seq_save(real, kit_write, &none), QUIRE_EBUSY);
    game_expect_status(g, quire_step_begin(&other, p->seq[0]->pool->real, &real, &one, 1), QUIRE_EBUSY);
    kit_bytes_free(&none);
}

void game_step(game *g, model_pool *pool)
{
    static plan_of_step p;
    row_world *w = &g->world;
    choose(g, pool, &p);
    quire_seq *real[GAME_STEP_SEQS] = {0};
    size_t bytes = 0;
    for (uint32_t i = 0; i < p.n; i++) {
        real[i] = p.seq[i]->real;
        bytes += model_append_bytes(w, p.seq[i], p.n_tokens[i]);
    }
    quire_step *step = NULL;
    quire_status status = quire_step_begin(&step, pool->real, real, p.n_tokens, p.n);
    bool fits = bytes <= pool->budget - pool->used;
    game_expect_status(g, status, fits ? QUIRE_OK : QUIRE_EFULL);
    if (!fits) {
        quire_pool_stats stats = {.size = sizeof stats}; /* some copies were made before the budget ended */
        quire_pool_stats_get(pool->real, &stats);
        pool->n_copies = stats.n_copies;
        g->n_refused_full++;
        return;
    }
    for (uint32_t i = 0; i < p.n; i++) model_reserve(w, p.seq[i], p.token[i], p.n_tokens[i], p.replaced[i]);
    if (p.n && rng_below(&g->r, 50) == 0) poke(g, &p);
    bool abort_it = rng_below(&g->r, 8) == 0;
    uint32_t until = abort_it ? rng_below(&g->r, w->n_layers + 1) : w->n_layers;
    uint32_t attended = rng_below(&g->r, 250) ? UINT32_MAX : rng_below(&g->r, w->n_layers);
    for (uint32_t layer = 0; layer < until; layer++) {
        append_layer(g, step, &p, layer);
        if (layer == attended) attend_layer(g, step, &p, layer);
        if (layer + 1 < until && p.total && rng_below(&g->r, 100) == 0)
            game_expect_status(g, quire_step_commit(step), QUIRE_EINVAL);
    }
    if (abort_it)
        quire_step_abort(step);
    else
        game_expect_status(g, quire_step_commit(step), QUIRE_OK);
    for (uint32_t i = 0; i < p.n; i++) {
        if (abort_it)
            model_abort(w, p.seq[i], p.n_tokens[i], p.replaced[i]);
        else
            model_commit(w, p.seq[i], p.n_tokens[i], p.replaced[i]);
    }
}

/* ---------------------------------------------------------------- left padding */

void game_import(game *g, model_pool *pool)
{
    row_world *w = &g->world;
    quire_rows k[ROW_MAX_LAYERS] = {0}, v[ROW_MAX_LAYERS] = {0};
    float *block[ROW_MAX_LAYERS][2];
    uint32_t n = rng_between(&g->r, 1, 3), columns = rng_between(&g->r, 1, 40), padding[3], token[3][40];
    model_batch b = {.pool = pool, .n = n};
    model_page *replaced[ROW_MAX_GROUPS];
    size_t bytes = 0;
    for (uint32_t i = 0; i < n; i++) {
        padding[i] = rng_below(&g->r, columns + 1);
        for (uint32_t c = 0; c < columns; c++) token[i][c] = rng_below(&g->r, ROW_BANK);
        b.seq[i] = model_seq_create(pool, 0, NULL);
        bytes += model_append_bytes(w, b.seq[i], columns - padding[i]);
    }
    for (uint32_t layer = 0; layer < w->n_layers; layer++)
        for (uint32_t s = 0; s < 2; s++) {
            uint32_t width = row_width(w, layer, s ? QUIRE_V : QUIRE_K);
            float *x = block[layer][s] = (float *)calloc((size_t)n * columns * width, sizeof(float));
            KIT_REQUIRE(x);
            for (uint32_t i = 0; i < n; i++)
                for (uint32_t c = 0; c < columns; c++, x += width)
                    memcpy(x, row_input(w, token[i][c], layer, s ? QUIRE_V : QUIRE_K), width * sizeof(float));
            *(s ? &v[layer] : &k[layer]) =
                (quire_rows){.size = sizeof(quire_rows), .form = QUIRE_F32, .data = block[layer][s]};
        }
    quire_status status =
        quire_batch_import(&b.real, pool->real, n, columns, padding, k, v, sizeof(quire_rows));
    for (uint32_t layer = 0; layer < w->n_layers; layer++)
        for (uint32_t s = 0; s < 2; s++) free(block[layer][s]);
    bool fits = bytes <= pool->budget - pool->used;
    game_expect_status(g, status, fits ? QUIRE_OK : QUIRE_EFULL);
    quire_seq *const *real = fits ? quire_batch_seqs(b.real, NULL) : NULL;
    for (uint32_t i = 0; i < n; i++) {
        if (!fits) {
            model_seq_destroy(w, b.seq[i]);
            continue;
        }
        b.seq[i]->real = real[i];
        model_reserve(w, b.seq[i], token[i] + padding[i], columns - padding[i], replaced);
        model_commit(w, b.seq[i], columns - padding[i], replaced);
    }
    if (fits)
        g->batch[g->n_batches++] = b;
    else
        g->n_refused_full++;
}

void game_export(game *g, const model_batch *b)
{
    static float x[GAME_MEMBERS * MAX_COLUMNS * ROW_WIDEST];
    const row_world *w = &g->world;
    uint32_t layer = rng_below(&g->r, w->n_layers), padding[GAME_MEMBERS], longest = 0;
    quire_side side = rng_below(&g->r, 2) ? QUIRE_V : QUIRE_K;
    bool held = true;
    for (uint32_t i = 0; i < b->n; i++) {
        if (b->seq[i]->length > longest) longest = b->seq[i]->length;
        for (uint32_t p = 0; p < b->seq[i]->length; p++)
            if (!model_holds(b->seq[i], w->group[layer], p)) held = false;
    }
    uint32_t columns = longest + rng_below(&g->r, 3), width = row_width(w, layer, side);
    if (columns > MAX_COLUMNS) return;
    quire_rows_out rows = {.size = sizeof(quire_rows_out), .form = QUIRE_F32, .data = x};
    memset(x, 0x7f, sizeof(float) * b->n * columns * width);
    if (longest && held)
        game_expect_status(g, quire_batch_export(b->real, layer, side, longest - 1, padding, &rows),
                           QUIRE_EINVAL);
    game_expect_status(g, quire_batch_export(b->real, layer, side, columns, padding, &rows),
                       held ? QUIRE_OK : QUIRE_ERANGE);
    const float *at = x;
    for (uint32_t i = 0; i < b->n && held; i++) {
        const model_seq *s = b->seq[i];
        GAME_EXPECT(g, padding[i] == columns - s->length, "sequence %u has %u columns of padding", i,
                    padding[i]);
        for (uint32_t c = 0; c < columns; c++, at += width) {
            const float *row =
                c < padding[i] ? NULL : row_values(w, s->node[w->group[layer]][c - padding[i]], layer, side);
            for (uint32_t e = 0; e < width; e++)
                GAME_EXPECT(g, row ? at[e] == row[e] : at[e] == 0, "sequence %u, column %u: other values", i,
                            c);
        }
    }
}
