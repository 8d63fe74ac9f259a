/* SPDX-License-Identifier: MIT */
/*
 * Tries the host out before it is trusted. Tensors and ops are made with the host's own functions and looked at
 * through our structures; tables filled with catching functions are given to the host's public calls, and each must
 * land in the entry we believe in. A table that is laid out otherwise lands in another one, which does no harm.
 */
#include "host.h"

#include <string.h>

/* -------------------------------------------------------------------- tensors */

static const char *check_plain(struct host_tensor *t, struct host_context *ctx)
{
    size_t element = host.ggml_type_size(host.type[TYPE_F16]);
    if (host.ggml_tensor_overhead() != sizeof(struct host_tensor) + 32) return "size of a tensor";
    if (t->type != host.type[TYPE_F16]) return "type of a tensor";
    for (int i = 0; i < 4; i++) {
        static const int64_t n[4] = {4, 5, 7, 11};
        if (t->ne[i] != n[i]) return "sizes of a tensor";
        if (t->nb[i] != (i ? t->nb[i - 1] * (size_t)n[i - 1] : element)) return "strides of a tensor";
    }
    if (t->buffer || t->view_src || t->extra || t->src[0] || t->op != host.op.NONE || !t->data)
        return "pointers of a tensor";
    host.ggml_set_name(t, "cache_k_l7");
    if (strcmp(t->name, "cache_k_l7")) return "name of a tensor";
    struct host_tensor *v = host.ggml_view_4d(ctx, t, 4, 5, 7, 10, t->nb[1], t->nb[2], t->nb[3], t->nb[3]);
    if (v->view_src != t || v->view_offs != t->nb[3] || v->op != host.op.VIEW || v->src[0] != t ||
        (char *)v->data != (char *)t->data + t->nb[3])
        return "view of a tensor";
    return NULL;
}

static struct host_tensor *new_tensor(struct host_context *ctx, int type, int64_t a, int64_t b, int64_t c,
                                      int64_t d)
{
    return host.ggml_new_tensor_4d(ctx, host.type[type], a, b, c, d);
}

static const char *check_ops(struct host_context *ctx)
{
    struct host_tensor *cache = new_tensor(ctx, TYPE_F16, 64, 256, 1, 1);
    struct host_tensor *rows = new_tensor(ctx, TYPE_F32, 64, 3, 1, 1),
                       *index = new_tensor(ctx, TYPE_I64, 3, 1, 1, 1);
    struct host_tensor *set = host.ggml_set_rows(ctx, cache, rows, index);
    if (set->op != host.op.SET_ROWS || set->src[0] != rows || set->src[1] != index || set->view_src != cache)
        return "SET_ROWS";

    struct host_tensor *copy = host.ggml_cpy(ctx, new_tensor(ctx, TYPE_F32, 64, 256, 1, 1), cache);
    if (copy->op != host.op.CPY || copy->view_src != cache || !copy->src[0]) return "CPY";

    struct host_tensor *q = new_tensor(ctx, TYPE_F32, 64, 3, 2, 1),
                       *k = new_tensor(ctx, TYPE_F16, 64, 256, 2, 1),
                       *v = new_tensor(ctx, TYPE_F16, 32, 256, 2, 1),
                       *mask = new_tensor(ctx, TYPE_F16, 256, 64, 1, 1),
                       *sinks = new_tensor(ctx, TYPE_F32, 2, 1, 1, 1);
    struct host_tensor *fa = host.ggml_flash_attn_ext(ctx, q, k, v, mask, 0.125f, 8.0f, 30.0f);
    host.ggml_flash_attn_ext_add_sinks(fa, sinks);
    if (fa->op != host.op.FLASH_ATTN_EXT || fa->src[0] != q || fa->src[1] != k || fa->src[2] != v ||
        fa->src[3] != mask || fa->src[4] != sinks || fa->ne[0] != 32 || fa->ne[1] != 2 || fa->ne[2] != 3 ||
        host_float_param(fa, 0) != 0.125f || host_float_param(fa, 1) != 8.0f ||
        host_float_param(fa, 2) != 30.0f)
        return "FLASH_ATTN_EXT";

    struct host_tensor *pos = new_tensor(ctx, TYPE_I32, 2, 1, 1, 1),
                       *x = new_tensor(ctx, TYPE_F32, 64, 3, 2, 1),
                       *factors = new_tensor(ctx, TYPE_F32, 32, 1, 1, 1);
    struct host_tensor *rope =
        host.ggml_rope_ext_inplace(ctx, x, pos, factors, 64, 0, 0, 1e4f, 1, 0, 1, 0, 0);
    if (rope->op != host.op.ROPE || rope->src[0] != x || rope->src[1] != pos || rope->src[2] != factors ||
        rope->view_src != x)
        return "ROPE";

    struct host_graph *graph = host.ggml_new_graph(ctx);
    host.ggml_build_forward_expand(graph, rope);
    int n = host.ggml_graph_n_nodes(graph);
    if (n < 1 || host.ggml_graph_node(graph, n - 1) != rope || !(rope->flags & HOST_FLAG_COMPUTE))
        return "graph";
    return NULL;
}

