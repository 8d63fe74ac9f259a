/* SPDX-License-Identifier: MIT */
/* worker.h: what the measured programs in C have in common. See bench-peers for what they are told and what they answer. */
#ifndef WORKER_H
#define WORKER_H

#include <stddef.h>
#include <stdint.h>

enum { WORKER_D = 128, WORKER_KV_HEADS = 8, WORKER_Q_HEADS = 32 };

/* A file of float32 rows: Q [queries][32][128], then K and V [context][8][128]. */
typedef struct worker_rows {
    uint32_t context, queries;
    const float *q, *k, *v;
} worker_rows;

/* One configuration: run() is one call of attention, out the result of the last one, [queries][32][128]. append() writes the last
 * `queries` rows of K and V again; NULL: not measured. */
typedef struct worker_config {
    const char *name;
    size_t bytes;
    const char *isa;
    const float *out;
    void *object;
    void (*run)(void *object);
    void (*append)(void *object);
} worker_config;

/* Reads `ROWS-FILE OUT-FOLDER CONTEXT QUERIES THREADS NAME...`; make() is called once per name and exits on failure. Then
 * answers requests until the input ends. */
int worker_main(int argc, char **argv,
                worker_config (*make)(const char *name, const worker_rows *rows, uint32_t n_threads));
/* Zeroed memory on huge pages, as far as the system has them. */
void *worker_huge(size_t bytes);
void worker_fail(const char *what, const char *detail);

#endif
