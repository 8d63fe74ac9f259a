/* SPDX-License-Identifier: MIT */
/*
 * host.h: the part of ggml's interface that the device relies on, in our own words.
 *
 * No ggml header is needed and no ggml library is linked: the same file must load into hosts of several versions.
 * Functions are taken from the process (host.c), op and type numbers are asked for by name, and every structure
 * below is tried out against the host before it is used (probe.c). abi_check.c compares them with real headers.
 */
#ifndef QUIRE_GGML_HOST_H
#define QUIRE_GGML_HOST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HOST_MAX_SRC 10
#define HOST_MAX_NAME 64
#define HOST_FLAG_COMPUTE 16

enum { HOST_SUCCESS = 0, HOST_FAILED = -1, HOST_ALLOC_FAILED = -2 };
enum { HOST_DEVICE_CPU = 0, HOST_DEVICE_GPU = 1, HOST_DEVICE_IGPU = 2 };
enum { HOST_LOG_INFO = 2, HOST_LOG_WARN = 3, HOST_LOG_ERROR = 4 };

struct host_context; /* ggml's arena of tensors */
struct host_graph;
struct host_buffer;
struct host_buffer_type;
struct host_backend;
struct host_device;
struct host_reg;

struct host_tensor {
    int type;
    struct host_buffer *buffer;
    int64_t ne[4];
    size_t nb[4];
    int op;
    int32_t op_params[16];
    int32_t flags;
    struct host_tensor *src[HOST_MAX_SRC];
    struct host_tensor *view_src;
    size_t view_offs;
    void *data;
    char name[HOST_MAX_NAME];
    void *extra;
    char padding[8];
};

/* --------------------------------------------------------------- buffer types */

/* API version 3 has one more entry after alloc_buffer and one after get_alloc_size. The table is therefore an array
 * of entries; host.c knows the place of each. */
enum { HOST_BUFT_ENTRIES = 8 };

struct host_buffer_type {
    void *entry[HOST_BUFT_ENTRIES + 2]; /* entries, then device and context right behind them */
};

/* Where the entries are. */
struct host_buft_layout {
    int get_name, alloc_buffer, get_alignment, get_alloc_size, is_host;
    int n_entries; /* device is entry n, context entry n + 1 */
};

/* -------------------------------------------------------------------- buffers */

struct host_buffer_i {
    void (*free_buffer)(struct host_buffer *);
    void *(*get_base)(struct host_buffer *);
    int (*init_tensor)(struct host_buffer *, struct host_tensor *);
    void (*memset_tensor)(struct host_buffer *, struct host_tensor *, uint8_t value, size_t offset,
                          size_t size);
    void (*set_tensor)(struct host_buffer *, struct host_tensor *, const void *data, size_t offset,
                       size_t size);
    void (*get_tensor)(struct host_buffer *, const struct host_tensor *, void *data, size_t offset,
                       size_t size);
    void (*set_tensor_2d)(void); /* not used */
    void (*get_tensor_2d)(void); /* not used */
    bool (*cpy_tensor)(struct host_buffer *, const struct host_tensor *src, struct host_tensor *dst);
    void (*clear)(struct host_buffer *, uint8_t value);
    void (*reset)(struct host_buffer *);
};

struct host_buffer {
    struct host_buffer_i iface;
    struct host_buffer_type *buft;
    void *context;
    size_t size;
    int usage;
};

/* ------------------------------------------------------------------- backends */

struct host_backend_i {
    const char *(*get_name)(struct host_backend *);
    void (*free)(struct host_backend *);
    void (*async[5])(void); /* set, get, set 2d, get 2d, copy */
    void (*synchronize)(struct host_backend *);
    void (*plan[4])(void); /* create, free, update, compute */
    int (*graph_compute)(struct host_backend *, struct host_graph *);
    void (*event_record)(void);
    void (*event_wait)(void);
    void (*graph_optimize)(void);
};

