/* SPDX-License-Identifier: MIT */
/* Peers of the scripted world: as much of Redis as the store uses. */
#define _GNU_SOURCE
#include "store/kit/world_peer.h"

#include <string.h>
#include <strings.h>

#define MAX_ARGS 8
#define RECORD_BYTES 16384u

typedef struct command {
    int argc;
    const char *arg[MAX_ARGS];
    size_t n[MAX_ARGS];
} command;

/* ------------------------------------------------------------------ sending */

static void deliver(quire_link *l, const void *bytes, size_t n)
{
    world *w = l->world;
    const world_peer *p = &w->peer[l->peer];
    for (size_t at = 0, part; at < n; at += part) {
        part = n - at;
        if (w->n_read_cuts) {
            size_t cut = w->read_cuts[w->at_read_cut++ % w->n_read_cuts];
            if (cut < part) part = cut;
        }
        if (w->is_tls && part > RECORD_BYTES) part = RECORD_BYTES;
        if (p->rate && part > p->rate / 50 + 1) part = p->rate / 50 + 1; /* fifty times a second */
        world_chunk *c = (world_chunk *)malloc(sizeof *c + part);
        c->next = NULL;
        c->n = part;
        c->at = 0;
        memcpy(c->bytes, (const uint8_t *)bytes + at, part);
        uint64_t from = l->last && l->last->time + w->chunk_gap > w->clock + p->latency
                            ? l->last->time + w->chunk_gap
                            : w->clock + p->latency;
        c->time = from + (p->rate ? (uint64_t)((double)part / (double)p->rate * 1e9) : 0);
        if (l->last)
            l->last->next = c;
        else
            l->first = c;
        l->last = c;
        l->n_sent += part;
        if (p->reset_after && l->n_sent >= p->reset_after) {
            l->is_lost = true;
            return;
        }
    }
}

static void say(quire_link *l, const char *text)
{
    deliver(l, text, strlen(text));
}

/* Several parts of one reply are one write of the server. */
typedef struct reply {
    uint8_t *bytes;
    size_t n, cap;
} reply;

static void add(reply *r, const void *bytes, size_t n)
{
    if (r->n + n > r->cap) {
        r->cap = (r->n + n) * 2;
        r->bytes = (uint8_t *)realloc(r->bytes, r->cap);
    }
    memcpy(r->bytes + r->n, bytes, n);
    r->n += n;
}

static void addf(reply *r, const char *format, unsigned long a, unsigned long b)
{
    char text[128];
    add(r, text, (size_t)snprintf(text, sizeof text, format, a, b));
}

static void send_reply(quire_link *l, reply *r)
{
    deliver(l, r->bytes, r->n);
    free(r->bytes);
}

/* ----------------------------------------------------------------- commands */

static bool is(const command *c, int i, const char *word)
{
    return i < c->argc && strlen(word) == c->n[i] && !strncasecmp(c->arg[i], word, c->n[i]);
}

static world_value *find(world *w, int peer, const char *key, size_t n)
{
    for (world_value *v = w->values; v; v = v->next)
        if (v->on[peer] && strlen(v->key) == n && !memcmp(v->key, key, n))
            return v->expires && v->expires <= w->clock ? NULL : v;
    return NULL;
}

static void add_address(reply *r, const world_peer *p)
{
    char text[160];
    add(r, text,
        (size_t)snprintf(text, sizeof text, "*3\r\n$%zu\r\n%s\r\n:%u\r\n$2\r\nid\r\n", strlen(p->host),
                         p->host, p->port));
}

static void say_slots(quire_link *l)
{
    world *w = l->world;
    reply ranges = {0}, whole = {0};
    unsigned long n = 0;
    for (uint32_t first = 0, last; first < QUIRE_SLOTS; first = last + 1) {
        int owner = w->owner[first];
        for (last = first; last + 1 < QUIRE_SLOTS && w->owner[last + 1] == owner;) last++;
        if (owner < 0) continue;
        unsigned long n_replicas = 0;
        for (uint32_t i = 0; i < w->n_peers; i++)
            n_replicas += w->peer[i].master == owner && !w->peer[i].refuses;
        addf(&ranges, "*%lu\r\n", 3 + n_replicas, 0);
        addf(&ranges, ":%lu\r\n:%lu\r\n", first, last);
        add_address(&ranges, &w->peer[owner]);
        for (uint32_t i = 0; i < w->n_peers; i++)
            if (w->peer[i].master == owner && !w->peer[i].refuses) add_address(&ranges, &w->peer[i]);
        n++;
    }
    addf(&whole, "*%lu\r\n", n, 0);
    add(&whole, ranges.bytes, ranges.n);
    free(ranges.bytes);
    send_reply(l, &whole);
}

/* Whether the peer has the key's slot; else it says who does. */
static bool is_ours(quire_link *l, const char *key, size_t n, bool reads)
{
    world *w = l->world;
    char text[160];
    uint32_t slot = quire_slot_of(key, n);
    int owner = w->owner[slot], to = w->goes_to[slot];
    bool asking = l->is_asking;
    l->is_asking = false;
    if (w->is_single) return true;
    if (owner < 0) {
        say(l, "-CLUSTERDOWN Hash slot not served\r\n");
        return false;
    }
    if (to >= 0 && owner == l->peer && !find(w, l->peer, key, n)) {
        (void)snprintf(text, sizeof text, "-ASK %u %s:%u\r\n", slot, w->peer[to].host, w->peer[to].port);
        say(l, text);
        return false;
    }
    if (owner == l->peer || (asking && to == l->peer)) return true;
    if (reads && l->is_readonly && w->peer[l->peer].master == owner) return true;
    (void)snprintf(text, sizeof text, "-MOVED %u %s:%u\r\n", slot, w->peer[owner].host, w->peer[owner].port);
    say(l, text);
    return false;
}

