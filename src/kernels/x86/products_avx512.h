/* SPDX-License-Identifier: MIT */
/*
 * products: integer products of z rows with code vectors, packed or expanded, AVX-512 VNNI. What does not look up codes in a
 * table is compiled once, without VBMI (avx512vnni), and used by avx512vbmi and amx too.
 */
#ifndef QUIRE_KERNELS_X86_PRODUCTS_AVX512_H
#define QUIRE_KERNELS_X86_PRODUCTS_AVX512_H

#include "kernels/x86/unpack_avx512.h"

#include "kernels/code_stream.h"
#include "kernels/epilogue.h"

/* What amx.c takes from avx512.c: the loops for packed codes, which few rows use. */
extern const code_loops quire_loops_avx512[QUIRE_N_PACKINGS];
/* What both take from avx512vnni.c. */
#define SHARED_CALL SIMD_GLOBAL
#define SHARED_NAME(name) quire_##name##_avx512vnni
#include "kernels/shared.h"
quire_load_queries_fn SHARED_NAME(load_in_fours);

/* Bytes of up to four queries: 64 channels or tokens of each, [4][2][64] of z and [4][64] of r; then the next 64. */
typedef struct query_bytes {
    const int8_t *z, *r; /* of the first query */
    uint32_t from;       /* channels */
} query_bytes;

/* Two streams of code vectors and what is brought into the cache meanwhile. */
typedef struct streams {
    const uint8_t *a, *b;
    ptrdiff_t next; /* 0: nothing */
    uint32_t n;     /* vectors of each; a multiple of 8 if they are packed */
    const code_table *table;
} streams;

/*
 * Adds products of bytes, codes without sign and z with, four to a lane. Not the intrinsic: around it gcc 12 copies most of sixteen
 * sums to other registers and back in every round of the loop, which doubles its time.
 */
SIMD_FN void add_dot(__m512i *sum, __m512i codes, __m512i z)
{
#if defined(QUIRE_EMULATE) /* a library for tests: tests/emulate */
    *sum = _mm512_dpbusd_epi32(*sum, codes, z);
#else
    __asm__("vpdpbusd\t%2, %1, %0" : "+v"(*sum) : "v"(codes), "v"(z));
#endif
}

/* Zero, of which the compiler does not know that it is the same as another one. */
SIMD_FN __m512i no_sum(void)
{
    __m512i zero = _mm512_setzero_si512();
#if !defined(QUIRE_EMULATE)
    __asm__("" : "+v"(zero));
#endif
    return zero;
}

/* `rows` queries; one broadcast serves both streams. */
SIMD_FN void add_products(__m512i x, __m512i y, const int8_t *z, const int8_t *r_bytes, const uint32_t rows,
                          const uint32_t used, __m512i *a, __m512i *b)
{
#pragma GCC unroll 4
    for (uint32_t r = 0; r < rows; r++) {
#pragma GCC unroll 3
        for (uint32_t i = 0; i < used; i++) {
            __m512i q = broadcast_word(i < 2 ? z + r * 128 + i * 64 : r_bytes + r * 64);
            add_dot(&a[r * used + i], x, q);
            add_dot(&b[r * used + i], y, q);
        }
    }
}

