/* SPDX-License-Identifier: MIT */
/* Wrong bytes are never given out: damaged, swapped, foreign, forged and replayed objects are misses with their reason. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store/kit/servers.h"
#include "store/disk_inside.h"
#include "store/namespace.h"
#include "store/seal.h"
#include "store/store.h"
#include "support/random.h"

#include <openssl/evp.h>
#include <string.h>

#define PAGES 3u

/* ----------------------------------------------------------- the disk, from below */

typedef struct bytes {
    uint8_t *data;
    size_t n;
} bytes;

static void keys_of(kit_scene *s, quire_key *objects)
{
    quire_key keys[PAGES];
    quire_prompt p = kit_prompt(s, PAGES * 64);
    assert_int_equal(quire_chain_keys(keys, &s->ns->root, &p, PAGES), QUIRE_OK);
    assert_int_equal(quire_chain_objects(objects, keys, PAGES, 0), QUIRE_OK);
}

static quire_entry entry_of(quire_disk *d, const quire_key *object)
{
    quire_entry e = {0};
    quire_index_rc rc;
    quire_index *ix = quire_disk_begin_read(d, &rc);
    assert_non_null(ix);
    rc = quire_index_find(ix, object, &e);
    assert_int_equal(quire_disk_end_read(d, ix, rc), QUIRE_INDEX_OK);
    return e;
}

/* The record of an object as it lies in its slab. */
static quire_buffer read_record(quire_disk *d, const quire_key *object)
{
    quire_entry e = entry_of(d, object);
    quire_buffer b;
    quire_slab *slab = quire_slab_take(&d->slabs, e.place.slab);
    assert_non_null(slab);
    assert_true(quire_buffer_create(&b, &d->allocator, (size_t)e.place.bytes));
    assert_int_equal(quire_slab_read(slab, b.bytes, (size_t)e.place.bytes, e.place.at), QUIRE_MISS_NONE);
    quire_slab_give(&d->slabs, slab);
    return b;
}

static void write_record(quire_disk *d, const quire_key *object, const void *data)
{
    quire_entry e = entry_of(d, object);
    quire_slab *slab = quire_slab_take(&d->slabs, e.place.slab);
    assert_true(quire_slab_write(slab, data, (size_t)e.place.bytes, e.place.at));
    quire_slab_give(&d->slabs, slab);
}

/* A record with every sum right, in the place of an object. */
static void forge_record(quire_disk *d, const quire_key *place_of, const quire_key *object, uint8_t *block,
                         const uint8_t *header)
{
    quire_entry e = entry_of(d, place_of);
    quire_record r = {.place = e.place, .object = *object};
    uint8_t copy[QUIRE_OBJECT_HEADER];
    memcpy(copy, header, sizeof copy);
    assert_true(quire_record_write(block, d->mac, &r, copy));
}

/* ------------------------------------------------------------------ expectations */

/* Loads everything; PAGES pages of group 0 were saved. Returns the first reason that was counted meanwhile. */
static quire_miss load_reason(kit_scene *s, uint32_t n_expected)
{
    quire_store_stats before = kit_stats(s->store);
    quire_seq *loaded = kit_load(s, PAGES * 64, 10000);
    assert_int_equal(quire_seq_length(loaded), n_expected);
    quire_seq_destroy(loaded);
    quire_store_stats after = kit_stats(s->store);
    for (int i = 1; i < QUIRE_MISS_COUNT; i++)
        if (i != QUIRE_MISS_ABSENT && after.misses[i] > before.misses[i]) return (quire_miss)i;
    return after.misses[QUIRE_MISS_ABSENT] > before.misses[QUIRE_MISS_ABSENT] ? QUIRE_MISS_ABSENT
                                                                              : QUIRE_MISS_NONE;
}

/* Plain geometry: one group. */
static void begin(kit_scene *s, quire_store *store)
{
    quire_geometry g = {sizeof(quire_geometry), .n_layers = 2, .n_q_heads = 4,
                        .n_kv_heads = 2,        .d_k = 64,     .d_v = 64};
    kit_scene_begin_with(s, store, &g, "k4v4", 3, 0, 0);
}

static void save(kit_scene *s)
{
    quire_seq_destroy(kit_compute(s, PAGES * 64, true));
    assert_int_equal(quire_store_flush(s->store, 10000), QUIRE_OK);
}

