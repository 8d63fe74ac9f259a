/* SPDX-License-Identifier: MIT */
/* Slots and their owners: rows of one are never reused for another, whatever ends in between. */
#define _POSIX_C_SOURCE 200809L
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "serve/slots.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <time.h>

enum { N = 512, ANN = 1, BOB = 2 };
static uint32_t prompt[N];

static slot_lease take(slots *s, uint32_t owner)
{
    slot_lease lease;
    assert_true(slots_take(s, owner, prompt, N, NULL, NULL, &lease));
    return lease;
}

static void test_owners(void **state)
{
    slots *s = slots_create(1);
    (void)state;
    slots_reset(s, 1);
    slot_lease a = take(s, ANN);
    assert_false(a.is_own); /* a request to the server before this one may have filled it */
    slots_give(s, &a, prompt, N, 0);
    a = take(s, ANN);
    assert_true(a.is_own && a.n_same == N);
    slots_give_unknown(s, &a); /* the client left: all that is in it is still hers */
    a = take(s, ANN);
    assert_true(a.is_own && !a.n_same);
    slots_give(s, &a, prompt, N, 0);
    slot_lease b = take(s, BOB);
    assert_false(b.is_own);
    assert_int_equal(b.n_same, 0);
    slots_give_unknown(s, &b); /* it may never have reached the server */
    b = take(s, BOB);
    assert_false(b.is_own);
    slots_give(s, &b, prompt, N, 0); /* answered, all computed */
    b = take(s, BOB);
    assert_true(b.is_own && b.n_same == N);
    slots_give(s, &b, prompt, N, 0);
    slot_lease c = take(s, SLOT_NOBODY);
    assert_false(c.is_own);
    slots_give_unknown(s, &c);
    c = take(s, SLOT_NOBODY);
    assert_false(c.is_own); /* not even what it has computed itself */
    slots_give_unknown(s, &c);
    assert_false(take(s, BOB).is_own);
    slots_destroy(s);
}

static void test_own_slot_is_chosen(void **state)
{
    slots *s = slots_create(2);
    (void)state;
    slots_reset(s, 1);
    slot_lease a = take(s, ANN), b = take(s, BOB);
    slots_give(s, &a, prompt, N, 0);
    slots_give(s, &b, prompt, N, 0);
    assert_int_equal(slots_look_up(s, ANN, prompt, N), N);
    assert_int_equal(slots_look_up(s, 3, prompt, N), 0);
    slot_lease again = take(s, BOB);
    assert_int_equal(again.slot, b.slot);
    slots_exchange(s, &again); /* for a prompt that will be restored */
    assert_int_equal(again.slot, a.slot);
    assert_false(again.is_own);
    slots_give_unknown(s, &again);
    assert_int_equal(slots_look_up(s, ANN, prompt, N), 0);
    slots_destroy(s);
}

static void test_restarted(void **state)
{
    slots *s = slots_create(1);
    (void)state;
    slots_reset(s, 1);
    slot_lease old = take(s, ANN);
    assert_true(slots_is_valid(s, &old) && slots_are_undisturbed(s, &old));
    slots_reset(s, 0); /* it is down */
    assert_false(slots_is_valid(s, &old));
    slots_reset(s, 2);
    slot_lease b = take(s, BOB);
    slots_give(s, &old, prompt, N, 0); /* of the server before */
    assert_true(slots_is_valid(s, &b));
    assert_int_equal(slots_busy(s), 1);
    slots_begin_unwatched(s);
    assert_false(slots_are_undisturbed(s, &b));
    slots_end_unwatched(s);
    assert_false(slots_are_undisturbed(s, &b));
    slots_give(s, &b, prompt, N, 0);
    slots_destroy(s);
}

static void *take_all(void *ctx)
{
    slot_lease lease;
    slots *s = (slots *)ctx;
    assert_true(slots_take_all(s, NULL, NULL, &lease));
    assert_int_equal(slots_busy(s), 3);
    slots_give_all(s, &lease);
    return NULL;
}

