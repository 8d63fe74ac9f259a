/* SPDX-License-Identifier: MIT */
/*
 * The state of a long random run: two pools, sequences alone and in batches, and the model of each. Worlds, steps, padded
 * import and export live in model_game.c, because they move rows; everything else is in tests/model/random_ops.c.
 */
#ifndef QUIRE_TESTS_MODEL_GAME_H
#define QUIRE_TESTS_MODEL_GAME_H

#include "support/fail_alloc.h"
#include "support/model_check.h"
#include "support/random.h"

#define GAME_SEQS 10u   /* sequences on their own */
#define GAME_BATCHES 2u /* batches */
#define GAME_MEMBERS 6u /* sequences in a batch */
#define GAME_POOLS 2u
#define GAME_STEP_SEQS 4u
#define GAME_MOST_TOKENS 200u

typedef struct model_batch {
    quire_batch *real;
    model_pool *pool;
    uint32_t n;
    model_seq *seq[GAME_MEMBERS];
} model_batch;

typedef struct game {
    row_world world;
    struct fail_alloc memory;
    model_pool pool[GAME_POOLS];
    model_seq *seq[GAME_SEQS];
    uint32_t n_seqs;
    model_batch batch[GAME_BATCHES];
    uint32_t n_batches;
    rng r;
    uint64_t seed;
    uint64_t n_refused_full, n_refused_trim, n_attended; /* that these happen at all is part of the test */
    uint32_t op;
    const char *doing;
} game;

/* Prints how to reproduce it and ends the test. */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
_Noreturn void
game_fail(const game *g, const char *format, ...); /* in random_ops.c */

#define GAME_EXPECT(g, condition, ...)                 \
    do {                                               \
        if (!(condition)) game_fail((g), __VA_ARGS__); \
    } while (0)

void game_expect_status(const game *g, quire_status status, quire_status due);
/* Every sequence of a pool, those in batches too. Returns how many. */
uint32_t game_list(const game *g, const model_pool *pool, model_seq **list);

/* Shape, plans, pools and budgets by the seed. */
void game_create(game *g, uint64_t seed);
/* Destroys everything and checks that nothing is left. */
void game_destroy(game *g);

/* One step: begin, append, perhaps attend, commit or abort. */
void game_step(game *g, model_pool *pool);
void game_import(game *g, model_pool *pool);
void game_export(game *g, const model_batch *b);

#endif
