/* SPDX-License-Identifier: MIT */
/*
 * The host's memory and its CPU backend, with our functions before theirs.
 *
 * A state that was saved while all layers were ours may be restored when some are not: -ngl, -nkvo, -dev none, or a GPU. The host
 * hands each row to the buffer that holds it and asks nobody else. So every buffer type that can hold the cache gives
 * out buffers whose set_tensor and get_tensor look at rows of the cache first (bare.c), and pass everything else on. Tables
 * of functions lie in structures that can be written (probe.c tried them). Nothing else of them is touched: ggml tells
 * the kind of a buffer by the function that frees it, and the kind of a buffer type by the one that names it.
 *
 * The library is linked so that it is never unloaded.
 */
#include "bare.h"
#include "config.h"
#include "kv.h"

#include <pthread.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* -------------------------------------------------------------------- buffers */

/* Buffers of one kind share their functions: a pair of ours for each pair of theirs. */
enum { MOST_PAIRS = 8 };

static struct pair {
    set_function set;
    get_function get;
} theirs[MOST_PAIRS];

#define PAIR(i)                                                                                        \
    static void set_##i(struct host_buffer *b, struct host_tensor *t, const void *data, size_t offset, \
                        size_t size)                                                                   \
    {                                                                                                  \
        bare_set(theirs[i].set, b, t, data, offset, size);                                             \
    }                                                                                                  \
    static void get_##i(struct host_buffer *b, const struct host_tensor *t, void *data, size_t offset, \
                        size_t size)                                                                   \
    {                                                                                                  \
        bare_get(theirs[i].get, b, t, data, offset, size);                                             \
    }
PAIR(0)
PAIR(1)
PAIR(2)
PAIR(3)
PAIR(4)
PAIR(5)
PAIR(6)
PAIR(7)

static const struct pair ours[MOST_PAIRS] = {{set_0, get_0}, {set_1, get_1}, {set_2, get_2}, {set_3, get_3},
                                             {set_4, get_4}, {set_5, get_5}, {set_6, get_6}, {set_7, get_7}};

static void watch_buffer(struct host_buffer *b)
{
    int i = 0;
    if (!b || !b->iface.set_tensor || !b->iface.get_tensor) return;
    for (i = 0; i < MOST_PAIRS; i++)
        if (b->iface.set_tensor == ours[i].set) return;
    pthread_mutex_lock(&lock);
    for (i = 0; i < MOST_PAIRS && theirs[i].set; i++)
        if (theirs[i].set == b->iface.set_tensor && theirs[i].get == b->iface.get_tensor) break;
    if (i < MOST_PAIRS && !theirs[i].set) /* others are read meanwhile */
        theirs[i] = (struct pair){b->iface.set_tensor, b->iface.get_tensor};
    pthread_mutex_unlock(&lock);
    if (i == MOST_PAIRS) return;
    b->iface.set_tensor = ours[i].set;
    b->iface.get_tensor = ours[i].get;
}

/* --------------------------------------------------------------- buffer types */

typedef struct host_buffer *(*alloc_function)(struct host_buffer_type *, size_t);

enum { MOST_TYPES = 64 };

static struct watched_type {
    struct host_buffer_type *type;
    alloc_function alloc;
} types[MOST_TYPES];

static struct host_buffer *alloc_watched(struct host_buffer_type *t, size_t size)
{
    alloc_function alloc = NULL;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST_TYPES && types[i].type; i++)
        if (types[i].type == t) alloc = types[i].alloc;
    pthread_mutex_unlock(&lock);
    struct host_buffer *b = alloc ? alloc(t, size) : NULL;
    watch_buffer(b);
    return b;
}

static void watch_type(struct host_buffer_type *t)
{
    alloc_function alloc, mine = alloc_watched;
    int i = 0;
    if (!t || t == &buft_host || t == &buft_kv) return;
    void **entry = &t->entry[host.buft.alloc_buffer];
    pthread_mutex_lock(&lock);
    memcpy(&alloc, entry, sizeof alloc);
    while (i < MOST_TYPES && types[i].type && types[i].type != t) i++;
    if (alloc && alloc != mine && i < MOST_TYPES) {
        types[i] = (struct watched_type){t, alloc};
        memcpy(entry, &mine, sizeof mine);
    }
    pthread_mutex_unlock(&lock);
}

/* -------------------------------------------------------------------- devices */

/* The memory of another device is known when the host asks for it; to ask before could start a GPU that is not wanted. */
typedef struct host_buffer_type *(*type_function)(struct host_device *);

enum { MOST_DEVICES = 64 };

static struct watched_device {
    struct host_device *device;
    type_function type;
} devices[MOST_DEVICES];

static struct host_buffer_type *type_watched(struct host_device *d)
{
    type_function type = NULL;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST_DEVICES && devices[i].device; i++)
        if (devices[i].device == d) type = devices[i].type;
    pthread_mutex_unlock(&lock);
    struct host_buffer_type *t = type ? type(d) : NULL;
    watch_type(t);
    return t;
}

static void watch_device(struct host_device *d)
{
    int i = 0;
    pthread_mutex_lock(&lock);
    bool wanted = d->iface.get_buffer_type && d->iface.get_buffer_type != type_watched;
    while (i < MOST_DEVICES && devices[i].device && devices[i].device != d) i++;
    if (wanted && i < MOST_DEVICES) {
        devices[i] = (struct watched_device){d, d->iface.get_buffer_type};
        d->iface.get_buffer_type = type_watched;
    }
    pthread_mutex_unlock(&lock);
}

/* ------------------------------------------------------------------ CPU backend */

static struct host_backend *(*cpu_init)(struct host_device *, const char *);
static int (*cpu_compute)(struct host_backend *, struct host_graph *);

static int compute_watched(struct host_backend *b, struct host_graph *graph)
{
    struct lost_rows lost = {0};
    int status = bare_graph_is_lost(graph) ? HOST_FAILED : HOST_SUCCESS;
    if (!status && !bare_note_graph(&lost, graph)) status = HOST_ALLOC_FAILED;
    if (!status) status = cpu_compute(b, graph);
    bare_put_back(&lost);
    return status;
}

static struct host_backend *init_watched(struct host_device *d, const char *params)
{
    struct host_backend *b = cpu_init(d, params);
    pthread_mutex_lock(&lock);
    if (b && !cpu_compute) cpu_compute = b->iface.graph_compute;
    if (b && b->iface.graph_compute == cpu_compute) b->iface.graph_compute = compute_watched;
    pthread_mutex_unlock(&lock);
    return b;
}

static void watch_cpu(void)
{
    struct host_reg *reg = host.ggml_backend_reg_by_name("CPU");
    struct host_device *cpu =
        reg && host.ggml_backend_reg_dev_count(reg) ? host.ggml_backend_reg_dev_get(reg, 0) : NULL;
    pthread_mutex_lock(&lock);
    if (cpu && !cpu_init) {
        cpu_init = cpu->iface.init_backend;
        cpu->iface.init_backend = init_watched;
    }
    pthread_mutex_unlock(&lock);
}

void hooks_set(const struct host_device *own)
{
    watch_type(host.ggml_backend_cpu_buffer_type());
    watch_cpu();
    if (!host.ggml_backend_dev_count || !host.ggml_backend_dev_get) return;
    for (size_t i = 0; i < host.ggml_backend_dev_count(); i++) {
        struct host_device *d = host.ggml_backend_dev_get(i);
        if (d != own) watch_device(d);
    }
}
