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
#define QUIRE_INDEX_STATEMENTS 48u

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

/* One namespace: all that it has in the directory. */
typedef struct quire_namespace_row {
    int64_t id;
    quire_key root;
    uint8_t tenant[QUIRE_TENANT];
    char tenant_name[QUIRE_NAME],
        model_name[QUIRE_NAME]; /* of the record that was written last and has any */
    uint64_t named_us;          /* when that was */
    uint64_t n, bytes, n_pinned;
} quire_namespace_row;

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
quire_index_rc quire_index_pin(quire_index *ix, const quire_entry *e, bool pinned);
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

/* The number of a namespace; a new one if there is none. Takes over the names if they are newer. */
quire_index_rc quire_index_namespace(quire_index *ix, const quire_namespace_row *row, int64_t *out);
/* Those after an id, in order. NONE: no more. */
quire_index_rc quire_index_next_namespaces(quire_index *ix, int64_t after, quire_namespace_row *out,
                                           uint32_t cap, uint32_t *n);
quire_index_rc quire_index_delete_namespace(quire_index *ix, int64_t ns); /* if it has nothing */
/* When an object of it was used last; 0: it has none. */
quire_index_rc quire_index_last_used(quire_index *ix, int64_t ns, uint64_t *tick);
/* Objects of a namespace. NONE: there are none. */
quire_index_rc quire_index_in_namespace(quire_index *ix, int64_t ns, quire_entry *out, uint32_t cap,
                                        uint32_t *n);
/* All namespaces with this root: number and bytes of objects. */
quire_index_rc quire_index_root_usage(quire_index *ix, const quire_key *root, uint64_t *n, uint64_t *bytes);
quire_index_rc quire_index_tenant_bytes(quire_index *ix, const uint8_t tenant[QUIRE_TENANT], uint64_t *bytes);
/* The least recently used one of a namespace that may go, or of a tenant; *until: all others of the tenant were used then or later
 * if they are in another namespace. */
quire_index_rc quire_index_oldest_in(quire_index *ix, int64_t ns, quire_entry *out);
quire_index_rc quire_index_oldest_of(quire_index *ix, const uint8_t tenant[QUIRE_TENANT], quire_entry *out,
                                     uint64_t *until);

/* Free space: joined with its neighbours; taken from the front of the smallest run that is large enough. */
quire_index_rc quire_index_add_free(quire_index *ix, const quire_place *place);
quire_index_rc quire_index_take_free(quire_index *ix, uint64_t bytes, quire_place *out);
/* Takes a whole run out: the largest, or the largest of a slab. */
quire_index_rc quire_index_take_largest(quire_index *ix, quire_place *out);
/* Takes out the first run that ends behind a place, in the order of slabs. */
quire_index_rc quire_index_take_free_from(quire_index *ix, uint32_t slab, uint64_t at, quire_place *out);
quire_index_rc quire_index_drop_free(quire_index *ix, uint32_t slab, uint64_t *bytes);

quire_index_rc quire_index_add_foreign(quire_index *ix, const quire_place *place);
/* Reads all of it. DAMAGED: something does not fit together. */
quire_index_rc quire_index_check(quire_index *ix);

#endif
