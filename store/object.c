/* SPDX-License-Identifier: MIT */
/* store: the page object. Lengths are compared with what the caller expects, never trusted. */
#include "store/object.h"

#ifdef QUIRE_STORE_XXH_DISPATCH
#define XXH_DISPATCH_DISABLE_REPLACE
#include <xxh_x86dispatch.h>
#endif

#define OBJECT_VERSION 1u
#define FLAG_SEALED 1u
static const uint8_t magic[8] = {'Q', 'U', 'I', 'R', 'E', 'P', 'G', 0};

enum {
    AT_VERSION = 8,
    AT_FLAGS = 12,
    AT_ROOT = 16,
    AT_KEY = 48,
    AT_PARENT = 80,
    AT_GROUP = 112,
    AT_PAGE = 116,
    AT_TOKENS = 120,
    AT_RESERVED = 124,
    AT_LENGTH = 128,
    AT_FINGERPRINT = 136,
    AT_PAYLOAD_HASH = 144,
    AT_NONCE = 160, /* these two: zeros, or of a sealed object */
    AT_TAG = 172,
    AT_HEADER_HASH = 184,
};

void quire_payload_begin(quire_payload_hash *h)
{
    (void)XXH3_128bits_reset(&h->state);
}

void quire_payload_add(quire_payload_hash *h, const void *bytes, size_t n)
{
#ifdef QUIRE_STORE_XXH_DISPATCH
    (void)XXH3_128bits_update_dispatch(&h->state, bytes, n);
#else
    (void)XXH3_128bits_update(&h->state, bytes, n);
#endif
}

void quire_payload_copy(quire_payload_hash *h, void *to, const void *from, size_t n)
{
    for (size_t at = 0, part; at < n; at += part) {
        part = n - at < QUIRE_OBJECT_BLOCK ? n - at : QUIRE_OBJECT_BLOCK;
        const uint8_t *source = (const uint8_t *)from + at;
        if (to) source = (const uint8_t *)memcpy((uint8_t *)to + at, source, part);
        quire_payload_add(h, source, part);
    }
}

static void store_payload_hash(uint8_t out[16], const quire_payload_hash *h)
{
    XXH128_hash_t hash = XXH3_128bits_digest(&h->state);
    quire_store64(out, hash.low64);
    quire_store64(out + 8, hash.high64);
}

static uint64_t header_hash(const uint8_t *header)
{
    return XXH3_64bits(header, AT_HEADER_HASH);
}

_Static_assert(AT_PAYLOAD_HASH == QUIRE_OBJECT_BOUND && AT_TAG == AT_NONCE + QUIRE_PAYLOAD_NONCE &&
                   AT_HEADER_HASH == AT_TAG + QUIRE_PAYLOAD_TAG,
               "the parts of a sealed header");

static void write_fields(uint8_t header[QUIRE_OBJECT_HEADER], const quire_object_id *id)
{
    memset(header, 0, QUIRE_OBJECT_HEADER);
    memcpy(header, magic, sizeof magic);
    quire_store32(header + AT_VERSION, OBJECT_VERSION);
    memcpy(header + AT_ROOT, id->root.byte, 32);
    memcpy(header + AT_KEY, id->key.byte, 32);
    memcpy(header + AT_PARENT, id->parent.byte, 32);
    quire_store32(header + AT_GROUP, id->group);
    quire_store32(header + AT_PAGE, id->page_index);
    quire_store32(header + AT_TOKENS, QUIRE_PAGE_TOKENS);
    quire_store64(header + AT_LENGTH, id->bytes);
    quire_store64(header + AT_FINGERPRINT, id->fingerprint);
}

static void write_hashes(uint8_t header[QUIRE_OBJECT_HEADER], const quire_payload_hash *h)
{
    store_payload_hash(header + AT_PAYLOAD_HASH, h);
    quire_store64(header + AT_HEADER_HASH, header_hash(header));
}

void quire_object_write_header(uint8_t header[QUIRE_OBJECT_HEADER], const quire_object_id *id,
                               const quire_payload_hash *h)
{
    write_fields(header, id);
    write_hashes(header, h);
}

