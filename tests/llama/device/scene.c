/* SPDX-License-Identifier: MIT */
/* Filling caches and making queries. */
#include "scene.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const mask_names[] = {"sequences", "random", "alibi",    "few",
                                         "none",      "",       "selected", "weighed"};

const char *scene_text(const scene *s)
{
    static char text[400];
    snprintf(text, sizeof text, "%s queries %d of streams %d+%d n_kv %d mask %s%s%s%s%s", shape_text(&s->s),
             s->n_q, s->first_stream, s->streams, s->n_kv, mask_names[s->mask],
             s->per_head_mask ? " per head" : "", s->softcap ? " softcap" : "", s->sinks ? " sinks" : "",
             s->peaked ? " peaked" : "");
    return text;
}

double tolerance(const shape *s)
{
    if (kit.policy) return 5e-5;
    return kit_is_float(s->k) && kit_is_float(s->v) ? 1e-6 : 5e-5;
}

void random_row(float *x, int n, side which)
{
    float size = 0.5f + 0.01f * (float)kit_below(100);
    for (int i = 0; i < n; i++) {
        x[i] = size * kit_normal();
        if (which == K && i % 32 == 5) x[i] = x[i] * 3 + 4;
    }
}

void random_rows(float *x, int n, int n_rows, side which)
{
    for (int r = 0; r < n_rows; r++) random_row(x + (size_t)r * (size_t)n, n, which);
}

static bool write_rows(play *p, const int64_t *cell, int n)
{
    cache *c = &p->c;
    float *rows[2] = {KIT_NEW(float, n * c->row[K]), KIT_NEW(float, n * c->row[V])};
    bool ok = true;
    for (int l = 0; ok && l < c->s.layers; l++) {
        random_rows(rows[K], c->row[K], n, K);
        random_rows(rows[V], c->row[V], n, V);
        batch b = {.n = n, .cell = cell, .k = rows[K], .v = rows[V]};
        ok = kit_check(cache_write(c, l, &b) == GG_SUCCESS, "SET_ROWS fails");
    }
    free(rows[K]);
    free(rows[V]);
    return ok;
}

/* Cells in batches of changing size, the streams mixed. Positions go up in the order of writing. */
static bool write_cells(play *p, const int64_t *cell, int n)
{
    static const int sizes[] = {1, 7, 64, 33, 2, 130};
    for (int at = 0, turn = 0; at < n; turn++) {
        int count = sizes[turn % 6] < n - at ? sizes[turn % 6] : n - at;
        if (!write_rows(p, cell + at, count)) return false;
        for (int i = 0; i < count; i++) {
            p->position[cell[at + i]] = at + i;
            p->sequence[cell[at + i]] = kit_below(3);
        }
        at += count;
    }
    return true;
}

static void make_queries(play *p)
{
    const scene *s = p->s;
    int heads_q = s->s.heads * s->s.gqa, n = s->n_q * s->streams * heads_q * s->s.d_k;
    p->q = KIT_NEW(float, n);
    float size = s->peaked ? 3 : 1;
    for (int i = 0; i < n; i++) p->q[i] = size * kit_normal();
    if (s->sinks) {
        p->sinks = KIT_NEW(float, heads_q);
        for (int h = 0; h < heads_q; h++) p->sinks[h] = 2 * kit_normal();
    }
    p->a = (attention){.n_q = s->n_q,
                       .n_kv = s->n_kv,
                       .first_stream = s->first_stream,
                       .streams = s->streams,
                       .scale = 1 / sqrtf((float)s->s.d_k),
                       .max_bias = s->mask == MASK_ALIBI || s->mask == MASK_WEIGHED ? 8 : 0,
                       .softcap = s->softcap ? 5 : 0,
                       .q = p->q,
                       .sinks = p->sinks};
}

static float mask_value(const play *p, int query, int64_t cell, int own)
{
    const scene *s = p->s;
    int position = p->position[cell], distance = p->query_position[query] - position;
    if (position < 0) return -INFINITY;
    switch (s->mask) {
    case MASK_SEQUENCES:
        return p->sequence[cell] == p->query_sequence[query] && distance >= 0 ? 0 : -INFINITY;
    case MASK_RANDOM: return kit_below(2) ? 0 : -INFINITY;
    case MASK_ALIBI: return distance >= 0 ? (float)-distance : -INFINITY;
    case MASK_SELECTED: return kit_below(16) ? -INFINITY : 0;
    case MASK_WEIGHED: return kit_below(16) ? -INFINITY : -0.01f * (float)(position % 50);
    default: return cell == own || kit_below(p->s->n_kv) == 0 ? 0 : -INFINITY;
    }
}

