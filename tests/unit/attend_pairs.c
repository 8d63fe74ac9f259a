/* SPDX-License-Identifier: MIT */
/* Every codec of K with every codec of V, none left out: a ragged chunk and a decode step against softmax in double
 * over the decoded rows. */
#include "support/reference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { D_K = 64, D_V = 32, N_KV = 2, N_Q = 4, N_SEQS = 3, N_STEPS = 3, N_ALL = 204, LONGEST = 129 };
#define SEED 20260101u

/* Tokens of each step per sequence; the first is only appended. In the end 70, 5 and 129: short of a tile, one row
 * into the third. */
static const uint32_t step_tokens[N_STEPS][N_SEQS] = {{60, 0, 100}, {9, 4, 28}, {1, 1, 1}};
static const uint32_t seq_tokens[N_SEQS] = {70, 5, 129};
static const uint32_t seq_first[N_SEQS] = {0, 70, 75}; /* rows of the sequences follow each other */

static const quire_geometry geometry = {sizeof(quire_geometry), .n_layers = 1, .n_q_heads = N_Q,
                                        .n_kv_heads = N_KV,     .d_k = D_K,    .d_v = D_V};

/* A codec's rows of one side: its own bytes, which every pair appends again, and what they decode to. */
typedef struct coded_side {
    const char *name;
    size_t row_bytes;
    uint8_t *native;
    float *decoded;
} coded_side;

typedef struct fixture {
    quire_profile *profile;
    float k[N_ALL * N_KV * D_K], v[N_ALL * N_KV * D_V], q[N_ALL * N_Q * D_K];
    float identity[LONGEST * N_KV * LONGEST];
    double weights[N_ALL * N_Q * LONGEST]; /* of the K codec at hand, per query and head */
    coded_side *v_side;
    uint32_t n_v;
    double worst;
    char worst_at[96];
} fixture;

static size_t side_floats(quire_side side)
{
    return (size_t)N_KV * (side == QUIRE_K ? D_K : D_V);
}

static coded_side encode_side(const fixture *f, const char *name, quire_side side)
{
    coded_side c = {.name = name};
    char policy[64];
    snprintf(policy, sizeof policy, "k=%s,v=%s", side == QUIRE_K ? name : "f32",
             side == QUIRE_K ? "f32" : name);
    c.row_bytes = quire_codec_row_bytes(name, side == QUIRE_K ? D_K : D_V);
    c.native = ref_alloc(N_ALL * N_KV, c.row_bytes);
    c.decoded = ref_alloc(N_ALL * side_floats(side), sizeof(float));
    ref_cache cache = ref_open(&geometry, policy, f->profile, NULL);
    quire_seq *seq[N_SEQS];
    for (uint32_t s = 0; s < N_SEQS; s++) seq[s] = ref_seq(&cache, NULL);
    ref_step(&cache, seq, seq_tokens, N_SEQS, f->k, f->v, NULL, NULL);
    for (uint32_t s = 0; s < N_SEQS; s++) {
        quire_rows_out rows = {.size = sizeof(quire_rows_out),
                               .form = QUIRE_NATIVE,
                               .data = c.native + seq_first[s] * N_KV * c.row_bytes};
        REF_OK(quire_seq_export(seq[s], 0, side, 0, seq_tokens[s], &rows));
        ref_export(seq[s], 0, side, 0, seq_tokens[s], c.decoded + seq_first[s] * side_floats(side));
        quire_seq_destroy(seq[s]);
    }
    ref_close(&cache);
    return c;
}

static void free_side(coded_side *c)
{
    free(c->native);
    free(c->decoded);
}

static void begin(fixture *f)
{
    uint64_t state = SEED;
    f->profile = ref_profile(&geometry);
    ref_k_rows(&state, f->k, N_ALL, N_KV, D_K);
    ref_normals(&state, f->v, N_ALL * N_KV * D_V, 1);
    ref_q_rows(&state, f->q, N_ALL, N_Q, D_K);
    for (uint32_t j = 0; j < LONGEST; j++)
        for (uint32_t h = 0; h < N_KV; h++) f->identity[(j * N_KV + h) * LONGEST + j] = 1;
    f->v_side = ref_alloc(quire_codec_count(), sizeof *f->v_side);
    for (uint32_t i = 0; i < quire_codec_count(); i++) {
        const quire_codec_info *info = quire_codec_at(i);
        if (info->flags & QUIRE_CODEC_CALIBRATED) continue; /* for K only */
        f->v_side[f->n_v++] = encode_side(f, info->name, QUIRE_V);
    }
}

/* The softmax does not depend on V: with the identity as V the output is the weights, once per K codec. */
static void find_weights(fixture *f, const coded_side *k)
{
    for (uint32_t s = 0; s < N_SEQS; s++) {
        ref_job job = {.n_q_heads = N_Q,
                       .n_kv_heads = N_KV,
                       .d_k = D_K,
                       .d_v = LONGEST,
                       .n_keys = seq_tokens[s],
                       .n_queries = seq_tokens[s],
                       .q = f->q + seq_first[s] * N_Q * D_K,
                       .k = k->decoded + seq_first[s] * N_KV * D_K,
                       .v = f->identity};
        ref_attend(&job, f->weights + (size_t)seq_first[s] * N_Q * LONGEST, NULL);
    }
}

