/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "serve/worth.h"

#include <quire/store.h>

/* Shorter pieces of prompts say more about the fixed cost of a request than about tokens. */
enum { LEAST_COMPUTED = 32 };
/* Of older measurements with each new one. */
static const double FADE = 0.9;
/* What a long computation may weigh, in tokens: the machine may be slower or faster now. */
static const double MOST_WEIGHT = 8192;
/* One that takes longer than this many times what was expected counts as that: a disk that hung once says little. */
static const double MOST_SURPRISE = 4;
/* A restore that was not tried makes the next one look this much cheaper: slow ones must not end restoring for ever. */
static const double HOPE = 0.98;

void worth_init(worth *w, uint32_t least)
{
    *w = (worth){.least = least};
    pthread_mutex_init(&w->lock, NULL);
}

void worth_destroy(worth *w)
{
    pthread_mutex_destroy(&w->lock);
}

static bool is_time(double ms)
{
    return ms > 0 && ms < 1e9; /* neither a NaN */
}

void worth_computed(worth *w, uint32_t n_tokens, double ms)
{
    if (n_tokens < LEAST_COMPUTED || !is_time(ms)) return;
    pthread_mutex_lock(&w->lock);
    double old = w->compute_weight * FADE, all = old + n_tokens;
    w->compute_ms = (w->compute_ms * old + ms) / all;
    w->compute_weight = all < MOST_WEIGHT ? all : MOST_WEIGHT;
    pthread_mutex_unlock(&w->lock);
}

/* The line through what was measured: a fixed time and one for each page, neither below 0. */
static double restore_ms(const worth_sums *s, uint32_t n_pages)
{
    double spread = s->n * s->xx - s->x * s->x, each = s->y / s->x, fixed = 0;
    if (spread > 1e-3 * s->n * s->xx) {
        double slope = (s->n * s->xy - s->x * s->y) / spread;
        double rest = (s->y - slope * s->x) / s->n;
        if (slope < 0) {
            slope = 0;
            rest = s->y / s->n;
        }
        if (rest >= 0) {
            each = slope;
            fixed = rest;
        }
    }
    return fixed + each * n_pages;
}

/* With the lock. */
static void add_restore(worth_sums *s, uint32_t n_pages, double ms)
{
    double x = n_pages;
    double most = s->n > 0 ? MOST_SURPRISE * restore_ms(s, n_pages) : ms;
    if (ms > most) ms = most;
    *s = (worth_sums){s->n * FADE + 1, s->x * FADE + x, s->y * FADE + ms, s->xx * FADE + x * x,
                      s->xy * FADE + x * ms};
}

void worth_restored(worth *w, uint32_t n_pages, double ms)
{
    if (!n_pages || !is_time(ms)) return;
    pthread_mutex_lock(&w->lock);
    add_restore(&w->restores, n_pages, ms);
    pthread_mutex_unlock(&w->lock);
}

void worth_failed(worth *w, uint32_t n_pages, double ms)
{
    if (!n_pages || !is_time(ms)) return;
    pthread_mutex_lock(&w->lock);
    bool knows = w->restores.n > 0, knows_compute = w->compute_weight > 0;
    double expected = knows ? restore_ms(&w->restores, n_pages) : w->compute_ms * QUIRE_PAGE_TOKENS * n_pages;
    if ((knows || knows_compute) && ms > expected) add_restore(&w->restores, n_pages, ms);
    pthread_mutex_unlock(&w->lock);
}

bool worth_restoring(worth *w, uint32_t n_pages, uint32_t n_tokens)
{
    pthread_mutex_lock(&w->lock);
    bool knows = w->compute_weight > 0 && w->restores.n > 0, worth_it = n_tokens >= w->least;
    if (knows) {
        worth_it = restore_ms(&w->restores, n_pages) < w->compute_ms * n_tokens;
        if (!worth_it) {
            w->restores.y *= HOPE;
            w->restores.xy *= HOPE;
        }
    }
    pthread_mutex_unlock(&w->lock);
    return worth_it;
}

double worth_ms_per_token(worth *w)
{
    pthread_mutex_lock(&w->lock);
    double ms = w->compute_ms;
    pthread_mutex_unlock(&w->lock);
    return ms;
}
