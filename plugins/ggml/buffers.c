/* SPDX-License-Identifier: MIT */
/* Buffer types and buffers, as the host calls them. */
#include "bare.h"
#include "device.h"

#include <stdlib.h>
#include <string.h>

/* -------------------------------------------------------------------- buffers */

static void free_buffer(struct host_buffer *b)
{
    context_leave(b->context);
    kv_buffer_destroy(b->context);
}

static void *get_base(struct host_buffer *b)
{
    return ((struct kv_buffer *)b->context)->base;
}

static int init_tensor(struct host_buffer *, struct host_tensor *);

/* The record of a tensor whose rows can be read and set now, or wait; NULL: its bytes are where the host thinks. */
static struct kv *ready(const struct host_tensor *t)
{
    struct kv *kv = kv_of(t);
    if (kv && !state_is_waiting(kv)) context_settle(kv);
    return kv_of(t);
}

static char *plain_bytes(const struct host_tensor *t, size_t offset)
{
    return (char *)t->data + offset;
}

static void set_plain(struct host_buffer *b, struct host_tensor *t, const void *data, size_t offset,
                      size_t size)
{
    (void)b;
    memcpy(plain_bytes(t, offset), data, size);
}

static void get_plain(struct host_buffer *b, const struct host_tensor *t, void *data, size_t offset,
                      size_t size)
{
    (void)b;
    memcpy(data, plain_bytes(t, offset), size);
}

static void set_tensor(struct host_buffer *b, struct host_tensor *t, const void *data, size_t offset,
                       size_t size)
{
    struct kv *kv = ready(t);
    if (!kv) {
        bare_set(set_plain, b, t, data, offset, size);
        return;
    }
    state_set(kv, host_offset(t) + offset, size, data);
    marks_tell();
}

/* The host saves rows through the tensor, the views of its streams and lines within them. Any other view is the operand of
 * an op that it runs itself: attention of a layer that uses the cache of another one, for example. */
static bool is_operand(const struct host_tensor *t, const struct kv *kv)
{
    if (t->op == host.op.PERMUTE || t->ne[2] * t->ne[3] > 1) return true;
    for (uint32_t i = 0; i < kv->n_streams_of; i++)
        if (kv->streams_of[i] == t) return false;
    return kv->owner->cleared && t->ne[1] > 1;
}

static void get_tensor(struct host_buffer *b, const struct host_tensor *t, void *data, size_t offset,
                       size_t size)
{
    struct kv *kv = ready(t);
    if (!kv)
        bare_get(get_plain, b, t, data, offset, size);
    else if (t->view_src && is_operand(t, kv))
        state_get_values(kv, host_offset(t) + offset, size, data);
    else
        state_get(kv, host_offset(t) + offset, size, data);
}

static void memset_tensor(struct host_buffer *b, struct host_tensor *t, uint8_t value, size_t offset,
                          size_t size)
{
    struct kv *kv = ready(t);
    (void)b;
    if (kv)
        state_fill(kv, host_offset(t) + offset, size, value);
    else
        memset(plain_bytes(t, offset), value, size);
}

/* Bytes of a tensor without gaps; the host copies nothing else. */
static size_t dense_bytes(const struct host_tensor *t)
{
    return host.ggml_row_size(t->type, t->ne[0]) * (size_t)(t->ne[1] * t->ne[2] * t->ne[3]);
}

static bool cpy_tensor(struct host_buffer *b, const struct host_tensor *src, struct host_tensor *dst)
{
    struct kv *from = ready(src), *to = ready(dst);
    (void)b;
    if (!from || !to) return false; /* the host gets and sets instead */
    size_t n = dense_bytes(src), at = host_offset(src), target = host_offset(dst);
    if (at % from->row_bytes || target % to->row_bytes || n % from->row_bytes) return false;
    return state_copy(to, target / to->row_bytes, from, at / from->row_bytes, n / from->row_bytes);
}

static void clear(struct host_buffer *b, uint8_t value)
{
    struct kv_buffer *buffer = b->context;
    if (!value || buffer->n_kv)
        kv_buffer_clear(buffer);
    else
        memset(buffer->base, value, buffer->size);
}

static const struct host_buffer_i buffer_table = {
    .free_buffer = free_buffer,
    .get_base = get_base,
    .init_tensor = init_tensor,
    .memset_tensor = memset_tensor,
    .set_tensor = set_tensor,
    .get_tensor = get_tensor,
    .cpy_tensor = cpy_tensor,
    .clear = clear,
};

static int note_view(const struct host_tensor *view)
{
    struct kv *kv = kv_of(view);
    if (!kv || kv->owner->cleared) return HOST_SUCCESS;
    const struct host_tensor **list = realloc(kv->streams_of, (kv->n_streams_of + 1) * sizeof *list);
    if (!list) return HOST_ALLOC_FAILED;
    kv->streams_of = list;
    list[kv->n_streams_of++] = view;
    return HOST_SUCCESS;
}

/* From now on the host's CPU backend leaves the tensor alone, and all bytes pass through us. */
static int init_tensor(struct host_buffer *b, struct host_tensor *t)
{
    if (t->view_src) return note_view(t);
    if (!context_adopt(b->context, t)) return HOST_SUCCESS;
    struct host_buffer_i table = buffer_table;
    struct kv *kv = t->extra;
    table.free_buffer = NULL; /* it goes with the record */
    kv->host = host.ggml_backend_buffer_init(&buft_kv, table, b->context, b->size);
    if (!kv->host) return HOST_ALLOC_FAILED;
    t->buffer = kv->host;
    b->buft = &buft_kv;
    return HOST_SUCCESS;
}

/* --------------------------------------------------------------- buffer types */

static const char *get_name(struct host_buffer_type *t)
{
    return t == &buft_kv ? "QUIRE_KV" : "QUIRE";
}

static struct host_buffer *alloc_buffer(struct host_buffer_type *t, size_t size)
{
    struct kv_buffer *b = kv_buffer_create(size);
    if (!b) return NULL;
    b->host = host.ggml_backend_buffer_init(t, buffer_table, b, size);
    if (!b->host) kv_buffer_destroy(b);
    return b->host;
}

static size_t get_alignment(struct host_buffer_type *t)
{
    (void)t;
    return 64;
}

static bool is_host(struct host_buffer_type *t)
{
    return t == &buft_host;
}

#define SET_ENTRY(type, place, function) \
    memcpy(&(type)->entry[place], &(void (*)(void)){(void (*)(void))function}, sizeof(void *))

static void init_type(struct host_buffer_type *t, struct host_device *device)
{
    SET_ENTRY(t, host.buft.get_name, get_name);
    SET_ENTRY(t, host.buft.alloc_buffer, alloc_buffer);
    SET_ENTRY(t, host.buft.get_alignment, get_alignment);
    SET_ENTRY(t, host.buft.is_host, is_host);
    t->entry[host.buft.n_entries] = device;
}

void buffers_init(struct host_device *device)
{
    init_type(&buft_host, device);
    init_type(&buft_kv, device);
}
