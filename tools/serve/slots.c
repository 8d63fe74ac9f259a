/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "serve/slots.h"

#include "serve/clock.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* A slot that shares fewer tokens with the prompt is no better than the one used least recently. */
#ifndef SLOTS_WORTH_KEEPING /* tests/store/fleet: what it hands in as tokens are longer stretches */
#define SLOTS_WORTH_KEEPING 32
#endif
/* So many tokens take longer to compute than a slot to save. */
enum { WORTH_WAITING = 128 };
enum { ASK_EVERY_MS = 50 };
/* A server looks once a second whether clients are still there. */
enum { LEFT_MS = 2000 };

typedef struct held {
    uint32_t *tokens, n, cap;
    uint32_t n_more;     /* made after these, not known which */
    uint32_t n_stored;   /* of tokens */
    uint64_t used;       /* when it was given back, by the clock of the slots */
    uint32_t owner;      /* of all rows in it */
    double unsafe_until; /* clock_ms(): so long the request of a client that left may begin in it */
    bool is_busy;
    bool is_for_saver; /* given back, and not yet taken by the one who saves */
    bool is_saving;    /* taken by it */
} held;

/* A request that waits for a slot; they are served in the order in which they came. */
typedef struct waiter {
    struct waiter *next;
    bool wants_all;
    uint32_t owner;
    const uint32_t *tokens;
    uint32_t n;
} waiter;

struct slots {
    pthread_mutex_t lock;
    pthread_cond_t freed;
    uint32_t n, generation, n_unwatched;
    uint32_t n_unwatched_ever;
    uint32_t saver_least; /* of slots_take_unsaved(), while it waits; 0: it does not */
    uint64_t clock;
    waiter *first;
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
        /* A request to the server before may still reach this one, so that what its slots hold is not known. */
        s->held[i].owner = SLOT_NOBODY;
        s->held[i].is_busy = s->held[i].is_for_saver = s->held[i].is_saving = false;
    }
    pthread_cond_broadcast(&s->freed);
    pthread_mutex_unlock(&s->lock);
}

static bool is_own(const held *h, uint32_t owner)
{
    return owner != SLOT_NOBODY && h->owner == owner;
}

static uint32_t same(const held *h, uint32_t owner, const uint32_t *tokens, uint32_t n)
{
    if (!is_own(h, owner)) return 0;
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

static slot_lease take(slots *s, uint32_t slot, uint32_t owner, uint32_t n_same)
{
    held *h = &s->held[slot];
    h->is_busy = true;
    return (slot_lease){.slot = slot,
                        .n_same = n_same,
                        .is_whole = n_same == h->n + h->n_more,
                        .generation = s->generation,
                        .owner = owner,
                        .is_own = is_own(h, owner),
                        .n_unwatched = s->n_unwatched_ever,
                        .is_after_left = clock_ms() < h->unsafe_until};
}

/* The free slot that is best for a request; n: none is free, or a better one will be in a moment (*is_soon). */
static uint32_t choose(const slots *s, const waiter *w, bool *is_soon)
{
    uint32_t best = oldest(s, s->n), most = 0;
    *is_soon = false;
    if (best == s->n || !s->generation) return s->n;
    uint32_t soon = 0; /* of slots that will be free in a moment: to save one takes milliseconds */
    for (uint32_t i = 0; i < s->n; i++) {
        uint32_t got = s->held[i].is_busy ? 0 : same(&s->held[i], w->owner, w->tokens, w->n);
        if (got > most && got >= SLOTS_WORTH_KEEPING) {
            best = i;
            most = got;
        }
        got = s->held[i].is_saving ? same(&s->held[i], w->owner, w->tokens, w->n) : 0;
        if (got > soon) soon = got;
    }
    *is_soon = soon >= most + WORTH_WAITING;
    return *is_soon ? s->n : best;
}

/* In the order in which they came, but one that waits for a slot that is being saved leaves the free ones to the others. */
static bool take_best(slots *s, const waiter *self, slot_lease *out)
{
    bool is_soon = true;
    for (const waiter *w = s->first; w != self && is_soon; w = w->next) {
        if (w->wants_all) return false;
        (void)choose(s, w, &is_soon);
    }
    uint32_t best = is_soon ? choose(s, self, &is_soon) : s->n;
    if (best == s->n) return false;
    *out = take(s, best, self->owner, same(&s->held[best], self->owner, self->tokens, self->n));
    return true;
}

uint32_t slots_look_up(slots *s, uint32_t owner, const uint32_t *tokens, uint32_t n)
{
    uint32_t most = 0;
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < s->n; i++) {
        uint32_t got = s->held[i].is_busy ? 0 : same(&s->held[i], owner, tokens, n);
        if (got > most) most = got;
    }
    pthread_mutex_unlock(&s->lock);
    return most;
}