/* --------------------------------------------------------------------- tables */

static uint64_t hits;          /* bit i: catcher i was called */
static uintptr_t catch_result; /* what they return */

/* clang-format off */
#define CATCHERS(X)                                                                     \
    X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14)      \
    X(15) X(16) X(17) X(18) X(19) X(20) X(21) X(22) X(23) X(24) X(25) X(26) X(27) X(28)  \
    X(29) X(30) X(31) X(32) X(33) X(34) X(35) X(36) X(37) X(38) X(39)
/* clang-format on */
#define X(i)                         \
    static uintptr_t catch_##i(void) \
    {                                \
        hits |= UINT64_C(1) << (i);  \
        return catch_result;         \
    }
CATCHERS(X)
#undef X

typedef uintptr_t (*catcher)(void);
static const catcher catchers[] = {
#define X(i) catch_##i,
    CATCHERS(X)
#undef X
};

enum { BUFT = 24 }; /* first catcher of the buffer type's table; the other tables begin with catcher 0 */

static void fill(void *table, size_t bytes, int first)
{
    catcher *entry = table;
    for (size_t i = 0; i < bytes / sizeof *entry; i++) entry[i] = catchers[(size_t)first + i];
}

/* Makes the calls in `calls` and tells whether exactly the expected catchers were hit. */
#define HITS(expected, calls) (hits = 0, (void)(calls), hits == (expected))
#define BIT(i) (UINT64_C(1) << (i))
#define ENTRY(table, member) BIT(offsetof(table, member) / sizeof(void *))

static const char *check_buffer_type(struct host_buffer_type *t, const struct host_tensor *tensor)
{
    const struct host_buft_layout *l = &host.buft;
    catch_result = tensor->nb[3] * (size_t)tensor->ne[3]; /* an allocation size must be that of the tensor */
    if (!HITS(BIT(BUFT + l->get_name), host.ggml_backend_buft_name(t)) ||
        !HITS(BIT(BUFT + l->get_alignment), host.ggml_backend_buft_get_alignment(t)) ||
        !HITS(BIT(BUFT + l->get_alloc_size), host.ggml_backend_buft_get_alloc_size(t, tensor)) ||
        !HITS(BIT(BUFT + l->is_host), host.ggml_backend_buft_is_host(t)) ||
        !HITS(BIT(BUFT + l->alloc_buffer), host.ggml_backend_buft_alloc_buffer(t, 64)) ||
        host.ggml_backend_buft_get_device(t) != t->entry[l->n_entries])
        return "table of buffer types";
    return NULL;
}

#define ENTRY_B(member) ENTRY(struct host_buffer_i, member)

static const char *check_buffer(struct host_buffer_type *t, struct host_tensor *a, struct host_tensor *b)
{
    struct host_buffer_i iface;
    int context;
    char bytes[8] = {0};
    fill(&iface, sizeof iface, 0);
    struct host_buffer *buffer = host.ggml_backend_buffer_init(t, iface, &context, 12345);
    if (buffer->buft != t || buffer->context != &context || buffer->size != 12345 ||
        host.ggml_backend_buffer_get_size(buffer) != 12345 || memcmp(&buffer->iface, &iface, sizeof iface))
        return "buffer";
    catch_result = 64;
    if (!HITS(ENTRY_B(get_base), host.ggml_backend_buffer_get_base(buffer)) ||
        !HITS(ENTRY_B(clear), (host.ggml_backend_buffer_clear(buffer, 0), 0)) ||
        !HITS(ENTRY_B(reset), (host.ggml_backend_buffer_reset(buffer), 0)))
        return "table of buffers";
    a->buffer = b->buffer = buffer;
    catch_result = 0; /* not a host buffer, cannot copy: then the host gets and sets */
    bool right =
        HITS(ENTRY_B(init_tensor), host.ggml_backend_buffer_init_tensor(buffer, a)) &&
        HITS(ENTRY_B(set_tensor), (host.ggml_backend_tensor_set(a, bytes, 0, 8), 0)) &&
        HITS(ENTRY_B(get_tensor), (host.ggml_backend_tensor_get(a, bytes, 0, 8), 0)) &&
        HITS(ENTRY_B(memset_tensor), (host.ggml_backend_tensor_memset(a, 0, 0, 8), 0)) &&
        HITS(ENTRY_B(cpy_tensor) | ENTRY_B(get_tensor) | ENTRY_B(set_tensor) | BIT(BUFT + host.buft.is_host),
             (host.ggml_backend_tensor_copy(a, b), 0));
    a->buffer = b->buffer = NULL;
    if (!HITS(ENTRY_B(free_buffer), (host.ggml_backend_buffer_free(buffer), 0))) return "table of buffers";
    return right ? NULL : "table of buffers";
}

