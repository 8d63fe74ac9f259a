/* SPDX-License-Identifier: MIT */
/* store: the disk tier: recency, pins, removal. One transaction per segment for many objects. */
#define _GNU_SOURCE
#include "store/disk_lock.h"

typedef struct change {
    quire_disk *disk;
    quire_segment *segment;
    MDB_txn *txn;
    quire_segment_head head;
    bool pinned;
    uint64_t tick;
    uint32_t n_changed;
} change;

typedef int (*change_fn)(change *c, const quire_key *object, quire_meta *meta);

static int put_recency(change *c, const quire_key *object, uint64_t tick)
{
    uint8_t at[16];
    quire_recency_key(at, tick, object);
    MDB_val key = quire_val(at, sizeof at), value = quire_val(object->byte, 32);
    return mdb_put(c->txn, c->segment->recency, &key, &value, 0);
}

static int delete_recency(change *c, const quire_key *object, uint64_t tick)
{
    uint8_t at[16];
    quire_recency_key(at, tick, object);
    MDB_val key = quire_val(at, sizeof at);
    int rc = mdb_del(c->txn, c->segment->recency, &key, NULL);
    return rc == MDB_NOTFOUND ? 0 : rc;
}

static int touch(change *c, const quire_key *object, quire_meta *m)
{
    uint64_t before = m->tick;
    m->tick = c->tick;
    int rc = quire_segment_put_meta(c->segment, c->txn, object, m);
    if (rc || m->pinned) return rc;
    rc = delete_recency(c, object, before);
    return rc ? rc : put_recency(c, object, m->tick);
}

static int pin(change *c, const quire_key *object, quire_meta *m)
{
    if ((m->pinned != 0) == c->pinned) return 0;
    m->pinned = c->pinned;
    if (c->pinned)
        c->head.n_pinned++;
    else if (c->head.n_pinned)
        c->head.n_pinned--;
    int rc = quire_segment_put_meta(c->segment, c->txn, object, m);
    if (rc) return rc;
    return c->pinned ? delete_recency(c, object, m->tick) : put_recency(c, object, m->tick);
}

static int take_out(change *c, const quire_key *object, quire_meta *m)
{
    (void)m;
    return quire_disk_delete(c->segment, c->txn, object, &c->head);
}

/* Calls fn for those of the objects that are in this segment; ticks go up with every object. */
static int change_segment(change *c, const quire_disk_touch *chains, uint32_t n, change_fn fn)
{
    int rc = mdb_txn_begin(c->segment->env, NULL, 0, &c->txn);
    uint32_t before = c->n_changed;
    uint64_t tick = c->tick;
    if (rc) return rc;
    c->head = quire_segment_read_head(c->segment, c->txn);
    for (uint32_t i = 0; i < n && !rc; i++)
        for (uint32_t j = chains[i].n; j-- && !rc; c->tick++) {
            quire_meta m;
            rc = quire_segment_meta(c->segment, c->txn, &chains[i].objects[j], &m);
            if (!rc) rc = fn(c, &chains[i].objects[j], &m);
            if (!rc) c->n_changed++;
            if (rc == MDB_NOTFOUND) rc = 0;
        }
    c->tick = tick;
    if (!rc && c->n_changed != before) rc = quire_segment_write_head(c->segment, c->txn, &c->head);
    if (rc || c->n_changed == before) {
        mdb_txn_abort(c->txn);
        return rc;
    }
    rc = mdb_txn_commit(c->txn);
    return rc;
}

static quire_status change_all(change *c, const quire_disk_touch *chains, uint32_t n, change_fn fn)
{
    uint64_t total = 0;
    quire_status status = QUIRE_OK;
    for (uint32_t i = 0; i < n; i++) total += chains[i].n;
    if (!total) return QUIRE_OK;
    if (!quire_disk_lock(c->disk)) return QUIRE_EIO;
    c->tick = quire_disk_ticks(c->disk, total);
    for (uint32_t i = 0; i < c->disk->n_segments; i++) {
        c->segment = &c->disk->segment[i];
        if (change_segment(c, chains, n, fn)) status = QUIRE_EIO;
    }
    quire_disk_unlock(c->disk);
    return status;
}

