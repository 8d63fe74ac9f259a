/* SPDX-License-Identifier: MIT */
/* attend: which rows a query sees: by its position, a window, a ring and a mask. */
#include "attend/attend.h"

#include <math.h>

/* Bits of the rows of a tile at positions [from, to). */
static uint64_t rows_between(const quire_list_tile *tile, int64_t from, int64_t to)
{
    int64_t lo = from - tile->first, hi = to - tile->first;
    if (lo < 0) lo = 0;
    if (hi > tile->n_rows) hi = tile->n_rows;
    if (lo >= hi) return 0;
    uint64_t below_hi = hi == 64 ? ~(uint64_t)0 : ((uint64_t)1 << hi) - 1;
    return below_hi & ~(((uint64_t)1 << lo) - 1);
}

/* Rows that the query at position p sees by position alone. */
static uint64_t rows_in_sight(const quire_attend_job *job, const quire_list_tile *tile, int64_t p,
                              bool causal)
{
    int64_t end = causal ? p + 1 : INT64_MAX / 2;
    int64_t begin = job->window ? p - job->window + 1 : 0;
    if (!job->ring_tokens) return rows_between(tile, begin, end);
    int64_t ring_begin = p - (job->ring_tokens - job->ring_sinks) + 1;
    uint64_t kept = rows_between(tile, begin, job->ring_sinks < end ? job->ring_sinks : end);
    return kept | rows_between(tile, ring_begin > begin ? ring_begin : begin, end);
}

/* Rows that each query sees by position; false: none sees any. */
static bool see_by_position(const quire_block *b, uint32_t flags, const quire_list_tile *tile,
                            uint64_t *visible)
{
    const quire_attend_job *spec = &b->job->spec;
    bool causal = !(flags & QUIRE_ATTEND_BIDIRECTIONAL);
    uint32_t first = b->first_row, n = b->n_rows, per_kv = b->job->n_per_kv;
    int64_t p = (int64_t)spec->first_query + first / per_kv;
    uint64_t any = 0;
    for (uint32_t i = 0; i < n; p++) {
        uint64_t seen = rows_in_sight(spec, tile, p, causal);
        uint32_t end = (first + i) / per_kv * per_kv + per_kv - first; /* of this query's rows */
        for (; i < end && i < n; i++) visible[i] = seen;
        any |= seen;
    }
    return any;
}

#define AFTER_ALL ((int64_t)1 << 33) /* behind every position of 32 bits */

quire_sight quire_block_sight(const quire_block *b, uint32_t flags)
{
    const quire_attend_job *spec = &b->job->spec;
    const quire_mask *mask = &b->job->mask;
    int64_t p = (int64_t)spec->first_query + b->first_row / b->job->n_per_kv;
    int64_t last = (int64_t)spec->first_query + (b->first_row + b->n_rows - 1) / b->job->n_per_kv;
    bool causal = !(flags & QUIRE_ATTEND_BIDIRECTIONAL);
    int64_t from = 0, to = causal ? p + 1 : AFTER_ALL;
    int64_t begin = spec->window ? p - spec->window + 1 : 0, end = causal ? last + 1 : AFTER_ALL;
    if (spec->ring_tokens && !spec->ring_sinks && p - spec->ring_tokens + 1 > begin)
        begin = p - spec->ring_tokens + 1;
    if (spec->window && last - spec->window + 1 > from) from = last - spec->window + 1;
    if (spec->ring_tokens) {
        int64_t ring_begin = last - (spec->ring_tokens - spec->ring_sinks) + 1;
        if (ring_begin > from) from = ring_begin;
    }
    if (mask->n_keys && mask->first > from) { /* what lies before the mask, else what lies behind it */
        if (mask->first < to) to = mask->first;
    } else if (mask->n_keys && (int64_t)mask->first + mask->n_keys > from) {
        from = (int64_t)mask->first + mask->n_keys;
    }
    int64_t n = to - from - QUIRE_TILE_ROWS + 1;
    return (quire_sight){(uint64_t)from, n > 0 ? (uint64_t)n : 0, begin, end};
}

static bool mask_touches(const quire_mask *m, const quire_list_tile *tile)
{
    return m->n_keys && m->first < (uint64_t)tile->first + tile->n_rows &&
           (uint64_t)m->first + m->n_keys > tile->first;
}

/* What the mask says of the four keys whose values are one word: all 0, all hidden, or neither. */
typedef enum mask_word { WORD_ZERO, WORD_HIDDEN, WORD_MIXED } mask_word;

static mask_word read_four(quire_form form, const uint8_t *row, size_t at)
{
    uint64_t x[2] = {0, 0}, hidden;
    if (form == QUIRE_F32) {
        memcpy(x, row + at * 4, sizeof x);
        hidden = 0xff800000ff800000u;
        return x[0] == hidden && x[1] == hidden ? WORD_HIDDEN : x[0] | x[1] ? WORD_MIXED : WORD_ZERO;
    }
    memcpy(x, row + at * 2, sizeof *x);
    hidden = form == QUIRE_F16 ? 0xfc00fc00fc00fc00u : 0xff80ff80ff80ff80u;
    return x[0] == hidden ? WORD_HIDDEN : x[0] ? WORD_MIXED : WORD_ZERO;
}

/* Takes the rows that one row of a mask hides out of `seen`; true: it adds something to the score of another one. */
static bool apply_mask(const quire_mask *m, const uint8_t *row, const quire_list_tile *tile, uint64_t *seen)
{
    int64_t from = (int64_t)m->first - tile->first, to = from + m->n_keys; /* rows of the tile */
    if (to > tile->n_rows) to = tile->n_rows;
    bool adds = false;
    for (int64_t t = from > 0 ? from : 0; t < to;) {
        mask_word four = t + 4 <= to ? read_four(m->form, row, (size_t)(t - from)) : WORD_MIXED;
        if (four != WORD_MIXED) {
            if (four == WORD_HIDDEN) *seen &= ~((uint64_t)15 << t);
            t += 4;
            continue;
        }
        float bias = quire_load_value(m->form, row, (size_t)(t - from));
        if (!(bias > -INFINITY))
            *seen &= ~((uint64_t)1 << t);
        else if (bias != 0)
            adds = true;
        t++;
    }
    return adds;
}

/* The same for all query rows; false: none sees any row of the tile. */
static bool see_through_mask(const quire_block *b, const quire_list_tile *tile, uint64_t *visible,
                             uint64_t *mask_adds)
{
    const quire_mask *m = &b->job->mask;
    uint64_t any = 0, last_before = 0, last_after = 0, adds = 0;
    const uint8_t *last = NULL;
    for (uint32_t i = 0; i < b->n_rows; i++) {
        uint32_t query, h;
        quire_query_of(b, i, &query, &h);
        const uint8_t *row = (const uint8_t *)m->data + query * m->query_stride + h * m->head_stride;
        if (row != last || visible[i] != last_before) { /* heads often share a row */
            last = row;
            last_before = last_after = visible[i];
            adds = apply_mask(m, row, tile, &last_after);
        }
        visible[i] = last_after;
        mask_adds[i / 64] |= adds << i % 64;
        any |= last_after;
    }
    return any;
}

bool quire_visibility(const quire_block *b, uint32_t flags, const quire_list_tile *tile, uint64_t *visible,
                      uint64_t *mask_adds)
{
    if (!see_by_position(b, flags, tile, visible)) return false;
    return !mask_touches(&b->job->mask, tile) || see_through_mask(b, tile, visible, mask_adds);
}
