/* SPDX-License-Identifier: MIT */
/* store: sealing and opening of remote objects. */
#include "store/seal.h"

#include <openssl/evp.h>
#include <openssl/rand.h>

#define SEAL_VERSION 1u
static const uint8_t magic[8] = {'Q', 'U', 'I', 'R', 'E', 'S', 'L', 0};

/* Clear and authenticated: magic, version, reserved, length of what is sealed, nonce, reserved, object key. The key is what
 * keeps an object from being put under another name. */
enum { AT_VERSION = 8, AT_RESERVED = 12, AT_LENGTH = 16, AT_NONCE = 24, AT_RESERVED2 = 36, AT_KEY = 40 };

struct quire_sealer {
    quire_payload_hash hash;
    quire_allocator allocator;
    EVP_CIPHER_CTX *cipher;
};

quire_sealer *quire_sealer_create(const quire_allocator *allocator)
{
    quire_sealer *s = (quire_sealer *)quire_mem_take(allocator, sizeof *s);
    if (!s) return NULL;
    s->allocator = *allocator;
    s->cipher = EVP_CIPHER_CTX_new();
    if (s->cipher) return s;
    quire_sealer_destroy(s);
    return NULL;
}

void quire_sealer_destroy(quire_sealer *s)
{
    if (!s) return;
    quire_allocator a = s->allocator;
    EVP_CIPHER_CTX_free(s->cipher);
    quire_mem_free(&a, s, sizeof *s);
}

static void write_head(uint8_t *head, const quire_object_id *id, const uint8_t *nonce)
{
    memcpy(head, magic, sizeof magic);
    quire_store32(head + AT_VERSION, SEAL_VERSION);
    quire_store32(head + AT_RESERVED, 0);
    quire_store64(head + AT_LENGTH, QUIRE_OBJECT_HEADER + id->bytes);
    memcpy(head + AT_NONCE, nonce, QUIRE_SEAL_NONCE);
    quire_store32(head + AT_RESERVED2, 0);
    memcpy(head + AT_KEY, id->object.byte, 32);
}

/* ENC 1: in is plain. All of GCM's input goes through here in blocks, which also keeps lengths within an int. */
static bool crypt(quire_sealer *s, uint8_t *out, const uint8_t *in, size_t n)
{
    int done;
    return EVP_CipherUpdate(s->cipher, out, &done, in, (int)n) == 1 && (size_t)done == n;
}

static bool begin(quire_sealer *s, int encrypt, const quire_key *key, const uint8_t *head)
{
    int done;
    return EVP_CipherInit_ex(s->cipher, EVP_aes_256_gcm(), NULL, key->byte, head + AT_NONCE, encrypt) == 1 &&
           EVP_CipherUpdate(s->cipher, NULL, &done, head, QUIRE_SEAL_HEADER) == 1;
}

bool quire_seal(quire_sealer *s, uint8_t *out, const quire_key *seal_key, const quire_object_id *id,
                const void *payload, const uint8_t *nonce)
{
    uint8_t fresh[QUIRE_SEAL_NONCE], header[QUIRE_OBJECT_HEADER];
    if (!nonce && RAND_bytes(fresh, sizeof fresh) != 1) return false;
    quire_payload_begin(&s->hash); /* before the header can be written */
    quire_payload_copy(&s->hash, NULL, payload, (size_t)id->bytes);
    quire_object_write_header(header, id, &s->hash);
    write_head(out, id, nonce ? nonce : fresh);
    uint8_t *to = out + QUIRE_SEAL_HEADER;
    if (!begin(s, 1, seal_key, out) || !crypt(s, to, header, sizeof header)) return false;
    to += sizeof header;
    for (size_t at = 0, part; at < id->bytes; at += part) {
        part = id->bytes - at < QUIRE_OBJECT_BLOCK ? (size_t)id->bytes - at : QUIRE_OBJECT_BLOCK;
        if (!crypt(s, to + at, (const uint8_t *)payload + at, part)) return false;
    }
    int rest;
    to += id->bytes;
    return EVP_CipherFinal_ex(s->cipher, to, &rest) == 1 &&
           EVP_CIPHER_CTX_ctrl(s->cipher, EVP_CTRL_GCM_GET_TAG, QUIRE_SEAL_TAG, to) == 1;
}

static quire_miss check_head(const quire_object_id *id, const uint8_t *sealed, size_t n)
{
    uint8_t expected[QUIRE_SEAL_HEADER];
    if (n < QUIRE_SEAL_HEADER) return QUIRE_MISS_LENGTH;
    if (memcmp(sealed, magic, sizeof magic)) return QUIRE_MISS_MAGIC;
    if (quire_load32(sealed + AT_VERSION) != SEAL_VERSION) return QUIRE_MISS_VERSION;
    if (quire_load32(sealed + AT_RESERVED) || quire_load32(sealed + AT_RESERVED2)) return QUIRE_MISS_RESERVED;
    write_head(expected, id, sealed + AT_NONCE);
    if (memcmp(sealed + AT_KEY, expected + AT_KEY, 32)) return QUIRE_MISS_KEY;
    if (n != quire_sealed_bytes(id->bytes) || memcmp(sealed, expected, AT_NONCE)) return QUIRE_MISS_LENGTH;
    return QUIRE_MISS_NONE;
}

