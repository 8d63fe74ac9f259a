/* SPDX-License-Identifier: MIT */
/*
 * quire_store.h: finished pages that outlive the process and are shared by a fleet.
 *
 * A store has a disk tier (a directory), a remote tier (a Valkey or Redis server
 * or cluster), or both. A namespace is one model as one tenant runs it; its
 * identity is part of every key. save() hands finished pages of a sequence to
 * the store and returns at once; a load puts the longest stored prefix of a
 * prompt into a sequence. What is loaded is bit for bit what was saved; every
 * fault is a miss, counted by its reason.
 *
 * Caveats
 *  - It is a cache: pages may be gone at any time, and saves are dropped when
 *    the queue is full.
 *  - Pages that wait to be saved count for their pool's budget.
 *  - One store per directory and process (EBUSY); any number of processes.
 *    The directory must be on a local file system: LMDB maps it and locks by
 *    shared memory.
 *  - LMDB, OpenSSL and libvalkey take their own memory with malloc.
 *  - A disk that fails under LMDB's tree pages raises SIGBUS; page bytes
 *    themselves are read with pread() and fail as misses.
 *
 * Threads. The store makes its own: loads and saves never wait for each other.
 * Every function may be called from any thread, except that a namespace and a
 * store are destroyed by one thread after all other calls have returned, and
 * a sequence that is being loaded has no other user until the load has ended.
 */
#ifndef QUIRE_QUIRE_STORE_H
#define QUIRE_QUIRE_STORE_H

#include "quire.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------- store */

typedef struct quire_store quire_store;

/* One server, or any node of a cluster: which of both it is, it says itself. */
typedef struct quire_store_remote {
    const char *host;       /* name or address; NULL: no remote tier */
    uint32_t port;          /* 0: 6379 */
    const char *user;       /* ACL user, or NULL */
    const char *password;   /* or NULL */
    uint32_t tls;           /* 1: TLS, the server's certificate is checked */
    const char *tls_ca;     /* file of trusted certificates; NULL: the system's */
    const char *tls_cert;   /* files of a certificate of our own and its key, or NULL */
    const char *tls_key;    /* */
    const char *tls_name;   /* name in the certificates of all nodes; NULL: each node's host */
    uint32_t connections;   /* load threads, each with its own connection to every node; 0: 2 */
    uint32_t ttl_seconds;   /* objects expire; 0: only the server's own eviction */
    uint32_t connect_ms;    /* time-out of connecting; 0: 1000 */
    uint32_t stall_ms;      /* a peer that sends nothing for so long is taken as gone; 0: 1000 */
    size_t in_flight_bytes; /* replies asked for and not yet received, per thread; 0: 16 MiB */
} quire_store_remote;

typedef struct quire_store_options {
    uint32_t version;                 /* QUIRE_OPTIONS */
    const char *directory;            /* disk tier; made if it is missing; NULL: none */
    uint64_t disk_bytes;              /* cap on the bytes of all its files, at least 16 MiB; 0: as it is */
    uint64_t disk_bytes_per_day;      /* saves beyond that are dropped, to spare the SSD; 0: no limit */
    uint32_t disk_threads;            /* that load; 0: 2 */
    uint32_t no_promote;              /* 1: pages that came from the remote tier are not kept on disk */
    size_t queue_bytes;               /* pages that wait to be saved, per tier; 0: 256 MiB */
    quire_store_remote remote;        /* */
    const quire_allocator *allocator; /* copied */
    char *message;                    /* gets one sentence when opening fails, else ""; may be NULL */
    size_t message_size;
} quire_store_options;

/* EINVAL: options; EBUSY: the directory is open in this process; EIO: the directory cannot be used; EVERSION: it was
 * made by a later version. A remote that does not answer is no error: the store goes on asking. */
QUIRE_API quire_status quire_store_open(quire_store **out, const quire_store_options *options);
/* Waits until everything queued is saved, or the time is over (EIO). */
QUIRE_API quire_status quire_store_flush(quire_store *store, uint32_t timeout_ms);
/* Every namespace must be gone. What is queued for the disk is saved; the rest is dropped. */
QUIRE_API void quire_store_close(quire_store *store);

/* ---------------------------------------------------------------- statistics */

