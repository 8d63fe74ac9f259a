/* SPDX-License-Identifier: MIT */
/* bench: prints one JSON object per way: quire_store_bench [THREADS [PAGES [DIRECTORY [IMPL [OP [CACHE]]]]]]. With IMPL and so on only the
 * ways that have it. scripts/bench-store runs it. */
#define _GNU_SOURCE
#include "store/bench/bench.h"
#include "support/random.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

uint32_t bench_pages = 48;

double bench_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

uint8_t *bench_fresh(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    KIT_REQUIRE(p != MAP_FAILED);
    (void)madvise(p, bytes, MADV_NOHUGEPAGE);
    return (uint8_t *)p;
}

void bench_release(uint8_t *memory, size_t bytes)
{
    munmap(memory, bytes);
}

typedef struct spread {
    void (*one)(void *ctx, uint32_t i);
    void *ctx;
    _Atomic uint32_t next;
} spread;

static void *work(void *arg)
{
    spread *s = (spread *)arg;
    for (uint32_t i; (i = s->next++) < bench_pages;) s->one(s->ctx, i);
    return NULL;
}

double bench_spread(uint32_t n_threads, void (*one)(void *ctx, uint32_t i), void *ctx)
{
    spread s = {.one = one, .ctx = ctx};
    pthread_t thread[16];
    double start = bench_now();
    for (uint32_t i = 1; i < n_threads; i++) KIT_REQUIRE(pthread_create(&thread[i], NULL, work, &s) == 0);
    (void)work(&s);
    for (uint32_t i = 1; i < n_threads; i++) pthread_join(thread[i], NULL);
    return bench_now() - start;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_row(const bench *b, const bench_way *w, double *seconds)
{
    double gb = (double)b->page_bytes * bench_pages / 1e9;
    qsort(seconds, BENCH_ROUNDS, sizeof *seconds, ascending);
    double median = seconds[BENCH_ROUNDS / 2];
    if (median <= 0) return; /* left out: no server here */
    printf(
        "{\"impl\":\"%s\",\"op\":\"%s\",\"cache\":\"%s\",\"threads\":%u,\"pages\":%u,\"page_bytes\":%zu,\"ms\":%.2f,\"median_ms\":%.2f,\"median_gb_s\":%.3f,"
        "\"runs\":%u,\"note\":\"%s\"}\n",
        w->impl, w->op, w->cache ? w->cache : "none", b->n_threads, bench_pages, b->page_bytes,
        1e3 * seconds[0], 1e3 * median, gb / median, BENCH_ROUNDS, w->note);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    enum { MAX_WAYS = 16 };
    bench b = {.n_threads = argc > 1 ? (uint32_t)atoi(argv[1]) : 1};
    const bench_way *ways[MAX_WAYS];
    void *state[MAX_WAYS];
    static double seconds[MAX_WAYS][BENCH_ROUNDS];
    quire_geometry g = {sizeof(quire_geometry), .n_layers = 32, .n_q_heads = 32,
                        .n_kv_heads = 8,        .d_k = 128,     .d_v = 128};
    quire_plan *plan = kit_plan(&g, "k4v4", NULL);
    KIT_REQUIRE(b.n_threads >= 1 && b.n_threads <= 8);
    b.page_bytes = quire_plan_page_bytes(plan, 0);
    quire_plan_destroy(plan);
    if (argc > 2) bench_pages = (uint32_t)atoi(argv[2]);
    KIT_REQUIRE(bench_pages >= 8 && bench_pages <= BENCH_MAX_PAGES);
    b.directory = kit_directory(argc > 3 ? argv[3] : NULL);
    b.source = (uint8_t *)malloc(b.page_bytes * bench_pages);
    rng r = {3};
    for (size_t i = 0; i < b.page_bytes * bench_pages; i += 8) {
        uint64_t bits = rng_bits(&r);
        memcpy(b.source + i, &bits, 8);
    }
    size_t n = 0;
    for (size_t i = 0; i < bench_n_plain + bench_n_quire; i++) {
        const bench_way *w = i < bench_n_plain ? &bench_plain_ways[i] : &bench_quire_ways[i - bench_n_plain];
        const char *is[3] = {w->impl, w->op, w->cache ? w->cache : "none"};
        bool is_wanted = true;
        for (int k = 0; k < 3 && k + 4 < argc; k++) is_wanted &= !strcmp(is[k], argv[k + 4]);
        if (is_wanted) ways[n++] = w;
    }
    for (size_t i = 0; i < n; i++) state[i] = ways[i]->prepare(&b);
    for (size_t i = 0; i < n; i++) (void)ways[i]->measure(state[i]); /* once for nothing */
    for (uint32_t round = 0; round < BENCH_ROUNDS; round++)
        for (size_t i = 0; i < n; i++) seconds[i][round] = ways[i]->measure(state[i]);
    for (size_t i = 0; i < n; i++) print_row(&b, ways[i], seconds[i]);
    for (size_t i = 0; i < n; i++) ways[i]->end(state[i]);
    free(b.source);
    kit_remove(b.directory);
    return 0;
}
