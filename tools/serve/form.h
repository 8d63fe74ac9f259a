/* SPDX-License-Identifier: MIT */
/* form: refuses requests that programs on their way could read in different ways, before anything else looks at them. */
#ifndef QUIRE_TOOLS_SERVE_FORM_H
#define QUIRE_TOOLS_SERVE_FORM_H

#include <stdbool.h>
#include <stddef.h>

/* {0} at first. */
typedef struct form {
    unsigned status;      /* 0: nothing is wrong so far */
    const char *sentence; /* of the first thing that is wrong */
    unsigned n_headers, n_hosts, n_lengths, n_codings, n_keys, n_other_keys, n_types;
    unsigned long long length; /* of Content-Length */
} form;

/* Texts may hold any bytes, and are ended by a 0. */
void form_line(form *f, const char *method, const char *target);
void form_header(form *f, const char *name, size_t n_name, const char *value, size_t n_value);
/* A header that goes on in another line. */
void form_fold(form *f);
/* After all headers. version: "HTTP/1.1". most_body: bytes. */
void form_end(form *f, const char *version, size_t most_body);

/* Whether a value of a Connection header names this header: it is meant for the next program only. */
bool form_names(const char *connection, const char *name);

#endif
