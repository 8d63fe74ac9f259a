/* SPDX-License-Identifier: MIT */
/* attend: the memory of a call. Inside of the rung. */
#ifndef QUIRE_ATTEND_WORKSPACE_H
#define QUIRE_ATTEND_WORKSPACE_H

#include "attend/attend.h"

/* What the largest job of a call needs, and how much of everything there is. No padding: it is compared. */
typedef struct quire_call_needs {
    uint32_t n_k, n_sums, rows, d; /* n_sums: sums of a query's integers, by part of a K row */
    size_t state_floats;
    uint64_t n_workers;
    uint64_t n_layouts; /* of all jobs */
    uint64_t n_states;  /* partial results in flight; 0: none outside of the workers */
} quire_call_needs;

typedef struct quire_call_memory {
    quire_job_layout *layouts;
    quire_scratch *scratch; /* one per worker */
    float *states;          /* n_states of state_floats */
} quire_call_memory;

struct quire_workspace {
    quire_allocator allocator;
    quire_executor executor;
    quire_job *jobs; /* of the call, after checking */
    uint32_t cap_jobs;
    quire_tile_list list; /* tiles of jobs that bring no list of their own */
    uint8_t *memory;      /* everything else a call needs */
    size_t bytes;
    quire_call_needs laid_for; /* what the memory is laid out for, and how */
    quire_call_memory laid_out;
    quire_workspace_stats stats;
};

/* task(arg, i) for every i < n, on the threads of the workspace. */
static inline void quire_workspace_run(const quire_workspace *workspace, void (*task)(void *, uint32_t),
                                       void *arg, uint32_t n)
{
    const quire_executor *e = &workspace->executor;
    if (e->run && n > 1)
        e->run(e->ctx, task, arg, n);
    else
        for (uint32_t i = 0; i < n; i++) task(arg, i);
}

/* ENOMEM: nothing has changed. */
quire_status quire_workspace_lay_out(quire_workspace *workspace, const quire_call_needs *needs,
                                     quire_call_memory *out);

#endif
