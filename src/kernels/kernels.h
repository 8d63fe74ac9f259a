/* SPDX-License-Identifier: MIT */
/*
 * kernels: the work on one tile, as tables of functions by role, codec family and instruction set. Every slot is
 * always filled. docs/kernels.md has the algebra.
 */
#ifndef QUIRE_KERNELS_KERNELS_H
#define QUIRE_KERNELS_KERNELS_H

#include "core/cpu.h"
#include "simd/exp2.h"
#include "tile/tile.h"

#define QUIRE_STRIP_ROWS 16u      /* query rows of one call, at most */
#define QUIRE_MAX_QUERY_ROWS 512u /* query rows that share an expanded tile */
#define QUIRE_PART_CHANNELS \
    256u                     /* channels whose products are summed as integers before they become floats */
#define QUIRE_BIAS_LANES 16u /* floats behind an accumulator, per group of V: sums for biases */

/*
 * What decides which inner loop a format needs: floats; A, scale * code + bias; Z, scale * (code - zero); T, scale *
 * table[code]; and the bits of a code.
 */
typedef enum quire_family {
    QUIRE_FAMILY_F32,
    QUIRE_FAMILY_F16,
    QUIRE_FAMILY_BF16,
    QUIRE_FAMILY_A2,
    QUIRE_FAMILY_A3,
    QUIRE_FAMILY_A4,
    QUIRE_FAMILY_A5,
    QUIRE_FAMILY_A6,
    QUIRE_FAMILY_A8,
    QUIRE_FAMILY_Z4,
    QUIRE_FAMILY_Z5,
    QUIRE_FAMILY_Z8,
    QUIRE_FAMILY_T2,
    QUIRE_FAMILY_T3,
    QUIRE_FAMILY_T4,
    QUIRE_FAMILY_T5,
    QUIRE_FAMILY_T6,
    QUIRE_N_FAMILIES
} quire_family;

quire_family quire_family_of(const quire_codec *codec);

static inline bool quire_family_is_float(quire_family family)
{
    return family <= QUIRE_FAMILY_BF16;
}

/* Channels of a K row by part: one group, or a piece of one that is larger. */
static inline uint32_t quire_part_size(const quire_coder *coder)
{
    return coder->group < QUIRE_PART_CHANNELS ? coder->group : QUIRE_PART_CHANNELS;
}

static inline uint32_t quire_n_parts(const quire_coder *coder)
{
    return coder->n_groups ? (coder->d_pad + quire_part_size(coder) - 1) / quire_part_size(coder) : 1;
}

/* Bytes of a row of z or r: whole AMX operands. */
static inline uint32_t quire_z_stride(uint32_t d)
{
    return (d + 63) / 64 * 64;
}

/*
 * Query rows for one K format. row: f32, already rotated and calibrated, times the unit of tv. The rest is what load_queries() makes of it. Integer
 * kernels write q as unit * (z + r / 256), z of 16 bits, as bytes z = 256 * high + low, and r of 8. K has channels that are large and nearly constant, and softmax notices
 * differences of scores, not their size: with z alone errors reach 1e-3. Where a tile's values are so small that r cannot move
 * a score by more than QUIRE_SKIP_R_ERROR allows, r is left out.
 */
typedef struct quire_queries {
    uint32_t n, d, n_parts;
    uint32_t z_stride; /* bytes of a row of z or r: whole operands of 64; what lies behind channel d is 0 */
    /* AMX with groups of 32 has 2: rows come twice, without the odd groups and without the even ones. */
    uint32_t copies;
    float *row; /* [n][d] */
    /* How the bytes of rows lie, in memory for whole strips:
     *   z [n][2][copies][z_stride], r [n][copies][z_stride], or in fours
     *   z [n / 4][z_stride / 64][4][2][64], r [n / 4][z_stride / 64][4][64]: the distances between rows are constants */
    bool fours;
    int8_t *z, *r;
    int32_t *sum; /* [n][n_parts][2]: of z and of r, by part */
    float *unit;  /* [n] a score is unit times what score() gives; 1 without z */
    /* [n][QUIRE_MEAN_SLOTS] what is added to the score of a row of K, by its mean, in the same unit; calibrated only. */
    float *mean_score;
    /* [n] tiles whose values are at most this large (largest_value()) do not need r. load_queries() gives the size at which r moves
     * a product of q and k by at most 1. */
    float *skip_r_below;
} quire_queries;

/* A tile to read. */
typedef struct quire_source {
    const quire_tile_format *format;
    const uint8_t *tile;
    const void *expanded; /* what expand() or transpose_k_to_v() made of it; NULL: not expanded */
    const uint8_t *next;  /* will be read after this one, same size: brought into the cache; NULL: nothing */
} quire_source;

/* Running softmax of a strip's rows. Scores are in units of log 2. Row i has its accumulators at acc + i * stride. */
typedef struct quire_softmax {
    float *max; /* [n] */
    float *sum; /* [n][16] lanes */
    float *acc; /* scaled down when the maximum grows */
    size_t stride;
    bool integer_products; /* came before and come after */
} quire_softmax;

/* load_queries: fills z, r, sums, units and skip_r_below from the rows. mean_score comes in as scores and leaves in units. */
typedef void quire_load_queries_fn(const quire_tile_format *format, quire_queries *q);

