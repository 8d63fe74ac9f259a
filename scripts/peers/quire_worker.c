// SPDX-License-Identifier: MIT
// Quire through its C interface: a sequence of a pool, a step with the last rows open, quire_step_attend(). A configuration is a policy.
#define _GNU_SOURCE
#include "worker.h"

#include <quire/quire.h>

#include <dirent.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEP_TOKENS = 1024, MAX_THREADS = 256 };

typedef struct cache {
    quire_pool *pool;
    quire_seq *seq;
    quire_step *step;
    const worker_rows *rows;
    float *out;
} cache;

static void check(quire_status status, const char *what)
{
    if (status != QUIRE_OK) worker_fail(what, quire_status_name(status));
}

static const float *at(const float *rows, uint32_t token)
{
    return rows + (size_t)token * WORKER_KV_HEADS * WORKER_D;
}

// One thread per processor that this process may use. The threads of the team are all that there are.
static void pin(void)
{
    cpu_set_t may, one;
    if (sched_getaffinity(0, sizeof may, &may) != 0) worker_fail("sched_getaffinity", "failed");
    DIR *tasks = opendir("/proc/self/task");
    int cpu = -1;
    for (struct dirent *entry; tasks && (entry = readdir(tasks));) {
        if (entry->d_name[0] == '.') continue;
        do cpu = (cpu + 1) % CPU_SETSIZE;
        while (!CPU_ISSET(cpu, &may));
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        sched_setaffinity(atoi(entry->d_name), sizeof one, &one);
    }
    if (tasks) closedir(tasks);
}

static void run(void *object)
{
    cache *c = object;
    check(quire_step_attend(c->step, 0, c->rows->q, c->out), "quire_step_attend");
}

static void open_step(cache *c, uint32_t first, uint32_t n)
{
    check(quire_step_begin(&c->step, c->pool, &c->seq, &n, 1), "quire_step_begin");
    check(quire_step_append(c->step, 0, at(c->rows->k, first), at(c->rows->v, first)), "quire_step_append");
}

// With what begins and discards a step: an engine does that once for all layers.
static void append(void *object)
{
    cache *c = object;
    quire_step_abort(c->step);
    open_step(c, c->rows->context - c->rows->queries, c->rows->queries);
}

static quire_executor team(uint32_t n_threads)
{
    static quire_threads *threads;
    if (!threads) {
        check(quire_isa_use_environment(), "QUIRE_ISA");
        check(quire_threads_create(&threads, n_threads), "quire_threads_create");
        pin();
    }
    quire_executor executor = {.size = sizeof executor};
    check(quire_threads_executor(threads, &executor), "quire_threads_executor");
    return executor;
}

static worker_config make(const char *name, const worker_rows *rows, uint32_t n_threads)
{
    quire_executor executor = team(n_threads);
    quire_geometry shape = {.size = sizeof shape,
                            .n_layers = 1,
                            .n_q_heads = WORKER_Q_HEADS,
                            .n_kv_heads = WORKER_KV_HEADS,
                            .d_k = WORKER_D,
                            .d_v = WORKER_D};
    quire_plan *plan;
    check(quire_plan_create(&plan, &shape, name, NULL), name);
    size_t budget;
    check(quire_plan_bytes(plan, NULL, rows->context, STEP_TOKENS, &budget), "quire_plan_bytes");
    quire_pool_options options = {.size = sizeof options, .budget_bytes = budget, .executor = &executor};
    cache *c = calloc(1, sizeof *c);
    c->rows = rows;
    c->out = calloc((size_t)rows->queries * WORKER_Q_HEADS * WORKER_D, sizeof(float));
    check(quire_pool_create(&c->pool, plan, &options), "quire_pool_create");
    check(quire_seq_create(&c->seq, c->pool, NULL), "quire_seq_create");
    uint32_t last = rows->context - rows->queries;
    for (uint32_t first = 0; first < last; first += STEP_TOKENS) {
        open_step(c, first, last - first < STEP_TOKENS ? last - first : STEP_TOKENS);
        check(quire_step_commit(c->step), "quire_step_commit");
    }
    open_step(c, last, rows->queries);
    size_t bytes = (size_t)(quire_plan_bytes_per_token(plan) * rows->context);
    quire_plan_destroy(plan);
    return (worker_config){name, bytes, quire_isa_in_use(), c->out, c, run, append};
}

int main(int argc, char **argv)
{
    return worker_main(argc, argv, make);
}
