/* SPDX-License-Identifier: MIT */
/* bench: loads ggml and keeps its team of threads. */
#define _POSIX_C_SOURCE 200809L /* setenv */
#include "bench/ggml.h"

#include "common/system.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#define KNOWN_VERSION "0.25."
#define POLL 100u /* the most: a worker that waits for the next graph spins */

enum { WAKE_D = 64, WAKE_TOKENS = 64, WAKE_HEADS = 8 };

int bench_ggml_type(const char *codec)
{
    static const struct {
        const char *name;
        int type;
    } types[] = {{"f32", GGML_F32}, {"f16", GGML_F16}, {"q4_0", 2},    {"q4_1", 3}, {"q5_0", 6},
                 {"q5_1", 7},       {"q8_0", 8},       {"iq4_nl", 20}, {"bf16", 30}};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (strcmp(types[i].name, codec) == 0) return types[i].type;
    return -1;
}

static bool resolve(bench_ggml *g, char *message, size_t size)
{
    /* dlsym looks into what the library depends on too, so one handle is enough. A pointer to a function is as wide as
     * one to data on every system that has dlsym. */
    void *address;
#define GGML_RESOLVE(RESULT, NAME, ARGS)                                                                   \
    address = dlsym(g->library, #NAME);                                                                    \
    if (!address) {                                                                                        \
        snprintf(message, size, "libggml-cpu" SYSTEM_LIBRARY_END " does not have the function %s", #NAME); \
        return false;                                                                                      \
    }                                                                                                      \
    memcpy(&g->NAME, &address, sizeof address);
    GGML_FUNCTIONS(GGML_RESOLVE)
    return true;
}

static bool make_wake_graph(bench_ggml *g)
{
    size_t bytes = (size_t)1 << 20;
    g->wake_context = g->ggml_init((ggml_init_params){bytes, NULL, false});
    if (!g->wake_context) return false;
    ggml_context *ctx = g->wake_context;
    ggml_tensor *q = g->ggml_new_tensor_3d(ctx, GGML_F32, WAKE_D, 1, WAKE_HEADS);
    ggml_tensor *k = g->ggml_new_tensor_3d(ctx, GGML_F16, WAKE_D, WAKE_TOKENS, WAKE_HEADS);
    ggml_tensor *v = g->ggml_new_tensor_3d(ctx, GGML_F16, WAKE_D, WAKE_TOKENS, WAKE_HEADS);
    memset(g->ggml_get_data(q), 0, g->ggml_nbytes(q));
    memset(g->ggml_get_data(k), 0, g->ggml_nbytes(k));
    memset(g->ggml_get_data(v), 0, g->ggml_nbytes(v));
    ggml_tensor *out = g->ggml_flash_attn_ext(ctx, q, k, v, NULL, 1.0f, 0, 0);
    g->wake_graph = g->ggml_new_graph_custom(ctx, 16, false);
    g->ggml_build_forward_expand(g->wake_graph, out);
    return true;
}

bench_ggml *bench_ggml_open(const char *directory, uint32_t n_threads, char *message, size_t size)
{
    char path[4096];
    bench_ggml *g = (bench_ggml *)calloc(1, sizeof *g);
    snprintf(message, size, "out of memory");
    if (!g || snprintf(path, sizeof path, "%s/libggml-cpu" SYSTEM_LIBRARY_END, directory) >= (int)sizeof path)
        goto fail;
    g->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!g->library) {
        snprintf(message, size, "%s", dlerror());
        goto fail;
    }
    if (!resolve(g, message, size)) goto fail;
    snprintf(g->version, sizeof g->version, "%s", g->ggml_version());
    if (strncmp(g->version, KNOWN_VERSION, strlen(KNOWN_VERSION)) != 0) {
        snprintf(message, size, "ggml in %s has version %s; this command supports only %sx", directory,
                 g->version, KNOWN_VERSION);
        goto fail;
    }
    g->isa = g->ggml_cpu_has_avx512() ? "avx512"
             : g->ggml_cpu_has_avx2() ? "avx2"
             : g->ggml_cpu_has_neon() ? "neon"
                                      : "c";
    snprintf(message, size, "ggml could not be started");
    g->backend = g->ggml_backend_cpu_init();
    ggml_threadpool_params params;
    g->ggml_threadpool_params_init(&params, (int)n_threads);
    params.poll = POLL;
    g->pool = g->ggml_threadpool_new(&params);
    if (!g->backend || !g->pool) goto fail;
    g->ggml_backend_cpu_set_n_threads(g->backend, (int)n_threads);
    g->ggml_backend_cpu_set_threadpool(g->backend, g->pool);
    if (!make_wake_graph(g)) goto fail;
    return g;
fail:
    bench_ggml_close(g);
    return NULL;
}

/* The library stays loaded: its threads may still be on their way out. */
void bench_ggml_close(bench_ggml *g)
{
    if (!g) return;
    if (g->wake_context) g->ggml_free(g->wake_context);
    if (g->backend) g->ggml_backend_free(g->backend);
    if (g->pool) g->ggml_threadpool_free(g->pool);
    free(g);
}
