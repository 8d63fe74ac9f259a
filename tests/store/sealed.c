/* SPDX-License-Identifier: MIT */
/*
 * Pages that are encrypted on disk: they come back bit for bit, no file holds their bytes, damage is a miss, and they can be verified
 * and moved without the secret.
 *   store_sealed cost [DIRECTORY]      what it costs to save and load
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store/disk_inside.h"
#include "store/kit/file_kit.h"
#include "store/kit/tenant_kit.h"
#include "store/seal.h"
#include "store/store.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static quire_store *open_store(const char *dir, uint64_t cap, bool seal)
{
    quire_store_options o = kit_options(dir, cap, NULL);
    quire_store *store = NULL;
    o.seal_disk = seal;
    KIT_REQUIRE(!quire_store_open(&store, &o));
    return store;
}

/* ------------------------------------------------------------------ objects */

static quire_object_id object_id(uint64_t bytes)
{
    quire_object_id id = {.group = 1, .page_index = 2, .bytes = bytes, .fingerprint = 99};
    memset(id.root.byte, 1, 32);
    memset(id.key.byte, 2, 32);
    memset(id.parent.byte, 3, 32);
    memset(id.object.byte, 4, 32);
    return id;
}

/* Every bit of what is bound to the payload. */
static void payloads(void **state)
{
    (void)state;
    const size_t sizes[] = {1, 15, 16, 1000, 200000};
    quire_allocator a = quire_mem_allocator(NULL);
    quire_sealer *sealer = quire_sealer_create(&a);
    quire_key key = {{7}}, other = {{8}};
    for (size_t k = 0; k < 5; k++) {
        size_t n = sizes[k];
        uint8_t *plain = (uint8_t *)malloc(n), *sealed = (uint8_t *)malloc(n), *out = (uint8_t *)malloc(n);
        uint8_t header[QUIRE_OBJECT_HEADER], bad[QUIRE_OBJECT_HEADER], second[QUIRE_OBJECT_HEADER];
        quire_object_id id = object_id(n), wrong;
        for (size_t i = 0; i < n; i++) plain[i] = (uint8_t)(i * 13);
        assert_true(quire_seal_payload_begin(sealer, header, &key, &id));
        assert_true(quire_seal_payload_part(sealer, sealed, plain, n / 2));
        assert_true(quire_seal_payload_part(sealer, sealed + n / 2, plain + n / 2, n - n / 2));
        assert_true(quire_seal_payload_end(sealer, header));
        assert_true(quire_object_is_sealed(header));
        assert_int_equal(quire_object_check_header(header, QUIRE_OBJECT_HEADER + n, &id), QUIRE_MISS_NONE);
        quire_payload_hash h;
        quire_payload_begin(&h);
        quire_payload_add(&h, sealed, n);
        assert_int_equal(quire_object_check_payload(header, &h), QUIRE_MISS_NONE);
        memcpy(out, sealed, n);
        assert_int_equal(quire_unseal_payload(out, &key, &id, header, NULL), QUIRE_MISS_NONE);
        assert_memory_equal(out, plain, n);
        /* The nonce is new every time. */
        assert_true(quire_seal_payload_begin(sealer, second, &key, &id));
        assert_memory_not_equal(quire_object_nonce(header), quire_object_nonce(second), QUIRE_PAYLOAD_NONCE);
        memcpy(out, sealed, n);
        assert_int_equal(quire_unseal_payload(out, &other, &id, header, NULL), QUIRE_MISS_SEAL);
        wrong = id;
        wrong.object.byte[31] ^= 1;
        memcpy(out, sealed, n);
        assert_int_equal(quire_unseal_payload(out, &key, &wrong, header, NULL), QUIRE_MISS_SEAL);
        for (uint32_t bit = 0; bit < 8 * n && k < 4; bit++) {
            memcpy(out, sealed, n);
            out[bit / 8] ^= (uint8_t)(1 << bit % 8);
            assert_int_equal(quire_unseal_payload(out, &key, &id, header, NULL), QUIRE_MISS_SEAL);
        }
        for (uint32_t at = 0; at < 184; at++) { /* 144 to 159 is the outer hash, which others check */
            if (at >= QUIRE_OBJECT_BOUND && at < 160) continue;
            memcpy(bad, header, sizeof bad);
            bad[at] ^= 0x10;
            memcpy(out, sealed, n);
            assert_int_equal(quire_unseal_payload(out, &key, &id, bad, NULL), QUIRE_MISS_SEAL);
        }
        atomic_bool stop = true;
        assert_int_equal(quire_unseal_payload(out, &key, &id, header, &stop), QUIRE_MISS_DEADLINE);
        free(plain);
        free(sealed);
        free(out);
    }
    quire_sealer_destroy(sealer);
}

