/* SPDX-License-Identifier: MIT */
/* store: the page object, a header and the page's bytes as they lie in memory (docs/formats/store.md). */
#ifndef QUIRE_STORE_OBJECT_H
#define QUIRE_STORE_OBJECT_H

#include "store/base.h"

#define XXH_STATIC_LINKING_ONLY /* for the state as a member */
#include <xxhash.h>

#define QUIRE_OBJECT_HEADER 192u
#define QUIRE_TENANT 16u /* names a tenant; says nothing about its secret */
#define QUIRE_OBJECT_BLOCK \
    (128u << 10) /* copied and hashed at a time: stays in the CPU's cache between both */
/* Larger pages do not exist: 4096 layers of the largest tiles are far below. Bounds what a length field can ask for. */
#define QUIRE_OBJECT_MAX (1ull << 34)

#define QUIRE_NAME 64u /* of a tenant or a model, for operators: zeros behind it */

/* What the tiers use of a namespace. */
typedef struct quire_owner {
    quire_counters counters;
    quire_key seal_key;
    /* Plain pages on disk are not taken then: whoever can write there could have made them. */
    bool seals_disk;
    char tenant_name[QUIRE_NAME], model_name[QUIRE_NAME];
} quire_owner;

/* What an object must be; of a page, from its namespace. */
typedef struct quire_object_id {
    quire_key root, key, parent, object;
    uint32_t group, page_index;
    uint64_t bytes, fingerprint; /* of the payload */
    uint8_t tenant[QUIRE_TENANT];
    quire_owner *owner; /* lives as long as its namespace; NULL: imported */
} quire_object_id;

/* Copies the payload block by block, hashing it. */
typedef struct quire_payload_hash {
    XXH3_state_t state;
} quire_payload_hash;

void quire_payload_begin(quire_payload_hash *h);
void quire_payload_add(quire_payload_hash *h, const void *bytes, size_t n);
/* to may be NULL: only hashed. */
void quire_payload_copy(quire_payload_hash *h, void *to, const void *from, size_t n);

void quire_object_write_header(uint8_t header[QUIRE_OBJECT_HEADER], const quire_object_id *id,
                               const quire_payload_hash *h);
/* The same of an object whose payload is encrypted: first everything that the encryption binds to the payload; then its
 * tag, and the hash of the encrypted bytes, so that they can be verified without the secret. */
#define QUIRE_PAYLOAD_NONCE 12u
#define QUIRE_PAYLOAD_TAG 12u
#define QUIRE_OBJECT_BOUND 144u /* bytes of the header that are bound, from its beginning */
void quire_object_begin_sealed(uint8_t header[QUIRE_OBJECT_HEADER], const quire_object_id *id,
                               const uint8_t nonce[QUIRE_PAYLOAD_NONCE]);
void quire_object_end_sealed(uint8_t header[QUIRE_OBJECT_HEADER], const uint8_t tag[QUIRE_PAYLOAD_TAG],
                             const quire_payload_hash *h);
bool quire_object_is_sealed(const uint8_t *header);
const uint8_t *quire_object_nonce(const uint8_t *header);
const uint8_t *quire_object_tag(const uint8_t *header);
/* What a header says, before anything is checked. */
uint64_t quire_object_payload_bytes(const uint8_t *header);
/* Whether a header of an object of n bytes in all is undamaged, whatever its namespace. Fills info but for used and
 * pinned. */
quire_miss quire_object_read_header(const uint8_t *header, size_t n, quire_object_info *info);
/* Whether it is the header of this object. Everything but the payload's hash is decided here. */
quire_miss quire_object_check_header(const uint8_t *header, size_t n, const quire_object_id *id);
quire_miss quire_object_check_payload(const uint8_t header[QUIRE_OBJECT_HEADER], const quire_payload_hash *h);

#endif
