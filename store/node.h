/* SPDX-License-Identifier: MIT */
/* store: the nodes of the remote: addresses, slots of the key space, which are taken as down. Shared by lanes, under a lock. */
#ifndef QUIRE_STORE_NODE_H
#define QUIRE_STORE_NODE_H

#include "store/remote.h"
#include "store/transport.h"

#define QUIRE_MAX_NODES 128u
#define QUIRE_NO_NODE UINT32_MAX
#define QUIRE_SLOTS 16384u
#define QUIRE_HOST_MAX 256u

typedef struct quire_node {
    char host[QUIRE_HOST_MAX];
    uint32_t port;
    uint32_t n_failures; /* one after the other */
    uint64_t open_until; /* 0: not taken as down; else no attempt before that time */
    uint64_t backoff;    /* ns */
} quire_node;

typedef enum quire_topology { QUIRE_TOPOLOGY_UNKNOWN, QUIRE_SINGLE, QUIRE_CLUSTER } quire_topology;

struct quire_remote {
    quire_allocator allocator;
    quire_counters *counters;
    const quire_log *log;       /* of the store */
    quire_store_remote options; /* texts are copies; numbers have their defaults */
    quire_transport transport;
    pthread_mutex_t lock;
    quire_node node[QUIRE_MAX_NODES]; /* [0] is the one that was given */
    uint32_t n_nodes;
    quire_topology topology;
    bool stale;                        /* the slots should be asked for again */
    uint64_t next_refresh;             /* not before that time */
    uint32_t turn;                     /* whom to ask */
    uint8_t node_of_slot[QUIRE_SLOTS]; /* QUIRE_MAX_NODES: not known */
};

static inline uint64_t quire_remote_now(const quire_remote *r)
{
    return r->transport.now(r->transport.ctx);
}

uint32_t quire_slot_of(const char *key, size_t n); /* CRC16 modulo 16384 */

/* Finds or adds; QUIRE_NO_NODE if there are too many. */
uint32_t quire_node_at(quire_remote *r, const char *host, size_t n, uint32_t port);
void quire_node_address(quire_remote *r, uint32_t node, char host[QUIRE_HOST_MAX], uint32_t *port);
/* Where a key is, as far as is known. */
uint32_t quire_node_of_slot(quire_remote *r, uint32_t slot);
void quire_node_set_slots(quire_remote *r, uint32_t first, uint32_t last, uint32_t node);
/* Whether to try it; of a node that is down one try is let through when its time has come. */
bool quire_node_may_try(quire_remote *r, uint32_t node);
void quire_node_succeeded(quire_remote *r, uint32_t node);
/* hopeless: no use in trying twice more before it is taken as down. */
void quire_node_failed(quire_remote *r, uint32_t node, bool hopeless);
void quire_node_set_topology(quire_remote *r, quire_topology topology);
quire_topology quire_node_topology(quire_remote *r);
void quire_node_set_stale(quire_remote *r);
/* true: the caller shall ask a node for the slots now; *node is whose turn it is. */
bool quire_node_take_refresh(quire_remote *r, uint32_t *node);

#endif
