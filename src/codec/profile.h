/* SPDX-License-Identifier: MIT */
/* profile: what a profile is made of; profile.c gathers it, profile_means.c finds its means, profile_file.c keeps it. */
#ifndef QUIRE_CODEC_PROFILE_H
#define QUIRE_CODEC_PROFILE_H

#include "codec/codec.h"

#include <stdatomic.h>

/* A weight is a ratio of two spreads; outside this range one of them was not a spread. */
#define QUIRE_WEIGHT_MIN 1e-4f
#define QUIRE_WEIGHT_MAX 1e4f
/* Queries, like keys, are numbers that f16 can hold. With this bound estimates of errors stay far inside of a double, and the
 * made-up rows behind them inside of a float: 65504 / 1e-4^2 < 1e13. */
#define QUIRE_Q_RMS_MAX QUIRE_F16_MAX
/* Floats of all vectors together: 1 GiB, far above any model. */
#define QUIRE_PROFILE_MAX_FLOATS (1u << 28)

/* Sums over the two channels of a pair that RoPE turns, turned back to position 0. */
typedef struct quire_turned_sums {
    double a, b, aa, bb, ab;
    uint64_t n;
} quire_turned_sums;

/* What was seen of one channel of one KV head. */
typedef struct quire_channel_sums {
    double k, kk, qq;
    uint64_t n_k, n_q;
    quire_turned_sums k_turned, q_turned; /* at the first channel of a pair */
} quire_channel_sums;

/*
 * Some of the rows of a layer, every one of them as likely as any other, while gathering. Which ones depends on their order
 * alone.
 */
typedef struct quire_sample {
    uint64_t n_seen, random;
    uint32_t *position; /* [room] */
    uint16_t *k;        /* [room][n_kv_heads][d_k], f16 */
} quire_sample;

typedef struct quire_profile_layer {
    uint32_t n_q_heads, n_kv_heads, d_k;
    uint32_t n_pairs;         /* that RoPE turns; 0: not known */
    bool interleaved;         /* pairs are neighbours; else the second halves lie n_pairs on */
    float *frequencies;       /* room for d_k / 2 while gathering */
    quire_channel_sums *sums; /* [n_kv_heads][d_k] while gathering */
    quire_sample sample;
    uint32_t n_means;   /* 1 to QUIRE_MAX_MEANS; while gathering that many, for which vectors has room */
    uint32_t n_vectors; /* floats that vectors has room for */
    float *vectors;     /* [n_kv_heads][n_means + 2][d_k]: means, weight, q_rms */
} quire_profile_layer;

/* Memory to find the means of one head in, while gathering. */
typedef struct quire_means_work {
    uint32_t room;   /* rows that a sample has room for */
    uint32_t d;      /* of the largest head */
    float *rows;     /* [room][d_k] */
    float *distance; /* [room] to the nearest mean, squared */
    double *sums;    /* [QUIRE_MEAN_SLOTS][d_k] */
} quire_means_work;

struct quire_profile {
    atomic_uint refs;
    quire_allocator allocator;
    uint32_t n_layers;
    bool finished;
    uint32_t length; /* positions that will be served; 0: those that were seen */
    uint64_t digest;
    quire_profile_layer *layers;
    quire_means_work work;
};

/* Floats in the vectors of a layer, and those of one head. */
static inline uint64_t quire_profile_floats(const quire_profile_layer *layer)
{
    return (uint64_t)layer->n_kv_heads * layer->d_k * (layer->n_means + 2);
}

static inline float *quire_profile_vectors(const quire_profile_layer *layer, uint32_t head)
{
    return layer->vectors + (size_t)head * layer->d_k * (layer->n_means + 2);
}

static inline double quire_within(double x, double lo, double hi)
{
    return x < lo ? lo : x > hi ? hi : x;
}

/* splitmix64: the same everywhere. */
static inline uint64_t quire_random(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* --- profile_angle.c */

/* Cosine and sine of an angle, the same bits everywhere. The error is below 2^-52 up to 2^33. NaN if the angle is not finite. */
void quire_angle(double angle, double *c, double *s);

/* --- profile_rope.c */

/* The channels of a pair. */
void quire_rope_pair(const quire_profile_layer *layer, uint32_t pair, uint32_t *a, uint32_t *b);
/* One row of one head. */
void quire_rope_observe(const quire_profile_layer *layer, quire_channel_sums *sums, const float *x,
                        uint32_t position, bool is_q);
/* Makes the sums of one head those of the positions from first up to end. False, and nothing: the angles are not known or
 * cannot be right. */
bool quire_rope_spread(const quire_profile_layer *layer, quire_channel_sums *sums, uint32_t first,
                       uint32_t end);
/* Turns a row of one head from its position to one of those from first up to end: row i of many to another than its
 * neighbours, and all together evenly. */
void quire_rope_move(const quire_profile_layer *layer, float *x, uint32_t position, uint32_t i,
                     uint32_t first, uint32_t end);

/* --- profile_means.c */

/* Memory for the samples of all layers, whose shapes are known, and for finding means. Bounded: few rows of many channels. */
bool quire_samples_create(quire_profile *profile);
void quire_samples_destroy(quire_profile *profile);
/* One token; rows that are not finite are left out. */
void quire_sample_add(const quire_profile *profile, quire_profile_layer *layer, uint32_t position,
                      const float *k);
/* How many means the sample is good for; 0: it is empty. */
uint32_t quire_sample_means(const quire_profile *profile, const quire_profile_layer *layer);
/*
 * Writes the means of one head, found with the weights that are there. The rows are brought to the positions from first up to
 * end; end 0: they stay where they are. Gives the variance of each channel around the means, in memory of the profile; NULL:
 * there are too few rows to tell.
 */
const double *quire_means_find(const quire_profile *profile, const quire_profile_layer *layer, uint32_t head,
                               uint32_t first, uint32_t end);

/* A profile of n_layers layers without shapes. NULL: no memory. */
quire_profile *quire_profile_new(uint32_t n_layers, const quire_allocator *allocator);
/* profile_file.c: digest of the bytes that save would write; never 0. */
uint64_t quire_profile_compute_digest(const quire_profile *profile);

#endif
