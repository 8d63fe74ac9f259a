/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "serve/sidecar.h"

#include "serve/body.h"
#include "serve/clock.h"
#include "serve/metrics.h"
#include "serve/prompt.h"
#include "serve/relay.h"
#include "serve/route.h"
#include "serve/saver.h"
#include "serve/slots.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct sidecar {
    sidecar_options o;
    slots *slots;
    saver *saver;
    serve_counts counts;
    pthread_mutex_t lock; /* of what follows */
    prefix *prefix;       /* NULL: nothing can be kept */
    bool is_ready, no_restore;
};

static void say(const char *text)
{
    fprintf(stderr, "quire serve: %s\n", text);
}

/* ----------------------------------------------------------------- the engine */

/* NULL: nothing can be kept now. One that was made stays until the end. */
static prefix *prefix_now(void *ctx)
{
    sidecar *s = (sidecar *)ctx;
    pthread_mutex_lock(&s->lock);
    prefix *p = s->is_ready ? s->prefix : NULL;
    pthread_mutex_unlock(&s->lock);
    return p;
}

static bool is_ready(sidecar *s)
{
    pthread_mutex_lock(&s->lock);
    bool ready = s->is_ready;
    pthread_mutex_unlock(&s->lock);
    return ready;
}

void sidecar_engine_changed(void *ctx, engine_state state, uint32_t generation, const char *why)
{
    sidecar *s = (sidecar *)ctx;
    char message[256], line[400];
    pthread_mutex_lock(&s->lock);
    s->is_ready = false;
    bool needs_prefix = state == ENGINE_READY && !s->prefix && s->o.prefix.store;
    pthread_mutex_unlock(&s->lock);
    if (state == ENGINE_DOWN) {
        snprintf(line, sizeof line, "the server is started again: %s", why);
        say(line);
    }
    if (state != ENGINE_READY) return;
    prefix *p = needs_prefix ? prefix_create(&s->o.prefix, message, sizeof message) : NULL;
    if (needs_prefix && !p) {
        snprintf(line, sizeof line, "prompts of this server cannot be kept: %s", message);
        say(line);
    }
    slots_reset(s->slots, generation);
    pthread_mutex_lock(&s->lock);
    if (p) s->prefix = p;
    s->is_ready = true;
    pthread_mutex_unlock(&s->lock);
}

/* -------------------------------------------------------------- one request */

typedef enum use { USES_NONE, USES_ANY, USES_LEASE } use; /* of slots */

typedef struct visit {
    sidecar *s;
    header_lines *headers;
    char *made; /* the body that is sent, if it is not the client's */
    uint32_t *tokens, n;
    slot_lease lease;
    use use;
    uint32_t restored;
    double begin, lookup;
    prefix_times times;
    char target[64];
} visit;

static void visit_free(visit *v)
{
    header_lines_free(v->headers);
    free(v->made);
    free(v->tokens);
    free(v);
}

static void log_visit(const visit *v, const relay_outcome *o, const body_timings *t)
{
    fprintf(
        stderr,
        "quire serve: path=%s status=%u prompt=%u cached=%u computed=%u restored=%u slot=%u first_ms=%.1f "
        "lookup_ms=%.1f load_ms=%.1f write_ms=%.1f restore_ms=%.1f total_ms=%.1f\n",
        v->target, o->status, v->n, t->cache_n, t->prompt_n, v->restored, v->lease.slot,
        o->first_ms > 0 ? o->first_ms - v->begin : 0, v->lookup, v->times.load, v->times.write,
        v->times.restore, clock_ms() - v->begin);
}

