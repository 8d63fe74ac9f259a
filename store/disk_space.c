/* SPDX-License-Identifier: MIT */
/* store: the disk tier: transactions of the index; what may be used, and what goes. */
#define _GNU_SOURCE
#include "store/disk_inside.h"

#include <sys/stat.h>

/* -------------------------------------------------------------- transactions */

/* Remembers what must be seen to. */
static void note(quire_disk *d, const quire_index *ix, quire_index_rc rc)
{
    if (rc != QUIRE_INDEX_DAMAGED && rc != QUIRE_INDEX_LOST) return;
    d->damaged_ino = rc == QUIRE_INDEX_DAMAGED ? ix->ino : 0; /* lost: there may be a good one by now */
    d->is_damaged = true;
    quire_disk_wake_keeper(d);
}

/* Slabs and locks belong to the directory that was opened, the index is found by its name: both must be of one directory. */
bool quire_disk_is_in_place(const quire_disk *d)
{
    struct stat st;
    return stat(d->directory, &st) == 0 && (uint64_t)st.st_dev == d->dev && st.st_ino == d->ino;
}

quire_index *quire_disk_begin_read(quire_disk *d, quire_index_rc *rc)
{
    uint32_t first = atomic_fetch_add_explicit(&d->next_reader, 1, memory_order_relaxed), i = 0;
    while (i < QUIRE_READERS && pthread_mutex_trylock(&d->reader_lock[(first + i) % QUIRE_READERS])) i++;
    if (i == QUIRE_READERS) {
        i = 0;
        pthread_mutex_lock(&d->reader_lock[first % QUIRE_READERS]);
    }
    quire_index *ix = &d->reader[(first + i) % QUIRE_READERS];
    *rc =
        quire_disk_is_in_place(d) ? quire_index_begin(ix, false, QUIRE_LOCK_TIMEOUT_MS) : QUIRE_INDEX_FAILED;
    if (!*rc) return ix;
    (void)quire_disk_end_read(d, ix, *rc);
    return NULL;
}

quire_index_rc quire_disk_end_read(quire_disk *d, quire_index *ix, quire_index_rc rc)
{
    /* What was read is right; a rollback ends it as well as anything. */
    quire_index_rc end = quire_index_end(ix, rc == QUIRE_INDEX_NONE ? QUIRE_INDEX_OK : rc);
    if (!rc) rc = end;
    note(d, ix, rc);
    pthread_mutex_unlock(&d->reader_lock[ix - d->reader]);
    return rc;
}

static void end_writing(quire_disk *d, quire_index_rc rc)
{
    quire_disk_unlock(d, QUIRE_LOCK_WRITERS);
    note(d, &d->writer, rc);
    pthread_mutex_unlock(&d->write_lock);
}

quire_index_rc quire_disk_begin_write(quire_disk *d, quire_index_head *h)
{
    pthread_mutex_lock(&d->write_lock);
    quire_index_rc rc = quire_disk_is_in_place(d) ? QUIRE_INDEX_BUSY : QUIRE_INDEX_FAILED;
    if (rc == QUIRE_INDEX_BUSY && quire_disk_lock(d, QUIRE_LOCK_WRITERS, false, QUIRE_LOCK_TIMEOUT_MS))
        rc = quire_index_begin(&d->writer, true, QUIRE_LOCK_TIMEOUT_MS);
    if (!rc) {
        rc = quire_index_read_head(&d->writer, h);
        if (rc) (void)quire_index_end(&d->writer, rc);
    }
    if (!rc) {
        d->cap_bytes = h->cap_bytes;
        if (h->scan_slab < h->scan_end && !d->is_scanning) {
            d->is_scanning = true;
            quire_disk_wake_keeper(d);
        }
        return QUIRE_INDEX_OK;
    }
    end_writing(d, rc);
    return rc;
}

quire_index_rc quire_disk_end_write(quire_disk *d, const quire_index_head *h, quire_index_rc rc)
{
    if (!rc) rc = quire_index_write_head(&d->writer, h);
    rc = quire_index_end(&d->writer, rc);
    end_writing(d, rc);
    return rc;
}

quire_miss quire_disk_miss_of(quire_index_rc rc)
{
    return rc == QUIRE_INDEX_OK     ? QUIRE_MISS_NONE
           : rc == QUIRE_INDEX_NONE ? QUIRE_MISS_ABSENT
                                    : QUIRE_MISS_DISK;
}

/* ------------------------------------------------------------------- space */

#define SMALL_FILES \
    (256ull << 10)     /* head file, first blocks of slabs, growth of the index in one transaction */
#define TREE_BYTES 32u /* what a file system may need per object to know where it lies */

