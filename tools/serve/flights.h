/* SPDX-License-Identifier: MIT */
/*
 * flights: prompts that are being computed, so that others with the same beginning wait for it instead of computing it too. A request that
 * finds none leads a flight of its own. Nobody waits longer than FLIGHT_PATIENCE times what computing would take. Several threads may call
 * everything here.
 */
#ifndef QUIRE_TOOLS_SERVE_FLIGHTS_H
#define QUIRE_TOOLS_SERVE_FLIGHTS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct flights flights;
typedef struct flight flight;

/* Fewer tokens are not worth the wait. */
enum { FLIGHT_LEAST = 512, FLIGHT_PATIENCE = 4, FLIGHT_NAME = 48 };

typedef enum flight_part {
    FLIGHT_LEADS, /* *out is its own flight: flight_end() in any case */
    FLIGHT_JOINS, /* *out has a copy, which flight_copy() names: flight_leave() when it was used */
    FLIGHT_ALONE, /* there is none, and it leads none */
    FLIGHT_LEFT   /* the client has left */
} flight_part;

typedef struct flight_request {
    uint32_t owner; /* flights of others are not seen */
    const uint32_t *tokens;
    uint32_t n;
    uint32_t n_have;             /* tokens that need not be computed, as far as is known */
    double ms_per_token;         /* that computing takes; 0: not known */
    bool (*has_left)(void *ctx); /* asked every 50 ms */
    void *ctx;
} flight_request;

/* remove: called with the name of a copy that nobody needs any more. */
flights *flights_create(void (*remove)(void *ctx, const char *name), void *ctx);
void flights_destroy(flights *f);

/* A request that may enter soon: between these calls, and the caller keeps it so long. */
typedef struct flight_near {
    struct flight_near *next;
    uint32_t owner;
    const flight *at; /* the one that it waits for, or NULL */
} flight_near;
void flights_approach(flights *f, flight_near *who);
void flights_pass(flights *f, flight_near *who);

/* Waits while the tokens that the request shares with a flight are computed there. */
flight_part flights_enter(flights *f, const flight_request *r, flight **out, uint32_t *n_shared);

/* The leader has the first n_have tokens. is_stored: others find them in the store and no longer wait for them. */
void flight_has(flight *x, uint32_t n_have, bool is_stored);
/* How many of the same owner wait, or may come. That others compute the same already is a sign too. *n_shared: most that one of them shares, 0 if none waits yet. */
uint32_t flight_company(flight *x, uint32_t *n_shared);
/* Whether the leader will give a copy as soon as it has the tokens. If not, nobody waits for it any longer. */
void flight_promise(flight *x, bool will_give);
/* The copy has the first n tokens. It is removed at once if those that waited have left, and nobody may come. */
void flight_give(flight *x, const char *name, uint32_t n);
void flight_end(flight *x);

const char *flight_copy(const flight *x);
void flight_leave(flight *x);

#endif
