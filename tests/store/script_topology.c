/* SPDX-License-Identifier: MIT */
/* Clusters on the scripted transport: fail-overs, addresses that change, replicas, nodes that are gone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store/kit/world.h"
#include "store/node.h"

#include <stdio.h>
#include <string.h>

#define N 12u
#define BYTES 500u
#define ALL (QUIRE_SLOTS - 1)

static world w;
static quire_key objects[N];

static quire_lane *begin_lane(const char *host, const quire_store_remote *options)
{
    world_connect(&w, host, 6379, options);
    return quire_lane_create(w.remote, &w.stop);
}

static void put_all(uint32_t first, uint32_t last)
{
    for (uint32_t i = 0; i < N; i++) {
        objects[i] = world_object(first, last, i);
        world_put(&w, &objects[i], BYTES);
    }
}

static void end(quire_lane *lane)
{
    quire_lane_destroy(lane);
    world_end(&w);
}

static void die(world *x, int peer)
{
    x->peer[peer].refuses = true;
    world_cut(x, peer);
}

/* Its slots are its replica's now. */
static void promote(world *x, int peer)
{
    int old = x->peer[peer].master;
    x->peer[peer].master = -1;
    for (uint32_t i = 0; i < QUIRE_SLOTS; i++)
        if (x->owner[i] == old) x->owner[i] = (int16_t)peer;
}

/* Loads again and again; ns from `since` until the first whole one after it, or UINT64_MAX if it took a minute. */
static uint64_t back_after(quire_lane *lane, uint64_t since, uint64_t timeout)
{
    while (w.clock < since + 60 * QUIRE_SECOND) {
        world_load l = world_get(&w, lane, objects, N, BYTES, timeout);
        assert_true(l.took <= timeout + 10 * QUIRE_MS);
        if (l.n_whole == N && w.clock >= since) return w.clock - since;
        world_sleep(&w, 100 * QUIRE_MS);
    }
    return UINT64_MAX;
}

static void expect_back(const char *what, quire_lane *lane, uint64_t since)
{
    uint64_t after = back_after(lane, since, 300 * QUIRE_MS);
    if (after == UINT64_MAX)
        print_message("%s: never\n", what);
    else
        print_message("%s: whole after %u ms\n", what, (unsigned)(after / QUIRE_MS));
    assert_true(after <= 5 * QUIRE_SECOND);
    /* Replicas have what is read; only the new master takes what is saved. */
    while (world_set(&w, lane, objects, N, BYTES, 300 * QUIRE_MS).n_whole < N) {
        assert_true(w.clock <= since + 5 * QUIRE_SECOND);
        world_sleep(&w, 100 * QUIRE_MS);
    }
    assert_int_equal(world_get(&w, lane, objects, N, BYTES, 300 * QUIRE_MS).n_whole, N);
    print_message("%s: saved after %u ms\n", what, (unsigned)((w.clock - since) / QUIRE_MS));
}

/* All keys of the load are on the master that dies; its address refuses connections. Asking for the slots takes longer than
 * the loads have, so that the question is under way whenever a run ends. */
static void fail_over_of_all_keys(void **state)
{
    (void)state;
    for (uint64_t latency = 0; latency <= 400 * QUIRE_MS; latency += 100 * QUIRE_MS) {
        world_begin(&w);
        for (int i = 0; i < 3; i++) (void)world_add(&w, "10.0.0.1", 7000 + (uint32_t)i, -1);
        for (int i = 0; i < 3; i++) (void)world_add(&w, "10.0.0.1", 7003 + (uint32_t)i, i);
        for (uint32_t i = 0; i < 3; i++)
            world_slots(&w, QUIRE_SLOTS * i / 3, QUIRE_SLOTS * (i + 1) / 3 - 1, (int)i);
        put_all(0, QUIRE_SLOTS / 3 - 1);
        world_name(&w, "cache", 0);
        quire_lane *lane = begin_lane("cache", NULL);
        assert_true(back_after(lane, w.clock, 300 * QUIRE_MS) < QUIRE_SECOND);
        for (int i = 0; i < 6; i++)
            w.peer[i].latency = i == 3 ? 0 : latency; /* of who is asked for the slots */
        world_at(&w, w.clock + 200 * QUIRE_MS, die, 0);
        world_at(&w, w.clock + 2200 * QUIRE_MS, promote, 3);
        expect_back("fail-over of all keys", lane, w.clock + 2200 * QUIRE_MS);
        end(lane);
    }
}

