/* SPDX-License-Identifier: MIT */
/* visit: one request that uses slots: where it gets the beginning of its prompt from, and what is learnt when it ends. */
#ifndef QUIRE_TOOLS_SERVE_VISIT_H
#define QUIRE_TOOLS_SERVE_VISIT_H

#include "serve/body.h"
#include "serve/flights.h"
#include "serve/keeps.h"
#include "serve/metrics.h"
#include "serve/relay.h"
#include "serve/route.h"
#include "serve/saver.h"
#include "serve/sidecar.h"
#include "serve/slots.h"
#include "serve/worth.h"

#include <pthread.h>
#include <stdatomic.h>

struct sidecar {
    sidecar_options o;
    slots *slots;
    keeps *keeps;
    flights *flights;
    saver *saver;
    serve_counts counts;
    worth worth;
    atomic_bool has_told_memory;
    pthread_mutex_t lock; /* of what follows */
    bool is_ready, is_finishing;
    uint32_t n_short;    /* restored prompts in a row of which the server reused less */
    uint32_t n_failed;   /* slots in a row that could not be filled */
    uint32_t n_broken;   /* restored prompts in a row with which the server failed */
    double paused_until; /* of clock_ms(): nothing is restored before */
};

/* Of slots: one that the server chooses, one that is known, with or without knowing the tokens, all. */
typedef enum use { USES_NONE, USES_ANY, USES_LEASE, USES_BLINDLY, USES_ALL } use;

typedef struct visit {
    sidecar *s;
    header_lines *headers;
    char *made; /* the body that is sent, if it is not the client's */
    route to;
    uint32_t owner;
    prefix *keep; /* of the owner, or NULL */
    uint32_t *tokens, n;
    slot_lease lease;
    use use;
    bool is_unclear; /* slots could not be made free of what others left in them */
    flight *leads;
    uint32_t restored, copied,
        primed;        /* tokens: from the store, from another's slot, computed ahead of the request */
    uint32_t advanced; /* tokens up to which the slot was brought for a state; 0: it was not */
    bool is_lost;      /* when that failed: what the slot holds is not known */
    double begin, lookup, save;
    prefix_times times;
    char target[64];
} visit;

void sidecar_say(const char *text);
bool sidecar_restores(sidecar *s); /* the server has not been found to reuse less than it was given */

/* A slot for the prompt of the visit, with as much of it as can be had. false: the client has left. */
bool visit_take_slot(visit *v, int client);
/* Slots for a request whose tokens are not known. With tenants no row of another may come near it. */
bool visit_take_blindly(visit *v, const body *b, route to, int client);
/* Gives them back. */
void visit_settle(visit *v, const relay_outcome *o);
void visit_settle_blindly(visit *v, const relay_outcome *o);

#endif
