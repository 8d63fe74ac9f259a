/* SPDX-License-Identifier: MIT */
/* cache: a sequence: create, fork, trim, look inside. */
#include "cache/cache.h"

#include "core/float_mode.h"

quire_seq *quire_seq_alloc(quire_pool *pool, const quire_plan *plan, const quire_seq_options *ring)
{
    quire_seq *seq = (quire_seq *)quire_alloc(&pool->allocator, sizeof *seq);
    if (!seq) return NULL;
    seq->table = (quire_table *)quire_alloc(&pool->allocator, sizeof *seq->table * plan->n_groups);
    if (!seq->table) {
        quire_free(&pool->allocator, seq, sizeof *seq);
        return NULL;
    }
    seq->pool = pool;
    seq->plan = plan;
    if (ring) seq->ring = *ring;
    seq->ring.size = sizeof seq->ring;
    return seq;
}

quire_status quire_seq_create(quire_seq **out, quire_pool *pool, const quire_seq_options *options)
{
    if (!out || !pool) return QUIRE_EINVAL;
    quire_seq_options ring;
    quire_status status = quire_ring_read(&ring, options);
    if (status) return status;
    quire_seq *seq = quire_seq_alloc(pool, pool->main_plan, &ring);
    if (!seq) return QUIRE_ENOMEM;
    *out = seq;
    return QUIRE_OK;
}

#define ROOM \
    8u /* pages that a fork can add before its table grows: thousands of forks may go on in one step */
#define ENTRIES 256u /* of a table that are looked at together */

/*
 * Removes these sequences as owners of their pages in one group. Sequences of a batch are often forks of each other: a
 * page that neighbours in the list hold at the same place loses all of them as owners in one atomic operation.
 */
static void drop_pages(quire_pages *pages, quire_seq *const *seqs, uint32_t n, uint32_t group)
{
    uint32_t most = 0, since[ENTRIES]; /* from which sequence on the page is the same */
    for (uint32_t s = 0; s < n; s++)
        if (seqs[s]->table[group].n > most) most = seqs[s]->table[group].n;
    for (uint32_t first = 0; first < most; first += ENTRIES) {
        memset(since, 0, sizeof since);
        for (uint32_t s = 0; s < n; s++) {
            const quire_table *t = &seqs[s]->table[group],
                              *next = s + 1 < n ? &seqs[s + 1]->table[group] : NULL;
            uint32_t here = t->n > first ? t->n - first : 0,
                     there = next && next->n > first ? next->n - first : 0;
            if (here > ENTRIES) here = ENTRIES;
            if (there > ENTRIES) there = ENTRIES;
            uint32_t same = here < there ? here : there;
            if (same && memcmp(t->page + first, next->page + first, sizeof *t->page * same)) {
                same = 0;
                while (t->page[first + same] == next->page[first + same]) same++;
            }
            for (uint32_t i = same; i < here; i++)
                quire_page_drop_many(pages, t->page[first + i], s + 1 - since[i]);
            for (uint32_t i = same; i < there; i++) since[i] = s + 1;
        }
    }
}

void quire_seqs_destroy(quire_pool *pool, quire_seq *const *seqs, uint32_t n)
{
    const quire_allocator *a = &pool->allocator;
    uint32_t n_groups = pool->main_plan->n_groups; /* plans of a pool have one geometry */
    for (uint32_t g = 0; g < n_groups; g++) drop_pages(&pool->pages, seqs, n, g);
    for (uint32_t s = 0; s < n; s++) {
        quire_seq *seq = seqs[s];
        for (uint32_t g = 0; g < n_groups; g++)
            quire_free(a, seq->table[g].page, sizeof(quire_page *) * seq->table[g].cap);
        quire_free(a, seq->table, sizeof *seq->table * n_groups);
        quire_free(a, seq, sizeof *seq);
    }
}

void quire_seq_destroy(quire_seq *seq)
{
    if (seq) quire_seqs_destroy(seq->pool, &seq, 1);
}

uint32_t quire_seq_length(const quire_seq *seq)
{
    return seq->length;
}

quire_status quire_seq_options_get(const quire_seq *seq, quire_seq_options *out)
{
    return seq ? quire_write_sized(out, &seq->ring, sizeof seq->ring) : QUIRE_EINVAL;
}

const quire_plan *quire_seq_plan(const quire_seq *seq)
{
    return seq->plan;
}

