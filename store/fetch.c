/* SPDX-License-Identifier: MIT */
/* store: the threads that load. */
#include "store/seal.h"
#include "store/store.h"

#define STATE(s) (1u << QUIRE_SLOT_##s)
#define HAD (STATE(ON_DISK) | STATE(ON_REMOTE) | STATE(UNDER_WAY) | STATE(LOADED))
#define MAX_BATCH 64u
#define LOT 8u /* pages of a load that are made resident together */

/* ---------------------------------------------------------------- the stages */

static void unlist(quire_loader *l, quire_load *load)
{
    if (!load->listed) return;
    quire_load **at = &l->loads;
    while (*at != load) at = &(*at)->next;
    *at = load->next;
    load->listed = false;
}

/* Marks the slots of the longest prefix that can be had; gives back pages that it does not use. */
static void choose(quire_load *load)
{
    uint32_t n = quire_load_choose(load, HAD);
    load->n_chosen = n;
    load->cursor[0] = load->cursor[1] = 0;
    for (uint32_t g = 0; g < load->ns->n_groups; g++) {
        uint32_t kept, first;
        quire_namespace_range(load->ns, &load->ring, g, n, &kept, &first);
        for (uint32_t i = load->first_page; i < load->n_pages; i++) {
            quire_slot *slot = quire_load_slot(load, g, i);
            slot->wanted = i < n && (i < kept || i >= first);
            if (slot->wanted || !slot->page) continue;
            quire_pool_drop_page(load->pool, slot->page); /* room for those that are wanted now */
            slot->page = NULL;
            slot->state = slot->from_remote ? QUIRE_SLOT_ON_REMOTE : QUIRE_SLOT_ON_DISK;
        }
    }
}

static bool is_complete(const quire_load *load)
{
    for (uint32_t g = 0; g < load->ns->n_groups; g++)
        for (uint32_t i = load->first_page; i < load->n_chosen; i++) {
            const quire_slot *slot = quire_load_slot(load, g, i);
            if (slot->wanted && slot->state != QUIRE_SLOT_LOADED) return false;
        }
    return true;
}

/* The next slot of a tier, page after page, so that the first pages get the pool's room; NULL: none left. */
static quire_slot *next_slot(quire_load *load, int tier, uint32_t *group, uint32_t *page)
{
    quire_slot_state state = tier == QUIRE_DISK ? QUIRE_SLOT_ON_DISK : QUIRE_SLOT_ON_REMOTE;
    uint32_t n_groups = load->ns->n_groups, end = load->n_chosen * n_groups;
    for (uint32_t *at = &load->cursor[tier]; *at < end; ++*at) {
        *page = *at / n_groups;
        *group = *at % n_groups;
        quire_slot *slot = quire_load_slot(load, *group, *page);
        if (slot->wanted && slot->state == state) return slot;
    }
    return NULL;
}

void quire_load_advance(quire_loader *l, quire_load *load)
{
    if (load->stage == QUIRE_STAGE_FETCH && !load->n_under_way) {
        uint32_t g, p;
        if (!next_slot(load, QUIRE_DISK, &g, &p) && !next_slot(load, QUIRE_REMOTE, &g, &p)) {
            if (!is_complete(load)) choose(load);
            if (is_complete(load)) load->stage = QUIRE_STAGE_DONE;
        }
    }
    if (load->stage == QUIRE_STAGE_FETCH) {
        pthread_cond_broadcast(&l->disk_work);
        pthread_cond_broadcast(&l->remote_work);
    } else if (load->stage == QUIRE_STAGE_REMOTE) {
        pthread_cond_broadcast(&l->remote_work);
    } else if (load->stage == QUIRE_STAGE_DONE) {
        if (load->listed && !load->survey_only)
            quire_time_since(&l->store->counters.times[QUIRE_TIMED_LOAD], load->began);
        unlist(l, load);
        pthread_cond_broadcast(&l->progress);
    }
}

void quire_load_begin_fetch(quire_loader *l, quire_load *load)
{
    choose(load);
    load->stage = QUIRE_STAGE_FETCH;
    quire_load_advance(l, load);
}

/* ------------------------------------------------------------------- slots */

