/* SPDX-License-Identifier: MIT */
/* tile: 64 tokens x one KV head x one side: where each code and scale of a row lies (docs/formats/tiles.md). */
#ifndef QUIRE_TILE_TILE_H
#define QUIRE_TILE_TILE_H

#include "codec/codec.h"

#define QUIRE_TILE_ROWS QUIRE_PAGE_TOKENS
#define QUIRE_TILE_LAYOUT 1u /* raised if the place of any byte changes; part of every fingerprint */

struct quire_tile_format {
    quire_coder coder;
    size_t code_bytes;  /* codes, or all values of a float tile */
    size_t bias_offset; /* scales begin at code_bytes */
    size_t tile_bytes;
    uint64_t fingerprint;
    const quire_profile *profile; /* NULL without calibration */
    uint32_t layer;
    uint32_t n_heads;             /* heads the profile knows; UINT32_MAX without calibration */
    quire_profile *owned_profile; /* of quire_tile_format_create() */
    quire_allocator allocator;
};

/* As quire_tile_format_create(), in the caller's memory; the profile is borrowed. */
quire_status quire_tile_format_init(quire_tile_format *format, const quire_codec *codec, quire_side side,
                                    uint32_t d, uint32_t d_v, const quire_profile *profile, uint32_t layer);

static inline quire_calibration quire_tile_format_head(const quire_tile_format *format, uint32_t head)
{
    if (!format->profile) return (quire_calibration){0};
    return quire_profile_head(format->profile, format->layer, head);
}

static inline bool quire_tile_is_aligned(const void *tile)
{
    return (uintptr_t)tile % 64 == 0;
}

/* One coded row into and out of row t of a tile. */
void quire_tile_put(const quire_tile_format *format, void *tile, uint32_t t, const quire_coded_row *row);
void quire_tile_get(const quire_tile_format *format, const void *tile, uint32_t t, quire_coded_row *row);

/* Values of row t as the codec expands them (rotated, calibrated): d floats to y. The number of its mean; 0: none. */
uint32_t quire_tile_expand(const quire_tile_format *format, const void *tile, uint32_t t, float *y);

/* Whether every scale and value is finite, unused rows and padding included: kernels may read those. */
bool quire_tile_finite(const quire_tile_format *format, const void *tile);

/* quire_tile_encode() and quire_tile_decode() for structures of our own size. */
quire_status quire_tile_write(const quire_tile_format *format, uint32_t head, void *tile, uint32_t row,
                              uint32_t n, const quire_rows *rows, quire_counts *counts);
quire_status quire_tile_read(const quire_tile_format *format, uint32_t head, const void *tile, uint32_t row,
                             uint32_t n, const quire_rows_out *rows);

/* The caller's structure in ours. */
quire_status quire_rows_read(quire_rows *own, const quire_rows *rows);
/* Byte offsets of one row and of its scales in a caller's block. */
typedef struct quire_row_address {
    size_t data, scales;
} quire_row_address;

/* Checks that rows of this form can go into or come out of this format, and fills in strides that are 0: dense,
 * n_heads heads, n_tokens tokens of a sequence. */
quire_status quire_rows_check(const quire_tile_format *format, uint32_t n_heads, uint32_t n_tokens,
                              quire_rows *rows);
/* Whether a row has a scale that is not finite. Only a codec's own bytes can: MLX's rows are encoded again instead. dense: rows that
 * quire_rows_check() has accepted. */
bool quire_rows_are_damaged(const quire_tile_format *format, uint32_t n_heads, uint32_t n_tokens,
                            const quire_rows *dense);
/* The same block seen as one to read. */
quire_rows quire_rows_of(const quire_rows_out *out);
/* Bytes of one row and of its scales. */
quire_row_address quire_rows_one(const quire_tile_format *format, quire_form form, quire_form scale_form);
/* The block from sequence, token and head on. Strides must be filled in; those of an output block are in `dense`. */
quire_rows quire_rows_at(const quire_rows *dense, size_t seq, size_t token, size_t head);
quire_rows_out quire_rows_out_at(const quire_rows_out *out, const quire_rows *dense, size_t seq, size_t token,
                                 size_t head);

#endif
