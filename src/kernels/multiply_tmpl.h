/* SPDX-License-Identifier: MIT */
/*
 * multiply_tmpl: code vectors times the bytes of up to four queries. The engine that includes this has lookup (a table of
 * codes), query_bytes and VECTOR_BYTES (of an expanded vector) before it, and after it multiply(), which is compiled for
 * every way of packing and number of rows.
 */
#ifndef QUIRE_KERNELS_MULTIPLY_TMPL_H
#define QUIRE_KERNELS_MULTIPLY_TMPL_H

#include "kernels/code_stream.h"

#define ROWS_AT_ONCE 4u

/* Consecutive code vectors. */
typedef struct stream {
    const uint8_t *at;
    ptrdiff_t next; /* from here to what is brought into the cache meanwhile; 0: nothing */
    size_t n;       /* vectors; a multiple of 8 if they are packed, else of 4 */
    const lookup *table;
} stream;

/* Sums of up to four queries, 16 tokens or channels: of z, then of r. */
typedef struct sums {
    int32_t of[ROWS_AT_ONCE][2][16];
} sums;

SIMD_FN void multiply(const stream *s, const packing p, const query_bytes *q, const uint32_t rows,
                      const bool with_r, sums *out);

/*
 * These are large, so each is there once, for K and V: for expanded tiles and for each way of packing, by the number of
 * rows, without and with r. A function of its own for each takes the compiler a third of the time of one for all.
 */
typedef void multiply_fn(const stream *s, const query_bytes *q, sums *out);

#define MULTIPLY_ROWS(name, rows, which, with_r, ...)                                                \
    SIMD_CALL void multiply_##name##_##rows##which(const stream *s, const query_bytes *q, sums *out) \
    {                                                                                                \
        multiply(s, (packing){__VA_ARGS__}, q, rows, with_r, out);                                   \
    }

#define MULTIPLY_ALL(name, ...)                                                               \
    MULTIPLY_ROWS(name, 1, , false, __VA_ARGS__)                                              \
    MULTIPLY_ROWS(name, 2, , false, __VA_ARGS__)                                              \
    MULTIPLY_ROWS(name, 3, , false, __VA_ARGS__)                                              \
    MULTIPLY_ROWS(name, 4, , false, __VA_ARGS__)                                              \
    MULTIPLY_ROWS(name, 1, r, true, __VA_ARGS__)                                              \
    MULTIPLY_ROWS(name, 2, r, true, __VA_ARGS__)                                              \
    MULTIPLY_ROWS(name, 3, r, true, __VA_ARGS__)                                              \
    MULTIPLY_ROWS(name, 4, r, true, __VA_ARGS__)                                              \
    static multiply_fn *const multiply_##name[2][ROWS_AT_ONCE] = {                            \
        {multiply_##name##_1, multiply_##name##_2, multiply_##name##_3, multiply_##name##_4}, \
        {multiply_##name##_1r, multiply_##name##_2r, multiply_##name##_3r, multiply_##name##_4r}};
#define MULTIPLY(name, bits, table) MULTIPLY_ALL(name, false, bits, table)

MULTIPLY_ALL(expanded, .expanded = true)
CODE_PACKINGS(MULTIPLY)

/* The functions for a tile, by the number of rows less 1. */
SIMD_FN multiply_fn *const *multiply_for(bool expanded, bool with_r, const uint32_t bits, const bool table)
{
    if (expanded) return multiply_expanded[with_r];
    switch (bits) {
    case 2: return table ? multiply_t2[with_r] : multiply_l2[with_r];
    case 3: return table ? multiply_t3[with_r] : multiply_l3[with_r];
    case 4: return table ? multiply_t4[with_r] : multiply_l4[with_r];
    case 5: return table ? multiply_t5[with_r] : multiply_l5[with_r];
    case 6: return table ? multiply_t6[with_r] : multiply_l6[with_r];
    default: return multiply_l8[with_r];
    }
}

/* n vectors from number u on. */
SIMD_FN stream stream_at(const quire_source *s, uint32_t u, uint32_t n, const uint32_t bits,
                         const lookup *table)
{
    return (stream){.at = s->expanded ? (const uint8_t *)s->expanded + (size_t)u * VECTOR_BYTES
                                      : s->tile + (size_t)u * 8 * bits,
                    .next = s->next ? s->next - s->tile : 0,
                    .n = n,
                    .table = table};
}

#endif
