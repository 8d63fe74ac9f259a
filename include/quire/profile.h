/* SPDX-License-Identifier: MIT */
/* profile.h: statistics of a model's K and Q rows, for calibrated codecs. */
#ifndef QUIRE_PROFILE_H
#define QUIRE_PROFILE_H

#include "geometry.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Interface: stable. */

/*
 * Statistics of a model's K and Q rows for calibrated codecs ("c:"). Such a codec subtracts the nearest of up to 15
 * means per KV head from a K row and multiplies each channel by a weight before it encodes the row. To make a profile:
 * create it, pass the rows of a few thousand tokens to the observe functions, finish it. quire_profile_observe_k()
 * ignores positions below 4. Until it is finished, a profile holds a sample of up to 4,096 rows in at most 64 MiB.
 */
typedef struct quire_profile quire_profile;

/* The functions that set or observe, and quire_profile_finish(), return EINVAL once the profile is finished. */
QUIRE_API quire_status quire_profile_create(quire_profile **out, const quire_geometry *geometry,
                                            const quire_allocator *allocator);
/*
 * The means of channels that RoPE rotates slowly depend on the position. If you set the RoPE frequencies of a layer
 * before its first observed row, the profile can serve more positions than it observed. RoPE rotates pair i by the
 * angle frequencies[i] * position.
 */
typedef struct quire_rope {
    size_t size;
    uint32_t n_pairs;     /* at most d_k / 2 */
    uint32_t interleaved; /* 1: channels 2i and 2i + 1 are a pair; 0: i and i + n_pairs */
    const float *frequencies;
} quire_rope;

/* The frequencies are copied. EBUSY: the profile has already observed rows of this layer. */
QUIRE_API quire_status quire_profile_set_rope(quire_profile *profile, uint32_t layer, const quire_rope *rope);
/* The profile will serve contexts of up to n_tokens. 0, or a layer without RoPE frequencies: the observed positions. */
QUIRE_API quire_status quire_profile_set_length(quire_profile *profile, uint32_t n_tokens);
/* k: [n_tokens][n_kv_heads][d_k], after RoPE. first: the position of the first token. NaN and infinities are passed over. */
QUIRE_API quire_status quire_profile_observe_k(quire_profile *profile, uint32_t layer, uint32_t first,
                                               const float *k, uint32_t n_tokens);
QUIRE_API quire_status quire_profile_observe_q(quire_profile *profile, uint32_t layer, uint32_t first,
                                               const float *q,
                                               uint32_t n_tokens); /* [n_tokens][n_q_heads][d_k] */
/* Computes the profile from the observed rows; after that it accepts no more rows. Takes about a second per model. EINVAL: no
 * layer has observed both K and Q. */
QUIRE_API quire_status quire_profile_finish(quire_profile *profile);
/* EINVAL: it is not finished. */
QUIRE_API quire_status quire_profile_save(const quire_profile *profile, quire_write_fn write, void *ctx);
/* The loaded profile is finished. EFORMAT, EVERSION: not a profile that this library can read. */
QUIRE_API quire_status quire_profile_load(quire_profile **out, quire_read_fn read, void *ctx,
                                          const quire_allocator *allocator);
QUIRE_API uint64_t quire_profile_digest(const quire_profile *profile); /* 0 until it is finished */
/* Estimates, from the statistics alone, the root-mean-square error of the attention scores (the arguments of exp) if
 * the layer's K is stored in this codec. Below 0.1 the effect is not visible; from 0.35 on generated text changes
 * (docs/fidelity.md). EINVAL: it is not finished, or there is no such layer or codec. */
QUIRE_API quire_status quire_profile_score_error(const quire_profile *profile, uint32_t layer,
                                                 const char *codec, double *out);
QUIRE_API void quire_profile_destroy(quire_profile *profile);

#ifdef __cplusplus
}
#endif
#endif
