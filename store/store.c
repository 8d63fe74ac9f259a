/* SPDX-License-Identifier: MIT */
/* store: open, close, administration. */
#include "store/store.h"

#include <stdio.h>

#define DEFAULT_QUEUE (256u << 20)
#define DEFAULT_THREADS 2u
#define MAX_THREADS 64u

bool quire_store_has(const quire_store *store, int tier)
{
    return tier == QUIRE_DISK ? store->disk != NULL : store->remote != NULL;
}

/* --------------------------------------------------------------------- open */

static quire_status open_tiers(quire_store *s, const quire_store_options *o)
{
    quire_status status = QUIRE_OK;
    if (o->directory)
        status = quire_disk_open(&s->disk, o->directory, o->disk_bytes, &s->allocator, &s->counters, &s->log,
                                 o->message, o->message_size);
    if (!status && o->directory && o->disk_cache_bytes) quire_disk_set_warm(s->disk, o->disk_cache_bytes);
    /* If it cannot be kept, it holds for this process; the log was told. */
    if (!status && s->disk && o->tenant_bytes) (void)quire_disk_set_quota(s->disk, NULL, o->tenant_bytes);
    if (!status && o->remote)
        status = quire_remote_create(&s->remote, o->remote, &s->allocator, &s->counters, &s->log, NULL,
                                     o->message, o->message_size);
    return status;
}

static quire_status start_threads(quire_store *s, const quire_store_options *o)
{
    static void *(*const run[2])(void *) = {quire_save_to_disk, quire_save_to_remote};
    size_t queue_bytes = o->queue_bytes ? o->queue_bytes : DEFAULT_QUEUE;
    s->queue_cap_bytes = queue_bytes;
    uint32_t n_disk = o->disk_threads ? o->disk_threads : DEFAULT_THREADS;
    uint32_t n_remote = o->remote && o->remote->connections ? o->remote->connections : DEFAULT_THREADS;
    for (int t = 0; t < 2; t++) {
        if (!quire_queue_init(&s->queue[t], &s->allocator, queue_bytes, &s->counters.queued_bytes[t]))
            return QUIRE_ENOMEM;
        if (!quire_store_has(s, t)) continue;
        if (!quire_thread_start(&s->saver[t], run[t], s)) return QUIRE_ENOMEM;
        s->has_saver[t] = true;
    }
    quire_status status = s->remote ? quire_keeper_start(s->remote) : QUIRE_OK;
    return status ? status
                  : quire_loader_start(&s->loader, s, s->disk ? n_disk : 0, s->remote ? n_remote : 0);
}

/* A sentence for the caller, unless a tier has written a better one. */
static quire_status tell(const quire_store_options *o, quire_status status, const char *sentence)
{
    if (o->message_size && !o->message[0]) (void)snprintf(o->message, o->message_size, "%s", sentence);
    return status;
}

/* What the caller's options point to, in structures of our own. *why: what is wrong with them. */
static quire_status read_options(quire_store_options *o, quire_store_remote *remote, quire_log *log,
                                 quire_allocator *a, const char **why)
{
    quire_status status = QUIRE_OK;
    if (o->remote) status = quire_read_sized(remote, sizeof *remote, o->remote);
    if (!status && o->log) status = quire_read_sized(log, sizeof *log, o->log);
    if (!status && o->allocator) status = quire_read_sized(a, sizeof *a, o->allocator);
    if (status) {
        *why = "a structure in the options has no size, or sets what this version does not know";
        return status;
    }
    o->remote = o->remote && remote->host ? remote : NULL;
    if (!o->directory && !o->remote)
        *why = "the options name neither a directory nor a remote";
    else if (o->disk_threads > MAX_THREADS || (o->remote && o->remote->connections > MAX_THREADS))
        *why = "a store has at most 64 threads for each tier";
    else if (!a->alloc != !a->free) /* one alone could not be used */
        *why = "the allocator has only one of alloc and free";
    else if (o->seal_disk > 1 || o->reserved)
        *why = "seal_disk is neither 0 nor 1, or reserved is not 0";
    return *why ? QUIRE_EINVAL : QUIRE_OK;
}

