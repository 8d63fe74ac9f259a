/* SPDX-License-Identifier: MIT */
/* store: the nodes of the remote: addresses, slots of the key space, which are considered down. Shared by lanes, under a lock. */
#ifndef QUIRE_STORE_NODE_H
#define QUIRE_STORE_NODE_H

#include "store/remote.h"
#include "store/transport.h"

#define QUIRE_MAX_NODES 1024u /* a power of two; more than a cluster can have in practice */
#define QUIRE_NO_NODE UINT32_MAX
#define QUIRE_SLOTS 16384u
#define QUIRE_HOST_MAX 256u

/* A node is named by its place in the table and how often that place was given away before, so that the name of a node that
 * was forgotten is never taken for another's. Functions do nothing for a node that was forgotten. */
static inline uint32_t quire_node_index(uint32_t node)
{
    return node % QUIRE_MAX_NODES;
}

typedef struct quire_node {
    char host[QUIRE_HOST_MAX];
    uint32_t name;    /* QUIRE_NO_NODE: the place is free */
    uint32_t n_given; /* how often the place was given away */
    uint32_t port;
    uint32_t master;        /* in the topology: its master, or itself */
    bool refuses_login;     /* it is considered down because it does not take the user or password */
    bool in_topology;       /* of a cluster, as last told */
    uint32_t n_attempts;    /* to connect, ever */
    uint32_t n_failures;    /* one after the other */
    uint32_t n_slow;        /* runs in which it sent too little, since a value came at a good rate */
    uint64_t open_until;    /* 0: not considered down; else it is not probed before that time */
    uint64_t backoff;       /* ns */
    uint64_t failed, named; /* when it last failed, or was told of */
    /* By verb: until when the error that it last answered counts; 0: it did what was asked. */
    uint64_t refused_until[QUIRE_SLOTS_OF];
    quire_key probe;    /* what it sent too slowly */
    size_t probe_bytes; /* 0: nothing */
} quire_node;

typedef enum quire_topology { QUIRE_TOPOLOGY_UNKNOWN, QUIRE_SINGLE, QUIRE_CLUSTER } quire_topology;

/* What CLUSTER SLOTS says. */
typedef struct quire_slot_map {
    uint32_t n_ranges, n_replicas;
    struct {
        uint32_t replica, master;
    } replica[QUIRE_MAX_NODES];
    uint32_t owner[QUIRE_SLOTS]; /* QUIRE_NO_NODE: nobody */
} quire_slot_map;

struct quire_remote {
    quire_allocator allocator;
    quire_counters *counters;
    quire_store_log *log;       /* of the store, or NULL */
    quire_store_remote options; /* texts are copies; numbers have their defaults */
    quire_transport transport;
    bool owns_transport;
    pthread_mutex_t lock;
    pthread_cond_t work; /* for the keeper */
    pthread_t keeper;
    bool has_keeper, stops_keeper;
    atomic_bool stop;                 /* of the keeper's lane */
    quire_node node[QUIRE_MAX_NODES]; /* [0] is the one that was given; it stays */
    uint32_t n_nodes, n_places;       /* places: those behind were never used */
    quire_topology topology;
    bool stale;                          /* the slots should be asked for again */
    uint64_t next_refresh;               /* not before that time */
    uint64_t refreshed;                  /* when they were last told */
    uint32_t turn;                       /* whom to ask */
    uint16_t place_of_slot[QUIRE_SLOTS]; /* QUIRE_MAX_NODES: not known */
};

static inline uint64_t quire_remote_now(const quire_remote *r)
{
    return r->transport.now(r->transport.ctx);
}

uint32_t quire_slot_of(const char *key, size_t n); /* CRC16 modulo 16384 */

/* Finds or adds. If the table is full, the node that was not told of for the longest time makes room. QUIRE_NO_NODE: no address,
 * or all are in the topology. */
uint32_t quire_node_at(quire_remote *r, const char *host, size_t n, uint32_t port);
/* false: it was forgotten. */
bool quire_node_address(quire_remote *r, uint32_t node, char host[QUIRE_HOST_MAX], uint32_t *port);
uint32_t quire_node_attempt(quire_remote *r, uint32_t node); /* counts them */
bool quire_node_is_known(quire_remote *r, uint32_t node);

/* Where to send a command for a slot: to its master; reads go to a replica if the master is in trouble or is to be avoided, or
 * by option. which: spreads reads. */
uint32_t quire_node_for(quire_remote *r, uint32_t slot, bool reads, uint32_t which, uint32_t avoid,
                        bool *is_replica);
void quire_node_set_slot(quire_remote *r, uint32_t slot, uint32_t node);

/* Whether loads and saves may connect to it (NONE), or why not. A node that is considered down is tried by the keeper only. */
quire_miss quire_node_may_try(quire_remote *r, uint32_t node);
/* All that was asked of it was answered. with_values: and values came, at a good rate. */
void quire_node_succeeded(quire_remote *r, uint32_t node, bool with_values);
typedef enum quire_trouble {
    QUIRE_TROUBLE,          /* one failure; some in a row and it is considered down */
    QUIRE_TROUBLE_HOPELESS, /* no use in trying again soon */
    QUIRE_TROUBLE_REFUSED,  /* neither: it does not take the user or password */
    QUIRE_TROUBLE_SLOW,     /* it answers too slowly; some runs of that and it is considered down */
    QUIRE_TROUBLE_TOO_SLOW, /* for long */
} quire_trouble;
/* call: what it did not answer, or NULL. */
void quire_node_failed(quire_remote *r, uint32_t node, quire_trouble trouble, const quire_call *call);

/* It answers, but with an error. lasts: it will give it again; it is full and evicts nothing, or the login lacks a right. An error
 * counts for a while only, because it may be long until something is sent to that node again. */
void quire_node_refuses(quire_remote *r, uint32_t node, quire_verb verb, bool lasts, const char *error);
/* It did what was asked. */
void quire_node_complies(quire_remote *r, uint32_t node, quire_verb verb);

/* The whole map at once; nodes that are not in it are forgotten some seconds after they were last told of. */
void quire_node_apply(quire_remote *r, const quire_slot_map *map);
void quire_node_set_topology(quire_remote *r, quire_topology topology);
quire_topology quire_node_topology(quire_remote *r);
void quire_node_set_stale(quire_remote *r);

/* What is due now: nodes to ask for the slots, and nodes to probe. */
#define QUIRE_DUE_MAX 16u
typedef struct quire_due {
    uint32_t n_ask, n_probe;
    uint32_t ask[QUIRE_DUE_MAX], probe[QUIRE_DUE_MAX];
    quire_key object[QUIRE_DUE_MAX]; /* to probe with */
    size_t bytes[QUIRE_DUE_MAX];
} quire_due;
void quire_node_take_due(quire_remote *r, quire_due *due);
/* The node answered the keeper. */
void quire_node_probed(quire_remote *r, uint32_t node);
/* Whether the keeper has something to do soon. Under the lock. */
bool quire_node_is_troubled(const quire_remote *r);

#endif
