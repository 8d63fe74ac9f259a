/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "serve/sidecar.h"

#include "serve/body.h"
#include "serve/clock.h"
#include "serve/flights.h"
#include "serve/keeps.h"
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
#include <strings.h>

/* Of an answer about tokens that were computed. */
#define MOST_ANSWER (64u << 20)

struct sidecar {
    sidecar_options o;
    slots *slots;
    keeps *keeps;
    flights *flights;
    saver *saver;
    serve_counts counts;
    pthread_mutex_t lock; /* of what follows */
    bool is_ready, no_restore, is_finishing;
    double ms_per_token; /* that computing a prompt takes; 0: not measured */
};

static void say(const char *text)
{
    fprintf(stderr, "quire serve: %s\n", text);
}

/* ----------------------------------------------------------------- the engine */

static bool is_ready(void *ctx)
{
    sidecar *s = (sidecar *)ctx;
    pthread_mutex_lock(&s->lock);
    bool ready = s->is_ready;
    pthread_mutex_unlock(&s->lock);
    return ready;
}

static prefix *keep_of(void *ctx, uint32_t owner)
{
    return keeps_of(((sidecar *)ctx)->keeps, owner);
}

static void remove_copy(void *ctx, const char *name)
{
    prefix_remove_copy(&((sidecar *)ctx)->o.prefix, name);
}

void sidecar_engine_changed(void *ctx, engine_state state, uint32_t generation, const char *why)
{
    sidecar *s = (sidecar *)ctx;
    char message[256], line[400];
    pthread_mutex_lock(&s->lock);
    s->is_ready = false;
    pthread_mutex_unlock(&s->lock);
    if (state == ENGINE_DOWN) {
        snprintf(line, sizeof line, "the server is started again: %s", why);
        say(line);
        slots_reset(s->slots, 0); /* leases are void before the next server can answer */
    }
    if (state != ENGINE_READY) return;
    if (!keeps_learn(s->keeps, message, sizeof message)) {
        snprintf(line, sizeof line, "prompts of this server cannot be kept: %s", message);
        say(line);
    }
    slots_reset(s->slots, generation);
    pthread_mutex_lock(&s->lock);
    s->is_ready = true;
    pthread_mutex_unlock(&s->lock);
}

/* -------------------------------------------------------------- one request */

/* Of slots: one that the server chooses, one that is known, with or without knowing the tokens, all. */
typedef enum use { USES_NONE, USES_ANY, USES_LEASE, USES_BLINDLY, USES_ALL } use;

typedef struct visit {
    sidecar *s;
    header_lines *headers;
    char *made; /* the body that is sent, if it is not the client's */
    uint32_t owner;
    prefix *keep; /* of the owner, or NULL */
    uint32_t *tokens, n;
    slot_lease lease;
    use use;
    flight *leads;
    uint32_t restored, copied, primed; /* tokens: from the store, from another's slot, computed ahead of the request */
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
        "quire serve: path=%s status=%u prompt=%u cached=%u computed=%u restored=%u copied=%u ahead=%u slot=%u first_ms=%.1f "
        "lookup_ms=%.1f load_ms=%.1f write_ms=%.1f restore_ms=%.1f total_ms=%.1f\n",
        v->target, o->status, v->n, t->cache_n, t->prompt_n, v->restored, v->copied, v->primed,
        v->lease.slot,
        o->first_ms > 0 ? o->first_ms - v->begin : 0, v->lookup, v->times.load, v->times.write,
        v->times.restore, clock_ms() - v->begin);
}

static void end_restoring(sidecar *s)
{
    pthread_mutex_lock(&s->lock);
    bool is_first = !s->no_restore;
    s->no_restore = true;
    pthread_mutex_unlock(&s->lock);
    if (is_first)
        say("the server reused less of a restored prompt than was restored; prompts are no longer restored");
}

static bool may_restore(sidecar *s)
{
    pthread_mutex_lock(&s->lock);
    bool may = !s->no_restore;
    pthread_mutex_unlock(&s->lock);
    return may && slots_are_watched(s->slots);
}

