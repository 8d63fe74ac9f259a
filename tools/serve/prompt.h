/* SPDX-License-Identifier: MIT */
/* prompt: the tokens of a request, as the server itself makes them. */
#ifndef QUIRE_TOOLS_SERVE_PROMPT_H
#define QUIRE_TOOLS_SERVE_PROMPT_H

#include "serve/body.h"
#include "serve/route.h"
#include "serve/upstream.h"

#include <stdint.h>

typedef struct prompt_source {
    const upstream *to;
    const char *api_prefix;
    const header_lines *headers; /* of the request: the server may want a key */
    int client;                  /* its socket: nothing is waited for when it closes */
} prompt_source;

/* From malloc(). bytes: the request that b was read from. NULL: it is not a prompt that can be watched. */
uint32_t *prompt_tokens(const prompt_source *from, const body *b, route to, const char *bytes, size_t size,
                        uint32_t *n);

#endif
