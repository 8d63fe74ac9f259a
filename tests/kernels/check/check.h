/* SPDX-License-Identifier: MIT */
/*
 * check: every role of every kernel table against the C table, on guarded memory. What the files of this program share.
 *
 *   main.c     options, and the order of things
 *   report.c   where we are, failures, the summary
 *   guard.c    memory that ends or begins at a page which must not be touched; faults become failures
 *   fill.c     contents of tiles, queries and weights
 *   score.c    load, expand, score
 *   mix.c      expand or transpose, mix, add_bias_sums
 *   softmax.c    softmax_update
 *   state.c    what a call leaves behind in the thread
 *   bench.c    times of the same calls
 */
#ifndef QUIRE_TESTS_CHECK_H
#define QUIRE_TESTS_CHECK_H

#include "support/random.h"

#include "kernels/kernels.h"

enum { ROWS = QUIRE_STRIP_ROWS, TOKENS = QUIRE_TILE_ROWS, MOST_D = QUIRE_MAX_D, MOST_ISAS = QUIRE_N_ISAS };

#define COUNT(array) (sizeof(array) / sizeof *(array))
#define ALL_TOKENS (~(uint64_t)0)
#define CHECK_TILE_BYTES (TOKENS * MOST_D * sizeof(float)) /* of the largest */
#define CHECK_ACC_FLOATS (MOST_D + (MOST_D / 32 + 4) * QUIRE_BIAS_LANES)

typedef struct check_options {
    bool bench, list, quick;
    const char *isa, *codec; /* NULL: all */
    uint32_t d;              /* 0: all */
    uint32_t rows;           /* bench: query rows */
    uint64_t seed;
} check_options;

/* ------------------------------------------------------------------ bounds */

typedef enum check_bound_id {
    BOUND_Q_WITH_R,
    BOUND_Q_WITHOUT_R,
    BOUND_SCORE,
    BOUND_SCORE_FLOAT,
    BOUND_MIX_MODEL,
    BOUND_MIX_STEP,
    BOUND_MIX,
    BOUND_WEIGHT,
    BOUND_WEIGHT_SCORE,
    BOUND_SUM,
    BOUND_BIAS_SUMS,
    N_BOUNDS
} check_bound_id;

typedef struct check_bound {
    const char *name;
    double value;
    const char *reason;
} check_bound;

extern const check_bound check_bounds[N_BOUNDS]; /* report.c */

/* ------------------------------------------------------------------ report */

typedef enum check_role {
    ROLE_SCORE,
    ROLE_MIX,
    ROLE_TRANSPOSE,
    ROLE_SOFTMAX,
    ROLE_BIAS_SUMS,
    ROLE_STATE,
    N_ROLES
} check_role;

/* Which call is on its way; the message of a failure is made from it. */
typedef struct check_where {
    const char *isa;
    check_role role;
    const char *codec, *fill; /* NULL: none */
    const char *call;         /* "load", "score, expanded" */
    uint32_t d, n;            /* 0: does not matter */
} check_where;

extern check_where check_at;
extern check_options check_given;

/* Counts a failure of the call on its way and prints it, unless one like it was printed before. */
void check_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* An error as a part of what is allowed; more than 1, or NaN, is a failure: true. */
bool check_share(double error, double allowed);
uint64_t check_failures(void);
/* Calls, failures and largest errors by instruction set and role. */
void check_summary(void);

/* ------------------------------------------------------------------- guard */

typedef enum check_memory {
    MEMORY_TILE,
    MEMORY_NEXT,
    MEMORY_EXPANDED,
    MEMORY_SCRATCH,
    MEMORY_ROW,
    MEMORY_Z,
    MEMORY_R,
    MEMORY_SUM,
    MEMORY_UNIT,
    MEMORY_MEAN_SCORE,
    MEMORY_SKIP_R,
    MEMORY_SCORES,
    MEMORY_VISIBLE,
    MEMORY_FACTOR,
    MEMORY_MAX,
    MEMORY_LANES,
    MEMORY_ACC,
    N_MEMORIES
} check_memory;

