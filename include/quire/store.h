/* SPDX-License-Identifier: MIT */
/*
 * store.h: keeps finished pages after the process has ended, and shares them between machines.
 *
 * A store has a disk tier (a directory), a remote tier (a Valkey or Redis server or cluster), or both. A namespace is
 * one model as one tenant runs it; its identity is part of every key. quire_namespace_save() hands the finished pages of
 * a sequence to the store and returns at once. A load puts the longest stored prefix of a prompt into a sequence. Loaded
 * pages have exactly the bits that were saved. Most faults count as misses, with a reason; for the others see Limits.
 *
 * Limits
 *  - The store is a cache: pages can disappear at any time, and saves are dropped when the queue is full.
 *  - Pages that wait to be saved count towards their pool's budget.
 *  - A process can open a directory only once (EBUSY); any number of processes can share it. The directory must be on a
 *    local file system that has file locks and can give back parts of files (ext4, XFS, Btrfs, tmpfs). No other part of the
 *    process may open and close its files.
 *  - SQLite, OpenSSL and libvalkey allocate their own memory with malloc.
 *
 * Threads. The store creates its own threads; loads and saves never wait for each other. Any thread may call any
 * function, with three exceptions: destroy a namespace or close a store from one thread after all other calls have
 * returned, do not use a sequence that is being loaded until the load has ended, and use a chain in one thread at a time.
 * Time limits count from the call; with 0 nothing is waited for.
 */
#ifndef QUIRE_STORE_H
#define QUIRE_STORE_H

#include "quire.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------- store */
/* Interface: stable. */

typedef struct quire_store quire_store;

/* One server, or any node of a cluster. The store asks the server which of the two it is. */
typedef struct quire_store_remote {
    size_t size;
    const char *host;       /* host name or address; NULL: no remote tier */
    const char *user;       /* ACL user, or NULL */
    const char *password;   /* password, or NULL */
    uint32_t port;          /* 0: 6379 */
    uint32_t tls;           /* 1: use TLS and verify the server's certificate */
    const char *tls_ca;     /* file of trusted certificates; NULL: those of the system */
    const char *tls_cert;   /* file of the client certificate, or NULL */
    const char *tls_key;    /* file of its private key, or NULL */
    const char *tls_name;   /* name expected in the certificates of all nodes; NULL: each node's host */
    uint32_t connections;   /* load threads, each with its own connection to every node; at most 64; 0: 2 */
    uint32_t ttl_seconds;   /* objects expire after this time; 0: only the server evicts */
    uint32_t connect_ms;    /* timeout for connecting; 0: 1000 */
    uint32_t stall_ms;      /* a server that makes no progress for this long counts as lost; 0: 1000 */
    size_t in_flight_bytes; /* limit of requested replies not yet received, per thread; 0: 16 MiB */
    uint32_t
        min_bytes_per_second; /* a node that moves less over stall_ms while something is asked of it is lost; 0: 64 KiB */
    uint32_t read_replicas; /* 0: replicas are read only while their master does not answer; 1: always */
} quire_store_remote;

typedef struct quire_store_options {
    size_t size;
    const char *directory;       /* disk tier; created if missing; NULL: none */
    uint64_t disk_bytes;         /* limit of all its files together, at least 16 MiB; 0: as before. Holds at
                                         once for all processes that have the directory open */
    uint64_t disk_bytes_per_day; /* saves beyond this are dropped, to spare the SSD; 0: no limit */
    uint32_t disk_threads;       /* threads that load; at most 64; 0: 2 */
    uint32_t no_promote;         /* 1: pages loaded from the remote tier are not saved to disk */
    size_t queue_bytes;          /* limit of pages that wait to be saved, per tier; 0: 256 MiB */
    const quire_store_remote *remote; /* NULL: no remote tier */
    const quire_allocator *allocator; /* copied */
    /* Copied; told of what operators should know (docs/store.md), some lines a minute at most. */
    const quire_log *log;
    char *message; /* receives one sentence if opening fails, else ""; may be NULL */
    size_t message_size;
    /* Of pages that are loaded again and again so many bytes may stay in the operating system's page cache; all else is read past it.
     * 0: 1 GiB, at most a sixteenth of the memory; 1: none. */
    uint64_t disk_cache_bytes;
    /* Limit of each tenant's records on disk; holds for all processes that have the directory open. 0: as before, none in a new
     * directory; UINT64_MAX: none. */
    uint64_t tenant_bytes;
    /* 1: pages are encrypted on disk with a key made from the tenant's secret; pages there that are not are not loaded. */
    uint32_t seal_disk;
    uint32_t reserved; /* 0 */
} quire_store_options;

