/* SPDX-License-Identifier: MIT */
/*
 * kernels: NEON with products of matrices of bytes (i8mm), 2 x 8 with 8 x 2. They multiply expanded tiles, that is, blocks of
 * many query rows; packed tiles are those of dotprod.c. Sums are exact, so both give the same bits.
 *
 * One factor is two rows of bytes of one query, high and low, the other two tokens (or channels of V) with 8 channels (or
 * tokens). In an expanded tile two vectors therefore lie in one another: 8 codes of the first of 16 tokens, 8 of the second.
 */
#include "core/cpu.h"

#if defined(QUIRE_ARM)

#define SIMD_TARGET "arch=armv8.2-a+dotprod+i8mm"
#include "simd/neon.h"

#define PUT_TWO_ELSEWHERE
SIMD_FN void put_two(uint8_t *to, size_t u, uint32_t quarter, uint8x16_t x, uint8x16_t y)
{
    uint32x4_t a = vreinterpretq_u32_u8(x), b = vreinterpretq_u32_u8(y);
    to += u * 64 + quarter * 32;
    vst1q_u8(to, vreinterpretq_u8_u32(vzip1q_u32(a, b)));
    vst1q_u8(to + 16, vreinterpretq_u8_u32(vzip2q_u32(a, b)));
}

#include "kernels/arm/engine_dotprod.h"

/* Pairs of rows of bytes, in turn 8 of the first and 8 of the second row. Pair i of z are the rows of query i, pair i of r those
 * of the queries 2 i and 2 i + 1. They are joined once for all tokens. */
typedef struct joined_rows {
    int8_t *z, *r; /* first of the first query */
    size_t stride; /* of a pair */
} joined_rows;

SIMD_FN void join(const int8_t *first, const int8_t *second, size_t n, int8_t *to)
{
    for (size_t c = 0; c < n; c += 16) {
        int64x2_t a = vreinterpretq_s64_s8(vld1q_s8(first + c)),
                  b = vreinterpretq_s64_s8(vld1q_s8(second + c));
        vst1q_s8(to + 2 * c, vreinterpretq_s8_s64(vzip1q_s64(a, b)));
        vst1q_s8(to + 2 * c + 16, vreinterpretq_s8_s64(vzip2q_s64(a, b)));
    }
}

/* n bytes of each row. The last of an odd number of rows of r makes a pair with itself. */
SIMD_CALL joined_rows join_rows(const query_bytes *q, uint32_t rows, size_t n, bool with_r, void *memory)
{
    joined_rows to = {(int8_t *)memory, (int8_t *)memory + rows * 2 * n, 2 * n};
    for (uint32_t i = 0; i < rows; i++) {
        const int8_t *z = q->z + 2 * i * q->stride;
        join(z, z + q->stride, n, to.z + i * to.stride);
    }
    for (uint32_t i = 0; i < rows && with_r; i += 2) {
        const int8_t *r = q->r + i * q->r_stride;
        join(r, i + 1 < rows ? r + q->r_stride : r, n, to.r + i / 2 * to.stride);
    }
    return to;
}

/* Sums of four tokens with the first and with the second row of bytes. */
SIMD_FN int32x4_t sums_of_first(const int32x4_t a[2])
{
    return vreinterpretq_s32_s64(vzip1q_s64(vreinterpretq_s64_s32(a[0]), vreinterpretq_s64_s32(a[1])));
}

SIMD_FN int32x4_t sums_of_second(const int32x4_t a[2])
{
    return vreinterpretq_s32_s64(vzip2q_s64(vreinterpretq_s64_s32(a[0]), vreinterpretq_s64_s32(a[1])));
}

/* Eight of 16 tokens, with pairs of rows: 16 registers of sums, four of codes, four of query bytes. */
SIMD_FN void multiply_half(const stream *s, const int8_t *rows, size_t stride, const uint32_t pairs,
                           const uint32_t half, const bool is_r, sums *out)
{
    int32x4_t a[ROWS_AT_ONCE][4];
    SIMD_UNROLL(4)
    for (uint32_t p = 0; p < pairs; p++)
        for (uint32_t j = 0; j < 4; j++) a[p][j] = vdupq_n_s32(0);
    for (size_t v = 0; v < s->n; v += 4) {
        const int8_t *code = (const int8_t *)s->at + v * VECTOR_BYTES + half * 64;
        SIMD_UNROLL(2)
        for (uint32_t i = 0; i < 2; i++) {
            int8x16_t x[4];
            SIMD_UNROLL(4)
            for (uint32_t j = 0; j < 4; j++) x[j] = vld1q_s8(code + i * 2 * VECTOR_BYTES + j * 16);
            SIMD_UNROLL(4)
            for (uint32_t p = 0; p < pairs; p++) {
                int8x16_t q = vld1q_s8(rows + p * stride + v * 8 + i * 16);
                for (uint32_t j = 0; j < 4; j++) {
                    a[p][j] = vmmlaq_s32(a[p][j], q, x[j]);
                    __asm__("" : "+w"(a[p][j])); /* in its register; else the compiler moves sums about */
                }
            }
        }
    }
    SIMD_UNROLL(4)
    for (uint32_t p = 0; p < pairs; p++) {
        for (uint32_t j = 0; j < 4; j += 2) {
            int32x4_t first = sums_of_first(a[p] + j), second = sums_of_second(a[p] + j);
            const uint32_t at = half * 8 + j * 2;
            if (is_r) {
                vst1q_s32(out->of[2 * p][1] + at, first);
                vst1q_s32(out->of[2 * p + 1][1] + at, second);
            } else {
                vst1q_s32(out->of[p][0] + at, vaddq_s32(vshlq_n_s32(first, 8), second));
            }
        }
    }
}

