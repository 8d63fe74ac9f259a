/* SPDX-License-Identifier: MIT */
/* store: one connection of a lane to a node, over the remote's transport. Never blocks. */
#ifndef QUIRE_STORE_CONN_H
#define QUIRE_STORE_CONN_H

#include "store/node.h"

#include <valkey/read.h>

/* A command whose reply has not come yet. */
typedef enum quire_wait_kind {
    QUIRE_WAIT_CALL,
    QUIRE_WAIT_AUTH,
    QUIRE_WAIT_ASKING,
    QUIRE_WAIT_READONLY,
    QUIRE_WAIT_SLOTS
} quire_wait_kind;

typedef struct quire_wait {
    quire_wait_kind kind;
    quire_call *call; /* of a CALL; of SLOTS if the keeper asks */
    uint64_t sent;
} quire_wait;

typedef enum quire_conn_state { QUIRE_CONN_CLOSED, QUIRE_CONN_CONNECTING, QUIRE_CONN_OPEN } quire_conn_state;

typedef struct quire_reply {
    int type; /* VALKEY_REPLY_... */
    long long integer;
    char text[160]; /* of a status or error */
} quire_reply;

#define QUIRE_MAX_WAITS 512u
#define QUIRE_TEXT_MAX (128u << 10)

typedef struct quire_conn {
    quire_remote *remote;
    uint32_t node;
    quire_conn_state state;
    quire_link *link;
    valkeyReader *reader;
    uint64_t began; /* connecting */
    /* The rate is judged over windows. Bytes of replies count as they come, bytes of commands when the other side has them. */
    uint64_t window, moved, n_accepted, acknowledged; /* the latter: at the window's beginning */
    uint64_t last_read;
    size_t low_water; /* bytes that are worth waking up for */
    bool is_readonly; /* READONLY was sent */
    bool has_values;  /* some came since the connection was idle */
    bool is_outdated; /* to be closed when nothing is under way */
    /* Commands: text with at most one value in it, at value_at; n_written bytes of all that are sent. */
    char *text;
    size_t cap_text, n_text, n_written, value_at, value_bytes;
    const uint8_t *value;
    size_t in_flight;                 /* bytes of values that were asked for */
    quire_wait wait[QUIRE_MAX_WAITS]; /* ring */
    uint32_t first_wait, n_waits;
    quire_reply reply;   /* the one that is being read */
    quire_slot_map *map; /* of CLUSTER SLOTS */
    uint32_t range_first, range_last, range_host_bytes, range_master;
    char range_host[QUIRE_HOST_MAX];
} quire_conn;

uint32_t quire_call_slot(const quire_call *call);

bool quire_conn_begin(quire_conn *c, quire_remote *remote, uint32_t node); /* false: failed at once */
void quire_conn_close(quire_conn *c);
/* Connecting goes on; AUTH and, if it is not known whether this is a cluster, CLUSTER SLOTS are sent at its end. NONE: goes on or is
 * done. */
quire_miss quire_conn_continue(quire_conn *c);
bool quire_conn_wants_write(const quire_conn *c);
void quire_conn_drop_map(quire_conn *c); /* what CLUSTER SLOTS said is no longer needed */
/* false: no room now, or no memory. */
bool quire_conn_send(quire_conn *c, quire_call *call, bool to_replica);
quire_miss quire_conn_write(quire_conn *c);
/* Reads what is there. The next whole reply is then in c->reply and *wait says whose; call until *has is false. */
quire_miss quire_conn_read(quire_conn *c);
quire_miss quire_conn_next_reply(quire_conn *c, bool *has, quire_wait *wait);

/* Something is to be sent or awaited. */
static inline bool quire_conn_is_busy(const quire_conn *c)
{
    return c->state == QUIRE_CONN_CONNECTING ||
           (c->state == QUIRE_CONN_OPEN && (c->n_waits || quire_conn_wants_write(c)));
}

/* How an open connection does, judged over at least so long: FINE also if it is too early to tell. */
typedef enum quire_pace { QUIRE_PACE_FINE, QUIRE_PACE_SLOW, QUIRE_PACE_SILENT } quire_pace;
quire_pace quire_conn_pace(quire_conn *c, uint64_t now, uint64_t at_least);

#endif