static void fail_over_of_one_shard(void **state)
{
    (void)state;
    for (int how = 0; how < 2; how++) {
        world_begin(&w);
        (void)world_add(&w, "10.0.0.1", 6379, -1);
        (void)world_add(&w, "10.0.0.2", 6379, 0);
        world_slots(&w, 0, ALL, 0);
        put_all(0, ALL);
        quire_lane *lane = begin_lane("10.0.0.1", NULL);
        assert_true(back_after(lane, w.clock, 300 * QUIRE_MS) < QUIRE_SECOND);
        if (how) w.peer[0].swallows = true; /* the machine is gone, not the process */
        world_at(&w, w.clock + 100 * QUIRE_MS, die, 0);
        world_at(&w, w.clock + 2100 * QUIRE_MS, promote, 1);
        expect_back("fail-over of the only shard", lane, w.clock + 2100 * QUIRE_MS);
        end(lane);
    }
}

/* New machines under the old name: nothing that was known answers. */
static void replace_all(world *x, int first)
{
    for (int i = 0; i < first; i++) die(x, i);
    world_slots(x, 0, QUIRE_SLOTS / 2 - 1, first);
    world_slots(x, QUIRE_SLOTS / 2, ALL, first + 1);
    for (world_value *v = x->values; v; v = v->next)
        for (int i = 0; i < 2; i++) v->on[first + i] = 1;
    world_name(x, "cache", first + 1);
}

static void every_address_changes(void **state)
{
    (void)state;
    for (int how = 0; how < 2; how++) {
        world_begin(&w);
        for (int i = 0; i < 2; i++) (void)world_add(&w, "10.0.0.1", 7000 + (uint32_t)i, -1);
        world_slots(&w, 0, QUIRE_SLOTS / 2 - 1, 0);
        world_slots(&w, QUIRE_SLOTS / 2, ALL, 1);
        put_all(0, ALL);
        world_name(&w, "cache", 0);
        quire_lane *lane = begin_lane("cache", NULL);
        assert_true(back_after(lane, w.clock, 300 * QUIRE_MS) < QUIRE_SECOND);
        for (int i = 0; i < 2; i++) (void)world_add(&w, "10.0.9.9", 7000 + (uint32_t)i, -1);
        if (how) w.peer[0].swallows = w.peer[1].swallows = true;
        world_at(&w, w.clock + QUIRE_SECOND, replace_all, 2);
        expect_back("every address changed", lane, w.clock + QUIRE_SECOND);
        end(lane);
    }
}

/* The only master gets a new address every two seconds, 250 times. */
static void addresses_without_end(void **state)
{
    (void)state;
    char host[32];
    uint32_t n = 0, most = 0;
    world_begin(&w);
    (void)world_add(&w, "10.0.0.0", 6379, -1);
    world_slots(&w, 0, ALL, 0);
    put_all(0, ALL);
    world_name(&w, "cache", 0);
    quire_lane *lane = begin_lane("cache", NULL);
    for (int i = 1; i < 250; i++) {
        (void)snprintf(host, sizeof host, "10.0.%d.%d", i / 200, i % 200);
        (void)world_add(&w, host, 6379, -1);
        for (world_value *v = w.values; v; v = v->next) v->on[i] = 1;
        world_slots(&w, 0, ALL, i);
        world_name(&w, "cache", i);
        if (i % 2) die(&w, i - 1); /* else it stays and says MOVED */
        if (back_after(lane, w.clock, 300 * QUIRE_MS) > 5 * QUIRE_SECOND) {
            n = quire_remote_nodes(w.remote).n;
            print_message("not back after change %d; %u nodes known\n", i, n);
            assert_true(false);
        }
        world_sleep(&w, 2 * QUIRE_SECOND);
        n = quire_remote_nodes(w.remote).n;
        if (n > most) most = n;
    }
    print_message("at most %u nodes known, %u now\n", most, n);
    assert_true(most <= 16);
    world_sleep(&w, 60 * QUIRE_SECOND);
    (void)world_get(&w, lane, objects, N, BYTES, 300 * QUIRE_MS);
    quire_node_counts of = quire_remote_nodes(w.remote);
    assert_true(of.n <= 2); /* the name and the address */
    assert_int_equal(of.n_down, 0);
    assert_true(w.n_links <= 4);
    end(lane);
}

