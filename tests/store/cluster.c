/* SPDX-License-Identifier: MIT */
/* The remote tier on a cluster of three masters and three replicas: spread, redirections, fail-over. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store/base.h"
#include "store/kit/servers.h"

#include <string.h>
#include <unistd.h>

#define TOKENS 1280u

static kit_cluster cluster;

static int start(void **state)
{
    (void)state;
    kit_cluster_start(&cluster);
    return 0;
}

static int end(void **state)
{
    (void)state;
    kit_cluster_end(&cluster);
    return 0;
}

static uint32_t load_all(kit_scene *s, uint64_t sight)
{
    quire_seq *loaded = kit_load(s, TOKENS, 20000);
    uint32_t n = quire_seq_length(loaded);
    if (n == TOKENS) assert_true(sight == kit_sight(s, loaded));
    quire_seq_destroy(loaded);
    return n;
}

static uint64_t save_all(kit_scene *s)
{
    quire_seq *computed = kit_compute(s, TOKENS, true);
    uint64_t sight = kit_sight(s, computed);
    quire_seq_destroy(computed);
    assert_int_equal(quire_store_flush(s->store, 60000), QUIRE_OK);
    return sight;
}

static void spread(void **state)
{
    (void)state;
    kit_scene s;
    quire_store_remote remote = kit_remote(cluster.node[1].port); /* any of them */
    quire_store *store = kit_open(NULL, 0, &remote);
    kit_scene_begin(&s, store, "k4v4", 1);
    uint64_t sight = save_all(&s);
    assert_int_equal(kit_stats(store).saved[1], 40);
    for (int i = 0; i < KIT_MASTERS; i++) {
        char *n = kit_command(cluster.node[i].port, "DBSIZE");
        assert_true(atoi(n) > 2);
        free(n);
    }
    assert_int_equal(load_all(&s, sight), TOKENS);
    assert_true(kit_stats(store).nodes >= 3);
    kit_scene_end(&s);
    quire_store_close(store);
}

/* A slot moves to another master: first its key alone (ASK), then the slot (MOVED). */
static void redirections(void **state)
{
    (void)state;
    kit_scene s;
    uint32_t from = cluster.node[0].port, to = cluster.node[2].port;
    quire_store_remote remote = kit_remote(from);
    quire_store *store = kit_open(NULL, 0, &remote);
    kit_scene_begin(&s, store, "k4v4", 1);
    uint64_t sight = save_all(&s);
    char *from_id = kit_command(from, "CLUSTER MYID"), *to_id = kit_command(to, "CLUSTER MYID");
    char *key = kit_command(from, "RANDOMKEY"), *slot = kit_command(from, "CLUSTER KEYSLOT %s", key);
    free(kit_command(to, "CLUSTER SETSLOT %s IMPORTING %s", slot, from_id));
    free(kit_command(from, "CLUSTER SETSLOT %s MIGRATING %s", slot, to_id));
    char *moved = kit_command(from, "MIGRATE 127.0.0.1 %d %s 0 5000", (int)to, key);
    assert_string_equal(moved, "OK");
    free(moved);
    assert_int_equal(load_all(&s, sight), TOKENS);
    free(kit_command(to, "CLUSTER SETSLOT %s NODE %s", slot, to_id));
    free(kit_command(from, "CLUSTER SETSLOT %s NODE %s", slot, to_id));
    free(kit_command(cluster.node[1].port, "CLUSTER SETSLOT %s NODE %s", slot, to_id));
    assert_int_equal(load_all(&s, sight), TOKENS);
    assert_int_equal(load_all(&s, sight), TOKENS);
    quire_store_stats stats = kit_stats(store);
    assert_int_equal(stats.misses[QUIRE_MISS_SERVER] + stats.misses[QUIRE_MISS_ABSENT], 0);
    free(from_id);
    free(to_id);
    free(key);
    free(slot);
    kit_scene_end(&s);
    quire_store_close(store);
}

/* A master dies; its replica takes over; loads are short or misses meanwhile and whole again after it. */
static void fail_over(void **state)
{
    (void)state;
    kit_scene s;
    quire_store_remote remote = kit_remote(cluster.node[1].port);
    quire_store *store = kit_open(NULL, 0, &remote);
    kit_scene_begin(&s, store, "k4v4", 1);
    uint64_t sight = save_all(&s);
    assert_int_equal(load_all(&s, sight), TOKENS);
    usleep(300000); /* replicas have it */
    kit_server_kill(&cluster.node[0]);
    uint64_t promoted = 0, begin = quire_now();
    uint32_t n_short = 0;
    for (;;) {
        uint64_t before = quire_now();
        quire_seq *loaded = kit_load(&s, TOKENS, 300);
        uint64_t took = quire_now() - before;
        uint32_t n = quire_seq_length(loaded);
        quire_seq_destroy(loaded);
        if (took > 400 * QUIRE_MS) print_message("a load took %u ms\n", (unsigned)(took / QUIRE_MS));
        if (n < TOKENS) n_short++;
        char *role = kit_command(cluster.node[3].port, "ROLE"),
             *info = kit_command(cluster.node[3].port, "CLUSTER INFO");
        char *reply = kit_command(cluster.node[3].port, "INFO replication");
        if (!promoted && strstr(reply, "role:master") && strstr(info, "cluster_state:ok"))
            promoted = quire_now();
        free(role);
        free(info);
        free(reply);
        if (promoted && n == TOKENS) break;
        assert_true(quire_now() - begin < 40 * QUIRE_SECOND);
        if (promoted) assert_true(quire_now() - promoted < 5 * QUIRE_SECOND);
        usleep(50000);
    }
    print_message("%u short loads, whole again %u ms after the promotion\n", (unsigned)n_short,
                  (unsigned)((quire_now() - promoted) / QUIRE_MS));
    assert_true(n_short > 0);
    assert_int_equal(load_all(&s, sight), TOKENS);
    do { /* and saving works, when the new master is known; replicas have served the loads until then */
        s.tokens[0]++;
        sight = save_all(&s);
        assert_true(quire_now() - promoted < 5 * QUIRE_SECOND);
    } while (load_all(&s, sight) < TOKENS);
    kit_scene_end(&s);
    quire_store_close(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spread),
        cmocka_unit_test(redirections),
        cmocka_unit_test(fail_over),
    };
    kit_need_redis();
    return cmocka_run_group_tests(tests, start, end);
}
