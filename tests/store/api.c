/* SPDX-License-Identifier: MIT */
/* The interface: arguments, bounds that hold (queue, pool, daily budget, deadline), administration. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store/base.h"
#include "store/kit/raw_kit.h"

#include <stdlib.h>
#include <string.h>

static void arguments(void **state)
{
    (void)state;
    char *dir = kit_directory(NULL);
    quire_store *store = kit_open(dir, KIT_CAP, NULL);
    kit_scene s;
    kit_scene_begin(&s, store, "k4v4", 1);
    quire_namespace *ns = NULL;
    quire_identity id = kit_identity(1);
    quire_prompt p = kit_prompt(&s, 128), bad = p;
    quire_media media[2] = {{.position = 9}, {.position = 9}};
    quire_seq *seq = kit_compute(&s, 128, false);
    quire_load *load = NULL;
    uint32_t n = 77;
    uint8_t bytes[100] = {0};
    assert_int_equal(quire_store_open(NULL, NULL), QUIRE_EINVAL);
    assert_int_equal(quire_namespace_create(&ns, store, NULL, s.plan, NULL), QUIRE_EINVAL);
    assert_int_equal(quire_namespace_create(&ns, store, &id, NULL, NULL), QUIRE_EINVAL);
    assert_int_equal(quire_namespace_create(&ns, NULL, &id, s.plan, NULL), QUIRE_EINVAL);
    quire_seq_options ring = {sizeof(quire_seq_options), .max_tokens = 100, .sinks = 100};
    assert_int_equal(quire_namespace_create(&ns, store, &id, s.plan, &ring), QUIRE_EINVAL);
    assert_int_equal(quire_namespace_create_raw(&ns, store, &id, "", 100), QUIRE_EINVAL);
    assert_int_equal(quire_namespace_create_raw(&ns, store, &id, "x", 0), QUIRE_EINVAL);
    id.size = 0;
    assert_int_equal(quire_namespace_create(&ns, store, &id, s.plan, NULL), QUIRE_EINVAL);
    id = kit_identity(1);
    id.tokenizer = "";
    assert_int_equal(quire_namespace_create(&ns, store, &id, s.plan, NULL), QUIRE_EINVAL);
    bad.n_tokens = 100;
    assert_int_equal(quire_namespace_save(s.ns, &bad, seq), QUIRE_EINVAL); /* shorter than the sequence */
    bad = p;
    bad.tokens = NULL;
    assert_int_equal(quire_namespace_lookup(s.ns, &bad, 0, &n), QUIRE_EINVAL);
    bad = p;
    bad.media = media;
    bad.media_stride = sizeof *media;
    bad.n_media = 2;
    assert_int_equal(quire_namespace_lookup(s.ns, &bad, 0, &n), QUIRE_EINVAL); /* not ascending */
    media[1].position = 128;
    assert_int_equal(quire_namespace_lookup(s.ns, &bad, 0, &n), QUIRE_EINVAL); /* outside */
    assert_int_equal(n, 77);
    assert_int_equal(quire_load_begin(&load, s.ns, &p, NULL, 10), QUIRE_EINVAL);
    assert_int_equal(quire_load_begin(NULL, s.ns, &p, seq, 10), QUIRE_EINVAL);
    bad = kit_prompt(&s, 64);
    assert_int_equal(quire_load_begin(&load, s.ns, &bad, seq, 10), QUIRE_EINVAL); /* the sequence is longer */
    assert_int_equal(quire_load_end(NULL, &n), QUIRE_EINVAL);
    assert_int_equal(quire_namespace_save_raw(s.ns, &p, 0, bytes), QUIRE_EINVAL); /* not raw */
    quire_seq_destroy(seq);
    kit_scene_end(&s);
    kit_raw raw;
    kit_raw_begin(&raw, store, sizeof bytes);
    assert_int_equal(quire_namespace_save_raw(raw.ns, &p, 2, bytes), QUIRE_EINVAL); /* beyond the prompt */
    kit_raw_end(&raw);
    assert_int_equal(quire_store_each(store, 0, NULL, NULL), QUIRE_EINVAL);
    quire_namespace_destroy(NULL);
    quire_store_close(NULL);
    quire_store_close(store);
    for (int i = 0; i < QUIRE_MISS_COUNT; i++)
        assert_true(*quire_miss_name((quire_miss)i) && *quire_miss_text((quire_miss)i) &&
                    *quire_miss_name((quire_miss)i) != '?');
    kit_remove(dir);
}