/* A peer that sends its client round in circles, always to another address. */
static void circles(void **state)
{
    (void)state;
    char host[32];
    world_begin(&w);
    for (int i = 0; i < 280; i++) {
        (void)snprintf(host, sizeof host, "10.1.%d.%d", i / 200, i % 200);
        (void)world_add(&w, host, 6379, -1);
    }
    world_slots(&w, 0, ALL, 0);
    put_all(0, ALL);
    quire_lane *lane = begin_lane("10.1.0.0", NULL);
    for (int i = 0; i < 279; i++) { /* each says that the next one has it */
        world_slots(&w, 0, ALL, i + 1);
        (void)world_get(&w, lane, objects, N, BYTES, 50 * QUIRE_MS);
    }
    for (world_value *v = w.values; v; v = v->next) v->on[279] = 1;
    assert_true(back_after(lane, w.clock, 300 * QUIRE_MS) <= 5 * QUIRE_SECOND);
    end(lane);
}

/* A master that is gone and not replaced: its replicas are read. By option they are read anyway. */
static void replicas(void **state)
{
    (void)state;
    for (uint32_t always = 0; always < 2; always++) {
        quire_store_remote o = {.size = sizeof o, .read_replicas = always};
        world_begin(&w);
        for (int i = 0; i < 2; i++) (void)world_add(&w, "10.0.0.1", 7000 + (uint32_t)i, -1);
        for (int i = 0; i < 4; i++) (void)world_add(&w, "10.0.0.1", 7002 + (uint32_t)i, i % 2);
        for (int i = 0; i < 6; i++)
            if (i != 1) (void)world_add(&w, "10.0.0.2", 7000 + (uint32_t)i, 1); /* more of the second */
        world_slots(&w, 0, QUIRE_SLOTS / 2 - 1, 0);
        world_slots(&w, QUIRE_SLOTS / 2, ALL, 1);
        put_all(0, ALL);
        quire_lane *lane = NULL;
        world_connect(&w, "10.0.0.1", 7000, &o);
        lane = quire_lane_create(w.remote, &w.stop);
        world_sleep(&w, QUIRE_SECOND);
        for (int i = 0; i < 20; i++)
            assert_int_equal(world_get(&w, lane, objects, N, BYTES, 300 * QUIRE_MS).n_whole, N);
        uint32_t of_masters = w.peer[0].n_reads + w.peer[1].n_reads, of_replicas = 0;
        for (uint32_t i = 2; i < w.n_peers; i++) of_replicas += w.peer[i].n_reads;
        if (always)
            assert_true(of_replicas > N * 20 / 3 && of_masters > N * 20 / 10);
        else
            assert_int_equal(of_replicas, 0);
        die(&w, 0);
        die(&w, 2); /* one of its replicas too */
        uint32_t n_whole = 0;
        for (int i = 0; i < 100; i++) {
            n_whole += world_get(&w, lane, objects, N, BYTES, 300 * QUIRE_MS).n_whole == N;
            world_sleep(&w, 50 * QUIRE_MS);
        }
        print_message("%u of 100 loads whole while a master is gone\n", n_whole);
        assert_true(n_whole >= 97);
        assert_true(world_set(&w, lane, objects, N, BYTES, 300 * QUIRE_MS).n_whole < N);
        end(lane);
    }
}

/* Objects are the same by their keys: what is there is not sent over it. */
static void only_new(void **state)
{
    (void)state;
    world_begin(&w);
    w.is_single = true;
    (void)world_add(&w, "10.0.0.1", 6379, -1);
    quire_store_remote o = {.size = sizeof o, .ttl_seconds = 100};
    world_connect(&w, "10.0.0.1", 6379, &o);
    quire_lane *lane = quire_lane_create(w.remote, &w.stop);
    uint8_t value[BYTES] = {1};
    put_all(0, ALL);
    world_find(&w, &objects[0])->on[0] = 0; /* the first is not there */
    quire_call calls[2];
    for (int i = 0; i < 2; i++)
        calls[i] = (quire_call){
            .verb = QUIRE_SET, .object = objects[i], .value = value, .bytes = BYTES, .only_new = true};
    quire_lane_run(lane, calls, 2, w.clock + QUIRE_SECOND);
    assert_true(!calls[0].miss && !calls[0].found && !calls[1].miss && calls[1].found);
    assert_int_equal(world_find(&w, &objects[0])->bytes[0], 1);
    assert_int_equal(world_find(&w, &objects[1])->n_sets, 0);
    assert_true(world_find(&w, &objects[0])->expires > w.clock + 90 * QUIRE_SECOND);
    quire_call renew = {.verb = QUIRE_EXPIRE, .object = objects[2]};
    quire_lane_run(lane, &renew, 1, w.clock + QUIRE_SECOND);
    assert_true(!renew.miss && renew.found);
    assert_true(world_find(&w, &objects[2])->expires > w.clock + 90 * QUIRE_SECOND);
    end(lane);
}

