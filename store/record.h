/* SPDX-License-Identifier: MIT */
/* store: the record, a page object as it lies in a slab: one block that says and vouches for everything about it, then the
 * payload (docs/formats/store.md). */
#ifndef QUIRE_STORE_RECORD_H
#define QUIRE_STORE_RECORD_H

#include "store/object.h"

/* Records and all that is read or written of a slab begin and end at multiples of this. */
#define QUIRE_BLOCK 4096u
/* The block ends with the header of the page object, so that this and the payload are one run of bytes. */
#define QUIRE_RECORD_OBJECT (QUIRE_BLOCK - QUIRE_OBJECT_HEADER)
#define QUIRE_RECORD_VERSION 1u
#define QUIRE_DIRECTORY_KEY 32u

typedef struct quire_place {
    uint32_t slab;
    uint64_t at, bytes;
} quire_place;

static inline uint64_t quire_round_up(uint64_t bytes)
{
    return (bytes + QUIRE_BLOCK - 1) / QUIRE_BLOCK * QUIRE_BLOCK;
}

static inline uint64_t quire_record_bytes(uint64_t payload_bytes)
{
    return QUIRE_BLOCK + quire_round_up(payload_bytes);
}

/* What a record's first block says, apart from the header of the page object. */
typedef struct quire_record {
    quire_place place;
    uint32_t version;
    uint8_t tenant[QUIRE_TENANT];
    char tenant_name[QUIRE_NAME], model_name[QUIRE_NAME];
    quire_key object, root;
    uint64_t written_us;
    bool is_pinned;
} quire_record;

/* The directory's key: what makes a record one of this directory. Used by any number of threads. */
typedef struct quire_mac quire_mac;
quire_mac *quire_mac_create(const quire_allocator *allocator, const uint8_t key[QUIRE_DIRECTORY_KEY]);
void quire_mac_destroy(quire_mac *mac);
/* The hash of the first bytes of a record, which all versions have. */
uint64_t quire_record_check(const quire_mac *mac, const uint8_t *block);

/* object_header: QUIRE_OBJECT_HEADER bytes. false: no memory. */
bool quire_record_write(uint8_t block[QUIRE_BLOCK], const quire_mac *mac, const quire_record *record,
                        const uint8_t *object_header);
/*
 * Whether a block is the first of a record that lies at this place; place->bytes is not looked at. MAGIC: no record at all. VERSION:
 * one of another version, whose length alone is known (out->place.bytes). Anything else: damaged.
 */
quire_miss quire_record_read(quire_record *out, const uint8_t block[QUIRE_BLOCK], const quire_mac *mac,
                             const quire_place *place);
/* The mark of a pinned object, which is outside of what the MAC covers. */
void quire_record_set_pinned(uint8_t block[QUIRE_BLOCK], bool pinned);

/* A version and its complement: a flipped bit does not look like another version. */
static inline void quire_store_version(uint8_t *to, uint32_t version)
{
    quire_store32(to, version);
    quire_store32(to + 4, ~version);
}

static inline bool quire_version_is_whole(const uint8_t *at)
{
    return quire_load32(at) == ~quire_load32(at + 4);
}

#endif