/* In the place of page 1: a changed record. It is a miss with this reason, page 0 still comes, and the bad object goes. */
static void expect_miss(kit_scene *s, const quire_buffer *good, const void *data, quire_miss reason)
{
    quire_key objects[PAGES];
    keys_of(s, objects);
    write_record(s->store->disk, &objects[1], data);
    quire_miss got = load_reason(s, 64);
    if (reason != QUIRE_MISS_COUNT && got != reason)
        fail_msg("%s, not %s", quire_miss_name(got), quire_miss_name(reason));
    assert_true(got != QUIRE_MISS_NONE && got != QUIRE_MISS_ABSENT);
    assert_int_equal(quire_store_flush(s->store, 10000), QUIRE_OK);
    bool has = false;
    quire_disk_has(s->store->disk, &objects[1], 1, &has);
    assert_false(has);
    const uint8_t *object = good->bytes + QUIRE_RECORD_OBJECT;
    assert_int_equal(quire_store_put_object(s->store, object,
                                            QUIRE_OBJECT_HEADER + (size_t)quire_object_payload_bytes(object)),
                     QUIRE_OK);
}

/* --------------------------------------------------------------------- tests */

static void bits_on_disk(void **state)
{
    (void)state;
    char *dir = kit_directory(NULL);
    quire_store *store = kit_open(dir, KIT_CAP, NULL);
    quire_disk *d = store->disk;
    kit_scene s;
    quire_key objects[PAGES];
    rng r = {99};
    begin(&s, store);
    save(&s);
    keys_of(&s, objects);
    quire_buffer good = read_record(d, &objects[1]), bad = read_record(d, &objects[1]);
    size_t n = (size_t)entry_of(d, &objects[1]).place.bytes;
    size_t payload = (size_t)quire_object_payload_bytes(good.bytes + QUIRE_RECORD_OBJECT);
    for (size_t i = 0; i < QUIRE_BLOCK;
         i += i < 320 || i >= QUIRE_RECORD_OBJECT ? 1 : 97) { /* one bit each */
        if (i >= 160 && i < 176) continue; /* the mark of pinned objects is not part of the page */
        quire_buffer now = read_record(d, &objects[1]); /* it has another place each time */
        now.bytes[i] ^= (uint8_t)(1u << rng_bits(&r) % 8);
        expect_miss(&s, &good, now.bytes,
                    i < 8                                 ? QUIRE_MISS_MAGIC
                    : i >= 304 && i < QUIRE_RECORD_OBJECT ? QUIRE_MISS_RESERVED
                                                          : QUIRE_MISS_HEADER);
        quire_buffer_destroy(&now, &d->allocator);
    }
    for (int i = 0; i < 60; i++) {
        quire_buffer now = read_record(d, &objects[1]);
        size_t at = i == 0 ? 0 : i == 1 ? payload - 1 : rng_bits(&r) % payload;
        now.bytes[QUIRE_BLOCK + at] ^= (uint8_t)(1u << rng_bits(&r) % 8);
        expect_miss(&s, &good, now.bytes, QUIRE_MISS_PAYLOAD);
        quire_buffer_destroy(&now, &d->allocator);
    }
    quire_buffer other = read_record(d, &objects[2]); /* another page's record */
    assert_int_equal(entry_of(d, &objects[2]).place.bytes, n);
    expect_miss(&s, &good, other.bytes, QUIRE_MISS_KEY);
    memset(bad.bytes, 0, n); /* a hole */
    expect_miss(&s, &good, bad.bytes, QUIRE_MISS_MAGIC);
    quire_buffer_destroy(&other, &d->allocator);
    quire_buffer_destroy(&good, &d->allocator);
    quire_buffer_destroy(&bad, &d->allocator);
    assert_int_equal(load_reason(&s, PAGES * 64), QUIRE_MISS_NONE);
    kit_scene_end(&s);
    quire_store_close(store);
    kit_remove(dir);
}