/* A pool with little room gets the leading run that fits. */
static void little_room(void **state)
{
    (void)state;
    char *dir = kit_directory(NULL);
    quire_store *store = kit_open(dir, KIT_CAP, NULL);
    kit_scene s;
    quire_geometry g = {sizeof(quire_geometry), .n_layers = 2, .n_q_heads = 4,
                        .n_kv_heads = 2,        .d_k = 64,     .d_v = 64};
    kit_scene_begin_with(&s, store, &g, "f16", 1, 0, 0);
    quire_seq_destroy(kit_compute(&s, 640, true));
    assert_int_equal(quire_store_flush(store, 10000), QUIRE_OK);
    quire_pool *small = kit_pool(s.plan, 4 * quire_plan_page_bytes(s.plan, 0) + 4096, NULL);
    quire_seq *seq = NULL;
    quire_load *load = NULL;
    quire_prompt p = kit_prompt(&s, 640);
    uint32_t n = 0;
    assert_int_equal(quire_seq_create(&seq, small, NULL), QUIRE_OK);
    assert_int_equal(quire_load_begin(&load, s.ns, &p, seq, 10000), QUIRE_OK);
    assert_int_equal(quire_load_end(load, &n), QUIRE_OK);
    assert_int_equal(n, 256);
    assert_true(kit_stats(store).misses[QUIRE_MISS_ROOM] > 0);
    quire_seq *whole = kit_compute(&s, 256, false);
    assert_true(kit_sight(&s, whole) == kit_sight(&s, seq));
    quire_seq_destroy(whole);
    quire_seq_destroy(seq);
    kit_scene_end(&s);
    kit_pool_is_empty(small);
    quire_pool_destroy(small);
    quire_store_close(store);
    kit_remove(dir);
}

/* The queue is bounded: what does not fit is dropped at once. */
static void full_queue(void **state)
{
    (void)state;
    char *dir = kit_directory(NULL);
    quire_store_options o = kit_options(dir, KIT_CAP, NULL);
    quire_store *store = NULL;
    kit_raw raw;
    o.queue_bytes = 1 << 20;
    assert_int_equal(quire_store_open(&store, &o), QUIRE_OK);
    kit_raw_begin(&raw, store, 300000);
    uint64_t begin = quire_now();
    for (uint64_t text = 0; text < 20; text++) kit_raw_save(&raw, text, 10);
    uint64_t took = quire_now() - begin;
    assert_true(kit_stats(store).queued_bytes[0] <= 1 << 20);
    assert_int_equal(quire_store_flush(store, 30000), QUIRE_OK);
    quire_store_stats stats = kit_stats(store);
    assert_true(stats.dropped[0] > 0);
    assert_int_equal(stats.saved[0] + stats.dropped[0], 200);
    assert_int_equal(stats.queued_bytes[0], 0);
    print_message("200 pages of 300 kB handed in within %u ms, %u dropped\n", (unsigned)(took / QUIRE_MS),
                  (unsigned)stats.dropped[0]);
    kit_raw_end(&raw);
    quire_store_close(store);
    kit_remove(dir);
}

