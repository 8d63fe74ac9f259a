/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "llama/host_arguments.h"

#include "llama/host_line.h"

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
    const char *const names[HOST_LINE_NAMES] = {brief, full};
    return host_line_value(l->argc, l->argv, names, variable);
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

static const char *gpu_layers(const line *l)
{
    static const char *const names[HOST_LINE_NAMES] = {"-ngl", "--gpu-layers", "--n-gpu-layers"};
    return host_line_value(l->argc, l->argv, names, "LLAMA_ARG_N_GPU_LAYERS");
}

/* A switch with an opposite: the last one counts. */
static bool has_switch(const line *l, const char *const on[HOST_LINE_NAMES],
                       const char *const off[HOST_LINE_NAMES], const char *variable)
{
    bool value = variable && is_true(getenv(variable));
    for (int i = 1; i < l->argc; i++) {
        if (host_line_is(l->argv[i], on)) value = true;
        if (off && host_line_is(l->argv[i], off)) value = false;
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
static bool is_kept_by_variable(const line *l, const char *const offload[HOST_LINE_NAMES])
{
    return (is_false(getenv("LLAMA_ARG_KV_OFFLOAD")) || getenv("LLAMA_ARG_NO_KV_OFFLOAD")) &&
           !has_switch(l, offload, NULL, NULL);
}

/* Arguments with which llama.cpp keeps the cache away from every device, or in plain memory (docs/llama.cpp.md). */
static const char *find_obstacle(const line *l)
{
    static const char *const no_offload[HOST_LINE_NAMES] = {"-nkvo", "--no-kv-offload"},
                             *const offload[HOST_LINE_NAMES] = {"-kvo", "--kv-offload"};
    if (is_false(argument(l, "-fa", "--flash-attn", "LLAMA_ARG_FLASH_ATTN"))) return "-fa off";
    if (host_line_is_bench(l->argv[0])
            ? is_any(argument(l, "-nkvo", "--no-kv-offload", NULL), "1", "1")
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
    const char *name = host_line_program(l->argv[0]);
    return !strncmp(name, "llama-server", 12) ||
           (!strcmp(name, "llama") && l->argc > 1 && is_any(l->argv[1], "serve", "server"));
}

static model_use read_use(const line *l)
{
    static const char *const shared[HOST_LINE_NAMES] = {"-kvu", "--kv-unified"},
                             *const apart[HOST_LINE_NAMES] = {"-no-kvu", "--no-kv-unified"};
    static const char *const full[HOST_LINE_NAMES] = {"--swa-full"};
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
    out->has_models =
        host_line_is_bench(argv[0]) && out->model && strchr(out->model, ',') && access(out->model, F_OK);
    if (out->has_models || (out->model && is_to_be_fetched(&l, out->model))) out->model = NULL;
    host_arguments_complete(out, 0);
}
