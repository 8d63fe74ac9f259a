/* SPDX-License-Identifier: MIT */
/* store: namespaces. */
#include "store/namespace.h"

#include "store/identity.h"
#include "store/store.h"

#include <assert.h>
#include <openssl/crypto.h>

#define TOUCH_SECONDS 2u

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
    ns->owner.seals_disk = store->seal_disk;
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
    (void)quire_seq_options_get(seq, &ring);
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
    void *copy = quire_mem_take_room(a, ns->raw_bytes);
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

static void unmark(quire_namespace *ns, const quire_key *object)
{
    uint64_t mark = quire_load64(object->byte) | 1;
    uint32_t at = (uint32_t)(mark >> 1) % QUIRE_RECENT;
    pthread_mutex_lock(&ns->lock);
    if (ns->recent[at] == mark) ns->recent[at] = 0;
    pthread_mutex_unlock(&ns->lock);
}

void quire_namespace_forget(quire_namespace *ns, const quire_key *object)
{
    unmark(ns, object);
    atomic_fetch_add(&ns->n_forgotten, 1);
}

static uint32_t all_tiers(const quire_store *store)
{
    return (store->disk ? 1u << QUIRE_DISK : 0) | (store->remote ? 1u << QUIRE_REMOTE : 0);
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

void quire_chain_touch(quire_chain *c, bool now)
{
    uint32_t n = c->n_untouched;
    if (!n || (!now && quire_now() - c->touched < TOUCH_SECONDS * QUIRE_SECOND)) return;
    for (uint32_t g = 0; g < c->n_groups; g++) quire_namespace_touch(c->ns, quire_chain_group(c, g), n);
    c->n_untouched = 0;
    c->touched = quire_now();
}

/* false: no memory, or all queues are full. */
static bool offer(quire_chain *c, uint32_t group, uint32_t i, quire_blob *blob)
{
    quire_namespace *ns = c->ns;
    const quire_key *object = &quire_chain_group(c, group)[i];
    quire_object_id id = quire_namespace_object(ns, c->keys, object, group, i);
    if (blob) blob->n = (size_t)id.bytes;
    if (blob && quire_store_offer(ns->store, &id, blob, all_tiers(ns->store))) {
        if (c->n_untouched <= i) c->n_untouched = i + 1;
        return true;
    }
    unmark(ns, object);
    return false;
}

/* When a page was handed in by the chain; 0: it was not, or long ago. */
static uint32_t *taken_at(quire_chain *c, uint32_t group, uint32_t i)
{
    uint32_t *taken = &c->taken[(size_t)group * c->cap_pages + i];
    uint32_t now = (uint32_t)(quire_now() / QUIRE_SECOND) + 1;
    if (now - *taken >= QUIRE_RECENT_SECONDS) *taken = 0;
    return taken;
}

/* Hands a page in unless that was done a short while ago; false: it was not taken. */
static bool save_page(quire_chain *c, uint32_t group, uint32_t i, quire_page *page, quire_pool *pool,
                      const void *raw)
{
    uint32_t *taken = taken_at(c, group, i);
    bool done = is_recent(c->ns, &quire_chain_group(c, group)[i]) ||
                offer(c, group, i,
                      page ? quire_namespace_share(c->ns, pool, page) : quire_namespace_copy(c->ns, raw));
    *taken = done ? (uint32_t)(quire_now() / QUIRE_SECOND) + 1 : 0;
    return done;
}

/* An object that this chain handed in was found damaged, or was removed: what was taken must be asked of the namespace again. */
static void look_for_forgotten(quire_chain *c)
{
    uint32_t n = atomic_load(&c->ns->n_forgotten) + (uint32_t)quire_counted(&c->ns->store->n_removals);
    if (n == c->n_forgotten) return;
    c->n_forgotten = n;
    if (c->taken) memset(c->taken, 0, sizeof *c->taken * c->cap_pages * c->n_groups);
}

quire_status quire_chain_save(quire_chain *c, const quire_seq *seq, uint32_t *n_dropped)
{
    if (!c || !seq) return QUIRE_EINVAL;
    quire_status status = quire_namespace_check_seq(c->ns, seq);
    uint32_t n = quire_seq_length(seq) / QUIRE_PAGE_TOKENS, dropped = 0;
    if (status) return status;
    if (c->n_pages < n) return QUIRE_EINVAL;
    quire_pool *pool = quire_seq_pool(seq);
    look_for_forgotten(c);
    for (uint32_t g = 0; g < c->n_groups; g++) {
        for (uint32_t i = 0; i < n; i++) {
            quire_page *page = NULL;
            if (*taken_at(c, g, i) || quire_seq_hold_page(&page, seq, g, i)) continue;
            dropped += !save_page(c, g, i, page, pool, NULL);
            quire_pool_drop_page(pool, page); /* the blob has its own hold */
        }
    }
    if (c->n_untouched) c->n_untouched = n;
    quire_chain_touch(c, true);
    if (n_dropped) *n_dropped = dropped;
    return QUIRE_OK;
}

quire_status quire_chain_save_raw(quire_chain *c, uint32_t first_page, uint32_t n_pages,
                                  const void *const *pages, uint32_t *n_dropped)
{
    if (!c || c->ns->plan || (n_pages && !pages) || first_page > c->n_pages ||
        n_pages > c->n_pages - first_page)
        return QUIRE_EINVAL;
    for (uint32_t i = 0; i < n_pages; i++)
        if (!pages[i]) return QUIRE_EINVAL;
    quire_store *store = c->ns->store;
    uint32_t done = 0;
    look_for_forgotten(c);
    for (; done < n_pages; done++) {
        uint32_t i = first_page + done;
        if (!*taken_at(c, 0, i) && !save_page(c, 0, i, NULL, NULL, pages[done])) break;
    }
    for (int t = 0; t < 2; t++) /* the first of those that are left was counted by the store */
        if (quire_store_has(store, t) && n_pages - done > 1)
            quire_store_count_full(store, &c->ns->owner.counters, t, n_pages - done - 1);
    /* Recency of a chain is that of all its pages: once at its end, not once for each page. */
    quire_chain_touch(c, c->n_untouched == c->n_pages);
    if (n_dropped) *n_dropped = n_pages - done;
    return QUIRE_OK;
}

quire_status quire_namespace_save(quire_namespace *ns, const quire_prompt *prompt, const quire_seq *seq)
{
    quire_prompt own;
    if (!ns || !seq) return QUIRE_EINVAL;
    quire_status status = quire_prompt_read(&own, prompt);
    if (!status) status = quire_namespace_check_seq(ns, seq);
    if (status) return status;
    uint32_t n_tokens = quire_seq_length(seq) / QUIRE_PAGE_TOKENS * QUIRE_PAGE_TOKENS;
    if (own.n_tokens < n_tokens) return QUIRE_EINVAL;
    quire_chain *c;
    status = quire_chain_of_prompt(&c, ns, &own, n_tokens);
    if (status) return status;
    status = quire_chain_save(c, seq, NULL);
    quire_chain_destroy(c);
    return status;
}

quire_status quire_namespace_save_raw(quire_namespace *ns, const quire_prompt *prompt, uint32_t page_index,
                                      const void *bytes)
{
    quire_prompt own;
    if (!ns || ns->plan || !bytes) return QUIRE_EINVAL;
    quire_status status = quire_prompt_read(&own, prompt);
    if (status) return status;
    if (page_index >= own.n_tokens / QUIRE_PAGE_TOKENS) return QUIRE_EINVAL;
    quire_chain *c;
    status = quire_chain_of_prompt(&c, ns, &own, (page_index + 1) * QUIRE_PAGE_TOKENS);
    if (status) return status;
    status = quire_chain_save_raw(c, page_index, 1, &bytes, NULL);
    quire_chain_destroy(c);
    return status;
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
    quire_chain *c;
    status = quire_chain_of_prompt(&c, ns, prompt, prompt->n_tokens);
    if (status) return status;
    /* Objects beyond the prefix that can be loaded are pinned or freed too if they are there: a window's, for one. */
    assert(c->cap_pages == c->n_pages); /* made in one go: there is no spare room between groups */
    status = quire_disk_pin(ns->store->disk, c->objects, c->n_pages * c->n_groups, pinned != 0);
    quire_chain_destroy(c);
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
