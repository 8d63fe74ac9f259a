/* SPDX-License-Identifier: MIT */
/* replicas: the sidecars behind a gateway: which of them answer, and what each has to do. */
#ifndef QUIRE_TOOLS_SERVE_REPLICAS_H
#define QUIRE_TOOLS_SERVE_REPLICAS_H

#include "common/growing.h"
#include "serve/upstream.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { REPLICAS_MOST = 256 };

typedef struct replicas replicas;

/* What became of a request. */
typedef enum replica_result {
    REPLICA_ANSWERED,
    REPLICA_LEFT,      /* the client did not wait for the answer */
    REPLICA_UNREACHED, /* no connection: it counts as down until it says that it is ready */
    REPLICA_NOT_READY, /* its own word: the same */
    REPLICA_NOT_ASKED, /* this program could not open a connection, which says nothing about the replica */
    REPLICA_FAILED /* it took the request and gave no answer, or not all of it: it is asked at once how it is */
} replica_result;

/* NULL, or what is wrong with "HOST:PORT" or "[ADDRESS]:PORT". */
const char *replica_wrong(const char *name);

/* names: good ones, no two alike; they belong to the caller. via: the header with which this gateway knows itself again. Asks each one
 * every second how it is; until it has answered, it counts as ready. NULL: out of memory, or no threads. */
replicas *replicas_start(const char *const *names, size_t n, const char *via);
void replicas_stop(replicas *r);

/* The replica for a request with this key, of those that are ready and not in tried[], which is set. false: there is none. */
bool replicas_take(replicas *r, uint64_t key, bool tried[REPLICAS_MOST], size_t *which);
/* Once for each that was taken. */
void replicas_give(replicas *r, size_t which, replica_result result);

const upstream *replicas_address(const replicas *r, size_t which);
const char *replicas_name(const replicas *r, size_t which);

/* One line of labelled samples for each replica and figure, in Prometheus' text format. */
bool replicas_print_metrics(replicas *r, growing *out);
/* A list in JSON; *n_ready: how many of them are ready. */
bool replicas_print_states(replicas *r, growing *out, size_t *n_ready);

#endif
