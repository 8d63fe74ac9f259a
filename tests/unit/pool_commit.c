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

#define MIB ((size_t)1 << 20)
#define ROOM (400 * MIB)    /* that the limit leaves */
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

static const quire_geometry geometry = {QUIRE_OPTIONS,   .n_layers = 8, .n_q_heads = 8,
                                        .n_kv_heads = 8, .d_k = 128,    .d_v = 128};

static quire_status begin_and_abort(quire_pool *pool, quire_seq *seq, uint32_t n)
{
    quire_step *step = NULL;
    quire_status status = quire_step_begin(&step, pool, &seq, &n, 1);
    if (!status) quire_step_abort(step);
    return status;
}

/* In a process of its own. */
static void limited(void)
{
    struct rlimit limit;
    KIT_REQUIRE(!getrlimit(RLIMIT_DATA, &limit));
    limit.rlim_cur = data_bytes() + ROOM;
    KIT_REQUIRE(!setrlimit(RLIMIT_DATA, &limit));
    size_t before = data_bytes();
    quire_plan *plan = kit_plan(&geometry, "f16", NULL), *small = kit_plan(&geometry, "r4", NULL);
    quire_pool *pool = kit_pool(plan, BUDGET, NULL);
    quire_seq *seq = kit_seq(pool, 0, 0, 0);
    KIT_REQUIRE(data_bytes() - before < 16 * MIB); /* nothing was taken */
    KIT_REQUIRE(!kit_append(pool, &geometry, seq, 64, 1));
    KIT_REQUIRE(data_bytes() - before < 100 * MIB); /* a chunk, not the budget */

    /* More than the system gives: an error, and the pool is as it was. */
    uint32_t page = (uint32_t)quire_plan_page_bytes(plan, 0);
    uint64_t hash = kit_rows_hash(&geometry, seq);
    quire_pool_stats stats;
    KIT_REQUIRE(begin_and_abort(pool, seq, (uint32_t)(2 * ROOM / page * 64)) == QUIRE_EFULL);
    quire_pool_stats_get(pool, &stats);
    KIT_REQUIRE(stats.n_pages == 1 && kit_rows_hash(&geometry, seq) == hash);
    /* What it does give can be had, beyond the last whole chunk too. */
    KIT_REQUIRE(!begin_and_abort(pool, seq, (uint32_t)((ROOM - 100 * MIB) / page * 64)));

    /* A conversion that finds no memory fails before it begins. */
    while (!kit_append(pool, &geometry, seq, 64, 1)) continue;
    hash = kit_rows_hash(&geometry, seq);
    KIT_REQUIRE(quire_seq_convert(seq, small, 0) == QUIRE_ENOMEM);
    KIT_REQUIRE(kit_rows_hash(&geometry, seq) == hash);
    KIT_REQUIRE(quire_seq_plan(seq) != small);
    KIT_REQUIRE(!quire_seq_trim(seq, 64));
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
