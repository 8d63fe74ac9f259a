/* SPDX-License-Identifier: MIT */
/* Which buffers make up a context of the host, what is learned of them, and the moment when their plan is made. */
#include "device.h"
#include "config.h"
#include "marks.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Contexts come and go rarely; whoever looks at how buffers belong together holds this. */
static pthread_mutex_t contexts = PTHREAD_MUTEX_INITIALIZER;
/* Those that the next buffer may belong to: at most one for each thread. */
static struct kv_context *gathering;
static _Thread_local bool gathers; /* this thread has one, unless another thread has freed it */

/* ------------------------------------------------------------- joining, leaving */

/* Where the list has the context that this thread makes, or its end. */
static struct kv_context **own_place(void)
{
    struct kv_context **at = &gathering;
    while (*at && !pthread_equal((*at)->maker, pthread_self())) at = &(*at)->next;
    return at;
}

static void stop_gathering(const struct kv_context *c)
{
    for (struct kv_context **at = &gathering; *at; at = &(*at)->next)
        if (*at == c) {
            *at = c->next;
            return;
        }
}

/* Buffers that one thread makes one after the other belong to one context. They may hold the same layers: a model that
 * selects what it attends to has a second, small cache for the selection, whose tensors have the names of the main one. */
static bool join_context(struct kv_buffer *b)
{
    pthread_mutex_lock(&contexts);
    struct kv_context **at = own_place();
    if (*at &&
        (!gathers || (*at)->n_buffers == MAX_BUFFERS)) { /* or of a thread that had the number of this one */
        stop_gathering(*at);
        at = own_place();
    }
    if (!*at && (*at = calloc(1, sizeof **at))) (*at)->maker = pthread_self();
    if (*at) (*at)->buffer[(*at)->n_buffers++] = b;
    b->context = *at;
    gathers = true;
    pthread_mutex_unlock(&contexts);
    return b->context;
}

