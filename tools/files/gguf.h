/* SPDX-License-Identifier: MIT */
/* gguf: what a model file of llama.cpp says about the shape of its attention. Reads metadata only. */
#ifndef QUIRE_FILES_GGUF_H
#define QUIRE_FILES_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { GGUF_MAX_LAYERS = 1024 };

/* One value for all layers (n is 1), or one for each; n is 0 if the file does not say. */
typedef struct gguf_list {
    uint32_t n;
    uint32_t value[GGUF_MAX_LAYERS];
} gguf_list;

/* Numbers that the file does not have are 0. */
typedef struct gguf_facts {
    char arch[64], name[128];
    uint32_t version;
    uint32_t block_count, context_length, embedding_length;
    uint32_t key_length, value_length, key_length_swa, value_length_swa;
    uint32_t key_length_mla, value_length_mla;
    uint32_t sliding_window, shared_kv_layers, nextn_predict_layers, full_attention_interval;
    uint32_t indexer_key_length, indexer_top_k, leading_dense_block_count, num_loops;
    /* RoPE scaling that llama.cpp applies by itself. These say something about the model and nothing about its cache, so a
     * value that makes no sense counts as none. */
    char rope_scaling_type[16];
    double rope_scaling_factor;
    uint32_t rope_scaling_original; /* the context before scaling */
    gguf_list head_count, head_count_kv, window_pattern;
    gguf_list feed_forward_length, recurrent_layers, indexer_types, compress_ratios;
} gguf_facts;

/*
 * Reads the facts out of the first bytes of a file, or all of them. Allocates nothing; time is linear in n whatever the
 * bytes say. false: message has one sentence.
 */
bool gguf_read(gguf_facts *out, const uint8_t *bytes, size_t n, char *message, size_t size);

/* Bytes of weights, by where llama.cpp puts them. */
typedef struct gguf_weights {
    double layer[GGUF_MAX_LAYERS];
    double output;    /* what follows the last layer */
    double embedding; /* token_embd */
    bool has_output;  /* false: the embedding is also the output */
    bool
        has_long_factors; /* two sets of RoPE factors, of which llama.cpp takes one by the size of the context */
    uint32_t n_tokens;    /* of the vocabulary */
} gguf_weights;

/*
 * Adds the weights of a file, or of one part of it. bytes: the first n of file_bytes, as for gguf_read(). false: the list
 * of tensors is damaged or truncated, or they do not lie in the order of the list.
 */
bool gguf_add_weights(gguf_weights *out, const uint8_t *bytes, size_t n, uint64_t file_bytes);

#endif
