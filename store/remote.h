/* SPDX-License-Identifier: MIT */
/*
 * store: the remote tier: a Valkey or Redis server, or a cluster of them. What lanes share is here: nodes, which node has which
 * slot of the key space, and whether a node is considered down. A lane is one thread's way to all nodes. The keeper is a thread
 * that learns the slots and probes nodes that are down, so that no load has to wait for either.
 */
#ifndef QUIRE_STORE_REMOTE_H
#define QUIRE_STORE_REMOTE_H

#include "store/log.h"

typedef struct quire_remote quire_remote;
typedef struct quire_lane quire_lane;
struct quire_transport;

/* transport: NULL for sockets; copied. */
quire_status quire_remote_create(quire_remote **out, const quire_store_remote *options,
                                 const quire_allocator *allocator, quire_counters *counters,
                                 quire_store_log *log, const struct quire_transport *transport, char *message,
                                 size_t message_size);
void quire_remote_destroy(quire_remote *remote); /* its lanes must be gone */
typedef struct quire_node_counts {
    uint32_t n, n_down, n_refusing; /* known; considered down; up and refusing pages */
} quire_node_counts;
quire_node_counts quire_remote_nodes(quire_remote *remote);
size_t quire_remote_in_flight(const quire_remote *remote);
uint32_t quire_remote_ttl(const quire_remote *remote); /* seconds; 0: none */
/* How long sending may take at most, at the lowest rate that is accepted. */
uint64_t quire_remote_patience(const quire_remote *remote, size_t bytes);

/* keeper.c: starts and stops its thread. ENOMEM: it could not be started. */
quire_status quire_keeper_start(quire_remote *remote);
void quire_keeper_stop(quire_remote *remote);
/* Does what is due, with the keeper's lane. For tests that have no threads. */
void quire_keeper_step(quire_remote *remote, quire_lane *lane);

/* stop: of the whole store; lanes look at it at least ten times a second. NULL: no memory. */
quire_lane *quire_lane_create(quire_remote *remote, const atomic_bool *stop);
void quire_lane_destroy(quire_lane *lane);

typedef enum quire_verb {
    QUIRE_EXISTS,
    QUIRE_GET,
    QUIRE_SET,
    QUIRE_DEL,
    QUIRE_EXPIRE,   /* after the remote's ttl */
    QUIRE_SLOTS_OF, /* the keeper's: CLUSTER SLOTS */
} quire_verb;

/* One command. Those of a run are sent without waiting for each other's replies. */
typedef struct quire_call {
    quire_verb verb;
    quire_key object;
    const uint8_t *value; /* SET */
    size_t bytes;         /* SET: of the value; GET: expected, no more are asked for */
    void (*on_value)(void *ctx, const uint8_t *bytes, size_t n); /* GET: what came, in the lane's thread */
    void *ctx;
    bool only_new;   /* SET: leave it if it is there (found) */
    bool is_pinned;  /* the keeper's: to this node, whatever its state; redirections count as answers */
    uint32_t node;   /* the one, if pinned */
    quire_miss miss; /* result: NONE, or why there was no answer */
    bool found;      /* EXISTS and GET: it is there; others: something was changed */
    /* The lane's own. */
    uint32_t state, attempts, avoid;
    bool asking;
} quire_call;

/* Until all are answered or the deadline has passed. */
void quire_lane_run(quire_lane *lane, quire_call *calls, uint32_t n, uint64_t deadline);

#endif
