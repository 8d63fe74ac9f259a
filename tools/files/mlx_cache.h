/* SPDX-License-Identifier: MIT */
/*
 * mlx_cache: prompt-cache files of mlx-lm (docs/formats/mlx-cache.md).
 *
 * Layout A was written up to mlx-lm 0.31, layout B is from 0.32 on; neither reads the other. Files of both are read here, and
 * written in the layout and codecs that are asked for.
 */
#ifndef QUIRE_FILES_MLX_CACHE_H
#define QUIRE_FILES_MLX_CACHE_H

#include <quire/quire.h>

#include "files/safetensors.h"

enum { MLX_MAX_LAYERS = 4096 };

typedef enum mlx_layout { MLX_LAYOUT_A, MLX_LAYOUT_B } mlx_layout;

typedef enum mlx_kind {
    MLX_PLAIN,     /* KVCache: floats */
    MLX_QUANTIZED, /* QuantizedKVCache: affine codecs, K and V of one group size */
    MLX_ROTATING,  /* RotatingKVCache: floats, in the order of a ring */
    MLX_EMPTY,     /* nothing was appended yet */
    MLX_OTHER      /* batches, chunks, recurrent states: known by name only */
} mlx_kind;

typedef struct mlx_side {
    const st_tensor *data, *scales, *biases; /* [sequence][head][row][...]; the last two only if quantized */
    uint32_t d, bits, group;                 /* bits 0: floats */
    char codec[16];
} mlx_side;

typedef struct mlx_layer {
    const char *class_name;
    mlx_kind kind;
    mlx_side sides[2]; /* by quire_side */
    uint32_t n_seqs, n_heads;
    uint64_t n_rows; /* that are valid; buffers may be longer, with rows of tokens that were trimmed */
    uint64_t n_buffer_rows;
    uint64_t offset, keep, max_size, index; /* tokens ever seen; the last three of a ring */
} mlx_layer;

typedef struct mlx_cache {
    safetensors file;
    mlx_layout layout;
    mlx_layer *layers;
    uint32_t n_layers;
} mlx_cache;

/* The bytes must outlive the cache. false: message has one sentence, and nothing is to be freed. */
bool mlx_cache_read(mlx_cache *out, const uint8_t *bytes, size_t n, char *message, size_t size);
void mlx_cache_free(mlx_cache *c);

/* Rows [row, row + n) of a head, to be given to the library; copies them into buffer, whose rows are then aligned. */
size_t mlx_rows_buffer_bytes(const mlx_side *side, uint32_t n);
quire_rows mlx_rows(const mlx_layer *layer, quire_side side, uint32_t seq, uint32_t head, uint64_t row,
                    uint32_t n, void *buffer);

typedef struct mlx_convert_options {
    mlx_layout layout;
    const char *codecs[2]; /* of K and V: a float or an affine codec; NULL: as they are */
    void (*progress)(void *ctx, uint32_t layers); /* may be NULL */
    void *ctx;
} mlx_convert_options;

/* Writes the cache anew. Rows whose codec stays are copied bit by bit. counts may be NULL. false: message has one sentence. */
bool mlx_cache_write(const mlx_cache *c, const mlx_convert_options *options, FILE *file, quire_counts *counts,
                     char *message, size_t size);

#endif
