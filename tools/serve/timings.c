/* SPDX-License-Identifier: MIT */
#include "serve/timings.h"

#include <string.h>

static void add_text(timings *t, char c)
{
    if (!t->wanted) return;
    uint32_t i = t->wanted - TIMINGS_TIMINGS;
    if (t->n_text[i] < TIMINGS_TEXT) t->text[i][t->n_text[i]++] = c;
}

static bool has_whole(const timings *t, uint32_t i)
{
    return t->has_text[i] && t->n_text[i] < TIMINGS_TEXT;
}

/* An object has ended that is an answer or an event. */
static void end_object(timings *t)
{
    body_timings found;
    if (has_whole(t, 0) && body_read_timings(t->text[0], t->n_text[0], &found)) {
        t->found = found;
        t->is_found = t->has_timings = true;
    }
    if (!t->has_timings && has_whole(t, 1) && body_read_usage(t->text[1], t->n_text[1], &t->found))
        t->is_found = true;
    t->has_text[0] = t->has_text[1] = false;
    t->n_line = 0;
    t->is_line_skipped = true; /* nothing else belongs on this line */
}

static void read_in_string(timings *t, char c)
{
    add_text(t, c);
    if (t->is_escaped) {
        t->is_escaped = false;
        t->n_name = TIMINGS_NAME; /* the server needs no escapes for the names */
        return;
    }
    if (c == '\\') {
        t->is_escaped = true;
    } else if (c == '"') {
        t->in_string = false;
    } else if (t->is_name && t->n_name < TIMINGS_NAME) {
        t->name[t->n_name++] = c;
    }
}

static bool is_named(const timings *t, const char *name)
{
    return t->n_name == strlen(name) && !memcmp(t->name, name, t->n_name);
}

/* The value of a member begins. */
static void begin_value(timings *t)
{
    timings_member wanted = t->depth == 1 && is_named(t, "timings") ? TIMINGS_TIMINGS
                            : is_named(t, "usage")                  ? TIMINGS_USAGE
                                                                    : TIMINGS_NONE;
    if (t->depth == 1) t->is_within = is_named(t, "message") || is_named(t, "response");
    t->n_name = TIMINGS_NAME;
    if (!wanted) return;
    t->wanted = wanted;
    t->wanted_depth = t->depth;
    t->has_text[wanted - TIMINGS_TIMINGS] = true;
    t->n_text[wanted - TIMINGS_TIMINGS] = 0;
}

/* A byte within an object, outside of strings. */
static void read_in_object(timings *t, char c)
{
    bool counts = t->depth == 1 || (t->depth == 2 && t->is_within); /* members of this object are looked at */
    if (t->wanted && t->depth == t->wanted_depth && (c == ',' || c == '}')) t->wanted = TIMINGS_NONE;
    add_text(t, c);
    switch (c) {
    case '"':
        t->in_string = true;
        t->is_name = counts && t->may_be_name;
        t->may_be_name = false;
        if (t->is_name) t->n_name = 0;
        break;
    case ':':
        if (counts && !t->wanted) begin_value(t);
        break;
    case ',': t->may_be_name = counts; break;
    case '{':
        t->depth++;
        t->may_be_name = t->depth == 2 && t->is_within;
        break;
    case '[':
        if (t->depth == 1) t->is_within = false; /* a list has no members */
        t->depth++;
        t->may_be_name = false;
        break;
    case '}':
    case ']':
        if (!--t->depth) end_object(t);
        break;
    default: break;
    }
}

/* Of lines only those count that are the beginning of an object, or "data:" and an object. */
static void read_outside(timings *t, char c)
{
    if (c == '\n' || c == '\r') {
        t->n_line = 0;
        t->is_line_skipped = false;
    } else if (t->is_line_skipped || c == ' ' || c == '\t') {
        return;
    } else if (c == '{' && (!t->n_line || (t->n_line == 5 && !memcmp(t->line, "data:", 5)))) {
        t->depth = 1;
        t->may_be_name = true;
        t->is_within = false;
        t->n_name = TIMINGS_NAME;
    } else if (t->n_line < TIMINGS_NAME) {
        t->line[t->n_line++] = c;
    }
}

void timings_read(timings *t, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!t->depth) {
            read_outside(t, bytes[i]);
        } else if (t->in_string) {
            /* Most of an answer is text of strings that nobody needs. */
            if (!t->is_escaped && !t->wanted && !t->is_name)
                while (i < n && bytes[i] != '"' && bytes[i] != '\\') i++;
            if (i < n) read_in_string(t, bytes[i]);
        } else {
            read_in_object(t, bytes[i]);
        }
    }
}
