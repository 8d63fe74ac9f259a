/* SPDX-License-Identifier: MIT */
/* store: namespaces. */
#include "store/namespace.h"

#include "store/identity.h"
#include "store/store.h"

#include <openssl/crypto.h>

/* ------------------------------------------------------------------ lifetime */

const quire_allocator *quire_namespace_allocator(const quire_namespace *ns)
{
    return &ns->store->allocator;
}

static quire_status create(quire_namespace **out, quire_store *store, const quire_identity *identity,
                           const quire_plan *plan, const quire_seq_options *ring, const quire_raw_layout *raw)
{
    quire_namespace *ns = (quire_namespace *)quire_mem_take(&store->allocator, sizeof *ns);
    if (!ns) return QUIRE_ENOMEM;
    ns->store = store;
    quire_status status = quire_identity_root(&ns->root, identity, plan, ring, raw);
    if (!status) status = quire_identity_seal_key(&ns->seal_key, &ns->root, identity->secret);
    if (!status) status = quire_identity_tenant(ns->tenant, identity->secret);
    if (!status) status = quire_identity_name(ns->owner.tenant_name, identity->tenant_name);
    if (!status) status = quire_identity_name(ns->owner.model_name, identity->model_name);
    ns->owner.seal_key = ns->seal_key;
    if (!status && !quire_cond_init(&ns->idle)) status = QUIRE_ENOMEM;
    if (status) {
        OPENSSL_cleanse(&ns->seal_key, sizeof ns->seal_key);
        OPENSSL_cleanse(&ns->owner.seal_key, sizeof ns->owner.seal_key);
        quire_mem_free(&store->allocator, ns, sizeof *ns);
        return status;
    }
    pthread_mutex_init(&ns->lock, NULL);
    if (ring) ns->ring = *ring;
    ns->ring.size = sizeof ns->ring;
    if (plan) {
        ns->plan = quire_plan_hold(plan);
        ns->n_groups = quire_plan_n_groups(plan);
    } else {
        ns->n_groups = 1;
        ns->raw_bytes = raw->page_bytes;
        ns->raw_fingerprint = XXH3_64bits(raw->text, strlen(raw->text));
    }
    *out = ns;
    return QUIRE_OK;
}

quire_status quire_namespace_create(quire_namespace **out, quire_store *store, const quire_identity *identity,
                                    const quire_plan *plan, const quire_seq_options *ring)
{
    quire_identity own;
    quire_seq_options own_ring = {.size = sizeof own_ring};
    uint32_t kept, first;
    if (!out || !store || !plan) return QUIRE_EINVAL;
    quire_status status = quire_read_sized(&own, sizeof own, identity);
    if (!status && ring) status = quire_read_sized(&own_ring, sizeof own_ring, ring);
    if (!status) status = quire_plan_page_range(plan, &own_ring, 0, 0, &kept, &first); /* checks the ring */
    return status ? status : create(out, store, &own, plan, ring ? &own_ring : NULL, NULL);
}

quire_status quire_namespace_create_raw(quire_namespace **out, quire_store *store,
                                        const quire_identity *identity, const char *layout, size_t page_bytes)
{
    quire_identity own;
    if (!out || !store || !layout || !*layout) return QUIRE_EINVAL;
    quire_status status = quire_read_sized(&own, sizeof own, identity);
    if (status) return status;
    if (!page_bytes || page_bytes > QUIRE_OBJECT_MAX) return QUIRE_EINVAL;
    quire_raw_layout raw = {layout, page_bytes};
    return create(out, store, &own, NULL, NULL, &raw);
}

void quire_namespace_destroy(quire_namespace *ns)
{
    if (!ns) return;
    const quire_allocator *a = quire_namespace_allocator(ns);
    pthread_mutex_lock(&ns->lock);
    while (ns->n_under_way) pthread_cond_wait(&ns->idle, &ns->lock);
    pthread_mutex_unlock(&ns->lock);
    pthread_cond_destroy(&ns->idle);
    pthread_mutex_destroy(&ns->lock);
    quire_plan_destroy(ns->plan);
    OPENSSL_cleanse(&ns->seal_key, sizeof ns->seal_key);
    OPENSSL_cleanse(&ns->owner.seal_key, sizeof ns->owner.seal_key);
    quire_mem_free(a, ns, sizeof *ns);
}

void quire_namespace_root(const quire_namespace *ns, uint8_t root[32])
{
    memcpy(root, ns->root.byte, 32);
}

