/* SPDX-License-Identifier: MIT */
/*
 * store: the disk tier. Records that describe and verify themselves lie in slab files; an index in SQLite says which object lies
 * where. The index can be made anew from the records at any time. Several processes share a directory: space, eviction and
 * the cap are decided in transactions of the index. Whatever is damaged, truncated, removed or replaced is a miss.
 */
#ifndef QUIRE_STORE_DISK_H
#define QUIRE_STORE_DISK_H

#include "store/log.h"
#include "store/object.h"

typedef struct quire_disk quire_disk;

/* cap_bytes 0: the directory's own. message gets one sentence on failure. EBUSY, EIO, EVERSION, EINVAL, ENOMEM. */
quire_status quire_disk_open(quire_disk **out, const char *directory, uint64_t cap_bytes,
                             const quire_allocator *allocator, quire_counters *counters, quire_store_log *log,
                             char *message, size_t message_size);
void quire_disk_close(quire_disk *disk);
/* How much of what is loaded again and again may stay in the page cache. Before anything is loaded. */
void quire_disk_set_warm(quire_disk *disk, uint64_t bytes);

typedef struct quire_disk_usage {
    uint64_t file_bytes, cap_bytes, n_objects, n_pinned;
    uint64_t n_unknown;    /* records of versions that are not known: left alone */
    uint64_t record_bytes; /* of the objects, as they lie in slabs */
    bool is_scanning;      /* the index is being made anew: what it lacks is still found */
} quire_disk_usage;
void quire_disk_usage_get(quire_disk *disk, quire_disk_usage *out);
/* Why pages cannot be saved, as far as can be told from outside: a part of a sentence. */
const char *quire_disk_explain(const quire_disk *disk);
const char *quire_disk_directory(const quire_disk *disk);

/* ------------------------------------------------------------------ reading: any thread */

/* has[i] becomes true if objects[i] is there; entries that are true already are left alone. */
void quire_disk_has(quire_disk *disk, const quire_key *objects, uint32_t n, bool *has);
/* Reads and verifies one object into id->bytes bytes; stop as in quire_unseal(). */
quire_miss quire_disk_read(quire_disk *disk, const quire_object_id *id, void *payload,
                           const atomic_bool *stop);
/* Every object, one call each. */
quire_status quire_disk_each(quire_disk *disk, bool payloads, quire_object_fn fn, void *ctx);

/* ------------------------------------------ writing: any thread; writers of all processes take turns */

typedef struct quire_disk_put {
    quire_object_id id;
    const void *payload;
    const uint8_t *header; /* ready-made, or NULL */
    bool seal;             /* encrypt the payload with the owner's key */
} quire_disk_put;

typedef struct quire_disk_touch {
    const quire_key *objects; /* of one chain, the first page first: it is kept longest */
    uint32_t n;
} quire_disk_touch;

/* Bytes of objects of one size that are best written at once. */
size_t quire_disk_batch(const quire_disk *disk);
/* Whether so many objects like this one can be written without evicting any. */
bool quire_disk_has_room(quire_disk *disk, const quire_object_id *id, uint32_t n);
/* Objects of one size. Counts saved, known, dropped, failed and evicted itself. false: the disk failed. */
bool quire_disk_write(quire_disk *disk, const quire_disk_put *puts, uint32_t n);
/* Recency of many chains. */
void quire_disk_touch_all(quire_disk *disk, const quire_disk_touch *touches, uint32_t n);
/* EIO: the disk failed. */
quire_status quire_disk_pin(quire_disk *disk, const quire_key *objects, uint32_t n, bool pinned);
/* Number of objects that were there. */
uint32_t quire_disk_remove(quire_disk *disk, const quire_key *objects, uint32_t n);
/* Evicts what was used before `before_us`, then the least recently used while more than max_bytes are in objects. */
quire_status quire_disk_trim(quire_disk *disk, uint64_t before_us, uint64_t max_bytes, uint64_t *n_removed);

/* ---------------------------------------------------------------------- tenants */

quire_status quire_disk_usage_each(quire_disk *disk, quire_usage_fn fn, void *ctx);
/* What the directory has of a namespace, by all tenants that it was saved or imported as. */
void quire_disk_root_usage(quire_disk *disk, const quire_key *root, uint64_t *n, uint64_t *bytes);
/* Removes all objects of the namespaces that match, and makes sure that the files no longer hold their bytes. */
quire_status quire_disk_remove_selected(quire_disk *disk, const quire_store_selection *s,
                                        uint64_t *n_removed);
/* The limit of a tenant, or of all that have none of their own (tenant NULL). 0: no such limit is kept; UINT64_MAX: none. */
quire_status quire_disk_set_quota(quire_disk *disk, const uint8_t *tenant, uint64_t bytes);

#endif
