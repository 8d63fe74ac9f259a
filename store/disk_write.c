/* SPDX-License-Identifier: MIT */
/*
 * store: the disk tier, writing and eviction. All of it under the lock of writers.
 *
 * LMDB gives the pages that a transaction freed to the second one after it, so a segment is never filled to the brim: the
 * share above FILL is what is freed and not yet to be had.
 */
#define _GNU_SOURCE
#include "store/disk_lock.h"

#include <errno.h>
#include <sys/file.h>
#include <unistd.h>

#define FILL_PERCENT 85u
#define BATCH_MAX (32u << 20)
#define LOCK_TIMEOUT_MS 2000u
#define LAST_SEGMENT_US 3600000000ull

size_t quire_disk_batch(const quire_disk *d)
{
    uint64_t share = d->segment_bytes / 24;
    return share < BATCH_MAX ? (size_t)share : BATCH_MAX;
}

/* First the threads of this process, who share the file lock; then the other processes: a stopped one must not stop us. */
bool quire_disk_lock(quire_disk *d)
{
    uint64_t deadline = quire_deadline(LOCK_TIMEOUT_MS);
    pthread_mutex_lock(&d->write_lock);
    while (flock(d->head_fd, LOCK_EX | LOCK_NB)) {
        if ((errno != EWOULDBLOCK && errno != EINTR) || quire_now() >= deadline) {
            pthread_mutex_unlock(&d->write_lock);
            return false;
        }
        usleep(200);
    }
    return true;
}

void quire_disk_unlock(quire_disk *d)
{
    (void)flock(d->head_fd, LOCK_UN);
    pthread_mutex_unlock(&d->write_lock);
}

uint64_t quire_disk_ticks(quire_disk *d, uint64_t n)
{
    uint64_t now = quire_now_us(), first = now > d->last_tick ? now : d->last_tick + 1;
    d->last_tick = first + n - 1;
    return first;
}

static uint64_t fill_pages(const quire_disk *d)
{
    return d->segment_bytes / 4096 * FILL_PERCENT / 100;
}

/* ---------------------------------------------------------------- one object */

int quire_disk_delete(quire_segment *s, MDB_txn *txn, const quire_key *object, quire_segment_head *h)
{
    MDB_val key = quire_val(object->byte, 32);
    quire_meta m;
    uint8_t at[16];
    int rc = quire_segment_meta(s, txn, object, &m);
    if (rc) return rc;
    quire_recency_key(at, m.tick, object);
    MDB_val recency = quire_val(at, sizeof at);
    rc = m.pinned ? 0 : mdb_del(txn, s->recency, &recency, NULL);
    if (rc && rc != MDB_NOTFOUND) return rc;
    rc = mdb_del(txn, s->meta, &key, NULL);
    if (!rc) rc = mdb_del(txn, s->objects, &key, NULL);
    h->n_objects -= h->n_objects > 0;
    h->used_pages -= m.pages < h->used_pages ? m.pages : h->used_pages;
    if (m.pinned && h->n_pinned) h->n_pinned--;
    return rc == MDB_NOTFOUND ? 0 : rc;
}

static int put_object(quire_disk *d, quire_segment *s, MDB_txn *txn, const quire_disk_put *p,
                      quire_segment_head *h)
{
    const quire_key *object = &p->id.object;
    MDB_val key = quire_val(object->byte, 32), value = {.mv_size = QUIRE_OBJECT_HEADER + (size_t)p->id.bytes};
    quire_meta m = {.tick = quire_disk_ticks(d, 1), .pages = quire_object_pages(p->id.bytes)};
    uint8_t at[16];
    int rc = mdb_put(txn, s->objects, &key, &value, MDB_NOOVERWRITE | MDB_RESERVE);
    if (rc) return rc;
    uint8_t *to = (uint8_t *)value.mv_data;
    quire_payload_hash hash;
    quire_payload_begin(&hash);
    quire_payload_copy(&hash, to + QUIRE_OBJECT_HEADER, p->payload, (size_t)p->id.bytes);
    if (p->header)
        memcpy(to, p->header, QUIRE_OBJECT_HEADER);
    else
        quire_object_write_header(to, &p->id, &hash);
    quire_recency_key(at, m.tick, object);
    MDB_val recency = quire_val(at, sizeof at), name = quire_val(object->byte, 32);
    rc = quire_segment_put_meta(s, txn, object, &m);
    if (!rc) rc = mdb_put(txn, s->recency, &recency, &name, 0);
    h->n_objects++;
    h->used_pages += m.pages;
    return rc;
}

