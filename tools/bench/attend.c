/* SPDX-License-Identifier: MIT */
/* bench: attention through quire_attend() over pages that lie as in a pool: [64 tokens][head][K tile, V tile]. */
#include "bench/bench.h"

#include <stdlib.h>
#include <string.h>

/* Different tiles per side; a cache is made of copies of these, because encoding a GiB would take minutes. */
#define POOL_TILES 256u
#define MIN_PER_HEAD 4u

typedef struct quire_case {
    quire_format *k_format, *v_format;
    uint8_t *memory;
    size_t memory_bytes, k_bytes, head_bytes, page_bytes; /* a head's K and V tile; all heads */
    quire_tile_ref *tiles;                                /* of all layers */
    quire_attend_job *jobs;                               /* [layer][sequence] */
    float *out;
} quire_case;

static size_t pages_per_layer(const bench_shape *s)
{
    size_t n = 0;
    for (uint32_t i = 0; i < s->n_seqs; i++) n += bench_n_tiles(s->lengths[i]);
    return n;
}

/* --------------------------------------------------------------- contents */

/* The pool of one side: [head][variant] tiles of encoded rows. A calibrated row belongs to its head. */
typedef struct tile_pool {
    uint8_t *tiles;
    size_t tile_bytes;
    uint32_t n_per_head;
} tile_pool;

static bool pool_fill(tile_pool *pool, const bench_shape *s, quire_side side, const quire_format *format)
{
    uint32_t d = side == QUIRE_K ? s->d : s->d_v;
    float *rows = (float *)malloc(sizeof(float) * QUIRE_PAGE_TOKENS * d);
    pool->tile_bytes = quire_tile_bytes(format);
    pool->n_per_head = POOL_TILES / s->n_kv_heads < MIN_PER_HEAD ? MIN_PER_HEAD : POOL_TILES / s->n_kv_heads;
    uint32_t n = pool->n_per_head * s->n_kv_heads;
    pool->tiles = (uint8_t *)aligned_alloc(64, pool->tile_bytes * n);
    bool ok = rows && pool->tiles;
    if (ok) memset(pool->tiles, 0, pool->tile_bytes * n);
    for (uint32_t i = 0; ok && i < n; i++) {
        uint32_t head = i / pool->n_per_head;
        bench_fill_rows(s, side, head, i + 1, rows, QUIRE_PAGE_TOKENS);
        ok = quire_tile_encode(format, head, pool->tiles + i * pool->tile_bytes, 0, QUIRE_PAGE_TOKENS,
                               &(quire_rows){.form = QUIRE_F32, .data = rows}, NULL) == QUIRE_OK;
    }
    free(rows);
    return ok;
}

static void pool_copy(const tile_pool *pool, uint32_t head, uint64_t *state, uint8_t *to)
{
    uint32_t variant = (uint32_t)(bench_random(state) % pool->n_per_head);
    memcpy(to, pool->tiles + (head * (size_t)pool->n_per_head + variant) * pool->tile_bytes,
           pool->tile_bytes);
}

static bool fill_memory(bench_case *c)
{
    quire_case *x = (quire_case *)c->self;
    const bench_shape *s = &c->shape;
    tile_pool k = {0}, v = {0};
    bool ok =
        pool_fill(&k, s, QUIRE_K, x->k_format) && (!x->v_format || pool_fill(&v, s, QUIRE_V, x->v_format));
    uint64_t state = s->seed + 5;
    for (uint32_t layer = 0; ok && layer < c->n_layers; layer++) {
        uint8_t *at = x->memory + layer * c->layer_stride;
        for (size_t page = 0; page < pages_per_layer(s); page++) {
            for (uint32_t h = 0; h < s->n_kv_heads; h++, at += x->head_bytes) {
                pool_copy(&k, h, &state, at);
                if (x->v_format) pool_copy(&v, h, &state, at + x->k_bytes);
            }
        }
    }
    free(k.tiles);
    free(v.tiles);
    return ok;
}

/* ------------------------------------------------------------------- jobs */

static void make_jobs(bench_case *c)
{
    quire_case *x = (quire_case *)c->self;
    const bench_shape *s = &c->shape;
    quire_tile_ref *tile = x->tiles;
    quire_attend_job *job = x->jobs;
    for (uint32_t layer = 0; layer < c->n_layers; layer++) {
        const uint8_t *page = x->memory + layer * c->layer_stride;
        for (uint32_t i = 0; i < s->n_seqs; i++, job++) {
            uint32_t length = s->lengths[i], n = bench_n_tiles(length);
            size_t first_row = (size_t)i * s->n_queries * s->n_q_heads;
            *job = (quire_attend_job){.tiles = tile,
                                      .n_tiles = n,
                                      .n_q_heads = s->n_q_heads,
                                      .n_kv_heads = s->n_kv_heads,
                                      .d_k = s->d,
                                      .d_v = s->d_v,
                                      .n_queries = s->n_queries,
                                      .first_query = length - s->n_queries,
                                      .q = c->q + first_row * s->d,
                                      .out = x->out + first_row * s->d_v};
            for (uint32_t t = 0; t < n; t++, tile++, page += x->page_bytes) {
                uint32_t first = t * QUIRE_PAGE_TOKENS, rest = length - first;
                *tile = (quire_tile_ref){.k = page,
                                         .v = x->v_format ? page + x->k_bytes : NULL,
                                         .k_head_stride = x->head_bytes,
                                         .v_head_stride = x->v_format ? x->head_bytes : 0,
                                         .k_format = x->k_format,
                                         .v_format = x->v_format,
                                         .first = first,
                                         .n_rows = rest < QUIRE_PAGE_TOKENS ? rest : QUIRE_PAGE_TOKENS};
            }
        }
    }
}

