/* SPDX-License-Identifier: MIT */
/*
 * engine: products with the dot product of signed bytes of NEON. Four quads of a row of query bytes are one register, and each multiplies its
 * own vector of codes.
 */
#ifndef QUIRE_KERNELS_ARM_ENGINE_NEON_H
#define QUIRE_KERNELS_ARM_ENGINE_NEON_H

#include "kernels/arm/unpack_neon.h"

#include "kernels/epilogue.h"

/* Bytes of queries: two rows for z of each, and one for r. */
typedef struct query_bytes {
    const int8_t *z, *r; /* first of the first query */
    size_t stride;
} query_bytes;

#define VECTOR_BYTES 64u
#define MULTIPLY_NAME(name) quire_multiply_##name##_neon
#include "kernels/multiply_tmpl.h"

typedef struct row_sums {
    int32x4_t high, low, r;
} row_sums;

/* The same quarter of four vectors, with four quads of a row of query bytes. */
SIMD_FN int32x4_t add_bytes(int32x4_t sum, const int8x16_t x[4], const int8_t *bytes)
{
    int8x16_t q = vld1q_s8(bytes);
    sum = vdotq_laneq_s32(sum, x[0], q, 0);
    sum = vdotq_laneq_s32(sum, x[1], q, 1);
    sum = vdotq_laneq_s32(sum, x[2], q, 2);
    return vdotq_laneq_s32(sum, x[3], q, 3);
}

/* Quarters at a time: codes take four registers for each, sums two or three for each and row, of 32. */
SIMD_FN uint32_t quarters_at_once(const uint32_t rows, const bool with_r)
{
    return with_r && rows > 3 ? 1 : 2;
}

/* `quarters` quarters of each vector, from `quarter` on. */
SIMD_FN void multiply_quarters(const stream *s, const packing p, const query_bytes *q, const uint32_t rows,
                               const uint32_t quarter, const uint32_t quarters, const bool with_r, sums *out)
{
    const uint32_t step = p.expanded ? 4 : 8;
    row_sums a[ROWS_AT_ONCE][2];
    int8x16_t x[2][4];
    SIMD_UNROLL(4)
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t k = 0; k < quarters; k++) a[r][k].high = a[r][k].low = a[r][k].r = vdupq_n_s32(0);
    for (size_t v = 0; v < s->n; v += step) {
        const uint8_t *block = s->at + v * 8 * (p.expanded ? 8 : p.bits);
        SIMD_UNROLL(2)
        for (uint32_t i = 0; i < step; i += 4) {
            SIMD_UNROLL(4)
            for (uint32_t j = 0; j < 4; j++) {
                if (!p.expanded && i + j < p.bits && !quarter) /* one line for each that is read: no bursts */
                    simd_prefetch(block + s->next + (i + j) * 64);
                for (uint32_t k = 0; k < quarters; k++)
                    x[k][j] = p.expanded ? vld1q_s8((const int8_t *)block + (i + j) * 64 + (quarter + k) * 16)
                                         : unpack1(block, i + j, quarter + k, p.bits, p.table, s->table);
            }
            const int8_t *z = q->z + (v + i) * 4, *r_bytes = q->r + (v + i) * 4;
            SIMD_UNROLL(4)
            for (uint32_t r = 0; r < rows; r++) {
                for (uint32_t k = 0; k < quarters; k++) {
                    a[r][k].high = add_bytes(a[r][k].high, x[k], z + 2 * r * q->stride);
                    a[r][k].low = add_bytes(a[r][k].low, x[k], z + (2 * r + 1) * q->stride);
                    if (with_r) a[r][k].r = add_bytes(a[r][k].r, x[k], r_bytes + r * q->stride);
                }
            }
        }
    }
    SIMD_UNROLL(4)
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t k = 0; k < quarters; k++) {
            int32x4_t z = vaddq_s32(vshlq_n_s32(a[r][k].high, 8), a[r][k].low);
            vst1q_s32(out->of[r][0] + (quarter + k) * 4, z);
            if (with_r) vst1q_s32(out->of[r][1] + (quarter + k) * 4, a[r][k].r);
        }
    }
}