/* ------------------------------------------------------------------ eviction */

static uint64_t tick_of(const MDB_val *recency_key)
{
    uint64_t tick = 0;
    for (int i = 0; i < 8; i++) tick = tick << 8 | ((const uint8_t *)recency_key->mv_data)[i];
    return tick;
}

static int end_of_recency(quire_segment *s, MDB_txn *txn, MDB_cursor_op end, quire_key *object,
                          uint64_t *tick)
{
    MDB_cursor *cursor;
    MDB_val key, value;
    int rc = mdb_cursor_open(txn, s->recency, &cursor);
    if (rc) return rc;
    rc = mdb_cursor_get(cursor, &key, &value, end);
    if (!rc && (key.mv_size != 16 || value.mv_size != 32)) rc = MDB_CORRUPTED;
    if (!rc) {
        memcpy(object->byte, value.mv_data, 32);
        *tick = tick_of(&key);
    }
    mdb_cursor_close(cursor);
    return rc;
}

int quire_disk_oldest(quire_segment *s, MDB_txn *txn, quire_key *object, uint64_t *tick)
{
    return end_of_recency(s, txn, MDB_FIRST, object, tick);
}

static int evict_oldest(quire_disk *d, quire_segment *s, MDB_txn *txn, quire_segment_head *h)
{
    quire_key object;
    uint64_t tick;
    int rc = quire_disk_oldest(s, txn, &object, &tick);
    if (!rc) rc = quire_disk_delete(s, txn, &object, h);
    if (!rc) quire_count(&d->counters->evicted, 1);
    return rc;
}

/* Evict until `pages` fit below the fill. */
static int evict(quire_disk *d, quire_segment *s, MDB_txn *txn, quire_segment_head *h, uint64_t pages)
{
    while (h->used_pages + pages > fill_pages(d)) {
        int rc = evict_oldest(d, s, txn, h);
        if (rc) return rc;
    }
    return 0;
}

/* Transactions that only evict: n objects, whatever the fill is. Two of them make what they freed available. */
static int evict_apart(quire_disk *d, quire_segment *s, uint64_t n)
{
    int dead, rc = 0;
    (void)mdb_reader_check(s->env, &dead);
    for (int i = 0; i < 2 && !rc; i++) {
        MDB_txn *txn;
        rc = mdb_txn_begin(s->env, NULL, 0, &txn);
        if (rc) return rc;
        quire_segment_head h = quire_segment_read_head(s, txn);
        for (; n && !rc; n--) rc = evict_oldest(d, s, txn, &h);
        if (rc == MDB_NOTFOUND) rc = 0;
        if (!rc) rc = quire_segment_write_head(s, txn, &h);
        rc = quire_segment_end(txn, rc);
    }
    return rc;
}

/* --------------------------------------------------------- choosing a segment */

typedef struct candidate {
    quire_segment_head head;
    uint64_t oldest, newest; /* ticks; UINT64_MAX and 0: nothing that may be evicted */
} candidate;

static int look(quire_disk *d, candidate *c)
{
    for (uint32_t i = 0; i < d->n_segments; i++) {
        quire_segment *s = &d->segment[i];
        quire_key object;
        MDB_txn *txn;
        int rc = quire_segment_begin(s, &txn);
        if (rc) return rc;
        c[i].head = quire_segment_read_head(s, txn);
        c[i].oldest = UINT64_MAX;
        c[i].newest = 0;
        if (!quire_disk_oldest(s, txn, &object, &c[i].oldest))
            (void)end_of_recency(s, txn, MDB_LAST, &object, &c[i].newest);
        mdb_txn_abort(txn);
    }
    return 0;
}

static uint32_t count_class(const quire_disk *d, const candidate *c, uint64_t size_class)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < d->n_segments; i++) n += c[i].head.size_class == size_class;
    return n;
}

