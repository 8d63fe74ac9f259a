/* SPDX-License-Identifier: MIT */
/*
 * engine: products with the dot product of signed bytes of NEON. Four quads of a row of query bytes are one register, and each
 * multiplies its own vector of codes.
 */
#ifndef QUIRE_KERNELS_ARM_ENGINE_DOTPROD_H
#define QUIRE_KERNELS_ARM_ENGINE_DOTPROD_H

/* With the architecture: the compiler's dot product belongs to it, and is not inlined into less. */
#ifndef SIMD_TARGET
#define SIMD_TARGET "arch=armv8.2-a+dotprod"
#endif
#include "simd/neon.h"

/* ------------------------------------------------------------ expanded tile */

#define SIGNED_CODES true
#define VECTOR_BYTES 64u

#ifndef PUT_TWO_ELSEWHERE
SIMD_FN void put_two(uint8_t *to, size_t u, uint32_t quarter, uint8x16_t x, uint8x16_t y)
{
    to += u * VECTOR_BYTES + quarter * 16;
    vst1q_u8(to, x);
    vst1q_u8(to + VECTOR_BYTES, y);
}
#endif

#include "kernels/arm/unpack_neon.h"

/* ------------------------------------------------------------------ queries */

/* 64 whole numbers of up to 16 bits, |z| <= 32639, as two rows of bytes: 256 * high + low. */
SIMD_FN void vi_store_z(const vi z[4], int8_t *high_to, int8_t *low_to)
{
    for (uint32_t j = 0; j < 4; j++) {
        int16x8_t x = first_words(z[j]), y = last_words(z[j]);
        vst1q_s8(high_to + j * 16, vcombine_s8(vrshrn_n_s16(x, 8), vrshrn_n_s16(y, 8)));
        vst1q_s8(low_to + j * 16, vcombine_s8(vmovn_s16(x), vmovn_s16(y)));
    }
}

/* 64 whole numbers of 8 bits. */
SIMD_FN void vi_store_bytes(const vi z[4], int8_t *to)
{
    for (uint32_t j = 0; j < 4; j++)
        vst1q_s8(to + j * 16, vcombine_s8(vqmovn_s16(first_words(z[j])), vqmovn_s16(last_words(z[j]))));
}

#define R_IS_STORED
#include "kernels/multiply_queries.h"

/* ----------------------------------------------------------------- products */

typedef int8x16_t codes;
#define VECTORS_AT_ONCE 4u

typedef struct row_sums {
    int32x4_t high, low, r;
} row_sums;

SIMD_FN codes codes_packed(const uint8_t *p, const uint32_t i, const uint32_t quarter, const uint32_t bits,
                           const bool table, const lookup *t)
{
    return vreinterpretq_s8_u8(unpack1(p, i, quarter, bits, table, t));
}

SIMD_FN codes codes_expanded(const uint8_t *p, const uint32_t i, const uint32_t quarter)
{
    return vld1q_s8((const int8_t *)p + i * VECTOR_BYTES + quarter * 16);
}

SIMD_FN row_sums no_sums(void)
{
    return (row_sums){vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0)};
}

/* The same quarter of four vectors, with four quads of a row of query bytes. */
SIMD_FN int32x4_t add_bytes(int32x4_t sum, const codes x[4], const int8_t *bytes)
{
    int8x16_t q = vld1q_s8(bytes);
    sum = vdotq_laneq_s32(sum, x[0], q, 0);
    sum = vdotq_laneq_s32(sum, x[1], q, 1);
    sum = vdotq_laneq_s32(sum, x[2], q, 2);
    return vdotq_laneq_s32(sum, x[3], q, 3);
}

SIMD_FN void add_codes(row_sums *a, const codes x[4], const query_bytes *q, uint32_t row, size_t at,
                       const bool with_r)
{
    const int8_t *z = q->z + 2 * row * q->stride + at;
    a->high = add_bytes(a->high, x, z);
    a->low = add_bytes(a->low, x, z + q->stride);
    if (with_r) a->r = add_bytes(a->r, x, q->r + row * q->r_stride + at);
}

SIMD_FN int32x4_t sum_of_z(row_sums a)
{
    return vaddq_s32(vshlq_n_s32(a.high, 8), a.low);
}

SIMD_FN int32x4_t sum_of_r(row_sums a)
{
    return a.r;
}

/* Codes take four registers for each, sums two or three for each and row, of 32. */
SIMD_FN uint32_t quarters_at_once(const uint32_t rows, const bool with_r)
{
    return with_r && rows > 3 ? 1 : 2;
}

#define MULTIPLY_NAME(name) quire_multiply_##name##_dotprod
#include "kernels/multiply_tmpl.h"

/* What codes that are less by 128 lack in a sum, whose numbers add up to this. */
SIMD_FN vi lacking(int32_t sum, const code_loops *loops)
{
    return vi_set1(is_less(loops->bits, loops->table) ? 128 * sum : 0);
}

/* The sum of a row's 64 numbers, if they lack something. */
SIMD_FN int32_t sum_of_row(const int8_t *z, const code_loops *loops)
{
    if (!is_less(loops->bits, loops->table)) return 0;
    const int8x16_t one = vdupq_n_s8(1);
    int32x4_t high = vdupq_n_s32(0), low = high;
    for (uint32_t t = 0; t < 64; t += 16) {
        high = vdotq_s32(high, vld1q_s8(z + t), one);
        low = vdotq_s32(low, vld1q_s8(z + 64 + t), one);
    }
    return vaddvq_s32(vaddq_s32(vshlq_n_s32(high, 8), low));
}

#include "kernels/arm/products_neon.h"

#endif
