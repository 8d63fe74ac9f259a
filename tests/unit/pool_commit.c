/* SPDX-License-Identifier: MIT */
/*
 * The address space that a pool reserves must not count as used memory until pages are taken. What counts is memory that
 * can be written, touched or not: for vm.overcommit_memory = 2, which a test cannot set without touching other programs,
 * and for RLIMIT_DATA, which it can set for itself.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/cache_kit.h"

#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* The allocators of sanitizers do not survive a limit. Without one, what counts is still measured. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LIMITED 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define LIMITED 0
#endif
#endif
#ifndef LIMITED
#define LIMITED 1
#endif

#define MIB ((size_t)1 << 20)
#define PAGE (2 * MIB)      /* of 64 tokens */
#define ROOM (200 * MIB)    /* that the limit leaves */
#define BUDGET (8192 * MIB) /* of the pool */

/* Memory of this process that the limit counts. */
static size_t data_bytes(void)
{
    char line[200];
    unsigned long long kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    KIT_REQUIRE(f);
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "VmData: %llu kB", &kib) == 1) break;
    fclose(f);
    return (size_t)kib * 1024;
}

static const quire_geometry geometry = {sizeof(quire_geometry), .n_layers = 8, .n_q_heads = 8,
                                        .n_kv_heads = 8,        .d_k = 128,    .d_v = 128};

static quire_status begin_and_abort(quire_pool *pool, quire_seq *seq, uint32_t n)
{
    quire_step *step = NULL;
    quire_status status = quire_step_begin(&step, pool, &seq, &n, 1);
    if (!status) quire_step_abort(step);
    return status;
}

/* The process may get `room` bytes more than it has. */
static void limit_to(size_t room)
{
    struct rlimit limit;
    KIT_REQUIRE(!getrlimit(RLIMIT_DATA, &limit));
    limit.rlim_cur = data_bytes() + room;
    if (LIMITED) KIT_REQUIRE(!setrlimit(RLIMIT_DATA, &limit));
}

/* In a process of its own. */
static void limited(void)
{
    limit_to(ROOM);
    size_t before = data_bytes();
    quire_plan *plan = kit_plan(&geometry, "f16", NULL), *small = kit_plan(&geometry, "r4", NULL);
    quire_pool *pool = kit_pool(plan, BUDGET, NULL);
    quire_seq *seq = kit_seq(pool, 0, 0, 0);
    KIT_REQUIRE(data_bytes() - before < 16 * MIB); /* nothing was taken */
    KIT_REQUIRE(!kit_append(pool, &geometry, seq, 40 * 64, 1));
    KIT_REQUIRE(data_bytes() - before < BUDGET / 4); /* pages, a chunk more, what the test itself needs */

    if (LIMITED) {
        /* More than the system gives: an error, and the pool is as it was. */
        uint64_t hash = kit_rows_hash(&geometry, seq);
        quire_pool_stats stats = {.size = sizeof stats};
        limit_to(ROOM);
        KIT_REQUIRE(quire_plan_page_bytes(plan, 0) == PAGE);
        KIT_REQUIRE(begin_and_abort(pool, seq, 2 * ROOM / PAGE * 64) == QUIRE_EFULL);
        quire_pool_stats_get(pool, &stats);
        KIT_REQUIRE(stats.n_pages == 40 && kit_rows_hash(&geometry, seq) == hash);
        /* What it does give can be had, beyond the last whole chunk too. */
        KIT_REQUIRE(!begin_and_abort(pool, seq, (ROOM - 16 * MIB) / PAGE * 64));

        /* There is room for a page to work on, not for the pages that a conversion makes: it fails before it begins. */
        limit_to(8 * MIB);
        KIT_REQUIRE(quire_seq_convert(seq, small, 0) == QUIRE_ENOMEM);
        limit_to(ROOM);
        KIT_REQUIRE(kit_rows_hash(&geometry, seq) == hash);
        KIT_REQUIRE(quire_plan_fingerprint(quire_seq_plan(seq)) == quire_plan_fingerprint(plan));
    }
    KIT_REQUIRE(!quire_seq_convert(seq, small, 0));
    KIT_REQUIRE(!kit_append(pool, &geometry, seq, 64, 1));
    quire_seq_destroy(seq);
    kit_pool_is_empty(pool);
    quire_pool_destroy(pool);
    quire_plan_destroy(plan);
    quire_plan_destroy(small);
}

static void reserved_is_not_used(void **state)
{
    (void)state;
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        limited();
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(reserved_is_not_used)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
