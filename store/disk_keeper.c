/* SPDX-License-Identifier: MIT */
/*
 * store: the disk tier: the thread that keeps a directory in order. It makes the index anew when that is lost or damaged, looks for the
 * records that a new index lacks, checks the index after a start of the machine, and evicts when the cap was lowered. Loads and
 * saves go on meanwhile; what is not found yet is a miss.
 */
#define _GNU_SOURCE
#include "store/disk_inside.h"

#include <errno.h>
#include <sys/stat.h>

#define POLL_MS 250u     /* for what could not be done at once */
#define SCAN_POLL_MS 20u /* while another process scans */
#define SCAN_MAX 128u    /* records found between two transactions */
#define SCAN_BLOCKS 64u
#define EVICT_MAX 256u

/* -------------------------------------------------------------- a new index */

typedef struct survey {
    uint32_t end; /* above all slabs */
    uint64_t bytes;
} survey;

static void count_slab(void *ctx, uint32_t id, uint64_t disk_bytes)
{
    survey *s = (survey *)ctx;
    if (id >= s->end) s->end = id + 1;
    s->bytes += disk_bytes;
}

quire_index_rc quire_disk_make_index(quire_disk *d, uint64_t cap_bytes)
{
    survey s = {.end = 1};
    if (!quire_slab_each(&d->slabs, count_slab, &s)) return QUIRE_INDEX_FAILED;
    quire_index_head h = {.cap_bytes = cap_bytes,
                          .next_slab = s.end,
                          .scan_slab = 1,
                          .scan_at = QUIRE_BLOCK,
                          .scan_end = s.end,
                          .unscanned_bytes = s.bytes};
    quire_index_rc rc = QUIRE_INDEX_BUSY;
    pthread_mutex_lock(&d->write_lock);
    if (quire_disk_lock(d, QUIRE_LOCK_WRITERS, true, QUIRE_LOCK_TIMEOUT_MS)) {
        rc = quire_index_make(d->index_path, &h);
        quire_disk_unlock(d, QUIRE_LOCK_WRITERS);
    }
    pthread_mutex_unlock(&d->write_lock);
    if (!rc && s.end > 1) { /* not in a new directory */
        d->remake_began = quire_now();
        d->is_remake_told = false;
    }
    return rc;
}

/* The index that somebody found damaged, unless another process was faster. */
static void replace_index(quire_disk *d)
{
    struct stat st;
    if (!quire_disk_is_in_place(d) || !quire_disk_lock(d, QUIRE_LOCK_INDEX, true, 5000)) return;
    bool is_there = lstat(d->index_path, &st) == 0;
    if (!is_there || (uint64_t)st.st_ino == d->damaged_ino) {
        if (quire_disk_make_index(d, d->cap_bytes) == QUIRE_INDEX_OK) {
            d->is_damaged = false;
            d->is_scanning = true;
        }
    } else {
        d->is_damaged = false;
    }
    quire_disk_unlock(d, QUIRE_LOCK_INDEX);
}

/* --------------------------------------------------------------------- scan */

/* What was found from one place on: records, and runs of data that belong to none. */
typedef struct found {
    quire_record record[SCAN_MAX];
    quire_place run[SCAN_MAX], foreign[SCAN_MAX];
    uint32_t n_records, n_runs, n_foreign;
    uint32_t slab;
    uint64_t at; /* where to go on; UINT64_MAX: this slab is done */
} found;

static void add_run(found *f, uint64_t at, uint64_t bytes)
{
    quire_place *last = f->n_runs ? &f->run[f->n_runs - 1] : NULL;
    if (last && last->at + last->bytes == at)
        last->bytes += bytes;
    else
        f->run[f->n_runs++] = (quire_place){f->slab, at, bytes};
}

