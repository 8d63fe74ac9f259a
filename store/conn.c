/* SPDX-License-Identifier: MIT */
/* store: one connection to a node. libvalkey reads the protocol; values are handed on from its read buffer and sent from where
 * they lie, without a copy, and nothing is allocated because of a number in a reply. */
#include "store/conn.h"

#include <stdio.h>

#define KEY_PREFIX "q1:"
#define KEY_BYTES (sizeof KEY_PREFIX - 1 + 64)
#define READ_BYTES (64u << 10)
#define SLACK_BYTES (64u << 10) /* of replies that are not values */
#define READS_IN_A_ROW 64
#define WAKE_BYTES (256u << 10)
#define TEXT_ROOM 512u /* more than any one command and what goes before it takes */
#define FIRST_TEXT 4096u
#define REPLY_WORTH 256u /* bytes that a reply counts for, beside its own: what answering costs */

/* ---------------------------------------------------- replies, as libvalkey finds them */

static int depth_of(const valkeyReadTask *t)
{
    int depth = 0;
    for (; t->parent; t = t->parent) depth++;
    return depth;
}

static const quire_wait *head(const quire_conn *c)
{
    return c->n_waits ? &c->wait[c->first_wait] : NULL;
}

static bool is_slots(const quire_conn *c)
{
    return head(c) && head(c)->kind == QUIRE_WAIT_SLOTS;
}

static void *on_string(const valkeyReadTask *t, char *text, size_t n)
{
    quire_conn *c = (quire_conn *)t->privdata;
    const quire_wait *w = head(c);
    if (!t->parent) {
        c->reply.type = t->type;
        if (t->type == VALKEY_REPLY_STRING && w && w->kind == QUIRE_WAIT_CALL && w->call->verb == QUIRE_GET) {
            w->call->found = n != 0; /* GETRANGE of nothing is "" */
            c->has_values |= n != 0;
            if (n && w->call->on_value) w->call->on_value(w->call->ctx, (const uint8_t *)text, n);
        } else {
            if (n >= sizeof c->reply.text) n = sizeof c->reply.text - 1;
            memcpy(c->reply.text, text, n);
            c->reply.text[n] = 0;
        }
    } else if (is_slots(c) && depth_of(t) == 3 && t->parent->idx >= 2 && t->idx == 0) {
        c->range_host_bytes = n < sizeof c->range_host ? (uint32_t)n : 0;
        memcpy(c->range_host, text, c->range_host_bytes);
    }
    return c;
}

/* A node of the current range: the first is the master, the others are its replicas. */
static void on_range_node(quire_conn *c, uint32_t port, bool is_master)
{
    char own[QUIRE_HOST_MAX];
    uint32_t ignored, node = QUIRE_NO_NODE;
    quire_slot_map *map = c->map;
    if (!map) return;
    bool is_nameless = c->range_host_bytes == 1 && c->range_host[0] == '?';
    if (c->range_host_bytes && !is_nameless)
        node = quire_node_at(c->remote, c->range_host, c->range_host_bytes, port);
    else if (!is_nameless &&
             quire_node_address(c->remote, c->node, own, &ignored)) /* no host: that of the connection */
        node = quire_node_at(c->remote, own, strlen(own), port);
    if (is_master) {
        c->range_master = node;
        map->n_ranges++;
        if (c->range_first > c->range_last || c->range_last >= QUIRE_SLOTS) return;
        for (uint32_t i = c->range_first; i <= c->range_last; i++) map->owner[i] = node;
    } else if (node != QUIRE_NO_NODE && map->n_replicas < QUIRE_MAX_NODES) {
        map->replica[map->n_replicas].replica = node;
        map->replica[map->n_replicas++].master = c->range_master;
    }
}

/* [[first, last, [host, port, ...], replicas...], ...] */
static void *on_integer(const valkeyReadTask *t, long long value)
{
    quire_conn *c = (quire_conn *)t->privdata;
    uint32_t number = value >= 0 && value <= 65535 ? (uint32_t)value : UINT32_MAX;
    if (!t->parent) {
        c->reply.type = t->type;
        c->reply.integer = value;
    } else if (is_slots(c) && depth_of(t) == 2 && t->idx < 2) {
        *(t->idx ? &c->range_last : &c->range_first) = number;
    } else if (is_slots(c) && depth_of(t) == 3 && t->parent->idx >= 2 && t->idx == 1) {
        on_range_node(c, number, t->parent->idx == 2);
        c->range_host_bytes = 0;
    }
    return c;
}

