/* SPDX-License-Identifier: MIT */
/*
 * What operations cost with thousands of sequences and long page tables. Checked are calls of the allocator, bytes
 * asked for and memory touched, because these do not depend on how busy the machine is. The times are printed only.
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "quire/page.h"
#include "support/cache_kit.h"

#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define SEQS 4096u
#define TOKENS 32768u     /* per sequence */
#define LONG_PAGES 16384u /* of a million tokens */

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* ---------------------------------------------------- an allocator that counts */

#define LARGE ((size_t)1 << 20) /* blocks of this size come from mmap, so that touched pages can be counted */

typedef struct counter {
    uint64_t calls, bytes;
    size_t os_page, touched; /* bytes of large blocks that were resident when they were freed */
} counter;

static void *take(void *ctx, size_t bytes)
{
    counter *c = (counter *)ctx;
    void *ptr = NULL;
    c->calls++;
    c->bytes += bytes;
    if (bytes < LARGE) return posix_memalign(&ptr, 64, bytes) ? NULL : ptr;
    ptr = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (ptr == MAP_FAILED) return NULL;
    (void)madvise(ptr, bytes, MADV_NOHUGEPAGE);
    return ptr;
}

static void give(void *ctx, void *ptr, size_t bytes)
{
    counter *c = (counter *)ctx;
    if (bytes < LARGE) {
        free(ptr);
        return;
    }
    size_t n = (bytes + c->os_page - 1) / c->os_page;
    unsigned char *resident = malloc(n);
    assert_non_null(resident);
    assert_int_equal(mincore(ptr, bytes, resident), 0);
    for (size_t i = 0; i < n; i++) c->touched += (resident[i] & 1) * c->os_page;
    free(resident);
    munmap(ptr, bytes);
}

typedef struct world {
    counter count;
    quire_geometry geometry;
    quire_plan *plan;
    quire_pool *pool;
    quire_batch *batch;
} world;

static void open_world(world *w)
{
    memset(w, 0, sizeof *w);
    w->count.os_page = (size_t)sysconf(_SC_PAGESIZE);
    w->geometry = (quire_geometry){sizeof(quire_geometry), .n_layers = 1, .n_q_heads = 1,
                                   .n_kv_heads = 1,        .d_k = 16,     .d_v = 16};
    quire_allocator a = {.size = sizeof(quire_allocator), .ctx = &w->count, .alloc = take, .free = give};
    w->plan = kit_plan(&w->geometry, "r2", NULL);
    w->pool = kit_pool(w->plan, (size_t)1 << 30, &a);
}

static void close_world(world *w)
{
    quire_batch_destroy(w->batch);
    kit_pool_is_empty(w->pool);
    quire_pool_destroy(w->pool);
    quire_plan_destroy(w->plan);
}

/* SEQS sequences of TOKENS tokens that share their pages. */
static void fill_batch(world *w)
{
    quire_seq *seq = kit_seq(w->pool, 0, 0, 0);
    assert_int_equal(kit_append(w->pool, &w->geometry, seq, TOKENS, 1), QUIRE_OK);
    assert_int_equal(quire_batch_merge(&w->batch, w->pool, NULL, 0), QUIRE_OK);
    for (uint32_t i = 0; i < SEQS; i++) assert_int_equal(quire_batch_add(w->batch, seq), QUIRE_OK);
    quire_seq_destroy(seq);
}

/* ------------------------------------------------------------------- filter */