static void daily_budget(void **state)
{
    (void)state;
    char *dir = kit_directory(NULL);
    quire_store_options o = kit_options(dir, KIT_CAP, NULL);
    quire_store *store = NULL;
    kit_raw raw;
    o.disk_bytes_per_day = 1050000;
    assert_int_equal(quire_store_open(&store, &o), QUIRE_OK);
    kit_raw_begin(&raw, store, 100000);
    for (uint64_t text = 0; text < 30; text++) {
        kit_raw_save(&raw, text, 1);
        assert_int_equal(quire_store_flush(store, 30000), QUIRE_OK);
    }
    quire_store_stats stats = kit_stats(store);
    assert_in_range(stats.saved[0], 10, 20); /* 20 if midnight falls into it */
    assert_int_equal(stats.saved[0] + stats.dropped[0], 30);
    kit_raw_end(&raw);
    quire_store_close(store);
    kit_remove(dir);
}

/* Pages that the disk has already are not written, and take nothing from the limit. */
static void daily_budget_of_known(void **state)
{
    (void)state;
    char *dir = kit_directory(NULL);
    quire_store_options o = kit_options(dir, KIT_CAP, NULL);
    quire_store *store = NULL;
    kit_raw raw;
    o.disk_bytes_per_day = 1050000;
    assert_int_equal(quire_store_open(&store, &o), QUIRE_OK);
    for (int i = 0; i < 30;
         i++) { /* another namespace each time: it does not know what was handed in lately */
        kit_raw_begin(&raw, store, 100000);
        kit_raw_save(&raw, 1, 1);
        assert_int_equal(quire_store_flush(store, 30000), QUIRE_OK);
        kit_raw_end(&raw);
    }
    quire_store_stats stats = kit_stats(store);
    assert_int_equal(stats.saved[0], 1);
    assert_int_equal(stats.known[0], 29);
    assert_int_equal(stats.dropped[0], 0);
    quire_store_close(store);
    kit_remove(dir);
}

/* Memory for everything but the pages of a walk. */
static void *take_little(void *ctx, size_t bytes)
{
    void *ptr = NULL;
    return bytes >= *(const size_t *)ctx || posix_memalign(&ptr, 64, bytes) ? NULL : ptr;
}

static void give_back(void *ctx, void *ptr, size_t bytes)
{
    (void)ctx;
    (void)bytes;
    free(ptr);
}

/* A page that cannot be read because something is lacking is not damaged. */
static void gc_without_memory(void **state)
{
    (void)state;
    char *dir = kit_directory(NULL);
    size_t most = SIZE_MAX;
    quire_allocator a = {.size = sizeof a, .ctx = &most, .alloc = take_little, .free = give_back};
    quire_store_options o = kit_options(dir, KIT_CAP * 4, NULL);
    quire_store *store = NULL;
    kit_raw raw;
    uint64_t n = 1;
    o.allocator = &a;
    a.free = NULL; /* one alone could not be used */
    assert_int_equal(quire_store_open(&store, &o), QUIRE_EINVAL);
    a.free = give_back;
    assert_int_equal(quire_store_open(&store, &o), QUIRE_OK);
    kit_raw_begin(&raw, store, 9 << 20);
    kit_raw_save(&raw, 1, 2);
    assert_int_equal(quire_store_flush(store, 30000), QUIRE_OK);
    most = 8 << 20;
    assert_int_equal(quire_store_gc(store, 0, UINT64_MAX, &n), QUIRE_OK);
    assert_int_equal(n, 0);
    assert_int_equal(kit_stats(store).disk_objects, 2);
    kit_raw_end(&raw);
    quire_store_close(store);
    kit_remove(dir);
}