bool context_adopt(struct kv_buffer *b, struct host_tensor *t)
{
    quire_side side;
    uint32_t layer;
    if (b->state != KV_OPEN || !kv_is_root(t, &side, &layer)) return false;
    struct kv **list = realloc(b->kv, (b->n_kv + 1) * sizeof *list);
    if (!list) return false;
    b->kv = list;
    struct kv *kv = calloc(1, sizeof *kv);
    uint32_t *high = calloc((size_t)t->ne[2], sizeof *high);
    if (!kv || !high || (!b->context && !join_context(b))) {
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

void context_leave(struct kv_buffer *b)
{
    struct kv_context *c = b->context;
    uint32_t left = 0;
    if (!c) return;
    pthread_mutex_lock(&contexts);
    for (uint32_t i = 0; i < c->n_buffers; i++)
        if (c->buffer[i] != b) c->buffer[left++] = c->buffer[i];
    c->n_buffers = left;
    if (!left) stop_gathering(c);
    /* What was recorded is worth keeping as soon as the first part goes. */
    struct recorder *recorder = c->recorder;
    c->recorder = NULL;
    pthread_mutex_unlock(&contexts);
    recorder_finish(recorder);
    if (left) return;
    free(c->report);
    free(c);
}

/* --------------------------------------------------------------------- learning */

/* A profile has other values for each head, and recorders want all heads of a token together. */
static bool needs_heads_together(void)
{
    return config.loaded_profile || config.profile_record || config.rows_record;
}

/* An operand of attention is [d, cells, heads, streams] or [d, cells, 1, heads]; heads lie beside each other within the row.
 * Attention over the second is computed head by head. */
static void learn_shape(struct kv *kv, const struct host_tensor *operand, int64_t n_q_heads)
{
    int64_t d = operand->ne[0], heads = operand->ne[2];
    bool apart = kv_has_heads_apart(kv, operand);
    if (apart && needs_heads_together()) return;
    if (apart) heads = operand->ne[3], n_q_heads *= heads;
    if (d < 1 || d > 1024 || heads < 1 || d * heads != kv->row || operand->nb[1] != kv->row_bytes ||
        (heads > 1 && operand->nb[apart ? 3 : 2] != host.ggml_row_size(kv->type, d)) || n_q_heads % heads)
        return;
    kv->d = (uint32_t)d;
    kv->n_heads = (uint32_t)heads;
    kv->n_q_heads = (uint32_t)n_q_heads;
}

/* A host makes a backend, then all memory of a context, then it lays out graphs. */
void context_close(void)
{
    if (!gathers) return;
    gathers = false;
    pthread_mutex_lock(&contexts);
    stop_gathering(*own_place());
    pthread_mutex_unlock(&contexts);
}

static void learn_operand(const struct host_tensor *operand, quire_side side, int64_t n_q_heads)
{
    struct kv *kv = kv_of(operand);
    if (!kv || kv->owner->state != KV_OPEN) return;
    if (kv->side == side) {
        learn_shape(kv, operand, n_q_heads);
        if (!kv->d) context_make_plain(operand, "FLASH_ATTN_EXT of an unknown shape");
    } else if (side == QUIRE_V && kv->d && operand->ne[0] <= kv->d) {
        kv->d_v = (uint32_t)operand->ne[0];
    }
}

void context_learn_rows(const struct host_tensor *rows)
{
    struct kv *kv = kv_of(rows);
    int64_t d = rows->ne[0];
    if (!kv || kv->owner->state != KV_OPEN || kv->d || needs_heads_together()) return;
    if (d < 1 || d > 1024 || d == kv->row || kv->row % d || rows->nb[1] != host.ggml_row_size(kv->type, d))
        return;
    kv->d = (uint32_t)d;
    kv->n_heads = kv->n_q_heads = (uint32_t)(kv->row / d);
}

void context_learn(const struct host_tensor *attention)
{
    int64_t n_q_heads = attention->src[0]->ne[2];
    learn_operand(attention->src[1], QUIRE_K, n_q_heads);
    learn_operand(attention->src[2], QUIRE_V, n_q_heads);
}

/* -------------------------------------------------------------------- plain */

static void release(struct kv *kv)
{
    struct kv_buffer *b = kv->owner;
    state_make_plain(kv);
    quire_tile_format_destroy(kv->format);
    kv->format = NULL;
    kv->plain = true;
    kv->host->buft = &buft_host;
    for (uint32_t i = 0; i < b->n_kv; i++)
        if (!b->kv[i]->plain) return;
    b->state = KV_PLAIN;
    b->host->buft = &buft_host;
}

/* Without flash attention V is transposed, so its values are set one by one, and products are computed by MUL_MAT. */
static bool needs_flash(const char *op)
{
    return !strcmp(op, "MUL_MAT") || !strcmp(op, "SET_ROWS of single values");
}

void context_release(struct kv *kv)
{
    struct kv_buffer *b = kv->owner;
    for (uint32_t i = 0; i < b->n_kv; i++)
        if (b->kv[i]->layer == kv->layer && !b->kv[i]->plain) release(b->kv[i]);
}

void context_make_plain(const struct host_tensor *cache, const char *op)
{
    struct kv *kv = kv_of(cache);
    if (!kv) return;
    struct kv_context *c = kv->owner->context;
    pthread_mutex_lock(&contexts);
    bool tiles = kv->format, *said = tiles ? &c->said_slow : &c->said_plain, first = !*said;
    *said = true;
    if (!tiles) context_release(kv);
    pthread_mutex_unlock(&contexts);
    marks_tell();
    if (!first) return;
    if (tiles)
        say_trouble(
            "the operation %s reads %s directly, so Quire decodes the values for it every time, which is slow",
            op ? op : "SET_ROWS", kv->name);
    else if (!op)
        say_trouble(
            "no attention over %s was seen, so caches of this kind, such as that of an indexer, are stored as without Quire",
            kv->name);
    else
        say_trouble(
            "the operation %s needs %s in uncompressed memory, so layers of this kind are stored as without Quire%s",
            op, kv->name, needs_flash(op) ? "; start the program with -fa on to avoid this" : "");
}

/* --------------------------------------------------------------------- settling */

enum kv_place context_settle(struct kv *kv)
{
    struct kv_context *context = kv->owner->context;
    bool mine = false;
    if (kv->owner->state == KV_OPEN) {
        pthread_mutex_lock(&contexts);
        if (!context->settled) mine = plan_context(context);
        pthread_mutex_unlock(&contexts);
    }
    if (mine) { /* after the lock: these may call the host */
        plan_tell(context);
        marks_tell();
    }
    if (kv->plain) return KV_IN_HOST_MEMORY;
    return kv->owner->state == KV_SETTLED ? KV_IN_TILES : KV_NO_MEMORY;
}