static void measure(sidecar *s, const body_timings *t)
{
    if (t->prompt_n < QUIRE_PAGE_TOKENS || t->prompt_ms <= 0) return;
    double now = t->prompt_ms / t->prompt_n;
    pthread_mutex_lock(&s->lock);
    s->ms_per_token = s->ms_per_token > 0 ? 0.75 * s->ms_per_token + 0.25 * now : now;
    pthread_mutex_unlock(&s->lock);
}

static void count_tokens(const visit *v, const body_timings *t)
{
    serve_counts *c = &v->s->counts;
    uint32_t brought = v->restored + v->copied + v->primed;
    SERVE_COUNT(c, prompt_tokens, v->n);
    SERVE_COUNT(c, computed_tokens, t->prompt_n + v->primed);
    SERVE_COUNT(c, restored_tokens, v->restored < t->cache_n ? v->restored : t->cache_n);
    SERVE_COUNT(c, shared_tokens, v->copied < t->cache_n ? v->copied : t->cache_n);
    SERVE_COUNT(c, warm_tokens, t->cache_n > brought ? t->cache_n - brought : 0);
}

/* What the server said of the prompt is compared with what was thought of it. */
static void settle(visit *v, const relay_outcome *o)
{
    sidecar *s = v->s;
    body_timings t = {0};
    bool told =
        o->end == EXCHANGE_DONE && o->status == 200 && o->tail && body_read_timings(o->tail, o->n_tail, &t);
    /* Nothing of a slot with rows of another may have been reused. */
    bool right = told && t.cache_n + t.prompt_n == v->n && (v->lease.is_own || !t.cache_n);
    /* Not if the server was started again, or put another request into the slot, after it was restored. */
    bool is_short =
        told && v->restored && t.cache_n + 1 < v->restored && slots_are_undisturbed(s->slots, &v->lease);
    if (right)
        slots_give(s->slots, &v->lease, v->tokens, v->n, t.predicted_n ? t.predicted_n - 1 : 0, v->restored);
    else
        slots_give_unknown(s->slots, &v->lease);
    if (told) {
        count_tokens(v, &t);
        measure(s, &t);
        SERVE_COUNT(&s->counts, miscounted, !right);
        SERVE_COUNT(&s->counts, restores_short, is_short);
    }
    if (is_short) end_restoring(s);
    if (s->o.log_requests) log_visit(v, o, &t);
}

/* A slot whose tokens are not known: if the request was answered, all rows in it are new. */
static void settle_blindly(visit *v, const relay_outcome *o)
{
    v->lease.is_own = o->end == EXCHANGE_DONE && o->status == 200;
    slots_give_unknown(v->s->slots, &v->lease);
}

