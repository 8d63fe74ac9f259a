/* SPDX-License-Identifier: MIT */
/* Several threads in one pool, each with sequences of its own; some of their pages are shared. For ThreadSanitizer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/cache_kit.h"

#include <pthread.h>
#include <string.h>

#define THREADS 4
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define ROUNDS 12
#else
#define ROUNDS 60
#endif

static const char *const more_policies[] = {"r3",     "r5/r2", "q8_0",    "f16",        "a4g32", "q4_0/r2",
                                            "tq3/r4", "tq2",   "r6/q5_1", "h:a4g32/r2", "bf16",  "a3g32"};
#define N_MORE (sizeof more_policies / sizeof *more_policies)

typedef struct worker {
    pthread_t thread;
    quire_pool *pool;
    quire_geometry g;
    quire_seq *base; /* own fork of what all share */
    quire_plan *plan[N_MORE];
    uint32_t number;
    uint64_t result;
} worker;

static quire_status attend_once(quire_pool *pool, const quire_geometry *g, quire_seq *seq, uint64_t seed,
                                uint64_t *hash)
{
    quire_step *step = NULL;
    float q[5 * 2 * 32], out[5 * 2 * 32];
    quire_status status = kit_begin(&step, pool, g, seq, 5, seed);
    if (status) return status;
    for (uint32_t layer = 0; layer < g->n_layers; layer++) {
        kit_row(seed, layer, QUIRE_K, 999, q, 5 * 2 * 32);
        KIT_REQUIRE(!quire_step_attend(step, layer, q, out));
        for (uint32_t i = 0; i < 5 * 2 * 32; i++) {
            uint32_t bits;
            memcpy(&bits, &out[i], 4);
            *hash = *hash * 0x100000001b3u + bits;
        }
    }
    return quire_step_commit(step);
}

/* The result depends on the number of the worker alone. */
static void *work(void *arg)
{
    worker *w = (worker *)arg;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        quire_seq *own = kit_seq(w->pool, round % 3 ? 0 : 60, round % 3 ? 0 : 3, 10), *fork = NULL,
                  *shared = NULL;
        uint64_t seed = w->number * 1000 + round;
        KIT_REQUIRE(!kit_append(w->pool, &w->g, own, 50 + round % 40, seed));
        KIT_REQUIRE(!quire_seq_fork(&fork, own) && !quire_seq_fork(&shared, w->base));
        KIT_REQUIRE(!attend_once(w->pool, &w->g, fork, seed, &w->result));
        KIT_REQUIRE(!attend_once(w->pool, &w->g, own, seed, &w->result));
        KIT_REQUIRE(!kit_append(w->pool, &w->g, shared, 9, seed)); /* copies a page that other threads read */
        KIT_REQUIRE(!quire_seq_convert(own, w->plan[(round + w->number) % N_MORE],
                                       round % 2 ? QUIRE_CONVERT_NEW : 0));
        KIT_REQUIRE(!kit_append(w->pool, &w->g, own, 3, seed) && !quire_seq_trim(fork, 52));
        kit_bytes bytes = {0};
        quire_seq *loaded = NULL;
        KIT_REQUIRE(!quire_seq_save(shared, kit_write, &bytes));
        KIT_REQUIRE(!quire_seq_load(&loaded, w->pool, kit_read, &bytes));
        w->result = w->result * 31 + kit_rows_hash(&w->g, own) + kit_rows_hash(&w->g, fork) +
                    3 * kit_rows_hash(&w->g, shared) - kit_rows_hash(&w->g, loaded);
        kit_bytes_free(&bytes);
        quire_seq_destroy(own);
        quire_seq_destroy(shared);
        quire_seq_destroy(fork);
        quire_seq_destroy(loaded);
    }
    return NULL;
}

static void run_workers(quire_executor *executor, bool at_once, uint64_t result[THREADS])
{
    quire_geometry g = kit_geometry(1, 32, 32);
    quire_plan *plan = kit_plan(&g, "r4/r3", NULL);
    quire_pool_options options = {sizeof(quire_pool_options), .budget_bytes = 4 << 20, .executor = executor};
    quire_pool *pool = NULL;
    assert_int_equal(quire_pool_create(&pool, plan, &options), QUIRE_OK);
    quire_seq *base = kit_seq(pool, 0, 0, 0);
    assert_int_equal(kit_append(pool, &g, base, 200, 77), QUIRE_OK);
    worker w[THREADS];
    for (uint32_t i = 0; i < THREADS; i++) {
        w[i] = (worker){.pool = pool, .g = g, .number = i};
        for (uint32_t p = 0; p < N_MORE; p++) w[i].plan[p] = kit_plan(&g, more_policies[p], NULL);
        assert_int_equal(quire_seq_fork(&w[i].base, base), QUIRE_OK);
    }
    for (uint32_t i = 0; i < THREADS; i++) {
        if (at_once)
            assert_int_equal(pthread_create(&w[i].thread, NULL, work, &w[i]), 0);
        else
            (void)work(&w[i]);
    }
    for (uint32_t i = 0; i < THREADS; i++) {
        if (at_once) assert_int_equal(pthread_join(w[i].thread, NULL), 0);
        result[i] = w[i].result;
        quire_seq_destroy(w[i].base);
        for (uint32_t p = 0; p < N_MORE; p++) quire_plan_destroy(w[i].plan[p]);
    }
    quire_seq_destroy(base);
    kit_pool_is_empty(pool);
    quire_pool_destroy(pool);
    quire_plan_destroy(plan);
}

static void same_results(void **state)
{
    (void)state;
    uint64_t alone[THREADS], together[THREADS], team[THREADS];
    quire_threads *t = NULL;
    assert_int_equal(quire_threads_create(&t, 2), QUIRE_OK);
    quire_executor executor = {.size = sizeof executor};
    quire_threads_executor(t, &executor);
    run_workers(NULL, false, alone);
    run_workers(NULL, true, together);
    run_workers(&executor, true, team);
    quire_threads_destroy(t);
    for (uint32_t i = 0; i < THREADS; i++) {
        assert_true(alone[i] == together[i]);
        assert_true(alone[i] == team[i]);
    }
}

/* Sequences are made while the pool learns plans: the list of plans may move meanwhile. */
static void *make_sequences(void *arg)
{
    quire_pool *pool = (quire_pool *)arg;
    for (int i = 0; i < 3000; i++) {
        quire_seq *seq = kit_seq(pool, 0, 0, 0);
        KIT_REQUIRE(quire_seq_length(seq) == 0);
        quire_seq_destroy(seq);
    }
    return NULL;
}

static void plans_meanwhile(void **state)
{
    (void)state;
    quire_geometry g = kit_geometry(1, 32, 32);
    quire_plan *plan = kit_plan(&g, "r4/r3", NULL), *more[N_MORE];
    quire_pool *pool = kit_pool(plan, 4 << 20, NULL);
    pthread_t thread[2];
    for (uint32_t i = 0; i < N_MORE; i++) more[i] = kit_plan(&g, more_policies[i], NULL);
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&thread[i], NULL, make_sequences, pool), 0);
    for (uint32_t i = 0; i < N_MORE; i++) assert_int_equal(quire_pool_add_plan(pool, more[i]), QUIRE_OK);
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_join(thread[i], NULL), 0);
    for (uint32_t i = 0; i < N_MORE; i++) quire_plan_destroy(more[i]);
    quire_pool_destroy(pool);
    quire_plan_destroy(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_results), cmocka_unit_test(plans_meanwhile)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
