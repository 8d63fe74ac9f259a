/* SPDX-License-Identifier: MIT */
/* store: the store itself: tiers, queues, threads. */
#ifndef QUIRE_STORE_STORE_H
#define QUIRE_STORE_STORE_H

#include "store/disk.h"
#include "store/load.h"
#include "store/log.h"
#include "store/queue.h"
#include "store/remote.h"

struct quire_store {
    quire_allocator allocator;
    quire_counters counters;
    quire_store_log log;
    quire_disk *disk;     /* NULL: no such tier */
    quire_remote *remote; /* NULL: no such tier */
    quire_queue queue[2]; /* of the tiers that are there */
    quire_loader loader;
    uint64_t disk_bytes_per_day;
    uint64_t queue_cap_bytes;
    bool promote, seal_disk;
    _Atomic uint64_t n_removals; /* begun and ended: namespaces then forget what they handed in lately */
    atomic_bool is_disk_failing; /* the last pages could not be saved to disk */
    atomic_bool stop;            /* of the remote's threads */
    bool has_saver[2];
    pthread_t saver[2];
};

bool quire_store_has(const quire_store *store, int tier);

/* save.c: threads that empty the queues. arg: the store. */
void *quire_save_to_disk(void *arg);
void *quire_save_to_remote(void *arg);

/* Hand one page to the tiers (bits: 1 << QUIRE_DISK, 1 << QUIRE_REMOTE). Takes over one owner of the blob. true: some tier has
 * taken it. */
bool quire_store_offer(quire_store *store, const quire_object_id *id, quire_blob *blob, uint32_t tiers);
/* Pages that a tier did not take because its queue is full. */
void quire_store_count_full(quire_store *store, quire_counters *own, int tier, uint64_t n);
/* tell.c: what the log is told of. A page that did not come; pages that were or could not be saved to disk. */
void quire_store_tell_miss(quire_store *store, quire_miss miss, int tier);
void quire_store_tell_saved(quire_store *store, bool good);
/* A damaged object shall go. seal_key: the remote's is opened once more before. */
void quire_store_discard(quire_store *store, const quire_object_id *id, const quire_key *seal_key, int tier);

#endif
