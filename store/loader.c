/* SPDX-License-Identifier: MIT */
/* store: loads, from the engine's side. */
#include "store/store.h"

#define STATE(s) (1u << QUIRE_SLOT_##s)

/* ------------------------------------------------------------------ threads */

quire_status quire_loader_start(quire_loader *l, quire_store *store, uint32_t n_disk, uint32_t n_remote)
{
    l->store = store;
    pthread_mutex_init(&l->lock, NULL);
    if (!quire_cond_init(&l->disk_work) || !quire_cond_init(&l->remote_work) ||
        !quire_cond_init(&l->progress))
        return QUIRE_ENOMEM;
    l->cap_threads = n_disk + n_remote;
    l->n_disk = n_disk;
    l->n_remote = n_remote;
    l->threads = (pthread_t *)quire_mem_take(&store->allocator, sizeof *l->threads * l->cap_threads);
    if (!l->threads) return QUIRE_ENOMEM;
    for (uint32_t i = 0; i < l->cap_threads; i++) {
        void *(*run)(void *) = i < n_disk ? quire_load_from_disk : quire_load_from_remote;
        if (!quire_thread_start(&l->threads[l->n_threads], run, l)) return QUIRE_ENOMEM;
        l->n_threads++;
    }
    return QUIRE_OK;
}

void quire_loader_stop(quire_loader *l)
{
    if (!l->store) return;
    pthread_mutex_lock(&l->lock);
    l->stop = true;
    pthread_cond_broadcast(&l->disk_work);
    pthread_cond_broadcast(&l->remote_work);
    pthread_mutex_unlock(&l->lock);
    for (uint32_t i = 0; i < l->n_threads; i++) pthread_join(l->threads[i], NULL);
    quire_mem_free(&l->store->allocator, l->threads, sizeof *l->threads * l->cap_threads);
    pthread_cond_destroy(&l->disk_work);
    pthread_cond_destroy(&l->remote_work);
    pthread_cond_destroy(&l->progress);
    pthread_mutex_destroy(&l->lock);
}

/* --------------------------------------------------------------- create, end */

static void destroy(quire_load *load)
{
    if (!load) return;
    quire_namespace *ns = load->ns;
    const quire_allocator *a = quire_namespace_allocator(ns);
    size_t n = load->n_pages, n_slots = n * ns->n_groups;
    for (size_t i = 0; load->slots && i < n_slots; i++) {
        if (load->slots[i].page) quire_pool_drop_page(load->pool, load->slots[i].page);
        if (load->slots[i].raw) quire_mem_free(a, load->slots[i].raw, ns->raw_bytes);
    }
    quire_mem_free(a, load->keys, sizeof *load->keys * n);
    quire_mem_free(a, load->objects, sizeof *load->objects * n_slots);
    quire_mem_free(a, load->slots, sizeof *load->slots * n_slots);
    quire_mem_free(a, load->held, sizeof *load->held * (n + 1));
    quire_mem_free(a, load, sizeof *load);
    quire_namespace_leave(ns);
}

void quire_load_unref(quire_loader *l, quire_load *load)
{
    if (--load->refs) return;
    pthread_mutex_unlock(&l->lock); /* dropping pages takes the pool's lock; keep them apart */
    destroy(load);
    pthread_mutex_lock(&l->lock);
}

static quire_status create(quire_load **out, quire_namespace *ns, const quire_prompt *prompt,
                           const quire_seq_options *ring, uint32_t first_page, uint32_t timeout_ms)
{
    const quire_allocator *a = quire_namespace_allocator(ns);
    quire_load *load = (quire_load *)quire_mem_take(a, sizeof *load);
    if (!load) return QUIRE_ENOMEM;
    quire_namespace_enter(ns);
    load->ns = ns;
    load->ring = *ring;
    load->began = quire_now();
    load->deadline = load->began + timeout_ms * QUIRE_MS;
    load->refs = 1;
    load->first_page = first_page;
    load->n_pages = prompt->n_tokens / QUIRE_PAGE_TOKENS;
    if (load->n_pages < first_page) load->n_pages = first_page;
    size_t n = load->n_pages, n_slots = n * ns->n_groups;
    load->keys = (quire_key *)quire_mem_take(a, sizeof *load->keys * n);
    load->objects = (quire_key *)quire_mem_take(a, sizeof *load->objects * n_slots);
    load->slots = (quire_slot *)quire_mem_take(a, sizeof *load->slots * n_slots);
    load->held = (uint32_t *)quire_mem_take(a, sizeof *load->held * (n + 1));
    quire_status status = load->keys && load->objects && load->slots && load->held ? QUIRE_OK : QUIRE_ENOMEM;
    uint32_t n_keys = prompt->n_tokens / QUIRE_PAGE_TOKENS;
    if (!status) status = quire_chain_keys(load->keys, &ns->root, prompt, n_keys);
    for (uint32_t g = 0; g < ns->n_groups && !status; g++)
        status = quire_chain_objects(load->objects + (size_t)g * n, load->keys, n_keys, g);
    if (status)
        destroy(load);
    else
        *out = load;
    return status;
}

