/* SPDX-License-Identifier: MIT */
/* A hit changes nothing: pages saved by one process and loaded by another give the same rows and the same attention, bit for
 * bit, as computing them; from disk and from a cluster, whole and as a leading run. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store/kit/servers.h"
#include "store/namespace.h"
#include "store/store.h"

#include <string.h>

static const char *const policies[] = {"f32",          "f16",
                                       "bf16",         "k8v4",
                                       "k4v4",         "a3g32/a2g64",
                                       "q8_0/q4_0",    "q5_1/iq4_nl",
                                       "r5/r3",        "r8/r4",
                                       "tq4/tq2",      "h:a4g64",
                                       "c:r4/r3",      "r4,sinks=64:f16",
                                       "r4,edge=1:r8", "k=q8_0,v=r2,window=a4g64"};
#define N (sizeof policies / sizeof *policies)
#define TOKENS 384u

static quire_store *open_store(const char *directory, const char *port, quire_store_remote *remote)
{
    *remote = kit_remote((uint32_t)atoi(port));
    bool on_disk = strcmp(directory, "-") != 0;
    return kit_open(on_disk ? directory : NULL, KIT_CAP, on_disk ? NULL : remote);
}

static int child_save(const char *directory, const char *port)
{
    quire_store_remote remote;
    quire_store *store = open_store(directory, port, &remote);
    for (size_t i = 0; i < N; i++) {
        kit_scene s;
        kit_scene_begin(&s, store, policies[i], 10 + i);
        quire_seq_destroy(kit_compute(&s, TOKENS, true));
        KIT_REQUIRE(!quire_store_flush(store, 20000));
        kit_scene_end(&s);
    }
    quire_store_close(store);
    return 0;
}

static int child_load(const char *directory, const char *port, uint32_t n_pages)
{
    quire_store_remote remote;
    quire_store *store = open_store(directory, port, &remote);
    for (size_t i = 0; i < N; i++) {
        kit_scene s;
        kit_scene_begin(&s, store, policies[i], 10 + i);
        quire_seq *loaded = kit_load(&s, TOKENS, 20000);
        if (quire_seq_length(loaded) != n_pages * 64) {
            fprintf(stderr, "%s: %u tokens loaded, not %u\n", policies[i], quire_seq_length(loaded),
                    n_pages * 64);
            return 1;
        }
        quire_seq *computed = kit_compute(&s, n_pages * 64, false);
        bool same = kit_sight(&s, computed) == kit_sight(&s, loaded);
        /* and both go on */
        KIT_REQUIRE(!kit_append(s.pool, &s.g, computed, 70, s.seed) &&
                    !kit_append(s.pool, &s.g, loaded, 70, s.seed));
        if (!same || kit_sight(&s, computed) != kit_sight(&s, loaded)) {
            fprintf(stderr, "%s: a hit is not a miss\n", policies[i]);
            return 1;
        }
        quire_seq_destroy(computed);
        quire_seq_destroy(loaded);
        kit_scene_end(&s);
    }
    quire_store_close(store);
    return 0;
}

/* Page 3 and those after it go, of every policy and group. */
static void remove_end(const char *directory, const char *port)
{
    quire_store_remote remote;
    quire_store *store = open_store(directory, port, &remote);
    quire_lane *lane = store->remote ? quire_lane_create(store->remote, &store->stop) : NULL;
    for (size_t i = 0; i < N; i++) {
        kit_scene s;
        quire_key keys[6], objects[6];
        kit_scene_begin(&s, store, policies[i], 10 + i);
        quire_prompt p = kit_prompt(&s, TOKENS);
        assert_int_equal(quire_chain_keys(keys, &s.ns->root, &p, 6), QUIRE_OK);
        for (uint32_t g = 0; g < 2; g++) {
            assert_int_equal(quire_chain_objects(objects, keys, 6, g), QUIRE_OK);
            if (store->disk) assert_int_equal(quire_disk_remove(store->disk, objects + 3, 3), 3);
            for (int j = 3; j < 6 && lane; j++) {
                quire_call call = {.verb = QUIRE_DEL, .object = objects[j]};
                quire_lane_run(lane, &call, 1, quire_deadline(5000));
                assert_true(!call.miss && call.found);
            }
        }
        kit_scene_end(&s);
    }
    quire_lane_destroy(lane);
    quire_store_close(store);
}

static void over(const char *directory, uint32_t port)
{
    char number[16];
    snprintf(number, sizeof number, "%u", port);
    assert_int_equal(kit_run((const char *[]){"save", directory, number, NULL}, 0), 0);
    assert_int_equal(kit_run((const char *[]){"load", directory, number, "6", NULL}, 0), 0);
    remove_end(directory, number);
    assert_int_equal(kit_run((const char *[]){"load", directory, number, "3", NULL}, 0), 0);
}

static void on_disk(void **state)
{
    (void)state;
    char *dir = kit_directory(NULL);
    over(dir, 0);
    kit_remove(dir);
}

static void on_cluster(void **state)
{
    (void)state;
    kit_cluster cluster;
    if (system("command -v redis-server >/dev/null 2>&1")) skip();
    kit_cluster_start(&cluster);
    over("-", cluster.node[2].port);
    kit_cluster_end(&cluster);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(on_disk), cmocka_unit_test(on_cluster)};
    if (argc == 4 && strcmp(argv[1], "save") == 0) return child_save(argv[2], argv[3]);
    if (argc == 5 && strcmp(argv[1], "load") == 0)
        return child_load(argv[2], argv[3], (uint32_t)atoi(argv[4]));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
