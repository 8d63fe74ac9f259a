/* SPDX-License-Identifier: MIT */
/* bench: KV caches in a pool, as an engine has them. Pages come from the pool, get encoded tiles and are adopted by sequences. */
#include "bench/cache.h"

#include <quire/page.h>

#include <stdlib.h>
#include <string.h>

/* Different tiles per side; a cache is made of copies of these, because encoding a GiB would take minutes. */
#define STOCK_TILES 256u
#define MIN_PER_HEAD 4u

/* The stock of one side: [head][variant] tiles of encoded rows. A calibrated row belongs to its head. */
typedef struct stock {
    uint8_t *tiles;
    size_t tile_bytes;
    uint32_t n_per_head;
} stock;

struct bench_cache {
    bench_shape shape;
    uint32_t n_caches, n_pages; /* pages per cache */
    size_t page_bytes;
    quire_tile_format *k_format, *v_format; /* v_format NULL: V is in K */
    stock k, v;
    quire_plan *plan;
    quire_pool *pool;
    quire_seq **seqs;      /* [cache][sequence] */
    quire_tile_ref *tiles; /* [cache][page] */
    const uint8_t **pages; /* [cache][page] */
    quire_page **taken;    /* of the sequence that is being made */
};

static uint32_t pages_per_cache(const bench_shape *s)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_seqs; i++) n += bench_n_tiles(s->lengths[i]);
    return n;
}

/* One layer of the shape. */
static quire_plan *make_plan(const bench_shape *s, char *message, size_t size)
{
    quire_geometry g = {sizeof(quire_geometry),      .n_layers = 1, .n_q_heads = s->n_q_heads,
                        .n_kv_heads = s->n_kv_heads, .d_k = s->d,   .d_v = s->d_v,
                        .v_in_k = s->v_in_k};
    char policy[64];
    quire_plan *plan = NULL;
    quire_profile *profile = NULL;
    snprintf(policy, sizeof policy, "%s/%s", s->codecs.k, s->v_in_k ? s->codecs.k : s->codecs.v);
    if (bench_is_calibrated(s) && !(profile = bench_profile(s))) {
        snprintf(message, size, "out of memory");
        return NULL;
    }
    quire_plan_options options = {sizeof options, .profile = profile, .message = message,
                                  .message_size = size};
    quire_status status = quire_plan_create(&plan, &g, policy, &options);
    if (status && !*message) snprintf(message, size, "%s: %s", policy, quire_status_text(status));
    quire_profile_destroy(profile);
    return plan;
}

/* The formats say why codecs do not fit; the plan must not have found others instead. */
static bool prepare(bench_cache *c, char *message, size_t size)
{
    const bench_shape *s = &c->shape;
    if (!bench_formats(s, &c->k_format, &c->v_format, message, size)) return false;
    size_t head = quire_tile_bytes(c->k_format) + (c->v_format ? quire_tile_bytes(c->v_format) : 0);
    c->n_pages = pages_per_cache(s);
    c->page_bytes = head * s->n_kv_heads;
    c->plan = make_plan(s, message, size);
    if (!c->plan) return false;
    if (quire_plan_page_bytes(c->plan, 0) == c->page_bytes) return true;
    snprintf(message, size, "%s/%s does not fit head sizes of %u and %u", s->codecs.k, s->codecs.v, s->d,
             s->d_v);
    return false;
}

bool bench_cache_size(const bench_shape *s, size_t *cache_bytes, char *message, size_t size)
{
    bench_cache *c = (bench_cache *)calloc(1, sizeof *c);
    snprintf(message, size, "out of memory");
    if (!c) return false;
    c->shape = *s;
    bool ok = prepare(c, message, size);
    *cache_bytes = c->page_bytes * c->n_pages;
    bench_cache_destroy(c);
    return ok;
}

/* ---------------------------------------------------------------- contents */

static bool fill_stock(stock *x, const bench_shape *s, quire_side side, const quire_tile_format *format)
{
    uint32_t d = side == QUIRE_K ? s->d : s->d_v;
    float *rows = (float *)malloc(sizeof(float) * QUIRE_PAGE_TOKENS * d);
    x->tile_bytes = quire_tile_bytes(format);
    x->n_per_head = STOCK_TILES / s->n_kv_heads < MIN_PER_HEAD ? MIN_PER_HEAD : STOCK_TILES / s->n_kv_heads;
    uint32_t n = x->n_per_head * s->n_kv_heads;
    x->tiles = (uint8_t *)aligned_alloc(64, x->tile_bytes * n);
    bool ok = rows && x->tiles;
    if (ok) memset(x->tiles, 0, x->tile_bytes * n);
    for (uint32_t i = 0; ok && i < n; i++) {
        uint32_t head = i / x->n_per_head;
        bench_fill_rows(s, side, head, i + 1, rows, QUIRE_PAGE_TOKENS);
        ok = quire_tile_encode(format, head, x->tiles + i * x->tile_bytes, 0, QUIRE_PAGE_TOKENS,
                               &(quire_rows){.size = sizeof(quire_rows), .form = QUIRE_F32, .data = rows},
                               NULL) == QUIRE_OK;
    }
    free(rows);
    return ok;
}