static void submit(quire_loader *l, quire_load *load)
{
    pthread_mutex_lock(&l->lock);
    quire_count(&l->store->counters.loads, 1);
    load->stage = l->store->disk ? QUIRE_STAGE_DISK : QUIRE_STAGE_REMOTE;
    if (load->n_pages == load->first_page) {
        load->stage = QUIRE_STAGE_DONE;
    } else {
        quire_load **at = &l->loads;
        while (*at) at = &(*at)->next;
        *at = load;
        load->listed = true;
        pthread_cond_broadcast(l->store->disk ? &l->disk_work : &l->remote_work);
    }
    pthread_mutex_unlock(&l->lock);
}

/* Until it is done or the time is over; then no thread begins anything new for it. Returns the pages that are there. */
static uint32_t wait_and_leave(quire_loader *l, quire_load *load)
{
    pthread_mutex_lock(&l->lock);
    while (load->stage != QUIRE_STAGE_DONE && quire_cond_wait_until(&l->progress, &l->lock, load->deadline)) {
    }
    bool late = load->stage != QUIRE_STAGE_DONE;
    atomic_store(&load->ended, true);
    load->stage = QUIRE_STAGE_DONE;
    quire_load_advance(l, load); /* out of the list */
    uint32_t states = load->survey_only ? STATE(ON_DISK) | STATE(ON_REMOTE) : STATE(LOADED);
    uint32_t n = quire_load_choose(load, states);
    uint32_t n_missing = load->n_pages - n;
    if (n_missing > load->n_failed && !load->survey_only)
        quire_count(&l->store->counters.misses[late ? QUIRE_MISS_DEADLINE : QUIRE_MISS_ABSENT],
                    n_missing - load->n_failed);
    pthread_mutex_unlock(&l->lock);
    return n;
}

static void leave(quire_loader *l, quire_load *load)
{
    pthread_mutex_lock(&l->lock);
    quire_load_unref(l, load);
    pthread_mutex_unlock(&l->lock);
}

/* ----------------------------------------------------------------- interface */

quire_status quire_load_begin(quire_load **out, quire_namespace *ns, const quire_prompt *prompt,
                              quire_seq *seq, uint32_t timeout_ms)
{
    quire_prompt own;
    if (!out || !ns || !ns->plan || !seq) return QUIRE_EINVAL;
    quire_status status = quire_prompt_read(&own, prompt);
    if (status) return status;
    prompt = &own;
    uint32_t length = quire_seq_length(seq);
    if (length % QUIRE_PAGE_TOKENS || length > prompt->n_tokens) return QUIRE_EINVAL;
    status = quire_namespace_check_seq(ns, seq);
    if (status) return status;
    quire_seq_options ring = {.size = sizeof ring};
    (void)quire_seq_ring(seq, &ring);
    quire_load *load;
    status = create(&load, ns, prompt, &ring, length / QUIRE_PAGE_TOKENS, timeout_ms);
    if (status) return status;
    load->seq = seq;
    load->pool = quire_seq_pool(seq);
    submit(&ns->store->loader, load);
    *out = load;
    return QUIRE_OK;
}

int quire_load_is_done(const quire_load *load)
{
    quire_loader *l = &load->ns->store->loader;
    pthread_mutex_lock(&l->lock);
    bool done = load->stage == QUIRE_STAGE_DONE || quire_now() >= load->deadline;
    pthread_mutex_unlock(&l->lock);
    return done;
}