/* --------------------------------------------------------------- directories */

static quire_status count_sealed(void *ctx, const quire_object_info *info, const void *bytes, size_t n)
{
    uint64_t *count = (uint64_t *)ctx;
    assert_int_equal(info->damage, QUIRE_MISS_NONE);
    assert_non_null(bytes);
    assert_int_equal(n, QUIRE_OBJECT_HEADER + info->payload_bytes);
    count[info->sealed]++;
    return QUIRE_OK;
}

static void round_trip(void **state)
{
    (void)state;
    char *dir = kit_directory(NULL), path[512];
    const size_t sizes[] = {5000, 300000, 5u << 20}; /* the last is written in several parts */
    quire_store *store = open_store(dir, 256u << 20, true);
    kit_tenant t[3];
    for (int i = 0; i < 3; i++) {
        kit_tenant_begin(&t[i], store, (uint8_t)(i + 1), "tenant", "model", sizes[i]);
        kit_raw_save(&t[i].raw, 3, 5);
    }
    kit_scene scene;
    kit_scene_begin(&scene, store, "k8v4", 4);
    quire_seq *computed = kit_compute(&scene, 300, true);
    kit_tenants_flush(store);
    for (int i = 0; i < 3; i++) assert_int_equal(kit_raw_load(&t[i].raw, 3, 5, 20000), 5);
    quire_seq *loaded = kit_load(&scene, 256, 5000), *whole = kit_compute(&scene, 256, false);
    assert_int_equal(quire_seq_length(loaded), 256);
    assert_true(kit_sight(&scene, loaded) == kit_sight(&scene, whole));
    quire_seq_destroy(loaded);
    quire_seq_destroy(whole);
    quire_seq_destroy(computed);
    kit_scene_end(&scene);
    uint64_t count[2] = {0};
    assert_int_equal(quire_store_each(store, 1, count_sealed, count), QUIRE_OK);
    assert_int_equal(count[0], 0);
    assert_int_equal(count[1], kit_stats(store).disk_objects);
    for (int i = 0; i < 3; i++) kit_tenant_end(&t[i]);
    quire_store_close(store);
    for (int i = 0; i < 3; i++)
        for (uint32_t page = 0; page < 5; page++) assert_false(kit_is_in_files(dir, &t[i], 3, page));

    /* Read by a process that does not seal, also with a new index. */
    for (int round = 0; round < 2; round++) {
        store = open_store(dir, 0, false);
        kit_wait_for_scan(store);
        for (int i = 0; i < 3; i++) {
            kit_tenant_begin(&t[i], store, (uint8_t)(i + 1), "tenant", "model", sizes[i]);
            assert_int_equal(kit_raw_load(&t[i].raw, 3, 5, 20000), 5);
            kit_tenant_end(&t[i]);
        }
        quire_store_close(store);
        snprintf(path, sizeof path, "%s/index", dir);
        if (!round) assert_int_equal(unlink(path), 0);
    }
    kit_remove(dir);
}

/* Sealed pages come to lie beside others. Those that are not sealed are read without the setting alone: with it, whoever can write to the
 * directory could have made them. They are removed when they are asked for, and replaced when they are saved again. */
