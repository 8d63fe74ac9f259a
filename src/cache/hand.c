/* SPDX-License-Identifier: MIT */
/* cache: finished pages handed out to a store and taken back (quire_page.h). */
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

void quire_plan_page_range(const quire_plan *plan, const quire_seq_options *options, uint32_t group,
                           uint32_t n_pages, uint32_t *kept, uint32_t *first)
{
    static const quire_seq_options none = {0};
    uint32_t window = plan->group[group].window;
    const quire_seq_options *ring = options ? options : &none;
    uint32_t from = quire_ring_from(window, ring, n_pages * QUIRE_PAGE_TOKENS, ring->spare_tokens);
    uint32_t n_kept = quire_ring_kept(window, ring);
    *first = from / QUIRE_PAGE_TOKENS;
    if (*first > n_pages) *first = n_pages;
    *kept = n_kept < *first ? n_kept : 0;
    if (!*kept && n_kept) *first = 0; /* the sinks reach the window: no hole */
}

/* ------------------------------------------------------------------- pages */

quire_page *quire_seq_hold_page(const quire_seq *seq, uint32_t group, uint32_t page_index)
{
    if (!seq || group >= seq->plan->n_groups || page_index >= seq->length / QUIRE_PAGE_TOKENS) return NULL;
    const quire_table *t = &seq->table[group];
    uint32_t entry = quire_table_entry(t, page_index);
    if (entry == UINT32_MAX) return NULL;
    quire_page *page = t->page[entry];
    if (page->layout->fingerprint != quire_plan_layout(seq->plan, group, page_index)->fingerprint)
        return NULL;
    quire_page_hold(page);
    return page;
}

const void *quire_page_bytes(const quire_page *page)
{
    return page->data;
}

void quire_page_share(quire_page *page)
{
    quire_page_hold(page);
}

void *quire_page_room(quire_page *page)
{
    return page->data;
}

void quire_pool_populate(quire_pool *pool, quire_page *const *pages, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += QUIRE_POPULATE)
        quire_pages_populate(&pool->pages, pages + i, n - i < QUIRE_POPULATE ? n - i : QUIRE_POPULATE);
}

quire_page *quire_pool_take_page(quire_pool *pool, const quire_plan *plan, uint32_t group,
                                 uint32_t page_index)
{
    if (!pool || !plan || group >= plan->n_groups) return NULL;
    const quire_plan *own = quire_pool_find_plan(pool, quire_plan_fingerprint(plan));
    return own ? quire_page_take_raw(&pool->pages, quire_plan_layout(own, group, page_index)) : NULL;
}

void quire_pool_drop_page(quire_pool *pool, quire_page *page)
{
    quire_page_drop(&pool->pages, page);
}

quire_pool *quire_seq_pool(const quire_seq *seq)
{
    return seq->pool;
}

/* ------------------------------------------------------------------- adopt */

/* The table of one group at its new length; entries below n_held are the sequence's own, the others are new. */
typedef struct draft {
    quire_table table;
    uint32_t n_held;
} draft;

static quire_status draft_table(const quire_seq *seq, uint32_t group, uint32_t n_pages,
                                quire_find_page_fn find, void *ctx, draft *d)
{
    const quire_table *old = &seq->table[group];
    uint32_t held = seq->length / QUIRE_PAGE_TOKENS, kept, first;
    quire_table *t = &d->table;
    quire_plan_page_range(seq->plan, &seq->ring, group, n_pages, &kept, &first);
    if (!quire_grow(&seq->pool->allocator, &t->page, &t->cap, 0, kept + n_pages - first, sizeof *t->page))
        return QUIRE_ENOMEM;
    t->n_kept = kept;
    t->gap = first - kept;
    for (uint32_t i = 0; i < n_pages; i++) {
        if (i >= kept && i < first) continue;
        if (i < held) {
            uint32_t entry = quire_table_entry(old, i);
            if (entry == UINT32_MAX) return QUIRE_ERANGE;
            t->page[t->n++] = old->page[entry];
            d->n_held = t->n;
        } else {
            quire_page *page = find(ctx, group, i);
            if (!page || page->layout != quire_plan_layout(seq->plan, group, i)) return QUIRE_EMISMATCH;
            t->page[t->n++] = page;
        }
    }
    return QUIRE_OK;
}

static bool is_in(const draft *d, const quire_page *page)
{
    for (uint32_t i = 0; i < d->n_held; i++)
        if (d->table.page[i] == page) return true;
    return false;
}

static void put_in_place(quire_seq *seq, uint32_t group, draft *d)
{
    quire_table *old = &seq->table[group];
    for (uint32_t i = 0; i < old->n; i++)
        if (!is_in(d, old->page[i])) quire_page_drop(&seq->pool->pages, old->page[i]);
    quire_free(&seq->pool->allocator, old->page, sizeof *old->page * old->cap);
    *old = d->table;
}

quire_status quire_seq_adopt(quire_seq *seq, uint32_t n_pages, quire_find_page_fn find, void *ctx)
{
    if (!seq || !find || seq->length % QUIRE_PAGE_TOKENS) return QUIRE_EINVAL;
    if (n_pages < seq->length / QUIRE_PAGE_TOKENS || n_pages > QUIRE_MAX_TOKENS / QUIRE_PAGE_TOKENS)
        return QUIRE_EINVAL;
    if (seq->step) return QUIRE_EBUSY;
    const quire_allocator *a = &seq->pool->allocator;
    uint32_t n_groups = seq->plan->n_groups;
    draft *drafts = (draft *)quire_alloc(a, sizeof *drafts * n_groups);
    if (!drafts) return QUIRE_ENOMEM;
    quire_status status = QUIRE_OK;
    for (uint32_t g = 0; g < n_groups && !status; g++)
        status = draft_table(seq, g, n_pages, find, ctx, &drafts[g]);
    for (uint32_t g = 0; g < n_groups; g++) {
        if (status)
            quire_free(a, drafts[g].table.page, sizeof(quire_page *) * drafts[g].table.cap);
        else
            put_in_place(seq, g, &drafts[g]);
    }
    if (!status) seq->length = n_pages * QUIRE_PAGE_TOKENS;
    quire_free(a, drafts, sizeof *drafts * n_groups);
    return status;
}
