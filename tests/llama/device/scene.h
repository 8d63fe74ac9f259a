/* SPDX-License-Identifier: MIT */
/* A cache filled as conversations fill it, and queries with masks that fit what it holds. */
#ifndef QUIRE_TESTS_DEVICE_SCENE_H
#define QUIRE_TESTS_DEVICE_SCENE_H

#include "cache.h"

typedef enum mask_kind {
    MASK_SEQUENCES, /* 0 and -inf: cells of several sequences, a query sees those of its own that are not later */
    MASK_RANDOM, /* 0 and -inf: half of the cells, no order */
    MASK_ALIBI,  /* distances, max_bias 8 */
    MASK_FEW,    /* one or two cells are visible, -inf the rest */
    MASK_NONE,   /* no mask: all cells are written and visible */
    N_MASKS,
    MASK_SELECTED, /* about one cell of 16 is visible */
    MASK_WEIGHED   /* the same, with distances, max_bias 8 */
} mask_kind;

typedef struct scene {
    shape s;
    int n_q, n_kv, first_stream, streams; /* as in attention */
    mask_kind mask;
    bool softcap, sinks, peaked, per_head_mask; /* peaked: few cells have most of the weight */
} scene;

/* What a scene needs while it is played. */
typedef struct play {
    const scene *s;
    cache c;
    int *position, *sequence; /* of each cell; position -1: not written */
    int *query_position, *query_sequence;
    attention a;
    batch last; /* rows of the step that also attends; n 0: none */
    float *q, *sinks;
    uint16_t *mask;
    int64_t *last_cells;
    float *rows[2];
} play;

/* One row of K or V: some channels are larger than the rest, as in models. */
void random_row(float *x, int n, side which);
void random_rows(float *x, int n, int n_rows, side which);

const char *scene_text(const scene *s);

/* Opens the cache and writes everything but the last batch, in random order, cells overwritten in between, all layers. */
bool play_open(play *p, const scene *s);
void play_close(play *p);
/* Last batch and attention in one graph. Returns the status. */
int play_step(play *p, int layer, float *out);
/* Without the batch. */
int play_attend(play *p, int layer, float *out);
/* The step, compared with attention in double precision over what the cache then holds. */
void play_check(play *p, int layer);

/* NMSE that is allowed for the types of a shape. */
double tolerance(const shape *s);

#endif
