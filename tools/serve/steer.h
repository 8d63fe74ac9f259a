/* SPDX-License-Identifier: MIT */
/*
 * steer: makes a llama-server choose a certain slot for a request that cannot name one, as those of /v1/messages. With -sps 0 the
 * server takes the slot that it has used least recently; llama.cpp 0.7 takes an empty one before that. A request without any token uses
 * a slot and leaves in it what it holds. So each other slot that may be older is used once in that way, or with one token if it may be
 * empty. Between that and the server's choice no other such request may come.
 */
#ifndef QUIRE_TOOLS_SERVE_STEER_H
#define QUIRE_TOOLS_SERVE_STEER_H

#include "serve/slots.h"
#include "serve/upstream.h"

typedef struct steer steer;

typedef struct steer_options {
    const upstream *to;
    const char *api_prefix;
    const char *authorization; /* value of the header for the server's own interface, or NULL */
    slots *slots;
    uint32_t n_slots;
} steer_options;

typedef enum steer_answer {
    STEER_READY, /* the server will choose the slot of the lease */
    STEER_NOT,   /* it cannot be told which slot the server will choose */
    STEER_LEFT   /* the client has gone */
} steer_answer;

steer *steer_create(const steer_options *options);
void steer_destroy(steer *s);

/* token: any of the model's. If STEER_READY: send the request then, and call steer_end() with the ticket as soon as its answer has begun, or it has ended. */
steer_answer steer_begin(steer *s, const slot_lease *lease, uint32_t token, int client, uint64_t *ticket);
void steer_end(steer *s, uint64_t ticket); /* may be called again */
/* For a request that may use any slot: waits until none is being steered, and calls slots_begin_unwatched(). */
void steer_begin_unwatched(steer *s);

/*
 * After the answer: its prompt had n tokens, and n_made were made. Asks the server whether the slot holds so many, until it did so once.
 * is_short: less was reused than the slot held. false: the server does not choose as it was thought to, and STEER_NOT is the only answer
 * from now on.
 */
bool steer_check(steer *s, const slot_lease *lease, uint32_t n, uint32_t n_made, bool is_short);

#endif
