/* SPDX-License-Identifier: MIT */
/*
 * Attention where each query sees few of the rows: an indexer has selected them, and the mask hides all others. Rows that a
 * query sees are copied side by side into tiles of its own, code by code, and attended there: the tiles of the
 * cache, which nearly all hold some row that is seen, are not walked.
 */
#include "attend.h"

#include <string.h>

#define HIDDEN 0xfc00u /* -inf */

/* Measured with heads of 128 and 576 and five codecs: a row costs as much for n heads of a query as n + 4, and copying it as
 * much as 40. */
static const double row_cost = 4, copy_cost = 40;

enum { MOST_AT_ONCE = 32 << 20 }; /* bytes of copied rows */

struct query {
    uint32_t stream, i; /* where it is in the op */
    uint32_t n_rows, n_tiles;
    bool adds; /* the mask adds to scores */
};

struct selection {
    const struct host_tensor *op;
    const struct operand *k, *v;
    bool v_in_k;
    uint32_t n_queries, most_tiles; /* of all streams; copied tiles of one query */

    struct query *query;
    float *slopes;

    uint32_t first, n; /* queries at hand */
    quire_attend_job *jobs;
    quire_mask *masks;
    quire_tile_ref *refs; /* [query][tile] */
    uint32_t *rows;       /* [query][row]: numbers of the rows that are seen */
    uint16_t *mask;       /* [query][row]: what the mask adds to them */
    char *tiles;          /* [query][tile]: heads of K, heads of V */
};

static const uint16_t *mask_row(const struct selection *s, const struct query *q)
{
    const struct host_tensor *m = s->op->src[3];
    return (const uint16_t *)(const void *)((const char *)m->data + (size_t)q->i * m->nb[1] +
                                            (size_t)(q->stream % m->ne[3]) * m->nb[3]);
}

/* The stream of K and V that a stream of queries reads. */
static uint32_t source_stream(const struct selection *s, const struct query *q)
{
    return q->stream / (uint32_t)(s->op->src[0]->ne[3] / s->k->t->ne[3]);
}

/* ---------------------------------------------------------------------- count */

static bool is_seen(uint16_t value)
{
    return value != HIDDEN && (value & 0x7fff) <= 0x7c00; /* NaN hides too */
}

static void count_task(void *arg, uint32_t task)
{
    struct selection *s = arg;
    struct query *q = &s->query[task];
    uint32_t per_stream = (uint32_t)s->op->src[0]->ne[1], n_kv = (uint32_t)s->k->t->ne[1];
    *q = (struct query){.stream = task / per_stream, .i = task % per_stream};
    const uint16_t *mask = mask_row(s, q);
    for (uint32_t first = 0; first < n_kv; first += CELLS) {
        uint32_t end = first + CELLS < n_kv ? first + CELLS : n_kv, seen = 0;
        for (uint32_t i = first; i < end; i++) seen += is_seen(mask[i]);
        q->n_rows += seen;
        q->n_tiles += seen > 0;
    }
}

/* In heads of one query over one row of K. Queries that walk the same tiles share what a row costs. */
static bool pays(const struct selection *s)
{
    const struct host_tensor *q = s->op->src[0];
    double heads = (double)(q->ne[2] / s->k->t->ne[2]), walked = 0, copied = 0;
    for (uint32_t i = 0; i < s->n_queries; i++) {
        walked += CELLS * (double)s->query[i].n_tiles * (heads + row_cost / (double)q->ne[1]);
        copied += (double)s->query[i].n_rows * (heads + row_cost + copy_cost);
    }
    return copied < walked;
}

/* ----------------------------------------------------------------------- copy */

static size_t heads_bytes(const struct operand *o)
{
    return (size_t)o->t->ne[2] * o->tile_bytes;
}

static size_t pair_bytes(const struct selection *s)
{
    return heads_bytes(s->k) + (s->v_in_k ? 0 : heads_bytes(s->v));
}

static uint32_t n_copies(uint32_t n_rows)
{
    return (n_rows + CELLS - 1) / CELLS;
}

static char *copy_at(const struct selection *s, uint32_t place, uint32_t tile)
{
    return s->tiles + ((size_t)place * s->most_tiles + tile) * pair_bytes(s);
}

static uint32_t rows_in(const struct query *q, uint32_t tile)
{
    return q->n_rows - tile * CELLS < CELLS ? q->n_rows - tile * CELLS : CELLS;
}

/* The rows that a query sees, and its job over copies that are yet to be made. */
static void list_task(void *arg, uint32_t place)
{
    struct selection *s = arg;
    struct query *q = &s->query[s->first + place];
    size_t most_rows = (size_t)s->most_tiles * CELLS;
    uint32_t n_kv = (uint32_t)s->k->t->ne[1], n = 0, *rows = s->rows + place * most_rows;
    uint16_t *adds = s->mask + place * most_rows;
    const uint16_t *mask = mask_row(s, q);
    for (uint32_t i = 0; i < n_kv; i++)
        if (is_seen(mask[i])) {
            rows[n] = i;
            adds[n++] = mask[i];
            q->adds |= mask[i] & 0x7fff;
        }
    quire_tile_ref *refs = s->refs + (size_t)place * s->most_tiles;
    quire_attend_job *job = &s->jobs[place];
    *job = attend_job(s->op, q->stream, q->i, 1);
    job->tiles = refs;
    job->n_tiles = n_copies(n);
    for (uint32_t t = 0; t < job->n_tiles; t++) {
        const char *at = copy_at(s, place, t);
        refs[t] = (quire_tile_ref){.k = at,
                                   .v = s->v_in_k ? NULL : at + heads_bytes(s->k),
                                   .k_head_stride = s->k->tile_bytes,
                                   .v_head_stride = s->v_in_k ? 0 : s->v->tile_bytes,
                                   .k_format = s->k->format,
                                   .v_format = s->v_in_k ? NULL : s->v->format,
                                   .first = t * CELLS,
                                   .n_rows = rows_in(q, t)};
    }
    if (!q->adds) return;
    s->masks[place] = (quire_mask){.size = sizeof(quire_mask), .form = QUIRE_F16, .data = adds, .n_keys = n};
    job->mask = &s->masks[place];
}

