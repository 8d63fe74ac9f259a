/* SPDX-License-Identifier: MIT */
/* core: a small team of threads. Who waits polls for a while, because waking a sleeping thread can cost as much as a whole decode
 * layer, and then sleeps. Who finds that somebody else needs its processor sleeps much sooner. */
#define _POSIX_C_SOURCE 200809L
#include "core/core.h"
#include "core/cpu.h"
#include "core/system.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#define MAX_THREADS 1024u
#define POLLS 64       /* in a row, 1 to 4 us depending on how long the machine's pause takes */
#define ROUNDS 31      /* of that many polls before sleep */
#define SLOW_NS 50000  /* a yield that takes longer has let somebody else run */
#define MOST_SKIPS 512 /* waits without trying to yield, at most */

typedef void (*task_fn)(void *arg, uint32_t index);

/* What a thread has learnt about its processor. A yield to a busy stranger costs a time slice, some ms, which is why it is not
 * tried at every wait: `skips` more waits go to sleep after the first round of polls. */
typedef struct patience {
    int skips, next_skips;
} patience;

#define OPEN 1u   /* workers may enter the call */
#define INSIDE 2u /* one worker that has */

struct quire_threads {
    pthread_mutex_t turn; /* held by the caller whose tasks the team runs */
    pthread_mutex_t lock;
    pthread_cond_t wake, idle;
    uint32_t n_workers;
    pthread_t *worker;
    /* The call in progress; written while the gate is closed and nobody inside. */
    task_fn task;
    void *arg;
    uint32_t n_tasks;
    atomic_uint next;
    atomic_uint generation; /* raised once per call */
    /* OPEN and a number of workers. The caller closes it when no tasks are left and waits for those inside only: a worker that has
     * not got a processor in time holds up nobody. */
    atomic_uint gate;
    atomic_uint sleepers; /* workers that must be woken */
    atomic_bool caller_sleeps;
    patience caller; /* of the threads that call, whichever they are */
    atomic_bool stop;
};

static bool is_met(atomic_uint *word, unsigned value, bool equal)
{
    return (atomic_load_explicit(word, memory_order_acquire) == value) == equal;
}

static bool yield_is_slow(void)
{
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    sched_yield();
    clock_gettime(CLOCK_MONOTONIC, &to);
    return (to.tv_sec - from.tv_sec) * 1000000000 + (to.tv_nsec - from.tv_nsec) > SLOW_NS;
}

/* Polls until the word is equal to a value, or is not. False: it is time to sleep. */
static bool watch(patience *p, atomic_uint *word, unsigned value, bool equal)
{
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < POLLS; i++) {
            if (is_met(word, value, equal)) return true;
            quire_cpu_pause();
        }
        if (p->skips) {
            p->skips--;
            return false;
        }
        if (yield_is_slow()) {
            p->next_skips = p->next_skips ? 2 * p->next_skips : 16;
            if (p->next_skips > MOST_SKIPS) p->next_skips = MOST_SKIPS;
            p->skips = p->next_skips;
            return is_met(word, value, equal);
        }
        p->next_skips = 0;
    }
    return false;
}

static void pull_tasks(quire_threads *t)
{
    uint32_t i;
    while ((i = atomic_fetch_add_explicit(&t->next, 1, memory_order_relaxed)) < t->n_tasks)
        t->task(t->arg, i);
}

static void await_call(quire_threads *t, patience *p, unsigned seen)
{
    if (watch(p, &t->generation, seen, false)) return;
    pthread_mutex_lock(&t->lock);
    /* This and start_call() are in one total order: the caller sees the sleeper, or the sleeper the new generation. */
    atomic_fetch_add(&t->sleepers, 1);
    while (atomic_load(&t->generation) == seen) pthread_cond_wait(&t->wake, &t->lock);
    atomic_fetch_sub(&t->sleepers, 1);
    pthread_mutex_unlock(&t->lock);
}

static bool enter(quire_threads *t)
{
    unsigned gate = atomic_load_explicit(&t->gate, memory_order_relaxed);
    while (gate & OPEN)
        if (atomic_compare_exchange_weak_explicit(&t->gate, &gate, gate + INSIDE, memory_order_acq_rel,
                                                  memory_order_relaxed))
            return true;
    return false;
}

static void leave(quire_threads *t)
{
    if (atomic_fetch_sub(&t->gate, INSIDE) != INSIDE || !atomic_load(&t->caller_sleeps)) return;
    pthread_mutex_lock(&t->lock);
    pthread_cond_signal(&t->idle);
    pthread_mutex_unlock(&t->lock);
}

