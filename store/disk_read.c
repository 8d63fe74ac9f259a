/* SPDX-License-Identifier: MIT */
/* store: the disk tier, reading. What the index says is a hint: the record itself decides. */
#define _GNU_SOURCE
#include "store/disk_inside.h"
#include "store/seal.h"

#include <errno.h>
#include <sys/uio.h>

#define IN_PLACE_MIN (64u << 10)

void quire_disk_has(quire_disk *d, const quire_key *objects, uint32_t n, bool *has)
{
    quire_index_rc rc;
    quire_index *ix = quire_disk_begin_read(d, &rc);
    if (!ix) return;
    for (uint32_t i = 0; i < n && rc <= QUIRE_INDEX_NONE; i++) {
        quire_entry e;
        if (has[i]) continue;
        rc = quire_index_find(ix, &objects[i], &e);
        has[i] = !rc && e.version == QUIRE_RECORD_VERSION;
    }
    (void)quire_disk_end_read(d, ix, rc);
}

static quire_index_rc find(quire_disk *d, const quire_key *object, quire_entry *out)
{
    quire_index_rc rc;
    quire_index *ix = quire_disk_begin_read(d, &rc);
    if (!ix) return rc;
    rc = quire_index_find(ix, object, out);
    return quire_disk_end_read(d, ix, rc);
}

/* ----------------------------------------------------------------- objects */

/* How a record is read: the disk itself, or through the page cache, which has it already or not yet. */
typedef enum read_way { PAST_CACHE, INTO_CACHE, FROM_CACHE } read_way;

typedef struct reading {
    quire_slab *slab;
    quire_place place;
    uint8_t *block, *tail, *bounce; /* of one buffer: a block, a block, QUIRE_READ_PART */
    bool cached;                    /* through the page cache */
} reading;

/* n bytes of the payload from `at` on, with the record's first block if at is 0. Large parts go where they belong, if that
 * memory may be read into directly. */
static quire_miss read_part(reading *r, uint8_t *to, size_t at, size_t n, quire_payload_hash *hash)
{
    struct iovec v[3];
    int n_v = 0;
    size_t whole = n / QUIRE_BLOCK * QUIRE_BLOCK;
    bool in_place = n >= IN_PLACE_MIN && (quire_is_aligned(to) || r->cached || !r->slab->is_direct);
    if (!at) v[n_v++] = (struct iovec){r->block, QUIRE_BLOCK};
    if (!in_place) {
        v[n_v++] = (struct iovec){r->bounce, (size_t)quire_round_up(n)};
    } else {
        v[n_v++] = (struct iovec){to, whole};
        if (whole < n) v[n_v++] = (struct iovec){r->tail, QUIRE_BLOCK};
    }
    quire_miss miss =
        quire_slab_read_parts(r->slab, v, n_v, at ? r->place.at + QUIRE_BLOCK + at : r->place.at, r->cached);
    if (miss) return miss;
    if (!in_place) {
        quire_payload_copy(hash, to, r->bounce, n);
        return QUIRE_MISS_NONE;
    }
    memcpy(to + whole, r->tail, n - whole);
    quire_payload_add(hash, to, n);
    return QUIRE_MISS_NONE;
}

