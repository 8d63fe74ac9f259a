/* SPDX-License-Identifier: MIT */
/* page: the page memory of a pool. Address space is reserved once per page size, made accessible in large chunks, and touched
 * page by page.
 * Released pages stay resident for reuse until another size needs their share of the budget. */
#define _GNU_SOURCE
#include "page/page.h"

#include "core/reserve.h"
#include "page/huge.h"

#include <assert.h>
#include <sys/mman.h>
#include <unistd.h>

/* Released pages stay resident up to this share of the budget, and a few in any case. */
#define KEPT_SHARE 32u
#define KEPT_PAGES 4u

/* What becomes accessible at once: a call of the system per chunk, and at most so much memory that counts as used without
 * being it. */
#define OPEN_MEMORY ((size_t)64 << 20)
#define OPEN_PAGES ((size_t)1 << 20) /* of descriptors */

quire_status quire_pages_init(quire_pages *pages, const quire_allocator *allocator, size_t budget)
{
    memset(pages, 0, sizeof *pages);
    pages->allocator = *allocator;
    pages->budget = budget;
    long os_page = sysconf(_SC_PAGESIZE);
    pages->os_page = os_page > 0 ? (size_t)os_page : 65536;
    if (quire_memory_is_default(allocator) && quire_huge_is_allowed(QUIRE_HUGE_SETTINGS))
        pages->collapse = quire_memory_collapse;
    return pthread_mutex_init(&pages->lock, NULL) ? QUIRE_ENOMEM : QUIRE_OK;
}

static void class_destroy(const quire_pages *pages, quire_page_class *c)
{
    const quire_allocator *a = &pages->allocator;
    quire_regions_destroy(pages, c);
    if (c->memory) a->release(a->ctx, c->memory, c->stride * c->n_slots);
    if (c->page) a->release(a->ctx, c->page, sizeof *c->page * c->n_slots);
    quire_free(a, c, sizeof *c);
}

void quire_pages_fini(quire_pages *pages)
{
    while (pages->classes) {
        quire_page_class *c = pages->classes;
        pages->classes = c->next;
        class_destroy(pages, c);
    }
    pthread_mutex_destroy(&pages->lock);
}

static quire_page_class *class_of(const quire_pages *pages, size_t bytes)
{
    for (quire_page_class *c = pages->classes; c; c = c->next)
        if (c->bytes == bytes) return c;
    return NULL;
}

static quire_page_class *class_create(quire_pages *pages, size_t bytes)
{
    const quire_allocator *a = &pages->allocator;
    size_t stride = quire_page_stride(bytes);
    size_t n = pages->budget / stride;
    quire_page_class *c = (quire_page_class *)quire_alloc(a, sizeof *c);
    if (!c) return NULL;
    c->pages = pages;
    c->bytes = bytes;
    c->stride = stride;
    c->n_slots = n > UINT32_MAX ? UINT32_MAX : (uint32_t)n;
    if (!c->n_slots) return c; /* the budget holds no such page: every take fails */
    c->memory = (uint8_t *)a->reserve(a->ctx, stride * c->n_slots);
    c->page = c->memory ? (quire_page *)a->reserve(a->ctx, sizeof *c->page * c->n_slots) : NULL;
    if (!c->page) {
        class_destroy(pages, c);
        return NULL;
    }
    quire_regions_create(pages, c);
    return c;
}

quire_status quire_pages_add(quire_pages *pages, const quire_page_layout *layout)
{
    quire_status status = QUIRE_OK;
    pthread_mutex_lock(&pages->lock);
    if (!class_of(pages, layout->bytes)) {
        quire_page_class *c = class_create(pages, layout->bytes);
        if (c) {
            c->next = pages->classes;
            pages->classes = c;
        } else {
            status = QUIRE_ENOMEM;
        }
    }
    pthread_mutex_unlock(&pages->lock);
    return status;
}

static void give_back(quire_pages *pages, quire_page_class *c)
{
    quire_page *page = c->free;
    c->free = page->next_free;
    quire_regions_discard(pages, page);
    pages->resident -= c->stride;
    pages->kept -= c->stride;
    page->next_free = c->clean;
    c->clean = page;
}

