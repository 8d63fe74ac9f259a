/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "llama/host_arguments.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* llama-server without -np makes so many slots, which share one cache (tools/server/server.cpp). */
enum { AUTO_SLOTS = 4, MAX_SEQUENCES = 256, BATCH = 2048, MICRO_BATCH = 512 };

typedef struct line {
    int argc;
    char **argv;
} line;

/* The value of an option of the host under either name, the last one given; or of its variable. */
static const char *argument(const line *l, const char *brief, const char *full, const char *variable)
{
    const char *value = variable ? getenv(variable) : NULL;
    for (int i = 1; i + 1 < l->argc; i++)
        if (!strcmp(l->argv[i], brief) || !strcmp(l->argv[i], full)) value = l->argv[i + 1];
    return value && *value ? value : NULL;
}

static bool is_any(const char *value, const char *a, const char *b)
{
    return value && (!strcmp(value, a) || !strcmp(value, b));
}

static bool is_true(const char *value)
{
    return is_any(value, "1", "on") || is_any(value, "true", "enabled");
}

static bool is_false(const char *value)
{
    return is_any(value, "0", "off") || is_any(value, "false", "disabled");
}

/* The option of three names. */
static const char *gpu_layers(const line *l)
{
    const char *value = getenv("LLAMA_ARG_N_GPU_LAYERS");
    for (int i = 1; i + 1 < l->argc; i++)
        if (is_any(l->argv[i], "-ngl", "--gpu-layers") || !strcmp(l->argv[i], "--n-gpu-layers"))
            value = l->argv[i + 1];
    return value;
}

/* A switch with an opposite: the last one counts. */
static bool has_switch(const line *l, const char *const on[2], const char *const off[2], const char *variable)
{
    bool value = variable && is_true(getenv(variable));
    for (int i = 1; i < l->argc; i++) {
        if (is_any(l->argv[i], on[0], on[1])) value = true;
        if (off && is_any(l->argv[i], off[0], off[1])) value = false;
    }
    return value;
}

/* As llama.cpp reads numbers: what follows the digits does not count. */
static uint64_t number(const char *value, uint64_t most, uint64_t otherwise)
{
    long long n = value ? strtoll(value, NULL, 10) : 0;
    if (n <= 0) return otherwise;
    return (uint64_t)n < most ? (uint64_t)n : most;
}

/* LLAMA_ARG_KV_OFFLOAD=0, or LLAMA_ARG_NO_KV_OFFLOAD with any value, unless the line says otherwise. */
static bool is_kept_by_variable(const line *l, const char *const offload[2])
{
    return (is_false(getenv("LLAMA_ARG_KV_OFFLOAD")) || getenv("LLAMA_ARG_NO_KV_OFFLOAD")) &&
           !has_switch(l, offload, NULL, NULL);
}

static const char *program_name(const line *l)
{
    const char *slash = strrchr(l->argv[0], '/');
    return slash ? slash + 1 : l->argv[0];
}

/* It takes lists, and -nkvo has a value. */
static bool is_bench(const line *l)
{
    return !strncmp(program_name(l), "llama-bench", 11);
}

/* Arguments with which llama.cpp keeps the cache away from every device, or in plain memory (docs/llama.cpp.md). */
static const char *find_obstacle(const line *l)
{
    static const char *const no_offload[] = {"-nkvo", "--no-kv-offload"}, *const offload[] = {"-kvo",
                                                                                              "--kv-offload"};
    if (is_false(argument(l, "-fa", "--flash-attn", "LLAMA_ARG_FLASH_ATTN"))) return "-fa off";
    if (is_bench(l) ? is_any(argument(l, "-nkvo", "--no-kv-offload", NULL), "1", "1")
                    : has_switch(l, no_offload, offload, NULL) || is_kept_by_variable(l, offload))
        return "-nkvo";
    if (is_any(gpu_layers(l), "0", "0")) return "-ngl 0";
    if (is_any(argument(l, "-dev", "--device", "LLAMA_ARG_DEVICE"), "none", "none")) return "-dev none";
    if (is_any(argument(l, "-ctk", "--cache-type-k", "LLAMA_ARG_CACHE_TYPE_K"), "f32", "f32"))
        return "-ctk f32";
    if (is_any(argument(l, "-ctv", "--cache-type-v", "LLAMA_ARG_CACHE_TYPE_V"), "f32", "f32"))
        return "-ctv f32";
    return NULL;
}

