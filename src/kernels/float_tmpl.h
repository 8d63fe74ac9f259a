/* SPDX-License-Identifier: MIT */
/*
 * float_tmpl: scores and values of f32, f16 and bf16 tiles, in lanes of 16. Like score_tmpl.h it is compiled for each
 * instruction set. Products are added one by one, channels ascending for scores and tokens ascending for values, so that
 * the number of rows in a call does not matter. An expanded tile is the same tile in f32.
 */
#ifndef QUIRE_KERNELS_FLOAT_TMPL_H
#define QUIRE_KERNELS_FLOAT_TMPL_H

/* Rows and vectors whose sums stay in registers. */
#ifndef FLOAT_ROWS
#define FLOAT_ROWS 4u
#define FLOAT_VECTORS 4u
#endif

/* The 16 values from index on. */
SIMD_FN vf float_at(const uint8_t *tile, const quire_form form, size_t index)
{
    if (form == QUIRE_F32) return vf_load((const float *)(const void *)tile + index);
    return form == QUIRE_F16 ? vf_load_f16(tile + index * 2) : vf_load_bf16(tile + index * 2);
}

/* So that loops ask for lines of the next tile without asking whether there is one: those of this tile cost nothing. */
SIMD_FN const uint8_t *float_next(const quire_source *s)
{
    return s->next ? s->next : s->tile;
}

/* Two vectors of 16-bit values lie in one line. `index` is that of the first if `is_first`. */
SIMD_FN void float_ahead(const uint8_t *next, const quire_form form, size_t index, const bool is_first)
{
    if (form == QUIRE_F32)
        simd_prefetch(next + index * 4);
    else if (is_first)
        simd_prefetch(next + index * 2);
}

typedef vf float_sums[FLOAT_ROWS][FLOAT_VECTORS];

/* `rows` factors, `stride` apart, with the vectors from `index` on, `distance` apart. */
SIMD_FN void add_floats(float_sums sum, const uint8_t *tile, const uint8_t *next, const float *w,
                        size_t stride, size_t index, size_t distance, const quire_form form,
                        const bool is_first, const uint32_t rows, const uint32_t vectors)
{
    vf x[FLOAT_VECTORS];
#pragma GCC unroll 4
    for (uint32_t j = 0; j < vectors; j++) {
        x[j] = float_at(tile, form, index + j * distance);
        float_ahead(next, form, index + j * distance, is_first);
    }
#pragma GCC unroll 4
    for (uint32_t r = 0; r < rows; r++) {
        vf factor = vf_set1(w[r * stride]);
#pragma GCC unroll 4
        for (uint32_t j = 0; j < vectors; j++) sum[r][j] = vf_fma(factor, x[j], sum[r][j]);
    }
}

SIMD_FN void clear_floats(float_sums sum, const uint32_t rows, const uint32_t vectors)
{
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t j = 0; j < vectors; j++) sum[r][j] = vf_set1(0);
}

/* `rows` queries with `subs` times 16 tokens. */
SIMD_FN void score_floats(const quire_source *k, const float *q, size_t q_stride, uint32_t d, uint32_t sub,
                          float *scores, const quire_form form, const uint32_t rows, const uint32_t subs)
{
    float_sums sum;
    const uint8_t *tile = k->tile, *next = float_next(k);
    size_t distance = (size_t)k->format->coder.d_pad * 16, first = sub * distance;
    clear_floats(sum, rows, subs);
    size_t c = 0;
    for (; c + 2 <= d; c += 2) {
        add_floats(sum, tile, next, q + c, q_stride, first + c * 16, distance, form, true, rows, subs);
        add_floats(sum, tile, next, q + c + 1, q_stride, first + c * 16 + 16, distance, form, false, rows,
                   subs);
    }
    if (c < d) add_floats(sum, tile, next, q + c, q_stride, first + c * 16, distance, form, true, rows, subs);
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t j = 0; j < subs; j++)
            vf_store(scores + r * QUIRE_TILE_ROWS + (sub + j) * 16, sum[r][j]);
}

SIMD_FN void score_rows(const quire_source *k, const quire_queries *q, uint32_t first, uint32_t n,
                        float *scores, const quire_form form)
{
    for (uint32_t i = 0; i < n; i += FLOAT_ROWS) {
        const float *row = q->row + (size_t)(first + i) * q->d;
        float *to = scores + i * QUIRE_TILE_ROWS;
        for (uint32_t sub = 0; sub < 4; sub += FLOAT_VECTORS) {
            if (n - i >= FLOAT_ROWS) {
                score_floats(k, row, q->d, q->d, sub, to, form, FLOAT_ROWS, FLOAT_VECTORS);
                continue;
            }
            for (uint32_t r = 0; r < n - i; r++)
                score_floats(k, row + (size_t)r * q->d, q->d, q->d, sub, to + r * QUIRE_TILE_ROWS, form, 1,
                             FLOAT_VECTORS);
        }
    }
}

/* `rows` rows of weights with `blocks` times 16 channels; tokens without their bit in `seen` are not read. */
SIMD_FN void mix_floats(const quire_source *v, const float *p, const float *factor, uint32_t block,
                        float *acc, size_t stride, uint64_t seen, const quire_form form, const uint32_t rows,
                        const uint32_t blocks)
{
    float_sums sum;
    const uint8_t *tile = v->tile, *next = float_next(v);
    const size_t distance = QUIRE_TILE_ROWS * 16, first = block * distance;
    clear_floats(sum, rows, blocks);
    for (size_t t = 0; t < QUIRE_TILE_ROWS; t += 2) {
        if (rows > 1 || seen >> t & 1)
            add_floats(sum, tile, next, p + t, QUIRE_TILE_ROWS, first + t * 16, distance, form, true, rows,
                       blocks);
        if (rows > 1 || seen >> (t + 1) & 1)
            add_floats(sum, tile, next, p + t + 1, QUIRE_TILE_ROWS, first + t * 16 + 16, distance, form,
                       false, rows, blocks);
    }
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t b = 0; b < blocks; b++) {
            float *at = acc + r * stride + (block + b) * 16;
            vf_store(at, vf_fma(sum[r][b], vf_set1(factor[r]), vf_load(at)));
        }
}

