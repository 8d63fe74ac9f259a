/* SPDX-License-Identifier: MIT */
/* Buffers, tensors and rows of the cache. */
#define _DEFAULT_SOURCE
#include "kv.h"
#include "config.h"
#include "device.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Contexts come and go rarely; whoever looks at how buffers belong together holds this. */
static pthread_mutex_t contexts = PTHREAD_MUTEX_INITIALIZER;
static struct kv_context *gathering; /* the one that the next buffer may belong to */
static pthread_t gathering_thread;

/* --------------------------------------------------------------------- buffer */

void *kv_reserve(size_t size)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

struct kv_buffer *kv_buffer_create(size_t size)
{
    struct kv_buffer *b = calloc(1, sizeof *b);
    if (!b) return NULL;
    b->size = size ? size : 1;
    b->base = kv_reserve(b->size);
    if (b->base) return b;
    free(b);
    return NULL;
}

static void leave_context(struct kv_buffer *b)
{
    struct kv_context *c = b->context;
    uint32_t left = 0;
    pthread_mutex_lock(&contexts);
    for (uint32_t i = 0; i < c->n_buffers; i++)
        if (c->buffer[i] != b) c->buffer[left++] = c->buffer[i];
    c->n_buffers = left;
    if (!left && gathering == c) gathering = NULL;
    /* What was recorded is worth keeping as soon as the first part goes. */
    struct recorder *recorder = c->recorder;
    c->recorder = NULL;
    pthread_mutex_unlock(&contexts);
    recorder_finish(recorder);
    if (left) return;
    free(c->report);
    free(c);
}

static void destroy_kv(struct kv *kv)
{
    quire_format_destroy(kv->format);
    free(kv->refused);
    free(kv->high);
    free(kv);
}

void kv_buffer_destroy(struct kv_buffer *b)
{
    if (b->context) leave_context(b);
    for (uint32_t i = 0; i < b->n_kv; i++) destroy_kv(b->kv[i]);
    free(b->kv);
    if (b->pages) munmap(b->pages, b->pages_size);
    munmap(b->base, b->size);
    free(b);
}

void kv_buffer_clear(struct kv_buffer *b)
{
    madvise(b->base, b->size, MADV_DONTNEED);
    if (b->pages) madvise(b->pages, b->pages_size, MADV_DONTNEED);
    b->said_refused = false;
    for (uint32_t i = 0; i < b->n_kv; i++) {
        struct kv *kv = b->kv[i];
        memset(kv->high, 0, kv->streams * sizeof *kv->high);
        free(kv->refused);
        kv->refused = NULL;
        kv->n_refused = 0;
    }
}

/* -------------------------------------------------------------------- tensors */

/* cache_k_l<layer> or cache_v_l<layer>, nothing more. */
static bool parse_name(const char *name, quire_side *side, uint32_t *layer)
{
    char letter;
    int n = 0;
    unsigned number;
    if (sscanf(name, "cache_%c_l%5u%n", &letter, &number, &n) != 2 || name[n]) return false;
    if (letter != 'k' && letter != 'v') return false;
    *side = letter == 'k' ? QUIRE_K : QUIRE_V;
    *layer = number;
    return true;
}

static bool is_cache_tensor(const struct host_tensor *t, quire_side *side, uint32_t *layer)
{
    return !t->view_src && t->ne[1] > 1 && t->ne[3] == 1 && t->ne[0] > 0 && t->ne[0] <= UINT32_MAX &&
           t->ne[1] <= INT32_MAX && t->ne[2] <= 65536 && host_codec(t->type) &&
           parse_name(t->name, side, layer);
}

bool kv_is_cache(const struct host_tensor *t)
{
    quire_side side;
    uint32_t layer;
    const struct host_tensor *root = host_root(t);
    return root->buffer && device_owns(root->buffer) && is_cache_tensor(root, &side, &layer);
}

