/* SPDX-License-Identifier: MIT */
/*
 * store: the disk tier, writing. One transaction for a number of objects: space is taken, records are written, rows added, and what
 * must go for the next ones is evicted. Space that a transaction frees is written to by later ones only: until it is committed,
 * other processes still read what lies there.
 */
#define _GNU_SOURCE
#include "store/disk_inside.h"
#include "store/seal.h"

#include <errno.h>

#define STEP 64u
#define BATCH_MAX (32u << 20)
#define ATTEMPTS 16u
#define EVICT_MAX 1024u
#define SLAB_MIN (64ull << 20)
#define SLAB_MAX (32ull << 30)
#define RESERVE_SHARE 16u /* at most this part of the space is evicted ahead */

size_t quire_disk_batch(const quire_disk *d)
{
    uint64_t share = d->cap_bytes / 96;
    return share < BATCH_MAX ? (size_t)share : BATCH_MAX;
}

bool quire_disk_has_room(quire_disk *d, const quire_object_id *id, uint32_t n)
{
    quire_index_head h;
    quire_index_rc rc;
    uint64_t quota = quire_disk_quota(d, id->tenant), used = 0;
    quire_index *ix = quire_disk_begin_read(d, &rc);
    if (!ix) return false;
    rc = quire_index_read_head(ix, &h);
    if (!rc && quota != QUIRE_NO_QUOTA) rc = quire_index_tenant_bytes(ix, id->tenant, &used);
    if (quire_disk_end_read(d, ix, rc)) return false;
    uint64_t need = 2 * n * quire_record_bytes(id->bytes); /* twice: as much is evicted ahead */
    return quire_disk_taken(&h) + need <= quire_disk_budget(d, &h) &&
           (used + need <= quota || quota == QUIRE_NO_QUOTA);
}

/* -------------------------------------------------------------------- space */

/* A slab that may be written to; NULL: it is gone, or another file has its name. */
static quire_slab *take_for_writing(quire_disk *d, uint32_t id)
{
    uint8_t key[QUIRE_DIRECTORY_KEY];
    quire_slab *slab = quire_slab_take(&d->slabs, id);
    if (!slab || quire_slab_is_current(&d->slabs, slab)) return slab;
    quire_slab_give(&d->slabs, slab);
    quire_slab_forget(&d->slabs, id);
    if (quire_slab_read_head(&d->slabs, id, key) || memcmp(key, d->key, sizeof key)) return NULL;
    return quire_slab_take(&d->slabs, id);
}

static bool begin_slab(quire_disk *d, quire_index_head *h)
{
    for (int i = 0; i < 1000; i++) {
        uint32_t id = (uint32_t)h->next_slab++;
        quire_slab *slab = quire_slab_create(&d->slabs, id, d->key);
        int why = errno;
        quire_slab_give(&d->slabs, slab);
        if (slab) {
            h->slab = id;
            h->end = QUIRE_BLOCK;
            return true;
        }
        if (why != EEXIST) return false;
        /* Left by a writer that died: no committed transaction knows of it. Another version's is left alone. */
        uint8_t key[QUIRE_DIRECTORY_KEY];
        if (quire_slab_read_head(&d->slabs, id, key) == QUIRE_MISS_VERSION) continue;
        if (quire_slab_remove(&d->slabs, id)) h->next_slab--;
    }
    return false;
}

/* At the end of the slab that grows. FAILED: no file can be made. */
static quire_index_rc grow(quire_disk *d, quire_index_head *h, uint64_t bytes, quire_place *out)
{
    uint64_t limit = h->cap_bytes / 16;
    limit = limit < SLAB_MIN ? SLAB_MIN : limit > SLAB_MAX ? SLAB_MAX : limit;
    bool fits = h->slab && (h->end + bytes <= limit || h->end == QUIRE_BLOCK);
    if (fits) {
        quire_slab *slab = take_for_writing(d, (uint32_t)h->slab);
        if (slab)
            quire_slab_cut(slab, h->end); /* a writer that died may have left something */
        else
            fits = false;
        quire_slab_give(&d->slabs, slab);
    }
    if (!fits && !begin_slab(d, h)) return QUIRE_INDEX_FAILED;
    *out = (quire_place){(uint32_t)h->slab, h->end, bytes};
    h->end += bytes;
    return QUIRE_INDEX_OK;
}

