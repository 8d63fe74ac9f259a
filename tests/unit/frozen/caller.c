/* SPDX-License-Identifier: MIT */
/*
 * A program compiled with the frozen header, three times: as it was in 0.2, with fewer members and with more (quire-0.2.h). It must not
 * see the headers of today. CALLER is the name of its only function.
 */
#include "quire-0.2.h"

#include "caller.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REQUIRE(condition)                                                            \
    do {                                                                              \
        if (!(condition)) {                                                           \
            fprintf(stderr, "%s:%d: required: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                                  \
        }                                                                             \
    } while (0)

/* An output structure with something behind it that nobody may touch. */
#define GUARDED(type)            \
    struct {                     \
        type it;                 \
        unsigned char after[64]; \
    }
#define BEGIN(out) (memset(&(out), 0xa5, sizeof(out)), (out).it.size = sizeof(out).it)
#ifdef NEWER_CALLER
#define NEWER_IS_0(out) REQUIRE((out).it.future == 0)
#define UNKNOWN_IS_REFUSED(it, call)           \
    do {                                       \
        (it).future = 1;                       \
        REQUIRE((call) == QUIRE_EUNSUPPORTED); \
        (it).future = 0;                       \
    } while (0)
#else
#define NEWER_IS_0(out) (void)0
#define UNKNOWN_IS_REFUSED(it, call) (void)0
#endif
#define END(out)                                                                         \
    do {                                                                                 \
        REQUIRE((out).it.size == sizeof(out).it);                                        \
        for (size_t guard = 0; guard < 64; guard++) REQUIRE((out).after[guard] == 0xa5); \
        NEWER_IS_0(out);                                                                 \
    } while (0)

enum { LAYERS = 2, N_KV = 2, N_Q = 4, D = 32, N = 100, OUT = N_Q * D };

static void *take(void *ctx, size_t bytes)
{
    ++*(int *)ctx;
    return aligned_alloc(64, (bytes + 63) / 64 * 64);
}

static void give(void *ctx, void *ptr, size_t bytes)
{
    (void)bytes;
    --*(int *)ctx;
    free(ptr);
}

static void run_all(void *ctx, void (*task)(void *arg, uint32_t index), void *arg, uint32_t n_tasks)
{
    (void)ctx;
    for (uint32_t i = 0; i < n_tasks; i++) task(arg, i);
}

static void values(float *x, size_t n, uint32_t seed)
{
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 8) / (float)(1 << 24) - 0.5f;
    }
}

typedef struct bytes {
    unsigned char data[1 << 16];
    size_t n, at;
} bytes;

static quire_status write_bytes(void *ctx, const void *from, size_t n)
{
    bytes *b = (bytes *)ctx;
    if (n > sizeof b->data - b->n) return QUIRE_EIO;
    memcpy(b->data + b->n, from, n);
    b->n += n;
    return QUIRE_OK;
}

static quire_status read_bytes(void *ctx, void *to, size_t n)
{
    bytes *b = (bytes *)ctx;
    if (n > b->n - b->at) return QUIRE_EIO;
    memcpy(to, b->data + b->at, n);
    b->at += n;
    return QUIRE_OK;
}

static void check_tiles(const quire_seq *seq, const float *q, const float *expected)
{
    quire_tile_ref tiles[4];
    uint32_t n = quire_seq_tiles(seq, 1, tiles, 4, sizeof *tiles);
    quire_executor executor = {.size = sizeof executor, .run = run_all};
    quire_workspace *w = NULL;
    float out[2][OUT];
    REQUIRE(n == 2);
    UNKNOWN_IS_REFUSED(executor, quire_workspace_create(&w, &executor, NULL));
    REQUIRE(!quire_workspace_create(&w, &executor, NULL));
    quire_tile_list *list = NULL;
    REQUIRE(!quire_tile_list_create(&list, NULL));
    UNKNOWN_IS_REFUSED(tiles[1], quire_tile_list_add_tiles(list, tiles, n, sizeof *tiles, N_KV));
    REQUIRE(quire_tile_list_count(list) == 0);
    REQUIRE(!quire_tile_list_add_tiles(list, tiles, n, sizeof *tiles, N_KV));
    quire_attend_job job[2];
    for (int i = 0; i < 2; i++)
        job[i] = (quire_attend_job){.n_q_heads = N_Q,
                                    .n_kv_heads = N_KV,
                                    .d_k = D,
                                    .d_v = D,
                                    .n_queries = 1,
                                    .first_query = N - 1,
                                    .q = q,
                                    .out = out[i]};
    job[0].tiles = tiles;
    job[0].n_tiles = n;
    job[0].tile_stride = sizeof *tiles;
    job[1].list = list;
    quire_attend_options options = {.size = sizeof options};
    UNKNOWN_IS_REFUSED(options, quire_attend(w, &options, job, 2, sizeof *job));
    UNKNOWN_IS_REFUSED(job[1], quire_attend(w, &options, job, 2, sizeof *job));
    REQUIRE(!quire_attend(w, &options, job, 2, sizeof *job));
    for (int i = 0; i < 2; i++) REQUIRE(memcmp(out[i], expected, sizeof out[i]) == 0);
    GUARDED(quire_workspace_stats) stats;
    BEGIN(stats);
    REQUIRE(!quire_workspace_stats_get(w, &stats.it));
    END(stats);
    REQUIRE(stats.it.tiles_read == 2 * 2 * N_KV);
    quire_tile_list_destroy(list);
    quire_workspace_destroy(w);
}

static void check_outputs(quire_pool *pool, const quire_plan *plan, const quire_seq *seq)
{
    GUARDED(quire_pool_stats) stats;
    BEGIN(stats);
    REQUIRE(!quire_pool_stats_get(pool, &stats.it));
    END(stats);
    REQUIRE(stats.it.n_pages == 2 && stats.it.budget_bytes == 1 << 20);
    GUARDED(quire_plan_layer) layer;
    BEGIN(layer);
    REQUIRE(!quire_plan_layer_info(plan, 1, &layer.it));
    END(layer);
    REQUIRE(strcmp(layer.it.k, "r4") == 0 && layer.it.bytes_per_token > 0);
    GUARDED(quire_seq_options) ring;
    BEGIN(ring);
    REQUIRE(!quire_seq_options_get(seq, &ring.it));
    END(ring);
    GUARDED(quire_executor) executor;
    quire_threads *threads = NULL;
    REQUIRE(!quire_threads_create(&threads, 2));
    BEGIN(executor);
    REQUIRE(!quire_threads_executor(threads, &executor.it));
    END(executor);
    REQUIRE(executor.it.run && executor.it.ctx);
    quire_threads_destroy(threads);
    static bytes saved;
    saved.n = saved.at = 0;
    REQUIRE(!quire_seq_save(seq, write_bytes, &saved));
    GUARDED(quire_snapshot_info) info;
    BEGIN(info);
    REQUIRE(!quire_snapshot_read_info(&info.it, read_bytes, &saved));
    END(info);
    REQUIRE(info.it.plan_fingerprint == quire_plan_fingerprint(plan));
}

static void check_rows(void)
{
    _Alignas(64) static unsigned char tile[1 << 15];
    float x[D], y[D];
    quire_tile_format_options options = {.size = sizeof options, .side = QUIRE_K, .d = D};
    quire_tile_format *format = NULL;
    UNKNOWN_IS_REFUSED(options, quire_tile_format_create(&format, "f32", &options));
    REQUIRE(!quire_tile_format_create(&format, "f32", &options) && quire_tile_bytes(format) <= sizeof tile);
    values(x, D, 9);
    x[3] = 0.0f / (x[0] - x[0]); /* NaN */
    quire_rows rows = {.size = sizeof rows, .data = x};
    quire_rows_out rows_out = {.size = sizeof rows_out, .data = y};
    GUARDED(quire_counts) counts;
    BEGIN(counts);
    memset(&counts.it, 0, sizeof counts.it);
    counts.it.size = sizeof counts.it;
    counts.it.nan = 4;
    UNKNOWN_IS_REFUSED(rows, quire_tile_encode(format, 0, tile, 0, 1, &rows, &counts.it));
    REQUIRE(!quire_tile_encode(format, 0, tile, 0, 1, &rows, &counts.it));
    END(counts);
    REQUIRE(counts.it.nan == 5);
    UNKNOWN_IS_REFUSED(rows_out, quire_tile_decode(format, 0, tile, 0, 1, &rows_out));
    REQUIRE(!quire_tile_decode(format, 0, tile, 0, 1, &rows_out));
    x[3] = 0;
    REQUIRE(memcmp(x, y, sizeof x) == 0);
    quire_tile_format_destroy(format);
}

void CALLER(float *attended)
{
    int n_blocks = 0;
    quire_allocator allocator = {.size = sizeof allocator, .ctx = &n_blocks, .alloc = take, .free = give};
    quire_geometry geometry = {.size = sizeof geometry,
                               .n_layers = LAYERS,
                               .n_q_heads = N_Q,
                               .n_kv_heads = N_KV,
                               .d_k = D,
                               .d_v = D};
    quire_plan_options plan_options = {.size = sizeof plan_options, .allocator = &allocator};
    quire_plan *plan = NULL;
    UNKNOWN_IS_REFUSED(geometry, quire_plan_create(&plan, &geometry, "r4", &plan_options));
    UNKNOWN_IS_REFUSED(plan_options, quire_plan_create(&plan, &geometry, "r4", &plan_options));
    UNKNOWN_IS_REFUSED(allocator, quire_plan_create(&plan, &geometry, "r4", &plan_options));
    REQUIRE(!quire_plan_create(&plan, &geometry, "r4", &plan_options));
    quire_pool_options pool_options = {
        .size = sizeof pool_options, .budget_bytes = 1 << 20, .allocator = &allocator};
    quire_pool *pool = NULL;
    UNKNOWN_IS_REFUSED(pool_options, quire_pool_create(&pool, plan, &pool_options));
    REQUIRE(!quire_pool_create(&pool, plan, &pool_options));
    quire_seq_options seq_options = {.size = sizeof seq_options};
    quire_seq *seq = NULL;
    UNKNOWN_IS_REFUSED(seq_options, quire_seq_create(&seq, pool, &seq_options));
    REQUIRE(!quire_seq_create(&seq, pool, &seq_options));
    static float k[N * N_KV * D], v[N * N_KV * D], q[N * N_Q * D], out[N * N_Q * D];
    values(q, N * N_Q * D, 3);
    const uint32_t n = N;
    quire_step *step = NULL;
    REQUIRE(!quire_step_begin(&step, pool, &seq, &n, 1));
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        values(k, N * N_KV * D, layer + 1);
        values(v, N * N_KV * D, layer + 5);
        quire_rows k_rows = {.size = sizeof k_rows, .data = k}, v_rows = {.size = sizeof v_rows, .data = v};
        UNKNOWN_IS_REFUSED(v_rows, quire_step_append_rows(step, layer, 0, &k_rows, &v_rows));
        REQUIRE(!quire_step_append_rows(step, layer, 0, &k_rows, &v_rows));
        quire_step_queries queries = {.size = sizeof queries, .q = q, .out = out};
        UNKNOWN_IS_REFUSED(queries, quire_step_attend_with(step, layer, &queries));
        REQUIRE(!quire_step_attend_with(step, layer, &queries));
    }
    REQUIRE(!quire_step_commit(step));
    memcpy(attended, out + (N - 1) * OUT, sizeof(float) * OUT);
    check_tiles(seq, q + (N - 1) * OUT, attended);
    check_outputs(pool, plan, seq);
    check_rows();
    quire_seq_destroy(seq);
    quire_pool_destroy(pool);
    quire_plan_destroy(plan);
    REQUIRE(n_blocks == 0);
}
