/* SPDX-License-Identifier: MIT */
#include "llama/arch.h"

#include <stddef.h>
#include <string.h>

#define RECURRENT "its layers keep a state of fixed size, for which Quire does nothing"
#define ENCODER "it computes all tokens at once"
#define HYBRID \
    "only its attention layers have a KV cache; the others keep a state of fixed size, for which Quire does nothing"
#define INDEXED "the second cache, by which rows are selected, is stored as without Quire"

/*
 * Architectures that are not here keep K and V of every layer and every token, with windows only if the file lists them
 * layer by layer. In alphabetical order.
 */
static const arch_rule archs[] = {
    {"afmoe", .period = 4},
    {"arwkv7", .kind = ARCH_NONE, .note = RECURRENT},
    {"bailingmoe3", .note = HYBRID},
    {"bert", .kind = ARCH_NONE, .note = ENCODER},
    {"cohere2", .period = 4},
    {"cohere2moe", .period = 4, .first_is_full = true},
    {"deepseek32", .kind = ARCH_PARTLY, .note = INDEXED, .index = INDEX_ALL},
    {"deepseek4", .kind = ARCH_PARTLY,
     .note = "layers with compressed rows join two caches into one operand, and are stored as without Quire",
     .all_windows = true, .k_only = true, .index = INDEX_COMPRESSED, .index_is_plain = true},
    {"dots3note", .kind = ARCH_PARTLY, .note = INDEXED, .index = INDEX_LISTED},
    {"dream", .kind = ARCH_NONE, .note = ENCODER},
    {"eurobert", .kind = ARCH_NONE, .note = ENCODER},
    {"exaone-moe", .period = 4, .window = 128},
    {"exaone4", .period = 4, .window = 4096, .only_layers = 64},
    {"falcon-h1", .note = "its layers also keep a state of fixed size, for which Quire does nothing"},
    {"gemma-embedding", .kind = ARCH_NONE, .note = ENCODER},
    {"gemma2", .period = 2, .window = 4096},
    {"gemma3", .period = 6},
    {"gemma3n", .period = 5, .n_own = 20},
    {"glm-dsa", .kind = ARCH_PARTLY, .note = INDEXED, .index = INDEX_LISTED},
    {"gpt-oss", .period = 2},
    {"granitehybrid", .note = HYBRID},
    {"grok", .kind = ARCH_PLAIN,
     .note = "llama.cpp switches flash attention off for it, and then stores V transposed"},
    {"hy_v4", .kind = ARCH_PARTLY, .note = INDEXED, .index = INDEX_LISTED},
    {"jamba", .note = HYBRID},
    {"jina-bert-v2", .kind = ARCH_NONE, .note = ENCODER},
    {"jina-bert-v3", .kind = ARCH_NONE, .note = ENCODER},
    {"kimi-k3", .note = HYBRID},
    {"kimi-linear", .note = HYBRID},
    {"laguna", .period = 4, .first_is_full = true},
    {"lfm2", .note = HYBRID, .all_windows = true},
    {"lfm2moe", .note = HYBRID},
    {"llada", .kind = ARCH_NONE, .note = ENCODER},
    {"llada-moe", .kind = ARCH_NONE, .note = ENCODER},
    {"llama4", .period = 4, .window = 8192, .fixed_window = 8192},
    {"mamba", .kind = ARCH_NONE, .note = RECURRENT},
    {"mamba2", .kind = ARCH_NONE, .note = RECURRENT},
    {"mellum", .period = 4},
    {"minimax-01", .note = HYBRID, .interval = 8},
    {"minimax-m3", .kind = ARCH_PARTLY, .note = INDEXED, .index = INDEX_LATER},
    {"modern-bert", .kind = ARCH_NONE, .note = ENCODER},
    {"muse-glimmer", .period = 4},
    {"nemotron_h", .note = HYBRID, .ffn_keeps_none = true},
    {"nemotron_h_moe", .note = HYBRID, .ffn_keeps_none = true},
    {"neo-bert", .kind = ARCH_NONE, .note = ENCODER},
    {"nomic-bert", .kind = ARCH_NONE, .note = ENCODER},
    {"nomic-bert-moe", .kind = ARCH_NONE, .note = ENCODER},
    {"olmo2", .period = 4},
    {"plamo2", .note = HYBRID},
    {"plamo3", .period = 8},
    {"qwen35", .note = HYBRID, .interval = 4},
    {"qwen35moe", .note = HYBRID, .interval = 4},
    {"qwen3next", .note = HYBRID, .interval = 4},
    {"qwen4exp", .kind = ARCH_PARTLY, .note = INDEXED, .interval = 4, .index = INDEX_ALL},
    {"rnd1", .kind = ARCH_NONE, .note = ENCODER},
    {"rwkv6", .kind = ARCH_NONE, .note = RECURRENT},
    {"rwkv6qwen2", .kind = ARCH_NONE, .note = RECURRENT},
    {"rwkv7", .kind = ARCH_NONE, .note = RECURRENT},
    {"smallthinker", .period = 4, .fixed_window = 4096, .first_is_full = true},
    {"t5", .kind = ARCH_PLAIN,
     .note = "its attention has a bias, with which llama.cpp computes without flash attention"},
    {"t5encoder", .kind = ARCH_NONE, .note = ENCODER},
    {"wavtokenizer-dec", .kind = ARCH_NONE, .note = ENCODER},
};

const arch_rule *arch_find(const char *name)
{
    static const arch_rule other;
    for (size_t i = 0; i < sizeof archs / sizeof archs[0]; i++)
        if (!strcmp(name, archs[i].name)) return &archs[i];
    return &other;
}

const char *arch_kind_name(arch_kind kind)
{
    static const char *const names[] = {"tiles", "partly", "plain", "none"};
    return names[kind];
}