/* Free space that fits; otherwise the slab grows, for which as much free space elsewhere is given back. */
static quire_index_rc take_space(quire_disk *d, quire_index_head *h, uint64_t bytes, uint64_t budget,
                                 quire_place *out, quire_slab **slab)
{
    quire_index_rc rc = quire_index_take_free(&d->writer, bytes, out);
    if (!rc) {
        h->free_bytes -= bytes < h->free_bytes ? bytes : h->free_bytes;
        *slab = take_for_writing(d, out->slab);
        if (*slab) return QUIRE_INDEX_OK;
        uint64_t lost = 0; /* the file is gone, and with it its free space */
        rc = quire_index_drop_free(&d->writer, out->slab, &lost);
        h->free_bytes -= lost < h->free_bytes ? lost : h->free_bytes;
        return rc ? rc : take_space(d, h, bytes, budget, out, slab);
    }
    uint64_t all = quire_disk_taken(h) + h->free_bytes + bytes;
    if (rc == QUIRE_INDEX_NONE) rc = all > budget ? quire_disk_give_back(d, h, all - budget) : QUIRE_INDEX_OK;
    if (rc <= QUIRE_INDEX_NONE) rc = grow(d, h, bytes, out);
    if (!rc) *slab = quire_slab_take(&d->slabs, out->slab);
    return !rc && !*slab ? QUIRE_INDEX_FAILED : rc;
}

/* ------------------------------------------------------------------- records */

static bool begin_sealing(quire_disk *d, const quire_disk_put *p, uint8_t *header)
{
    if (!d->sealer) d->sealer = quire_sealer_create(&d->allocator);
    return d->sealer && p->id.owner &&
           quire_seal_payload_begin(d->sealer, header, &p->id.owner->seal_key, &p->id);
}

static bool write_record(quire_disk *d, quire_slab *slab, const quire_disk_put *p, const quire_place *place)
{
    quire_record record = {.place = *place, .object = p->id.object, .written_us = quire_now_us()};
    uint8_t header[QUIRE_OBJECT_HEADER], *block = d->write_buffer.bytes, *room = block + QUIRE_BLOCK;
    quire_payload_hash hash;
    memcpy(record.tenant, p->id.tenant, QUIRE_TENANT);
    if (p->id.owner) {
        memcpy(record.tenant_name, p->id.owner->tenant_name, QUIRE_NAME);
        memcpy(record.model_name, p->id.owner->model_name, QUIRE_NAME);
    }
    bool seal = p->seal && !p->header;
    if (seal && !begin_sealing(d, p, header)) return false;
    quire_payload_begin(&hash);
    size_t bytes = (size_t)p->id.bytes, rest = bytes;
    if (d->writes_headers_only) bytes = rest = 0;
    bool in_one = place->bytes <= QUIRE_WRITE_BUFFER;
    for (size_t at = 0, part; at < bytes; at += part) {
        part = bytes - at < QUIRE_WRITE_BUFFER - QUIRE_BLOCK ? bytes - at : QUIRE_WRITE_BUFFER - QUIRE_BLOCK;
        const uint8_t *from = (const uint8_t *)p->payload + at;
        if (seal && !quire_seal_payload_part(d->sealer, room, from, part)) return false;
        if (!seal) quire_payload_copy(&hash, room, from, part);
        rest = (size_t)quire_round_up(part);
        memset(room + part, 0, rest - part);
        if (!in_one && !quire_slab_write(slab, room, rest, place->at + QUIRE_BLOCK + at)) return false;
    }
    if (seal && !quire_seal_payload_end(d->sealer, header)) return false;
    if (p->header)
        memcpy(header, p->header, sizeof header);
    else if (!seal)
        quire_object_write_header(header, &p->id, &hash);
    if (!quire_record_write(block, d->mac, &record, header)) return false;
    if (d->writes_headers_only) quire_slab_extend(slab, place->at + place->bytes);
    return quire_slab_write(slab, block, in_one ? QUIRE_BLOCK + rest : QUIRE_BLOCK, place->at);
}

