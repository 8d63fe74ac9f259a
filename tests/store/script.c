/* SPDX-License-Identifier: MIT */
/* Connections on the scripted transport: bytes cut anywhere, TLS records, slow peers, lost connections. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store/kit/world.h"

#include <string.h>

#define MANY 64u
#define HALF (QUIRE_SLOTS / 2)

static world w;
static quire_key objects[WORLD_CALLS];

static quire_lane *begin_single(bool is_tls, const quire_store_remote *options)
{
    world_begin(&w);
    w.is_single = true;
    w.is_tls = is_tls;
    (void)world_add(&w, "10.0.0.1", 6379, -1);
    world_connect(&w, "10.0.0.1", 6379, options);
    for (uint32_t i = 0; i < MANY; i++) objects[i] = world_object(0, QUIRE_SLOTS - 1, i);
    return quire_lane_create(w.remote, &w.stop);
}

static void end(quire_lane *lane)
{
    quire_lane_destroy(lane);
    world_end(&w);
}

/* Two masters, a slot that is being moved (ASK), and a client that knows nothing of the slots (MOVED): replies and commands are
 * cut at every pair of sizes. */
static void every_cut(void **state)
{
    (void)state;
    for (int is_tls = 0; is_tls < 2; is_tls++)
        for (size_t a = 1; a < 48; a++)
            for (size_t b = a; b < 48; b += 1 + b / 8) {
                const size_t cuts[] = {a, b, a, a, b};
                world_begin(&w);
                w.is_tls = is_tls;
                int one = world_add(&w, "10.0.0.1", 6379, -1), two = world_add(&w, "10.0.0.2", 6379, -1);
                world_slots(&w, 0, HALF - 1, one);
                world_slots(&w, HALF, QUIRE_SLOTS - 1, two);
                for (uint32_t i = 0; i < 6; i++) {
                    objects[i] = world_object(i % 2 ? 0 : HALF, i % 2 ? HALF - 1 : QUIRE_SLOTS - 1, i);
                    world_put(&w, &objects[i], 37);
                }
                quire_call moving = {.object = objects[1]}; /* of the first, to the second */
                w.goes_to[quire_call_slot(&moving)] = (int16_t)two;
                world_value *v = world_find(&w, &objects[1]);
                v->on[one] = 0;
                v->on[two] = 1;
                w.read_cuts = w.write_cuts = cuts;
                w.n_read_cuts = w.n_write_cuts = 5;
                w.chunk_gap = a * 1000;
                world_connect(&w, "10.0.0.1", 6379, NULL);
                quire_lane *lane = quire_lane_create(w.remote, &w.stop);
                assert_int_equal(world_ask(&w, lane, objects, 6, 5 * QUIRE_SECOND).n_found, 6);
                assert_int_equal(world_get(&w, lane, objects, 6, 37, 5 * QUIRE_SECOND).n_whole, 6);
                assert_int_equal(world_set(&w, lane, objects, 6, 41, 5 * QUIRE_SECOND).n_whole, 6);
                assert_int_equal(w.n_blind_sleeps, 0);
                end(lane);
            }
}

/* TLS decrypts whole records: what is left in it must be taken before sleeping, whatever the sizes. */
static void tls_records(void **state)
{
    (void)state;
    uint32_t n_blind = 0, n_slow = 0, n_short = 0;
    for (uint32_t i = 0; i < 40; i++) {
        size_t bytes = (size_t)(1000.0 * (1 << i / 3) * (1 + i % 3 * 0.27)) + i;
        for (uint32_t n = 1; n <= 16; n = n * 2 + 1) {
            const size_t cuts[] = {16384, 5, 16384, 9000, 16384, 16384};
            if (bytes > 3000000 && n > 1) continue;
            quire_lane *lane = begin_single(true, NULL);
            for (uint32_t j = 0; j < n; j++) world_put(&w, &objects[j], bytes);
            w.read_cuts = cuts;
            w.n_read_cuts = i % 2 ? 6 : 0;
            world_load l = world_get(&w, lane, objects, n, bytes, 5 * QUIRE_SECOND);
            n_short += l.n_whole < n;
            n_slow += l.took > 50 * QUIRE_MS;
            n_blind += w.n_blind_sleeps != 0;
            end(lane);
        }
    }
    print_message("TLS: %u loads slept while bytes were waiting, %u were late, %u short\n", n_blind, n_slow,
                  n_short);
    assert_int_equal(n_blind, 0);
    assert_int_equal(n_slow, 0);
    assert_int_equal(n_short, 0);
}

