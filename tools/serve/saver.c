/* SPDX-License-Identifier: MIT */
#include "serve/saver.h"

#include "serve/clock.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SAVE_EVERY_MS = 100, SAVE_AT_LATEST_MS = 5000 };
/* How long the thread waits in all while the store takes the pages of one prompt. */
enum { WAIT_MS = 10000 };
/* Until a slot is tried again for which there was no memory. */
enum { SHORT_MS = 2000 };
/* Tokens that a request waits for when they would be lost: two pages take longer to compute than to save. */
enum { WORTH_WAITING = 2 * QUIRE_PAGE_TOKENS };

/* Copies of slots that wait to be stored. Each takes memory: a request that would be the next stores its own. */
enum { MOST_WAITING = 2 };

typedef struct waiting {
    prefix *prefix;
    prefix_image *image;
    uint32_t n_known;       /* tokens that the store has */
    prefix_refusal refusal; /* without an image */
} waiting;

struct saver {
    saver_options o;
    pthread_t thread;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    bool is_stopping, is_saving;
    atomic_bool is_hurried; /* the thread waits for the store no more */
    waiting waiting[MOST_WAITING];
    uint32_t n_waiting;
    _Atomic double idle_until; /* of clock_ms(): slots are not saved before */
    const char *told;          /* the last reason why a prompt could not be saved */
};

/* What a slot holds, as slots_take_unsaved() and slots_unsaved() tell it. */
typedef struct find {
    uint32_t *tokens, n, n_known, owner;
} find;

static bool is_worth(const saver *s, const find *f)
{
    const prefix *p = f->n >= s->o.min_tokens ? s->o.prefix(s->o.ctx, f->owner) : NULL;
    return p && !prefix_has_states(p); /* states were saved before their prompts were answered */
}

/* A reason is told once, not with every prompt. */
void saver_refuse(saver *s, const char *why)
{
    SERVE_COUNT(s->o.counts, saves_refused, 1);
    pthread_mutex_lock(&s->lock);
    bool is_new = !s->told || strcmp(s->told, why) != 0;
    s->told = why;
    pthread_mutex_unlock(&s->lock);
    if (is_new) fprintf(stderr, "quire serve: a prompt could not be saved: %s\n", why);
}

/* Its image is NULL if nothing is to be stored. */
static waiting take(saver *s, uint32_t slot, const find *f, const budget_wait *wait)
{
    const char *why;
    waiting w = {.n_known = f->n_known < f->n ? f->n_known : f->n, .prefix = s->o.prefix(s->o.ctx, f->owner)};
    if (w.prefix && !(w.image = prefix_take_image(w.prefix, slot, f->tokens, f->n, wait, &why, &w.refusal)))
        saver_refuse(s, why);
    return w;
}

static void store(const saver *s, const waiting *w, const prefix_patience *patience)
{
    uint32_t n_held, n_stored = prefix_store_image(w->prefix, w->image, w->n_known, patience);
    (void)prefix_image_tokens(w->image, &n_held);
    bool all = n_stored + QUIRE_PAGE_TOKENS > n_held;
    SERVE_COUNT(s->o.counts, saved_tokens, n_stored);
    SERVE_COUNT(s->o.counts, saves, all);
    SERVE_COUNT(s->o.counts, saves_partial, !all);
    prefix_free_image(w->image);
}

/* false: no slot holds anything new. */
static bool save_one(saver *s, uint32_t wait_ms, const prefix_patience *patience)
{
    slot_lease lease;
    find f;
    waiting w = {0};
    f.tokens = slots_take_unsaved(s->o.slots, QUIRE_PAGE_TOKENS, wait_ms, &lease, &f.n, &f.n_known);
    if (!f.tokens) return false;
    f.owner = lease.owner;
    if (is_worth(s, &f)) w = take(s, lease.slot, &f, NULL);
    /* What the store does not take is offered again when the slot has grown, not at once. */
    if (w.image) {
        uint32_t n;
        const uint32_t *tokens = prefix_image_tokens(w.image, &n);
        slots_give_stored(s->o.slots, &lease, tokens, n, n);
        store(s, &w, patience);
    } else if (w.refusal == REFUSED_OTHER) {
        slots_give_unknown(s->o.slots, &lease);
    } else if (w.refusal == REFUSED_FOR_NOW) {
        slots_give_stored(s->o.slots, &lease, f.tokens, f.n, f.n_known);
        s->idle_until = clock_ms() + SHORT_MS;
    } else { /* to try and save it has changed nothing in the slot */
        slots_give_stored(s->o.slots, &lease, f.tokens, f.n, f.n);
    }
    free(f.tokens);
    return true;
}