/* What the server said of the prompt is compared with what was thought of it. */
static void settle(const visit *v, const relay_outcome *o)
{
    sidecar *s = v->s;
    body_timings t = {0};
    bool told =
        o->end == EXCHANGE_DONE && o->status == 200 && o->tail && body_read_timings(o->tail, o->n_tail, &t);
    bool right = told && t.cache_n + t.prompt_n == v->n;
    bool is_short = told && v->restored && t.cache_n + 1 < v->restored;
    if (right)
        slots_give(s->slots, &v->lease, v->tokens, v->n, t.predicted_n ? t.predicted_n - 1 : 0);
    else
        slots_give_unknown(s->slots, &v->lease);
    if (told) {
        SERVE_COUNT(&s->counts, prompt_tokens, v->n);
        SERVE_COUNT(&s->counts, computed_tokens, t.prompt_n);
        SERVE_COUNT(&s->counts, restored_tokens, v->restored < t.cache_n ? v->restored : t.cache_n);
        SERVE_COUNT(&s->counts, warm_tokens, t.cache_n > v->restored ? t.cache_n - v->restored : 0);
        SERVE_COUNT(&s->counts, miscounted, !right);
        SERVE_COUNT(&s->counts, restores_short, is_short);
    }
    if (is_short) {
        pthread_mutex_lock(&s->lock);
        bool is_first = !s->no_restore;
        s->no_restore = true;
        pthread_mutex_unlock(&s->lock);
        if (is_first)
            say("the server reused less of a restored prompt than was restored; prompts are no longer restored");
    }
    if (s->o.log_requests) log_visit(v, o, &t);
}

static void end_visit(void *ctx, const relay_outcome *o)
{
    visit *v = (visit *)ctx;
    if (o->end == EXCHANGE_LEFT) SERVE_COUNT(&v->s->counts, left, 1);
    if (v->use == USES_LEASE) settle(v, o);
    if (v->use == USES_ANY) slots_end_unwatched(v->s->slots);
    visit_free(v);
}

static void fail_visit(visit *v, front_request *request)
{
    static const relay_outcome none = {.end = EXCHANGE_FAILED};
    SERVE_COUNT(&v->s->counts, failed, 1);
    front_give_fault(request, 503, "unavailable_error", "the server behind quire serve does not answer");
    end_visit(v, &none);
}

static void leave_visit(visit *v, front_request *request)
{
    static const relay_outcome left = {.end = EXCHANGE_LEFT};
    front_drop(request);
    end_visit(v, &left);
}

static void pass(visit *v, front_request *request)
{
    const relay_order order = {.to = &v->s->o.to,
                               .headers = v->headers,
                               .body = v->made,
                               .keeps_tail = v->use == USES_LEASE,
                               .ended = end_visit,
                               .ctx = v};
    if (!relay_pass(request, &order)) fail_visit(v, request);
}

/* ------------------------------------------------------------------ restoring */

static void restore(visit *v, prefix *p)
{
    sidecar *s = v->s;
    pthread_mutex_lock(&s->lock);
    bool may = !s->no_restore;
    pthread_mutex_unlock(&s->lock);
    if (!may || !slots_are_watched(s->slots) || v->n < v->lease.n_same + s->o.restore_least) return;
    double begin = clock_ms();
    uint32_t stored = prefix_look_up(p, v->tokens, v->n);
    v->lookup = clock_ms() - begin;
    if (stored < v->lease.n_same + s->o.restore_least) return;
    slots_exchange(s->slots, &v->lease);
    v->restored = prefix_restore(p, v->lease.slot, v->tokens, stored, &v->times);
    if (v->restored) SERVE_COUNT(&s->counts, restores, 1);
}

static bool has_left(void *ctx)
{
    struct pollfd p = {.fd = *(int *)ctx, .events = POLLRDHUP};
    return poll(&p, 1, 0) > 0 && p.revents;
}

/* A slot for the prompt, with as much of it as can be had. false: the client has left. */
static bool take_slot(visit *v, front_request *request, body *b, bool is_chat)
{
    sidecar *s = v->s;
    size_t n;
    int client = front_socket(request);
    const char *bytes = front_body(request, &n);
    const prompt_source from = {&s->o.to, s->o.api_prefix, v->headers, client};
    v->tokens = prompt_tokens(&from, b, is_chat, bytes, n, &v->n);
    if (!v->tokens || !v->n) return true;
    if (!slots_take(s->slots, v->tokens, v->n, has_left, &client, &v->lease)) return false;
    v->use = USES_LEASE;
    prefix *p = prefix_now(s);
    if (p) restore(v, p);
    v->made = body_for_slot(b, v->lease.slot, &n);
    if (v->made) return true;
    slots_give_unknown(s->slots, &v->lease);
    v->use = USES_NONE;
    return true;
}

/* ---------------------------------------------------------------------- routes */

