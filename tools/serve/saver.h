/* SPDX-License-Identifier: MIT */
/* saver: a thread that offers the store what slots hold, in moments when the server is idle. */
#ifndef QUIRE_TOOLS_SERVE_SAVER_H
#define QUIRE_TOOLS_SERVE_SAVER_H

#include "serve/metrics.h"
#include "serve/prefix.h"
#include "serve/slots.h"

typedef struct saver saver;

typedef struct saver_options {
    slots *slots;
    serve_counts *counts;
    uint32_t min_tokens;                          /* prompts with fewer tokens are not saved */
    prefix *(*prefix)(void *ctx, uint32_t owner); /* where they go; NULL: nowhere now */
    bool (*can_save)(void *ctx);                  /* the server is there */
    void *ctx;
} saver_options;

/* NULL: out of memory, or no thread. */
saver *saver_start(const saver_options *options);
/* A request is about to use this slot: what would be lost by that is copied first, and stored while the request goes on. */
/* A prompt could not be saved: counts it, and says the reason if it is not that of the last time. */
void saver_refuse(saver *s, const char *why);
void saver_save_before(saver *s, const slot_lease *lease, const budget_wait *wait);
/* Saves what free slots hold, for at most so long. The thread saves nothing more. */
void saver_finish(saver *s, uint32_t timeout_ms);
void saver_stop(saver *s);

#endif
