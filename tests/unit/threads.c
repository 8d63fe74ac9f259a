/* SPDX-License-Identifier: MIT */
/* The built-in team of threads: every task once, whoever is late; and what waiting costs when two threads share a processor. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "quire/quire.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST_TASKS = 40, PIECES = 16, CALLS = 20, ROUNDS = 60 };

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define TOLERANCE 10 /* times mean nothing there */
#else
#define TOLERANCE 1.2
#endif

static double now_us(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* ------------------------------------------------------------- every task */

static void count_task(void *arg, uint32_t i)
{
    atomic_uint *count = (atomic_uint *)arg;
    atomic_fetch_add_explicit(&count[i], 1, memory_order_relaxed);
}

/* Calls with few and with many tasks, at once and after a pause in which workers fall asleep. */
static void run_often(const quire_executor *e)
{
    for (uint32_t call = 0; call < 2000; call++) {
        atomic_uint count[MOST_TASKS] = {0};
        uint32_t n = call % (MOST_TASKS + 1);
        e->run(e->ctx, count_task, count, n);
        for (uint32_t i = 0; i < MOST_TASKS; i++)
            assert_int_equal(atomic_load_explicit(&count[i], memory_order_relaxed), i < n);
        if (call % 100 == 0) nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
}

static void *run_often_main(void *arg)
{
    run_often((const quire_executor *)arg);
    return NULL;
}

static void every_task_once(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {1, 2, 3, 9};
    for (uint32_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        quire_threads *team;
        quire_executor e = {.size = sizeof e};
        pthread_t other;
        assert_int_equal(quire_threads_create(&team, sizes[i]), QUIRE_OK);
        assert_int_equal(quire_threads_executor(team, &e), QUIRE_OK);
        assert_int_equal(e.n_threads, sizes[i]);
        assert_int_equal(pthread_create(&other, NULL, run_often_main, &e), 0); /* two callers of one team */
        run_often(&e);
        pthread_join(other, NULL);
        quire_threads_destroy(team);
    }
}

/* A team that is never used, and one whose workers sleep, can be destroyed. */
static void teams_end(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++) {
        quire_threads *team;
        assert_int_equal(quire_threads_create(&team, 4), QUIRE_OK);
        if (i % 2) nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL);
        quire_threads_destroy(team);
    }
}

/* ---------------------------------------------------------- one processor */

#if defined(__linux__)

typedef struct pieces {
    atomic_uint next;
    uint32_t spins;
    atomic_uint done;
} pieces;

static void spin(uint32_t spins)
{
    volatile uint32_t x = 0;
    for (uint32_t k = 0; k < spins; k++) x = x + k;
}

/* Spins of about 40 us on this processor. What a call costs beside its work does not shrink with the work of a fast processor, so
 * the same number of spins everywhere would compare different things. */
static uint32_t spins_of_piece(void)
{
    double best = 1e9;
    for (int i = 0; i < 50; i++) {
        double from = now_us(CLOCK_THREAD_CPUTIME_ID);
        spin(16000);
        double took = now_us(CLOCK_THREAD_CPUTIME_ID) - from;
        if (took < best) best = took;
    }
    return (uint32_t)(16000 * 40 / best);
}

/* As attention does: workers claim pieces until none is left. */
static void claim_pieces(void *arg, uint32_t i)
{
    (void)i;
    pieces *p = (pieces *)arg;
    while (atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed) < PIECES) {
        spin(p->spins);
        atomic_fetch_add_explicit(&p->done, 1, memory_order_relaxed);
    }
}

