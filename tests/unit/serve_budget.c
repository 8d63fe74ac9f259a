/* SPDX-License-Identifier: MIT */
/* Memory for slot files: what may be taken at a time, and what the limits of control groups leave of it. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/system.h"
#include "serve/budget.h"
#include "serve/clock.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const budget_wait forever = {.ms = 60000};

static bool stop(void *ctx)
{
    return ++*(int *)ctx >= 2;
}

static void test_limit(void **state)
{
    int n_asked = 0;
    (void)state;
    budget *b = budget_create(1000);
    assert_non_null(b);
    assert_true(budget_take(b, 600, NULL));
    assert_false(budget_take(b, 401, NULL));
    assert_true(budget_take(b, 400, NULL));
    assert_true(budget_take(b, 0, NULL));
    double begin = clock_ms();
    assert_false(budget_take(b, 1, &(budget_wait){.ms = 250}));
    assert_true(clock_ms() - begin >= 250);
    begin = clock_ms();
    assert_false(budget_take(b, 1001, &forever)); /* it would never fit */
    assert_false(budget_take(b, SIZE_MAX, &forever));
    assert_true(clock_ms() - begin < 30000);
    begin = clock_ms();
    assert_false(budget_take(b, 1, &(budget_wait){.ms = 60000, .is_over = stop, .ctx = &n_asked}));
    assert_int_equal(n_asked, 2);
    assert_true(clock_ms() - begin < 30000);
    budget_add(b, 300); /* more than the limit */
    assert_false(budget_take(b, 1, NULL));
    assert_true(budget_take(b, 0, NULL));
    budget_give(b, 700);
    budget_give(b, 600);
    assert_true(budget_take(b, 1000, NULL));
    budget_give(b, 1000);
    budget_destroy(b);
    budget_destroy(NULL);
}

static void *take_all(void *ctx)
{
    budget *b = (budget *)ctx;
    for (int i = 0; i < 200; i++) {
        if (!budget_take(b, 700, &forever)) return b;
        budget_give(b, 700);
    }
    return NULL;
}

static void test_waiting(void **state)
{
    pthread_t threads[4];
    void *failed;
    (void)state;
    budget *b = budget_create(1000);
    assert_non_null(b);
    assert_true(budget_take(b, 500, NULL));
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, take_all, b), 0);
    budget_give(b, 500);
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    assert_true(budget_take(b, 1000, NULL));
    budget_destroy(b);
}

/* Without a limit of its own it is what the system has free, and what was taken counts before it is used. */
static void test_free_memory(void **state)
{
    (void)state;
    uint64_t bytes = system_free_bytes(), all = system_memory_bytes(), taken = 0;
    budget *b = budget_create(0);
    assert_non_null(b);
    assert_true(bytes > 0 && bytes <= all);
    assert_true(system_spare_bytes() > 0 && system_spare_bytes() <= all);
    assert_false(budget_take(b, (size_t)all, NULL));
    size_t part = (size_t)system_spare_bytes() / 16;
    for (int i = 0; i < 64 && budget_take(b, part, NULL); i++) taken += part;
    assert_true(taken >= part && taken / 4 * 3 <= all / 4 * 3);
    assert_true(taken <=
                13 * (uint64_t)part); /* three quarters are 12; others may have given back meanwhile */
    budget_give(b, (size_t)taken);
    budget_destroy(b);
}

static char root[] = "/tmp/quire-budget.XXXXXX";

static void put(const char *group, const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s%s", root, group);
    (void)mkdir(path, 0700);
    snprintf(path, sizeof path, "%s%s/%s", root, group, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void test_groups(void **state)
{
    (void)state;
#ifdef __linux__
    static const char deep[] = "11:cpu:/x\n0::/a/b\n";
    char command[64];
    assert_non_null(mkdtemp(root));
    assert_true(system_group_bytes("0::/\n", root, false) == UINT64_MAX);
    put("/a", "memory.max", "1000\n");
    put("/a/b", "memory.max", "max\n");
    assert_true(system_group_bytes(deep, root, false) == UINT64_MAX); /* what is used is not known */
    put("/a", "memory.current", "900\n");
    put("/a/b", "memory.current", "900\n");
    assert_int_equal(system_group_bytes(deep, root, false), 100);
    put("/a", "memory.stat", "anon 500\ninactive_file_x 7\ninactive_file 300\n");
    assert_int_equal(system_group_bytes(deep, root, false), 400);
    put("/a", "memory.stat", "inactive_file 300\nactive_file 50\nfile_mapped 120\n");
    assert_int_equal(system_group_bytes(deep, root, false), 450);
    assert_int_equal(system_group_bytes(deep, root, true), 330);
    put("/a", "memory.high", "950\n");
    assert_int_equal(system_group_bytes(deep, root, false), 400);
    put("/a", "memory.high", "max\n");
    put("/a", "memory.stat", "inactive_file 300\n");
    put("/a/b", "memory.max", "1100\n");
    assert_int_equal(system_group_bytes(deep, root, false), 200);
    put("/a/b", "memory.max", "10\n");
    assert_int_equal(system_group_bytes(deep, root, false), 1); /* more is used than the limit allows */
    assert_int_equal(system_group_bytes("0::/a", root, false), 400);
    assert_true(system_group_bytes("4:memory:/a\n", root, false) == UINT64_MAX);
    assert_true(system_group_bytes("0::", root, false) == UINT64_MAX);
    assert_true(system_group_bytes("", root, false) == UINT64_MAX);
    put("", "memory.max", "50\n"); /* the root of a container is such a group */
    put("", "memory.current", "20\n");
    assert_int_equal(system_group_bytes("0::/\n", root, false), 30);
    snprintf(command, sizeof command, "rm -r %s", root);
    assert_int_equal(system(command), 0);
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_limit), cmocka_unit_test(test_waiting),
                                       cmocka_unit_test(test_free_memory), cmocka_unit_test(test_groups)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