void quire_namespace_enter(quire_namespace *ns)
{
    pthread_mutex_lock(&ns->lock);
    ns->n_under_way++;
    pthread_mutex_unlock(&ns->lock);
}

void quire_namespace_leave(quire_namespace *ns)
{
    pthread_mutex_lock(&ns->lock);
    if (--ns->n_under_way == 0) pthread_cond_broadcast(&ns->idle);
    pthread_mutex_unlock(&ns->lock);
}

/* --------------------------------------------------------------------- pages */

quire_page_info quire_namespace_page(const quire_namespace *ns, uint32_t group, uint32_t page_index)
{
    quire_page_info info = {
        .size = sizeof(quire_page_info), .bytes = ns->raw_bytes, .fingerprint = ns->raw_fingerprint};
    if (ns->plan) (void)quire_plan_page_info(ns->plan, group, page_index, &info);
    return info;
}

void quire_namespace_range(const quire_namespace *ns, const quire_seq_options *ring, uint32_t group,
                           uint32_t n_pages, uint32_t *kept, uint32_t *first)
{
    *kept = *first = 0;
    if (ns->plan) (void)quire_plan_page_range(ns->plan, ring, group, n_pages, kept, first);
}

quire_object_id quire_namespace_object(quire_namespace *ns, const quire_key *keys, const quire_key *object,
                                       uint32_t group, uint32_t page_index)
{
    quire_page_info info = quire_namespace_page(ns, group, page_index);
    quire_object_id id = {.root = ns->root,
                          .key = keys[page_index],
                          .parent = page_index ? keys[page_index - 1] : ns->root,
                          .object = *object,
                          .group = group,
                          .page_index = page_index,
                          .bytes = info.bytes,
                          .fingerprint = info.fingerprint,
                          .owner = &ns->owner};
    memcpy(id.tenant, ns->tenant, sizeof id.tenant);
    return id;
}

quire_status quire_namespace_check_seq(const quire_namespace *ns, const quire_seq *seq)
{
    quire_seq_options ring = {.size = sizeof ring};
    (void)quire_seq_ring(seq, &ring);
    if (!ns->plan) return QUIRE_EINVAL;
    if (quire_plan_fingerprint(quire_seq_plan(seq)) != quire_plan_fingerprint(ns->plan))
        return QUIRE_EMISMATCH;
    return ring.max_tokens == ns->ring.max_tokens && ring.sinks == ns->ring.sinks ? QUIRE_OK
                                                                                  : QUIRE_EMISMATCH;
}

/* --------------------------------------------------------------------- blobs */

static quire_blob *new_blob(quire_namespace *ns, const void *bytes, size_t n)
{
    quire_blob *blob = (quire_blob *)quire_mem_take(quire_namespace_allocator(ns), sizeof *blob);
    if (!blob) return NULL;
    atomic_init(&blob->refs, 1);
    blob->bytes = bytes;
    blob->n = n;
    blob->ns = ns;
    quire_namespace_enter(ns);
    return blob;
}

quire_blob *quire_namespace_share(quire_namespace *ns, quire_pool *pool, quire_page *page)
{
    quire_blob *blob = new_blob(ns, quire_page_bytes(page), 0);
    if (!blob) return NULL;
    quire_page_share(page);
    blob->pool = pool;
    blob->page = page;
    return blob;
}

quire_blob *quire_namespace_copy(quire_namespace *ns, const void *bytes)
{
    const quire_allocator *a = quire_namespace_allocator(ns);
    void *copy = quire_mem_take(a, ns->raw_bytes);
    quire_blob *blob = copy ? new_blob(ns, copy, ns->raw_bytes) : NULL;
    if (!blob)
        quire_mem_free(a, copy, ns->raw_bytes);
    else
        memcpy(copy, bytes, ns->raw_bytes);
    return blob;
}

/* ---------------------------------------------------------------------- save */

/* Whether it was handed in a short while ago; if not, it counts as handed in now. */
static bool is_recent(quire_namespace *ns, const quire_key *object)
{
    uint64_t mark = quire_load64(object->byte) | 1;
    uint32_t at = (uint32_t)(mark >> 1) % QUIRE_RECENT, now = (uint32_t)(quire_now() / QUIRE_SECOND);
    pthread_mutex_lock(&ns->lock);
    uint64_t n_removals = quire_counted(&ns->store->n_removals);
    if (n_removals != ns->n_removals) memset(ns->recent, 0, sizeof ns->recent);
    ns->n_removals = n_removals;
    bool recent = ns->recent[at] == mark && now - ns->recent_time[at] < QUIRE_RECENT_SECONDS;
    ns->recent[at] = mark;
    if (!recent) ns->recent_time[at] = now;
    pthread_mutex_unlock(&ns->lock);
    return recent;
}