/* Give back the memory of released pages until `bytes` more fit in the budget. */
static void make_room(quire_pages *pages, size_t bytes)
{
    for (quire_page_class *c = pages->classes; c; c = c->next)
        while (c->free && pages->resident + bytes > pages->budget) give_back(pages, c);
}

/* Makes the first `need` bytes of a reservation of `total` accessible; *open already are. */
static bool open_bytes(const quire_pages *pages, void *base, size_t *open, size_t need, size_t total,
                       size_t chunk)
{
    if (need <= *open) return true;
    size_t mask = pages->os_page - 1, to = total - *open < chunk ? total : *open + chunk;
    uint8_t *from = (uint8_t *)base + *open;
    if (to < need) to = need;
    to = (to + mask) & ~mask;
    if (!quire_memory_open(&pages->allocator, from, to - *open)) {
        to = (need + mask) & ~mask; /* the system may still have that */
        if (!quire_memory_open(&pages->allocator, from, to - *open)) return false;
    }
    *open = to;
    return true;
}

/* Memory for n more pages than there were, and for those that are promised. */
static bool open_slots(const quire_pages *pages, quire_page_class *c, uint32_t n)
{
    uint64_t want = (uint64_t)c->n_used_slots + c->n_promised + n;
    size_t slots = want < c->n_slots ? (size_t)want : c->n_slots;
    return open_bytes(pages, c->memory, &c->open_memory, c->stride * slots, c->stride * c->n_slots,
                      OPEN_MEMORY) &&
           open_bytes(pages, c->page, &c->open_page, sizeof *c->page * slots, sizeof *c->page * c->n_slots,
                      OPEN_PAGES);
}

static quire_page *take_locked(quire_pages *pages, quire_page_class *c)
{
    if (c->stride > pages->budget - pages->used) return NULL;
    quire_page *page = c->free;
    bool was_resident = page;
    if (page) {
        c->free = page->next_free;
        pages->kept -= c->stride;
    } else {
        make_room(pages, c->stride);
        page = c->clean;
        if (page) {
            c->clean = page->next_free;
        } else {
            if (c->n_used_slots == c->n_slots || !open_slots(pages, c, 1)) return NULL;
            uint32_t slot = c->n_used_slots++;
            page = &c->page[slot];
            page->data = c->memory + c->stride * slot;
            page->size_class = c;
        }
        pages->resident += c->stride;
        if (pages->resident > pages->peak) pages->peak = pages->resident;
    }
    pages->used += c->stride;
    pages->n_pages++;
    quire_regions_take(pages, page, was_resident);
    return page;
}

/* A page with one reference whose memory may hold anything if it is dirty. */
static quire_page *take(quire_pages *pages, const quire_page_layout *layout, bool is_copy, size_t *promise)
{
    pthread_mutex_lock(&pages->lock);
    quire_page_class *c = class_of(pages, layout->bytes);
    if (c && promise) {
        assert(*promise >= c->stride);
        *promise -= c->stride;
        pages->used -= c->stride;
        if (c->n_promised) c->n_promised--;
    }
    quire_page *page = c ? take_locked(pages, c) : NULL;
    if (page && is_copy) pages->n_copies++;
    pthread_mutex_unlock(&pages->lock);
    if (!page) return NULL;
    page->next_free = NULL;
    page->layout = layout;
    atomic_store_explicit(&page->refs, 1, memory_order_relaxed);
    return page;
}

quire_page *quire_page_take_uncleared(quire_pages *pages, const quire_page_layout *layout)
{
    return take(pages, layout, false, NULL);
}

void quire_page_clear(quire_page *page)
{
    if (page->dirty) memset(page->data, 0, page->layout->bytes);
    page->dirty = true;
}

static quire_page *take_zeroed(quire_pages *pages, const quire_page_layout *layout, size_t *promise)
{
    quire_page *page = take(pages, layout, false, promise);
    if (page) quire_page_clear(page);
    return page;
}

quire_page *quire_page_take(quire_pages *pages, const quire_page_layout *layout)
{
    return take_zeroed(pages, layout, NULL);
}

quire_page *quire_page_take_promised(quire_pages *pages, const quire_page_layout *layout, size_t *promise)
{
    return take_zeroed(pages, layout, promise);
}