static void *on_array(const valkeyReadTask *t, size_t n)
{
    quire_conn *c = (quire_conn *)t->privdata;
    (void)n;
    if (!t->parent) c->reply.type = t->type;
    return c;
}

static void *on_nil(const valkeyReadTask *t)
{
    quire_conn *c = (quire_conn *)t->privdata;
    if (!t->parent) c->reply.type = VALKEY_REPLY_NIL;
    return c;
}

static void *on_double(const valkeyReadTask *t, double value, char *text, size_t n)
{
    (void)value;
    (void)text;
    (void)n;
    return on_nil(t);
}

static void *on_bool(const valkeyReadTask *t, int value)
{
    (void)value;
    return on_nil(t);
}

static void on_free(void *object)
{
    (void)object; /* it is the connection */
}

static valkeyReplyObjectFunctions functions = {on_string, on_array, on_integer, on_double,
                                               on_nil,    on_bool,  on_free};

/* --------------------------------------------------------------- connecting */

bool quire_conn_begin(quire_conn *c, quire_remote *remote, uint32_t node)
{
    char host[QUIRE_HOST_MAX];
    uint32_t port;
    memset(c, 0, sizeof *c);
    c->remote = remote;
    c->node = node;
    c->low_water = 1;
    c->began = c->window = quire_remote_now(remote);
    if (!quire_node_address(remote, node, host, &port)) return false;
    c->link = remote->transport.open(remote->transport.ctx, host, port, quire_node_attempt(remote, node));
    c->reader = c->link ? valkeyReaderCreateWithFunctions(&functions) : NULL;
    if (!c->reader) {
        quire_conn_close(c);
        return false;
    }
    c->state = QUIRE_CONN_CONNECTING;
    c->reader->privdata = c;
    c->reader->maxbuf = 0; /* keep the buffer for the next value */
    c->reader->maxdepth = 8;
    c->reader->maxelements = QUIRE_SLOTS;
    return true;
}

void quire_conn_drop_map(quire_conn *c)
{
    quire_mem_free(&c->remote->allocator, c->map, sizeof *c->map);
    c->map = NULL;
}

void quire_conn_close(quire_conn *c)
{
    if (!c->remote) return;
    if (c->link) c->remote->transport.close(c->link);
    if (c->reader) valkeyReaderFree(c->reader);
    quire_mem_free(&c->remote->allocator, c->text, c->cap_text);
    quire_conn_drop_map(c);
    c->link = NULL;
    c->reader = NULL;
    c->text = NULL;
    c->state = QUIRE_CONN_CLOSED;
    c->n_waits = c->first_wait = 0;
    c->in_flight = 0;
    c->cap_text = c->n_text = c->n_written = c->value_bytes = 0;
}

static size_t unwritten(const quire_conn *c)
{
    return c->n_text + c->value_bytes - c->n_written;
}

/* Room for a command of n bytes. */
static bool make_room(quire_conn *c, size_t n)
{
    const quire_allocator *a = &c->remote->allocator;
    if (!unwritten(c)) c->n_text = c->n_written = c->value_bytes = 0;
    if (c->cap_text - c->n_text >= n) return true;
    size_t cap = c->cap_text ? c->cap_text * 2 : FIRST_TEXT;
    while (cap - c->n_text < n) cap *= 2;
    char *text = cap <= QUIRE_TEXT_MAX ? (char *)quire_mem_take(a, cap) : NULL;
    if (!text) return false;
    if (c->n_text) memcpy(text, c->text, c->n_text);
    quire_mem_free(a, c->text, c->cap_text);
    c->text = text;
    c->cap_text = cap;
    return true;
}

static bool append(quire_conn *c, const char *bytes, size_t n)
{
    if (n > c->cap_text - c->n_text) return false;
    memcpy(c->text + c->n_text, bytes, n);
    c->n_text += n;
    return true;
}

/* Bytes of commands that the other side has. TLS sends more bytes than it was given. */
static uint64_t acknowledged(const quire_conn *c)
{
    size_t unsent = c->remote->transport.unsent(c->link);
    return c->n_accepted > unsent ? c->n_accepted - unsent : 0;
}

