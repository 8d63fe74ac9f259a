/* SPDX-License-Identifier: MIT */
/* store: page objects sealed for the remote tier: AES-256-GCM over header and payload, so that nothing but the length shows
 * and nobody without the tenant's secret can make one (docs/formats/store.md). */
#ifndef QUIRE_STORE_SEAL_H
#define QUIRE_STORE_SEAL_H

#include "store/object.h"

#define QUIRE_SEAL_HEADER 72u
#define QUIRE_SEAL_TAG 16u
#define QUIRE_SEAL_NONCE 12u

static inline size_t quire_sealed_bytes(uint64_t payload_bytes)
{
    return QUIRE_SEAL_HEADER + QUIRE_OBJECT_HEADER + (size_t)payload_bytes + QUIRE_SEAL_TAG;
}

/* One user at a time. */
typedef struct quire_sealer quire_sealer;
quire_sealer *quire_sealer_create(const quire_allocator *allocator); /* NULL: no memory */
void quire_sealer_destroy(quire_sealer *sealer);

/* Writes quire_sealed_bytes(id->bytes) bytes. nonce: NULL for a random one; given only by tests. */
bool quire_seal(quire_sealer *sealer, uint8_t *out, const quire_key *seal_key, const quire_object_id *id,
                const void *payload, const uint8_t *nonce);
/* Opens n sealed bytes into id->bytes bytes of payload. After a miss these are undefined and must not be used. stop: looked
 * at between blocks; when it is set, the result is QUIRE_MISS_DEADLINE. */
quire_miss quire_unseal(quire_sealer *sealer, void *payload, const quire_key *seal_key,
                        const quire_object_id *id, const uint8_t *sealed, size_t n, const atomic_bool *stop);

/*
 * On disk the payload alone is sealed, and stays as long as it is; header and object key are bound to it. begin() writes what
 * is known of the header, part() takes the payload in order, end() writes the rest of the header.
 */
bool quire_seal_payload_begin(quire_sealer *sealer, uint8_t header[QUIRE_OBJECT_HEADER],
                              const quire_key *seal_key, const quire_object_id *id);
bool quire_seal_payload_part(quire_sealer *sealer, void *to, const void *from, size_t n);
bool quire_seal_payload_end(quire_sealer *sealer, uint8_t header[QUIRE_OBJECT_HEADER]);
/* Opens the payload where it is. The header is checked already. */
quire_miss quire_unseal_payload(void *payload, const quire_key *seal_key, const quire_object_id *id,
                                const uint8_t header[QUIRE_OBJECT_HEADER], const atomic_bool *stop);

#endif