/* Saving the same again costs nothing, soon and later. */
static void known(void **state)
{
    (void)state;
    char *dir = kit_directory(NULL);
    quire_store *store = kit_open(dir, KIT_CAP, NULL);
    kit_scene s;
    kit_scene_begin(&s, store, "k4v4", 1);
    quire_seq *seq = kit_compute(&s, 256, true);
    quire_prompt p = kit_prompt(&s, 256);
    for (int i = 0; i < 50; i++) assert_int_equal(quire_namespace_save(s.ns, &p, seq), QUIRE_OK);
    assert_int_equal(quire_store_flush(store, 10000), QUIRE_OK);
    quire_store_stats stats = kit_stats(store);
    assert_int_equal(stats.saved[0], 8);
    assert_int_equal(stats.known[0], 0);
    quire_namespace_destroy(s.ns); /* another namespace object has seen nothing */
    quire_identity id = kit_identity(1);
    assert_int_equal(quire_namespace_create(&s.ns, store, &id, s.plan, &s.ring), QUIRE_OK);
    assert_int_equal(quire_namespace_save(s.ns, &p, seq), QUIRE_OK);
    assert_int_equal(quire_store_flush(store, 10000), QUIRE_OK);
    stats = kit_stats(store);
    assert_int_equal(stats.saved[0], 8);
    assert_int_equal(stats.known[0], 5); /* 4 pages, and the 1 of the window that is still held */
    quire_seq_destroy(seq);
    kit_scene_end(&s);
    quire_store_close(store);
    kit_remove(dir);
}

/* ---------------------------------------------------------- administration */

typedef struct copy {
    quire_store *to;
    uint32_t n;
} copy;

static quire_status copy_one(void *ctx, const quire_object_info *info, const void *bytes, size_t n)
{
    copy *c = (copy *)ctx;
    assert_int_equal(info->damage, QUIRE_MISS_NONE);
    assert_true(info->used_us > 1600000000000000u);
    assert_int_equal(quire_store_put_object(c->to, bytes, n), QUIRE_OK);
    uint8_t *bad = malloc(n);
    memcpy(bad, bytes, n);
    bad[n / 2] ^= 1;
    assert_int_equal(quire_store_put_object(c->to, bad, n), QUIRE_EFORMAT);
    assert_int_equal(quire_store_put_object(c->to, bad, 100), QUIRE_EFORMAT);
    free(bad);
    c->n++;
    return QUIRE_OK;
}

static void copy_and_collect(void **state)
{
    (void)state;
    char *dir = kit_directory(NULL), *second = kit_directory(NULL);
    quire_store *a = kit_open(dir, KIT_CAP, NULL), *b = kit_open(second, KIT_CAP, NULL);
    kit_raw raw;
    kit_raw_begin(&raw, a, 70000);
    for (uint64_t text = 0; text < 5; text++) kit_raw_save(&raw, text, 6);
    assert_int_equal(quire_store_flush(a, 10000), QUIRE_OK);
    kit_raw_end(&raw);
    copy c = {.to = b};
    assert_int_equal(quire_store_each(a, 1, copy_one, &c), QUIRE_OK);
    assert_int_equal(c.n, 30);
    kit_raw_begin(&raw, b, 70000);
    for (uint64_t text = 0; text < 5; text++) assert_int_equal(kit_raw_load(&raw, text, 6, 5000), 6);
    uint64_t n = 0;
    assert_int_equal(quire_store_gc(b, 0, UINT64_MAX, &n), QUIRE_OK);
    assert_int_equal(n, 0);
    assert_int_equal(quire_store_gc(b, 0, 1000000, &n), QUIRE_OK);
    assert_in_range(n, 15, 18);
    assert_int_equal(kit_stats(b).disk_objects, 30 - n);
    assert_int_equal(quire_store_gc(b, 3600, UINT64_MAX, &n), QUIRE_OK); /* nothing is that old */
    assert_int_equal(n, 0);
    (void)kit_verify(b);
    kit_raw_end(&raw);
    quire_store_close(a);
    quire_store_close(b);
    kit_remove(dir);
    kit_remove(second);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arguments),
        cmocka_unit_test(little_room),
        cmocka_unit_test(full_queue),
        cmocka_unit_test(daily_budget),
        cmocka_unit_test(daily_budget_of_known),
        cmocka_unit_test(gc_without_memory),
        cmocka_unit_test(known),
        cmocka_unit_test(copy_and_collect),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
