/* SPDX-License-Identifier: MIT */
/* The rule by which a gateway chooses a replica: balance, little movement, a bound on load. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "serve/choose.h"

#include <stdio.h>
#include <string.h>

enum { MOST = 100, KEYS = 20000 };

static void make(choose_entry *entries, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char name[48];
        snprintf(name, sizeof name, "10.0.0.%zu:8080", i); /* names that differ little */
        entries[i] = (choose_entry){choose_hash(CHOOSE_START, name, strlen(name)), 0, true};
    }
}

static void test_balance(void **state)
{
    static const size_t sizes[] = {1, 2, 3, 10, MOST};
    (void)state;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        choose_entry entries[MOST];
        size_t n = sizes[s], counts[MOST] = {0}, keys = n * 2000;
        make(entries, n);
        for (uint64_t key = 0; key < keys; key++) counts[choose_replica(key, entries, n)]++;
        for (size_t i = 0; i < n; i++)
            assert_in_range(counts[i], 1750, 2250); /* 2000, and 5 deviations of 45 */
    }
}

/* A replica that goes moves its own keys, evenly to the others; one that comes takes only what becomes its own. */
static void test_movement(void **state)
{
    choose_entry entries[10];
    size_t moved = 0, to[10] = {0};
    (void)state;
    make(entries, 10);
    for (uint64_t key = 0; key < KEYS; key++) {
        entries[3].may = true;
        size_t before = choose_replica(key, entries, 10);
        entries[3].may = false;
        size_t after = choose_replica(key, entries, 10);
        assert_true(after != 3 && (before == 3 || before == after));
        if (before != 3) continue;
        moved++;
        to[after]++;
    }
    assert_in_range(moved, KEYS / 10 - 250, KEYS / 10 + 250);
    for (size_t i = 0; i < 10; i++)
        if (i != 3) assert_in_range(to[i], moved / 9 - 90, moved / 9 + 90);
}

/* The order of the list does not matter, so that two gateways agree. */
static void test_order(void **state)
{
    choose_entry entries[7], turned[7];
    (void)state;
    make(entries, 7);
    for (size_t i = 0; i < 7; i++) turned[i] = entries[6 - i];
    for (uint64_t key = 0; key < 1000; key++)
        assert_int_equal(choose_replica(key, entries, 7), 6 - choose_replica(key, turned, 7));
}

/* One key for everybody: nobody gets more than 1.25 of the mean and 2, whatever ends when. */
static void test_bound(void **state)
{
    static const size_t sizes[] = {2, 3, 10, MOST};
    uint64_t seed = 1;
    (void)state;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        choose_entry entries[MOST];
        size_t n = sizes[s], total = 0, first = 0, favourite;
        make(entries, n);
        favourite = choose_replica(42, entries, n);
        for (size_t step = 0; step < 50 * n; step++) {
            size_t i = choose_replica(42, entries, n);
            assert_true(i < n);
            assert_true(4 * n * entries[i].load < 5 * total + 4 * n);
            assert_true(i == favourite || n * entries[i].load < total);
            entries[i].load++;
            total++;
            first += i == favourite;
            seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
            size_t ends = seed >> 33;
            if (total > 4 * n && entries[ends % n].load) {
                entries[ends % n].load--;
                total--;
            }
        }
        for (size_t i = 0; i < n; i++) assert_true(4 * n * entries[i].load <= 5 * total + 8 * n + 5);
        assert_true(first >= 40); /* about its share of 50 */
    }
}

/* With few requests a key stays where it is: one more than the others have is no overload. */
static void test_stays(void **state)
{
    choose_entry entries[3];
    (void)state;
    make(entries, 3);
    for (uint64_t key = 0; key < 100; key++) {
        size_t home = choose_replica(key, entries, 3);
        entries[home].load = 1;
        assert_int_equal(choose_replica(key, entries, 3), home);
        entries[home].load = 2; /* the mean is 2/3 */
        size_t second = choose_replica(key, entries, 3);
        assert_true(second != home);
        assert_int_equal(choose_replica(key, entries, 3), second); /* the same each time */
        entries[home].load = 0;
    }
}

static void test_none(void **state)
{
    choose_entry entries[3];
    (void)state;
    make(entries, 3);
    assert_int_equal(choose_replica(1, entries, 0), 0);
    for (size_t i = 0; i < 3; i++) entries[i].may = false;
    assert_int_equal(choose_replica(1, entries, 3), 3);
    entries[1] = (choose_entry){.load = UINT32_MAX, .may = true};
    assert_int_equal(choose_replica(1, entries, 3), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_balance), cmocka_unit_test(test_movement), cmocka_unit_test(test_order),
        cmocka_unit_test(test_bound),   cmocka_unit_test(test_stays),    cmocka_unit_test(test_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
