/* SPDX-License-Identifier: MIT */
/* store: the disk tier: what tenants have, and its removal. */
#define _GNU_SOURCE
#include "store/disk_inside.h"
#include "store/os.h"

#include <unistd.h>

#define REMOVE_MAX 256u /* objects or runs in one transaction: others want to write, too */
#define PATIENCE (60 * QUIRE_SECOND)
#define POLL_US 20000u

/* ---------------------------------------------------------------------- usage */

enum { STEP = 32 };

/* Some namespaces after one; last_used may be NULL. */
static quire_index_rc next_rows(quire_disk *d, int64_t after, quire_namespace_row *rows, uint64_t *last_used,
                                uint32_t *n)
{
    quire_index_rc rc;
    quire_index *ix = quire_disk_begin_read(d, &rc);
    *n = 0;
    if (!ix) return rc;
    rc = quire_index_next_namespaces(ix, after, rows, STEP, n);
    if (rc == QUIRE_INDEX_NONE) rc = QUIRE_INDEX_OK;
    for (uint32_t i = 0; i < *n && !rc && last_used; i++)
        rc = quire_index_last_used(ix, rows[i].id, &last_used[i]);
    return quire_disk_end_read(d, ix, rc);
}

quire_status quire_disk_usage_each(quire_disk *d, quire_usage_fn fn, void *ctx)
{
    quire_namespace_row rows[STEP];
    uint64_t last_used[STEP];
    int64_t after = INT64_MIN;
    for (uint32_t n = STEP; n == STEP;) {
        if (next_rows(d, after, rows, last_used, &n)) return QUIRE_EIO;
        for (uint32_t i = 0; i < n; i++) {
            const quire_namespace_row *r = &rows[i];
            if (!r->n) continue;
            uint64_t quota = quire_disk_quota(d, r->tenant);
            quire_namespace_usage u = {.size = sizeof u,
                                       .objects = r->n,
                                       .bytes = r->bytes,
                                       .pinned = r->n_pinned,
                                       .quota_bytes = quota == QUIRE_NO_QUOTA ? 0 : quota,
                                       .last_used_us = last_used[i]};
            memcpy(u.root, r->root.byte, 32);
            memcpy(u.tenant, r->tenant, QUIRE_TENANT);
            memcpy(u.tenant_name, r->tenant_name, QUIRE_NAME);
            memcpy(u.model_name, r->model_name, QUIRE_NAME);
            if (fn(ctx, &u)) return QUIRE_EIO;
        }
        if (n) after = rows[n - 1].id;
    }
    return QUIRE_OK;
}

void quire_disk_root_usage(quire_disk *d, const quire_key *root, uint64_t *n, uint64_t *bytes)
{
    quire_index_rc rc;
    quire_index *ix = quire_disk_begin_read(d, &rc);
    *n = *bytes = 0;
    if (!ix) return;
    rc = quire_index_root_usage(ix, root, n, bytes);
    if (quire_disk_end_read(d, ix, rc)) *n = *bytes = 0;
}

/* -------------------------------------------------------------------- removal */

/*
 * Rows go first, then all free space is given back: it may hold what was evicted earlier, which a scan of the slabs would bring
 * back. A scan that is under way must end first, because only then the index knows of everything. If a new index is
 * begun meanwhile, all is done again.
 */
typedef enum outcome { DONE, AGAIN, FAILED } outcome;

typedef struct removal {
    quire_disk *disk;
    const quire_store_selection *selection;
    uint64_t n_removed;
    uint64_t deadline; /* moves on with every step that succeeds */
    uint64_t dev, ino; /* of the index; 0: none yet */
} removal;