typedef void multiply_pairs_fn(const stream *s, const int8_t *rows, size_t stride, sums *out);

#define MULTIPLY_PAIRS(name, pairs, is_r)                                                         \
    SIMD_CALL void multiply_##name(const stream *s, const int8_t *rows, size_t stride, sums *out) \
    {                                                                                             \
        multiply_half(s, rows, stride, pairs, 0, is_r, out);                                      \
        multiply_half(s, rows, stride, pairs, 1, is_r, out);                                      \
    }
MULTIPLY_PAIRS(z1, 1, false)
MULTIPLY_PAIRS(z2, 2, false)
MULTIPLY_PAIRS(z3, 3, false)
MULTIPLY_PAIRS(z4, 4, false)
MULTIPLY_PAIRS(r2, 1, true)
MULTIPLY_PAIRS(r4, 2, true)

/* By the number of query rows less 1. */
static multiply_pairs_fn *const multiply_z[ROWS_AT_ONCE] = {multiply_z1, multiply_z2, multiply_z3,
                                                            multiply_z4};
static multiply_pairs_fn *const multiply_r[ROWS_AT_ONCE] = {multiply_r2, multiply_r2, multiply_r4,
                                                            multiply_r4};

SIMD_FN void dot_k(const quire_source *k, uint32_t from, uint32_t to, const quire_queries *q, uint32_t first,
                   uint32_t n, const k_epilogue *epilogue, void *memory, const code_loops *loops)
{
    if (!k->expanded) {
        neon_dot_k(k, from, to, q, first, n, epilogue, memory, loops);
        return;
    }
    const uint32_t part = from / quire_part_size(&k->format->coder);
    const size_t stride = q->z_stride;
    query_bytes all = {q->z + 2 * first * stride + from, q->r + first * stride + from, stride, stride};
    joined_rows joined = join_rows(&all, n, to - from, epilogue->with_r, memory);
    for (uint32_t sub = 0; sub < 4; sub++) {
        stream s = stream_at(k, sub * (k->format->coder.d_pad / 4) + from / 4, (to - from) / 4, 8, NULL);
        for (uint32_t i = 0; i < n; i += ROWS_AT_ONCE) {
            uint32_t rows = n - i < ROWS_AT_ONCE ? n - i : ROWS_AT_ONCE;
            sums dots;
            multiply_z[rows - 1](&s, joined.z + i * joined.stride, joined.stride, &dots);
            if (epilogue->with_r)
                multiply_r[rows - 1](&s, joined.r + i / 2 * joined.stride, joined.stride, &dots);
            give_scores(epilogue, &dots, q, first + i, i, rows, part, sub, loops);
        }
    }
}

SIMD_FN void dot_v(const quire_source *v, uint32_t from, uint32_t to, const int8_t *z, uint32_t n,
                   const v_epilogue *epilogue, void *memory, const code_loops *loops)
{
    if (!v->expanded) {
        neon_dot_v(v, from, to, z, n, epilogue, memory, loops);
        return;
    }
    int32_t sum[QUIRE_STRIP_ROWS];
    for (uint32_t i = 0; i < n; i++) sum[i] = sum_of_row(z + i * 128, loops);
    query_bytes all = {z, z, 64, 0};
    joined_rows joined = join_rows(&all, n, 64, false, memory);
    for (uint32_t b = from; b < to; b++) {
        stream s = stream_at(v, b * 16, 16, 8, NULL);
        for (uint32_t i = 0; i < n; i += ROWS_AT_ONCE) {
            uint32_t rows = n - i < ROWS_AT_ONCE ? n - i : ROWS_AT_ONCE;
            sums dots;
            multiply_z[rows - 1](&s, joined.z + i * joined.stride, joined.stride, &dots);
            for (uint32_t r = 0; r < rows; r++)
                add_values(epilogue, i + r, b, vi_add(vi_load(dots.of[r][0]), lacking(sum[i + r], loops)));
        }
    }
}

#define FLOAT_NAME SHARED_NAME
#define COMMON_NAME SHARED_NAME
#define COMMON_ELSEWHERE
#include "kernels/families.h"

static const code_loops loops[] = PACKING_LOOPS;
#define LOOPS loops
CODE_PACKINGS(UNPACK_PACKING)
INTEGER_FAMILIES(INTEGER_FAMILY)

const quire_kernels quire_kernels_i8mm = {
    .load_queries = load_queries,
    COMMON_ROLES,
    .expand_from = {NEVER, 24, 24, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5},
    .whole_channels = 32,
};

#endif