/* One of many leaves: the others stay the same objects, and nothing is allocated for each of them. */
static void filter_keeps(void **state)
{
    (void)state;
    world w;
    open_world(&w);
    fill_batch(&w);
    uint32_t index[SEQS], n;
    quire_seq *was[SEQS];
    memcpy(was, quire_batch_seqs(w.batch, &n), sizeof was);
    for (uint32_t i = 0; i + 1 < SEQS; i++) index[i] = i + 1;
    uint64_t calls = w.count.calls;
    double t = now_ms();
    assert_int_equal(quire_batch_filter(w.batch, index, SEQS - 1), QUIRE_OK);
    printf("filter, 1 of %u sequences leaves: %.2f ms\n", SEQS, now_ms() - t);
    assert_in_range(w.count.calls - calls, 0, 8);
    assert_memory_equal(quire_batch_seqs(w.batch, &n), was + 1, sizeof *was * (SEQS - 1));
    assert_int_equal(n, SEQS - 1);

    /* Only repeated indices are forks. */
    uint32_t few[] = {9, 5, 9, 9};
    memcpy(was, quire_batch_seqs(w.batch, &n), sizeof *was * n);
    t = now_ms();
    assert_int_equal(quire_batch_filter(w.batch, few, 4), QUIRE_OK);
    printf("filter, 2 of %u sequences stay: %.2f ms\n", SEQS - 1, now_ms() - t);
    quire_seq *const *is = quire_batch_seqs(w.batch, &n);
    assert_int_equal(n, 4);
    assert_ptr_equal(is[0], was[9]);
    assert_ptr_equal(is[1], was[5]);
    assert_ptr_not_equal(is[2], is[0]);
    assert_ptr_not_equal(is[3], is[2]);
    assert_true(kit_rows_hash(&w.geometry, is[3]) == kit_rows_hash(&w.geometry, is[0]));
    close_world(&w);
}

/* -------------------------------------------------------------------- adopt */

static quire_page *find(void *ctx, uint32_t group, uint32_t page_index)
{
    world *w = (world *)ctx;
    quire_page *page = NULL;
    assert_int_equal(quire_pool_take_page(&page, w->pool, w->plan, group, page_index), QUIRE_OK);
    memset(quire_page_mutable_bytes(page), 0, quire_plan_page_bytes(w->plan, group));
    return page;
}

/* Page after page: what one more page costs does not depend on the pages before. */
static void adopt_appends(void **state)
{
    (void)state;
    world w;
    open_world(&w);
    quire_seq *seq = kit_seq(w.pool, 0, 0, 0);
    assert_int_equal(quire_seq_adopt(seq, LONG_PAGES - 64, find, &w), QUIRE_OK);
    uint64_t bytes = w.count.bytes;
    double t = now_ms();
    for (uint32_t i = LONG_PAGES - 63; i <= LONG_PAGES; i++)
        assert_int_equal(quire_seq_adopt(seq, i, find, &w), QUIRE_OK);
    printf("adopt, one page more at a million tokens: %.4f ms\n", (now_ms() - t) / 64);
    /* The table may grow once, by half. */
    assert_in_range(w.count.bytes - bytes, 0, 2 * LONG_PAGES * sizeof(void *));
    assert_int_equal(quire_seq_length(seq), LONG_PAGES * 64);
    quire_seq_destroy(seq);
    close_world(&w);
}

/* --------------------------------------------------------------------- step */

/* The room for tiles is large; begin does not touch it. */
static void begin_touches_little(void **state)
{
    (void)state;
    world w;
    open_world(&w);
    fill_batch(&w);
    uint32_t tokens[SEQS], n;
    quire_seq *const *seqs = quire_batch_seqs(w.batch, &n);
    for (uint32_t i = 0; i < n; i++) tokens[i] = 1;
    quire_step *step;
    for (int round = 0; round < 2; round++) { /* in the first one tables grow */
        size_t touched = w.count.touched;
        double t = now_ms();
        assert_int_equal(quire_step_begin(&step, w.pool, seqs, tokens, n), QUIRE_OK);
        printf("step_begin, %u sequences of %u tokens: %.2f ms\n", n, TOKENS, now_ms() - t);
        quire_step_abort(step);
        assert_in_range(w.count.touched - touched, 0, (size_t)4 << 20);
    }
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(filter_keeps),
        cmocka_unit_test(adopt_appends),
        cmocka_unit_test(begin_touches_little),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
