/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "serve/relay.h"

#include "serve/clock.h"
#include "serve/timings.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

typedef struct relay {
    relay_order order;
    exchange *x;
    timings counted;
    long long n_read; /* of the body */
    double first_ms;
    exchange_end end;
    bool has_ended; /* and the caller knows it */
} relay;

/* ------------------------------------------------------------------ headers */

static bool is_hop(const char *name)
{
    static const char *const hops[] = {"Connection",
                                       "Keep-Alive",
                                       "Proxy-Authenticate",
                                       "Proxy-Authorization",
                                       "Proxy-Connection",
                                       "TE",
                                       "Trailer",
                                       "Transfer-Encoding",
                                       "Upgrade",
                                       "Expect",
                                       "Content-Length"};
    for (size_t i = 0; i < sizeof hops / sizeof *hops; i++)
        if (!strcasecmp(name, hops[i])) return true;
    return false;
}

typedef struct taking {
    header_lines *lines;
    bool good;
} taking;

/* With this header llama-server goes on when the client has left, and shows the answer to whoever knows the name. */
static bool is_resumed(const char *name)
{
    return !strcasecmp(name, "X-Conversation-Id");
}

static void take_header(void *ctx, const char *name, const char *value)
{
    taking *t = (taking *)ctx;
    if (!is_hop(name) && !is_resumed(name)) t->good = header_lines_add(&t->lines, name, value) && t->good;
}

bool relay_headers(const front_request *request, header_lines **out)
{
    taking t = {NULL, true};
    front_headers(request, take_header, &t);
    if (t.good)
        *out = t.lines;
    else
        header_lines_free(t.lines);
    return t.good;
}

static void give_header(void *ctx, const char *name, const char *value)
{
    if (!is_hop(name)) (void)front_add_header((front_request *)ctx, name, value);
}

/* ------------------------------------------------------------------- answers */

static void relay_free(relay *r)
{
    exchange_free(r->x);
    free(r);
}

static void tell_end(relay *r)
{
    if (r->has_ended) return;
    relay_outcome outcome = {.end = r->end,
                             .status = exchange_status(r->x),
                             .is_counted = r->counted.is_found,
                             .counted = r->counted.found,
                             .first_ms = r->first_ms};
    exchange_free(r->x); /* the server hears of it before its slot is given to another */
    r->x = NULL;
    r->has_ended = true;
    r->order.ended(r->order.ctx, &outcome);
}

static void end_relay(void *ctx)
{
    relay *r = (relay *)ctx;
    tell_end(r);
    relay_free(r);
}

static long read_body(void *ctx, char *bytes, size_t size)
{
    relay *r = (relay *)ctx;
    exchange_end end;
    if (r->has_ended) return 0;
    size_t n = exchange_read(r->x, bytes, size, &end);
    if (n) {
        if (r->first_ms <= 0) r->first_ms = clock_ms();
        if (r->order.reads_counts) timings_read(&r->counted, bytes, n);
        r->n_read += (long long)n;
        if (r->n_read == exchange_length(r->x)) {
            r->end = EXCHANGE_DONE; /* nobody asks for more */
            tell_end(r);            /* before the client has it all: its next request finds the slot free */
        }
        return (long)n;
    }
    r->end = end;
    if (end != EXCHANGE_DONE) return -1;
    tell_end(r); /* an answer in chunks: the last one, which is empty, is sent after this */
    return 0;
}

bool relay_pass(front_request *request, const relay_order *order)
{
    size_t n;
    const char *given = front_body(request, &n);
    const exchange_request wire = {.method = front_method(request),
                                   .target = front_target(request),
                                   .headers = order->headers,
                                   .body = order->body ? order->body : given,
                                   .body_size = order->body ? strlen(order->body) : n,
                                   .has_body = order->body || front_has_body(request),
                                   .client = front_socket(request)};
    relay *r = (relay *)calloc(1, sizeof *r);
    if (!r) return false;
    r->order = *order;
    r->end = EXCHANGE_LEFT; /* unless the answer is read to its end */
    r->x = exchange_begin(order->to, &wire);
    exchange_end end = r->x ? exchange_wait(r->x) : EXCHANGE_HELPLESS;
    if (end == EXCHANGE_LEFT) {
        front_drop(request);
        end_relay(r);
        return true;
    }
    bool came = end == EXCHANGE_GOES_ON || end == EXCHANGE_DONE;
    if (!came || (order->takes && !order->takes(order->ctx, r->x))) {
        relay_free(r);
        if (order->failed) order->failed(order->ctx, came ? EXCHANGE_DONE : end);
        return false;
    }
    unsigned status = exchange_status(r->x);
    if (!exchange_length(r->x) || status == 204 || status == 304 || !strcmp(wire.method, "HEAD"))
        r->end = EXCHANGE_DONE; /* nobody asks for a body */
    exchange_headers(r->x, give_header, request);
    const front_answer answer = {
        .status = status, .length = exchange_length(r->x), .read = read_body, .end = end_relay, .ctx = r};
    front_give(request, &answer);
    return true;
}