#define ENTRY_D(member) ENTRY(struct host_device_i, member)

static const char *check_device(const struct host_tensor *tensor)
{
    struct {
        struct host_device device;
        catcher more[4];
    } d;
    size_t a, b;
    union {
        struct host_device_props props;
        char room[512];
    } p;
    fill(&d, sizeof d, 0);
    struct host_device *device = &d.device;
    catch_result = 0;
    if (!HITS(ENTRY_D(get_name), host.ggml_backend_dev_name(device)) ||
        !HITS(ENTRY_D(get_description), host.ggml_backend_dev_description(device)) ||
        !HITS(ENTRY_D(get_memory), (host.ggml_backend_dev_memory(device, &a, &b), 0)) ||
        !HITS(ENTRY_D(get_type), host.ggml_backend_dev_type(device)) ||
        !HITS(ENTRY_D(get_props), (host.ggml_backend_dev_get_props(device, &p.props), 0)) ||
        !HITS(ENTRY_D(init_backend), host.ggml_backend_dev_init(device, NULL)) ||
        !HITS(ENTRY_D(get_buffer_type), host.ggml_backend_dev_buffer_type(device)) ||
        !HITS(ENTRY_D(supports_op), host.ggml_backend_dev_supports_op(device, tensor)) ||
        !HITS(ENTRY_D(supports_buft), host.ggml_backend_dev_supports_buft(device, NULL)) ||
        !HITS(ENTRY_D(offload_op), host.ggml_backend_dev_offload_op(device, tensor)) ||
        host.ggml_backend_dev_backend_reg(device) != device->reg)
        return "table of devices";
    return NULL;
}

#define ENTRY_I(member) ENTRY(struct host_backend, iface.member)

static const char *check_backend(struct host_graph *graph)
{
    struct {
        struct host_backend backend;
        catcher more[4];
    } b;
    fill(&b, sizeof b, 0);
    catch_result = 0;
    if (!HITS(ENTRY_I(get_name), host.ggml_backend_name(&b.backend)) ||
        !HITS(ENTRY_I(synchronize), (host.ggml_backend_synchronize(&b.backend), 0)) ||
        !HITS(ENTRY_I(graph_compute) | ENTRY_I(synchronize),
              host.ggml_backend_graph_compute(&b.backend, graph)) ||
        !HITS(ENTRY_I(free), (host.ggml_backend_free(&b.backend), 0)) ||
        host.ggml_backend_get_device(&b.backend) != b.backend.device)
        return "table of backends";
    return NULL;
}

#define ENTRY_R(member) ENTRY(struct host_reg, iface.member)

static const char *check_reg(void)
{
    struct {
        struct host_reg reg;
        catcher more[4];
    } r;
    fill(&r, sizeof r, 0);
    catch_result = 1; /* one device */
    if (!HITS(ENTRY_R(get_name), host.ggml_backend_reg_name(&r.reg)) ||
        !HITS(ENTRY_R(get_device_count), host.ggml_backend_reg_dev_count(&r.reg)) ||
        !HITS(ENTRY_R(get_device), host.ggml_backend_reg_dev_get(&r.reg, 0)) ||
        !HITS(ENTRY_R(get_proc_address), host.ggml_backend_reg_get_proc_address(&r.reg, "")))
        return "table of registries";
    return NULL;
}

const char *host_probe(void)
{
    struct host_context *ctx = host.ggml_init((struct host_init_params){.mem_size = 2 << 20});
    if (!ctx) return "out of memory";
    struct host_buffer_type type;
    fill(&type, sizeof type, BUFT);
    struct host_tensor *t = new_tensor(ctx, TYPE_F16, 4, 5, 7, 11);
    const char *wrong = check_plain(t, ctx);
    if (!wrong) wrong = check_ops(ctx);
    if (!wrong) wrong = check_reg();
    if (!wrong) wrong = check_device(t);
    if (!wrong) wrong = check_backend(host.ggml_new_graph(ctx));
    if (!wrong) wrong = check_buffer_type(&type, t);
    if (!wrong) wrong = check_buffer(&type, t, new_tensor(ctx, TYPE_F16, 4, 5, 7, 11));
    host.ggml_free(ctx);
    return wrong;
}
