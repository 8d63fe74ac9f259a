/* SPDX-License-Identifier: MIT */
/*
 * products: the integer products that program.h asks for, in registers of 32 bytes. The file that includes this knows how
 * one product is made:
 *
 *   codes           32 codes, 8 tokens x 4 channels of K or 8 channels x 4 tokens of V
 *   codes_packed    half of vector i of the block at p
 *   codes_expanded  half of vector number u of an expanded tile
 *   row_sums        8 sums of one query: of z, and of r if `fine`
 *   no_sums, add_codes, sum_of_z, sum_of_r
 *   fine_planes     where r lies
 *   halves_at_once, vectors_at_once   of how much of the codes, for so many rows
 */
#ifndef QUIRE_KERNELS_X86_PRODUCTS_AVX2_H
#define QUIRE_KERNELS_X86_PRODUCTS_AVX2_H

#include "kernels/x86/unpack_avx2.h"

#include "kernels/sinks.h"

#include "kernels/streams.h"

/* Some vectors, of each `halves` halves from `half` on. */
LANES_FN void add_vectors(codes x[][2], const planes *q, size_t at, const uint32_t rows,
                          const uint32_t halves, const uint32_t group, const bool fine, row_sums a[][2])
{
    LANES_UNROLL(4)
    for (uint32_t r = 0; r < rows; r++) {
        LANES_UNROLL(2)
        for (uint32_t h = 0; h < halves; h++) add_codes(&a[r][h], x, h, group, q, r, at, fine);
    }
}

LANES_FN void multiply_halves(const stream *s, const packing p, const planes *q, const uint32_t rows,
                              const uint32_t half, const uint32_t halves, const bool fine, sums *out)
{
    const uint32_t step = p.expanded ? 4 : 8, group = vectors_at_once(rows, fine);
    row_sums a[ROWS_AT_ONCE][2];
    codes x[4][2];
    LANES_UNROLL(4)
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t h = 0; h < halves; h++) a[r][h] = no_sums();
    for (size_t v = 0; v < s->n; v += step) {
        const uint8_t *block = s->at + v * (p.expanded ? VECTOR_BYTES : 8 * p.bits);
        const planes here = {q->main + v * 4, q->fine + v * 4, q->stride, q->fine_stride};
        LANES_UNROLL(8)
        for (uint32_t i = 0; i < step; i += group) {
            LANES_UNROLL(4)
            for (uint32_t j = 0; j < group; j++) {
                if (!p.expanded && i + j < p.bits && !half) /* one line for each that is read: no bursts */
                    lanes_prefetch(block + s->next + (i + j) * 64);
                for (uint32_t h = 0; h < halves; h++)
                    x[j][h] = p.expanded ? codes_expanded(block, i + j, half + h)
                                         : codes_packed(block, i + j, half + h, p.bits, p.table, s->table);
            }
            add_vectors(x, &here, i * 4, rows, halves, group, fine, a);
        }
    }
    LANES_UNROLL(4)
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t h = 0; h < halves; h++) {
            store256(out->of[r][0] + (half + h) * 8, sum_of_z(a[r][h]));
            if (fine) store256(out->of[r][1] + (half + h) * 8, sum_of_r(a[r][h]));
        }
    }
}

LANES_FN void multiply(const stream *s, const packing p, const planes *q, const uint32_t rows,
                       const bool fine, sums *out)
{
    if (halves_at_once(rows, fine) == 2) {
        multiply_halves(s, p, q, rows, 0, 2, fine, out);
    } else {
        multiply_halves(s, p, q, rows, 0, 1, fine, out);
        multiply_halves(s, p, q, rows, 1, 1, fine, out);
    }
}

/* The queries from number i on. */
LANES_FN planes planes_from(const planes *q, uint32_t i)
{
    planes p = *q;
    p.main += 2 * i * q->stride;
    p.fine += i * q->fine_stride;
    return p;
}

LANES_FN void dot_k(const quire_source *k, uint32_t from, uint32_t to, const quire_queries *q, uint32_t first,
                    uint32_t n, const k_sink *sink, void *memory, const uint32_t bits, const bool table)
{
    multiply_fn *const *multiply_k = multiply_for(k->expanded, sink->fine, bits, table);
    const lookup entries = table_bytes(k->format->coder.codec, bits, table);
    size_t stride = q->plane_stride;
    planes all = {q->plane + 2 * first * stride + from, q->fine, stride, 0};
    if (sink->fine) fine_planes(&all, q, first, n, from, to, memory);
    for (uint32_t sub = 0; sub < 4; sub++) {
        stream s =
            stream_at(k, sub * (k->format->coder.d_pad / 4) + from / 4, (to - from) / 4, bits, &entries);
        for (uint32_t i = 0; i < n; i += ROWS_AT_ONCE) {
            uint32_t rows = n - i < ROWS_AT_ONCE ? n - i : ROWS_AT_ONCE;
            planes p = planes_from(&all, i);
            sums dots;
            multiply_k[rows - 1](&s, &p, &dots);
            for (uint32_t r = 0; r < rows && !sink->fine; r++)
                take_k(sink, i + r, sub, vi_load(dots.of[r][0]), vi_set1(0), false);
            for (uint32_t r = 0; r < rows && sink->fine; r++)
                take_k(sink, i + r, sub, vi_load(dots.of[r][0]), vi_load(dots.of[r][1]), true);
        }
    }
}

LANES_FN void dot_v(const quire_source *v, uint32_t from, uint32_t to, const int8_t *plane, uint32_t n,
                    const v_sink *sink, void *memory, const uint32_t bits, const bool table)
{
    (void)memory;
    multiply_fn *const *multiply_v = multiply_for(v->expanded, false, bits, table);
    const lookup entries = table_bytes(v->format->coder.codec, bits, table);
    planes all = {plane, plane, 64, 0};
    for (uint32_t b = from; b < to; b++) {
        stream s = stream_at(v, b * 16, 16, bits, &entries);
        for (uint32_t i = 0; i < n; i += ROWS_AT_ONCE) {
            uint32_t rows = n - i < ROWS_AT_ONCE ? n - i : ROWS_AT_ONCE;
            planes p = planes_from(&all, i);
            sums dots;
            multiply_v[rows - 1](&s, &p, &dots);
            for (uint32_t r = 0; r < rows; r++) take_v(sink, i + r, b, vi_load(dots.of[r][0]));
        }
    }
}

#endif