/* Under the lock, which it opens meanwhile. */
static void store_next(saver *s)
{
    waiting first = s->waiting[0];
    s->n_waiting--;
    for (uint32_t i = 0; i < s->n_waiting; i++) s->waiting[i] = s->waiting[i + 1];
    s->is_saving = true;
    pthread_mutex_unlock(&s->lock);
    store(s, &first, &(prefix_patience){clock_ms() + WAIT_MS, &s->is_hurried});
    pthread_mutex_lock(&s->lock);
    s->is_saving = false;
    pthread_cond_broadcast(&s->changed);
}

void saver_save_before(saver *s, const slot_lease *lease, const budget_wait *wait)
{
    find f;
    f.tokens = slots_unsaved(s->o.slots, lease, WORTH_WAITING, &f.n, &f.n_known, &f.owner);
    if (!f.tokens) return;
    waiting w = {0};
    if (is_worth(s, &f)) w = take(s, lease->slot, &f, wait);
    free(f.tokens);
    if (!w.image) return;
    pthread_mutex_lock(&s->lock);
    bool has_room = s->n_waiting < MOST_WAITING && !s->is_stopping;
    if (has_room) s->waiting[s->n_waiting++] = w;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    if (!has_room) store(s, &w, NULL); /* a request waits for it */
}

/* The server does nothing else while it saves: so in idle moments. If there are none, some seconds after the last save the next slot that a
 * request gives back is saved before others get it. */
static void *keep_saving(void *ctx)
{
    saver *s = (saver *)ctx;
    double last = clock_ms();
    pthread_mutex_lock(&s->lock);
    while (!s->is_stopping || s->n_waiting) {
        struct timespec t = clock_in_ms(SAVE_EVERY_MS);
        if (!s->n_waiting) pthread_cond_timedwait(&s->changed, &s->lock, &t);
        if (s->n_waiting) {
            store_next(s);
            continue;
        }
        if (s->is_stopping) break;
        bool late = clock_ms() - last > SAVE_AT_LATEST_MS;
        s->is_saving = true;
        pthread_mutex_unlock(&s->lock);
        if (clock_ms() >= s->idle_until && s->o.can_save(s->o.ctx) && (late || !slots_busy(s->o.slots)) &&
            (save_one(s, late ? SAVE_EVERY_MS : 0,
                      &(prefix_patience){clock_ms() + WAIT_MS, &s->is_hurried}) ||
             !slots_busy(s->o.slots)))
            last = clock_ms();
        pthread_mutex_lock(&s->lock);
        s->is_saving = false;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

void saver_finish(saver *s, uint32_t timeout_ms)
{
    double until = clock_ms() + timeout_ms;
    struct timespec t = clock_in_ms(timeout_ms);
    int late = 0;
    atomic_store(&s->is_hurried, true); /* the time is for slots that were not saved yet */
    pthread_mutex_lock(&s->lock);
    s->is_stopping = true;
    pthread_cond_broadcast(&s->changed);
    while ((s->is_saving || s->n_waiting) && !late) late = pthread_cond_timedwait(&s->changed, &s->lock, &t);
    pthread_mutex_unlock(&s->lock);
    s->idle_until = 0;
    while (s->o.can_save(s->o.ctx) && clock_ms() < until && s->idle_until <= 0 &&
           save_one(s, 0, &(prefix_patience){.until = until})) {
    }
}

saver *saver_start(const saver_options *options)
{
    saver *s = (saver *)calloc(1, sizeof *s);
    if (!s) return NULL;
    s->o = *options;
    pthread_mutex_init(&s->lock, NULL);
    clock_cond_init(&s->changed);
    if (!pthread_create(&s->thread, NULL, keep_saving, s)) return s;
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s);
    return NULL;
}

void saver_stop(saver *s)
{
    if (!s) return;
    atomic_store(&s->is_hurried, true);
    pthread_mutex_lock(&s->lock);
    s->is_stopping = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s);
}
