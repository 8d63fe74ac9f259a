/* SPDX-License-Identifier: MIT */
/* timings: what a server counted, found in an answer while it passes: in one JSON object, or in events of a stream. */
#ifndef QUIRE_TOOLS_SERVE_TIMINGS_H
#define QUIRE_TOOLS_SERVE_TIMINGS_H

#include "serve/body.h"

enum { TIMINGS_TEXT = 2048, TIMINGS_NAME = 8 };

/* {0} at first. */
typedef struct timings {
    uint64_t depth; /* of brackets that are open */
    bool in_string, is_escaped, is_name, may_be_name, is_line_skipped;
    char name[TIMINGS_NAME]; /* of the member of the object itself that is being read */
    uint32_t n_name;
    char text[TIMINGS_TEXT]; /* of its value, if that is the name */
    uint32_t n_text;         /* TIMINGS_TEXT: it is longer */
    bool is_wanted, has_text;
    char line[TIMINGS_NAME]; /* outside of objects: how the line begins */
    uint32_t n_line;
    bool is_found;
    body_timings found; /* the last ones */
} timings;

/* Bytes of the answer in their order. Text that a model or a client has put into the answer is never taken for the server's. */
void timings_read(timings *t, const char *bytes, size_t n);

#endif
