/* SPDX-License-Identifier: MIT */
/*
 * streams: code vectors on their way to the products of up to four queries. The engine that includes this has its lookup (a
 * table of codes), planes and VECTOR_BYTES (of an expanded vector) before it, and after it multiply(), which is compiled
 * for every packing and number of rows.
 */
#ifndef QUIRE_KERNELS_STREAMS_H
#define QUIRE_KERNELS_STREAMS_H

#include "kernels/packing.h"

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

LANES_FN void multiply(const stream *s, const packing p, const planes *q, const uint32_t rows,
                       const bool fine, sums *out);

/* Up to four queries. */
LANES_FN void multiply_rows(const stream *s, const packing p, const planes *q, uint32_t rows, bool fine,
                            sums *out)
{
    switch (rows * 2 + fine) {
    case 2: multiply(s, p, q, 1, false, out); break;
    case 3: multiply(s, p, q, 1, true, out); break;
    case 4: multiply(s, p, q, 2, false, out); break;
    case 5: multiply(s, p, q, 2, true, out); break;
    case 6: multiply(s, p, q, 3, false, out); break;
    case 7: multiply(s, p, q, 3, true, out); break;
    case 8: multiply(s, p, q, 4, false, out); break;
    default: multiply(s, p, q, 4, true, out); break;
    }
}

/* These are large, so each is there once, for K and V: one for expanded tiles and one for each way of packing. */
typedef void multiply_fn(const stream *s, const planes *q, uint32_t rows, bool fine, sums *out);

LANES_CALL void multiply_expanded(const stream *s, const planes *q, uint32_t rows, bool fine, sums *out)
{
    multiply_rows(s, (packing){.expanded = true}, q, rows, fine, out);
}

#define MULTIPLY(name, bits, table)                                                                        \
    LANES_CALL void multiply_##name(const stream *s, const planes *q, uint32_t rows, bool fine, sums *out) \
    {                                                                                                      \
        multiply_rows(s, (packing){false, bits, table}, q, rows, fine, out);                               \
    }

MULTIPLY(l2, 2, false)
MULTIPLY(l3, 3, false)
MULTIPLY(l4, 4, false)
MULTIPLY(l5, 5, false)
MULTIPLY(l6, 6, false)
MULTIPLY(l8, 8, false)
MULTIPLY(t2, 2, true)
MULTIPLY(t3, 3, true)
MULTIPLY(t4, 4, true)
MULTIPLY(t5, 5, true)
MULTIPLY(t6, 6, true)

LANES_FN multiply_fn *multiply_for(bool expanded, const uint32_t bits, const bool table)
{
    if (expanded) return multiply_expanded;
    switch (bits) {
    case 2: return table ? multiply_t2 : multiply_l2;
    case 3: return table ? multiply_t3 : multiply_l3;
    case 4: return table ? multiply_t4 : multiply_l4;
    case 5: return table ? multiply_t5 : multiply_l5;
    case 6: return table ? multiply_t6 : multiply_l6;
    default: return multiply_l8;
    }
}

/* n vectors from number u on. */
LANES_FN stream stream_at(const quire_source *s, uint32_t u, uint32_t n, const uint32_t bits,
                          const lookup *table)
{
    return (stream){.at = s->expanded ? (const uint8_t *)s->expanded + (size_t)u * VECTOR_BYTES
                                      : s->tile + (size_t)u * 8 * bits,
                    .next = s->next ? s->next - s->tile : 0,
                    .n = n,
                    .table = table};
}

#endif
