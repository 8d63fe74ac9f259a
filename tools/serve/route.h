/* SPDX-License-Identifier: MIT */
/* route: which endpoint of llama-server a request is for. */
#ifndef QUIRE_TOOLS_SERVE_ROUTE_H
#define QUIRE_TOOLS_SERVE_ROUTE_H

#include <stdbool.h>

typedef enum route {
    ROUTE_TEXT,      /* a completion of a text or of tokens */
    ROUTE_CHAT,      /* a completion of messages */
    ROUTE_MESSAGES,  /* the same as /v1/messages: the request cannot name its slot */
    ROUTE_RESPONSES, /* the same as /v1/responses */
    ROUTE_UNWATCHED, /* may use a slot that the server chooses */
    ROUTE_PLAIN,     /* uses no slot */
    ROUTE_REFUSED,   /* slots belong to this program */
    ROUTE_METRICS,   /* of this program */
    ROUTE_HEALTH
} route;

/* target: path and query as the client sent them. api_prefix: that of the server, or "". */
route route_of(const char *method, const char *target, const char *api_prefix);
/* Reads or changes what each server has for itself, so that it makes no sense before several of them. */
bool route_is_of_one_server(const char *method, const char *target);

/* Endpoints of llama-server that tell nothing about the requests of others, and need no more than a slot. */
bool route_is_for_tenants(const char *method, const char *target, const char *api_prefix);

#endif