static quire_index_rc write_one(quire_disk *d, quire_index_head *h, const quire_disk_put *p, uint64_t budget)
{
    quire_entry e = {.object = p->id.object, .version = QUIRE_RECORD_VERSION, .tick = quire_disk_ticks(d, 1)};
    quire_slab *slab = NULL;
    quire_namespace_row row = {.root = p->id.root, .named_us = quire_now_us()};
    memcpy(row.tenant, p->id.tenant, QUIRE_TENANT);
    if (p->id.owner) {
        memcpy(row.tenant_name, p->id.owner->tenant_name, QUIRE_NAME);
        memcpy(row.model_name, p->id.owner->model_name, QUIRE_NAME);
    }
    quire_index_rc rc = quire_index_namespace(&d->writer, &row, &e.ns);
    if (!rc) rc = take_space(d, h, quire_record_bytes(p->id.bytes), budget, &e.place, &slab);
    if (rc) return rc == QUIRE_INDEX_NONE ? QUIRE_INDEX_FAILED : rc;
    /* After a power failure an index can be well-formed and still take for free what is not. */
    rc = quire_index_covers(&d->writer, &e.place);
    if (rc != QUIRE_INDEX_NONE) {
        quire_slab_give(&d->slabs, slab);
        return rc ? rc : QUIRE_INDEX_DAMAGED;
    }
    bool written = write_record(d, slab, p, &e.place);
    quire_slab_give(&d->slabs, slab);
    if (!written) return QUIRE_INDEX_FAILED;
    rc = quire_index_insert(&d->writer, &e);
    if (rc) return rc;
    h->live_bytes += e.place.bytes;
    h->n_objects++;
    return QUIRE_INDEX_OK;
}

/* A page that was stored before encryption was asked for: it must not stay as it is. */
static bool is_plain(quire_disk *d, const quire_entry *e)
{
    uint8_t header[QUIRE_OBJECT_HEADER];
    return e->version == QUIRE_RECORD_VERSION && !quire_disk_read_header(d, e, header) &&
           !quire_object_is_sealed(header);
}

/* What the index does not have yet; another process may have been faster. */
static quire_index_rc leave_out_known(quire_disk *d, quire_index_head *h, const quire_disk_put *puts,
                                      uint32_t n, const quire_disk_put **left, uint32_t *n_left)
{
    *n_left = 0;
    for (uint32_t i = 0; i < n; i++) {
        quire_entry e;
        quire_index_rc rc = quire_index_find(&d->writer, &puts[i].id.object, &e);
        if (rc > QUIRE_INDEX_NONE) return rc;
        bool has = !rc;
        if (has && puts[i].seal && is_plain(d, &e)) {
            rc = quire_disk_delete(d, h, &e);
            if (rc) return rc;
            has = false;
        }
        for (uint32_t j = 0; j < *n_left && !has; j++)
            has = quire_key_equal(&left[j]->id.object, &puts[i].id.object);
        if (!has) left[(*n_left)++] = &puts[i];
    }
    return QUIRE_INDEX_OK;
}

/* Room for `need` more bytes, of all and of the tenant. NONE: something had to be evicted first, and was. */
static quire_index_rc make_room(quire_disk *d, quire_index_head *h, const uint8_t *tenant, uint64_t need,
                                uint64_t budget, uint64_t quota, bool *is_full)
{
    uint64_t used = 0, before = h->n_objects;
    quire_index_rc rc =
        quota == QUIRE_NO_QUOTA ? QUIRE_INDEX_OK : quire_index_tenant_bytes(&d->writer, tenant, &used);
    bool tenant_is_over = quota != QUIRE_NO_QUOTA && used + need > quota;
    if (rc || (!tenant_is_over && quire_disk_taken(h) + need <= budget)) return rc;
    if (need > quota || need > budget) {
        *is_full = true;
        return QUIRE_INDEX_NONE;
    }
    if (tenant_is_over)
        rc = quire_disk_evict_tenant(d, h, tenant, quota - need, UINT64_MAX, EVICT_MAX);
    else
        rc = quire_disk_evict(d, h, budget > need ? budget - need : 0, UINT64_MAX, EVICT_MAX);
    *is_full = rc == QUIRE_INDEX_NONE && h->n_objects == before;
    return rc ? rc : QUIRE_INDEX_NONE;
}

/* As much again, for those that come next. Not what was written just now. */
static quire_index_rc evict_ahead(quire_disk *d, quire_index_head *h, const uint8_t *tenant, uint64_t need,
                                  uint64_t budget, uint64_t quota, uint64_t first_tick)
{
    uint64_t reserve = need < budget / RESERVE_SHARE ? need : budget / RESERVE_SHARE;
    quire_index_rc rc = quire_disk_evict(d, h, budget - reserve, first_tick, EVICT_MAX);
    if (rc > QUIRE_INDEX_NONE || quota == QUIRE_NO_QUOTA) return rc;
    reserve = need < quota / RESERVE_SHARE ? need : quota / RESERVE_SHARE;
    return quire_disk_evict_tenant(d, h, tenant, quota - reserve, first_tick, EVICT_MAX);
}

