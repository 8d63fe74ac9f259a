/* SPDX-License-Identifier: MIT */
/* attend: tile lists: everything about tiles that does not depend on the queries, checked once. */
#include "attend/tile_list.h"

#define MAX_LAYOUTS 256u /* of one sequence */

void quire_tile_list_init(quire_tile_list *list, const quire_allocator *allocator)
{
    *list = (quire_tile_list){.allocator = *allocator};
}

void quire_tile_list_fini(quire_tile_list *list)
{
    const quire_allocator *a = &list->allocator;
    quire_free(a, list->seq, sizeof *list->seq * list->cap_seqs);
    quire_free(a, list->tile, sizeof *list->tile * list->cap_tiles);
    quire_free(a, list->split, sizeof *list->split * list->cap_splits);
    quire_free(a, list->used, sizeof *list->used * list->cap_used);
    quire_free(a, list->layout, sizeof *list->layout * list->cap_layouts);
    quire_free(a, list->layer, sizeof *list->layer * list->cap_layers);
}

quire_status quire_tile_list_create(quire_tile_list **out, const quire_allocator *allocator)
{
    quire_allocator a;
    if (!out) return QUIRE_EINVAL;
    quire_status status = quire_allocator_read(&a, allocator);
    if (status) return status;
    quire_tile_list *list = (quire_tile_list *)quire_alloc(&a, sizeof *list);
    if (!list) return QUIRE_ENOMEM;
    quire_tile_list_init(list, &a);
    *out = list;
    return QUIRE_OK;
}

void quire_tile_list_destroy(quire_tile_list *list)
{
    if (!list) return;
    quire_allocator a = list->allocator;
    quire_tile_list_fini(list);
    quire_free(&a, list, sizeof *list);
}

static quire_list_counts counts_of(const quire_tile_list *list)
{
    return (quire_list_counts){list->n_seqs, list->n_tiles,   list->n_splits,
                               list->n_used, list->n_layouts, list->n_layers};
}

static void set_counts(quire_tile_list *list, quire_list_counts n)
{
    list->n_seqs = n.n_seqs;
    list->n_tiles = n.n_tiles;
    list->n_splits = n.n_splits;
    list->n_used = n.n_used;
    list->n_layouts = n.n_layouts;
    list->n_layers = n.n_layers;
}

void quire_tile_list_clear(quire_tile_list *list)
{
    if (list) set_counts(list, (quire_list_counts){0});
}

uint32_t quire_tile_list_count(const quire_tile_list *list)
{
    return list ? list->n_seqs : 0;
}

/* ----------------------------------------------------------- one sequence */

quire_status quire_tile_list_begin(quire_tile_list *list, uint32_t n_layers, uint32_t n_tiles)
{
    const quire_allocator *a = &list->allocator;
    list->before = counts_of(list);
    if (n_tiles > UINT32_MAX - list->n_tiles || list->n_seqs == UINT32_MAX) return QUIRE_EINVAL;
    if (!quire_grow_raw(a, &list->seq, &list->cap_seqs, list->n_seqs, list->n_seqs + 1, sizeof *list->seq) ||
        !quire_grow_raw(a, &list->tile, &list->cap_tiles, list->n_tiles, list->n_tiles + n_tiles,
                        sizeof *list->tile))
        return QUIRE_ENOMEM;
    list->seq[list->n_seqs] = (quire_list_seq){
        .first_tile = list->n_tiles,
        .first_split = list->n_splits,
        .first_used = list->n_used,
        .n_layers = n_layers,
    };
    return QUIRE_OK;
}

/* Whether the tiles of all heads lie apart and aligned. */
static bool heads_are_apart(uintptr_t first, size_t stride, const quire_tile_format *f, uint32_t n_heads)
{
    size_t bytes = f->tile_bytes;
    if (first % 64) return false;
    return n_heads == 1 ||
           (stride % 64 == 0 && stride >= f->tile_bytes && quire_extend(&bytes, n_heads, stride));
}

static quire_status check_layer(const quire_list_layer *l)
{
    if (!l->k_format || !l->n_heads || l->k_format->coder.side != QUIRE_K) return QUIRE_EINVAL;
    if (l->v_format ? l->v_format->coder.side != QUIRE_V : !l->k_format->coder.d_v) return QUIRE_EINVAL;
    if (l->n_heads > l->k_format->n_heads || l->n_heads > quire_list_value_format(l)->n_heads)
        return QUIRE_EINVAL;
    if (!heads_are_apart(l->k, l->k_head_stride, l->k_format, l->n_heads)) return QUIRE_EINVAL;
    if (l->v_format && !heads_are_apart(l->v, l->v_head_stride, l->v_format, l->n_heads)) return QUIRE_EINVAL;
    return QUIRE_OK;
}

