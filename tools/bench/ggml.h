/* SPDX-License-Identifier: MIT */
/*
 * ggml at run time: the functions of libggml-cpu.so and libggml-base.so that bench uses, declared here and not taken
 * from ggml's headers, so that the command builds without them. They are those of ggml 0.25 (ggml_version() is asked).
 */
#ifndef QUIRE_TOOLS_BENCH_GGML_H
#define QUIRE_TOOLS_BENCH_GGML_H

#include "bench/bench.h"

typedef struct ggml_tensor ggml_tensor;
typedef struct ggml_context ggml_context;
typedef struct ggml_cgraph ggml_cgraph;
typedef struct ggml_backend ggml_backend;
typedef struct ggml_buffer ggml_buffer; /* ggml_backend_buffer */
typedef struct ggml_threadpool ggml_threadpool;

enum { GGML_F32 = 0, GGML_F16 = 1, GGML_ACC_F32 = 10, GGML_SUCCESS = 0 };

typedef struct ggml_init_params {
    size_t mem_size;
    void *mem_buffer;
    bool no_alloc;
} ggml_init_params;

typedef struct ggml_threadpool_params {
    bool cpumask[512];
    int n_threads, priority;
    uint32_t poll; /* 0 to 100 */
    bool strict_cpu, paused;
    char more[64]; /* the library fills in its own structure; this must be large enough for a later one */
} ggml_threadpool_params;

#define GGML_FUNCTIONS(X)                                                                                    \
    X(const char *, ggml_version, (void))                                                                    \
    X(ggml_context *, ggml_init, (ggml_init_params params))                                                  \
    X(void, ggml_free, (ggml_context * ctx))                                                                 \
    X(ggml_tensor *, ggml_new_tensor_3d, (ggml_context * ctx, int type, int64_t n0, int64_t n1, int64_t n2)) \
    X(ggml_tensor *, ggml_view_3d,                                                                           \
      (ggml_context * ctx, ggml_tensor * a, int64_t n0, int64_t n1, int64_t n2, size_t nb1, size_t nb2,      \
       size_t offset))                                                                                       \
    X(ggml_tensor *, ggml_permute, (ggml_context * ctx, ggml_tensor * a, int x0, int x1, int x2, int x3))    \
    X(ggml_tensor *, ggml_flash_attn_ext,                                                                    \
      (ggml_context * ctx, ggml_tensor * q, ggml_tensor * k, ggml_tensor * v, ggml_tensor * mask,            \
       float scale, float max_bias, float softcap))                                                          \
    X(bool, ggml_prec_set_acc, (ggml_tensor * a, int precision))                                             \
    X(void *, ggml_get_data, (const ggml_tensor *a))                                                         \
    X(size_t, ggml_nbytes, (const ggml_tensor *a))                                                           \
    X(size_t, ggml_tensor_overhead, (void))                                                                  \
    X(size_t, ggml_graph_overhead_custom, (size_t size, bool grads))                                         \
    X(ggml_cgraph *, ggml_new_graph_custom, (ggml_context * ctx, size_t size, bool grads))                   \
    X(void, ggml_build_forward_expand, (ggml_cgraph * graph, ggml_tensor * a))                               \
    X(size_t, ggml_quantize_chunk,                                                                           \
      (int type, const float *from, void *to, int64_t first, int64_t n_rows, int64_t per_row,                \
       const float *weights))                                                                                \
    X(ggml_buffer *, ggml_backend_cpu_buffer_from_ptr, (void *memory, size_t bytes))                         \
    X(void, ggml_backend_buffer_free, (ggml_buffer * buffer))                                                \
    X(int, ggml_backend_tensor_alloc, (ggml_buffer * buffer, ggml_tensor * a, void *address))                \
    X(int, ggml_backend_graph_compute, (ggml_backend * backend, ggml_cgraph * graph))                        \
    X(void, ggml_backend_free, (ggml_backend * backend))                                                     \
    X(ggml_backend *, ggml_backend_cpu_init, (void))                                                         \
    X(void, ggml_backend_cpu_set_n_threads, (ggml_backend * backend, int n_threads))                         \
    X(void, ggml_backend_cpu_set_threadpool, (ggml_backend * backend, ggml_threadpool * pool))               \
    X(void, ggml_threadpool_params_init, (ggml_threadpool_params * params, int n_threads))                   \
    X(ggml_threadpool *, ggml_threadpool_new, (ggml_threadpool_params * params))                             \
    X(void, ggml_threadpool_free, (ggml_threadpool * pool))                                                  \
    X(void, ggml_threadpool_pause, (ggml_threadpool * pool))                                                 \
    X(int, ggml_cpu_has_avx2, (void))                                                                        \
    X(int, ggml_cpu_has_avx512, (void))                                                                      \
    X(int, ggml_cpu_has_neon, (void))

struct bench_ggml {
    void *library;
    ggml_backend *backend;
    ggml_threadpool *pool;
    const char *isa;
    char version[128];
    /* A small product of the same kind: wakes the team before a measured call. */
    ggml_context *wake_context;
    ggml_cgraph *wake_graph;
#define GGML_MEMBER(RESULT, NAME, ARGS) RESULT(*NAME) ARGS;
    GGML_FUNCTIONS(GGML_MEMBER)
#undef GGML_MEMBER
};

/* ggml's number of a type that has the name and the rows of a codec; -1: there is none. */
int bench_ggml_type(const char *codec);

#endif
