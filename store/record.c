/* SPDX-License-Identifier: MIT */
/* store: the first block of a record. */
#define _GNU_SOURCE
#include "store/record.h"

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/params.h>

static const uint8_t magic[8] = {'Q', 'U', 'I', 'R', 'E', 'R', 'C', 0};

/* The first 40 bytes are the same in every version: so that a record of a later one can be stepped over. */
enum {
    AT_VERSION = 8,
    AT_LENGTH = 16,
    AT_FLAGS = 24,
    AT_SLAB = 28,
    AT_CHECK = 32,
    AT_PLACE = 40,
    AT_WRITTEN = 48,
    AT_RESERVED = 56,
    AT_TENANT = 64,
    AT_OBJECT = 80,
    AT_RESERVED2 = 112,
    AT_MAC = 128,
    AT_PINNED = 160,
    AT_PINNED_CHECK = 168,
    AT_TENANT_NAME = 176,
    AT_MODEL_NAME = AT_TENANT_NAME + QUIRE_NAME,
    AT_ZEROS = AT_MODEL_NAME + QUIRE_NAME,
    MAC_BYTES = 32,
    MAX_RECORD_SHIFT = 35, /* twice the largest payload */
};

struct quire_mac {
    quire_allocator allocator;
    EVP_MAC *algorithm;
    EVP_MAC_CTX *keyed; /* copied for each use */
    uint64_t seed;      /* of the hash that records of all versions have */
};

quire_mac *quire_mac_create(const quire_allocator *allocator, const uint8_t key[QUIRE_DIRECTORY_KEY])
{
    char digest[] = "SHA256";
    OSSL_PARAM params[] = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
                           OSSL_PARAM_construct_end()};
    quire_mac *m = (quire_mac *)quire_mem_take(allocator, sizeof *m);
    if (!m) return NULL;
    m->allocator = *allocator;
    m->seed = quire_load64(key);
    m->algorithm = EVP_MAC_fetch(NULL, "HMAC", NULL);
    m->keyed = m->algorithm ? EVP_MAC_CTX_new(m->algorithm) : NULL;
    if (m->keyed && EVP_MAC_init(m->keyed, key, QUIRE_DIRECTORY_KEY, params) == 1) return m;
    quire_mac_destroy(m);
    return NULL;
}

void quire_mac_destroy(quire_mac *m)
{
    if (!m) return;
    quire_allocator a = m->allocator;
    EVP_MAC_CTX_free(m->keyed);
    EVP_MAC_free(m->algorithm);
    quire_mem_free(&a, m, sizeof *m);
}

/* Whoever chooses the bytes of pages does not know the seed: nothing in a page passes for a record of a later version, which
 * would be left alone for ever. */
uint64_t quire_record_check(const quire_mac *m, const uint8_t *block)
{
    return XXH3_64bits_withSeed(block, AT_CHECK, m->seed);
}

#define FLAG_SEALED 1u

/* HMAC-SHA256 of what is before it, of the names and of the page object's header. Pins are changed later. */
static bool compute(const quire_mac *m, const uint8_t *block, uint8_t out[MAC_BYTES])
{
    size_t n = 0;
    EVP_MAC_CTX *ctx = EVP_MAC_CTX_dup(m->keyed);
    bool done = ctx && EVP_MAC_update(ctx, block, AT_MAC) == 1 &&
                EVP_MAC_update(ctx, block + AT_TENANT_NAME, AT_ZEROS - AT_TENANT_NAME) == 1 &&
                EVP_MAC_update(ctx, block + QUIRE_RECORD_OBJECT, QUIRE_OBJECT_HEADER) == 1 &&
                EVP_MAC_final(ctx, out, &n, MAC_BYTES) == 1 && n == MAC_BYTES;
    EVP_MAC_CTX_free(ctx);
    return done;
}

bool quire_record_write(uint8_t block[QUIRE_BLOCK], const quire_mac *mac, const quire_record *r,
                        const uint8_t *object_header)
{
    memset(block, 0, QUIRE_BLOCK);
    memcpy(block, magic, sizeof magic);
    quire_store_version(block + AT_VERSION, QUIRE_RECORD_VERSION);
    quire_store64(block + AT_LENGTH, r->place.bytes);
    quire_store32(block + AT_FLAGS, quire_object_is_sealed(object_header) ? FLAG_SEALED : 0);
    quire_store32(block + AT_SLAB, r->place.slab);
    quire_store64(block + AT_CHECK, quire_record_check(mac, block));
    quire_store64(block + AT_PLACE, r->place.at);
    quire_store64(block + AT_WRITTEN, r->written_us);
    memcpy(block + AT_TENANT, r->tenant, QUIRE_TENANT);
    memcpy(block + AT_OBJECT, r->object.byte, 32);
    memcpy(block + AT_TENANT_NAME, r->tenant_name, QUIRE_NAME);
    memcpy(block + AT_MODEL_NAME, r->model_name, QUIRE_NAME);
    quire_record_set_pinned(block, r->is_pinned);
    memcpy(block + QUIRE_RECORD_OBJECT, object_header, QUIRE_OBJECT_HEADER);
    return compute(mac, block, block + AT_MAC);
}

