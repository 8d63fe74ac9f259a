/* SPDX-License-Identifier: MIT */
/* deadlines: connections of clients that take too long are closed, and those that wait longest for theirs when there are too many. */
#ifndef QUIRE_TOOLS_SERVE_DEADLINES_H
#define QUIRE_TOOLS_SERVE_DEADLINES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct deadlines deadlines;
typedef struct deadline deadline; /* of one connection */

/* What a connection waits for. */
typedef enum deadline_stage {
    STAGE_LINE,    /* the first line of a request */
    STAGE_HEADERS, /* the rest of its headers */
    STAGE_BODY,
    STAGE_ANSWER, /* the answer of this program or of the server; no limit */
    STAGE_SENDING /* the client, which has to take what was sent */
} deadline_stage;

typedef struct deadlines_options {
    uint32_t line_ms;    /* of a new connection, for its first line */
    uint32_t idle_ms;    /* a client that keeps its connection has idle_ms + headers_ms for the next one */
    uint32_t headers_ms; /* after the first line */
    uint32_t body_ms;    /* after the headers; never more than this is left */
    uint32_t body_rate;  /* so many bytes of a body give it a second more */
    uint32_t sending_ms; /* for each piece of an answer */
    /* While more connections than this are open, each new one closes the one that has waited longest for its client: for the next request, a
     * line, headers or more of a body. A body that comes at body_rate or faster has waited since its last bytes only. */
    uint32_t most;
} deadlines_options;

/* What quire serve allows: header_seconds (0: 15) for a line and for headers, twice that for a body, four times that between requests and for
 * a piece of an answer; as many open connections as three quarters of those that there may be. */
deadlines_options deadlines_defaults(uint32_t header_seconds, uint32_t most_connections);

/* NULL: out of memory, or no thread can be made. */
deadlines *deadlines_create(const deadlines_options *options);
/* After all connections are removed. */
void deadlines_destroy(deadlines *all);

/* fd: stays open until the connection is removed. NULL: out of memory; the other functions then do nothing. */
deadline *deadlines_add(deadlines *all, int fd);
void deadlines_remove(deadlines *all, deadline *one);
void deadline_begin(deadlines *all, deadline *one, deadline_stage stage);
/* Bytes of a body that came. */
void deadline_received(deadlines *all, deadline *one, size_t n);
/* Closes the connection whose body began first, of those whose bodies are not whole. */
void deadlines_need_memory(deadlines *all);

#endif