static void *worker_main(void *arg)
{
    quire_threads *t = (quire_threads *)arg;
    patience own = {0};
    unsigned seen = 0;
    quire_system_prefer_fast_core();
    for (;;) {
        await_call(t, &own, seen);
        seen = atomic_load_explicit(&t->generation, memory_order_acquire);
        if (atomic_load(&t->stop)) return NULL;
        if (!enter(t)) continue; /* too late */
        pull_tasks(t);
        leave(t);
    }
}

static void start_call(quire_threads *t)
{
    atomic_fetch_add(&t->generation, 1);
    if (!atomic_load(&t->sleepers)) return;
    pthread_mutex_lock(&t->lock);
    pthread_cond_broadcast(&t->wake);
    pthread_mutex_unlock(&t->lock);
}

static void run_with_team(quire_threads *t, task_fn task, void *arg, uint32_t n_tasks)
{
    t->task = task;
    t->arg = arg;
    t->n_tasks = n_tasks;
    atomic_store_explicit(&t->next, 0, memory_order_relaxed);
    atomic_store_explicit(&t->gate, OPEN, memory_order_release);
    start_call(t);
    pull_tasks(t);
    if (atomic_fetch_sub(&t->gate, OPEN) == OPEN || watch(&t->caller, &t->gate, 0, true)) return;
    pthread_mutex_lock(&t->lock);
    atomic_store(&t->caller_sleeps, true);
    while (atomic_load(&t->gate)) pthread_cond_wait(&t->idle, &t->lock);
    atomic_store(&t->caller_sleeps, false);
    pthread_mutex_unlock(&t->lock);
}

/* The team takes one call at a time; a caller who finds it taken does its own work. */
static void run(void *ctx, task_fn task, void *arg, uint32_t n_tasks)
{
    quire_threads *t = (quire_threads *)ctx;
    if (n_tasks > 1 && t->n_workers && pthread_mutex_trylock(&t->turn) == 0) {
        run_with_team(t, task, arg, n_tasks);
        pthread_mutex_unlock(&t->turn);
        return;
    }
    for (uint32_t i = 0; i < n_tasks; i++) task(arg, i);
}

void quire_threads_destroy(quire_threads *t)
{
    if (!t) return;
    atomic_store(&t->stop, true);
    start_call(t);
    for (uint32_t i = 0; i < t->n_workers; i++) pthread_join(t->worker[i], NULL);
    pthread_mutex_destroy(&t->turn);
    pthread_cond_destroy(&t->wake);
    pthread_cond_destroy(&t->idle);
    pthread_mutex_destroy(&t->lock);
    free(t->worker);
    free(t);
}

quire_status quire_threads_create(quire_threads **out, uint32_t n_threads)
{
    if (!out || n_threads < 1 || n_threads > MAX_THREADS) return QUIRE_EINVAL;
    quire_threads *t = (quire_threads *)calloc(1, sizeof *t);
    if (!t) return QUIRE_ENOMEM;
    t->worker = (pthread_t *)calloc(n_threads, sizeof *t->worker);
    if (!t->worker) {
        free(t);
        return QUIRE_ENOMEM;
    }
    pthread_mutex_init(&t->turn, NULL);
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->wake, NULL);
    pthread_cond_init(&t->idle, NULL);
    for (uint32_t i = 0; i + 1 < n_threads; i++) {
        if (pthread_create(&t->worker[i], NULL, worker_main, t)) {
            quire_threads_destroy(t);
            return QUIRE_ENOMEM;
        }
        t->n_workers++;
    }
    *out = t;
    return QUIRE_OK;
}

quire_status quire_threads_executor(quire_threads *t, quire_executor *out)
{
    if (!t) return QUIRE_EINVAL;
    quire_executor executor = {.ctx = t, .run = run, .n_threads = t->n_workers + 1};
    return quire_write_sized(out, &executor, sizeof executor);
}

quire_status quire_executor_read(quire_executor *out, const quire_executor *executor)
{
    quire_executor e = {.size = sizeof e};
    quire_status status = executor ? quire_read_sized(&e, sizeof e, executor) : QUIRE_OK;
    if (status) return status;
    if (e.reserved) return QUIRE_EINVAL;
    if (!e.run) e = (quire_executor){.size = sizeof e};
    if (!e.n_threads) e.n_threads = 1;
    *out = e;
    return QUIRE_OK;
}
