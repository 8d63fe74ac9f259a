/* SPDX-License-Identifier: MIT */
/* front: the HTTP server that clients talk to. A thread for each connection; answers are sent as they come. */
#ifndef QUIRE_TOOLS_SERVE_FRONT_H
#define QUIRE_TOOLS_SERVE_FRONT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct front front;
typedef struct front_request front_request;

/* The answer to a request. */
typedef struct front_answer {
    unsigned status;
    long long length; /* of the body; -1: not known */
    /* Up to `size` bytes of the body, waiting for at least one; 0: there are no more; -1: it broke off. */
    long (*read)(void *ctx, char *bytes, size_t size);
    void (*end)(void *ctx); /* once, however the answer ends; may be NULL */
    void *ctx;
} front_answer;

typedef struct front_options {
    const char *host; /* an address, or the path of a UNIX socket that ends in .sock */
    uint16_t port;    /* 0: any; front_port() tells */
    uint32_t most_connections;
    uint32_t header_seconds; /* what a client may take; see deadlines_defaults() */
    size_t most_body;        /* bytes of a request */
    size_t most_bodies;      /* bytes of all requests at a time; 0: 1 GiB */
    /* Called in the thread of the connection when the whole request is there. Calls one of the functions below. */
    void (*handle)(void *ctx, front_request *request);
    void *ctx;
} front_options;

/* NULL: message has one sentence. */
front *front_start(const front_options *options, char *message, size_t size);
uint16_t front_port(const front *f);
/* Takes no more connections. Those that exist end with the answer that they wait for. */
void front_quiesce(front *f);
/* Whether a request is being read or answered. One whose answer was sent to its last byte is not. */
bool front_is_busy(front *f);
/* Ends all connections and waits for their threads. */
void front_stop(front *f);

const char *front_method(const front_request *r);
const char *front_target(const front_request *r); /* path and query, as the client sent them */
const char *front_body(const front_request *r, size_t *size);
bool front_has_body(const front_request *r);
int front_socket(const front_request *r);
/* The first header of this name, or NULL. */
const char *front_header(const front_request *r, const char *name);
/* All that are meant for the server: without those that a Connection header names. */
void front_headers(const front_request *r, void (*each)(void *ctx, const char *name, const char *value),
                   void *ctx);

/* Headers of the answer; before it is given. */
bool front_add_header(front_request *r, const char *name, const char *value);
/* Exactly one of these for each request. */
void front_give(front_request *r, const front_answer *answer);
void front_give_text(front_request *r, unsigned status, const char *type, const char *text);
/* An error in the form of llama-server's. kind and sentence: without characters that JSON escapes. */
void front_give_fault(front_request *r, unsigned status, const char *kind, const char *sentence);
/* No answer: the connection is closed. */
void front_drop(front_request *r);

#endif