static void expect(quire_conn *c, quire_wait_kind kind, quire_call *call)
{
    uint64_t now = quire_remote_now(c->remote);
    if (!c->n_waits) { /* the rate counts from here */
        c->window = now;
        c->moved = 0;
        c->acknowledged = acknowledged(c);
    }
    c->wait[(c->first_wait + c->n_waits) % QUIRE_MAX_WAITS] =
        (quire_wait){.kind = kind, .call = call, .sent = now};
    c->n_waits++;
}

static bool append_command(quire_conn *c, int argc, const char **argv, quire_wait_kind kind, quire_call *call)
{
    char head[32];
    size_t room = 0;
    for (int i = 0; i < argc; i++) room += strlen(argv[i]) + sizeof head;
    if (c->n_waits == QUIRE_MAX_WAITS || !make_room(c, room + sizeof head)) return false;
    size_t before = c->n_text;
    bool good = append(c, head, (size_t)snprintf(head, sizeof head, "*%d\r\n", argc));
    for (int i = 0; i < argc && good; i++) {
        size_t n = strlen(argv[i]);
        good = append(c, head, (size_t)snprintf(head, sizeof head, "$%zu\r\n", n)) && append(c, argv[i], n) &&
               append(c, "\r\n", 2);
    }
    if (good)
        expect(c, kind, call);
    else
        c->n_text = before;
    return good;
}

static bool ask_slots(quire_conn *c, quire_call *call)
{
    const char *argv[] = {"CLUSTER", "SLOTS"};
    if (c->map) return false; /* one at a time */
    c->map = (quire_slot_map *)quire_mem_take(&c->remote->allocator, sizeof *c->map);
    if (!c->map) return false;
    memset(c->map->owner, 0xff, sizeof c->map->owner);
    if (append_command(c, 2, argv, QUIRE_WAIT_SLOTS, call)) return true;
    quire_conn_drop_map(c);
    return false;
}

static bool greet(quire_conn *c)
{
    const quire_store_remote *o = &c->remote->options;
    const char *argv[3] = {"AUTH", o->user ? o->user : o->password, o->password};
    quire_count(&c->remote->counters->reconnects, 1);
    if (o->password && !append_command(c, o->user ? 3 : 2, argv, QUIRE_WAIT_AUTH, NULL)) return false;
    return quire_node_topology(c->remote) != QUIRE_TOPOLOGY_UNKNOWN || ask_slots(c, NULL);
}

quire_miss quire_conn_continue(quire_conn *c)
{
    int rc = c->remote->transport.connect(c->link);
    if (rc < 0) return QUIRE_MISS_CONNECT;
    if (!rc) return QUIRE_MISS_NONE;
    c->state = QUIRE_CONN_OPEN;
    c->window = quire_remote_now(c->remote);
    return greet(c) ? QUIRE_MISS_NONE : QUIRE_MISS_MEMORY;
}

bool quire_conn_wants_write(const quire_conn *c)
{
    return unwritten(c) != 0;
}

/* ----------------------------------------------------------------- commands */

static void key_of(char key[KEY_BYTES + 1], const quire_key *object)
{
    static const char digits[] = "0123456789abcdef";
    size_t n = sizeof KEY_PREFIX - 1;
    memcpy(key, KEY_PREFIX, n);
    for (int i = 0; i < 32; i++) {
        key[n++] = digits[object->byte[i] >> 4];
        key[n++] = digits[object->byte[i] & 15];
    }
    key[n] = 0;
}

uint32_t quire_call_slot(const quire_call *call)
{
    char key[KEY_BYTES + 1];
    key_of(key, &call->object);
    return quire_slot_of(key, KEY_BYTES);
}

static bool send_set(quire_conn *c, quire_call *call, const char *key)
{
    char text[256], seconds[16];
    uint32_t ttl = c->remote->options.ttl_seconds;
    int argc = 3 + (ttl ? 2 : 0) + (call->only_new ? 1 : 0);
    int n = snprintf(text, sizeof text, "*%d\r\n$3\r\nSET\r\n$%zu\r\n%s\r\n$%zu\r\n", argc, KEY_BYTES, key,
                     call->bytes);
    if (!append(c, text, (size_t)n)) return false;
    c->value = call->value;
    c->value_bytes = call->bytes;
    c->value_at = c->n_text;
    int digits = snprintf(seconds, sizeof seconds, "%u", (unsigned)ttl);
    n = snprintf(text, sizeof text, "\r\n%s", call->only_new ? "$2\r\nNX\r\n" : "");
    if (ttl) n += snprintf(text + n, sizeof text - (size_t)n, "$2\r\nEX\r\n$%d\r\n%s\r\n", digits, seconds);
    return append(c, text, (size_t)n);
}

