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

static void test_limit(void **state)
{
    (void)state;
    budget *b = budget_create(1000);
    assert_non_null(b);
    assert_true(budget_take(b, 600, 0));
    assert_false(budget_take(b, 401, 0));
    assert_true(budget_take(b, 400, 0));
    assert_true(budget_take(b, 0, 0));
    double begin = clock_ms();
    assert_false(budget_take(b, 1, 250));
    assert_true(clock_ms() - begin >= 250);
    begin = clock_ms();
    assert_false(budget_take(b, 1001, 60000)); /* it would never fit */
    assert_false(budget_take(b, SIZE_MAX, 60000));
    assert_true(clock_ms() - begin < 30000);
    budget_give(b, 400);
    budget_give(b, 600);
    assert_true(budget_take(b, 1000, 0));
    budget_give(b, 1000);
    budget_destroy(b);
    budget_destroy(NULL);
}

static void *take_all(void *ctx)
{
    budget *b = (budget *)ctx;
    for (int i = 0; i < 200; i++) {
        if (!budget_take(b, 700, 60000)) return b;
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
    assert_true(budget_take(b, 500, 0));
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, take_all, b), 0);
    budget_give(b, 500);
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    assert_true(budget_take(b, 1000, 0));
    budget_destroy(b);
}

/* Without a limit of its own it is what the system has free. */
static void test_free_memory(void **state)
{
    (void)state;
    uint64_t bytes = system_free_bytes(), all = system_memory_bytes();
    budget *b = budget_create(0);
    assert_non_null(b);
    assert_true(bytes > 0 && bytes <= all);
    assert_true(budget_take(b, 1 << 20, 0));
    assert_false(budget_take(b, (size_t)all, 0));
    budget_give(b, 1 << 20);
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
    assert_true(system_group_bytes("0::/\n", root) == UINT64_MAX);
    put("/a", "memory.max", "1000\n");
    put("/a/b", "memory.max", "max\n");
    assert_true(system_group_bytes(deep, root) == UINT64_MAX); /* what is used is not known */
    put("/a", "memory.current", "900\n");
    put("/a/b", "memory.current", "900\n");
    assert_int_equal(system_group_bytes(deep, root), 100);
    put("/a", "memory.stat", "anon 500\ninactive_file_x 7\ninactive_file 300\n");
    assert_int_equal(system_group_bytes(deep, root), 400);
    put("/a/b", "memory.max", "1100\n");
    assert_int_equal(system_group_bytes(deep, root), 200);
    put("/a/b", "memory.max", "10\n");
    assert_int_equal(system_group_bytes(deep, root), 1); /* more is used than the limit allows */
    assert_int_equal(system_group_bytes("0::/a", root), 400);
    assert_true(system_group_bytes("4:memory:/a\n", root) == UINT64_MAX);
    assert_true(system_group_bytes("0::", root) == UINT64_MAX);
    assert_true(system_group_bytes("", root) == UINT64_MAX);
    put("", "memory.max", "50\n"); /* the root of a container is such a group */
    put("", "memory.current", "20\n");
    assert_int_equal(system_group_bytes("0::/\n", root), 30);
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
