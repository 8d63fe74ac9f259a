/* SPDX-License-Identifier: MIT */
/* metrics: what is counted, from any thread, and how /quire/metrics and /quire/health tell it. */
#ifndef QUIRE_TOOLS_SERVE_METRICS_H
#define QUIRE_TOOLS_SERVE_METRICS_H

#include "common/growing.h"

#include <quire/store.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Name, and what it counts. */
#define SERVE_COUNTS(X)                                                                                \
    X(requests, "Requests of clients.")                                                                \
    X(watched, "Requests whose slot and tokens were known.")                                           \
    X(unwatched, "Requests that may have used any slot.")                                              \
    X(unsteered, "Of these, requests of /v1/messages whose tokens were known.")                        \
    X(passed, "Requests that use no slot.")                                                            \
    X(left, "Clients that left before their answer had ended.")                                        \
    X(failed, "Requests that the server did not answer.")                                              \
    X(prompt_tokens, "Tokens of watched prompts.")                                                     \
    X(warm_tokens, "Of these, tokens that a slot still held.")                                         \
    X(restored_tokens, "Of these, tokens that came from the store.")                                   \
    X(computed_tokens, "Of these, tokens that the server computed.")                                   \
    X(restores, "Prompts that were restored.")                                                         \
    X(restores_short, "Restored prompts of which the server reused less.")                             \
    X(restores_failed, "Prompts that were found and could not be loaded or put into a slot.")          \
    X(restores_refused, "Prompts that were found, and for whose slot file there was no memory.")       \
    X(saves, "Slots that were saved.")                                                                 \
    X(saves_refused, "Slots that could not be saved, or held another prompt.")                         \
    X(saved_tokens, "Tokens of saved slots, those that were stored before included.")                  \
    X(saves_partial, "Saves of which the store did not take all pages.")                               \
    X(shared, "Prompts whose beginning another request had just computed.")                            \
    X(shared_tokens, "Their tokens that were copied from its slot.")                                   \
    X(strangers, "Requests with a key of no tenant.")                                                  \
    X(tenants_unread, "Times that the file of tenants could not be read again, and stayed as it was.") \
    X(miscounted, "Answers whose token count was not that of the prompt.")

typedef struct serve_counts {
#define SERVE_COUNTS_MEMBER(name, text) _Atomic uint64_t name;
    SERVE_COUNTS(SERVE_COUNTS_MEMBER)
#undef SERVE_COUNTS_MEMBER
} serve_counts;

#define SERVE_COUNT(counts, member, by) ((void)atomic_fetch_add(&(counts)->member, (by)))

/* What /quire/health tells, and the gauges of /quire/metrics. */
typedef struct serve_health {
    bool is_ready;      /* the server answers */
    bool keeps;         /* prompts of this server can be kept */
    bool restores;      /* they are restored */
    bool has_lost_disk; /* the directory for them could not be used at the start */
    bool has_root;      /* of the keys of all pages */
    uint8_t root[32];
    quire_store *store; /* or NULL */
} serve_health;

/* In Prometheus' text format, with the figures of the store, ended by a 0. false: out of memory. */
bool serve_metrics_print(serve_counts *counts, const serve_health *now, growing *text);

enum { SERVE_HEALTH_SIZE = 1024 };
/* A JSON object: "status" is "ok", "degraded" (prompts are answered, and computed where they need not be), or a sentence. */
void serve_health_print(const serve_health *now, char text[SERVE_HEALTH_SIZE]);

#endif
