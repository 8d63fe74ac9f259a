/* SPDX-License-Identifier: MIT */
/* core: a small team of threads. Workers spin briefly between calls, because waking a sleeping thread can cost as
 * much as a whole decode layer, then sleep. */
#include "core/core.h"
#include "core/cpu.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#define MAX_THREADS 1024u
#define SPINS 2000 /* 10 to 100 us of polling before sleep, depending on how long the machine's pause takes */

typedef void (*task_fn)(void *arg, uint32_t index);

struct quire_threads {
    pthread_mutex_t turn; /* held by the caller whose tasks the team runs */
    pthread_mutex_t lock;
    pthread_cond_t wake, idle;
    uint32_t n_workers;
    pthread_t *worker;
    /* The call in progress; written while every worker waits. */
    task_fn task;
    void *arg;
    uint32_t n_tasks;
    atomic_uint next;
    atomic_uint generation; /* raised once per call */
    atomic_uint active;     /* workers still inside the call */
    bool stop;
};

/* Once in a while the core is offered to others: the awaited thread may have no core of its own. */
static void wait_a_little(int spin)
{
    quire_cpu_pause();
    if (spin % 64 == 63) sched_yield();
}

static void pull_tasks(quire_threads *t)
{
    uint32_t i;
    while ((i = atomic_fetch_add_explicit(&t->next, 1, memory_order_relaxed)) < t->n_tasks)
        t->task(t->arg, i);
}

static void *worker_main(void *arg)
{
    quire_threads *t = (quire_threads *)arg;
    unsigned seen = 0;
    for (;;) {
        for (int i = 0; i < SPINS && atomic_load_explicit(&t->generation, memory_order_acquire) == seen; i++)
            wait_a_little(i);
        if (atomic_load_explicit(&t->generation, memory_order_acquire) == seen) {
            pthread_mutex_lock(&t->lock);
            while (atomic_load_explicit(&t->generation, memory_order_acquire) == seen)
                pthread_cond_wait(&t->wake, &t->lock);
            pthread_mutex_unlock(&t->lock);
        }
        seen = atomic_load_explicit(&t->generation, memory_order_acquire);
        if (t->stop) return NULL;
        pull_tasks(t);
        if (atomic_fetch_sub_explicit(&t->active, 1, memory_order_acq_rel) == 1) {
            pthread_mutex_lock(&t->lock);
            pthread_cond_signal(&t->idle);
            pthread_mutex_unlock(&t->lock);
        }
    }
}

static void start_call(quire_threads *t)
{
    pthread_mutex_lock(&t->lock);
    atomic_fetch_add_explicit(&t->generation, 1, memory_order_release);
    pthread_cond_broadcast(&t->wake);
    pthread_mutex_unlock(&t->lock);
}

static void run_with_team(quire_threads *t, task_fn task, void *arg, uint32_t n_tasks)
{
    t->task = task;
    t->arg = arg;
    t->n_tasks = n_tasks;
    atomic_store_explicit(&t->next, 0, memory_order_relaxed);
    atomic_store_explicit(&t->active, t->n_workers, memory_order_relaxed);
    start_call(t);
    pull_tasks(t);
    for (int i = 0; i < SPINS && atomic_load_explicit(&t->active, memory_order_acquire); i++)
        wait_a_little(i);
    if (!atomic_load_explicit(&t->active, memory_order_acquire)) return;
    pthread_mutex_lock(&t->lock);
    while (atomic_load_explicit(&t->active, memory_order_acquire)) pthread_cond_wait(&t->idle, &t->lock);
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
    t->stop = true;
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