/* Opens a store. Everything is copied. disk_bytes 0 keeps the limit of an existing directory; a new directory needs a limit. A remote that does
 * not answer is not an error: the store keeps trying. EINVAL: invalid options; EBUSY: this process already has the
 * directory open; EIO: the directory cannot be used; EVERSION: it was made by a version that this one does not know. */
QUIRE_API quire_status quire_store_open(quire_store **out, const quire_store_options *options);
/* Waits until everything in the queues is saved. EIO: the time limit was reached first. */
QUIRE_API quire_status quire_store_flush(quire_store *store, uint32_t timeout_ms);
/* From now on nothing is asked of the remote and nothing is sent to it: pages queued for it are dropped, and nothing waits for it any
 * more, neither loads nor quire_namespace_destroy(). For a program that must end in time; call quire_store_flush() before. */
QUIRE_API quire_status quire_store_stop_remote(quire_store *store);
/* Destroy every namespace first. Pages queued for the disk are saved; pages queued for the remote are dropped. */
QUIRE_API void quire_store_close(quire_store *store);

/* ---------------------------------------------------------------- statistics */
/* Interface: stable. */

/* Why a page could not be loaded. */
#define QUIRE_MISS_LIST(X)                              \
    X(NONE, "the page was loaded")                      \
    X(ABSENT, "no tier has the page")                   \
    X(MAGIC, "not a page object")                       \
    X(VERSION, "unknown format version")                \
    X(HEADER, "the header is damaged")                  \
    X(RESERVED, "reserved bytes or flags are set")      \
    X(IDENTITY, "belongs to another namespace")         \
    X(KEY, "belongs to another prefix or page")         \
    X(CODEC, "has other codecs or another layout")      \
    X(LENGTH, "has the wrong length")                   \
    X(PAYLOAD, "the page data is damaged")              \
    X(SEAL, "the seal does not match the namespace")    \
    X(DISK, "the disk or the directory failed")         \
    X(DOWN, "the remote is considered down")            \
    X(CONNECT, "could not connect to the remote")       \
    X(AUTH, "the remote rejected the password")         \
    X(PROTOCOL, "the remote violated the protocol")     \
    X(SERVER, "the remote returned an error")           \
    X(STALLED, "the remote stopped responding")         \
    X(DEADLINE, "the time limit was reached")           \
    X(ROOM, "the memory budget of the pool is used up") \
    X(MEMORY, "memory allocation failed")

typedef enum quire_miss {
#define QUIRE_MISS_ENUM(name, text) QUIRE_MISS_##name,
    QUIRE_MISS_LIST(QUIRE_MISS_ENUM)
#undef QUIRE_MISS_ENUM
        QUIRE_MISS_COUNT
} quire_miss;

/* Room for reasons of later versions. */
#define QUIRE_MISS_REASONS 64

QUIRE_API const char *quire_miss_name(quire_miss miss); /* "PAYLOAD" */
QUIRE_API const char *quire_miss_text(quire_miss miss);

