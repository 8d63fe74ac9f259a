/* SPDX-License-Identifier: MIT */
/* The disk tier, seen through the interface: what comes back, caps, pins, recency, directories that cannot be used. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store/kit/store_kit.h"

#include <sys/stat.h>
#include <unistd.h>

static void round_trip(void **state)
{
    (void)state;
    char *dir = kit_directory(NULL);
    kit_scene s;
    quire_store *store = kit_open(dir, KIT_CAP, NULL);
    kit_scene_begin(&s, store, "k4v4", 1);
    quire_seq *computed = kit_compute(&s, 320, true);
    assert_int_equal(quire_store_flush(store, 10000), QUIRE_OK);
    quire_store_stats stats = kit_stats(store);
    assert_int_equal(stats.saved[0], 10); /* 5 pages of 2 groups */
    assert_int_equal(stats.disk_objects, 10);
    quire_seq *loaded = kit_load(&s, 330, 10000);
    assert_int_equal(quire_seq_length(loaded), 320);
    assert_true(kit_sight(&s, computed) == kit_sight(&s, loaded));
    quire_seq *other = kit_load(&s, 200, 10000); /* not a whole number of pages */
    assert_int_equal(quire_seq_length(other), 192);
    quire_seq_destroy(computed);
    quire_seq_destroy(loaded);
    quire_seq_destroy(other);
    kit_scene_end(&s);
    quire_store_close(store);

    store = kit_open(dir, KIT_CAP, NULL); /* and again, reopened */
    kit_scene_begin(&s, store, "k4v4", 1);
    computed = kit_compute(&s, 320, false);
    loaded = kit_load(&s, 320, 10000);
    assert_true(kit_sight(&s, computed) == kit_sight(&s, loaded));
    quire_seq_destroy(computed);
    quire_seq_destroy(loaded);
    kit_scene_end(&s);
    quire_store_close(store);
    kit_remove(dir);
}

/* A loaded sequence goes on as the computed one does: from its pages, and from a prefix that is extended. */
static void goes_on(void **state)
{
    (void)state;
    char *dir = kit_directory(NULL);
    kit_scene s;
    quire_store *store = kit_open(dir, KIT_CAP, NULL);
    kit_scene_begin(&s, store, "r5/r3", 2);
    quire_seq *computed = kit_compute(&s, 256, true);
    assert_int_equal(quire_store_flush(store, 10000), QUIRE_OK);
    quire_seq *loaded = kit_load(&s, 128, 10000);
    assert_int_equal(quire_seq_length(loaded), 128);
    quire_load *load = NULL; /* two pages are there, two come */
    quire_prompt p = kit_prompt(&s, 256);
    assert_int_equal(quire_load_begin(&load, s.ns, &p, loaded, 10000), QUIRE_OK);
    uint32_t n = 0;
    assert_int_equal(quire_load_end(load, &n), QUIRE_OK);
    assert_int_equal(n, 256);
    assert_true(kit_sight(&s, computed) == kit_sight(&s, loaded));
    assert_int_equal(kit_append(s.pool, &s.g, computed, 50, s.seed), QUIRE_OK);
    assert_int_equal(kit_append(s.pool, &s.g, loaded, 50, s.seed), QUIRE_OK);
    assert_true(kit_sight(&s, computed) == kit_sight(&s, loaded));
    assert_int_equal(quire_load_begin(&load, s.ns, &p, loaded, 10),
                     QUIRE_EINVAL); /* not at the end of a page */
    quire_seq_destroy(computed);
    quire_seq_destroy(loaded);
    kit_scene_end(&s);
    quire_store_close(store);
    kit_remove(dir);
}

/* A ring keeps its sinks and its last pages only; both come back. */
static void rings(void **state)
{
    (void)state;
    char *dir = kit_directory(NULL);
    kit_scene s;
    quire_geometry g = kit_geometry(2, 32, 32);
    quire_store *store = kit_open(dir, KIT_CAP, NULL);
    kit_scene_begin_with(&s, store, &g, "r4", 3, 200, 70);
    quire_seq *computed = kit_compute(&s, 640, true);
    assert_int_equal(quire_store_flush(store, 10000), QUIRE_OK);
    for (uint32_t n = 64; n <= 640; n += 64) {
        quire_seq *loaded = kit_load(&s, n, 10000), *whole = kit_compute(&s, n, false);
        assert_int_equal(quire_seq_length(loaded), n);
        assert_true(kit_sight(&s, whole) == kit_sight(&s, loaded));
        assert_int_equal(kit_append(s.pool, &s.g, whole, 9, s.seed), QUIRE_OK);
        assert_int_equal(kit_append(s.pool, &s.g, loaded, 9, s.seed), QUIRE_OK);
        assert_true(kit_sight(&s, whole) == kit_sight(&s, loaded));
        quire_seq_destroy(loaded);
        quire_seq_destroy(whole);
    }
    quire_seq *plain = NULL; /* another ring is another namespace */
    quire_load *load = NULL;
    quire_prompt p = kit_prompt(&s, 64);
    assert_int_equal(quire_seq_create(&plain, s.pool, NULL), QUIRE_OK);
    assert_int_equal(quire_load_begin(&load, s.ns, &p, plain, 10), QUIRE_EMISMATCH);
    assert_int_equal(quire_namespace_save(s.ns, &p, plain), QUIRE_EMISMATCH);
    quire_seq_destroy(plain);
    quire_seq_destroy(computed);
    kit_scene_end(&s);
    quire_store_close(store);
    kit_remove(dir);
}

