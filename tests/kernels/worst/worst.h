/* SPDX-License-Identifier: MIT */
/*
 * worst: a search for the input on which attention comes nearest to its error bound (docs/kernels.md, "Precision"). An input is changed
 * at random and the change is kept if the error, divided by the bound, has not become smaller.
 */
#ifndef QUIRE_TESTS_WORST_H
#define QUIRE_TESTS_WORST_H

#include "error_bound.h"
#include "random.h"

enum { WORST_TOKENS = 20 * QUIRE_TILE_ROWS };

/* The rows of one side, as codes and scales, so that the search reaches what no encoder makes. */
typedef struct worst_side {
    quire_tile_format *format;
    uint8_t *tiles;
    quire_coded_row *row; /* [WORST_TOKENS] */
    float *value;         /* decoded */
    double *range;
    uint32_t *mean;
} worst_side;

/* What is not rows. */
typedef struct worst_terms {
    float q[QUIRE_MAX_D];
    float scale, softcap, alibi, sink;
    bool has_mask;
    float mask[WORST_TOKENS];
} worst_terms;

typedef struct worst_undo {
    uint32_t side, token;
    quire_coded_row row;
} worst_undo;

typedef struct worst_input {
    worst_side side[2]; /* K and V */
    worst_terms terms, terms_before;
    uint32_t n_tokens;
    rng random;
    quire_workspace *workspace;
    worst_undo *undo; /* rows as they were before the last change */
    uint32_t n_undo;
    bool is_changed[2][WORST_TOKENS];
} worst_input;

typedef struct worst_result {
    double by_bound; /* norm of the error by what is allowed */
    double by_lse;   /* the same of the log-sum-exp */
    double by_range; /* norm of the error by A */
} worst_result;

/* input.c */
void worst_open(worst_input *in, const char *k, const char *v, uint32_t d_k, uint32_t d_v, uint32_t n_tokens,
                const quire_profile *profile);
void worst_close(worst_input *in);
/* A row that is about to be changed. */
quire_coded_row *worst_change(worst_input *in, uint32_t side, uint32_t t);
void worst_begin(worst_input *in); /* a change, or a new input */
void worst_undo_all(worst_input *in);
worst_result worst_measure(worst_input *in); /* after a change */

/* moves.c */
void worst_start(worst_input *in, uint32_t number); /* a whole input; any number */
void worst_move(worst_input *in);                   /* a change of it */
extern const uint32_t worst_n_starts;

/* known.c */
void worst_known(void); /* inputs that once exceeded the bound, on the instruction set in use */

#endif