static uint8_t *copy_tile(const stock *x, uint32_t head, uint64_t *state, uint8_t *to)
{
    uint32_t variant = (uint32_t)(bench_random(state) % x->n_per_head);
    memcpy(to, x->tiles + (head * (size_t)x->n_per_head + variant) * x->tile_bytes, x->tile_bytes);
    return to + x->tile_bytes;
}

static void fill_page(const bench_cache *c, uint64_t *state, quire_page *page)
{
    uint8_t *at = (uint8_t *)quire_page_mutable_bytes(page);
    for (uint32_t h = 0; h < c->shape.n_kv_heads; h++) {
        at = copy_tile(&c->k, h, state, at);
        if (c->v_format) at = copy_tile(&c->v, h, state, at);
    }
}

static quire_page *find_page(void *ctx, uint32_t group, uint32_t page_index)
{
    (void)group;
    return ((const bench_cache *)ctx)->taken[page_index];
}

/* A sequence of whole pages, then cut to its length. */
static bool make_seq(bench_cache *c, uint32_t length, uint64_t *state, quire_seq **out)
{
    uint32_t n = bench_n_tiles(length), i = 0;
    quire_seq *seq;
    if (quire_seq_create(&seq, c->pool, NULL)) return false;
    *out = seq;
    for (; i < n; i++)
        if (quire_pool_take_page(&c->taken[i], c->pool, c->plan, 0, i)) break;
    quire_pool_populate(c->pool, c->taken, i);
    for (uint32_t k = 0; k < i; k++) fill_page(c, state, c->taken[k]);
    if (i == n && !quire_seq_adopt(seq, n, find_page, c)) return !quire_seq_trim(seq, length);
    while (i) quire_pool_drop_page(c->pool, c->taken[--i]);
    return false;
}

static bool make_seqs(bench_cache *c)
{
    const bench_shape *s = &c->shape;
    uint64_t state = s->seed + 5;
    quire_tile_ref *tile = c->tiles;
    for (size_t i = 0; i < (size_t)c->n_caches * s->n_seqs; i++) {
        uint32_t length = s->lengths[i % s->n_seqs], n = bench_n_tiles(length);
        if (!make_seq(c, length, &state, &c->seqs[i])) return false;
        if (quire_seq_tiles(c->seqs[i], 0, tile, n, sizeof *tile) != n) return false;
        for (uint32_t t = 0; t < n; t++, tile++) c->pages[tile - c->tiles] = (const uint8_t *)tile->k;
    }
    return true;
}

/* ------------------------------------------------------------------ as cache */

bench_cache *bench_cache_create(const bench_shape *s, uint32_t n_caches, char *message, size_t size)
{
    bench_cache *c = (bench_cache *)calloc(1, sizeof *c);
    snprintf(message, size, "out of memory");
    if (!c) return NULL;
    c->shape = *s;
    c->n_caches = n_caches;
    if (!prepare(c, message, size)) goto fail;
    snprintf(message, size, "out of memory");
    size_t n = (size_t)n_caches * c->n_pages;
    size_t page = (c->page_bytes + 4095) / 4096 * 4096; /* at least what it takes of the budget */
    c->seqs = (quire_seq **)calloc((size_t)n_caches * s->n_seqs, sizeof *c->seqs);
    c->tiles = (quire_tile_ref *)malloc(sizeof *c->tiles * n);
    c->pages = (const uint8_t **)malloc(sizeof *c->pages * n);
    c->taken = (quire_page **)malloc(sizeof *c->taken * c->n_pages);
    if (!c->seqs || !c->tiles || !c->pages || !c->taken) goto fail;
    quire_pool_options options = {sizeof options, .budget_bytes = page * n};
    if (quire_pool_create(&c->pool, c->plan, &options)) goto fail;
    if (!fill_stock(&c->k, s, QUIRE_K, c->k_format)) goto fail;
    if (c->v_format && !fill_stock(&c->v, s, QUIRE_V, c->v_format)) goto fail;
    if (!make_seqs(c)) goto fail;
    return c;
fail:
    bench_cache_destroy(c);
    return NULL;
}

void bench_cache_destroy(bench_cache *c)
{
    if (!c) return;
    for (size_t i = 0; c->seqs && i < (size_t)c->n_caches * c->shape.n_seqs; i++)
        quire_seq_destroy(c->seqs[i]);
    quire_pool_destroy(c->pool);
    quire_plan_destroy(c->plan);
    quire_tile_format_destroy(c->k_format);
    quire_tile_format_destroy(c->v_format);
    free(c->k.tiles);
    free(c->v.tiles);
    free(c->seqs);
    free(c->tiles);
    free(c->pages);
    free(c->taken);
    free(c);
}

const quire_tile_ref *bench_cache_tiles(const bench_cache *c, uint32_t cache, uint32_t seq)
{
    size_t at = (size_t)cache * c->n_pages;
    for (uint32_t i = 0; i < seq; i++) at += bench_n_tiles(c->shape.lengths[i]);
    return c->tiles + at;
}

const uint8_t *const *bench_cache_pages(const bench_cache *c, uint32_t *n_per_cache, size_t *page_bytes)
{
    *n_per_cache = c->n_pages;
    *page_bytes = c->page_bytes;
    return c->pages;
}
