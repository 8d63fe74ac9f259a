/* SPDX-License-Identifier: MIT */
/* engine: a llama-server as a child: started, watched, started again when it ends. */
#ifndef QUIRE_TOOLS_SERVE_ENGINE_H
#define QUIRE_TOOLS_SERVE_ENGINE_H

#include "serve/upstream.h"

#include <stdint.h>

typedef struct engine engine;

typedef enum engine_state {
    ENGINE_STARTING, /* the process lives and loads its model */
    ENGINE_READY,
    ENGINE_DOWN, /* it has ended, and will be started again */
    ENGINE_GONE  /* it will not be started again: stopped, or it never became ready */
} engine_state;

typedef struct engine_options {
    char *const *argv; /* argv[0] is a path; ended by NULL */
    upstream to;       /* where it will listen */
    /* Called from a thread of the engine whenever the state changes. generation: 1 for the first process, and so on. */
    void (*changed)(void *ctx, engine_state state, uint32_t generation, const char *why);
    void *ctx;
} engine_options;

/* NULL: out of memory, or no thread. The process dies with this one, however this one ends. */
engine *engine_start(const engine_options *options);
/* ENGINE_READY or ENGINE_GONE; ENGINE_STARTING if the time is over. */
engine_state engine_wait_ready(engine *e, uint32_t timeout_ms);
engine_state engine_state_now(engine *e, uint32_t *generation);
/* Asks the process to end, after a while insists, and waits for it. Returns its exit status, 128 + signal. */
int engine_stop(engine *e);

#endif
