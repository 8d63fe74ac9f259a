/* SPDX-License-Identifier: MIT */
/* registry: the list of codecs, and what its lines refer to. */
#ifndef QUIRE_CODEC_REGISTRY_H
#define QUIRE_CODEC_REGISTRY_H

#include "codec/codec.h"

/*
 * One line per codec; the prefixed forms ("c:" of ROW, "h:" of AFFINE and GGML) follow from the same line.
 *   FLOAT(name, bits, form)
 *   AFFINE(bits, group)
 *   GGML(name, bits, values, zero, has_bias, table)   encoder: quire_encode_<name>
 *   ROW(bits, values, zero, table, encoder)
 *   TURBO(bits, table)
 * The tv codecs, whose tables depend on the head size, are in registry.c.
 */
#define QUIRE_CODEC_LIST(FLOAT, AFFINE, GGML, ROW, TURBO) \
    FLOAT(f32, 32, QUIRE_F32)                             \
    FLOAT(f16, 16, QUIRE_F16)                             \
    FLOAT(bf16, 16, QUIRE_BF16)                           \
    AFFINE(2, 32)                                         \
    AFFINE(2, 64)                                         \
    AFFINE(2, 128)                                        \
    AFFINE(3, 32)                                         \
    AFFINE(3, 64)                                         \
    AFFINE(3, 128)                                        \
    AFFINE(4, 32)                                         \
    AFFINE(4, 64)                                         \
    AFFINE(4, 128)                                        \
    AFFINE(5, 32)                                         \
    AFFINE(5, 64)                                         \
    AFFINE(5, 128)                                        \
    AFFINE(6, 32)                                         \
    AFFINE(6, 64)                                         \
    AFFINE(6, 128)                                        \
    AFFINE(8, 32)                                         \
    AFFINE(8, 64)                                         \
    AFFINE(8, 128)                                        \
    GGML(q8_0, 8, LINEAR, 128, false, NULL)               \
    GGML(q5_1, 5, LINEAR, 0, true, NULL)                  \
    GGML(q5_0, 5, LINEAR, 16, false, NULL)                \
    GGML(q4_1, 4, LINEAR, 0, true, NULL)                  \
    GGML(q4_0, 4, LINEAR, 8, false, NULL)                 \
    GGML(iq4_nl, 4, TABLE, 0, false, quire_table_iq4_nl)  \
    ROW(2, TABLE, 0, quire_table_r2, quire_encode_r)      \
    ROW(3, TABLE, 0, quire_table_r3, quire_encode_r)      \
    ROW(4, TABLE, 0, quire_table_r4, quire_encode_r)      \
    ROW(5, TABLE, 0, quire_table_r5, quire_encode_r)      \
    ROW(6, TABLE, 0, quire_table_r6, quire_encode_r)      \
    ROW(8, LINEAR, 128, NULL, quire_encode_r8)            \
    TURBO(2, quire_table_r2)                              \
    TURBO(3, quire_table_r3)                              \
    TURBO(4, quire_table_r4)

typedef void quire_encode_fn(const quire_coder *coder, const float *x, quire_coded_row *row,
                             quire_counts *counts);

/* row_kernels.c: by way of the variants in use. */
quire_encode_fn quire_encode_float, quire_encode_affine, quire_encode_q8_0, quire_encode_q5_1,
    quire_encode_q5_0, quire_encode_q4_1, quire_encode_q4_0, quire_encode_r8;
quire_encode_fn quire_encode_iq4_nl;             /* ggml.c */
quire_encode_fn quire_encode_r, quire_encode_tq; /* row_scaled.c */
quire_encode_fn quire_encode_tv;                 /* tv.c: of rows that are not rotated yet */

extern const int8_t quire_table_iq4_nl[16];
extern const int8_t quire_table_r2[4], quire_table_r3[8], quire_table_r4[16], quire_table_r5[32],
    quire_table_r6[64];

/* ggml.c: the value with the largest magnitude, the first of them, with its sign; +0 if there are only zeros. */
float quire_extreme(const float *x, uint32_t n);

/* ggml.c: rows of whole blocks. */
void quire_pack_ggml(const quire_coder *coder, const quire_coded_row *row, uint8_t *bytes);
bool quire_unpack_ggml(const quire_coder *coder, const uint8_t *bytes, quire_coded_row *row);

/* float.c: rows of values. */
void quire_pack_float(const quire_coder *coder, const quire_coded_row *row, uint8_t *bytes);
bool quire_unpack_float(const quire_coder *coder, const uint8_t *bytes, quire_coded_row *row);

/* rotate.c: x rotated into y, or x itself if the codec does not rotate. */
const float *quire_rotated(const quire_coder *coder, const float *x, float *y);
/* rotate.c: the channels that change their signs, bit i % 64 of word i / 64; NULL: none. */
const uint64_t *quire_rotation_signs(const quire_coder *coder);
/* rotate.c, in place: the unit of tv, which belongs to all rows and so to queries and outputs; other codecs have none. */
void quire_apply_unit(const quire_coder *coder, float *x);

/* calibrate.c: the encoding of "c:" codecs; cal has all its vectors. */
void quire_encode_calibrated(const quire_coder *coder, const quire_calibration *cal, const float *x,
                             quire_coded_row *row, quire_counts *counts);
/* In place, after quire_unrotate(): the weights and one mean. */
void quire_uncalibrate(const quire_coder *coder, const quire_calibration *cal, uint32_t mean, float *x);

static inline bool quire_codec_is_calibrated(const quire_codec *codec)
{
    return codec->info.flags & QUIRE_CODEC_CALIBRATED;
}

/* The bits of a scale that are a number. */
static inline uint16_t quire_scale_mask(const quire_codec *codec)
{
    return quire_codec_is_calibrated(codec) ? (uint16_t)~QUIRE_MEAN_BITS : 0xffff;
}

/* encode.c: the codes or values after the last one become 0. */
void quire_row_pad(const quire_coder *coder, quire_coded_row *row);

/* Whether this coder's rows are calibrated by cal. */
static inline bool quire_is_calibrated(const quire_coder *coder, const quire_calibration *cal)
{
    return quire_codec_is_calibrated(coder->codec) && cal && cal->weight;
}

#define QUIRE_F16_SIGN 0x8000u

/* A scale or bias as it is stored; what f16 cannot hold becomes its largest value and is counted. */
static inline uint16_t quire_store_scale(float s, quire_counts *counts)
{
    uint16_t h = quire_f32_to_f16(s);
    if (quire_f16_is_finite(h)) return h;
    counts->saturated++;
    return (uint16_t)((h & QUIRE_F16_SIGN) | 0x7bff);
}

/* The scale of a row, not below 0, as an r codec stores it. Calibrated ones have six bits of mantissa; the bits of the mean
 * are left 0. */
static inline uint16_t quire_store_row_scale(const quire_codec *codec, float s, quire_counts *counts)
{
    uint32_t h = quire_store_scale(s, counts);
    if (!quire_codec_is_calibrated(codec)) return (uint16_t)h;
    h = (h + 7 + (h >> 4 & 1)) & ~QUIRE_MEAN_BITS; /* to nearest even */
    return h < 0x7c00 ? (uint16_t)h : 0x7bf0;
}

/* Values of group g. */
static inline uint32_t quire_group_size(const quire_coder *coder, uint32_t g)
{
    uint32_t left = coder->d - g * coder->group;
    return left < coder->group ? left : coder->group;
}

#endif