static quire_page *find_page(void *ctx, uint32_t group, uint32_t page_index)
{
    return quire_load_slot((const quire_load *)ctx, group, page_index)->page;
}

/* Its pages are the sequence's now. */
static void give_away(quire_load *load, uint32_t n)
{
    for (uint32_t g = 0; g < load->ns->n_groups; g++) {
        uint32_t kept, first;
        quire_namespace_range(load->ns, &load->ring, g, n, &kept, &first);
        for (uint32_t i = load->first_page; i < n; i++)
            if (i < kept || i >= first) quire_load_slot(load, g, i)->page = NULL;
    }
}

/* What came from the remote goes to the disk too; then all of the prefix was used just now. */
static void keep(quire_load *load, uint32_t n)
{
    quire_namespace *ns = load->ns;
    quire_store *store = ns->store;
    for (uint32_t g = 0; g < ns->n_groups; g++) {
        const quire_key *objects = load->objects + (size_t)g * load->n_pages;
        for (uint32_t i = load->first_page; i < n && store->disk && store->promote; i++) {
            const quire_slot *slot = quire_load_slot(load, g, i);
            if (slot->state != QUIRE_SLOT_LOADED || !slot->from_remote) continue;
            quire_object_id id = quire_namespace_object(ns, load->keys, &objects[i], g, i);
            quire_blob *blob = slot->raw ? quire_namespace_copy(ns, slot->raw)
                                         : quire_namespace_share(ns, load->pool, slot->page);
            if (blob) (void)quire_store_offer(store, &id, blob, 1u << QUIRE_DISK);
        }
        quire_namespace_touch(ns, objects, n);
    }
}

quire_status quire_load_end(quire_load *load, uint32_t *n_tokens)
{
    if (!load) return QUIRE_EINVAL;
    quire_loader *l = &load->ns->store->loader;
    uint32_t n = wait_and_leave(l, load);
    quire_status status = QUIRE_OK;
    if (n > load->first_page) {
        status = quire_seq_adopt(load->seq, n, find_page, load);
        if (!status) {
            keep(load, n);
            give_away(load, n);
        }
    }
    if (n_tokens) *n_tokens = quire_seq_length(load->seq);
    leave(l, load);
    return status;
}

quire_status quire_namespace_lookup(quire_namespace *ns, const quire_prompt *prompt, uint32_t timeout_ms,
                                    uint32_t *n_tokens)
{
    quire_prompt own;
    if (!ns || !n_tokens) return QUIRE_EINVAL;
    quire_status status = quire_prompt_read(&own, prompt);
    if (status) return status;
    prompt = &own;
    quire_load *load;
    status = create(&load, ns, prompt, &ns->ring, 0, timeout_ms);
    if (status) return status;
    quire_store *store = ns->store;
    load->survey_only = true;
    uint32_t n;
    if (timeout_ms && store->remote) {
        submit(&store->loader, load);
        n = wait_and_leave(&store->loader, load);
    } else {
        quire_load_survey_disk(store, load);
        n = quire_load_choose(load, STATE(ON_DISK));
    }
    *n_tokens = n * QUIRE_PAGE_TOKENS;
    leave(&store->loader, load);
    return QUIRE_OK;
}

quire_status quire_namespace_load_raw(quire_namespace *ns, const quire_prompt *prompt, uint32_t timeout_ms,
                                      quire_take_page_fn take, void *ctx, uint32_t *n_tokens)
{
    quire_prompt own;
    if (!ns || ns->plan || !take || !n_tokens) return QUIRE_EINVAL;
    quire_status status = quire_prompt_read(&own, prompt);
    if (status) return status;
    prompt = &own;
    quire_load *load;
    status = create(&load, ns, prompt, &ns->ring, 0, timeout_ms);
    if (status) return status;
    quire_loader *l = &ns->store->loader;
    submit(l, load);
    uint32_t n = wait_and_leave(l, load);
    for (uint32_t i = 0; i < n; i++) take(ctx, i, quire_load_slot(load, 0, i)->raw);
    if (n) keep(load, n);
    *n_tokens = n * QUIRE_PAGE_TOKENS;
    leave(l, load);
    return QUIRE_OK;
}