void quire_namespace_forget(quire_namespace *ns, const quire_key *object)
{
    uint64_t mark = quire_load64(object->byte) | 1;
    uint32_t at = (uint32_t)(mark >> 1) % QUIRE_RECENT;
    pthread_mutex_lock(&ns->lock);
    if (ns->recent[at] == mark) ns->recent[at] = 0;
    pthread_mutex_unlock(&ns->lock);
}

static uint32_t all_tiers(const quire_store *store)
{
    return (store->disk ? 1u << QUIRE_DISK : 0) | (store->remote ? 1u << QUIRE_REMOTE : 0);
}

/* Keys of the first n pages of a prompt, and of their objects in one group after the other. */
typedef struct chain {
    quire_key *keys, *objects;
    uint32_t n_pages, n_groups;
} chain;

static void chain_free(const quire_namespace *ns, chain *c)
{
    const quire_allocator *a = quire_namespace_allocator(ns);
    quire_mem_free(a, c->keys, sizeof *c->keys * c->n_pages);
    quire_mem_free(a, c->objects, sizeof *c->objects * c->n_pages * c->n_groups);
}

static quire_status chain_make(const quire_namespace *ns, const quire_prompt *prompt, uint32_t n_pages,
                               chain *c)
{
    const quire_allocator *a = quire_namespace_allocator(ns);
    *c = (chain){.n_pages = n_pages, .n_groups = ns->n_groups};
    c->keys = (quire_key *)quire_mem_take(a, sizeof *c->keys * n_pages);
    c->objects = (quire_key *)quire_mem_take(a, sizeof *c->objects * n_pages * ns->n_groups);
    quire_status status = c->keys && c->objects ? QUIRE_OK : QUIRE_ENOMEM;
    if (!status) status = quire_chain_keys(c->keys, &ns->root, prompt, n_pages);
    for (uint32_t g = 0; g < ns->n_groups && !status; g++)
        status = quire_chain_objects(c->objects + (size_t)g * n_pages, c->keys, n_pages, g);
    if (status) chain_free(ns, c);
    return status;
}

static void touch(quire_namespace *ns, const quire_key *objects, uint32_t n, int tier)
{
    const quire_allocator *a = quire_namespace_allocator(ns);
    quire_item *item = quire_item_create(a, QUIRE_TOUCH);
    if (!item) return;
    item->objects = (quire_key *)quire_mem_take(a, sizeof *objects * n);
    if (!item->objects) {
        quire_item_destroy(a, item);
        return;
    }
    memcpy(item->objects, objects, sizeof *objects * n);
    item->n_objects = n;
    (void)quire_queue_put(&ns->store->queue[tier], item);
}

void quire_namespace_touch(quire_namespace *ns, const quire_key *objects, uint32_t n)
{
    const quire_store *store = ns->store;
    if (store->disk && n) touch(ns, objects, n, QUIRE_DISK);
    if (store->remote && n && quire_remote_ttl(store->remote)) touch(ns, objects, n, QUIRE_REMOTE);
}

/* One page; false: it was handed in before, or could not be. */
static bool save_page(quire_namespace *ns, const chain *c, uint32_t group, uint32_t i, const quire_seq *seq,
                      const void *raw)
{
    const quire_key *object = &c->objects[(size_t)group * c->n_pages + i];
    quire_page *page = NULL;
    quire_blob *blob;
    if (is_recent(ns, object)) return false;
    if (seq) {
        (void)quire_seq_hold_page(&page, seq, group, i);
        blob = page ? quire_namespace_share(ns, quire_seq_pool(seq), page) : NULL;
        if (page) quire_pool_drop_page(quire_seq_pool(seq), page); /* the blob owns it */
    } else {
        blob = quire_namespace_copy(ns, raw);
    }
    quire_object_id id = quire_namespace_object(ns, c->keys, object, group, i);
    if (blob) blob->n = (size_t)id.bytes;
    bool taken = blob && quire_store_offer(ns->store, &id, blob, all_tiers(ns->store));
    if (!taken) quire_namespace_forget(ns, object);
    return taken;
}

