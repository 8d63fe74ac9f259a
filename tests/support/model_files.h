/* SPDX-License-Identifier: MIT */
/* Model files of a folder of its own for tests that run `quire plan` and `quire run`. Include cmocka.h first. */
#ifndef QUIRE_TESTS_MODEL_FILES_H
#define QUIRE_TESTS_MODEL_FILES_H

#include "support/command_kit.h"
#include "support/gguf_bytes.h"

static char folder[] = "/tmp/quire-models-XXXXXX";

/* Numbers that are 0 are not written, but for layers. */
typedef struct model_shape {
    const char *arch;
    uint32_t layers, context, embedding, heads, kv_heads, head_size, window;
    const char *rope_type;
    float rope_factor;
    uint32_t rope_original;
} model_shape;

/* 30 layers of 3 KV heads of 64, trained for 8192 tokens: 23040 bytes per token in f16, 11880 in r8/r8, 9000 in r8/r4. */
static const model_shape plain_model = {
    .arch = "llama", .layers = 30, .context = 8192, .embedding = 576, .heads = 9, .kv_heads = 3};

/* Gemma3-270M: 3 layers grow, 15 have a window of 512. */
static const model_shape window_model = {.arch = "gemma3",
                                         .layers = 18,
                                         .context = 32768,
                                         .embedding = 640,
                                         .heads = 4,
                                         .kv_heads = 1,
                                         .head_size = 256,
                                         .window = 512};

static inline void put_number(gguf_bytes *b, const model_shape *s, const char *name, uint32_t value)
{
    char key[96];
    snprintf(key, sizeof key, "%s.%s", s->arch, name);
    if (value || !strcmp(name, "block_count")) gguf_u32(b, key, value);
}

static inline void write_model(const char *name, const model_shape *s)
{
    static gguf_bytes b;
    char path[256], key[96];
    gguf_begin(&b);
    gguf_string(&b, "general.architecture", s->arch);
    put_number(&b, s, "block_count", s->layers);
    put_number(&b, s, "context_length", s->context);
    put_number(&b, s, "embedding_length", s->embedding);
    put_number(&b, s, "attention.head_count", s->heads);
    put_number(&b, s, "attention.head_count_kv", s->kv_heads);
    put_number(&b, s, "attention.key_length", s->head_size);
    put_number(&b, s, "attention.value_length", s->head_size);
    put_number(&b, s, "attention.sliding_window", s->window);
    put_number(&b, s, "rope.scaling.original_context_length", s->rope_original);
    snprintf(key, sizeof key, "%s.rope.scaling.type", s->arch);
    if (s->rope_type) gguf_string(&b, key, s->rope_type);
    snprintf(key, sizeof key, "%s.rope.scaling.factor", s->arch);
    if (s->rope_factor > 0) gguf_f32(&b, key, s->rope_factor);
    gguf_end(&b);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(b.data, 1, b.n, file), b.n);
    fclose(file);
}

static inline int make_folder(void **state)
{
    unsetenv("QUIRE_KV");
    unsetenv("QUIRE_PROFILE");
    return find_command(state) || !mkdtemp(folder) ? -1 : 0;
}

static inline int remove_folder(void **state)
{
    char line[256];
    (void)state;
    snprintf(line, sizeof line, "rm -r %s", folder);
    return system(line);
}

/* %M is the folder of the models, %B that of the programs. */
static inline result *run_in(const char *arguments)
{
    char line[2048], *to = line, bin[PATH_MAX];
    snprintf(bin, sizeof bin, "%s", quire_path);
    *strrchr(bin, '/') = 0;
    for (const char *p = arguments; *p; p++)
        if (*p == '%' && (p[1] == 'M' || p[1] == 'B'))
            to += sprintf(to, "%s", *++p == 'M' ? folder : bin);
        else
            *to++ = *p;
    *to = 0;
    return run(line);
}

static inline void expect(const char *arguments, int code, const char *word)
{
    result *r = run_in(arguments);
    if (r->code != code || !strstr(r->text, word))
        fail_msg("quire %s: exit code %d, no \"%s\" in \"%s\"", arguments, r->code, word, r->text);
}

static inline void expect_not(const char *arguments, int code, const char *word)
{
    result *r = run_in(arguments);
    if (r->code != code || strstr(r->text, word))
        fail_msg("quire %s: exit code %d, \"%s\" in \"%s\"", arguments, r->code, word, r->text);
}

#endif
