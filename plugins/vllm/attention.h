/* SPDX-License-Identifier: MIT */
/*
 * attention.h: what runs for every layer of every step of vLLM. Python fills the structures once per layer and once per step
 * (quire_vllm/_native.py declares them) and makes one call for each of the two things that a layer does.
 *
 * Threads: a team does one thing at a time and makes others wait; a step belongs to one engine, which uses it from one thread.
 */
#ifndef QUIRE_VLLM_ATTENTION_H
#define QUIRE_VLLM_ATTENTION_H

#include <quire/quire.h>

/* One layer: where its tiles are and how it attends. The pointers are the caller's and stay as long as the layer. */
typedef struct quire_vllm_layer {
    size_t size;
    quire_paged_memory memory;
    quire_attend_options options;
    uint32_t n_q_heads, d_k, d_v, window;
    uint32_t form; /* of new rows, queries and outputs: a quire_form */
    uint32_t reserved;
} quire_vllm_layer;

/* What the sequences of a step are. The arrays are vLLM's own and keep their contents until the step is over. */
typedef struct quire_vllm_batch {
    size_t size;
    const int32_t *query_starts; /* n_seqs + 1: first query of each sequence, and the number of all */
    const int32_t *lengths;      /* n_seqs: tokens of each sequence, those of this step included */
    const int32_t *blocks;
    size_t row_stride; /* of blocks, in bytes */
    uint32_t n_seqs;
    uint32_t reserved;
} quire_vllm_batch;

/* The OpenMP threads of the process, with the scratch memory for them. */
typedef struct quire_vllm_team quire_vllm_team;
QUIRE_API quire_status quire_vllm_team_create(quire_vllm_team **out);
QUIRE_API void quire_vllm_team_destroy(quire_vllm_team *team);

/* The tiles of one step. begin() only remembers the batch; the first layer that attends makes the list of tiles. */
typedef struct quire_vllm_step quire_vllm_step;
QUIRE_API quire_status quire_vllm_step_create(quire_vllm_step **out);
QUIRE_API void quire_vllm_step_destroy(quire_vllm_step *step);
/* EINVAL: the queries are not in order, or a sequence is shorter than its queries. */
QUIRE_API quire_status quire_vllm_step_begin(quire_vllm_step *step, const quire_vllm_batch *batch);

/* Writes the new rows of a layer. slots has one entry per token; a negative one skips its token. */
QUIRE_API quire_status quire_vllm_write(quire_vllm_team *team, const quire_vllm_layer *layer, const void *k,
                                        size_t k_token_stride, size_t k_head_stride, const void *v,
                                        size_t v_token_stride, size_t v_head_stride, const int64_t *slots,
                                        uint32_t n_tokens);
/* Attends with all queries of the step. n_tokens: rows that q and out have; EINVAL if the step has more queries. */
QUIRE_API quire_status quire_vllm_attend(quire_vllm_team *team, quire_vllm_step *step,
                                         const quire_vllm_layer *layer, const void *q, size_t q_token_stride,
                                         size_t q_head_stride, void *out, size_t out_token_stride,
                                         size_t out_head_stride, uint32_t n_tokens);

#endif
