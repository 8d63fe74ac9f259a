/* SPDX-License-Identifier: MIT */
/* model: the KV cache that llama.cpp makes for a model file, and its size under a policy. */
#ifndef QUIRE_TOOLS_MODEL_H
#define QUIRE_TOOLS_MODEL_H

#include <quire/quire.h>

#include "files/gguf.h"
#include "llama/arch.h"

#include <stdbool.h>

/* Caches beside those of attention, stored as the host declares them: the keys of an indexer, compressed rows. */
typedef struct model_extra {
    uint32_t n_layers, row; /* values per cell */
    uint32_t ratio;         /* tokens per cell */
} model_extra;
enum { MODEL_EXTRAS = 3 };

typedef struct model {
    char arch[64], name[128];
    arch_kind kind;
    const char *note;    /* about its cache, or NULL */
    uint64_t file_bytes; /* of all parts of a model in several files */
    uint32_t context;    /* the longest it was trained for; 0: the file does not say */
    /* RoPE scaling in the file, by which it reaches that context: rope_type is empty if there is none. Numbers that the
     * file does not tell are 0. */
    char rope_type[16];
    double rope_factor;
    uint32_t rope_original;
    uint32_t
        short_context; /* up to which llama.cpp takes the short ones of two sets of RoPE factors (LongRoPE) */
    uint32_t n_blocks; /* as the file counts layers: with those for prediction */
    gguf_weights weights;                            /* all 0: the file does not tell them */
    uint32_t n_layers, n_kv_layers, n_window_layers; /* the last two have a cache */
    quire_layer layers[GGUF_MAX_LAYERS];
    bool has_kv[GGUF_MAX_LAYERS];   /* others have the shape of one that has, so that a plan can be made */
    bool is_plain[GGUF_MAX_LAYERS]; /* stored as without Quire under every policy */
    model_extra extras[MODEL_EXTRAS];
} model;

/* false: message has one sentence, with the path. */
bool model_open(model *out, const char *path, char *message, size_t size);
/* From the metadata alone. */
bool model_from_facts(model *out, const gguf_facts *facts, char *message, size_t size);
quire_geometry model_geometry(const model *m);

/* MODEL.quire-profile beside MODEL.gguf, which `quire calibrate` writes. false: the name is too long. */
bool model_profile_path(char *path, size_t size, const char *model_path);

/* What the file says about RoPE scaling, as in "yarn, factor 4, original context 32768". */
enum { MODEL_ROPE_SIZE = 80 };
const char *model_rope_text(char *text, const model *m);

/* Which set of RoPE factors a host with so many cells per sequence takes, as rows depend on it; "": the file has one at most. A file whose
 * tensors cannot be listed counts as one with both. */
const char *model_rope_factors(const model *m, uint64_t context);

/*
 * What a host holds. llama.cpp makes a cache of `tokens` cells for each sequence, or one that all of them share; both in
 * steps of 256. Window layers have cells for their window and for one batch in addition.
 */
typedef struct model_use {
    uint64_t tokens; /* of each sequence, or of all together if they share the cache */
    uint32_t sequences;
    bool is_shared;    /* -kvu, and llama-server without -np */
    bool full_windows; /* --swa-full: window layers are as long as the others */
    uint32_t batch;    /* -ub; 0: 512, llama.cpp's default */
} model_use;

/*
 * A policy for a model, planned as the device plans it. Where the window layers of a host are as long as the others and
 * longer than 4096 cells, the device cannot tell them apart and gives them the codecs of the others (docs/llama.cpp.md).
 */
typedef struct model_plan {
    quire_plan *plan;
    quire_plan *flat; /* for that case: no layer has a window; NULL: none has one in `plan` either */
    bool is_host;     /* it stands for a type that the host is told to use, by which it stores everything */
} model_plan;

/* m NULL: of any model, for checking the policy alone. Fails as quire_plan_create() does, and `why` has its sentence. */
quire_status model_plan_create(model_plan *out, const model *m, const char *policy,
                               const quire_profile *profile, char *why, size_t size);
void model_plan_destroy(model_plan *p);
/* Whether a profile was made for such a model. One of another model would also silence the warnings of its policies. */
bool model_profile_fits(const model *m, const quire_profile *profile);
/* Whether any codec of the plan takes something out of the profile. */
bool model_plan_is_calibrated(const model_plan *p);

/* The sizes of a cache. p NULL: in f16, as llama.cpp keeps it by itself. */

/* Bytes of a full cache, window layers included. */
double model_kv_bytes(const model *m, const model_plan *p, const model_use *use);
/* Of the layers from `first` on. */
double model_kv_bytes_from(const model *m, const model_plan *p, const model_use *use, uint32_t first);
/* Layers from `first` on are another device's: they have no cache for all that is counted here. */
void model_cut(model *m, uint32_t first);
/* The largest use->tokens for which the cache takes at most so many bytes: a multiple of 256, at most 2^31. */
uint64_t model_kv_tokens(const model *m, const model_plan *p, const model_use *use, double bytes);
/* Bytes of one more token, and bits per value, in the layers that grow with the context (in all, if none does). */
double model_kv_token_bytes(const model *m, const model_plan *p);
double model_kv_bits(const model *m, const model_plan *p);
/* Bits per value of all rows that the host holds, window layers included. */
double model_kv_bits_all(const model *m, const model_plan *p, const model_use *use);

#endif
