/* SPDX-License-Identifier: MIT */
/* Real servers for the tests of the store: redis-server alone and as a cluster; a proxy with faults; peers that are no
 * servers. All on loopback; all die with the test. */
#ifndef QUIRE_TESTS_SERVERS_H
#define QUIRE_TESTS_SERVERS_H

#include "store/kit/store_kit.h"

#include <stdatomic.h>
#include <sys/types.h>
#include <valkey/valkey.h>

/* Exits with 77 and a message unless redis-server is installed. */
void kit_need_redis(void);

typedef struct kit_server {
    pid_t pid;
    uint32_t port;
    int kept[2]; /* sockets that keep the port, and that of the cluster's bus, for the server */
    char *directory;
    char *args[40];
    uint32_t n_args;
} kit_server;

/* A port and a directory, and no arguments yet: a test adds its own, and kit_server_restart() starts it there. */
void kit_server_prepare(kit_server *s);
void kit_server_add(kit_server *s, const char *arg); /* "@port": its port */
/* args: further arguments of redis-server, NULL at the end. Ready when it returns. */
void kit_server_start(kit_server *s, const char *const *args);
void kit_server_restart(kit_server *s); /* same port, directory and arguments */
void kit_server_kill(kit_server *s);    /* SIGKILL */
void kit_server_end(kit_server *s);     /* and its directory */
/* A connection that waits for replies, for the test's own commands. */
valkeyContext *kit_connect(uint32_t port);
/* One command; its reply as text ("(nil)", numbers in decimal), to be freed. */
char *kit_command(uint32_t port, const char *format, ...) __attribute__((format(printf, 2, 3)));
quire_store_remote kit_remote(uint32_t port);

/* Certificates for 127.0.0.1 in the directory: ca.pem, server.pem, server.key, other-ca.pem. */
void kit_certificates(const char *directory);

#define KIT_MASTERS 3
#define KIT_NODES 6
typedef struct kit_cluster {
    uint32_t n_masters, n_nodes;
    kit_server node[KIT_NODES]; /* masters first; node i + n_masters is the replica of i */
} kit_cluster;
void kit_cluster_start(kit_cluster *c); /* all of these */
void kit_cluster_start_with(kit_cluster *c, uint32_t n_masters, uint32_t n_replicas);
/* Slots of the cluster that the i-th master has at first. */
void kit_cluster_range(const kit_cluster *c, uint32_t i, uint32_t *first, uint32_t *last);
/* Until the node says so to the command, at most half a minute. */
void kit_wait_for(uint32_t port, const char *command, const char *expected);
bool kit_says(uint32_t port, const char *command, const char *expected);
void kit_cluster_end(kit_cluster *c);

/* What a proxy does to what the server sends. Set at any time; connections follow. */
typedef struct kit_proxy {
    uint32_t port;
    _Atomic uint32_t target; /* port; of new connections */
    _Atomic uint32_t latency_ms;
    _Atomic uint32_t cut_after;  /* bytes after which a connection is reset; 0: never */
    _Atomic uint32_t trickle_ms; /* one byte, then so long nothing */
    _Atomic bool refuses;        /* connections are reset at once */
    _Atomic bool is_silent;      /* nothing is handed on */
    atomic_bool stop;
    int fd;
    pthread_t thread;
    _Atomic uint32_t n_threads;
} kit_proxy;
void kit_proxy_start(kit_proxy *p, uint32_t target);
void kit_proxy_reset(kit_proxy *p); /* no faults */
void kit_proxy_end(kit_proxy *p);

/* A peer that sends `text` again and again whatever comes; n_zeros zeros after it. */
typedef struct kit_peer {
    uint32_t port;
    const char *text;
    uint64_t n_zeros;
    int fd;
    atomic_bool stop;
    pthread_t thread;
    _Atomic uint64_t n_sent; /* most that went over one connection */
} kit_peer;
void kit_peer_start(kit_peer *p, const char *text, uint64_t n_zeros);
void kit_peer_end(kit_peer *p);

#endif
