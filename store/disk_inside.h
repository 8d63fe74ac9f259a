/* SPDX-License-Identifier: MIT */
/* store: inside of the disk tier: slabs, index, and the thread that keeps them in order. */
#ifndef QUIRE_STORE_DISK_INSIDE_H
#define QUIRE_STORE_DISK_INSIDE_H

#include "store/disk.h"
#include "store/index.h"
#include "store/slab.h"
#include "store/warm.h"

#define QUIRE_READERS 3u
#define QUIRE_SPARE_BUFFERS 8u
#define QUIRE_READ_PART (1u << 20)    /* read at a time; a load that is abandoned stops between two */
#define QUIRE_WRITE_BUFFER (4u << 20) /* records up to this size are written with one call */
#define QUIRE_LOCK_TIMEOUT_MS 2000u

/* Limits of tenants, as the file that keeps them says. */
typedef struct quire_quota {
    uint8_t tenant[QUIRE_TENANT];
    uint64_t bytes;
} quire_quota;

typedef struct quire_quotas {
    pthread_mutex_t lock;
    uint64_t ino;
    _Atomic uint64_t size;       /* in bytes: takes part of the cap */
    int64_t change_s, change_ns; /* of the file when it was read */
    uint64_t asked;              /* tenant_bytes that this process was given: if the file is lost */
    uint64_t all;                /* limit of tenants without one of their own */
    quire_quota *list;           /* in order of the tenants */
    uint32_t n, cap;
    quire_status
        wrong;    /* why the file that is there could not be read; QUIRE_OK: it could, or there is none */
    bool is_told; /* of it */
} quire_quotas;

struct quire_disk {
    quire_allocator allocator;
    quire_counters *counters;
    quire_quotas quotas;
    quire_store_log *log; /* of the store, or NULL */
    char *directory, *index_path;
    int directory_fd, head_fd; /* parts of the head file are locked: QUIRE_LOCK_... */
    bool head_is_new;          /* made by this process */
    uint64_t dev, ino;         /* of the directory */
    quire_disk *next_open;     /* directories open in this process */
    uint8_t key[QUIRE_DIRECTORY_KEY];
    quire_mac *mac;
    quire_slabs slabs;
    quire_warm warm;
    _Atomic uint64_t cap_bytes; /* as last seen in the index */

    pthread_mutex_t reader_lock[QUIRE_READERS];
    quire_index reader[QUIRE_READERS];
    _Atomic uint32_t next_reader;

    pthread_mutex_t write_lock; /* of the rest of this group */
    quire_index writer;
    quire_buffer write_buffer;
    struct quire_sealer *sealer;
    uint64_t last_tick;
    bool writes_headers_only; /* set by tests that need a full directory and not its pages */

    pthread_mutex_t spare_lock;
    quire_buffer spare[QUIRE_SPARE_BUFFERS]; /* for reads into memory that is not aligned */
    uint32_t n_spare;

    pthread_t keeper;
    bool has_keeper, stop; /* stop, wake: under keeper_lock */
    bool wake;
    pthread_mutex_t keeper_lock;
    pthread_cond_t keeper_cond;
    atomic_bool is_damaged; /* the index, whose identity was: */
    _Atomic uint64_t damaged_ino;
    atomic_bool is_scanning, is_over_cap, is_check_due, is_quota_due;
    uint64_t remake_began;   /* of an index that is not whole yet, in this process; 0: none */
    bool is_remake_told;     /* the log knows of it */
    uint64_t n_unknown_told; /* records of unknown versions */
};

/* Parts of the head file that a process locks: to replace the index; to look for records that it lacks; shared, to write to the index:
 * it is not replaced meanwhile, because the journals of both would have one name. */
enum { QUIRE_LOCK_INDEX = 0, QUIRE_LOCK_SCAN = 1, QUIRE_LOCK_WRITERS = 2 };
bool quire_disk_lock(quire_disk *d, int part, bool alone, uint32_t timeout_ms);
void quire_disk_unlock(quire_disk *d, int part);

/* ------------------------------------------------------------- transactions */

/* false: the directory was moved away or removed. Everything is a miss until it is back. */
bool quire_disk_is_in_place(const quire_disk *d);
/* A connection with a transaction that reads; NULL: *rc. Ended with its outcome. */
quire_index *quire_disk_begin_read(quire_disk *d, quire_index_rc *rc);
quire_index_rc quire_disk_end_read(quire_disk *d, quire_index *ix, quire_index_rc rc);
/* The writer of this process, under its lock, with a transaction and the head. */
quire_index_rc quire_disk_begin_write(quire_disk *d, quire_index_head *h);
quire_index_rc quire_disk_end_write(quire_disk *d, const quire_index_head *h, quire_index_rc rc);
/* What the index said, for whoever asked for a page. */
quire_miss quire_disk_miss_of(quire_index_rc rc);

/* ------------------------------------------------------- within a transaction */

/* How many bytes records may take in all. */
uint64_t quire_disk_budget(const quire_disk *d, const quire_index_head *h);
/* What takes space and cannot be had. */
static inline uint64_t quire_disk_taken(const quire_index_head *h)
{
    return h->live_bytes + h->foreign_bytes + h->unscanned_bytes;
}
/* The first of n ticks that nobody else of this process has. */
uint64_t quire_disk_ticks(quire_disk *d, uint64_t n);
quire_index_rc quire_disk_delete(quire_disk *d, quire_index_head *h, const quire_entry *e);
/* Evicts while `taken` is above this, at most max objects. NONE: nothing more may go. */
quire_index_rc quire_disk_evict(quire_disk *d, quire_index_head *h, uint64_t above, uint64_t newest_tick,
                                uint32_t max);
/* Evicts objects of one tenant while it has more than this. */
quire_index_rc quire_disk_evict_tenant(quire_disk *d, quire_index_head *h, const uint8_t tenant[QUIRE_TENANT],
                                       uint64_t above, uint64_t newest_tick, uint32_t max);
/* Gives so many free bytes back to the file system, if there are as many. */
quire_index_rc quire_disk_give_back(quire_disk *d, quire_index_head *h, uint64_t bytes);

/* ------------------------------------------------------------------- quotas */

#define QUIRE_NO_QUOTA UINT64_MAX
void quire_disk_begin_quotas(quire_disk *d);
void quire_disk_end_quotas(quire_disk *d);
/* What the file takes. */
uint64_t quire_disk_quota_bytes(const quire_disk *d);
/* How many bytes the records of a tenant may take. */
uint64_t quire_disk_quota(quire_disk *d, const uint8_t tenant[QUIRE_TENANT]);
/* Evicts what tenants have beyond their limits. tenant NULL: all. false: could not be done. */
bool quire_disk_enforce_quotas(quire_disk *d, const uint8_t *tenant);

/* ------------------------------------------------------------------- keeper */

bool quire_disk_start_keeper(quire_disk *d);
void quire_disk_stop_keeper(quire_disk *d);
void quire_disk_wake_keeper(quire_disk *d);
/* Under the lock for it: a new index that knows of nothing yet. */
quire_index_rc quire_disk_make_index(quire_disk *d, uint64_t cap_bytes);

/* Of the page object in that record: the first block is read and verified, not the payload. */
quire_miss quire_disk_read_header(quire_disk *d, const quire_entry *e, uint8_t header[QUIRE_OBJECT_HEADER]);

/* A buffer of QUIRE_READ_PART bytes. */
bool quire_disk_take_buffer(quire_disk *d, quire_buffer *out);
void quire_disk_give_buffer(quire_disk *d, quire_buffer *b);

#endif