/* Who asks knows the object (id), or takes what the record says (object_header gets it). */
static quire_miss read_record(quire_disk *d, const quire_place *place, const quire_key *object,
                              const quire_object_id *id, uint8_t *payload, uint64_t bytes,
                              uint8_t *object_header, read_way way, const atomic_bool *stop)
{
    quire_buffer buffer;
    quire_record record;
    quire_payload_hash hash;
    if (quire_record_bytes(bytes) != place->bytes) return QUIRE_MISS_LENGTH;
    errno = 0;
    reading r = {.slab = quire_slab_take(&d->slabs, place->slab), .place = *place};
    if (!r.slab) return errno == ENOENT ? QUIRE_MISS_LENGTH : QUIRE_MISS_DISK; /* the file is gone */
    if (!quire_disk_take_buffer(d, &buffer)) {
        quire_slab_give(&d->slabs, r.slab);
        return QUIRE_MISS_MEMORY;
    }
    r.block = buffer.bytes;
    r.tail = buffer.bytes + QUIRE_BLOCK;
    r.bounce = buffer.bytes + 2 * QUIRE_BLOCK;
    r.cached = way != PAST_CACHE && quire_slab_open_cached(&d->slabs, r.slab);
    if (r.cached && way == INTO_CACHE) quire_slab_prefetch(r.slab, place->at, place->bytes);
    /* From the disk in large parts; from memory in parts that are hashed while the CPU's cache has them. */
    size_t most = r.cached ? QUIRE_OBJECT_BLOCK : QUIRE_READ_PART;
    quire_miss miss = QUIRE_MISS_NONE;
    quire_payload_begin(&hash);
    size_t at = 0;
    do {
        size_t part = bytes - at < most ? (size_t)bytes - at : most;
        if (stop && atomic_load_explicit(stop, memory_order_relaxed)) miss = QUIRE_MISS_DEADLINE;
        if (!miss) miss = read_part(&r, payload + at, at, part, &hash);
        if (!miss && !at) {
            const uint8_t *header = r.block + QUIRE_RECORD_OBJECT;
            miss = quire_record_read(&record, r.block, d->mac, place);
            if (!miss && (!quire_key_equal(&record.object, object) || record.place.bytes != place->bytes))
                miss = QUIRE_MISS_KEY;
            if (!miss && id)
                miss = quire_object_check_header(header, QUIRE_OBJECT_HEADER + (size_t)bytes, id);
            if (!miss && object_header) memcpy(object_header, header, QUIRE_OBJECT_HEADER);
        }
        at += part;
    } while (!miss && at < bytes);
    const uint8_t *header = r.block + QUIRE_RECORD_OBJECT;
    if (!miss) miss = quire_object_check_payload(header, &hash);
    if (!miss && id && quire_object_is_sealed(header))
        miss = id->owner ? quire_unseal_payload(payload, &id->owner->seal_key, id, header, stop)
                         : QUIRE_MISS_SEAL;
    else if (!miss && id && id->owner && id->owner->seals_disk)
        miss = QUIRE_MISS_SEAL;
    quire_disk_give_buffer(d, &buffer);
    quire_slab_give(&d->slabs, r.slab);
    return miss;
}

/* Through the page cache (way), if it was loaded before, not long ago. */
static quire_miss read_at(quire_disk *d, const quire_object_id *id, const quire_place *place, read_way way,
                          void *payload, const atomic_bool *stop)
{
    bool cached = quire_warm_begin(&d->warm, &id->object, place);
    quire_miss miss = read_record(d, place, &id->object, id, (uint8_t *)payload, id->bytes, NULL,
                                  cached ? way : PAST_CACHE, stop);
    if (cached) quire_warm_end(&d->warm, &id->object, place, miss != QUIRE_MISS_NONE);
    return miss;
}

/* Without the index, which only says where to look. Whatever is wrong is found out again with it. */
static bool read_kept(quire_disk *d, const quire_object_id *id, void *payload, const atomic_bool *stop)
{
    quire_place place;
    return quire_warm_find(&d->warm, &id->object, &place) &&
           !read_at(d, id, &place, FROM_CACHE, payload, stop);
}

quire_miss quire_disk_read(quire_disk *d, const quire_object_id *id, void *payload, const atomic_bool *stop)
{
    quire_entry e, again;
    if (read_kept(d, id, payload, stop)) return QUIRE_MISS_NONE;
    quire_index_rc rc = find(d, &id->object, &e);
    for (int i = 0;; i++) {
        if (rc) return quire_disk_miss_of(rc);
        if (e.version != QUIRE_RECORD_VERSION) return QUIRE_MISS_VERSION;
        /* What looks damaged is looked at on the disk itself. */
        quire_miss miss = i ? read_record(d, &e.place, &id->object, id, (uint8_t *)payload, id->bytes, NULL,
                                          PAST_CACHE, stop)
                            : read_at(d, id, &e.place, INTO_CACHE, payload, stop);
        if (miss == QUIRE_MISS_NONE || miss == QUIRE_MISS_DEADLINE || miss == QUIRE_MISS_MEMORY) return miss;
        /* Evicted while it was read, or saved again elsewhere? Then there is nothing wrong with it. A file that was
         * replaced under its name is opened anew. */
        rc = find(d, &id->object, &again);
        bool same =
            !rc && again.place.slab == e.place.slab && again.place.at == e.place.at && again.id == e.id;
        if (!rc && (i == 2 || (same && i))) return miss;
        if (same) quire_slab_forget(&d->slabs, e.place.slab);
        e = again;
    }
}

