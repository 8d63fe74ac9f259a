/* SPDX-License-Identifier: MIT */
/*
 * Memory as the system sees it: what is resident follows the plan, token by token, and nothing else grows.
 *
 * Resident memory is read from smaps_rollup, which walks the page tables: exact, where the counters of statm lag behind by
 * up to 64 pages per core.
 */
#define _POSIX_C_SOURCE 200809L
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/cache_kit.h"

#include <string.h>

#define CHUNK 512u
#define HEADS 8u
#define D 128u
#define MIB ((int64_t)1 << 20)

/* Under a sanitizer memory is not what it is; the calls run all the same, on fewer tokens. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define MEASURED 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define MEASURED 0
#endif
#endif
#ifndef MEASURED
#define MEASURED 1
#endif
#define TOKENS (MEASURED ? 131072u : 4096u)

/*
 * What a step may add beyond its rows and a page: the step itself with its list of tiles (72 bytes per tile, 148 KB at
 * 131,072 tokens), the table of pages while it grows by half (old and new list, 40 KB), page descriptors (48 bytes per
 * page), parts of the C library used for the first time.
 */
#define NOISE (256 * 1024)

static int64_t resident(void)
{
    char line[256];
    long kib = -1;
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    if (file) {
        while (kib < 0 && fgets(line, sizeof line, file))
            if (sscanf(line, "Rss: %ld kB", &kib) != 1) kib = -1;
        fclose(file);
    }
    if (kib >= 0) return (int64_t)kib * 1024;
    long total, pages;
    file = fopen("/proc/self/statm", "r");
    KIT_REQUIRE(file && fscanf(file, "%ld %ld", &total, &pages) == 2);
    fclose(file);
    return (int64_t)pages * 4096;
}

static void at_most(const char *what, int64_t bytes, int64_t bound)
{
    if (MEASURED && bytes > bound)
        fail_msg("%s: %lld bytes, %lld allowed", what, (long long)bytes, (long long)bound);
}

/* The same 512 tokens again and again. */
static float k_block[CHUNK * HEADS * D], v_block[CHUNK * HEADS * D], q_block[CHUNK * HEADS * D],
    out_block[CHUNK * HEADS * D];

static int fill_blocks(void **state)
{
    (void)state;
    for (uint32_t t = 0; t < CHUNK; t++) {
        kit_row(1, 0, QUIRE_K, t, k_block + (size_t)t * HEADS * D, HEADS * D);
        kit_row(1, 0, QUIRE_V, t, v_block + (size_t)t * HEADS * D, HEADS * D);
        kit_row(2, 0, QUIRE_K, t, q_block + (size_t)t * HEADS * D, HEADS * D);
    }
    memset(out_block, 0x11, sizeof out_block); /* resident before anything is measured */
    return 0;
}

typedef struct cache {
    quire_geometry geometry;
    quire_plan *plan;
    quire_threads *threads;
    quire_pool *pool;
    quire_seq *seq;
} cache;

static cache open_cache(uint32_t n_layers, const uint32_t *windows, const char *policy, uint32_t n_threads,
                        const quire_seq_options *ring)
{
    cache c = {.geometry = {sizeof(quire_geometry), n_layers, .n_q_heads = HEADS, .n_kv_heads = HEADS,
                            .d_k = D, .d_v = D, .windows = windows}};
    quire_executor executor = {.size = sizeof(quire_executor)};
    if (n_threads > 1) {
        assert_int_equal(quire_threads_create(&c.threads, n_threads), QUIRE_OK);
        executor.size = sizeof executor;
        quire_threads_executor(c.threads, &executor);
    }
    c.plan = kit_plan(&c.geometry, policy, NULL);
    quire_pool_options options = {sizeof(quire_pool_options), .budget_bytes = (size_t)4 << 30,
                                  .executor = &executor};
    assert_int_equal(quire_pool_create(&c.pool, c.plan, &options), QUIRE_OK);
    assert_int_equal(quire_seq_create(&c.seq, c.pool, ring), QUIRE_OK);
    return c;
}

static void close_cache(cache *c)
{
    quire_seq_destroy(c->seq);
    kit_pool_is_empty(c->pool);
    quire_pool_destroy(c->pool);
    quire_plan_destroy(c->plan);
    quire_threads_destroy(c->threads);
}

static void append(const cache *c, uint32_t n, bool attend)
{
    quire_step *step = NULL;
    quire_seq *seq = c->seq;
    assert_int_equal(quire_step_begin(&step, c->pool, &seq, &n, 1), QUIRE_OK);
    for (uint32_t layer = 0; layer < c->geometry.n_layers; layer++) {
        assert_int_equal(quire_step_append(step, layer, k_block, v_block), QUIRE_OK);
        if (attend) assert_int_equal(quire_step_attend(step, layer, q_block, out_block), QUIRE_OK);
    }
    assert_int_equal(quire_step_commit(step), QUIRE_OK);
}

