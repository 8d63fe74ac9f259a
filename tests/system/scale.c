/* SPDX-License-Identifier: MIT */
/* The sizes that are promised: a million tokens, thousands of sequences, a hundred thousand pages, large layers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/cache_kit.h"

#include <math.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLOW 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define SLOW 1
#endif
#endif
#ifndef SLOW
#define SLOW 0
#endif

#define BOUND 1e-3

static void *allocate(size_t n, size_t size)
{
    void *p = calloc(n, size);
    assert_non_null(p);
    return p;
}

/*
 * Attention of query row q of one KV head over the rows [0, n) that the sequence gives out, in double precision. out
 * has d_v values.
 */
static void reference(const quire_seq *seq, const quire_layer *l, uint32_t head, uint32_t n, const float *q,
                      double *out)
{
    enum { PART = 4096 };
    uint32_t width = l->n_kv_heads * (l->d_k > l->d_v ? l->d_k : l->d_v);
    float *x = (float *)allocate((size_t)PART * width, sizeof(float));
    double *score = (double *)allocate(n, sizeof(double)), top = -INFINITY, sum = 0;
    memset(out, 0, sizeof(double) * l->d_v);
    for (int pass = 0; pass < 2; pass++) {
        quire_side side = pass && !l->v_in_k ? QUIRE_V : QUIRE_K;
        uint32_t d = side == QUIRE_K ? l->d_k : l->d_v;
        quire_rows_out rows = {.size = sizeof(quire_rows_out), .form = QUIRE_F32, .data = x};
        for (uint32_t first = 0; first < n; first += PART) {
            uint32_t n_part = n - first < PART ? n - first : PART;
            assert_int_equal(quire_seq_export(seq, 0, side, first, n_part, &rows), QUIRE_OK);
            for (uint32_t j = 0; j < n_part; j++) {
                const float *row = x + ((size_t)j * l->n_kv_heads + head) * d;
                double *s = &score[first + j];
                for (uint32_t c = 0; c < d && !pass; c++) *s += (double)q[c] * (double)row[c];
                if (!pass) *s /= sqrt((double)l->d_k);
                if (!pass && *s > top) top = *s;
                if (!pass) continue;
                double weight = exp(*s - top);
                sum += weight;
                for (uint32_t c = 0; c < l->d_v; c++) out[c] += weight * (double)row[c];
            }
        }
    }
    for (uint32_t c = 0; c < l->d_v; c++) out[c] /= sum;
    free(x);
    free(score);
}

static double error_of(const float *out, const double *expected, uint32_t d)
{
    double off = 0, size = 0;
    for (uint32_t c = 0; c < d; c++) {
        off += ((double)out[c] - expected[c]) * ((double)out[c] - expected[c]);
        size += expected[c] * expected[c];
    }
    return sqrt(off / size);
}

static quire_pool *pool_of(const quire_plan *plan, size_t budget, const quire_executor *executor)
{
    quire_pool *pool = NULL;
    quire_pool_options options = {sizeof(quire_pool_options), .budget_bytes = budget, .executor = executor};
    assert_int_equal(quire_pool_create(&pool, plan, &options), QUIRE_OK);
    return pool;
}

/* ------------------------------------------------------------ a million tokens */

