/* SPDX-License-Identifier: MIT */
/* The frozen bytes: keys, page object, sealed object, all of version 1 (docs/formats/store.md). `store_format --write` makes the
 * files of a new version; those of an old one stay for ever. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store/chain.h"
#include "store/identity.h"
#include "store/kit/store_kit.h"
#include "store/seal.h"

#include <string.h>

static const char *folder(void)
{
    const char *golden = getenv("QUIRE_GOLDEN");
    static char path[1024];
    snprintf(path, sizeof path, "%s/store", golden ? golden : "tests/golden");
    return path;
}

static FILE *open_file(const char *name, const char *mode)
{
    char path[2048];
    snprintf(path, sizeof path, "%s/%s", folder(), name);
    FILE *f = fopen(path, mode);
    if (!f) fprintf(stderr, "%s cannot be opened; QUIRE_GOLDEN names the folder above it\n", path);
    KIT_REQUIRE(f);
    return f;
}

/* ----------------------------------------------------------------- material */

static const uint8_t secret[32] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
#define PAYLOAD 1000u

static quire_identity identity(int variant)
{
    quire_identity id = {sizeof(quire_identity), .weights = "w",       .tokenizer = "t",
                         .adapter = "",          .rope = "base=10000", .secret = secret};
    if (variant == 1) id.weights = "wt", id.tokenizer = "t"; /* fields must not run together */
    if (variant == 2) id.weights = "w", id.tokenizer = "tt";
    if (variant == 3) id.adapter = "a", id.adapter_scale = 0.75;
    return id;
}

static quire_key root_of(int variant)
{
    quire_identity id = identity(variant);
    quire_raw_layout raw = {"rows", PAYLOAD};
    quire_key root;
    KIT_REQUIRE(!quire_identity_root(&root, &id, NULL, NULL, &raw));
    return root;
}

static quire_key plan_root(uint32_t max_tokens)
{
    quire_identity id = identity(0);
    quire_geometry g = kit_geometry(2, 64, 32);
    quire_plan *plan = kit_plan(&g, "k4v4", NULL);
    quire_seq_options ring = {sizeof(quire_seq_options), max_tokens, max_tokens ? 4 : 0, 0, 0};
    quire_key root;
    KIT_REQUIRE(!quire_identity_root(&root, &id, plan, &ring, NULL));
    quire_plan_destroy(plan);
    return root;
}

typedef struct material {
    quire_key keys[3], objects[3], seal_key;
    quire_object_id id;
    uint8_t payload[PAYLOAD];
} material;

static material make(void)
{
    material m;
    uint32_t tokens[192];
    quire_media media = {.position = 130};
    quire_key root = root_of(0);
    for (uint32_t i = 0; i < 192; i++) tokens[i] = i * i;
    memset(media.digest, 0xab, 32);
    quire_prompt p = {.size = sizeof(quire_prompt),
                      .tokens = tokens,
                      .n_tokens = 192,
                      .media = &media,
                      .media_stride = sizeof media,
                      .n_media = 1};
    KIT_REQUIRE(!quire_chain_keys(m.keys, &root, &p, 3));
    KIT_REQUIRE(!quire_chain_objects(m.objects, m.keys, 3, 1));
    KIT_REQUIRE(!quire_identity_seal_key(&m.seal_key, &root, secret));
    for (uint32_t i = 0; i < PAYLOAD; i++) m.payload[i] = (uint8_t)(i * 7);
    m.id = (quire_object_id){.root = root,
                             .key = m.keys[1],
                             .parent = m.keys[0],
                             .object = m.objects[1],
                             .group = 1,
                             .page_index = 1,
                             .bytes = PAYLOAD,
                             .fingerprint = 0x1122334455667788u};
    return m;
}

static size_t make_object(uint8_t *out)
{
    material m = make();
    quire_payload_hash h;
    quire_payload_begin(&h);
    quire_payload_copy(&h, out + QUIRE_OBJECT_HEADER, m.payload, PAYLOAD);
    quire_object_write_header(out, &m.id, &h);
    return QUIRE_OBJECT_HEADER + PAYLOAD;
}

static size_t make_sealed(uint8_t *out)
{
    material m = make();
    static const uint8_t nonce[QUIRE_SEAL_NONCE] = {9, 8, 7, 6, 5, 4, 3, 2, 1};
    quire_allocator a = quire_mem_allocator(NULL);
    quire_sealer *s = quire_sealer_create(&a);
    KIT_REQUIRE(s && quire_seal(s, out, &m.seal_key, &m.id, m.payload, nonce));
    quire_sealer_destroy(s);
    return quire_sealed_bytes(PAYLOAD);
}

