/* SPDX-License-Identifier: MIT */
#include "llama/row_flags.h"

#include <stddef.h>
#include <string.h>

static const row_flag flags[] = {
    {"--context-shift", "LLAMA_ARG_CONTEXT_SHIFT", ROW_FLAG_SWITCH, "shifts slots"},
    {"--cache-reuse", "LLAMA_ARG_CACHE_REUSE", ROW_FLAG_NUMBER, "re-uses parts of other prompts"},
    {"--fim-*", NULL, ROW_FLAG_ALWAYS, "re-uses parts of other prompts"},
    {"--lora*", "LLAMA_ARG_LORA", ROW_FLAG_ADAPTER, "uses a LoRA adapter, and --adapter is not given"},
    {"--control-vector*", NULL, ROW_FLAG_ALWAYS, "changes what layers compute"},
    {"--grp-attn-*", "LLAMA_ARG_GRP_ATTN_N", ROW_FLAG_ALWAYS, "changes positions"},
    {"-gan", NULL, ROW_FLAG_ALWAYS, "changes positions"},
    {"-gaw", "LLAMA_ARG_GRP_ATTN_W", ROW_FLAG_ALWAYS, "changes positions"},
    {"--rope-*", "LLAMA_ARG_ROPE_SCALE", ROW_FLAG_ROPE, "changes RoPE, and --rope is not given"},
    {"--yarn-*", "LLAMA_ARG_YARN_ORIG_CTX", ROW_FLAG_ROPE, "changes RoPE, and --rope is not given"},
    {"--override-kv", NULL, ROW_FLAG_ALWAYS, "changes the model"},
    {"--models-preset", "LLAMA_ARG_MODELS_PRESET", ROW_FLAG_ALWAYS,
     "takes flags from a file that is not read here"},
    {NULL, "LLAMA_ARG_ROPE_SCALING_TYPE", ROW_FLAG_ROPE, "changes RoPE, and --rope is not given"},
    {NULL, "LLAMA_ARG_ROPE_FREQ_BASE", ROW_FLAG_ROPE, "changes RoPE, and --rope is not given"},
    {NULL, "LLAMA_ARG_ROPE_FREQ_SCALE", ROW_FLAG_ROPE, "changes RoPE, and --rope is not given"},
    {NULL, "LLAMA_ARG_YARN_EXT_FACTOR", ROW_FLAG_ROPE, "changes RoPE, and --rope is not given"},
    {NULL, "LLAMA_ARG_YARN_ATTN_FACTOR", ROW_FLAG_ROPE, "changes RoPE, and --rope is not given"},
    {NULL, "LLAMA_ARG_YARN_BETA_SLOW", ROW_FLAG_ROPE, "changes RoPE, and --rope is not given"},
    {NULL, "LLAMA_ARG_YARN_BETA_FAST", ROW_FLAG_ROPE, "changes RoPE, and --rope is not given"},
    {NULL, "LLAMA_ATTN_ROT_DISABLE", ROW_FLAG_OPEN,
     "does not rotate rows, which slot files of version 3 do not say"},
};

#define N_FLAGS (sizeof flags / sizeof *flags)

bool row_flag_is_off(const char *value)
{
    static const char *const off[] = {"", "0", "off", "false", "disabled"};
    for (size_t i = 0; i < sizeof off / sizeof *off; i++)
        if (value && strcmp(value, off[i]) == 0) return true;
    return false;
}

/* llama.cpp takes --context_shift for --context-shift. */
static bool begins(const char *word, const char *name, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (word[i] != name[i] && !(word[i] == '_' && name[i] == '-' && i >= 2)) return false;
    return true;
}

static bool is_flag(const char *word, const char *name)
{
    size_t n = strlen(name);
    if (name[n - 1] == '*') return begins(word, name, n - 1);
    return begins(word, name, n) && (!word[n] || word[n] == '=');
}

const row_flag *row_flag_of_word(const char *word)
{
    for (size_t i = 0; i < N_FLAGS; i++)
        if (flags[i].name && is_flag(word, flags[i].name)) return &flags[i];
    return NULL;
}

const row_flag *row_flag_of_variable(const char *name, int n)
{
    for (size_t i = 0; i < N_FLAGS; i++)
        if (flags[i].variable && strlen(flags[i].variable) == (size_t)n &&
            strncmp(name, flags[i].variable, (size_t)n) == 0)
            return &flags[i];
    return NULL;
}
