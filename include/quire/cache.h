/* SPDX-License-Identifier: MIT */
/* cache.h: pools, sequences, steps and batches: what an engine holds. */
#ifndef QUIRE_CACHE_H
#define QUIRE_CACHE_H

#include "attend.h"
#include "plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* -------------------------------------------------------------------- pool */
/* Interface: stable. */

typedef struct quire_pool quire_pool;

typedef struct quire_pool_options {
    size_t size;
    size_t budget_bytes; /* limit of page memory; at least quire_plan_bytes() of one token, else EINVAL */
    const quire_allocator *allocator; /* copied */
    const quire_executor *executor;   /* copied; what ctx points to must outlive the pool */
} quire_pool_options;

typedef struct quire_pool_stats {
    size_t size;
    size_t budget_bytes;
    size_t used_bytes;                /* pages in use, and pages reserved for a running conversion */
    size_t resident_bytes;            /* pages in use and free pages kept for reuse; never above the budget.
                                       * The process can have 2 MiB more per page size: a huge OS page that is
                                       * partly free */
    size_t peak_bytes;                /* largest resident_bytes so far */
    uint64_t n_pages;                 /* pages in use now */
    uint64_t n_copies;                /* pages copied because a fork wrote to them */
    uint64_t nan, saturated, recoded; /* quire_counts of everything encoded: appends, imports, conversions */
} quire_pool_stats;

/* Reserves address space for the budget (ENOMEM: there is not so much); memory is touched page by page. */
QUIRE_API quire_status quire_pool_create(quire_pool **out, const quire_plan *plan,
                                         const quire_pool_options *options);
/* Registers another plan of the same geometry, so that its snapshots can be loaded. Conversions register theirs. */
QUIRE_API quire_status quire_pool_add_plan(quire_pool *pool, const quire_plan *plan);
QUIRE_API quire_status quire_pool_stats_get(quire_pool *pool, quire_pool_stats *out); /* set its size */
/* Destroy every sequence, batch and step of the pool first. */
QUIRE_API void quire_pool_destroy(quire_pool *pool);

/* ---------------------------------------------------------------- sequence */
/* Interface: stable. */

typedef struct quire_seq quire_seq;

/*
 * A ring limits what queries see: with max_tokens > 0 the query at position p sees the rows j < sinks and the rows
 * p - (max_tokens - sinks) < j <= p, no matter how the tokens were split into steps. sinks < max_tokens. Positions keep
 * counting, and rows keep the RoPE rotation they came with. A window layer sees only its window: sinks outside the
 * window are invisible to it. Rings and window layers release pages that no later query can see. spare_tokens more rows
 * are kept, with or without a ring, so that you can always trim to that many tokens below the greatest length reached.
 */
typedef struct quire_seq_options {
    size_t size;
    uint32_t max_tokens, sinks, spare_tokens;
    uint32_t reserved;
} quire_seq_options;

/* The most page memory that one sequence needs to reach n_tokens in steps of step_tokens. Window layers and rings hold
 * a whole step while it is open. options: as for quire_seq_create(). EINVAL: the options are not valid, n_tokens are more
 * than a sequence can have, or the result does not fit into size_t. */
QUIRE_API quire_status quire_plan_bytes(const quire_plan *plan, const quire_seq_options *options,
                                        uint32_t n_tokens, uint32_t step_tokens, size_t *out);
QUIRE_API quire_status quire_seq_create(quire_seq **out, quire_pool *pool,
                                        const quire_seq_options *options /* NULL: no ring */);
QUIRE_API void quire_seq_destroy(quire_seq *seq);          /* not while it is part of an open step */
QUIRE_API uint32_t quire_seq_length(const quire_seq *seq); /* tokens appended minus tokens trimmed */
/* Creates a second sequence with the same tokens. Both share pages until one of them writes. */
QUIRE_API quire_status quire_seq_fork(quire_seq **out, const quire_seq *seq);
/* Removes the rows from position length on. ERANGE: rows that would become visible again have been evicted. */
QUIRE_API quire_status quire_seq_trim(quire_seq *seq, uint32_t length);
/* A trim to any length from this one on works. A trim to less works only within the kept sink pages, for example to 0. */
QUIRE_API uint32_t quire_seq_trim_floor(const quire_seq *seq);