/* us per call by a clock; between calls the caller is busy with something else for a while. */
static double time_calls(const quire_executor *e, clockid_t clock, uint32_t spins)
{
    clockid_t own = clock == CLOCK_PROCESS_CPUTIME_ID ? CLOCK_THREAD_CPUTIME_ID : clock;
    double begin = now_us(clock), between = 0;
    for (int call = 0; call < CALLS; call++) {
        pieces p = {.spins = spins};
        if (e->run)
            e->run(e->ctx, claim_pieces, &p, e->n_threads);
        else
            claim_pieces(&p, 0);
        assert_int_equal(atomic_load(&p.done), PIECES);
        double from = now_us(own);
        while (now_us(own) - from < 100) {
        }
        between += now_us(own) - from;
    }
    return (now_us(clock) - begin - between) / CALLS;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* What a call takes with one thread and with two, in short turns; what other processes do then happens to both. Returns the median
 * of two threads' time divided by one's in the same turn. */
static double compare_calls(clockid_t clock, double best[2])
{
    quire_threads *team;
    quire_executor alone = {.size = sizeof alone}, both = {.size = sizeof both};
    double ratio[ROUNDS];
    assert_int_equal(quire_threads_create(&team, 2), QUIRE_OK);
    assert_int_equal(quire_threads_executor(team, &both), QUIRE_OK);
    best[0] = best[1] = 1e9;
    uint32_t spins = spins_of_piece();
    for (int round = 0; round < ROUNDS; round++) {
        double a = time_calls(&alone, clock, spins), b = time_calls(&both, clock, spins);
        if (a < best[0]) best[0] = a;
        if (b < best[1]) best[1] = b;
        ratio[round] = b / a;
    }
    quire_threads_destroy(team);
    qsort(ratio, ROUNDS, sizeof *ratio, compare_doubles);
    return ratio[ROUNDS / 2];
}

/* Other programs, or other guests of the machine, can disturb a whole comparison: only what comes every time is ours. */
static double compare_often(clockid_t clock, double limit, double best[2])
{
    double least = 1e9;
    for (int i = 0; i < 3 && least >= limit; i++) {
        double times = compare_calls(clock, best);
        if (times < least) least = times;
    }
    return least;
}

/* The n-th processor of a set, alone in another; false: there are not so many. */
static bool nth_of(const cpu_set_t *all, int n, cpu_set_t *out)
{
    CPU_ZERO(out);
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, all) && n-- == 0) CPU_SET(i, out);
    return CPU_COUNT(out);
}

static void sharing_costs_little(void **state)
{
    (void)state;
    cpu_set_t before, one, after;
    double best[2];
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    assert_true(nth_of(&before, 0, &one));
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    /* What is spent on waiting counts, other processes do not. */
    double times = compare_often(CLOCK_PROCESS_CPUTIME_ID, TOLERANCE * 1.15, best);
    printf("one thread %.0f us, two on one processor %.0f us of processor time per call; median %.2f times\n",
           best[0], best[1], times);
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&after, &one)); /* the team leaves the caller where it is */
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
    assert_true(times < TOLERANCE * 1.15);
}

/* Another process needs the second processor all the time. */
static void strangers_do_not_stop_a_call(void **state)
{
    (void)state;
    cpu_set_t before, two, other;
    double best[2];
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    if (!nth_of(&before, 1, &other)) {
        printf("one processor: nothing to see\n");
        return;
    }
    assert_true(nth_of(&before, 0, &two));
    CPU_OR(&two, &two, &other);
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        (void)sched_setaffinity(0, sizeof other, &other);
        alarm(300); /* should the test die */
        for (volatile int i = 0;; i = !i) {
        }
    }
    assert_int_equal(sched_setaffinity(0, sizeof two, &two), 0);
    double times = compare_often(CLOCK_MONOTONIC, TOLERANCE * 1.5, best);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
    printf(
        "one thread %.0f us, two, one of them beside a busy process, %.0f us per call; median %.2f times\n",
        best[0], best[1], times);
    assert_true(times < TOLERANCE * 1.5);
}

#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_task_once),
        cmocka_unit_test(teams_end),
#if defined(__linux__)
        cmocka_unit_test(sharing_costs_little),
        cmocka_unit_test(strangers_do_not_stop_a_call),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
