/* SPDX-License-Identifier: MIT */
/* model: the KV cache that llama.cpp makes for a model file, and its size under a policy. */
#ifndef QUIRE_TOOLS_MODEL_H
#define QUIRE_TOOLS_MODEL_H

#include <quire/quire.h>

#include "files/gguf.h"

#include <stdbool.h>

typedef struct model {
    char arch[64], name[128];
    uint64_t file_bytes; /* of all parts of a model in several files */
    uint32_t context;    /* the longest it was trained for; 0: the file does not say */
    uint32_t n_layers, n_kv_layers;
    quire_layer layers[GGUF_MAX_LAYERS];
    bool has_kv[GGUF_MAX_LAYERS]; /* others have the shape of one that has, so that a plan can be made */
} model;

/* false: message has one sentence, with the path. */
bool model_open(model *out, const char *path, char *message, size_t size);
/* From the metadata alone. */
bool model_from_facts(model *out, const gguf_facts *facts, char *message, size_t size);
quire_geometry model_geometry(const model *m);

/* MODEL.quire-profile beside MODEL.gguf, which `quire calibrate` writes. false: the name is too long. */
bool model_profile_path(char *path, size_t size, const char *model_path);

/* What a host holds: sequences of so many tokens each. */
typedef struct model_use {
    uint64_t tokens;
    uint32_t sequences;
} model_use;

/* Bytes of a full cache; plan NULL: in f16, as llama.cpp keeps it by itself. */
double model_kv_bytes(const model *m, const quire_plan *plan, const model_use *use);
/* Tokens of each sequence for which the cache takes at most so many bytes. */
uint64_t model_kv_tokens(const model *m, const quire_plan *plan, uint32_t sequences, double bytes);
/* Bytes of one more token, and bits per value, in the layers that grow with the context (in all, if none does). */
double model_kv_token_bytes(const model *m, const quire_plan *plan);
double model_kv_bits(const model *m, const quire_plan *plan);
/* Whether any codec of the plan takes something out of the profile. */
bool model_plan_is_calibrated(const quire_plan *plan);

#endif
