/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "serve/slots.h"

#include "serve/clock.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* A slot that shares fewer tokens with the prompt is no better than the one used least recently. */
enum { WORTH_KEEPING = 32 };
enum { ASK_EVERY_MS = 50 };

typedef struct held {
    uint32_t *tokens, n, cap;
    uint32_t n_more;   /* made after these, not known which */
    uint32_t n_stored; /* of tokens */
    uint64_t used;     /* when it was given back, by the clock of the slots */
    bool is_busy;
} held;

struct slots {
    pthread_mutex_t lock;
    pthread_cond_t freed;
    uint32_t n, generation, n_unwatched;
    uint64_t clock;
    held held[];
};

slots *slots_create(uint32_t n)
{
    slots *s = (slots *)calloc(1, sizeof *s + sizeof(held) * n);
    if (!s) return NULL;
    s->n = n;
    pthread_mutex_init(&s->lock, NULL);
    clock_cond_init(&s->freed);
    return s;
}

void slots_destroy(slots *s)
{
    if (!s) return;
    for (uint32_t i = 0; i < s->n; i++) free(s->held[i].tokens);
    pthread_cond_destroy(&s->freed);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

static void forget(held *h)
{
    h->n = h->n_more = h->n_stored = 0;
}

void slots_reset(slots *s, uint32_t generation)
{
    pthread_mutex_lock(&s->lock);
    s->generation = generation;
    for (uint32_t i = 0; i < s->n; i++) {
        forget(&s->held[i]);
        s->held[i].is_busy = false;
    }
    pthread_cond_broadcast(&s->freed);
    pthread_mutex_unlock(&s->lock);
}

static uint32_t same(const held *h, const uint32_t *tokens, uint32_t n)
{
    uint32_t most = h->n < n ? h->n : n, i = 0;
    while (i < most && h->tokens[i] == tokens[i]) i++;
    /* What the server made after the prompt is most often what the next prompt goes on with. */
    if (i == h->n && i < n) i += h->n_more < n - i ? h->n_more : n - i;
    return i;
}

/* The free slot that was used least recently, other than `except`; n if there is none. */
static uint32_t oldest(const slots *s, uint32_t except)
{
    uint32_t found = s->n;
    for (uint32_t i = 0; i < s->n; i++)
        if (!s->held[i].is_busy && i != except && (found == s->n || s->held[i].used < s->held[found].used))
            found = i;
    return found;
}

static bool take_best(slots *s, const uint32_t *tokens, uint32_t n, slot_lease *out)
{
    uint32_t best = oldest(s, s->n), most = 0;
    if (best == s->n) return false;
    for (uint32_t i = 0; i < s->n; i++) {
        uint32_t got = s->held[i].is_busy ? 0 : same(&s->held[i], tokens, n);
        if (got > most && got >= WORTH_KEEPING) {
            best = i;
            most = got;
        }
    }
    s->held[best].is_busy = true;
    uint32_t n_same = same(&s->held[best], tokens, n);
    *out = (slot_lease){.slot = best,
                        .n_same = n_same,
                        .is_whole = n_same == s->held[best].n + s->held[best].n_more,
                        .generation = s->generation};
    return true;
}

static void wait_a_little(slots *s)
{
    struct timespec t = clock_in_ms(ASK_EVERY_MS);
    pthread_cond_timedwait(&s->freed, &s->lock, &t);
}

bool slots_take(slots *s, const uint32_t *tokens, uint32_t n, bool (*has_left)(void *ctx), void *ctx,
                slot_lease *out)
{
    bool taken, left = false;
    pthread_mutex_lock(&s->lock);
    while (!(taken = take_best(s, tokens, n, out)) && !left) {
        wait_a_little(s);
        if (!has_left) continue;
        pthread_mutex_unlock(&s->lock);
        left = has_left(ctx);
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return taken;
}

static bool is_valid(const slots *s, const slot_lease *lease)
{
    return lease->generation == s->generation && lease->slot < s->n && s->held[lease->slot].is_busy;
}

void slots_exchange(slots *s, slot_lease *lease)
{
    pthread_mutex_lock(&s->lock);
    uint32_t other = is_valid(s, lease) ? oldest(s, lease->slot) : s->n;
    if (other < s->n && s->held[other].used < s->held[lease->slot].used) {
        s->held[lease->slot].is_busy = false;
        s->held[other].is_busy = true;
        lease->slot = other;
        lease->n_same = 0;
        lease->is_whole = false;
        pthread_cond_broadcast(&s->freed);
    }
    pthread_mutex_unlock(&s->lock);
}

static bool keep(held *h, const uint32_t *tokens, uint32_t n)
{
    if (n > h->cap) {
        uint32_t *more = (uint32_t *)realloc(h->tokens, sizeof *more * n);
        if (!more) return false;
        h->tokens = more;
        h->cap = n;
    }
    if (n) memcpy(h->tokens, tokens, sizeof *tokens * n);
    h->n = n;
    return true;
}

/* Tokens that the store has of the slot and that are also the first of these. */
static uint32_t still_stored(const held *h, const uint32_t *tokens, uint32_t n)
{
    uint32_t i = 0;
    while (i < h->n_stored && i < h->n && i < n && h->tokens[i] == tokens[i]) i++;
    return i;
}

static void give(slots *s, const slot_lease *lease, const uint32_t *tokens, uint32_t n, uint32_t n_more,
                 const uint32_t *n_stored)
{
    pthread_mutex_lock(&s->lock);
    if (is_valid(s, lease)) {
        held *h = &s->held[lease->slot];
        uint32_t stored = n_stored ? *n_stored : tokens ? still_stored(h, tokens, n) : 0;
        if (tokens && keep(h, tokens, n)) {
            h->n_stored = stored;
            h->n_more = n_more;
        } else {
            forget(h);
        }
        h->used = ++s->clock;
        h->is_busy = false;
        pthread_cond_broadcast(&s->freed);
    }
    pthread_mutex_unlock(&s->lock);
}

void slots_give(slots *s, const slot_lease *lease, const uint32_t *tokens, uint32_t n, uint32_t n_more)
{
    give(s, lease, tokens, n, n_more, NULL);
}

void slots_give_stored(slots *s, const slot_lease *lease, const uint32_t *tokens, uint32_t n,
                       uint32_t n_stored)
{
    give(s, lease, tokens, n, 0, &n_stored);
}

void slots_give_unknown(slots *s, const slot_lease *lease)
{
    give(s, lease, NULL, 0, 0, NULL);
}

static void forget_free(slots *s)
{
    for (uint32_t i = 0; i < s->n; i++)
        if (!s->held[i].is_busy) forget(&s->held[i]);
}

void slots_begin_unwatched(slots *s)
{
    pthread_mutex_lock(&s->lock);
    s->n_unwatched++;
    forget_free(s);
    pthread_mutex_unlock(&s->lock);
}

void slots_end_unwatched(slots *s)
{
    pthread_mutex_lock(&s->lock);
    s->n_unwatched--;
    forget_free(s);
    pthread_mutex_unlock(&s->lock);
}

bool slots_are_watched(slots *s)
{
    pthread_mutex_lock(&s->lock);
    bool watched = !s->n_unwatched;
    pthread_mutex_unlock(&s->lock);
    return watched;
}

uint32_t *slots_take_unsaved(slots *s, uint32_t least, slot_lease *lease, uint32_t *n)
{
    uint32_t *copy = NULL, found = s->n;
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < s->n && !s->n_unwatched; i++) {
        const held *h = &s->held[i];
        /* n_stored counts whole pages; a slot is looked at again only when more came to it */
        if (!h->is_busy && h->n && h->n + h->n_more >= h->n_stored + least &&
            (found == s->n || h->used < s->held[found].used))
            found = i;
    }
    if (found < s->n) copy = (uint32_t *)malloc(sizeof *copy * s->held[found].n);
    if (copy) {
        *n = s->held[found].n;
        memcpy(copy, s->held[found].tokens, sizeof *copy * *n);
        s->held[found].is_busy = true;
        *lease = (slot_lease){.slot = found, .n_same = *n, .generation = s->generation};
    }
    pthread_mutex_unlock(&s->lock);
    return copy;
}

uint32_t slots_busy(slots *s)
{
    uint32_t n = 0;
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < s->n; i++) n += s->held[i].is_busy;
    pthread_mutex_unlock(&s->lock);
    return n;
}
