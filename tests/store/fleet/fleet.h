/* SPDX-License-Identifier: MIT */
/*
 * A simulated fleet of servers with quire serve. Real: what the disk tier admits and evicts (store/disk_*.c), what its page cache keeps
 * (store/warm.c), which slot a request gets and which slot is saved (tools/serve/slots.c), which server the gateway chooses (tools/serve/choose.c). Modelled: everything else; docs/scale.md says how.
 *
 * A stretch is `grain` pages of 64 tokens: the unit in which objects are kept. Counts of pages are exact nevertheless: a prompt's pages behind its last
 * whole stretch are taken to be where that stretch is.
 */
#ifndef QUIRE_TESTS_FLEET_H
#define QUIRE_TESTS_FLEET_H

#include "serve/slots.h"
#include "store/fleet/shelf.h"
#include "store/fleet/table.h"

#include <stdio.h>

#define SETTINGS(X)                                                                                             \
    X(servers, 10)                                                                                              \
    X(slots, 8)                                                                                                 \
    X(ssd_gb, 1000)         /* of each server; 0: none */                                                       \
    X(page_cache_gb, 1)     /* of each server: disk_cache_bytes */                                              \
    X(remote_gb, 0)         /* memory of the remote tier in all; 0: none */                                     \
    X(page_bytes, 2359296)  /* of 64 tokens */                                                                  \
    X(grain, 16)            /* pages in a stretch */                                                            \
    X(hours, 4)             /* simulated */                                                                     \
    X(warmup_hours, 2)      /* not counted */                                                                   \
    X(sessions_per_hour, 8) /* that begin, per server */                                                        \
    X(seed, 1)                                                                                                  \
    X(rule, 0)              /* 0 the design's, 1 next in order, 2 any, 3 of the trace, 4 the gateway's */       \
    X(bound, 1.25)          /* of the mean load */                                                              \
    X(least_bound, 0)       /* requests that a server may have whatever the mean */                             \
    X(affinity_token, 1024) /* the page there chooses the server */                                             \
    X(flops, 4e14)          /* of a server, as far as they are reached */                                       \
    X(flops_per_token, 1.6e10)                                                                                  \
    X(flops_per_pair, 524288) /* attention: of a token and one before it */                                     \
    X(answer_token_s, 0.02)                                                                                     \
    X(ssd_read_gbs, 6)                                                                                          \
    X(ssd_write_gbs, 3)                                                                                         \
    X(nic_gbs, 3.1)   /* 25 Gb/s */                                                                             \
    X(remote_gbs, 0)  /* of all nodes of the remote tier together; 0: no limit */                               \
    X(restore_gbs, 2) /* slot file and restore: the engine waits */                                             \
    X(save_gbs, 1.2)  /* slot saved to a file: the engine waits */                                              \
    X(saving,                                                                                                   \
      0) /* 0 idle, or after 5 s; 1 pages when they are computed; 2 as 0, and before they are lost (today's) */ \
    X(queue_gb, 0.268435456) /* pages that wait to be saved, of each tier */                                    \
    X(copy_gbs, 4)           /* pages handed to the queue */                                                    \
    X(kill_at_s, 0)          /* the last server goes; 0: never */                                               \
    X(restore_least, 128)                                                                                       \
    X(min_tokens, 256)

typedef struct settings {
#define SETTING_MEMBER(name, value) double name;
    SETTINGS(SETTING_MEMBER)
#undef SETTING_MEMBER
    const char *sessions, *trace; /* files */
} settings;

extern settings set;

enum { PAGE = 64 };
enum { IN_SLOT, IN_CACHE, ON_SSD, IN_REMOTE, PLACES };

uint64_t mix(uint64_t x); /* the finalizer of splitmix64 */

/* ----------------------------------------------------------------- sessions */

typedef struct session session;

typedef struct request {
    session *session;
    double arrived, first, loaded;
    uint32_t number, tokens, pages, answer;
    uint32_t shared; /* pages at the beginning that the request before had */
    uint32_t ideal;  /* pages that anyone has computed before */
    uint32_t n;      /* stretches */
    quire_key *keys;
    uint32_t *marks;  /* of the keys, for slots */
    uint64_t chooses; /* the key that chooses the server */
    uint32_t server;
    slot_lease lease;
    uint32_t warm;           /* pages that the slot holds */
    uint32_t from[PLACES];   /* pages by where they came from */
    uint32_t told, answered; /* of a trace: tokens reused in reality; server */
} request;

void sessions_begin(void); /* reads the files */
/* Calls fn with each session and when it begins, in the order of time. */
void sessions_each_first(void (*fn)(session *s, double t));
/* Its next request, which arrives now. */
request *session_ask(session *s, double now);
/* `r` has been answered, and is freed. Its session and when its next request is due; NULL: it has ended. */
session *sessions_next(request *r, double now, double *due);
uint64_t session_number(const session *s);
void request_free(request *r);

/* ------------------------------------------------------------------ servers */

typedef struct remote {
    table table;
    uint64_t bytes, cap, n_evicted, most;
    double free_at; /* all nodes together */
    double busy;
} remote;

/* What a slot holds. */
typedef struct slot_state {
    quire_key *keys;
    uint32_t n, pages, tokens;
    uint32_t stored; /* stretches that were handed in */
    uint64_t session;
} slot_state;

typedef struct server {
    slots *slots;
    slot_state *held;
    quire_disk *disk;
    quire_counters counters;
    request **queue; /* that wait for a slot */
    uint32_t n_queue, at_queue, cap_queue, in_flight;
    double engine_free, ssd_free, nic_free, last_save, save_due;
    bool is_dead;
    /* counted after the warm-up */
    double busy, busy_saving, nic_busy, ssd_busy;
    uint64_t requests, ssd_read, ssd_written, net_in, net_out, saves, saves_cut;
} server;

extern bool counting; /* the warm-up is over */

void server_begin(server *s);
void server_end(server *s);
/* A request has a slot: takes it, loads what the store has. Returns when the pages are there. */
double server_load(server *s, remote *far, request *r, double now);
/* Restores and computes; returns when the first token is there. */
double server_compute(server *s, request *r, double now);
/* The answer has ended. */
void server_answered(server *s, remote *far, request *r, double now);
/* Saves one slot if it is time. Returns when to look again; 0: when something has changed. */
double server_save(server *s, remote *far, double now);
uint64_t stretch_bytes(void);

#endif