enum { QUIRE_CONVERT_NEW = 1 }; /* re-encode only the unfinished page; finished pages stay as they are */
/*
 * Switches the sequence to another plan of the same geometry and re-encodes its pages. Pages that already have the right
 * codecs stay as they are, so a second call changes nothing. The conversion needs no more budget than before plus the
 * growth of the new pages. Pages shared with other sequences stay theirs unchanged: to keep sharing between forks,
 * convert them together with quire_batch_convert().
 */
QUIRE_API quire_status quire_seq_convert(quire_seq *seq, const quire_plan *plan, uint32_t flags);
QUIRE_API const quire_plan *quire_seq_plan(const quire_seq *seq); /* the pool's; lives as long as the pool */
/* The options of the sequence (its ring), as created or loaded. Fills *out, whose size must be set. */
QUIRE_API quire_status quire_seq_options_get(const quire_seq *seq, quire_seq_options *out);

/* Writes rows [first, first + n) of one layer. NATIVE and MLX need every page to have that codec. ERANGE: evicted rows. */
QUIRE_API quire_status quire_seq_export(const quire_seq *seq, uint32_t layer, quire_side side, uint32_t first,
                                        uint32_t n, const quire_rows_out *rows);

/* Writes a snapshot of a sequence: header, page table, pages, checksums (docs/formats/snapshot.md). */
QUIRE_API quire_status quire_seq_save(const quire_seq *seq, quire_write_fn write, void *ctx);
/* EMISMATCH: the pool does not have the plan of the snapshot; quire_snapshot_read_info() tells you which plan that is. EFORMAT,
 * EVERSION: not a snapshot that this library can read. EFULL: the budget is used up. */
QUIRE_API quire_status quire_seq_load(quire_seq **out, quire_pool *pool, quire_read_fn read, void *ctx);

typedef struct quire_snapshot_info {
    size_t size;
    uint64_t plan_fingerprint;
    uint32_t length;
    uint32_t max_tokens, sinks, spare_tokens;
    char policy[512]; /* in canonical form, of the plan that new rows use */
} quire_snapshot_info;

/* Reads and checks the header of a snapshot. To load the snapshot afterwards, read it from its beginning again. */
QUIRE_API quire_status quire_snapshot_read_info(quire_snapshot_info *out, quire_read_fn read, void *ctx);

/* -------------------------------------------------------------------- step */
/* Interface: stable. */

typedef struct quire_step quire_step;

/*
 * Reserves n_tokens[i] rows in sequence i, in all layers; n_tokens[i] may be 0. Window layers and rings also hold all of these
 * rows until the step ends. Until then the sequences keep the length they had, and functions that would change, fork or save
 * them return EBUSY. EFULL or ENOMEM: nothing has changed. EBUSY: a sequence is in another open step or is listed twice.
 * EINVAL: a sequence is of another pool or would become too long.
 */
QUIRE_API quire_status quire_step_begin(quire_step **out, quire_pool *pool, quire_seq *const *seqs,
                                        const uint32_t *n_tokens, uint32_t n_seqs);
/* Encodes the rows of one layer. k: [all tokens][n_kv_heads][d_k], one sequence after the other; v: the same with d_v,
 * NULL if V is part of K. Layers may come in any order; rows of a layer that was appended before are replaced. */
QUIRE_API quire_status quire_step_append(quire_step *step, uint32_t layer, const float *k, const float *v);
/* The same for one sequence and any form of rows. Rows in the layer's own codec are stored without re-encoding. EFORMAT: a NATIVE row
 * is damaged (a scale that is NaN or infinite); nothing was written. An MLX row with such a scale is encoded again and counted. */
QUIRE_API quire_status quire_step_append_rows(quire_step *step, uint32_t layer, uint32_t seq_index,
                                              const quire_rows *k, const quire_rows *v);
/* Attention over all that the sequences hold, the rows of this step included. q: [all tokens][n_q_heads][d_k].
 * out: [all tokens][n_q_heads][d_v], which must not overlap q. A query that sees no row gives zeros. NaN and infinities in
 * queries: as with quire_attend(). EINVAL: the layer was not appended. */
QUIRE_API quire_status quire_step_attend(quire_step *step, uint32_t layer, const float *q, float *out);
/*
 * The same with everything that attention can take. The first token of q and out is the first one of the first sequence.
 * Strides 0: dense [token][head][d], as in quire_attend_job.
 */
