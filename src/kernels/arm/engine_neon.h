/* SPDX-License-Identifier: MIT */
/*
 * engine: products with NEON alone. z stays one number of 16 bits and codes are widened to 16 bits. Of each quad of codes c0 c1
 * c2 c3 the even ones (c0, c2) are the bytes as they lie without the odd ones, the odd ones (c1, c3) a shift; z is stored in the
 * same two pairs. The products of a quad end in two neighbouring lanes, which are added at the end.
 */
#ifndef QUIRE_KERNELS_ARM_ENGINE_NEON_H
#define QUIRE_KERNELS_ARM_ENGINE_NEON_H

#include "simd/neon.h"

/* ------------------------------------------------------------ expanded tile */

typedef struct codes {
    int16x8_t even, odd;
} codes;

SIMD_FN codes widen(uint8x16_t x)
{
    uint16x8_t pairs = vreinterpretq_u16_u8(x);
    return (codes){vreinterpretq_s16_u16(vandq_u16(pairs, vdupq_n_u16(255))),
                   vreinterpretq_s16_u16(vshrq_n_u16(pairs, 8))};
}

#define SIGNED_CODES false
#define VECTOR_BYTES 128u /* [quarter][even, odd][16] */

SIMD_FN void put_one(uint8_t *to, uint8x16_t x)
{
    codes c = widen(x);
    vst1q_u8(to, vreinterpretq_u8_s16(c.even));
    vst1q_u8(to + 16, vreinterpretq_u8_s16(c.odd));
}

SIMD_FN void put_two(uint8_t *to, size_t u, uint32_t quarter, uint8x16_t x, uint8x16_t y)
{
    to += u * VECTOR_BYTES + quarter * 32;
    put_one(to, x);
    put_one(to + VECTOR_BYTES, y);
}

#include "kernels/arm/unpack_neon.h"

/* ------------------------------------------------------------------ queries */

/* 64 whole numbers of up to 16 bits: the even pairs of all quads in one row, the odd ones in the other. */
SIMD_FN void vi_store_z(const vi z[4], int8_t *even_to, int8_t *odd_to)
{
    for (uint32_t j = 0; j < 4; j++) {
        int16x8_t x = first_words(z[j]), y = last_words(z[j]);
        vst1q_s8(even_to + j * 16, vreinterpretq_s8_s16(vuzp1q_s16(x, y)));
        vst1q_s8(odd_to + j * 16, vreinterpretq_s8_s16(vuzp2q_s16(x, y)));
    }
}

/* 64 whole numbers of 8 bits, in the order in which widening makes two such rows of them. */
SIMD_FN void vi_store_bytes(const vi z[4], int8_t *to)
{
    for (uint32_t j = 0; j < 4; j++) {
        int16x8_t x = first_words(z[j]), y = last_words(z[j]);
        vst1_s8(to + j * 8, vqmovn_s16(vuzp1q_s16(x, y)));
        vst1_s8(to + 32 + j * 8, vqmovn_s16(vuzp2q_s16(x, y)));
    }
}

#include "kernels/multiply_queries.h"

/* Widens the r of channels [from, to) into two rows for each query. */
SIMD_FN void locate_r(query_bytes *p, const quire_queries *q, uint32_t first, uint32_t n, uint32_t from,
                      uint32_t to, void *memory)
{
    uint32_t begin = from / 64 * 64, stride = (to - begin + 63) / 64 * 64;
    int8_t *rows = (int8_t *)memory;
    for (uint32_t i = 0; i < n; i++) {
        const int8_t *r = q->r + (first + i) * (size_t)q->z_stride + begin;
        for (uint32_t c = 0; c < stride; c += 64)
            for (uint32_t j = 0; j < 8; j++)
                vst1q_s8(rows + (2 * i + j / 4) * stride + c + j % 4 * 16,
                         vreinterpretq_s8_s16(vmovl_s8(vld1_s8(r + c + j * 8))));
    }
    p->r = rows + (from - begin);
    p->r_stride = 2 * (size_t)stride;
}

/* ----------------------------------------------------------------- products */

#define VECTORS_AT_ONCE 2u /* the even and the odd codes of two quarters of two vectors are eight registers */

/* Of the first two and the last two tokens or channels, two lanes each. */
typedef struct row_sums {
    int32x4_t z[2], r[2];
} row_sums;

