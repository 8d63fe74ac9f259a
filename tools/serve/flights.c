/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "serve/flights.h"

#include "serve/clock.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ASK_EVERY_MS = 50 };
/* A leader that needs this much more time than computing the shared part oneself is not waited for. */
#define WORTH_WAITING 1.25
/* As long as nothing was measured. */
#define USUAL_MS_PER_TOKEN 1.0

typedef enum state {
    COMPUTES, /* a copy may come */
    HAS_COPY,
    GIVES_NONE, /* no copy will come */
    HAS_ENDED
} state;

struct flight {
    flights *all;
    flight *next;
    uint32_t owner, *tokens, n;
    uint32_t n_have, n_stored, n_copy;
    uint32_t n_users, n_waiting, most_shared; /* n_users: the leader, those that wait, those that copy */
    double begin;
    bool is_second; /* others compute the same already, and give no copy */
    state state;
    char name[FLIGHT_NAME];
};

struct flights {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    flight *first;
    flight_near *near;
    void (*remove)(void *ctx, const char *name);
    void *ctx;
};

flights *flights_create(void (*remove)(void *ctx, const char *name), void *ctx)
{
    flights *f = (flights *)calloc(1, sizeof *f);
    if (!f) return NULL;
    f->remove = remove;
    f->ctx = ctx;
    pthread_mutex_init(&f->lock, NULL);
    clock_cond_init(&f->changed);
    return f;
}

