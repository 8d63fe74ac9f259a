/* SPDX-License-Identifier: MIT */
/* vouch_process: flags of a llama-server on this machine that make rows depend on more than the tokens. */
#define _POSIX_C_SOURCE 200809L
#include "store/vouch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAX_WORDS (4u << 20) /* bytes; Linux allows 2 MiB for both together by default */

typedef struct words {
    char *bytes;
    size_t n;
} words;

static bool read_words(words *w, uint64_t pid, const char *name)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%llu/%s", (unsigned long long)pid, name);
    FILE *f = fopen(path, "rb");
    w->bytes = f ? (char *)malloc(MAX_WORDS + 1) : NULL;
    w->n = w->bytes ? fread(w->bytes, 1, MAX_WORDS, f) : 0;
    bool good = w->bytes && !ferror(f) && w->n < MAX_WORDS;
    if (w->bytes) w->bytes[w->n] = 0;
    if (f) fclose(f);
    return good;
}

static const char *next_word(const words *w, const char *word)
{
    if (!word) return w->n ? w->bytes : NULL;
    word += strlen(word) + 1;
    return word < w->bytes + w->n ? word : NULL;
}

typedef enum trap_kind {
    ALWAYS,  /* whatever its value is */
    NUMBER,  /* unless it is 0 */
    ADAPTER, /* unless --adapter is given */
    ROPE,    /* unless --rope is given */
    OPEN     /* a number; only if the file does not say whether rows are rotated */
} trap_kind;

/* name: a flag, or the beginning of flags if it ends in '*'; variable: of the environment, or NULL. */
static const struct {
    const char *name, *variable;
    trap_kind kind;
    const char *what;
} traps[] = {
    {"--context-shift", "LLAMA_ARG_CONTEXT_SHIFT", ALWAYS, "shifts slots"},
    {"--cache-reuse", "LLAMA_ARG_CACHE_REUSE", NUMBER, "re-uses parts of other prompts"},
    {"--fim-*", NULL, ALWAYS, "re-uses parts of other prompts"},
    {"--lora*", "LLAMA_ARG_LORA", ADAPTER, "uses a LoRA adapter, and --adapter is not given"},
    {"--control-vector*", NULL, ALWAYS, "changes what layers compute"},
    {"--grp-attn-*", "LLAMA_ARG_GRP_ATTN_N", ALWAYS, "changes positions"},
    {"-gan", NULL, ALWAYS, "changes positions"},
    {"--rope-*", "LLAMA_ARG_ROPE_SCALE", ROPE, "changes RoPE, and --rope is not given"},
    {"--yarn-*", "LLAMA_ARG_YARN_ORIG_CTX", ROPE, "changes RoPE, and --rope is not given"},
    {"--override-kv", NULL, ALWAYS, "changes the model"},
    {"--models-preset", "LLAMA_ARG_MODELS_PRESET", ALWAYS, "takes flags from a file that is not read here"},
    {NULL, "LLAMA_ARG_ROPE_SCALING_TYPE", ROPE, "changes RoPE, and --rope is not given"},
    {NULL, "LLAMA_ARG_ROPE_FREQ_BASE", ROPE, "changes RoPE, and --rope is not given"},
    {NULL, "LLAMA_ARG_ROPE_FREQ_SCALE", ROPE, "changes RoPE, and --rope is not given"},
    {NULL, "LLAMA_ATTN_ROT_DISABLE", OPEN, "does not rotate rows, which slot files of version 3 do not say"},
};

static bool is_off(const char *value)
{
    static const char *const off[] = {"", "0", "off", "false", "disabled"};
    for (size_t i = 0; i < sizeof off / sizeof *off; i++)
        if (value && strcmp(value, off[i]) == 0) return true;
    return false;
}

static bool matters(const store_options *o, trap_kind kind, const char *value, bool is_rotation_open)
{
    return kind == ALWAYS || (kind == NUMBER && !is_off(value)) || (kind == ADAPTER && !o->adapter) ||
           (kind == ROPE && !o->rope) || (kind == OPEN && is_rotation_open && !is_off(value));
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

static int judge_flags(const store_options *o, const words *w, bool is_rotation_open)
{
    bool is_server = false;
    for (const char *word = NULL; (word = next_word(w, word));) {
        const char *slash = strrchr(word, '/'), *equals = strchr(word, '='), *next = next_word(w, word);
        is_server = is_server || strncmp(slash ? slash + 1 : word, "llama", 5) == 0;
        for (size_t i = 0; i < sizeof traps / sizeof *traps; i++)
            if (traps[i].name && is_flag(word, traps[i].name) &&
                matters(o, traps[i].kind, equals ? equals + 1 : next, is_rotation_open))
                return tool_failed(o->command, "the server was started with %s, which %s", word,
                                   traps[i].what);
    }
    return is_server
               ? TOOL_OK
               : tool_failed(o->command, "process %llu is not a llama-server", (unsigned long long)o->pid);
}

static int judge_environment(const store_options *o, const words *w, bool is_rotation_open)
{
    for (const char *word = NULL; (word = next_word(w, word));)
        for (size_t i = 0; i < sizeof traps / sizeof *traps; i++) {
            size_t n = traps[i].variable ? strlen(traps[i].variable) : 0;
            if (!n || strncmp(word, traps[i].variable, n) != 0 || word[n] != '=') continue;
            if (!is_off(word + n + 1) && matters(o, traps[i].kind, word + n + 1, is_rotation_open))
                return tool_failed(o->command, "the server has %s in its environment, which %s", word,
                                   traps[i].what);
        }
    return TOOL_OK;
}

int vouch_read_process(const store_options *o, bool is_rotation_open)
{
    words flags = {0}, environment = {0};
    int code;
    if (!read_words(&flags, o->pid, "cmdline") || !read_words(&environment, o->pid, "environ"))
        code = tool_failed(o->command, "the flags of process %llu cannot be read: %s",
                           (unsigned long long)o->pid, strerror(errno));
    else
        code = judge_flags(o, &flags, is_rotation_open);
    if (!code) code = judge_environment(o, &environment, is_rotation_open);
    free(flags.bytes);
    free(environment.bytes);
    return code;
}