/* A request that uses a slot. */
static void complete(visit *v, front_request *request, route to)
{
    sidecar *s = v->s;
    size_t n;
    const char *bytes = front_body(request, &n);
    body *b = body_read(bytes, n);
    bool here = true;
    if (b && to != ROUTE_UNWATCHED) here = take_slot(v, request, b, to == ROUTE_CHAT);
    if (here && v->use == USES_NONE) {
        if (b) v->made = body_without_slot(b, &n); /* slots are this program's */
        v->use = USES_ANY;
        slots_begin_unwatched(s->slots);
    }
    body_free(b);
    if (!here) {
        leave_visit(v, request);
        return;
    }
    if (v->use == USES_LEASE)
        SERVE_COUNT(&s->counts, watched, 1);
    else
        SERVE_COUNT(&s->counts, unwatched, 1);
    pass(v, request);
}

static void pass_on(sidecar *s, front_request *request, route to)
{
    visit *v = (visit *)calloc(1, sizeof *v);
    if (!v || !relay_headers(request, &v->headers)) {
        free(v);
        front_drop(request);
        return;
    }
    v->s = s;
    v->begin = clock_ms();
    snprintf(v->target, sizeof v->target, "%.*s", (int)strcspn(front_target(request), "?"),
             front_target(request));
    if (to != ROUTE_PLAIN) {
        complete(v, request, to);
        return;
    }
    SERVE_COUNT(&s->counts, passed, 1);
    pass(v, request);
}

static void give_metrics(sidecar *s, front_request *request)
{
    growing text = {0};
    if (serve_metrics_print(&s->counts, s->o.prefix.store, &text))
        front_give_text(request, 200, "text/plain; version=0.0.4", text.bytes);
    else
        front_drop(request);
    growing_free(&text);
}

static void give_health(sidecar *s, front_request *request)
{
    char text[SERVE_HEALTH_SIZE];
    pthread_mutex_lock(&s->lock);
    const serve_health now = {.is_ready = s->is_ready,
                              .keeps = s->prefix,
                              .restores = s->prefix && !s->no_restore,
                              .store = s->o.prefix.store};
    pthread_mutex_unlock(&s->lock);
    serve_health_print(&now, text);
    front_give_text(request, now.is_ready ? 200 : 503, "application/json; charset=utf-8", text);
}

void sidecar_handle(void *ctx, front_request *request)
{
    sidecar *s = (sidecar *)ctx;
    route to = route_of(front_method(request), front_target(request), s->o.api_prefix);
    bool ready = is_ready(s);
    SERVE_COUNT(&s->counts, requests, 1);
    switch (to) {
    case ROUTE_METRICS: give_metrics(s, request); return;
    case ROUTE_HEALTH: give_health(s, request); return;
    case ROUTE_REFUSED:
        front_give_fault(request, 403, "permission_error",
                         "slots and adapters of this server belong to quire serve");
        return;
    case ROUTE_TEXT:
    case ROUTE_CHAT:
    case ROUTE_UNWATCHED:
        if (ready) break;
        (void)front_add_header(request, "Retry-After",
                               "1"); /* a gateway learns from it that nothing was begun */
        front_give_fault(request, 503, "unavailable_error", "the server behind quire serve is not ready");
        return;
    case ROUTE_PLAIN: break;
    }
    pass_on(s, request, to);
}

sidecar *sidecar_create(const sidecar_options *options)
{
    sidecar *s = (sidecar *)calloc(1, sizeof *s);
    if (!s) return NULL;
    s->o = *options;
    s->slots = slots_create(options->n_slots);
    pthread_mutex_init(&s->lock, NULL);
    const saver_options saving = {.slots = s->slots,
                                  .counts = &s->counts,
                                  .min_tokens = options->min_tokens,
                                  .prefix = prefix_now,
                                  .ctx = s};
    s->saver = s->slots ? saver_start(&saving) : NULL;
    if (s->saver) return s;
    sidecar_destroy(s);
    return NULL;
}

void sidecar_destroy(sidecar *s)
{
    if (!s) return;
    saver_stop(s->saver);
    prefix_destroy(s->prefix);
    slots_destroy(s->slots);
    pthread_mutex_destroy(&s->lock);
    free(s);
}
