/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "serve/form.h"

#include <string.h>
#include <strings.h>

/* llama-server itself takes no more: cpp-httplib ends a connection with longer ones without a word. */
enum { MOST_TARGET = 32000, MOST_HEADERS = 100, MOST_HEADER = 8000, MOST_METHOD = 32 };

static void refuse(form *f, unsigned status, const char *sentence)
{
    if (f->status) return;
    f->status = status;
    f->sentence = sentence;
}

/* RFC 9110, 5.6.2 */
static bool is_token(const char *text, size_t n)
{
    static const char marks[] = "!#$%&'*+-.^_`|~";
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        bool good = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
                    (c && strchr(marks, c));
        if (!good) return false;
    }
    return n > 0;
}

static bool has_controls(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        if ((c < 0x20 && c != '\t') || c == 0x7f) return true;
    }
    return false;
}

/* RFC 3986: all others are written as escapes. What is in a target also goes into the log. */
static bool is_plain(const char *target)
{
    for (; *target; target++)
        if (*target <= ' ' || *target > '~' || *target == '#') return false;
    return true;
}

void form_line(form *f, const char *method, const char *target)
{
    size_t n = strlen(target), n_path = strcspn(target, "?#");
    bool reads = !strcmp(method, "GET") || !strcmp(method, "HEAD") || !strcmp(method, "OPTIONS");
    if (!is_token(method, strlen(method)) || strlen(method) > MOST_METHOD)
        refuse(f, 400, "the method of the request is not one");
    if (n > MOST_TARGET) refuse(f, 414, "the target of the request is too long");
    if (*target != '/' && !(reads && !strcmp(target, "*")))
        refuse(f, 400, "the target of the request does not begin with a slash");
    if (!is_plain(target)) refuse(f, 400, "the target of the request has characters that need an escape");
    /* Decoders disagree about these, and no endpoint needs one: cpp-httplib takes %u0073 for an s. */
    if (!reads && memchr(target, '%', n_path)) refuse(f, 400, "the path of the request has percent escapes");
}

static bool is(const char *name, size_t n, const char *word)
{
    return n == strlen(word) && !strncasecmp(name, word, n);
}

static void read_length(form *f, const char *value, size_t n)
{
    unsigned long long length = 0;
    bool good = n > 0 && n <= 18;
    for (size_t i = 0; good && i < n; i++) {
        good = value[i] >= '0' && value[i] <= '9';
        length = length * 10 + (unsigned)(value[i] - '0');
    }
    if (!good) refuse(f, 400, "the Content-Length of the request is not a number");
    f->length = good ? length : 0;
}

/* What it names is not passed on: the server would get another key than this program, or read the body in another way. */
static void read_connection(form *f, const char *value)
{
    static const char *const keys[] = {"Authorization", "X-Api-Key"}, *const body[] = {"Content-Type",
                                                                                       "Content-Length",
                                                                                       "Content-Encoding",
                                                                                       "Transfer-Encoding"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (form_names(value, keys[i])) refuse(f, 400, "a Connection header must not name keys");
    for (size_t i = 0; i < sizeof body / sizeof *body; i++)
        if (form_names(value, body[i]))
            refuse(f, 400, "a Connection header must not name what says how the body is read");
}

void form_header(form *f, const char *name, size_t n_name, const char *value, size_t n_value)
{
    if (++f->n_headers > MOST_HEADERS) refuse(f, 431, "the request has more than 100 headers");
    if (n_name + n_value > MOST_HEADER) refuse(f, 431, "a header of the request is too long");
    if (!is_token(name, n_name)) refuse(f, 400, "the name of a header has characters that it must not have");
    if (has_controls(value, n_value)) refuse(f, 400, "a header of the request has control characters");
    if (is(name, n_name, "Host")) f->n_hosts++;
    if (is(name, n_name, "Authorization")) f->n_keys++;
    if (is(name, n_name, "X-Api-Key")) f->n_other_keys++;
    if (is(name, n_name, "Content-Type")) f->n_types++;
    if (is(name, n_name, "Connection")) read_connection(f, value);
    if (is(name, n_name, "Content-Length")) {
        f->n_lengths++;
        read_length(f, value, n_value);
    }
    if (is(name, n_name, "Transfer-Encoding")) {
        f->n_codings++;
        if (!is(value, n_value, "chunked"))
            refuse(f, 400, "of the transfer encodings only chunked is understood");
    }
    /* A llama-server that unpacks bodies would read what this program has not seen. */
    if (is(name, n_name, "Content-Encoding") && n_value && !is(value, n_value, "identity"))
        refuse(f, 415, "bodies with a Content-Encoding are not understood");
}

void form_fold(form *f)
{
    refuse(f, 400, "a header of the request goes on in another line");
}

void form_end(form *f, const char *version, size_t most_body)
{
    bool is_new = !strcmp(version, "HTTP/1.1");
    if (f->n_hosts > 1 || (is_new && !f->n_hosts)) refuse(f, 400, "the request needs one Host header");
    if (f->n_lengths > 1 || f->n_codings > 1 || (f->n_lengths && f->n_codings) || (f->n_codings && !is_new))
        refuse(f, 400, "the request says in several ways how long it is");
    if (f->n_keys > 1 || f->n_other_keys > 1) refuse(f, 400, "the request has several keys");
    if (f->n_types > 1) refuse(f, 400, "the request has several Content-Type headers");
    if (f->length > most_body) refuse(f, 413, "the body of the request is too large");
}

bool form_names(const char *connection, const char *name)
{
    size_t n = strlen(name);
    while (*connection) {
        size_t word;
        connection += strspn(connection, " \t,");
        word = strcspn(connection, " \t,");
        if (word == n && !strncasecmp(connection, name, n)) return true;
        connection += word;
    }
    return false;
}