SIMD_FN void multiply(const stream *s, const packing p, const query_bytes *q, const uint32_t rows,
                      const bool with_r, sums *out)
{
    const uint32_t quarters = quarters_at_once(rows, with_r);
    multiply_quarters(s, p, q, rows, 0, quarters, with_r, out);
    if (quarters == 1) multiply_quarters(s, p, q, rows, 1, 1, with_r, out);
    multiply_quarters(s, p, q, rows, 2, quarters, with_r, out);
    if (quarters == 1) multiply_quarters(s, p, q, rows, 3, 1, with_r, out);
}

/* What codes that are less by 128 lack in a sum, whose numbers add up to this. */
SIMD_FN vi lacking(int32_t sum, const code_loops *loops)
{
    return vi_set1(is_less(loops->bits, loops->table) ? 128 * sum : 0);
}

SIMD_FN void dot_k(const quire_source *k, uint32_t from, uint32_t to, const quire_queries *q, uint32_t first,
                   uint32_t n, const k_epilogue *epilogue, void *memory, const code_loops *loops)
{
    (void)memory;
    multiply_fn *const *multiply_k = multiply_for(loops, k, epilogue->with_r);
    const lookup entries = table_of(k->format->coder.codec, loops);
    const size_t stride = q->z_stride;
    const uint32_t part = from / quire_part_size(&k->format->coder);
    for (uint32_t sub = 0; sub < 4; sub++) {
        stream s = stream_at(k, sub * (k->format->coder.d_pad / 4) + from / 4, (to - from) / 4, loops->bits,
                             &entries);
        for (uint32_t i = 0; i < n; i += ROWS_AT_ONCE) {
            uint32_t rows = n - i < ROWS_AT_ONCE ? n - i : ROWS_AT_ONCE, at = first + i;
            query_bytes p = {q->z + 2 * at * stride + from, q->r + at * stride + from, stride};
            sums dots;
            multiply_k[rows - 1](&s, &p, &dots);
            for (uint32_t r = 0; r < rows; r++) {
                const int32_t *sum = q->sum + ((size_t)(at + r) * q->n_parts + part) * 2;
                vi z = vi_add(vi_load(dots.of[r][0]), lacking(sum[0], loops));
                if (epilogue->with_r)
                    store_scores(epilogue, i + r, sub, z,
                                 vi_add(vi_load(dots.of[r][1]), lacking(sum[1], loops)), true);
                else
                    store_scores(epilogue, i + r, sub, z, z, false);
            }
        }
    }
}

/* The sum of a row's 64 numbers. */
SIMD_FN int32_t sum_of_z(const int8_t *z)
{
    const int8x16_t one = vdupq_n_s8(1);
    int32x4_t high = vdupq_n_s32(0), low = high;
    for (uint32_t t = 0; t < 64; t += 16) {
        high = vdotq_s32(high, vld1q_s8(z + t), one);
        low = vdotq_s32(low, vld1q_s8(z + 64 + t), one);
    }
    return vaddvq_s32(vaddq_s32(vshlq_n_s32(high, 8), low));
}

SIMD_FN void dot_v(const quire_source *v, uint32_t from, uint32_t to, const int8_t *z, uint32_t n,
                   const v_epilogue *epilogue, void *memory, const code_loops *loops)
{
    (void)memory;
    multiply_fn *const *multiply_v = multiply_for(loops, v, false);
    const lookup entries = table_of(v->format->coder.codec, loops);
    int32_t sum[QUIRE_STRIP_ROWS];
    for (uint32_t i = 0; i < n; i++) sum[i] = is_less(loops->bits, loops->table) ? sum_of_z(z + i * 128) : 0;
    for (uint32_t b = from; b < to; b++) {
        stream s = stream_at(v, b * 16, 16, loops->bits, &entries);
        for (uint32_t i = 0; i < n; i += ROWS_AT_ONCE) {
            uint32_t rows = n - i < ROWS_AT_ONCE ? n - i : ROWS_AT_ONCE;
            query_bytes p = {z + (size_t)i * 128, z, 64};
            sums dots;
            multiply_v[rows - 1](&s, &p, &dots);
            for (uint32_t r = 0; r < rows; r++)
                add_values(epilogue, i + r, b, vi_add(vi_load(dots.of[r][0]), lacking(sum[i + r], loops)));
        }
    }
}

#endif