/* The index and its journal, which can be as large, take the rest of the cap. */
uint64_t quire_disk_budget(const quire_disk *d, const quire_index_head *h)
{
    struct stat st;
    uint64_t index = stat(d->index_path, &st) ? 0 : (uint64_t)st.st_size;
    /* The file of limits is written anew beside the old one. */
    uint64_t rest = 2 * (index + quire_disk_quota_bytes(d)) + SMALL_FILES + TREE_BYTES * h->n_objects;
    return h->cap_bytes > rest ? h->cap_bytes - rest : 0;
}

uint64_t quire_disk_ticks(quire_disk *d, uint64_t n)
{
    uint64_t now = quire_now_us(), first = now > d->last_tick ? now : d->last_tick + 1;
    d->last_tick = first + n - 1;
    return first;
}

quire_index_rc quire_disk_delete(quire_disk *d, quire_index_head *h, const quire_entry *e)
{
    quire_index_rc rc = quire_index_delete(&d->writer, e);
    if (!rc) rc = quire_index_add_free(&d->writer, &e->place);
    if (rc) return rc;
    h->live_bytes -= e->place.bytes < h->live_bytes ? e->place.bytes : h->live_bytes;
    h->free_bytes += e->place.bytes;
    h->n_objects -= h->n_objects > 0;
    h->n_pinned -= e->is_pinned && h->n_pinned;
    return QUIRE_INDEX_OK;
}

quire_index_rc quire_disk_evict(quire_disk *d, quire_index_head *h, uint64_t above, uint64_t newest_tick,
                                uint32_t max)
{
    for (uint32_t i = 0; i < max && quire_disk_taken(h) > above; i++) {
        quire_entry e;
        quire_index_rc rc = quire_index_oldest(&d->writer, &e);
        if (!rc && e.tick >= newest_tick) rc = QUIRE_INDEX_NONE;
        if (!rc) rc = quire_disk_delete(d, h, &e);
        if (rc) return rc;
        quire_count(&d->counters->evicted, 1);
    }
    return QUIRE_INDEX_OK;
}

quire_index_rc quire_disk_evict_tenant(quire_disk *d, quire_index_head *h, const uint8_t tenant[QUIRE_TENANT],
                                       uint64_t above, uint64_t newest_tick, uint32_t max)
{
    uint64_t bytes, until = 0;
    quire_entry e = {0};
    quire_index_rc rc = quire_index_tenant_bytes(&d->writer, tenant, &bytes);
    for (uint32_t i = 0; i < max && !rc && bytes > above; i++) {
        /* The same namespace again while its next one is the oldest of all. */
        rc = i ? quire_index_oldest_in(&d->writer, e.ns, &e) : QUIRE_INDEX_NONE;
        if (rc == QUIRE_INDEX_NONE || (!rc && e.tick > until))
            rc = quire_index_oldest_of(&d->writer, tenant, &e, &until);
        if (!rc && e.tick >= newest_tick) rc = QUIRE_INDEX_NONE;
        if (!rc) rc = quire_disk_delete(d, h, &e);
        if (rc) break;
        bytes -= e.place.bytes < bytes ? e.place.bytes : bytes;
        quire_count(&d->counters->evicted, 1);
    }
    return rc;
}

quire_index_rc quire_disk_give_back(quire_disk *d, quire_index_head *h, uint64_t bytes)
{
    for (uint64_t given = 0; given < bytes;) {
        quire_place p;
        quire_index_rc rc = quire_index_take_largest(&d->writer, &p);
        if (rc) return rc;
        quire_slab *slab = quire_slab_take(&d->slabs, p.slab);
        if (!slab && !quire_slab_is_gone(&d->slabs, p.slab)) return QUIRE_INDEX_FAILED; /* stays free */
        /* A slab that is gone takes no space; one that cannot be punched keeps it for good. */
        if (slab) (void)quire_slab_punch(slab, p.at, p.bytes);
        quire_slab_give(&d->slabs, slab);
        given += p.bytes;
        h->free_bytes -= p.bytes < h->free_bytes ? p.bytes : h->free_bytes;
    }
    return QUIRE_INDEX_OK;
}

/* ----------------------------------------------------------------- buffers */

bool quire_disk_take_buffer(quire_disk *d, quire_buffer *out)
{
    bool had = false;
    pthread_mutex_lock(&d->spare_lock);
    if (d->n_spare) {
        *out = d->spare[--d->n_spare];
        had = true;
    }
    pthread_mutex_unlock(&d->spare_lock);
    return had || quire_buffer_create(out, &d->allocator, QUIRE_READ_PART + 2 * QUIRE_BLOCK);
}

void quire_disk_give_buffer(quire_disk *d, quire_buffer *b)
{
    pthread_mutex_lock(&d->spare_lock);
    bool kept = d->n_spare < QUIRE_SPARE_BUFFERS;
    if (kept) d->spare[d->n_spare++] = *b;
    pthread_mutex_unlock(&d->spare_lock);
    if (!kept) quire_buffer_destroy(b, &d->allocator);
}
