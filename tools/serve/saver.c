/* SPDX-License-Identifier: MIT */
#include "serve/saver.h"

#include "serve/clock.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

enum { SAVE_EVERY_MS = 100, SAVE_AT_LATEST_MS = 5000 };
/* Tokens that a request waits for when they would be lost: two pages take longer to compute than to save. */
enum { WORTH_WAITING = 2 * QUIRE_PAGE_TOKENS };

struct saver {
    saver_options o;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t stopping;
    bool is_stopping;
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

void saver_save_before(saver *s, const slot_lease *lease)
{
    uint32_t n = 0, n_held, n_stored;
    prefix *p = s->o.prefix(s->o.ctx);
    uint32_t *tokens = p ? slots_unsaved(s->o.slots, lease, WORTH_WAITING, &n) : NULL;
    uint32_t *list = n >= s->o.min_tokens ? save(s, p, lease->slot, tokens, n, &n_held, &n_stored) : NULL;
    if (list) slots_hold(s->o.slots, lease, list, n_held, n_stored);
    free(list);
    free(tokens);
}

/* The server does nothing else while it saves: so in idle moments, and at the latest after some seconds. */
static void *keep_saving(void *ctx)
{
    saver *s = (saver *)ctx;
    double last = clock_ms();
    pthread_mutex_lock(&s->lock);
    while (!s->is_stopping) {
        struct timespec t = clock_in_ms(SAVE_EVERY_MS);
        pthread_cond_timedwait(&s->stopping, &s->lock, &t);
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
    clock_cond_init(&s->stopping);
    if (!pthread_create(&s->thread, NULL, keep_saving, s)) return s;
    pthread_cond_destroy(&s->stopping);
    pthread_mutex_destroy(&s->lock);
    free(s);
    return NULL;
}

void saver_stop(saver *s)
{
    if (!s) return;
    pthread_mutex_lock(&s->lock);
    s->is_stopping = true;
    pthread_cond_broadcast(&s->stopping);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    pthread_cond_destroy(&s->stopping);
    pthread_mutex_destroy(&s->lock);
    free(s);
}
