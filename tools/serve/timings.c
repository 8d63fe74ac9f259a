/* SPDX-License-Identifier: MIT */
#include "serve/timings.h"

#include <string.h>

static const char wanted[] = "timings";

static void add_text(timings *t, char c)
{
    if (t->is_wanted && t->n_text < TIMINGS_TEXT) t->text[t->n_text++] = c;
}

/* An object has ended that is an answer or an event. */
static void end_object(timings *t)
{
    body_timings found;
    if (t->has_text && t->n_text < TIMINGS_TEXT && body_read_timings(t->text, t->n_text, &found)) {
        t->found = found;
        t->is_found = true;
    }
    t->has_text = false;
    t->n_line = 0;
    t->is_line_skipped = true; /* nothing else belongs on this line */
}

static void read_in_string(timings *t, char c)
{
    add_text(t, c);
    if (t->is_escaped) {
        t->is_escaped = false;
        t->n_name = TIMINGS_NAME; /* the server needs no escapes for the name */
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

/* A byte within an object, outside of strings. */
static void read_in_object(timings *t, char c)
{
    bool at_top = t->depth == 1;
    if (at_top && (c == ',' || c == '}')) t->is_wanted = false;
    add_text(t, c);
    switch (c) {
    case '"':
        t->in_string = true;
        t->is_name = at_top && t->may_be_name;
        t->may_be_name = false;
        if (t->is_name) t->n_name = 0;
        break;
    case ':':
        if (at_top && t->n_name == sizeof wanted - 1 && !memcmp(t->name, wanted, sizeof wanted - 1)) {
            t->is_wanted = t->has_text = true;
            t->n_text = 0;
        }
        break;
    case ',': t->may_be_name = at_top; break;
    case '{':
    case '[': t->depth++; break;
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
        t->n_name = 0;
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
            if (!t->is_escaped && !t->is_wanted && !t->is_name)
                while (i < n && bytes[i] != '"' && bytes[i] != '\\') i++;
            if (i < n) read_in_string(t, bytes[i]);
        } else {
            read_in_object(t, bytes[i]);
        }
    }
}