quire_status quire_store_open(quire_store **out, const quire_store_options *options)
{
    quire_store_options o;
    quire_store_remote remote;
    quire_log log = {.size = sizeof log};
    quire_allocator a = {.size = sizeof a};
    const char *why = NULL;
    if (!out) return QUIRE_EINVAL;
    quire_status status = quire_read_sized(&o, sizeof o, options);
    if (status) return status;
    if (!o.message) o.message_size = 0;
    if (o.message_size) o.message[0] = 0;
    status = read_options(&o, &remote, &log, &a, &why);
    if (status) return tell(&o, status, why);
    a = quire_mem_allocator(&a);
    quire_store *s = (quire_store *)quire_mem_take(&a, sizeof *s);
    if (!s) return tell(&o, QUIRE_ENOMEM, quire_status_text(QUIRE_ENOMEM));
    s->allocator = a;
    quire_log_open(&s->log, &log);
    s->promote = !o.no_promote;
    s->seal_disk = o.seal_disk != 0;
    s->disk_bytes_per_day = o.disk_bytes_per_day;
    status = open_tiers(s, &o);
    if (!status) status = start_threads(s, &o);
    if (status) {
        quire_store_close(s);
        return tell(&o, status, quire_status_text(status));
    }
    *out = s;
    return QUIRE_OK;
}

quire_status quire_store_flush(quire_store *s, uint32_t timeout_ms)
{
    if (!s) return QUIRE_EINVAL;
    uint64_t deadline = quire_deadline(timeout_ms);
    bool done = true;
    for (int t = 0; t < 2; t++)
        if (quire_store_has(s, t)) done &= quire_queue_flush(&s->queue[t], deadline);
    return done ? QUIRE_OK : QUIRE_EIO;
}

quire_status quire_store_stop_remote(quire_store *s)
{
    if (!s) return QUIRE_EINVAL;
    atomic_store(&s->stop, true); /* lanes and the thread that saves look at it; nothing of the disk does */
    return QUIRE_OK;
}

void quire_store_close(quire_store *s)
{
    if (!s) return;
    quire_allocator a = s->allocator;
    atomic_store(&s->stop, true);
    quire_loader_stop(&s->loader);
    for (int t = 0; t < 2; t++) {
        if (s->has_saver[t]) {
            quire_queue_close(&s->queue[t]);
            pthread_join(s->saver[t], NULL);
        }
        if (s->queue[t].allocator) quire_queue_fini(&s->queue[t]);
    }
    quire_disk_close(s->disk);
    quire_remote_destroy(s->remote);
    quire_log_close(&s->log);
    quire_mem_free(&a, s, sizeof *s);
}

/* --------------------------------------------------------------------- offer */

void quire_store_count_full(quire_store *s, quire_counters *own, int tier, uint64_t n)
{
    QUIRE_COUNT(&s->counters, own, dropped[tier], n);
    quire_count(&s->counters.full[tier], n);
}

bool quire_store_offer(quire_store *s, const quire_object_id *id, quire_blob *blob, uint32_t tiers)
{
    bool taken = false;
    blob->n = (size_t)id->bytes;
    for (int t = 0; t < 2; t++) {
        if (!(tiers >> t & 1) || !quire_store_has(s, t)) continue;
        quire_item *item = quire_item_create(&s->allocator, QUIRE_SAVE);
        if (item) {
            item->id = *id;
            item->blob = blob;
            atomic_fetch_add_explicit(&blob->refs, 1, memory_order_relaxed);
        }
        if (item && quire_queue_put(&s->queue[t], item))
            taken = true;
        else
            quire_store_count_full(s, &blob->ns->owner.counters, t, 1);
    }
    quire_blob_drop(blob);
    return taken;
}

void quire_store_discard(quire_store *s, const quire_object_id *id, const quire_key *seal_key, int tier)
{
    quire_item *item = quire_item_create(&s->allocator, QUIRE_REMOVE);
    if (!item) return;
    item->id = *id;
    item->id.owner = NULL; /* its namespace may be gone by then */
    item->seal_key = *seal_key;
    (void)quire_queue_put(&s->queue[tier], item);
}

/* ------------------------------------------------------------ administration */

quire_status quire_store_each(quire_store *s, uint32_t payloads, quire_object_fn fn, void *ctx)
{
    if (!s || !s->disk || !fn) return QUIRE_EINVAL;
    return quire_disk_each(s->disk, payloads != 0, fn, ctx);
}

