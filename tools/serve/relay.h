/* SPDX-License-Identifier: MIT */
/* relay: a request that is passed on to a server, and its answer, which is passed back as it comes. */
#ifndef QUIRE_TOOLS_SERVE_RELAY_H
#define QUIRE_TOOLS_SERVE_RELAY_H

#include "serve/body.h"
#include "serve/front.h"
#include "serve/upstream.h"

#include <stdbool.h>
#include <stddef.h>

/* How a relayed request ended. */
typedef struct relay_outcome {
    exchange_end end; /* EXCHANGE_DONE: the whole answer came */
    unsigned status;
    bool is_counted; /* the server said how many tokens there were */
    body_timings counted;
    double first_ms; /* when the first byte of the body came, by clock_ms(); 0: it never did */
} relay_outcome;

typedef struct relay_order {
    const upstream *to;
    const header_lines *headers; /* relay_headers(), and what the caller adds; it keeps them until the end */
    char *body; /* instead of the client's, ended by a 0; NULL: that. The caller keeps it until the end */
    bool reads_counts; /* of tokens, in the answer */
    /* NULL, or asked about the head of the answer. false: it is not passed on, as if the server had given none. */
    bool (*takes)(void *ctx, const exchange *answer);
    /* NULL, or called before relay_pass() returns false: why there was no answer. EXCHANGE_DONE: takes() refused it. */
    void (*failed)(void *ctx, exchange_end why);
    /* Called once, after the connection to the server has been closed, if relay_pass() returned true. */
    void (*ended)(void *ctx, const relay_outcome *outcome);
    void *ctx;
} relay_order;

/* The end-to-end headers of a request. false: out of memory. */
bool relay_headers(const front_request *request, header_lines **out);
/* Sends the request and waits for the head of the answer. false: the server gave none, and the client still waits for one. */
bool relay_pass(front_request *request, const relay_order *order);

#endif
