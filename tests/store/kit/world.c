/* SPDX-License-Identifier: MIT */
/* A scripted world for the remote tier: its clock, connections and peers. Values and loads are in world_load.c. */
#define _GNU_SOURCE
#include "store/kit/world_peer.h"

#include <string.h>

#define KEEPER_PAUSE (50 * QUIRE_MS)
#define SOCKET_BYTES (4u << 20) /* what a socket takes before its peer has taken anything */

/* --------------------------------------------------------------------- time */

static uint64_t world_now(void *ctx)
{
    return ((world *)ctx)->clock += 50; /* nothing takes no time */
}

void world_at(world *w, uint64_t time, void (*run)(world *w, int arg), int arg)
{
    KIT_REQUIRE(w->n_events < WORLD_EVENTS);
    w->event[w->n_events].time = time;
    w->event[w->n_events].run = run;
    w->event[w->n_events++].arg = arg;
}

static void run_events(world *w)
{
    for (uint32_t i = 0; i < w->n_events; i++) {
        if (w->event[i].time > w->clock) continue;
        void (*run)(world *, int) = w->event[i].run;
        int arg = w->event[i].arg;
        w->event[i] = w->event[--w->n_events];
        run(w, arg);
        i = UINT32_MAX; /* from the first again: the event may have added some */
    }
}

/* ------------------------------------------------------------------- links */

static quire_link *link_open(void *ctx, const char *host, uint32_t port, uint32_t attempt)
{
    world *w = (world *)ctx;
    int peer = -1;
    (void)attempt;
    for (uint32_t i = 0; i < WORLD_NAMES; i++)
        if (*w->name[i].name && !strcmp(w->name[i].name, host)) peer = w->name[i].peer;
    for (uint32_t i = 0; i < w->n_peers && peer < 0; i++)
        if (w->peer[i].port == port && !strcmp(w->peer[i].host, host)) peer = (int)i;
    if (peer < 0) return NULL;
    quire_link *l = (quire_link *)calloc(1, sizeof *l);
    *l = (quire_link){.world = w,
                      .peer = peer,
                      .opens = w->clock + 100000,
                      .low_water = 1,
                      .next = w->links,
                      .drained_at = w->clock};
    w->links = l;
    w->n_opened++;
    if (++w->n_links > w->most_links) w->most_links = w->n_links;
    w->peer[peer].n_opened++;
    return l;
}

