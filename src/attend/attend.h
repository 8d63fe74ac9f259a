/* SPDX-License-Identifier: MIT */
/* attend: walks tiles, splits the KV length, merges partial results. Inside of the rung. */
#ifndef QUIRE_ATTEND_ATTEND_H
#define QUIRE_ATTEND_ATTEND_H

#include "attend/tile_list.h"
#include "core/float_mode.h"
#include "kernels/kernels.h"

#include <stdatomic.h>

/* A layout of tiles as one job sees it, with the kernels that its tiles need. */
typedef struct quire_job_layout {
    uintptr_t k, v; /* of the layer */
    size_t k_head_stride, v_head_stride;
    const quire_tile_format *k_format, *v_format; /* v_format is k_format if V is part of K */
    quire_score_fn *score;
    quire_mix_fn *mix;
    quire_expand_tile_fn *expand_k, *expand_v;
    quire_expand_tile_fn *transpose;       /* if V is part of K; NULL: mix() takes K as it is */
    uint32_t expand_k_from, expand_v_from; /* query rows of a block from which tiles are expanded */
    uint32_t k_index, v_index;             /* of its formats, in the job's lists */
    bool v_in_k;
    bool weighs_means;
    bool is_integer; /* the codes of K */
} quire_job_layout;

/* A job after checking. Query row r of a KV head is query r / n_per_kv, query head kv * n_per_kv + r % n_per_kv. */
typedef struct quire_job {
    quire_attend_job spec; /* what the caller said, strides filled in */
    quire_mask mask;       /* n_keys 0: none */
    const quire_tile_list *list;
    const quire_list_seq *seq;
    const quire_list_tile *tile; /* of the sequence */
    const quire_split *split;
    uint32_t n_tiles, n_splits, n_layouts;
    quire_job_layout *layout;
    uint32_t n_per_kv;
    uint32_t n_rows;     /* query rows of one KV head */
    uint32_t block_rows; /* QUIRE_MIN_BLOCK_ROWS to QUIRE_MAX_QUERY_ROWS, in steps of 2; changes no result */
    uint32_t blocks_per_head; /* of at most block_rows rows */
    uint64_t first_block;     /* number of blocks of all jobs before it */
    uint64_t first_partial;   /* number of splits of all blocks before it */
    uint32_t n_k, n_v;
    const quire_tile_format *k[QUIRE_MAX_FORMATS]; /* distinct formats, in order of their fingerprints */
    const quire_tile_format *v[QUIRE_MAX_FORMATS];
    uint32_t v_stride; /* floats of one accumulator: the most that any of v[] needs, then QUIRE_MEAN_SLOTS */
    float scale;
    const quire_kernels *kernels;
} quire_job;

/* Strides of q or out that are 0 become dense, heads inside of tokens; row: bytes of one row. */
static inline void quire_fill_strides(size_t row, uint32_t n_heads, size_t *token_stride, size_t *head_stride)
{
    if (!*head_stride) *head_stride = row;
    if (!*token_stride) *token_stride = quire_bytes(n_heads, *head_stride);
}

/* job.c: checks a job whose list is known, and everything that does not need memory; then its layouts. */
quire_status quire_job_read(quire_job *job, const quire_attend_job *spec,
                            const quire_attend_options *options);
void quire_job_fill_layouts(quire_job *job);

static inline const uint8_t *quire_k_tile(const quire_job_layout *l, const quire_list_tile *tile,
                                          uint32_t head)
{
    return (const uint8_t *)(l->k + tile->k + head * l->k_head_stride);
}

static inline const uint8_t *quire_v_tile(const quire_job_layout *l, const quire_list_tile *tile,
                                          uint32_t head)
{
    return (const uint8_t *)(l->v + tile->v + head * l->v_head_stride);
}

#define QUIRE_MIN_BLOCK_ROWS 128u
#define QUIRE_TILES_AT_ONCE 8u /* at most, that a strip of rows goes over before the next one does */