static quire_status add_layout(quire_tile_list *list, const quire_list_seq *seq, quire_layout_key key,
                               quire_fill_layers_fn *fill, const void *ctx)
{
    const quire_allocator *a = &list->allocator;
    if (seq->n_layers > UINT32_MAX - list->n_layers) return QUIRE_EINVAL;
    if (!quire_grow_raw(a, &list->layout, &list->cap_layouts, list->n_layouts, list->n_layouts + 1,
                        sizeof *list->layout) ||
        !quire_grow_raw(a, &list->layer, &list->cap_layers, list->n_layers, list->n_layers + seq->n_layers,
                        sizeof *list->layer))
        return QUIRE_ENOMEM;
    quire_list_layer *layer = list->layer + list->n_layers;
    fill(ctx, layer);
    for (uint32_t i = 0; i < seq->n_layers; i++) {
        quire_status status = check_layer(&layer[i]);
        if (status) return status;
    }
    list->layout[list->n_layouts++] = (quire_list_layout){key, list->n_layers, seq->n_layers};
    list->n_layers += seq->n_layers;
    return QUIRE_OK;
}

static bool is_layout(const quire_list_layout *l, const quire_list_seq *seq, const quire_layout_key *key)
{
    return l->n_layers == seq->n_layers && memcmp(&l->key, key, sizeof *key) == 0;
}

/* All tiles of a sequence have the same shape in each layer. */
static bool shapes_agree(const quire_list_layer *a, const quire_list_layer *b, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (a[i].n_heads != b[i].n_heads || a[i].k_format->coder.d != b[i].k_format->coder.d ||
            quire_list_d_v(&a[i]) != quire_list_d_v(&b[i]))
            return false;
    return true;
}

/* Which layout of its sequence a tile has. */
static quire_status use_layout(quire_tile_list *list, quire_list_seq *seq, quire_layout_key key,
                               quire_fill_layers_fn *fill, const void *ctx, uint32_t *out)
{
    for (uint32_t i = seq->n_used; i-- > 0;) /* the last one first: it is that almost always */
        if (is_layout(&list->layout[list->used[seq->first_used + i]], seq, &key)) {
            *out = i;
            return QUIRE_OK;
        }
    if (seq->n_used == MAX_LAYOUTS) return QUIRE_EUNSUPPORTED;
    uint32_t at = list->n_layouts;
    /* Those of the sequences before are most likely the same; few lists have more than a handful. */
    for (uint32_t i = 0; i < list->n_layouts && i < MAX_LAYOUTS; i++)
        if (is_layout(&list->layout[i], seq, &key)) at = i;
    if (at == list->n_layouts) {
        quire_status status = add_layout(list, seq, key, fill, ctx);
        if (status) return status;
    }
    if (seq->n_used && !shapes_agree(list->layer + list->layout[list->used[seq->first_used]].first_layer,
                                     list->layer + list->layout[at].first_layer, seq->n_layers))
        return QUIRE_EINVAL;
    if (!quire_grow_raw(&list->allocator, &list->used, &list->cap_used, list->n_used, list->n_used + 1,
                        sizeof *list->used))
        return QUIRE_ENOMEM;
    list->used[list->n_used++] = at;
    *out = seq->n_used++;
    return QUIRE_OK;
}

quire_status quire_tile_list_push(quire_tile_list *list, const quire_list_tile *tile, quire_layout_key key,
                                  quire_fill_layers_fn *fill, const void *ctx)
{
    quire_list_seq *seq = &list->seq[list->n_seqs];
    uint32_t layout, split = tile->first / QUIRE_SPLIT_TOKENS;
    if (tile->n_rows > QUIRE_TILE_ROWS || tile->first > (uint32_t)INT32_MAX || tile->k % 64 || tile->v % 64)
        return QUIRE_EINVAL;
    quire_status status = use_layout(list, seq, key, fill, ctx, &layout);
    if (status) return status;
    if (!seq->n_tiles || list->tile[list->n_tiles - 1].first / QUIRE_SPLIT_TOKENS != split) {
        if (!quire_grow_raw(&list->allocator, &list->split, &list->cap_splits, list->n_splits,
                            list->n_splits + 1, sizeof *list->split))
            return QUIRE_ENOMEM;
        list->split[list->n_splits++] = (quire_split){seq->n_tiles, seq->n_tiles};
        seq->n_splits++;
    }
    list->tile[list->n_tiles] = *tile;
    list->tile[list->n_tiles++].layout = (uint16_t)layout;
    list->split[list->n_splits - 1].end = ++seq->n_tiles;
    return QUIRE_OK;
}

