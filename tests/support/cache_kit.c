/* SPDX-License-Identifier: MIT */
/* What tests of the cache share. */
#include "support/cache_kit.h"

#include "core/geometry.h"
#include "support/random.h"

#include <math.h>
#include <string.h>

/* ------------------------------------------------------------------- bytes */

quire_status kit_write(void *ctx, const void *bytes, size_t n)
{
    kit_bytes *b = (kit_bytes *)ctx;
    if (b->fail_after && b->n + n > b->fail_after) return QUIRE_EIO;
    if (b->n + n > b->cap) {
        b->cap = (b->n + n) * 2;
        b->data = (uint8_t *)realloc(b->data, b->cap);
        KIT_REQUIRE(b->data);
    }
    memcpy(b->data + b->n, bytes, n);
    b->n += n;
    return QUIRE_OK;
}

quire_status kit_read(void *ctx, void *bytes, size_t n)
{
    kit_bytes *b = (kit_bytes *)ctx;
    if (n > b->n - b->at) return QUIRE_EIO;
    memcpy(bytes, b->data + b->at, n);
    b->at += n;
    return QUIRE_OK;
}

void kit_bytes_free(kit_bytes *b)
{
    free(b->data);
    *b = (kit_bytes){0};
}

/* ----------------------------------------------------------------- objects */

quire_geometry kit_geometry(uint32_t n_kv_heads, uint32_t d_k, uint32_t d_v)
{
    static const uint32_t windows[KIT_LAYERS] = {0, KIT_WINDOW, 0};
    return (quire_geometry){.size = sizeof(quire_geometry),
                            .n_layers = KIT_LAYERS,
                            .n_q_heads = 2 * n_kv_heads,
                            .n_kv_heads = n_kv_heads,
                            .d_k = d_k,
                            .d_v = d_v,
                            .windows = windows};
}

quire_profile *kit_profile(const quire_geometry *geometry, uint64_t seed, const quire_allocator *allocator)
{
    enum { N = 24 };
    quire_profile *profile = NULL;
    KIT_REQUIRE(!quire_profile_create(&profile, geometry, allocator));
    for (uint32_t i = 0; i < geometry->n_layers; i++) {
        quire_layer l = quire_geometry_layer(geometry, i);
        size_t n_k = (size_t)l.n_kv_heads * l.d_k, n_q = (size_t)l.n_q_heads * l.d_k;
        float *x = (float *)malloc(sizeof(float) * N * (n_k > n_q ? n_k : n_q));
        KIT_REQUIRE(x);
        for (uint32_t t = 0; t < N; t++) kit_row(seed, i, QUIRE_K, t, x + t * n_k, n_k);
        /* Channels differ in mean and size, so that calibration does something. */
        for (size_t c = 0; c < N * n_k; c++) x[c] = x[c] * (1 + (float)(c % 3)) + (float)(c % 5) - 2;
        KIT_REQUIRE(!quire_profile_observe_k(profile, i, 8, x, N));
        for (uint32_t t = 0; t < N; t++) kit_row(seed + 1, i, QUIRE_K, t, x + t * n_q, n_q);
        KIT_REQUIRE(!quire_profile_observe_q(profile, i, 0, x, N));
        free(x);
    }
    KIT_REQUIRE(!quire_profile_finish(profile));
    return profile;
}

quire_plan *kit_plan(const quire_geometry *geometry, const char *policy, const quire_profile *profile)
{
    char message[256] = "";
    quire_plan_options options = {sizeof(quire_plan_options), .profile = profile, .message = message,
                                  .message_size = sizeof message};
    quire_plan *plan = NULL;
    quire_status status = quire_plan_create(&plan, geometry, policy, &options);
    if (status) fprintf(stderr, "%s: %s\n", policy, message);
    KIT_REQUIRE(!status);
    return plan;
}

quire_pool *kit_pool(const quire_plan *plan, size_t budget, const quire_allocator *allocator)
{
    quire_pool_options options = {sizeof(quire_pool_options), .budget_bytes = budget, .allocator = allocator};
    quire_pool *pool = NULL;
    KIT_REQUIRE(!quire_pool_create(&pool, plan, &options));
    return pool;
}

size_t kit_plan_bytes(const quire_plan *plan, const quire_seq_options *ring, uint32_t n_tokens,
                      uint32_t step_tokens)
{
    size_t bytes = 0;
    KIT_REQUIRE(!quire_plan_bytes(plan, ring, n_tokens, step_tokens, &bytes));
    return bytes;
}

quire_seq *kit_seq(quire_pool *pool, uint32_t max_tokens, uint32_t sinks, uint32_t spare)
{
    quire_seq_options options = {sizeof(quire_seq_options), max_tokens, sinks, spare, 0};
    quire_seq *seq = NULL;
    KIT_REQUIRE(!quire_seq_create(&seq, pool, &options));
    return seq;
}

void kit_pool_is_empty(quire_pool *pool)
{
    quire_pool_stats stats = {.size = sizeof stats};
    quire_pool_stats_get(pool, &stats);
    KIT_REQUIRE(stats.used_bytes == 0);
    KIT_REQUIRE(stats.n_pages == 0);
    KIT_REQUIRE(stats.resident_bytes <= stats.peak_bytes && stats.peak_bytes <= stats.budget_bytes);
}

/* --------------------------------------------------------------------- rows */

void kit_row(uint64_t seed, uint32_t layer, quire_side side, uint32_t position, float *x, size_t n)
{
    rng r = {seed * 0x100000001b3u + ((uint64_t)layer << 33) + ((uint64_t)side << 32) + position};
    rng_bits(&r);
    for (size_t c = 0; c < n; c++) x[c] = rng_normal(&r);
}

