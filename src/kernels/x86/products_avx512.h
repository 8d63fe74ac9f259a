/* SPDX-License-Identifier: MIT */
/* vnni: integer products of z rows with code vectors, packed or expanded, AVX-512 VNNI. */
#ifndef QUIRE_KERNELS_X86_PRODUCTS_AVX512_H
#define QUIRE_KERNELS_X86_PRODUCTS_AVX512_H

#include "kernels/x86/unpack_avx512.h"

#include "kernels/code_stream.h"
#include "kernels/epilogue.h"

/* What avx512.c shares with amx.c: the loops for packed codes, which few rows use, and everything for floats. */
extern const code_loops quire_loops_avx512[QUIRE_N_PACKINGS];
#define SHARED_CALL SIMD_GLOBAL
#define SHARED_NAME(name) quire_##name##_avx512
#include "kernels/shared.h"

/* Bytes of queries: two rows for z of each, and a third for r if it is wanted. */
typedef struct query_bytes {
    const int8_t *z, *r; /* first of the first query */
    size_t stride;
} query_bytes;

/* Two streams of code vectors and what is brought into the cache meanwhile. */
typedef struct streams {
    const uint8_t *a, *b;
    ptrdiff_t next; /* 0: nothing */
    uint32_t n;     /* vectors of each; a multiple of 8 if they are packed */
    __m512i lut;
} streams;

/* `rows` queries; one broadcast serves both streams. */
SIMD_FN void add_products(__m512i x, __m512i y, const query_bytes *p, size_t at, const uint32_t rows,
                          const uint32_t used, __m512i *a, __m512i *b)
{
#pragma GCC unroll 4
    for (uint32_t r = 0; r < rows; r++) {
#pragma GCC unroll 3
        for (uint32_t i = 0; i < used; i++) {
            __m512i q =
                broadcast_word(i < 2 ? p->z + (2 * r + i) * p->stride + at : p->r + r * p->stride + at);
            a[r * used + i] = _mm512_dpbusd_epi32(a[r * used + i], x, q);
            b[r * used + i] = _mm512_dpbusd_epi32(b[r * used + i], y, q);
        }
    }
}

/* What becomes of the sums: scores of tokens, or additions to accumulators. */
typedef struct target {
    const k_epilogue *k; /* NULL: V */
    const v_epilogue *v;
    uint32_t a, b; /* places of the two streams: 16 tokens or 16 channels */
    bool one;      /* b is a again */
} target;

SIMD_FN __m512i joined(const __m512i *sum)
{
    return _mm512_add_epi32(_mm512_slli_epi32(sum[0], 8), sum[1]);
}

/* `rows` queries from number `first` on. */
SIMD_FN void multiply(const streams *s, const packing p, const query_bytes *q, uint32_t first,
                      const uint32_t rows, const uint32_t used, const bool k, const target *to)
{
    __m512i a[12], b[12];
    for (uint32_t r = 0; r < used * rows; r++) a[r] = b[r] = _mm512_setzero_si512();
    if (p.expanded) {
#pragma GCC unroll 2
        for (uint32_t v = 0; v < s->n; v++)
            add_products(_mm512_loadu_si512(s->a + v * 64), _mm512_loadu_si512(s->b + v * 64), q, v * 4, rows,
                         used, a, b);
    } else {
        for (uint32_t v = 0; v < s->n; v += 8) {
            const uint8_t *pa = s->a + v * 8 * p.bits, *pb = s->b + v * 8 * p.bits;
#pragma GCC unroll 8
            for (uint32_t i = 0; i < 8; i++) {
                if (i < p.bits) { /* one line for each that is read keeps the fill buffers evenly busy */
                    _mm_prefetch((const char *)pa + s->next + i * 64, _MM_HINT_T1);
                    _mm_prefetch((const char *)pb + s->next + i * 64, _MM_HINT_T1);
                }
                add_products(unpack1(pa, i, p.bits, p.table, s->lut), unpack1(pb, i, p.bits, p.table, s->lut),
                             q, (v + i) * 4, rows, used, a, b);
            }
        }
    }
#pragma GCC unroll 4
    for (uint32_t r = 0; r < rows; r++) {
        const __m512i *sa = a + used * r, *sb = b + used * r;
        if (k) {
            store_scores(to->k, first + r, to->a, joined(sa), sa[used - 1], used == 3);
            store_scores(to->k, first + r, to->b, joined(sb), sb[used - 1], used == 3);
        } else {
            add_values(to->v, first + r, to->a, joined(sa));
            if (!to->one) add_values(to->v, first + r, to->b, joined(sb));
        }
    }
}

