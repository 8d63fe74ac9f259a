/* SPDX-License-Identifier: MIT */
/* store: the remote tier: options, lifetime, figures. */
#include "store/node.h"

#include <stdarg.h>
#include <stdio.h>

#define DEFAULT_PORT 6379u
#define DEFAULT_MS 1000u
#define DEFAULT_IN_FLIGHT (16u << 20)
#define DEFAULT_RATE (64u << 10)
#define PATIENCE (5 * QUIRE_SECOND)

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
    if (!c->min_bytes_per_second) c->min_bytes_per_second = DEFAULT_RATE;
    return done;
}

quire_status quire_remote_create(quire_remote **out, const quire_store_remote *o,
                                 const quire_allocator *allocator, quire_counters *counters,
                                 quire_store_log *log, const quire_transport *transport, char *message,
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
    const char *wrong = NULL;
    quire_status status = quire_cond_init(&r->work) && copy_options(r, o) ? QUIRE_OK : QUIRE_ENOMEM;
    if (!status && transport) {
        r->transport = *transport;
    } else if (!status) {
        r->owns_transport = quire_sockets_create(&r->transport, &r->options, allocator, &wrong);
        if (!r->owns_transport) status = QUIRE_ENOMEM;
    }
    if (wrong) status = complain(message, message_size, QUIRE_EINVAL, "%s", wrong);
    if (status) {
        quire_remote_destroy(r);
        return status;
    }
    for (uint32_t i = 0; i < QUIRE_SLOTS; i++) r->place_of_slot[i] = QUIRE_MAX_NODES;
    for (uint32_t i = 0; i < QUIRE_MAX_NODES; i++) r->node[i].name = QUIRE_NO_NODE;
    (void)quire_node_at(r, r->options.host, strlen(r->options.host), r->options.port);
    *out = r;
    return QUIRE_OK;
}

void quire_remote_destroy(quire_remote *r)
{
    if (!r) return;
    quire_keeper_stop(r);
    quire_allocator a = r->allocator;
    const quire_store_remote *o = &r->options;
    const char *texts[] = {o->host, o->user, o->password, o->tls_ca, o->tls_cert, o->tls_key, o->tls_name};
    if (r->owns_transport) quire_sockets_destroy(&r->transport);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        quire_mem_free_text(&a, (char *)(uintptr_t)texts[i]);
    pthread_cond_destroy(&r->work);
    pthread_mutex_destroy(&r->lock);
    quire_mem_free(&a, r, sizeof *r);
}

size_t quire_remote_in_flight(const quire_remote *r)
{
    return r->options.in_flight_bytes;
}

uint32_t quire_remote_ttl(const quire_remote *r)
{
    return r->options.ttl_seconds;
}

uint64_t quire_remote_patience(const quire_remote *r, size_t bytes)
{
    return PATIENCE + bytes * QUIRE_SECOND / r->options.min_bytes_per_second;
}

static bool is_refusing(const quire_remote *r, const quire_node *node, uint64_t now)
{
    /* Nothing is sent to a master that became a replica, so its last word about saving says nothing. */
    bool is_replica = r->topology == QUIRE_CLUSTER && node->master != node->name;
    for (uint32_t verb = 0; verb < QUIRE_SLOTS_OF; verb++)
        if (node->refused_until[verb] > now && !(verb == QUIRE_SET && is_replica)) return true;
    return false;
}

quire_node_counts quire_remote_nodes(quire_remote *r)
{
    uint64_t now = quire_remote_now(r);
    pthread_mutex_lock(&r->lock);
    quire_node_counts of = {.n = r->n_nodes};
    for (uint32_t i = 0; i < r->n_places; i++) {
        const quire_node *node = &r->node[i];
        /* The name that was given need not be a node of the cluster for long. */
        if (node->name == QUIRE_NO_NODE || (r->topology == QUIRE_CLUSTER && !node->in_topology)) continue;
        of.n_down += node->open_until != 0;
        of.n_refusing += !node->open_until && is_refusing(r, node, now);
    }
    pthread_mutex_unlock(&r->lock);
    return of;
}