static float *rows_of(const quire_layer *l, uint64_t seed, uint32_t layer, quire_side side, uint32_t first,
                      uint32_t n)
{
    size_t width = (size_t)l->n_kv_heads * (side == QUIRE_K ? l->d_k : l->d_v);
    float *x = (float *)malloc(sizeof(float) * width * n + 1);
    KIT_REQUIRE(x);
    for (uint32_t t = 0; t < n; t++) kit_row(seed, layer, side, first + t, x + t * width, width);
    return x;
}

quire_status kit_begin(quire_step **out, quire_pool *pool, const quire_geometry *geometry, quire_seq *seq,
                       uint32_t n, uint64_t seed)
{
    quire_step *step = NULL;
    quire_status status = quire_step_begin(&step, pool, &seq, &n, 1);
    for (uint32_t i = 0; i < geometry->n_layers && !status; i++) {
        quire_layer l = quire_geometry_layer(geometry, i);
        float *k = rows_of(&l, seed, i, QUIRE_K, quire_seq_length(seq), n);
        float *v = l.v_in_k ? NULL : rows_of(&l, seed, i, QUIRE_V, quire_seq_length(seq), n);
        status = quire_step_append(step, i, k, v);
        free(k);
        free(v);
    }
    if (status)
        quire_step_abort(step);
    else
        *out = step;
    return status;
}

quire_status kit_append(quire_pool *pool, const quire_geometry *geometry, quire_seq *seq, uint32_t n,
                        uint64_t seed)
{
    quire_step *step = NULL;
    quire_status status = kit_begin(&step, pool, geometry, seq, n, seed);
    if (status) return status;
    status = quire_step_commit(step);
    if (status) quire_step_abort(step);
    return status;
}

static uint64_t mix(uint64_t hash, const void *bytes, size_t n)
{
    quire_hash h;
    quire_hash_begin(&h);
    quire_hash_u64(&h, hash);
    quire_hash_add(&h, bytes, n);
    return quire_hash_end(&h);
}

uint64_t kit_rows_hash(const quire_geometry *geometry, const quire_seq *seq)
{
    uint32_t length = quire_seq_length(seq);
    uint64_t hash = length;
    for (uint32_t i = 0; i < geometry->n_layers; i++) {
        quire_layer l = quire_geometry_layer(geometry, i);
        uint32_t widest = l.d_k > l.d_v ? l.d_k : l.d_v;
        float *x = (float *)calloc((size_t)l.n_kv_heads * widest, sizeof(float));
        KIT_REQUIRE(x);
        for (uint32_t p = 0; p < length; p++)
            for (uint32_t s = 0; s < (l.v_in_k ? 1u : 2u); s++) {
                quire_rows_out rows = {.size = sizeof(quire_rows_out), .form = QUIRE_F32, .data = x};
                quire_status status = quire_seq_export(seq, i, s ? QUIRE_V : QUIRE_K, p, 1, &rows);
                KIT_REQUIRE(status == QUIRE_OK || status == QUIRE_ERANGE);
                uint32_t n = l.n_kv_heads * (s ? l.d_v : l.d_k);
                for (uint32_t c = 0; c < n && !status; c++) KIT_REQUIRE(isfinite(x[c]));
                hash = mix(hash, x, status ? 0 : sizeof(float) * n);
            }
        free(x);
    }
    return hash;
}

uint64_t kit_attend_hash(const quire_geometry *geometry, const quire_seq *seq, const quire_seq_options *ring,
                         uint64_t seed)
{
    uint64_t hash = quire_seq_length(seq);
    quire_workspace *w = NULL;
    if (!hash) return 0;
    KIT_REQUIRE(!quire_workspace_create(&w, NULL, NULL));
    for (uint32_t i = 0; i < geometry->n_layers; i++) {
        quire_layer l = quire_geometry_layer(geometry, i);
        uint32_t n = quire_seq_tiles(seq, i, NULL, 0, sizeof(quire_tile_ref));
        quire_tile_ref *tiles = (quire_tile_ref *)calloc(n + 1, sizeof *tiles);
        float *q = (float *)calloc((size_t)l.n_q_heads * l.d_k, sizeof(float));
        float *out = (float *)calloc((size_t)l.n_q_heads * l.d_v, sizeof(float));
        KIT_REQUIRE(tiles && q && out && quire_seq_tiles(seq, i, tiles, n, sizeof(quire_tile_ref)) == n);
        kit_row(seed, i, QUIRE_K, quire_seq_length(seq), q, (size_t)l.n_q_heads * l.d_k);
        quire_attend_job job = {.tile_stride = sizeof(quire_tile_ref),
                                .tiles = tiles,
                                .n_tiles = n,
                                .n_q_heads = l.n_q_heads,
                                .n_kv_heads = l.n_kv_heads,
                                .d_k = l.d_k,
                                .d_v = l.d_v,
                                .n_queries = 1,
                                .first_query = quire_seq_length(seq) - 1,
                                .window = l.window,
                                .ring_tokens = ring ? ring->max_tokens : 0,
                                .ring_sinks = ring ? ring->sinks : 0,
                                .q = q,
                                .out = out};
        KIT_REQUIRE(!quire_attend(w, NULL, &job, 1, sizeof(quire_attend_job)));
        for (uint32_t c = 0; c < l.n_q_heads * l.d_v; c++) KIT_REQUIRE(isfinite(out[c]));
        hash = mix(hash, out, sizeof(float) * l.n_q_heads * l.d_v);
        free(tiles);
        free(q);
        free(out);
    }
    quire_workspace_destroy(w);
    return hash;
}
