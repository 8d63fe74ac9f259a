/* SPDX-License-Identifier: MIT */
/*
 * products: the integer products that score_tmpl.h and mix_tmpl.h ask for, in registers of 16 bytes. The engine that includes
 * this knows how they are made:
 *
 *   codes           16 codes, 4 tokens x 4 channels of K or 4 channels x 4 tokens of V
 *   codes_packed    a quarter of vector i of the block at p
 *   codes_expanded  a quarter of vector i from p on, of an expanded tile
 *   VECTORS_AT_ONCE vectors that add_codes() takes
 *   row_sums        4 sums of one query: of z, and of r if `with_r`
 *   no_sums, add_codes, sum_of_z, sum_of_r
 *   locate_r        where r lies
 *   quarters_at_once   of each vector, for so many rows
 *   lacking, sum_of_row   what has to be added to sums of codes that are less than they count
 */
#ifndef QUIRE_KERNELS_ARM_PRODUCTS_NEON_H
#define QUIRE_KERNELS_ARM_PRODUCTS_NEON_H

#include "kernels/arm/unpack_neon.h"

#include "kernels/multiply_tmpl.h"

/* What neon.c shares with dotprod.c and i8mm.c: everything for floats, softmax, and scores around the products. */
#define SHARED_CALL SIMD_GLOBAL
#define SHARED_NAME(name) quire_##name##_neon
#include "kernels/shared.h"

/* `quarters` quarters of each vector, from `quarter` on. */
SIMD_FN void multiply_quarters(const stream *s, const packing p, const query_bytes *q, const uint32_t rows,
                               uint32_t quarter, const uint32_t quarters, const bool with_r, sums *out)
{
    const uint32_t step = p.expanded ? 4 : 8, group = VECTORS_AT_ONCE;
    row_sums a[ROWS_AT_ONCE][2];
    codes x[2][VECTORS_AT_ONCE];
    SIMD_UNROLL(4)
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t k = 0; k < quarters; k++) a[r][k] = no_sums();
    for (size_t v = 0; v < s->n; v += step) {
        const uint8_t *block = s->at + v * (p.expanded ? VECTOR_BYTES : 8 * p.bits);
        SIMD_UNROLL(4)
        for (uint32_t i = 0; i < step; i += group) {
            SIMD_UNROLL(4)
            for (uint32_t j = 0; j < group; j++) {
                /* One line for each that is read: no bursts. Behind the first quarters those that are here already. */
                if (!p.expanded && i + j < p.bits) simd_prefetch(block + s->next + (i + j) * 64);
                for (uint32_t k = 0; k < quarters; k++)
                    x[k][j] = p.expanded ? codes_expanded(block, i + j, quarter + k)
                                         : codes_packed(block, i + j, quarter + k, p.bits, p.table, s->table);
            }
            SIMD_UNROLL(4)
            for (uint32_t r = 0; r < rows; r++)
                for (uint32_t k = 0; k < quarters; k++) add_codes(&a[r][k], x[k], q, r, (v + i) * 4, with_r);
        }
    }
    SIMD_UNROLL(4)
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t k = 0; k < quarters; k++) {
            vst1q_s32(out->of[r][0] + (quarter + k) * 4, sum_of_z(a[r][k]));
            if (with_r) vst1q_s32(out->of[r][1] + (quarter + k) * 4, sum_of_r(a[r][k]));
        }
    }
}

SIMD_FN void multiply(const stream *s, const packing p, const query_bytes *q, const uint32_t rows,
                      const bool with_r, sums *out)
{
    const uint32_t quarters = quarters_at_once(rows, with_r);
    stream from = *s;
    uint32_t end = 4;
    __asm__(
        ""
        : "+r"(
            end)); /* not known: else there are two copies of the body, and these functions are most of the library */
    for (uint32_t quarter = 0; quarter < end; quarter += quarters) {
        multiply_quarters(&from, p, q, rows, quarter, quarters, with_r, out);
        from.next = 0;
    }
}

/* Sums of the queries `at` to at + rows of q, for the 16 tokens from 16 sub on. */
SIMD_FN void give_scores(const k_epilogue *epilogue, const sums *dots, const quire_queries *q, uint32_t at,
                         uint32_t i, uint32_t rows, uint32_t part, uint32_t sub, const code_loops *loops)
{
    for (uint32_t r = 0; r < rows; r++) {
        const int32_t *sum = q->sum + ((size_t)(at + r) * q->n_parts + part) * 2;
        vi z = vi_add(vi_load(dots->of[r][0]), lacking(sum[0], loops));
        if (epilogue->with_r)
            store_scores(epilogue, i + r, sub, z, vi_add(vi_load(dots->of[r][1]), lacking(sum[1], loops)),
                         true);
        else
            store_scores(epilogue, i + r, sub, z, z, false);
    }
}

SIMD_FN void neon_dot_k(const quire_source *k, uint32_t from, uint32_t to, const quire_queries *q,
                        uint32_t first, uint32_t n, const k_epilogue *epilogue, void *memory,
                        const code_loops *loops)
{
    multiply_fn *const *multiply_k = multiply_for(loops, k, epilogue->with_r);
    const lookup entries = table_of(k->format->coder.codec, loops);
    const uint32_t part = from / quire_part_size(&k->format->coder);
    const size_t stride = q->z_stride;
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
            give_scores(epilogue, &dots, q, first + i, i, rows, part, sub, loops);
        }
    }
}

SIMD_FN void neon_dot_v(const quire_source *v, uint32_t from, uint32_t to, const int8_t *z, uint32_t n,
                        const v_epilogue *epilogue, void *memory, const code_loops *loops)
{
    (void)memory;
    multiply_fn *const *multiply_v = multiply_for(loops, v, false);
    const lookup entries = table_of(v->format->coder.codec, loops);
    int32_t sum[QUIRE_STRIP_ROWS];
    for (uint32_t i = 0; i < n; i++) sum[i] = sum_of_row(z + i * 128, loops);
    query_bytes all = {z, z, 64, 0};
    for (uint32_t b = from; b < to; b++) {
        stream s = stream_at(v, b * 16, 16, loops->bits, &entries);
        for (uint32_t i = 0; i < n; i += ROWS_AT_ONCE) {
            uint32_t rows = n - i < ROWS_AT_ONCE ? n - i : ROWS_AT_ONCE;
            query_bytes p = query_bytes_from(&all, i);
            sums dots;
            multiply_v[rows - 1](&s, &p, &dots);
            for (uint32_t r = 0; r < rows; r++)
                add_values(epilogue, i + r, b, vi_add(vi_load(dots.of[r][0]), lacking(sum[i + r], loops)));
        }
    }
}

#endif