static void lookups(void **state)
{
    (void)state;
    char *dir = kit_directory(NULL);
    kit_scene s;
    uint32_t n = 7;
    quire_store *store = kit_open(dir, KIT_CAP, NULL);
    kit_scene_begin(&s, store, "k8v4", 4);
    quire_prompt p = kit_prompt(&s, 400);
    assert_int_equal(quire_namespace_lookup(s.ns, &p, 0, &n), QUIRE_OK);
    assert_int_equal(n, 0);
    quire_seq *computed = kit_compute(&s, 300, true);
    assert_int_equal(quire_store_flush(store, 10000), QUIRE_OK);
    assert_int_equal(quire_namespace_lookup(s.ns, &p, 0, &n), QUIRE_OK);
    assert_int_equal(n, 256);
    s.tokens[130] ^= 1; /* another text from the third page on */
    assert_int_equal(quire_namespace_lookup(s.ns, &p, 100, &n), QUIRE_OK);
    assert_int_equal(n, 128);
    quire_media m = {.position = 5, .digest = {1}};
    p.media = &m;
    p.media_stride = sizeof m;
    p.n_media = 1;
    assert_int_equal(quire_namespace_lookup(s.ns, &p, 0, &n), QUIRE_OK);
    assert_int_equal(n, 0);
    quire_seq_destroy(computed);
    kit_scene_end(&s);
    quire_store_close(store);
    kit_remove(dir);
}

/* One conversation after the other until the cap has been filled several times; the pinned one stays. */
static void pins_and_recency(void **state)
{
    (void)state;
    char *dir = kit_directory(NULL);
    kit_scene s, pinned;
    uint64_t cap = 16u << 20;
    uint32_t n;
    quire_geometry g = kit_geometry(8, 128, 128);
    quire_store *store = kit_open(dir, cap, NULL);
    kit_scene_begin_with(&pinned, store, &g, "f16", 100, 0, 0);
    quire_seq *seq = kit_compute(&pinned, 128, true);
    quire_seq_destroy(seq);
    quire_prompt p = kit_prompt(&pinned, 128);
    assert_int_equal(quire_namespace_pin(pinned.ns, &p, 1, 10000, &n), QUIRE_OK);
    assert_int_equal(n, 128);
    assert_int_equal(kit_stats(store).pinned_objects, 4);
    kit_scene_begin_with(&s, store, &g, "f16", 5, 0, 0);
    for (uint32_t round = 0; round < 24; round++) {
        s.seed = 1000 + round;
        for (uint32_t i = 0; i < 256; i++) s.tokens[i] = s.tokens[i] * 31 + round;
        seq = kit_compute(&s, 192, true);
        quire_seq_destroy(seq);
        assert_int_equal(quire_store_flush(store, 20000), QUIRE_OK);
        assert_true(kit_directory_bytes(dir) <= cap);
        p = kit_prompt(&s, 192);
        assert_int_equal(quire_namespace_lookup(s.ns, &p, 0, &n), QUIRE_OK);
        assert_int_equal(n, 192);
    }
    quire_store_stats stats = kit_stats(store);
    assert_true(stats.evicted > 20);
    assert_int_equal(stats.failed[0] + stats.dropped[0], 0);
    assert_true(stats.disk_bytes <= cap && stats.disk_bytes == kit_directory_bytes(dir));
    p = kit_prompt(&pinned, 128);
    assert_int_equal(quire_namespace_lookup(pinned.ns, &p, 0, &n), QUIRE_OK);
    assert_int_equal(n, 128);
    assert_int_equal(quire_namespace_pin(pinned.ns, &p, 0, 10000, NULL), QUIRE_OK);
    assert_int_equal(kit_stats(store).pinned_objects, 0);
    kit_scene_end(&s);
    kit_scene_end(&pinned);
    quire_store_close(store);
    kit_remove(dir);
}

