/* SPDX-License-Identifier: MIT */
/* bench: the command line of `quire bench`. */
#ifndef QUIRE_TOOLS_BENCH_OPTIONS_H
#define QUIRE_TOOLS_BENCH_OPTIONS_H

#include "bench/bench.h"

typedef struct bench_head {
    uint32_t d, d_v;
    bool v_in_k;
} bench_head;

/* What is 0 or empty was not given. */
typedef struct bench_options {
    bool ops[BENCH_N_OPS];
    bench_pair pairs[BENCH_LIST], ggml_pairs[BENCH_LIST];
    size_t n_pairs, n_ggml_pairs;
    uint32_t contexts[BENCH_LIST];
    size_t n_contexts;
    uint32_t lengths[BENCH_MAX_SEQS];
    size_t n_lengths;
    bench_head heads[BENCH_LIST];
    size_t n_heads;
    uint32_t n_kv_heads, n_q_heads, n_queries, n_seqs;
    uint32_t n_threads, rounds, slow_rounds;
    const char *isas[BENCH_LIST];
    size_t n_isas;
    bool cold, json;
    double spread;
    uint64_t seed;
    const char *ggml, *markdown, *plot;
} bench_options;

/* -1: go on with what was given and what was not; else the exit code. */
int bench_options_parse(bench_options *o, int argc, char **argv);
/* Adds the pairs of a list such as "f16,k8v4,r5/r3"; false: something in it is no codec. */
bool bench_pairs_add(const char *list, bench_pair *pairs, size_t *n);

#endif
