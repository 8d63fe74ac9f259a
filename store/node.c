/* SPDX-License-Identifier: MIT */
/* store: the nodes of the remote. */
#include "store/node.h"

#include <stdarg.h>
#include <stdio.h>

#define FAILURES 3u
#define FIRST_BACKOFF (200 * QUIRE_MS)
#define LAST_BACKOFF (2 * QUIRE_SECOND) /* a remote that comes back is used again within that time */
#define REFRESH_INTERVAL (200 * QUIRE_MS)
#define DEFAULT_PORT 6379u
#define DEFAULT_MS 1000u
#define DEFAULT_IN_FLIGHT (16u << 20)

/* ---------------------------------------------------------------- lifetime */

static quire_status complain(char *message, size_t size, quire_status status, const char *format, ...)
{
    va_list args;
    if (!message || !size) return status;
    va_start(args, format);
    (void)vsnprintf(message, size, format, args);
    va_end(args);
    return status;
}

static bool copy_options(quire_remote *r, const quire_store_remote *o)
{
    const quire_allocator *a = &r->allocator;
    quire_store_remote *c = &r->options;
    *c = *o;
    const char *from[] = {o->host, o->user, o->password, o->tls_ca, o->tls_cert, o->tls_key, o->tls_name};
    const char **to[] = {&c->host,     &c->user,    &c->password, &c->tls_ca,
                         &c->tls_cert, &c->tls_key, &c->tls_name};
    bool done = true;
    for (size_t i = 0; i < sizeof to / sizeof *to; i++) {
        *to[i] = quire_mem_text(a, from[i]);
        done &= !from[i] || *to[i];
    }
    if (!c->port) c->port = DEFAULT_PORT;
    if (!c->connect_ms) c->connect_ms = DEFAULT_MS;
    if (!c->stall_ms) c->stall_ms = DEFAULT_MS;
    if (!c->in_flight_bytes) c->in_flight_bytes = DEFAULT_IN_FLIGHT;
    return done;
}

quire_status quire_remote_create(quire_remote **out, const quire_store_remote *o,
                                 const quire_allocator *allocator, quire_counters *counters,
                                 const quire_log *log, const quire_transport *transport, char *message,
                                 size_t message_size)
{
    if (strlen(o->host) >= QUIRE_HOST_MAX || !*o->host || o->port > 65535)
        return complain(message, message_size, QUIRE_EINVAL,
                        "the host name of the remote is empty or too long, or its port is invalid");
    quire_remote *r = (quire_remote *)quire_mem_take(allocator, sizeof *r);
    if (!r) return QUIRE_ENOMEM;
    r->allocator = *allocator;
    r->counters = counters;
    r->log = log;
    pthread_mutex_init(&r->lock, NULL);
    memset(r->node_of_slot, QUIRE_MAX_NODES, sizeof r->node_of_slot);
    quire_status status = copy_options(r, o) ? QUIRE_OK : QUIRE_ENOMEM;
    const char *wrong = NULL;
    if (!status && transport)
        r->transport = *transport;
    else if (!status && !quire_sockets_create(&r->transport, &r->options, allocator, &wrong))
        status = QUIRE_ENOMEM;
    if (wrong) status = complain(message, message_size, QUIRE_EINVAL, "%s", wrong);
    if (status) {
        quire_remote_destroy(r);
        return status;
    }
    (void)quire_node_at(r, r->options.host, strlen(r->options.host), r->options.port);
    *out = r;
    return QUIRE_OK;
}

void quire_remote_destroy(quire_remote *r)
{
    if (!r) return;
    quire_allocator a = r->allocator;
    const quire_store_remote *o = &r->options;
    const char *texts[] = {o->host, o->user, o->password, o->tls_ca, o->tls_cert, o->tls_key, o->tls_name};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        quire_mem_free_text(&a, (char *)(uintptr_t)texts[i]);
    quire_sockets_destroy(&r->transport);
    pthread_mutex_destroy(&r->lock);
    quire_mem_free(&a, r, sizeof *r);
}

size_t quire_remote_in_flight(const quire_remote *r)
{
    return r->options.in_flight_bytes;
}

void quire_remote_nodes(quire_remote *r, uint32_t *n, uint32_t *n_down)
{
    pthread_mutex_lock(&r->lock);
    *n = r->n_nodes;
    *n_down = 0;
    for (uint32_t i = 0; i < r->n_nodes; i++) *n_down += r->node[i].open_until != 0;
    pthread_mutex_unlock(&r->lock);
}

/* ------------------------------------------------------------------- slots */

uint32_t quire_slot_of(const char *key, size_t n)
{
    uint32_t crc = 0; /* CRC-16/XMODEM, as the cluster's specification says; our keys have no hash tags */
    for (size_t i = 0; i < n; i++) {
        crc ^= (uint32_t)(uint8_t)key[i] << 8;
        for (int bit = 0; bit < 8; bit++) crc = (crc << 1 ^ (crc & 0x8000 ? 0x1021u : 0)) & 0xffff;
    }
    return crc % QUIRE_SLOTS;
}