void quire_disk_touch_all(quire_disk *d, const quire_disk_touch *touches, uint32_t n)
{
    change c = {.disk = d};
    (void)change_all(&c, touches, n, touch); /* recency only */
}

quire_status quire_disk_pin(quire_disk *d, const quire_key *objects, uint32_t n, bool pinned)
{
    change c = {.disk = d, .pinned = pinned};
    quire_disk_touch chain = {objects, n};
    return change_all(&c, &chain, 1, pin);
}

uint32_t quire_disk_remove(quire_disk *d, const quire_key *objects, uint32_t n)
{
    change c = {.disk = d};
    quire_disk_touch chain = {objects, n};
    (void)change_all(&c, &chain, 1, take_out);
    return c.n_changed;
}

/* -------------------------------------------------------------------- trim */

#define TRIM_STEP 32

typedef struct trim {
    uint64_t before_us, max_pages, used_pages, n_removed;
} trim;

/* Some of the oldest objects of a segment; false: enough. */
static bool trim_some(quire_disk *d, quire_segment *s, trim *t, quire_status *status)
{
    MDB_txn *txn;
    bool more = true;
    int rc = mdb_txn_begin(s->env, NULL, 0, &txn);
    if (rc) {
        *status = QUIRE_EIO;
        return false;
    }
    quire_segment_head h = quire_segment_read_head(s, txn);
    for (int i = 0; i < TRIM_STEP && more && !rc; i++) {
        quire_key object;
        uint64_t tick, pages = h.used_pages;
        rc = quire_disk_oldest(s, txn, &object, &tick);
        more = !rc && (tick < t->before_us || t->used_pages > t->max_pages);
        if (more) rc = quire_disk_delete(s, txn, &object, &h);
        if (more && !rc) {
            t->used_pages -= pages - h.used_pages;
            t->n_removed++;
            quire_count(&d->counters->evicted, 1);
        }
    }
    if (rc == MDB_NOTFOUND) { /* this one is empty; another may go on */
        rc = 0;
        more = true;
    }
    if (!rc) rc = quire_segment_write_head(s, txn, &h);
    rc = quire_segment_end(txn, rc);
    if (rc) *status = QUIRE_EIO;
    return more && !rc;
}

static uint64_t used_pages(quire_disk *d)
{
    uint64_t pages = 0;
    for (uint32_t i = 0; i < d->n_segments; i++) {
        MDB_txn *txn;
        if (quire_segment_begin(&d->segment[i], &txn)) continue;
        pages += quire_segment_read_head(&d->segment[i], txn).used_pages;
        mdb_txn_abort(txn);
    }
    return pages;
}

/* The segment whose least recently used object is the oldest; NULL: there is nothing that may go. */
static quire_segment *coldest(quire_disk *d)
{
    quire_segment *found = NULL;
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < d->n_segments; i++) {
        MDB_txn *txn;
        quire_key object;
        uint64_t tick;
        if (quire_segment_begin(&d->segment[i], &txn)) continue;
        if (quire_disk_oldest(&d->segment[i], txn, &object, &tick) == 0 && tick < least) {
            least = tick;
            found = &d->segment[i];
        }
        mdb_txn_abort(txn);
    }
    return found;
}

/* A few objects at a time from whichever segment is the coldest. */
quire_status quire_disk_trim(quire_disk *d, uint64_t before_us, uint64_t max_bytes, uint64_t *n_removed)
{
    quire_status status = QUIRE_OK;
    if (!quire_disk_lock(d)) return QUIRE_EIO;
    trim t = {.before_us = before_us, .used_pages = used_pages(d), .max_pages = max_bytes / 4096};
    for (quire_segment *s; (s = coldest(d)) && trim_some(d, s, &t, &status);) {
    }
    quire_disk_unlock(d);
    *n_removed = t.n_removed;
    return status;
}