quire_status quire_store_put_object(quire_store *s, const void *bytes, size_t n)
{
    const uint8_t *header = (const uint8_t *)bytes;
    quire_object_info info;
    quire_payload_hash hash;
    if (!s || !s->disk || !bytes) return QUIRE_EINVAL;
    quire_miss miss = quire_object_read_header(header, n, &info);
    if (miss) return miss == QUIRE_MISS_VERSION ? QUIRE_EVERSION : QUIRE_EFORMAT;
    quire_payload_begin(&hash);
    quire_payload_add(&hash, header + QUIRE_OBJECT_HEADER, n - QUIRE_OBJECT_HEADER);
    if (quire_object_check_payload(header, &hash)) return QUIRE_EFORMAT;
    quire_disk_put put = {.payload = header + QUIRE_OBJECT_HEADER, .header = header};
    put.id.bytes = info.payload_bytes;
    memcpy(put.id.root.byte, info.root, 32);
    memcpy(put.id.key.byte, info.key, 32);
    quire_status status = quire_chain_objects(&put.id.object, &put.id.key, 1, info.group);
    if (status) return status;
    return quire_disk_write(s->disk, &put, 1) ? QUIRE_OK : QUIRE_EIO;
}

/* Damaged objects, some at a time: they are removed between two walks. */
typedef struct damaged {
    quire_key objects[64];
    uint32_t n;
} damaged;

static quire_status note_damage(void *ctx, const quire_object_info *info, const void *bytes, size_t n)
{
    damaged *d = (damaged *)ctx;
    (void)bytes;
    (void)n;
    /* Not another version's objects, nor those that could not be read: no memory, no file descriptors, an error of the disk. */
    if (quire_miss_is_damage(info->damage)) memcpy(d->objects[d->n++].byte, info->object, 32);
    return d->n < 64 ? QUIRE_OK : QUIRE_EIO;
}

quire_status quire_store_gc(quire_store *s, uint64_t max_age_s, uint64_t max_bytes, uint64_t *n_removed)
{
    uint64_t n = 0, trimmed = 0, now = quire_now_us();
    if (!s || !s->disk) return QUIRE_EINVAL;
    for (damaged d = {.n = 64}; d.n == 64;) {
        d.n = 0;
        quire_status status = quire_disk_each(s->disk, true, note_damage, &d);
        if (status && d.n < 64) return status;
        uint32_t gone = quire_disk_remove(s->disk, d.objects, d.n);
        quire_count(&s->counters.removed[QUIRE_DISK], gone);
        n += gone;
        if (gone < d.n) break;
    }
    uint64_t before = max_age_s && max_age_s < now / 1000000 ? now - max_age_s * 1000000 : 0;
    quire_status status = quire_disk_trim(s->disk, before, max_bytes, &trimmed);
    if (n_removed) *n_removed = n + trimmed;
    return status;
}

/* -------------------------------------------------------------------- tenants */

#define REMOVE_FLUSH_MS 60000u

quire_status quire_store_usage_each(quire_store *s, quire_usage_fn fn, void *ctx)
{
    if (!s || !s->disk || !fn) return QUIRE_EINVAL;
    return quire_disk_usage_each(s->disk, fn, ctx);
}

quire_status quire_store_remove(quire_store *s, const quire_store_selection *selection, uint64_t *n_removed)
{
    quire_store_selection own;
    uint64_t n = 0;
    if (!s || !s->disk) return QUIRE_EINVAL;
    quire_status status = quire_read_sized(&own, sizeof own, selection);
    if (status) return status;
    if (!own.root && !own.tenant && !own.tenant_name && !own.model_name) return QUIRE_EINVAL;
    if (!quire_queue_flush(&s->queue[QUIRE_DISK], quire_deadline(REMOVE_FLUSH_MS))) return QUIRE_EIO;
    status = quire_disk_remove_selected(s->disk, &own, &n);
    quire_count(&s->n_removals, 1);
    if (n_removed) *n_removed = n;
    return status;
}

quire_status quire_store_set_quota(quire_store *s, const uint8_t tenant[16], uint64_t bytes)
{
    if (!s || !s->disk || !tenant) return QUIRE_EINVAL;
    return quire_disk_set_quota(s->disk, tenant, bytes);
}
