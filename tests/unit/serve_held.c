/* SPDX-License-Identifier: MIT */
/* What a slot holds and what of it the store has: before it is used for another prompt, after a restore, after a save. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "serve/slots.h"

#include <stdlib.h>

enum { LONG = 1000 };

static void fill(uint32_t tokens[LONG], uint32_t salt)
{
    for (uint32_t i = 0; i < LONG; i++) tokens[i] = salt + i;
}

static slots *one_slot(void)
{
    slots *s = slots_create(1);
    assert_non_null(s);
    slots_reset(s, 1);
    return s;
}

static slot_lease take(slots *s, const uint32_t *tokens, uint32_t n)
{
    slot_lease lease;
    assert_true(slots_take(s, tokens, n, NULL, NULL, &lease));
    return lease;
}

static void test_lost(void **state)
{
    uint32_t a[LONG], b[LONG], n = 0;
    slots *s = one_slot();
    (void)state;
    fill(a, 0);
    fill(b, 5000);
    slot_lease lease = take(s, a, 300);
    assert_null(slots_unsaved(s, &lease, 128, &n)); /* it is empty */
    slots_give(s, &lease, a, 300, 10);

    lease = take(s, b, 300);
    assert_int_equal(lease.n_same, 0);
    uint32_t *held = slots_unsaved(s, &lease, 128, &n);
    assert_non_null(held);
    assert_int_equal(n, 300);
    assert_memory_equal(held, a, sizeof *a * 300);
    free(held);
    assert_non_null(held = slots_unsaved(s, &lease, 310, &n)); /* what was made after them counts */
    free(held);
    assert_null(slots_unsaved(s, &lease, 311, &n));
    slots_give(s, &lease, b, 300, 0);

    lease = take(s, b, 900); /* goes on with what is there */
    assert_int_equal(lease.n_same, 300);
    assert_null(slots_unsaved(s, &lease, 1, &n));
    slots_give_unknown(s, &lease);
    lease = take(s, a, 300);
    assert_null(slots_unsaved(s, &lease, 1, &n)); /* nothing is known of it */
    slots_destroy(s);
}

static void test_stored(void **state)
{
    uint32_t a[LONG], b[LONG], n = 0, *held;
    slots *s = one_slot();
    slot_lease lease, saving;
    (void)state;
    fill(a, 0);
    fill(b, 5000);
    lease = take(s, a, 300);
    slots_give(s, &lease, a, 300, 0);
    assert_non_null(held = slots_take_unsaved(s, 64, &saving, &n));
    free(held);
    slots_give_stored(s, &saving, a, 300, 256);
    assert_null(slots_take_unsaved(s, 64, &saving, &n));
    lease = take(s, b, 300);
    assert_null(slots_unsaved(s, &lease, 64, &n));
    slots_destroy(s);
}

/* What came from the store is not saved again, until more has come to it. */
static void test_restored(void **state)
{
    uint32_t a[LONG], n = 0, *held;
    slots *s = one_slot();
    slot_lease lease = take(s, a, 0), saving;
    (void)state;
    fill(a, 0);
    slots_hold(s, &lease, a, 256, 256);
    slots_give(s, &lease, a, 300, 10);
    assert_null(slots_take_unsaved(s, 64, &saving, &n));
    lease = take(s, a, 400);
    slots_give(s, &lease, a, 400, 0);
    assert_non_null(held = slots_take_unsaved(s, 64, &saving, &n));
    assert_int_equal(n, 400);
    free(held);
    slots_give_stored(s, &saving, a, 400, 384);

    slots_reset(s, 2); /* leases of the server before are void */
    slots_hold(s, &saving, a, 400, 0);
    assert_null(slots_unsaved(s, &saving, 1, &n));
    assert_null(slots_take_unsaved(s, 1, &lease, &n));
    slots_destroy(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lost),
        cmocka_unit_test(test_stored),
        cmocka_unit_test(test_restored),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