static void switch_around(bool loads)
{
    char *dir = kit_directory(NULL);
    kit_tenant t;
    for (uint64_t round = 0; round < 4; round++) {
        bool seals = round % 2 == 1;
        quire_store *store = open_store(dir, KIT_CAP, seals);
        kit_tenant_begin(&t, store, 1, "tenant", "model", 20000);
        for (uint64_t text = 0; text < round && loads; text++) /* the last one was not sealed */
            assert_int_equal(kit_raw_load(&t.raw, text, 6, 5000), seals && text + 1 == round ? 0 : 6);
        kit_tenants_flush(store);
        for (uint64_t text = 0; text <= round; text++)
            kit_raw_save(&t.raw, text, 6); /* again, if it has to be */
        kit_tenants_flush(store);
        for (uint64_t text = 0; text <= round; text++)
            assert_int_equal(kit_raw_load(&t.raw, text, 6, 5000), 6);
        uint64_t count[2] = {0};
        assert_int_equal(quire_store_each(store, 1, count_sealed, count), QUIRE_OK);
        assert_int_equal(count[0], seals ? 0 : 6);
        assert_int_equal(count[1], seals ? (round + 1) * 6 : round * 6);
        kit_tenant_end(&t);
        quire_store_close(store);
        assert_int_equal(kit_is_in_files(dir, &t, round, 3), !seals);
    }
    kit_remove(dir);
}

static void switching(void **state)
{
    (void)state;
    switch_around(true);
    switch_around(false);
}

static quire_status move(void *ctx, const quire_object_info *info, const void *bytes, size_t n)
{
    (void)info;
    return quire_store_put_object((quire_store *)ctx, bytes, n);
}

/* To another directory without the secret: export and import do the same. */
static void moving(void **state)
{
    (void)state;
    char *from = kit_directory(NULL), *to = kit_directory(NULL);
    kit_tenant t;
    quire_store *store = open_store(from, KIT_CAP, true), *second = open_store(to, KIT_CAP, false);
    kit_tenant_begin(&t, store, 1, "tenant", "model", 20000);
    kit_raw_save(&t.raw, 1, 6);
    kit_tenants_flush(store);
    assert_int_equal(quire_store_each(store, 1, move, second), QUIRE_OK);
    kit_tenant_end(&t);
    quire_store_close(store);
    kit_tenant_begin(&t, second, 1, "tenant", "model", 20000);
    assert_int_equal(kit_verify(second), 6);
    assert_int_equal(kit_raw_load(&t.raw, 1, 6, 5000), 6);
    kit_tenant_end(&t);
    quire_store_close(second);
    assert_false(kit_is_in_files(to, &t, 1, 3));
    kit_remove(from);
    kit_remove(to);
}

/* ------------------------------------------------------------------- damage */

static quire_entry entry_of(quire_store *store, const quire_key *object)
{
    quire_entry e;
    quire_index_rc rc;
    quire_index *ix = quire_disk_begin_read(store->disk, &rc);
    assert_non_null(ix);
    rc = quire_index_find(ix, object, &e);
    assert_int_equal(quire_disk_end_read(store->disk, ix, rc), QUIRE_INDEX_OK);
    return e;
}

/* The record of a page, as it lies on disk. */
typedef struct stored {
    quire_disk *disk;
    quire_place place;
    quire_slab *slab;
    quire_buffer b;
} stored;

static stored take_stored(quire_store *store, const quire_key *object)
{
    stored s = {.disk = store->disk, .place = entry_of(store, object).place};
    s.slab = quire_slab_take(&s.disk->slabs, s.place.slab);
    assert_true(s.slab && quire_buffer_create(&s.b, &s.disk->allocator, (size_t)s.place.bytes));
    assert_int_equal(quire_slab_read(s.slab, s.b.bytes, (size_t)s.place.bytes, s.place.at), QUIRE_MISS_NONE);
    return s;
}

static void put_stored(stored *s)
{
    assert_true(quire_slab_write(s->slab, s->b.bytes, (size_t)s->place.bytes, s->place.at));
    quire_slab_give(&s->disk->slabs, s->slab);
    quire_buffer_destroy(&s->b, &s->disk->allocator);
}

