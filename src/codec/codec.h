/* SPDX-License-Identifier: MIT */
/* codec: how one row becomes codes and scales, and back; the registry. */
#ifndef QUIRE_CODEC_CODEC_H
#define QUIRE_CODEC_CODEC_H

#include "core/geometry.h"

#define QUIRE_MAX_GROUPS (QUIRE_MAX_D / 32)

/* How a code becomes a value: s * T(code) + b, with s and b of the code's group. */
typedef enum quire_values {
    QUIRE_VALUES_FLOAT,  /* no codes: the row is kept as f32, f16 or bf16 */
    QUIRE_VALUES_LINEAR, /* T(code) = code - zero */
    QUIRE_VALUES_TABLE   /* T(code) = table[code], signed 8-bit */
} quire_values;

typedef enum quire_rotation {
    QUIRE_ROTATION_NONE,
    QUIRE_ROTATION_PLAIN,  /* "h:": Walsh-Hadamard in blocks, no signs */
    QUIRE_ROTATION_SIGNED, /* r, tq: fixed signs, then Walsh-Hadamard of the whole head */
    QUIRE_ROTATION_TV      /* tv: the same with mlx-vlm's signs, which differ by side and head size */
} quire_rotation;

typedef struct quire_coder quire_coder;
typedef struct quire_tv quire_tv; /* tv.h */

/*
 * One row between floats and bytes. Codes are unsigned, as they lie in tiles. scale and bias are f16 bits,
 * always finite. Float codecs use value only (already rounded to what the codec keeps).
 */
typedef struct quire_coded_row {
    uint8_t code[QUIRE_MAX_D];
    uint16_t scale[QUIRE_MAX_GROUPS];
    uint16_t bias[QUIRE_MAX_GROUPS];
    float value[QUIRE_MAX_D];
} quire_coded_row;

#define QUIRE_ROWS_AT_ONCE 16u
#define QUIRE_ROWS_MAX_D 256u

/* 16 rows of codes with one scale each: vector c / 4 has four neighbouring channels of every row, as K has them in tiles. */
typedef struct quire_coded_rows {
    _Alignas(64) uint8_t vector[QUIRE_ROWS_MAX_D / 4][64];
    uint16_t scale[QUIRE_ROWS_AT_ONCE];
} quire_coded_rows;

/* A registry entry. */
typedef struct quire_codec {
    quire_codec_info info;
    quire_values values;
    quire_form float_form; /* FLOAT */
    bool has_bias;
    uint8_t zero;        /* LINEAR */
    const int8_t *table; /* TABLE: 2^bits entries, ascending */
    quire_rotation rotation;
    uint32_t revision; /* raised if the same input would give other bytes; part of every fingerprint */
    const struct quire_codec
        *sized;         /* tv: the same codec by head size, with tables; NULL: tables do not depend on it */
    const quire_tv *tv; /* tv, bound to a head size */
    /* x: d finite values, calibrated and, except for tv, rotated already. */
    void (*encode)(const quire_coder *coder, const float *x, quire_coded_row *row, quire_counts *counts);
    /* Native row bytes. NULL, or d is not a whole number of groups: the common form (codes as one bit stream,
     * scales, biases). */
    void (*pack)(const quire_coder *coder, const quire_coded_row *row, uint8_t *bytes);
    /* False: not finite. */
    bool (*unpack)(const quire_coder *coder, const uint8_t *bytes, quire_coded_row *row);
} quire_codec;

const quire_codec *quire_codec_get(const char *name); /* NULL if unknown */

/* Whether rows have the form QUIRE_MLX. */
static inline bool quire_codec_has_mlx(const quire_codec *codec)
{
    return codec->info.flags & (QUIRE_CODEC_MLX | QUIRE_CODEC_MLX_VLM);
}

