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

/* What was seen of one channel of one KV head. */
typedef struct quire_channel_sums {
    double k, kk, qq;
    uint64_t n_k, n_q;
} quire_channel_sums;

typedef struct quire_profile_layer {
    uint32_t n_q_heads, n_kv_heads, d_k;
    quire_channel_sums *sums; /* [n_kv_heads][d_k] while gathering */
    float *vectors;           /* [n_kv_heads][3][d_k]: mean, weight, q_rms */
    uint32_t n_vectors;       /* floats that vectors has room for */
} quire_profile_layer;

struct quire_profile {
    atomic_uint refs;
    quire_allocator allocator;
    uint32_t n_layers;
    bool finished;
    uint64_t digest;
    quire_profile_layer *layers;
};

/* Floats in the vectors of a layer. */
static inline uint64_t quire_profile_floats(const quire_profile_layer *layer)
{
    return (uint64_t)layer->n_kv_heads * layer->d_k * 3;
}

/* A profile of n_layers layers without shapes. NULL: no memory. */
quire_profile *quire_profile_new(uint32_t n_layers, const quire_allocator *allocator);
/* profile_file.c: digest of the bytes that save would write; never 0. */
uint64_t quire_profile_compute_digest(const quire_profile *profile);

#endif