typedef struct quire_store_stats {
    size_t size;
    uint64_t loads;                      /* loads begun */
    uint64_t misses[QUIRE_MISS_REASONS]; /* pages not loaded, by reason; [0] is 0 */
    /* Pages and their bytes per tier: [0] disk, [1] remote. */
    uint64_t loaded[2], loaded_bytes[2];
    uint64_t saved[2], saved_bytes[2];
    uint64_t known[2];   /* not saved because the tier already had them */
    uint64_t dropped[2]; /* not saved: queue full, daily limit reached, or too large for the tier */
    uint64_t failed[2];  /* not saved because the tier failed */
    uint64_t queued_bytes[2];
    uint64_t evicted;                    /* pages evicted from disk to make room */
    uint64_t removed[2];                 /* damaged objects that were deleted, per tier */
    uint64_t disk_bytes, disk_cap_bytes; /* size of all files now; limit */
    uint64_t disk_objects, pinned_objects;
    uint64_t breaks;       /* times that a node of the remote was considered down */
    uint64_t reconnects;   /* connections opened */
    uint32_t nodes;        /* known nodes of the remote */
    uint32_t nodes_down;   /* nodes considered down now */
    uint64_t shared;       /* pages of loaded[1] that came with the request of another load */
    uint64_t disk_unknown; /* pages on disk whose version this library does not know; they are left alone */
    uint64_t queue_cap_bytes; /* limit of queued_bytes, per tier */
    uint32_t disk_rebuilding; /* 1: the index is being made anew; pages that it lacks are misses meanwhile */
    uint32_t disk_failing;    /* 1: the last pages could not be saved to disk */
    uint32_t
        nodes_refusing; /* nodes that answer, but refused a page in the last minutes and did not do it since */
    uint32_t reserved;  /* 0 */
} quire_store_stats;

QUIRE_API quire_status quire_store_stats_get(quire_store *store, quire_store_stats *out); /* set its size */

/* What is timed. */
typedef enum quire_timed {
    QUIRE_TIMED_LOAD,      /* a load, until its last page is there or its time is over */
    QUIRE_TIMED_DISK_READ, /* a page, read and verified */
    QUIRE_TIMED_REMOTE_READ, /* a page, from the request until it is verified; requests are sent many at a time */
    QUIRE_TIMED_DISK_SAVE,    /* pages that are saved together */
    QUIRE_TIMED_REMOTE_SAVE,  /* the same */
    QUIRE_TIMED_DISK_QUEUE,   /* a page, until its saving begins */
    QUIRE_TIMED_REMOTE_QUEUE, /* the same */
    QUIRE_TIMED_COUNT
} quire_timed;

#define QUIRE_STORE_BOUNDS 32

/* A histogram. counts[i] is the number of durations above bound_ns[i - 1], up to bound_ns[i]; counts[n_bounds] is the number of those
 * above all bounds. */
typedef struct quire_store_times {
    size_t size;
    uint64_t n, sum_ns;
    uint64_t n_bounds; /* less than QUIRE_STORE_BOUNDS */
    uint64_t bound_ns[QUIRE_STORE_BOUNDS];
    uint64_t counts[QUIRE_STORE_BOUNDS];
} quire_store_times;

QUIRE_API quire_status quire_store_times_get(quire_store *store, quire_timed what, quire_store_times *out);

/*
 * Writes all of these figures in the text format of Prometheus, for the page that an engine serves to it. The names begin with
 * quire_store_. labels are added to every sample, for example "server=\"a\""; NULL: none. EINVAL: labels are not a
 * list of name="value". EIO: write failed.
 */
QUIRE_API quire_status quire_store_write_metrics(quire_store *store, const char *labels, quire_write_fn write,
                                                 void *ctx);

/* --------------------------------------------------------------- namespace */
/* Interface: stable. */

/*
 * Everything that affects the bytes of a page. All of it is hashed into the root of every key. If two models or settings
 * shared an identity, one would load the other's pages; therefore no member may be NULL, and only adapter may be "".
 */
