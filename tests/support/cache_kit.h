/* SPDX-License-Identifier: MIT */
/*
 * What tests of the cache share: plans, pools and sequences in one line each, rows that are a function of (seed, layer,
 * side, position), bytes in memory. Whatever goes wrong in here prints the place and aborts: it is no part of what
 * the tests expect.
 */
#ifndef QUIRE_TESTS_CACHE_KIT_H
#define QUIRE_TESTS_CACHE_KIT_H

#include "quire/quire.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#define KIT_REQUIRE(condition)                                                        \
    do {                                                                              \
        if (!(condition)) {                                                           \
            fprintf(stderr, "%s:%d: required: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                                  \
        }                                                                             \
    } while (0)

/* ------------------------------------------------------------------- bytes */

/* Grows when written, ends when read: beyond n the callback fails. */
typedef struct kit_bytes {
    uint8_t *data;
    size_t n, cap, at;
    size_t fail_after; /* bytes written after which writing fails; 0: never */
} kit_bytes;

quire_status kit_write(void *ctx, const void *bytes, size_t n);
quire_status kit_read(void *ctx, void *bytes, size_t n);
void kit_bytes_free(kit_bytes *b);

/* ----------------------------------------------------------------- objects */

/* Two groups: layer 0 and the last see everything, the others have a window of 40 tokens. GQA of 2. */
#define KIT_LAYERS 3u
#define KIT_WINDOW 40u
quire_geometry kit_geometry(uint32_t n_kv_heads, uint32_t d_k, uint32_t d_v);

quire_profile *kit_profile(const quire_geometry *geometry, uint64_t seed, const quire_allocator *allocator);
/* profile may be NULL unless the policy needs one. */
quire_plan *kit_plan(const quire_geometry *geometry, const char *policy, const quire_profile *profile);
quire_pool *kit_pool(const quire_plan *plan, size_t budget, const quire_allocator *allocator);
/* quire_plan_bytes() of arguments that are valid. */
size_t kit_plan_bytes(const quire_plan *plan, const quire_seq_options *ring, uint32_t n_tokens,
                      uint32_t step_tokens);
/* max_tokens 0: no ring. */
quire_seq *kit_seq(quire_pool *pool, uint32_t max_tokens, uint32_t sinks, uint32_t spare);

/* --------------------------------------------------------------------- rows */

/* Values of the row at a position, all heads: n floats. */
void kit_row(uint64_t seed, uint32_t layer, quire_side side, uint32_t position, float *x, size_t n);

/* Append n tokens to a sequence and commit; what begin, append or commit says if that is not OK. */
quire_status kit_append(quire_pool *pool, const quire_geometry *geometry, quire_seq *seq, uint32_t n,
                        uint64_t seed);
/* The same without commit. */
quire_status kit_begin(quire_step **step, quire_pool *pool, const quire_geometry *geometry, quire_seq *seq,
                       uint32_t n, uint64_t seed);

/* Hash of the length and of every row that is held, as f32. Two sequences with equal hashes have equal rows. */
uint64_t kit_rows_hash(const quire_geometry *geometry, const quire_seq *seq);
/* Hash of the attention of one query at the last position, all layers, over the tiles of the sequence. */
uint64_t kit_attend_hash(const quire_geometry *geometry, const quire_seq *seq, const quire_seq_options *ring,
                         uint64_t seed);

/* Blocks and bytes are balanced, pages are free. */
void kit_pool_is_empty(quire_pool *pool);

#endif