quire_status quire_tile_list_end(quire_tile_list *list, quire_status status)
{
    if (status)
        set_counts(list, list->before);
    else
        list->n_seqs++;
    return status;
}

/* ------------------------------------------------------------------- tiles */

typedef struct ref_of_heads {
    const quire_tile_ref *ref;
    uint32_t n_heads;
} ref_of_heads;

static void fill_from_ref(const void *ctx, quire_list_layer *layer)
{
    const ref_of_heads *r = (const ref_of_heads *)ctx;
    *layer = (quire_list_layer){
        .k_head_stride = r->ref->k_head_stride ? r->ref->k_head_stride : r->ref->k_format->tile_bytes,
        .k_format = r->ref->k_format,
        .n_heads = r->n_heads,
    };
    if (!r->ref->v) return;
    layer->v_head_stride = r->ref->v_head_stride ? r->ref->v_head_stride : r->ref->v_format->tile_bytes;
    layer->v_format = r->ref->v_format;
}

quire_status quire_tile_list_add_tiles(quire_tile_list *list, const quire_tile_ref *tiles, uint32_t n_tiles,
                                       size_t tile_stride, uint32_t n_kv_heads)
{
    if (!list || (n_tiles && !tiles)) return QUIRE_EINVAL;
    quire_status status = quire_tile_list_begin(list, 1, n_tiles);
    for (uint32_t i = 0; i < n_tiles && !status; i++) {
        quire_tile_ref ref;
        status = quire_read_element(&ref, sizeof ref, tiles, tile_stride, i);
        if (status) break;
        if (!ref.k || !ref.k_format || (ref.v && !ref.v_format) || ref.n_rows > QUIRE_TILE_ROWS) {
            status = QUIRE_EINVAL;
            break;
        }
        quire_list_tile tile = {
            .k = (uintptr_t)ref.k, .v = (uintptr_t)ref.v, .first = ref.first, .n_rows = (uint16_t)ref.n_rows};
        /* By fingerprints, not by addresses: equal formats may be several objects. */
        quire_layout_key key = {{ref.k_format->fingerprint, ref.v ? ref.v_format->fingerprint : 0,
                                 ref.k_head_stride, ref.v ? ref.v_head_stride : 0, n_kv_heads}};
        ref_of_heads ctx = {&ref, n_kv_heads};
        status = quire_tile_list_push(list, &tile, key, fill_from_ref, &ctx);
    }
    return quire_tile_list_end(list, status);
}

/* ------------------------------------------------------------ paged memory */

static void fill_from_memory(const void *ctx, quire_list_layer *layer)
{
    const quire_paged_memory *m = (const quire_paged_memory *)ctx;
    for (uint32_t i = 0; i < m->n_layers; i++)
        layer[i] = (quire_list_layer){
            .k = (uintptr_t)m->k + i * m->k_layer_stride,
            .v = m->v ? (uintptr_t)m->v + i * m->v_layer_stride : 0,
            .k_head_stride = m->k_head_stride,
            .v_head_stride = m->v_head_stride,
            .k_format = m->k_format,
            .v_format = m->v ? m->v_format : NULL,
            .n_heads = m->n_kv_heads,
        };
}

/* Whether the tiles of one side lie apart, and where the last of them lies can be computed. */
static bool tiles_are_apart(const quire_paged_memory *m, quire_side side)
{
    bool is_k = side == QUIRE_K;
    const struct {
        uint32_t n;
        size_t stride;
    } by[] = {
        {m->n_blocks, is_k ? m->k_block_stride : m->v_block_stride},
        {m->block_tokens / QUIRE_PAGE_TOKENS, is_k ? m->k_tile_stride : m->v_tile_stride},
        {m->n_kv_heads, is_k ? m->k_head_stride : m->v_head_stride},
        {m->n_layers, is_k ? m->k_layer_stride : m->v_layer_stride},
    };
    size_t tile = (is_k ? m->k_format : m->v_format)->tile_bytes, bytes = tile;
    if ((uintptr_t)(is_k ? m->k : m->v) % 64) return false;
    for (size_t i = 0; i < sizeof by / sizeof *by; i++) {
        if (by[i].n < 2) continue; /* its stride is not used */
        if (by[i].stride % 64 || by[i].stride < tile || !quire_extend(&bytes, by[i].n, by[i].stride))
            return false;
    }
    return true;
}

