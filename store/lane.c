/* SPDX-License-Identifier: MIT */
/* store: a lane: runs of commands over connections to all nodes, redirections followed, time-outs kept. */
#include "store/conn.h"

#include <stdlib.h>

#define MAX_REDIRECTS 5u
#define SLICE (100 * QUIRE_MS) /* how long it may take until a stop is seen */
#define LATE (100 * QUIRE_MS)  /* a node that was asked so long before the end of a run is judged at it */
#define HEDGE (100 * QUIRE_MS) /* reads go to a replica if connecting takes longer */
#define NOTHING (5 * QUIRE_MS) /* between two tries when no connection is under way */

enum { CALL_PENDING, CALL_SENT, CALL_DONE };

struct quire_lane {
    quire_remote *remote;
    const atomic_bool *stop;
    quire_conn *conn[QUIRE_MAX_NODES]; /* by the node's place */
    uint16_t place[QUIRE_MAX_NODES];   /* those that are there */
    uint32_t n_conns;
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

static void drop_conn(quire_lane *lane, uint32_t i)
{
    uint32_t place = lane->place[i];
    quire_conn_close(lane->conn[place]);
    quire_mem_free(&lane->remote->allocator, lane->conn[place], sizeof **lane->conn);
    lane->conn[place] = NULL;
    lane->place[i] = lane->place[--lane->n_conns];
}

void quire_lane_destroy(quire_lane *lane)
{
    if (!lane) return;
    const quire_allocator *a = &lane->remote->allocator;
    while (lane->n_conns) drop_conn(lane, lane->n_conns - 1);
    quire_mem_free(a, lane, sizeof *lane);
}

static uint64_t now_of(const quire_lane *lane)
{
    return quire_remote_now(lane->remote);
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

static bool is_read(const quire_call *call)
{
    return call->verb == QUIRE_EXISTS || call->verb == QUIRE_GET;
}

/* The connection is lost. What was sent is tried once more if that may help: a lost connection may have been an old one, and a
 * replica may have what a silent node does not send. */
static void lose(quire_lane *lane, quire_conn *c, quire_miss why, quire_trouble trouble)
{
    const quire_call *first = c->n_waits ? c->wait[c->first_wait].call : NULL;
    quire_node_failed(lane->remote, c->node, trouble, first);
    for (uint32_t i = 0; i < c->n_waits; i++) {
        quire_wait w = c->wait[(c->first_wait + i) % QUIRE_MAX_WAITS];
        if (!w.call) continue;
        bool retry = !w.call->is_pinned &&
                     (why == QUIRE_MISS_CONNECT || (why == QUIRE_MISS_STALLED && is_read(w.call)));
        bool is_replica = false;
        w.call->avoid = c->node;
        w.call->asking = false;
        if (!w.call->is_pinned) w.call->node = QUIRE_NO_NODE;
        if (retry && why == QUIRE_MISS_STALLED) /* only elsewhere */
            (void)quire_node_for(lane->remote, quire_call_slot(w.call), true, 0, c->node, &is_replica);
        if (retry && w.call->attempts++ == 0 && (why == QUIRE_MISS_CONNECT || is_replica))
            again(lane, w.call);
        else
            finish(lane, w.call, why);
    }
    /* Of the keeper: what it could not even send. */
    for (uint32_t i = 0; i < lane->n_calls; i++) {
        quire_call *call = &lane->calls[i];
        if (call->is_pinned && call->node == c->node) finish(lane, call, why);
    }
    quire_conn_close(c);
}

static void lose_for(quire_lane *lane, quire_conn *c, quire_miss why)
{
    lose(lane, c, why,
         why == QUIRE_MISS_AUTH       ? QUIRE_TROUBLE_REFUSED
         : why == QUIRE_MISS_PROTOCOL ? QUIRE_TROUBLE_HOPELESS
                                      : QUIRE_TROUBLE);
}

/* --------------------------------------------------------------- redirects */

/* "MOVED 3999 host:port", "ASK 3999 host:port". Without a host: that of the connection. */
static uint32_t redirected_to(quire_lane *lane, const quire_conn *c, const char *text, uint32_t *slot)
{
    char own[QUIRE_HOST_MAX];
    uint32_t port, ignored;
    const char *at = strchr(text, ' ');
    const char *host = at ? strchr(at + 1, ' ') : NULL, *colon = host ? strrchr(host, ':') : NULL;
    if (!colon) return QUIRE_NO_NODE;
    *slot = (uint32_t)strtoul(at + 1, NULL, 10);
    port = (uint32_t)strtoul(colon + 1, NULL, 10);
    host++;
    if (host < colon) return quire_node_at(lane->remote, host, (size_t)(colon - host), port);
    if (!quire_node_address(lane->remote, c->node, own, &ignored)) return QUIRE_NO_NODE;
    return quire_node_at(lane->remote, own, strlen(own), port);
}

static bool begins(const char *text, const char *word)
{
    return strncmp(text, word, strlen(word)) == 0;
}

static void redirect(quire_lane *lane, quire_conn *c, quire_call *call, bool moved)
{
    uint32_t slot = 0, node = redirected_to(lane, c, c->reply.text, &slot);
    if (node == QUIRE_NO_NODE || call->attempts++ >= MAX_REDIRECTS) {
        finish(lane, call, QUIRE_MISS_SERVER);
        return;
    }
    if (moved) {
        if (quire_node_topology(lane->remote) != QUIRE_CLUSTER)
            quire_node_set_topology(lane->remote, QUIRE_CLUSTER);
        quire_node_set_slot(lane->remote, slot, node);
        quire_node_set_stale(lane->remote);
    }
    call->asking = !moved;
    call->node = node; /* that one itself, not a replica of it */
    again(lane, call);
}

static void on_error(quire_lane *lane, quire_conn *c, quire_call *call)
{
    const char *text = c->reply.text;
    bool moved = begins(text, "MOVED "), ask = begins(text, "ASK ");
    call->asking = false;
    if (call->is_pinned && (moved || ask)) {
        finish(lane, call, QUIRE_MISS_NONE); /* it answers */
        return;
    }
    if (moved || ask) {
        redirect(lane, c, call, moved);
        return;
    }
    if (begins(text, "CLUSTERDOWN") && quire_node_topology(lane->remote) != QUIRE_CLUSTER)
        quire_node_set_topology(lane->remote, QUIRE_CLUSTER);
    bool is_stale = begins(text, "CLUSTERDOWN") || begins(text, "READONLY") || begins(text, "LOADING") ||
                    begins(text, "MASTERDOWN");
    if (is_stale) quire_node_set_stale(lane->remote);
    if (!begins(text, "TRYAGAIN")) quire_node_refuses(lane->remote, c->node, call->verb, !is_stale, text);
    /* A master that became a replica: its name may lead to another server by now. */
    if (begins(text, "READONLY")) c->is_outdated = true;
    bool auth = begins(text, "NOAUTH") || begins(text, "WRONGPASS") || begins(text, "NOPERM");
    finish(lane, call, auth ? QUIRE_MISS_AUTH : QUIRE_MISS_SERVER);
}

/* ------------------------------------------------------------------ replies */

static bool is_expected(const quire_call *call, int type)
{
    switch (call->verb) {
    case QUIRE_GET: return type == VALKEY_REPLY_STRING || type == VALKEY_REPLY_NIL;
    case QUIRE_SET: return type == VALKEY_REPLY_STATUS || (call->only_new && type == VALKEY_REPLY_NIL);
    case QUIRE_EXISTS:
    case QUIRE_EXPIRE:
    case QUIRE_DEL: return type == VALKEY_REPLY_INTEGER;
    case QUIRE_SLOTS_OF: break;
    }
    return false;
}

static quire_miss on_slots(quire_lane *lane, quire_conn *c, quire_call *call)
{
    int type = c->reply.type;
    quire_remote *r = lane->remote;
    bool told = type == VALKEY_REPLY_ARRAY && c->map && c->map->n_ranges;
    quire_miss miss = QUIRE_MISS_NONE;
    if (type == VALKEY_REPLY_ERROR && begins(c->reply.text, "NOAUTH"))
        miss = QUIRE_MISS_AUTH;
    else if (type != VALKEY_REPLY_ARRAY && type != VALKEY_REPLY_ERROR)
        miss = QUIRE_MISS_PROTOCOL;
    else if (told)
        quire_node_apply(r, c->map);
    else if (type == VALKEY_REPLY_ERROR && quire_node_topology(r) == QUIRE_TOPOLOGY_UNKNOWN &&
             !begins(c->reply.text, "LOADING"))
        quire_node_set_topology(r, QUIRE_SINGLE);
    quire_conn_drop_map(c);
    if (call && !miss) {
        call->found = told;
        finish(lane, call, QUIRE_MISS_NONE);
    }
    return miss;
}

/* NONE, or why the connection cannot be gone on with. */
static quire_miss on_reply(quire_lane *lane, quire_conn *c, const quire_wait *w)
{
    int type = c->reply.type;
    switch (w->kind) {
    case QUIRE_WAIT_AUTH: return type == VALKEY_REPLY_STATUS ? QUIRE_MISS_NONE : QUIRE_MISS_AUTH;
    case QUIRE_WAIT_ASKING:
    case QUIRE_WAIT_READONLY: return QUIRE_MISS_NONE; /* if refused, the command is redirected */
    case QUIRE_WAIT_SLOTS: return on_slots(lane, c, w->call);
    case QUIRE_WAIT_CALL: break;
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
    if (call->verb == QUIRE_SET) call->found = type == VALKEY_REPLY_NIL;
    quire_node_complies(lane->remote, c->node, call->verb);
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
    /* Not at the first reply: the others may never come. */
    if (any && !miss && !c->n_waits) {
        quire_node_succeeded(lane->remote, c->node, c->has_values);
        c->has_values = false;
    }
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

/* The connection to a node; a new one if need be. NULL: *why. */
static quire_conn *conn_to(quire_lane *lane, uint32_t node, bool is_pinned, quire_miss *why)
{
    uint32_t place = quire_node_index(node);
    quire_conn *c = lane->conn[place];
    *why = QUIRE_MISS_NONE;
    if (c && c->state != QUIRE_CONN_CLOSED && c->node != node)
        quire_conn_close(c); /* of one that is forgotten */
    if (c && c->state != QUIRE_CONN_CLOSED) return c;
    if (!is_pinned && (*why = quire_node_may_try(lane->remote, node))) return NULL;
    if (!c) {
        c = lane->conn[place] = (quire_conn *)quire_mem_take(&lane->remote->allocator, sizeof *c);
        if (!c) {
            *why = QUIRE_MISS_MEMORY;
            return NULL;
        }
        lane->place[lane->n_conns++] = (uint16_t)place;
    }
    if (quire_conn_begin(c, lane->remote, node)) return c;
    quire_node_failed(lane->remote, node, QUIRE_TROUBLE, NULL);
    *why = QUIRE_MISS_CONNECT;
    return NULL;
}

static bool has_room(const quire_lane *lane, const quire_conn *c, const quire_call *call)
{
    if (c->state != QUIRE_CONN_OPEN) return false;
    if (call->verb != QUIRE_GET) return true;
    return !c->in_flight || c->in_flight + call->bytes <= lane->remote->options.in_flight_bytes;
}

/* Where a call shall go. */
static quire_conn *route(quire_lane *lane, quire_call *call, bool *is_replica, quire_miss *why)
{
    *is_replica = false;
    if (call->is_pinned || (call->node != QUIRE_NO_NODE && quire_node_is_known(lane->remote, call->node)))
        return conn_to(lane, call->node, call->is_pinned, why);
    uint32_t slot = quire_call_slot(call), which = quire_load32(call->object.byte + 4);
    bool reads = is_read(call);
    uint32_t node = quire_node_for(lane->remote, slot, reads, which, call->avoid, is_replica);
    quire_conn *c = conn_to(lane, node, false, why);
    bool stuck = !c || (c->state != QUIRE_CONN_OPEN && now_of(lane) - c->began > HEDGE);
    if (!stuck || !reads) return c;
    bool other_is_replica;
    uint32_t other = quire_node_for(lane->remote, slot, true, which, node, &other_is_replica);
    if (other == node) return c;
    quire_miss ignored;
    quire_conn *hedge = conn_to(lane, other, false, &ignored);
    if (!hedge) return c;
    *is_replica = other_is_replica;
    return hedge;
}

static void dispatch(quire_lane *lane)
{
    uint32_t begin = lane->first_pending;
    lane->first_pending = lane->n_calls;
    for (uint32_t i = begin; i < lane->n_calls; i++) {
        quire_call *call = &lane->calls[i];
        quire_miss why;
        bool is_replica;
        if (call->state != CALL_PENDING) continue;
        quire_conn *c = route(lane, call, &is_replica, &why);
        if (!c) {
            finish(lane, call, why);
        } else if (has_room(lane, c, call) && quire_conn_send(c, call, is_replica)) {
            call->state = CALL_SENT;
            quire_miss miss = call->verb == QUIRE_SET ? quire_conn_write(c) : QUIRE_MISS_NONE;
            if (miss) lose_for(lane, c, miss);
        } else {
            again(lane, call);
        }
    }
    for (uint32_t i = 0; i < lane->n_conns; i++) { /* many small commands in one go */
        quire_conn *c = lane->conn[lane->place[i]];
        if (c->state != QUIRE_CONN_OPEN) continue;
        quire_miss miss = quire_conn_write(c);
        if (miss) lose_for(lane, c, miss);
    }
}

/* --------------------------------------------------------------------- run */

static void check_time(quire_lane *lane, quire_conn *c)
{
    const quire_store_remote *o = &lane->remote->options;
    uint64_t now = now_of(lane);
    if (c->state != QUIRE_CONN_OPEN) {
        if (now - c->began > o->connect_ms * QUIRE_MS) lose_for(lane, c, QUIRE_MISS_CONNECT);
        return;
    }
    quire_pace pace = quire_conn_pace(c, now, o->stall_ms * QUIRE_MS);
    if (pace)
        lose(lane, c, QUIRE_MISS_STALLED, pace == QUIRE_PACE_SLOW ? QUIRE_TROUBLE_TOO_SLOW : QUIRE_TROUBLE);
}

/* Waits for something to happen, at most a slice. */
static void wait_and_serve(quire_lane *lane, uint64_t deadline)
{
    const quire_transport *t = &lane->remote->transport;
    quire_link_poll p[QUIRE_MAX_NODES];
    quire_conn *of[QUIRE_MAX_NODES];
    uint32_t n = 0;
    uint64_t now = now_of(lane), slice = deadline > now ? deadline - now : 0;
    if (slice > SLICE) slice = SLICE;
    for (uint32_t i = 0; i < lane->n_conns; i++) {
        quire_conn *c = lane->conn[lane->place[i]];
        if (!quire_conn_is_busy(c)) continue;
        if (c->state == QUIRE_CONN_OPEN && t->pending(c->link)) slice = 0; /* poll() would sleep over these */
        of[n] = c;
        p[n++] = (quire_link_poll){.link = c->link, .wants_write = quire_conn_wants_write(c)};
    }
    t->poll(t->ctx, p, n, n ? slice : NOTHING < slice ? NOTHING : slice);
    now = now_of(lane);
    for (uint32_t i = 0; i < n; i++) {
        quire_conn *c = of[i];
        if (c->link != p[i].link) continue; /* lost while another one was served */
        /* On a slow link the bytes that are worth waking up for take longer than the patience with it. */
        bool overslept = c->state == QUIRE_CONN_OPEN && c->low_water > 1 && now - c->last_read >= SLICE;
        bool readable = p[i].readable || overslept || (c->state == QUIRE_CONN_OPEN && t->pending(c->link));
        if (readable || p[i].writable) {
            quire_miss miss = serve(lane, c, readable, p[i].writable);
            if (miss) lose_for(lane, c, miss);
        }
        if (quire_conn_is_busy(c)) check_time(lane, c);
    }
}

/* What is under way at the end of a run is given up: replies to come would be taken for those of the next. */
static void leave(quire_lane *lane)
{
    uint64_t now = now_of(lane);
    for (uint32_t i = lane->n_conns; i-- > 0;) {
        quire_conn *c = lane->conn[lane->place[i]];
        if (c->state == QUIRE_CONN_CONNECTING && now - c->began > LATE)
            quire_node_failed(lane->remote, c->node, QUIRE_TROUBLE, NULL);
        if (c->state == QUIRE_CONN_OPEN && quire_conn_is_busy(c)) {
            const quire_call *first = c->n_waits ? c->wait[c->first_wait].call : NULL;
            quire_pace pace = quire_conn_pace(c, now, LATE);
            if (pace)
                quire_node_failed(lane->remote, c->node,
                                  pace == QUIRE_PACE_SLOW ? QUIRE_TROUBLE_SLOW : QUIRE_TROUBLE, first);
        }
        if (quire_conn_is_busy(c) || c->is_outdated) quire_conn_close(c);
        if (!quire_node_is_known(lane->remote, c->node)) drop_conn(lane, i);
    }
    lane->calls = NULL;
    lane->n_calls = 0;
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
        calls[i].avoid = QUIRE_NO_NODE;
        if (!calls[i].is_pinned) calls[i].node = QUIRE_NO_NODE;
    }
    while (lane->n_open && !atomic_load(lane->stop) && now_of(lane) < deadline) {
        dispatch(lane);
        if (lane->n_open) wait_and_serve(lane, deadline);
    }
    leave(lane);
    for (uint32_t i = 0; i < n; i++)
        if (calls[i].state != CALL_DONE) finish(lane, &calls[i], QUIRE_MISS_DEADLINE);
}
