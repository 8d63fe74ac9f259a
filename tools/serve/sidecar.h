/* SPDX-License-Identifier: MIT */
/* sidecar: what happens to each request: passed on, or restored, watched and saved. */
#ifndef QUIRE_TOOLS_SERVE_SIDECAR_H
#define QUIRE_TOOLS_SERVE_SIDECAR_H

#include "serve/engine.h"
#include "serve/front.h"
#include "serve/prefix.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct sidecar sidecar;

typedef struct sidecar_options {
    upstream to;
    const char *api_prefix; /* "" or "/llama" */
    prefix_options prefix;  /* store NULL: nothing is kept */
    uint32_t n_slots;
    uint32_t min_tokens;    /* prompts with fewer tokens are not saved */
    uint32_t restore_least; /* restored only if that saves so many tokens */
    bool log_requests;      /* a line for each on stderr */
} sidecar_options;

/* What /quire/metrics tells: name, and what it counts. */
#define SIDECAR_COUNTS(X)                                                             \
    X(requests, "Requests of clients.")                                               \
    X(watched, "Requests whose slot and tokens were known.")                          \
    X(unwatched, "Requests that may have used any slot.")                             \
    X(passed, "Requests that use no slot.")                                           \
    X(left, "Clients that left before their answer had ended.")                       \
    X(failed, "Requests that the server did not answer.")                             \
    X(prompt_tokens, "Tokens of watched prompts.")                                    \
    X(warm_tokens, "Of these, tokens that a slot still held.")                        \
    X(restored_tokens, "Of these, tokens that came from the store.")                  \
    X(computed_tokens, "Of these, tokens that the server computed.")                  \
    X(restores, "Prompts that were restored.")                                        \
    X(restores_short, "Restored prompts of which the server reused less.")            \
    X(saves, "Slots that were saved.")                                                \
    X(saves_refused, "Slots that could not be saved, or held another prompt.")        \
    X(saved_tokens, "Tokens of saved slots, those that were stored before included.") \
    X(miscounted, "Answers whose token count was not that of the prompt.")

typedef struct sidecar_counts {
#define SIDECAR_MEMBER(name, text) uint64_t name;
    SIDECAR_COUNTS(SIDECAR_MEMBER)
#undef SIDECAR_MEMBER
} sidecar_counts;

enum { SIDECAR_METRICS_SIZE = 8192 };
/* In Prometheus' text format. */
void sidecar_metrics(const sidecar_counts *counts, char text[SIDECAR_METRICS_SIZE]);

sidecar *sidecar_create(const sidecar_options *options);
void sidecar_destroy(sidecar *s);
/* The engine's state has changed (engine_options.changed). */
void sidecar_engine_changed(void *ctx, engine_state state, uint32_t generation, const char *why);
/* Answers a request (front_options.handle). */
void sidecar_handle(void *ctx, front_request *request);
void sidecar_count(sidecar *s, sidecar_counts *out);

#endif