SIMD_FN void mix_rows(const quire_source *v, uint32_t d_out, const float *p, const uint64_t *visible,
                      const float *factor, uint32_t n, float *acc, size_t stride, const quire_form form)
{
    const uint64_t all = ~(uint64_t)0;
    uint32_t n_blocks = (d_out + 15) / 16;
    for (uint32_t i = 0, rows; i < n; i += rows) {
        rows = n - i < FLOAT_ROWS ? 1 : FLOAT_ROWS;
        for (uint32_t r = 0; r < rows; r++)
            if (visible[i + r] != all) rows = 1;
        for (uint32_t b = 0; b < n_blocks; b += FLOAT_VECTORS) {
            const float *w = p + i * QUIRE_TILE_ROWS;
            float *to = acc + i * stride;
            bool whole = n_blocks - b >= FLOAT_VECTORS;
            if (whole && rows > 1)
                mix_floats(v, w, factor + i, b, to, stride, all, form, FLOAT_ROWS, FLOAT_VECTORS);
            else if (whole)
                mix_floats(v, w, factor + i, b, to, stride, visible[i], form, 1, FLOAT_VECTORS);
            else
                for (uint32_t k = b; k < n_blocks; k++)
                    for (uint32_t r = 0; r < rows; r++)
                        mix_floats(v, w + r * QUIRE_TILE_ROWS, factor + i + r, k, to + r * stride, stride,
                                   visible[i + r], form, 1, 1);
        }
    }
}

/* 16 channels of 16 tokens as 16 tokens of 16 channels. */
SIMD_CALL void transpose_square(const float square[16][16], float *to)
{
    for (uint32_t t = 0; t < 16; t++)
        for (uint32_t c = 0; c < 16; c++) to[t * 16 + c] = square[c][t];
}

/* K as V, in f32: square after square. */
SIMD_FN void transpose_floats(const quire_source *s, float *to, const quire_form form)
{
    uint32_t d_pad = s->format->coder.d_pad;
    for (uint32_t sub = 0; sub < 4; sub++) {
        for (uint32_t block = 0; block < d_pad / 16; block++) {
            float square[16][16];
            for (uint32_t c = 0; c < 16; c++)
                vf_store(square[c], float_at(s->tile, form, ((size_t)sub * d_pad + block * 16 + c) * 16));
            transpose_square((const float(*)[16])square,
                             to + ((size_t)block * QUIRE_TILE_ROWS + sub * 16) * 16);
        }
    }
}

SIMD_FN void expand_floats(const quire_source *s, float *to, const quire_form form)
{
    size_t n = (size_t)s->format->coder.d_pad * QUIRE_TILE_ROWS;
    const uint8_t *next = float_next(s);
    for (size_t i = 0; i < n; i += 32) {
        float_ahead(next, form, i, true);
        float_ahead(next, form, i + 16, false);
        vf_store(to + i, float_at(s->tile, form, i));
        vf_store(to + i + 16, float_at(s->tile, form, i + 16));
    }
}

/* An expanded tile as a tile of f32. */
SIMD_FN quire_source float_expanded(const quire_source *s)
{
    quire_source of = *s;
    of.tile = (const uint8_t *)s->expanded;
    of.expanded = of.next = NULL;
    return of;
}

#define FLOAT_FAMILY(name, form)                                                                            \
    FLOAT_CALL void FLOAT_NAME(score_##name)(const quire_source *k, const quire_queries *q, uint32_t first, \
                                             uint32_t n, uint32_t partial, float *scores, void *scratch)    \
    {                                                                                                       \
        if (k->expanded) {                                                                                  \
            const quire_source of = float_expanded(k);                                                      \
            FLOAT_NAME(score_f32)(&of, q, first, n, partial, scores, scratch);                              \
            return;                                                                                         \
        }                                                                                                   \
        score_rows(k, q, first, n, scores, form);                                                           \
    }                                                                                                       \
    FLOAT_CALL void FLOAT_NAME(mix_##name)(const quire_source *v, uint32_t d_out, const float *p,           \
                                           const uint64_t *visible, const float *factor, uint32_t n,        \
                                           float *acc, size_t stride, void *scratch)                        \
    {                                                                                                       \
        if (v->expanded) {                                                                                  \
            const quire_source of = float_expanded(v);                                                      \
            FLOAT_NAME(mix_f32)(&of, d_out, p, visible, factor, n, acc, stride, scratch);                   \
            return;                                                                                         \
        }                                                                                                   \
        mix_rows(v, d_out, p, visible, factor, n, acc, stride, form);                                       \
    }                                                                                                       \
    FLOAT_CALL void FLOAT_NAME(transpose_##name)(const quire_source *s, void *to)                           \
    {                                                                                                       \
        transpose_floats(s, (float *)to, form);                                                             \
    }                                                                                                       \
    FLOAT_CALL void FLOAT_NAME(expand_##name)(const quire_source *s, void *to)                              \
    {                                                                                                       \
        expand_floats(s, (float *)to, form);                                                                \
    }

FLOAT_FAMILY(f32, QUIRE_F32)
FLOAT_FAMILY(f16, QUIRE_F16)
FLOAT_FAMILY(bf16, QUIRE_BF16)

#endif
