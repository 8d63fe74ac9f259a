/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "serve/visit.h"

#include "serve/clock.h"
#include "serve/prompt.h"
#include "serve/relay.h"
#include "serve/route.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

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

static void say_what_is_kept(const sidecar *s)
{
    char longer[64] = "", line[400];
    if (s->o.prefix.window)
        snprintf(longer, sizeof longer, "longer than its window of %u tokens ", s->o.prefix.window);
    snprintf(line, sizeof line,
             "of this model, prompts %sare kept up to their last whole page, from where others go on",
             longer);
    sidecar_say(line);
}

void sidecar_read_tenants(sidecar *s)
{
    char message[512], line[600];
    if (tenants_read_again(s->o.tenants, message, sizeof message)) {
        keeps_leave(s->keeps, s->o.tenants); /* what is removed of those that have left must stay so */
        snprintf(line, sizeof line, "the file of --tenants has %u keys", tenants_count(s->o.tenants));
    } else {
        SERVE_COUNT(&s->counts, tenants_unread, 1);
        snprintf(line, sizeof line, "the tenants stay as they were: %s", message);
    }
    sidecar_say(line);
}

void sidecar_engine_changed(void *ctx, engine_state state, uint32_t generation, const char *why)
{
    sidecar *s = (sidecar *)ctx;
    char message[4400], line[4600];
    pthread_mutex_lock(&s->lock);
    s->is_ready = false;
    pthread_mutex_unlock(&s->lock);
    if (state != ENGINE_READY) keeps_forget(s->keeps);
    if (state == ENGINE_DOWN) {
        snprintf(line, sizeof line, "the server is started again: %s", why);
        sidecar_say(line);
        slots_reset(s->slots, 0); /* leases are void before the next server can answer */
    }
    if (state != ENGINE_READY) return;
    bool knew = keeps_have_states(s->keeps);
    if (!keeps_learn(s->keeps, message, sizeof message)) {
        snprintf(line, sizeof line, "prompts of this server cannot be kept: %s", message);
        sidecar_say(line);
    }
    if (!knew && keeps_have_states(s->keeps)) say_what_is_kept(s);
    slots_reset(s->slots, generation);
    pthread_mutex_lock(&s->lock);
    s->n_short = s->n_failed = s->n_broken = 0;
    s->paused_until = 0;
    s->is_ready = true;
    pthread_mutex_unlock(&s->lock);
}

/* -------------------------------------------------------------- one request */

static void visit_free(visit *v)
{
    header_lines_free(v->headers);
    free(v->made);
    free(v->tokens);
    free(v);
}

/*
 * A server sees once a second that a client has gone. Until then a request that it was still reading can begin, in a slot that would be
 * another tenant's by then.
 */
static void wait_for_server(const visit *v, const relay_outcome *o)
{
    static const struct timespec while_it_looks = {.tv_sec = 1, .tv_nsec = 500 * 1000 * 1000};
    bool has_slot = v->use == USES_LEASE || v->use == USES_BLINDLY || v->use == USES_ALL;
    if (v->s->o.tenants && has_slot && o->end == EXCHANGE_LEFT && !o->status)
        nanosleep(&while_it_looks, NULL);
}

static void end_visit(void *ctx, const relay_outcome *o)
{
    visit *v = (visit *)ctx;
    wait_for_server(v, o);
    if (o->end == EXCHANGE_LEFT) SERVE_COUNT(&v->s->counts, left, 1);
    switch (v->use) {
    case USES_LEASE: visit_settle(v, o); break;
    case USES_BLINDLY: visit_settle_blindly(v, o); break;
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
                               .reads_counts = v->use == USES_LEASE || v->use == USES_BLINDLY,
                               .ended = end_visit,
                               .ctx = v};
    if (!relay_pass(request, &order)) fail_visit(v, request);
}

/* ---------------------------------------------------------------------- routes */

static char *make_body(const visit *v, body *b)
{
    size_t n;
    body_reuse reuse = v->use == USES_ANY || v->use == USES_NONE ? BODY_REUSES_AS_IT_SAYS
                       : v->use == USES_LEASE && v->lease.is_own ? BODY_REUSES
                                                                 : BODY_REUSES_NOTHING;
    bool knows_slot = (v->use == USES_LEASE && v->to != ROUTE_MESSAGES) || v->use == USES_BLINDLY;
    return body_for_slot(b, knows_slot ? (int32_t)v->lease.slot : BODY_ANY_SLOT, reuse, &n);
}

/* As the server will see it. */
static bool is_form(const visit *v)
{
    const char *type = header_lines_find(v->headers, "Content-Type");
    return type && !strncasecmp(type, "multipart/form-data", 19) && strchr("; \t", type[19]);
}

/* With tenants a request must name its slot. */
static bool is_watched(const sidecar *s, route to)
{
    return to == ROUTE_TEXT || to == ROUTE_CHAT || to == ROUTE_RESPONSES ||
           (to == ROUTE_MESSAGES && !s->o.tenants);
}

