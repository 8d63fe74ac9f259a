/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "serve/budget.h"

#include "common/system.h"
#include "serve/clock.h"

#include <pthread.h>
#include <stdlib.h>

/* Other programs give memory back without telling. */
enum { LOOK_EVERY_MS = 100 };

struct budget {
    uint64_t most;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t given;
    uint64_t taken, free; /* free: when nothing was taken */
};

budget *budget_create(uint64_t most)
{
    budget *b = (budget *)calloc(1, sizeof *b);
    if (!b) return NULL;
    b->most = most;
    pthread_mutex_init(&b->lock, NULL);
    clock_cond_init(&b->given);
    return b;
}

void budget_destroy(budget *b)
{
    if (!b) return;
    pthread_cond_destroy(&b->given);
    pthread_mutex_destroy(&b->lock);
    free(b);
}

/*
 * What was taken is no longer free, as soon as it is used. Until then it would be counted twice: so there is never more than there was when
 * nothing was taken.
 */
static uint64_t limit(budget *b)
{
    if (b->most) return b->most;
    uint64_t bytes = system_spare_bytes();
    if (!bytes) return UINT64_MAX;
    if (!b->taken) b->free = bytes;
    bytes += b->taken;
    return (bytes < b->free ? bytes : b->free) / 4 * 3;
}

bool budget_take(budget *b, size_t bytes, const budget_wait *wait)
{
    double until = clock_ms() + (wait ? wait->ms : 0);
    bool has_room = false;
    if (!bytes) return true;
    pthread_mutex_lock(&b->lock);
    for (;;) {
        uint64_t most = limit(b);
        has_room = bytes <= most && b->taken <= most - bytes;
        if (has_room || bytes > most || clock_ms() >= until) break; /* more than the limit fits never */
        struct timespec next = clock_in_ms(LOOK_EVERY_MS);
        pthread_cond_timedwait(&b->given, &b->lock, &next);
        pthread_mutex_unlock(&b->lock);
        bool is_over = wait->is_over && wait->is_over(wait->ctx);
        pthread_mutex_lock(&b->lock);
        if (is_over) break;
    }
    if (has_room) b->taken += bytes;
    pthread_mutex_unlock(&b->lock);
    return has_room;
}

void budget_add(budget *b, size_t bytes)
{
    pthread_mutex_lock(&b->lock);
    b->taken += bytes;
    pthread_mutex_unlock(&b->lock);
}

void budget_give(budget *b, size_t bytes)
{
    pthread_mutex_lock(&b->lock);
    b->taken -= bytes;
    pthread_cond_broadcast(&b->given);
    pthread_mutex_unlock(&b->lock);
}
