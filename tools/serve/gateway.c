/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "serve/gateway.h"

#include "serve/clock.h"
#include "serve/opening.h"
#include "serve/relay.h"
#include "serve/replicas.h"
#include "serve/route.h"

#include <quire/quire.h>

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>

/* A request that has brought down two servers is not given to a third. */
enum { MOST_TAKEN = 2 };

/* Name, and what it counts. */
#define GATEWAY_COUNTS(X)                                                     \
    X(requests, "Requests of clients.")                                       \
    X(refused, "Requests about one server, which a gateway does not answer.") \
    X(again, "Times that a request was sent to another replica.")             \
    X(unavailable, "Requests that no replica answered.")                      \
    X(broken, "Answers that broke off.")                                      \
    X(left, "Clients that left before their answer had ended.")

struct gateway {
    gateway_options o;
    replicas *replicas;
    char via[32];
    _Atomic uint64_t turn; /* for requests without a prompt */
#define GATEWAY_MEMBER(name, text) _Atomic uint64_t name;
    GATEWAY_COUNTS(GATEWAY_MEMBER)
#undef GATEWAY_MEMBER
};

#define COUNT(g, name) ((void)atomic_fetch_add(&(g)->name, 1))

typedef struct visit {
    gateway *g;
    header_lines *headers;
    uint64_t key;
    size_t at; /* the replica */
    bool tried[REPLICAS_MOST];
    uint32_t n_tries, n_taken;
    replica_result result; /* of the last try */
    double begin;
    char target[64];
} visit;

/* -------------------------------------------------------------------- a visit */

static void log_visit(const visit *v, unsigned status, double first_ms)
{
    if (!v->g->o.log_requests) return;
    fprintf(stderr, "quire serve: path=%s status=%u replica=%s tries=%u first_ms=%.1f total_ms=%.1f\n",
            v->target, status, v->n_tries ? replicas_name(v->g->replicas, v->at) : "none", v->n_tries,
            first_ms > 0 ? first_ms - v->begin : 0, clock_ms() - v->begin);
}

static void visit_free(visit *v)
{
    header_lines_free(v->headers);
    free(v);
}

static void end_visit(void *ctx, const relay_outcome *o)
{
    visit *v = (visit *)ctx;
    gateway *g = v->g;
    if (o->end == EXCHANGE_LEFT) COUNT(g, left);
    if (o->end == EXCHANGE_FAILED) COUNT(g, broken);
    log_visit(v, o->status, o->first_ms);
    replicas_give(g->replicas, v->at,
                  o->end == EXCHANGE_DONE   ? REPLICA_ANSWERED
                  : o->end == EXCHANGE_LEFT ? REPLICA_LEFT
                                            : REPLICA_FAILED);
    visit_free(v);
}

static void look_for_retry(void *ctx, const char *name, const char *value)
{
    (void)value;
    if (!strcasecmp(name, "Retry-After")) *(bool *)ctx = true;
}

/* With Retry-After, a 503 says that the request was not begun; without, that it failed in the server. */
static bool takes(void *ctx, const exchange *answer)
{
    visit *v = (visit *)ctx;
    bool was_not_begun = false;
    if (exchange_status(answer) != 503) return true;
    exchange_headers(answer, look_for_retry, &was_not_begun);
    v->result = was_not_begun ? REPLICA_NOT_READY : REPLICA_FAILED;
    return false;
}

static void failed(void *ctx, exchange_end why)
{
    visit *v = (visit *)ctx;
    if (why == EXCHANGE_DONE) return; /* takes() has said it */
    v->result = why == EXCHANGE_UNREACHED  ? REPLICA_UNREACHED
                : why == EXCHANGE_HELPLESS ? REPLICA_NOT_ASKED
                                           : REPLICA_FAILED;
}

static void give_up(visit *v, front_request *request)
{
    COUNT(v->g, unavailable);
    if (!v->n_taken) { /* only then: a gateway before this one takes the header for "not begun" */
        (void)front_add_header(request, "Retry-After", "1");
        front_give_fault(request, 503, "unavailable_error",
                         v->result == REPLICA_NOT_ASKED ? "this gateway cannot open a connection to a replica"
                                                        : "no replica of this gateway answers");
    } else {
        front_give_fault(request, 503, "unavailable_error",
                         v->n_taken < MOST_TAKEN
                             ? "a replica of this gateway has taken the request and given no answer"
                             : "two replicas of this gateway have taken the request and given no answer");
    }
    log_visit(v, 503, 0);
    visit_free(v);
}

/*
 * To one replica after the other, until one begins to answer. A request that was taken and not answered may have been computed in
 * part: completions change nothing on the server, so that sending it again costs time only.
 */
static void pass(visit *v, front_request *request)
{
    gateway *g = v->g;
    while (v->n_taken < MOST_TAKEN && replicas_take(g->replicas, v->key, v->tried, &v->at)) {
        const relay_order order = {.to = replicas_address(g->replicas, v->at),
                                   .headers = v->headers,
                                   .ended = end_visit,
                                   .takes = takes,
                                   .failed = failed,
                                   .ctx = v};
        if (v->n_tries++) COUNT(g, again);
        if (relay_pass(request, &order)) return; /* v may be gone */
        replicas_give(g->replicas, v->at, v->result);
        v->n_taken += v->result == REPLICA_FAILED;
        if (v->result == REPLICA_NOT_ASKED) break; /* the next one could not be either */
    }
    give_up(v, request);
}