quire_status quire_namespace_save(quire_namespace *ns, const quire_prompt *prompt, const quire_seq *seq)
{
    quire_prompt own;
    if (!ns || !seq) return QUIRE_EINVAL;
    quire_status status = quire_prompt_read(&own, prompt);
    if (status) return status;
    prompt = &own;
    status = quire_namespace_check_seq(ns, seq);
    uint32_t n = quire_seq_length(seq) / QUIRE_PAGE_TOKENS;
    if (status) return status;
    if (prompt->n_tokens < n * QUIRE_PAGE_TOKENS) return QUIRE_EINVAL;
    if (!n) return QUIRE_OK;
    chain c;
    status = chain_make(ns, prompt, n, &c);
    if (status) return status;
    for (uint32_t g = 0; g < ns->n_groups; g++) {
        bool any = false;
        for (uint32_t i = 0; i < n; i++) any |= save_page(ns, &c, g, i, seq, NULL);
        if (any) quire_namespace_touch(ns, c.objects + (size_t)g * n, n);
    }
    chain_free(ns, &c);
    return QUIRE_OK;
}

quire_status quire_namespace_save_raw(quire_namespace *ns, const quire_prompt *prompt, uint32_t page_index,
                                      const void *bytes)
{
    quire_prompt own;
    if (!ns || ns->plan || !bytes) return QUIRE_EINVAL;
    quire_status status = quire_prompt_read(&own, prompt);
    if (status) return status;
    prompt = &own;
    if (page_index >= prompt->n_tokens / QUIRE_PAGE_TOKENS) return QUIRE_EINVAL;
    chain c;
    status = chain_make(ns, prompt, page_index + 1, &c);
    if (status) return status;
    if (save_page(ns, &c, 0, page_index, NULL, bytes)) quire_namespace_touch(ns, c.objects, page_index + 1);
    chain_free(ns, &c);
    return QUIRE_OK;
}

/* ----------------------------------------------------------------------- pin */

quire_status quire_namespace_pin(quire_namespace *ns, const quire_prompt *prompt, uint32_t pinned,
                                 uint32_t timeout_ms, uint32_t *n_tokens)
{
    quire_prompt own;
    if (!ns || !ns->store->disk) return QUIRE_EINVAL;
    quire_status status = quire_prompt_read(&own, prompt);
    if (status) return status;
    prompt = &own;
    if (!quire_queue_flush(&ns->store->queue[QUIRE_DISK], quire_deadline(timeout_ms))) return QUIRE_EIO;
    uint32_t held = 0;
    status = quire_namespace_lookup(ns, prompt, 0, &held);
    if (status) return status;
    chain c;
    status = chain_make(ns, prompt, prompt->n_tokens / QUIRE_PAGE_TOKENS, &c);
    if (status) return status;
    /* Objects beyond the prefix that can be loaded are pinned or freed too if they are there: a window's, for one. */
    status = quire_disk_pin(ns->store->disk, c.objects, c.n_pages * c.n_groups, pinned != 0);
    chain_free(ns, &c);
    if (!status && n_tokens) *n_tokens = held;
    return status;
}

/* ------------------------------------------------------- statistics and removal */

quire_status quire_namespace_stats_get(quire_namespace *ns, quire_namespace_stats *out)
{
    if (!ns) return QUIRE_EINVAL;
    const quire_counters *c = &ns->owner.counters;
    quire_namespace_stats s = {.size = sizeof s, .loads = quire_counted(&c->loads)};
    for (int i = 0; i < QUIRE_MISS_COUNT; i++) s.misses[i] = quire_counted(&c->misses[i]);
    for (int t = 0; t < 2; t++) {
        s.loaded[t] = quire_counted(&c->loaded[t]);
        s.loaded_bytes[t] = quire_counted(&c->loaded_bytes[t]);
        s.saved[t] = quire_counted(&c->saved[t]);
        s.saved_bytes[t] = quire_counted(&c->saved_bytes[t]);
        s.known[t] = quire_counted(&c->known[t]);
        s.dropped[t] = quire_counted(&c->dropped[t]);
        s.failed[t] = quire_counted(&c->failed[t]);
    }
    if (ns->store->disk) quire_disk_root_usage(ns->store->disk, &ns->root, &s.disk_objects, &s.disk_bytes);
    return quire_write_sized(out, &s, sizeof s);
}

quire_status quire_namespace_remove(quire_namespace *ns, uint64_t *n_removed)
{
    if (!ns) return QUIRE_EINVAL;
    quire_store_selection s = {.size = sizeof s, .root = ns->root.byte};
    return quire_store_remove(ns->store, &s, n_removed);
}
