/* SPDX-License-Identifier: MIT */
/* store: what the writers of the disk tier share. */
#ifndef QUIRE_STORE_DISK_LOCK_H
#define QUIRE_STORE_DISK_LOCK_H

#include "store/disk_segment.h"

/* The lock of writers of all processes. false: a writer that does not go on. */
bool quire_disk_lock(quire_disk *disk);
void quire_disk_unlock(quire_disk *disk);
/* The first of n ticks that nobody else of this process has. */
uint64_t quire_disk_ticks(quire_disk *disk, uint64_t n);
/* Within a transaction. The head is changed in memory only. */
int quire_disk_delete(quire_segment *s, MDB_txn *txn, const quire_key *object, quire_segment_head *h);
/* The least recently used object; MDB_NOTFOUND: none that may go. */
int quire_disk_oldest(quire_segment *s, MDB_txn *txn, quire_key *object, uint64_t *tick);

#endif