/* ------------------------------------------------------------------- requests */

typedef struct loop {
    const char *via;
    bool found;
} loop;

static void look_for_loop(void *ctx, const char *name, const char *value)
{
    loop *l = (loop *)ctx;
    if (!strcasecmp(name, "Via") && strstr(value, l->via)) l->found = true;
}

/* Pages of one client's key may be of no use to another's. */
static const char *tenant_of(const front_request *request)
{
    const char *key = front_header(request, "Authorization");
    return key ? key : front_header(request, "X-Api-Key");
}

static void pass_on(gateway *g, front_request *request)
{
    size_t n;
    const char *bytes = front_body(request, &n);
    visit *v = (visit *)calloc(1, sizeof *v);
    bool good = v && relay_headers(request, &v->headers);
    if (!good || !header_lines_add(&v->headers, "Via", g->via)) {
        if (good) header_lines_free(v->headers);
        free(v);
        front_drop(request);
        return;
    }
    v->g = g;
    v->begin = clock_ms();
    snprintf(v->target, sizeof v->target, "%.*s", (int)strcspn(front_target(request), "?"),
             front_target(request));
    if (!opening_key(bytes, n, tenant_of(request), &v->key)) v->key = atomic_fetch_add(&g->turn, 1);
    pass(v, request);
}

static void give(front_request *request, unsigned status, const char *type, growing *text)
{
    if (growing_add(text, "", 1))
        front_give_text(request, status, type, text->bytes);
    else
        front_drop(request);
    growing_free(text);
}

static void give_metrics(gateway *g, front_request *request)
{
    growing text = {0};
    char line[256];
    snprintf(line, sizeof line,
             "# HELP quire_gateway_info The version.\n# TYPE quire_gateway_info gauge\n"
             "quire_gateway_info{version=\"%s\"} 1\n",
             quire_version());
    (void)growing_add_text(&text, line);
#define LINE(name, what)                                                                  \
    snprintf(line, sizeof line,                                                           \
             "# HELP quire_gateway_" #name "_total " what "\n# TYPE quire_gateway_" #name \
             "_total counter\nquire_gateway_" #name "_total %llu\n",                      \
             (unsigned long long)atomic_load(&g->name));                                  \
    (void)growing_add_text(&text, line);
    GATEWAY_COUNTS(LINE)
#undef LINE
    (void)replicas_print_metrics(g->replicas, &text);
    give(request, 200, "text/plain; version=0.0.4", &text);
}

static void give_health(gateway *g, front_request *request)
{
    growing list = {0}, text = {0};
    size_t n_ready;
    (void)replicas_print_states(g->replicas, &list, &n_ready);
    (void)growing_add_text(&text, n_ready == g->o.n_replicas ? "{\"status\":\"ok\",\"replicas\":"
                                  : n_ready                  ? "{\"status\":\"degraded\",\"replicas\":"
                                            : "{\"status\":\"no replica is ready\",\"replicas\":");
    (void)growing_add(&text, list.bytes, list.n);
    (void)growing_add_text(&text, "}");
    growing_free(&list);
    give(request, n_ready ? 200 : 503, "application/json; charset=utf-8", &text);
}

void gateway_handle(void *ctx, front_request *request)
{
    gateway *g = (gateway *)ctx;
    loop l = {g->via, false};
    front_headers(request, look_for_loop, &l);
    COUNT(g, requests);
    if (l.found) {
        COUNT(g, refused);
        front_give_fault(request, 508, "invalid_request_error",
                         "this request has come through this gateway before: its replicas lead back to it");
        return;
    }
    switch (route_of(front_method(request), front_target(request), "")) {
    case ROUTE_METRICS: give_metrics(g, request); return;
    case ROUTE_HEALTH: give_health(g, request); return;
    default: break;
    }
    if (!route_is_of_one_server(front_method(request), front_target(request))) {
        pass_on(g, request);
        return;
    }
    COUNT(g, refused);
    front_give_fault(
        request, 403, "permission_error",
        "this is about one server: ask the replica itself; /quire/metrics tells what the gateway does");
}

gateway *gateway_create(const gateway_options *options)
{
    gateway *g = (gateway *)calloc(1, sizeof *g);
    uint64_t id = 0;
    if (!g) return NULL;
    g->o = *options;
    if (getrandom(&id, sizeof id, 0) == (ssize_t)sizeof id) {
        snprintf(g->via, sizeof g->via, "1.1 quire-%016llx", (unsigned long long)id);
        g->replicas = replicas_start(options->replicas, options->n_replicas, g->via);
    }
    if (g->replicas) return g;
    free(g);
    return NULL;
}

void gateway_destroy(gateway *g)
{
    if (!g) return;
    replicas_stop(g->replicas);
    free(g);
}
