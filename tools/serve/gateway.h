/* SPDX-License-Identifier: MIT */
/* gateway: passes each request on to one of several sidecars, so that conversations stay where their beginning was computed. */
#ifndef QUIRE_TOOLS_SERVE_GATEWAY_H
#define QUIRE_TOOLS_SERVE_GATEWAY_H

#include "serve/front.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct gateway gateway;

typedef struct gateway_options {
    const char *const *replicas; /* "HOST:PORT"; replica_wrong() found nothing, and no two are alike */
    size_t n_replicas;
    bool log_requests; /* a line for each on stderr */
} gateway_options;

/* NULL: out of memory, or no threads. */
gateway *gateway_create(const gateway_options *options);
/* After front_stop(). */
void gateway_destroy(gateway *g);
/* Answers a request (front_options.handle). */
void gateway_handle(void *ctx, front_request *request);

#endif
