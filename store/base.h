/* SPDX-License-Identifier: MIT */
/* store: keys, time, memory: what every part of the store uses. */
#ifndef QUIRE_STORE_BASE_H
#define QUIRE_STORE_BASE_H

#include <quire/store.h>

#include "core/core.h" /* inline functions only: the library's others are hidden */

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

/* A SHA-256: root of a namespace, key of a page, key of an object. */
typedef struct quire_key {
    uint8_t byte[32];
} quire_key;

static inline bool quire_key_equal(const quire_key *a, const quire_key *b)
{
    return memcmp(a->byte, b->byte, sizeof a->byte) == 0;
}

/* --------------------------------------------------------------------- time */

#define QUIRE_MS 1000000ull
#define QUIRE_SECOND 1000000000ull

uint64_t quire_now(void);    /* monotonic, ns */
uint64_t quire_now_us(void); /* since 1970 */
static inline uint64_t quire_deadline(uint32_t timeout_ms)
{
    return quire_now() + timeout_ms * QUIRE_MS;
}

/* A condition that counts time as quire_now() does (os_linux.c, os_macos.c). */
bool quire_cond_init(pthread_cond_t *cond);
/* false: the deadline has passed. */
bool quire_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t deadline);

/* A thread that gets no signals: those of the process are its own business, and a lost connection raises SIGPIPE. */
bool quire_thread_start(pthread_t *thread, void *(*run)(void *), void *arg);

/* ------------------------------------------------------------------- memory */

quire_allocator quire_mem_allocator(const quire_allocator *allocator); /* alloc and free are filled in */
void *quire_mem_take(const quire_allocator *a, size_t bytes);          /* zeros; NULL if there is none */
void *quire_mem_take_room(const quire_allocator *a,
                          size_t bytes); /* the same, for what is written at once: not cleared */
void quire_mem_free(const quire_allocator *a, void *ptr, size_t bytes);
/* Makes *buffer, of *cap bytes, at least so large; what was in it is lost. false: no memory, and nothing has changed. */
bool quire_mem_grow(const quire_allocator *a, uint8_t **buffer, size_t *cap, size_t bytes);
char *quire_mem_text(const quire_allocator *a, const char *text); /* a copy; NULL stays NULL */
void quire_mem_free_text(const quire_allocator *a, char *text);

/* --------------------------------------------------------------- statistics */

/* The same members as the public structure, counted from any thread. Tiers: */
enum { QUIRE_DISK = 0, QUIRE_REMOTE = 1 };

/* The object itself is bad, wherever it came from: it shall not be found again. One of a version that is not known is another
 * server's, and good. */
static inline bool quire_miss_is_damage(quire_miss miss)
{
    return miss >= QUIRE_MISS_MAGIC && miss <= QUIRE_MISS_SEAL && miss != QUIRE_MISS_VERSION;
}

/* How long things took: how many took at most quire_time_bounds[i], and the last one for those that took longer. */
#define QUIRE_TIME_BOUNDS 18u
extern const uint64_t quire_time_bounds[QUIRE_TIME_BOUNDS]; /* ns */

typedef struct quire_times {
    _Atomic uint64_t counts[QUIRE_TIME_BOUNDS + 1];
    _Atomic uint64_t sum_ns;
} quire_times;

typedef struct quire_counters {
    _Atomic uint64_t loads;
    _Atomic uint64_t misses[QUIRE_MISS_COUNT];
    _Atomic uint64_t loaded[2], loaded_bytes[2];
    _Atomic uint64_t saved[2], saved_bytes[2];
    _Atomic uint64_t known[2], dropped[2], failed[2], removed[2];
    _Atomic uint64_t queued_bytes[2];
    _Atomic uint64_t evicted;
    _Atomic uint64_t shared; /* pages that came with another load's fetch */
    _Atomic uint64_t breaks, reconnects;
    _Atomic uint64_t full[2], over_day; /* of dropped: the queue was full; the daily limit was reached */
    quire_times times[QUIRE_TIMED_COUNT];
} quire_counters;

static inline void quire_count(_Atomic uint64_t *counter, uint64_t n)
{
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

/* Of the whole store and of one namespace, which may be NULL. */
#define QUIRE_COUNT(all, own, member, n)          \
    do {                                          \
        uint64_t n_ = (n);                        \
        quire_counters *own_ = (own);             \
        quire_count(&(all)->member, n_);          \
        if (own_) quire_count(&own_->member, n_); \
    } while (0)
/* From then until now. */
static inline void quire_time_since(quire_times *times, uint64_t then)
{
    uint64_t ns = quire_now() - then;
    uint32_t i = 0;
    while (i < QUIRE_TIME_BOUNDS && ns > quire_time_bounds[i]) i++;
    quire_count(&times->counts[i], 1);
    quire_count(&times->sum_ns, ns);
}

static inline uint64_t quire_counted(const _Atomic uint64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

#endif
