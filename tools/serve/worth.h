/* SPDX-License-Identifier: MIT */
/* worth: whether it is faster to restore a prefix or to compute it, from what both took so far. Several threads may call everything here. */
#ifndef QUIRE_TOOLS_SERVE_WORTH_H
#define QUIRE_TOOLS_SERVE_WORTH_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* Sums over what was measured. Each new measurement makes the older ones count less. */
typedef struct worth_sums {
    double n, x, y, xx, xy;
} worth_sums;

typedef struct worth {
    pthread_mutex_t lock; /* of what follows */
    double compute_ms;    /* for each token; 0: not known */
    double compute_weight;
    worth_sums restores; /* x: pages, y: milliseconds */
    uint32_t least;      /* tokens that a restore must save as long as nothing is known */
} worth;

void worth_init(worth *w, uint32_t least);
void worth_destroy(worth *w);

/* The server has computed so many tokens of a prompt in this time (timings.prompt_n, prompt_ms). */
void worth_computed(worth *w, uint32_t n_tokens, double ms);
/* So many pages were loaded and restored in this time, from the look-up to the server's answer. */
void worth_restored(worth *w, uint32_t n_pages, double ms);
/* That was tried for so long and failed. It counts only if it took longer than it should have: a failure that is quick says nothing about
 * what restoring takes. */
void worth_failed(worth *w, uint32_t n_pages, double ms);

/* That computing takes for each token; 0: not known. */
double worth_ms_per_token(worth *w);
/* Whether to restore so many pages, if that leaves n_tokens fewer to compute. */
bool worth_restoring(worth *w, uint32_t n_pages, uint32_t n_tokens);

#endif