/* One block: a record's first, or data without one. Returns how far to go on. */
static uint64_t look_at(quire_disk *d, found *f, const uint8_t *block, uint64_t at, uint64_t file_end)
{
    quire_place place = {f->slab, at, 0};
    quire_record *r = &f->record[f->n_records];
    quire_miss miss = quire_record_read(r, block, d->mac, &place);
    bool fits = r->place.bytes <= file_end - at;
    if (miss == QUIRE_MISS_NONE && fits) {
        f->n_records++;
        return r->place.bytes;
    }
    if (miss == QUIRE_MISS_VERSION && fits) {
        f->foreign[f->n_foreign++] = r->place;
        return r->place.bytes;
    }
    add_run(f, at, QUIRE_BLOCK);
    return QUIRE_BLOCK;
}

static bool has_space(const found *f)
{
    return f->n_records < SCAN_MAX && f->n_runs < SCAN_MAX && f->n_foreign < SCAN_MAX;
}

static void scan(quire_disk *d, quire_slab *slab, quire_buffer *buffer, found *f)
{
    struct stat st;
    uint64_t end = fstat(slab->fd, &st) ? 0 : (uint64_t)st.st_size / QUIRE_BLOCK * QUIRE_BLOCK;
    uint64_t n_read = 0, begin = 0, n = 1; /* blocks in the buffer; more at a time where no records are */
    while (has_space(f)) {
        if (f->at < end && (f->at < begin || f->at >= begin + n_read * QUIRE_BLOCK)) {
            uint64_t data = quire_slab_next_data(slab, f->at);
            if (data != UINT64_MAX) data = data / QUIRE_BLOCK * QUIRE_BLOCK;
            if (data > f->at) f->at = data;
        }
        if (f->at >= end) {
            f->at = UINT64_MAX;
            return;
        }
        if (f->at < begin || f->at >= begin + n_read * QUIRE_BLOCK) {
            n_read = (end - f->at) / QUIRE_BLOCK < n ? (end - f->at) / QUIRE_BLOCK : n;
            begin = f->at;
            if (quire_slab_read(slab, buffer->bytes, (size_t)n_read * QUIRE_BLOCK, begin)) {
                /* Cannot be read: stepped over, and not used again. */
                f->at += n_read * QUIRE_BLOCK;
                n_read = 0;
                continue;
            }
        }
        uint64_t step = look_at(d, f, buffer->bytes + (f->at - begin), f->at, end);
        n = step == QUIRE_BLOCK ? SCAN_BLOCKS : 1;
        f->at += step;
    }
}

static quire_index_rc add_record(quire_disk *d, quire_index_head *h, const quire_record *r)
{
    quire_entry e = {.object = r->object,
                     .place = r->place,
                     .version = r->version,
                     .tick = r->written_us,
                     .is_pinned = r->is_pinned},
                other;
    uint64_t now = quire_now_us();
    if (e.tick > now) e.tick = now;
    quire_index_rc rc = quire_index_covers(&d->writer, &r->place);
    if (!rc) return QUIRE_INDEX_OK; /* found before */
    if (rc == QUIRE_INDEX_NONE) rc = quire_index_find(&d->writer, &r->object, &other);
    if (!rc) { /* saved again meanwhile */
        h->free_bytes += r->place.bytes;
        return quire_index_add_free(&d->writer, &r->place);
    }
    quire_namespace_row row = {.root = r->root, .named_us = r->written_us};
    memcpy(row.tenant, r->tenant, QUIRE_TENANT);
    memcpy(row.tenant_name, r->tenant_name, QUIRE_NAME);
    memcpy(row.model_name, r->model_name, QUIRE_NAME);
    if (rc == QUIRE_INDEX_NONE) rc = quire_index_namespace(&d->writer, &row, &e.ns);
    if (!rc) rc = quire_index_insert(&d->writer, &e);
    if (rc) return rc;
    h->live_bytes += e.place.bytes;
    h->n_objects++;
    h->n_pinned += e.is_pinned;
    return QUIRE_INDEX_OK;
}

typedef struct rest {
    const quire_index_head *head;
    uint64_t bytes;
    uint64_t first; /* slab */
} rest;

