/* SPDX-License-Identifier: MIT */
/* store: the disk tier: recency, pins, removal. Many objects in one transaction. */
#define _GNU_SOURCE
#include "store/disk_inside.h"

#define CHANGE_MAX 4096u /* objects in one transaction: others want to write, too */
#define TRIM_MAX 256u

typedef struct change {
    quire_disk *disk;
    quire_index_head head;
    bool pinned;
    uint64_t tick;
    uint32_t n_changed;
} change;

typedef quire_index_rc (*change_fn)(change *c, const quire_entry *e);

static quire_index_rc touch(change *c, const quire_entry *e)
{
    return quire_index_touch(&c->disk->writer, e->id, c->tick);
}

/* The record's first block, looked at; set_pinned: and marked so. Returns what is wrong with it. */
static quire_miss with_record(quire_disk *d, const quire_entry *e, quire_record *record,
                              const bool *set_pinned)
{
    quire_buffer buffer;
    quire_miss miss = QUIRE_MISS_DISK;
    quire_slab *slab = quire_slab_take(&d->slabs, e->place.slab);
    if (slab && quire_slab_is_current(&d->slabs, slab) && quire_disk_take_buffer(d, &buffer)) {
        miss = quire_slab_read(slab, buffer.bytes, QUIRE_BLOCK, e->place.at);
        if (!miss) miss = quire_record_read(record, buffer.bytes, d->mac, &e->place);
        if (!miss && set_pinned && quire_key_equal(&record->object, &e->object)) {
            quire_record_set_pinned(buffer.bytes, *set_pinned);
            (void)quire_slab_write(slab, buffer.bytes, QUIRE_BLOCK, e->place.at);
        }
        quire_disk_give_buffer(d, &buffer);
    }
    quire_slab_give(&d->slabs, slab);
    return miss;
}

static quire_index_rc pin(change *c, const quire_entry *e)
{
    if (e->is_pinned == c->pinned) return QUIRE_INDEX_OK;
    quire_index_rc rc = quire_index_pin(&c->disk->writer, e, c->pinned);
    if (rc) return rc;
    if (c->pinned)
        c->head.n_pinned++;
    else
        c->head.n_pinned -= c->head.n_pinned > 0;
    quire_record record;
    (void)with_record(c->disk, e, &record, &c->pinned); /* for an index that is made anew */
    return QUIRE_INDEX_OK;
}

static quire_index_rc take_out(change *c, const quire_entry *e)
{
    quire_record record;
    if (e->version != QUIRE_RECORD_VERSION) return QUIRE_INDEX_NONE; /* not ours to judge */
    if (with_record(c->disk, e, &record, NULL) != QUIRE_MISS_VERSION || record.place.bytes != e->place.bytes)
        return quire_disk_delete(c->disk, &c->head, e);
    quire_index_rc rc = quire_index_set_version(&c->disk->writer, e, record.version);
    c->head.live_bytes -= e->place.bytes < c->head.live_bytes ? e->place.bytes : c->head.live_bytes;
    c->head.foreign_bytes += e->place.bytes;
    c->head.n_foreign++;
    return rc ? rc : QUIRE_INDEX_NONE;
}

/* Objects of one chain, from the last to the first; ticks go up with every object. */
static quire_index_rc change_chain(change *c, const quire_key *objects, uint32_t n, change_fn fn)
{
    quire_index_rc rc = QUIRE_INDEX_OK;
    c->tick = quire_disk_ticks(c->disk, n);
    for (uint32_t i = n; i-- && rc <= QUIRE_INDEX_NONE; c->tick++) {
        quire_entry e;
        rc = quire_index_find(&c->disk->writer, &objects[i], &e);
        if (!rc) rc = fn(c, &e);
        c->n_changed += !rc;
    }
    return rc == QUIRE_INDEX_NONE ? QUIRE_INDEX_OK : rc;
}

static quire_index_rc change_some(change *c, const quire_disk_touch *chains, uint32_t n, change_fn fn)
{
    quire_index_rc rc = quire_disk_begin_write(c->disk, &c->head);
    uint32_t before = c->n_changed;
    if (rc) return rc;
    for (uint32_t i = 0; i < n && !rc; i++) rc = change_chain(c, chains[i].objects, chains[i].n, fn);
    rc = quire_disk_end_write(c->disk, &c->head, rc);
    if (rc) c->n_changed = before;
    return rc;
}