/* A block of query rows of one KV head. */
typedef struct quire_block {
    const quire_job *job;
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
    uint64_t *all_visible;  /* [rows] for tiles that every row sees whole */
    float *scores;          /* [2][16][64] */
    uint8_t *k, *v;         /* [n_tiles][expanded_bytes] */
    size_t expanded_bytes;
    uint32_t n_tiles;       /* that are expanded before the first strip of rows sees them */
    void *kernel;           /* quire_kernel_scratch() */
    float *row, *sum_row;   /* one row of values each */
    float *partial, *total; /* memory of two states */
    quire_workspace_stats stats;
} quire_scratch;

/* Floats that a state of n_rows rows needs, and a state laid out at `at`. */
size_t quire_state_floats(const quire_job *job, uint32_t n_rows);
quire_state quire_state_at(const quire_job *job, uint32_t n_rows, float *at);

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

/* The query, its head and its values for row i of a block. */
static inline const uint8_t *quire_query_of(const quire_block *b, uint32_t i, uint32_t *query,
                                            uint32_t *q_head)
{
    const quire_job *job = b->job;
    uint32_t row = b->first_row + i;
    *query = row < job->n_per_kv ? 0 : row / job->n_per_kv; /* decode needs no division */
    *q_head = b->head * job->n_per_kv + row - *query * job->n_per_kv;
    return (const uint8_t *)job->spec.q + *query * job->spec.q_token_stride +
           *q_head * job->spec.q_head_stride;
}

/* Floats of the accumulators of one query row. */
static inline size_t quire_acc_stride(const quire_job *job)
{
    return (size_t)job->n_v * job->v_stride;
}

#define QUIRE_SUM_LANES 16u

/* block.c */
QUIRE_APART void quire_block_prepare(const quire_block *block, quire_scratch *s);
/* The partial result of one split, from nothing. */
QUIRE_APART void quire_block_split(const quire_block *block, const quire_attend_options *options,
                                   const quire_split *split, quire_scratch *s, quire_state *partial);

/* partial.c */
void quire_state_clear(const quire_block *block, quire_state *state);
/* The lanes of a finished split become sums and values. */
QUIRE_APART void quire_state_add_lanes(const quire_block *block, quire_state *partial);
/* Rows [from, to) of a partial result are folded into a total. The first partial result of a block is its total so far. */
QUIRE_APART void quire_state_fold(const quire_block *block, uint32_t from, uint32_t to, quire_state *total,
                                  const quire_state *partial);
void quire_state_copy(const quire_block *block, uint32_t from, uint32_t to, quire_state *copy,
                      const quire_state *state);
/* Writes outputs of rows [from, to). */
QUIRE_APART void quire_block_finish(const quire_block *block, const quire_attend_options *options,
                                    uint32_t from, uint32_t to, const quire_state *total, quire_scratch *s);

/* visibility.c: where whole tiles are seen by every row of a block, and no mask touches them: one comparison per tile. */
typedef struct quire_sight {
    uint64_t from, n;   /* a tile of 64 rows whose first position is in [from, from + n) is such a tile */
    int64_t begin, end; /* no row sees a position before or behind these */
} quire_sight;

quire_sight quire_block_sight(const quire_block *block, uint32_t flags);

static inline bool quire_sees_whole(const quire_sight *s, const quire_list_tile *tile)
{
    return tile->first - s->from < s->n && tile->n_rows == QUIRE_TILE_ROWS;
}

/* Whether no row sees any of n positions. */
static inline bool quire_sees_none(const quire_sight *s, int64_t first, int64_t n)
{
    return first >= s->end || first + n <= s->begin;
}

/* Whether no row sees any tile of a split. All of them begin between the same two multiples of QUIRE_SPLIT_TOKENS. */
static inline bool quire_split_is_hidden(const quire_sight *s, const quire_job *job, const quire_split *split)
{
    int64_t first = job->tile[split->begin].first / QUIRE_SPLIT_TOKENS * QUIRE_SPLIT_TOKENS;
    return quire_sees_none(s, first, QUIRE_SPLIT_TOKENS + QUIRE_TILE_ROWS);
}

/*
 * Which rows of a tile each row of a block sees: bit t of visible[i], by position and then by the mask. Bit i of
 * mask_adds: the mask adds something other than 0 to scores of row i. False: no row sees anything.
 */
QUIRE_APART bool quire_visibility(const quire_block *block, uint32_t flags, const quire_list_tile *tile,
                                  uint64_t *visible, uint64_t *mask_adds);

#endif
