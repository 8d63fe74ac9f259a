/* SPDX-License-Identifier: MIT */
/* store: a lane: runs of commands over connections to all nodes, redirections followed, time-outs kept. */
#define _GNU_SOURCE
#include "store/conn.h"

#include <stdlib.h>

#define MAX_REDIRECTS 5u
#define SLICE (100 * QUIRE_MS) /* how long it may take until a stop is seen */
#define LATE (250 * QUIRE_MS)  /* silence of so long before a deadline counts against the node */

enum { CALL_PENDING, CALL_SENT, CALL_DONE };

struct quire_lane {
    quire_remote *remote;
    const atomic_bool *stop;
    quire_conn *conn[QUIRE_MAX_NODES];
    quire_call *calls;        /* of the run */
    uint32_t n_calls, n_open; /* n_open: not answered */
    uint32_t first_pending;
};

quire_lane *quire_lane_create(quire_remote *remote, const atomic_bool *stop)
{
    quire_lane *lane = (quire_lane *)quire_mem_take(&remote->allocator, sizeof *lane);
    if (!lane) return NULL;
    lane->remote = remote;
    lane->stop = stop;
    return lane;
}

void quire_lane_destroy(quire_lane *lane)
{
    if (!lane) return;
    const quire_allocator *a = &lane->remote->allocator;
    for (uint32_t i = 0; i < QUIRE_MAX_NODES; i++) {
        if (!lane->conn[i]) continue;
        quire_conn_close(lane->conn[i]);
        quire_mem_free(a, lane->conn[i], sizeof **lane->conn);
    }
    quire_mem_free(a, lane, sizeof *lane);
}

/* ---------------------------------------------------------------- outcomes */

static void finish(quire_lane *lane, quire_call *call, quire_miss miss)
{
    if (call->state == CALL_DONE) return;
    call->state = CALL_DONE;
    call->miss = miss;
    lane->n_open--;
}

static void again(quire_lane *lane, quire_call *call)
{
    call->state = CALL_PENDING;
    uint32_t at = (uint32_t)(call - lane->calls);
    if (at < lane->first_pending) lane->first_pending = at;
}

/* The connection is lost. What was sent is tried once more if that may help. */
static void lose(quire_lane *lane, quire_conn *c, quire_miss why)
{
    bool retry = why == QUIRE_MISS_CONNECT;
    for (uint32_t i = 0; i < c->n_waits; i++) {
        quire_wait w = c->wait[(c->first_wait + i) % QUIRE_MAX_WAITS];
        if (w.kind != QUIRE_WAIT_CALL) continue;
        if (retry && w.call->attempts++ == 0)
            again(lane, w.call);
        else
            finish(lane, w.call, why);
    }
    quire_node_failed(lane->remote, c->node, why == QUIRE_MISS_AUTH || why == QUIRE_MISS_PROTOCOL);
    quire_conn_close(c);
}

/* --------------------------------------------------------------- redirects */

/* "MOVED 3999 host:port", "ASK 3999 host:port". Without a host: that of the connection. */
static uint32_t redirected_to(quire_lane *lane, const quire_conn *c, const char *text, uint32_t *slot)
{
    char own[QUIRE_HOST_MAX];
    uint32_t port;
    const char *at = strchr(text, ' ');
    const char *host = at ? strchr(at + 1, ' ') : NULL, *colon = host ? strrchr(host, ':') : NULL;
    if (!colon) return QUIRE_NO_NODE;
    *slot = (uint32_t)strtoul(at + 1, NULL, 10);
    port = (uint32_t)strtoul(colon + 1, NULL, 10);
    host++;
    if (host < colon) return quire_node_at(lane->remote, host, (size_t)(colon - host), port);
    uint32_t ignored;
    quire_node_address(lane->remote, c->node, own, &ignored);
    return quire_node_at(lane->remote, own, strlen(own), port);
}

static bool begins(const char *text, const char *word)
{
    return strncmp(text, word, strlen(word)) == 0;
}

static void on_error(quire_lane *lane, quire_conn *c, quire_call *call)
{
    const char *text = c->reply.text;
    bool moved = begins(text, "MOVED "), ask = begins(text, "ASK ");
    call->asking = false;
    if (moved || ask) {
        uint32_t slot = 0, node = redirected_to(lane, c, text, &slot);
        if (node == QUIRE_NO_NODE || call->attempts++ >= MAX_REDIRECTS) {
            finish(lane, call, QUIRE_MISS_SERVER);
            return;
        }
        if (moved) {
            if (quire_node_topology(lane->remote) != QUIRE_CLUSTER)
                quire_node_set_topology(lane->remote, QUIRE_CLUSTER);
            quire_node_set_slots(lane->remote, slot, slot, node);
            quire_node_set_stale(lane->remote);
        }
        call->asking = ask;
        call->node = node;
        again(lane, call);
        return;
    }
    if (begins(text, "CLUSTERDOWN") || begins(text, "READONLY") || begins(text, "LOADING"))
        quire_node_set_stale(lane->remote);
    bool auth = begins(text, "NOAUTH") || begins(text, "WRONGPASS") || begins(text, "NOPERM");
    finish(lane, call, auth ? QUIRE_MISS_AUTH : QUIRE_MISS_SERVER);
}