/* ------------------------------------------------------------------ as case */

static bool run(bench_case *c, uint32_t layer, bench_times *times)
{
    const quire_case *x = (const quire_case *)c->self;
    (void)times;
    return quire_attend(c->team->workspace, &(quire_attend_options){.version = QUIRE_OPTIONS},
                        x->jobs + (size_t)layer * c->shape.n_seqs, c->shape.n_seqs) == QUIRE_OK;
}

static bool fetch(bench_case *c, uint32_t seq, uint32_t head, uint32_t tile, float *k, float *v)
{
    const quire_case *x = (const quire_case *)c->self;
    const bench_shape *s = &c->shape;
    const quire_tile_ref *ref = &x->jobs[seq].tiles[tile];
    const uint8_t *at = (const uint8_t *)ref->k + head * x->head_bytes;
    if (quire_tile_decode(x->k_format, head, at, 0, QUIRE_PAGE_TOKENS,
                          &(quire_rows_out){.form = QUIRE_F32, .data = k}))
        return false;
    if (x->v_format)
        return quire_tile_decode(x->v_format, head, at + x->k_bytes, 0, QUIRE_PAGE_TOKENS,
                                 &(quire_rows_out){.form = QUIRE_F32, .data = v}) == QUIRE_OK;
    for (uint32_t t = 0; t < QUIRE_PAGE_TOKENS; t++)
        memcpy(v + (size_t)t * s->d_v, k + (size_t)t * s->d, sizeof(float) * s->d_v);
    return true;
}

static const float *output(bench_case *c, uint32_t seq)
{
    return ((const quire_case *)c->self)->jobs[seq].out;
}

static void destroy(bench_case *c)
{
    quire_case *x = (quire_case *)c->self;
    quire_format_destroy(x->k_format);
    quire_format_destroy(x->v_format);
    bench_unmap(x->memory, x->memory_bytes);
    free(x->tiles);
    free(x->jobs);
    free(x->out);
    free(x);
}

static const bench_impl impl = {.name = "quire",
                                .run = run,
                                .check = bench_check_attention,
                                .fetch = fetch,
                                .output = output,
                                .destroy = destroy};

static bool measure_tiles(bench_case *c, char *message, size_t size)
{
    quire_case *x = (quire_case *)c->self;
    if (!bench_formats(&c->shape, &x->k_format, &x->v_format, message, size)) return false;
    x->k_bytes = quire_tile_bytes(x->k_format);
    x->head_bytes = x->k_bytes + (x->v_format ? quire_tile_bytes(x->v_format) : 0);
    x->page_bytes = x->head_bytes * c->shape.n_kv_heads;
    c->layer_bytes = c->layer_stride = x->page_bytes * pages_per_layer(&c->shape);
    c->n_layers = bench_n_layers(&c->shape, c->layer_bytes);
    x->memory_bytes = c->layer_stride * c->n_layers;
    return true;
}

size_t bench_attend_bytes(const bench_shape *s, char *message, size_t size)
{
    bench_case *c = bench_case_begin(&impl, sizeof(quire_case), s, NULL, message, size);
    size_t bytes = c && measure_tiles(c, message, size) ? ((quire_case *)c->self)->memory_bytes : 0;
    bench_case_destroy(c);
    return bytes;
}

bench_case *bench_attend_create(const bench_shape *s, bench_team *team, char *message, size_t size)
{
    bench_case *c = bench_case_begin(&impl, sizeof(quire_case), s, team, message, size);
    if (!c || !measure_tiles(c, message, size)) goto fail;
    snprintf(message, size, "out of memory");
    quire_case *x = (quire_case *)c->self;
    size_t out_rows = (size_t)s->n_seqs * s->n_queries * s->n_q_heads;
    x->memory = (uint8_t *)bench_map(x->memory_bytes);
    x->tiles = (quire_tile_ref *)malloc(sizeof *x->tiles * pages_per_layer(s) * c->n_layers);
    x->jobs = (quire_attend_job *)malloc(sizeof *x->jobs * s->n_seqs * c->n_layers);
    x->out = (float *)malloc(sizeof(float) * out_rows * s->d_v);
    c->q = bench_make_queries(s);
    c->memory = x->memory;
    if (!x->memory || !x->tiles || !x->jobs || !x->out || !c->q || !fill_memory(c)) goto fail;
    make_jobs(c);
    return c;
fail:
    bench_case_destroy(c);
    return NULL;
}