static void do_set(quire_link *l, const command *c)
{
    world *w = l->world;
    world_value *v = find(w, l->peer, c->arg[1], c->n[1]);
    bool only_new = false;
    uint64_t ttl = 0;
    for (int i = 3; i < c->argc; i++) {
        only_new |= is(c, i, "NX");
        if (is(c, i, "EX")) ttl = strtoull(c->arg[i + 1], NULL, 10);
    }
    if (v && only_new) {
        say(l, "$-1\r\n");
        return;
    }
    if (!v) {
        v = (world_value *)calloc(1, sizeof *v);
        memcpy(v->key, c->arg[1], c->n[1] < 79 ? c->n[1] : 79);
        v->next = w->values;
        w->values = v;
    }
    v->bytes = (uint8_t *)realloc(v->bytes, c->n[2] + 1);
    memcpy(v->bytes, c->arg[2], c->n[2]);
    v->n = c->n[2];
    v->expires = ttl ? w->clock + ttl * QUIRE_SECOND : 0;
    v->n_sets++;
    v->on[l->peer] = 1;
    for (uint32_t i = 0; i < w->n_peers; i++)
        if (w->peer[i].master == l->peer) v->on[i] = 1;
    say(l, "+OK\r\n");
}

static void do_key(quire_link *l, const command *c)
{
    world *w = l->world;
    bool reads = is(c, 0, "EXISTS") || is(c, 0, "GETRANGE");
    if (c->argc < 2 || !is_ours(l, c->arg[1], c->n[1], reads)) return;
    const char *error = reads ? w->peer[l->peer].read_error : w->peer[l->peer].error;
    w->peer[l->peer].n_reads += reads;
    world_value *v = find(w, l->peer, c->arg[1], c->n[1]);
    if (!reads && w->peer[l->peer].refuses_writes) {
        say(l, "-READONLY You can't write against a read only replica.\r\n");
    } else if (error) {
        say(l, error);
    } else if (is(c, 0, "SET")) {
        do_set(l, c);
    } else if (is(c, 0, "EXISTS")) {
        say(l, v ? ":1\r\n" : ":0\r\n");
    } else if (is(c, 0, "DEL")) {
        say(l, v ? ":1\r\n" : ":0\r\n");
        if (v) memset(v->on, 0, sizeof v->on);
    } else if (is(c, 0, "EXPIRE")) {
        if (v) v->expires = w->clock + strtoull(c->arg[2], NULL, 10) * QUIRE_SECOND;
        say(l, v ? ":1\r\n" : ":0\r\n");
    } else {
        reply r = {0};
        size_t last = (size_t)strtoull(c->arg[3], NULL, 10), n = !v ? 0 : v->n < last + 1 ? v->n : last + 1;
        addf(&r, "$%lu\r\n", n, 0);
        if (v) {
            v->n_gets++;
            add(&r, v->bytes, n);
        }
        add(&r, "\r\n", 2);
        send_reply(l, &r);
    }
}

static void execute(quire_link *l, const command *c)
{
    world *w = l->world;
    world_peer *p = &w->peer[l->peer];
    p->n_commands++;
    if (p->is_silent || l->is_lost) return;
    if (is(c, 0, "CLUSTER")) {
        p->n_slots_asked++;
        if (w->is_single || p->fails_slots)
            say(l, "-ERR This instance has cluster support disabled\r\n");
        else
            say_slots(l);
    } else if (is(c, 0, "AUTH") || is(c, 0, "ASKING") || is(c, 0, "READONLY")) {
        l->is_asking |= is(c, 0, "ASKING");
        l->is_readonly |= is(c, 0, "READONLY");
        say(l, "+OK\r\n");
    } else {
        do_key(l, c);
    }
}

/* One whole command from the front; 0: there is none. Only what a client of ours sends is understood. */
static size_t parse(const uint8_t *bytes, size_t n, command *c)
{
    const char *text = (const char *)bytes;
    size_t at = 0;
    *c = (command){0};
    const char *line = (const char *)memchr(text, '\n', n);
    if (!line) return 0;
    KIT_REQUIRE(text[0] == '*');
    int argc = atoi(text + 1);
    KIT_REQUIRE(argc > 0 && argc <= MAX_ARGS);
    at = (size_t)(line - text) + 1;
    for (; c->argc < argc; c->argc++) {
        line = at < n ? (const char *)memchr(text + at, '\n', n - at) : NULL;
        if (!line) return 0;
        KIT_REQUIRE(text[at] == '$');
        size_t length = (size_t)strtoull(text + at + 1, NULL, 10);
        at = (size_t)(line - text) + 1;
        if (n - at < length + 2) return 0;
        c->arg[c->argc] = text + at;
        c->n[c->argc] = length;
        KIT_REQUIRE(text[at + length] == '\r');
        at += length + 2;
    }
    return at;
}

void world_serve(quire_link *l)
{
    command c;
    size_t done = 0, n, arrived = l->n_in - (size_t)l->queued;
    while (done < arrived && (n = parse(l->in + done, arrived - done, &c)) != 0) {
        execute(l, &c);
        done += n;
    }
    if (done) memmove(l->in, l->in + done, l->n_in - done);
    l->n_in -= done;
}
