/* SPDX-License-Identifier: MIT */
/* store: pages on their way to a tier. Bounded in bytes; what does not fit is dropped, the engine never waits. */
#ifndef QUIRE_STORE_QUEUE_H
#define QUIRE_STORE_QUEUE_H

#include "store/object.h"

#include <quire/page.h>

/* The bytes of a page, shared by the queues of both tiers: a page that is held, or a copy. */
typedef struct quire_blob {
    atomic_uint refs;
    const void *bytes;
    size_t n;
    quire_pool *pool;
    quire_page *page;    /* NULL: a copy */
    quire_namespace *ns; /* counts its blobs */
} quire_blob;

void quire_blob_drop(quire_blob *blob);

typedef enum quire_errand { QUIRE_SAVE, QUIRE_TOUCH, QUIRE_REMOVE } quire_errand;

typedef struct quire_item {
    struct quire_item *next;
    quire_errand errand;
    uint64_t queued;    /* when */
    quire_object_id id; /* SAVE and REMOVE */
    quire_key seal_key; /* REMOVE */
    quire_blob *blob;   /* SAVE */
    quire_key *objects; /* TOUCH: a chain, first page first */
    uint32_t n_objects;
} quire_item;

typedef struct quire_queue {
    const quire_allocator *allocator;
    _Atomic uint64_t *bytes; /* the counter of what is queued or under way */
    size_t max_bytes;
    pthread_mutex_t lock;
    pthread_cond_t arrived, left;
    quire_item *first, **last;
    uint32_t n_items;
    uint64_t n_in, n_out; /* items ever */
    uint32_t flushing;    /* who waits */
    bool closed;
} quire_queue;

bool quire_queue_init(quire_queue *q, const quire_allocator *allocator, size_t max_bytes,
                      _Atomic uint64_t *bytes);
void quire_queue_fini(quire_queue *q); /* items left are dropped */

quire_item *quire_item_create(const quire_allocator *a, quire_errand errand);
void quire_item_destroy(const quire_allocator *a, quire_item *item);

/* Takes the item over; false: full or closed, and the item is gone. */
bool quire_queue_put(quire_queue *q, quire_item *item);
/*
 * Items from the front into taken[]: either one that is no SAVE, or SAVEs of one size up to max_bytes (but at least one). 0: nothing
 * came until the deadline. *flushing tells whether somebody waits. They count as queued until quire_queue_done().
 */
uint32_t quire_queue_take(quire_queue *q, quire_item **taken, uint32_t cap, size_t max_bytes,
                          uint64_t deadline, bool *flushing);
/* Destroys them. */
void quire_queue_done(quire_queue *q, quire_item **taken, uint32_t n);
/* Until all that is in it now is done; false: the deadline has passed. */
bool quire_queue_flush(quire_queue *q, uint64_t deadline);
void quire_queue_close(quire_queue *q); /* nothing more comes in; takers get what is left */
bool quire_queue_is_closed(quire_queue *q);

#endif
