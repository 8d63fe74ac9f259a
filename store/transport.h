/* SPDX-License-Identifier: MIT */
/*
 * store: how the remote tier reaches a node. Sockets with or without TLS are one implementation (socket.c); the tests have
 * another, with scripted peers and a clock that the test moves. No function waits except poll() and, for a name server, open().
 */
#ifndef QUIRE_STORE_TRANSPORT_H
#define QUIRE_STORE_TRANSPORT_H

#include "store/base.h"

#include <sys/types.h>
#include <sys/uio.h>

typedef struct quire_link quire_link; /* one connection */

typedef struct quire_link_poll {
    quire_link *link;
    bool wants_write;        /* else only readable counts; while connecting the link knows better */
    bool readable, writable; /* result; a lost connection is both */
} quire_link_poll;

typedef struct quire_transport {
    void *ctx;
    uint64_t (*now)(void *ctx); /* monotonic, ns */
    /* Begins to connect. A host name is looked up each time; attempt chooses among its addresses. NULL: failed at once. */
    quire_link *(*open)(void *ctx, const char *host, uint32_t port, uint32_t attempt);
    void (*close)(quire_link *link);
    /* Goes on connecting, TLS included. 1: open; 0: not yet; -1: failed. */
    int (*connect)(quire_link *link);
    /* Bytes that were moved; 0: none now; -1: the connection is lost. */
    ssize_t (*read)(quire_link *link, void *to, size_t n);
    ssize_t (*write)(quire_link *link, const struct iovec *parts, int n_parts);
    /* Whether bytes can be read that poll() does not see: TLS decrypts whole records. */
    bool (*pending)(const quire_link *link);
    /* Bytes that write() took and the other side has not acknowledged yet. */
    size_t (*unsent)(const quire_link *link);
    /* So many bytes are worth waking up for. A hint; 1 at first. */
    void (*expect)(quire_link *link, size_t n);
    /* Until one is ready, at most so long. With n 0 it only waits. */
    void (*poll)(void *ctx, quire_link_poll *polls, uint32_t n, uint64_t ns);
} quire_transport;

/* socket.c. Options and their texts must stay as long as the transport. NULL in *wrong: good; else a part of a sentence. */
bool quire_sockets_create(quire_transport *out, const quire_store_remote *options,
                          const quire_allocator *allocator, const char **wrong);
void quire_sockets_destroy(quire_transport *transport);

#endif
