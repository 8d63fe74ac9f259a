/* SPDX-License-Identifier: MIT */
/* store: the disk tier, reading. Payloads are read with pread() at the place where LMDB has them: the same copy as from the
 * map, without a fault per OS page, and a failing disk is an error and not a signal. */
#define _GNU_SOURCE
#include "store/disk_segment.h"

#include <errno.h>
#include <unistd.h>

void quire_disk_has(quire_disk *d, const quire_key *objects, uint32_t n, bool *has)
{
    for (uint32_t s = 0; s < d->n_segments; s++) {
        MDB_txn *txn;
        if (quire_segment_begin(&d->segment[s], &txn)) continue;
        for (uint32_t i = 0; i < n; i++) {
            MDB_val key = quire_val(objects[i].byte, 32), value;
            if (!has[i]) has[i] = mdb_get(txn, d->segment[s].meta, &key, &value) == 0;
        }
        mdb_txn_abort(txn);
    }
}

/* ----------------------------------------------------------------- objects */

/* n bytes of a value from `at` on. LMDB gave its place in the map; the transaction keeps it there. */
static bool read_value(const quire_segment *s, const MDB_val *value, size_t at, void *to, size_t n)
{
    const uint8_t *from = (const uint8_t *)value->mv_data + at;
    if (!s->map) {
        memcpy(to, from, n);
        return true;
    }
    for (size_t done = 0; done < n;) {
        ssize_t got = pread(s->fd, (uint8_t *)to + done, n - done, (off_t)(from - s->map) + (off_t)done);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        done += (size_t)got;
    }
    return true;
}

static quire_miss read_object(const quire_segment *s, const MDB_val *value, const quire_object_id *id,
                              void *payload, const atomic_bool *stop)
{
    uint8_t header[QUIRE_OBJECT_HEADER];
    quire_payload_hash hash;
    if (value->mv_size < sizeof header) return QUIRE_MISS_LENGTH;
    if (!read_value(s, value, 0, header, sizeof header)) return QUIRE_MISS_DISK;
    quire_miss miss = quire_object_check_header(header, value->mv_size, id);
    if (miss) return miss;
    quire_payload_begin(&hash);
    for (size_t at = 0, part; at < id->bytes; at += part) {
        if (stop && atomic_load_explicit(stop, memory_order_relaxed)) return QUIRE_MISS_DEADLINE;
        part = id->bytes - at < QUIRE_OBJECT_BLOCK ? (size_t)id->bytes - at : QUIRE_OBJECT_BLOCK;
        uint8_t *to = (uint8_t *)payload + at;
        if (!read_value(s, value, sizeof header + at, to, part)) return QUIRE_MISS_DISK;
        quire_payload_add(&hash, to, part);
    }
    return quire_object_check_payload(header, &hash);
}

quire_miss quire_disk_read(quire_disk *d, const quire_object_id *id, void *payload, const atomic_bool *stop)
{
    uint32_t first = atomic_load_explicit(&d->last_hit, memory_order_relaxed);
    for (uint32_t i = 0; i < d->n_segments; i++) {
        uint32_t at = (first + i) % d->n_segments;
        quire_segment *s = &d->segment[at];
        MDB_val key = quire_val(id->object.byte, 32), value;
        MDB_txn *txn;
        if (quire_segment_begin(s, &txn)) return QUIRE_MISS_DISK;
        int rc = mdb_get(txn, s->objects, &key, &value);
        quire_miss miss = rc == 0              ? read_object(s, &value, id, payload, stop)
                          : rc == MDB_NOTFOUND ? QUIRE_MISS_ABSENT
                                               : QUIRE_MISS_DISK;
        mdb_txn_abort(txn);
        if (miss == QUIRE_MISS_ABSENT) continue;
        if (!miss) atomic_store_explicit(&d->last_hit, at, memory_order_relaxed);
        return miss;
    }
    return QUIRE_MISS_ABSENT;
}

/* -------------------------------------------------------------------- each */

