/* SPDX-License-Identifier: MIT */
/* cache: a live sequence goes on with another plan. Pages are coded anew one by one, each old page given up as soon
 * as its successor stands, so that a conversion that saves memory also works when memory is short. */
#include "cache/cache.h"

#include "core/float_mode.h"

/* Rows of the page that the sequence has filled. */
static uint32_t rows_in(const quire_seq *seq, uint32_t page_index)
{
    uint32_t left = seq->length - page_index * QUIRE_PAGE_TOKENS;
    return left < QUIRE_PAGE_TOKENS ? left : QUIRE_PAGE_TOKENS;
}

static void convert_tile(const quire_format *from, const uint8_t *old, const quire_format *to, uint8_t *fresh,
                         uint32_t head, uint32_t n, quire_counts *counts)
{
    quire_calibration from_cal = quire_format_head(from, head), to_cal = quire_format_head(to, head);
    quire_coded_row row;
    float x[QUIRE_MAX_D];
    for (uint32_t t = 0; t < n; t++) {
        quire_tile_get(from, old, t, &row);
        if (from->fingerprint != to->fingerprint) {
            quire_decode_row(&from->coder, &from_cal, &row, x);
            quire_encode_row(&to->coder, &to_cal, x, &row, counts);
        }
        quire_tile_put(to, fresh, t, &row);
    }
}

QUIRE_APART static void convert_page(const quire_page *old, quire_page *fresh, uint32_t n,
                                     quire_counts *counts)
{
    for (uint32_t i = 0; i < old->layout->n_layers; i++)
        for (uint32_t s = 0; s < 2; s++) {
            quire_side side = s ? QUIRE_V : QUIRE_K;
            const quire_format *from = quire_page_format(old, i, side),
                               *to = quire_page_format(fresh, i, side);
            for (uint32_t h = 0; from && h < old->layout->layer[i].n_heads; h++)
                convert_tile(from, quire_page_tile(old, i, side, h), to, quire_page_tile(fresh, i, side, h),
                             h, n, counts);
        }
}

/* The layout that an entry is to have, or NULL if it stays as it is. */
static const quire_page_layout *wanted(const quire_seq *seq, const quire_plan *plan, uint32_t group,
                                       uint32_t entry, uint32_t flags)
{
    const quire_table *t = &seq->table[group];
    uint32_t index = quire_table_index(t, entry);
    if (flags & QUIRE_CONVERT_NEW && rows_in(seq, index) == QUIRE_PAGE_TOKENS) return NULL;
    const quire_page_layout *layout = quire_plan_layout(plan, group, index);
    return t->page[entry]->layout->fingerprint == layout->fingerprint ? NULL : layout;
}

/* Largest share of the budget that the conversion needs at any moment beyond what is in use now. */
static size_t peak_cost(quire_seq *seq, const quire_plan *plan, uint32_t flags)
{
    quire_pages *pages = &seq->pool->pages;
    size_t peak = 0;
    int64_t now = 0;
    for (uint32_t g = 0; g < plan->n_groups; g++)
        for (uint32_t i = 0; i < seq->table[g].n; i++) {
            quire_page *old = seq->table[g].page[i];
            const quire_page_layout *layout = wanted(seq, plan, g, i, flags);
            if (!layout) continue;
            now += (int64_t)quire_page_cost(pages, layout);
            if (now > (int64_t)peak) peak = (size_t)now;
            if (!quire_page_is_shared(old)) now -= (int64_t)quire_page_cost(pages, old->layout);
        }
    return peak;
}

/* Plans whose pages the sequence would hold afterwards must not be more than attend can take. */
static bool too_many_layouts(const quire_seq *seq, const quire_plan *plan, uint32_t flags)
{
    for (uint32_t g = 0; g < plan->n_groups; g++) {
        uint64_t seen[2 * QUIRE_MAX_PLANS] = {plan->group[g].pages.fingerprint,
                                              plan->group[g].sinks.fingerprint};
        uint32_t n = 2;
        for (uint32_t i = 0; i < seq->table[g].n; i++) {
            const quire_page_layout *layout = wanted(seq, plan, g, i, flags);
            uint64_t have = layout ? layout->fingerprint : seq->table[g].page[i]->layout->fingerprint;
            uint32_t k = 0;
            while (k < n && seen[k] != have) k++;
            if (k < n) continue;
            if (n == 2 * QUIRE_MAX_PLANS) return true;
            seen[n++] = have;
        }
    }
    return false;
}

quire_status quire_seq_convert(quire_seq *seq, const quire_plan *plan, uint32_t flags)
{
    if (!seq || !plan || flags & ~(uint32_t)QUIRE_CONVERT_NEW) return QUIRE_EINVAL;
    if (seq->step) return QUIRE_EBUSY;
    quire_pool *pool = seq->pool;
    quire_status status = quire_pool_add_plan(pool, plan);
    if (status) return status;
    plan = quire_pool_find_plan(pool, plan->fingerprint);
    if (too_many_layouts(seq, plan, flags)) return QUIRE_EUNSUPPORTED;
    size_t promise = peak_cost(seq, plan, flags);
    if (!quire_pages_promise(&pool->pages, promise)) return QUIRE_EFULL;

    quire_counts counts = {0};
    uint32_t mode = quire_float_mode_enter();
    for (uint32_t g = 0; g < plan->n_groups; g++)
        for (uint32_t i = 0; i < seq->table[g].n; i++) {
            quire_page **at = &seq->table[g].page[i];
            const quire_page_layout *layout = wanted(seq, plan, g, i, flags);
            if (!layout) continue;
            quire_page *fresh = quire_page_take_promised(&pool->pages, layout, &promise);
            convert_page(*at, fresh, rows_in(seq, quire_table_index(&seq->table[g], i)), &counts);
            quire_page_drop_promised(&pool->pages, *at, &promise);
            *at = fresh;
        }
    quire_float_mode_leave(mode);
    quire_pages_forgive(&pool->pages, promise);
    quire_pool_count(pool, &counts);
    seq->plan = plan;
    return QUIRE_OK;
}
