/* SPDX-License-Identifier: MIT */
/* cache: live sequences go on with another plan. Pages are coded anew one by one, through one page of scratch: the old
 * page is given up before its successor is taken, so that a conversion that saves memory works in a full pool too. */
#include "cache/cache.h"

#include "core/float_mode.h"

typedef struct work {
    quire_pool *pool;
    quire_seq *const *seqs;
    uint32_t n_seqs;
    const quire_plan *plan;
    uint32_t flags;
} work;

/* Rows of the page that a sequence has filled. */
static uint32_t rows_in(const quire_seq *seq, uint32_t page_index)
{
    uint32_t left = seq->length - page_index * QUIRE_PAGE_TOKENS;
    return left < QUIRE_PAGE_TOKENS ? left : QUIRE_PAGE_TOKENS;
}

static void convert_tile(const quire_tile_format *from, const uint8_t *old, const quire_tile_format *to,
                         uint8_t *fresh, uint32_t head, uint32_t n, quire_counts *counts)
{
    quire_calibration from_cal = quire_tile_format_head(from, head),
                      to_cal = quire_tile_format_head(to, head);
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

/* Tiles of `old` in the layout `to`, at `fresh`, which is zero. */
QUIRE_APART static void convert_page(const quire_page *old, const quire_page_layout *to, uint8_t *fresh,
                                     uint32_t n, quire_counts *counts)
{
    quire_page target = {.layout = to, .data = fresh};
    for (uint32_t i = 0; i < to->n_layers; i++)
        for (uint32_t s = 0; s < 2; s++) {
            quire_side side = s ? QUIRE_V : QUIRE_K;
            const quire_tile_format *from = quire_page_format(old, i, side);
            for (uint32_t h = 0; from && h < to->layer[i].n_heads; h++)
                convert_tile(from, quire_page_tile(old, i, side, h), quire_page_format(&target, i, side),
                             quire_page_tile(&target, i, side, h), h, n, counts);
        }
}

/* The layout that an entry is to have, or NULL if it stays as it is. */
static const quire_page_layout *wanted(const work *w, const quire_seq *seq, uint32_t group, uint32_t entry)
{
    const quire_table *t = &seq->table[group];
    uint32_t index = quire_table_index(t, entry);
    if (w->flags & QUIRE_CONVERT_NEW && rows_in(seq, index) == QUIRE_PAGE_TOKENS) return NULL;
    const quire_page_layout *layout = quire_plan_layout(w->plan, group, index);
    return t->page[entry]->layout->fingerprint == layout->fingerprint ? NULL : layout;
}

/* One page to be coded anew, for all the sequences that hold it and want it. */
typedef struct change {
    quire_page *old;
    const quire_page_layout *layout;
    uint32_t group, index, n_holders, n_rows;
} change;

/* Where sequence s keeps the page of a change, if it wants it changed. */
static quire_page **holder(const work *w, const change *c, uint32_t s)
{
    const quire_seq *seq = w->seqs[s];
    uint32_t entry = quire_table_entry(&seq->table[c->group], c->index);
    if (entry == UINT32_MAX || seq->table[c->group].page[entry] != c->old) return NULL;
    return wanted(w, seq, c->group, entry) ? &seq->table[c->group].page[entry] : NULL;
}

/* The change that entry i of a table asks for. False: none, or an earlier sequence asks for the same. */
static bool find_change(const work *w, uint32_t s, uint32_t group, uint32_t i, change *c)
{
    const quire_seq *seq = w->seqs[s];
    *c = (change){.old = seq->table[group].page[i], .layout = wanted(w, seq, group, i), .group = group};
    if (!c->layout) return false;
    c->index = quire_table_index(&seq->table[group], i);
    bool shared = quire_page_is_shared(c->old);
    for (uint32_t o = shared ? 0 : s; o < (shared ? w->n_seqs : s + 1); o++) {
        if (!holder(w, c, o)) continue;
        if (o < s) return false;
        c->n_holders++;
        uint32_t rows = rows_in(w->seqs[o], c->index);
        if (rows > c->n_rows) c->n_rows = rows;
    }
    return true;
}

/*
 * Largest share of the budget that the conversion needs at any moment beyond what is in use now, and the largest page
 * it makes. A page that somebody else holds too is not given up.
 */
static size_t peak_cost(const work *w, size_t *largest)
{
    int64_t now = 0, peak = 0;
    change c;
    for (uint32_t s = 0; s < w->n_seqs; s++)
        for (uint32_t g = 0; g < w->plan->n_groups; g++)
            for (uint32_t i = 0; i < w->seqs[s]->table[g].n; i++) {
                if (!find_change(w, s, g, i, &c)) continue;
                bool ours = atomic_load_explicit(&c.old->refs, memory_order_acquire) == c.n_holders;
                if (ours) now -= (int64_t)quire_page_stride(c.old->layout->bytes);
                now += (int64_t)quire_page_stride(c.layout->bytes);
                if (now > peak) peak = now;
                if (c.layout->bytes > *largest) *largest = c.layout->bytes;
            }
    return (size_t)peak;
}

/* Code the page anew in scratch, give it up everywhere, take its successor. Cannot fail. */
static void apply(const work *w, const change *c, uint32_t first_seq, quire_page ***at, uint8_t *scratch,
                  size_t *promise, quire_counts *counts)
{
    quire_pages *pages = &w->pool->pages;
    uint32_t n = 0;
    memset(scratch, 0, c->layout->bytes);
    convert_page(c->old, c->layout, scratch, c->n_rows, counts);
    for (uint32_t s = first_seq; n < c->n_holders; s++)
        if ((at[n] = holder(w, c, s))) n++;
    for (uint32_t k = 0; k < n; k++) quire_page_drop_promised(pages, c->old, promise);
    quire_page *fresh = quire_page_take_promised(pages, c->layout, promise);
    memcpy(fresh->data, scratch, c->layout->bytes);
    for (uint32_t k = 0; k < n; k++) {
        if (k) quire_page_hold(fresh);
        *at[k] = fresh;
    }
}

/* Adds a fingerprint to a set; false if the set is full. */
static bool add_layout(uint64_t *seen, uint32_t *n, uint64_t fingerprint)
{
    for (uint32_t i = 0; i < *n; i++)
        if (seen[i] == fingerprint) return true;
    if (*n == QUIRE_MAX_LAYOUTS) return false;
    seen[(*n)++] = fingerprint;
    return true;
}

/* w: as it will be after this conversion; NULL: as it is. */
static bool layouts_fit(const work *w, const quire_seq *seq)
{
    for (uint32_t g = 0; g < seq->plan->n_groups; g++) {
        const quire_group *group = &(w ? w->plan : seq->plan)->group[g];
        uint64_t seen[QUIRE_MAX_LAYOUTS] = {group->pages.fingerprint, group->sinks.fingerprint};
        uint32_t n = 2; /* what new pages will have */
        for (uint32_t i = 0; i < seq->table[g].n; i++) {
            const quire_page_layout *layout = w ? wanted(w, seq, g, i) : NULL;
            if (!layout) layout = seq->table[g].page[i]->layout;
            if (!add_layout(seen, &n, layout->fingerprint)) return false;
        }
    }
    return true;
}

bool quire_seq_layouts_fit(const quire_seq *seq)
{
    return layouts_fit(NULL, seq);
}

/* Takes back what set_aside() has promised for the first n pages. */
static void put_back(const work *w, uint64_t n)
{
    change c;
    for (uint32_t s = 0; s < w->n_seqs; s++)
        for (uint32_t g = 0; g < w->plan->n_groups; g++)
            for (uint32_t i = 0; i < w->seqs[s]->table[g].n && n; i++) {
                if (!find_change(w, s, g, i, &c)) continue;
                quire_pages_forgive_page(&w->pool->pages, c.layout);
                n--;
            }
}

/* Memory for every page that the conversion makes: after it has begun it cannot fail. */
static bool set_aside(const work *w)
{
    uint64_t n = 0;
    change c;
    for (uint32_t s = 0; s < w->n_seqs; s++)
        for (uint32_t g = 0; g < w->plan->n_groups; g++)
            for (uint32_t i = 0; i < w->seqs[s]->table[g].n; i++) {
                if (!find_change(w, s, g, i, &c)) continue;
                if (!quire_pages_promise_page(&w->pool->pages, c.layout)) {
                    put_back(w, n);
                    return false;
                }
                n++;
            }
    return true;
}

static void convert_all(const work *w, quire_page ***at, uint8_t *scratch, size_t *promise)
{
    quire_counts counts = {0};
    uint32_t mode = quire_float_mode_enter();
    change c;
    for (uint32_t s = 0; s < w->n_seqs; s++) {
        for (uint32_t g = 0; g < w->plan->n_groups; g++)
            for (uint32_t i = 0; i < w->seqs[s]->table[g].n; i++)
                if (find_change(w, s, g, i, &c)) apply(w, &c, s, at, scratch, promise, &counts);
        w->seqs[s]->plan = w->plan;
    }
    quire_float_mode_leave(mode);
    quire_pool_count(w->pool, &counts);
}

quire_status quire_seqs_convert(quire_pool *pool, quire_seq *const *seqs, uint32_t n, const quire_plan *plan,
                                uint32_t flags)
{
    if (!plan || flags & ~(uint32_t)QUIRE_CONVERT_NEW) return QUIRE_EINVAL;
    for (uint32_t s = 0; s < n; s++)
        if (seqs[s]->step) return QUIRE_EBUSY;
    quire_status status = quire_pool_add_plan(pool, plan);
    if (status) return status;
    work w = {pool, seqs, n, quire_pool_find_plan(pool, plan->fingerprint), flags};
    for (uint32_t s = 0; s < n; s++)
        if (!layouts_fit(&w, seqs[s])) return QUIRE_EUNSUPPORTED;

    const quire_allocator *a = &pool->allocator;
    size_t largest = 0, promise = peak_cost(&w, &largest), at_bytes = quire_bytes(n, sizeof(quire_page **));
    uint8_t *scratch = (uint8_t *)quire_alloc(a, largest);
    quire_page ***at = scratch ? (quire_page ***)quire_alloc(a, at_bytes) : NULL;
    if (!at)
        status = QUIRE_ENOMEM;
    else if (!quire_pages_promise(&pool->pages, promise))
        status = QUIRE_EFULL;
    if (!status && !set_aside(&w)) {
        quire_pages_forgive(&pool->pages, promise);
        status = QUIRE_ENOMEM;
    }
    if (!status) {
        convert_all(&w, at, scratch, &promise);
        quire_pages_forgive(&pool->pages, promise);
        quire_pages_settle(&pool->pages);
    }
    quire_free(a, at, at_bytes);
    quire_free(a, scratch, largest);
    return status;
}

quire_status quire_seq_convert(quire_seq *seq, const quire_plan *plan, uint32_t flags)
{
    return seq ? quire_seqs_convert(seq->pool, &seq, 1, plan, flags) : QUIRE_EINVAL;
}