/* -------------------------------------------------------------------- each */

typedef struct walk {
    quire_disk *disk;
    bool payloads;
    quire_object_fn fn;
    void *ctx;
    uint8_t *memory;
    size_t cap;
} walk;

quire_miss quire_disk_read_header(quire_disk *d, const quire_entry *e, uint8_t header[QUIRE_OBJECT_HEADER])
{
    quire_buffer buffer;
    quire_record record;
    errno = 0;
    quire_slab *slab = quire_slab_take(&d->slabs, e->place.slab);
    if (!slab) return errno == ENOENT ? QUIRE_MISS_LENGTH : QUIRE_MISS_DISK;
    quire_miss miss = quire_disk_take_buffer(d, &buffer) ? QUIRE_MISS_NONE : QUIRE_MISS_MEMORY;
    if (!miss) {
        miss = quire_slab_read(slab, buffer.bytes, QUIRE_BLOCK, e->place.at);
        if (!miss) miss = quire_record_read(&record, buffer.bytes, d->mac, &e->place);
        if (!miss && (!quire_key_equal(&record.object, &e->object) || record.place.bytes != e->place.bytes))
            miss = QUIRE_MISS_KEY;
        if (!miss) memcpy(header, buffer.bytes + QUIRE_RECORD_OBJECT, QUIRE_OBJECT_HEADER);
        quire_disk_give_buffer(d, &buffer);
    }
    quire_slab_give(&d->slabs, slab);
    return miss;
}

/* *n: bytes of the page object; w->memory holds them if payloads were asked for. */
static quire_miss read_object(walk *w, const quire_entry *e, uint8_t *header, size_t *n)
{
    *n = 0;
    if (e->version != QUIRE_RECORD_VERSION) return QUIRE_MISS_VERSION;
    quire_miss miss = quire_disk_read_header(w->disk, e, header);
    if (miss) return miss;
    uint64_t bytes = quire_object_payload_bytes(header);
    *n = QUIRE_OBJECT_HEADER + (size_t)bytes;
    if (!w->payloads) return QUIRE_MISS_NONE;
    if (!quire_mem_grow(&w->disk->allocator, &w->memory, &w->cap, *n)) return QUIRE_MISS_MEMORY;
    return read_record(w->disk, &e->place, &e->object, NULL, w->memory + QUIRE_OBJECT_HEADER, bytes,
                       w->memory, PAST_CACHE, NULL);
}

static quire_status visit(walk *w, const quire_entry *e)
{
    quire_object_info info = {.size = sizeof info, .used_us = e->tick, .pinned = e->is_pinned};
    quire_entry again;
    uint8_t header[QUIRE_OBJECT_HEADER];
    size_t n;
    quire_miss miss = read_object(w, e, header, &n);
    if (miss && (find(w->disk, &e->object, &again) || again.id != e->id))
        return QUIRE_OK; /* gone meanwhile */
    if (n) (void)quire_object_read_header(header, n, &info);
    memcpy(info.object, e->object.byte, 32);
    info.damage = miss;
    return w->fn(w->ctx, &info, w->payloads && !miss ? w->memory : NULL, n) ? QUIRE_EIO : QUIRE_OK;
}

quire_status quire_disk_each(quire_disk *d, bool payloads, quire_object_fn fn, void *ctx)
{
    enum { STEP = 128 };
    walk w = {.disk = d, .payloads = payloads, .fn = fn, .ctx = ctx};
    quire_entry entries[STEP];
    quire_status status = QUIRE_OK;
    int64_t after = INT64_MIN;
    for (uint32_t n = STEP;
         !status && n == STEP;) { /* some at a time: a walk of hours must not hold up writers */
        quire_index_rc rc;
        quire_index *ix = quire_disk_begin_read(d, &rc);
        n = 0;
        if (ix) {
            rc = quire_index_next(ix, after, entries, STEP, &n);
            rc = quire_disk_end_read(d, ix, rc);
        }
        if (rc > QUIRE_INDEX_NONE) status = QUIRE_EIO;
        for (uint32_t i = 0; i < n && !status; i++) status = visit(&w, &entries[i]);
        if (n) after = entries[n - 1].id;
    }
    quire_mem_free(&d->allocator, w.memory, w.cap);
    return status;
}