/* ------------------------------------------------------------------ replies */

static bool is_expected(const quire_call *call, int type)
{
    switch (call->verb) {
    case QUIRE_GET: return type == VALKEY_REPLY_STRING || type == VALKEY_REPLY_NIL;
    case QUIRE_SET: return type == VALKEY_REPLY_STATUS;
    case QUIRE_EXISTS:
    case QUIRE_DEL: return type == VALKEY_REPLY_INTEGER;
    }
    return false;
}

/* NONE, or why the connection cannot be gone on with. */
static quire_miss on_reply(quire_lane *lane, quire_conn *c, const quire_wait *w)
{
    int type = c->reply.type;
    if (w->kind == QUIRE_WAIT_AUTH) return type == VALKEY_REPLY_STATUS ? QUIRE_MISS_NONE : QUIRE_MISS_AUTH;
    if (w->kind == QUIRE_WAIT_ASKING) return QUIRE_MISS_NONE;
    if (w->kind == QUIRE_WAIT_SLOTS) {
        if (type == VALKEY_REPLY_ERROR && begins(c->reply.text, "NOAUTH")) return QUIRE_MISS_AUTH;
        if (type == VALKEY_REPLY_ARRAY && c->n_ranges)
            quire_node_set_topology(lane->remote, QUIRE_CLUSTER);
        else if (type == VALKEY_REPLY_ERROR && quire_node_topology(lane->remote) == QUIRE_TOPOLOGY_UNKNOWN)
            quire_node_set_topology(lane->remote, QUIRE_SINGLE);
        return type == VALKEY_REPLY_ARRAY || type == VALKEY_REPLY_ERROR ? QUIRE_MISS_NONE
                                                                        : QUIRE_MISS_PROTOCOL;
    }
    quire_call *call = w->call;
    if (type == VALKEY_REPLY_ERROR) {
        on_error(lane, c, call);
        return QUIRE_MISS_NONE;
    }
    if (!is_expected(call, type)) {
        finish(lane, call, QUIRE_MISS_PROTOCOL);
        return QUIRE_MISS_PROTOCOL;
    }
    if (type == VALKEY_REPLY_INTEGER) call->found = c->reply.integer > 0;
    finish(lane, call, QUIRE_MISS_NONE);
    return QUIRE_MISS_NONE;
}

static quire_miss take_replies(quire_lane *lane, quire_conn *c)
{
    bool has = true, any = false;
    quire_miss miss = QUIRE_MISS_NONE;
    while (has && !miss) {
        quire_wait w;
        miss = quire_conn_next_reply(c, &has, &w);
        if (miss || !has) break;
        any = true;
        miss = on_reply(lane, c, &w);
    }
    if (any && !miss) quire_node_succeeded(lane->remote, c->node);
    return miss;
}

static quire_miss serve(quire_lane *lane, quire_conn *c, bool readable, bool writable)
{
    if (c->state != QUIRE_CONN_OPEN) {
        quire_miss miss = quire_conn_continue(c);
        return miss || c->state != QUIRE_CONN_OPEN ? miss : quire_conn_write(c);
    }
    quire_miss miss = QUIRE_MISS_NONE, answers;
    if (readable) {
        miss = quire_conn_read(c);
        answers = take_replies(lane, c); /* those that came before the connection was lost count */
        if (answers) miss = answers;
    }
    return miss || !writable ? miss : quire_conn_write(c);
}

/* ----------------------------------------------------------------- dispatch */

static quire_conn *conn_to(quire_lane *lane, uint32_t node, quire_miss *why)
{
    quire_conn *c = lane->conn[node];
    *why = QUIRE_MISS_NONE;
    if (!c) c = lane->conn[node] = (quire_conn *)quire_mem_take(&lane->remote->allocator, sizeof *c);
    if (!c) {
        *why = QUIRE_MISS_MEMORY;
    } else if (c->state == QUIRE_CONN_CLOSED) {
        if (!quire_node_may_try(lane->remote, node)) {
            *why = QUIRE_MISS_DOWN;
            return NULL;
        }
        if (!quire_conn_begin(c, lane->remote, node)) {
            quire_node_failed(lane->remote, node, false);
            *why = QUIRE_MISS_CONNECT;
            return NULL;
        }
    }
    return c;
}

static bool has_room(const quire_lane *lane, const quire_conn *c, const quire_call *call)
{
    if (c->state != QUIRE_CONN_OPEN || c->n_waits + 2 > QUIRE_MAX_WAITS) return false;
    if (call->verb == QUIRE_SET)
        return !quire_conn_wants_write(c); /* one value at a time in the write buffer */
    if (call->verb != QUIRE_GET) return true;
    return !c->in_flight || c->in_flight + call->bytes <= lane->remote->options.in_flight_bytes;
}

