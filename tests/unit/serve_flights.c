/* SPDX-License-Identifier: MIT */
/* Prompts that are computed once for several requests: who leads, who waits and for how long, and what happens when a leader fails. */
#define _POSIX_C_SOURCE 200809L
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "serve/clock.h"
#include "serve/flights.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { N = 2048 };
/* What nobody waits for is there at once, which on a busy machine can be seconds; to wait would be 20 seconds and more. */
enum { AT_ONCE_MS = 10000 };
static uint32_t prompt[N];
static _Atomic int n_removed;

static void on_remove(void *ctx, const char *name)
{
    (void)ctx;
    assert_string_equal(name, "copy");
    atomic_fetch_add(&n_removed, 1);
}

static void pause_ms(long ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

typedef struct guest {
    flights *all;
    flight_request r;
    pthread_t thread;
    flight_part part;
    flight *met;
    uint32_t n_shared;
    double ms;
    _Atomic bool has_entered; /* what was written before can be read */
} guest;

static void *enter(void *ctx)
{
    guest *g = (guest *)ctx;
    double begin = clock_ms();
    g->part = flights_enter(g->all, &g->r, &g->met, &g->n_shared);
    g->ms = clock_ms() - begin;
    g->has_entered = true;
    return NULL;
}

static guest of(flights *all, uint32_t owner, double ms_per_token)
{
    return (guest){.all = all, .r = {.owner = owner, .tokens = prompt, .n = N, .ms_per_token = ms_per_token}};
}

static void start(guest *g)
{
    assert_int_equal(pthread_create(&g->thread, NULL, enter, g), 0);
}

static void join(guest *g)
{
    pthread_join(g->thread, NULL);
}

static void test_copy(void **state)
{
    flights *all = flights_create(on_remove, NULL);
    guest leader = of(all, 1, 10), guests[3], late = of(all, 1, 10);
    uint32_t n_shared;
    (void)state;
    n_removed = 0;
    enter(&leader);
    assert_int_equal(leader.part, FLIGHT_LEADS);
    assert_int_equal(flight_company(leader.met, &n_shared), 0);
    for (int i = 0; i < 3; i++) {
        guests[i] = of(all, 1, 10);
        guests[i].r.n = 1984 + (uint32_t)i;
        start(&guests[i]);
    }
    while (flight_company(leader.met, &n_shared) < 3) pause_ms(1);
    assert_int_equal(n_shared, 1986);
    flight_give(leader.met, "copy", 1920);
    for (int i = 0; i < 3; i++) {
        join(&guests[i]);
        assert_int_equal(guests[i].part, FLIGHT_JOINS);
        assert_int_equal(guests[i].n_shared, 1920);
        assert_string_equal(flight_copy(guests[i].met), "copy");
    }
    enter(&late); /* while the leader makes its answer */
    assert_int_equal(late.part, FLIGHT_JOINS);
    flight_end(leader.met);
    for (int i = 0; i < 3; i++) flight_leave(guests[i].met);
    assert_int_equal(n_removed, 0);
    flight_leave(late.met);
    assert_int_equal(n_removed, 1);
    flights_destroy(all);
}

/* Requests of others are no company, and a copy that nobody waits for is not kept for the time of the leader's answer. */
static void test_company(void **state)
{
    flights *all = flights_create(on_remove, NULL);
    guest leader = of(all, 1, 10), late = of(all, 1, 10);
    flight_near other = {.owner = 2}, own = {.owner = 1};
    uint32_t n_shared;
    (void)state;
    n_removed = 0;
    enter(&leader);
    flights_approach(all, &other);
    assert_int_equal(flight_company(leader.met, &n_shared), 0);
    flights_approach(all, &own);
    assert_int_equal(flight_company(leader.met, &n_shared), 1);
    flights_pass(all, &own);
    flight_give(leader.met, "copy", N);
    assert_int_equal(n_removed, 1);
    enter(&late); /* nothing to wait for */
    assert_int_equal(late.part, FLIGHT_LEADS);
    flights_pass(all, &other);
    flight_end(leader.met);
    flight_end(late.met);
    assert_int_equal(n_removed, 1);
    flights_destroy(all);
}

static void test_apart(void **state)
{
    flights *all = flights_create(on_remove, NULL);
    guest leader = of(all, 1, 10), other = of(all, 2, 10), nobody = of(all, 0, 10), small = of(all, 1, 10);
    (void)state;
    enter(&leader);
    enter(&other); /* the same tokens of another tenant */
    assert_int_equal(other.part, FLIGHT_LEADS);
    assert_true(other.ms < AT_ONCE_MS);
    guest brief =
        of(all, 1, 10); /* the leader computes three times as much: this one is sooner ready by itself */
    brief.r.n = 700;
    enter(&brief);
    assert_int_equal(brief.part, FLIGHT_LEADS);
    assert_true(brief.ms < AT_ONCE_MS);
    flight_end(brief.met);
    enter(&nobody);
    assert_int_equal(nobody.part, FLIGHT_ALONE);
    small.r.n_have = N - 100; /* what is missing is computed sooner than copied */
    enter(&small);
    assert_int_equal(small.part, FLIGHT_ALONE);
    flight_end(leader.met);
    flight_end(other.met);
    flights_destroy(all);
}

/* The next one leads; the others wait for that one. */
static void test_leader_fails(void **state)
{
    flights *all = flights_create(on_remove, NULL);
    guest leader = of(all, 1, 10), a = of(all, 1, 10), b = of(all, 1, 10);
    uint32_t n_shared;
    (void)state;
    n_removed = 0;
    enter(&leader);
    start(&a);
    start(&b);
    while (flight_company(leader.met, &n_shared) < 2) pause_ms(1);
    flight_end(leader.met);
    while (!a.has_entered && !b.has_entered) pause_ms(1);
    guest *second = a.has_entered ? &a : &b, *third = second == &a ? &b : &a;
    join(second);
    assert_int_equal(second->part, FLIGHT_LEADS);
    flight_give(second->met, "copy", N);
    join(third);
    assert_int_equal(third->part, FLIGHT_JOINS);
    flight_end(second->met);
    flight_leave(third->met);
    assert_int_equal(n_removed, 1);
    flights_destroy(all);
}

static void test_patience(void **state)
{
    flights *all = flights_create(on_remove, NULL);
    guest leader = of(all, 1, 0.05), a = of(all, 1, 0.05), b = of(all, 1, 10);
    uint32_t n_shared;
    (void)state;
    enter(&leader);
    enter(&a); /* the leader hangs */
    assert_int_equal(a.part, FLIGHT_LEADS);
    assert_true(a.ms >= 0.05 * N && a.ms < FLIGHT_PATIENCE * 0.05 * N + AT_ONCE_MS);
    assert_true(flight_company(a.met, &n_shared) > 0); /* a sign that more will come */
    flight_promise(leader.met, false);
    flight_has(a.met, N, true); /* others find it in the store */
    enter(&b);
    assert_int_equal(b.part, FLIGHT_LEADS);
    assert_true(b.ms < AT_ONCE_MS);
    flight_end(leader.met);
    flight_end(a.met);
    flight_end(b.met);
    flights_destroy(all);
}

static _Atomic int gone;

static bool is_gone(void *ctx)
{
    (void)ctx;
    return atomic_load(&gone);
}

static void test_client_leaves(void **state)
{
    flights *all = flights_create(on_remove, NULL);
    guest leader = of(all, 1, 10), a = of(all, 1, 10);
    (void)state;
    enter(&leader);
    a.r.has_left = is_gone;
    start(&a);
    pause_ms(20);
    double begin = clock_ms();
    atomic_store(&gone, 1);
    join(&a);
    assert_int_equal(a.part, FLIGHT_LEFT);
    assert_true(clock_ms() - begin < AT_ONCE_MS);
    flight_end(leader.met);
    flights_destroy(all);
}

/* Many at once, with leaders that give, give nothing, or fail: all end, and every copy is removed once. */
static void *wander(void *ctx)
{
    flights *all = (flights *)ctx;
    for (int i = 0; i < 40; i++) {
        guest g = of(all, 1 + (uint32_t)i % 2, 0.01);
        uint32_t n_shared;
        flight_near near = {.owner = g.r.owner};
        flights_approach(all, &near);
        flights_pass(all, &near);
        enter(&g);
        if (g.part == FLIGHT_JOINS) {
            flight_leave(g.met);
        } else if (g.part == FLIGHT_LEADS) {
            (void)flight_company(g.met, &n_shared);
            flight_has(g.met, 0, false);
            if (i % 3 == 0) flight_give(g.met, "copy", N);
            if (i % 3 == 1) flight_promise(g.met, false);
            flight_end(g.met);
        }
    }
    return NULL;
}

static void test_many(void **state)
{
    flights *all = flights_create(on_remove, NULL);
    pthread_t threads[8];
    (void)state;
    for (int i = 0; i < 8; i++) assert_int_equal(pthread_create(&threads[i], NULL, wander, all), 0);
    for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
    flights_destroy(all);
}

int main(void)
{
    for (uint32_t i = 0; i < N; i++) prompt[i] = i;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_copy),     cmocka_unit_test(test_company),
        cmocka_unit_test(test_apart),    cmocka_unit_test(test_leader_fails),
        cmocka_unit_test(test_patience), cmocka_unit_test(test_client_leaves),
        cmocka_unit_test(test_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
