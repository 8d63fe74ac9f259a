/* SPDX-License-Identifier: MIT */
/* prompt: the tokens of a request, as the server itself makes them, and what computes them ahead of it. */
#ifndef QUIRE_TOOLS_SERVE_PROMPT_H
#define QUIRE_TOOLS_SERVE_PROMPT_H

#include "serve/body.h"
#include "serve/route.h"
#include "serve/upstream.h"

#include <stdint.h>

typedef struct prompt_source {
    const upstream *to;
    const header_lines *headers; /* of the request: the server may want a key */
    int client;                  /* its socket: nothing is waited for when it closes; -1: there is none */
    uint32_t timeout_ms;         /* of an answer; 0: any time */
} prompt_source;

/* From malloc(). bytes: the request that b was read from. NULL: it is not a prompt that can be watched. */
uint32_t *prompt_tokens(const prompt_source *from, const body *b, route to, const char *bytes, size_t size,
                        uint32_t *n);

/* Has the server compute these tokens in a slot and make none. reuse: what the slot holds may be used. false: that was not done. */
bool prompt_compute(const prompt_source *from, const uint32_t *tokens, uint32_t n, uint32_t slot, bool reuse,
                    body_timings *t);

/* Whether the server would not even take the key of the request. */
bool prompt_is_refused(const prompt_source *from);

#endif