quire_miss quire_unseal(quire_sealer *s, void *payload, const quire_key *seal_key, const quire_object_id *id,
                        const uint8_t *sealed, size_t n, const atomic_bool *stop)
{
    uint8_t header[QUIRE_OBJECT_HEADER], tag[QUIRE_SEAL_TAG], none[16];
    quire_miss miss = check_head(id, sealed, n);
    if (miss) return miss;
    const uint8_t *from = sealed + QUIRE_SEAL_HEADER;
    if (!begin(s, 0, seal_key, sealed) || !crypt(s, header, from, sizeof header)) return QUIRE_MISS_MEMORY;
    from += sizeof header;
    for (size_t at = 0, part; at < id->bytes; at += part) {
        if (stop && atomic_load_explicit(stop, memory_order_relaxed)) return QUIRE_MISS_DEADLINE;
        part = id->bytes - at < QUIRE_OBJECT_BLOCK ? (size_t)id->bytes - at : QUIRE_OBJECT_BLOCK;
        if (!crypt(s, (uint8_t *)payload + at, from + at, part)) return QUIRE_MISS_SEAL;
    }
    int rest;
    memcpy(tag, from + id->bytes, sizeof tag);
    if (EVP_CIPHER_CTX_ctrl(s->cipher, EVP_CTRL_GCM_SET_TAG, QUIRE_SEAL_TAG, tag) != 1)
        return QUIRE_MISS_MEMORY;
    if (EVP_CipherFinal_ex(s->cipher, none, &rest) != 1) return QUIRE_MISS_SEAL;
    /* The tag vouches for every byte; the hash of the payload in the header is the disk's. */
    if (quire_object_is_sealed(header)) return QUIRE_MISS_RESERVED; /* the disk's way: not twice */
    return quire_object_check_header(header, QUIRE_OBJECT_HEADER + (size_t)id->bytes, id);
}

/* --------------------------------------------------------------- payloads on disk */

static bool begin_payload(EVP_CIPHER_CTX *cipher, int encrypt, const quire_key *key,
                          const quire_object_id *id, const uint8_t *header)
{
    int done;
    return EVP_CipherInit_ex(cipher, EVP_aes_256_gcm(), NULL, key->byte, quire_object_nonce(header),
                             encrypt) == 1 &&
           EVP_CipherUpdate(cipher, NULL, &done, id->object.byte, 32) == 1 &&
           EVP_CipherUpdate(cipher, NULL, &done, header, QUIRE_OBJECT_BOUND) == 1;
}

bool quire_seal_payload_begin(quire_sealer *s, uint8_t header[QUIRE_OBJECT_HEADER], const quire_key *seal_key,
                              const quire_object_id *id)
{
    uint8_t nonce[QUIRE_PAYLOAD_NONCE];
    if (RAND_bytes(nonce, sizeof nonce) != 1) return false;
    quire_object_begin_sealed(header, id, nonce);
    quire_payload_begin(&s->hash);
    return begin_payload(s->cipher, 1, seal_key, id, header);
}

bool quire_seal_payload_part(quire_sealer *s, void *to, const void *from, size_t n)
{
    for (size_t at = 0, part; at < n; at += part) {
        part = n - at < QUIRE_OBJECT_BLOCK ? n - at : QUIRE_OBJECT_BLOCK;
        if (!crypt(s, (uint8_t *)to + at, (const uint8_t *)from + at, part)) return false;
        quire_payload_add(&s->hash, (const uint8_t *)to + at, part);
    }
    return true;
}

bool quire_seal_payload_end(quire_sealer *s, uint8_t header[QUIRE_OBJECT_HEADER])
{
    uint8_t tag[QUIRE_PAYLOAD_TAG], none[16];
    int rest;
    if (EVP_CipherFinal_ex(s->cipher, none, &rest) != 1 ||
        EVP_CIPHER_CTX_ctrl(s->cipher, EVP_CTRL_GCM_GET_TAG, QUIRE_PAYLOAD_TAG, tag) != 1)
        return false;
    quire_object_end_sealed(header, tag, &s->hash);
    return true;
}

static quire_miss open_payload(EVP_CIPHER_CTX *cipher, uint8_t *payload, const quire_key *seal_key,
                               const quire_object_id *id, const uint8_t *header, const atomic_bool *stop)
{
    uint8_t tag[QUIRE_PAYLOAD_TAG], none[16];
    int done, rest;
    memcpy(tag, quire_object_tag(header), sizeof tag);
    if (!begin_payload(cipher, 0, seal_key, id, header)) return QUIRE_MISS_MEMORY;
    for (size_t at = 0, part; at < id->bytes; at += part) {
        if (stop && atomic_load_explicit(stop, memory_order_relaxed)) return QUIRE_MISS_DEADLINE;
        part = id->bytes - at < QUIRE_OBJECT_BLOCK ? (size_t)id->bytes - at : QUIRE_OBJECT_BLOCK;
        if (EVP_CipherUpdate(cipher, payload + at, &done, payload + at, (int)part) != 1 ||
            (size_t)done != part)
            return QUIRE_MISS_SEAL;
    }
    if (EVP_CIPHER_CTX_ctrl(cipher, EVP_CTRL_GCM_SET_TAG, QUIRE_PAYLOAD_TAG, tag) != 1)
        return QUIRE_MISS_MEMORY;
    return EVP_CipherFinal_ex(cipher, none, &rest) == 1 ? QUIRE_MISS_NONE : QUIRE_MISS_SEAL;
}

quire_miss quire_unseal_payload(void *payload, const quire_key *seal_key, const quire_object_id *id,
                                const uint8_t header[QUIRE_OBJECT_HEADER], const atomic_bool *stop)
{
    EVP_CIPHER_CTX *cipher = EVP_CIPHER_CTX_new();
    quire_miss miss =
        cipher ? open_payload(cipher, (uint8_t *)payload, seal_key, id, header, stop) : QUIRE_MISS_MEMORY;
    EVP_CIPHER_CTX_free(cipher);
    return miss;
}