void flights_destroy(flights *f)
{
    if (!f) return;
    pthread_cond_destroy(&f->changed);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

static void add_near(flights *f, flight_near *who)
{
    who->next = f->near;
    f->near = who;
}

static void remove_near(flights *f, const flight_near *who)
{
    flight_near **at = &f->near;
    while (*at && *at != who) at = &(*at)->next;
    if (*at) *at = who->next;
}

void flights_approach(flights *f, flight_near *who)
{
    pthread_mutex_lock(&f->lock);
    add_near(f, who);
    pthread_mutex_unlock(&f->lock);
}

void flights_pass(flights *f, flight_near *who)
{
    pthread_mutex_lock(&f->lock);
    remove_near(f, who);
    pthread_mutex_unlock(&f->lock);
}

/* With the lock, which it gives back. */
static void drop(flight *x)
{
    flights *f = x->all;
    bool is_last = !--x->n_users;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
    if (!is_last) return;
    if (*x->name) f->remove(f->ctx, x->name);
    free(x->tokens);
    free(x);
}

static uint32_t shared(const flight *x, const flight_request *r)
{
    uint32_t most = x->n < r->n ? x->n : r->n, i = 0;
    if (x->owner != r->owner) return 0;
    if (x->state == HAS_COPY && x->n_copy < most) most = x->n_copy;
    while (i < most && x->tokens[i] == r->tokens[i]) i++;
    return i;
}

/* Tokens that the request would not have to compute with a copy of this flight. */
static uint32_t gain(const flight *x, const flight_request *r)
{
    uint32_t n = x->state == COMPUTES || x->state == HAS_COPY ? shared(x, r) : 0;
    uint32_t has = x->n_stored > r->n_have ? x->n_stored : r->n_have;
    return n > has ? n - has : 0;
}

static double rate(const flight_request *r)
{
    return r->ms_per_token > 0 ? r->ms_per_token : USUAL_MS_PER_TOKEN;
}

static bool is_worth_waiting(const flight *x, const flight_request *r, uint32_t n)
{
    double rest = rate(r) * (x->n - x->n_have) - (clock_ms() - x->begin);
    return x->state == HAS_COPY || rest < WORTH_WAITING * rate(r) * n;
}

static flight *best(const flights *f, const flight_request *r)
{
    flight *found = NULL;
    uint32_t most = FLIGHT_LEAST - 1;
    for (flight *x = f->first; x; x = x->next) {
        uint32_t n = gain(x, r);
        if (n <= most || !is_worth_waiting(x, r, n)) continue;
        most = n;
        found = x;
    }
    return found;
}

static flight *begin(flights *f, const flight_request *r)
{
    flight *x = (flight *)calloc(1, sizeof *x);
    if (x) x->tokens = (uint32_t *)malloc(sizeof *x->tokens * r->n);
    if (!x || !x->tokens) {
        free(x);
        return NULL;
    }
    memcpy(x->tokens, r->tokens, sizeof *x->tokens * r->n);
    x->all = f;
    x->owner = r->owner;
    x->n = r->n;
    x->n_users = 1;
    x->begin = clock_ms();
    for (const flight *other = f->first; other && !x->is_second; other = other->next)
        x->is_second = other->state != HAS_COPY && shared(other, r) >= r->n_have + FLIGHT_LEAST;
    x->next = f->first;
    f->first = x;
    return x;
}

/* With the lock. true: the copy is there. */
static bool wait_for(flight *x, const flight_request *r, double until, bool *left)
{
    flights *f = x->all;
    x->n_waiting++;
    while (x->state == COMPUTES && gain(x, r) >= FLIGHT_LEAST && clock_ms() < until && !*left) {
        struct timespec t = clock_in_ms(ASK_EVERY_MS);
        pthread_cond_timedwait(&f->changed, &f->lock, &t);
        pthread_mutex_unlock(&f->lock);
        *left = r->has_left && r->has_left(r->ctx);
        pthread_mutex_lock(&f->lock);
    }
    x->n_waiting--;
    return x->state == HAS_COPY && gain(x, r) >= FLIGHT_LEAST && !*left;
}

flight_part flights_enter(flights *f, const flight_request *r, flight **out, uint32_t *n_shared)
{
    double until = 0;
    bool left = false;
    *out = NULL;
    *n_shared = 0;
    if (!r->owner || r->n < r->n_have + FLIGHT_LEAST) return FLIGHT_ALONE;
    flight_near self = {.owner = r->owner};
    pthread_mutex_lock(&f->lock);
    add_near(f, &self);
    for (flight *x; !left && (x = best(f, r));) {
        uint32_t n = shared(x, r);
        /* However many leaders fail one after the other: the time is that of one. */
        if (until <= 0) until = clock_ms() + FLIGHT_PATIENCE * rate(r) * gain(x, r);
        if (n > x->most_shared) x->most_shared = n;
        x->n_users++;
        self.at = x;
        bool has_copy = wait_for(x, r, until, &left);
        self.at = NULL;
        if (has_copy) {
            remove_near(f, &self);
            *n_shared = shared(x, r);
            *out = x;
            pthread_mutex_unlock(&f->lock);
            return FLIGHT_JOINS;
        }
        drop(x);
        pthread_mutex_lock(&f->lock);
        if (clock_ms() >= until) break;
    }
    remove_near(f, &self);
    if (!left) *out = begin(f, r);
    pthread_mutex_unlock(&f->lock);
    return left ? FLIGHT_LEFT : *out ? FLIGHT_LEADS : FLIGHT_ALONE;
}

void flight_has(flight *x, uint32_t n_have, bool is_stored)
{
    pthread_mutex_lock(&x->all->lock);
    x->n_have = n_have;
    if (is_stored) x->n_stored = n_have;
    x->begin = clock_ms();
    pthread_cond_broadcast(&x->all->changed);
    pthread_mutex_unlock(&x->all->lock);
}

/* It waits for nobody yet, or for a leader that gives nothing, which it has not seen yet. */
static bool is_coming(const flight_near *near)
{
    return !near->at || near->at->state == GIVES_NONE || near->at->state == HAS_ENDED;
}

static uint32_t company(const flight *x)
{
    uint32_t n = x->n_waiting + x->is_second;
    for (const flight_near *near = x->all->near; near; near = near->next)
        n += near->owner == x->owner && is_coming(near);
    return n;
}

uint32_t flight_company(flight *x, uint32_t *n_shared)
{
    pthread_mutex_lock(&x->all->lock);
    uint32_t n = company(x);
    *n_shared = x->n_waiting ? x->most_shared : 0;
    pthread_mutex_unlock(&x->all->lock);
    return n;
}

void flight_promise(flight *x, bool will_give)
{
    pthread_mutex_lock(&x->all->lock);
    x->state = will_give ? COMPUTES : GIVES_NONE;
    pthread_cond_broadcast(&x->all->changed);
    pthread_mutex_unlock(&x->all->lock);
}

void flight_give(flight *x, const char *name, uint32_t n)
{
    flights *f = x->all;
    pthread_mutex_lock(&f->lock);
    bool is_wanted = company(x);
    if (is_wanted) snprintf(x->name, sizeof x->name, "%s", name);
    x->n_copy = is_wanted ? n : 0;
    x->state = is_wanted ? HAS_COPY : GIVES_NONE;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
    if (!is_wanted) f->remove(f->ctx, name);
}

void flight_end(flight *x)
{
    flights *f = x->all;
    pthread_mutex_lock(&f->lock);
    for (flight **at = &f->first; *at; at = &(*at)->next)
        if (*at == x) {
            *at = x->next;
            break;
        }
    if (x->state != HAS_COPY) x->state = HAS_ENDED;
    drop(x);
}

const char *flight_copy(const flight *x)
{
    return x->name;
}

void flight_leave(flight *x)
{
    pthread_mutex_lock(&x->all->lock);
    drop(x);
}
