/* SPDX-License-Identifier: MIT */
/* The same sequences in blocks of a host's memory and in a pool, for tests of tile lists. */
#ifndef QUIRE_TESTS_LIST_SCENE_H
#define QUIRE_TESTS_LIST_SCENE_H

#include "paged_host.h"

enum { N_KV = 3, N_Q = 6, D = 48, D_V = 32, LAYERS = 3, N_NEW = 4, MOST_SEQS = 8 };
#define OUT_FLOATS (N_NEW * N_Q * D_V)

/* A list of paged memory and the same sequences in a pool; what a step gave for the last N_NEW tokens of each. */
typedef struct scene {
    quire_geometry g;
    quire_plan *plan;
    quire_pool *pool;
    paged p;
    uint32_t n_seqs;
    int32_t blocks[MOST_SEQS][24], lengths[MOST_SEQS];
    float q[LAYERS][N_NEW * N_Q * D];
    float expected[MOST_SEQS][LAYERS][OUT_FLOATS];
    quire_threads *threads;
    quire_workspace *workspace[3]; /* one thread, three, backwards */
} scene;

static inline quire_block_table table_of(const scene *s)
{
    return (quire_block_table){.size = sizeof(quire_block_table),
                               .memory = &s->p.m,
                               .blocks = s->blocks[0],
                               .row_stride = sizeof s->blocks[0],
                               .lengths = s->lengths,
                               .n_seqs = s->n_seqs};
}

static inline void open_workspaces(scene *s)
{
    quire_executor e = {.size = sizeof e};
    REF_OK(quire_threads_create(&s->threads, 3));
    REF_OK(quire_threads_executor(s->threads, &e));
    REF_OK(quire_workspace_create(&s->workspace[0], NULL, NULL));
    REF_OK(quire_workspace_create(&s->workspace[1], &e, NULL));
    quire_executor back = {.size = sizeof back, .run = run_backwards, .n_threads = 5};
    REF_OK(quire_workspace_create(&s->workspace[2], &back, NULL));
}

static inline void close_workspaces(scene *s)
{
    for (int i = 0; i < 3; i++) quire_workspace_destroy(s->workspace[i]);
    quire_threads_destroy(s->threads);
}

static inline scene *scene_open(const char *k, const char *v, uint32_t block_tokens)
{
    static const int32_t lengths[] = {200, 0, 4, 64, 1100, 63, 65};
    scene *s = ref_alloc(1, sizeof *s);
    s->g = (quire_geometry){.size = sizeof s->g,
                            .n_layers = LAYERS,
                            .n_q_heads = N_Q,
                            .n_kv_heads = N_KV,
                            .d_k = D,
                            .d_v = D_V,
                            .v_in_k = !v};
    char policy[64];
    (void)snprintf(policy, sizeof policy, "%s/%s", k, v ? v : k);
    s->plan = kit_plan(&s->g, policy, NULL);
    s->pool = kit_pool(s->plan, (size_t)32 << 20, NULL);
    s->n_seqs = COUNT(lengths);
    uint32_t n_blocks = 0, next = 0;
    for (uint32_t i = 0; i < s->n_seqs; i++)
        n_blocks += ((uint32_t)lengths[i] + block_tokens - 1) / block_tokens;
    paged_open(&s->p, k, v, D, D_V, n_blocks, block_tokens, N_KV, LAYERS);
    /* A permutation: 7 shares no factor with the number of blocks. */
    assert_true(n_blocks % 7 != 0);
    for (uint32_t l = 0; l < LAYERS; l++) kit_row(77, l, QUIRE_K, 0, s->q[l], COUNT(s->q[l]));
    for (uint32_t i = 0; i < s->n_seqs; i++) {
        s->lengths[i] = lengths[i];
        memset(s->blocks[i], 0xff, sizeof s->blocks[i]); /* -1 behind the last one that is needed */
        uint32_t n = ((uint32_t)lengths[i] + block_tokens - 1) / block_tokens;
        for (uint32_t b = 0; b < n; b++) s->blocks[i][b] = (int32_t)(next++ * 7 % n_blocks);
        paged_fill(&s->p, s->blocks[i], 0, (uint32_t)lengths[i], i + 1, D, D_V);
        if (!lengths[i]) continue;
        quire_seq *seq = kit_seq(s->pool, 0, 0, 0);
        quire_step *step = NULL;
        uint32_t before = (uint32_t)lengths[i] - N_NEW;
        if (before) REF_OK(kit_append(s->pool, &s->g, seq, before, i + 1));
        REF_OK(kit_begin(&step, s->pool, &s->g, seq, N_NEW, i + 1));
        for (uint32_t l = 0; l < LAYERS; l++) REF_OK(quire_step_attend(step, l, s->q[l], s->expected[i][l]));
        quire_step_abort(step);
        quire_seq_destroy(seq);
    }
    open_workspaces(s);
    return s;
}

static inline void scene_close(scene *s)
{
    close_workspaces(s);
    paged_close(&s->p);
    quire_pool_destroy(s->pool);
    quire_plan_destroy(s->plan);
    free(s);
}

static inline quire_attend_job list_job(const scene *s, const quire_tile_list *list, uint32_t seq,
                                        uint32_t layer, float *out)
{
    uint32_t length = (uint32_t)s->lengths[seq];
    return (quire_attend_job){.list = list,
                              .list_seq = seq,
                              .list_layer = layer,
                              .n_q_heads = N_Q,
                              .n_kv_heads = N_KV,
                              .d_k = D,
                              .d_v = D_V,
                              .n_queries = N_NEW,
                              .first_query = length < N_NEW ? 0 : length - N_NEW,
                              .q = s->q[layer],
                              .out = out};
}

/* All sequences and layers of the list in one call; those before `first` are somebody else's. */
static inline void check_list(scene *s, const quire_tile_list *list, uint32_t first, const char *what)
{
    float(*out)[OUT_FLOATS] = ref_alloc((size_t)MOST_SEQS * LAYERS, sizeof *out);
    quire_attend_job jobs[MOST_SEQS * LAYERS];
    for (int w = 0; w < 3; w++) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < s->n_seqs; i++)
            for (uint32_t l = 0; l < LAYERS; l++, n++) {
                jobs[n] = list_job(s, list, i, l, out[n]);
                jobs[n].list_seq += first;
            }
        memset(out, 0x55, sizeof *out * n);
        REF_OK(quire_attend(s->workspace[w], NULL, jobs, n, sizeof *jobs));
        for (uint32_t i = 0; i < n; i++)
            if (memcmp(out[i], s->expected[i / LAYERS][i % LAYERS], sizeof *out))
                fail_msg("%s, workspace %d: sequence %u, layer %u differs", what, w, i / LAYERS, i % LAYERS);
    }
    free(out);
}

#endif