/* A link of 200 KB/s: a page of 4 MB takes 20 s, and every second of it moves bytes. */
static void slow_links(void **state)
{
    (void)state;
    for (int is_tls = 0; is_tls < 2; is_tls++) {
        quire_lane *lane = begin_single(is_tls, NULL);
        w.peer[0].takes = 200000;
        world_load l = world_set(&w, lane, objects, 2, 4000000, 100 * QUIRE_SECOND);
        print_message("saved %u of 2 in %u ms\n", l.n_whole, (unsigned)(l.took / QUIRE_MS));
        assert_int_equal(l.n_whole, 2);
        w.peer[0].takes = 0;
        w.peer[0].rate = 200000;
        l = world_get(&w, lane, objects, 2, 4000000, 100 * QUIRE_SECOND);
        print_message("loaded %u of 2 in %u ms\n", l.n_whole, (unsigned)(l.took / QUIRE_MS));
        assert_int_equal(l.n_whole, 2);
        assert_int_equal(quire_counted(&w.counters.breaks), 0);
        end(lane);
    }
}

/* High latency is not slowness: small replies that come late, one after the other or all at once. */
static void far_away(void **state)
{
    (void)state;
    for (size_t in_flight = 1; in_flight < 1 << 20; in_flight *= 64) {
        quire_store_remote o = {.size = sizeof o, .in_flight_bytes = in_flight};
        quire_lane *lane = begin_single(false, &o);
        for (uint32_t i = 0; i < 20; i++) world_put(&w, &objects[i], 1000);
        w.peer[0].latency = 800 * QUIRE_MS;
        assert_int_equal(world_ask(&w, lane, objects, 20, 60 * QUIRE_SECOND).n_found, 20);
        assert_int_equal(world_get(&w, lane, objects, 20, 1000, 60 * QUIRE_SECOND).n_whole, 20);
        assert_int_equal(quire_counted(&w.counters.breaks), 0);
        end(lane);
    }
}

/* A node that sends a few bytes a second is as good as down: it must not cost every load its deadline. */
static void trickle_at(uint64_t rate, bool only_values, uint64_t timeout)
{
    quire_lane *lane = begin_single(false, NULL);
    uint32_t n_late = 0, n_loads = 0;
    for (uint32_t i = 0; i < 20; i++) world_put(&w, &objects[i], 20000);
    assert_int_equal(world_get(&w, lane, objects, 20, 20000, QUIRE_SECOND).n_whole, 20);
    w.peer[0].rate = rate;
    for (uint64_t over = w.clock + 60 * QUIRE_SECOND; w.clock < over; n_loads++) {
        world_load l = only_values ? (world_load){.n_found = 20} : world_ask(&w, lane, objects, 20, timeout);
        uint64_t took = l.took;
        if (l.n_found == 20) {
            l = world_get(&w, lane, objects, 20, 20000, timeout > took ? timeout - took : 0);
            took += l.took;
        }
        n_late += took > timeout / 2;
        world_sleep(&w, 20 * QUIRE_MS);
    }
    w.peer[0].rate = 0;
    uint64_t over = w.clock;
    while (world_get(&w, lane, objects, 20, 20000, timeout).n_whole < 20 &&
           w.clock - over < 20 * QUIRE_SECOND)
        world_sleep(&w, 20 * QUIRE_MS);
    print_message("%u bytes/s: %u of %u loads took more than half of %u ms; back after %u ms\n",
                  (unsigned)rate, n_late, n_loads, (unsigned)(timeout / QUIRE_MS),
                  (unsigned)((w.clock - over) / QUIRE_MS));
    assert_true(n_late <= n_loads / 20 + 3);
    assert_true(quire_counted(&w.counters.breaks) > 0);
    assert_true(w.clock - over <= 5 * QUIRE_SECOND);
    end(lane);
}