/* Append up to `length` in chunks. Returns the largest resident memory seen; no step adds more than it should. */
static int64_t append_to(const cache *c, uint32_t length, int64_t step_bound)
{
    int64_t peak = resident(), before = peak;
    while (quire_seq_length(c->seq) < length) {
        append(c, CHUNK, false);
        int64_t now = resident();
        at_most("growth of one step", now - before, step_bound);
        before = now;
        if (now > peak) peak = now;
    }
    return peak;
}

/* --------------------------------------------------------------------- tests */

static void long_sequence(uint32_t n_threads)
{
    cache c = {0};
    int64_t start = resident();
    c = open_cache(1, NULL, "k8v4", n_threads, NULL);
    int64_t page = (int64_t)quire_plan_page_bytes(c.plan, 0);
    int64_t per_token = (int64_t)quire_plan_bytes_per_token(c.plan);
    assert_int_equal(per_token, HEADS * (128 + 8 + 64 + 8)); /* codes, and a scale and a bias per 64 */
    at_most("memory before the first token", resident() - start, MIB);

    append(&c, 1, true); /* the first use of everything */
    int64_t step_bound = CHUNK * per_token + page + NOISE, base = resident();
    int64_t plan_bytes = (int64_t)kit_plan_bytes(c.plan, NULL, TOKENS, CHUNK);
    assert_int_equal(plan_bytes, TOKENS * per_token);
    int64_t peak = append_to(&c, TOKENS - CHUNK, step_bound);
    at_most("peak", peak - start, plan_bytes + plan_bytes / 50 + 16 * MIB);
    at_most("growth of all steps", peak - base, plan_bytes + NOISE);
    if (MEASURED) assert_true(peak - start > plan_bytes * 9 / 10); /* or nothing was measured */
    print_message("%u tokens: plan %lld bytes, resident %lld more\n", TOKENS, (long long)plan_bytes,
                  (long long)(peak - start - plan_bytes));

    /* No decoded prefix: attention needs its scratch, a few tiles and partial results per thread. */
    int64_t before = resident();
    append(&c, 1, true);
    at_most("attention over everything", resident() - before, 2 * MIB + page);

    /* What is given up is used again. */
    int64_t full = resident();
    for (int round = 0; round < 2; round++) {
        assert_int_equal(quire_seq_trim(c.seq, TOKENS / 2 - 100), QUIRE_OK);
        at_most("after trim", resident(), full + NOISE);
        peak = append_to(&c, TOKENS - CHUNK - 100, step_bound);
        at_most("trim and append again", peak, full + page + NOISE);
    }
    close_cache(&c);
    at_most("after everything", resident() - start, 2 * MIB);
}

static void one_thread(void **state)
{
    (void)state;
    long_sequence(1);
}

static void two_threads(void **state)
{
    (void)state;
    long_sequence(2);
}

static void ring(void **state)
{
    (void)state;
    quire_seq_options options = {sizeof(quire_seq_options), .max_tokens = 8192, .sinks = 4,
                                 .spare_tokens = 64};
    cache c = open_cache(1, NULL, "k8v4", 1, &options);
    append(&c, 1, true);
    int64_t page = (int64_t)quire_plan_page_bytes(c.plan, 0), base = resident();
    int64_t bytes = (int64_t)kit_plan_bytes(c.plan, &options, 40000, CHUNK);
    assert_true(bytes <=
                (8192 + 64 + CHUNK + 3 * 64) * (page / 64)); /* the ring, a step, pages not yet passed */
    int64_t peak = append_to(&c, MEASURED ? 40000 : 12000, CHUNK * (page / 64) + page + NOISE);
    at_most("a ring of 8,192 tokens", peak - base, bytes + NOISE);
    quire_pool_stats stats = {.size = sizeof stats};
    quire_pool_stats_get(c.pool, &stats);
    assert_true((int64_t)stats.peak_bytes <= bytes);
    close_cache(&c);
}

/* Of four layers one sees everything; the others hold their window and a step. */
static void window_layers(void **state)
{
    (void)state;
    static const uint32_t windows[] = {1024, 1024, 0, 1024};
    uint32_t length = MEASURED ? 32768 : 4096;
    cache c = open_cache(4, windows, "k8v4", 1, NULL);
    append(&c, 1, true);
    int64_t base = resident(), full = (int64_t)quire_plan_bytes_per_token(c.plan);
    assert_int_equal(full, HEADS * 208);
    int64_t float_row = HEADS * 2 * D * 2, windowed = (1024 + CHUNK + 2 * 64) * 3 * float_row;
    int64_t step_bound = CHUNK * (full + 3 * float_row) + 64 * (full + 3 * float_row) + NOISE;
    int64_t peak = append_to(&c, length, step_bound);
    at_most("window layers", peak - base, length * full + windowed + NOISE);
    close_cache(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_thread),
        cmocka_unit_test(two_threads),
        cmocka_unit_test(ring),
        cmocka_unit_test(window_layers),
    };
    return cmocka_run_group_tests(tests, fill_blocks, NULL);
}