/* Why a page was not had. */
#define QUIRE_MISS_LIST(X)                            \
    X(NONE, "it was had")                             \
    X(ABSENT, "no tier holds it")                     \
    X(MAGIC, "not a page object")                     \
    X(VERSION, "format version is not known")         \
    X(HEADER, "header is damaged")                    \
    X(RESERVED, "reserved bytes or flags are set")    \
    X(IDENTITY, "of another namespace")               \
    X(KEY, "of another prefix or page")               \
    X(CODEC, "of other codecs or another layout")     \
    X(LENGTH, "of another length")                    \
    X(PAYLOAD, "bytes are damaged")                   \
    X(SEAL, "seal is not the namespace's")            \
    X(DISK, "disk or directory failed")               \
    X(DOWN, "remote is taken as down")                \
    X(CONNECT, "no connection to the remote")         \
    X(AUTH, "remote refused the password")            \
    X(PROTOCOL, "remote does not speak as it should") \
    X(SERVER, "remote answered with an error")        \
    X(STALLED, "remote fell silent")                  \
    X(DEADLINE, "time was over")                      \
    X(ROOM, "pool had no room")                       \
    X(MEMORY, "memory could not be had")

typedef enum quire_miss {
#define QUIRE_MISS_ENUM(name, text) QUIRE_MISS_##name,
    QUIRE_MISS_LIST(QUIRE_MISS_ENUM)
#undef QUIRE_MISS_ENUM
        QUIRE_MISS_COUNT
} quire_miss;

QUIRE_API const char *quire_miss_name(quire_miss miss); /* "PAYLOAD" */
QUIRE_API const char *quire_miss_text(quire_miss miss);

typedef struct quire_store_stats {
    uint64_t loads;                    /* begun */
    uint64_t misses[QUIRE_MISS_COUNT]; /* pages by reason; [0] is 0 */
    /* Per tier: [0] disk, [1] remote. */
    uint64_t loaded[2], loaded_bytes[2]; /* pages */
    uint64_t saved[2], saved_bytes[2];
    uint64_t known[2];   /* not saved again: the tier had them */
    uint64_t dropped[2]; /* not saved: queue full, daily budget, larger than the tier takes */
    uint64_t failed[2];  /* not saved: the tier failed */
    uint64_t queued_bytes[2];
    uint64_t evicted;                    /* from disk, to make room */
    uint64_t removed[2];                 /* damaged objects that were deleted */
    uint64_t disk_bytes, disk_cap_bytes; /* of all files now; cap */
    uint64_t disk_objects, pinned_objects;
    uint64_t breaks;     /* times that a node of the remote was taken as down */
    uint64_t reconnects; /* connections made */
    uint32_t nodes;      /* of the remote that are known */
    uint32_t nodes_down; /* now */
} quire_store_stats;

QUIRE_API void quire_store_stats_get(quire_store *store, quire_store_stats *out);

/* --------------------------------------------------------------- namespace */

/*
 * Everything that changes a page's bytes. All of it is hashed into the root of
 * every key; what a caller leaves unsaid it will one day confuse, so no member
 * may be NULL, and only adapter may be "".
 */
typedef struct quire_identity {
    uint32_t version;      /* QUIRE_OPTIONS */
    const char *weights;   /* revision: a digest of the weights */
    const char *tokenizer; /* revision */
    const char *adapter;   /* revision of the adapter (LoRA), or "" */
    double adapter_scale;  /* 0 without adapter */
    const char *rope; /* every RoPE parameter, always written the same way: "base=500000 scale=1 dims=128" */
    const uint8_t *secret; /* 32 random bytes of the tenant: who has them can read and write its pages */
} quire_identity;

typedef struct quire_namespace quire_namespace;

/*
 * A namespace of the pages of a plan. ring: as the sequences are created; max_tokens and sinks are part of the identity,
 * spare_tokens is used by lookups. NULL: no ring. Everything is copied.
 */
QUIRE_API quire_status quire_namespace_create(quire_namespace **out, quire_store *store,
                                              const quire_identity *identity, const quire_plan *plan,
                                              const quire_seq_options *ring);
/* A namespace of pages that the caller makes up: page_bytes bytes for 64 tokens. layout says what they mean and is
 * part of the identity. */
QUIRE_API quire_status quire_namespace_create_raw(quire_namespace **out, quire_store *store,
                                                  const quire_identity *identity, const char *layout,
                                                  size_t page_bytes);
/* Waits for loads that were abandoned and for pages of it that are queued; after that the store does not touch the pools
 * that were used with it. */
QUIRE_API void quire_namespace_destroy(quire_namespace *ns);
QUIRE_API void quire_namespace_root(const quire_namespace *ns, uint8_t root[32]);

/* An image or other input in place of a token: tokens[position] is ignored. */
typedef struct quire_media {
    uint32_t position;
    uint8_t digest[32];
} quire_media;

