/* SPDX-License-Identifier: MIT */
/* page: which regions get huge OS pages, when, and how their memory is returned. */
#define _GNU_SOURCE
#include "page/huge.h"

#include "core/reserve.h"

#include <assert.h>
#include <errno.h>
#include <time.h>

#define NO_REGION UINT32_MAX

/* The system takes about half a millisecond per region. One call makes at most 128 MiB huge. */
#define MAX_PER_CALL 64u
/* Compaction of a fragmented memory can take much longer. That counts as a failure. What counts is the time of the processor: a
 * thread that had to wait for one tells nothing. */
#define SLOW_SECONDS 0.02
/* After the n-th failure in a row, 2^n regions are left as they are, at most 1024. */
#define MAX_FAILED 10u
/* A region that was split n times must become whole 2^n times before it gets a huge page again, at most 64 times. */
#define MAX_SPLIT 6u

enum { REGION_SMALL, REGION_BUSY, REGION_HUGE }; /* HUGE: it may be one; the system was asked */

typedef struct range {
    uint32_t first, end;
} range;

static uint32_t at_most(uint64_t n, uint32_t limit)
{
    return n < limit ? (uint32_t)n : limit;
}

/* Regions that lie wholly in the memory of the class and, at least partly, in the page. */
static range regions_of(const quire_page *page)
{
    const quire_page_class *c = page->size_class;
    uint64_t begin = (uint64_t)(page->data - c->memory), end = begin + c->stride;
    return (range){at_most(begin / QUIRE_HUGE_PAGE, c->n_regions),
                   at_most((end + QUIRE_HUGE_PAGE - 1) / QUIRE_HUGE_PAGE, c->n_regions)};
}

/* Slots that lie at least partly in the region. */
static range slots_of(const quire_page_class *c, uint32_t r)
{
    uint64_t begin = (uint64_t)r * QUIRE_HUGE_PAGE, end = begin + QUIRE_HUGE_PAGE;
    return (range){(uint32_t)(begin / c->stride), (uint32_t)((end + c->stride - 1) / c->stride)};
}

static uint32_t n_slots_of(const quire_page_class *c, uint32_t r)
{
    range slots = slots_of(c, r);
    return slots.end - slots.first;
}

static uint8_t *start_of(const quire_page_class *c, uint32_t r)
{
    return c->memory + (size_t)r * QUIRE_HUGE_PAGE;
}

void quire_regions_create(const quire_pages *pages, quire_page_class *c)
{
    const quire_allocator *a = &pages->allocator;
    uint64_t n = (uint64_t)c->stride * c->n_slots / QUIRE_HUGE_PAGE;
    c->waiting = c->partly = NO_REGION;
    if (!pages->collapse || !quire_memory_is_default(a) || !n || n >= NO_REGION) return;
    if ((uintptr_t)c->memory % QUIRE_HUGE_PAGE) return;
    size_t bytes = sizeof *c->region * (size_t)n;
    c->region = (quire_page_region *)a->reserve(a->ctx, bytes);
    if (!c->region) return;
    c->n_regions = (uint32_t)n;
    if (!quire_memory_open(a, c->region, bytes)) quire_regions_destroy(pages, c);
}

void quire_regions_destroy(const quire_pages *pages, quire_page_class *c)
{
    const quire_allocator *a = &pages->allocator;
    if (c->region) a->release(a->ctx, c->region, sizeof *c->region * c->n_regions);
    c->region = NULL;
    c->n_regions = 0;
}

/* ------------------------------------------------------------- take, drop */

static void became_whole(quire_pages *pages, quire_page_class *c, uint32_t r)
{
    quire_page_region *region = &c->region[r];
    if (region->state != REGION_SMALL || region->is_listed || !pages->collapse) return;
    if (region->n_skip) {
        region->n_skip--;
        return;
    }
    region->is_listed = true;
    region->next = c->waiting;
    c->waiting = r;
    atomic_fetch_add_explicit(&pages->n_waiting, 1, memory_order_relaxed);
}

void quire_regions_take(quire_pages *pages, quire_page *page, bool was_resident)
{
    quire_page_class *c = page->size_class;
    range regions = regions_of(page);
    page->resident = true;
    for (uint32_t r = regions.first; r < regions.end; r++) {
        c->region[r].n_live++;
        if (!was_resident) c->region[r].n_resident++;
        if (c->region[r].n_live == n_slots_of(c, r)) became_whole(pages, c, r);
    }
}

void quire_regions_drop(quire_page *page)
{
    quire_page_class *c = page->size_class;
    range regions = regions_of(page);
    for (uint32_t r = regions.first; r < regions.end; r++) {
        quire_page_region *region = &c->region[r];
        assert(region->n_live);
        /* Who fills an empty region touches all of it anyway: a huge page then costs less than small ones. */
        if (!--region->n_live) region->n_split = region->n_skip = 0;
    }
}

/* ----------------------------------------------------------------- discard */

/* Only the OS pages that lie wholly inside: madvise() rounds the end of a range up and would take what lies behind it
 * along. True: there were some. */
static bool discard(const quire_pages *pages, uint8_t *begin, uint8_t *end, bool is_huge)
{
    uintptr_t mask = pages->os_page - 1, from = ((uintptr_t)begin + mask) & ~mask,
              to = (uintptr_t)end & ~mask;
    if (from >= to) return false;
    if (is_huge) quire_memory_split((void *)from, to - from);
    pages->allocator.discard(pages->allocator.ctx, (void *)from, to - from);
    return true;
}