static void million_tokens(void **state)
{
    (void)state;
    enum { D = 32, CHUNK = 8000, QUERIES = 2 };
    const uint32_t n = SLOW ? 40000 : 1000000;
    quire_geometry g = {sizeof(quire_geometry), .n_layers = 1, .n_q_heads = QUERIES,
                        .n_kv_heads = 1,        .d_k = D,      .d_v = D};
    quire_layer l = {QUERIES, 1, D, D, 0, 0};
    quire_plan *plan = kit_plan(&g, "a2g32/r2", NULL);
    quire_threads *team = NULL;
    assert_int_equal(quire_threads_create(&team, 2), QUIRE_OK);
    quire_executor executor = {.size = sizeof executor};
    quire_threads_executor(team, &executor);
    size_t bytes = kit_plan_bytes(plan, NULL, n + 1, CHUNK);
    quire_pool *pool = pool_of(plan, bytes, &executor); /* as much as the plan says and no more */
    quire_seq *seq = kit_seq(pool, 0, 0, 0);
    float *k = (float *)allocate((size_t)CHUNK * D, sizeof(float));
    float *v = (float *)allocate((size_t)CHUNK * D, sizeof(float)), q[QUERIES * D], out[2][QUERIES * D];
    for (uint32_t done = 0; done < n; done += CHUNK) {
        quire_step *step = NULL;
        uint32_t tokens = CHUNK;
        for (uint32_t t = 0; t < CHUNK; t++) {
            kit_row(1, 0, QUIRE_K, done + t, k + (size_t)t * D, D);
            kit_row(1, 0, QUIRE_V, done + t, v + (size_t)t * D, D);
        }
        assert_int_equal(quire_step_begin(&step, pool, &seq, &tokens, 1), QUIRE_OK);
        assert_int_equal(quire_step_append(step, 0, k, v), QUIRE_OK);
        assert_int_equal(quire_step_commit(step), QUIRE_OK);
    }
    assert_int_equal(quire_seq_length(seq), n);
    kit_row(2, 0, QUIRE_K, 0, q, QUERIES * D);
    for (uint32_t c = 0; c < QUERIES * D; c++) q[c] *= c < D ? 1.0f : 4.0f; /* flat and peaked weights */
    quire_step *step = NULL;
    uint32_t one = 1;
    assert_int_equal(quire_step_begin(&step, pool, &seq, &one, 1), QUIRE_OK);
    assert_int_equal(quire_step_append(step, 0, k, v), QUIRE_OK);
    assert_int_equal(quire_step_attend(step, 0, q, out[0]), QUIRE_OK);
    assert_int_equal(quire_step_commit(step), QUIRE_OK);
    for (uint32_t h = 0; h < QUERIES; h++) {
        double expected[D];
        reference(seq, &l, 0, n + 1, q + h * D, expected);
        double error = error_of(out[0] + h * D, expected, D);
        print_message("%u tokens, query %u: error %.2g\n", n + 1, h, error);
        assert_true(error <= BOUND);
    }
    /* One thread, through the tiles: the same bits. */
    quire_workspace *w = NULL;
    uint32_t n_tiles = quire_seq_tiles(seq, 0, NULL, 0, sizeof(quire_tile_ref));
    quire_tile_ref *tiles = (quire_tile_ref *)allocate(n_tiles, sizeof *tiles);
    assert_int_equal(n_tiles, n / 64 + 1);
    quire_seq_tiles(seq, 0, tiles, n_tiles, sizeof(quire_tile_ref));
    quire_attend_job job = {.tile_stride = sizeof(quire_tile_ref),
                            .tiles = tiles,
                            .n_tiles = n_tiles,
                            .n_q_heads = QUERIES,
                            .n_kv_heads = 1,
                            .d_k = D,
                            .d_v = D,
                            .n_queries = 1,
                            .first_query = n,
                            .q = q,
                            .out = out[1]};
    assert_int_equal(quire_workspace_create(&w, NULL, NULL), QUIRE_OK);
    assert_int_equal(quire_attend(w, NULL, &job, 1, sizeof(quire_attend_job)), QUIRE_OK);
    assert_memory_equal(out[0], out[1], sizeof out[0]);
    assert_int_equal(quire_seq_trim(seq, 3), QUIRE_OK);
    quire_workspace_destroy(w);
    quire_seq_destroy(seq);
    kit_pool_is_empty(pool);
    quire_pool_destroy(pool);
    quire_threads_destroy(team);
    quire_plan_destroy(plan);
    free(tiles);
    free(k);
    free(v);
}

/* --------------------------------------------------------------- many sequences */