/* A well-formed record (every sum right) with one field that is not what was asked for. */
static void fields(void **state)
{
    (void)state;
    char *dir = kit_directory(NULL);
    quire_store *store = kit_open(dir, KIT_CAP, NULL);
    quire_disk *d = store->disk;
    kit_scene s;
    quire_key keys[PAGES], objects[PAGES];
    begin(&s, store);
    save(&s);
    keys_of(&s, objects);
    quire_prompt p = kit_prompt(&s, PAGES * 64);
    assert_int_equal(quire_chain_keys(keys, &s.ns->root, &p, PAGES), QUIRE_OK);
    quire_buffer good = read_record(d, &objects[1]);
    quire_object_id right = quire_namespace_object(s.ns, keys, &objects[1], 0, 1);
    for (int field = 0; field < 10; field++) {
        quire_object_id id = right;
        quire_buffer bad = read_record(d, &objects[1]);
        quire_key object = objects[1];
        uint8_t header[QUIRE_OBJECT_HEADER];
        static const quire_miss reasons[] = {
            QUIRE_MISS_IDENTITY, QUIRE_MISS_KEY,    QUIRE_MISS_KEY,    QUIRE_MISS_KEY,    QUIRE_MISS_KEY,
            QUIRE_MISS_CODEC,    QUIRE_MISS_LENGTH, QUIRE_MISS_LENGTH, QUIRE_MISS_LENGTH, QUIRE_MISS_KEY};
        if (field == 0) id.root.byte[31] ^= 1;
        if (field == 1) id.key.byte[0] ^= 1;
        if (field == 2) id.parent.byte[7] ^= 1;
        if (field == 3) id.group ^= 1;
        if (field == 4) id.page_index ^= 1;
        if (field == 5) id.fingerprint ^= 1;
        if (field == 6) id.bytes -= 1; /* whole, but shorter, in as many blocks */
        if (field == 7) id.bytes -= QUIRE_BLOCK;
        if (field == 8) id.bytes += QUIRE_BLOCK;
        if (field == 9) object = objects[2];
        quire_payload_hash h;
        quire_payload_begin(&h);
        quire_payload_add(&h, bad.bytes + QUIRE_BLOCK,
                          (size_t)(id.bytes < right.bytes ? id.bytes : right.bytes));
        quire_object_write_header(header, &id, &h);
        forge_record(d, &objects[1], &object, bad.bytes, header);
        expect_miss(&s, &good, bad.bytes, reasons[field]);
        quire_buffer_destroy(&bad, &d->allocator);
    }
    quire_buffer_destroy(&good, &d->allocator);
    kit_scene_end(&s);
    quire_store_close(store);
    kit_remove(dir);
}

/* What a page contains cannot pass for a record of a later version, which would be left alone for ever. */
static void later_versions_in_pages(void **state)
{
    (void)state;
    char *dir = kit_directory(NULL);
    quire_store *store = kit_open(dir, KIT_CAP, NULL);
    quire_disk *d = store->disk;
    kit_scene s;
    quire_key objects[PAGES];
    quire_record found;
    begin(&s, store);
    save(&s);
    keys_of(&s, objects);
    quire_place place = entry_of(d, &objects[1]).place;
    quire_buffer block = read_record(d, &objects[1]);
    quire_store_version(block.bytes + 8, QUIRE_RECORD_VERSION + 1);
    quire_store64(block.bytes + 32, XXH3_64bits(block.bytes, 32)); /* without the directory's key */
    assert_int_equal(quire_record_read(&found, block.bytes, d->mac, &place), QUIRE_MISS_HEADER);
    quire_store64(block.bytes + 32, quire_record_check(d->mac, block.bytes));
    assert_int_equal(quire_record_read(&found, block.bytes, d->mac, &place), QUIRE_MISS_VERSION);
    quire_buffer_destroy(&block, &d->allocator);
    kit_scene_end(&s);
    quire_store_close(store);
    kit_remove(dir);
}

/* Every part of the identity gives other keys: nothing is found, whoever saved. */
static void identities(void **state)
{
    (void)state;
    char *dir = kit_directory(NULL);
    quire_store *store = kit_open(dir, KIT_CAP, NULL);
    kit_scene s, o;
    begin(&s, store);
    save(&s);
    uint8_t secret[32] = {1};
    for (int i = 0; i < 14; i++) {
        quire_geometry g = s.g;
        quire_identity id = kit_identity(1);
        const char *policy = "k4v4";
        quire_layer layers[2] = {{4, 2, 64, 64, 0, 0}, {4, 2, 64, 64, 0, 0}};
        quire_seq_options ring = {sizeof(quire_seq_options), 0, 0, 0, 0};
        if (i == 0) id.secret = secret;
        if (i == 1) id.weights = "weights-2";
        if (i == 2) id.tokenizer = "tokenizer-2";
        if (i == 3) id.adapter = "adapter";
        if (i == 4) id.adapter = "adapter", id.adapter_scale = 0.5;
        if (i == 5) id.rope = "base=10000 dims=32";
        if (i == 6) policy = "k8v4";
        if (i == 7) policy = "h:a4g64";
        if (i == 8) g.n_q_heads = 2;
        if (i == 9) g.n_kv_heads = 4;
        if (i == 10) g.d_v = 32;
        if (i == 11)
            layers[1].window = 64, g.layer_stride = sizeof(quire_layer), g.layers = layers,
            g.n_q_heads = g.n_kv_heads = g.d_k = g.d_v = 0;
        if (i == 12) ring.max_tokens = 512, ring.sinks = 4;
        if (i == 13) g.n_layers = 1;
        kit_scene_begin_with(&o, NULL, &g, policy, 3, ring.max_tokens, ring.sinks);
        o.store = store;
        assert_int_equal(quire_namespace_create(&o.ns, store, &id, o.plan, &ring), QUIRE_OK);
        assert_int_equal(load_reason(&o, 0), QUIRE_MISS_ABSENT);
        kit_scene_end(&o);
    }
    begin(&o, store); /* the same one finds it */
    assert_int_equal(load_reason(&o, PAGES * 64), QUIRE_MISS_NONE);
    kit_scene_end(&o);
    kit_scene_end(&s);
    quire_store_close(store);
    kit_remove(dir);
}

