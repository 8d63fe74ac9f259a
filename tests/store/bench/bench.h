/* SPDX-License-Identifier: MIT */
/* bench: the store beside the bare things it is made of: the same bytes, the same threads, in the same rounds. */
#ifndef QUIRE_TESTS_STORE_BENCH_H
#define QUIRE_TESTS_STORE_BENCH_H

#include "store/kit/store_kit.h"

#define BENCH_MAX_PAGES 256u
extern uint32_t bench_pages; /* of 2.25 MiB each */
#define BENCH_ROUNDS 9u

typedef struct bench {
    uint32_t n_threads;
    size_t page_bytes;
    char *directory;
    uint8_t *source; /* bench_pages pages */
    double seconds[BENCH_ROUNDS];
} bench;

double bench_now(void);
/* Memory as a pool gives it: fresh, in small OS pages. */
uint8_t *bench_fresh(size_t bytes);
void bench_release(uint8_t *memory, size_t bytes);
/* Runs one(ctx, i) for all pages on n threads; seconds. */
double bench_spread(uint32_t n_threads, void (*one)(void *ctx, uint32_t i), void *ctx);

/* Each prepares once and gives a function that measures one round. */
typedef struct bench_way {
    const char *impl, *op, *cache, *note; /* cache: that of the operating system; NULL: not used */
    void *(*prepare)(const bench *b);
    double (*measure)(void *state); /* seconds for bench_pages pages */
    void (*end)(void *state);
} bench_way;

extern const bench_way bench_plain_ways[];
extern const bench_way bench_quire_ways[];
extern const size_t bench_n_plain, bench_n_quire;

#endif
