/* SPDX-License-Identifier: MIT */
/* store_server: a plain connection to one node of the remote tier, for commands that inspect it. It waits for replies. */
#ifndef QUIRE_TOOLS_STORE_SERVER_H
#define QUIRE_TOOLS_STORE_SERVER_H

#include <quire/store.h>

#include <stdbool.h>
#include <valkey/valkey.h>

typedef enum server_state {
    SERVER_OPEN,
    SERVER_UNREACHABLE,
    SERVER_NO_TLS,   /* the handshake failed, or the certificate is not accepted */
    SERVER_NO_LOGIN, /* name or password were refused */
} server_state;

#define SERVER_HOST 256

typedef struct server_address {
    char host[SERVER_HOST];
    uint32_t port;
} server_address;

typedef struct server {
    server_state state;
    char why[256]; /* a part of a sentence, unless it is open */
    server_address address;
    bool has_certificate;
    double certificate_days; /* until it expires */
    int fd;
    struct ssl_ctx_st *context;
    struct ssl_st *ssl;
    valkeyReader *reader;
} server;

/* true: open and logged in. Close it in any case. */
bool server_open(server *s, const quire_store_remote *remote, const server_address *address,
                 uint32_t timeout_ms);
void server_close(server *s);

/* Sends a command (as valkeyFormatCommand), and reads a reply, to be freed with freeReplyObject(). NULL or false: the connection is lost. */
bool server_send(server *s, const char *format, ...);
valkeyReply *server_reply(server *s);
/* Both. */
valkeyReply *server_ask(server *s, const char *format, ...);

/* The nodes of a cluster, masters first; one for a single server. */
#define SERVER_MAX_NODES 1024u
typedef struct server_nodes {
    bool is_cluster, is_refused;          /* refused: CLUSTER SLOTS is not allowed */
    uint32_t n_masters, n_nodes, n_slots; /* slots that have a master */
    server_address node[SERVER_MAX_NODES];
} server_nodes;
/* false: the connection is lost. */
bool server_list(server *s, server_nodes *out);

#endif