typedef struct walk {
    quire_disk *disk;
    bool payloads;
    quire_object_fn fn;
    void *ctx;
    uint8_t *buffer;
    size_t cap;
} walk;

/* One object, under its own short transaction: a walk of hours must not hold up the writers' free list. */
static quire_status visit(walk *w, quire_segment *s, const quire_key *object)
{
    MDB_val key = quire_val(object->byte, 32), value;
    MDB_txn *txn;
    quire_meta meta = {0};
    quire_object_info info = {0};
    if (quire_segment_begin(s, &txn)) return QUIRE_EIO;
    int rc = mdb_get(txn, s->objects, &key, &value);
    if (!rc) rc = quire_segment_meta(s, txn, object, &meta);
    size_t n = rc                                    ? 0
               : w->payloads                         ? value.mv_size
               : value.mv_size < QUIRE_OBJECT_HEADER ? value.mv_size
                                                     : QUIRE_OBJECT_HEADER;
    size_t whole = rc ? 0 : value.mv_size;
    quire_status status = rc == MDB_NOTFOUND ? QUIRE_OK : rc ? QUIRE_EIO : QUIRE_OK;
    bool read = !rc && quire_mem_grow(&w->disk->allocator, &w->buffer, &w->cap, n) &&
                read_value(s, &value, 0, w->buffer, n);
    mdb_txn_abort(txn);
    if (rc) return status; /* gone meanwhile */
    memcpy(info.object, object->byte, 32);
    info.used_us = meta.tick;
    info.pinned = meta.pinned != 0;
    info.damage = read ? quire_object_read_header(w->buffer, whole, &info) : QUIRE_MISS_DISK;
    if (!info.damage && w->payloads) {
        quire_payload_hash hash;
        quire_payload_begin(&hash);
        quire_payload_add(&hash, w->buffer + QUIRE_OBJECT_HEADER, n - QUIRE_OBJECT_HEADER);
        info.damage = quire_object_check_payload(w->buffer, &hash);
    }
    return w->fn(w->ctx, &info, w->payloads && read ? w->buffer : NULL, whole) ? QUIRE_EIO : QUIRE_OK;
}

/* Some keys at a time, from *from on; *from becomes the next. */
static uint32_t next_keys(quire_segment *s, quire_key *from, bool *begun, quire_key *keys, uint32_t cap)
{
    MDB_txn *txn;
    MDB_cursor *cursor;
    uint32_t n = 0;
    MDB_val key = quire_val(from->byte, 32), value;
    if (quire_segment_begin(s, &txn)) return 0;
    if (!mdb_cursor_open(txn, s->meta, &cursor)) {
        int rc = mdb_cursor_get(cursor, &key, &value, *begun ? MDB_SET_RANGE : MDB_FIRST);
        if (!rc && *begun && key.mv_size == 32 && !memcmp(key.mv_data, from->byte, 32))
            rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT);
        for (; !rc && n < cap; rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT))
            if (key.mv_size == 32) memcpy(keys[n++].byte, key.mv_data, 32);
        mdb_cursor_close(cursor);
    }
    mdb_txn_abort(txn);
    if (n) *from = keys[n - 1];
    *begun = true;
    return n;
}

quire_status quire_disk_each(quire_disk *d, bool payloads, quire_object_fn fn, void *ctx)
{
    enum { STEP = 256 };
    walk w = {.disk = d, .payloads = payloads, .fn = fn, .ctx = ctx};
    quire_key keys[STEP];
    quire_status status = QUIRE_OK;
    for (uint32_t s = 0; s < d->n_segments && !status; s++) {
        quire_key from = {{0}};
        bool begun = false;
        for (uint32_t n; !status && (n = next_keys(&d->segment[s], &from, &begun, keys, STEP));)
            for (uint32_t i = 0; i < n && !status; i++) status = visit(&w, &d->segment[s], &keys[i]);
    }
    quire_mem_free(&d->allocator, w.buffer, w.cap);
    return status;
}