/* 4,096 sequences in one step, with attention; one in 64 is compared with itself alone in a pool. */
static void many_sequences(void **state)
{
    (void)state;
    enum { SEQS = 4096, D = 16 };
    quire_geometry g = {sizeof(quire_geometry), .n_layers = 1, .n_q_heads = 2,
                        .n_kv_heads = 1,        .d_k = D,      .d_v = D};
    quire_plan *plan = kit_plan(&g, "r4/r3", NULL);
    quire_pool *pool = pool_of(plan, (size_t)SEQS * 2 * quire_plan_page_bytes(plan, 0), NULL);
    quire_seq **seq = (quire_seq **)allocate(SEQS, sizeof *seq);
    uint32_t *n_tokens = (uint32_t *)allocate(SEQS, sizeof *n_tokens), total = 0;
    for (uint32_t i = 0; i < SEQS; i++) {
        seq[i] = kit_seq(pool, 0, 0, 0);
        n_tokens[i] = i % 71;
        total += n_tokens[i];
    }
    float *k = (float *)allocate((size_t)total * D, sizeof(float)),
          *v = (float *)allocate((size_t)total * D, sizeof(float));
    float *q = (float *)allocate((size_t)total * 2 * D, sizeof(float)),
          *out = (float *)allocate((size_t)total * 2 * D, 4);
    for (uint32_t t = 0; t < total; t++) {
        kit_row(1, 0, QUIRE_K, t, k + (size_t)t * D, D);
        kit_row(1, 0, QUIRE_V, t, v + (size_t)t * D, D);
        kit_row(2, 0, QUIRE_K, t, q + (size_t)t * 2 * D, 2 * D);
    }
    quire_step *step = NULL;
    assert_int_equal(quire_step_begin(&step, pool, seq, n_tokens, SEQS), QUIRE_OK);
    assert_int_equal(quire_step_append(step, 0, k, v), QUIRE_OK);
    assert_int_equal(quire_step_attend(step, 0, q, out), QUIRE_OK);
    assert_int_equal(quire_step_commit(step), QUIRE_OK);
    quire_pool *alone = pool_of(plan, 2 * quire_plan_page_bytes(plan, 0), NULL);
    for (uint32_t i = 0, at = 0; i < SEQS; at += n_tokens[i++]) {
        assert_int_equal(quire_seq_length(seq[i]), n_tokens[i]);
        if (i % 64 != 5) continue;
        quire_seq *own = kit_seq(alone, 0, 0, 0);
        float own_out[71 * 2 * D];
        assert_int_equal(quire_step_begin(&step, alone, &own, &n_tokens[i], 1), QUIRE_OK);
        assert_int_equal(quire_step_append(step, 0, k + (size_t)at * D, v + (size_t)at * D), QUIRE_OK);
        assert_int_equal(quire_step_attend(step, 0, q + (size_t)at * 2 * D, own_out), QUIRE_OK);
        assert_int_equal(quire_step_commit(step), QUIRE_OK);
        assert_memory_equal(own_out, out + (size_t)at * 2 * D, sizeof(float) * n_tokens[i] * 2 * D);
        assert_true(kit_rows_hash(&g, own) == kit_rows_hash(&g, seq[i]));
        quire_seq_destroy(own);
    }
    for (uint32_t i = 0; i < SEQS; i++) quire_seq_destroy(seq[i]);
    kit_pool_is_empty(pool);
    quire_pool_destroy(pool);
    quire_pool_destroy(alone);
    quire_plan_destroy(plan);
    free(seq);
    free(n_tokens);
    free(k);
    free(v);
    free(q);
    free(out);
}

/* A page each for 102,400 sequences, 4,096 at a time; given up in another order, then taken again. */
static void many_pages(void **state)
{
    (void)state;
    enum { STEP = 4096, STEPS = 25, SEQS = STEP * STEPS, D = 16 };
    quire_geometry g = {sizeof(quire_geometry), .n_layers = 1, .n_q_heads = 1,
                        .n_kv_heads = 1,        .d_k = D,      .d_v = D};
    quire_plan *plan = kit_plan(&g, "r2", NULL);
    quire_pool *pool = pool_of(plan, (size_t)SEQS * quire_plan_page_bytes(plan, 0), NULL);
    quire_seq **seq = (quire_seq **)allocate(SEQS, sizeof *seq);
    uint32_t *one = (uint32_t *)allocate(STEP, sizeof *one);
    float *x = (float *)allocate((size_t)STEP * D, sizeof(float));
    uint64_t *hash = (uint64_t *)allocate(SEQS, sizeof *hash);
    for (uint32_t i = 0; i < STEP; i++) one[i] = 1;
    for (int round = 0; round < 2; round++) {
        for (uint32_t s = 0; s < STEPS; s++) {
            quire_step *step = NULL;
            for (uint32_t i = 0; i < STEP; i++) seq[s * STEP + i] = kit_seq(pool, 0, 0, 0);
            for (uint32_t i = 0; i < STEP; i++) kit_row(s + 1, 0, QUIRE_K, i, x + (size_t)i * D, D);
            assert_int_equal(quire_step_begin(&step, pool, seq + (size_t)s * STEP, one, STEP), QUIRE_OK);
            assert_int_equal(quire_step_append(step, 0, x, x), QUIRE_OK);
            assert_int_equal(quire_step_commit(step), QUIRE_OK);
        }
        quire_pool_stats stats = {.size = sizeof stats};
        quire_pool_stats_get(pool, &stats);
        assert_int_equal(stats.n_pages, SEQS);
        assert_true(stats.used_bytes == stats.budget_bytes);
        assert_int_equal(kit_append(pool, &g, seq[0], 64, 1), QUIRE_EFULL);
        for (uint32_t i = 0; i < SEQS; i++) {
            uint64_t now = kit_rows_hash(&g, seq[i]);
            if (round) assert_true(now == hash[i]);
            hash[i] = now;
        }
        for (uint32_t i = 0; i < SEQS; i++) quire_seq_destroy(seq[(uint64_t)i * 7919 % SEQS]);
        kit_pool_is_empty(pool);
    }
    quire_pool_destroy(pool);
    quire_plan_destroy(plan);
    free(seq);
    free(one);
    free(x);
    free(hash);
}

/* ----------------------------------------------------------------- large shapes */