struct host_backend {
    const uint8_t (*guid)[16];
    struct host_backend_i iface;
    struct host_device *device;
    void *context;
};

/* -------------------------------------------------------------------- devices */

struct host_device_props {
    const char *name, *description;
    size_t memory_free, memory_total;
    int type;
    const char *device_id;
    struct {
        bool async, host_buffer, buffer_from_host_ptr, events, mmap_support;
    } caps;
};

struct host_device_i {
    const char *(*get_name)(struct host_device *);
    const char *(*get_description)(struct host_device *);
    void (*get_memory)(struct host_device *, size_t *free, size_t *total);
    int (*get_type)(struct host_device *);
    void (*get_props)(struct host_device *, struct host_device_props *);
    struct host_backend *(*init_backend)(struct host_device *, const char *params);
    struct host_buffer_type *(*get_buffer_type)(struct host_device *);
    struct host_buffer_type *(*get_host_buffer_type)(struct host_device *);
    void (*buffer_from_host_ptr)(void);
    bool (*supports_op)(struct host_device *, const struct host_tensor *);
    bool (*supports_buft)(struct host_device *, struct host_buffer_type *);
    bool (*offload_op)(struct host_device *, const struct host_tensor *);
    void (*event[3])(void); /* new, free, synchronize */
};

struct host_device {
    struct host_device_i iface;
    struct host_reg *reg;
    void *context;
};

struct host_reg_i {
    const char *(*get_name)(struct host_reg *);
    size_t (*get_device_count)(struct host_reg *);
    struct host_device *(*get_device)(struct host_reg *, size_t index);
    void *(*get_proc_address)(struct host_reg *, const char *name);
};

struct host_reg {
    int api_version;
    struct host_reg_i iface;
    void *context;
};

struct host_feature {
    const char *name, *value;
};

struct host_init_params {
    size_t mem_size;
    void *mem_buffer;
    bool no_alloc;
};

/* ------------------------------------------------------------------ functions */

typedef struct host_tensor *host_tensor_p;