uint32_t slots_most_shared(slots *s, const slot_lease *lease, const uint32_t *tokens, uint32_t n)
{
    uint32_t most = 0;
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < s->n; i++) {
        const held *h = &s->held[i];
        uint32_t got = h->is_busy || i == lease->slot ? 0 : same(h, h->owner, tokens, n);
        if (got > most) most = got;
    }
    pthread_mutex_unlock(&s->lock);
    return most;
}

static void wait_a_little(slots *s)
{
    struct timespec t = clock_in_ms(ASK_EVERY_MS);
    pthread_cond_timedwait(&s->freed, &s->lock, &t);
}

/* Waits until has_left() says so, or something changes. false: give up. */
static bool wait_on(slots *s, bool (*has_left)(void *ctx), void *ctx)
{
    wait_a_little(s);
    if (!has_left) return true;
    pthread_mutex_unlock(&s->lock);
    bool left = has_left(ctx);
    pthread_mutex_lock(&s->lock);
    return !left;
}

static waiter **find_waiter(slots *s, const waiter *w)
{
    waiter **at = &s->first;
    while (*at && *at != w) at = &(*at)->next;
    return at;
}

bool slots_take(slots *s, uint32_t owner, const uint32_t *tokens, uint32_t n, bool (*has_left)(void *ctx),
                void *ctx, slot_lease *out)
{
    bool taken;
    waiter self = {.owner = owner, .tokens = tokens, .n = n};
    pthread_mutex_lock(&s->lock);
    *find_waiter(s, NULL) = &self;
    while (!(taken = take_best(s, &self, out)) && wait_on(s, has_left, ctx)) {
    }
    *find_waiter(s, &self) = self.next;
    pthread_cond_broadcast(&s->freed); /* the next one may find another slot that is free */
    pthread_mutex_unlock(&s->lock);
    return taken;
}

static uint32_t count_busy(const slots *s)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n; i++) n += s->held[i].is_busy;
    return n;
}

bool slots_take_all(slots *s, bool (*has_left)(void *ctx), void *ctx, slot_lease *out)
{
    bool taken;
    waiter self = {.wants_all = true};
    pthread_mutex_lock(&s->lock);
    *find_waiter(s, NULL) = &self;
    while (!(taken = s->first == &self && s->generation && !count_busy(s)) && wait_on(s, has_left, ctx)) {
    }
    *find_waiter(s, &self) = self.next;
    for (uint32_t i = 0; taken && i < s->n; i++) *out = take(s, i, SLOT_NOBODY, 0);
    pthread_cond_broadcast(&s->freed);
    pthread_mutex_unlock(&s->lock);
    return taken;
}

void slots_give_all(slots *s, const slot_lease *lease)
{
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; lease->generation == s->generation && i < s->n; i++) {
        forget(&s->held[i]);
        s->held[i].owner = SLOT_NOBODY;
        s->held[i].is_busy = false;
    }
    pthread_cond_broadcast(&s->freed);
    pthread_mutex_unlock(&s->lock);
}

bool slots_point(slots *s, slot_lease *lease)
{
    pthread_mutex_lock(&s->lock);
    lease->n_unwatched = ++s->n_unwatched_ever;
    bool is_alone = count_busy(s) <= 1;
    pthread_mutex_unlock(&s->lock);
    return is_alone;
}

static bool is_valid(const slots *s, const slot_lease *lease)
{
    return lease->generation == s->generation && lease->slot < s->n && s->held[lease->slot].is_busy;
}

bool slots_is_valid(slots *s, const slot_lease *lease)
{
    pthread_mutex_lock(&s->lock);
    bool valid = is_valid(s, lease);
    pthread_mutex_unlock(&s->lock);
    return valid;
}

bool slots_are_undisturbed(slots *s, const slot_lease *lease)
{
    pthread_mutex_lock(&s->lock);
    bool good = is_valid(s, lease) && !s->n_unwatched && s->n_unwatched_ever == lease->n_unwatched;
    pthread_mutex_unlock(&s->lock);
    return good;
}