/* 128 layers of 128 KV heads: a page has 68 MiB. */
static void large_pages(void **state)
{
    (void)state;
    enum { LAYERS = 128, HEADS = 128, D = 128 };
    quire_geometry g = {sizeof(quire_geometry), LAYERS,   .n_q_heads = HEADS,
                        .n_kv_heads = HEADS,    .d_k = D, .d_v = D};
    quire_plan *plan = kit_plan(&g, "r2", NULL);
    size_t page = quire_plan_page_bytes(plan, 0);
    assert_int_equal(page, (size_t)LAYERS * HEADS * 2 * (D / 4 + 2) * 64);
    assert_true(page > (size_t)10 << 20);
    quire_pool *pool = pool_of(plan, page, NULL);
    quire_seq *seq = kit_seq(pool, 0, 0, 0);
    float *x = (float *)allocate((size_t)HEADS * D, sizeof(float)),
          *out = (float *)allocate((size_t)HEADS * D, 4);
    float *back = (float *)allocate((size_t)HEADS * D, sizeof(float));
    quire_step *step = NULL;
    uint32_t one = 1;
    assert_int_equal(quire_step_begin(&step, pool, &seq, &one, 1), QUIRE_OK);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        kit_row(1, layer, QUIRE_K, 0, x, HEADS * D);
        assert_int_equal(quire_step_append(step, layer, x, x), QUIRE_OK);
        if (layer % 32 == 31) assert_int_equal(quire_step_attend(step, layer, x, out), QUIRE_OK);
    }
    assert_int_equal(quire_step_commit(step), QUIRE_OK);
    quire_rows_out rows = {.size = sizeof(quire_rows_out), .form = QUIRE_F32, .data = back};
    assert_int_equal(quire_seq_export(seq, LAYERS - 1, QUIRE_V, 0, 1, &rows), QUIRE_OK);
    for (uint32_t i = 0; i < HEADS * D; i++) /* a single row: attention gives it back, but for the rounding */
        if (!(fabsf(out[i] - back[i]) <= 1e-5f * (1 + fabsf(back[i]))))
            fail_msg("value %u: %g, not %g", i, out[i], back[i]);
    assert_int_equal(kit_append(pool, &g, seq, 64, 1), QUIRE_EFULL);
    quire_seq_destroy(seq);
    kit_pool_is_empty(pool);
    quire_pool_destroy(pool);
    quire_plan_destroy(plan);
    free(x);
    free(out);
    free(back);
}

/* MLA: one KV head of 576 channels, of which 512 are V too; and the same sizes with a V of its own. */
static void large_heads(void **state)
{
    (void)state;
    enum { N = 300, D_K = 576, D_V = 512, Q_HEADS = 16 };
    static const char *const policies[] = {"k8v4", "r4", "q8_0", "f16", "r5/r3"};
    for (uint32_t shared = 0; shared < 2; shared++)
        for (uint32_t p = 0; p < sizeof policies / sizeof *policies; p++) {
            quire_layer l = {Q_HEADS, 1, D_K, D_V, 0, shared};
            quire_geometry g = {sizeof(quire_geometry), .n_layers = 1, .layer_stride = sizeof(quire_layer),
                                .layers = &l};
            quire_plan *plan = kit_plan(&g, policies[p], NULL);
            quire_pool *pool = pool_of(plan, kit_plan_bytes(plan, NULL, N, N), NULL);
            quire_seq *seq = kit_seq(pool, 0, 0, 0);
            quire_step *step = NULL;
            assert_int_equal(kit_append(pool, &g, seq, N - 1, 1), QUIRE_OK);
            assert_int_equal(kit_begin(&step, pool, &g, seq, 1, 1), QUIRE_OK);
            float *q = (float *)allocate(Q_HEADS * D_K, sizeof(float)),
                  *out = (float *)allocate(Q_HEADS * D_V, 4);
            kit_row(3, 0, QUIRE_K, 0, q, Q_HEADS * D_K);
            for (uint32_t i = 0; i < Q_HEADS * D_K; i++) q[i] *= 2;
            assert_int_equal(quire_step_attend(step, 0, q, out), QUIRE_OK);
            assert_int_equal(quire_step_commit(step), QUIRE_OK);
            for (uint32_t h = 0; h < Q_HEADS; h += 5) {
                double expected[D_V];
                reference(seq, &l, 0, N, q + h * D_K, expected);
                double error = error_of(out + h * D_V, expected, D_V);
                if (!(error <= BOUND))
                    fail_msg("%s, V in K %u, head %u: error %g", policies[p], shared, h, error);
            }
            quire_seq_destroy(seq);
            quire_pool_destroy(pool);
            quire_plan_destroy(plan);
            free(q);
            free(out);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(million_tokens), cmocka_unit_test(many_sequences), cmocka_unit_test(many_pages),
        cmocka_unit_test(large_pages),    cmocka_unit_test(large_heads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
