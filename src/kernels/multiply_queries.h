/* SPDX-License-Identifier: MIT */
/*
 * multiply_queries: where the bytes of queries lie for engines with registers of 16 and 32 bytes. Included by them after the
 * header of their lanes. An engine that multiplies r as it is stored defines R_IS_STORED; the others have a locate_r().
 */
#ifndef QUIRE_KERNELS_MULTIPLY_QUERIES_H
#define QUIRE_KERNELS_MULTIPLY_QUERIES_H

#include "kernels/kernels.h"

/* Bytes of queries: two rows for z of each, and one or two for r, as the engine has it. */
typedef struct query_bytes {
    const int8_t *z, *r; /* first of the first query */
    size_t stride, r_stride;
} query_bytes;

/* The queries from number i on. */
SIMD_FN query_bytes query_bytes_from(const query_bytes *q, uint32_t i)
{
    query_bytes p = *q;
    p.z += 2 * i * q->stride;
    p.r += i * q->r_stride;
    return p;
}

#ifdef R_IS_STORED
SIMD_FN void locate_r(query_bytes *p, const quire_queries *q, uint32_t first, uint32_t n, uint32_t from,
                      uint32_t to, void *memory)
{
    (void)n;
    (void)to;
    (void)memory;
    p->r = q->r + first * (size_t)q->z_stride + from;
    p->r_stride = q->z_stride;
}
#endif

#endif
