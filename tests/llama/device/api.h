/* SPDX-License-Identifier: MIT */
/*
 * The functions of ggml that the tests call, taken by name from the libraries of a host. No header of ggml is used: the
 * same program runs with every ggml whose functions look like this. Nothing reads the fields of a tensor.
 */
#ifndef QUIRE_TESTS_DEVICE_API_H
#define QUIRE_TESTS_DEVICE_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ggml_context gg_context;
typedef struct ggml_tensor gg_tensor;
typedef struct ggml_cgraph gg_graph;
typedef struct ggml_backend_buffer_type gg_buft;
typedef struct ggml_backend_buffer gg_buffer;
typedef struct ggml_backend gg_backend;
typedef struct ggml_backend_device gg_device;
typedef struct ggml_backend_reg gg_reg;
typedef struct ggml_backend_sched gg_sched;

struct ggml_init_params {
    size_t mem_size;
    void *mem_buffer;
    bool no_alloc;
};

#define GG_SUCCESS 0 /* of the status that computations return */

/* X(result, name without "ggml_", parameters) */
#define GG_FUNCTIONS(X)                                                                                     \
    X(const char *, version, (void))                                                                        \
    X(const char *, type_name, (int type))                                                                  \
    X(void, log_set, (void (*callback)(int level, const char *text, void *user), void *user))               \
    X(size_t, row_size, (int type, int64_t n))                                                              \
    X(void, fp32_to_fp16_row, (const float *x, uint16_t *y, int64_t n))                                     \
    X(void, fp16_to_fp32_row, (const uint16_t *x, float *y, int64_t n))                                     \
    X(gg_context *, init, (struct ggml_init_params params))                                                 \
    X(void, free, (gg_context * ctx))                                                                       \
    X(size_t, tensor_overhead, (void))                                                                      \
    X(size_t, graph_overhead, (void))                                                                       \
    X(size_t, nbytes, (const gg_tensor *t))                                                                 \
    X(gg_tensor *, set_name, (gg_tensor * t, const char *name))                                             \
    X(void, set_input, (gg_tensor * t))                                                                     \
    X(void, set_output, (gg_tensor * t))                                                                    \
    X(gg_tensor *, new_tensor_4d,                                                                           \
      (gg_context * ctx, int type, int64_t n0, int64_t n1, int64_t n2, int64_t n3))                         \
    X(gg_tensor *, new_tensor_3d, (gg_context * ctx, int type, int64_t n0, int64_t n1, int64_t n2))         \
    X(gg_tensor *, view_2d,                                                                                 \
      (gg_context * ctx, gg_tensor * a, int64_t n0, int64_t n1, size_t b1, size_t offset))                  \
    X(gg_tensor *, view_3d,                                                                                 \
      (gg_context * ctx, gg_tensor * a, int64_t n0, int64_t n1, int64_t n2, size_t b1, size_t b2,           \
       size_t offset))                                                                                      \
    X(gg_tensor *, view_4d,                                                                                 \
      (gg_context * ctx, gg_tensor * a, int64_t n0, int64_t n1, int64_t n2, int64_t n3, size_t b1,          \
       size_t b2, size_t b3, size_t offset))                                                                \
    X(gg_tensor *, reshape_2d, (gg_context * ctx, gg_tensor * a, int64_t n0, int64_t n1))                   \
    X(gg_tensor *, reshape_3d, (gg_context * ctx, gg_tensor * a, int64_t n0, int64_t n1, int64_t n2))       \
    X(gg_tensor *, permute, (gg_context * ctx, gg_tensor * a, int x0, int x1, int x2, int x3))              \
    X(gg_tensor *, cpy, (gg_context * ctx, gg_tensor * a, gg_tensor * b))                                   \
    X(gg_tensor *, cast, (gg_context * ctx, gg_tensor * a, int type))                                       \
    X(gg_tensor *, view_1d, (gg_context * ctx, gg_tensor * a, int64_t n0, size_t offset))                   \
    X(gg_tensor *, transpose, (gg_context * ctx, gg_tensor * a))                                            \
    X(gg_tensor *, cont, (gg_context * ctx, gg_tensor * a))                                                 \
    X(gg_tensor *, dup, (gg_context * ctx, gg_tensor * a))                                                  \
    X(gg_tensor *, concat, (gg_context * ctx, gg_tensor * a, gg_tensor * b, int dim))                       \
    X(gg_tensor *, add, (gg_context * ctx, gg_tensor * a, gg_tensor * b))                                   \
    X(gg_tensor *, add_inplace, (gg_context * ctx, gg_tensor * a, gg_tensor * b))                           \
    X(gg_tensor *, get_rows, (gg_context * ctx, gg_tensor * a, gg_tensor * rows))                           \
    X(gg_tensor *, mul_mat, (gg_context * ctx, gg_tensor * a, gg_tensor * b))                               \
    X(gg_tensor *, set_rows, (gg_context * ctx, gg_tensor * a, gg_tensor * b, gg_tensor * rows))            \
    X(gg_tensor *, rope_ext,                                                                                \
      (gg_context * ctx, gg_tensor * a, gg_tensor * b, gg_tensor * c, int n_dims, int mode, int n_ctx_orig, \
       float freq_base, float freq_scale, float ext_factor, float attn_factor, float beta_fast,             \
       float beta_slow))                                                                                    \
    X(gg_tensor *, rope_ext_inplace,                                                                        \
      (gg_context * ctx, gg_tensor * a, gg_tensor * b, gg_tensor * c, int n_dims, int mode, int n_ctx_orig, \
       float freq_base, float freq_scale, float ext_factor, float attn_factor, float beta_fast,             \
       float beta_slow))                                                                                    \
    X(gg_tensor *, flash_attn_ext,                                                                          \
      (gg_context * ctx, gg_tensor * q, gg_tensor * k, gg_tensor * v, gg_tensor * mask, float scale,        \
       float max_bias, float softcap))                                                                      \
    X(void, flash_attn_ext_add_sinks, (gg_tensor * a, gg_tensor * sinks))                                   \
    X(void, flash_attn_ext_set_n_kv_max, (gg_tensor * a, int32_t n))                                        \
    X(gg_graph *, new_graph, (gg_context * ctx))                                                            \
    X(void, build_forward_expand, (gg_graph * graph, gg_tensor * t))                                        \
    X(int, graph_n_nodes, (gg_graph * graph))                                                               \
    X(gg_tensor *, graph_node, (gg_graph * graph, int i))                                                   \
    X(const char *, op_desc, (const gg_tensor *t))                                                          \
    X(gg_reg *, backend_load, (const char *path))                                                           \
    X(void, backend_load_all_from_path, (const char *dir))                                                  \
    X(gg_device *, backend_dev_by_name, (const char *name))                                                 \
    X(gg_reg *, backend_dev_backend_reg, (gg_device * dev))                                                 \
    X(void *, backend_reg_get_proc_address, (gg_reg * reg, const char *name))                               \
    X(gg_backend *, backend_dev_init, (gg_device * dev, const char *params))                                \
    X(gg_buft *, backend_dev_buffer_type, (gg_device * dev))                                                \
    X(bool, backend_dev_supports_op, (gg_device * dev, const gg_tensor *op))                                \
    X(void, backend_free, (gg_backend * backend))                                                           \
    X(int, backend_graph_compute, (gg_backend * backend, gg_graph * graph))                                 \
    X(gg_buffer *, backend_alloc_ctx_tensors_from_buft, (gg_context * ctx, gg_buft * buft))                 \
    X(void, backend_buffer_free, (gg_buffer * buffer))                                                      \
    X(void, backend_buffer_clear, (gg_buffer * buffer, uint8_t value))                                      \
    X(bool, backend_buffer_is_host, (gg_buffer * buffer))                                                   \
    X(void, backend_tensor_set, (gg_tensor * t, const void *data, size_t offset, size_t size))              \
    X(void, backend_tensor_get, (const gg_tensor *t, void *data, size_t offset, size_t size))               \
    X(void, backend_tensor_memset, (gg_tensor * t, uint8_t value, size_t offset, size_t size))              \
    X(void, backend_tensor_copy, (const gg_tensor *from, gg_tensor *to))                                    \
    X(gg_sched *, backend_sched_new,                                                                        \
      (gg_backend * *backends, gg_buft * *bufts, int n, size_t graph_size, bool parallel, bool op_offload)) \
    X(void, backend_sched_free, (gg_sched * sched))                                                         \
    X(bool, backend_sched_alloc_graph, (gg_sched * sched, gg_graph * graph))                                \
    X(int, backend_sched_graph_compute, (gg_sched * sched, gg_graph * graph))

typedef struct gg_api {
#define X(result, name, parameters) result(*name) parameters;
    GG_FUNCTIONS(X)
#undef X
} gg_api;

extern gg_api gg;

/*
 * Opens the libraries of ggml in a directory, whatever their names, and the CPU backend, from `backends` if it is not
 * NULL. local: as a host does that was itself loaded without RTLD_GLOBAL. Prints what is missing and returns false.
 */
bool gg_open(const char *dir, const char *backends, bool local);

#endif
