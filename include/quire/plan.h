/* SPDX-License-Identifier: MIT */
/* plan.h: how each layer of a model is encoded. */
#ifndef QUIRE_PLAN_H
#define QUIRE_PLAN_H

#include "codec.h"
#include "profile.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Interface: stable. */

/*
 * policy = (preset | codec[/codec]){,item} | item{,item}
 * item   = k=C | v=C | window=C[/C] | edge=N:C[/C] | sinks=N:C[/C]
 * preset = k8v4 k4v4 (never change) | safe balanced small (may stand for better codecs in a later version)
 *
 * C is a codec name; a single C applies to K and V. k= and v= replace one side of the preset or pair; without a preset
 * or pair both are required. Each key at most once, no spaces, fewer than 512 characters (docs/policy.md).
 */
typedef struct quire_preset {
    size_t size; /* of the library's structure */
    const char *name;
    const char *without, *with_profile; /* the codecs it stands for in a plan without and with a profile */
    const char *summary;
} quire_preset;

QUIRE_API uint32_t quire_preset_count(void);
QUIRE_API const quire_preset *quire_preset_at(uint32_t i); /* NULL past the end */

typedef struct quire_plan quire_plan;

typedef struct quire_plan_options {
    size_t size;
    const quire_profile *profile;     /* for "c:" codecs; the plan shares it, so you may destroy yours */
    const quire_allocator *allocator; /* copied */
    char *message;                    /* receives one sentence if creation fails, else ""; may be NULL */
    size_t message_size;
} quire_plan_options;

typedef struct quire_plan_layer {
    size_t size;
    const char *k, *v;           /* codec names; v is NULL if V is part of K */
    const char *sink_k, *sink_v; /* codecs of the first sink_tokens tokens, or NULL */
    const char *reason;          /* why this layer is special: other codecs, padding, short groups; or NULL */
    double bytes_per_token;
    uint32_t sink_tokens; /* a multiple of 64 */
    uint32_t group;       /* layers of one group share pages */
    uint32_t group_index; /* which layer of its group it is, from 0 */
    uint32_t window;      /* the shape, as given when the plan was created */
    uint32_t n_q_heads, n_kv_heads, d_k, d_v, v_in_k;
    uint32_t reserved;
} quire_plan_layer;

/* Everything is copied. EINVAL: the geometry or the policy is not valid, or a "c:" codec has no finished profile. EUNSUPPORTED: a
 * codec cannot keep rows of this head size. EMISMATCH: the profile is of another model. */
QUIRE_API quire_status quire_plan_create(quire_plan **out, const quire_geometry *geometry, const char *policy,
                                         const quire_plan_options *options /* may be NULL */);
QUIRE_API void quire_plan_destroy(quire_plan *plan);               /* pools keep what they need of it */
QUIRE_API const char *quire_plan_policy(const quire_plan *plan);   /* the policy in canonical form */
QUIRE_API uint64_t quire_plan_fingerprint(const quire_plan *plan); /* of codecs, geometry, layout, profile */
QUIRE_API double quire_plan_bytes_per_token(const quire_plan *plan); /* of the full-attention layers */
QUIRE_API uint32_t quire_plan_n_groups(const quire_plan *plan);
/* Size of a page in memory and in files; 0: no such group. Pages of 256 KiB and more count as whole OS pages in the budget. */
QUIRE_API size_t quire_plan_page_bytes(const quire_plan *plan, uint32_t group);
/* Fills *out, whose size must be set. EINVAL: the plan has no such layer. */
QUIRE_API quire_status quire_plan_layer_info(const quire_plan *plan, uint32_t layer, quire_plan_layer *out);
/* A sentence if the policy is risky for this model, else NULL. Judged by the profile, or without one by the bits alone. */
QUIRE_API const char *quire_plan_warning(const quire_plan *plan);
/* Writes text for users: the policy, a line per run of equal layers, reasons, bytes per token, the warning. */
QUIRE_API quire_status quire_plan_describe(const quire_plan *plan, quire_write_fn write, void *ctx);

#ifdef __cplusplus
}
#endif
#endif