static void count_rest(void *ctx, uint32_t id, uint64_t disk_bytes)
{
    rest *r = (rest *)ctx;
    if (id < r->head->scan_slab || id >= r->head->scan_end) return;
    r->bytes += disk_bytes;
    if (id < r->first) r->first = id;
}

/* What was found becomes rows, if nobody else has gone on from the same place. */
static quire_index_rc adopt_found(quire_disk *d, const found *f, uint64_t from)
{
    quire_index_head h;
    quire_index_rc rc = quire_disk_begin_write(d, &h);
    if (rc) return rc;
    if (h.scan_slab != f->slab || h.scan_at != from || h.scan_slab >= h.scan_end)
        return quire_disk_end_write(d, &h, QUIRE_INDEX_OK);
    for (uint32_t i = 0; i < f->n_records && !rc; i++) rc = add_record(d, &h, &f->record[i]);
    for (uint32_t i = 0; i < f->n_runs && !rc; i++) {
        rc = quire_index_add_free(&d->writer, &f->run[i]);
        h.free_bytes += f->run[i].bytes;
    }
    for (uint32_t i = 0; i < f->n_foreign && !rc; i++) {
        rc = quire_index_add_foreign(&d->writer, &f->foreign[i]);
        h.foreign_bytes += f->foreign[i].bytes;
        h.n_foreign++;
    }
    h.scan_at = f->at;
    if (f->at == UINT64_MAX) {
        h.scan_slab++;
        h.scan_at = QUIRE_BLOCK;
    }
    rest r = {.head = &h, .first = h.scan_end};
    bool all = quire_slab_each(&d->slabs, count_rest, &r);
    if (all) h.unscanned_bytes = r.bytes;
    if (all && f->at == UINT64_MAX) h.scan_slab = r.first; /* numbers can be far apart */
    d->is_scanning = h.scan_slab < h.scan_end;
    if (!d->is_scanning) d->is_quota_due = true; /* what was evicted earlier may have been found again */
    return quire_disk_end_write(d, &h, rc);
}

/* A slab of another version stays as it is and counts as one object. */
static void leave_alone(found *f, uint64_t disk_bytes)
{
    f->foreign[f->n_foreign++] = (quire_place){f->slab, 0, disk_bytes};
    f->at = UINT64_MAX;
}

/* The file is well, and can be opened later. */
static bool is_short_of_means(int error)
{
    return error == ENOMEM || error == EMFILE || error == ENFILE;
}

static bool scan_some(quire_disk *d, quire_buffer *buffer, found *f)
{
    quire_index_head h;
    quire_index_rc rc;
    uint8_t key[QUIRE_DIRECTORY_KEY];
    quire_index *ix = quire_disk_begin_read(d, &rc);
    if (!ix) return false;
    rc = quire_index_read_head(ix, &h);
    if (quire_disk_end_read(d, ix, rc)) return false;
    if (h.scan_slab >= h.scan_end) {
        d->is_scanning = false;
        return false;
    }
    *f = (found){.slab = (uint32_t)h.scan_slab, .at = h.scan_at};
    quire_slab *slab = quire_slab_take(&d->slabs, f->slab);
    if (!slab && is_short_of_means(errno)) return false; /* tried again later */
    if (!slab)
        f->at = UINT64_MAX;
    else if (quire_slab_read_head(&d->slabs, f->slab, key) == QUIRE_MISS_VERSION)
        leave_alone(f, quire_slab_disk_bytes(slab));
    else
        scan(d, slab, buffer, f);
    quire_slab_give(&d->slabs, slab);
    return adopt_found(d, f, h.scan_at) == QUIRE_INDEX_OK;
}

/* ---------------------------------------------------------------------- cap */