typedef struct quire_identity {
    size_t size;
    const char *weights;   /* revision of the weights, for example a digest */
    const char *tokenizer; /* revision of the tokenizer */
    const char *adapter;   /* revision of the adapter (LoRA), or "" */
    double adapter_scale;  /* 0 without an adapter */
    const char
        *rope; /* all RoPE parameters, always written in the same way: "base=500000 scale=1 dims=128" */
    const uint8_t *secret; /* 32 random bytes of the tenant: whoever has them can read and write its pages */
    /* For operators; not part of the identity. Up to 63 bytes of printable text; NULL or "": none. Readable on disk. */
    const char *tenant_name, *model_name;
} quire_identity;

typedef struct quire_namespace quire_namespace;

/*
 * Creates a namespace for the pages of a plan. ring: the options that the sequences are created with, or NULL for no ring;
 * max_tokens and sinks become part of the identity, spare_tokens is used by lookups. Everything is copied.
 */
QUIRE_API quire_status quire_namespace_create(quire_namespace **out, quire_store *store,
                                              const quire_identity *identity, const quire_plan *plan,
                                              const quire_seq_options *ring);
/* Creates a namespace for pages in the caller's own format: page_bytes bytes for 64 tokens. layout is a text that describes
 * the format; it is part of the identity. */
QUIRE_API quire_status quire_namespace_create_raw(quire_namespace **out, quire_store *store,
                                                  const quire_identity *identity, const char *layout,
                                                  size_t page_bytes);
/* Waits for queued pages of the namespace, and for loads until quire_load_end() was called: end them first. After that the
 * store does not touch the pools that were used with it. */
QUIRE_API void quire_namespace_destroy(quire_namespace *ns);
QUIRE_API void quire_namespace_root(const quire_namespace *ns, uint8_t root[32]);

/* What was done through this namespace, counted as in quire_store_stats, and what the disk holds of it. */
typedef struct quire_namespace_stats {
    size_t size;
    uint64_t loads;
    uint64_t loaded[2], loaded_bytes[2];
    uint64_t saved[2], saved_bytes[2];
    uint64_t known[2], dropped[2], failed[2];
    uint64_t misses[QUIRE_MISS_REASONS];
    uint64_t disk_objects, disk_bytes; /* by all processes; bytes of records */
} quire_namespace_stats;

QUIRE_API quire_status quire_namespace_stats_get(quire_namespace *ns,
                                                 quire_namespace_stats *out); /* set its size */

/* An image or other input that takes the place of a token; tokens[position] is ignored. Passed in arrays. */
typedef struct quire_media {
    uint32_t position;
    uint8_t digest[32];
} quire_media;

/* The input that was computed, from position 0 on. */
typedef struct quire_prompt {
    size_t size;
    const uint32_t *tokens;
    const quire_media *media; /* in ascending order of position */
    size_t media_stride;      /* sizeof(quire_media), if media is given */
    uint32_t n_tokens, n_media;
} quire_prompt;

/*
 * Hands the finished pages of the sequence to the store. Never waits. Call it after every commit that finishes a page, so
 * that pages of windows and rings are saved before they are evicted. A page that is already stored or queued costs only a
 * hash. The prompt must match the sequence's tokens, at least up to its last finished page. EINVAL: the prompt is shorter
 * than that. EMISMATCH: the sequence has another plan or ring than the namespace.
 */
QUIRE_API quire_status quire_namespace_save(quire_namespace *ns, const quire_prompt *prompt,
                                            const quire_seq *seq);
/* Saves one page of a raw namespace; the bytes are copied. Hashes the prompt up to this page: to save many pages, use a
 * chain. */
QUIRE_API quire_status quire_namespace_save_raw(quire_namespace *ns, const quire_prompt *prompt,
                                                uint32_t page_index, const void *bytes);

/* The number of tokens of the prompt, in whole pages, that can be loaded. Asks the disk at once. With timeout_ms > 0 it
 * also asks the remote and waits at most that long. */