static bool send_get(quire_conn *c, quire_call *call, const char *key)
{
    /* One byte more than is expected tells a longer value, and no server sends more than it was asked for. */
    char text[256], last[24];
    int digits = snprintf(last, sizeof last, "%zu", call->bytes);
    int n = snprintf(text, sizeof text, "*4\r\n$8\r\nGETRANGE\r\n$%zu\r\n%s\r\n$1\r\n0\r\n$%d\r\n%s\r\n",
                     KEY_BYTES, key, digits, last);
    return append(c, text, (size_t)n);
}

static bool send_simple(quire_conn *c, const quire_call *call, const char *key)
{
    char text[256], seconds[16];
    const char *name = call->verb == QUIRE_EXISTS ? "EXISTS" : call->verb == QUIRE_DEL ? "DEL" : "EXPIRE";
    bool expires = call->verb == QUIRE_EXPIRE;
    int n = snprintf(text, sizeof text, "*%d\r\n$%zu\r\n%s\r\n$%zu\r\n%s\r\n", expires ? 3 : 2, strlen(name),
                     name, KEY_BYTES, key);
    if (expires) {
        int digits = snprintf(seconds, sizeof seconds, "%u", (unsigned)c->remote->options.ttl_seconds);
        n += snprintf(text + n, sizeof text - (size_t)n, "$%d\r\n%s\r\n", digits, seconds);
    }
    return append(c, text, (size_t)n);
}

bool quire_conn_send(quire_conn *c, quire_call *call, bool to_replica)
{
    static const char *asking[] = {"ASKING"}, *readonly[] = {"READONLY"};
    char key[KEY_BYTES + 1];
    bool good;
    if (call->verb == QUIRE_SLOTS_OF) return ask_slots(c, call);
    if (c->n_waits + 3 > QUIRE_MAX_WAITS || !make_room(c, TEXT_ROOM)) return false;
    if (call->verb == QUIRE_SET && unwritten(c)) return false; /* one value at a time */
    key_of(key, &call->object);
    if (to_replica && !c->is_readonly) {
        if (!append_command(c, 1, readonly, QUIRE_WAIT_READONLY, NULL)) return false;
        c->is_readonly = true;
    }
    if (call->asking && !append_command(c, 1, asking, QUIRE_WAIT_ASKING, NULL)) return false;
    if (call->verb == QUIRE_SET)
        good = send_set(c, call, key);
    else if (call->verb == QUIRE_GET)
        good = send_get(c, call, key);
    else
        good = send_simple(c, call, key);
    if (!good) return false; /* cannot be: there was room */
    if (call->verb == QUIRE_GET) c->in_flight += call->bytes;
    expect(c, QUIRE_WAIT_CALL, call);
    return true;
}

/* What is still to be written: text, the value in its place, the text behind it. */
static int parts_of(quire_conn *c, struct iovec parts[3])
{
    struct iovec all[3] = {{c->text, c->value_bytes ? c->value_at : c->n_text},
                           {(void *)(uintptr_t)c->value, c->value_bytes},
                           {c->text + c->value_at, c->value_bytes ? c->n_text - c->value_at : 0}};
    size_t skip = c->n_written;
    int n = 0;
    for (int i = 0; i < 3; i++) {
        size_t less = skip < all[i].iov_len ? skip : all[i].iov_len;
        skip -= less;
        if (less == all[i].iov_len) continue;
        parts[n++] = (struct iovec){(uint8_t *)all[i].iov_base + less, all[i].iov_len - less};
    }
    return n;
}

quire_miss quire_conn_write(quire_conn *c)
{
    struct iovec parts[3];
    if (!unwritten(c)) return QUIRE_MISS_NONE;
    ssize_t n = c->remote->transport.write(c->link, parts, parts_of(c, parts));
    if (n < 0) return QUIRE_MISS_CONNECT;
    c->n_written += (size_t)n;
    c->n_accepted += (size_t)n;
    return QUIRE_MISS_NONE;
}

/* ------------------------------------------------------------------ replies */

/* Bytes that may lie in the read buffer: one value that was asked for, and the small replies behind it. */
static size_t read_limit(const quire_conn *c)
{
    const quire_wait *w = head(c);
    size_t limit = w && w->kind == QUIRE_WAIT_CALL && w->call->verb == QUIRE_GET ? w->call->bytes : 0;
    return limit + SLACK_BYTES;
}