static void end_visit(void *ctx, const relay_outcome *o)
{
    visit *v = (visit *)ctx;
    if (o->end == EXCHANGE_LEFT) SERVE_COUNT(&v->s->counts, left, 1);
    switch (v->use) {
    case USES_LEASE: settle(v, o); break;
    case USES_BLINDLY: settle_blindly(v, o); break;
    case USES_ANY: slots_end_unwatched(v->s->slots); break;
    case USES_ALL: slots_give_all(v->s->slots, &v->lease); break;
    case USES_NONE: break;
    }
    if (v->leads) flight_end(v->leads);
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

static void restore(visit *v)
{
    sidecar *s = v->s;
    if (!may_restore(s) || v->n < v->lease.n_same + s->o.restore_least) return;
    double begin = clock_ms();
    uint32_t stored = prefix_look_up(v->keep, v->tokens, v->n);
    v->lookup = clock_ms() - begin;
    if (stored < v->lease.n_same + s->o.restore_least) return;
    slots_exchange(s->slots, &v->lease);
    v->restored = prefix_restore(v->keep, v->lease.slot, v->tokens, stored, &v->times);
    if (!v->restored) return;
    v->lease.is_own = true; /* the file has replaced all that was there */
    SERVE_COUNT(&s->counts, restores, 1);
}

/* From the slot of another request, which has just computed the same beginning. */
static void copy(visit *v, const flight *from, uint32_t n_shared)
{
    sidecar *s = v->s;
    if (!may_restore(s) || n_shared < v->lease.n_same + s->o.restore_least) return;
    double begin = clock_ms();
    slots_exchange(s->slots, &v->lease);
    if (!prefix_copy_in(v->keep, v->lease.slot, flight_copy(from))) return;
    v->times.restore = clock_ms() - begin;
    v->copied = n_shared;
    v->lease.is_own = true;
    SERVE_COUNT(&s->counts, shared, 1);
}

/* Computes the first n tokens before the request itself is sent. false: it was not done. */
static bool compute(visit *v, uint32_t n, int client)
{
    sidecar *s = v->s;
    char target[160], *answer = NULL;
    size_t size;
    body_timings t;
    char *text = body_compute(v->tokens, n, v->lease.slot, v->lease.is_own, &size);
    snprintf(target, sizeof target, "%s/completion", s->o.api_prefix);
    const exchange_request wire = {.method = "POST",
                                   .target = target,
                                   .headers = v->headers,
                                   .body = text,
                                   .body_size = size,
                                   .has_body = true,
                                   .client = client};
    bool good = text && upstream_ask(&s->o.to, &wire, MOST_ANSWER, &answer, &size) == 200 &&
                body_read_timings(answer, size, &t) && t.cache_n + t.prompt_n == n;
    if (good) {
        v->primed = t.prompt_n;
        v->lease.is_own = true;
        measure(s, &t);
    }
    free(text);
    free(answer);
    return good;
}

/* Others may wait for what this request computes: they get a copy before it makes its first token. */
static void lead(visit *v, int client)
{
    uint32_t have = v->restored > v->lease.n_same ? v->restored : v->lease.n_same, n_shared;
    char name[PREFIX_NAME];
    flight_has(v->leads, have, v->restored);
    bool gives = v->n >= have + FLIGHT_LEAST && flight_company(v->leads, &n_shared);
    if (gives) {
        uint32_t most = (v->n - 1) / QUIRE_PAGE_TOKENS * QUIRE_PAGE_TOKENS;
        uint32_t n = n_shared / QUIRE_PAGE_TOKENS * QUIRE_PAGE_TOKENS;
        if (n < have + FLIGHT_LEAST || n > most) n = most;
        gives = compute(v, n, client) && flight_company(v->leads, &n_shared) &&
                prefix_copy_out(v->keep, v->lease.slot, name);
        if (gives) flight_give(v->leads, name, n);
    }
    if (!gives) flight_promise(v->leads, false);
}

static bool has_left(void *ctx)
{
    struct pollfd p = {.fd = *(int *)ctx, .events = POLLRDHUP};
    return poll(&p, 1, 0) > 0 && p.revents;
}

/* A slot for the prompt, with as much of it as can be had. false: the client has left. */
static bool take_slot(visit *v, int client)
{
    sidecar *s = v->s;
    flight *met = NULL;
    uint32_t n_shared = 0;
    flight_part part = FLIGHT_ALONE;
    if (v->keep && s->o.n_slots > 1) {
        pthread_mutex_lock(&s->lock);
        const flight_request r = {.owner = v->owner,
                                  .tokens = v->tokens,
                                  .n = v->n,
                                  .n_have = slots_look_up(s->slots, v->owner, v->tokens, v->n),
                                  .ms_per_token = s->ms_per_token,
                                  .has_left = has_left,
                                  .ctx = &client};
        pthread_mutex_unlock(&s->lock);
        part = flights_enter(s->flights, &r, &met, &n_shared);
    }
    if (part == FLIGHT_LEADS) v->leads = met;
    bool here = part != FLIGHT_LEFT &&
                slots_take(s->slots, v->owner, v->tokens, v->n, has_left, &client, &v->lease);
    if (here) {
        v->use = USES_LEASE;
        if (part == FLIGHT_JOINS) copy(v, met, n_shared);
        if (v->keep && !v->copied) restore(v);
        if (v->leads) lead(v, client);
    }
    if (part == FLIGHT_JOINS) flight_leave(met);
    return here;
}

/* ---------------------------------------------------------------------- routes */

/* Slots for a request whose tokens are not known. With tenants no row of another may come near it. false: the client has left. */
static bool take_blindly(visit *v, const body *b, route to, int client)
{
    sidecar *s = v->s;
    if (!s->o.tenants) {
        slots_begin_unwatched(s->slots);
        v->use = USES_ANY;
        return true;
    }
    bool one = b && to != ROUTE_UNWATCHED && body_is_alone(b); /* such a request can name its slot */
    bool here = one ? slots_take(s->slots, v->owner, NULL, 0, has_left, &client, &v->lease)
                    : slots_take_all(s->slots, has_left, &client, &v->lease);
    if (here) v->use = one ? USES_BLINDLY : USES_ALL;
    return here;
}

static char *make_body(const visit *v, body *b)
{
    size_t n;
    body_reuse reuse = v->use == USES_ANY                         ? BODY_REUSES_AS_IT_SAYS
                       : v->use == USES_LEASE && v->lease.is_own ? BODY_REUSES
                                                                 : BODY_REUSES_NOTHING;
    bool knows_slot = v->use == USES_LEASE || v->use == USES_BLINDLY;
    return body_for_slot(b, knows_slot ? (int32_t)v->lease.slot : BODY_ANY_SLOT, reuse, &n);
}

static bool is_form(const front_request *request)
{
    const char *type = front_header(request, "Content-Type");
    return type && !strncasecmp(type, "multipart/form-data", 19);
}

static bool is_watched(route to)
{
    return to == ROUTE_TEXT || to == ROUTE_CHAT;
}

static void learn_tokens(visit *v, front_request *request, body *b, route to)
{
    sidecar *s = v->s;
    size_t n;
    const char *bytes = front_body(request, &n);
    const prompt_source from = {&s->o.to, s->o.api_prefix, v->headers, front_socket(request)};
    flights_approach(s->flights);
    v->tokens = prompt_tokens(&from, b, to == ROUTE_CHAT, bytes, n, &v->n);
    flights_pass(s->flights);
}

/* A request that uses a slot. */
static void complete(visit *v, front_request *request, route to)
{
    sidecar *s = v->s;
    size_t n;
    int client = front_socket(request);
    const char *bytes = front_body(request, &n);
    body *b = body_read(bytes, n);
    if (!b && !(to == ROUTE_UNWATCHED && is_form(request))) {
        /* What this program reads otherwise than the server could name a slot. */
        front_give_fault(request, 400, "invalid_request_error", "the body of the request is not a JSON object");
        visit_free(v);
        return;
    }
    if (is_watched(to) && v->owner != SLOT_NOBODY) learn_tokens(v, request, b, to);
    bool here = v->tokens && v->n ? take_slot(v, client) : take_blindly(v, b, to, client);
    bool good = here && (!b || (v->made = make_body(v, b)));
    if (v->use == USES_LEASE || v->use == USES_BLINDLY) good = good && slots_is_valid(s->slots, &v->lease);
    body_free(b);
    if (!here) {
        leave_visit(v, request);
    } else if (!good) {
        fail_visit(v, request);
    } else {
        SERVE_COUNT(&s->counts, watched, v->use == USES_LEASE);
        SERVE_COUNT(&s->counts, unwatched, v->use != USES_LEASE);
        pass(v, request);
    }
}

static void pass_on(sidecar *s, front_request *request, route to, const tenant *t)
{
    visit *v = (visit *)calloc(1, sizeof *v);
    if (!v || !relay_headers(request, &v->headers)) {
        free(v);
        front_drop(request);
        return;
    }
    v->s = s;
    v->begin = clock_ms();
    v->owner = s->o.tenants ? t->number : OWNER_ALL;
    if (v->owner != SLOT_NOBODY)
        v->keep = s->o.tenants ? keeps_of_tenant(s->keeps, t) : keeps_of(s->keeps, v->owner);
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
    char text[SERVE_METRICS_SIZE];
    serve_metrics_print(&s->counts, text);
    front_give_text(request, 200, "text/plain; version=0.0.4", text);
}

/* false: it was answered with a refusal. */
static bool is_allowed(sidecar *s, front_request *request, route to, tenant *t)
{
    *t = (tenant){0};
    if (!s->o.tenants || to == ROUTE_HEALTH || to == ROUTE_REFUSED) return true;
    if (!tenants_find(s->o.tenants, front_header(request, "Authorization"),
                      front_header(request, "X-Api-Key"), t))
        SERVE_COUNT(&s->counts, strangers, 1);
    if (to == ROUTE_METRICS) {
        if (t->reads_metrics) return true;
        front_give_fault(request, 401, "authentication_error",
                         "figures are for a key whose line in the file of --tenants has - for a secret");
        return false;
    }
    if (route_is_for_tenants(front_method(request), front_target(request), s->o.api_prefix)) return true;
    front_give_fault(request, 403, "permission_error",
                     "with --tenants this endpoint is refused: it may show what others asked");
    return false;
}

void sidecar_handle(void *ctx, front_request *request)
{
    sidecar *s = (sidecar *)ctx;
    tenant t;
    route to = route_of(front_method(request), front_target(request), s->o.api_prefix);
    pthread_mutex_lock(&s->lock);
    bool ready = s->is_ready && !s->is_finishing;
    pthread_mutex_unlock(&s->lock);
    SERVE_COUNT(&s->counts, requests, 1);
    if (!is_allowed(s, request, to, &t)) return;
    switch (to) {
    case ROUTE_METRICS: give_metrics(s, request); return;
    case ROUTE_HEALTH:
        front_give_text(request, ready ? 200 : 503, "application/json; charset=utf-8",
                        ready ? "{\"status\":\"ok\"}" : "{\"status\":\"the server is not ready\"}");
        return;
    case ROUTE_REFUSED:
        front_give_fault(request, 403, "permission_error",
                         "slots and adapters of this server belong to quire serve");
        return;
    case ROUTE_TEXT:
    case ROUTE_CHAT:
    case ROUTE_UNWATCHED:
        if (ready) break;
        front_give_fault(request, 503, "unavailable_error", "the server behind quire serve is not ready");
        return;
    case ROUTE_PLAIN: break;
    }
    pass_on(s, request, to, &t);
}

void sidecar_finish(sidecar *s, uint32_t timeout_ms)
{
    pthread_mutex_lock(&s->lock);
    s->is_finishing = true;
    pthread_mutex_unlock(&s->lock);
    saver_finish(s->saver, timeout_ms);
}

sidecar *sidecar_create(const sidecar_options *options)
{
    sidecar *s = (sidecar *)calloc(1, sizeof *s);
    if (!s) return NULL;
    s->o = *options;
    s->slots = slots_create(options->n_slots);
    s->keeps = keeps_create(&options->prefix, options->tenants);
    s->flights = flights_create(remove_copy, s);
    pthread_mutex_init(&s->lock, NULL);
    const saver_options saving = {.slots = s->slots,
                                  .counts = &s->counts,
                                  .min_tokens = options->min_tokens,
                                  .prefix = keep_of,
                                  .can_save = is_ready,
                                  .ctx = s};
    s->saver = s->slots && s->keeps && s->flights ? saver_start(&saving) : NULL;
    if (s->saver) return s;
    sidecar_destroy(s);
    return NULL;
}

void sidecar_destroy(sidecar *s)
{
    if (!s) return;
    saver_stop(s->saver);
    keeps_destroy(s->keeps);
    flights_destroy(s->flights);
    slots_destroy(s->slots);
    pthread_mutex_destroy(&s->lock);
    free(s);
}