/* name, result, arguments. All but the last group must be there. */
#define HOST_FUNCTIONS(X)                                                                                  \
    X(ggml_version, const char *, (void))                                                                  \
    X(ggml_op_name, const char *, (int op))                                                                \
    X(ggml_type_name, const char *, (int type))                                                            \
    X(ggml_row_size, size_t, (int type, int64_t n))                                                        \
    X(ggml_type_size, size_t, (int type))                                                                  \
    X(ggml_blck_size, int64_t, (int type))                                                                 \
    X(ggml_tensor_overhead, size_t, (void))                                                                \
    X(ggml_init, struct host_context *, (struct host_init_params))                                         \
    X(ggml_free, void, (struct host_context *))                                                            \
    X(ggml_new_tensor_4d, host_tensor_p, (struct host_context *, int, int64_t, int64_t, int64_t, int64_t)) \
    X(ggml_view_4d, host_tensor_p,                                                                         \
      (struct host_context *, host_tensor_p, int64_t, int64_t, int64_t, int64_t, size_t, size_t, size_t,   \
       size_t))                                                                                            \
    X(ggml_set_name, host_tensor_p, (host_tensor_p, const char *))                                         \
    X(ggml_set_rows, host_tensor_p, (struct host_context *, host_tensor_p, host_tensor_p, host_tensor_p))  \
    X(ggml_cpy, host_tensor_p, (struct host_context *, host_tensor_p, host_tensor_p))                      \
    X(ggml_flash_attn_ext, host_tensor_p,                                                                  \
      (struct host_context *, host_tensor_p, host_tensor_p, host_tensor_p, host_tensor_p, float, float,    \
       float))                                                                                             \
    X(ggml_flash_attn_ext_add_sinks, void, (host_tensor_p, host_tensor_p))                                 \
    X(ggml_rope_ext_inplace, host_tensor_p,                                                                \
      (struct host_context *, host_tensor_p, host_tensor_p, host_tensor_p, int, int, int, float, float,    \
       float, float, float, float))                                                                        \
    X(ggml_new_graph, struct host_graph *, (struct host_context *))                                        \
    X(ggml_build_forward_expand, void, (struct host_graph *, host_tensor_p))                               \
    X(ggml_graph_n_nodes, int, (struct host_graph *))                                                      \
    X(ggml_graph_node, host_tensor_p, (struct host_graph *, int))                                          \
    X(ggml_backend_buffer_init, struct host_buffer *,                                                      \
      (struct host_buffer_type *, struct host_buffer_i, void *, size_t))                                   \
    X(ggml_backend_buffer_free, void, (struct host_buffer *))                                              \
    X(ggml_backend_buffer_get_size, size_t, (struct host_buffer *))                                        \
    X(ggml_backend_buffer_get_base, void *, (struct host_buffer *))                                        \
    X(ggml_backend_buffer_clear, void, (struct host_buffer *, uint8_t))                                    \
    X(ggml_backend_buffer_init_tensor, int, (struct host_buffer *, host_tensor_p))                         \
    X(ggml_backend_buffer_reset, void, (struct host_buffer *))                                             \
    X(ggml_backend_tensor_set, void, (host_tensor_p, const void *, size_t, size_t))                        \
    X(ggml_backend_tensor_get, void, (const struct host_tensor *, void *, size_t, size_t))                 \
    X(ggml_backend_tensor_memset, void, (host_tensor_p, uint8_t, size_t, size_t))                          \
    X(ggml_backend_tensor_copy, void, (host_tensor_p, host_tensor_p))                                      \
    X(ggml_backend_buft_name, const char *, (struct host_buffer_type *))                                   \
    X(ggml_backend_buft_alloc_buffer, struct host_buffer *, (struct host_buffer_type *, size_t))           \
    X(ggml_backend_buft_get_alignment, size_t, (struct host_buffer_type *))                                \
    X(ggml_backend_buft_get_max_size, size_t, (struct host_buffer_type *))                                 \
    X(ggml_backend_buft_get_alloc_size, size_t, (struct host_buffer_type *, const struct host_tensor *))   \
    X(ggml_backend_buft_is_host, bool, (struct host_buffer_type *))                                        \
    X(ggml_backend_buft_get_device, struct host_device *, (struct host_buffer_type *))                     \
    X(ggml_backend_name, const char *, (struct host_backend *))                                            \
    X(ggml_backend_free, void, (struct host_backend *))                                                    \
    X(ggml_backend_get_device, struct host_device *, (struct host_backend *))                              \
    X(ggml_backend_synchronize, void, (struct host_backend *))                                             \
    X(ggml_backend_graph_compute, int, (struct host_backend *, struct host_graph *))                       \
    X(ggml_backend_init_by_type, struct host_backend *, (int, const char *))                               \
    X(ggml_backend_dev_name, const char *, (struct host_device *))                                         \
    X(ggml_backend_dev_description, const char *, (struct host_device *))                                  \
    X(ggml_backend_dev_memory, void, (struct host_device *, size_t *, size_t *))                           \
    X(ggml_backend_dev_type, int, (struct host_device *))                                                  \
    X(ggml_backend_dev_get_props, void, (struct host_device *, struct host_device_props *))                \
    X(ggml_backend_dev_init, struct host_backend *, (struct host_device *, const char *))                  \
    X(ggml_backend_dev_buffer_type, struct host_buffer_type *, (struct host_device *))                     \
    X(ggml_backend_dev_supports_op, bool, (struct host_device *, const struct host_tensor *))              \
    X(ggml_backend_dev_supports_buft, bool, (struct host_device *, struct host_buffer_type *))             \
    X(ggml_backend_dev_offload_op, bool, (struct host_device *, const struct host_tensor *))               \
    X(ggml_backend_dev_backend_reg, struct host_reg *, (struct host_device *))                             \
    X(ggml_backend_reg_name, const char *, (struct host_reg *))                                            \
    X(ggml_backend_reg_dev_count, size_t, (struct host_reg *))                                             \
    X(ggml_backend_reg_dev_get, struct host_device *, (struct host_reg *, size_t))                         \
    X(ggml_backend_reg_get_proc_address, void *, (struct host_reg *, const char *))                        \
    X(ggml_backend_reg_by_name, struct host_reg *, (const char *))                                         \
    X(ggml_backend_cpu_buffer_type, struct host_buffer_type *, (void))                                     \
    X(ggml_backend_load, struct host_reg *, (const char *))