static const char *quantized(const char *type)
{
    return !type || is_any(type, "f16", "bf16") || is_any(type, "f32", "f32") ? NULL : type;
}

/* llama-server, or llama with the command serve. */
static bool is_server(const line *l)
{
    const char *name = program_name(l);
    return !strncmp(name, "llama-server", 12) ||
           (!strcmp(name, "llama") && l->argc > 1 && is_any(l->argv[1], "serve", "server"));
}

static model_use read_use(const line *l)
{
    static const char *const shared[] = {"-kvu", "--kv-unified"}, *const apart[] = {"-no-kvu",
                                                                                    "--no-kv-unified"};
    static const char *const full[] = {"--swa-full", "--swa-full"};
    uint64_t slots = number(argument(l, "-np", "--parallel", "LLAMA_ARG_N_PARALLEL"), MAX_SEQUENCES, 0);
    uint64_t batch = number(argument(l, "-b", "--batch-size", "LLAMA_ARG_BATCH"), UINT32_MAX, BATCH);
    uint64_t micro = number(argument(l, "-ub", "--ubatch-size", "LLAMA_ARG_UBATCH"), UINT32_MAX, MICRO_BATCH);
    bool automatic = !slots && is_server(l);
    return (model_use){.sequences = automatic ? AUTO_SLOTS
                                    : slots   ? (uint32_t)slots
                                              : 1,
                       .is_shared = automatic || has_switch(l, shared, apart, "LLAMA_ARG_KV_UNIFIED"),
                       .full_windows = has_switch(l, full, NULL, "LLAMA_ARG_SWA_FULL"),
                       .batch = (uint32_t)(batch < micro ? batch : micro)};
}

/* -c is the context of all sequences together. */
void host_arguments_complete(host_arguments *a, uint32_t trained)
{
    uint32_t caches = a->use.is_shared ? 1 : a->use.sequences;
    if (!a->ctx) a->ctx = trained;
    a->use.tokens = (a->ctx + caches - 1) / caches;
}

/* A file that the program fetches and then keeps under the name of -m. */
static bool is_to_be_fetched(const line *l, const char *path)
{
    return access(path, F_OK) && (argument(l, "-mu", "--model-url", "LLAMA_ARG_MODEL_URL") ||
                                  argument(l, "-hf", "--hf-repo", "LLAMA_ARG_HF_REPO"));
}

void host_arguments_read(host_arguments *out, int argc, char **argv)
{
    line l = {argc, argv};
    *out = (host_arguments){
        .model = argument(&l, "-m", "--model", "LLAMA_ARG_MODEL"),
        .type_k = quantized(argument(&l, "-ctk", "--cache-type-k", "LLAMA_ARG_CACHE_TYPE_K")),
        .type_v = quantized(argument(&l, "-ctv", "--cache-type-v", "LLAMA_ARG_CACHE_TYPE_V")),
        .obstacle = find_obstacle(&l),
        .use = read_use(&l),
        .ctx = number(argument(&l, "-c", "--ctx-size", "LLAMA_ARG_CTX_SIZE"), INT32_MAX, 0)};
    out->has_models = is_bench(&l) && out->model && strchr(out->model, ',') && access(out->model, F_OK);
    if (out->has_models || (out->model && is_to_be_fetched(&l, out->model))) out->model = NULL;
    host_arguments_complete(out, 0);
}
