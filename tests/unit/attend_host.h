/* SPDX-License-Identifier: MIT */
/* A host with its own tiles, a format of its own each: what tests of quire_attend() work on. */
#ifndef QUIRE_TESTS_ATTEND_HOST_H
#define QUIRE_TESTS_ATTEND_HOST_H

#include "support/reference.h"

#include "tile/tile.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

enum {
    N_KV = 2,
    N_Q = 4,
    D = 64,
    D_V = 32,
    MOST_TILES = 20,
    TILE_ROWS = 40,
    N_QUERIES = 5,
    N_OUT = N_QUERIES * N_Q
};

/* Tiles with a format of their own each, TILE_ROWS rows after each other, and what they decode to. */
typedef struct host {
    uint32_t n_tiles, n_rows;
    quire_tile_format *k[MOST_TILES], *v[MOST_TILES];
    uint8_t *memory[MOST_TILES];
    quire_tile_ref tile[MOST_TILES];
    float k_rows[MOST_TILES * TILE_ROWS * N_KV * D], v_rows[MOST_TILES * TILE_ROWS * N_KV * D_V];
    float q[N_QUERIES * N_Q * D], out[N_OUT * D_V], max[N_OUT], sum[N_OUT];
    quire_workspace *workspace;
} host;

static inline void add_tile(host *t, const char *k_codec, const char *v_codec, uint64_t *state)
{
    uint32_t i = t->n_tiles++, d[2] = {D, D_V};
    quire_tile_format_options options = {sizeof(quire_tile_format_options), .side = QUIRE_K, .d = D};
    REF_OK(quire_tile_format_create(&t->k[i], k_codec, &options));
    options = (quire_tile_format_options){sizeof(quire_tile_format_options), .side = QUIRE_V, .d = D_V};
    REF_OK(quire_tile_format_create(&t->v[i], v_codec, &options));
    size_t k_bytes = quire_tile_bytes(t->k[i]), v_bytes = quire_tile_bytes(t->v[i]);
    t->memory[i] = aligned_alloc(64, N_KV * (k_bytes + v_bytes));
    memset(t->memory[i], 0, N_KV * (k_bytes + v_bytes));
    uint8_t *at[2] = {t->memory[i], t->memory[i] + N_KV * k_bytes};
    float *decoded[2] = {t->k_rows + t->n_rows * N_KV * D, t->v_rows + t->n_rows * N_KV * D_V};
    for (int s = 0; s < 2; s++)
        for (uint32_t h = 0; h < N_KV; h++) {
            const quire_tile_format *f = s ? t->v[i] : t->k[i];
            float rows[TILE_ROWS * D];
            ref_k_rows(state, rows, TILE_ROWS, 1, d[s]);
            quire_rows in = {.size = sizeof(quire_rows), .form = QUIRE_F32, .data = rows};
            quire_rows_out out = {.size = sizeof(quire_rows_out),
                                  .form = QUIRE_F32,
                                  .data = decoded[s] + h * d[s],
                                  .token_stride = sizeof(float) * N_KV * d[s]};
            uint8_t *tile = at[s] + h * quire_tile_bytes(f);
            REF_OK(quire_tile_encode(f, h, tile, 0, TILE_ROWS, &in, NULL));
            REF_OK(quire_tile_decode(f, h, tile, 0, TILE_ROWS, &out));
        }
    t->tile[i] = (quire_tile_ref){.k = at[0],
                                  .v = at[1],
                                  .k_head_stride = k_bytes,
                                  .v_head_stride = v_bytes,
                                  .k_format = t->k[i],
                                  .v_format = t->v[i],
                                  .first = t->n_rows,
                                  .n_rows = TILE_ROWS};
    t->n_rows += TILE_ROWS;
}

static inline host *host_open(void)
{
    host *t = ref_alloc(1, sizeof *t);
    uint64_t state = 11;
    ref_q_rows(&state, t->q, N_QUERIES, N_Q, D);
    add_tile(t, "f32", "r4", &state);
    add_tile(t, "a4g64", "h:q4_0", &state);
    add_tile(t, "r4", "f32", &state);
    add_tile(t, "h:q4_0", "a4g64", &state);
    REF_OK(quire_workspace_create(&t->workspace, NULL, NULL));
    return t;
}

static inline void host_close(host *t)
{
    for (uint32_t i = 0; i < t->n_tiles; i++) {
        quire_tile_format_destroy(t->k[i]);
        quire_tile_format_destroy(t->v[i]);
        free(t->memory[i]);
    }
    quire_workspace_destroy(t->workspace);
    free(t);
}

static inline quire_attend_job host_job(host *t)
{
    return (quire_attend_job){.tile_stride = sizeof(quire_tile_ref),
                              .tiles = t->tile,
                              .n_tiles = t->n_tiles,
                              .n_q_heads = N_Q,
                              .n_kv_heads = N_KV,
                              .d_k = D,
                              .d_v = D_V,
                              .n_queries = N_QUERIES,
                              .first_query = t->n_rows - N_QUERIES,
                              .q = t->q,
                              .out = t->out,
                              .max = t->max,
                              .sum = t->sum};
}

/* Runs the job and compares it with softmax in double over the decoded rows. */
static inline void check_job(host *t, const quire_attend_job *job, const quire_attend_options *options,
                             const char *what)
{
    double expected[N_OUT * D_V], lse[N_OUT];
    ref_job r = {.n_q_heads = N_Q,
                 .n_kv_heads = N_KV,
                 .d_k = D,
                 .d_v = D_V,
                 .n_keys = t->n_rows,
                 .n_queries = N_QUERIES,
                 .first_query = job->first_query,
                 .q = t->q,
                 .k = t->k_rows,
                 .v = t->v_rows,
                 .options = options,
                 .mask = job->mask};
    REF_OK(quire_attend(t->workspace, options, job, 1, sizeof(quire_attend_job)));
    ref_attend(&r, expected, lse);
    size_t row = 0;
    double error = ref_worst_error(t->out, expected, N_OUT, D_V, &row);
    if (!(error <= REF_BOUND))
        fail_msg("%s: row %zu is off by %g: %.9g, expected %.9g", what, row, error, (double)t->out[row * D_V],
                 expected[row * D_V]);
    for (uint32_t i = 0; i < N_OUT; i++) {
        double got = (double)job->max[i] + log((double)job->sum[i]);
        if (!(fabs(got - lse[i]) <= REF_BOUND * fmax(1, fabs(lse[i]))))
            fail_msg("%s: row %u: max %g and sum %g, expected log-sum-exp %g", what, i, (double)job->max[i],
                     (double)job->sum[i], lse[i]);
    }
}

#endif