#define QUIRE_MAX_MEANS 15u
#define QUIRE_MEAN_SLOTS (QUIRE_MAX_MEANS + 1) /* of tables by the number of a mean; slot 0 is for none */
/* The last bits of a calibrated row's scale: the number of the mean that was taken out, from 1 on; 0: none. */
#define QUIRE_MEAN_BITS 0xfu

/* Means and weights of one KV head's K channels; all NULL without a profile. */
typedef struct quire_calibration {
    const float *mean;           /* [n_means][d] */
    const float *weight, *q_rms; /* [d] */
    uint32_t n_means;            /* 1 to QUIRE_MAX_MEANS */
} quire_calibration;

/* Mean number i, or NULL: none, or one that the profile does not have (bytes may come from anywhere). */
static inline const float *quire_mean_at(const quire_calibration *cal, uint32_t d, uint32_t i)
{
    return i && i <= cal->n_means ? cal->mean + (size_t)(i - 1) * d : NULL;
}

/* A codec bound to a side and a head size. */
struct quire_coder {
    const quire_codec *codec; /* that of the head size, where tables depend on it */
    quire_side side;
    uint32_t d;        /* values of a row */
    uint32_t d_v;      /* side K: V is its first d_v values; 0: it is not */
    uint32_t d_pad;    /* d rounded up to 16: codes of a row in a tile; the extra codes are 0 */
    uint32_t group;    /* values that share a scale (d_pad for one per row); the last group may be shorter */
    uint32_t n_groups; /* 0 for floats */
    uint32_t block;    /* rotation block, a power of two; 1: none */
};

/* d_v: side K with V in its first d_v channels (rotation blocks must not straddle it), else 0. */
quire_status quire_coder_init(quire_coder *coder, const quire_codec *codec, quire_side side, uint32_t d,
                              uint32_t d_v);

/*
 * f32 row to codes. NaN becomes 0, too large saturates; both are counted. counts may be NULL. A calibrated codec
 * without calibration codes the row as it is and marks it as one without a mean.
 */
void quire_encode_row(const quire_coder *coder, const quire_calibration *cal, const float *x,
                      quire_coded_row *row, quire_counts *counts);
/* The same from a float form. */
void quire_encode_values(const quire_coder *coder, const quire_calibration *cal, quire_form form,
                         const void *data, quire_coded_row *row, quire_counts *counts);
/* Whether quire_encode_rows() can be asked: with the instruction set in use, for this codec and shape. */
bool quire_takes_rows(const quire_coder *coder);
/* 16 rows of a float form, `stride` bytes apart. Bit t of what is returned: row t has to be coded by quire_encode_values(). */
uint32_t quire_encode_rows(const quire_coder *coder, quire_form form, const uint8_t *data, size_t stride,
                           quire_coded_rows *out);
/* What encoding does first: d values brought into the codec's range. Returns y or, if it is that already, data. */
const float *quire_clean_row(const quire_coder *coder, quire_form form, const void *data, float *y,
                             quire_counts *counts);
/* A decoded row to a float form; what it cannot hold becomes its largest value. */
void quire_store_row(const quire_coder *coder, quire_form form, const float *x, void *data);
/* Codes to the f32 row that every error bound speaks of. */
void quire_decode_row(const quire_coder *coder, const quire_calibration *cal, const quire_coded_row *row,
                      float *x);

/* Codes to values, still rotated and calibrated, and without tv's unit: what score and mix work on. y has d values. */
void quire_expand_row(const quire_coder *coder, const quire_coded_row *row, float *y);
/* The number of the mean that was taken out of this row; 0: none, as always without calibration. */
uint32_t quire_row_mean(const quire_coder *coder, const quire_coded_row *row);
/* The mean nearest to a row of d values, as calibrated codecs measure it. *distance, unless NULL: squared. */
uint32_t quire_nearest_mean(const quire_calibration *cal, const float *x, uint32_t d, float *distance);