static void dispatch(quire_lane *lane)
{
    uint32_t begin = lane->first_pending;
    lane->first_pending = lane->n_calls;
    for (uint32_t i = begin; i < lane->n_calls; i++) {
        quire_call *call = &lane->calls[i];
        quire_miss why;
        if (call->state != CALL_PENDING) continue;
        uint32_t node = call->asking ? call->node : quire_node_of_slot(lane->remote, quire_call_slot(call));
        quire_conn *c = conn_to(lane, node, &why);
        if (!c) {
            finish(lane, call, why);
        } else if (has_room(lane, c, call) && quire_conn_send(c, call)) {
            call->state = CALL_SENT;
            quire_miss miss = quire_conn_write(c);
            if (miss) lose(lane, c, miss);
        } else {
            again(lane, call);
        }
    }
}

/* The slots are asked for again when they turned out wrong, whoever can answer. */
static void refresh(quire_lane *lane)
{
    uint32_t node = 0;
    quire_miss why;
    if (!quire_node_take_refresh(lane->remote, &node)) return;
    quire_conn *c = conn_to(lane, node, &why);
    if (!c || c->state != QUIRE_CONN_OPEN || !quire_conn_ask_slots(c))
        return; /* a new connection asks by itself */
    quire_miss miss = quire_conn_write(c);
    if (miss) lose(lane, c, miss);
}

/* --------------------------------------------------------------------- run */

static bool is_waiting(const quire_conn *c)
{
    return c && c->state != QUIRE_CONN_CLOSED &&
           (c->state != QUIRE_CONN_OPEN || c->n_waits || quire_conn_wants_write(c));
}

static void check_time(quire_lane *lane, quire_conn *c, uint64_t now)
{
    const quire_store_remote *o = &lane->remote->options;
    if (c->state != QUIRE_CONN_OPEN) {
        if (now - c->began > o->connect_ms * QUIRE_MS) lose(lane, c, QUIRE_MISS_CONNECT);
    } else if (now - c->progress > o->stall_ms * QUIRE_MS) {
        lose(lane, c, QUIRE_MISS_STALLED);
    }
}

/* Waits for something to happen, at most a slice. */
static void wait_and_serve(quire_lane *lane, uint64_t deadline)
{
    const quire_transport *t = &lane->remote->transport;
    quire_link_poll p[QUIRE_MAX_NODES];
    quire_conn *of[QUIRE_MAX_NODES];
    uint32_t n = 0;
    uint64_t now = quire_remote_now(lane->remote), slice = deadline > now ? deadline - now : 0;
    if (slice > SLICE) slice = SLICE;
    for (uint32_t i = 0; i < QUIRE_MAX_NODES; i++) {
        quire_conn *c = lane->conn[i];
        if (!is_waiting(c)) continue;
        of[n] = c;
        p[n++] = (quire_link_poll){.link = c->link, .wants_write = quire_conn_wants_write(c)};
    }
    t->poll(t->ctx, p, n, n ? slice : 5 * QUIRE_MS);
    for (uint32_t i = 0; i < n; i++) {
        if (p[i].readable || p[i].writable) {
            quire_miss miss = serve(lane, of[i], p[i].readable, p[i].writable);
            if (miss) lose(lane, of[i], miss);
        }
        if (is_waiting(of[i])) check_time(lane, of[i], quire_remote_now(lane->remote));
    }
}

void quire_lane_run(quire_lane *lane, quire_call *calls, uint32_t n, uint64_t deadline)
{
    lane->calls = calls;
    lane->n_calls = lane->n_open = n;
    lane->first_pending = 0;
    for (uint32_t i = 0; i < n; i++) {
        calls[i].state = CALL_PENDING;
        calls[i].attempts = 0;
        calls[i].found = calls[i].asking = false;
    }
    while (lane->n_open && !atomic_load(lane->stop) && quire_remote_now(lane->remote) < deadline) {
        refresh(lane);
        dispatch(lane);
        if (lane->n_open) wait_and_serve(lane, deadline);
    }
    for (uint32_t i = 0; i < n; i++)
        if (calls[i].state != CALL_DONE) finish(lane, &calls[i], QUIRE_MISS_DEADLINE);
    uint64_t now = quire_remote_now(lane->remote);
    for (uint32_t i = 0; i < QUIRE_MAX_NODES; i++) {
        quire_conn *c = lane->conn[i];
        if (!c || c->state == QUIRE_CONN_CLOSED ||
            (c->state == QUIRE_CONN_OPEN && !c->n_waits && !quire_conn_wants_write(c)))
            continue;
        /* Replies to come would be taken for those of the next run. */
        if (now - c->progress > LATE) quire_node_failed(lane->remote, c->node, false);
        quire_conn_close(c);
    }
    lane->calls = NULL;
    lane->n_calls = 0;
}