/* OK: a transaction of a whole index. AGAIN: there is none now, but there may be soon. */
static outcome begin(removal *r, quire_index_head *h)
{
    quire_index_rc rc = quire_disk_begin_write(r->disk, h);
    if (rc == QUIRE_INDEX_FOREIGN) return FAILED;
    if (rc) return AGAIN;
    const quire_index *ix = &r->disk->writer;
    bool is_same = !r->ino || (r->ino == ix->ino && r->dev == ix->dev);
    r->dev = ix->dev;
    r->ino = ix->ino;
    if (is_same && h->scan_slab >= h->scan_end) return DONE;
    (void)quire_disk_end_write(r->disk, h, QUIRE_INDEX_OK);
    return AGAIN;
}

static outcome end(removal *r, const quire_index_head *h, quire_index_rc rc)
{
    if (quire_disk_end_write(r->disk, h, rc)) return AGAIN;
    r->deadline = quire_now() + PATIENCE;
    return DONE;
}

static bool is_selected(const quire_store_selection *s, const quire_namespace_row *r)
{
    return (!s->root || !memcmp(s->root, r->root.byte, 32)) &&
           (!s->tenant || !memcmp(s->tenant, r->tenant, QUIRE_TENANT)) &&
           (!s->tenant_name || !strcmp(s->tenant_name, r->tenant_name)) &&
           (!s->model_name || !strcmp(s->model_name, r->model_name));
}

/* Within the transaction: another process may have removed it, and its number may be another one's now. */
static quire_index_rc find_again(const removal *r, int64_t ns)
{
    quire_namespace_row row;
    uint32_t n;
    quire_index_rc rc = quire_index_next_namespaces(&r->disk->writer, ns - 1, &row, 1, &n);
    if (rc) return rc;
    return n && row.id == ns && is_selected(r->selection, &row) ? QUIRE_INDEX_OK : QUIRE_INDEX_NONE;
}

static outcome remove_namespace(removal *r, int64_t ns)
{
    quire_entry entries[REMOVE_MAX];
    for (uint32_t n = REMOVE_MAX; n == REMOVE_MAX;) {
        quire_index_head h;
        outcome o = begin(r, &h);
        if (o) return o;
        quire_index_rc rc = find_again(r, ns);
        if (rc == QUIRE_INDEX_NONE) return end(r, &h, QUIRE_INDEX_OK);
        if (!rc) rc = quire_index_in_namespace(&r->disk->writer, ns, entries, REMOVE_MAX, &n);
        if (rc == QUIRE_INDEX_NONE) rc = QUIRE_INDEX_OK;
        for (uint32_t i = 0; i < n && !rc; i++) rc = quire_disk_delete(r->disk, &h, &entries[i]);
        if (!rc && n < REMOVE_MAX) rc = quire_index_delete_namespace(&r->disk->writer, ns);
        o = end(r, &h, rc);
        if (o) return o;
        r->n_removed += n;
    }
    return DONE;
}

static outcome remove_rows(removal *r)
{
    quire_namespace_row rows[STEP];
    int64_t after = INT64_MIN;
    for (uint32_t n = STEP; n == STEP;) {
        if (next_rows(r->disk, after, rows, NULL, &n)) return AGAIN;
        for (uint32_t i = 0; i < n; i++) {
            outcome o = is_selected(r->selection, &rows[i]) ? remove_namespace(r, rows[i].id) : DONE;
            if (o) return o;
        }
        if (n) after = rows[n - 1].id;
    }
    return DONE;
}