void slots_exchange(slots *s, slot_lease *lease)
{
    pthread_mutex_lock(&s->lock);
    uint32_t other = is_valid(s, lease) ? oldest(s, lease->slot) : s->n;
    if (other < s->n && s->held[other].used < s->held[lease->slot].used) {
        s->held[lease->slot].is_busy = false;
        *lease = take(s, other, lease->owner, 0);
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

static bool is_unsaved(const held *h, uint32_t least)
{
    /* n_stored counts whole pages; a slot is looked at again only when more came to it */
    return h->n && h->n + h->n_more >= h->n_stored + least;
}

static void give(slots *s, const slot_lease *lease, const uint32_t *tokens, uint32_t n, uint32_t n_more,
                 uint32_t n_stored)
{
    pthread_mutex_lock(&s->lock);
    if (is_valid(s, lease)) {
        held *h = &s->held[lease->slot];
        if (tokens && keep(h, tokens, n)) {
            h->n_stored = n_stored;
            h->n_more = n_more;
            h->owner = lease->owner;
        } else {
            forget(h);
            /* The request may not have reached the server: then the rows of another are still there. */
            h->owner = lease->is_own ? lease->owner : SLOT_NOBODY;
        }
        h->used = ++s->clock;
        h->is_saving = false;
        h->is_for_saver = s->saver_least && is_unsaved(h, s->saver_least);
        h->is_busy = h->is_for_saver;
        if (h->is_for_saver) s->saver_least = 0; /* one is enough */
        pthread_cond_broadcast(&s->freed);
    }
    pthread_mutex_unlock(&s->lock);
}

void slots_give(slots *s, const slot_lease *lease, const uint32_t *tokens, uint32_t n, uint32_t n_more)
{
    uint32_t stored = 0;
    pthread_mutex_lock(&s->lock);
    if (is_valid(s, lease) && lease->is_own) stored = still_stored(&s->held[lease->slot], tokens, n);
    pthread_mutex_unlock(&s->lock);
    give(s, lease, tokens, n, n_more, stored);
}

void slots_give_stored(slots *s, const slot_lease *lease, const uint32_t *tokens, uint32_t n,
                       uint32_t n_stored)
{
    give(s, lease, tokens, n, 0, n_stored);
}

void slots_note_left(slots *s, const slot_lease *lease)
{
    pthread_mutex_lock(&s->lock);
    if (is_valid(s, lease)) s->held[lease->slot].unsafe_until = clock_ms() + LEFT_MS;
    pthread_mutex_unlock(&s->lock);
}

void slots_give_unknown(slots *s, const slot_lease *lease)
{
    give(s, lease, NULL, 0, 0, 0);
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
    s->n_unwatched_ever++;
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

static uint32_t find_unsaved(const slots *s, uint32_t least)
{
    uint32_t found = s->n;
    for (uint32_t i = 0; i < s->n && !s->n_unwatched; i++) {
        const held *h = &s->held[i];
        if ((h->is_for_saver || !h->is_busy) && is_unsaved(h, least) &&
            (found == s->n || h->used < s->held[found].used))
            found = i;
    }
    return found;
}

uint32_t *slots_take_unsaved(slots *s, uint32_t least, uint32_t wait_ms, slot_lease *lease, uint32_t *n,
                             uint32_t *n_stored)
{
    uint32_t *copy = NULL, found;
    double until = clock_ms() + wait_ms;
    pthread_mutex_lock(&s->lock);
    while ((found = find_unsaved(s, least)) == s->n && clock_ms() < until) {
        s->saver_least = least;
        wait_a_little(s);
    }
    s->saver_least = 0;
    for (uint32_t i = 0; i < s->n; i++) /* what was kept for this call and is not taken by it is free again */
        if (s->held[i].is_for_saver) s->held[i].is_for_saver = s->held[i].is_busy = false;
    if (found < s->n) copy = (uint32_t *)malloc(sizeof *copy * s->held[found].n);
    if (copy) {
        const held *h = &s->held[found];
        *n = h->n;
        *n_stored = h->n_stored;
        memcpy(copy, h->tokens, sizeof *copy * *n);
        *lease = take(s, found, h->owner, *n);
        s->held[found].is_saving = true;
    }
    pthread_cond_broadcast(&s->freed);
    pthread_mutex_unlock(&s->lock);
    return copy;
}

uint32_t *slots_unsaved(slots *s, const slot_lease *lease, uint32_t least, uint32_t *n, uint32_t *n_stored,
                        uint32_t *owner)
{
    uint32_t *copy = NULL;
    pthread_mutex_lock(&s->lock);
    const held *h = is_valid(s, lease) ? &s->held[lease->slot] : NULL;
    uint32_t safe = h && h->n_stored > lease->n_same ? h->n_stored : lease->n_same;
    if (h && !s->n_unwatched && h->n && h->n + h->n_more >= safe + least)
        copy = (uint32_t *)malloc(sizeof *copy * h->n);
    if (copy) {
        memcpy(copy, h->tokens, sizeof *copy * h->n);
        *n = h->n;
        *n_stored = h->n_stored;
        *owner = h->owner;
    }
    pthread_mutex_unlock(&s->lock);
    return copy;
}

void slots_hold(slots *s, const slot_lease *lease, const uint32_t *tokens, uint32_t n, uint32_t n_stored)
{
    pthread_mutex_lock(&s->lock);
    if (is_valid(s, lease)) {
        held *h = &s->held[lease->slot];
        if (lease->is_own) h->owner = lease->owner;
        if (keep(h, tokens, n)) {
            h->n_stored = n_stored;
            h->n_more = 0;
        } else {
            forget(h);
        }
    }
    pthread_mutex_unlock(&s->lock);
}

uint32_t slots_busy(slots *s)
{
    pthread_mutex_lock(&s->lock);
    uint32_t n = count_busy(s);
    pthread_mutex_unlock(&s->lock);
    return n;
}
