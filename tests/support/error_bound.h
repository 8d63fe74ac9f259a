/* SPDX-License-Identifier: MIT */
/*
 * error_bound: what attention may differ from exact attention over the decoded rows, for any finite input. docs/kernels.md,
 * "Precision", has the statement and its proof; this is the same in double precision.
 */
#ifndef QUIRE_TESTS_ERROR_BOUND_H
#define QUIRE_TESTS_ERROR_BOUND_H

#include "tile/tile.h"

/* The norm of a row if each of its values were as large as its scales and biases allow; of a float row: its norm. */
double bound_range(const quire_tile_format *format, const quire_coded_row *row);

/* One query and n tokens. Rows are decoded, [n][d], with their ranges. */
typedef struct bound_job {
    const quire_tile_format *k_format, *v_format;
    uint32_t n, n_splits, d_v;
    uint32_t tiles_of_split; /* at most */
    const float *k, *v;
    const double *k_range, *v_range;
    const uint32_t *k_mean; /* [n] numbers of means that were taken out */
    const float *q;
    const float *mask; /* [n] added to scores, -inf hides; NULL: none */
    float scale, softcap, alibi, sink;
    bool portable; /* the kernels in C */
} bound_job;

typedef struct bound_answer {
    double lse;         /* log of the sum of exp(score), without the sink */
    double allowed;     /* norm of the error of an output row, at most */
    double lse_allowed; /* error of lse, at most */
    double range;       /* A: the mean of the ranges of V by weight */
    double out[QUIRE_MAX_D];
} bound_answer;

void bound_attend(const bound_job *job, bound_answer *answer);

#endif
