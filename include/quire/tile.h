/* SPDX-License-Identifier: MIT */
/* tile.h: tiles, for hosts that keep their own page tables. A tile holds K or V of 64 tokens of one KV head. */
#ifndef QUIRE_TILE_H
#define QUIRE_TILE_H

#include "codec.h"
#include "profile.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------ format */
/* Interface: stable. */

/* A codec for one side and one head size. It defines where each code lies in a tile. */
typedef struct quire_tile_format quire_tile_format;

typedef struct quire_tile_format_options {
    size_t size;
    quire_side side;
    uint32_t d;                       /* head size */
    uint32_t d_v;                     /* for side K whose first d_v channels are V; else 0 */
    uint32_t layer;                   /* the layer of the profile to use */
    const quire_profile *profile;     /* for "c:" codecs; the format shares it, so you may destroy yours */
    const quire_allocator *allocator; /* copied */
} quire_tile_format_options;

/* Destroy it after the last use of tiles and lists that name it. EUNSUPPORTED: the codec cannot keep rows of this head size.
 * EMISMATCH: the profile is not finished, or has no such layer of this head size. */
QUIRE_API quire_status quire_tile_format_create(quire_tile_format **out, const char *codec,
                                                const quire_tile_format_options *options);
QUIRE_API void quire_tile_format_destroy(quire_tile_format *format);
QUIRE_API size_t quire_tile_bytes(const quire_tile_format *format); /* a multiple of 64 */
QUIRE_API uint64_t quire_tile_format_fingerprint(const quire_tile_format *format);

/* -------------------------------------------------------------------- tile */
/* Interface: stable. */

/*
 * Encode, decode or clear rows [row, row + n) in the tile of one KV head. rows points at that head's first row. A new
 * tile must be zeroed and aligned to 64 bytes. Rows are independent of each other, but two threads must not write to one
 * tile at once. head matters to calibrated formats only. counts may be NULL. Clearing passes over rows from 64 on. EFORMAT: a
 * NATIVE row has a scale that is NaN or infinite; no row was written.
 */
QUIRE_API quire_status quire_tile_encode(const quire_tile_format *format, uint32_t head, void *tile,
                                         uint32_t row, uint32_t n, const quire_rows *rows,
                                         quire_counts *counts);
QUIRE_API quire_status quire_tile_decode(const quire_tile_format *format, uint32_t head, const void *tile,
                                         uint32_t row, uint32_t n, const quire_rows_out *rows);
QUIRE_API void quire_tile_clear(const quire_tile_format *format, void *tile, uint32_t row, uint32_t n);
/* Copies rows between the tiles of one head, code by code: row i of the n goes from row rows[i] of tiles[i] to row `row` + i. */
QUIRE_API quire_status quire_tile_gather(const quire_tile_format *format, void *tile, uint32_t row,
                                         uint32_t n, const void *const *tiles, const uint8_t *rows);

/*
 * The K and V tiles of 64 or fewer tokens, for all KV heads, aligned to 64 bytes. The tile of head h starts h *
 * head_stride bytes after that of head 0 (stride 0: tiles follow each other directly). A host whose cells hold tokens in
 * any order sets first to the index of the first cell, sets QUIRE_ATTEND_BIDIRECTIONAL, and controls what is visible
 * with the mask. Passed in arrays.
 */
typedef struct quire_tile_ref {
    const void *k, *v; /* v NULL: V is part of K, whose format has d_v */
    size_t k_head_stride, v_head_stride;
    const quire_tile_format *k_format, *v_format;
    uint32_t first; /* position of row 0, and its column in the mask */
    uint32_t n_rows;
} quire_tile_ref;

/* ------------------------------------------------------------ paged memory */
/* Interface: experimental. */

/*
 * Memory that a host divides into blocks of block_tokens tokens each, for all layers, as engines with block tables do. Tile t
 * (tokens 64 t to 64 t + 63) of block b, head h and layer l begins at
 * k + b * k_block_stride + t * k_tile_stride + h * k_head_stride + l * k_layer_stride, and the same for V.
 * All of it is aligned to 64 bytes and zeroed before its first use. A block that is used again need not be zeroed. A stride of
 * which there is more than one (block, tile of a block, head, layer) is at least the size of a tile.
 */
typedef struct quire_paged_memory {
    size_t size;
    void *k, *v; /* v NULL: V is part of K, whose format has d_v */
    size_t k_block_stride, k_tile_stride, k_head_stride, k_layer_stride;
    size_t v_block_stride, v_tile_stride, v_head_stride, v_layer_stride;
    const quire_tile_format *k_format, *v_format;
    uint32_t n_blocks;
    uint32_t block_tokens; /* a multiple of 64 */
    uint32_t n_kv_heads;
    uint32_t n_layers;
} quire_paged_memory;

/* Which blocks hold the tokens of n_seqs sequences. The blocks of sequence i begin i * row_stride bytes after blocks. A row has room
 * for all blocks that the sequence's length needs; a single sequence may have stride 0. */
typedef struct quire_block_table {
    size_t size;
    const quire_paged_memory *memory;
    const int32_t *blocks;
    size_t row_stride;
    const int32_t *lengths; /* tokens of each sequence, those of this step included */
    uint32_t n_seqs;
    uint32_t reserved;
} quire_block_table;

/* --------------------------------------------------------------- tile list */
/* Interface: experimental. */

/*
 * The tiles of one or more sequences, checked and prepared once, for use by every layer and by any number of calls of
 * quire_attend(). A list refers to tiles and formats; it does not own them: all that was added must stay until the list is cleared
 * or destroyed. Only one thread at a time may change a list; several may attend with it.
 */
typedef struct quire_tile_list quire_tile_list;

QUIRE_API quire_status quire_tile_list_create(quire_tile_list **out, const quire_allocator *allocator);
QUIRE_API void quire_tile_list_destroy(quire_tile_list *list);
QUIRE_API void quire_tile_list_clear(quire_tile_list *list); /* keeps its memory for the next step */
QUIRE_API uint32_t quire_tile_list_count(const quire_tile_list *list); /* sequences added so far */
/*
 * Add sequences to the list; they are numbered in the order of these calls. All tiles of a sequence have the same number of KV heads
 * and the same head sizes; sequences may differ. If a call fails, the list is as it was before. EINVAL: a tile, length or block is
 * outside its documented range. EUNSUPPORTED: more than 256 different combinations of formats and strides in one sequence; at most
 * 16 formats of one side can be used by quire_attend().
 */
/* One sequence of one layer. */
QUIRE_API quire_status quire_tile_list_add_tiles(quire_tile_list *list, const quire_tile_ref *tiles,
                                                 uint32_t n_tiles, size_t tile_stride, uint32_t n_kv_heads);
/* n_seqs sequences of the memory's layers. Blocks behind the last one that a length needs are not read. */
QUIRE_API quire_status quire_tile_list_add_blocks(quire_tile_list *list, const quire_block_table *table);

#ifdef __cplusplus
}
#endif
#endif
