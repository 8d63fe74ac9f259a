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

static void destroy_parts(quire_load *part);

static void destroy(quire_load *load)
{
    if (!load) return;
    quire_namespace *ns = load->ns;
    const quire_allocator *a = quire_namespace_allocator(ns);
    size_t n = load->n_pages, n_slots = quire_load_n_slots(load);
    quire_load *part = load->part;
    for (size_t i = 0; load->slots && i < n_slots; i++) {
        if (load->slots[i].page) quire_pool_drop_page(load->pool, load->slots[i].page);
        if (load->slots[i].raw) quire_mem_free(a, load->slots[i].raw, ns->raw_bytes);
    }
    quire_mem_free(a, load->keys, sizeof *load->keys * n);
    quire_mem_free(a, load->objects, sizeof *load->objects * n_slots);
    quire_mem_free(a, load->slots, sizeof *load->slots * n_slots);
    quire_mem_free(a, load->held, sizeof *load->held * (n + 1));
    quire_mem_free(a, load->rooms, sizeof *load->rooms * (n - load->first_page));
    quire_mem_free(a, load, sizeof *load);
    quire_namespace_leave(ns);
    destroy_parts(part);
}

/* One by one: there can be many. */
static void destroy_parts(quire_load *part)
{
    for (quire_load *next; part; part = next) {
        next = part->part;
        part->part = NULL;
        destroy(part);
    }
}

void quire_load_unref(quire_loader *l, quire_load *load)
{
    if (--load->refs) return;
    pthread_mutex_unlock(&l->lock); /* dropping pages takes the pool's lock; keep them apart */
    destroy(load);
    pthread_mutex_lock(&l->lock);
}

/* Of the first n_pages of the chain. */
static quire_status create(quire_load **out, const quire_chain *c, const quire_seq_options *ring,
                           uint32_t first_page, uint32_t n_pages, uint32_t timeout_ms)
{
    quire_namespace *ns = c->ns;
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
    load->n_pages = n_pages;
    size_t n = n_pages, n_slots = quire_load_n_slots(load);
    load->keys = (quire_key *)quire_mem_take(a, sizeof *load->keys * n);
    load->objects = (quire_key *)quire_mem_take(a, sizeof *load->objects * n_slots);
    load->slots = (quire_slot *)quire_mem_take(a, sizeof *load->slots * n_slots);
    load->held = (uint32_t *)quire_mem_take(a, sizeof *load->held * (n + 1));
    if (!load->keys || !load->objects || !load->slots || !load->held) {
        destroy(load);
        return QUIRE_ENOMEM;
    }
    if (n) memcpy(load->keys, c->keys, sizeof *load->keys * n);
    for (uint32_t g = 0; g < ns->n_groups && n; g++)
        memcpy(load->objects + g * n, quire_chain_group(c, g), sizeof *load->objects * n);
    *out = load;
    return QUIRE_OK;
}

/* Of a prompt that was not read yet. */
static quire_status create_of_prompt(quire_load **out, quire_namespace *ns, const quire_prompt *prompt,
                                     const quire_seq_options *ring, uint32_t first_page, uint32_t timeout_ms)
{
    quire_prompt own;
    quire_chain *c;
    quire_status status = quire_prompt_read(&own, prompt);
    if (!status && own.n_tokens / QUIRE_PAGE_TOKENS < first_page) status = QUIRE_EINVAL;
    if (!status) status = quire_chain_of_prompt(&c, ns, &own, own.n_tokens);
    if (status) return status;
    status = create(out, c, ring, first_page, c->n_pages, timeout_ms);
    quire_chain_destroy(c);
    return status;
}

static bool is_empty(const quire_load *load)
{
    for (; load; load = load->part)
        if (load->n_pages > load->first_page) return false;
    return true;
}