/* Where the page that must not be touched lies. */
typedef enum check_side { GUARD_BEHIND, GUARD_BEFORE, N_SIDES } check_side;

void check_guard_open(void);
void check_guard_close(void);
/* `bytes` of this memory, all 0xff: NaN, if they are taken for numbers. */
void *check_room(check_memory m, check_side side, size_t bytes);
/* The same with a content. */
void *check_copy(check_memory m, check_side side, const void *from, size_t bytes);
/* Whether nothing was written beside the memories in use; a failure if not. */
bool check_rims(void);
/* One call as attend makes it: float mode and enter() before, leave() after. False: it faulted, which is a failure. */
bool check_call(const quire_kernels *kernels, void (*call)(void *), void *arg);

/* -------------------------------------------------------------------- fill */

typedef enum check_fill {
    FILL_MODEL,     /* rows of a model, encoded */
    FILL_RANDOM,    /* any codes, scales of one size */
    FILL_WILD,      /* any codes, any finite scales */
    FILL_ZERO,      /* all bytes 0 */
    FILL_SATURATED, /* largest codes, scales and biases */
    FILL_CANCEL,    /* the same with signs that alternate, and biases against their scales */
    FILL_DENORMAL,  /* any codes, scales below the smallest normal f16 */
    N_FILLS
} check_fill;

extern const char *const check_fill_names[N_FILLS];

rng check_rng(const char *codec, uint32_t d, uint32_t number);
uint16_t check_finite_half(rng *r);
void check_tile(const quire_tile_format *format, check_fill fill, rng *r, uint8_t *tile);
/* Rows `hidden` get any codes, and scales or values that are NaN, infinite or the largest. */
void check_poison(const quire_tile_format *format, uint64_t hidden, rng *r, uint8_t *tile);
/* 16 query rows of d values, each of another kind. Rows 14 and 15 are not finite. */
#define FINITE_ROWS 14u
void check_queries(rng *r, uint32_t d, float *rows);
/* What 16 queries see: all, nothing, one row, some. Queries 0, 6 and 12 see rows in `hidden` too, the others do not. */
void check_masks(rng *r, uint64_t hidden, uint64_t *visible);

/* ------------------------------------------------------------------- roles */

/* What one codec and head size is tried with. */
typedef struct check_case {
    const quire_tile_format *k, *v; /* v NULL: the codec is for K only */
    const char *codec;
    uint32_t d;
} check_case;

/* Instruction sets to try, C first. */
typedef struct check_isas {
    uint32_t n;
    const char *name[MOST_ISAS];
    const quire_kernels *kernels[MOST_ISAS];
} check_isas;

void check_use(const check_isas *isas, uint32_t index);

/* The level of which this one has every bit on integer codecs, or NULL. It comes before. */
const char *check_same_bits(const char *isa);

void check_scores(const check_isas *isas, const check_case *c);
void check_mixes(const check_isas *isas, const check_case *c);
void check_softmax(const check_isas *isas);
void check_state(const check_isas *isas);
void check_bench(const check_isas *isas, const check_case *c);
void check_bench_head(const check_isas *isas);

/* --------------------------------------------------------------- small help */

/* Equal bits; one NaN is as good as another. */
static inline bool check_same(float a, float b)
{
    return quire_bits_of(a) == quire_bits_of(b) || (a != a && b != b);
}

static inline bool check_is_finite(float x)
{
    return (quire_bits_of(x) & 0x7f800000u) != 0x7f800000u;
}

/* Index of the first number that differs; n if none does. */
static inline size_t check_difference(const float *a, const float *b, size_t n)
{
    size_t i = 0;
    while (i < n && check_same(a[i], b[i])) i++;
    return i;
}

static inline uint64_t check_low_bits(uint32_t n)
{
    return n >= 64 ? ~(uint64_t)0 : ((uint64_t)1 << n) - 1;
}

#endif
