/* SPDX-License-Identifier: MIT */
/*
 * Any bytes as a model file. Reading must refuse cleanly, or give a model whose plans and sizes can be computed.
 *
 * QUIRE_SEEDS=folder writes the seeds of corpus/gguf anew.
 */
#include "support/fuzz.h"

#include "llama/model.h"
#include "support/gguf_bytes.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static void save_seed(const char *folder, const char *name, gguf_bytes *b)
{
    char path[1024];
    gguf_end(b);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(b->data, 1, b->n, file) != b->n || fclose(file)) abort();
}

static void begin(gguf_bytes *b)
{
    gguf_begin(b);
    gguf_string(b, "general.architecture", "gemma3");
    gguf_string(b, "general.name", "a model");
    gguf_u32(b, "gemma3.block_count", 6);
    gguf_u32(b, "gemma3.context_length", 2048);
    gguf_u32(b, "gemma3.embedding_length", 256);
    gguf_u32(b, "gemma3.attention.head_count", 4);
}

static void write_seeds(const char *folder)
{
    static gguf_bytes b;
    static const uint32_t list[] = {0, 2, 1, 4, 1, 1};
    begin(&b);
    save_seed(folder, "plain", &b);
    gguf_u32(&b, "gemma3.attention.head_count_kv", 2);
    gguf_u32(&b, "gemma3.attention.sliding_window", 64);
    save_seed(folder, "window", &b);
    gguf_array(&b, "gemma3.attention.sliding_window_pattern", 7, list, 6);
    gguf_array(&b, "gemma3.attention.head_count_kv", 5, list, 6);
    save_seed(folder, "lists", &b);
    begin(&b);
    gguf_u32(&b, "gemma3.attention.key_length", 96);
    gguf_u32(&b, "gemma3.attention.value_length", 64);
    gguf_u32(&b, "gemma3.attention.key_length_mla", 64);
    gguf_u32(&b, "gemma3.attention.value_length_mla", 64);
    gguf_strings(&b, "tokenizer.ggml.tokens", 5);
    save_seed(folder, "mla", &b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool seeds_written;
    static gguf_facts facts;
    static model m;
    static gguf_weights weights;
    char message[256];
    if (!seeds_written && getenv("QUIRE_SEEDS")) write_seeds(getenv("QUIRE_SEEDS"));
    seeds_written = true;
    weights = (gguf_weights){.n_tokens = 0};
    gguf_add_weights(&weights, data, size, size);
    if (!(weights.output + weights.embedding + weights.layer[0] <= (double)size)) abort();
    if (!gguf_read(&facts, data, size, message, sizeof message) ||
        !model_from_facts(&m, &facts, message, sizeof message))
        return 0;
    model_use use = {.tokens = 4096, .sequences = 3};
    double bytes = model_kv_bytes(&m, NULL, &use);
    if (!isfinite(bytes) || bytes <= 0) abort();
    if (model_kv_tokens(&m, NULL, &use, bytes) < 4096) abort();
    char rope[MODEL_ROPE_SIZE];
    model_rope_text(rope, &m);
    model_plan plan;
    if (m.n_layers > 64 || model_plan_create(&plan, &m, "r5/r4", NULL, message, sizeof message)) return 0;
    if (!(model_kv_bits(&m, &plan) > 0)) abort();
    model_plan_destroy(&plan);
    return 0;
}
