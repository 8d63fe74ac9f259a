/* SPDX-License-Identifier: MIT */
/*
 * products: the integer products that score_tmpl.h and mix_tmpl.h ask for, in registers of 32 bytes. The engine that
 * includes this knows how one product is made:
 *
 *   codes           32 codes, 8 tokens x 4 channels of K or 8 channels x 4 tokens of V
 *   codes_packed    half of vector i of the block at p
 *   codes_expanded  half of vector number u of an expanded tile
 *   row_sums        8 sums of one query: of z, and of r if `with_r`
 *   no_sums, add_codes, sum_of_z, sum_of_r
 *   locate_r        where r lies
 *   halves_at_once, vectors_at_once   of how much of the codes, for so many rows
 */
#ifndef QUIRE_KERNELS_X86_PRODUCTS_AVX2_H
#define QUIRE_KERNELS_X86_PRODUCTS_AVX2_H

#include "kernels/x86/unpack_avx2.h"

#include "kernels/multiply_tmpl.h"

/* What avx2.c shares with avxvnni.c: everything for floats, softmax, and scores around the products. */
#define SHARED_CALL SIMD_GLOBAL
#define SHARED_NAME(name) quire_##name##_avx2
#include "kernels/shared.h"

/* Some vectors, of each `halves` halves from `half` on. */
SIMD_FN void add_vectors(codes x[][2], const query_bytes *q, size_t at, const uint32_t rows,
                         const uint32_t halves, const uint32_t group, const bool with_r, row_sums a[][2])
{
    SIMD_UNROLL(4)
    for (uint32_t r = 0; r < rows; r++) {
        SIMD_UNROLL(2)
        for (uint32_t h = 0; h < halves; h++) add_codes(&a[r][h], x, h, group, q, r, at, with_r);
    }
}

SIMD_FN void multiply_halves(const stream *s, const packing p, const query_bytes *q, const uint32_t rows,
                             const uint32_t half, const uint32_t halves, const bool with_r, sums *out)
{
    const uint32_t step = p.expanded ? 4 : 8, group = vectors_at_once(rows, with_r);
    row_sums a[ROWS_AT_ONCE][2];
    codes x[4][2];
    SIMD_UNROLL(4)
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t h = 0; h < halves; h++) a[r][h] = no_sums();
    for (size_t v = 0; v < s->n; v += step) {
        const uint8_t *block = s->at + v * (p.expanded ? VECTOR_BYTES : 8 * p.bits);
        const query_bytes here = {q->z + v * 4, q->r + v * 4, q->stride, q->r_stride};
        SIMD_UNROLL(8)
        for (uint32_t i = 0; i < step; i += group) {
            SIMD_UNROLL(4)
            for (uint32_t j = 0; j < group; j++) {
                if (!p.expanded && i + j < p.bits && !half) /* one line for each that is read: no bursts */
                    simd_prefetch(block + s->next + (i + j) * 64);
                for (uint32_t h = 0; h < halves; h++)
                    x[j][h] = p.expanded ? codes_expanded(block, i + j, half + h)
                                         : codes_packed(block, i + j, half + h, p.bits, p.table, s->table);
            }
            add_vectors(x, &here, i * 4, rows, halves, group, with_r, a);
        }
    }
    SIMD_UNROLL(4)
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t h = 0; h < halves; h++) {
            store256(out->of[r][0] + (half + h) * 8, sum_of_z(a[r][h]));
            if (with_r) store256(out->of[r][1] + (half + h) * 8, sum_of_r(a[r][h]));
        }
    }
}

SIMD_FN void multiply(const stream *s, const packing p, const query_bytes *q, const uint32_t rows,
                      const bool with_r, sums *out)
{
    if (halves_at_once(rows, with_r) == 2) {
        multiply_halves(s, p, q, rows, 0, 2, with_r, out);
    } else {
        multiply_halves(s, p, q, rows, 0, 1, with_r, out);
        multiply_halves(s, p, q, rows, 1, 1, with_r, out);
    }
}

SIMD_FN void dot_k(const quire_source *k, uint32_t from, uint32_t to, const quire_queries *q, uint32_t first,
                   uint32_t n, const k_epilogue *epilogue, void *memory, const code_loops *loops)
{
    multiply_fn *const *multiply_k = multiply_for(loops, k, epilogue->with_r);
    const lookup entries = table_of(k->format->coder.codec, loops);
    size_t stride = q->z_stride;
    query_bytes all = {q->z + 2 * first * stride + from, q->r, stride, 0};
    if (epilogue->with_r) locate_r(&all, q, first, n, from, to, memory);
    for (uint32_t sub = 0; sub < 4; sub++) {
        stream s = stream_at(k, sub * (k->format->coder.d_pad / 4) + from / 4, (to - from) / 4, loops->bits,
                             &entries);
        for (uint32_t i = 0; i < n; i += ROWS_AT_ONCE) {
            uint32_t rows = n - i < ROWS_AT_ONCE ? n - i : ROWS_AT_ONCE;
            query_bytes p = query_bytes_from(&all, i);
            sums dots;
            multiply_k[rows - 1](&s, &p, &dots);
            for (uint32_t r = 0; r < rows && !epilogue->with_r; r++)
                store_scores(epilogue, i + r, sub, vi_load(dots.of[r][0]), vi_set1(0), false);
            for (uint32_t r = 0; r < rows && epilogue->with_r; r++)
                store_scores(epilogue, i + r, sub, vi_load(dots.of[r][0]), vi_load(dots.of[r][1]), true);
        }
    }
}

SIMD_FN void dot_v(const quire_source *v, uint32_t from, uint32_t to, const int8_t *z, uint32_t n,
                   const v_epilogue *epilogue, void *memory, const code_loops *loops)
{
    (void)memory;
    multiply_fn *const *multiply_v = multiply_for(loops, v, false);
    const lookup entries = table_of(v->format->coder.codec, loops);
    query_bytes all = {z, z, 64, 0};
    for (uint32_t b = from; b < to; b++) {
        stream s = stream_at(v, b * 16, 16, loops->bits, &entries);
        for (uint32_t i = 0; i < n; i += ROWS_AT_ONCE) {
            uint32_t rows = n - i < ROWS_AT_ONCE ? n - i : ROWS_AT_ONCE;
            query_bytes p = query_bytes_from(&all, i);
            sums dots;
            multiply_v[rows - 1](&s, &p, &dots);
            for (uint32_t r = 0; r < rows; r++) add_values(epilogue, i + r, b, vi_load(dots.of[r][0]));
        }
    }
}

#endif