/*
 * score: rows [first, first + n) of q, n <= 16, with all 64 rows of a tile: scores[i * 64 + t]. The value of one (i, t)
 * depends on no other query. It depends on the other rows of the tile only where the query sees them all; bit i of
 * `partial` says that it does not.
 */
typedef void quire_score_fn(const quire_source *k, const quire_queries *q, uint32_t first, uint32_t n,
                            uint32_t partial, float *scores, void *scratch);

/*
 * softmax_update: scores become weights relative to the largest visible one of the tile, in place; hidden ones 0. scores
 * times unit[i] are in units of log 2. Updates max and sum, shrinks accumulators, and gives the factor of each row's weights
 * (0: it sees nothing).
 */
typedef void quire_softmax_update_fn(float *scores, const uint64_t *visible, const float *unit, uint32_t n,
                                     quire_softmax *s, float *factor);

/*
 * mix: acc[i * stride + c] += factor[i] * sum over visible t of p[i * 64 + t] * value(t, c), c < d_out, n <= 16. The
 * content of hidden rows has no effect. Behind the d_pad values of an accumulator lie 16 lanes per group if the codec has
 * biases; add_bias_sums() adds them at the end. V may be the first d_out channels of K; the source is then expanded by
 * transpose_k_to_v().
 */
typedef void quire_mix_fn(const quire_source *v, uint32_t d_out, const float *p, const uint64_t *visible,
                          const float *factor, uint32_t n, float *acc, size_t stride, void *scratch);
typedef void quire_add_bias_sums_fn(const quire_tile_format *format, float *acc);

/* expand: a form of the tile that many strips read faster. */
typedef void quire_expand_tile_fn(const quire_source *source, void *expanded);

typedef struct quire_kernels {
    quire_load_queries_fn *load_queries;
    quire_softmax_update_fn *softmax_update;
    quire_add_bias_sums_fn *add_bias_sums;
    quire_score_fn *score[QUIRE_N_FAMILIES];
    quire_mix_fn *mix[QUIRE_N_FAMILIES];
    quire_expand_tile_fn *expand[QUIRE_N_FAMILIES]; /* NULL: expanding does not pay */
    uint32_t expand_from[QUIRE_N_FAMILIES];         /* query rows of a block from which it does */
    uint32_t whole_channels; /* K tiles whose d_pad is no multiple of this are always expanded */
    /* A tile of K as one of V; NULL: mix() takes the K tile as it is. */
    quire_expand_tile_fn *transpose_k_to_v[QUIRE_N_FAMILIES];
    /* On each thread before the first call, and after the last one. saved: 64 bytes. NULL: there is nothing to do. */
    void (*enter)(void *saved, uint32_t max_rows);
    void (*leave)(void *saved);
} quire_kernels;

/* The table in use. */
const quire_kernels *quire_kernels_get(void);

extern const quire_kernels quire_kernels_c;
#if defined(QUIRE_X86)
extern const quire_kernels quire_kernels_avx2, quire_kernels_avxvnni, quire_kernels_avx512vnni,
    quire_kernels_avx512, quire_kernels_amx;
#elif defined(QUIRE_ARM)
extern const quire_kernels quire_kernels_neon, quire_kernels_dotprod, quire_kernels_i8mm;
#endif

/* Bytes that an expanded tile and a call's scratch may take, for rows of up to d_pad values. */
static inline size_t quire_expanded_bytes(uint32_t d_pad)
{
    return (size_t)QUIRE_TILE_ROWS * quire_z_stride(d_pad) * sizeof(float);
}

static inline size_t quire_kernel_scratch(uint32_t d_pad)
{
    return (size_t)32768 + (size_t)QUIRE_TILE_ROWS * d_pad * sizeof(float);
}

/* Floats of an accumulator of this format: values, then lanes for the biases of each group. */
static inline size_t quire_acc_floats(const quire_tile_format *format)
{
    const quire_coder *coder = &format->coder;
    return coder->d_pad + (coder->codec->has_bias ? (size_t)coder->n_groups * QUIRE_BIAS_LANES : 0);
}

/* Whether a tile is expanded for a block of n query rows. */
static inline bool quire_must_expand(const quire_kernels *kernels, const quire_tile_format *format,
                                     uint32_t n)
{
    quire_family family = quire_family_of(format->coder.codec);
    if (!kernels->expand[family]) return false;
    if (quire_family_is_float(family)) return n >= kernels->expand_from[family];
    bool straddles = format->coder.side == QUIRE_K && format->coder.d_pad % kernels->whole_channels;
    return straddles || n >= kernels->expand_from[family];
}

#define QUIRE_LOG2_E 1.44269504f
#define QUIRE_LN_2 0.693147181f
#define QUIRE_SKIP_R_ERROR 2.65e-4f /* of a score, at most, without r, times sqrt(d) */
#define QUIRE_MAX_Z 32600.0f        /* two bytes hold 32639; a weight may exceed 1 by its rounding */
#define QUIRE_SMALL_Z 16384         /* rows that hold less than this get units of their own */
/* Of weights as integers: half a step for each row of a tile, by the largest weight; docs/kernels.md, "Precision". */
#define QUIRE_MIX_ERROR (0.5 * QUIRE_TILE_ROWS / (QUIRE_SMALL_Z - 0.5))
#define QUIRE_LARGEST_SCORE 1e30f /* keeps differences of scores finite */

#endif
