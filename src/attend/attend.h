/* SPDX-License-Identifier: MIT */
/* attend: walks tiles, splits the KV length, merges partial results. Inside of the rung. */
#ifndef QUIRE_ATTEND_ATTEND_H
#define QUIRE_ATTEND_ATTEND_H

#include "core/float_mode.h"
#include "kernels/kernels.h"

#include <stdatomic.h>

/* Formats of one side that the tiles of a job may have. A plan brings two (ordinary and sink pages). */
#define QUIRE_MAX_FORMATS 16u

/*
 * Tokens whose tiles make one partial result. Partial results are always cut at multiples of this position and
 * always folded in order, so that the result is the same whoever computes which part.
 */
#define QUIRE_SPLIT_TOKENS 1024u

/* Tiles [begin, end) of a job. */
typedef struct quire_split {
    uint32_t begin, end;
} quire_split;

/* A job after checking. Query row r of a KV head is query r / n_per_kv, query head kv * n_per_kv + r % n_per_kv. */
typedef struct quire_checked_job {
    const quire_attend_job *job;
    uint32_t n_per_kv;
    uint32_t n_rows;          /* query rows of one KV head */
    uint32_t blocks_per_head; /* of at most QUIRE_MAX_QUERY_ROWS rows */
    uint64_t first_block;     /* number of blocks of all jobs before it */
    uint64_t first_part;      /* number of splits of all blocks before it */
    uint32_t n_splits;
    quire_split *split;
    uint32_t n_k, n_v;
    const quire_format *k[QUIRE_MAX_FORMATS]; /* distinct formats, in order of their fingerprints */
    const quire_format *v[QUIRE_MAX_FORMATS];
    uint32_t v_stride; /* floats of one accumulator: the most that any of v[] needs, then QUIRE_MEAN_SLOTS */
    size_t q_stride, q_head_stride, out_stride, out_head_stride;
    float scale;
    const quire_kernels *kernels;
} quire_checked_job;

#define QUIRE_TILES_AT_ONCE 8u /* at most, that a strip of rows goes over before the next one does */

/* A block of query rows of one KV head. */
typedef struct quire_block {
    const quire_checked_job *job;
    uint32_t head, first_row, n_rows;
} quire_block;

/*
 * Running softmax of the rows of a block. Scores are in units of log 2. Row i: max[i], sum[i] (while a split runs: 16
 * lanes), and per V format an accumulator at acc + (i * n_v + f) * v_stride: values, what the kernels keep beside
 * them, and in the last QUIRE_MEAN_SLOTS floats the weights of rows by the mean that was taken out of them.
 */
typedef struct quire_state {
    float *max, *sum, *lanes, *acc;
} quire_state;

/* Scratch of one worker. */
typedef struct quire_scratch {
    quire_queries *queries; /* [n_k] */
    float *log_unit;        /* [n_k][rows]: a score in units of log 2 is this times what the kernel gives */
    uint64_t *visible;      /* [n_tiles][rows] */
    float *scores;          /* [2][16][64] */
    uint8_t *k, *v;         /* [n_tiles][expanded_bytes] */
    size_t expanded_bytes;
    uint32_t n_tiles;    /* that are expanded before the first strip of rows sees them */
    void *kernel;        /* quire_kernel_scratch() */
    float *row;          /* one row of values */
    float *part, *total; /* memory of two states */
    quire_workspace_stats stats;
} quire_scratch;

/* Floats that a state of n_rows rows needs, and a state laid out at `at`. */
size_t quire_state_floats(const quire_checked_job *job, uint32_t n_rows);
quire_state quire_state_at(const quire_checked_job *job, uint32_t n_rows, float *at);

/*
 * What accumulators are multiplied with at the end: 1 / sum, with one more term 2^sink in the sum; -inf: none. Units of
 * log 2. sum is not 0.
 */
static inline float quire_final_factor(float max, float sum, float sink)
{
    if (!(sink > max)) return 1.0f / (sum + quire_exp2(sink - max));
    float shrink = quire_exp2(max - sink);
    return shrink / (sum * shrink + 1.0f);
}

QUIRE_APART void quire_block_prepare(const quire_block *block, quire_scratch *s);
/* The partial result of one split, from nothing. */
QUIRE_APART void quire_block_split(const quire_block *block, const quire_attend_options *options,
                                   const quire_split *split, quire_scratch *s, quire_state *part);
void quire_state_clear(const quire_block *block, quire_state *state);
QUIRE_APART void quire_state_fold(const quire_block *block, quire_state *total, const quire_state *part);
/* Write outputs. */
QUIRE_APART void quire_block_finish(const quire_block *block, const quire_attend_options *options,
                                    const quire_state *total, quire_scratch *s);

#endif
