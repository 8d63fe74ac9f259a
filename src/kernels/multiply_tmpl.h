/* SPDX-License-Identifier: MIT */
/*
 * multiply_tmpl: code vectors times the bytes of up to four queries. The engine that includes this has before it lookup (a
 * table of codes), query_bytes, VECTOR_BYTES (of an expanded vector) and MULTIPLY_NAME(packing), and after it multiply().
 * multiply() is compiled for every way of packing and number of rows, in several files, because that takes most of the time:
 * MULTIPLY(name, bits, table) makes the functions of one way of packing.
 */
#ifndef QUIRE_KERNELS_MULTIPLY_TMPL_H
#define QUIRE_KERNELS_MULTIPLY_TMPL_H

#include "kernels/code_stream.h"
#include "kernels/epilogue.h"

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
 * rows less 1, without and with r. A function of its own for each takes the compiler a third of the time of one for all.
 */
typedef void multiply_fn(const stream *s, const query_bytes *q, sums *out);

typedef struct multiply_rows {
    multiply_fn *fn[2][ROWS_AT_ONCE];
} multiply_rows;

#define MULTIPLY_DECLARE(name, bits, table) extern const multiply_rows MULTIPLY_NAME(name);
CODE_PACKINGS(MULTIPLY_DECLARE)
extern const multiply_rows MULTIPLY_NAME(expanded);

#define MULTIPLY_ROWS(name, rows, which, with_r, ...)                                                \
    SIMD_CALL void multiply_##name##_##rows##which(const stream *s, const query_bytes *q, sums *out) \
    {                                                                                                \
        multiply(s, (packing){__VA_ARGS__}, q, rows, with_r, out);                                   \
    }

#define MULTIPLY_ALL(name, ...)                                                                \
    MULTIPLY_ROWS(name, 1, , false, __VA_ARGS__)                                               \
    MULTIPLY_ROWS(name, 2, , false, __VA_ARGS__)                                               \
    MULTIPLY_ROWS(name, 3, , false, __VA_ARGS__)                                               \
    MULTIPLY_ROWS(name, 4, , false, __VA_ARGS__)                                               \
    MULTIPLY_ROWS(name, 1, r, true, __VA_ARGS__)                                               \
    MULTIPLY_ROWS(name, 2, r, true, __VA_ARGS__)                                               \
    MULTIPLY_ROWS(name, 3, r, true, __VA_ARGS__)                                               \
    MULTIPLY_ROWS(name, 4, r, true, __VA_ARGS__)                                               \
    const multiply_rows MULTIPLY_NAME(name) = {                                                \
        {{multiply_##name##_1, multiply_##name##_2, multiply_##name##_3, multiply_##name##_4}, \
         {multiply_##name##_1r, multiply_##name##_2r, multiply_##name##_3r, multiply_##name##_4r}}};
#define MULTIPLY(name, bits, table) MULTIPLY_ALL(name, false, bits, table)
#define MULTIPLY_EXPANDED MULTIPLY_ALL(expanded, .expanded = true)

/* The functions for a tile, by the number of rows less 1. */
SIMD_FN multiply_fn *const *multiply_for(const code_loops *loops, const quire_source *s, bool with_r)
{
    const multiply_rows *packed = (const multiply_rows *)loops->multiply;
    return (s->expanded ? &MULTIPLY_NAME(expanded) : packed)->fn[with_r];
}

/* n vectors from number u on. */
SIMD_FN stream stream_at(const quire_source *s, uint32_t u, uint32_t n, uint32_t bits, const lookup *table)
{
    return (stream){.at = s->expanded ? (const uint8_t *)s->expanded + (size_t)u * VECTOR_BYTES
                                      : s->tile + (size_t)u * 8 * bits,
                    .next = s->next ? s->next - s->tile : 0,
                    .n = n,
                    .table = table};
}

/* The table of a codec, if there is one. Each size has its own copying, which is a few instructions. */
SIMD_FN lookup table_of(const quire_codec *codec, const code_loops *loops)
{
    if (!loops->table) return table_bytes(codec, 2, false);
    switch (loops->bits) {
    case 2: return table_bytes(codec, 2, true);
    case 3: return table_bytes(codec, 3, true);
    case 4: return table_bytes(codec, 4, true);
    case 5: return table_bytes(codec, 5, true);
    default: return table_bytes(codec, 6, true);
    }
}

#endif
