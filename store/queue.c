/* SPDX-License-Identifier: MIT */
/* store: pages on their way to a tier. */
#include "store/queue.h"

#include "store/namespace.h"

#include <openssl/crypto.h>

#define MAX_ITEMS 65536u

void quire_blob_drop(quire_blob *blob)
{
    if (!blob || atomic_fetch_sub_explicit(&blob->refs, 1, memory_order_acq_rel) > 1) return;
    quire_namespace *ns = blob->ns;
    const quire_allocator *a = quire_namespace_allocator(ns);
    if (blob->page)
        quire_pool_drop_page(blob->pool, blob->page);
    else
        quire_mem_free(a, (void *)(uintptr_t)blob->bytes, blob->n);
    quire_mem_free(a, blob, sizeof *blob);
    quire_namespace_leave(ns);
}

quire_item *quire_item_create(const quire_allocator *a, quire_errand errand)
{
    quire_item *item = (quire_item *)quire_mem_take(a, sizeof *item);
    if (item) item->errand = errand;
    return item;
}

void quire_item_destroy(const quire_allocator *a, quire_item *item)
{
    if (!item) return;
    quire_blob_drop(item->blob);
    OPENSSL_cleanse(&item->seal_key, sizeof item->seal_key);
    quire_mem_free(a, item->objects, sizeof *item->objects * item->n_objects);
    quire_mem_free(a, item, sizeof *item);
}

bool quire_queue_init(quire_queue *q, const quire_allocator *allocator, size_t max_bytes,
                      _Atomic uint64_t *bytes)
{
    *q = (quire_queue){.allocator = allocator, .max_bytes = max_bytes, .bytes = bytes, .last = &q->first};
    pthread_mutex_init(&q->lock, NULL);
    return quire_cond_init(&q->arrived) && quire_cond_init(&q->left);
}

void quire_queue_fini(quire_queue *q)
{
    for (quire_item *item = q->first, *next; item; item = next) {
        next = item->next;
        quire_item_destroy(q->allocator, item);
    }
    pthread_cond_destroy(&q->arrived);
    pthread_cond_destroy(&q->left);
    pthread_mutex_destroy(&q->lock);
}

bool quire_queue_put(quire_queue *q, quire_item *item)
{
    size_t bytes = item->blob ? item->blob->n : 0;
    pthread_mutex_lock(&q->lock);
    /* A single page larger than the whole queue still goes through an empty one. */
    uint64_t queued = quire_counted(q->bytes);
    bool fits = !q->closed && q->n_items < MAX_ITEMS && (queued == 0 || queued + bytes <= q->max_bytes);
    if (fits) {
        item->next = NULL;
        item->queued = quire_now();
        *q->last = item;
        q->last = &item->next;
        q->n_items++;
        q->n_in++;
        quire_count(q->bytes, bytes);
        pthread_cond_signal(&q->arrived);
    }
    pthread_mutex_unlock(&q->lock);
    if (!fits) quire_item_destroy(q->allocator, item);
    return fits;
}

static quire_item *pop(quire_queue *q)
{
    quire_item *item = q->first;
    q->first = item->next;
    if (!q->first) q->last = &q->first;
    q->n_items--;
    return item;
}

uint32_t quire_queue_take(quire_queue *q, quire_item **taken, uint32_t cap, size_t max_bytes,
                          uint64_t deadline, bool *flushing)
{
    uint32_t n = 0;
    size_t bytes = 0;
    pthread_mutex_lock(&q->lock);
    /* A flush wants what the taker holds back. If that is nothing, it must not come back at once, again and again. */
    while (!q->first && !q->closed && !(q->flushing && q->n_out < q->n_in))
        if (!quire_cond_wait_until(&q->arrived, &q->lock, deadline)) break;
    while (q->first && n < cap) {
        const quire_item *next = q->first;
        if (n && (next->errand != QUIRE_SAVE || next->id.bytes != taken[0]->id.bytes ||
                  bytes + next->id.bytes > max_bytes))
            break;
        taken[n++] = pop(q);
        if (taken[0]->errand != QUIRE_SAVE) break;
        bytes += taken[0]->id.bytes;
    }
    *flushing = q->flushing != 0;
    pthread_mutex_unlock(&q->lock);
    return n;
}

void quire_queue_done(quire_queue *q, quire_item **taken, uint32_t n)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (taken[i]->blob) bytes += taken[i]->blob->n;
        quire_item_destroy(q->allocator, taken[i]);
    }
    pthread_mutex_lock(&q->lock);
    atomic_fetch_sub_explicit(q->bytes, bytes, memory_order_relaxed);
    q->n_out += n;
    pthread_cond_broadcast(&q->left);
    pthread_mutex_unlock(&q->lock);
}

bool quire_queue_flush(quire_queue *q, uint64_t deadline)
{
    bool in_time = true;
    pthread_mutex_lock(&q->lock);
    uint64_t until = q->n_in;
    q->flushing++;
    pthread_cond_signal(&q->arrived);
    while (q->n_out < until && in_time) in_time = quire_cond_wait_until(&q->left, &q->lock, deadline);
    q->flushing--;
    in_time = q->n_out >= until;
    pthread_mutex_unlock(&q->lock);
    return in_time;
}

void quire_queue_close(quire_queue *q)
{
    pthread_mutex_lock(&q->lock);
    q->closed = true;
    pthread_cond_broadcast(&q->arrived);
    pthread_mutex_unlock(&q->lock);
}

bool quire_queue_is_closed(quire_queue *q)
{
    pthread_mutex_lock(&q->lock);
    bool closed = q->closed;
    pthread_mutex_unlock(&q->lock);
    return closed;
}