quire_status quire_seq_fork(quire_seq **out, const quire_seq *seq)
{
    if (!out || !seq) return QUIRE_EINVAL;
    if (seq->step) return QUIRE_EBUSY;
    quire_seq *fork = quire_seq_alloc(seq->pool, seq->plan, &seq->ring);
    if (!fork) return QUIRE_ENOMEM;
    fork->length = seq->length;
    for (uint32_t g = 0; g < seq->plan->n_groups; g++) {
        const quire_table *from = &seq->table[g];
        quire_table *to = &fork->table[g];
        if (!quire_grow(&seq->pool->allocator, &to->page, &to->cap, 0, from->n + ROOM, sizeof *to->page)) {
            quire_seq_destroy(fork);
            return QUIRE_ENOMEM;
        }
        for (uint32_t i = 0; i < from->n; i++) {
            quire_page_hold(from->page[i]);
            to->page[i] = from->page[i];
        }
        to->n = from->n;
        to->n_kept = from->n_kept;
        to->gap = from->gap;
    }
    *out = fork;
    return QUIRE_OK;
}

quire_status quire_seq_trim(quire_seq *seq, uint32_t length)
{
    if (!seq || length > seq->length) return QUIRE_EINVAL;
    if (seq->step) return QUIRE_EBUSY;
    if (!quire_seq_can_trim(seq, length)) return QUIRE_ERANGE;
    uint32_t n_pages = quire_pages_for(length);
    for (uint32_t g = 0; g < seq->plan->n_groups; g++) {
        quire_table *t = &seq->table[g];
        while (t->n && quire_table_index(t, t->n - 1) >= n_pages)
            quire_page_drop(&seq->pool->pages, t->page[--t->n]);
        if (t->n <= t->n_kept && n_pages <= t->n_kept)
            t->gap = t->n_kept = 0; /* only sinks are left: no hole */
    }
    seq->length = length;
    return QUIRE_OK;
}

/* Pages that hold rows below `length`: an open step may have added others. */
static uint32_t pages_below(const quire_table *t, uint32_t length)
{
    uint32_t n = t->n;
    while (n && quire_table_index(t, n - 1) >= quire_pages_for(length)) n--;
    return n;
}

uint32_t quire_seq_tiles(const quire_seq *seq, uint32_t layer, quire_tile_ref *tiles, uint32_t cap,
                         size_t stride)
{
    if (!seq || layer >= seq->plan->n_layers || (cap && (!tiles || !stride))) return 0;
    const quire_planned_layer *l = &seq->plan->layer[layer];
    const quire_table *t = &seq->table[l->group];
    uint32_t n = pages_below(t, seq->length);
    for (uint32_t i = 0; i < n && i < cap; i++) {
        const quire_page *page = t->page[i];
        const quire_page_layer *p = &page->layout->layer[l->index];
        uint32_t first = quire_table_index(t, i) * QUIRE_PAGE_TOKENS, left = seq->length - first;
        quire_tile_ref tile = {
            .k = quire_page_tile(page, l->index, QUIRE_K, 0),
            .v = p->v ? quire_page_tile(page, l->index, QUIRE_V, 0) : NULL,
            .k_head_stride = p->head_stride,
            .v_head_stride = p->head_stride,
            .k_format = p->k,
            .v_format = p->v,
            .first = first,
            .n_rows = left < QUIRE_PAGE_TOKENS ? left : QUIRE_PAGE_TOKENS,
        };
        uint8_t *to = (uint8_t *)tiles + (size_t)i * stride;
        if (stride > sizeof tile) memset(to, 0, stride);
        memcpy(to, &tile, stride < sizeof tile ? stride : sizeof tile);
    }
    return n;
}

static void fill_from_page(const void *ctx, quire_list_layer *layer)
{
    const quire_page_layout *layout = (const quire_page_layout *)ctx;
    for (uint32_t i = 0; i < layout->n_layers; i++) {
        const quire_page_layer *p = &layout->layer[i];
        layer[i] = (quire_list_layer){
            .k = p->offset,
            .v = p->v ? p->offset + p->k->tile_bytes : 0,
            .k_head_stride = p->head_stride,
            .v_head_stride = p->head_stride,
            .k_format = p->k,
            .v_format = p->v,
            .n_heads = p->n_heads,
        };
    }
}

quire_status quire_seq_list_tiles(quire_tile_list *list, const quire_seq *seq, uint32_t group,
                                  uint32_t length)
{
    const quire_table *t = &seq->table[group];
    uint32_t n = pages_below(t, length);
    quire_status status = quire_tile_list_begin(list, seq->plan->group[group].pages.n_layers, n);
    for (uint32_t i = 0; i < n && !status; i++) {
        const quire_page *page = t->page[i];
        uint32_t first = quire_table_index(t, i) * QUIRE_PAGE_TOKENS, left = length - first;
        quire_list_tile tile = {
            .k = (uintptr_t)page->data,
            .v = (uintptr_t)page->data,
            .first = first,
            .n_rows = (uint16_t)(left < QUIRE_PAGE_TOKENS ? left : QUIRE_PAGE_TOKENS),
        };
        quire_layout_key key = {{(uintptr_t)page->layout, 0, 0, 0, QUIRE_KEY_PAGE}};
        status = quire_tile_list_push(list, &tile, key, fill_from_page, page->layout);
    }
    return quire_tile_list_end(list, status);
}

