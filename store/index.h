/* SPDX-License-Identifier: MIT */
/*
 * store: the index of the disk tier: which object lies where, what is free, how large all of it may be. A SQLite database, because
 * SQLite turns damage of its file into an error code. It can be made anew from the slabs at any time, so nothing is synced: what
 * a failing machine leaves of it is checked, and every object is verified whatever the index says.
 */
#ifndef QUIRE_STORE_INDEX_H
#define QUIRE_STORE_INDEX_H

#include "store/record.h"

typedef struct sqlite3 sqlite3;
typedef struct sqlite3_stmt sqlite3_stmt;

#define QUIRE_INDEX_FILE "index"
#define QUIRE_INDEX_STATEMENTS 32u

typedef enum quire_index_rc {
    QUIRE_INDEX_OK,
    QUIRE_INDEX_NONE,    /* there is none */
    QUIRE_INDEX_BUSY,    /* another process does not let go of its lock */
    QUIRE_INDEX_FAILED,  /* no memory, a full disk: the index itself is well */
    QUIRE_INDEX_LOST,    /* the file is gone, or cannot be opened */
    QUIRE_INDEX_FOREIGN, /* another version of Quire has made it */
    QUIRE_INDEX_DAMAGED,
} quire_index_rc;

/* A connection, used by one thread at a time. */
typedef struct quire_index {
    sqlite3 *db;
    sqlite3_stmt *statement[QUIRE_INDEX_STATEMENTS];
    char *path;
    uint64_t dev, ino; /* of the file that is open */
    uint64_t deadline; /* when to stop waiting for others */
    uint64_t stuck_until;
    bool is_writing;
} quire_index;

/* A row. */
typedef struct quire_entry {
    int64_t id;
    quire_key object;
    int64_t ns;
    quire_place place;
    uint32_t version;
    uint64_t tick; /* microseconds since 1970, made unique */
    bool is_pinned;
} quire_entry;

/* What the whole directory has; read at the beginning of a transaction that writes and written at its end. */
typedef struct quire_index_head {
    uint64_t cap_bytes;
    uint64_t live_bytes, free_bytes; /* of records, and of what is free and still takes space */
    uint64_t n_objects, n_pinned;
    uint64_t n_foreign, foreign_bytes; /* records of versions that are not known */
    uint64_t slab, end;                /* where new records go; slab 0: nowhere yet */
    uint64_t next_slab;
    uint64_t scan_slab, scan_at,
        scan_end; /* slabs below scan_end are read for records that the index lacks */
    uint64_t unscanned_bytes;
    uint64_t boot; /* of the machine that used it last */
} quire_index_head;

/* Makes a new file in place of what is there. */
quire_index_rc quire_index_make(const char *path, const quire_index_head *head);

/* Nothing is opened before it is used. path: kept by the caller. */
void quire_index_init(quire_index *ix, char *path);
void quire_index_close(quire_index *ix);

/* Opens the file if need be, and again if its name stands for another one by now. */
quire_index_rc quire_index_begin(quire_index *ix, bool write, uint32_t timeout_ms);
/* OK: written. Anything else: rolled back. */
quire_index_rc quire_index_end(quire_index *ix, quire_index_rc rc);

quire_index_rc quire_index_read_head(quire_index *ix, quire_index_head *out);
quire_index_rc quire_index_write_head(quire_index *ix, const quire_index_head *h);

quire_index_rc quire_index_find(quire_index *ix, const quire_key *object, quire_entry *out);
quire_index_rc quire_index_insert(quire_index *ix, const quire_entry *e);
quire_index_rc quire_index_delete(quire_index *ix, const quire_entry *e);
quire_index_rc quire_index_touch(quire_index *ix, int64_t id, uint64_t tick);
quire_index_rc quire_index_pin(quire_index *ix, int64_t id, bool pinned);
/* The record is of another version than the row says. */
quire_index_rc quire_index_set_version(quire_index *ix, const quire_entry *e, uint32_t version);
/* The least recently used one that may go. */
quire_index_rc quire_index_oldest(quire_index *ix, quire_entry *out);
/* When the most recently used one was used. */
quire_index_rc quire_index_newest(quire_index *ix, uint64_t *tick);
/* Those after an id, in order. NONE: no more. */
quire_index_rc quire_index_next(quire_index *ix, int64_t after, quire_entry *out, uint32_t cap, uint32_t *n);
/* The one that begins at or before a place and the one after, to see whether a region is taken. NONE: not. */
quire_index_rc quire_index_covers(quire_index *ix, const quire_place *place);
quire_index_rc quire_index_slab_is_used(quire_index *ix, uint32_t slab); /* OK: it is */

/* The number of a namespace; a new one if there is none. */
quire_index_rc quire_index_namespace(quire_index *ix, const quire_key *root,
                                     const uint8_t tenant[QUIRE_TENANT], int64_t *out);

/* Free space: joined with its neighbours; taken from the front of the smallest run that is large enough. */
quire_index_rc quire_index_add_free(quire_index *ix, const quire_place *place);
quire_index_rc quire_index_take_free(quire_index *ix, uint64_t bytes, quire_place *out);
/* Takes a whole run out: the largest, or the largest of a slab. */
quire_index_rc quire_index_take_largest(quire_index *ix, quire_place *out);
quire_index_rc quire_index_drop_free(quire_index *ix, uint32_t slab, uint64_t *bytes);

quire_index_rc quire_index_add_foreign(quire_index *ix, const quire_place *place);
/* Reads all of it. DAMAGED: something does not fit together. */
quire_index_rc quire_index_check(quire_index *ix);

#endif
