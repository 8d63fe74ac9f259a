/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "serve/steer.h"

#include "serve/body.h"
#include "serve/clock.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * How long a slot that is neither free nor at work is waited for, as one that is being saved, and requests that may use any slot: others
 * of these do not begin meanwhile. To give up at once would make one such request more, and so on as long as requests come.
 */
enum { ASK_EVERY_MS = 5, PATIENCE_MS = 10000, TOUCH_MS = 60000 };
/* So many failures in a row, and the server chooses in another way. A client that leaves at the wrong moment can cause one. */
enum { MOST_FAILURES = 3 };
#define MOST_ANSWER (16u << 20)

struct steer {
    steer_options o;
    header_lines *headers;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t closed;
    uint64_t last,
        open; /* tickets: of the last request; of the one whose slot the server has not yet chosen, or 0 */
    slot_lease lease; /* of that one */
    uint32_t n_failures;
    bool is_shown; /* the server was seen to choose the right slot */
};

steer *steer_create(const steer_options *options)
{
    steer *s = (steer *)calloc(1, sizeof *s);
    if (!s) return NULL;
    s->o = *options;
    pthread_mutex_init(&s->lock, NULL);
    clock_cond_init(&s->closed);
    if (header_lines_add(&s->headers, "Content-Type", "application/json") &&
        (!options->authorization || header_lines_add(&s->headers, "Authorization", options->authorization)))
        return s;
    steer_destroy(s);
    return NULL;
}