void quire_object_begin_sealed(uint8_t header[QUIRE_OBJECT_HEADER], const quire_object_id *id,
                               const uint8_t nonce[QUIRE_PAYLOAD_NONCE])
{
    write_fields(header, id);
    quire_store32(header + AT_FLAGS, FLAG_SEALED);
    memcpy(header + AT_NONCE, nonce, QUIRE_PAYLOAD_NONCE);
}

void quire_object_end_sealed(uint8_t header[QUIRE_OBJECT_HEADER], const uint8_t tag[QUIRE_PAYLOAD_TAG],
                             const quire_payload_hash *h)
{
    memcpy(header + AT_TAG, tag, QUIRE_PAYLOAD_TAG);
    write_hashes(header, h);
}

bool quire_object_is_sealed(const uint8_t *header)
{
    return quire_load32(header + AT_FLAGS) == FLAG_SEALED;
}

const uint8_t *quire_object_nonce(const uint8_t *header)
{
    return header + AT_NONCE;
}

const uint8_t *quire_object_tag(const uint8_t *header)
{
    return header + AT_TAG;
}

uint64_t quire_object_payload_bytes(const uint8_t *header)
{
    return quire_load64(header + AT_LENGTH);
}

quire_miss quire_object_read_header(const uint8_t *header, size_t n, quire_object_info *info)
{
    static const uint8_t zeros[AT_HEADER_HASH - AT_NONCE];
    if (n < QUIRE_OBJECT_HEADER) return QUIRE_MISS_LENGTH;
    if (memcmp(header, magic, sizeof magic)) return QUIRE_MISS_MAGIC;
    if (quire_load32(header + AT_VERSION) != OBJECT_VERSION) return QUIRE_MISS_VERSION;
    if (quire_load64(header + AT_HEADER_HASH) != header_hash(header)) return QUIRE_MISS_HEADER;
    bool sealed = quire_object_is_sealed(header);
    if ((quire_load32(header + AT_FLAGS) && !sealed) || quire_load32(header + AT_RESERVED) ||
        (!sealed && memcmp(header + AT_NONCE, zeros, sizeof zeros)))
        return QUIRE_MISS_RESERVED;
    if (quire_load32(header + AT_TOKENS) != QUIRE_PAGE_TOKENS) return QUIRE_MISS_CODEC;
    memcpy(info->root, header + AT_ROOT, 32);
    memcpy(info->key, header + AT_KEY, 32);
    memcpy(info->parent, header + AT_PARENT, 32);
    info->group = quire_load32(header + AT_GROUP);
    info->page_index = quire_load32(header + AT_PAGE);
    info->payload_bytes = quire_load64(header + AT_LENGTH);
    info->fingerprint = quire_load64(header + AT_FINGERPRINT);
    info->sealed = sealed;
    if (info->payload_bytes != n - QUIRE_OBJECT_HEADER) return QUIRE_MISS_LENGTH;
    return QUIRE_MISS_NONE;
}

quire_miss quire_object_check_header(const uint8_t *header, size_t n, const quire_object_id *id)
{
    quire_object_info info;
    quire_miss miss = quire_object_read_header(header, n, &info);
    if (miss) return miss;
    if (memcmp(info.root, id->root.byte, 32)) return QUIRE_MISS_IDENTITY;
    if (memcmp(info.key, id->key.byte, 32) || memcmp(info.parent, id->parent.byte, 32) ||
        info.group != id->group || info.page_index != id->page_index)
        return QUIRE_MISS_KEY;
    if (info.fingerprint != id->fingerprint) return QUIRE_MISS_CODEC;
    return info.payload_bytes == id->bytes ? QUIRE_MISS_NONE : QUIRE_MISS_LENGTH;
}

quire_miss quire_object_check_payload(const uint8_t header[QUIRE_OBJECT_HEADER], const quire_payload_hash *h)
{
    uint8_t hash[16];
    store_payload_hash(hash, h);
    return memcmp(hash, header + AT_PAYLOAD_HASH, sizeof hash) ? QUIRE_MISS_PAYLOAD : QUIRE_MISS_NONE;
}