static void trickle(void **state)
{
    (void)state;
    trickle_at(2, false, 250 * QUIRE_MS);
    trickle_at(50, false, 250 * QUIRE_MS);
    trickle_at(50, false, 3 * QUIRE_SECOND);
    trickle_at(1000, true, 500 * QUIRE_MS);
    trickle_at(1000, false, 3 * QUIRE_SECOND);
}

/* Lost after every number of bytes: a miss or a page, and whole again soon after. */
static void lost_anywhere(void **state)
{
    (void)state;
    for (int is_tls = 0; is_tls < 2; is_tls++)
        for (uint64_t n = 1; n < 400; n += 1 + n / 40) {
            quire_lane *lane = begin_single(is_tls, NULL);
            for (uint32_t i = 0; i < 4; i++) world_put(&w, &objects[i], 60);
            w.peer[0].reset_after = n;
            (void)world_ask(&w, lane, objects, 4, 300 * QUIRE_MS);
            (void)world_get(&w, lane, objects, 4, 60, 300 * QUIRE_MS);
            w.peer[0].reset_after = 0;
            uint64_t before = w.clock;
            while (world_get(&w, lane, objects, 4, 60, 300 * QUIRE_MS).n_whole < 4)
                world_sleep(&w, 50 * QUIRE_MS);
            assert_true(w.clock - before < 5 * QUIRE_SECOND);
            end(lane);
        }
}

/* Silence, no answer to connecting, refusal: misses in time; loads stop waiting soon; back within seconds. */
static void down(void **state)
{
    (void)state;
    for (int how = 0; how < 3; how++) {
        quire_lane *lane = begin_single(false, NULL);
        for (uint32_t i = 0; i < 4; i++) world_put(&w, &objects[i], 60);
        assert_int_equal(world_get(&w, lane, objects, 4, 60, 300 * QUIRE_MS).n_whole, 4);
        w.peer[0].is_silent = how == 0;
        w.peer[0].swallows = how == 1;
        w.peer[0].refuses = how == 2;
        if (how) world_cut(&w, 0);
        uint32_t n_late = 0, n_loads = 0;
        for (uint64_t over = w.clock + 20 * QUIRE_SECOND; w.clock < over; n_loads++) {
            world_load l = world_get(&w, lane, objects, 4, 60, 300 * QUIRE_MS);
            assert_int_equal(l.n_whole, 0);
            assert_true(l.took <= 310 * QUIRE_MS);
            n_late += l.took > 150 * QUIRE_MS;
            world_sleep(&w, 20 * QUIRE_MS);
        }
        w.peer[0].is_silent = w.peer[0].swallows = w.peer[0].refuses = false;
        uint64_t before = w.clock;
        while (world_get(&w, lane, objects, 4, 60, 300 * QUIRE_MS).n_whole < 4)
            world_sleep(&w, 50 * QUIRE_MS);
        print_message("%s: %u of %u loads late, back after %u ms\n",
                      how == 0   ? "silence"
                      : how == 1 ? "no answer"
                                 : "refused",
                      n_late, n_loads, (unsigned)((w.clock - before) / QUIRE_MS));
        assert_true(w.clock - before < 5 * QUIRE_SECOND);
        assert_true(n_late <= 4);
        end(lane);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_cut), cmocka_unit_test(tls_records), cmocka_unit_test(slow_links),
        cmocka_unit_test(far_away),  cmocka_unit_test(trickle),     cmocka_unit_test(lost_anywhere),
        cmocka_unit_test(down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