/* Tiles of 8 bits are so large that those of K and V would displace what a call works on from the first cache. */
SIMD_FN void prefetch_line(const uint8_t *p, const uint32_t bits)
{
    if (bits == 8)
        _mm_prefetch((const char *)p, _MM_HINT_T1);
    else
        _mm_prefetch((const char *)p, _MM_HINT_T0);
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
#pragma GCC unroll 12
    for (uint32_t r = 0; r < used * rows; r++) {
        a[r] = no_sum();
        b[r] = no_sum();
    }
    const uint32_t step = p.expanded ? 4 : 8;
    for (uint32_t v = 0; v < s->n; v += step) {
        uint32_t c = q->from + v * 4;
        const int8_t *z = q->z + c / 64 * 512 + c % 64, *r_bytes = q->r + c / 64 * 256 + c % 64;
        const uint8_t *pa = s->a + (size_t)v * (p.expanded ? 64 : 8 * p.bits),
                      *pb = s->b + (size_t)v * (p.expanded ? 64 : 8 * p.bits);
#pragma GCC unroll 8
        for (uint32_t i = 0; i < step; i++) {
            if (p.expanded) {
                add_products(_mm512_loadu_si512(pa + i * 64), _mm512_loadu_si512(pb + i * 64), z + i * 4,
                             r_bytes + i * 4, rows, used, a, b);
                continue;
            }
            if (i < p.bits) { /* one line for each that is read keeps the fill buffers evenly busy */
                prefetch_line(pa + s->next + i * 64, p.bits);
                prefetch_line(pb + s->next + i * 64, p.bits);
            }
            add_products(unpack1(pa, i, p.bits, p.table, s->table), unpack1(pb, i, p.bits, p.table, s->table),
                         z + i * 4, r_bytes + i * 4, rows, used, a, b);
        }
    }
#if !defined(QUIRE_EMULATE)
#pragma GCC unroll 12
    for (uint32_t r = 0; r < used * rows; r++) __asm__("" : "+v"(a[r]), "+v"(b[r]));
#endif
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

/* The bytes of the queries from `first` on, a multiple of four, at channel `from`. */
SIMD_FN query_bytes query_bytes_at(const quire_queries *q, uint32_t first, uint32_t from)
{
    size_t fours = first / 4 * (size_t)q->z_stride;
    return (query_bytes){q->z + 8 * fours, q->r + 4 * fours, from};
}

/* Channels [from, to) of K with `rows` queries from number `first` of the epilogue on, whose bytes q are. */
SIMD_FN void vnni_k(const quire_source *k, uint32_t from, uint32_t to, const query_bytes *q, uint32_t first,
                    const k_epilogue *epilogue, const uint32_t rows, const uint32_t used, const packing p)
{
    const code_table table = table_bytes(k->format->coder.codec, p.bits, p.table);
    uint32_t per_sub = k->format->coder.d_pad / 4;
    for (uint32_t sub = 0; sub < 4; sub += 2) {
        streams s = {.a = vector_at(k, sub * per_sub + from / 4, p),
                     .b = vector_at(k, (sub + 1) * per_sub + from / 4, p),
                     .next = k->next ? k->next - k->tile : 0,
                     .n = (to - from) / 4,
                     .table = &table};
        target t = {.k = epilogue, .a = sub, .b = sub + 1};
        multiply(&s, p, q, first, rows, used, true, &t);
    }
}

/* Blocks [from, to) of 16 channels of V with `rows` rows of weights. */
SIMD_FN void vnni_v(const quire_source *v, uint32_t from, uint32_t to, const query_bytes *q, uint32_t first,
                    const v_epilogue *epilogue, const uint32_t rows, const packing p)
{
    const code_table table = table_bytes(v->format->coder.codec, p.bits, p.table);
    for (uint32_t b = from; b < to; b += 2) {
        target t = {.v = epilogue, .a = b, .b = b + 1, .one = b + 1 == to};
        streams s = {.a = vector_at(v, b * 16, p),
                     .b = vector_at(v, (t.one ? b : b + 1) * 16, p),
                     .next = v->next ? v->next - v->tile : 0,
                     .n = 16,
                     .table = &table};
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

#define MULTIPLY_VNNI(name) quire_multiply_##name##_avx512vnni
#define MULTIPLY_VBMI(name) quire_multiply_##name##_avx512
#if defined(HAS_VBMI)
#define MULTIPLY_DEFINED MULTIPLY_VBMI
#else
#define MULTIPLY_DEFINED MULTIPLY_VNNI
#endif
#define MULTIPLY_DECLARE(name, bits, table) \
    extern const multiply_rows MULTIPLY_VNNI(name), MULTIPLY_VBMI(name);
CODE_PACKINGS(MULTIPLY_DECLARE)
extern const multiply_rows MULTIPLY_VNNI(expanded);

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
    const multiply_rows MULTIPLY_DEFINED(name) = {                          \
        {{k_##name##_1_2, k_##name##_2_2, k_##name##_3_2, k_##name##_4_2},  \
         {k_##name##_1_3, k_##name##_2_3, k_##name##_3_3, k_##name##_4_3}}, \
        {v_##name##_1, v_##name##_2, v_##name##_3, v_##name##_4}};
#define VNNI(name, bits, table) VNNI_ALL(name, false, bits, table)
#define VNNI_EXPANDED VNNI_ALL(expanded, .expanded = true)

SIMD_FN const multiply_rows *multiply_for(const code_loops *loops, const quire_source *s)
{
    return s->expanded ? &MULTIPLY_VNNI(expanded) : (const multiply_rows *)loops->multiply;
}

/* Any number of rows, four at a time. */
SIMD_FN void vnni_dot_k(const quire_source *k, uint32_t from, uint32_t to, const quire_queries *q,
                        uint32_t first, uint32_t n, const k_epilogue *epilogue, void *memory,
                        const code_loops *loops)
{
    (void)memory;
    const multiply_rows *multiply = multiply_for(loops, k);
    for (uint32_t i = 0; i < n; i += 4) {
        query_bytes p = query_bytes_at(q, first + i, from);
        multiply->k[epilogue->with_r != 0][n - i < 4 ? n - i - 1 : 3](k, from, to, &p, i, epilogue);
    }
}

SIMD_FN void vnni_dot_v(const quire_source *v, uint32_t from, uint32_t to, const int8_t *z, uint32_t n,
                        const v_epilogue *epilogue, void *memory, const code_loops *loops)
{
    (void)memory;
    const multiply_rows *multiply = multiply_for(loops, v);
    for (uint32_t i = 0; i < n; i += 4) {
        query_bytes p = {z + (size_t)i * 128, z, 0};
        multiply->v[n - i < 4 ? n - i - 1 : 3](v, from, to, &p, i, epilogue);
    }
}

/* How a tile is expanded, and one of K made one of V: functions of one way of packing. */
SIMD_FN void transpose_tile(quire_expand_tile_fn *expand, const quire_source *s, uint8_t *to)
{
    uint8_t *k =
        to + (size_t)QUIRE_TILE_ROWS * s->format->coder.d_pad; /* the second half: the tile as it is */
    expand(s, k);
    transpose_codes(&s->format->coder, k, to);
}

#define UNPACK_PACKING(name, bits, table)                            \
    SIMD_CALL void expand_##name(const quire_source *s, void *to)    \
    {                                                                \
        expand_codes(s, NULL, (uint8_t *)to, bits, table, false);    \
    }                                                                \
    SIMD_CALL void transpose_##name(const quire_source *s, void *to) \
    {                                                                \
        transpose_tile(expand_##name, s, (uint8_t *)to);             \
    }

#endif