/* One sentence for each thing that happens. */
static void sentences(void **state)
{
    (void)state;
    world_begin(&w);
    (void)world_add(&w, "10.0.0.1", 6379, -1);
    (void)world_add(&w, "10.0.0.2", 6379, 0);
    world_slots(&w, 0, ALL, 0);
    put_all(0, ALL);
    quire_lane *lane = begin_lane("10.0.0.1", NULL);
    world_sleep(&w, QUIRE_SECOND);
    assert_string_equal(w.last_log,
                        "The remote cluster's slots are now shared by 1 masters; 1 replicas are known.");
    assert_int_equal(w.n_logged, 1);
    die(&w, 0);
    for (int i = 0; i < 20; i++) {
        (void)world_get(&w, lane, objects, N, BYTES, 300 * QUIRE_MS);
        world_sleep(&w, 100 * QUIRE_MS);
    }
    assert_int_equal(w.n_logged, 2);
    assert_string_equal(w.last_log, "The remote node 10.0.0.1:6379 does not answer and is considered down.");
    w.peer[0].refuses = false;
    world_sleep(&w, 4 * QUIRE_SECOND);
    assert_int_equal(w.n_logged, 3);
    assert_string_equal(w.last_log, "The remote node 10.0.0.1:6379 answers again.");
    w.peer[0].error = "-OOM command not allowed when used memory > 'maxmemory'.\r\n";
    assert_int_equal(world_set(&w, lane, objects, 1, BYTES, 300 * QUIRE_MS).n_whole, 0);
    assert_int_equal(w.n_logged, 4);
    assert_string_equal(w.last_log, "The remote node 10.0.0.1:6379 does not take pages: it says OOM.");
    w.peer[0].error = "-\033[31m no code\r\n";
    assert_int_equal(world_set(&w, lane, objects, 1, BYTES, 300 * QUIRE_MS).n_whole, 0);
    assert_string_equal(w.last_log, "The remote node 10.0.0.1:6379 does not take pages: it says ERR.");
    for (int i = 0; i < 10; i++) (void)world_set(&w, lane, objects, 1, BYTES, 300 * QUIRE_MS);
    assert_int_equal(w.n_logged, 5); /* no more in a minute */
    w.peer[0].error = NULL;
    promote(&w, 1);
    w.peer[0].master = 1;
    world_sleep(&w, 10 * QUIRE_SECOND);
    assert_int_equal(w.n_logged, 6);
    quire_node_counts of = quire_remote_nodes(w.remote);
    assert_int_equal(of.n, 2);
    assert_int_equal(of.n_down, 0);
    end(lane);
}

static uint32_t n_refusing(void)
{
    quire_node_counts of = quire_remote_nodes(w.remote);
    assert_int_equal(of.n_down, 0);
    return of.n_refusing;
}