/* Where two codes or four make up a byte, they are taken out as words at once. */
SIMD_FN codes codes_packed(const uint8_t *p, const uint32_t i, const uint32_t quarter, const uint32_t bits,
                           const bool table, const lookup *t)
{
    if (table || (bits != 2 && bits != 4)) return widen(unpack1(p, i, quarter, bits, table, t));
    const uint16x8_t keep = vdupq_n_u16((uint16_t)((1 << bits) - 1));
    const int32_t from = (int32_t)(i * bits % 8);
    uint16x8_t x = vreinterpretq_u16_u8(vld1q_u8(p + i * bits / 8 * 64 + quarter * 16)), even = x;
    if (from) even = vshlq_u16(x, vdupq_n_s16((int16_t)-from));
    uint16x8_t odd = vshlq_u16(x, vdupq_n_s16((int16_t)(-from - 8)));
    if (from + (int32_t)bits < 8) odd = vandq_u16(odd, keep);
    return (codes){vreinterpretq_s16_u16(vandq_u16(even, keep)), vreinterpretq_s16_u16(odd)};
}

SIMD_FN codes codes_expanded(const uint8_t *p, const uint32_t i, const uint32_t quarter)
{
    p += i * VECTOR_BYTES + quarter * 32;
    return (codes){vreinterpretq_s16_u8(vld1q_u8(p)), vreinterpretq_s16_u8(vld1q_u8(p + 16))};
}

SIMD_FN row_sums no_sums(void)
{
    return (row_sums){{vdupq_n_s32(0), vdupq_n_s32(0)}, {vdupq_n_s32(0), vdupq_n_s32(0)}};
}

SIMD_FN void add_words(int32x4_t sum[2], int16x8_t x, int16x8_t pairs)
{
    sum[0] = vmlal_s16(sum[0], vget_low_s16(x), vget_low_s16(pairs));
    sum[1] = vmlal_high_s16(sum[1], x, pairs);
}

/* The same quarter of two vectors, with two pairs of the rows of even and of odd ones. */
SIMD_FN void add_pairs(int32x4_t sum[2], const codes x[2], const int8_t *even, const int8_t *odd)
{
    int32x2_t e = vreinterpret_s32_s8(vld1_s8(even)), o = vreinterpret_s32_s8(vld1_s8(odd));
    add_words(sum, x[0].even, vreinterpretq_s16_s32(vdupq_lane_s32(e, 0)));
    add_words(sum, x[0].odd, vreinterpretq_s16_s32(vdupq_lane_s32(o, 0)));
    add_words(sum, x[1].even, vreinterpretq_s16_s32(vdupq_lane_s32(e, 1)));
    add_words(sum, x[1].odd, vreinterpretq_s16_s32(vdupq_lane_s32(o, 1)));
}

SIMD_FN void add_codes(row_sums *a, const codes x[2], const query_bytes *q, uint32_t row, size_t at,
                       const bool with_r)
{
    const int8_t *z = q->z + 2 * row * q->stride + at, *r = q->r + row * q->r_stride + at;
    add_pairs(a->z, x, z, z + q->stride);
    if (with_r) add_pairs(a->r, x, r, r + q->r_stride / 2);
}

SIMD_FN int32x4_t sum_of_z(row_sums a)
{
    return vpaddq_s32(a.z[0], a.z[1]);
}

SIMD_FN int32x4_t sum_of_r(row_sums a)
{
    return vpaddq_s32(a.r[0], a.r[1]);
}

/* 16 registers of sums, eight of codes or four, and four of query words. */
SIMD_FN uint32_t quarters_at_once(const uint32_t rows, const bool with_r)
{
    return with_r && rows > 2 ? 1 : 2;
}

#define MULTIPLY_NAME(name) quire_multiply_##name##_neon
#include "kernels/multiply_tmpl.h"

/* Codes are as large as they count. */
SIMD_FN vi lacking(int32_t sum, const code_loops *loops)
{
    (void)sum;
    (void)loops;
    return vi_set1(0);
}

SIMD_FN int32_t sum_of_row(const int8_t *z, const code_loops *loops)
{
    (void)z;
    (void)loops;
    return 0;
}

#include "kernels/arm/products_neon.h"

#endif