struct kv *kv_of(const struct host_tensor *t)
{
    const struct host_tensor *root = host_root(t);
    if (!root->extra || !root->buffer || !root->buffer->context || !device_owns(root->buffer)) return NULL;
    struct kv *kv = root->extra;
    return kv->owner->state == KV_PLAIN ? NULL : kv;
}

static bool has_layer(const struct kv_context *c, uint32_t layer)
{
    for (uint32_t i = 0; i < c->n_buffers; i++)
        for (uint32_t j = 0; j < c->buffer[i]->n_kv; j++)
            if (c->buffer[i]->kv[j]->layer == layer) return true;
    return false;
}

/* Buffers that one thread makes one after the other and that share no layer belong to one context. */
static bool join_context(struct kv_buffer *b, uint32_t layer)
{
    pthread_mutex_lock(&contexts);
    if (!gathering || !pthread_equal(gathering_thread, pthread_self()) ||
        gathering->n_buffers == MAX_BUFFERS || has_layer(gathering, layer)) {
        gathering = calloc(1, sizeof *gathering);
        gathering_thread = pthread_self();
    }
    if (gathering) gathering->buffer[gathering->n_buffers++] = b;
    b->context = gathering;
    pthread_mutex_unlock(&contexts);
    return b->context;
}

bool kv_adopt(struct kv_buffer *b, struct host_tensor *t)
{
    quire_side side;
    uint32_t layer;
    if (b->state != KV_OPEN || !is_cache_tensor(t, &side, &layer)) return false;
    struct kv **list = realloc(b->kv, (b->n_kv + 1) * sizeof *list);
    if (!list) return false;
    b->kv = list;
    struct kv *kv = calloc(1, sizeof *kv);
    uint32_t *high = calloc((size_t)t->ne[2], sizeof *high);
    if (!kv || !high || (!b->context && !join_context(b, layer))) {
        free(kv);
        free(high);
        return false;
    }
    *kv = (struct kv){.owner = b,
                      .declared = t->data,
                      .type = t->type,
                      .layer = layer,
                      .side = side,
                      .row = (uint32_t)t->ne[0],
                      .cells = (uint32_t)t->ne[1],
                      .streams = (uint32_t)t->ne[2],
                      .row_bytes = t->nb[1],
                      .high = high};
    memcpy(kv->name, t->name, sizeof kv->name);
    b->kv[b->n_kv++] = kv;
    t->extra = kv;
    return true;
}

/* An operand of attention is [d, cells, heads, streams]; heads lie beside each other within the row. */
static void learn_shape(struct kv *kv, const struct host_tensor *operand, int64_t n_q_heads)
{
    int64_t d = operand->ne[0], heads = operand->ne[2];
    if (d < 1 || d > 1024 || heads < 1 || d * heads != kv->row || operand->nb[1] != kv->row_bytes ||
        (heads > 1 && operand->nb[2] != host.ggml_row_size(kv->type, d)) || n_q_heads % heads)
        return;
    kv->d = (uint32_t)d;
    kv->n_heads = (uint32_t)heads;
    kv->n_q_heads = (uint32_t)n_q_heads;
}

/* A host makes all memory of a context before it lays out graphs: nothing more belongs to this one. */
static void close_context(struct kv_context *context)
{
    pthread_mutex_lock(&contexts);
    if (gathering == context) gathering = NULL;
    pthread_mutex_unlock(&contexts);
}

static void learn_operand(const struct host_tensor *operand, quire_side side, int64_t n_q_heads)
{
    struct kv *kv = kv_of(operand);
    if (!kv || kv->owner->state != KV_OPEN) return;
    if (kv->side == side) {
        if (!kv->d) close_context(kv->owner->context);
        learn_shape(kv, operand, n_q_heads);
        if (!kv->d) kv_make_plain(operand, "attention of an unknown shape");
    } else if (side == QUIRE_V && kv->d && operand->ne[0] <= kv->d) {
        kv->d_v = (uint32_t)operand->ne[0];
    }
}