/* Room for one page, and what it must be. */
typedef struct quire_fetch {
    quire_load *load;
    uint32_t group, page_index;
    quire_object_id id;
    quire_page *page;
    void *raw, *room;
    quire_miss miss;
    uint64_t asked; /* remote: when */
    quire_sealer *sealer;
    quire_loader *loader;
    bool done, is_resident, is_flight, is_in_room;
    struct quire_fetch *lot; /* those that are taken together */
    uint32_t n_lot;
    struct quire_fetch *next_flight;
    quire_slot *followers; /* of other loads, which want the same page */
} fetch;

static void begin_fetch(quire_loader *l, quire_load *load, fetch *f, uint32_t group, uint32_t page_index)
{
    size_t at = (size_t)group * load->n_pages + page_index;
    *f = (fetch){.load = load, .loader = l, .group = group, .page_index = page_index};
    f->id = quire_namespace_object(load->ns, load->keys, &load->objects[at], group, page_index);
    /* Here, under the lock: the first pages get the pool's room. */
    if (load->pool) (void)quire_pool_take_page(&f->page, load->pool, load->ns->plan, group, page_index);
    load->slots[at].state = QUIRE_SLOT_UNDER_WAY;
    load->n_under_way++;
    load->refs++;
}

/* The lots of a batch; each becomes resident when the first of its pages is needed. */
static void part_into_lots(fetch *f, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        f[i].lot = &f[i / LOT * LOT];
        f[i].n_lot = n - i / LOT * LOT < LOT ? n - i / LOT * LOT : LOT;
    }
}

static void make_resident(fetch *f)
{
    quire_page *pages[LOT];
    uint32_t n = 0;
    for (uint32_t i = 0; i < f->n_lot; i++) {
        if (f->lot[i].page && !f->lot[i].done) pages[n++] = f->lot[i].page;
        f->lot[i].is_resident = true;
    }
    quire_pool_populate(f->load->pool, pages, n);
}

/* The caller's rooms may be used until they are left; NULL: the caller does not wait any more. */
static void *enter_room(quire_loader *l, quire_load *load, uint32_t page_index)
{
    pthread_mutex_lock(&l->lock);
    bool may = !atomic_load(&load->ended);
    load->n_in_rooms += may;
    pthread_mutex_unlock(&l->lock);
    return may ? load->rooms[page_index - load->first_page] : NULL;
}

/* Under the lock. */
static void leave_room(quire_loader *l, quire_load *load)
{
    if (--load->n_in_rooms == 0 && atomic_load(&load->ended)) pthread_cond_broadcast(&l->progress);
}

static bool take_room(fetch *f)
{
    quire_load *load = f->load;
    if (load->rooms) {
        f->room = enter_room(f->loader, load, f->page_index);
        f->is_in_room = f->room != NULL;
        f->miss = f->room ? QUIRE_MISS_ABSENT : QUIRE_MISS_DEADLINE;
        return f->is_in_room;
    }
    if (load->pool) {
        if (!f->is_resident) make_resident(f);
        f->room = f->page ? quire_page_mutable_bytes(f->page) : NULL;
    } else {
        f->raw = quire_mem_take(quire_namespace_allocator(load->ns), load->ns->raw_bytes);
        f->room = f->raw;
    }
    f->miss = f->room ? QUIRE_MISS_ABSENT : load->pool ? QUIRE_MISS_ROOM : QUIRE_MISS_MEMORY;
    return f->room != NULL;
}

/* ------------------------------------------------------- one fetch for many loads */

/* A page that a load fetches from the remote is given to all loads that want it meanwhile. Under the lock. */
static fetch **flights_of(quire_loader *l, const quire_key *object)
{
    return &l->flights[object->byte[0] % QUIRE_FLIGHTS];
}

static void begin_flight(quire_loader *l, fetch *f)
{
    fetch **at = flights_of(l, &f->id.object);
    f->is_flight = true;
    f->next_flight = *at;
    *at = f;
}

static void add_follower(fetch *f, quire_load *load, quire_slot *slot)
{
    slot->follower = load;
    slot->next_follower = f->followers;
    f->followers = slot;
    slot->state = QUIRE_SLOT_UNDER_WAY;
    load->n_under_way++;
    load->refs++;
}

/* false: nobody fetches it. */
static bool follow(quire_loader *l, quire_load *load, quire_slot *slot, const quire_key *object)
{
    fetch *f = *flights_of(l, object);
    while (f && !quire_key_equal(&f->id.object, object)) f = f->next_flight;
    if (!f || f->load == load || atomic_load(&f->load->ended)) return false;
    add_follower(f, load, slot);
    return true;
}

