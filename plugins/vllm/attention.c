/* SPDX-License-Identifier: MIT */
/* Rows into tiles by slot mapping, attention over tiles by block table, on the OpenMP threads that torch uses already. */
#include "attention.h"

#include <pthread.h>
#include <quire/openmp.h>
#include <stdbool.h>
#include <stdlib.h>

/* ------------------------------------------------------------------- team */

struct quire_vllm_team {
    pthread_mutex_t lock; /* engines of one process may run on different threads */
    quire_workspace *workspace;
    uint32_t n_threads;
};

quire_status quire_vllm_team_create(quire_vllm_team **out)
{
    if (!out) return QUIRE_EINVAL;
    quire_vllm_team *team = (quire_vllm_team *)calloc(1, sizeof *team);
    if (!team) return QUIRE_ENOMEM;
    if (pthread_mutex_init(&team->lock, NULL)) {
        free(team);
        return QUIRE_ENOMEM;
    }
    *out = team;
    return QUIRE_OK;
}

void quire_vllm_team_destroy(quire_vllm_team *team)
{
    if (!team) return;
    quire_workspace_destroy(team->workspace);
    pthread_mutex_destroy(&team->lock);
    free(team);
}

/* vLLM sets the number of threads after the model is made, and torch.set_num_threads() may change it at any time. */
static quire_status take_threads(quire_vllm_team *team)
{
    quire_executor executor = {.size = sizeof executor};
    quire_workspace *made = NULL;
    quire_openmp_executor(&executor, 0);
    if (team->workspace && executor.n_threads == team->n_threads) return QUIRE_OK;
    if (executor.n_threads < 2) executor.run = NULL;
    quire_status status = quire_workspace_create(&made, &executor, NULL);
    if (status) return status;
    quire_workspace_destroy(team->workspace);
    team->workspace = made;
    team->n_threads = executor.n_threads;
    return QUIRE_OK;
}

/* ------------------------------------------------------------------- step */

struct quire_vllm_step {
    quire_vllm_batch batch;
    quire_tile_list *list;
    const void *listed; /* the layer memory that the list is for; NULL: none */
    quire_attend_job *jobs;
    uint32_t cap_jobs;
};

quire_status quire_vllm_step_create(quire_vllm_step **out)
{
    if (!out) return QUIRE_EINVAL;
    quire_vllm_step *step = (quire_vllm_step *)calloc(1, sizeof *step);
    if (!step) return QUIRE_ENOMEM;
    quire_status status = quire_tile_list_create(&step->list, NULL);
    if (status) {
        free(step);
        return status;
    }
    *out = step;
    return QUIRE_OK;
}

void quire_vllm_step_destroy(quire_vllm_step *step)
{
    if (!step) return;
    quire_tile_list_destroy(step->list);
    free(step->jobs);
    free(step);
}

quire_status quire_vllm_step_begin(quire_vllm_step *step, const quire_vllm_batch *batch)
{
    if (!step || !batch || batch->size != sizeof *batch || batch->reserved) return QUIRE_EINVAL;
    if (!batch->query_starts || (batch->n_seqs && (!batch->lengths || !batch->blocks))) return QUIRE_EINVAL;
    if (batch->query_starts[0] != 0) return QUIRE_EINVAL;
    for (uint32_t i = 0; i < batch->n_seqs; i++) {
        int64_t n_queries = (int64_t)batch->query_starts[i + 1] - batch->query_starts[i];
        if (n_queries < 0 || batch->lengths[i] < n_queries) return QUIRE_EINVAL;
    }
    if (batch->n_seqs > step->cap_jobs) {
        quire_attend_job *jobs = (quire_attend_job *)realloc(step->jobs, batch->n_seqs * sizeof *jobs);
        if (!jobs) return QUIRE_ENOMEM;
        step->jobs = jobs;
        step->cap_jobs = batch->n_seqs;
    }
    step->batch = *batch;
    step->listed = NULL;
    return QUIRE_OK;
}

