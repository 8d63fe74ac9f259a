/* SPDX-License-Identifier: MIT */
/*
 * A scripted world for the remote tier: peers that speak enough of Redis, connections that cut what they carry as the script
 * says, and a clock that moves only when the tested code sleeps. No sockets, no threads: every run of a script is the same.
 */
#ifndef QUIRE_TESTS_WORLD_H
#define QUIRE_TESTS_WORLD_H

#include "store/conn.h"
#include "support/cache_kit.h"

#define WORLD_PEERS 300
#define WORLD_NAMES 4
#define WORLD_EVENTS 64

typedef struct world_value {
    struct world_value *next;
    char key[80];
    uint8_t *bytes;
    size_t n;
    uint64_t expires; /* 0: never */
    uint32_t n_sets, n_gets;
    uint8_t on[WORLD_PEERS]; /* which peers hold it */
} world_value;

typedef struct world_peer {
    char host[64];
    uint32_t port;
    int master;     /* index of its master; -1: it is one */
    bool refuses;   /* connections are refused and lost */
    bool swallows;  /* connecting gets no answer */
    bool is_silent; /* commands get none */
    bool refuses_writes;
    const char *error;      /* the answer to commands that write; NULL: what they should get */
    const char *read_error; /* the same of those that read */
    bool fails_slots;       /* CLUSTER SLOTS is an error */
    uint64_t latency;       /* ns until a reply begins */
    uint64_t rate;          /* bytes per second that it sends; 0: any */
    uint64_t takes;         /* bytes per second that it takes in; 0: any */
    uint32_t n_opened, n_slots_asked, n_commands, n_reads;
    uint64_t reset_after; /* bytes sent on a connection, then it is reset; 0: never */
} world_peer;

typedef struct world {
    uint64_t clock;
    bool is_single, is_tls;
    world_peer peer[WORLD_PEERS];
    uint32_t n_peers;
    int16_t owner[QUIRE_SLOTS];   /* the peer that has the slot; -1: nobody */
    int16_t goes_to[QUIRE_SLOTS]; /* slot that is being moved: asks for a key go there (ASK); -1: not moved */
    struct {
        char name[64];
        int peer; /* -1: not found */
    } name[WORLD_NAMES];
    world_value *values;
    quire_link *links;
    /* How bytes are cut: sizes one after the other, again and again; none: whole. */
    const size_t *read_cuts, *write_cuts;
    size_t n_read_cuts, n_write_cuts, at_read_cut, at_write_cut;
    uint64_t chunk_gap; /* ns between two chunks */
    struct {
        uint64_t time;
        void (*run)(struct world *w, int arg);
        int arg;
    } event[WORLD_EVENTS];
    uint32_t n_events;
    /* What happened. */
    uint64_t n_polls, n_sleeps, n_blind_sleeps; /* blind: while decrypted bytes were waiting */
    uint32_t n_links, n_opened, most_links;
    char last_log[512];
    uint32_t n_logged;

    quire_counters counters;
    quire_allocator allocator;
    quire_store_log log;
    quire_remote *remote;
    quire_lane *keeper;
    atomic_bool stop;
} world;

void world_begin(world *w);
/* Creates the remote; the first peer or name is the configured host. options: NULL for the usual ones. */
void world_connect(world *w, const char *host, uint32_t port, const quire_store_remote *options);
void world_end(world *w);

int world_add(world *w, const char *host, uint32_t port, int master);
void world_slots(world *w, uint32_t first, uint32_t last, int peer);
void world_at(world *w, uint64_t time, void (*run)(world *w, int arg), int arg);
void world_name(world *w, const char *name, int peer);
/* Time passes; what the remote does by itself is done. */
void world_sleep(world *w, uint64_t ns);
/* All connections to the peer are lost. */
void world_cut(world *w, int peer);

/* An object whose key falls on a slot of the range. n: which of them. */
quire_key world_object(uint32_t first, uint32_t last, uint32_t n);
world_value *world_find(world *w, const quire_key *object);
/* The value of `bytes` bytes that belongs to the object; stored at the owner of its slot and its replicas. */
void world_put(world *w, const quire_key *object, size_t bytes);
uint8_t world_byte(const quire_key *object, size_t at);

/* Loads: GETs, what came is compared. Returns how many came whole. */
#define WORLD_CALLS 1024
typedef struct world_load {
    uint32_t n, n_whole, n_found;
    quire_miss miss; /* the first */
    uint64_t took;
} world_load;
world_load world_get(world *w, quire_lane *lane, const quire_key *objects, uint32_t n, size_t bytes,
                     uint64_t timeout);
world_load world_ask(world *w, quire_lane *lane, const quire_key *objects, uint32_t n, uint64_t timeout);
world_load world_set(world *w, quire_lane *lane, const quire_key *objects, uint32_t n, size_t bytes,
                     uint64_t timeout);

#endif