static void expect(const fixture *f, const coded_side *v, uint32_t s, uint32_t token, uint32_t head,
                   double *out)
{
    const double *w = f->weights + ((size_t)(seq_first[s] + token) * N_Q + head) * LONGEST;
    memset(out, 0, sizeof *out * D_V);
    for (uint32_t j = 0; j <= token; j++) {
        const float *row = v->decoded + ((size_t)(seq_first[s] + j) * N_KV + head / (N_Q / N_KV)) * D_V;
        for (uint32_t c = 0; c < D_V; c++) out[c] += w[j] * (double)row[c];
    }
}

static void check(fixture *f, const coded_side *k, const coded_side *v, uint32_t step, const uint32_t *length,
                  const float *out)
{
    double expected[D_V];
    for (uint32_t s = 0; s < N_SEQS; s++)
        for (uint32_t t = 0; t < step_tokens[step][s]; t++)
            for (uint32_t h = 0; h < N_Q; h++, out += D_V) {
                expect(f, v, s, length[s] + t, h, expected);
                double error = ref_row_error(out, expected, D_V);
                if (!(error <= REF_BOUND))
                    fail_msg("%s/%s, d %d/%d, seed %u, %s, sequence %u, token %u, head %u: error %g, "
                             "first channel %.9g, expected %.9g",
                             k->name, v->name, D_K, D_V, SEED, step == 1 ? "chunk" : "decode", s,
                             length[s] + t, h, error, (double)out[0], expected[0]);
                if (error <= f->worst) continue;
                f->worst = error;
                snprintf(f->worst_at, sizeof f->worst_at, "%s/%s", k->name, v->name);
            }
}

static quire_rows native_rows(const coded_side *c, uint32_t s, uint32_t token)
{
    return (quire_rows){.size = sizeof(quire_rows),
                        .form = QUIRE_NATIVE,
                        .data = c->native + (seq_first[s] + token) * N_KV * c->row_bytes};
}

static void try_pair(fixture *f, const coded_side *k, const coded_side *v)
{
    static float q[N_ALL * N_Q * D_K], out[N_ALL * N_Q * D_V];
    char policy[64];
    snprintf(policy, sizeof policy, "%s/%s", k->name, v->name);
    ref_cache cache = ref_open(&geometry, policy, f->profile, NULL);
    quire_seq *seq[N_SEQS];
    uint32_t length[N_SEQS] = {0};
    for (uint32_t s = 0; s < N_SEQS; s++) seq[s] = ref_seq(&cache, NULL);
    for (uint32_t i = 0; i < N_STEPS; i++) {
        quire_step *step = NULL;
        size_t n_q = 0;
        REF_OK(quire_step_begin(&step, cache.pool, seq, step_tokens[i], N_SEQS));
        for (uint32_t s = 0; s < N_SEQS; s++) {
            quire_rows k_rows = native_rows(k, s, length[s]), v_rows = native_rows(v, s, length[s]);
            REF_OK(quire_step_append_rows(step, 0, s, &k_rows, &v_rows));
            size_t n = (size_t)step_tokens[i][s] * N_Q * D_K;
            memcpy(q + n_q, f->q + (size_t)(seq_first[s] + length[s]) * N_Q * D_K, n * sizeof *q);
            n_q += n;
        }
        if (i) REF_OK(quire_step_attend(step, 0, q, out));
        REF_OK(quire_step_commit(step));
        if (i) check(f, k, v, i, length, out);
        for (uint32_t s = 0; s < N_SEQS; s++) length[s] += step_tokens[i][s];
    }
    for (uint32_t s = 0; s < N_SEQS; s++) quire_seq_destroy(seq[s]);
    ref_close(&cache);
}

static void every_pair_is_within_the_bound(void **unused)
{
    (void)unused;
    fixture *f = ref_alloc(1, sizeof *f);
    uint32_t n_pairs = 0;
    begin(f);
    for (uint32_t i = 0; i < quire_codec_count(); i++) {
        coded_side k = encode_side(f, quire_codec_at(i)->name, QUIRE_K);
        find_weights(f, &k);
        for (uint32_t j = 0; j < f->n_v; j += REF_STRIDE, n_pairs++) try_pair(f, &k, &f->v_side[j]);
        free_side(&k);
    }
    print_message("%u pairs, largest error %.2e (%s)\n", n_pairs, f->worst, f->worst_at);
    assert_true(n_pairs >= 60 * 60 / REF_STRIDE); /* nobody has thinned out the registry or this loop */
    for (uint32_t j = 0; j < f->n_v; j++) free_side(&f->v_side[j]);
    free(f->v_side);
    quire_profile_destroy(f->profile);
    free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_pair_is_within_the_bound)};
    return cmocka_run_group_tests_name("attend_pairs", tests, NULL, NULL);
}