static void learn_tokens(visit *v, const prompt_source *from, front_request *request, body *b, route to)
{
    sidecar *s = v->s;
    size_t n;
    const char *bytes = front_body(request, &n);
    flight_near near = {.owner = v->owner};
    flights_approach(s->flights, &near);
    v->tokens = prompt_tokens(from, b, to, bytes, n, &v->n);
    flights_pass(s->flights, &near);
}

/* A request that uses a slot. */
static void complete(visit *v, front_request *request, route to)
{
    sidecar *s = v->s;
    size_t n;
    int client = front_socket(request);
    const char *bytes = front_body(request, &n);
    const prompt_source from = {.to = &s->o.to, .headers = v->headers, .client = client};
    bool has_keys = s->o.prefix.authorization; /* else the server refuses nobody */
    body *b = body_read(bytes, n);
    if (!b && !(to == ROUTE_UNWATCHED && is_form(v))) {
        /* What this program reads otherwise than the server could name a slot. */
        front_give_fault(request, 400, "invalid_request_error",
                         "the body of the request is not a JSON object that can be read");
        visit_free(v);
        return;
    }
    if (is_watched(s, to) && v->owner != SLOT_NOBODY) learn_tokens(v, &from, request, b, to);
    bool here = true;
    if (v->tokens && v->n)
        here = visit_take_slot(v, client);
    else if (!has_keys ||
             !prompt_is_refused(&from)) /* else it passes and gets its refusal; no slot is touched for it */
        here = visit_take_blindly(v, b, to, client);
    bool good = here && !v->is_unclear && (!b || (v->made = make_body(v, b)));
    if (v->use == USES_LEASE || v->use == USES_BLINDLY) good = good && slots_is_valid(s->slots, &v->lease);
    body_free(b);
    if (!here) {
        leave_visit(v, request);
    } else if (!good) {
        fail_visit(v, request);
    } else {
        SERVE_COUNT(&s->counts, watched, v->use == USES_LEASE);
        SERVE_COUNT(&s->counts, unwatched, v->use != USES_LEASE && v->use != USES_NONE);
        SERVE_COUNT(&s->counts, passed, v->use == USES_NONE);
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
    v->to = to;
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

static serve_health health_now(sidecar *s)
{
    bool can_keep = keeps_can_keep(s->keeps), restores = sidecar_restores(s);
    serve_health now = {.keeps = can_keep,
                        .restores = can_keep && restores,
                        .has_lost_disk = s->o.has_lost_disk,
                        .store = s->o.prefix.store};
    now.has_root = keeps_root(s->keeps, now.root);
    pthread_mutex_lock(&s->lock);
    now.is_ready = s->is_ready && !s->is_finishing;
    pthread_mutex_unlock(&s->lock);
    return now;
}

static void give_metrics(sidecar *s, front_request *request)
{
    growing text = {0};
    const serve_health now = health_now(s);
    if (serve_metrics_print(&s->counts, &now, &text))
        front_give_text(request, 200, "text/plain; version=0.0.4", text.bytes);
    else
        front_drop(request);
    growing_free(&text);
}

static void give_health(sidecar *s, front_request *request)
{
    char text[SERVE_HEALTH_SIZE];
    const serve_health now = health_now(s);
    serve_health_print(&now, text);
    front_give_text(request, now.is_ready ? 200 : 503, "application/json; charset=utf-8", text);
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
    if (route_is_for_tenants(front_method(request), front_target(request), s->o.to.api_prefix)) return true;
    front_give_fault(request, 403, "permission_error",
                     "with --tenants this endpoint is refused: it may show what others asked");
    return false;
}

void sidecar_handle(void *ctx, front_request *request)
{
    sidecar *s = (sidecar *)ctx;
    tenant t;
    route to = route_of(front_method(request), front_target(request), s->o.to.api_prefix);
    pthread_mutex_lock(&s->lock);
    bool ready = s->is_ready && !s->is_finishing;
    pthread_mutex_unlock(&s->lock);
    SERVE_COUNT(&s->counts, requests, 1);
    if (!is_allowed(s, request, to, &t)) return;
    switch (to) {
    case ROUTE_METRICS: give_metrics(s, request); return;
    case ROUTE_HEALTH: give_health(s, request); return;
    case ROUTE_REFUSED:
        front_give_fault(request, 403, "permission_error",
                         "slots and adapters of this server belong to quire serve");
        return;
    case ROUTE_TEXT:
    case ROUTE_CHAT:
    case ROUTE_MESSAGES:
    case ROUTE_RESPONSES:
    case ROUTE_UNWATCHED:
        if (ready) break;
        (void)front_add_header(request, "Retry-After",
                               "1"); /* a gateway learns from it that nothing was begun */
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
    s->keeps = keeps_create(&options->prefix, options->tenants, options->files);
    s->flights = flights_create(remove_copy, s);
    worth_init(&s->worth, options->restore_least);
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
    worth_destroy(&s->worth);
    pthread_mutex_destroy(&s->lock);
    free(s);
}
