/* SPDX-License-Identifier: MIT */
/* Every codec with itself, and the common splits, over many seeds, head sizes and score spreads, on every instruction
 * set of the machine, against softmax in double over the decoded rows. K has channels that are large and constant, and
 * rows that lack them, as the first tokens of a text do; for some seeds the token that is attended to most has a V much
 * smaller than the others', as those first tokens have too. */
#include "support/codec_sizes.h"
#include "support/reference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

enum { N_KV = 1, N_Q = 2, N_SEEDS = 20, N_SEEDS_C = 2, N_CHUNK = 3, MOST_TOKENS = 72, MOST_D = 576 };

typedef struct shape {
    uint32_t d_k, d_v, v_in_k;
} shape;

/* The last one is for codecs that do not take a V that is less than K. */
static shape shapes[] = {{64, 64, 0},   {80, 80, 0},   {96, 96, 0}, {128, 128, 0},
                         {256, 256, 0}, {576, 512, 1}, {64, 64, 1}};

/* Standard deviations of scores: nearly equal weights, those of a model, and one row that takes nearly all. */
static const float spreads[] = {0.7f, 2, 6};

static uint64_t n_seeds = N_SEEDS, n_seeds_c = N_SEEDS_C;

typedef struct worst_error {
    double error;
    char where[128];
} worst_error;

static void check_spread(const ref_job *job, const char *policy, uint64_t seed, float spread,
                         const float *out, worst_error *worst)
{
    static double expected[N_CHUNK * N_Q * MOST_D];
    ref_attend(job, expected, NULL);
    for (uint32_t i = 0; i < N_CHUNK * N_Q; i++) {
        const float *row = out + i * job->d_v;
        const double *want = expected + i * job->d_v;
        double error = ref_row_error(row, want, job->d_v);
        if (!(error <= REF_BOUND))
            fail_msg("%s: %s, d %u/%u, seed %u, %u tokens, spread %g, query %u, head %u: error %g, first "
                     "channel %.9g, expected %.9g",
                     quire_isa_in_use(), policy, job->d_k, job->d_v, (unsigned)seed, job->n_keys,
                     (double)spread, i / N_Q, i % N_Q, error, (double)row[0], want[0]);
        if (error <= worst->error) continue;
        worst->error = error;
        snprintf(worst->where, sizeof worst->where, "%s, d %u, seed %u, spread %g", policy, job->d_k,
                 (unsigned)seed, (double)spread);
    }
}

static double product(const float *q, const float *k, uint32_t d)
{
    double x = 0;
    for (uint32_t c = 0; c < d; c++) x += (double)q[c] * (double)k[c];
    return x;
}

/* Standard deviation of the products of one query with n rows. */
static float deviation(const float *q, const float *k, uint32_t n, uint32_t d)
{
    double sum = 0, squares = 0;
    for (uint32_t t = 0; t < n; t++) {
        double x = product(q, k + t * d, d);
        sum += x;
        squares += x * x;
    }
    return (float)sqrt(squares / n - sum / n * (sum / n));
}

/* The token that a query sees best gets a V of a 16th to a 1024th of its size. */
static void shrink_heaviest(uint64_t *state, const float *q, const float *k, float *v, uint32_t n,
                            const shape *s)
{
    uint32_t heaviest = 0;
    double most = -INFINITY;
    for (uint32_t t = 0; t < n; t++) {
        double x = product(q, k + t * s->d_k, s->d_k);
        if (x > most) most = x, heaviest = t;
    }
    float by = ldexpf(1, -4 - (int)ref_below(state, 7));
    for (uint32_t c = 0; c < s->d_v; c++) v[heaviest * s->d_v + c] *= by;
}