QUIRE_API quire_status quire_namespace_lookup(quire_namespace *ns, const quire_prompt *prompt,
                                              uint32_t timeout_ms, uint32_t *n_tokens);
/* The same for n prompts at once: one question to the disk, and one round trip to each node of the remote. n_tokens[i]
 * belongs to the prompt at prompts + i * prompt_stride bytes. */
QUIRE_API quire_status quire_namespace_lookup_many(quire_namespace *ns, const quire_prompt *prompts,
                                                   size_t prompt_stride, uint32_t n, uint32_t timeout_ms,
                                                   uint32_t *n_tokens);

/*
 * Pins (pinned 1) or unpins (0) the pages of the prompt that are on disk. Pinned pages are not evicted until they are
 * unpinned, also across restarts. *n_tokens receives the length of the prefix that the disk holds. Waits for saves that
 * were queued before. EIO: the disk failed or the time limit was reached.
 */
QUIRE_API quire_status quire_namespace_pin(quire_namespace *ns, const quire_prompt *prompt, uint32_t pinned,
                                           uint32_t timeout_ms, uint32_t *n_tokens /* may be NULL */);

/* ------------------------------------------------------------------- chain */
/* Interface: stable. */

/*
 * A prompt that grows, with the keys of its pages in one namespace. Each key is computed once, when its page is complete,
 * so that saving or loading costs only what is new. The keys are those that the functions with a quire_prompt use. A chain
 * keeps a copy of the tokens. Use it in one thread at a time, and destroy it before its namespace.
 */
typedef struct quire_chain quire_chain;

QUIRE_API quire_status quire_chain_create(quire_chain **out, quire_namespace *ns); /* of length 0 */
QUIRE_API void quire_chain_destroy(quire_chain *chain); /* loads that were begun with it go on */
/* Appends tokens. media: those among them, in ascending order; positions count from the beginning of the whole prompt.
 * EINVAL: a position is not among the appended tokens. After a failure the chain is as before. */
QUIRE_API quire_status quire_chain_append(quire_chain *chain, const uint32_t *tokens, uint32_t n_tokens,
                                          const quire_media *media, size_t media_stride, uint32_t n_media);
/* Shortens the prompt to its first n_tokens tokens. EINVAL: it is not that long. */
QUIRE_API quire_status quire_chain_truncate(quire_chain *chain, uint32_t n_tokens);
QUIRE_API uint32_t quire_chain_length(const quire_chain *chain); /* tokens */

/*
 * Saves as quire_namespace_save() does; the chain must match the sequence's tokens, at least up to its last finished page.
 * Pages that this chain handed in during the last 30 seconds cost nothing. *n_dropped (may be NULL) receives the number of
 * pages, of all groups, that no tier has taken, because its queue is full or memory ran out. They are tried again with
 * the next call.
 */
QUIRE_API quire_status quire_chain_save(quire_chain *chain, const quire_seq *seq, uint32_t *n_dropped);
/*
 * Saves n_pages pages of a raw namespace, from first_page on; pages[i] points to the bytes of page first_page + i, which are
 * copied. Never waits. Stops at the first page that no tier takes: the last *n_dropped pages (may be NULL) were not taken. A
 * caller that may wait calls quire_store_flush() and then hands these in again. EINVAL: the chain is too short.
 */
QUIRE_API quire_status quire_chain_save_raw(quire_chain *chain, uint32_t first_page, uint32_t n_pages,
                                            const void *const *pages, uint32_t *n_dropped);

/* As quire_namespace_lookup_many(); the chains can belong to different namespaces of one store. */
QUIRE_API quire_status quire_chain_lookup_many(const quire_chain *const *chains, uint32_t n,
                                               uint32_t timeout_ms, uint32_t *n_tokens);