/* A segment of another size to take over, the coldest; none with pinned objects. A size that has no segment takes one from
 * the size that has most, and at least two; the others only what is colder than everything of their own, and the last one of
 * a size only if that was not used for an hour. */
static uint32_t find_victim(const quire_disk *d, const candidate *c, uint64_t size_class, uint64_t own_oldest)
{
    uint32_t victim = UINT32_MAX, most = 2;
    bool has_own = count_class(d, c, size_class) > 0;
    for (uint32_t i = 0; i < d->n_segments; i++) {
        if (c[i].head.size_class == size_class || c[i].head.n_pinned) continue;
        if (has_own ? c[i].newest >= own_oldest : c[i].head.size_class == QUIRE_MIXED) continue;
        uint32_t n = count_class(d, c, c[i].head.size_class);
        if (has_own && (n >= 2 || c[i].newest + LAST_SEGMENT_US < quire_now_us())) n = 2;
        if (n < most) continue;
        if (victim == UINT32_MAX || n > most || c[i].oldest < c[victim].oldest) victim = i;
        most = n;
    }
    return victim;
}

/* More sizes than segments: those that come last share one, which is worse for its free list and better than nothing. */
static uint32_t find_mixed(const quire_disk *d, const candidate *c)
{
    uint32_t coldest = 0;
    for (uint32_t i = 0; i < d->n_segments; i++) {
        if (c[i].head.size_class == QUIRE_MIXED) return i;
        if (c[i].oldest < c[coldest].oldest) coldest = i;
    }
    return coldest;
}

/* Every object goes, a few at a time, so that no transaction grows with the segment. */
static int empty_segment(quire_disk *d, quire_segment *s)
{
    for (bool more = true; more;) {
        MDB_txn *txn;
        int rc = mdb_txn_begin(s->env, NULL, 0, &txn);
        if (rc) return rc;
        quire_segment_head h = quire_segment_read_head(s, txn);
        for (int i = 0; i < 256 && !rc; i++) rc = evict_oldest(d, s, txn, &h);
        more = rc == 0;
        if (rc == MDB_NOTFOUND) {
            rc = 0;
            if (!h.n_objects) h = (quire_segment_head){0};
        }
        if (!rc) rc = quire_segment_write_head(s, txn, &h);
        rc = quire_segment_end(txn, rc);
        if (rc) return rc;
    }
    return evict_apart(d, s, 0);
}

/* A segment with room left, or one that is nobody's; UINT32_MAX: something must go. */
static uint32_t find_room(const quire_disk *d, const candidate *c, uint64_t size_class, uint64_t pages)
{
    for (uint32_t i = 0; i < d->n_segments; i++)
        if (c[i].head.size_class == size_class && c[i].head.used_pages + pages <= fill_pages(d)) return i;
    for (uint32_t i = 0; i < d->n_segments; i++)
        if (!c[i].head.n_objects) return i;
    bool has_own = count_class(d, c, size_class) > 0;
    for (uint32_t i = 0; i < d->n_segments && !has_own; i++)
        if (c[i].head.size_class == QUIRE_MIXED && c[i].head.used_pages + pages <= fill_pages(d)) return i;
    return UINT32_MAX;
}

bool quire_disk_has_room(quire_disk *d, uint64_t payload_bytes, uint32_t n)
{
    candidate c[QUIRE_MAX_SEGMENTS];
    uint64_t size_class = quire_object_pages(payload_bytes);
    return look(d, c) == 0 && find_room(d, c, size_class, size_class * n) != UINT32_MAX;
}

/* Where objects of `pages` OS pages go next; MDB_MAP_FULL: nowhere. */
static int choose(quire_disk *d, uint64_t size_class, uint64_t pages, uint32_t *out)
{
    candidate c[QUIRE_MAX_SEGMENTS];
    uint32_t own = UINT32_MAX;
    uint64_t own_oldest = UINT64_MAX;
    int rc = look(d, c);
    if (rc) return rc;
    *out = find_room(d, c, size_class, pages);
    if (*out != UINT32_MAX) return 0;
    for (uint32_t i = 0; i < d->n_segments; i++)
        if (c[i].head.size_class == size_class && c[i].oldest < own_oldest) {
            own = i;
            own_oldest = c[i].oldest;
        }
    uint32_t victim = find_victim(d, c, size_class, own_oldest);
    if (victim != UINT32_MAX) {
        *out = victim;
        return empty_segment(d, &d->segment[victim]);
    }
    *out = own == UINT32_MAX ? find_mixed(d, c) : own;
    return 0;
}

