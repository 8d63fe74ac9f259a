/* SPDX-License-Identifier: MIT */
/* bench: attention through quire_attend() over sequences in a pool. */
#include "bench/cache.h"

#include <stdlib.h>
#include <string.h>

typedef struct quire_case {
    bench_cache *cache;
    quire_attend_job *jobs; /* [layer][sequence] */
    float *out;
} quire_case;

/* ------------------------------------------------------------------- jobs */

static void make_jobs(bench_case *c)
{
    quire_case *x = (quire_case *)c->self;
    const bench_shape *s = &c->shape;
    quire_attend_job *job = x->jobs;
    for (uint32_t layer = 0; layer < c->n_layers; layer++) {
        const quire_tile_ref *tile = bench_cache_tiles(x->cache, layer, 0);
        for (uint32_t i = 0; i < s->n_seqs; i++, job++) {
            uint32_t length = s->lengths[i], n = bench_n_tiles(length);
            size_t first_row = (size_t)i * s->n_queries * s->n_q_heads;
            *job = (quire_attend_job){.tile_stride = sizeof(quire_tile_ref),
                                      .tiles = tile,
                                      .n_tiles = n,
                                      .n_q_heads = s->n_q_heads,
                                      .n_kv_heads = s->n_kv_heads,
                                      .d_k = s->d,
                                      .d_v = s->d_v,
                                      .n_queries = s->n_queries,
                                      .first_query = length - s->n_queries,
                                      .q = c->q + first_row * s->d,
                                      .out = x->out + first_row * s->d_v};
            tile += n;
        }
    }
}

/* ------------------------------------------------------------------ as case */

static bool run(bench_case *c, uint32_t layer, bench_times *times)
{
    const quire_case *x = (const quire_case *)c->self;
    (void)times;
    return quire_attend(c->team->workspace, &(quire_attend_options){.size = sizeof(quire_attend_options)},
                        x->jobs + (size_t)layer * c->shape.n_seqs, c->shape.n_seqs,
                        sizeof(quire_attend_job)) == QUIRE_OK;
}

static bool decode(const quire_tile_format *format, uint32_t head, const void *tiles, size_t stride,
                   float *to)
{
    quire_rows_out rows = {.size = sizeof rows, .form = QUIRE_F32, .data = to};
    return quire_tile_decode(format, head, (const uint8_t *)tiles + head * stride, 0, QUIRE_PAGE_TOKENS,
                             &rows) == QUIRE_OK;
}

static bool fetch(bench_case *c, uint32_t seq, uint32_t head, uint32_t tile, float *k, float *v)
{
    const quire_case *x = (const quire_case *)c->self;
    const bench_shape *s = &c->shape;
    const quire_tile_ref *ref = &bench_cache_tiles(x->cache, 0, seq)[tile];
    if (!decode(ref->k_format, head, ref->k, ref->k_head_stride, k)) return false;
    if (ref->v_format) return decode(ref->v_format, head, ref->v, ref->v_head_stride, v);
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
    bench_cache_destroy(x->cache);
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

size_t bench_attend_bytes(const bench_shape *s, char *message, size_t size)
{
    size_t bytes;
    return bench_cache_size(s, &bytes, message, size) ? bytes * bench_n_layers(s, bytes) : 0;
}

bench_case *bench_attend_create(const bench_shape *s, bench_team *team, char *message, size_t size)
{
    bench_case *c = bench_case_begin(&impl, sizeof(quire_case), s, team, message, size);
    if (!c || !bench_cache_size(s, &c->layer_bytes, message, size)) goto fail;
    quire_case *x = (quire_case *)c->self;
    size_t out_rows = (size_t)s->n_seqs * s->n_queries * s->n_q_heads;
    c->n_layers = bench_n_layers(s, c->layer_bytes);
    x->cache = bench_cache_create(s, c->n_layers, message, size);
    if (!x->cache) goto fail;
    snprintf(message, size, "out of memory");
    x->jobs = (quire_attend_job *)malloc(sizeof *x->jobs * s->n_seqs * c->n_layers);
    x->out = (float *)malloc(sizeof(float) * out_rows * s->d_v);
    c->q = bench_make_queries(s);
    if (!x->jobs || !x->out || !c->q) goto fail;
    c->pieces = bench_cache_pages(x->cache, &c->n_pieces, &c->piece_bytes);
    make_jobs(c);
    return c;
fail:
    bench_case_destroy(c);
    return NULL;
}
