/* SPDX-License-Identifier: MIT */
/* The executor of openmp.h, compiled with OpenMP where the compiler has it. */
#include "attend_host.h"

#include "quire/openmp.h"

#include <stdatomic.h>

enum { TASKS = 200 };

typedef struct tasks {
    atomic_int ran[TASKS], now, most;
} tasks;

static void task(void *arg, uint32_t i)
{
    tasks *t = (tasks *)arg;
    int now = atomic_fetch_add(&t->now, 1) + 1, most = atomic_load(&t->most);
    while (now > most && !atomic_compare_exchange_weak(&t->most, &most, now)) continue;
    for (volatile int wait = 0; wait < 20000; wait++) continue;
    atomic_fetch_add(&t->ran[i], 1);
    atomic_fetch_sub(&t->now, 1);
}

/* "Fills *out, whose size must be set": the rest of it may be anything before. */
static quire_executor executor_of(uint32_t n_threads)
{
    quire_executor e;
    memset(&e, 0xa5, sizeof e);
    e.size = sizeof e;
    quire_openmp_executor(&e, n_threads);
    return e;
}

static void every_task_once(void **unused)
{
    (void)unused;
    for (uint32_t n = 0; n <= 3; n++) {
        quire_executor e = executor_of(n);
        tasks t = {.now = 0};
        assert_int_equal(e.size, sizeof e);
        assert_true(e.n_threads >= 1);
        e.run(e.ctx, task, &t, TASKS);
        for (int i = 0; i < TASKS; i++) assert_int_equal(t.ran[i], 1);
        assert_int_equal(t.now, 0);
        if (t.most > (int)e.n_threads)
            fail_msg("%d tasks ran at once on %u threads", (int)t.most, e.n_threads);
        e.run(e.ctx, task, &t, 0);
    }
}

static void same_bits(void **unused)
{
    (void)unused;
    host *t = host_open();
    quire_attend_job job = host_job(t);
    float expected[N_OUT * D_V];
    REF_OK(quire_attend(t->workspace, NULL, &job, 1, sizeof job));
    memcpy(expected, t->out, sizeof expected);
    for (uint32_t n = 0; n <= 3; n++) {
        quire_executor e = executor_of(n);
        quire_workspace *w = NULL;
        memset(t->out, 0x55, sizeof t->out);
        REF_OK(quire_workspace_create(&w, &e, NULL));
        REF_OK(quire_attend(w, NULL, &job, 1, sizeof job));
        assert_memory_equal(t->out, expected, sizeof expected);
        quire_workspace_destroy(w);
    }
    host_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_task_once), cmocka_unit_test(same_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
