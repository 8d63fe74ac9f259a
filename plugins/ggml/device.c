/* SPDX-License-Identifier: MIT */
/*
 * The device as the host sees it: a registry with one device, whose memory holds the KV cache and whose only ops are
 * those that touch it. Everything else stays with the host.
 */
#define _DEFAULT_SOURCE
#include "device.h"
#include "bare.h"
#include "config.h"
#include "stat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct host_reg registry;
static struct host_device device;

/*
 * Whether this thread is past the loading of a model and at the making of contexts. The host asks for a device's host
 * memory on both occasions, and wants different things. For weights there is none: they stay mapped or repacked. For the
 * values between ops of a graph it is our own memory: CPU and device then have the same type of memory, and only then
 * does the host's scheduler move single ops on the cache to us, such as attention of a layer that uses the cache of
 * another one. A model asks for the properties of its devices before it places weights; a context makes backends first.
 */
static _Thread_local bool makes_contexts;

/* -------------------------------------------------------------------- backend */

static const char *backend_name(struct host_backend *b)
{
    (void)b;
    return "QUIRE0";
}

static void backend_free(struct host_backend *b)
{
    worker_destroy(b->context);
    free(b);
}

static int run_node(struct worker *w, struct host_tensor *node)
{
    if (host_does_nothing(node->op)) return HOST_SUCCESS;
    if (node->op == host.op.SET_ROWS) return set_rows_run(w, node);
    if (node->op == host.op.FLASH_ATTN_EXT) {
        uint64_t begin = stat_now();
        int status = attend_run(w, node);
        stat_attended(stat_now() - begin);
        return status;
    }
    if (node->op == host.op.GET_ROWS) return get_rows_run(w, node);
    if (node->op == host.op.ROPE || node->op == host.op.CPY || node->op == host.op.CONT)
        return shift_run(w, node);
    return fallback_run(w, node);
}

static int graph_compute(struct host_backend *b, struct host_graph *graph)
{
    int n = host.ggml_graph_n_nodes(graph), status = HOST_SUCCESS;
    stat_begin(stat_now());
    for (int i = 0; i < n && !status; i++) {
        struct host_tensor *node = host.ggml_graph_node(graph, i);
        if (node->flags & HOST_FLAG_COMPUTE) status = run_node(b->context, node);
    }
    return status;
}

static void set_n_threads(struct host_backend *b, int n)
{
    worker_set_threads(b->context, n);
}

/* --------------------------------------------------------------------- device */

static const char *device_name(struct host_device *d)
{
    (void)d;
    return "QUIRE0";
}

static const char *device_description(struct host_device *d)
{
    (void)d;
    return "Quire KV cache";
}

/* What programs can still get, and all there is. */
static void device_memory(struct host_device *d, size_t *available, size_t *total)
{
    char line[128];
    unsigned long long kib;
    FILE *f = fopen("/proc/meminfo", "r");
    (void)d;
    *total = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    *available = *total / 2;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %llu", &kib) == 1) *available = (size_t)kib * 1024;
    if (f) fclose(f);
}

/* Real GPUs come before an IGPU, and with no other device it is used without a flag. */
static int device_type(struct host_device *d)
{
    (void)d;
    return HOST_DEVICE_IGPU;
}

static void device_props(struct host_device *d, struct host_device_props *props)
{
    *props = (struct host_device_props){
        .name = device_name(d), .description = device_description(d), .type = device_type(d)};
    device_memory(d, &props->memory_free, &props->memory_total);
    props->caps.mmap_support = true; /* weights stay where they are */
    makes_contexts = false;
}

static struct host_backend *init_backend(struct host_device *d, const char *params)
{
    static const uint8_t guid[16] = {'q', 'u', 'i', 'r', 'e', '-', 'k', 'v',
                                     '-', 'd', 'e', 'v', 'i', 'c', 'e', '1'};
    struct host_backend *b = calloc(1, sizeof *b);
    struct worker *w = worker_create();
    (void)params;
    hooks_set(d);
    if (!b || !w) {
        if (w) worker_destroy(w);
        free(b);
        return NULL;
    }
    b->guid = &guid;
    b->iface.get_name = backend_name;
    b->iface.free = backend_free;
    b->iface.graph_compute = graph_compute;
    b->device = d;
    b->context = w;
    makes_contexts = true;
    context_close();
    return b;
}

static struct host_buffer_type *device_buffer_type(struct host_device *d)
{
    (void)d;
    return &buft_host;
}

static struct host_buffer_type *device_host_buffer_type(struct host_device *d)
{
    (void)d;
    return makes_contexts ? &buft_host : NULL;
}

/* An op that we do not have. The first time the host asks is before anything is computed: if the op is on the cache, the
 * host then needs plain memory. Later the op is run nevertheless. */
