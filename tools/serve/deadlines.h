/* SPDX-License-Identifier: MIT */
/* deadlines: connections of clients that take too long are closed, and the slowest ones when there are too many. */
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
    uint32_t
        line_ms; /* of a new connection; a client that keeps it open afterwards has idle_ms + headers_ms */
    uint32_t idle_ms;    /* between requests */
    uint32_t headers_ms; /* after the first line */
    /* After the headers, and a second more for each body_rate bytes that came; from the last of them on at most so long. */
    uint32_t body_ms;
    uint32_t body_rate;
    uint32_t sending_ms; /* for each piece of an answer */
    /* With more connections than this the one that has waited longest for a part of a request is closed. */
    uint32_t most;
} deadlines_options;

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
/* Closes the connection whose body has been coming for the longest time. */
void deadlines_need_memory(deadlines *all);

#endif