/*
 * The number of tokens of the prompt, in whole pages, that every tier has: saving these again would change nothing. Asks the disk
 * at once and, with timeout_ms > 0, the remote. With a disk, what the remote has not answered by then counts as there, and so does
 * all that the disk has while pages wait to be sent to the remote. Pages that the remote lacks can be handed in again at once.
 */
QUIRE_API quire_status quire_chain_stored(const quire_chain *chain, uint32_t timeout_ms, uint32_t *n_tokens);

/* -------------------------------------------------------------------- load */
/* Interface: stable. */

typedef struct quire_load quire_load;

/*
 * Begins to load the longest stored prefix of a prompt into a sequence. The sequence's length must be a multiple of 64, and
 * the tokens below it count as already present. Leave at least one token of the prompt to compute: pass one token less
 * than the prompt has. The load takes pages from the sequence's pool. The sequence must not be in an open step. Every load is
 * ended with quire_load_end(), before its sequence is destroyed.
 * EMISMATCH: the sequence has another plan or ring than the namespace.
 */
QUIRE_API quire_status quire_load_begin(quire_load **out, quire_namespace *ns, const quire_prompt *prompt,
                                        quire_seq *seq, uint32_t timeout_ms);
/*
 * Begins to load pages first_page to first_page + n_pages - 1 of a chain in a raw namespace. Page first_page + i is written
 * to the page_bytes bytes at rooms[i]. The pages before first_page count as already present. The arrays are copied; the
 * chain can be changed or destroyed meanwhile. The rooms are the store's until quire_load_end() has returned; after that,
 * nothing reads or writes them any more. EINVAL: the chain is too short.
 */
QUIRE_API quire_status quire_load_begin_raw(quire_load **out, const quire_chain *chain, uint32_t first_page,
                                            uint32_t n_pages, void *const *rooms, uint32_t timeout_ms);
QUIRE_API int quire_load_is_done(const quire_load *load);
/* The time limit is reached now: pages that have not arrived will not, and quire_load_end() returns soon. Does not wait. */
QUIRE_API void quire_load_cancel(quire_load *load);
/*
 * Waits until everything is loaded or the time limit is reached, and ends the load in any case. *n_tokens (may be NULL) receives
 * the new length of the sequence: the longest prefix whose pages all arrived in time. ENOMEM, or EBUSY if the sequence is in an
 * open step: nothing was added.
 * For a raw load *n_tokens is the length of the prompt up to the first page that did not arrive. It counts the pages before
 * first_page. The rooms of this page and of all pages behind it have undefined contents; compute these pages again. If a
 * page is being read from the disk or opened at that moment, the call also waits for a part of it (at most 1 MiB), because
 * the rooms are the caller's again after it.
 */
QUIRE_API quire_status quire_load_end(quire_load *load, uint32_t *n_tokens);

/* Loads pages of a raw namespace, from the first on, and waits for them. Calls take(ctx, page_index, bytes) in order of the index. */
typedef void (*quire_take_page_fn)(void *ctx, uint32_t page_index, const void *bytes);
QUIRE_API quire_status quire_namespace_load_raw(quire_namespace *ns, const quire_prompt *prompt,
                                                uint32_t timeout_ms, quire_take_page_fn take, void *ctx,
                                                uint32_t *n_tokens);

/* ------------------------------------------------------------ administration */
/* Interface: experimental. */

typedef struct quire_object_info {
    size_t size; /* of the library's structure */
    uint8_t object[32], root[32], key[32], parent[32];
    uint32_t group, page_index;
    uint64_t payload_bytes, fingerprint;
    uint64_t used_us; /* time of last use, in microseconds since 1970 */
    uint32_t pinned;
    quire_miss
        damage; /* NONE, or what is wrong with the object, as far as can be checked without its namespace */
    uint32_t sealed; /* 1: the payload is encrypted */
    uint32_t reserved;
} quire_object_info;

