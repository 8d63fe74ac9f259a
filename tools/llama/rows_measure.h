/* SPDX-License-Identifier: MIT */
/* rows_measure: what a pair of codecs does to the attention of one recorded layer. */
#ifndef QUIRE_TOOLS_ROWS_MEASURE_H
#define QUIRE_TOOLS_ROWS_MEASURE_H

#include "files/rows_file.h"

/* Sums over rows, heads and queries, so that layers can be added up. */
typedef struct rows_error {
    double out, out_all; /* squared error of attention's output; squares of the exact one */
    double k, k_all;     /* of K's values */
    double v, v_all;     /* of V's */
    double score,
        n_scores; /* of the scores a query sees, their common shift taken out (softmax does not see it) */
} rows_error;

typedef struct rows_case {
    const rows_file *file;
    uint32_t layer;
    const char *k, *v;            /* codecs */
    const quire_profile *profile; /* or NULL */
    uint32_t every;               /* of the tokens, every how many asks */
    const float *exact;           /* what rows_exact() gave */
    quire_workspace *workspace;
} rows_case;

uint32_t rows_n_queries(const rows_case *c);
/* Attention over the rows as they are, the same for all codecs: [n_queries][n_q_heads][d_v]. k and v are not looked at. */
quire_status rows_exact(const rows_case *c, float *out);
/* Adds to *e. out: [n_queries][n_q_heads][d_v] of the coded rows, or NULL. */
quire_status rows_measure(const rows_case *c, rows_error *e, float *out);

#endif
