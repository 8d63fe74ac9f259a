/* SPDX-License-Identifier: MIT */
/* cache: finished pages handed out to a store and taken back (page.h). */
#include "cache/cache.h"

/* ------------------------------------------------------------------- plans */

quire_status quire_plan_page_info(const quire_plan *plan, uint32_t group, uint32_t page_index,
                                  quire_page_info *out)
{
    if (!plan || !out || group >= plan->n_groups) return QUIRE_EINVAL;
    const quire_page_layout *layout = quire_plan_layout(plan, group, page_index);
    quire_page_info info = {.bytes = layout->bytes, .fingerprint = layout->fingerprint};
    return quire_write_sized(out, &info, sizeof info);
}

quire_status quire_plan_page_range(const quire_plan *plan, const quire_seq_options *options, uint32_t group,
                                   uint32_t n_pages, uint32_t *kept, uint32_t *first)
{
    quire_seq_options ring;
    if (!plan || !kept || !first || group >= plan->n_groups) return QUIRE_EINVAL;
    if (n_pages > QUIRE_MAX_TOKENS / QUIRE_PAGE_TOKENS) return QUIRE_EINVAL;
    quire_status status = quire_ring_read(&ring, options);
    if (status) return status;
    uint32_t window = plan->group[group].window;
    uint32_t from = quire_ring_from(window, &ring, n_pages * QUIRE_PAGE_TOKENS, ring.spare_tokens);
    uint32_t n_kept = quire_ring_kept(window, &ring);
    *first = from / QUIRE_PAGE_TOKENS;
    if (*first > n_pages) *first = n_pages;
    *kept = n_kept < *first ? n_kept : 0;
    if (!*kept && n_kept) *first = 0; /* the sinks reach the window: no hole */
    return QUIRE_OK;
}

/* ------------------------------------------------------------------- pages */

quire_status quire_seq_hold_page(quire_page **out, const quire_seq *seq, uint32_t group, uint32_t page_index)
{
    if (!out || !seq || group >= seq->plan->n_groups) return QUIRE_EINVAL;
    if (page_index >= seq->length / QUIRE_PAGE_TOKENS) return QUIRE_ERANGE;
    const quire_table *t = &seq->table[group];
    uint32_t entry = quire_table_entry(t, page_index);
    if (entry == UINT32_MAX) return QUIRE_ERANGE;
    quire_page *page = t->page[entry];
    if (page->layout->fingerprint != quire_plan_layout(seq->plan, group, page_index)->fingerprint)
        return QUIRE_EMISMATCH;
    quire_page_hold(page);
    *out = page;
    return QUIRE_OK;
}

const void *quire_page_bytes(const quire_page *page)
{
    return page->data;
}

void quire_page_share(quire_page *page)
{
    quire_page_hold(page);
}

void *quire_page_mutable_bytes(quire_page *page)
{
    return page->data;
}

void quire_pool_populate(quire_pool *pool, quire_page *const *pages, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += QUIRE_POPULATE)
        quire_pages_populate(&pool->pages, pages + i, n - i < QUIRE_POPULATE ? n - i : QUIRE_POPULATE);
}

quire_status quire_pool_take_page(quire_page **out, quire_pool *pool, const quire_plan *plan, uint32_t group,
                                  uint32_t page_index)
{
    if (!out || !pool || !plan || group >= plan->n_groups) return QUIRE_EINVAL;
    const quire_plan *own = quire_pool_find_plan(pool, quire_plan_fingerprint(plan));
    if (!own) return QUIRE_EMISMATCH;
    quire_page *page = quire_page_take_raw(&pool->pages, quire_plan_layout(own, group, page_index));
    if (!page) return QUIRE_EFULL;
    *out = page;
    return QUIRE_OK;
}

/* The page knows its memory. If another pool were believed, both would count wrong, and nobody could be told. */
void quire_pool_drop_page(quire_pool *pool, quire_page *page)
{
    (void)pool;
    if (page) quire_page_drop(page->size_class->pages, page);
}

quire_pool *quire_seq_pool(const quire_seq *seq)
{
    return seq->pool;
}

/* ------------------------------------------------------------------- adopt */

/* What one group holds at its new length: pages 0 to kept - 1 and first to n_pages - 1. */
typedef struct growth {
    uint32_t kept, first;
    uint32_t n_new; /* pages from the old length on */
} growth;