/* Loads for which no thread had time yet get the page that has come, too. */
static void add_waiting(quire_loader *l, fetch *f)
{
    for (quire_load *load = l->loads; load; load = load->next) {
        if (load == f->load || load->stage != QUIRE_STAGE_FETCH || f->group >= load->ns->n_groups ||
            f->page_index >= load->n_chosen)
            continue;
        quire_slot *slot = quire_load_slot(load, f->group, f->page_index);
        const quire_key *object = &load->objects[(size_t)f->group * load->n_pages + f->page_index];
        if (slot->wanted && slot->state == QUIRE_SLOT_ON_REMOTE && quire_key_equal(object, &f->id.object))
            add_follower(f, load, slot);
    }
}

static quire_slot *end_flight(quire_loader *l, fetch *f)
{
    if (!f->is_flight) return NULL;
    fetch **at = flights_of(l, &f->id.object);
    while (*at != f) at = &(*at)->next_flight;
    *at = f->next_flight;
    f->is_flight = false;
    if (f->miss == QUIRE_MISS_NONE) add_waiting(l, f);
    quire_slot *followers = f->followers;
    f->followers = NULL;
    return followers;
}

/* The follower's own page: the same one, or a copy. Not under the lock; nobody else touches the slot. */
static bool hand_over(const fetch *f, quire_slot *slot)
{
    quire_load *load = slot->follower;
    quire_namespace *ns = load->ns;
    size_t bytes = (size_t)f->id.bytes;
    if (load->pool && load->pool == f->load->pool && ns == f->load->ns) {
        quire_page_share(f->page);
        slot->page = f->page;
    } else if (load->pool) {
        if (quire_pool_take_page(&slot->page, load->pool, ns->plan, f->group, f->page_index)) return false;
        memcpy(quire_page_mutable_bytes(slot->page), f->room, bytes);
    } else if (load->rooms) {
        void *room = enter_room(f->loader, load, f->page_index);
        if (!room) return false;
        memcpy(room, f->room, bytes);
        return true;
    } else {
        slot->raw = quire_mem_take(quire_namespace_allocator(ns), bytes);
        if (slot->raw) memcpy(slot->raw, f->room, bytes);
    }
    return slot->page || slot->raw;
}

/* The followers get the page too, or fetch it themselves. Not under the lock. */
static void serve_followers(quire_loader *l, const fetch *f, quire_slot *followers)
{
    bool came = f->miss == QUIRE_MISS_NONE;
    for (quire_slot *slot = followers, *next; slot; slot = next) {
        quire_load *load = slot->follower;
        bool has = came && hand_over(f, slot);
        pthread_mutex_lock(&l->lock);
        next = slot->next_follower;
        slot->next_follower = NULL;
        slot->follower = NULL;
        slot->from_remote = true;
        if (has && load->rooms) leave_room(l, load);
        slot->state = has ? QUIRE_SLOT_LOADED : QUIRE_SLOT_ON_REMOTE;
        load->cursor[QUIRE_REMOTE] = 0;
        load->n_under_way--;
        if (has) {
            QUIRE_COUNT(&l->store->counters, &load->ns->owner.counters, loaded[QUIRE_REMOTE], 1);
            quire_count(&l->store->counters.shared, 1);
        }
        quire_load_advance(l, load);
        quire_load_unref(l, load);
        pthread_mutex_unlock(&l->lock);
    }
}