static void link_close(quire_link *l)
{
    quire_link **at = &l->world->links;
    while (*at != l) at = &(*at)->next;
    *at = l->next;
    l->world->n_links--;
    for (world_chunk *c = l->first, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    free(l->in);
    free(l->plain);
    free(l);
}

static int link_connect(quire_link *l)
{
    const world_peer *p = &l->world->peer[l->peer];
    if (l->world->clock < l->opens || p->swallows) return 0;
    if (p->refuses || l->is_lost) return -1;
    l->is_open = true;
    return 1;
}

static bool has_arrived(const quire_link *l)
{
    return l->first && l->first->time <= l->world->clock;
}

static size_t take_chunk(quire_link *l, uint8_t *to, size_t n)
{
    world_chunk *c = l->first;
    size_t part = c->n - c->at < n ? c->n - c->at : n;
    memcpy(to, c->bytes + c->at, part);
    c->at += part;
    if (c->at == c->n) {
        l->first = c->next;
        if (!l->first) l->last = NULL;
        free(c);
    }
    return part;
}

static ssize_t link_read(quire_link *l, void *to, size_t n)
{
    if (l->at_plain < l->n_plain) {
        size_t part = l->n_plain - l->at_plain < n ? l->n_plain - l->at_plain : n;
        memcpy(to, l->plain + l->at_plain, part);
        l->at_plain += part;
        return (ssize_t)part;
    }
    if (!has_arrived(l)) return l->is_lost && !l->first ? -1 : 0;
    if (!l->world->is_tls) return (ssize_t)take_chunk(l, (uint8_t *)to, n);
    l->n_plain = l->first->n; /* a record is decrypted as a whole */
    l->at_plain = 0;
    l->plain = (uint8_t *)realloc(l->plain, l->n_plain);
    (void)take_chunk(l, l->plain, l->n_plain);
    return link_read(l, to, n);
}

/* The peer takes what its rate allows from what the socket holds. */
static void drain(quire_link *l)
{
    const world_peer *p = &l->world->peer[l->peer];
    uint64_t ns = l->world->clock - l->drained_at,
             n = p->takes ? (uint64_t)((double)ns * 1e-9 * (double)p->takes) : UINT64_MAX;
    if (!n) return;
    l->drained_at = l->world->clock;
    l->queued -= n < l->queued ? n : l->queued;
    world_serve(l);
}

static size_t takes_now(const quire_link *l)
{
    return l->queued < SOCKET_BYTES ? SOCKET_BYTES - (size_t)l->queued : 0;
}

static ssize_t link_write(quire_link *l, const struct iovec *parts, int n_parts)
{
    world *w = l->world;
    drain(l);
    size_t most = takes_now(l), done = 0;
    if (l->is_lost) return -1;
    if (w->n_write_cuts) {
        size_t cut = w->write_cuts[w->at_write_cut++ % w->n_write_cuts];
        if (cut < most) most = cut;
    }
    for (int i = 0; i < n_parts && done < most; i++) {
        size_t part = parts[i].iov_len < most - done ? parts[i].iov_len : most - done;
        if (l->n_in + part > l->cap_in) {
            l->cap_in = (l->n_in + part) * 2;
            l->in = (uint8_t *)realloc(l->in, l->cap_in);
        }
        memcpy(l->in + l->n_in, parts[i].iov_base, part);
        l->n_in += part;
        done += part;
    }
    if (w->peer[l->peer].takes) l->queued += done;
    world_serve(l);
    return (ssize_t)done;
}

static size_t link_unsent(const quire_link *l)
{
    return (size_t)l->queued;
}

static bool link_pending(const quire_link *l)
{
    return l->at_plain < l->n_plain;
}

static void link_expect(quire_link *l, size_t n)
{
    l->low_water = l->world->is_tls ? 1 : n;
}

/* When the link would wake a sleeper: now if the time has come; UINT64_MAX: nothing is to come. */
static uint64_t wakes_at(const quire_link *l, const quire_link_poll *p)
{
    const world *w = l->world;
    const world_peer *peer = &w->peer[l->peer];
    if (!l->is_open) return peer->swallows ? UINT64_MAX : l->opens;
    uint64_t read = UINT64_MAX, write = UINT64_MAX;
    size_t n = 0;
    for (const world_chunk *c = l->first; c && read == UINT64_MAX; c = c->next) {
        n += c->n - c->at;
        if (n >= l->low_water) read = c->time;
    }
    if (read == UINT64_MAX && l->is_lost) read = l->last ? l->last->time : w->clock;
    if (p->wants_write) {
        write = w->clock;
        if (!takes_now(l)) write += (uint64_t)(4096e9 / (double)peer->takes);
    }
    if (l->queued && peer->takes) { /* what the peer gets may make it answer */
        uint64_t soon = w->clock + (uint64_t)(65536e9 / (double)peer->takes);
        if (soon < write) write = soon;
    }
    return read < write ? read : write;
}

static void mark_ready(quire_link_poll *p)
{
    const quire_link *l = p->link;
    const world *w = l->world;
    if (!l->is_open) {
        p->writable = !w->peer[l->peer].swallows && l->opens <= w->clock;
        return;
    }
    size_t n = 0;
    for (const world_chunk *c = l->first; c && c->time <= w->clock; c = c->next) n += c->n - c->at;
    bool is_over = l->is_lost && (!l->last || l->last->time <= w->clock);
    p->readable = n >= l->low_water || is_over;
    p->writable = p->wants_write && (takes_now(l) || l->is_lost);
}

static void link_poll(void *ctx, quire_link_poll *p, uint32_t n, uint64_t ns)
{
    world *w = (world *)ctx;
    bool hidden = false;
    uint64_t until = w->clock + ns;
    KIT_REQUIRE(++w->n_polls < 50000000); /* else it goes round in circles */
    for (uint32_t i = 0; i < n; i++) {
        uint64_t at = wakes_at(p[i].link, &p[i]);
        if (at < until) until = at;
        hidden |= link_pending(p[i].link);
    }
    for (uint32_t i = 0; i < w->n_events; i++)
        if (w->event[i].time < until) until = w->event[i].time > w->clock ? w->event[i].time : w->clock;
    if (until > w->clock) {
        w->n_sleeps++;
        w->n_blind_sleeps += hidden;
        w->clock = until;
    }
    w->clock += 1000;
    run_events(w);
    for (uint32_t i = 0; i < n; i++) {
        drain(p[i].link);
        mark_ready(&p[i]);
    }
}

void world_sleep(world *w, uint64_t ns)
{
    for (uint64_t until = w->clock + ns; w->clock < until;) {
        quire_keeper_step(w->remote, w->keeper);
        if (w->clock < until)
            link_poll(w, NULL, 0, until - w->clock < KEEPER_PAUSE ? until - w->clock : KEEPER_PAUSE);
    }
}

/* ---------------------------------------------------------------- lifetime */

static void on_log(void *ctx, quire_log_level level, const char *sentence)
{
    world *w = (world *)ctx;
    (void)level;
    (void)snprintf(w->last_log, sizeof w->last_log, "%s", sentence);
    w->n_logged++;
}

void world_begin(world *w)
{
    memset(w, 0, sizeof *w);
    w->clock = 1000 * QUIRE_SECOND;
    w->allocator = quire_mem_allocator(NULL);
    quire_log log = {.size = sizeof log, .ctx = w, .write = on_log};
    quire_log_open(&w->log, &log);
    w->log.now = world_now;
    w->log.now_ctx = w;
    memset(w->owner, 0xff, sizeof w->owner);
    memset(w->goes_to, 0xff, sizeof w->goes_to);
}

void world_connect(world *w, const char *host, uint32_t port, const quire_store_remote *options)
{
    quire_store_remote o = options ? *options : (quire_store_remote){.size = sizeof o};
    quire_transport t = {w,          world_now,    link_open,   link_close,  link_connect, link_read,
                         link_write, link_pending, link_unsent, link_expect, link_poll};
    o.host = host;
    o.port = port;
    o.tls = w->is_tls;
    KIT_REQUIRE(!quire_remote_create(&w->remote, &o, &w->allocator, &w->counters, &w->log, &t, NULL, 0));
    w->keeper = quire_lane_create(w->remote, &w->stop);
}

void world_end(world *w)
{
    quire_lane_destroy(w->keeper);
    quire_remote_destroy(w->remote);
    KIT_REQUIRE(!w->links); /* all were closed */
    for (world_value *v = w->values, *next; v; v = next) {
        next = v->next;
        free(v->bytes);
        free(v);
    }
}

/* -------------------------------------------------------------------- peers */

int world_add(world *w, const char *host, uint32_t port, int master)
{
    KIT_REQUIRE(w->n_peers < WORLD_PEERS);
    world_peer *p = &w->peer[w->n_peers];
    *p = (world_peer){.port = port, .master = master};
    (void)snprintf(p->host, sizeof p->host, "%s", host);
    return (int)w->n_peers++;
}

void world_slots(world *w, uint32_t first, uint32_t last, int peer)
{
    for (uint32_t i = first; i <= last; i++) w->owner[i] = (int16_t)peer;
}

void world_name(world *w, const char *name, int peer)
{
    uint32_t i = 0;
    while (*w->name[i].name && strcmp(w->name[i].name, name)) KIT_REQUIRE(++i < WORLD_NAMES);
    (void)snprintf(w->name[i].name, sizeof w->name[i].name, "%s", name);
    w->name[i].peer = peer;
}

void world_cut(world *w, int peer)
{
    for (quire_link *l = w->links; l; l = l->next)
        if (l->peer == peer) l->is_lost = true;
}
