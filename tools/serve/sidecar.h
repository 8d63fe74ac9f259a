/* SPDX-License-Identifier: MIT */
/* sidecar: what happens to each request: passed on, or restored, watched and saved. */
#ifndef QUIRE_TOOLS_SERVE_SIDECAR_H
#define QUIRE_TOOLS_SERVE_SIDECAR_H

#include "serve/engine.h"
#include "serve/front.h"
#include "serve/prefix.h"
#include "serve/tenants.h"
#include "serve/watched.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct sidecar sidecar;

typedef struct sidecar_options {
    upstream to;
    prefix_options prefix; /* store NULL: nothing is kept */
    tenants *tenants;      /* NULL: all clients are one */
    const watched *files;  /* on which rows depend; or NULL */
    uint32_t n_slots;
    uint32_t min_tokens;    /* prompts with fewer tokens are not saved */
    uint32_t restore_least; /* restored only if that saves so many tokens */
    bool log_requests;      /* a line for each on stderr */
    bool has_lost_disk;     /* the directory that was asked for cannot be used */
} sidecar_options;

sidecar *sidecar_create(const sidecar_options *options);
/* Takes no more requests that need a slot, and saves what slots hold, for at most so long. Before the server is stopped. */
void sidecar_finish(sidecar *s, uint32_t timeout_ms);
void sidecar_destroy(sidecar *s);
/* Reads the file of tenants again, and says on stderr how that ended. */
void sidecar_read_tenants(sidecar *s);
/* The engine's state has changed (engine_options.changed). */
void sidecar_engine_changed(void *ctx, engine_state state, uint32_t generation, const char *why);
/* Answers a request (front_options.handle). */
void sidecar_handle(void *ctx, front_request *request);

#endif