/* Nodes that answer and do not do what is asked are counted until they do it; for a while only, if nobody asks them again. */
static void refusals(void **state)
{
    (void)state;
    world_begin(&w);
    (void)world_add(&w, "10.0.0.1", 6379, -1);
    (void)world_add(&w, "10.0.0.2", 6379, 0);
    world_slots(&w, 0, ALL, 0);
    put_all(0, ALL);
    quire_lane *lane = begin_lane("10.0.0.1", NULL);
    world_sleep(&w, QUIRE_SECOND);
    assert_int_equal(n_refusing(), 0);
    const char *of_saves[] = {"-OOM full\r\n", "-CLUSTERDOWN The cluster is down\r\n", "-NOPERM no\r\n"};
    for (int i = 0; i < 3; i++) {
        w.peer[0].error = of_saves[i];
        assert_int_equal(world_set(&w, lane, objects, 1, BYTES, 300 * QUIRE_MS).n_whole, 0);
        assert_int_equal(n_refusing(), 1);
        w.peer[0].error = NULL; /* to give pages does not mean to take them */
        assert_int_equal(world_get(&w, lane, objects, N, BYTES, 300 * QUIRE_MS).n_whole, N);
        assert_int_equal(n_refusing(), 1);
        assert_int_equal(world_set(&w, lane, objects, 1, BYTES, 300 * QUIRE_MS).n_whole, 1);
        assert_int_equal(n_refusing(), 0);
    }
    /* A save asks first whether the page is there: a cluster that is down refuses that already. */
    const char *of_loads[] = {"-NOPERM no\r\n", "-CLUSTERDOWN Hash slot not served\r\n", "-LOADING\r\n"};
    for (int i = 0; i < 3; i++) {
        w.peer[0].read_error = of_loads[i];
        assert_int_equal(world_get(&w, lane, objects, 1, BYTES, 300 * QUIRE_MS).n_whole, 0);
        assert_int_equal(n_refusing(), 1);
        w.peer[0].read_error = NULL;
        assert_int_equal(world_get(&w, lane, objects, 1, BYTES, 300 * QUIRE_MS).n_whole, 1);
        assert_int_equal(n_refusing(), 0);
    }
    /* A fail-over that was over before anybody saved again, and a fault that was repaired while nobody did. */
    const struct {
        const char *error;
        uint64_t seconds;
    } of_idle[] = {{"-CLUSTERDOWN The cluster is down\r\n", 60}, {"-OOM full\r\n", 600}};
    for (int i = 0; i < 2; i++) {
        w.peer[0].error = of_idle[i].error;
        (void)world_set(&w, lane, objects, 1, BYTES, 300 * QUIRE_MS);
        w.peer[0].error = NULL;
        world_sleep(&w, (of_idle[i].seconds - 10) * QUIRE_SECOND);
        assert_int_equal(n_refusing(), 1);
        world_sleep(&w, 10 * QUIRE_SECOND);
        assert_int_equal(n_refusing(), 0);
    }
    /* The last word of a master that is none any more. */
    w.peer[0].error = "-OOM full\r\n";
    (void)world_set(&w, lane, objects, 1, BYTES, 300 * QUIRE_MS);
    assert_int_equal(n_refusing(), 1);
    w.peer[0].error = NULL;
    promote(&w, 1);
    w.peer[0].master = 1;
    (void)world_set(&w, lane, objects, N, BYTES, 300 * QUIRE_MS);
    world_sleep(&w, 10 * QUIRE_SECOND);
    assert_int_equal(n_refusing(), 0);
    end(lane);
}

/* A single server that is promoted away under its name: the old one refuses to be written to. */
static void name_leads_elsewhere(void **state)
{
    (void)state;
    world_begin(&w);
    w.is_single = true;
    for (int i = 0; i < 2; i++) (void)world_add(&w, "10.0.0.1", 7000 + (uint32_t)i, -1);
    world_name(&w, "cache", 0);
    put_all(0, ALL);
    quire_lane *lane = begin_lane("cache", NULL);
    assert_int_equal(world_set(&w, lane, objects, N, BYTES, QUIRE_SECOND).n_whole, N);
    w.peer[0].refuses_writes = true;
    world_name(&w, "cache", 1);
    (void)world_set(&w, lane, objects, N, BYTES, QUIRE_SECOND);
    assert_int_equal(world_set(&w, lane, objects, N, BYTES, QUIRE_SECOND).n_whole, N);
    assert_true(w.peer[1].n_commands > 0);
    end(lane);
}

/* The log is told of hosts that servers name. */
static void hosts(void **state)
{
    (void)state;
    static const char *const wrong[] = {"a\nb", "a b", "\x1b[2J", "a\x7f", "\xc2\x9b", "\xff", ""};
    world_begin(&w);
    (void)world_add(&w, "10.0.0.1", 7000, -1);
    quire_lane *lane = begin_lane("10.0.0.1", NULL);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(quire_node_at(w.remote, wrong[i], strlen(wrong[i]), 1), QUIRE_NO_NODE);
    assert_int_equal(quire_node_at(w.remote, "a\0b", 3, 1), QUIRE_NO_NODE);
    assert_int_not_equal(quire_node_at(w.remote, "fe80::1%eth0", 12, 1), QUIRE_NO_NODE);
    assert_int_not_equal(quire_node_at(w.remote, "a_b-c.example", 13, 1), QUIRE_NO_NODE);
    end(lane);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fail_over_of_all_keys),
        cmocka_unit_test(fail_over_of_one_shard),
        cmocka_unit_test(every_address_changes),
        cmocka_unit_test(addresses_without_end),
        cmocka_unit_test(circles),
        cmocka_unit_test(replicas),
        cmocka_unit_test(only_new),
        cmocka_unit_test(sentences),
        cmocka_unit_test(refusals),
        cmocka_unit_test(name_leads_elsewhere),
        cmocka_unit_test(hosts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
