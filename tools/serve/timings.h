/* SPDX-License-Identifier: MIT */
/* timings: what a server counted, found in an answer while it passes: in one JSON object, or in events of a stream. */
#ifndef QUIRE_TOOLS_SERVE_TIMINGS_H
#define QUIRE_TOOLS_SERVE_TIMINGS_H

#include "serve/body.h"

enum { TIMINGS_TEXT = 2048, TIMINGS_NAME = 12 };

/* Members that are looked for. "usage" counts if there are no "timings"; events have it in "message" or "response" too. */
typedef enum timings_member { TIMINGS_NONE, TIMINGS_TIMINGS, TIMINGS_USAGE } timings_member;

/* {0} at first. */
typedef struct timings {
    uint64_t depth; /* of brackets that are open */
    bool in_string, is_escaped, is_name, may_be_name, is_line_skipped;
    bool is_within;          /* the object at depth 2 is one of those that can have a "usage" */
    char name[TIMINGS_NAME]; /* of the member that is being read */
    uint32_t n_name;
    timings_member wanted;      /* its value is being read */
    uint64_t wanted_depth;      /* of the object that has it */
    char text[2][TIMINGS_TEXT]; /* of its value; [0] is of "timings", [1] of "usage" */
    uint32_t n_text[2];         /* TIMINGS_TEXT: it is longer */
    bool has_text[2];
    char line[TIMINGS_NAME]; /* outside of objects: how the line begins */
    uint32_t n_line;
    bool has_timings, is_found;
    body_timings found; /* the last ones */
} timings;

/* Bytes of the answer in their order. Text that a model or a client has put into the answer is never taken for the server's. */
void timings_read(timings *t, const char *bytes, size_t n);

#endif
