/* SPDX-License-Identifier: MIT */
/* store: records in the page cache. */
#define _GNU_SOURCE
#include "store/warm.h"

#include <unistd.h>

#define MAX_ENTRIES 16384u
#define ENTRY_BYTES \
    (64u            \
     << 10) /* one entry for so many bytes of the bound: small records need more than there are, and are kept less */
#define DEFAULT_BOUND (1ull << 30)

enum { ONCE, KEPT };

uint64_t quire_warm_default(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), bytes = sysconf(_SC_PAGESIZE);
    uint64_t memory = pages > 0 && bytes > 0 ? (uint64_t)pages * (uint64_t)bytes : 0;
    return memory / 16 < DEFAULT_BOUND ? memory / 16 : DEFAULT_BOUND;
}

void quire_warm_init(quire_warm *w, quire_slabs *slabs, uint64_t bound)
{
    *w = (quire_warm){.slabs = slabs, .bound = bound};
    pthread_mutex_init(&w->lock, NULL);
}

static bool take_memory(quire_warm *w)
{
    const quire_allocator *a = &w->slabs->allocator;
    if (w->entries) return true;
    uint64_t n = 2 + 2 * (w->bound / ENTRY_BYTES);
    w->n_entries = n < MAX_ENTRIES ? (uint32_t)n : MAX_ENTRIES;
    w->entries = (quire_warm_entry *)quire_mem_take(a, sizeof *w->entries * w->n_entries);
    w->buckets = (uint32_t *)quire_mem_take(a, sizeof *w->buckets * w->n_entries);
    if (!w->entries || !w->buckets) {
        quire_mem_free(a, w->entries, sizeof *w->entries * w->n_entries);
        quire_mem_free(a, w->buckets, sizeof *w->buckets * w->n_entries);
        w->entries = NULL;
        w->buckets = NULL;
        w->bound = 0; /* goes without */
        return false;
    }
    for (uint32_t i = 1; i < w->n_entries; i++)
        w->entries[i].next_in_bucket = i + 1 < w->n_entries ? i + 1 : 0;
    w->unused = 1;
    return true;
}

/* -------------------------------------------------------------------- lists */

static uint32_t *bucket_of(const quire_warm *w, const quire_key *object)
{
    return &w->buckets[quire_load64(object->byte) % w->n_entries]; /* keys are hashes */
}

static uint32_t find(const quire_warm *w, const quire_key *object)
{
    uint32_t i = w->entries ? *bucket_of(w, object) : 0;
    while (i && !quire_key_equal(&w->entries[i].object, object)) i = w->entries[i].next_in_bucket;
    return i;
}

static bool is_same(const quire_place *a, const quire_place *b)
{
    return a->slab == b->slab && a->at == b->at && a->bytes == b->bytes;
}

static void put_first(quire_warm *w, uint32_t i, uint32_t which)
{
    quire_warm_list *list = &w->list[which];
    quire_warm_entry *e = &w->entries[i];
    e->is_kept = which;
    e->newer = 0;
    e->older = list->newest;
    if (list->newest) w->entries[list->newest].newer = i;
    list->newest = i;
    if (!list->oldest) list->oldest = i;
    list->bytes += e->place.bytes;
}

static void unlist(quire_warm *w, uint32_t i)
{
    const quire_warm_entry *e = &w->entries[i];
    quire_warm_list *list = &w->list[e->is_kept];
    if (e->newer)
        w->entries[e->newer].older = e->older;
    else
        list->newest = e->older;
    if (e->older)
        w->entries[e->older].newer = e->newer;
    else
        list->oldest = e->newer;
    list->bytes -= e->place.bytes;
}

static uint32_t take_entry(quire_warm *w, const quire_key *object, const quire_place *place)
{
    uint32_t i = w->unused, *bucket = bucket_of(w, object);
    w->unused = w->entries[i].next_in_bucket;
    w->entries[i] = (quire_warm_entry){.object = *object, .place = *place, .next_in_bucket = *bucket};
    *bucket = i;
    return i;
}

static void give_entry(quire_warm *w, uint32_t i)
{
    uint32_t *at = bucket_of(w, &w->entries[i].object);
    while (*at != i) at = &w->entries[*at].next_in_bucket;
    *at = w->entries[i].next_in_bucket;
    w->entries[i].next_in_bucket = w->unused;
    w->unused = i;
}

/* ------------------------------------------------------------------- bounds */

static void forget(quire_warm *w, const quire_place *place)
{
    quire_slab *slab = quire_slab_take(w->slabs, place->slab);
    if (slab) quire_slab_uncache(slab, place->at, place->bytes);
    quire_slab_give(w->slabs, slab);
}

/* Under the lock, which it leaves meanwhile if the page cache is concerned. */
static void drop(quire_warm *w, uint32_t i)
{
    quire_place place = w->entries[i].place;
    bool is_kept = w->entries[i].is_kept;
    unlist(w, i);
    give_entry(w, i);
    if (!is_kept) return;
    pthread_mutex_unlock(&w->lock);
    forget(w, &place);
    pthread_mutex_lock(&w->lock);
}

bool quire_warm_find(quire_warm *w, const quire_key *object, quire_place *out)
{
    pthread_mutex_lock(&w->lock);
    uint32_t i = find(w, object);
    bool is_kept = i && w->entries[i].is_kept;
    if (is_kept) *out = w->entries[i].place;
    pthread_mutex_unlock(&w->lock);
    return is_kept;
}

bool quire_warm_begin(quire_warm *w, const quire_key *object, const quire_place *place)
{
    pthread_mutex_lock(&w->lock);
    if (place->bytes > w->bound || !take_memory(w)) {
        pthread_mutex_unlock(&w->lock);
        return false;
    }
    uint32_t i = find(w, object), which = ONCE;
    if (i && !is_same(&w->entries[i].place, place)) { /* evicted and saved again */
        drop(w, i);
        i = find(w, object);
    }
    if (i && is_same(&w->entries[i].place, place)) {
        unlist(w, i);
        which = KEPT;
    } else if (!i && w->unused) {
        i = take_entry(w, object, place);
    } else {
        i = 0;
    }
    if (i) put_first(w, i, which);
    for (uint32_t k = 0; k < 2; k++)
        while (w->list[k].bytes > w->bound) drop(w, w->list[k].oldest);
    if (!w->unused) drop(w, w->list[w->list[ONCE].oldest ? ONCE : KEPT].oldest); /* for the next one */
    pthread_mutex_unlock(&w->lock);
    return which == KEPT;
}

void quire_warm_end(quire_warm *w, const quire_key *object, const quire_place *place, bool failed)
{
    pthread_mutex_lock(&w->lock);
    uint32_t i = find(w, object);
    bool is_listed = i && w->entries[i].is_kept && is_same(&w->entries[i].place, place);
    if (is_listed && failed) drop(w, i);
    pthread_mutex_unlock(&w->lock);
    if (!is_listed)
        forget(w, place); /* whoever took it out meanwhile could not know of what was read later */
}

void quire_warm_fini(quire_warm *w)
{
    const quire_allocator *a = &w->slabs->allocator;
    pthread_mutex_lock(&w->lock);
    while (w->list[KEPT].oldest) drop(w, w->list[KEPT].oldest);
    pthread_mutex_unlock(&w->lock);
    quire_mem_free(a, w->entries, sizeof *w->entries * w->n_entries);
    quire_mem_free(a, w->buckets, sizeof *w->buckets * w->n_entries);
    pthread_mutex_destroy(&w->lock);
}
