/* SPDX-License-Identifier: MIT */
/* store: inside of the disk tier: segments and their records (docs/formats/store.md). */
#ifndef QUIRE_STORE_DISK_SEGMENT_H
#define QUIRE_STORE_DISK_SEGMENT_H

#include "store/disk.h"

#include <lmdb.h>

#define QUIRE_MAX_SEGMENTS 16u

typedef struct quire_segment {
    MDB_env *env;
    MDB_dbi objects;    /* object key -> object */
    MDB_dbi meta;       /* object key -> quire_meta */
    MDB_dbi recency;    /* tick, object key's first 8 bytes -> object key; pinned objects have none */
    MDB_dbi head;       /* "head" -> quire_segment_head */
    const uint8_t *map; /* where the file is mapped, to tell offsets; NULL: not known */
    int fd;
} quire_segment;

/* As stored, little-endian. */
#define QUIRE_MIXED UINT64_MAX
typedef struct quire_segment_head {
    uint64_t size_class; /* OS pages of an object; 0: none yet; MIXED: several sizes */
    uint64_t n_objects, used_pages, n_pinned;
} quire_segment_head;

typedef struct quire_meta {
    uint64_t tick; /* microseconds since 1970, made unique */
    uint64_t pages;
    uint64_t pinned;
} quire_meta;

struct quire_disk {
    quire_allocator allocator;
    quire_counters *counters;
    char *directory;
    int head_fd;  /* its lock is that of writers */
    int users_fd; /* its lock, shared, says that somebody has the directory open */
    uint64_t dev, ino;
    quire_disk *next_open; /* directories open in this process */
    uint64_t cap_bytes, segment_bytes;
    uint32_t n_segments;
    quire_segment segment[QUIRE_MAX_SEGMENTS];
    _Atomic uint32_t last_hit;  /* segment where the last object was found: the next is likely there too */
    pthread_mutex_t write_lock; /* writers of this process */
    uint64_t last_tick;         /* under it */
};

static inline uint64_t quire_object_pages(uint64_t payload_bytes)
{
    return (16 + QUIRE_OBJECT_HEADER + payload_bytes + 4095) / 4096; /* LMDB's page header is 16 bytes */
}

static inline MDB_val quire_val(const void *bytes, size_t n)
{
    return (MDB_val){.mv_size = n, .mv_data = (void *)(uintptr_t)bytes};
}

/* Read-only; clears readers of processes that have died when the table is full. */
int quire_segment_begin(quire_segment *s, MDB_txn **txn);
int quire_segment_end(MDB_txn *txn, int rc); /* commits if rc is 0, else aborts and returns rc */
quire_segment_head quire_segment_read_head(quire_segment *s, MDB_txn *txn);
int quire_segment_write_head(quire_segment *s, MDB_txn *txn, const quire_segment_head *h);
/* MDB_NOTFOUND or another code of LMDB. */
int quire_segment_meta(quire_segment *s, MDB_txn *txn, const quire_key *object, quire_meta *out);
int quire_segment_put_meta(quire_segment *s, MDB_txn *txn, const quire_key *object, const quire_meta *m);
void quire_recency_key(uint8_t key[16], uint64_t tick, const quire_key *object);

#endif