typedef struct quire_step_queries {
    size_t size;
    quire_form q_form, out_form; /* F32, F16 or BF16 */
    const void *q;
    size_t q_token_stride, q_head_stride;
    void *out;
    size_t out_token_stride, out_head_stride;
    float *max, *sum;                    /* [all tokens][n_q_heads] or NULL, without sink_logits */
    const quire_attend_options *options; /* NULL: none */
    const quire_mask *masks;             /* one per sequence of the step, or NULL */
    size_t mask_stride;                  /* sizeof(quire_mask), if masks is given */
} quire_step_queries;

QUIRE_API quire_status quire_step_attend_with(quire_step *step, uint32_t layer,
                                              const quire_step_queries *queries);
/* Keeps the rows and ends the step, which is destroyed. EINVAL: a layer was not appended; the step stays open. */
QUIRE_API quire_status quire_step_commit(quire_step *step);
QUIRE_API void quire_step_abort(quire_step *step); /* discards the rows and destroys the step */

/* ------------------------------------------------------------------- batch */
/* Interface: stable. */

/*
 * An ordered list of sequences that the batch owns. Rows are never copied or padded: merge, add, extract and extend
 * create forks, and the sequences they fork from remain the caller's.
 */
typedef struct quire_batch quire_batch;

QUIRE_API quire_status quire_batch_merge(quire_batch **out, quire_pool *pool, quire_seq *const *seqs,
                                         uint32_t n);
QUIRE_API quire_status quire_batch_add(quire_batch *batch, const quire_seq *seq); /* at the end */
QUIRE_API quire_status quire_batch_extract(quire_seq **out, const quire_batch *batch, uint32_t index);
/* Keeps the sequences with these indices, in this order. An index may appear several times (beam search): forks. */
QUIRE_API quire_status quire_batch_filter(quire_batch *batch, const uint32_t *indices, uint32_t n);
/* Adds the sequences of another batch of the same pool at the end. EINVAL: it is the same batch, or one of another pool. */
QUIRE_API quire_status quire_batch_extend(quire_batch *batch, const quire_batch *other);
/* Like quire_seq_convert() for all sequences of the batch; pages that they share stay shared. */
QUIRE_API quire_status quire_batch_convert(quire_batch *batch, const quire_plan *plan, uint32_t flags);
/* The sequences, for quire_step_begin(), quire_seq_trim() and so on. They stay the batch's: do not destroy them. Valid until the
 * batch changes. n may be NULL. */
QUIRE_API quire_seq *const *quire_batch_seqs(const quire_batch *batch, uint32_t *n);
QUIRE_API void quire_batch_destroy(quire_batch *batch); /* none of its sequences may be in an open step */

/*
 * The left-padded form that other engines use: n_columns columns, with sequence i in columns left_padding[i] to
 * n_columns - 1. Import reads k[layer] and v[layer], arrays of one block per layer with rows_stride bytes from one to the
 * next. Export fills the padding with zeros; n_columns must be at least the longest length.
 */
QUIRE_API quire_status quire_batch_import(quire_batch **out, quire_pool *pool, uint32_t n_seqs,
                                          uint32_t n_columns, const uint32_t *left_padding,
                                          const quire_rows *k, const quire_rows *v, size_t rows_stride);
QUIRE_API quire_status quire_batch_export(const quire_batch *batch, uint32_t layer, quire_side side,
                                          uint32_t n_columns, uint32_t *left_padding,
                                          const quire_rows_out *rows);

/* ------------------------------------------------- tiles of a sequence */
/* Interface: experimental. */

/* The tiles that a sequence holds of a layer, oldest first. Returns their number and writes at most cap of them, stride bytes
 * apart (sizeof(quire_tile_ref)). Valid until the sequence changes. */
QUIRE_API uint32_t quire_seq_tiles(const quire_seq *seq, uint32_t layer, quire_tile_ref *tiles, uint32_t cap,
                                   size_t stride);
/* Adds the pages that the sequence holds of a group of its plan to a list. Layer i of the list is the layer of that group
 * whose quire_plan_layer.group_index is i. Valid until the sequence changes. */
QUIRE_API quire_status quire_tile_list_add_seq(quire_tile_list *list, const quire_seq *seq, uint32_t group);

#ifdef __cplusplus
}
#endif
#endif
