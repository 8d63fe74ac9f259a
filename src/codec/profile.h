/* SPDX-License-Identifier: MIT */
/* profile: what a profile is made of; profile.c gathers it, profile_file.c keeps it. */
#ifndef QUIRE_CODEC_PROFILE_H
#define QUIRE_CODEC_PROFILE_H

#include "codec/codec.h"

#include <stdatomic.h>

/* A weight is a ratio of two spreads; outside this range one of them was not a spread. */
#define QUIRE_WEIGHT_MIN 1e-4f
#define QUIRE_WEIGHT_MAX 1e4f
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

typedef struct quire_profile_layer {
    uint32_t n_q_heads, n_kv_heads, d_k;
    uint32_t n_pairs;         /* that RoPE turns; 0: not known */
    bool interleaved;         /* pairs are neighbours; else the second halves lie n_pairs on */
    float *frequencies;       /* room for d_k / 2 while gathering */
    quire_channel_sums *sums; /* [n_kv_heads][d_k] while gathering */
    float *vectors;           /* [n_kv_heads][3][d_k]: mean, weight, q_rms */
    uint32_t n_vectors;       /* floats that vectors has room for */
} quire_profile_layer;

struct quire_profile {
    atomic_uint refs;
    quire_allocator allocator;
    uint32_t n_layers;
    bool finished;
    uint32_t length; /* positions that will be served; 0: those that were seen */
    uint64_t digest;
    quire_profile_layer *layers;
};

/* Floats in the vectors of a layer. */
static inline uint64_t quire_profile_floats(const quire_profile_layer *layer)
{
    return (uint64_t)layer->n_kv_heads * layer->d_k * 3;
}

/* --- profile_rope.c */

/* The channels of a pair. */
void quire_rope_pair(const quire_profile_layer *layer, uint32_t pair, uint32_t *a, uint32_t *b);
/* One row of one head. */
void quire_rope_observe(const quire_profile_layer *layer, quire_channel_sums *sums, const float *x,
                        uint32_t position, bool is_q);
/* Makes the sums of one head those of the positions from first up to end. Nothing, if the angles cannot be right. */
void quire_rope_spread(const quire_profile_layer *layer, quire_channel_sums *sums, uint32_t first,
                       uint32_t end);

/* A profile of n_layers layers without shapes. NULL: no memory. */
quire_profile *quire_profile_new(uint32_t n_layers, const quire_allocator *allocator);
/* profile_file.c: digest of the bytes that save would write; never 0. */
uint64_t quire_profile_compute_digest(const quire_profile *profile);

#endif