/* Pages at the start of a prompt outlive those at its end. */
static void parents_last(void **state)
{
    (void)state;
    char *dir = kit_directory(NULL);
    kit_scene s;
    quire_geometry g = kit_geometry(8, 128, 128);
    quire_store *store = kit_open(dir, 16u << 20, NULL);
    kit_scene_begin_with(&s, store, &g, "f16", 6, 0, 0);
    quire_seq *seq = kit_compute(&s, 2048, true); /* more than fits: 32 pages of 0.75 MiB in two groups */
    assert_int_equal(quire_store_flush(store, 20000), QUIRE_OK);
    quire_prompt p = kit_prompt(&s, 2048);
    uint32_t n = 0;
    assert_int_equal(quire_namespace_lookup(s.ns, &p, 0, &n), QUIRE_OK);
    /* What is left of both groups is a leading run, so something can be loaded, but not all. */
    assert_true(n >= 128 && n < 2048);
    quire_seq_destroy(seq);
    kit_scene_end(&s);
    quire_store_close(store);
    kit_remove(dir);
}

static void *no_memory(void *ctx, size_t bytes)
{
    (void)ctx, (void)bytes;
    return NULL;
}

/* Whatever is wrong with the options, the caller is told in words. */
static void refused_with_a_sentence(quire_store_options good)
{
    quire_allocator half = {.size = sizeof half, .alloc = no_memory};
    quire_store_remote no_size = {.host = "localhost"};
    quire_store_remote many = {.size = sizeof many, .host = "localhost", .connections = 65};
    quire_store_options bad[6];
    for (int i = 0; i < 6; i++) bad[i] = good;
    bad[0].directory = NULL;
    bad[1].disk_threads = 65;
    bad[2].seal_disk = 2;
    bad[3].allocator = &half;
    bad[4].remote = &no_size;
    bad[5].remote = &many;
    for (int i = 0; i < 6; i++) {
        quire_store *store = NULL;
        good.message[0] = 0;
        assert_int_equal(quire_store_open(&store, &bad[i]), QUIRE_EINVAL);
        if (!good.message[0]) fail_msg("options %d are refused without a sentence", i);
    }
}

static void refusals(void **state)
{
    (void)state;
    char *dir = kit_directory(NULL), message[200];
    quire_store_options o = kit_options(dir, KIT_CAP, NULL);
    quire_store *store = NULL, *second = NULL;
    o.message = message;
    o.message_size = sizeof message;
    o.disk_bytes = 1 << 20;
    assert_int_equal(quire_store_open(&store, &o), QUIRE_EINVAL);
    assert_true(*message);
    o.disk_bytes = KIT_CAP;
    o.directory = "/proc/nothing/here";
    assert_int_equal(quire_store_open(&store, &o), QUIRE_EIO);
    o.directory = NULL;
    assert_int_equal(quire_store_open(&store, &o), QUIRE_EINVAL);
    o.directory = dir;
    refused_with_a_sentence(o);
    assert_int_equal(quire_store_open(&store, &o), QUIRE_OK);
    assert_int_equal(quire_store_open(&second, &o), QUIRE_EBUSY);
    struct stat st;
    char path[512];
    const char *const names[] = {"quire-store", "index"};
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 0777, 0600);
    }
    quire_store_close(store);
    snprintf(path, sizeof path, "%s/quire-store", dir); /* a later version */
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    fseek(f, 8, SEEK_SET);
    const uint8_t version[8] = {9, 0, 0, 0, 0xf6, 0xff, 0xff, 0xff};
    assert_int_equal(fwrite(version, 1, 8, f), 8);
    fclose(f);
    assert_int_equal(quire_store_open(&store, &o), QUIRE_EVERSION);
    kit_remove(dir);

    dir = kit_directory(NULL); /* somebody else's files */
    snprintf(path, sizeof path, "%s/quire-store", dir);
    f = fopen(path, "wb");
    fputs("this is a letter to the editor, long enough", f);
    fclose(f);
    o.directory = dir;
    assert_int_equal(quire_store_open(&store, &o), QUIRE_EIO);
    kit_remove(dir);
}

/* The cap given at the next opening holds from then on. */
static void another_cap(void **state)
{
    (void)state;
    char *dir = kit_directory(NULL);
    quire_geometry g = kit_geometry(8, 128, 128);
    const uint64_t caps[] = {64u << 20, 33u << 20, 16u << 20, 128u << 20, 20u << 20};
    for (size_t i = 0; i < sizeof caps / sizeof *caps; i++) {
        kit_scene s;
        quire_store *store = kit_open(dir, caps[i], NULL);
        kit_scene_begin_with(&s, store, &g, "f16", 7 + i, 0, 0);
        quire_seq *seq = kit_compute(&s, 1600, true);
        assert_int_equal(quire_store_flush(store, 20000), QUIRE_OK);
        assert_true(kit_directory_bytes(dir) <= caps[i]);
        quire_seq_destroy(seq);
        kit_scene_end(&s);
        quire_store_close(store);
    }
    kit_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip), cmocka_unit_test(goes_on),          cmocka_unit_test(rings),
        cmocka_unit_test(lookups),    cmocka_unit_test(pins_and_recency), cmocka_unit_test(parents_last),
        cmocka_unit_test(refusals),   cmocka_unit_test(another_cap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