/* Return anything but QUIRE_OK to stop. bytes: header and payload as stored; NULL unless payloads were requested. */
typedef quire_status (*quire_object_fn)(void *ctx, const quire_object_info *info, const void *bytes,
                                        size_t n);
/* Calls fn for every object on disk, in no particular order. payloads 1: also reads and verifies the payloads. EIO: the
 * disk failed, or fn stopped the walk. */
QUIRE_API quire_status quire_store_each(quire_store *store, uint32_t payloads, quire_object_fn fn, void *ctx);
/* Writes an object, as quire_store_each() passed it, to disk. EFORMAT: the object is damaged. */
QUIRE_API quire_status quire_store_put_object(quire_store *store, const void *bytes, size_t n);
/* Removes damaged objects, then objects unused for more than max_age_s seconds (0: no age limit), then the least recently
 * used ones until at most max_bytes are used (UINT64_MAX: no limit). Pinned objects are removed only if damaged. Returns
 * when all of this is done. */
QUIRE_API quire_status quire_store_gc(quire_store *store, uint64_t max_age_s, uint64_t max_bytes,
                                      uint64_t *n_removed /* may be NULL */);

/* ------------------------------------------------------------------- tenants */
/* Interface: experimental. */

/* What one namespace has on disk. Sizes are those of records: a page takes up to 8 KiB more than its bytes. */
typedef struct quire_namespace_usage {
    size_t size;                          /* of the library's structure */
    uint8_t root[32], tenant[16];         /* tenant: made from the secret; zeros: imported pages */
    char tenant_name[64], model_name[64]; /* as last saved; "": none was given */
    uint64_t objects, bytes, pinned;      /* pinned: objects */
    uint64_t quota_bytes;                 /* of the whole tenant; 0: none */
    uint64_t last_used_us;                /* in microseconds since 1970 */
} quire_namespace_usage;

/* Return anything but QUIRE_OK to stop. */
typedef quire_status (*quire_usage_fn)(void *ctx, const quire_namespace_usage *usage);
/* Calls fn for every namespace that has pages on disk. Reads only the index: fast whatever the directory holds. While an index
 * is made anew, counts only what was found so far. EIO: the disk failed, or fn stopped the walk. */
QUIRE_API quire_status quire_store_usage_each(quire_store *store, quire_usage_fn fn, void *ctx);

/* Namespaces for which all given members match. */
typedef struct quire_store_selection {
    size_t size;
    const uint8_t *root;                  /* 32 bytes, or NULL */
    const uint8_t *tenant;                /* 16 bytes, or NULL */
    const char *tenant_name, *model_name; /* or NULL */
} quire_store_selection;

/*
 * Removes all pages of these namespaces from the disk, also pinned ones. Free space is given back to the file system, so that
 * their bytes can no longer be read from the files. Waits for what is queued to be saved, and for an index that is being made
 * anew. What other processes save later is new and stays; the remote tier is not touched. EINVAL: no member is given. EIO:
 * the disk failed; call it again.
 */
QUIRE_API quire_status quire_store_remove(quire_store *store, const quire_store_selection *selection,
                                          uint64_t *n_removed /* may be NULL */);
/* The same for one namespace, which can be used further. */
QUIRE_API quire_status quire_namespace_remove(quire_namespace *ns, uint64_t *n_removed /* may be NULL */);

/*
 * Sets the limit of one tenant's records on disk, for all processes and from now on. 0: tenant_bytes of the options holds again;
 * UINT64_MAX: none. A tenant above its limit loses its own least recently used pages that are not pinned; if none may go,
 * further pages are dropped. Evicts what is too much before it returns. EIO: the disk failed.
 * EVERSION, EFORMAT: the limits that the directory has are of another version or damaged; they are left as they are.
 */
QUIRE_API quire_status quire_store_set_quota(quire_store *store, const uint8_t tenant[16], uint64_t bytes);

#ifdef __cplusplus
}
#endif
#endif