static void submit(quire_loader *l, quire_load *load)
{
    pthread_mutex_lock(&l->lock);
    if (!load->survey_only) QUIRE_COUNT(&l->store->counters, &load->ns->owner.counters, loads, 1);
    load->stage = l->store->disk ? QUIRE_STAGE_DISK : QUIRE_STAGE_REMOTE;
    if (is_empty(load)) {
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

/* Until it is done or the time is over; then no thread begins anything new for it, or uses its rooms. Returns the pages that
 * are there. */
static uint32_t wait_and_leave(quire_loader *l, quire_load *load)
{
    pthread_mutex_lock(&l->lock);
    while (load->stage != QUIRE_STAGE_DONE && quire_cond_wait_until(&l->progress, &l->lock, load->deadline)) {
    }
    bool late = load->stage != QUIRE_STAGE_DONE || load->cancelled;
    atomic_store(&load->ended, true);
    load->stage = QUIRE_STAGE_DONE;
    quire_load_advance(l, load); /* out of the list */
    uint32_t states = load->survey_only ? STATE(ON_DISK) | STATE(ON_REMOTE) : STATE(LOADED);
    uint32_t n = quire_load_choose(load, states);
    uint32_t n_missing = load->n_pages - n;
    if (n_missing > load->n_failed && !load->survey_only)
        QUIRE_COUNT(&l->store->counters, &load->ns->owner.counters,
                    misses[late ? QUIRE_MISS_DEADLINE : QUIRE_MISS_ABSENT], n_missing - load->n_failed);
    while (load->n_in_rooms) pthread_cond_wait(&l->progress, &l->lock);
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
    if (!out || !ns || !ns->plan || !seq) return QUIRE_EINVAL;
    uint32_t length = quire_seq_length(seq);
    if (length % QUIRE_PAGE_TOKENS) return QUIRE_EINVAL;
    quire_status status = quire_namespace_check_seq(ns, seq);
    if (status) return status;
    quire_seq_options ring = {.size = sizeof ring};
    (void)quire_seq_options_get(seq, &ring);
    quire_load *load;
    status = create_of_prompt(&load, ns, prompt, &ring, length / QUIRE_PAGE_TOKENS, timeout_ms);
    if (status) return status;
    load->seq = seq;
    load->pool = quire_seq_pool(seq);
    submit(&ns->store->loader, load);
    *out = load;
    return QUIRE_OK;
}

quire_status quire_load_begin_raw(quire_load **out, const quire_chain *c, uint32_t first_page,
                                  uint32_t n_pages, void *const *rooms, uint32_t timeout_ms)
{
    if (!out || !c || c->ns->plan || (n_pages && !rooms) || first_page > c->n_pages ||
        n_pages > c->n_pages - first_page)
        return QUIRE_EINVAL;
    for (uint32_t i = 0; i < n_pages; i++)
        if (!rooms[i]) return QUIRE_EINVAL;
    quire_load *load;
    quire_status status = create(&load, c, &c->ns->ring, first_page, first_page + n_pages, timeout_ms);
    if (status) return status;
    load->rooms = (void **)quire_mem_take(quire_namespace_allocator(c->ns), sizeof *rooms * n_pages);
    if (!load->rooms) {
        destroy(load);
        return QUIRE_ENOMEM;
    }
    if (n_pages) memcpy(load->rooms, rooms, sizeof *rooms * n_pages);
    submit(&c->ns->store->loader, load);
    *out = load;
    return QUIRE_OK;
}

void quire_load_cancel(quire_load *load)
{
    if (!load) return;
    quire_loader *l = &load->ns->store->loader;
    pthread_mutex_lock(&l->lock);
    if (load->stage != QUIRE_STAGE_DONE) {
        load->cancelled = true;
        atomic_store(&load->ended, true);
        load->stage = QUIRE_STAGE_DONE;
        quire_load_advance(l, load);
    }
    pthread_mutex_unlock(&l->lock);
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

static const void *raw_page(const quire_load *load, uint32_t page_index)
{
    return load->rooms ? load->rooms[page_index - load->first_page]
                       : quire_load_slot(load, 0, page_index)->raw;
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
            quire_blob *blob = load->pool ? quire_namespace_share(ns, load->pool, slot->page)
                                          : quire_namespace_copy(ns, raw_page(load, i));
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
        if (load->seq) status = quire_seq_adopt(load->seq, n, find_page, load);
        if (!status) keep(load, n);
        if (!status && load->seq) give_away(load, n);
    }
    if (n_tokens) *n_tokens = load->seq ? quire_seq_length(load->seq) : n * QUIRE_PAGE_TOKENS;
    leave(l, load);
    return status;
}

/* ------------------------------------------------------------------- look-up */

/* Ends the load, all of whose parts are surveys. */
static void look_up(quire_load *load, uint32_t timeout_ms, uint32_t *n_tokens)
{
    quire_store *store = load->ns->store;
    uint32_t states = STATE(ON_DISK) | STATE(ON_REMOTE);
    load->survey_only = true;
    if (timeout_ms && store->remote) {
        submit(&store->loader, load);
        (void)wait_and_leave(&store->loader, load);
    } else {
        quire_survey_now(store, load);
    }
    for (const quire_load *part = load; part; part = part->part)
        *n_tokens++ = quire_load_choose(part, states) * QUIRE_PAGE_TOKENS;
    leave(&store->loader, load);
}

quire_status quire_namespace_lookup(quire_namespace *ns, const quire_prompt *prompt, uint32_t timeout_ms,
                                    uint32_t *n_tokens)
{
    if (!ns || !n_tokens) return QUIRE_EINVAL;
    quire_load *load;
    quire_status status = create_of_prompt(&load, ns, prompt, &ns->ring, 0, timeout_ms);
    if (!status) look_up(load, timeout_ms, n_tokens);
    return status;
}

quire_status quire_namespace_lookup_many(quire_namespace *ns, const quire_prompt *prompts,
                                         size_t prompt_stride, uint32_t n, uint32_t timeout_ms,
                                         uint32_t *n_tokens)
{
    if (!ns || (n && (!prompts || !n_tokens))) return QUIRE_EINVAL;
    quire_load *first = NULL, **at = &first;
    quire_status status = QUIRE_OK;
    for (uint32_t i = 0; i < n && !status; i++) {
        quire_prompt one;
        status = quire_read_sized_element(&one, sizeof one, prompts, prompt_stride, i);
        if (!status) status = create_of_prompt(at, ns, &one, &ns->ring, 0, timeout_ms);
        if (!status) at = &(*at)->part;
    }
    if (status)
        destroy_parts(first);
    else if (first)
        look_up(first, timeout_ms, n_tokens);
    return status;
}

quire_status quire_chain_lookup_many(const quire_chain *const *chains, uint32_t n, uint32_t timeout_ms,
                                     uint32_t *n_tokens)
{
    if (n && (!chains || !n_tokens)) return QUIRE_EINVAL;
    for (uint32_t i = 0; i < n; i++)
        if (!chains[i] || chains[i]->ns->store != chains[0]->ns->store) return QUIRE_EINVAL;
    quire_load *first = NULL, **at = &first;
    quire_status status = QUIRE_OK;
    for (uint32_t i = 0; i < n && !status; i++) {
        status = create(at, chains[i], &chains[i]->ns->ring, 0, chains[i]->n_pages, timeout_ms);
        if (!status) at = &(*at)->part;
    }
    if (status)
        destroy_parts(first);
    else if (first)
        look_up(first, timeout_ms, n_tokens);
    return status;
}

quire_status quire_chain_stored(const quire_chain *chain, uint32_t timeout_ms, uint32_t *n_tokens)
{
    quire_load *load;
    if (!chain || !n_tokens) return QUIRE_EINVAL;
    quire_status status = create(&load, chain, &chain->ns->ring, 0, chain->n_pages, timeout_ms);
    if (status) return status;
    load->every_tier = chain->ns->store->disk && chain->ns->store->remote;
    look_up(load, timeout_ms, n_tokens);
    return QUIRE_OK;
}

quire_status quire_namespace_load_raw(quire_namespace *ns, const quire_prompt *prompt, uint32_t timeout_ms,
                                      quire_take_page_fn take, void *ctx, uint32_t *n_tokens)
{
    if (!ns || ns->plan || !take || !n_tokens) return QUIRE_EINVAL;
    quire_load *load;
    quire_status status = create_of_prompt(&load, ns, prompt, &ns->ring, 0, timeout_ms);
    if (status) return status;
    quire_loader *l = &ns->store->loader;
    submit(l, load);
    uint32_t n = wait_and_leave(l, load);
    for (uint32_t i = 0; i < n; i++) take(ctx, i, raw_page(load, i));
    if (n) keep(load, n);
    *n_tokens = n * QUIRE_PAGE_TOKENS;
    leave(l, load);
    return QUIRE_OK;
}