/* Puts the outcome into the slot. Not under the lock. */
static void end_fetch(fetch *f, int tier)
{
    quire_load *load = f->load;
    quire_loader *l = f->loader;
    quire_counters *count = &l->store->counters;
    bool keep = f->miss == QUIRE_MISS_NONE;
    f->done = true;
    if (f->is_in_room && !keep) { /* before the log is told: the engine may wait for its rooms in there */
        pthread_mutex_lock(&l->lock);
        leave_room(l, load);
        pthread_mutex_unlock(&l->lock);
    }
    if (keep) {
        QUIRE_COUNT(count, &f->id.owner->counters, loaded[tier], 1);
        QUIRE_COUNT(count, &f->id.owner->counters, loaded_bytes[tier], f->id.bytes);
    } else if (quire_miss_is_damage(f->miss)) {
        quire_namespace_forget(load->ns, &f->id.object); /* a new one is to be saved */
        quire_store_discard(l->store, &f->id, &load->ns->seal_key, tier);
    } else if (f->miss == QUIRE_MISS_VERSION && tier == QUIRE_DISK) {
        quire_store_discard(l->store, &f->id, &load->ns->seal_key,
                            tier); /* stays, and is no longer counted as ours */
    }
    if (!keep) quire_store_tell_miss(l->store, f->miss, tier);
    pthread_mutex_lock(&l->lock);
    quire_slot *followers = end_flight(l, f);
    if (followers) {
        pthread_mutex_unlock(&l->lock);
        serve_followers(l, f, followers);
        pthread_mutex_lock(&l->lock);
    }
    quire_slot *slot = quire_load_slot(load, f->group, f->page_index);
    bool ended = atomic_load(&load->ended);
    if (f->is_in_room && keep) leave_room(l, load); /* followers have copied from it */
    load->n_under_way--;
    if (keep && !ended) {
        slot->page = f->page;
        slot->raw = f->raw;
        slot->from_remote = tier == QUIRE_REMOTE;
        slot->state = QUIRE_SLOT_LOADED;
        f->page = NULL;
        f->raw = NULL;
    } else if (!ended) {
        bool other = tier == QUIRE_DISK && l->store->remote && f->miss != QUIRE_MISS_ROOM &&
                     f->miss != QUIRE_MISS_MEMORY;
        slot->state =
            other ? QUIRE_SLOT_ON_REMOTE : QUIRE_SLOT_ABSENT; /* what the disk lost the remote may have */
        slot->from_remote = other;
        if (f->miss != QUIRE_MISS_ABSENT) {
            QUIRE_COUNT(count, &f->id.owner->counters, misses[f->miss], 1);
            load->n_failed += !other;
        }
    }
    quire_load_advance(l, load);
    pthread_mutex_unlock(&l->lock);
    if (f->page) quire_pool_drop_page(load->pool, f->page);
    if (f->raw) quire_mem_free(quire_namespace_allocator(load->ns), f->raw, load->ns->raw_bytes);
    pthread_mutex_lock(&l->lock);
    quire_load_unref(l, load);
    pthread_mutex_unlock(&l->lock);
}

/* The oldest load that has something to do for a tier. *slot stays NULL for a survey. */
static quire_load *find_work(quire_loader *l, int tier, quire_slot **slot, uint32_t *group, uint32_t *page)
{
    quire_load_stage survey = tier == QUIRE_DISK ? QUIRE_STAGE_DISK : QUIRE_STAGE_REMOTE;
    uint64_t now = quire_now();
    *slot = NULL;
    for (quire_load *load = l->loads; load; load = load->next) {
        if (now >= load->deadline) continue;
        if (load->stage == survey) return load;
        if (load->stage == QUIRE_STAGE_FETCH && (*slot = next_slot(load, tier, group, page))) return load;
    }
    return NULL;
}

/* -------------------------------------------------------------------- disk */

/* A thread's share of the slots of a load that are still to be fetched. */
static uint32_t share_of(const quire_load *load, quire_slot_state state, uint32_t n_threads)
{
    uint32_t n = 0, share;
    for (uint32_t g = 0; g < load->ns->n_groups; g++)
        for (uint32_t i = load->first_page; i < load->n_chosen; i++) {
            const quire_slot *slot = quire_load_slot(load, g, i);
            n += slot->wanted && slot->state == state;
        }
    share = (n + n_threads - 1) / n_threads;
    return share < MAX_BATCH ? share : MAX_BATCH;
}

/* A lot of slots of one load. */
static void fetch_disk(quire_loader *l, quire_load *load)
{
    fetch f[LOT];
    uint32_t n = 0, share = share_of(load, QUIRE_SLOT_ON_DISK, l->n_disk), group, page;
    while (n < LOT && n < share && next_slot(load, QUIRE_DISK, &group, &page))
        begin_fetch(l, load, &f[n++], group, page);
    pthread_mutex_unlock(&l->lock);
    part_into_lots(f, n);
    for (uint32_t i = 0; i < n; i++) {
        if (take_room(&f[i])) {
            uint64_t before = quire_now();
            f[i].miss = quire_disk_read(l->store->disk, &f[i].id, f[i].room, &load->ended);
            if (!f[i].miss) quire_time_since(&l->store->counters.times[QUIRE_TIMED_DISK_READ], before);
        }
        end_fetch(&f[i], QUIRE_DISK);
    }
    pthread_mutex_lock(&l->lock);
}