static bool is_on_tiles(const struct host_tensor *op)
{
    bool tiles = false;
    for (int i = -1; i < HOST_MAX_SRC; i++) {
        const struct host_tensor *t = i < 0 ? op : op->src[i];
        if (!t || !kv_is_cache(t)) continue;
        context_make_plain(t, host.ggml_op_name(op->op));
        tiles |= kv_of(t) != NULL;
    }
    return tiles;
}

static bool supports_op(struct host_device *d, const struct host_tensor *op)
{
    (void)d;
    context_close();
    if (host_does_nothing(op->op)) return true;
    if (op->op == host.op.SET_ROWS) return set_rows_can(op);
    if (op->op == host.op.FLASH_ATTN_EXT && attend_can(op)) return true;
    if (op->op == host.op.GET_ROWS && get_rows_can(op)) return true;
    if ((op->op == host.op.ROPE || op->op == host.op.CPY || op->op == host.op.CONT) && shift_can(op))
        return true;
    return is_on_tiles(op);
}

static bool supports_buft(struct host_device *d, struct host_buffer_type *t)
{
    (void)d;
    return t == &buft_kv || t == &buft_host || host.ggml_backend_buft_is_host(t);
}

/* ------------------------------------------------------------------- registry */

static const char *reg_name(struct host_reg *r)
{
    (void)r;
    return "QUIRE";
}

static size_t reg_device_count(struct host_reg *r)
{
    (void)r;
    return 1;
}

static struct host_device *reg_device(struct host_reg *r, size_t index)
{
    (void)r;
    return index ? NULL : &device;
}

/* -sm row: a device has to offer memory for rows of weights. Weights stay with the host, so there is none, which is allowed. */
static struct host_buffer_type *split_buffer_type(int main_device, const float *shares)
{
    (void)main_device;
    (void)shares;
    return NULL;
}

static void *reg_proc_address(struct host_reg *r, const char *name)
{
    void (*threads)(struct host_backend *, int) = set_n_threads;
    struct host_buffer_type *(*split)(int, const float *) = split_buffer_type;
    void *address = NULL;
    (void)r;
    if (!strcmp(name, "ggml_backend_set_n_threads")) memcpy(&address, &threads, sizeof threads);
    if (!strcmp(name, "ggml_backend_split_buffer_type")) memcpy(&address, &split, sizeof split);
    return address;
}

static void fill_tables(void)
{
    device = (struct host_device){.iface = {.get_name = device_name,
                                            .get_description = device_description,
                                            .get_memory = device_memory,
                                            .get_type = device_type,
                                            .get_props = device_props,
                                            .init_backend = init_backend,
                                            .get_buffer_type = device_buffer_type,
                                            .get_host_buffer_type = device_host_buffer_type,
                                            .supports_op = supports_op,
                                            .supports_buft = supports_buft},
                                  .reg = &registry};
    registry = (struct host_reg){.api_version = host.api_version,
                                 .iface = {.get_name = reg_name,
                                           .get_device_count = reg_device_count,
                                           .get_device = reg_device,
                                           .get_proc_address = reg_proc_address}};
    buffers_init(&device);
}

/* ----------------------------------------------------------------------- init */

__attribute__((visibility("default"))) struct host_reg *ggml_backend_init(void);

static bool bind_and_check(void *caller, char *message, size_t size)
{
    if (!host_bind(caller, message, size)) return false;
    const char *wrong = host_probe();
    if (!wrong) return config_read(message, size);
    snprintf(message, size, "ggml %s does not have the data structures of that version (%s)",
             host.ggml_version(), wrong);
    return false;
}

static void load_chain(void)
{
    if (config.chain && !host.ggml_backend_load(config.chain))
        say_trouble("QUIRE_CHAIN: %s was not loaded", config.chain);
}

struct host_reg *ggml_backend_init(void)
{
    static bool done;
    char message[1024];
    if (done) return &registry;
    if (!bind_and_check(__builtin_return_address(0), message, sizeof message)) {
        say_trouble("not loaded: %s", message);
        return NULL;
    }
    if (config_splits_tensors()) {
        say_trouble(
            "not loaded: -sm tensor divides tensors among devices, and this one holds only the cache");
        load_chain();
        return NULL;
    }
    done = true;
    fill_tables();
    if (quire_isa_use_environment())
        say_trouble("QUIRE_ISA is \"%s\", which is not an instruction set; it is ignored",
                    getenv("QUIRE_ISA"));
    say_info("%s, ggml %s, %s kernels, %s", quire_version(), host.ggml_version(), quire_isa_in_use(),
             config.kv ? config.kv : "declared types");
    load_chain();
    devices_tell();
    hooks_set(&device);
    return &registry;
}