/* Used when they are there. */
#define HOST_OPTIONAL(X)                                             \
    X(ggml_log_internal, void, (int level, const char *format, ...)) \
    X(ggml_backend_dev_count, size_t, (void))                        \
    X(ggml_backend_dev_get, struct host_device *, (size_t))

/* Ops and types by the host's own numbers. */
#define HOST_OPS(X) \
    X(NONE)         \
    X(VIEW)         \
    X(RESHAPE) X(PERMUTE) X(TRANSPOSE) X(SET_ROWS) X(FLASH_ATTN_EXT) X(ROPE) X(CPY) X(CONT) X(ADD) X(GET_ROWS)

/* ggml's name, quire's codec. The first three are floats. */
/* clang-format off */
#define HOST_TYPES(X)          \
    X(F32, "f32", "f32")       \
    X(F16, "f16", "f16")       \
    X(BF16, "bf16", "bf16")    \
    X(Q8_0, "q8_0", "q8_0")    \
    X(Q5_1, "q5_1", "q5_1")    \
    X(Q5_0, "q5_0", "q5_0")    \
    X(Q4_1, "q4_1", "q4_1")    \
    X(Q4_0, "q4_0", "q4_0")    \
    X(IQ4_NL, "iq4_nl", "iq4_nl") \
    X(I64, "i64", NULL)        \
    X(I32, "i32", NULL)
/* clang-format on */

enum {
#define X(name, text, codec) TYPE_##name,
    HOST_TYPES(X)
#undef X
        N_TYPES
};

struct host {
#define X(name, result, arguments) result(*name) arguments;
    HOST_FUNCTIONS(X)
    HOST_OPTIONAL(X)
#undef X
    struct {
#define X(name) int name;
        HOST_OPS(X)
#undef X
    } op;
    int type[N_TYPES];
    int api_version;
    struct host_buft_layout buft;
    bool openmp; /* the host's CPU backend works in OpenMP teams */
};

extern struct host host;

/* Binds to the library that holds the address and checks its version. false: message says why, in one sentence. */
bool host_bind(void *caller, char *message, size_t size);
/* What probe.c finds wrong with a host that is bound, or NULL. */
const char *host_probe(void);

void host_set_threads(struct host_backend *cpu, int n);
const char *host_codec(int type); /* quire's codec of a type of the host, or NULL */
bool host_is_float(int type);     /* f32, f16 or bf16 */

/* op_params as floats. */
static inline float host_float_param(const struct host_tensor *op, int i)
{
    union {
        int32_t i;
        float f;
    } u = {op->op_params[i]};
    return u.f;
}

static inline const struct host_tensor *host_root(const struct host_tensor *t)
{
    return t->view_src ? t->view_src : t;
}

/* Ops that only say where values lie. */
static inline bool host_does_nothing(int op)
{
    return op == host.op.NONE || op == host.op.VIEW || op == host.op.RESHAPE || op == host.op.PERMUTE ||
           op == host.op.TRANSPOSE;
}

static inline size_t host_offset(const struct host_tensor *t)
{
    return t->view_src ? t->view_offs : 0;
}

#endif
