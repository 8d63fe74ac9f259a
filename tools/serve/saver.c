/* SPDX-License-Identifier: MIT */
#include "serve/saver.h"

#include "serve/clock.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

enum { SAVE_EVERY_MS = 100, SAVE_AT_LATEST_MS = 5000 };
/* Tokens that a request waits for when they would be lost: two pages take longer to compute than to save. */
enum { WORTH_WAITING = 2 * QUIRE_PAGE_TOKENS };

/* Copies of slots that wait to be stored. Each takes memory: a request that would be the next stores its own. */
enum { MOST_WAITING = 2 };

typedef struct waiting {
    prefix *prefix;
    prefix_image *image;
    uint32_t n_known; /* tokens that the store has */
} waiting;

struct saver {
    saver_options o;
    pthread_t thread;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    bool is_stopping, is_saving;
    waiting waiting[MOST_WAITING];
    uint32_t n_waiting;
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

static void count_saved(const saver *s, uint32_t n_stored, uint32_t n_held)
{
    bool all = n_stored + QUIRE_PAGE_TOKENS > n_held;
    SERVE_COUNT(s->o.counts, saved_tokens, n_stored);
    SERVE_COUNT(s->o.counts, saves, all);
    SERVE_COUNT(s->o.counts, saves_partial, !all);
}

/* The tokens that the server says the slot holds, from malloc(); NULL: nothing was saved. */
static uint32_t *save(const saver *s, uint32_t slot, const find *f, uint32_t *n_held)
{
    uint32_t n_stored = 0;
    const char *why;
    uint32_t *list = prefix_save(s->o.prefix(s->o.ctx, f->owner), slot, f->tokens, f->n, f->n_known, n_held,
                                 &n_stored, &why);
    if (list) count_saved(s, n_stored, *n_held);
    SERVE_COUNT(s->o.counts, saves_refused, !list);
    return list;
}

/* false: no slot holds anything new. */
static bool save_one(const saver *s, uint32_t wait_ms)
{
    slot_lease lease;
    find f;
    uint32_t n_held = 0, *list = NULL;
    f.tokens = slots_take_unsaved(s->o.slots, QUIRE_PAGE_TOKENS, wait_ms, &lease, &f.n, &f.n_known);
    if (!f.tokens) return false;
    f.owner = lease.owner;
    bool worth = is_worth(s, &f);
    if (worth) list = save(s, lease.slot, &f, &n_held);
    /* What the store did not take is offered again when the slot has grown, not at once. */
    if (list)
        slots_give_stored(s->o.slots, &lease, list, n_held, n_held);
    else if (worth)
        slots_give_unknown(s->o.slots, &lease);
    else
        slots_give_stored(s->o.slots, &lease, f.tokens, f.n, f.n);
    free(list);
    free(f.tokens);
    return true;
}

static void store(const saver *s, const waiting *w)
{
    count_saved(s, prefix_store_image(w->prefix, w->image, w->n_known), prefix_image_tokens(w->image));
    prefix_free_image(w->image);
}

/* Under the lock, which it opens meanwhile. */
static void store_next(saver *s)
{
    waiting first = s->waiting[0];
    s->n_waiting--;
    for (uint32_t i = 0; i < s->n_waiting; i++) s->waiting[i] = s->waiting[i + 1];
    s->is_saving = true;
    pthread_mutex_unlock(&s->lock);
    store(s, &first);
    pthread_mutex_lock(&s->lock);
    s->is_saving = false;
    pthread_cond_broadcast(&s->changed);
}

void saver_save_before(saver *s, const slot_lease *lease)
{
    find f;
    const char *why;
    f.tokens = slots_unsaved(s->o.slots, lease, WORTH_WAITING, &f.n, &f.n_known, &f.owner);
    if (!f.tokens) return;
    bool worth = is_worth(s, &f), has_room = false;
    waiting w = {.n_known = f.n_known};
    if (worth) w.prefix = s->o.prefix(s->o.ctx, f.owner);
    if (worth) w.image = prefix_take_image(w.prefix, lease->slot, f.tokens, f.n, &why);
    free(f.tokens);
    SERVE_COUNT(s->o.counts, saves_refused, worth && !w.image);
    if (!w.image) return;
    pthread_mutex_lock(&s->lock);
    has_room = s->n_waiting < MOST_WAITING && !s->is_stopping;
    if (has_room) s->waiting[s->n_waiting++] = w;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    if (!has_room) store(s, &w);
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
        if (s->o.can_save(s->o.ctx) && (late || !slots_busy(s->o.slots)) &&
            (save_one(s, late ? SAVE_EVERY_MS : 0) || !slots_busy(s->o.slots)))
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
    pthread_mutex_lock(&s->lock);
    s->is_stopping = true;
    pthread_cond_broadcast(&s->changed);
    while ((s->is_saving || s->n_waiting) && !late) late = pthread_cond_timedwait(&s->changed, &s->lock, &t);
    pthread_mutex_unlock(&s->lock);
    while (s->o.can_save(s->o.ctx) && clock_ms() < until && save_one(s, 0)) {
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
    pthread_mutex_lock(&s->lock);
    s->is_stopping = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s);
}