/* Vectors from number u on. */
SIMD_FN const uint8_t *vector_at(const quire_source *s, uint32_t u, const packing p)
{
    return p.expanded ? (const uint8_t *)s->expanded + (size_t)u * 64 : s->tile + (size_t)u * 8 * p.bits;
}

/* The bytes of the queries from `first` on, at channel `from`. Where there are two copies of a row, one has the even
 * groups of 32 channels and the other the odd ones. */
SIMD_FN query_bytes query_bytes_at(const quire_queries *q, uint32_t first, uint32_t from)
{
    size_t stride = (size_t)q->copies * q->z_stride,
           at = from + (q->copies == 2 ? from / 32 % 2 * q->z_stride : 0);
    return (query_bytes){q->z + 2 * first * stride + at, q->r + first * stride + at, stride};
}

/* Channels [from, to) of K with `rows` queries from number `first` of the epilogue on, whose bytes q are. */
SIMD_FN void vnni_k(const quire_source *k, uint32_t from, uint32_t to, const query_bytes *q, uint32_t first,
                    const k_epilogue *epilogue, const uint32_t rows, const uint32_t used, const packing p)
{
    uint32_t per_sub = k->format->coder.d_pad / 4;
    for (uint32_t sub = 0; sub < 4; sub += 2) {
        streams s = {.a = vector_at(k, sub * per_sub + from / 4, p),
                     .b = vector_at(k, (sub + 1) * per_sub + from / 4, p),
                     .next = k->next ? k->next - k->tile : 0,
                     .n = (to - from) / 4,
                     .lut = table_bytes(k->format->coder.codec, p.bits, p.table)};
        target t = {.k = epilogue, .a = sub, .b = sub + 1};
        multiply(&s, p, q, first, rows, used, true, &t);
    }
}

/* Blocks [from, to) of 16 channels of V with `rows` rows of weights. */
SIMD_FN void vnni_v(const quire_source *v, uint32_t from, uint32_t to, const query_bytes *q, uint32_t first,
                    const v_epilogue *epilogue, const uint32_t rows, const packing p)
{
    for (uint32_t b = from; b < to; b += 2) {
        target t = {.v = epilogue, .a = b, .b = b + 1, .one = b + 1 == to};
        streams s = {.a = vector_at(v, b * 16, p),
                     .b = vector_at(v, (t.one ? b : b + 1) * 16, p),
                     .next = v->next ? v->next - v->tile : 0,
                     .n = 16,
                     .lut = table_bytes(v->format->coder.codec, p.bits, p.table)};
        multiply(&s, p, q, first, rows, 2, false, &t);
    }
}

/* One way of packing: functions by the number of rows; for K without and with r. A function of its own for each takes the
 * compiler a third of the time of one for all. */
typedef void k_rows_fn(const quire_source *k, uint32_t from, uint32_t to, const query_bytes *q,
                       uint32_t first, const k_epilogue *epilogue);
typedef void v_rows_fn(const quire_source *v, uint32_t from, uint32_t to, const query_bytes *q,
                       uint32_t first, const v_epilogue *epilogue);

typedef struct multiply_rows {
    k_rows_fn *k[2][4];
    v_rows_fn *v[4];
} multiply_rows;

#define MULTIPLY_DECLARE(name, bits, table) extern const multiply_rows quire_multiply_##name##_avx512;
CODE_PACKINGS(MULTIPLY_DECLARE)
extern const multiply_rows quire_multiply_expanded_avx512;