/* No page in the region is resident: it is returned in one piece, which takes a tenth of the time. */
static void discard_all(quire_pages *pages, quire_page_class *c, uint32_t r)
{
    discard(pages, start_of(c, r), start_of(c, r) + QUIRE_HUGE_PAGE, false);
    c->region[r].state = REGION_SMALL;
    if (c->partly == r) c->partly = NO_REGION;
}

/* Returns what pages that are not resident hold of the region, and splits it for that. */
static void discard_rest(quire_pages *pages, quire_page_class *c, uint32_t r)
{
    quire_page_region *region = &c->region[r];
    range slots = slots_of(c, r);
    uint8_t *first = start_of(c, r), *last = first + QUIRE_HUGE_PAGE;
    bool is_split = false;
    if (region->n_resident == slots.end - slots.first) return;
    for (uint32_t s = slots.first; s < slots.end; s++) {
        if (c->page[s].resident) continue;
        uint8_t *begin = c->page[s].data;
        while (s + 1 < slots.end && !c->page[s + 1].resident) s++;
        uint8_t *end = c->page[s].data + c->stride;
        if (discard(pages, begin < first ? first : begin, end > last ? last : end, !is_split))
            is_split = true;
    }
    if (!is_split) return;
    region->state = REGION_SMALL;
    if (region->n_split < MAX_SPLIT) region->n_split++;
    region->n_skip = (uint8_t)((1u << region->n_split) - 1);
}

/* Whether the OS page at `at` is all of this class and no page in it is resident. Slots that were never handed out are not. */
static bool is_deserted(const quire_pages *pages, const quire_page_class *c, const uint8_t *at)
{
    uintptr_t first = (uintptr_t)c->memory, last = first + c->stride * c->n_slots;
    if ((uintptr_t)at < first || last - (uintptr_t)at < pages->os_page) return false;
    size_t begin = (uintptr_t)at - first, end = begin + pages->os_page;
    for (size_t s = begin / c->stride; s < c->n_used_slots && s * c->stride < end; s++)
        if (c->page[s].resident) return false;
    return true;
}

void quire_regions_discard(quire_pages *pages, quire_page *page)
{
    quire_page_class *c = page->size_class;
    range regions = regions_of(page);
    uint8_t *from = page->data, *end = from + c->stride;
    size_t before = (uintptr_t)from % pages->os_page, behind = (uintptr_t)end % pages->os_page;
    page->resident = false;
    /* Pages that share an OS page: the last one that leaves takes it along. It lies in the same region, as regions are aligned. */
    if (before && is_deserted(pages, c, from - before)) from -= before;
    if (behind && is_deserted(pages, c, end - behind)) end += pages->os_page - behind;
    for (uint32_t r = regions.first; r < regions.end; r++) {
        quire_page_region *region = &c->region[r];
        assert(region->n_resident);
        region->n_resident--;
        if (region->state == REGION_SMALL) continue;
        discard(pages, from, start_of(c, r), false);
        from = start_of(c, r) + QUIRE_HUGE_PAGE;
        if (region->state == REGION_BUSY) continue; /* answered() looks after it */
        if (!region->n_resident) {
            discard_all(pages, c, r);
        } else if (c->partly != r) {
            if (c->partly != NO_REGION) discard_rest(pages, c, c->partly);
            c->partly = r;
        }
    }
    discard(pages, from, end, false);
}

/* ---------------------------------------------------------------- collapse */

/* Takes a whole region from the lists. */
static quire_page_class *next_whole(quire_pages *pages, uint32_t *r)
{
    for (quire_page_class *c = pages->classes; c; c = c->next) {
        while (c->waiting != NO_REGION) {
            quire_page_region *region = &c->region[ *r = c->waiting];
            c->waiting = region->next;
            region->is_listed = false;
            atomic_fetch_sub_explicit(&pages->n_waiting, 1, memory_order_relaxed);
            if (region->state != REGION_SMALL || region->n_live != n_slots_of(c, *r) || !pages->collapse)
                continue;
            if (pages->n_pause) {
                pages->n_pause--;
                continue;
            }
            region->state = REGION_BUSY;
            return c;
        }
    }
    return NULL;
}

static void answered(quire_pages *pages, quire_page_class *c, uint32_t r, int error, bool is_slow)
{
    quire_page_region *region = &c->region[r];
    region->state = REGION_HUGE;
    pages->n_asked++;
    if (error == EINVAL && !pages->n_huge) {
        pages->collapse = NULL; /* the system cannot do it, or the process has refused it */
    } else if (error || is_slow) {
        if (pages->n_failed < MAX_FAILED) pages->n_failed++;
        pages->n_pause = 1u << pages->n_failed;
    } else {
        pages->n_failed = 0;
    }
    if (!error) pages->n_huge++;
    if (!region->n_resident) /* pages were given back meanwhile */
        discard_all(pages, c, r);
    else
        discard_rest(pages, c, r);
}

static double thread_seconds(void)
{
    struct timespec t = {0};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void quire_pages_settle(quire_pages *pages)
{
    for (uint32_t n = 0; n < MAX_PER_CALL && atomic_load_explicit(&pages->n_waiting, memory_order_relaxed);
         n++) {
        uint32_t r = 0;
        pthread_mutex_lock(&pages->lock);
        quire_page_class *c = next_whole(pages, &r);
        quire_collapse_fn *collapse = pages->collapse;
        pthread_mutex_unlock(&pages->lock);
        if (!c) return;
        double start = thread_seconds();
        int error = collapse(start_of(c, r), pages->os_page);
        bool is_slow = thread_seconds() - start > SLOW_SECONDS;
        pthread_mutex_lock(&pages->lock);
        answered(pages, c, r, error, is_slow);
        pthread_mutex_unlock(&pages->lock);
    }
}
