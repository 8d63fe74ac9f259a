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
    uint64_t taken;
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

/* What was taken is no longer free, as a rule. */
static uint64_t limit(const budget *b)
{
    if (b->most) return b->most;
    uint64_t bytes = system_free_bytes();
    return bytes ? (bytes + b->taken) / 4 * 3 : UINT64_MAX;
}

bool budget_take(budget *b, size_t bytes, double wait_ms)
{
    double until = clock_ms() + wait_ms;
    pthread_mutex_lock(&b->lock);
    bool has_room;
    for (;;) {
        uint64_t most = limit(b);
        has_room = bytes <= most && b->taken <= most - bytes;
        if (has_room || bytes > most || clock_ms() >= until) break; /* more than the limit fits never */
        struct timespec next = clock_in_ms(LOOK_EVERY_MS);
        pthread_cond_timedwait(&b->given, &b->lock, &next);
    }
    if (has_room) b->taken += bytes;
    pthread_mutex_unlock(&b->lock);
    return has_room;
}

void budget_give(budget *b, size_t bytes)
{
    pthread_mutex_lock(&b->lock);
    b->taken -= bytes;
    pthread_cond_broadcast(&b->given);
    pthread_mutex_unlock(&b->lock);
}
