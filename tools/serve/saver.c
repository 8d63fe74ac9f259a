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
    prefix_copy *copy;
} waiting;

struct saver {
    saver_options o;
    pthread_t thread;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    bool is_stopping;
    waiting waiting[MOST_WAITING];
    uint32_t n_waiting;
};

/* The tokens that the slot holds and how many of them are stored now; NULL: it could not be saved. */
static uint32_t *save(const saver *s, prefix *p, uint32_t slot, const uint32_t *tokens, uint32_t n,
                      uint32_t *n_held, uint32_t *n_stored)
{
    const char *why;
    *n_held = *n_stored = 0;
    uint32_t *list = prefix_save(p, slot, tokens, n, n_held, n_stored, &why);
    SERVE_COUNT(s->o.counts, saves, list != NULL);
    SERVE_COUNT(s->o.counts, saved_tokens, *n_stored);
    SERVE_COUNT(s->o.counts, saves_refused, !list);
    return list;
}

static void save_one(const saver *s, prefix *p)
{
    slot_lease lease;
    uint32_t n, n_held, n_stored;
    uint32_t *tokens = slots_take_unsaved(s->o.slots, QUIRE_PAGE_TOKENS, &lease, &n), *list = NULL;
    if (!tokens) return;
    bool worth = n >= s->o.min_tokens;
    if (worth) list = save(s, p, lease.slot, tokens, n, &n_held, &n_stored);
    if (list)
        slots_give_stored(s->o.slots, &lease, list, n_held, n_stored);
    else if (worth)
        slots_give_unknown(s->o.slots, &lease);
    else
        slots_give_stored(s->o.slots, &lease, tokens, n, n); /* not looked at again until it has grown */
    free(list);
    free(tokens);
}

static void store(const saver *s, const waiting *w)
{
    uint32_t n_stored = prefix_store_copy(w->prefix, w->copy);
    prefix_free_copy(w->copy);
    SERVE_COUNT(s->o.counts, saved_tokens, n_stored);
    SERVE_COUNT(s->o.counts, saves, 1);
}

void saver_save_before(saver *s, const slot_lease *lease)
{
    uint32_t n = 0;
    const char *why;
    waiting w = {.prefix = s->o.prefix(s->o.ctx)};
    uint32_t *tokens = w.prefix ? slots_unsaved(s->o.slots, lease, WORTH_WAITING, &n) : NULL;
    bool worth = tokens && n >= s->o.min_tokens;
    if (worth) w.copy = prefix_take_copy(w.prefix, lease->slot, tokens, n, &why);
    free(tokens);
    if (!worth) return;
    SERVE_COUNT(s->o.counts, saves_refused, !w.copy);
    if (!w.copy) return;
    pthread_mutex_lock(&s->lock);
    bool has_room = s->n_waiting < MOST_WAITING;
    if (has_room) s->waiting[s->n_waiting++] = w;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    if (!has_room) store(s, &w);
}

/* The server does nothing else while it saves: so in idle moments, and at the latest after some seconds. */
static void *keep_saving(void *ctx)
{
    saver *s = (saver *)ctx;
    double last = clock_ms();
    pthread_mutex_lock(&s->lock);
    while (!s->is_stopping || s->n_waiting) {
        struct timespec t = clock_in_ms(SAVE_EVERY_MS);
        if (!s->n_waiting) pthread_cond_timedwait(&s->changed, &s->lock, &t);
        if (s->n_waiting) {
            waiting first = s->waiting[0];
            s->n_waiting--;
            for (uint32_t i = 0; i < s->n_waiting; i++) s->waiting[i] = s->waiting[i + 1];
            pthread_mutex_unlock(&s->lock);
            store(s, &first);
            pthread_mutex_lock(&s->lock);
            continue;
        }
        pthread_mutex_unlock(&s->lock);
        if (!slots_busy(s->o.slots) || clock_ms() - last > SAVE_AT_LATEST_MS) {
            prefix *p = s->o.prefix(s->o.ctx);
            if (p) save_one(s, p);
            last = clock_ms();
        }
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
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