/* The tiles of all sequences in the memory of a layer. Layers that share their memory share the list. */
static quire_status list_tiles(quire_vllm_step *step, const quire_paged_memory *memory)
{
    if (step->listed == memory->k) return QUIRE_OK;
    quire_block_table table = {
        .size = sizeof table,
        .memory = memory,
        .blocks = step->batch.blocks,
        .row_stride = step->batch.row_stride,
        .lengths = step->batch.lengths,
        .n_seqs = step->batch.n_seqs,
    };
    step->listed = NULL;
    quire_tile_list_clear(step->list);
    quire_status status = quire_tile_list_add_blocks(step->list, &table);
    if (!status) step->listed = memory->k;
    return status;
}

/* ------------------------------------------------------------------ layer */

static bool layer_is_known(const quire_vllm_layer *layer)
{
    return layer && layer->size == sizeof *layer && !layer->reserved && layer->form <= QUIRE_BF16;
}

quire_status quire_vllm_write(quire_vllm_team *team, const quire_vllm_layer *layer, const void *k,
                              size_t k_token_stride, size_t k_head_stride, const void *v,
                              size_t v_token_stride, size_t v_head_stride, const int64_t *slots,
                              uint32_t n_tokens)
{
    if (!team || !layer_is_known(layer)) return QUIRE_EINVAL;
    if (!n_tokens) return QUIRE_OK;
    const quire_rows k_rows = {.size = sizeof k_rows,
                               .form = (quire_form)layer->form,
                               .data = k,
                               .token_stride = k_token_stride,
                               .head_stride = k_head_stride};
    const quire_rows v_rows = {.size = sizeof v_rows,
                               .form = (quire_form)layer->form,
                               .data = v,
                               .token_stride = v_token_stride,
                               .head_stride = v_head_stride};
    const quire_scatter_rows rows = {.size = sizeof rows,
                                     .memory = &layer->memory,
                                     .k = &k_rows,
                                     .v = &v_rows,
                                     .slots = slots,
                                     .n_tokens = n_tokens};
    pthread_mutex_lock(&team->lock);
    quire_status status = take_threads(team);
    if (!status) status = quire_scatter(team->workspace, &rows);
    pthread_mutex_unlock(&team->lock);
    return status;
}

quire_status quire_vllm_attend(quire_vllm_team *team, quire_vllm_step *step, const quire_vllm_layer *layer,
                               const void *q, size_t q_token_stride, size_t q_head_stride, void *out,
                               size_t out_token_stride, size_t out_head_stride, uint32_t n_tokens)
{
    if (!team || !step || !layer_is_known(layer)) return QUIRE_EINVAL;
    const quire_vllm_batch *batch = &step->batch;
    if (!batch->n_seqs) return QUIRE_OK;
    if ((uint32_t)batch->query_starts[batch->n_seqs] > n_tokens) return QUIRE_EINVAL;
    quire_status status = list_tiles(step, &layer->memory);
    if (status) return status;
    for (uint32_t i = 0; i < batch->n_seqs; i++) {
        uint32_t first = (uint32_t)batch->query_starts[i];
        uint32_t n_queries = (uint32_t)batch->query_starts[i + 1] - first;
        step->jobs[i] = (quire_attend_job){
            .list = step->list,
            .list_seq = i,
            .n_q_heads = layer->n_q_heads,
            .n_kv_heads = layer->memory.n_kv_heads,
            .d_k = layer->d_k,
            .d_v = layer->d_v,
            .n_queries = n_queries,
            .first_query = (uint32_t)batch->lengths[i] - n_queries,
            .window = layer->window,
            .q_form = (quire_form)layer->form,
            .out_form = (quire_form)layer->form,
            .q = (const char *)q + first * q_token_stride,
            .q_token_stride = q_token_stride,
            .q_head_stride = q_head_stride,
            .out = (char *)out + first * out_token_stride,
            .out_token_stride = out_token_stride,
            .out_head_stride = out_head_stride,
        };
    }
    pthread_mutex_lock(&team->lock);
    status = take_threads(team);
    if (!status)
        status =
            quire_attend(team->workspace, &layer->options, step->jobs, batch->n_seqs, sizeof *step->jobs);
    pthread_mutex_unlock(&team->lock);
    return status;
}