/* Bytes of a value whose length has come, that are still missing; 0: none, or not known. */
static size_t missing(const quire_conn *c)
{
    const valkeyReader *r = c->reader;
    const char *at = r->buf + r->pos;
    size_t held = r->len - r->pos, n = 0, i = 1;
    if (held < 4 || at[0] != '$') return 0;
    for (; i < held && i < 12 && at[i] >= '0' && at[i] <= '9'; i++) n = n * 10 + (size_t)(at[i] - '0');
    if (i + 1 >= held || at[i] != '\r') return 0;
    size_t whole = i + 2 + n + 2;
    return whole > held ? whole - held : 0;
}

/* A server sends a value in small parts. We are woken when a good deal of it is there, or the rest. */
static void sleep_longer(quire_conn *c)
{
    size_t left = missing(c);
    c->low_water = left > WAKE_BYTES ? WAKE_BYTES : left > 1 ? left : 1;
    c->remote->transport.expect(c->link, c->low_water);
}

static quire_miss read_some(quire_conn *c)
{
    valkeyReader *r = c->reader;
    for (int i = 0; i < READS_IN_A_ROW; i++) {
        char *to;
        size_t cap, held = r->len - r->pos, limit = read_limit(c);
        if (held >= limit) return i ? QUIRE_MISS_NONE : QUIRE_MISS_PROTOCOL;
        size_t want = limit - held < READ_BYTES ? limit - held : READ_BYTES;
        if (limit - held > SLACK_BYTES) want = limit - held; /* a value: room for all of it at once */
        if (valkeyReaderGetReadBuf(r, &to, &cap, want) != VALKEY_OK) return QUIRE_MISS_MEMORY;
        ssize_t n = c->remote->transport.read(c->link, to, want);
        if (n < 0) return QUIRE_MISS_CONNECT;
        if (n == 0) return QUIRE_MISS_NONE;
        valkeyReaderCommitRead(r, (size_t)n);
        c->moved += (size_t)n;
        if ((size_t)n < want && !c->remote->options.tls) return QUIRE_MISS_NONE;
        if (r->len - r->pos >= limit) return QUIRE_MISS_NONE;
    }
    return QUIRE_MISS_NONE;
}

quire_miss quire_conn_read(quire_conn *c)
{
    quire_miss miss = read_some(c);
    c->last_read = quire_remote_now(c->remote);
    if (!miss) sleep_longer(c);
    return miss;
}

quire_miss quire_conn_next_reply(quire_conn *c, bool *has, quire_wait *wait)
{
    void *object = NULL;
    *has = false;
    if (!c->n_waits) return c->reader->len > c->reader->pos ? QUIRE_MISS_PROTOCOL : QUIRE_MISS_NONE;
    if (valkeyReaderGetReply(c->reader, &object) != VALKEY_OK) return QUIRE_MISS_PROTOCOL;
    if (!object) return QUIRE_MISS_NONE;
    *wait = c->wait[c->first_wait];
    c->first_wait = (c->first_wait + 1) % QUIRE_MAX_WAITS;
    c->n_waits--;
    c->moved += REPLY_WORTH;
    if (wait->kind == QUIRE_WAIT_CALL && wait->call->verb == QUIRE_GET) c->in_flight -= wait->call->bytes;
    *has = true;
    return QUIRE_MISS_NONE;
}

/* --------------------------------------------------------------------- pace */

quire_pace quire_conn_pace(quire_conn *c, uint64_t now, uint64_t at_least)
{
    const quire_wait *oldest = head(c);
    uint64_t elapsed = now - c->window;
    if (elapsed < at_least) return QUIRE_PACE_FINE;
    /* What was asked for a moment ago is not late yet. */
    if (oldest && now - oldest->sent < at_least && !unwritten(c)) {
        c->window = oldest->sent;
        c->moved = 0;
        return QUIRE_PACE_FINE;
    }
    uint64_t out = acknowledged(c), moved = c->moved + (out > c->acknowledged ? out - c->acknowledged : 0);
    uint64_t enough = elapsed / QUIRE_MS * c->remote->options.min_bytes_per_second / 1000;
    if (moved < enough) return moved ? QUIRE_PACE_SLOW : QUIRE_PACE_SILENT;
    c->window = now;
    c->moved = 0;
    c->acknowledged = out;
    return QUIRE_PACE_FINE;
}