/* true: there is more to do, and it can be done. What fails is tried again later. */
static bool shrink_some(quire_disk *d)
{
    quire_index_head h;
    quire_index_rc rc = quire_disk_begin_write(d, &h);
    if (rc) return false;
    uint64_t budget = quire_disk_budget(d, &h);
    rc = quire_disk_evict(d, &h, budget, UINT64_MAX, EVICT_MAX);
    bool all = rc == QUIRE_INDEX_NONE;
    rc = quire_disk_end_write(d, &h, all ? QUIRE_INDEX_OK : rc);
    /* Freed in that transaction: not to be punched before it is committed. */
    if (!rc) rc = quire_disk_begin_write(d, &h);
    if (rc) return false;
    uint64_t sum = quire_disk_taken(&h) + h.free_bytes, over = sum > budget ? sum - budget : 0;
    rc = quire_disk_give_back(d, &h, over < h.free_bytes ? over : h.free_bytes);
    if (rc == QUIRE_INDEX_NONE) h.free_bytes = 0, rc = QUIRE_INDEX_OK;
    rc = quire_disk_end_write(d, &h, rc);
    if (rc) return false;
    bool done = over == 0 || (all && h.free_bytes == 0); /* what is left is pinned */
    if (done) d->is_over_cap = false;
    return !done;
}

/* --------------------------------------------------------------- empty slabs */

typedef struct empties {
    quire_disk *disk;
    quire_index_head *head;
    quire_index_rc rc;
} empties;

static void remove_if_empty(void *ctx, uint32_t id, uint64_t disk_bytes)
{
    empties *e = (empties *)ctx;
    uint64_t free_bytes = 0;
    uint8_t key[QUIRE_DIRECTORY_KEY];
    /* A few blocks: nothing but holes. */
    if (e->rc > QUIRE_INDEX_NONE || disk_bytes > 16 * QUIRE_BLOCK || id == e->head->slab ||
        id >= e->head->next_slab)
        return;
    if (quire_slab_read_head(&e->disk->slabs, id, key) == QUIRE_MISS_VERSION) return;
    e->rc = quire_index_slab_is_used(&e->disk->writer, id);
    if (e->rc != QUIRE_INDEX_NONE) return;
    e->rc = quire_index_drop_free(&e->disk->writer, id, &free_bytes);
    if (e->rc) return;
    e->head->free_bytes -= free_bytes < e->head->free_bytes ? free_bytes : e->head->free_bytes;
    (void)quire_slab_remove(&e->disk->slabs, id);
}

static void remove_empty_slabs(quire_disk *d)
{
    quire_index_head h;
    empties e = {.disk = d, .head = &h};
    if (quire_disk_begin_write(d, &h)) return;
    if (h.scan_slab >= h.scan_end) (void)quire_slab_each(&d->slabs, remove_if_empty, &e);
    (void)quire_disk_end_write(d, &h, e.rc == QUIRE_INDEX_NONE ? QUIRE_INDEX_OK : e.rc);
}

/* ------------------------------------------------------------------- thread */

static void check_index(quire_disk *d)
{
    quire_index_rc rc;
    d->is_check_due = false;
    quire_index *ix = quire_disk_begin_read(d, &rc);
    if (!ix) return;
    rc = quire_index_check(ix);
    (void)quire_disk_end_read(d, ix, rc);
}

static void check_quotas(quire_disk *d)
{
    d->is_quota_due = false;
    if (!quire_disk_enforce_quotas(d, NULL)) d->is_quota_due = true; /* tried again later */
}

static bool is_stopping(quire_disk *d)
{
    pthread_mutex_lock(&d->keeper_lock);
    bool stop = d->stop;
    pthread_mutex_unlock(&d->keeper_lock);
    return stop;
}

static void scan_all(quire_disk *d)
{
    quire_buffer buffer;
    found *f = (found *)quire_mem_take(&d->allocator, sizeof *f);
    if (f && quire_buffer_create(&buffer, &d->allocator, SCAN_BLOCKS * QUIRE_BLOCK)) {
        if (quire_disk_lock(d, QUIRE_LOCK_SCAN, true, 0)) { /* otherwise another process is at it */
            while (!is_stopping(d) && !d->is_damaged && scan_some(d, &buffer, f)) {
            }
            quire_disk_unlock(d, QUIRE_LOCK_SCAN);
        }
        quire_buffer_destroy(&buffer, &d->allocator);
    }
    quire_mem_free(&d->allocator, f, sizeof *f);
}