/* One sequence: most rows first, then a chunk whose queries are tried with every spread. */
static void try_seed(const ref_cache *cache, const char *policy, const shape *s, uint64_t seed,
                     worst_error *worst)
{
    static float k[MOST_TOKENS * MOST_D], v[MOST_TOKENS * MOST_D], q[N_CHUNK * N_Q * MOST_D];
    static float out[COUNT(spreads)][N_CHUNK * N_Q * MOST_D];
    uint64_t state = seed * 1000 + s->d_k;
    uint32_t first = 24 + ref_below(&state, MOST_TOKENS - N_CHUNK - 24 + 1), chunk = N_CHUNK;
    ref_k_rows(&state, k, first + chunk, N_KV, s->d_k);
    ref_normals(&state, v, (size_t)(first + chunk) * s->d_v, 1);
    ref_q_rows(&state, q, chunk, N_Q, s->d_k);
    if (seed % 3 == 0) shrink_heaviest(&state, q, k, v, first, s);

    quire_seq *seq = ref_seq(cache, NULL);
    quire_step *step = NULL;
    quire_attend_options options[COUNT(spreads)];
    const float *v_rows = s->v_in_k ? NULL : v;
    ref_step(cache, &seq, &first, 1, k, v_rows, NULL, NULL);
    REF_OK(quire_step_begin(&step, cache->pool, &seq, &chunk, 1));
    REF_OK(quire_step_append(step, 0, k + first * s->d_k, v_rows ? v + first * s->d_v : NULL));
    for (uint32_t i = 0; i < COUNT(spreads); i++) {
        options[i] = (quire_attend_options){.size = sizeof(quire_attend_options),
                                            .scale = spreads[i] / deviation(q, k, first, s->d_k)};
        quire_step_queries queries = {.size = sizeof queries, .q = q, .out = out[i], .options = &options[i]};
        REF_OK(quire_step_attend_with(step, 0, &queries));
    }
    REF_OK(quire_step_commit(step));

    ref_export(seq, 0, QUIRE_K, 0, first + chunk, k);
    if (!s->v_in_k) ref_export(seq, 0, QUIRE_V, 0, first + chunk, v);
    for (uint32_t i = 0; i < COUNT(spreads); i++) {
        ref_job job = {.n_q_heads = N_Q,
                       .n_kv_heads = N_KV,
                       .d_k = s->d_k,
                       .d_v = s->d_v,
                       .n_keys = first + chunk,
                       .n_queries = chunk,
                       .first_query = first,
                       .q = q,
                       .k = k,
                       .v = v_rows,
                       .options = &options[i]};
        check_spread(&job, policy, seed, spreads[i], out[i], worst);
    }
    quire_seq_destroy(seq);
}

static const char *const splits[] = {"a8g64/a4g64", "q8_0/q4_0", "r8/r4",   "r5/r4",
                                     "r5/r3",       "r4/r3",     "c:r5/r4", "c:r4/r3"};

static void try_policy(const quire_geometry *geometry, const quire_profile *profile, const shape *s,
                       const char *k, const char *v, worst_error *worst)
{
    char policy[64];
    snprintf(policy, sizeof policy, "%s/%s", k, v);
    ref_cache cache = ref_open(geometry, policy, profile, NULL);
    uint64_t n = strcmp(quire_isa_in_use(), "c") ? n_seeds : n_seeds_c;
    for (uint64_t seed = 1; seed <= n; seed++) try_seed(&cache, policy, s, seed, worst);
    ref_close(&cache);
}

static void try_shape(const shape *s)
{
    quire_geometry geometry = {sizeof(quire_geometry), .n_layers = 1, .n_q_heads = N_Q,   .n_kv_heads = N_KV,
                               .d_k = s->d_k,          .d_v = s->d_v, .v_in_k = s->v_in_k};
    quire_profile *profile = ref_profile(&geometry);
    const char *isa;
    for (uint32_t at = 0; (isa = quire_isa_at(at)); at++) {
        worst_error worst = {0};
        REF_OK(quire_isa_use(isa));
        for (uint32_t i = 0; i < quire_codec_count(); i += REF_STRIDE) {
            const char *k = quire_codec_at(i)->name;
            if (!codec_takes(quire_codec_at(i), s->d_k, s->v_in_k ? s->d_v : 0)) continue;
            if (s->v_in_k && s->d_v == s->d_k && codec_takes(quire_codec_at(i), 576, 512)) continue;
            try_policy(&geometry, profile, s, k, strncmp(k, "c:", 2) ? k : k + 2, &worst);
        }
        for (uint32_t i = 0; i < COUNT(splits) && !s->v_in_k; i++) {
            char k[32];
            snprintf(k, sizeof k, "%.*s", (int)strcspn(splits[i], "/"), splits[i]);
            try_policy(&geometry, profile, s, k, strchr(splits[i], '/') + 1, &worst);
        }
        print_message("%s: largest error %.2e (%s)\n", isa, worst.error, worst.where);
    }
    REF_OK(quire_isa_use(NULL));
    quire_profile_destroy(profile);
}

static void head_size(void **state)
{
    try_shape((const shape *)*state);
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--quick") == 0)
        n_seeds = n_seeds_c = 1; /* the short form, for emulated kernels */
    struct CMUnitTest tests[COUNT(shapes)];
    char name[COUNT(shapes)][48];
    for (uint32_t i = 0; i < COUNT(shapes); i++) {
        snprintf(name[i], sizeof name[i], "head size %u%s", shapes[i].d_k,
                 shapes[i].v_in_k ? ", V in K" : "");
        tests[i] = (struct CMUnitTest){.name = name[i], .test_func = head_size, .initial_state = &shapes[i]};
    }
    return cmocka_run_group_tests_name("attend_codecs", tests, NULL, NULL);
}
