/* SPDX-License-Identifier: MIT */
/*
 * openmp.h: an executor on the program's own OpenMP threads. The functions are compiled into the program, with its compiler and its
 * -fopenmp; the library itself does not use OpenMP. Compiled without -fopenmp, the executor runs everything on the calling thread.
 */
#ifndef QUIRE_OPENMP_H
#define QUIRE_OPENMP_H

#include "base.h"

#if defined(_OPENMP)
#include <omp.h>
#endif

/* Interface: stable. */

static inline void quire_openmp_run(void *ctx, void (*task)(void *arg, uint32_t index), void *arg,
                                    uint32_t n_tasks)
{
#if defined(_OPENMP)
    int n_threads = (int)(uintptr_t)ctx;
#pragma omp parallel for schedule(dynamic, 1) num_threads(n_threads)
#else
    (void)ctx;
#endif
    for (int64_t i = 0; i < (int64_t)n_tasks; i++) task(arg, (uint32_t)i);
}

/* Fills *out, whose size must be set. n_threads 0: as many as OpenMP would use now. No more than n_threads are used. */
static inline void quire_openmp_executor(quire_executor *out, uint32_t n_threads)
{
#if defined(_OPENMP)
    if (!n_threads) n_threads = (uint32_t)omp_get_max_threads();
#else
    n_threads = 1;
#endif
    out->ctx = (void *)(uintptr_t)n_threads;
    out->run = quire_openmp_run;
    out->n_threads = n_threads;
    out->reserved = 0;
}

#endif