/* Number of entries whose page index is below this one. */
static uint32_t entries_below(const quire_table *t, uint32_t page_index)
{
    uint32_t n = page_index;
    if (n > t->n_kept) n = n > t->n_kept + t->gap ? n - t->gap : t->n_kept;
    return n < t->n ? n : t->n;
}

/* Whether the table holds all pages from begin up to end. */
static bool holds_all(const quire_table *t, uint32_t begin, uint32_t end)
{
    return begin >= end || entries_below(t, end) - entries_below(t, begin) == end - begin;
}

/* Finds out how a table grows, and makes room behind its last entry. */
static quire_status prepare(quire_seq *seq, uint32_t group, uint32_t n_pages, growth *grow)
{
    quire_table *t = &seq->table[group];
    uint32_t held = seq->length / QUIRE_PAGE_TOKENS;
    quire_status status =
        quire_plan_page_range(seq->plan, &seq->ring, group, n_pages, &grow->kept, &grow->first);
    if (status) return status;
    if (!holds_all(t, 0, grow->kept < held ? grow->kept : held) || !holds_all(t, grow->first, held))
        return QUIRE_ERANGE;
    grow->n_new = n_pages - (grow->first > held ? grow->first : held);
    if (grow->kept > held) grow->n_new += grow->kept - held;
    bool fits =
        quire_grow(&seq->pool->allocator, &t->page, &t->cap, t->n, t->n + grow->n_new, sizeof *t->page);
    return fits ? QUIRE_OK : QUIRE_ENOMEM;
}

/* Puts the new pages behind the last entry, where they do not count yet. */
static quire_status collect(const quire_seq *seq, uint32_t group, uint32_t n_pages, const growth *grow,
                            quire_find_page_fn find, void *ctx)
{
    quire_page **at = seq->table[group].page + seq->table[group].n;
    for (uint32_t i = seq->length / QUIRE_PAGE_TOKENS; i < n_pages; i++) {
        if (i >= grow->kept && i < grow->first) continue;
        quire_page *page = find(ctx, group, i);
        if (!page || page->layout != quire_plan_layout(seq->plan, group, i)) return QUIRE_EMISMATCH;
        if (page->size_class->pages != &seq->pool->pages) return QUIRE_EMISMATCH; /* pools can share a plan */
        *at++ = page;
    }
    return QUIRE_OK;
}

/* Lets the new pages count, and gives up those between the sinks and the first page that is still seen. */
static void put_in_place(quire_seq *seq, uint32_t group, const growth *grow)
{
    quire_table *t = &seq->table[group];
    uint32_t begin = entries_below(t, grow->kept), end = entries_below(t, grow->first);
    for (uint32_t i = begin; i < end; i++) quire_page_drop(&seq->pool->pages, t->page[i]);
    t->n += grow->n_new;
    if (begin < end) memmove(t->page + begin, t->page + end, sizeof *t->page * (t->n - end));
    t->n -= end - begin;
    t->n_kept = grow->kept;
    t->gap = grow->first - grow->kept;
}

quire_status quire_seq_adopt(quire_seq *seq, uint32_t n_pages, quire_find_page_fn find, void *ctx)
{
    if (!seq || !find || seq->length % QUIRE_PAGE_TOKENS) return QUIRE_EINVAL;
    if (n_pages < seq->length / QUIRE_PAGE_TOKENS || n_pages > QUIRE_MAX_TOKENS / QUIRE_PAGE_TOKENS)
        return QUIRE_EINVAL;
    if (seq->step) return QUIRE_EBUSY;
    const quire_allocator *a = &seq->pool->allocator;
    uint32_t n_groups = seq->plan->n_groups;
    growth *grow = (growth *)quire_alloc(a, sizeof *grow * n_groups);
    if (!grow) return QUIRE_ENOMEM;
    quire_status status = QUIRE_OK;
    for (uint32_t g = 0; g < n_groups && !status; g++) status = prepare(seq, g, n_pages, &grow[g]);
    for (uint32_t g = 0; g < n_groups && !status; g++) status = collect(seq, g, n_pages, &grow[g], find, ctx);
    if (!status) {
        for (uint32_t g = 0; g < n_groups; g++) put_in_place(seq, g, &grow[g]);
        seq->length = n_pages * QUIRE_PAGE_TOKENS;
        quire_pages_settle(&seq->pool->pages);
    }
    quire_free(a, grow, sizeof *grow * n_groups);
    return status;
}
