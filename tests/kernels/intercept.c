/* SPDX-License-Identifier: MIT */
/*
 * What a call costs besides its tokens: decode with 32 query heads on 8 KV heads of 128 channels, one thread, 64 to 512 tokens. The
 * times lie on a line; where it meets 0 tokens is the fixed cost: checking the job, preparing 32 queries, finishing 32 outputs.
 * Measured for quire_attend() with a prepared list and for quire_step_attend() from a pool.
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "quire/quire.h"
#include "support/random.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { N_Q = 32, N_KV = 8, D = 128, N_LENGTHS = 4, MOST_TOKENS = 512, SHORTEST_RUN_MS = 200 };

static const uint32_t lengths[N_LENGTHS] = {64, 128, 256, MOST_TOKENS};

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* A cache of one layer per length, with a step open at its last token. */
typedef struct scene {
    quire_plan *plan;
    quire_pool *pool;
    quire_seq *seq[N_LENGTHS];
    quire_step *step[N_LENGTHS];
    quire_seq *whole[N_LENGTHS]; /* the same tokens, committed: lists are made of these */
    quire_tile_list *list;
    quire_workspace *workspace;
    float *q, *out;
} scene;

static void append(scene *s, quire_seq *seq, uint32_t n, const float *rows, quire_step **open)
{
    quire_step *step;
    assert_int_equal(quire_step_begin(&step, s->pool, &seq, &n, 1), QUIRE_OK);
    assert_int_equal(quire_step_append(step, 0, rows, rows), QUIRE_OK);
    if (open)
        *open = step;
    else
        assert_int_equal(quire_step_commit(step), QUIRE_OK);
}

static void open_scene(scene *s, const char *codec)
{
    rng r = {1};
    quire_geometry g = {
        .size = sizeof g, .n_layers = 1, .n_q_heads = N_Q, .n_kv_heads = N_KV, .d_k = D, .d_v = D};
    quire_pool_options options = {.size = sizeof options, .budget_bytes = (size_t)64 << 20};
    size_t n = (size_t)MOST_TOKENS * N_KV * D;
    float *rows = malloc(sizeof *rows * n);
    s->q = malloc(sizeof *s->q * N_Q * D);
    s->out = malloc(sizeof *s->out * N_Q * D);
    assert_true(rows && s->q && s->out);
    for (size_t i = 0; i < n; i++) rows[i] = rng_normal(&r);
    for (size_t i = 0; i < (size_t)N_Q * D; i++) s->q[i] = rng_normal(&r);
    assert_int_equal(quire_plan_create(&s->plan, &g, codec, NULL), QUIRE_OK);
    assert_int_equal(quire_pool_create(&s->pool, s->plan, &options), QUIRE_OK);
    assert_int_equal(quire_workspace_create(&s->workspace, NULL, NULL), QUIRE_OK);
    assert_int_equal(quire_tile_list_create(&s->list, NULL), QUIRE_OK);
    for (uint32_t i = 0; i < N_LENGTHS; i++) {
        assert_int_equal(quire_seq_create(&s->seq[i], s->pool, NULL), QUIRE_OK);
        assert_int_equal(quire_seq_create(&s->whole[i], s->pool, NULL), QUIRE_OK);
        append(s, s->whole[i], lengths[i], rows, NULL);
        append(s, s->seq[i], lengths[i] - 1, rows, NULL);
        append(s, s->seq[i], 1, rows, &s->step[i]);
        assert_int_equal(quire_tile_list_add_seq(s->list, s->whole[i], 0), QUIRE_OK);
    }
    free(rows);
}

static void close_scene(scene *s)
{
    quire_tile_list_destroy(s->list);
    quire_workspace_destroy(s->workspace);
    for (uint32_t i = 0; i < N_LENGTHS; i++) {
        quire_step_abort(s->step[i]);
        quire_seq_destroy(s->seq[i]);
        quire_seq_destroy(s->whole[i]);
    }
    quire_pool_destroy(s->pool);
    quire_plan_destroy(s->plan);
    free(s->q);
    free(s->out);
}

static void attend(scene *s, uint32_t i, bool from_pool)
{
    quire_attend_job job = {.list = s->list,
                            .list_seq = i,
                            .n_q_heads = N_Q,
                            .n_kv_heads = N_KV,
                            .d_k = D,
                            .d_v = D,
                            .n_queries = 1,
                            .first_query = lengths[i] - 1,
                            .q = s->q,
                            .out = s->out};
    if (from_pool)
        assert_int_equal(quire_step_attend(s->step[i], 0, s->q, s->out), QUIRE_OK);
    else
        assert_int_equal(quire_attend(s->workspace, NULL, &job, 1, sizeof job), QUIRE_OK);
}

/* The least squares line through the shortest times; all lengths in turns, so that a slow phase of the machine hits all of them. */
static double intercept_of(scene *s, bool from_pool, double *per_token)
{
    double best[N_LENGTHS], begin = now_us(), x = 0, y = 0, xx = 0, xy = 0;
    for (uint32_t i = 0; i < N_LENGTHS; i++) best[i] = 1e9;
    for (int call = 0; call < 3 || now_us() - begin < SHORTEST_RUN_MS * 1e3; call++)
        for (uint32_t i = 0; i < N_LENGTHS; i++)
            for (int again = 0; again < 4; again++) { /* the second call finds its tiles in the cache */
                double from = now_us();
                attend(s, i, from_pool);
                double us = now_us() - from;
                if (us < best[i]) best[i] = us;
            }
    for (uint32_t i = 0; i < N_LENGTHS; i++) {
        x += lengths[i] / (double)N_LENGTHS;
        y += best[i] / N_LENGTHS;
    }
    for (uint32_t i = 0; i < N_LENGTHS; i++) {
        xx += (lengths[i] - x) * (lengths[i] - x);
        xy += (lengths[i] - x) * (best[i] - y);
    }
    *per_token = xy / xx;
    return y - xy / xx * x;
}

static void fixed_cost(void **state)
{
    (void)state;
    static const char *const codecs[] = {"r8", "r4", "f16"};
    for (uint32_t c = 0; c < sizeof codecs / sizeof *codecs; c++) {
        scene s;
        open_scene(&s, codecs[c]);
        for (int from_pool = 0; from_pool < 2; from_pool++) {
            double per_token, us = intercept_of(&s, from_pool, &per_token);
            printf("%-4s %-24s %s: %5.1f us and %.0f ns per token\n", codecs[c],
                   from_pool ? "quire_step_attend()" : "quire_attend() on a list", quire_isa_in_use(), us,
                   per_token * 1e3);
            assert_true(us < 200); /* 2 to 12 us on a quiet machine with AVX2 */
        }
        close_scene(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(fixed_cost)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
