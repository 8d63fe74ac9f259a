/* SPDX-License-Identifier: MIT */
/* Calls that are cancelled at any moment: ECANCELED, and the workspace, the list and the step can be used again. */
#include "paged_host.h"

#include <stdatomic.h>

enum { N_KV = 2, N_Q = 4, D = 32, LENGTH = 5000, MOST_QUERIES = 200 };

typedef struct poll {
    atomic_int calls;
    int cancel_at; /* 0: never */
    atomic_int running;
} poll;

static int cancelled(void *ctx)
{
    poll *p = (poll *)ctx;
    int n = atomic_fetch_add(&p->calls, 1) + 1;
    return p->cancel_at && n >= p->cancel_at;
}

/* Counts the tasks that have begun and not ended. */
typedef struct counted {
    quire_executor below;
    poll *poll;
    void (*task)(void *arg, uint32_t index);
    void *arg;
} counted;

static void counted_task(void *arg, uint32_t index)
{
    counted *c = (counted *)arg;
    atomic_fetch_add(&c->poll->running, 1);
    c->task(c->arg, index);
    atomic_fetch_sub(&c->poll->running, 1);
}

static void run_counted(void *ctx, void (*task)(void *arg, uint32_t index), void *arg, uint32_t n_tasks)
{
    counted c = *(const counted *)ctx;
    c.task = task;
    c.arg = arg;
    c.below.run(c.below.ctx, counted_task, &c, n_tasks);
}

static void every_moment(void **unused)
{
    (void)unused;
    static const uint32_t n_queries[] = {1, 3, MOST_QUERIES};
    paged p;
    int32_t blocks[(LENGTH + 63) / 64], length = LENGTH;
    for (int32_t i = 0; i < (int32_t)COUNT(blocks); i++) blocks[i] = i;
    paged_open(&p, "r4", "a4g64", D, D, COUNT(blocks), 64, N_KV, 1);
    paged_fill(&p, blocks, 0, LENGTH, 1, D, D);
    quire_block_table table = {.size = sizeof table,
                               .memory = &p.m,
                               .blocks = blocks,
                               .row_stride = sizeof blocks,
                               .lengths = &length,
                               .n_seqs = 1};
    quire_tile_list *list = NULL;
    quire_threads *threads = NULL;
    poll polls = {0};
    counted four = {.below = {.size = sizeof(quire_executor)}, .poll = &polls};
    counted back = {.below = {.size = sizeof(quire_executor), .run = run_backwards}, .poll = &polls};
    REF_OK(quire_tile_list_create(&list, NULL));
    REF_OK(quire_tile_list_add_blocks(list, &table));
    REF_OK(quire_threads_create(&threads, 4));
    REF_OK(quire_threads_executor(threads, &four.below));
    const quire_executor executors[] = {
        {.size = sizeof(quire_executor)},
        {.size = sizeof(quire_executor), .ctx = &four, .run = run_counted, .n_threads = 4},
        {.size = sizeof(quire_executor), .ctx = &back, .run = run_counted, .n_threads = 4},
        {.size = sizeof(quire_executor), .ctx = &back, .run = run_counted, .n_threads = 1000},
    };
    float *q = ref_alloc(MOST_QUERIES * N_Q * D, sizeof *q),
          *out = ref_alloc(MOST_QUERIES * N_Q * D, sizeof *q);
    float *expected = ref_alloc(MOST_QUERIES * N_Q * D, sizeof *q);
    kit_row(3, 0, QUIRE_K, 0, q, (size_t)MOST_QUERIES * N_Q * D);
    for (size_t e = 0; e < COUNT(executors); e++)
        for (size_t i = 0; i < COUNT(n_queries); i++) {
            quire_workspace *w = NULL;
            REF_OK(quire_workspace_create(&w, &executors[e], NULL));
            quire_attend_job job = {.list = list,
                                    .n_q_heads = N_Q,
                                    .n_kv_heads = N_KV,
                                    .d_k = D,
                                    .d_v = D,
                                    .n_queries = n_queries[i],
                                    .first_query = LENGTH - n_queries[i],
                                    .q = q,
                                    .out = expected};
            size_t bytes = (size_t)n_queries[i] * N_Q * D * sizeof(float);
            quire_attend_options options = {
                .size = sizeof options, .cancelled = cancelled, .cancelled_ctx = &polls};
            REF_OK(quire_attend(w, NULL, &job, 1, sizeof job));
            job.out = out;
            polls.calls = polls.cancel_at = 0;
            memset(out, 0x5a, bytes);
            REF_OK(quire_attend(w, &options, &job, 1, sizeof job));
            assert_memory_equal(out, expected, bytes);
            int n_polls = polls.calls, step = n_polls < 40 ? 1 : n_polls / 20;
            assert_true(n_polls >= LENGTH / 1024); /* the promise of the header, for one block of queries */
            for (int k = 1; k <= n_polls; k += step) {
                polls.calls = 0;
                polls.cancel_at = k;
                quire_status status = quire_attend(w, &options, &job, 1, sizeof job);
                /* Which of the threads asks how often may differ a little from run to run. */
                if (status != QUIRE_ECANCELED && !(status == QUIRE_OK && polls.calls < k))
                    fail_msg("executor %zu, %u queries, poll %d of %d: %s", e, n_queries[i], k, n_polls,
                             quire_status_name(status));
                /* Everybody asks at most once more. */
                assert_true(polls.calls <= k + 1000);
                assert_int_equal(polls.running, 0);
                memset(out, 0x5a, bytes);
                REF_OK(quire_attend(w, NULL, &job, 1, sizeof job));
                assert_memory_equal(out, expected, bytes);
            }
            /* Nothing to compute, nothing to cancel. */
            job.n_queries = 0;
            polls.cancel_at = 1;
            REF_OK(quire_attend(w, &options, &job, 1, sizeof job));
            REF_OK(quire_attend(w, &options, NULL, 0, 0));
            quire_workspace_destroy(w);
        }
    free(q);
    free(out);
    free(expected);
    quire_tile_list_destroy(list);
    quire_threads_destroy(threads);
    paged_close(&p);
}