static void test_all(void **state)
{
    slots *s = slots_create(3);
    pthread_t thread;
    struct timespec t = {0, 50000000};
    (void)state;
    slots_reset(s, 1);
    slot_lease a = take(s, ANN);
    assert_int_equal(pthread_create(&thread, NULL, take_all, s), 0);
    nanosleep(&t, NULL);
    assert_int_equal(slots_busy(s), 1); /* it waits */
    slots_give(s, &a, prompt, N, 0);
    slot_lease b = take(s, ANN); /* after it, or before: it comes to an end */
    slots_give(s, &b, prompt, N, 0);
    pthread_join(thread, NULL);
    assert_int_equal(slots_busy(s), 0);
    slots_destroy(s);
}

static void *give_later(void *ctx)
{
    slots *s = (slots *)ctx;
    struct timespec t = {0, 50000000};
    slot_lease a = take(s, ANN);
    for (int i = 0; i < 3; i++) {
        nanosleep(&t, NULL);
        slots_give(s, &a, prompt, N, 0);
        a = take(s, ANN); /* at once: there is no idle moment */
    }
    slots_give(s, &a, prompt, N, 0);
    return NULL;
}

static void test_saved_under_load(void **state)
{
    slots *s = slots_create(1);
    pthread_t thread;
    slot_lease lease;
    uint32_t n, n_stored;
    (void)state;
    slots_reset(s, 1);
    assert_null(slots_take_unsaved(s, 64, 0, &lease, &n, &n_stored));
    assert_int_equal(pthread_create(&thread, NULL, give_later, s), 0);
    uint32_t *tokens = slots_take_unsaved(s, 64, 5000, &lease, &n, &n_stored);
    assert_non_null(tokens);
    assert_int_equal(n, N);
    assert_int_equal(n_stored, 0);
    slots_give_stored(s, &lease, tokens, n, n);
    free(tokens);
    pthread_join(thread, NULL);
    assert_null(slots_take_unsaved(s, 64, 0, &lease, &n, &n_stored)); /* it has not grown */
    slots_destroy(s);
}

static void test_unsaved(void **state)
{
    slots *s = slots_create(1);
    uint32_t n, n_stored, owner, other[] = {7};
    (void)state;
    slots_reset(s, 1);
    slot_lease a = take(s, ANN);
    slots_give(s, &a, prompt, N, 0);
    a = take(s, ANN); /* goes on with it: nothing is lost */
    assert_null(slots_unsaved(s, &a, 64, &n, &n_stored, &owner));
    slots_give(s, &a, prompt, N, 0);
    slot_lease b;
    assert_true(slots_take(s, BOB, other, 1, NULL, NULL, &b));
    uint32_t *tokens = slots_unsaved(s, &b, 64, &n, &n_stored, &owner);
    assert_non_null(tokens);
    assert_int_equal(n, N);
    assert_int_equal(owner, ANN);
    slots_hold(s, &b, tokens, n, n);
    free(tokens);
    assert_null(slots_unsaved(s, &b, 64, &n, &n_stored, &owner));
    slots_give_unknown(s, &b);
    assert_false(take(s, BOB).is_own);
    slots_destroy(s);
}

typedef struct comer {
    slots *s;
    pthread_t thread;
    sem_t waits;
    int place;
} comer;

static int n_served;

/* Asked only of those who stand in the queue. */
static bool note_waiting(void *ctx)
{
    sem_post((sem_t *)ctx);
    return false;
}

static void *come(void *ctx)
{
    comer *c = (comer *)ctx;
    struct timespec t = {0, 5000000};
    slot_lease lease;
    assert_true(slots_take(c->s, ANN, prompt, N, note_waiting, &c->waits, &lease));
    c->place = n_served++; /* one slot: nobody else is here */
    nanosleep(&t, NULL);
    slots_give(c->s, &lease, prompt, N, 0);
    return NULL;
}