/* ------------------------------------------------------------------- remote */

static void key_name(char name[70], const quire_key *object)
{
    int n = sprintf(name, "q1:");
    for (int i = 0; i < 32; i++) n += sprintf(name + n, "%02x", object->byte[i]);
}

static void put(valkeyContext *c, const quire_key *object, const void *data, size_t n)
{
    char name[70];
    key_name(name, object);
    valkeyReply *r = valkeyCommand(c, "SET %s %b", name, data, n);
    assert_non_null(r);
    freeReplyObject(r);
}

static bytes get(valkeyContext *c, const quire_key *object)
{
    char name[70];
    key_name(name, object);
    valkeyReply *r = valkeyCommand(c, "GET %s", name);
    assert_true(r && r->type == VALKEY_REPLY_STRING);
    bytes b = {malloc(r->len), r->len};
    memcpy(b.data, r->str, r->len);
    freeReplyObject(r);
    return b;
}

static void expect_remote(kit_scene *s, valkeyContext *c, const quire_key *object, const void *data, size_t n,
                          quire_miss reason)
{
    put(c, object, data, n);
    quire_miss got = load_reason(s, 64);
    if (got != reason) fail_msg("%s, not %s", quire_miss_name(got), quire_miss_name(reason));
    assert_int_equal(quire_store_flush(s->store, 10000),
                     QUIRE_OK); /* it is removed, but for another version */
    char name[70];
    key_name(name, object);
    valkeyReply *r = valkeyCommand(c, "EXISTS %s", name);
    assert_int_equal(r->integer, reason == QUIRE_MISS_VERSION);
    freeReplyObject(r);
}

/* Rightly sealed by the tenant, but the object inside is of a version to come: a miss, and it stays. */
static void version_inside(kit_scene *s, valkeyContext *c, const quire_key *object, const bytes *good)
{
    uint8_t *to = (uint8_t *)malloc(good->n), header[QUIRE_OBJECT_HEADER], tag[16];
    int n;
    EVP_CIPHER_CTX *cipher = EVP_CIPHER_CTX_new();
    size_t inner = good->n - QUIRE_SEAL_HEADER - QUIRE_SEAL_TAG;
    uint8_t *plain = (uint8_t *)malloc(inner);
    const uint8_t *key = s->ns->seal_key.byte, *nonce = good->data + 24;
    memcpy(to, good->data, QUIRE_SEAL_HEADER);
    assert_int_equal(EVP_DecryptInit_ex(cipher, EVP_aes_256_gcm(), NULL, key, nonce), 1);
    assert_int_equal(EVP_DecryptUpdate(cipher, NULL, &n, to, QUIRE_SEAL_HEADER), 1);
    assert_int_equal(EVP_DecryptUpdate(cipher, plain, &n, good->data + QUIRE_SEAL_HEADER, (int)inner), 1);
    memcpy(header, plain, sizeof header);
    header[8] = 2;
    quire_store64(header + 184, XXH3_64bits(header, 184));
    memcpy(plain, header, sizeof header);
    assert_int_equal(EVP_EncryptInit_ex(cipher, EVP_aes_256_gcm(), NULL, key, nonce), 1);
    assert_int_equal(EVP_EncryptUpdate(cipher, NULL, &n, to, QUIRE_SEAL_HEADER), 1);
    assert_int_equal(EVP_EncryptUpdate(cipher, to + QUIRE_SEAL_HEADER, &n, plain, (int)inner), 1);
    assert_int_equal(EVP_EncryptFinal_ex(cipher, tag, &n), 1);
    assert_int_equal(EVP_CIPHER_CTX_ctrl(cipher, EVP_CTRL_GCM_GET_TAG, 16, tag), 1);
    memcpy(to + good->n - 16, tag, 16);
    expect_remote(s, c, object, to, good->n, QUIRE_MISS_VERSION);
    EVP_CIPHER_CTX_free(cipher);
    free(plain);
    free(to);
}