static void print_key(FILE *f, const char *name, const quire_key *key)
{
    fprintf(f, "%s ", name);
    for (int i = 0; i < 32; i++) fprintf(f, "%02x", key->byte[i]);
    fputc('\n', f);
}

static void print_keys(FILE *f)
{
    material m = make();
    for (int i = 0; i < 4; i++) {
        char name[32];
        quire_key root = root_of(i);
        snprintf(name, sizeof name, "raw-root-%d", i);
        print_key(f, name, &root);
    }
    quire_key plain = plan_root(0), ring = plan_root(512);
    print_key(f, "plan-root", &plain);
    print_key(f, "plan-root-ring", &ring);
    for (int i = 0; i < 3; i++) {
        char name[32];
        snprintf(name, sizeof name, "page-%d", i);
        print_key(f, name, &m.keys[i]);
        snprintf(name, sizeof name, "object-%d", i);
        print_key(f, name, &m.objects[i]);
    }
    print_key(f, "seal-key", &m.seal_key);
}

/* -------------------------------------------------------------------- tests */

static size_t read_file(const char *name, uint8_t *to, size_t cap)
{
    FILE *f = open_file(name, "rb");
    size_t n = fread(to, 1, cap, f);
    fclose(f);
    return n;
}

static void keys(void **state)
{
    (void)state;
    char *text = NULL, expected[8192] = "";
    size_t n;
    FILE *f = open_memstream(&text, &n);
    print_keys(f);
    fclose(f);
    (void)read_file("keys_v1.txt", (uint8_t *)expected, sizeof expected - 1);
    assert_string_equal(text, expected);
    free(text);
}

static void object(void **state)
{
    (void)state;
    uint8_t made[4096], frozen[4096];
    size_t n = make_object(made);
    assert_int_equal(read_file("object_v1.bin", frozen, sizeof frozen), n);
    assert_memory_equal(made, frozen, n);
    material m = make();
    quire_payload_hash h;
    assert_int_equal(quire_object_check_header(frozen, n, &m.id), QUIRE_MISS_NONE);
    quire_payload_begin(&h);
    quire_payload_add(&h, frozen + QUIRE_OBJECT_HEADER, PAYLOAD);
    assert_int_equal(quire_object_check_payload(frozen, &h), QUIRE_MISS_NONE);
}

static void sealed(void **state)
{
    (void)state;
    uint8_t made[4096], frozen[4096], payload[PAYLOAD];
    size_t n = make_sealed(made);
    assert_int_equal(read_file("sealed_v1.bin", frozen, sizeof frozen), n);
    assert_memory_equal(made, frozen, n);
    material m = make();
    quire_allocator a = quire_mem_allocator(NULL);
    quire_sealer *s = quire_sealer_create(&a);
    assert_int_equal(quire_unseal(s, payload, &m.seal_key, &m.id, frozen, n, NULL), QUIRE_MISS_NONE);
    assert_memory_equal(payload, m.payload, PAYLOAD);
    quire_sealer_destroy(s);
}

static void all_fields_count(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < i; j++) {
            quire_key a = root_of(i), b = root_of(j);
            assert_false(quire_key_equal(&a, &b));
        }
    quire_identity id = identity(0);
    quire_raw_layout raw = {"rows", PAYLOAD};
    quire_key root;
    const char **members[] = {&id.weights, &id.tokenizer, &id.adapter, &id.rope};
    for (int i = 0; i < 4; i++) { /* nothing may be left unsaid */
        const char *before = *members[i];
        *members[i] = NULL;
        assert_int_equal(quire_identity_root(&root, &id, NULL, NULL, &raw), QUIRE_EINVAL);
        *members[i] = before;
    }
    id.secret = NULL;
    assert_int_equal(quire_identity_root(&root, &id, NULL, NULL, &raw), QUIRE_EINVAL);
    id = identity(0);
    id.adapter_scale = 1; /* of no adapter */
    assert_int_equal(quire_identity_root(&root, &id, NULL, NULL, &raw), QUIRE_EINVAL);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(keys), cmocka_unit_test(object),
                                       cmocka_unit_test(sealed), cmocka_unit_test(all_fields_count)};
    if (argc == 2 && strcmp(argv[1], "--write") == 0) {
        uint8_t bytes[4096];
        FILE *f = open_file("keys_v1.txt", "w");
        print_keys(f);
        fclose(f);
        f = open_file("object_v1.bin", "wb");
        fwrite(bytes, 1, make_object(bytes), f);
        fclose(f);
        f = open_file("sealed_v1.bin", "wb");
        fwrite(bytes, 1, make_sealed(bytes), f);
        fclose(f);
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