/* Nobody is overtaken. */
static void test_order(void **state)
{
    slots *s = slots_create(1);
    comer all[8];
    (void)state;
    slots_reset(s, 1);
    slot_lease first = take(s, ANN);
    for (int i = 0; i < 8; i++) {
        all[i] = (comer){.s = s};
        assert_int_equal(sem_init(&all[i].waits, 0, 0), 0);
        assert_int_equal(pthread_create(&all[i].thread, NULL, come, &all[i]), 0);
        assert_int_equal(sem_wait(&all[i].waits), 0); /* not before it waits: the next one comes after it */
    }
    slots_give(s, &first, prompt, N, 0);
    for (int i = 0; i < 8; i++) pthread_join(all[i].thread, NULL);
    for (int i = 1; i < 8; i++) assert_true(all[i].place > all[i - 1].place);
    for (int i = 0; i < 8; i++) sem_destroy(&all[i].waits);
    slots_destroy(s);
}

/* Slots of states go on from their ends alone. */
static void test_whole(void **state)
{
    slots *s = slots_create(1);
    slot_lease lease;
    (void)state;
    slots_reset(s, 1);
    lease = take(s, ANN);
    slots_give(s, &lease, prompt, N - 64, 8);
    lease = take(s, ANN);
    assert_int_equal(lease.n_same, N - 56);
    assert_true(lease.is_whole);
    slots_give(s, &lease, prompt, N, 8); /* it holds more than the next prompt has */
    lease = take(s, ANN);
    assert_int_equal(lease.n_same, N);
    assert_false(lease.is_whole);
    slots_give(s, &lease, prompt, N, 0);
    lease = take(s, BOB);
    assert_int_equal(lease.n_same, 0);
    assert_false(lease.is_whole);
    slots_destroy(s);
}

static bool have_waited(void *ctx)
{
    return ++*(int *)ctx > 20; /* a second */
}

/* One that waits for a slot that is being saved does not keep others from slots that are free. */
static void test_saved_slot_is_awaited(void **state)
{
    slots *s = slots_create(2);
    comer first = {.s = s};
    slot_lease lease, saving, other;
    uint32_t n, n_stored, different[] = {7};
    int n_asked = 0;
    (void)state;
    slots_reset(s, 1);
    lease = take(s, ANN);
    slots_give(s, &lease, prompt, N, 0);
    uint32_t *tokens = slots_take_unsaved(s, 64, 0, &saving, &n, &n_stored);
    assert_non_null(tokens);
    assert_int_equal(sem_init(&first.waits, 0, 0), 0);
    assert_int_equal(pthread_create(&first.thread, NULL, come, &first), 0);
    assert_int_equal(sem_wait(&first.waits), 0);
    assert_true(slots_take(s, BOB, different, 1, have_waited, &n_asked, &other));
    assert_int_not_equal(other.slot, saving.slot);
    slots_give_stored(s, &saving, tokens, n, n);
    pthread_join(first.thread, NULL);
    lease = take(s, ANN);
    assert_int_equal(lease.slot, saving.slot);
    assert_int_equal(lease.n_same, N); /* it was there until the end */
    free(tokens);
    sem_destroy(&first.waits);
    slots_destroy(s);
}

/* The server may not have seen that a client left: its request may begin in the slot when that is another's. */
static void test_left(void **state)
{
    slots *s = slots_create(1);
    struct timespec t = {2, 100000000};
    (void)state;
    slots_reset(s, 1);
    slot_lease a = take(s, ANN);
    assert_false(a.is_after_left);
    slots_note_left(s, &a);
    slots_give_unknown(s, &a);
    a = take(s, ANN);
    assert_true(a.is_after_left);
    slots_give(s, &a, prompt, N, 0);
    nanosleep(&t, NULL);
    assert_false(take(s, ANN).is_after_left);
    slots_destroy(s);
}

int main(void)
{
    for (uint32_t i = 0; i < N; i++) prompt[i] = i + 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_owners),
        cmocka_unit_test(test_own_slot_is_chosen),
        cmocka_unit_test(test_restarted),
        cmocka_unit_test(test_all),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_unsaved),
        cmocka_unit_test(test_saved_under_load),
        cmocka_unit_test(test_whole),
        cmocka_unit_test(test_saved_slot_is_awaited),
        cmocka_unit_test(test_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