void *quire_load_from_disk(void *arg)
{
    quire_loader *l = (quire_loader *)arg;
    pthread_mutex_lock(&l->lock);
    while (!l->stop) {
        quire_slot *slot;
        uint32_t group, page;
        quire_load *load = find_work(l, QUIRE_DISK, &slot, &group, &page);
        if (!load)
            pthread_cond_wait(&l->disk_work, &l->lock);
        else if (!slot)
            quire_survey_disk(l, load);
        else
            fetch_disk(l, load);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* ------------------------------------------------------------------ remote */

static void on_value(void *ctx, const uint8_t *bytes, size_t n)
{
    fetch *f = (fetch *)ctx;
    if (take_room(f)) /* only now: the server sends on meanwhile */
        f->miss = quire_unseal(f->sealer, f->room, &f->load->ns->seal_key, &f->id, bytes, n, &f->load->ended);
    if (!f->miss) quire_time_since(&f->loader->store->counters.times[QUIRE_TIMED_REMOTE_READ], f->asked);
    end_fetch(f, QUIRE_REMOTE);
}

/* A run of slots of one load. The lane bounds how many bytes are in flight; a long run keeps the server busy. */
static void fetch_remote(quire_loader *l, quire_load *load, quire_lane *lane, quire_sealer *sealer)
{
    fetch f[MAX_BATCH];
    quire_call calls[MAX_BATCH];
    uint32_t n = 0, n_calls = 0, share = share_of(load, QUIRE_SLOT_ON_REMOTE, l->n_remote), group, page;
    quire_slot *slot;
    while (n < share && (slot = next_slot(load, QUIRE_REMOTE, &group, &page))) {
        if (follow(l, load, slot, &load->objects[(size_t)group * load->n_pages + page])) continue;
        begin_fetch(l, load, &f[n], group, page);
        begin_flight(l, &f[n]);
        f[n++].sealer = sealer;
    }
    if (!n) return; /* others fetch them all */
    pthread_mutex_unlock(&l->lock);
    part_into_lots(f, n);
    uint64_t asked = quire_now();
    for (uint32_t i = 0; i < n; i++) {
        f[i].asked = asked;
        if (load->pool && !f[i].page) {
            f[i].miss = QUIRE_MISS_ROOM;
            continue;
        }
        calls[n_calls++] = (quire_call){.verb = QUIRE_GET,
                                        .object = f[i].id.object,
                                        .bytes = quire_sealed_bytes(f[i].id.bytes),
                                        .on_value = on_value,
                                        .ctx = &f[i]};
    }
    quire_lane_run(lane, calls, n_calls, load->deadline);
    for (uint32_t i = 0; i < n_calls; i++) {
        fetch *one = (fetch *)calls[i].ctx;
        if (!one->done) one->miss = calls[i].miss ? calls[i].miss : QUIRE_MISS_ABSENT;
    }
    for (uint32_t i = 0; i < n; i++)
        if (!f[i].done) end_fetch(&f[i], QUIRE_REMOTE);
    pthread_mutex_lock(&l->lock);
}

void *quire_load_from_remote(void *arg)
{
    quire_loader *l = (quire_loader *)arg;
    quire_lane *lane = quire_lane_create(l->store->remote, &l->store->stop);
    quire_sealer *sealer = quire_sealer_create(&l->store->allocator);
    pthread_mutex_lock(&l->lock);
    while (!l->stop && lane && sealer) {
        quire_slot *slot;
        uint32_t group, page;
        quire_load *load = find_work(l, QUIRE_REMOTE, &slot, &group, &page);
        if (!load)
            pthread_cond_wait(&l->remote_work, &l->lock);
        else if (!slot)
            quire_survey_remote(l, load, lane);
        else
            fetch_remote(l, load, lane, sealer);
    }
    pthread_mutex_unlock(&l->lock);
    quire_sealer_destroy(sealer);
    quire_lane_destroy(lane);
    return NULL;
}
