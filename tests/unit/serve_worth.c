/* SPDX-License-Identifier: MIT */
/* Whether a prefix is restored: from times of computing and restoring, before there are any, and after outliers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "serve/worth.h"

#include <math.h>

static void test_nothing_known(void **state)
{
    worth w;
    (void)state;
    worth_init(&w, 128);
    assert_false(worth_restoring(&w, 1, 64));
    assert_false(worth_restoring(&w, 2, 127));
    assert_true(worth_restoring(&w, 2, 128));
    worth_computed(&w, 1000, 1000); /* half is known */
    assert_false(worth_restoring(&w, 1, 64));
    assert_true(worth_restoring(&w, 2, 128));
    worth_destroy(&w);
}

/* 1 ms for a token, 20 ms and 2 ms a page for restoring: equal at 20.6 tokens and then some. */
static void test_line(void **state)
{
    worth w;
    (void)state;
    worth_init(&w, 128);
    for (uint32_t i = 1; i <= 20; i++) {
        worth_computed(&w, 100 * i, 100.0 * i);
        worth_restored(&w, i, 20 + 2.0 * i);
    }
    assert_true(worth_restoring(&w, 1, 64));
    assert_true(worth_restoring(&w, 1, 23));
    assert_false(worth_restoring(&w, 1, 21));
    assert_true(worth_restoring(&w, 60, 141));
    assert_false(worth_restoring(&w, 60, 130)); /* 60 pages are loaded for that */
    worth_destroy(&w);
}

static void test_one_size(void **state)
{
    worth w;
    (void)state;
    worth_init(&w, 128);
    worth_computed(&w, 500, 500);
    for (int i = 0; i < 10; i++) worth_restored(&w, 10, 100); /* nothing tells the fixed part */
    assert_true(worth_restoring(&w, 10, 101));
    assert_false(worth_restoring(&w, 10, 99));
    assert_false(worth_restoring(&w, 20, 190));
    worth_destroy(&w);
}

static void test_failed(void **state)
{
    worth w;
    (void)state;
    worth_init(&w, 128);
    worth_failed(&w, 10, 0.1); /* nothing is known to compare it with */
    worth_computed(&w, 500, 500);
    worth_failed(&w, 10, 0.1);
    assert_false(worth_restoring(&w, 2, 127)); /* still from 128 tokens on */
    for (int i = 0; i < 10; i++) worth_restored(&w, 10, 100);
    for (int i = 0; i < 100; i++) worth_failed(&w, 10, 0.1);
    assert_true(worth_restoring(&w, 10, 101));
    assert_false(worth_restoring(&w, 10, 99));
    for (int i = 0; i < 100; i++) worth_failed(&w, 10, 2000); /* a store that hangs */
    assert_false(worth_restoring(&w, 10, 1000));
    worth_destroy(&w);
    worth_init(&w, 128);
    worth_computed(&w, 500, 500);
    worth_failed(&w, 10, 2000); /* the first of all */
    assert_false(worth_restoring(&w, 10, 640));
    worth_destroy(&w);
}

/* Larger ones were faster, by chance: no size is thought to take less than no time. */
static void test_falling(void **state)
{
    worth w;
    (void)state;
    worth_init(&w, 128);
    worth_computed(&w, 500, 500);
    worth_restored(&w, 1, 100);
    worth_restored(&w, 10, 10);
    assert_false(worth_restoring(&w, 100, 30));
    assert_false(worth_restoring(&w, 1000, 30));
    assert_true(worth_restoring(&w, 1000, 64000));
    worth_destroy(&w);
}

static void test_slow_once(void **state)
{
    worth w;
    uint32_t refused = 0;
    (void)state;
    worth_init(&w, 128);
    worth_computed(&w, 1000, 1000);
    for (int i = 0; i < 20; i++) worth_restored(&w, 16, 50);
    assert_true(worth_restoring(&w, 16, 1024));
    worth_restored(&w, 16, 60000); /* a disk that hung */
    assert_true(worth_restoring(&w, 16, 1024));
    for (int i = 0; i < 30; i++) worth_restored(&w, 16, 60000); /* and then again and again */
    while (!worth_restoring(&w, 16, 1024) && refused < 1000) refused++;
    assert_in_range(refused, 20, 300); /* it is tried again, rarely */
    for (int i = 0; i < 60; i++) worth_restored(&w, 16, 50);
    assert_true(worth_restoring(&w, 16, 1024));
    worth_destroy(&w);
}

/* A machine that becomes slower is seen, even after a very long prompt. */
static void test_change(void **state)
{
    worth w;
    (void)state;
    worth_init(&w, 128);
    worth_computed(&w, 1000000, 100000);
    worth_restored(&w, 1, 50);
    assert_false(worth_restoring(&w, 1, 64));
    for (int i = 0; i < 40; i++) worth_computed(&w, 512, 5120);
    assert_true(worth_restoring(&w, 1, 64));
    worth_destroy(&w);
}

static void test_nonsense(void **state)
{
    worth w;
    (void)state;
    worth_init(&w, 128);
    worth_computed(&w, 0, 5);
    worth_computed(&w, 31, 1e6);
    worth_computed(&w, 100, 0);
    worth_computed(&w, 100, -1);
    worth_computed(&w, 100, NAN);
    worth_computed(&w, 100, INFINITY);
    worth_restored(&w, 0, 5);
    worth_restored(&w, 5, NAN);
    worth_restored(&w, 5, -INFINITY);
    assert_true(worth_restoring(&w, 2, 128));
    assert_false(worth_restoring(&w, 2, 64));
    worth_computed(&w, UINT32_MAX, 1);
    worth_restored(&w, UINT32_MAX, 1);
    assert_true(worth_restoring(&w, 0, UINT32_MAX));
    assert_false(worth_restoring(&w, UINT32_MAX, 0));
    worth_destroy(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_known), cmocka_unit_test(test_line),
        cmocka_unit_test(test_one_size),      cmocka_unit_test(test_failed),
        cmocka_unit_test(test_falling),       cmocka_unit_test(test_slow_once),
        cmocka_unit_test(test_change),        cmocka_unit_test(test_nonsense),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