/* -------------------------------------------------------------------- write */

/* What no segment has yet; a second writer may have been faster. */
static uint32_t leave_out_known(quire_disk *d, const quire_disk_put *puts, uint32_t n,
                                const quire_disk_put **left)
{
    uint32_t n_left = 0;
    for (uint32_t i = 0; i < n; i++) {
        bool has = false;
        quire_disk_has(d, &puts[i].id.object, 1, &has);
        for (uint32_t j = 0; j < n_left && !has; j++)
            has = quire_key_equal(&left[j]->id.object, &puts[i].id.object);
        if (has)
            quire_count(&d->counters->known[QUIRE_DISK], 1);
        else
            left[n_left++] = &puts[i];
    }
    return n_left;
}

static int write_once(quire_disk *d, quire_segment *s, uint64_t size_class, const quire_disk_put **puts,
                      uint32_t n)
{
    uint64_t pages = size_class * n;
    MDB_txn *txn;
    int rc = mdb_txn_begin(s->env, NULL, 0, &txn);
    if (rc) return rc;
    quire_segment_head h = quire_segment_read_head(s, txn);
    if (h.n_objects && h.size_class != size_class) size_class = QUIRE_MIXED;
    h.size_class = size_class;
    rc = evict(d, s, txn, &h, pages);
    if (rc == MDB_NOTFOUND) rc = MDB_MAP_FULL; /* what is left is pinned */
    for (uint32_t i = n; i-- && !rc;)
        rc = put_object(d, s, txn, puts[i], &h); /* the first page gets the last tick */
    if (!rc) rc = quire_segment_write_head(s, txn, &h);
    return quire_segment_end(txn, rc);
}

static int write_some(quire_disk *d, const quire_disk_put **puts, uint32_t n)
{
    uint64_t size_class = quire_object_pages(puts[0]->id.bytes);
    uint32_t at = 0;
    int rc = choose(d, size_class, size_class * n, &at);
    if (rc) return rc;
    rc = write_once(d, &d->segment[at], size_class, puts, n);
    /* Freed pages that a reader still holds, or runs that are broken: make more room, several times. */
    for (uint64_t more = 1; rc == MDB_MAP_FULL && more <= 16; more *= 2) {
        rc = evict_apart(d, &d->segment[at], n * more);
        if (!rc) rc = write_once(d, &d->segment[at], size_class, puts, n);
    }
    return rc;
}

bool quire_disk_write(quire_disk *d, const quire_disk_put *puts, uint32_t n)
{
    enum { STEP = 64 };
    quire_counters *count = d->counters;
    const quire_disk_put *left[STEP];
    bool good = true;
    if (!n) return true;
    uint64_t pages = quire_object_pages(puts[0].id.bytes);
    if (pages * 4 > fill_pages(d)) { /* a segment must hold a few */
        quire_count(&count->dropped[QUIRE_DISK], n);
        return true;
    }
    if (!quire_disk_lock(d)) {
        quire_count(&count->failed[QUIRE_DISK], n);
        return false;
    }
    for (uint32_t i = 0; i < n; i += STEP) {
        uint32_t part = n - i < STEP ? n - i : STEP, n_left = leave_out_known(d, puts + i, part, left);
        if (!n_left) continue;
        int rc = write_some(d, left, n_left);
        good = rc == 0;
        quire_count(rc == 0              ? &count->saved[QUIRE_DISK]
                    : rc == MDB_MAP_FULL ? &count->dropped[QUIRE_DISK]
                                         : &count->failed[QUIRE_DISK],
                    n_left);
        if (!rc) quire_count(&count->saved_bytes[QUIRE_DISK], n_left * puts[0].id.bytes);
    }
    quire_disk_unlock(d);
    return good;
}