static void make_mask(play *p)
{
    const scene *s = p->s;
    if (s->mask == MASK_NONE) return;
    int heads = s->per_head_mask ? s->s.heads * s->s.gqa : 1;
    float *line = KIT_NEW(float, s->n_kv);
    p->mask = KIT_NEW(uint16_t, s->streams * heads * s->n_q * s->n_kv);
    uint16_t *to = p->mask;
    for (int t = 0; t < s->streams; t++) {
        int64_t first = (int64_t)(s->first_stream + t) * s->s.cells;
        for (int h = 0; h < heads; h++) {
            for (int i = 0; i < s->n_q; i++, to += s->n_kv) {
                int query = t * s->n_q + i, own = -1;
                if (p->last.n) own = (int)p->last_cells[query];
                for (int j = 0; own < 0 && j < s->n_kv; j++) {
                    int cell = (int)first + (j + 37 * i) % s->n_kv;
                    if (p->position[cell] >= 0) own = cell;
                }
                if (!p->last.n) p->query_sequence[query] = p->sequence[own];
                for (int j = 0; j < s->n_kv; j++) line[j] = mask_value(p, query, first + j, own);
                line[own - first] = s->mask == MASK_ALIBI ? line[own - first] : 0;
                gg.fp32_to_fp16_row(line, to, s->n_kv);
            }
        }
    }
    free(line);
    p->a.mask = p->mask;
    p->a.mask_heads = heads;
}

bool play_open(play *p, const scene *s)
{
    *p = (play){.s = s};
    if (!cache_open(&p->c, &s->s)) return false;
    int rows = cache_rows(&p->c), n_queries = s->n_q * s->streams, n = 0;
    p->position = KIT_NEW(int, rows);
    p->sequence = KIT_NEW(int, rows);
    p->query_position = KIT_NEW(int, n_queries);
    p->query_sequence = KIT_NEW(int, n_queries);
    p->last_cells = KIT_NEW(int64_t, n_queries);
    memset(p->position, -1, sizeof(int) * (size_t)rows);

    /* Of each stream some cells stay empty and some are kept for the last batch. */
    bool last = s->mask != MASK_NONE && s->n_q <= s->n_kv / 2;
    int64_t *cell = KIT_NEW(int64_t, rows), *order = KIT_NEW(int64_t, s->s.cells);
    for (int t = 0; t < s->s.streams; t++) {
        int usable = t >= s->first_stream && t < s->first_stream + s->streams ? s->n_kv : s->s.cells;
        for (int j = 0; j < usable; j++) order[j] = (int64_t)t * s->s.cells + j;
        kit_shuffle(order, usable);
        int at = 0;
        if (last && t >= s->first_stream && t < s->first_stream + s->streams) {
            for (; at < s->n_q; at++) p->last_cells[(t - s->first_stream) * s->n_q + at] = order[at];
        }
        int keep = s->mask == MASK_NONE ? usable : at + (usable - at) * 9 / 10;
        while (at < keep) cell[n++] = order[at++];
    }
    kit_shuffle(cell, n);
    bool ok = write_cells(p, cell, n);
    kit_shuffle(cell, n);
    ok = ok && write_cells(p, cell, n / 8); /* overwritten */
    free(cell);
    free(order);
    if (!ok) return false;

    for (int i = 0; i < n_queries; i++) {
        p->query_position[i] = rows + i % s->n_q;
        p->query_sequence[i] = kit_below(3);
        if (!last) continue;
        p->position[p->last_cells[i]] = p->query_position[i];
        p->sequence[p->last_cells[i]] = p->query_sequence[i];
    }
    if (last) {
        p->rows[K] = KIT_NEW(float, n_queries * p->c.row[K]);
        p->rows[V] = KIT_NEW(float, n_queries * p->c.row[V]);
        random_rows(p->rows[K], p->c.row[K], n_queries, K);
        random_rows(p->rows[V], p->c.row[V], n_queries, V);
        p->last = (batch){.n = n_queries, .cell = p->last_cells, .k = p->rows[K], .v = p->rows[V]};
    }
    make_queries(p);
    make_mask(p);
    return true;
}

void play_close(play *p)
{
    cache_close(&p->c);
    free(p->position);
    free(p->sequence);
    free(p->query_position);
    free(p->query_sequence);
    free(p->last_cells);
    free(p->rows[K]);
    free(p->rows[V]);
    free(p->q);
    free(p->sinks);
    free(p->mask);
}

int play_step(play *p, int layer, float *out)
{
    return cache_step(&p->c, layer, p->last.n ? &p->last : NULL, &p->a, out);
}

int play_attend(play *p, int layer, float *out)
{
    return cache_step(&p->c, layer, NULL, &p->a, out);
}

void play_check(play *p, int layer)
{
    size_t n = attention_out(&p->s->s, &p->a), d = (size_t)p->s->s.d_v;
    float *out = KIT_NEW(float, n);
    double *exact = KIT_NEW(double, n), worst = 0, allowed = tolerance(&p->s->s);
    /* docs/kernels.md: 5e-4 of the norm of each output row, for rows like those of models. */
    const double row_allowed = 5e-4 * 5e-4;
    if (kit_check(play_step(p, layer, out) == GG_SUCCESS, "layer %d: FLASH_ATTN_EXT fails", layer) &&
        cache_attend_exactly(&p->c, layer, &p->a, exact)) {
        double whole = kit_nmse(out, exact, n);
        size_t at = 0;
        for (size_t r = 0; r < n / d; r++) {
            double e = kit_nmse(out + r * d, exact + r * d, d);
            if (e > worst) worst = e, at = r;
        }
        kit_note("layer %d: error %.2e, worst row %.2e", layer, whole, worst);
        kit_check(whole < allowed, "layer %d: error %.3e, allowed %.0e", layer, whole, allowed);
        kit_check(worst < row_allowed,
                  "layer %d: output row %zu of %zu has error %.3e, allowed %.1e (all: %.3e)", layer, at,
                  n / d, worst, row_allowed, whole);
    }
    free(out);
    free(exact);
}