#ifdef MADV_POPULATE_WRITE
static void populate_range(const quire_pages *pages, uint8_t *begin, uint8_t *end)
{
    uintptr_t mask = pages->os_page - 1, from = ((uintptr_t)begin + mask) & ~mask,
              to = (uintptr_t)end & ~mask;
    if (from < to) (void)madvise((void *)from, to - from, MADV_POPULATE_WRITE); /* those that lie inside */
}

void quire_pages_populate(quire_pages *pages, quire_page *const *page, uint32_t n)
{
    quire_page *sorted[QUIRE_POPULATE];
    assert(n <= QUIRE_POPULATE);
    quire_pages_settle(pages);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = i;
        for (; at && sorted[at - 1]->data > page[i]->data; at--) sorted[at] = sorted[at - 1];
        sorted[at] = page[i];
    }
    for (uint32_t i = 0, run; i < n; i += run) {
        uint8_t *end = sorted[i]->data + sorted[i]->layout->bytes;
        for (run = 1; i + run < n &&
                      sorted[i + run]->data == sorted[i + run - 1]->data + sorted[i]->size_class->stride;
             run++)
            end = sorted[i + run]->data + sorted[i + run]->layout->bytes;
        populate_range(pages, sorted[i]->data, end);
    }
}
#else
void quire_pages_populate(quire_pages *pages, quire_page *const *page, uint32_t n)
{
    (void)page;
    (void)n;
    quire_pages_settle(pages);
}
#endif

quire_page *quire_page_take_raw(quire_pages *pages, const quire_page_layout *layout)
{
    quire_page *page = take(pages, layout, false, NULL);
    if (!page) return NULL;
    page->dirty = true;
    return page;
}

quire_page *quire_page_copy(quire_pages *pages, const quire_page *from)
{
    quire_page *page = take(pages, from->layout, true, NULL);
    if (!page) return NULL;
    memcpy(page->data, from->data, from->layout->bytes);
    page->dirty = true;
    return page;
}

static void drop(quire_pages *pages, quire_page *page, uint32_t n, size_t *promise)
{
    if (!page || atomic_fetch_sub_explicit(&page->refs, n, memory_order_acq_rel) > n) return;
    pthread_mutex_lock(&pages->lock);
    quire_page_class *c = page->size_class;
    page->next_free = c->free;
    c->free = page;
    quire_regions_drop(page);
    pages->n_pages--;
    if (promise)
        *promise += c->stride;
    else
        pages->used -= c->stride;
    pages->kept += c->stride;
    if (pages->kept > pages->budget / KEPT_SHARE && pages->kept > KEPT_PAGES * c->stride) give_back(pages, c);
    pthread_mutex_unlock(&pages->lock);
}

void quire_page_drop(quire_pages *pages, quire_page *page)
{
    drop(pages, page, 1, NULL);
}

void quire_page_drop_many(quire_pages *pages, quire_page *page, uint32_t n)
{
    drop(pages, page, n, NULL);
}

void quire_page_drop_promised(quire_pages *pages, quire_page *page, size_t *promise)
{
    drop(pages, page, 1, promise);
}

bool quire_pages_promise(quire_pages *pages, size_t bytes)
{
    pthread_mutex_lock(&pages->lock);
    bool fits = bytes <= pages->budget - pages->used;
    if (fits) pages->used += bytes;
    pthread_mutex_unlock(&pages->lock);
    return fits;
}

void quire_pages_forgive(quire_pages *pages, size_t bytes)
{
    pthread_mutex_lock(&pages->lock);
    pages->used -= bytes;
    pthread_mutex_unlock(&pages->lock);
}

bool quire_pages_promise_page(quire_pages *pages, const quire_page_layout *layout)
{
    pthread_mutex_lock(&pages->lock);
    quire_page_class *c = class_of(pages, layout->bytes);
    bool fits = c && open_slots(pages, c, 1);
    if (fits) c->n_promised++;
    pthread_mutex_unlock(&pages->lock);
    return fits;
}

void quire_pages_forgive_page(quire_pages *pages, const quire_page_layout *layout)
{
    pthread_mutex_lock(&pages->lock);
    class_of(pages, layout->bytes)->n_promised--;
    pthread_mutex_unlock(&pages->lock);
}
