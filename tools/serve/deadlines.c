/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "serve/deadlines.h"

#include "serve/clock.h"
#include "serve/wire_fault.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>

enum { LOOK_EVERY_MS = 250 };
/* A body may take a second longer for each of so many bytes. */
enum { BODY_RATE = 1024 };

struct deadline {
    deadline *next, **before;
    int fd;
    deadline_stage stage;
    bool had_request, is_closed;
    double began; /* the stage */
    double since; /* the client is waited for. Bytes of a body move it on, at most to now */
    double limit_ms;
};

struct deadlines {
    deadlines_options o;
    pthread_t thread;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t stop;
    bool is_stopping;
    deadline *first;
    uint32_t n_open; /* those that are not closed yet */
};

/* The thread of the connection sees the end of its socket, and does the rest. */
static void close_one(deadlines *all, deadline *d)
{
    if (d->is_closed) return;
    if (d->stage == STAGE_HEADERS || d->stage == STAGE_BODY) /* nothing was sent yet that this could break */
        wire_fault(d->fd, 408, "invalid_request_error", "the request took too long to arrive");
    d->is_closed = true;
    all->n_open--;
    shutdown(d->fd, SHUT_RDWR);
}

static void *look(void *ctx)
{
    deadlines *all = (deadlines *)ctx;
    pthread_mutex_lock(&all->lock);
    while (!all->is_stopping) {
        struct timespec next = clock_in_ms(LOOK_EVERY_MS);
        pthread_cond_timedwait(&all->stop, &all->lock, &next);
        double now = clock_ms();
        for (deadline *d = all->first; d; d = d->next)
            if (d->stage != STAGE_ANSWER && now - d->since > d->limit_ms) close_one(all, d);
    }
    pthread_mutex_unlock(&all->lock);
    return NULL;
}

/* A client that sends its requests at once is never the one that is waited for longest. */
static bool is_slower(const deadline *d, const deadline *than)
{
    return d->since < than->since;
}

static bool is_older(const deadline *d, const deadline *than)
{
    return d->began < than->began;
}

/* The first in an order, of those that have come to this stage and have not sent their whole request. */
static void close_first(deadlines *all, deadline_stage from,
                        bool (*is_before)(const deadline *d, const deadline *than))
{
    deadline *first = NULL;
    for (deadline *d = all->first; d; d = d->next)
        if (!d->is_closed && d->stage >= from && d->stage <= STAGE_BODY && (!first || is_before(d, first)))
            first = d;
    if (first) close_one(all, first);
}

static void begin(deadlines *all, deadline *d, deadline_stage stage)
{
    const deadlines_options *o = &all->o;
    d->stage = stage;
    d->began = d->since = clock_ms();
    switch (stage) {
    case STAGE_LINE: d->limit_ms = d->had_request ? (double)o->idle_ms + o->headers_ms : o->line_ms; break;
    case STAGE_HEADERS: d->limit_ms = o->headers_ms; break;
    case STAGE_BODY: d->limit_ms = o->body_ms; break;
    case STAGE_SENDING: d->limit_ms = o->sending_ms; break;
    case STAGE_ANSWER: d->had_request = true; break;
    }
}

deadline *deadlines_add(deadlines *all, int fd)
{
    deadline *d = (deadline *)calloc(1, sizeof *d);
    if (!d) return NULL;
    d->fd = fd;
    pthread_mutex_lock(&all->lock);
    begin(all, d, STAGE_LINE);
    d->next = all->first;
    if (d->next) d->next->before = &d->next;
    d->before = &all->first;
    all->first = d;
    if (++all->n_open > all->o.most) close_first(all, STAGE_LINE, is_slower);
    pthread_mutex_unlock(&all->lock);
    return d;
}

void deadlines_remove(deadlines *all, deadline *d)
{
    if (!d) return;
    pthread_mutex_lock(&all->lock);
    *d->before = d->next;
    if (d->next) d->next->before = d->before;
    if (!d->is_closed) all->n_open--;
    pthread_mutex_unlock(&all->lock);
    free(d);
}

void deadline_begin(deadlines *all, deadline *d, deadline_stage stage)
{
    if (!d) return;
    pthread_mutex_lock(&all->lock);
    begin(all, d, stage);
    pthread_mutex_unlock(&all->lock);
}

void deadline_received(deadlines *all, deadline *d, size_t n)
{
    if (!d) return;
    pthread_mutex_lock(&all->lock);
    double now = clock_ms();
    d->since += 1000.0 * (double)n / all->o.body_rate;
    if (d->since > now) d->since = now; /* who has sent much at once may not be silent for hours */
    pthread_mutex_unlock(&all->lock);
}

void deadlines_need_memory(deadlines *all)
{
    pthread_mutex_lock(&all->lock);
    close_first(all, STAGE_BODY, is_older);
    pthread_mutex_unlock(&all->lock);
}

deadlines_options deadlines_defaults(uint32_t header_seconds, uint32_t most_connections)
{
    uint32_t ms = 1000 * (header_seconds ? header_seconds : 15);
    return (deadlines_options){.line_ms = ms,
                               .idle_ms = 4 * ms,
                               .headers_ms = ms,
                               .body_ms = 2 * ms,
                               .body_rate = BODY_RATE,
                               .sending_ms = 4 * ms,
                               .most = most_connections / 4 * 3};
}

deadlines *deadlines_create(const deadlines_options *options)
{
    deadlines *all = (deadlines *)calloc(1, sizeof *all);
    if (!all) return NULL;
    all->o = *options;
    pthread_mutex_init(&all->lock, NULL);
    clock_cond_init(&all->stop);
    if (!pthread_create(&all->thread, NULL, look, all)) return all;
    pthread_cond_destroy(&all->stop);
    pthread_mutex_destroy(&all->lock);
    free(all);
    return NULL;
}

void deadlines_destroy(deadlines *all)
{
    if (!all) return;
    pthread_mutex_lock(&all->lock);
    all->is_stopping = true;
    pthread_cond_broadcast(&all->stop);
    pthread_mutex_unlock(&all->lock);
    pthread_join(all->thread, NULL);
    pthread_cond_destroy(&all->stop);
    pthread_mutex_destroy(&all->lock);
    free(all);
}