/* The last ones first. */
static quire_status change_all(change *c, const quire_key *objects, uint32_t n, change_fn fn)
{
    quire_status status = QUIRE_OK;
    for (uint32_t left = n; left;) {
        uint32_t part = left < CHANGE_MAX ? left : CHANGE_MAX;
        left -= part;
        quire_disk_touch chain = {objects + left, part};
        if (change_some(c, &chain, 1, fn)) status = QUIRE_EIO;
    }
    return status;
}

/* Many short chains in one transaction, a long one in several. Recency only: it may fail. */
void quire_disk_touch_all(quire_disk *d, const quire_disk_touch *touches, uint32_t n)
{
    change c = {.disk = d};
    for (uint32_t i = 0, end; i < n; i = end) {
        uint64_t sum = touches[i].n;
        for (end = i + 1; end < n && sum + touches[end].n <= CHANGE_MAX; end++) sum += touches[end].n;
        if (end == i + 1)
            (void)change_all(&c, touches[i].objects, touches[i].n, touch);
        else
            (void)change_some(&c, touches + i, end - i, touch);
    }
}

quire_status quire_disk_pin(quire_disk *d, const quire_key *objects, uint32_t n, bool pinned)
{
    change c = {.disk = d, .pinned = pinned};
    return change_all(&c, objects, n, pin);
}

uint32_t quire_disk_remove(quire_disk *d, const quire_key *objects, uint32_t n)
{
    change c = {.disk = d};
    (void)change_all(&c, objects, n, take_out);
    return c.n_changed;
}

/* -------------------------------------------------------------------- trim */

/* Some of the oldest; OK: there may be more. */
static quire_index_rc trim_some(quire_disk *d, uint64_t before_us, uint64_t max_bytes, uint64_t *n_removed)
{
    quire_index_head h;
    quire_index_rc rc = quire_disk_begin_write(d, &h);
    uint64_t n = 0;
    bool more = true;
    if (rc) return rc;
    for (uint32_t i = 0; i < TRIM_MAX && more && !rc; i++) {
        quire_entry e;
        rc = quire_index_oldest(&d->writer, &e);
        more = !rc && (e.tick < before_us || h.live_bytes > max_bytes);
        if (more) rc = quire_disk_delete(d, &h, &e);
        n += more && !rc;
    }
    if (rc == QUIRE_INDEX_NONE) more = false, rc = QUIRE_INDEX_OK;
    rc = quire_disk_end_write(d, &h, rc);
    if (rc) return rc;
    quire_count(&d->counters->evicted, n);
    *n_removed += n;
    return more ? QUIRE_INDEX_OK : QUIRE_INDEX_NONE;
}

static quire_index_rc give_back_some(quire_disk *d)
{
    quire_index_head h;
    quire_index_rc rc = quire_disk_begin_write(d, &h);
    if (rc) return rc;
    rc = quire_disk_give_back(d, &h, 1); /* the largest run */
    bool more = !rc;
    if (rc == QUIRE_INDEX_NONE) h.free_bytes = 0;
    rc = quire_disk_end_write(d, &h, rc == QUIRE_INDEX_NONE ? QUIRE_INDEX_OK : rc);
    return rc ? rc : more ? QUIRE_INDEX_OK : QUIRE_INDEX_NONE;
}

quire_status quire_disk_trim(quire_disk *d, uint64_t before_us, uint64_t max_bytes, uint64_t *n_removed)
{
    quire_index_rc rc = QUIRE_INDEX_OK;
    *n_removed = 0;
    while (!rc) rc = trim_some(d, before_us, max_bytes, n_removed);
    if (rc == QUIRE_INDEX_NONE) rc = QUIRE_INDEX_OK;
    while (!rc) rc = give_back_some(d); /* who trims wants the space back */
    quire_disk_wake_keeper(d);
    return rc == QUIRE_INDEX_NONE ? QUIRE_OK : QUIRE_EIO;
}