static void copy_tile(const struct operand *o, uint32_t stream, const uint32_t *rows, uint32_t n, char *to)
{
    const void *tile[CELLS];
    uint8_t row[CELLS];
    memset(to, 0, heads_bytes(o));
    for (uint32_t h = 0; h < (uint32_t)o->t->ne[2]; h++) {
        for (uint32_t i = 0; i < n; i++) {
            tile[i] = operand_tile(o, stream, rows[i] / CELLS) + h * o->tile_bytes;
            row[i] = (uint8_t)(rows[i] % CELLS);
        }
        quire_tile_gather(o->format, to + h * o->tile_bytes, 0, n, tile, row);
    }
}

static void copy_task(void *arg, uint32_t task)
{
    const struct selection *s = arg;
    uint32_t place = task / s->most_tiles, t = task % s->most_tiles;
    const struct query *q = &s->query[s->first + place];
    if (t >= n_copies(q->n_rows)) return;
    const uint32_t *rows = s->rows + ((size_t)place * s->most_tiles + t) * CELLS;
    char *to = copy_at(s, place, t);
    copy_tile(s->k, source_stream(s, q), rows, rows_in(q, t), to);
    if (!s->v_in_k) copy_tile(s->v, source_stream(s, q), rows, rows_in(q, t), to + heads_bytes(s->k));
}

/* --------------------------------------------------------------------- attend */

static size_t aligned(size_t n)
{
    return (n + 63) / 64 * 64;
}

/* Where everything lies in the scratch, and how much that is; base may be NULL. n queries at once. */
static size_t carve(struct selection *s, char *base, uint32_t n)
{
    size_t tiles = (size_t)n * s->most_tiles, at = 0;
#define PART(member, bytes) (s->member = base ? (void *)(base + at) : NULL, at += aligned(bytes))
    PART(query, s->n_queries * sizeof *s->query);
    PART(slopes, (size_t)s->op->src[0]->ne[2] * sizeof *s->slopes);
    PART(jobs, n * sizeof *s->jobs);
    PART(masks, n * sizeof *s->masks);
    PART(refs, tiles * sizeof *s->refs);
    PART(rows, tiles * CELLS * sizeof *s->rows);
    PART(mask, tiles * CELLS * sizeof *s->mask);
    PART(tiles, tiles * pair_bytes(s));
#undef PART
    return at;
}

static int attend_selected(struct worker *w, struct selection *s, uint32_t at_once)
{
    int status = HOST_SUCCESS;
    quire_attend_options options = attend_options(s->op, s->slopes);
    for (; s->first < s->n_queries && !status; s->first += s->n) {
        s->n = s->n_queries - s->first < at_once ? s->n_queries - s->first : at_once;
        w->executor.run(w->executor.ctx, list_task, s, s->n);
        w->executor.run(w->executor.ctx, copy_task, s, s->n * s->most_tiles);
        status = attend_jobs(w, &options, s->jobs, s->n);
    }
    return status;
}

bool select_attend(struct worker *w, struct host_tensor *op, const struct operand *k, const struct operand *v,
                   bool v_in_k, int *status)
{
    const struct host_tensor *q = op->src[0], *mask = op->src[3];
    int64_t most = op->op_params[4]; /* rows that a query sees, at most; 0: not known */
    if (!mask || mask->ne[2] != 1 || !k->kv || (!v_in_k && !v->kv) || most < 1 || most >= k->t->ne[1])
        return false;
    struct selection s = {.op = op,
                          .k = k,
                          .v = v,
                          .v_in_k = v_in_k,
                          .n_queries = (uint32_t)(q->ne[1] * q->ne[3]),
                          .most_tiles = n_copies((uint32_t)most)};
    size_t one = s.most_tiles * pair_bytes(&s);
    uint32_t at_once = one < MOST_AT_ONCE ? (uint32_t)(MOST_AT_ONCE / one) : 1;
    if (at_once > s.n_queries) at_once = s.n_queries;
    char *scratch = worker_scratch(w, carve(&s, NULL, at_once));
    *status = HOST_ALLOC_FAILED;
    if (!scratch) return true;
    carve(&s, scratch, at_once);
    worker_expect(w, (double)(q->ne[1] * q->ne[2] * q->ne[3] * most) * (double)(q->ne[0] + op->ne[0]));
    w->executor.run(w->executor.ctx, count_task, &s, s.n_queries);
    for (uint32_t i = 0; i < s.n_queries; i++)
        if (s.query[i].n_rows > (uint32_t)most) return false; /* the host does not keep its word */
    if (!pays(&s)) return false;
    *status = attend_selected(w, &s, at_once);
    return true;
}