/*
 * The other halves of expand: score = query . y + mean_score[mean of the row], and value = finish(sum of p * y, sums of p
 * by the mean of the row). Both tables have QUIRE_MEAN_SLOTS; mean_score[0] is 0, mean_sum[0] is not read.
 * quire_prepare_query: q and out have d values and may be the same.
 * quire_finish_value: acc has d values, in place; with V in K the first d_v of them are the result.
 */
void quire_prepare_query(const quire_coder *coder, const quire_calibration *cal, const float *q, float *out,
                         float *mean_score);
void quire_finish_value(const quire_coder *coder, const quire_calibration *cal, float *acc,
                        const float *mean_sum);

/* In place. Rotation and its inverse; d values. */
void quire_rotate(const quire_coder *coder, float *x);
void quire_unrotate(const quire_coder *coder, float *x);

/* --- row_bytes.c: coded rows to and from the bytes of other programs, never re-coding */

size_t quire_row_bytes(const quire_coder *coder);
/* Bytes of the codes as one bit stream, filled up to words of four bytes: MLX's packed row. */
size_t quire_row_code_bytes(const quire_coder *coder);
void quire_row_pack(const quire_coder *coder, const quire_coded_row *row, uint8_t *bytes);
/* Where a row of codes has its scales and biases: n of them, 2 bytes each, at the start of every block. To look at them alone costs
 * much less than to unpack the row. */
typedef struct quire_scale_places {
    size_t first, stride;
    uint32_t n, n_blocks;
} quire_scale_places;

quire_scale_places quire_scale_places_of(const quire_coder *coder);
static inline bool quire_scales_are_finite(quire_scale_places at, const uint8_t *row)
{
    bool finite = true;
    row += at.first;
    for (uint32_t b = 0; b < at.n_blocks; b++, row += at.stride)
        for (uint32_t i = 0; i < at.n; i++) finite &= quire_f16_is_finite(quire_load16(row + (size_t)2 * i));
    return finite;
}
/* EFORMAT: a scale or value is not finite. */
quire_status quire_row_unpack(const quire_coder *coder, const uint8_t *bytes, quire_coded_row *row);
/*
 * MLX: words = ceil(d * bits / 32) little-endian u32; scales and biases n_groups values of scale_form, at any address.
 * The norms of tv are scales, and there are no biases: NULL will do. EUNSUPPORTED: neither an affine codec nor tv, or an
 * affine one whose rows are rotated. Writing scales as bf16 rounds them to 8 bits.
 */
quire_status quire_row_to_mlx(const quire_coder *coder, const quire_coded_row *row, void *words, void *scales,
                              void *biases, quire_form scale_form);
/* EMISMATCH: scales do not fit in f16 or are not finite; the row must be decoded and coded anew (quire_mlx_row_values). */
quire_status quire_row_from_mlx(const quire_coder *coder, const void *words, const void *scales,
                                const void *biases, quire_form scale_form, quire_coded_row *row);
void quire_mlx_row_values(const quire_coder *coder, const void *words, const void *scales, const void *biases,
                          quire_form scale_form, float *x);

/* Hash of everything that decides a row's bytes, except the profile. */
void quire_coder_hash(const quire_coder *coder, quire_hash *h);

/* --- profile.c */

/* Calibration of one head; all NULL if profile is NULL. The profile must be finished and fit. */
quire_calibration quire_profile_head(const quire_profile *profile, uint32_t layer, uint32_t head);
/* Whether the profile is finished and has this layer with these shapes. */
bool quire_profile_fits(const quire_profile *profile, uint32_t layer, uint32_t n_kv_heads, uint32_t d_k);
/* One more owner of a finished profile, which does not change any more; quire_profile_destroy() drops one. */
quire_profile *quire_profile_hold(const quire_profile *profile);
uint32_t quire_profile_n_heads(const quire_profile *profile, uint32_t layer); /* 0 if it has no such layer */
/* Digest of one layer's vectors: layers with other shapes do not change it. */
uint64_t quire_profile_layer_digest(const quire_profile *profile, uint32_t layer);

#endif