quire_status quire_paged_memory_read(quire_paged_memory *own, const quire_paged_memory *memory)
{
    quire_status status = quire_read_sized(own, sizeof *own, memory);
    if (status) return status;
    if (!own->k || !own->k_format || (own->v && !own->v_format) || !own->n_kv_heads || !own->n_layers)
        return QUIRE_EINVAL;
    if (own->n_kv_heads > QUIRE_MAX_HEADS || own->n_layers > QUIRE_MAX_LAYERS) return QUIRE_EINVAL;
    if (!own->block_tokens || own->block_tokens % QUIRE_PAGE_TOKENS || own->n_blocks > (uint32_t)INT32_MAX)
        return QUIRE_EINVAL;
    bool apart = tiles_are_apart(own, QUIRE_K) && (!own->v || tiles_are_apart(own, QUIRE_V));
    return apart ? QUIRE_OK : QUIRE_EINVAL;
}

static quire_status add_blocks(quire_tile_list *list, const quire_paged_memory *m, quire_layout_key key,
                               const int32_t *blocks, uint32_t length)
{
    uint32_t n_tiles = length / QUIRE_PAGE_TOKENS + (length % QUIRE_PAGE_TOKENS != 0);
    uint32_t tiles_per_block = m->block_tokens / QUIRE_PAGE_TOKENS;
    quire_status status = quire_tile_list_begin(list, m->n_layers, n_tiles);
    for (uint32_t i = 0; i < n_tiles && !status; i++) {
        int32_t block = blocks[i / tiles_per_block];
        if (block < 0 || (uint32_t)block >= m->n_blocks) {
            status = QUIRE_EINVAL;
            break;
        }
        uint32_t left = length - i * QUIRE_PAGE_TOKENS;
        quire_list_tile tile = {
            .k = (size_t)block * m->k_block_stride + i % tiles_per_block * m->k_tile_stride,
            .v = m->v ? (size_t)block * m->v_block_stride + i % tiles_per_block * m->v_tile_stride : 0,
            .first = i * QUIRE_PAGE_TOKENS,
            .n_rows = (uint16_t)(left < QUIRE_PAGE_TOKENS ? left : QUIRE_PAGE_TOKENS),
        };
        status = quire_tile_list_push(list, &tile, key, fill_from_memory, m);
    }
    return quire_tile_list_end(list, status);
}

/* Whether a row of the table is long enough. One row alone needs no stride. */
static bool row_has(const quire_block_table *t, uint32_t block_tokens, uint32_t length)
{
    size_t n_blocks = length / block_tokens + (length % block_tokens != 0);
    return n_blocks <= t->row_stride / sizeof(int32_t) || (t->n_seqs == 1 && !t->row_stride);
}

quire_status quire_tile_list_add_blocks(quire_tile_list *list, const quire_block_table *table)
{
    quire_block_table t;
    quire_paged_memory m;
    if (!list) return QUIRE_EINVAL;
    quire_status status = quire_read_sized(&t, sizeof t, table);
    if (status) return status;
    if (t.reserved || (t.n_seqs && (!t.blocks || !t.lengths))) return QUIRE_EINVAL;
    if (((uintptr_t)t.blocks | (uintptr_t)t.lengths | t.row_stride) % sizeof(int32_t)) return QUIRE_EINVAL;
    status = quire_paged_memory_read(&m, t.memory);
    if (status) return status;
    quire_list_counts before = counts_of(list); /* of all sequences of the table */
    /* No other call can give the same key: the number of layouts grows with each. */
    quire_layout_key key = {{(uintptr_t)m.k, (uintptr_t)m.v, list->n_layouts, 0, QUIRE_KEY_BLOCKS}};
    for (uint32_t i = 0; i < t.n_seqs && !status; i++) {
        const int32_t *blocks = (const int32_t *)(const void *)((const uint8_t *)t.blocks + i * t.row_stride);
        bool fits = t.lengths[i] >= 0 && row_has(&t, m.block_tokens, (uint32_t)t.lengths[i]);
        status = fits ? add_blocks(list, &m, key, blocks, (uint32_t)t.lengths[i]) : QUIRE_EINVAL;
    }
    if (status) set_counts(list, before);
    return status;
}
