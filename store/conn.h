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
    QUIRE_WAIT_SLOTS
} quire_wait_kind;

typedef struct quire_wait {
    quire_wait_kind kind;
    quire_call *call;
} quire_wait;

typedef enum quire_conn_state { QUIRE_CONN_CLOSED, QUIRE_CONN_CONNECTING, QUIRE_CONN_OPEN } quire_conn_state;

typedef struct quire_reply {
    int type; /* VALKEY_REPLY_... */
    long long integer;
    char text[160]; /* of a status or error */
} quire_reply;

#define QUIRE_MAX_WAITS 512u
#define QUIRE_TEXT_MAX (96u << 10)

typedef struct quire_conn {
    quire_remote *remote;
    uint32_t node;
    quire_conn_state state;
    quire_link *link;
    valkeyReader *reader;
    uint64_t began, progress; /* when connecting began; when bytes last moved */
    /* Commands: text with at most one value in it, at value_at; n_written bytes of all that are sent. */
    size_t n_text, n_written, value_at, value_bytes;
    const uint8_t *value;
    size_t in_flight;                 /* bytes of values that were asked for */
    quire_wait wait[QUIRE_MAX_WAITS]; /* ring */
    uint32_t first_wait, n_waits;
    quire_reply reply; /* the one that is being read */
    uint32_t range_first, range_last, range_host_bytes;
    char range_host[QUIRE_HOST_MAX];
    uint32_t n_ranges;
    char text[QUIRE_TEXT_MAX];
} quire_conn;

uint32_t quire_call_slot(const quire_call *call);

bool quire_conn_begin(quire_conn *c, quire_remote *remote, uint32_t node); /* false: failed at once */
void quire_conn_close(quire_conn *c);
/* Connecting goes on; AUTH and, if the slots are not known, CLUSTER SLOTS are sent at its end. NONE: goes on or is done. */
quire_miss quire_conn_continue(quire_conn *c);
bool quire_conn_wants_write(const quire_conn *c);
/* false: no room, or libvalkey has no memory. */
bool quire_conn_send(quire_conn *c, quire_call *call);
bool quire_conn_ask_slots(quire_conn *c);
quire_miss quire_conn_write(quire_conn *c);
/* Reads what is there. The next whole reply is then in c->reply and *wait says whose; call until *has is false. */
quire_miss quire_conn_read(quire_conn *c);
quire_miss quire_conn_next_reply(quire_conn *c, bool *has, quire_wait *wait);

#endif