/* What was computed, from position 0 on. */
typedef struct quire_prompt {
    const uint32_t *tokens;
    uint32_t n_tokens;
    const quire_media *media; /* positions ascending */
    uint32_t n_media;
} quire_prompt;

/*
 * Hand the finished pages that the sequence holds to the store. Never waits. Call it after every commit that finishes
 * a page, so that pages of windows and rings are seen before they go; what is stored or queued already costs a hash.
 * The prompt must be what the sequence holds, at least up to its last finished page (EINVAL if it is shorter).
 * EMISMATCH: the sequence has another plan or ring than the namespace.
 */
QUIRE_API quire_status quire_namespace_save(quire_namespace *ns, const quire_prompt *prompt,
                                            const quire_seq *seq);
/* One page of a raw namespace; the bytes are copied. */
QUIRE_API quire_status quire_namespace_save_raw(quire_namespace *ns, const quire_prompt *prompt,
                                                uint32_t page_index, const void *bytes);

/* Tokens of the prompt, in whole pages, that can be loaded. Asks the disk at once; the remote too if timeout_ms is not 0,
 * waiting at most so long. */
QUIRE_API quire_status quire_namespace_lookup(quire_namespace *ns, const quire_prompt *prompt,
                                              uint32_t timeout_ms, uint32_t *n_tokens);

/*
 * Pinned pages stay on disk until they are unpinned, through restarts. pins what the disk holds of the prompt; *n_tokens
 * is how much that is. Waits for saves that were queued before. EIO: the disk failed, or the time is over.
 */
QUIRE_API quire_status quire_namespace_pin(quire_namespace *ns, const quire_prompt *prompt, uint32_t pinned,
                                           uint32_t timeout_ms, uint32_t *n_tokens /* may be NULL */);

/* -------------------------------------------------------------------- load */

typedef struct quire_load quire_load;

/*
 * Begin to load the longest stored prefix of a prompt into a sequence whose length is a multiple of 64; tokens below that
 * length are taken as held. At least one token of the prompt should be left to compute: give one less than there are.
 * The load takes pages of the sequence's pool. EMISMATCH: another plan or ring; EBUSY: in an open step.
 */
QUIRE_API quire_status quire_load_begin(quire_load **out, quire_namespace *ns, const quire_prompt *prompt,
                                        quire_seq *seq, uint32_t timeout_ms);
QUIRE_API int quire_load_is_done(const quire_load *load);
/*
 * Waits until all is loaded or the time is over. *n_tokens is the length of the sequence then: the longest prefix all of
 * whose pages came in time. Ends the load in any case. ENOMEM: nothing was added.
 */
QUIRE_API quire_status quire_load_end(quire_load *load, uint32_t *n_tokens);

/* Pages of a raw namespace, from the first on. take(ctx, page_index, bytes) is called in order of the index. */
typedef void (*quire_take_page_fn)(void *ctx, uint32_t page_index, const void *bytes);
QUIRE_API quire_status quire_namespace_load_raw(quire_namespace *ns, const quire_prompt *prompt,
                                                uint32_t timeout_ms, quire_take_page_fn take, void *ctx,
                                                uint32_t *n_tokens);

/* ------------------------------------------------------------ administration */

typedef struct quire_object_info {
    uint8_t object[32], root[32], key[32], parent[32];
    uint32_t group, page_index;
    uint64_t payload_bytes, fingerprint;
    uint64_t used_us; /* last use, microseconds since 1970 */
    uint32_t pinned;
    quire_miss damage; /* NONE, or what is wrong with it; as far as that can be told without its namespace */
} quire_object_info;

/* Return anything but QUIRE_OK to stop. bytes: header and payload as they are stored; NULL unless payloads were asked for. */
typedef quire_status (*quire_object_fn)(void *ctx, const quire_object_info *info, const void *bytes,
                                        size_t n);
/* Every object on disk, in no order. payloads: 1 to read and verify them. EIO: the disk failed or fn stopped it. */
QUIRE_API quire_status quire_store_each(quire_store *store, uint32_t payloads, quire_object_fn fn, void *ctx);
/* Put an object as quire_store_each() gave it on disk. EFORMAT: it is damaged. */
QUIRE_API quire_status quire_store_put_object(quire_store *store, const void *bytes, size_t n);
/* Remove what is damaged; objects older than max_age_s too unless that is 0; then the least recently used until no more
 * than max_bytes are used, unless that is UINT64_MAX. Pinned objects stay unless damaged. Runs until done. */
QUIRE_API quire_status quire_store_gc(quire_store *store, uint64_t max_age_s, uint64_t max_bytes,
                                      uint64_t *n_removed);

#ifdef __cplusplus
}
#endif
#endif