/* All free runs, in the order of slabs: what others free meanwhile behind that place is not waited for. */
static outcome give_back(removal *r)
{
    uint32_t slab_at = 0;
    uint64_t at = 0;
    for (bool more = true; more;) {
        quire_index_head h;
        outcome o = begin(r, &h);
        if (o) return o;
        quire_index_rc rc = QUIRE_INDEX_OK;
        bool punched = true;
        for (uint32_t i = 0; i < REMOVE_MAX && more && !rc && punched; i++) {
            quire_place p;
            rc = quire_index_take_free_from(&r->disk->writer, slab_at, at, &p);
            more = !rc;
            if (rc == QUIRE_INDEX_NONE) rc = QUIRE_INDEX_OK;
            if (rc || !more) break;
            quire_slab *slab = quire_slab_take(&r->disk->slabs, p.slab);
            punched =
                slab ? quire_slab_punch(slab, p.at, p.bytes) : quire_slab_is_gone(&r->disk->slabs, p.slab);
            quire_slab_give(&r->disk->slabs, slab);
            h.free_bytes -= p.bytes < h.free_bytes ? p.bytes : h.free_bytes;
            slab_at = p.slab;
            at = p.at + p.bytes;
        }
        if (!punched) {
            (void)end(r, &h, QUIRE_INDEX_FAILED); /* they stay free */
            return FAILED;
        }
        o = end(r, &h, rc);
        if (o) return o;
    }
    return DONE;
}

typedef struct leftovers {
    quire_disk *disk;
    const quire_index_head *head;
    bool is_synced;
} leftovers;

/* What a writer that died has left: behind its last transaction, or a slab that no transaction knows of. */
static void clean_slab(void *ctx, uint32_t id, uint64_t disk_bytes)
{
    leftovers *l = (leftovers *)ctx;
    uint8_t key[QUIRE_DIRECTORY_KEY];
    (void)disk_bytes;
    if (quire_slab_read_head(&l->disk->slabs, id, key) == QUIRE_MISS_VERSION) return;
    if (id >= l->head->next_slab) quire_slab_remove(&l->disk->slabs, id);
    if (id != l->head->slab) return;
    quire_slab *slab = quire_slab_take(&l->disk->slabs, id);
    if (slab) quire_slab_cut(slab, l->head->end);
    quire_slab_give(&l->disk->slabs, slab);
}

/* Holes shall be there after a power failure, too. */
static void sync_slab(void *ctx, uint32_t id, uint64_t disk_bytes)
{
    leftovers *l = (leftovers *)ctx;
    (void)disk_bytes;
    quire_slab *slab = quire_slab_take(&l->disk->slabs, id);
    l->is_synced &= slab ? quire_os_sync(slab->fd) : quire_slab_is_gone(&l->disk->slabs, id);
    quire_slab_give(&l->disk->slabs, slab);
}

static outcome clean_up(removal *r)
{
    quire_index_head h;
    outcome o = begin(r, &h);
    if (o) return o;
    leftovers l = {.disk = r->disk, .head = &h, .is_synced = true};
    l.is_synced = quire_slab_each(&r->disk->slabs, clean_slab, &l);
    o = end(r, &h, QUIRE_INDEX_OK);
    if (o) return o;
    l.is_synced &= quire_slab_each(&r->disk->slabs, sync_slab, &l);
    return l.is_synced ? DONE : FAILED;
}

quire_status quire_disk_remove_selected(quire_disk *d, const quire_store_selection *s, uint64_t *n_removed)
{
    removal r = {.disk = d, .selection = s, .deadline = quire_now() + PATIENCE};
    quire_index_head h = {0};
    outcome o;
    for (uint64_t slab = 0, at = 0;;) {
        o = begin(&r, &h);
        if (!o) o = end(&r, &h, QUIRE_INDEX_OK);
        if (!o) o = remove_rows(&r);
        if (!o) o = give_back(&r);
        if (!o) o = clean_up(&r);
        if (o != AGAIN) break;
        /* The index is damaged, and the keeper makes a new one; or a scan is under way: as long as it takes. */
        if (h.scan_slab != slab || h.scan_at != at) r.deadline = quire_now() + PATIENCE;
        slab = h.scan_slab;
        at = h.scan_at;
        if (quire_now() >= r.deadline) break;
        (void)usleep(POLL_US);
    }
    quire_disk_wake_keeper(d);
    *n_removed = r.n_removed;
    return o ? QUIRE_EIO : QUIRE_OK;
}