quire_status quire_tile_list_add_seq(quire_tile_list *list, const quire_seq *seq, uint32_t group)
{
    if (!list || !seq || group >= seq->plan->n_groups) return QUIRE_EINVAL;
    return quire_seq_list_tiles(list, seq, group, seq->length);
}

/* ------------------------------------------------------------------ export */

/* V rows of a layer that keeps K only: the first d_v values of its decoded K rows. */
QUIRE_APART static void decode_prefix(const quire_tile_format *k, uint32_t head, const uint8_t *tile,
                                      uint32_t row, uint32_t n, const quire_rows_out *rows)
{
    float x[QUIRE_MAX_D];
    quire_rows_out one = {.form = QUIRE_F32, .data = x};
    for (uint32_t i = 0; i < n; i++) {
        (void)quire_tile_read(k, head, tile, row + i, 1, &one);
        for (uint32_t c = 0; c < k->coder.d_v; c++)
            quire_store_finite(rows->form, (uint8_t *)rows->data + i * rows->token_stride, c, x[c]);
    }
}

quire_status quire_seq_check_export(const quire_seq *seq, uint32_t layer, quire_side side, uint32_t first,
                                    uint32_t n, uint32_t n_columns, quire_rows *rows)
{
    if (!seq || layer >= seq->plan->n_layers || (side != QUIRE_K && side != QUIRE_V)) return QUIRE_EINVAL;
    if (first > seq->length || n > seq->length - first) return QUIRE_EINVAL;
    const quire_planned_layer *l = &seq->plan->layer[layer];
    const quire_table *t = &seq->table[l->group];
    const quire_tile_format *planned = side == QUIRE_K ? &l->k : &l->v;
    quire_tile_format prefix; /* V that is part of K: only floats, of its own size */
    if (side == QUIRE_V && l->shape.v_in_k) {
        if (!quire_form_is_float(rows->form)) return QUIRE_EUNSUPPORTED;
        quire_status status =
            quire_tile_format_init(&prefix, quire_codec_get("f32"), QUIRE_V, l->shape.d_v, 0, NULL, 0);
        if (status) return status;
        planned = &prefix;
    }
    for (uint32_t i = first / QUIRE_PAGE_TOKENS; i < quire_pages_for(first + n) && n; i++) {
        uint32_t entry = quire_table_entry(t, i);
        if (entry == UINT32_MAX) return QUIRE_ERANGE;
        if (quire_form_is_float(rows->form)) continue;
        if (quire_page_format(t->page[entry], l->index, side)->fingerprint != planned->fingerprint)
            return QUIRE_EUNSUPPORTED;
    }
    return quire_rows_check(planned, l->shape.n_kv_heads, n_columns, rows);
}

quire_status quire_seq_export(const quire_seq *seq, uint32_t layer, quire_side side, uint32_t first,
                              uint32_t n, const quire_rows_out *rows)
{
    quire_rows_out own;
    quire_status status = quire_read_sized(&own, sizeof own, rows);
    if (status) return status;
    rows = &own;
    quire_rows dense = quire_rows_of(rows);
    status = quire_seq_check_export(seq, layer, side, first, n, n, &dense);
    if (status) return status;
    const quire_planned_layer *l = &seq->plan->layer[layer];
    const quire_table *t = &seq->table[l->group];
    bool prefix = side == QUIRE_V && l->shape.v_in_k;
    quire_side kept = prefix ? QUIRE_K : side;
    uint32_t mode = quire_float_mode_enter();
    for (uint32_t p = first, run; p < first + n && !status; p += run) {
        uint32_t row = p % QUIRE_PAGE_TOKENS, left = first + n - p;
        run = QUIRE_PAGE_TOKENS - row < left ? QUIRE_PAGE_TOKENS - row : left;
        const quire_page *page = t->page[quire_table_entry(t, p / QUIRE_PAGE_TOKENS)];
        const quire_tile_format *held = quire_page_format(page, l->index, kept);
        for (uint32_t h = 0; h < l->shape.n_kv_heads && !status; h++) {
            quire_rows_out one = quire_rows_out_at(rows, &dense, 0, p - first, h);
            const uint8_t *tile = quire_page_tile(page, l->index, kept, h);
            if (prefix)
                decode_prefix(held, h, tile, row, run, &one);
            else
                status = quire_tile_read(held, h, tile, row, run, &one);
        }
    }
    quire_float_mode_leave(mode);
    return status;
}