/* One transaction. *n_left: how many were new. NONE: something had to be evicted first, and was; again. */
static quire_index_rc write_step(quire_disk *d, const quire_disk_put *puts, uint32_t n, uint32_t *n_left,
                                 bool *is_full)
{
    const quire_disk_put *left[STEP];
    const uint8_t *tenant = puts[0].id.tenant;
    uint64_t quota = quire_disk_quota(d, tenant);
    quire_index_head h;
    quire_index_rc rc = quire_disk_begin_write(d, &h);
    *is_full = false;
    if (rc) return rc;
    quire_index_head before = h;
    rc = leave_out_known(d, &h, puts, n, left, n_left);
    uint64_t need = *n_left * quire_record_bytes(puts[0].id.bytes), budget = quire_disk_budget(d, &h);
    if (!rc && !d->write_buffer.memory &&
        !quire_buffer_create(&d->write_buffer, &d->allocator, QUIRE_WRITE_BUFFER + QUIRE_BLOCK))
        rc = QUIRE_INDEX_FAILED;
    if (!rc && need) rc = make_room(d, &h, tenant, need, budget, quota, is_full);
    if (rc == QUIRE_INDEX_NONE) {
        rc = quire_disk_end_write(d, &h, QUIRE_INDEX_OK);
        return rc ? rc : QUIRE_INDEX_NONE;
    }
    uint64_t first = d->last_tick + 1;
    for (uint32_t i = *n_left; i-- && !rc;)
        rc = write_one(d, &h, left[i], budget); /* the first page gets the last tick */
    if (!rc && need) rc = evict_ahead(d, &h, tenant, need, budget, quota, first);
    if (rc == QUIRE_INDEX_NONE) rc = QUIRE_INDEX_OK;
    if (rc && before.slab) { /* a full disk, for one: what was begun goes at once */
        quire_slab *slab = quire_slab_take(&d->slabs, (uint32_t)before.slab);
        if (slab) quire_slab_cut(slab, before.end);
        quire_slab_give(&d->slabs, slab);
    }
    return quire_disk_end_write(d, need ? &h : &before, rc);
}

static quire_counters *own_counters(const quire_disk_put *p)
{
    return p->id.owner ? &p->id.owner->counters : NULL;
}

/* Of one namespace. */
static bool write_some(quire_disk *d, const quire_disk_put *puts, uint32_t n)
{
    quire_counters *count = d->counters, *own = own_counters(puts);
    quire_index_rc rc = QUIRE_INDEX_NONE;
    uint32_t n_left = n;
    bool is_full = false;
    /* Room comes in steps; other processes may take it. */
    for (uint32_t i = 0; i < ATTEMPTS * 1024 && rc == QUIRE_INDEX_NONE && !is_full; i++)
        rc = write_step(d, puts, n, &n_left, &is_full);
    if (rc == QUIRE_INDEX_OK) {
        QUIRE_COUNT(count, own, known[QUIRE_DISK], n - n_left);
        QUIRE_COUNT(count, own, saved[QUIRE_DISK], n_left);
        QUIRE_COUNT(count, own, saved_bytes[QUIRE_DISK], n_left * puts[0].id.bytes);
    } else if (is_full) {
        QUIRE_COUNT(count, own, dropped[QUIRE_DISK], n);
    } else {
        QUIRE_COUNT(count, own, failed[QUIRE_DISK], n);
    }
    return rc == QUIRE_INDEX_OK || is_full;
}

/* How many of the first ones go into one transaction: those of one namespace, and a small part of its tenant's limit. */
static uint32_t step_of(quire_disk *d, const quire_disk_put *puts, uint32_t n)
{
    uint64_t quota = quire_disk_quota(d, puts[0].id.tenant);
    uint64_t most = quota / RESERVE_SHARE / quire_record_bytes(puts[0].id.bytes);
    if (n > STEP) n = STEP;
    if (n > most) n = most ? (uint32_t)most : 1;
    uint32_t step = 1;
    while (step < n && quire_key_equal(&puts[step].id.root, &puts[0].id.root) &&
           puts[step].id.owner == puts[0].id.owner)
        step++;
    return step;
}

bool quire_disk_write(quire_disk *d, const quire_disk_put *puts, uint32_t n)
{
    bool good = true;
    for (uint32_t i = 0, step; i < n; i += step) {
        step = step_of(d, puts + i, n - i);
        if (quire_record_bytes(puts[i].id.bytes) > d->cap_bytes / 4) /* a few must fit */
            QUIRE_COUNT(d->counters, own_counters(&puts[i]), dropped[QUIRE_DISK], step);
        else
            good = write_some(d, puts + i, step) && good;
    }
    return good;
}
