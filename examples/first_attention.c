/* SPDX-License-Identifier: MIT */
/* A decode loop over random vectors: 256 tokens, two layers, K in 8 bits and V in 4. */
#include <quire/quire.h>

#include <stdio.h>
#include <stdlib.h>

static void fill(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) x[i] = (float)rand() / (float)RAND_MAX * 2 - 1;
}

int main(void)
{
    static float k[8 * 128], v[8 * 128], q[32 * 128], out[32 * 128];
    uint32_t n_tokens = 0;

    quire_geometry g = {sizeof(quire_geometry), .n_layers = 2, .n_q_heads = 32,
                        .n_kv_heads = 8,        .d_k = 128,    .d_v = 128};
    quire_plan *plan;
    quire_pool *pool;
    quire_seq *seq;
    if (quire_plan_create(&plan, &g, "k8v4", NULL)) return 1;
    if (quire_pool_create(&pool, plan,
                          &(quire_pool_options){sizeof(quire_pool_options), .budget_bytes = 1u << 30}))
        return 1;
    if (quire_seq_create(&seq, pool, NULL)) return 1; /* NULL: unbounded, no sinks */

    for (; n_tokens < 256; n_tokens++) {
        quire_step *step;
        if (quire_step_begin(&step, pool, &seq, &(uint32_t){1}, 1)) break; /* pool full: nothing changed */
        for (uint32_t layer = 0; layer < g.n_layers; layer++) {
            fill(k, 8 * 128), fill(v, 8 * 128), fill(q, 32 * 128); /* your model computes these */
            if (quire_step_append(step, layer, k, v)) return 1;    /* encoded straight into its tile */
            if (quire_step_attend(step, layer, q, out)) return 1;  /* reads tiles only */
        }
        if (quire_step_commit(step)) return 1;
    }

    quire_pool_stats stats = {.size = sizeof stats};
    quire_pool_stats_get(pool, &stats);
    printf("%u tokens in %zu bytes; f16 would take %zu\n", quire_seq_length(seq), stats.used_bytes,
           (size_t)n_tokens * 2 * 2 * 8 * 128 * 2);
    quire_seq_destroy(seq);
    quire_pool_destroy(pool);
    quire_plan_destroy(plan);
    return n_tokens == 256 ? 0 : 1;
}