#define VNNI_K_ROWS(name, rows, used, ...)                                                       \
    SIMD_CALL void k_##name##_##rows##_##used(const quire_source *k, uint32_t from, uint32_t to, \
                                              const query_bytes *q, uint32_t first,              \
                                              const k_epilogue *epilogue)                        \
    {                                                                                            \
        vnni_k(k, from, to, q, first, epilogue, rows, used, (packing){__VA_ARGS__});             \
    }
#define VNNI_V_ROWS(name, rows, ...)                                                                   \
    SIMD_CALL void v_##name##_##rows(const quire_source *v, uint32_t from, uint32_t to,                \
                                     const query_bytes *q, uint32_t first, const v_epilogue *epilogue) \
    {                                                                                                  \
        vnni_v(v, from, to, q, first, epilogue, rows, (packing){__VA_ARGS__});                         \
    }
#define VNNI_ALL(name, ...)                                                 \
    VNNI_K_ROWS(name, 1, 2, __VA_ARGS__)                                    \
    VNNI_K_ROWS(name, 2, 2, __VA_ARGS__)                                    \
    VNNI_K_ROWS(name, 3, 2, __VA_ARGS__)                                    \
    VNNI_K_ROWS(name, 4, 2, __VA_ARGS__)                                    \
    VNNI_K_ROWS(name, 1, 3, __VA_ARGS__)                                    \
    VNNI_K_ROWS(name, 2, 3, __VA_ARGS__)                                    \
    VNNI_K_ROWS(name, 3, 3, __VA_ARGS__)                                    \
    VNNI_K_ROWS(name, 4, 3, __VA_ARGS__)                                    \
    VNNI_V_ROWS(name, 1, __VA_ARGS__)                                       \
    VNNI_V_ROWS(name, 2, __VA_ARGS__)                                       \
    VNNI_V_ROWS(name, 3, __VA_ARGS__)                                       \
    VNNI_V_ROWS(name, 4, __VA_ARGS__)                                       \
    const multiply_rows quire_multiply_##name##_avx512 = {                  \
        {{k_##name##_1_2, k_##name##_2_2, k_##name##_3_2, k_##name##_4_2},  \
         {k_##name##_1_3, k_##name##_2_3, k_##name##_3_3, k_##name##_4_3}}, \
        {v_##name##_1, v_##name##_2, v_##name##_3, v_##name##_4}};
#define VNNI(name, bits, table) VNNI_ALL(name, false, bits, table)
#define VNNI_EXPANDED VNNI_ALL(expanded, .expanded = true)

SIMD_FN const multiply_rows *multiply_for(const code_loops *loops, const quire_source *s)
{
    return s->expanded ? &quire_multiply_expanded_avx512 : (const multiply_rows *)loops->multiply;
}

/* Any number of rows, four at a time. */
SIMD_FN void vnni_dot_k(const quire_source *k, uint32_t from, uint32_t to, const quire_queries *q,
                        uint32_t first, uint32_t n, const k_epilogue *epilogue, const code_loops *loops)
{
    const multiply_rows *multiply = multiply_for(loops, k);
    for (uint32_t i = 0; i < n; i += 4) {
        query_bytes p = query_bytes_at(q, first + i, from);
        multiply->k[epilogue->with_r != 0][n - i < 4 ? n - i - 1 : 3](k, from, to, &p, i, epilogue);
    }
}

SIMD_FN void vnni_dot_v(const quire_source *v, uint32_t from, uint32_t to, const int8_t *z, uint32_t n,
                        const v_epilogue *epilogue, const code_loops *loops)
{
    const multiply_rows *multiply = multiply_for(loops, v);
    for (uint32_t i = 0; i < n; i += 4) {
        query_bytes p = {z + (size_t)i * 128, z, 64};
        multiply->v[n - i < 4 ? n - i - 1 : 3](v, from, to, &p, i, epilogue);
    }
}

#endif
