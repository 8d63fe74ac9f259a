/* SPDX-License-Identifier: MIT */
/* attend: tile lists. Inside of the rung, and for the cache, which adds its pages to them. */
#ifndef QUIRE_ATTEND_TILE_LIST_H
#define QUIRE_ATTEND_TILE_LIST_H

#include "tile/tile.h"

/* Formats of one side that the tiles of a sequence may have. A plan brings two (ordinary and sink pages). */
#define QUIRE_MAX_FORMATS 16u

/*
 * Tokens whose tiles make one partial result. Partial results are always cut at multiples of this position and
 * always folded in order, so that the result is the same whoever computes which one.
 */
#define QUIRE_SPLIT_TOKENS 1024u

/* Adds the distance from the first to the last of n things to *bytes, which is at most SIZE_MAX / 2. False: it would exceed that;
 * nothing has changed. */
static inline bool quire_extend(size_t *bytes, uint64_t n, size_t stride)
{
    if (n < 2) return true;
    if (stride > (SIZE_MAX / 2 - *bytes) / (n - 1)) return false;
    *bytes += (size_t)(n - 1) * stride;
    return true;
}

/* Tiles [begin, end) of a sequence. */
typedef struct quire_split {
    uint32_t begin, end;
} quire_split;

/*
 * One tile per layer. Its K tile of a layer begins at this k plus that of the layer, the V tile likewise: a page has its address
 * here and the layer's offset there, a block of paged memory the other way round.
 */
typedef struct quire_list_tile {
    uintptr_t k, v;
    uint32_t first;
    uint16_t n_rows;
    uint16_t layout; /* which one of its sequence */
} quire_list_tile;

typedef struct quire_list_layer {
    uintptr_t k, v;
    size_t k_head_stride, v_head_stride;
    const quire_tile_format *k_format;
    const quire_tile_format *v_format; /* NULL: V is part of K */
    uint32_t n_heads;
} quire_list_layer;

static inline const quire_tile_format *quire_list_value_format(const quire_list_layer *layer)
{
    return layer->v_format ? layer->v_format : layer->k_format;
}

static inline uint32_t quire_list_d_v(const quire_list_layer *layer)
{
    return layer->v_format ? layer->v_format->coder.d : layer->k_format->coder.d_v;
}

/* What a layout is known by while tiles are added. The last word says of what kind it is: the number of heads (tile references),
 * QUIRE_KEY_PAGE or QUIRE_KEY_BLOCKS. */
#define QUIRE_KEY_PAGE UINT64_MAX
#define QUIRE_KEY_BLOCKS (UINT64_MAX - 1)
typedef struct quire_layout_key {
    uint64_t word[5];
} quire_layout_key;

typedef struct quire_list_layout {
    quire_layout_key key;
    uint32_t first_layer, n_layers; /* in the list's array of layers */
} quire_list_layout;

typedef struct quire_list_seq {
    uint32_t first_tile, n_tiles;
    uint32_t first_split, n_splits;
    uint32_t first_used, n_used; /* its layouts, in the list's array of used ones */
    uint32_t n_layers;
} quire_list_seq;

/* How full the arrays of a list are: all that has to be put back if adding fails. */
typedef struct quire_list_counts {
    uint32_t n_seqs, n_tiles, n_splits, n_used, n_layouts, n_layers;
} quire_list_counts;

struct quire_tile_list {
    quire_allocator allocator;
    uint32_t n_seqs, cap_seqs, n_tiles, cap_tiles, n_splits, cap_splits, n_used, cap_used;
    uint32_t n_layouts, cap_layouts, n_layers, cap_layers;
    quire_list_seq *seq;
    quire_list_tile *tile;
    quire_split *split;
    uint32_t *used;
    quire_list_layout *layout;
    quire_list_layer *layer;
    quire_list_counts before; /* the sequence that is being added */
};

void quire_tile_list_init(quire_tile_list *list, const quire_allocator *allocator);
void quire_tile_list_fini(quire_tile_list *list);

/* Adding a sequence: begin, push each tile, end. If the status given to end, or end itself, is not OK, the list is as it was. */
quire_status quire_tile_list_begin(quire_tile_list *list, uint32_t n_layers, uint32_t n_tiles);
/* fill writes the layers of a layout that the list does not know yet. */
typedef void quire_fill_layers_fn(const void *ctx, quire_list_layer *layers);
quire_status quire_tile_list_push(quire_tile_list *list, const quire_list_tile *tile, quire_layout_key key,
                                  quire_fill_layers_fn *fill, const void *ctx);
quire_status quire_tile_list_end(quire_tile_list *list, quire_status status);

/* The caller's paged memory, checked except for its formats. */
quire_status quire_paged_memory_read(quire_paged_memory *own, const quire_paged_memory *memory);

static inline const quire_list_layer *quire_list_layer_at(const quire_tile_list *list,
                                                          const quire_list_seq *seq, uint32_t used,
                                                          uint32_t layer)
{
    return &list->layer[list->layout[list->used[seq->first_used + used]].first_layer + layer];
}

#endif