/* Changes a byte of a page's payload; forge: header and MAC are made to fit, as someone with the directory's key could. */
static void change_payload(quire_store *store, const quire_key *object, size_t payload_bytes, size_t at,
                           bool forge)
{
    stored s = take_stored(store, object);
    s.b.bytes[QUIRE_BLOCK + at] ^= 4;
    if (forge) {
        quire_record r;
        quire_payload_hash h;
        uint8_t header[QUIRE_OBJECT_HEADER], tag[QUIRE_PAYLOAD_TAG];
        assert_int_equal(quire_record_read(&r, s.b.bytes, s.disk->mac, &s.place), QUIRE_MISS_NONE);
        memcpy(header, s.b.bytes + QUIRE_RECORD_OBJECT, sizeof header);
        memcpy(tag, quire_object_tag(header), sizeof tag);
        quire_payload_begin(&h);
        quire_payload_add(&h, s.b.bytes + QUIRE_BLOCK, payload_bytes);
        quire_object_end_sealed(header, tag, &h);
        assert_true(quire_record_write(s.b.bytes, s.disk->mac, &r, header));
    }
    put_stored(&s);
}

/* Puts a page that is not sealed, of other bytes, in the place of one: the directory has all that is needed for it but the secret. */
static void replace_by_plain(quire_store *store, const quire_key *object, size_t payload_bytes)
{
    stored s = take_stored(store, object);
    quire_record r;
    quire_payload_hash h;
    quire_object_info info;
    uint8_t header[QUIRE_OBJECT_HEADER];
    assert_int_equal(quire_record_read(&r, s.b.bytes, s.disk->mac, &s.place), QUIRE_MISS_NONE);
    assert_int_equal(
        quire_object_read_header(s.b.bytes + QUIRE_RECORD_OBJECT, QUIRE_OBJECT_HEADER + payload_bytes, &info),
        QUIRE_MISS_NONE);
    quire_object_id id = {.group = info.group,
                          .page_index = info.page_index,
                          .bytes = info.payload_bytes,
                          .fingerprint = info.fingerprint};
    memcpy(id.root.byte, info.root, 32);
    memcpy(id.key.byte, info.key, 32);
    memcpy(id.parent.byte, info.parent, 32);
    memset(s.b.bytes + QUIRE_BLOCK, 0x5a, payload_bytes);
    quire_payload_begin(&h);
    quire_payload_add(&h, s.b.bytes + QUIRE_BLOCK, payload_bytes);
    quire_object_write_header(header, &id, &h);
    assert_true(quire_record_write(s.b.bytes, s.disk->mac, &r, header));
    put_stored(&s);
}

static void forged_plain(void **state)
{
    (void)state;
    char *dir = kit_directory(NULL);
    quire_store *store = open_store(dir, KIT_CAP, true);
    kit_tenant t;
    quire_key objects[4];
    kit_tenant_begin(&t, store, 1, "tenant", "model", 20000);
    kit_raw_objects(&t.raw, 1, 4, NULL, objects);
    for (uint32_t i = 0; i < 4; i++) {
        kit_raw_save(&t.raw, 1, 4);
        kit_tenants_flush(store);
        assert_int_equal(kit_raw_load(&t.raw, 1, 4, 5000), 4);
        uint64_t before = kit_stats(store).misses[QUIRE_MISS_SEAL];
        replace_by_plain(store, &objects[i], 20000);
        assert_int_equal(kit_raw_load(&t.raw, 1, 4, 5000), i);
        assert_int_equal(kit_stats(store).misses[QUIRE_MISS_SEAL], before + 1);
        kit_tenants_flush(store);
        assert_int_equal(kit_verify(store), 3); /* it was removed */
    }
    kit_tenant_end(&t);
    quire_store_close(store);
    kit_remove(dir);
}

static quire_status note_damage(void *ctx, const quire_object_info *info, const void *bytes, size_t n)
{
    (void)bytes;
    (void)n;
    ((uint64_t *)ctx)[info->damage]++;
    return QUIRE_OK;
}