static uint32_t find_or_add(quire_remote *r, const char *host, size_t n, uint32_t port)
{
    if (!n || n >= QUIRE_HOST_MAX || !port || port > 65535) return QUIRE_NO_NODE;
    for (uint32_t i = 0; i < r->n_nodes; i++)
        if (r->node[i].port == port && strlen(r->node[i].host) == n && !memcmp(r->node[i].host, host, n))
            return i;
    if (r->n_nodes == QUIRE_MAX_NODES) return QUIRE_NO_NODE;
    quire_node *node = &r->node[r->n_nodes];
    memset(node, 0, sizeof *node);
    memcpy(node->host, host, n);
    node->port = port;
    node->backoff = FIRST_BACKOFF;
    return r->n_nodes++;
}

uint32_t quire_node_at(quire_remote *r, const char *host, size_t n, uint32_t port)
{
    pthread_mutex_lock(&r->lock);
    uint32_t node = find_or_add(r, host, n, port);
    pthread_mutex_unlock(&r->lock);
    return node;
}

void quire_node_address(quire_remote *r, uint32_t node, char host[QUIRE_HOST_MAX], uint32_t *port)
{
    pthread_mutex_lock(&r->lock);
    memcpy(host, r->node[node].host, QUIRE_HOST_MAX);
    *port = r->node[node].port;
    pthread_mutex_unlock(&r->lock);
}

uint32_t quire_node_of_slot(quire_remote *r, uint32_t slot)
{
    pthread_mutex_lock(&r->lock);
    uint32_t node = r->topology == QUIRE_CLUSTER ? r->node_of_slot[slot] : 0;
    if (node >= r->n_nodes) node = 0; /* whoever it is will say who has the slot */
    pthread_mutex_unlock(&r->lock);
    return node;
}

void quire_node_set_slots(quire_remote *r, uint32_t first, uint32_t last, uint32_t node)
{
    if (first > last || last >= QUIRE_SLOTS || node >= QUIRE_MAX_NODES) return;
    pthread_mutex_lock(&r->lock);
    memset(r->node_of_slot + first, (int)node, last - first + 1);
    pthread_mutex_unlock(&r->lock);
}

/* ----------------------------------------------------------------- breaker */

bool quire_node_may_try(quire_remote *r, uint32_t node)
{
    pthread_mutex_lock(&r->lock);
    quire_node *n = &r->node[node];
    uint64_t now = quire_remote_now(r);
    bool may = now >= n->open_until;
    if (may && n->open_until)
        n->open_until = now + n->backoff; /* this one try; the others wait for its outcome */
    pthread_mutex_unlock(&r->lock);
    return may;
}

/* Not under the lock: the caller's function may take its time. */
static void say(quire_remote *r, uint32_t node, quire_log_level level, const char *what)
{
    char sentence[QUIRE_HOST_MAX + 128], host[QUIRE_HOST_MAX];
    uint32_t port;
    if (!r->log || !r->log->write) return;
    quire_node_address(r, node, host, &port);
    (void)snprintf(sentence, sizeof sentence, "The remote node %s:%u %s.", host, port, what);
    r->log->write(r->log->ctx, level, sentence);
}

void quire_node_succeeded(quire_remote *r, uint32_t node)
{
    pthread_mutex_lock(&r->lock);
    quire_node *n = &r->node[node];
    bool was_down = n->open_until != 0;
    n->n_failures = 0;
    n->open_until = 0;
    n->backoff = FIRST_BACKOFF;
    pthread_mutex_unlock(&r->lock);
    if (was_down) say(r, node, QUIRE_LOG_INFO, "answers again");
}

void quire_node_failed(quire_remote *r, uint32_t node, bool hopeless)
{
    pthread_mutex_lock(&r->lock);
    quire_node *n = &r->node[node];
    bool is_lost = false;
    n->n_failures++;
    if (n->n_failures >= FAILURES || hopeless || n->open_until) {
        is_lost = !n->open_until;
        if (is_lost) quire_count(&r->counters->breaks, 1);
        n->open_until = quire_remote_now(r) + n->backoff;
        n->backoff = n->backoff * 2 < LAST_BACKOFF ? n->backoff * 2 : LAST_BACKOFF;
    }
    r->stale = true; /* another node may have taken its slots */
    pthread_mutex_unlock(&r->lock);
    if (is_lost) say(r, node, QUIRE_LOG_WARNING, "does not answer and is considered down");
}

/* ---------------------------------------------------------------- topology */

void quire_node_set_topology(quire_remote *r, quire_topology topology)
{
    pthread_mutex_lock(&r->lock);
    r->topology = topology;
    r->stale = false;
    pthread_mutex_unlock(&r->lock);
}

quire_topology quire_node_topology(quire_remote *r)
{
    pthread_mutex_lock(&r->lock);
    quire_topology topology = r->topology;
    pthread_mutex_unlock(&r->lock);
    return topology;
}

void quire_node_set_stale(quire_remote *r)
{
    pthread_mutex_lock(&r->lock);
    r->stale = true;
    pthread_mutex_unlock(&r->lock);
}

bool quire_node_take_refresh(quire_remote *r, uint32_t *node)
{
    pthread_mutex_lock(&r->lock);
    uint64_t now = quire_remote_now(r);
    bool due = r->topology == QUIRE_CLUSTER && r->stale && now >= r->next_refresh;
    if (due) {
        r->next_refresh = now + REFRESH_INTERVAL;
        for (uint32_t i = 0; i < r->n_nodes; i++) { /* somebody who is not down */
            *node = r->turn++ % r->n_nodes;
            if (!r->node[*node].open_until) break;
        }
    }
    pthread_mutex_unlock(&r->lock);
    return due;
}