static void on_remote(void **state)
{
    (void)state;
    kit_server server;
    if (system("command -v redis-server >/dev/null 2>&1")) skip();
    kit_server_start(&server, NULL);
    valkeyContext *c = kit_connect(server.port);
    quire_store_remote remote = kit_remote(server.port);
    quire_store *store = kit_open(NULL, 0, &remote);
    kit_scene s;
    quire_key keys[PAGES], objects[PAGES];
    rng r = {7};
    begin(&s, store);
    save(&s);
    keys_of(&s, objects);
    quire_prompt p = kit_prompt(&s, PAGES * 64);
    assert_int_equal(quire_chain_keys(keys, &s.ns->root, &p, PAGES), QUIRE_OK);
    bytes b = get(c, &objects[1]), other = get(c, &objects[2]);
    uint8_t *bad = calloc(1, b.n + 100000);
    for (size_t i = 0; i < QUIRE_SEAL_HEADER + QUIRE_OBJECT_HEADER + 40; i++) {
        size_t at = i < QUIRE_SEAL_HEADER + QUIRE_OBJECT_HEADER ? i
                    : i % 2                                     ? b.n - 1 - i % 16
                                                                : rng_bits(&r) % b.n;
        memcpy(bad, b.data, b.n);
        bad[at] ^= (uint8_t)(1u << rng_bits(&r) % 8);
        expect_remote(&s, c, &objects[1], bad, b.n,
                      at < 8    ? QUIRE_MISS_MAGIC
                      : at < 12 ? QUIRE_MISS_VERSION
                      : at < 16 ? QUIRE_MISS_RESERVED
                      : at < 24 ? QUIRE_MISS_LENGTH
                      : at < 36 ? QUIRE_MISS_SEAL
                      : at < 40 ? QUIRE_MISS_RESERVED
                      : at < 72 ? QUIRE_MISS_KEY
                                : QUIRE_MISS_SEAL);
    }
    memcpy(bad, b.data, b.n);
    const size_t lengths[] = {1, 71, 72, b.n - 1, b.n + 1, b.n + 100000};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        expect_remote(&s, c, &objects[1], bad, lengths[i], QUIRE_MISS_LENGTH);
    expect_remote(&s, c, &objects[1], other.data, other.n, QUIRE_MISS_KEY); /* replayed under another name */
    memcpy(bad, other.data, other.n);                                       /* and with the name put right */
    memcpy(bad + 40, objects[1].byte, 32);
    expect_remote(&s, c, &objects[1], bad, b.n, QUIRE_MISS_SEAL);
    /* Forged by a tenant who knows everything but the secret: the plain object, and a seal with its own key. */
    quire_object_id id = quire_namespace_object(s.ns, keys, &objects[1], 0, 1);
    quire_allocator a = quire_mem_allocator(NULL);
    quire_sealer *sealer = quire_sealer_create(&a);
    quire_key own = {{42}};
    assert_true(quire_seal(sealer, bad, &own, &id, b.data, NULL));
    expect_remote(&s, c, &objects[1], bad, b.n, QUIRE_MISS_SEAL);
    /* Sealed with the right key but of another page: only who has the secret could, and even then it is refused. */
    quire_object_id swapped = quire_namespace_object(s.ns, keys, &objects[1], 0, 1);
    swapped.page_index = 2;
    assert_true(quire_seal(sealer, bad, &s.ns->seal_key, &swapped, b.data, NULL));
    expect_remote(&s, c, &objects[1], bad, b.n, QUIRE_MISS_KEY);
    quire_sealer_destroy(sealer);
    version_inside(&s, c, &objects[1], &b);
    put(c, &objects[1], b.data, b.n); /* the true one, replayed: it is the same page */
    assert_int_equal(load_reason(&s, PAGES * 64), QUIRE_MISS_NONE);
    free(bad);
    free(b.data);
    free(other.data);
    kit_scene_end(&s);
    quire_store_close(store);
    valkeyFree(c);
    kit_server_end(&server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_on_disk),
        cmocka_unit_test(fields),
        cmocka_unit_test(later_versions_in_pages),
        cmocka_unit_test(identities),
        cmocka_unit_test(on_remote),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
