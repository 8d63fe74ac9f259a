/* SPDX-License-Identifier: MIT */
/* upstream: requests to a llama-server, whose answers are read as they come. */
#ifndef QUIRE_TOOLS_SERVE_UPSTREAM_H
#define QUIRE_TOOLS_SERVE_UPSTREAM_H

#include <stdbool.h>
#include <stddef.h>

/* Where the server listens: on a UNIX socket, or on a host and port. Belongs to the caller. */
typedef struct upstream {
    const char *socket;     /* a path, or NULL */
    const char *host;       /* "127.0.0.1:8080", if there is no socket; in any case what a Host header says */
    const char *api_prefix; /* of all its paths, as "/llama"; NULL: none */
    long connect_ms;        /* limit of connecting; 0: 5000 */
} upstream;

/* Once per process, before any thread; false: libcurl failed. */
bool upstream_init(void);
void upstream_end(void);

/* Headers of a request, as lines "Name: value". */
typedef struct header_lines header_lines;
bool header_lines_add(header_lines **lines, const char *name,
                      const char *value); /* *lines NULL: a new list */
/* Of the first of that name; NULL: there is none, or an empty one. */
const char *header_lines_find(const header_lines *lines, const char *name);
/* Those of a request that this program itself sends, with the value of Authorization, or NULL. */
bool header_lines_of_own(header_lines **lines, const char *authorization);
void header_lines_free(header_lines *lines);

typedef struct exchange exchange;

typedef enum exchange_end {
    EXCHANGE_GOES_ON,
    EXCHANGE_DONE,
    EXCHANGE_FAILED,    /* the answer broke off, or never came */
    EXCHANGE_UNREACHED, /* there was no connection: the server knows nothing of the request */
    EXCHANGE_HELPLESS,  /* nor was one tried: this program may open no more files, or has no memory */
    EXCHANGE_LEFT,      /* the client has closed its connection */
    EXCHANGE_TIMED_OUT  /* the limit of the caller */
} exchange_end;

typedef struct exchange_request {
    const char *method, *target; /* "/v1/models?x=1", sent as it is */
    const header_lines *headers;
    const char *body; /* the caller keeps it until the exchange is freed */
    size_t body_size;
    bool has_body;
    int client;      /* socket of the client that waits for the answer, or -1 */
    long timeout_ms; /* for the whole answer; 0: none */
} exchange_request;

/* NULL: out of memory or of files that may be open. Free it in any case; that ends it, which makes a llama-server stop computing. */
exchange *exchange_begin(const upstream *to, const exchange_request *request);
void exchange_free(exchange *x);

/* Waits for the status and the headers. EXCHANGE_GOES_ON or EXCHANGE_DONE: they are there. */
exchange_end exchange_wait(exchange *x);
/* Up to `size` bytes of the body, waiting for at least one; 0: *end says why there are no more. */
size_t exchange_read(exchange *x, char *bytes, size_t size, exchange_end *end);

unsigned exchange_status(const exchange *x);
/* Of the body, or -1 if the server did not say it. */
long long exchange_length(const exchange *x);
/* Calls each(ctx, name, value) for the headers in their order, without those that a Connection header names. */
void exchange_headers(const exchange *x, void (*each)(void *ctx, const char *name, const char *value),
                      void *ctx);
const char *exchange_fault(const exchange *x); /* what failed, for people */

/* Of a question of this program itself, whose target begins after the server's prefix. A whole answer: status, or 0 if there is none; *body from malloc(), ended by a 0. At most `most` bytes. */
unsigned upstream_ask(const upstream *to, const exchange_request *request, size_t most, char **body,
                      size_t *size);
/* The same; *end says why there is no answer. */
unsigned upstream_try(const upstream *to, const exchange_request *request, size_t most, char **body,
                      size_t *size, exchange_end *end);

#endif