static void steps(void **unused)
{
    (void)unused;
    quire_geometry g = kit_geometry(N_KV, D, D);
    quire_plan *plan = kit_plan(&g, "r4/a4g64,sinks=4:f16", NULL);
    quire_pool *pool = kit_pool(plan, (size_t)32 << 20, NULL);
    quire_seq *seq = kit_seq(pool, 0, 0, 0);
    quire_step *step = NULL;
    enum { N = 7 };
    float q[N * N_Q * D], out[N * N_Q * D], expected[N * N_Q * D];
    kit_row(3, 0, QUIRE_K, 0, q, COUNT(q));
    REF_OK(kit_append(pool, &g, seq, 3000, 1));
    REF_OK(kit_begin(&step, pool, &g, seq, N, 1));
    REF_OK(quire_step_attend(step, 0, q, expected));
    poll polls = {0};
    quire_attend_options options = {.size = sizeof options, .cancelled = cancelled, .cancelled_ctx = &polls};
    quire_step_queries queries = {.size = sizeof queries, .q = q, .out = out, .options = &options};
    REF_OK(quire_step_attend_with(step, 0, &queries));
    assert_memory_equal(out, expected, sizeof out);
    for (int k = 1, n = polls.calls; k <= n; k++) {
        polls.calls = 0;
        polls.cancel_at = k;
        assert_int_equal(quire_step_attend_with(step, 0, &queries), QUIRE_ECANCELED);
        memset(out, 0, sizeof out);
        REF_OK(quire_step_attend(step, 0, q, out));
        assert_memory_equal(out, expected, sizeof out);
    }
    REF_OK(quire_step_commit(step)); /* a cancelled call changes nothing of the step */
    assert_int_equal(quire_seq_length(seq), 3000 + N);
    quire_seq_destroy(seq);
    quire_pool_destroy(pool);
    quire_plan_destroy(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_moment), cmocka_unit_test(steps)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
