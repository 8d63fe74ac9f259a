/* SPDX-License-Identifier: MIT */
/* attend.h: attention over tiles, and writing rows into paged memory. */
#ifndef QUIRE_ATTEND_H
#define QUIRE_ATTEND_H

#include "tile.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ----------------------------------------------------------------- options */
/* Interface: stable. */

enum {
    QUIRE_ATTEND_BIDIRECTIONAL = 1, /* queries also see all later positions, even in window layers */
    QUIRE_ATTEND_PARTIAL =
        2 /* out is the sum before division; needs max, sum and f32 output, ignores sink_logits */
};

/* Additive mask of one sequence. The value for query i, head h and key j is at
 * data + i * query_stride + h * head_stride + (j - first) * (size of a value). -inf and NaN hide the row. Keys outside
 * [first, first + n_keys) get 0. n_keys 0: no mask. */
typedef struct quire_mask {
    size_t size;
    const void *data;
    size_t query_stride, head_stride; /* head_stride 0: one mask for all heads */
    quire_form form;                  /* F32, F16 or BF16 */
    uint32_t first, n_keys;
    uint32_t reserved;
} quire_mask;

typedef struct quire_attend_options {
    size_t size;
    uint32_t flags;
    float scale; /* 0: 1 / sqrt(d_k); NaN or infinite: EINVAL */
    float
        softcap; /* 0: none; else cap * tanh(score / cap), before any bias; NaN, infinite or negative: EINVAL */
    uint32_t reserved;
    const float *alibi;       /* per query head: score += alibi[h] * (j - p); NULL: none */
    const float *mask_slopes; /* per query head: factor of the mask; NULL: 1 */
    const float *sink_logits; /* per query head: one more term in the softmax denominator, without a value */
    /* If this returns other than 0, the call ends soon with ECANCELED and the outputs are undefined. Threads of the executor
     * call it after every 1,024 tokens or less of a block of queries. NULL: the call cannot be cancelled. */
    int (*cancelled)(void *ctx);
    void *cancelled_ctx;
} quire_attend_options;

/* --------------------------------------------------------------- workspace */
/* Interface: stable. */

/* The threads and the scratch memory of attend: about two tiles per thread and the partial results in flight. What the executor's
 * ctx points to must outlive the workspace. */
typedef struct quire_workspace quire_workspace;
QUIRE_API quire_status quire_workspace_create(quire_workspace **out, const quire_executor *executor,
                                              const quire_allocator *allocator);
QUIRE_API void quire_workspace_destroy(quire_workspace *workspace);

/* Totals of all calls so far. A tile counts once for each KV head and each block of queries that it is offered to. */
typedef struct quire_workspace_stats {
    size_t size;
    uint64_t tiles_read;
    uint64_t tiles_skipped; /* not touched, because no query of the block sees any of its rows */
} quire_workspace_stats;

QUIRE_API quire_status quire_workspace_stats_get(const quire_workspace *workspace,
                                                 quire_workspace_stats *out);

/* ------------------------------------------------------------------ attend */
/* Interface: stable. */

/* The queries of one sequence. Tiles come from a prepared list or, if list is NULL, from an array. Strides 0 of q and out: dense
 * [query][head][d]; if only the token stride is 0, it is n_q_heads head strides. Rows of out must overlap neither each other nor
 * q. Passed in arrays. */
typedef struct quire_attend_job {
    const quire_tile_list *list;
    uint32_t list_seq, list_layer; /* which sequence and layer of the list */
    const quire_tile_ref *tiles;
    size_t tile_stride; /* sizeof(quire_tile_ref), if tiles is given */
    uint32_t n_tiles, n_q_heads, n_kv_heads;
    uint32_t d_k, d_v;
    uint32_t n_queries, first_query;  /* query i is at position first_query + i */
    uint32_t window;                  /* 0: none */
    uint32_t ring_tokens, ring_sinks; /* max_tokens and sinks of quire_seq_options; 0: none */
    quire_form q_form, out_form;      /* F32, F16 or BF16 */
    const void *q;
    size_t q_token_stride, q_head_stride;
    void *out;
    size_t out_token_stride, out_head_stride;
    float *max, *sum; /* [n_queries][n_q_heads] or NULL: largest score, sum of exp(score - max) */
    const quire_mask *mask;
} quire_attend_job;

/*
 * Computes attention for all jobs, which lie job_stride bytes apart (sizeof(quire_attend_job)). The result has the same bits
 * whatever the executor, the other jobs and the number of queries per call, and whether tiles come from a list or an array. f16 and
 * bf16 outputs are the f32 result rounded to nearest, ties to even. options may be NULL. A NaN in a query makes its output NaN; an
 * infinity in a query makes it NaN or a number without meaning, depending on the codec and the instruction set. Other heads and queries
 * do not change. ENOMEM: the scratch memory could not grow; nothing was written.
 */
QUIRE_API quire_status quire_attend(quire_workspace *workspace, const quire_attend_options *options,
                                    const quire_attend_job *jobs, uint32_t n_jobs, size_t job_stride);
/* Merges the second partial result into the first, for n_rows rows of d_v values. */
QUIRE_API void quire_attend_merge(float *acc, float *max, float *sum, const float *acc2, const float *max2,
                                  const float *sum2, uint32_t n_rows, uint32_t d_v);
/* Turns a partial result into the final one by dividing. Row i uses sink_logits[i % n_heads]; NULL: no sinks. */
QUIRE_API void quire_attend_finish(float *acc, const float *max, const float *sum, uint32_t n_rows,
                                   uint32_t d_v, const float *sink_logits, uint32_t n_heads);

/* ----------------------------------------------------------------- scatter */
/* Interface: experimental. */

/* New rows of one layer for paged memory. Token i goes to row slots[i] % block_tokens of block slots[i] / block_tokens; a negative slot
 * skips the token. If several tokens have the same slot, the last one is kept. */
typedef struct quire_scatter_rows {
    size_t size;
    const quire_paged_memory *memory;
    const quire_rows *k, *v; /* [n_tokens][n_kv_heads]; v NULL if V is part of K */
    const int64_t *slots;
    uint32_t n_tokens;
    uint32_t layer;
    quire_counts *counts; /* may be NULL */
} quire_scatter_rows;

/* Encodes rows of all heads, K and V, into their tiles, on the threads of the workspace's executor. Everything is checked before
 * the first row is written. Nobody else may write to the same tiles meanwhile. EFORMAT: a NATIVE row is damaged. */
QUIRE_API quire_status quire_scatter(quire_workspace *workspace, const quire_scatter_rows *rows);

#ifdef __cplusplus
}
#endif
#endif
