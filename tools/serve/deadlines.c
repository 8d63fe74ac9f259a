/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "serve/deadlines.h"

#include "serve/clock.h"
#include "serve/wire_fault.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>

enum { LOOK_EVERY_MS = 250 };

struct deadline {
    deadline *next, **before;
    int fd;
    deadline_stage stage;
    bool had_request, is_closed;
    double since, limit_ms; /* of the stage */
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

/* Of those that have come to this stage, and have not sent their whole request. A client that sends its requests at once is never the one
 * that has waited longest. */
static void close_slowest(deadlines *all, deadline_stage from)
{
    deadline *slowest = NULL;
    for (deadline *d = all->first; d; d = d->next)
        if (!d->is_closed && d->stage >= from && d->stage <= STAGE_BODY &&
            (!slowest || d->since < slowest->since))
            slowest = d;
    if (slowest) close_one(all, slowest);
}

static void begin(deadlines *all, deadline *d, deadline_stage stage)
{
    const deadlines_options *o = &all->o;
    d->stage = stage;
    d->since = clock_ms();
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
    if (++all->n_open > all->o.most) close_slowest(all, STAGE_LINE);
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
    double most =
        clock_ms() - d->since + all->o.body_ms; /* who has sent much at once may not be silent for hours */
    d->limit_ms += 1000.0 * (double)n / all->o.body_rate;
    if (d->limit_ms > most) d->limit_ms = most;
    pthread_mutex_unlock(&all->lock);
}

void deadlines_need_memory(deadlines *all)
{
    pthread_mutex_lock(&all->lock);
    close_slowest(all, STAGE_BODY);
    pthread_mutex_unlock(&all->lock);
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