/* Under no lock. */
static void tell(quire_disk *d, bool looks_for_unknown)
{
    quire_disk_usage u;
    if (d->remake_began && !d->is_remake_told)
        quire_log_say(
            d->log, QUIRE_EVENT_INDEX, QUIRE_LOG_WARNING,
            "The index of %s was damaged or missing. It is made anew from the pages on disk; until that is "
            "done, pages that are not found yet are misses.",
            d->directory);
    d->is_remake_told = true;
    bool is_whole = d->remake_began && !d->is_scanning && !d->is_damaged;
    if (!is_whole && !looks_for_unknown) return;
    quire_disk_usage_get(d, &u);
    if (is_whole)
        quire_log_say(d->log, QUIRE_EVENT_INDEX, QUIRE_LOG_INFO,
                      "The index of %s is whole again: %llu pages found in %.1f s.", d->directory,
                      (unsigned long long)u.n_objects, 1e-9 * (double)(quire_now() - d->remake_began));
    if (is_whole) d->remake_began = 0;
    if (u.n_unknown > d->n_unknown_told)
        quire_log_say(
            d->log, QUIRE_EVENT_VERSION, QUIRE_LOG_INFO,
            "%s has %llu pages of versions of Quire that this one does not know; they are left alone.",
            d->directory, (unsigned long long)u.n_unknown);
    d->n_unknown_told = u.n_unknown;
}

static void *keep(void *arg)
{
    quire_disk *d = (quire_disk *)arg;
    pthread_mutex_lock(&d->keeper_lock);
    while (!d->stop) {
        bool busy = d->is_damaged || d->is_scanning || d->is_over_cap || d->is_check_due || d->is_quota_due;
        if (!d->wake && busy) {
            (void)quire_cond_wait_until(
                &d->keeper_cond, &d->keeper_lock,
                quire_deadline(d->is_scanning && !d->is_damaged ? SCAN_POLL_MS : POLL_MS));
        } else if (!d->wake) {
            pthread_cond_wait(&d->keeper_cond, &d->keeper_lock);
        }
        bool woken = d->wake;
        d->wake = false;
        if (d->stop) break;
        pthread_mutex_unlock(&d->keeper_lock);
        if (d->is_damaged) replace_index(d);
        tell(d, woken && !d->is_scanning);
        if (d->is_scanning && !d->is_damaged) scan_all(d);
        tell(d, false);
        if (d->is_check_due && !d->is_damaged) check_index(d);
        if (d->is_quota_due && !d->is_scanning && !d->is_damaged) check_quotas(d);
        while (d->is_over_cap && !d->is_damaged && !is_stopping(d) && shrink_some(d)) {
        }
        if (woken && !d->is_scanning && !d->is_damaged) remove_empty_slabs(d);
        pthread_mutex_lock(&d->keeper_lock);
    }
    pthread_mutex_unlock(&d->keeper_lock);
    return NULL;
}

bool quire_disk_start_keeper(quire_disk *d)
{
    d->wake = true;
    d->has_keeper = quire_thread_start(&d->keeper, keep, d);
    return d->has_keeper;
}

void quire_disk_stop_keeper(quire_disk *d)
{
    if (!d->has_keeper) return;
    pthread_mutex_lock(&d->keeper_lock);
    d->stop = true;
    pthread_cond_signal(&d->keeper_cond);
    pthread_mutex_unlock(&d->keeper_lock);
    (void)pthread_join(d->keeper, NULL);
    d->has_keeper = false;
}

void quire_disk_wake_keeper(quire_disk *d)
{
    pthread_mutex_lock(&d->keeper_lock);
    d->wake = true;
    pthread_cond_signal(&d->keeper_cond);
    pthread_mutex_unlock(&d->keeper_lock);
}