void steer_destroy(steer *s)
{
    if (!s) return;
    header_lines_free(s->headers);
    pthread_cond_destroy(&s->closed);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

/* ------------------------------------------------------------------ the server */

static char *ask(const steer *s, const char *method, const char *path, const char *text, int client,
                 size_t *n)
{
    char target[128], *answer;
    snprintf(target, sizeof target, "%s%s", s->o.api_prefix, path);
    const exchange_request wire = {.method = method,
                                   .target = target,
                                   .headers = s->headers,
                                   .body = text,
                                   .body_size = text ? strlen(text) : 0,
                                   .has_body = text,
                                   .client = client,
                                   .timeout_ms = TOUCH_MS};
    if (upstream_ask(s->o.to, &wire, MOST_ANSWER, &answer, n) == 200) return answer;
    free(answer);
    return NULL;
}

/* What the server says of its slots; false: it does not say it. */
static bool look(const steer *s, int client, body_slot *found)
{
    size_t n;
    char *answer = ask(s, "GET", "/slots", NULL, client, &n);
    bool good = answer && body_read_slots(answer, n, found, s->o.n_slots);
    free(answer);
    return good;
}

/* Uses a slot: it is then the one that was used last, and holds what it held, or the token. */
static bool touch(const steer *s, const slot_lease *older, uint32_t token, int client)
{
    char text[128], list[16] = "";
    size_t n;
    if (!older->n_same) snprintf(list, sizeof list, "%u", token);
    snprintf(text, sizeof text, "{\"prompt\":[[%s]],\"n_predict\":0,\"stream\":false,\"id_slot\":%u}", list,
             older->slot);
    char *answer = ask(s, "POST", "/completion", text, client, &n);
    bool good = answer;
    free(answer);
    return good;
}

/* -------------------------------------------------------------------- the gate */

static bool has_left(int client)
{
    struct pollfd p = {.fd = client, .events = POLLRDHUP};
    return client >= 0 && poll(&p, 1, 0) > 0 && p.revents;
}

static void end(steer *s, uint64_t ticket)
{
    if (s->open != ticket) return;
    s->open = 0;
    pthread_cond_broadcast(&s->closed);
}

/* With the lock: waits until no slot is being steered. The answer of a request may begin late, so the server is asked too. */
static bool wait_closed(steer *s, int client)
{
    body_slot *found = (body_slot *)calloc(s->o.n_slots, sizeof *found);
    bool is_here = true;
    while (s->open && is_here) {
        struct timespec t = clock_in_ms(ASK_EVERY_MS);
        pthread_cond_timedwait(&s->closed, &s->lock, &t);
        uint64_t ticket = s->open;
        uint32_t slot = s->lease.slot;
        if (!ticket) break;
        pthread_mutex_unlock(&s->lock);
        bool chosen = found && look(s, client, found) && found[slot].is_working;
        is_here = !has_left(client);
        pthread_mutex_lock(&s->lock);
        if (chosen) end(s, ticket);
    }
    free(found);
    return is_here;
}

void steer_begin_unwatched(steer *s)
{
    pthread_mutex_lock(&s->lock);
    wait_closed(s, -1);
    slots_begin_unwatched(s->o.slots);
    pthread_mutex_unlock(&s->lock);
}

void steer_end(steer *s, uint64_t ticket)
{
    if (!ticket) return;
    pthread_mutex_lock(&s->lock);
    end(s, ticket);
    pthread_mutex_unlock(&s->lock);
}

/* -------------------------------------------------------------------- steering */

typedef struct others {
    slot_lease *older;
    body_slot *found;
    bool *working;
} others;

static bool use_older(const steer *s, const slot_lease *lease, uint32_t token, int client, const others *o,
                      uint32_t *n)
{
    double until = clock_ms() + PATIENCE_MS;
    bool good = true;
    memset(o->working, 0, sizeof *o->working * s->o.n_slots);
    while (good && !slots_take_older(s->o.slots, lease, o->working, o->older, n)) {
        good = clock_ms() < until && !has_left(client) && look(s, client, o->found);
        /* Slots that have begun to work cannot be chosen, and are newer when they end. */
        for (uint32_t i = 0; good && i < s->o.n_slots; i++) o->working[i] |= o->found[i].is_working;
        if (good) (void)poll(NULL, 0, ASK_EVERY_MS);
    }
    for (uint32_t i = 0; i < *n; i++) {
        good = good && touch(s, &o->older[i], token, client);
        slots_give_older(s->o.slots, &o->older[i], lease, token, good);
    }
    return good;
}

/* Makes all other slots newer than that of the lease. */
static bool make_oldest(const steer *s, const slot_lease *lease, uint32_t token, int client)
{
    const uint32_t n_slots = s->o.n_slots;
    const others o = {.older = (slot_lease *)calloc(n_slots, sizeof *o.older),
                      .found = (body_slot *)calloc(n_slots, sizeof *o.found),
                      .working = (bool *)calloc(n_slots, sizeof *o.working)};
    uint32_t n = 0;
    bool good = o.older && o.found && o.working && use_older(s, lease, token, client, &o, &n);
    if (good && n && o.older->slot == lease->slot)
        good = use_older(s, lease, token, client, &o, &n) && !(n && o.older->slot == lease->slot);
    free(o.older);
    free(o.found);
    free(o.working);
    return good;
}

steer_answer steer_begin(steer *s, const slot_lease *lease, uint32_t token, int client, uint64_t *ticket)
{
    *ticket = 0;
    if (s->o.n_slots == 1) return STEER_READY; /* there is no choice */
    pthread_mutex_lock(&s->lock);
    bool is_here = true, may = s->n_failures < MOST_FAILURES;
    if (may) is_here = wait_closed(s, client);
    if (may && is_here) {
        s->open = *ticket = ++s->last;
        s->lease = *lease;
    }
    pthread_mutex_unlock(&s->lock);
    if (!is_here) return STEER_LEFT;
    if (!may) return STEER_NOT;
    if (make_oldest(s, lease, token, client)) return STEER_READY;
    steer_end(s, *ticket);
    *ticket = 0;
    return has_left(client) ? STEER_LEFT : STEER_NOT;
}

bool steer_check(steer *s, const slot_lease *lease, uint32_t n, uint32_t n_made, bool is_short)
{
    if (s->o.n_slots == 1) return true;
    pthread_mutex_lock(&s->lock);
    bool is_shown = s->is_shown;
    pthread_mutex_unlock(&s->lock);
    body_slot *found = is_shown ? NULL : (body_slot *)calloc(s->o.n_slots, sizeof *found);
    bool good = !is_short;
    if (good && !is_shown) {
        good = found && look(s, -1, found);
        uint32_t held = good ? found[lease->slot].n_tokens : 0;
        good = good && held >= n && held <= n + n_made;
    }
    free(found);
    pthread_mutex_lock(&s->lock);
    s->is_shown = s->is_shown || good;
    s->n_failures = good ? 0 : s->n_failures + 1;
    good = s->n_failures < MOST_FAILURES;
    pthread_mutex_unlock(&s->lock);
    return good;
}
