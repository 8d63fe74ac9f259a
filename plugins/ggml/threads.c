/* SPDX-License-Identifier: MIT */
/*
 * Who computes. In a host whose CPU backend works in OpenMP teams we use the same team: GOMP_parallel of the library
 * that is loaded already, whose workers are awake between our graphs and the host's. In other hosts the CPU backend's
 * own threads poll while we work; a second team would fight them for the cores, so there only long work is spread, over
 * threads that go to sleep soon after.
 */
#define _GNU_SOURCE
#include "device.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { MAX_THREADS = 512 };

typedef void (*task_fn)(void *arg, uint32_t index);
typedef void (*parallel_fn)(void (*body)(void *), void *data, unsigned n_threads, unsigned flags);

struct team {
    bool spread;
    parallel_fn parallel; /* OpenMP; or */
    quire_threads *own;
    uint32_t own_threads;
};

/* Multiplications below which the caller works alone: about 40 us, and about a millisecond. */
static const double little_with_openmp = 1e6, little_alone = 2e7;

/* --------------------------------------------------------------------- OpenMP */

static parallel_fn find_parallel(void)
{
    static const char *const names[] = {"libgomp.so.1", "libomp.so.5", "libomp.so", "libiomp5.so"};
    parallel_fn f;
    *(void **)&f = dlsym(RTLD_DEFAULT, "GOMP_parallel");
    for (size_t i = 0; !f && i < sizeof names / sizeof *names; i++) {
        void *library = dlopen(names[i], RTLD_NOW | RTLD_NOLOAD); /* kept: it stays loaded as long as we do */
        if (library) *(void **)&f = dlsym(library, "GOMP_parallel");
    }
    return f;
}

struct call {
    task_fn task;
    void *arg;
    uint32_t n_tasks;
    atomic_uint next;
};

static void pull(void *data)
{
    struct call *c = data;
    uint32_t i;
    while ((i = atomic_fetch_add_explicit(&c->next, 1, memory_order_relaxed)) < c->n_tasks)
        c->task(c->arg, i);
}

/* ------------------------------------------------------------------- executor */

static void run(void *ctx, task_fn task, void *arg, uint32_t n_tasks)
{
    struct worker *w = ctx;
    struct team *t = w->team;
    if (t->spread && n_tasks > 1 && w->n_threads > 1) {
        if (t->parallel) {
            struct call c = {.task = task, .arg = arg, .n_tasks = n_tasks};
            /* As many as the host uses, even for fewer tasks: a team of another size would be made anew. */
            t->parallel(pull, &c, w->n_threads, 0);
            return;
        }
        if (t->own) {
            quire_executor own = {.size = sizeof own};
            quire_threads_executor(t->own, &own);
            own.run(own.ctx, task, arg, n_tasks);
            return;
        }
    }
    for (uint32_t i = 0; i < n_tasks; i++) task(arg, i);
}

void worker_expect(struct worker *w, double work)
{
    w->team->spread = work > (w->team->parallel ? little_with_openmp : little_alone);
    if (!w->team->spread || w->team->parallel || w->n_threads < 2 || w->team->own_threads == w->n_threads)
        return;
    quire_threads_destroy(w->team->own);
    w->team->own = NULL;
    w->team->own_threads = 0;
    if (!quire_threads_create(&w->team->own, w->n_threads)) w->team->own_threads = w->n_threads;
}

/* --------------------------------------------------------------------- worker */

void worker_set_threads(struct worker *w, int n)
{
    uint32_t n_threads = n < 1 ? 1 : n > MAX_THREADS ? MAX_THREADS : (uint32_t)n;
    if (n_threads == w->n_threads) return;
    w->n_threads = n_threads;
    w->executor.n_threads = n_threads;
    quire_workspace_destroy(w->workspace); /* it knows the number; made again when needed */
    w->workspace = NULL;
}

struct worker *worker_create(void)
{
    struct worker *w = calloc(1, sizeof *w);
    struct team *t = calloc(1, sizeof *t);
    if (!w || !t) {
        free(w);
        free(t);
        return NULL;
    }
    if (host.openmp) t->parallel = find_parallel();
    w->team = t;
    w->executor = (quire_executor){.size = sizeof(quire_executor), .ctx = w, .run = run, .n_threads = 1};
    w->n_threads = 1;
    return w;
}

void worker_destroy(struct worker *w)
{
    quire_workspace_destroy(w->workspace);
    quire_threads_destroy(w->team->own);
    if (w->cpu) host.ggml_backend_free(w->cpu);
    free(w->scratch);
    free(w->team);
    free(w);
}

void *worker_scratch(struct worker *w, size_t bytes)
{
    if (bytes > w->scratch_size) {
        size_t size = (bytes + 4095) / 4096 * 4096;
        free(w->scratch);
        w->scratch = aligned_alloc(64, size);
        w->scratch_size = w->scratch ? size : 0;
    }
    return w->scratch;
}
