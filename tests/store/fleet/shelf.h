/* SPDX-License-Identifier: MIT */
/*
 * A disk tier without a disk: the store's own disk_write.c, disk_space.c, disk_quota.c, disk_read.c and disk_admin.c, which decide what is
 * written, what counts as used and what goes, on an index in memory and on slabs without bytes. This file stands in for store/index*.c,
 * store/slab.c, store/disk.c, store/disk_keeper.c and store/clock.c; its program does not link those.
 */
#ifndef QUIRE_TESTS_SHELF_H
#define QUIRE_TESTS_SHELF_H

#include "store/disk_inside.h"

/* The clock of the store: microseconds of the simulation. */
void shelf_set_clock(uint64_t us);

/* A tier of so many bytes; page_cache_bytes as disk_cache_bytes of the store's options. counters: kept by the caller. */
quire_disk *shelf_create(uint64_t cap_bytes, uint64_t page_cache_bytes, quire_counters *counters);
void shelf_destroy(quire_disk *d);
uint64_t shelf_objects(const quire_disk *d);
uint64_t shelf_bytes(const quire_disk *d); /* of records */
/* Whether a load of the object is served by the page cache; as quire_disk_read() asks and tells quire_warm. */
bool shelf_read(quire_disk *d, const quire_key *object);

#endif