void kv_learn(const struct host_tensor *attention)
{
    int64_t n_q_heads = attention->src[0]->ne[2];
    learn_operand(attention->src[1], QUIRE_K, n_q_heads);
    learn_operand(attention->src[2], QUIRE_V, n_q_heads);
}

void kv_make_plain(const struct host_tensor *cache, const char *op)
{
    struct kv *kv = kv_of(cache);
    if (!kv) return;
    struct kv_buffer *b = kv->owner;
    bool plain = true; /* nothing written yet, or as declared, because no attention was seen before that */
    pthread_mutex_lock(&contexts);
    for (uint32_t i = 0; i < b->n_kv; i++) plain &= !b->kv[i]->format;
    if (plain) {
        b->state = KV_PLAIN;
        device_set_plain(b->host);
    }
    pthread_mutex_unlock(&contexts);
    if (!plain)
        say_trouble("%s on %s reads values that are unpacked for it every time, which is slow", op, kv->name);
    else
        say_trouble(
            "the host uses the cache with %s, which needs plain memory: the cache stays as it would be without "
            "quire%s",
            op, strncmp(op, "MUL_MAT", 7) ? "" : " (-fa on avoids that)");
}

bool kv_settle(struct kv *kv)
{
    struct kv_context *context = kv->owner->context;
    if (kv->owner->state == KV_SETTLED) return true;
    bool mine = false;
    pthread_mutex_lock(&contexts);
    if (!context->settled) mine = plan_context(context);
    pthread_mutex_unlock(&contexts);
    if (mine) plan_tell(context); /* after the lock: it may call the host */
    return kv->owner->state == KV_SETTLED;
}

/* ----------------------------------------------------------------------- rows */

void kv_wrote(struct kv *kv, uint64_t row, uint64_t n)
{
    uint64_t stream = row / kv->cells, end = row % kv->cells + n;
    if (end > kv->high[stream]) kv->high[stream] = (uint32_t)end;
    if (!kv->n_refused) return;
    for (uint64_t r = row; r < row + n; r++)
        if (kv_is_refused(kv, r)) {
            kv->refused[r / 64] &= ~(UINT64_C(1) << r % 64);
            kv->n_refused--;
        }
}

void kv_refuse(struct kv *kv, uint64_t row)
{
    uint64_t n = (uint64_t)kv->cells * kv->streams;
    if (!kv->refused) kv->refused = calloc((size_t)(n / 64 + 1), sizeof *kv->refused);
    if (!kv->refused || kv_is_refused(kv, row)) return;
    kv->refused[row / 64] |= UINT64_C(1) << row % 64;
    kv->n_refused++;
}

bool kv_is_refused(const struct kv *kv, uint64_t row)
{
    return kv->refused && kv->refused[row / 64] >> row % 64 & 1;
}

void kv_read(const struct kv *kv, uint64_t row, uint32_t n, float *values)
{
    char *tile = kv_tile(kv, row);
    for (uint32_t h = 0; h < kv->n_heads; h++) {
        quire_rows_out rows = {
            .form = QUIRE_F32, .data = values + (size_t)h * kv->d, .token_stride = kv->row * sizeof(float)};
        quire_tile_decode(kv->format, h, tile + h * kv->tile_bytes, kv_tile_row(kv, row), n, &rows);
    }
}

void kv_write(struct kv *kv, uint64_t row, uint32_t n, const float *values)
{
    char *tile = kv_tile(kv, row);
    for (uint32_t h = 0; h < kv->n_heads; h++) {
        quire_rows rows = {
            .form = QUIRE_F32, .data = values + (size_t)h * kv->d, .token_stride = kv->row * sizeof(float)};
        quire_tile_encode(kv->format, h, tile + h * kv->tile_bytes, kv_tile_row(kv, row), n, &rows, NULL);
    }
    kv_wrote(kv, row, n);
}