void quire_record_set_pinned(uint8_t block[QUIRE_BLOCK], bool pinned)
{
    quire_store64(block + AT_PINNED, pinned);
    quire_store64(block + AT_PINNED_CHECK, XXH3_64bits(block + AT_PINNED, 8));
}

static bool is_zero(const uint8_t *bytes, size_t n)
{
    return !n || (!bytes[0] && !memcmp(bytes, bytes + 1, n - 1));
}

/* With an end, and zeros behind it: the index keeps what is before. */
static bool is_name(const uint8_t *bytes)
{
    size_t n = strnlen((const char *)bytes, QUIRE_NAME);
    return n < QUIRE_NAME && is_zero(bytes + n, QUIRE_NAME - n);
}

quire_miss quire_record_read(quire_record *out, const uint8_t block[QUIRE_BLOCK], const quire_mac *mac,
                             const quire_place *place)
{
    uint8_t expected[MAC_BYTES];
    quire_object_info info;
    *out = (quire_record){.place = *place};
    if (memcmp(block, magic, sizeof magic)) return QUIRE_MISS_MAGIC;
    if (!quire_version_is_whole(block + AT_VERSION) ||
        quire_load64(block + AT_CHECK) != quire_record_check(mac, block))
        return QUIRE_MISS_HEADER;
    out->version = quire_load32(block + AT_VERSION);
    out->place.bytes = quire_load64(block + AT_LENGTH);
    if (out->place.bytes < QUIRE_BLOCK || out->place.bytes % QUIRE_BLOCK ||
        out->place.bytes >> MAX_RECORD_SHIFT)
        return QUIRE_MISS_LENGTH;
    if (out->version != QUIRE_RECORD_VERSION) return QUIRE_MISS_VERSION;
    if (!compute(mac, block, expected)) return QUIRE_MISS_MEMORY;
    if (memcmp(expected, block + AT_MAC, MAC_BYTES)) return QUIRE_MISS_HEADER;
    if (quire_load32(block + AT_SLAB) != place->slab || quire_load64(block + AT_PLACE) != place->at)
        return QUIRE_MISS_KEY;
    uint32_t flags = quire_object_is_sealed(block + QUIRE_RECORD_OBJECT) ? FLAG_SEALED : 0;
    if (quire_load32(block + AT_FLAGS) != flags || quire_load64(block + AT_RESERVED) ||
        !is_name(block + AT_TENANT_NAME) || !is_name(block + AT_MODEL_NAME) ||
        !is_zero(block + AT_RESERVED2, AT_MAC - AT_RESERVED2) ||
        !is_zero(block + AT_ZEROS, QUIRE_RECORD_OBJECT - AT_ZEROS))
        return QUIRE_MISS_RESERVED;
    uint64_t payload = quire_object_payload_bytes(block + QUIRE_RECORD_OBJECT);
    if (payload > QUIRE_OBJECT_MAX || quire_record_bytes(payload) != out->place.bytes)
        return QUIRE_MISS_LENGTH;
    quire_miss miss =
        quire_object_read_header(block + QUIRE_RECORD_OBJECT, QUIRE_OBJECT_HEADER + (size_t)payload, &info);
    if (miss) return miss == QUIRE_MISS_VERSION ? QUIRE_MISS_HEADER : miss; /* no such record is written */
    out->written_us = quire_load64(block + AT_WRITTEN);
    memcpy(out->tenant, block + AT_TENANT, QUIRE_TENANT);
    memcpy(out->object.byte, block + AT_OBJECT, 32);
    memcpy(out->tenant_name, block + AT_TENANT_NAME, QUIRE_NAME);
    memcpy(out->model_name, block + AT_MODEL_NAME, QUIRE_NAME);
    memcpy(out->root.byte, info.root, 32);
    out->is_pinned = quire_load64(block + AT_PINNED) == 1 &&
                     quire_load64(block + AT_PINNED_CHECK) == XXH3_64bits(block + AT_PINNED, 8);
    return QUIRE_MISS_NONE;
}