static void damage(void **state)
{
    (void)state;
    char *dir = kit_directory(NULL);
    quire_store *store = open_store(dir, KIT_CAP, true);
    kit_tenant t;
    quire_key objects[8];
    kit_tenant_begin(&t, store, 1, "tenant", "model", 20000);
    kit_raw_objects(&t.raw, 1, 8, NULL, objects);
    for (uint32_t i = 0; i < 24; i++) {
        bool forge = i % 2;
        kit_raw_save(&t.raw, 1, 8);
        kit_tenants_flush(store);
        assert_int_equal(kit_raw_load(&t.raw, 1, 8, 5000), 8);
        uint64_t before[2] = {kit_stats(store).misses[QUIRE_MISS_PAYLOAD],
                              kit_stats(store).misses[QUIRE_MISS_SEAL]},
                 found[QUIRE_MISS_COUNT] = {0};
        change_payload(store, &objects[i % 8], 20000, i * 831, forge);
        assert_int_equal(quire_store_each(store, 1, note_damage, found), QUIRE_OK);
        assert_int_equal(found[QUIRE_MISS_PAYLOAD],
                         !forge); /* who has no secret cannot see what was forged */
        assert_int_equal(kit_raw_load(&t.raw, 1, 8, 5000), i % 8);
        assert_int_equal(kit_stats(store).misses[QUIRE_MISS_PAYLOAD], before[0] + !forge);
        assert_int_equal(kit_stats(store).misses[QUIRE_MISS_SEAL], before[1] + forge);
        kit_tenants_flush(store);
        assert_int_equal(kit_verify(store), 7); /* it was removed, and is saved again */
    }
    kit_tenant_end(&t);
    quire_store_close(store);
    kit_remove(dir);
}

/* --------------------------------------------------------------------- cost */

static double cpu_seconds(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* CPU seconds for writing and reading some pages of 2.25 MiB; the best of several rounds. */
static int cost(const char *parent)
{
    enum { PAGES = 24, ROUNDS = 3 };
    const size_t bytes = 2359296 - 4096;
    uint8_t *page = (uint8_t *)malloc(bytes);
    quire_owner owner = {.seal_key = {{5}}};
    double best[2][2] = {{1e9, 1e9}, {1e9, 1e9}};
    KIT_REQUIRE(page);
    for (size_t i = 0; i < bytes; i++) page[i] = (uint8_t)(i * i >> 7);
    for (int round = 0; round < 2 * ROUNDS; round++) {
        int seal = round % 2;
        char *dir = kit_directory(parent);
        quire_store *store = open_store(dir, 1ull << 30, false);
        quire_disk_put puts[PAGES];
        for (uint32_t i = 0; i < PAGES; i++) {
            puts[i] = (quire_disk_put){.id = object_id(bytes), .payload = page, .seal = seal != 0};
            puts[i].id.object.byte[0] = (uint8_t)i;
            puts[i].id.owner = &owner;
        }
        double begin = cpu_seconds();
        KIT_REQUIRE(quire_disk_write(store->disk, puts, PAGES));
        double took = cpu_seconds() - begin;
        if (took < best[seal][0]) best[seal][0] = took;
        begin = cpu_seconds();
        for (uint32_t i = 0; i < PAGES; i++)
            KIT_REQUIRE(!quire_disk_read(store->disk, &puts[i].id, page, NULL));
        took = cpu_seconds() - begin;
        if (took < best[seal][1]) best[seal][1] = took;
        quire_store_close(store);
        kit_remove(dir);
    }
    for (int k = 0; k < 2; k++)
        printf("%s: %.2f GB per CPU second plain, %.2f sealed, %.2f ms more per page of 2.25 MiB\n",
               k ? "load" : "save", PAGES * (double)bytes / best[0][k] / 1e9,
               PAGES * (double)bytes / best[1][k] / 1e9, (best[1][k] - best[0][k]) / PAGES * 1e3);
    free(page);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "cost")) return cost(argc > 2 ? argv[2] : NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(payloads), cmocka_unit_test(round_trip), cmocka_unit_test(switching),
        cmocka_unit_test(moving),   cmocka_unit_test(damage),     cmocka_unit_test(forged_plain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
