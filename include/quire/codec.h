/* SPDX-License-Identifier: MIT */
/* codec.h: codecs, and blocks of rows in the caller's memory. */
#ifndef QUIRE_CODEC_H
#define QUIRE_CODEC_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------ codecs */
/* Interface: stable. */

/*
 * Codec names; the first number is the bits of a code. r2 to r6 and r8 are Quire's own: the row is rotated and has one
 * scale. a2g32 to a6g128 and a8g32 to a8g128 are MLX's affine codes: a4g64 has a scale and a bias for every 64 values. q8_0 to q4_0 and iq4_nl are
 * llama.cpp's blocks, tq2 to tq4 TurboQuant, tv2 to tv6 TurboQuant as mlx-vlm keeps it (head sizes 16 to 512, powers of
 * two). f32, f16 and bf16 are not quantized. The prefix h:, before an a, q or iq name, rotates the row first. The prefix
 * c:, before an r name, calibrates it with a profile and is for K only. A pair is written K/V: c:r5/r4 keeps K in c:r5
 * and V in r4. docs/codecs.md lists all.
 */
typedef enum quire_side { QUIRE_K = 0, QUIRE_V = 1 } quire_side;

enum {
    QUIRE_CODEC_FLOAT = 1,      /* keeps floats, no codes */
    QUIRE_CODEC_ROTATED = 2,    /* the row is rotated before it is encoded */
    QUIRE_CODEC_CALIBRATED = 4, /* needs a profile; K only */
    QUIRE_CODEC_MLX = 8,        /* rows convert to MLX's packed arrays without being encoded again */
    QUIRE_CODEC_GGML = 16,      /* rows convert to ggml's blocks without being encoded again */
    QUIRE_CODEC_MLX_VLM = 32    /* rows convert to mlx-vlm's TurboQuant state without being encoded again */
};

typedef struct quire_codec_info {
    size_t size;         /* of the library's structure */
    const char *name;    /* "a4g64" */
    const char *summary; /* one line of text for users */
    uint32_t bits;       /* per code; 16 or 32 for floats */
    uint32_t group;      /* number of values that share a scale; 0: the whole row */
    uint32_t flags;      /* QUIRE_CODEC_... */
    uint32_t reserved;
} quire_codec_info;

/* The codec registry, in a fixed order. It stays valid for the life of the process. quire_codec_bits() counts
 * everything that is stored: codes, scales, biases and padding. */
QUIRE_API uint32_t quire_codec_count(void);
QUIRE_API const quire_codec_info *quire_codec_at(uint32_t index);     /* NULL past the end */
QUIRE_API const quire_codec_info *quire_codec_find(const char *name); /* NULL if unknown */
QUIRE_API size_t quire_codec_row_bytes(const char *name, uint32_t d); /* QUIRE_NATIVE form; 0: no such rows */
QUIRE_API double quire_codec_bits(const char *name,
                                  uint32_t d); /* per value, scales included; 0: no such rows */

/* What the library had to change while it encoded rows. Calls add to these counts. */
typedef struct quire_counts {
    size_t size;
    uint64_t nan;       /* values that were NaN and became 0 */
    uint64_t saturated; /* values or scales that were too large */
    uint64_t recoded;   /* imported rows that were encoded again because their scales do not fit the codec */
} quire_counts;

/* -------------------------------------------------------------------- rows */
/* Interface: stable. */

/*
 * A block of rows in the caller's memory: n tokens x heads. Its form says how the values lie there; how they lie in a tile is
 * a quire_tile_format (tile.h).
 *   F32 F16 BF16  values
 *   NATIVE        the codec's own bytes (docs/formats/rows.md); for ggml's codecs these are ggml's blocks
 *   MLX           packed words in data; scales and biases in separate arrays of type scale_form. For tv codecs these are
 *                 mlx-vlm's indices and norms; there are no biases, and NULL will do
 * A zero stride defaults to dense [token][head] order; for any other layout set all strides.
 * codec names the codec of NATIVE and MLX rows; the call returns EMISMATCH if the layer uses another codec. With NULL
 * nothing is checked, and the caller must make sure that the codec is the right one.
 */
typedef enum quire_form { QUIRE_F32 = 0, QUIRE_F16, QUIRE_BF16, QUIRE_NATIVE, QUIRE_MLX } quire_form;

typedef struct quire_rows {
    size_t size;
    quire_form form, scale_form;
    const void *data, *scales, *biases;
    size_t token_stride, head_stride, seq_stride;                   /* of data; seq_stride is for batches */
    size_t scale_token_stride, scale_head_stride, scale_seq_stride; /* of scales and biases */
    const char *codec;
} quire_rows;

typedef struct quire_rows_out { /* the same, for rows that the library writes */
    size_t size;
    quire_form form, scale_form;
    void *data, *scales, *biases;
    size_t token_stride, head_stride, seq_stride;
    size_t scale_token_stride, scale_head_stride, scale_seq_stride;
    const char *codec;
} quire_rows_out;

#ifdef __cplusplus
}
#endif
#endif
