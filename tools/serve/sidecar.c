/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "serve/sidecar.h"

#include "common/growing.h"
#include "serve/body.h"
#include "serve/clock.h"
#include "serve/route.h"
#include "serve/slots.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

/* The end of an answer, where the server's counts are. */
#define TAIL_BYTES (16u << 10)
/* Of an answer that lists tokens. */
#define MOST_ANSWER (256u << 20)
enum { SAVE_EVERY_MS = 100, SAVE_AT_LATEST_MS = 5000 };

struct sidecar {
    sidecar_options o;
    slots *slots;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t stopping_cond;
    prefix *prefix; /* NULL: nothing can be kept */
    bool is_ready, no_restore, is_stopping;
    sidecar_counts counts;
    pthread_t saver;
    bool has_saver;
};

static void say(const char *text)
{
    fprintf(stderr, "quire serve: %s\n", text);
}

#define COUNT(s, member, by)              \
    do {                                  \
        pthread_mutex_lock(&(s)->lock);   \
        (s)->counts.member += (by);       \
        pthread_mutex_unlock(&(s)->lock); \
    } while (0)

/* ----------------------------------------------------------------- the engine */

/* NULL: nothing can be kept now. One that was made stays until the end. */
static prefix *prefix_now(sidecar *s)
{
    pthread_mutex_lock(&s->lock);
    prefix *p = s->is_ready ? s->prefix : NULL;
    pthread_mutex_unlock(&s->lock);
    return p;
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
    if (p && prefix_has_states(p)) {
        char longer[64] = "";
        if (s->o.prefix.window)
            snprintf(longer, sizeof longer, "longer than its window of %u tokens ", s->o.prefix.window);
        snprintf(line, sizeof line,
                 "of this model, prompts %sare kept up to their last whole page, from where others go on",
                 longer);
        say(line);
    }
    slots_reset(s->slots, generation);
    pthread_mutex_lock(&s->lock);
    if (p) s->prefix = p;
    s->is_ready = true;
    pthread_mutex_unlock(&s->lock);
}

/* -------------------------------------------------------------- one request */

typedef struct relay {
    sidecar *s;
    front_request *request; /* until it has its answer */
    exchange *x;
    header_lines *headers;
    char *made; /* the body that is sent, if it is not the client's */
    char *tail;
    size_t n_tail;
    uint32_t *tokens, n;
    slot_lease lease;
    bool is_watched, is_unwatched, has_ended;
    uint32_t restored;
    prefix_progress advanced;
    unsigned status;
    long long n_read; /* of the body */
    double begin, first, lookup;
    prefix_times times;
    char target[64];
} relay;

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
                                       "Expect"};
    for (size_t i = 0; i < sizeof hops / sizeof *hops; i++)
        if (!strcasecmp(name, hops[i])) return true;
    return false;
}

static void take_header(void *ctx, const char *name, const char *value)
{
    relay *r = (relay *)ctx;
    if (is_hop(name) || !strcasecmp(name, "Content-Length")) return;
    (void)header_lines_add(&r->headers, name, value);
}

static void give_header(void *ctx, const char *name, const char *value)
{
    relay *r = (relay *)ctx;
    if (is_hop(name) || !strcasecmp(name, "Content-Length")) return;
    (void)front_add_header(r->request, name, value);
}

static bool has_left(void *ctx)
{
    struct pollfd p = {.fd = *(int *)ctx, .events = POLLRDHUP};
    return poll(&p, 1, 0) > 0 && p.revents;
}

/* What the server said of the prompt is compared with what was thought of it. */
static void settle_watched(relay *r)
{
    sidecar *s = r->s;
    body_timings t = {0};
    bool told = r->has_ended && r->status == 200 && body_read_timings(r->tail, r->n_tail, &t);
    bool right = told && t.cache_n + t.prompt_n == r->n;
    uint32_t expected = r->advanced.n_tokens > r->restored ? r->advanced.n_tokens : r->restored;
    bool is_short = told && expected && t.cache_n + 1 < expected;
    if (right)
        slots_give(s->slots, &r->lease, r->tokens, r->n, t.predicted_n ? t.predicted_n - 1 : 0);
    else
        slots_give_unknown(s->slots, &r->lease);
    pthread_mutex_lock(&s->lock);
    s->counts.prompt_tokens += told ? r->n : 0;
    uint32_t known = r->restored + r->advanced.n_computed;
    s->counts.computed_tokens += told ? t.prompt_n + r->advanced.n_computed : 0;
    s->counts.restored_tokens += told ? (r->restored < t.cache_n ? r->restored : t.cache_n) : 0;
    s->counts.warm_tokens += told && t.cache_n > known ? t.cache_n - known : 0;
    s->counts.miscounted += told && !right;
    s->counts.restores_short += is_short;
    bool is_first = is_short && !s->no_restore;
    if (is_short) s->no_restore = true;
    pthread_mutex_unlock(&s->lock);
    if (is_first)
        say("the server reused less of a restored prompt than was restored; prompts are no longer restored");
    if (s->o.log_requests)
        fprintf(
            stderr,
            "quire serve: path=%s status=%u prompt=%u cached=%u computed=%u restored=%u slot=%u first_ms=%.1f "
            "lookup_ms=%.1f load_ms=%.1f write_ms=%.1f restore_ms=%.1f total_ms=%.1f\n",
            r->target, r->status, r->n, t.cache_n, t.prompt_n, r->restored, r->lease.slot,
            r->first > 0 ? r->first - r->begin : 0, r->lookup, r->times.load, r->times.write,
            r->times.restore, clock_ms() - r->begin);
}

static void relay_end(void *ctx)
{
    relay *r = (relay *)ctx;
    exchange_free(r->x); /* the server hears of it before its slot is given to another */
    if (r->is_watched) settle_watched(r);
    if (r->is_unwatched) slots_end_unwatched(r->s->slots);
    header_lines_free(r->headers);
    free(r->made);
    free(r->tail);
    free(r->tokens);
    free(r);
}

static void keep_tail(relay *r, const char *bytes, size_t n)
{
    if (!r->is_watched || !r->tail) return;
    if (n >= TAIL_BYTES) {
        memcpy(r->tail, bytes + n - TAIL_BYTES, TAIL_BYTES);
        r->n_tail = TAIL_BYTES;
        return;
    }
    if (r->n_tail + n > TAIL_BYTES) {
        size_t keep = TAIL_BYTES - n;
        memmove(r->tail, r->tail + r->n_tail - keep, keep);
        r->n_tail = keep;
    }
    memcpy(r->tail + r->n_tail, bytes, n);
    r->n_tail += n;
}

static long relay_read(void *ctx, char *bytes, size_t size)
{
    relay *r = (relay *)ctx;
    exchange_end end;
    size_t n = exchange_read(r->x, bytes, size, &end);
    if (n) {
        if (r->first <= 0) r->first = clock_ms();
        keep_tail(r, bytes, n);
        r->n_read += (long long)n;
        if (r->n_read == exchange_length(r->x)) r->has_ended = true; /* nobody asks for more */
        return (long)n;
    }
    r->has_ended = end == EXCHANGE_DONE;
    if (end == EXCHANGE_LEFT) COUNT(r->s, left, 1);
    return end == EXCHANGE_DONE ? 0 : -1;
}

/* Sends the request and gives the answer, from now on without `request`. */
static void pass(relay *r, front_request *request)
{
    size_t n;
    const char *given = front_body(request, &n);
    const exchange_request wire = {.method = front_method(request),
                                   .target = front_target(request),
                                   .headers = r->headers,
                                   .body = r->made ? r->made : given,
                                   .body_size = r->made ? strlen(r->made) : n,
                                   .has_body = r->made || front_has_body(request),
                                   .client = front_socket(request)};
    r->x = exchange_begin(&r->s->o.to, &wire);
    exchange_end end = r->x ? exchange_wait(r->x) : EXCHANGE_FAILED;
    if (end != EXCHANGE_GOES_ON && end != EXCHANGE_DONE) {
        if (end == EXCHANGE_LEFT) {
            COUNT(r->s, left, 1);
            front_drop(request);
        } else {
            COUNT(r->s, failed, 1);
            front_give_fault(request, 503, "unavailable_error",
                             "the server behind quire serve does not answer");
        }
        relay_end(r);
        return;
    }
    r->status = exchange_status(r->x);
    r->request = request;
    exchange_headers(r->x, give_header, r);
    r->request = NULL;
    const front_answer answer = {
        .status = r->status, .length = exchange_length(r->x), .read = relay_read, .end = relay_end, .ctx = r};
    front_give(request, &answer);
}

/* ------------------------------------------------------------------- tokens */

static char *ask(const relay *r, const char *path, const char *text, size_t size, int client, size_t *n)
{
    char target[128], *answer;
    snprintf(target, sizeof target, "%s%s", r->s->o.api_prefix, path);
    const exchange_request wire = {.method = "POST",
                                   .target = target,
                                   .headers = r->headers,
                                   .body = text,
                                   .body_size = size,
                                   .has_body = true,
                                   .client = client};
    if (upstream_ask(&r->s->o.to, &wire, MOST_ANSWER, &answer, n) == 200) return answer;
    free(answer);
    return NULL;
}

static uint32_t *tokenize(const relay *r, const char *text, size_t n, int client, uint32_t *n_tokens)
{
    size_t size;
    char *request = body_tokenize(text, n, &size);
    char *answer = request ? ask(r, "/tokenize", request, size, client, &size) : NULL;
    uint32_t *tokens = answer ? body_read_tokens(answer, size, n_tokens) : NULL;
    free(request);
    free(answer);
    return tokens;
}

/* The tokens of the prompt as the server makes them; NULL: it is not a prompt that can be watched. */
static uint32_t *find_tokens(const relay *r, front_request *request, const body *b, bool is_chat, uint32_t *n)
{
    size_t size;
    uint32_t *tokens = NULL;
    int client = front_socket(request);
    const char *given = front_body(request, &size);
    switch (body_kind(b, is_chat)) {
    case BODY_TOKENS: return body_tokens(b, n);
    case BODY_TEXT: given = body_text(b, &size); return tokenize(r, given, size, client, n);
    case BODY_CHAT: {
        char *answer = ask(r, "/apply-template", given, size, client, &size);
        char *prompt = answer ? body_read_prompt(answer, size, &size) : NULL;
        if (prompt) tokens = tokenize(r, prompt, size, client, n);
        free(answer);
        free(prompt);
        return tokens;
    }
    case BODY_OTHER: break;
    }
    return NULL;
}

/* ------------------------------------------------------------------ restoring */

/* warm: tokens that the slot needs not compute again. Returns what it is then. */
static uint32_t restore(relay *r, prefix *p, uint32_t warm)
{
    sidecar *s = r->s;
    if (r->n < warm + s->o.restore_least) return warm;
    double begin = clock_ms();
    uint32_t stored = prefix_look_up(p, r->tokens, r->n);
    r->lookup = clock_ms() - begin;
    if (stored < warm + s->o.restore_least) return warm;
    slots_exchange(s->slots, &r->lease);
    r->restored = prefix_restore(p, r->lease.slot, r->tokens, stored, &r->times);
    if (r->restored) COUNT(s, restores, 1);
    return r->restored;
}

static void prepare(relay *r, prefix *p, int client)
{
    sidecar *s = r->s;
    pthread_mutex_lock(&s->lock);
    bool may = !s->no_restore;
    pthread_mutex_unlock(&s->lock);
    if (!may || !slots_are_watched(s->slots)) return;
    bool in_states = prefix_has_states(p);
    uint32_t same = r->lease.n_same;
    uint32_t have = restore(r, p, in_states && !r->lease.is_whole ? 0 : same);
    if (!in_states || r->n < s->o.min_tokens) return;
    const prefix_place place = {.slot = r->lease.slot, .have = have, .same = same, .client = client};
    r->advanced = prefix_advance(p, &place, r->tokens, r->n);
    pthread_mutex_lock(&s->lock);
    s->counts.saves += r->advanced.n_saved;
    s->counts.saved_tokens += r->advanced.n_saved ? r->advanced.n_tokens : 0;
    pthread_mutex_unlock(&s->lock);
}

typedef enum watching { WATCHED, NOT_WATCHED, CLIENT_LEFT } watching;

static watching watch(relay *r, front_request *request, body *b, bool is_chat)
{
    sidecar *s = r->s;
    size_t n;
    int client = front_socket(request);
    r->tokens = find_tokens(r, request, b, is_chat, &r->n);
    r->tail = (char *)malloc(TAIL_BYTES);
    if (!r->tokens || !r->n || !r->tail) return NOT_WATCHED;
    if (!slots_take(s->slots, r->tokens, r->n, has_left, &client, &r->lease)) return CLIENT_LEFT;
    prefix *p = prefix_now(s);
    if (p) prepare(r, p, client);
    r->made = body_for_slot(b, r->lease.slot, &n);
    r->is_watched = r->made;
    if (!r->made) slots_give_unknown(s->slots, &r->lease);
    return r->made ? WATCHED : NOT_WATCHED;
}

/* -------------------------------------------------------------------- routes */

static void give_metrics(sidecar *s, front_request *request)
{
    sidecar_counts c;
    char text[SIDECAR_METRICS_SIZE];
    sidecar_count(s, &c);
    sidecar_metrics(&c, text);
    front_give_text(request, 200, "text/plain; version=0.0.4", text);
}

void sidecar_handle(void *ctx, front_request *request)
{
    sidecar *s = (sidecar *)ctx;
    route to = route_of(front_method(request), front_target(request), s->o.api_prefix);
    size_t n;
    COUNT(s, requests, 1);
    if (to == ROUTE_METRICS) {
        give_metrics(s, request);
        return;
    }
    pthread_mutex_lock(&s->lock);
    bool ready = s->is_ready;
    pthread_mutex_unlock(&s->lock);
    if (to == ROUTE_HEALTH) {
        front_give_text(request, ready ? 200 : 503, "application/json; charset=utf-8",
                        ready ? "{\"status\":\"ok\"}" : "{\"status\":\"the server is not ready\"}");
        return;
    }
    if (to == ROUTE_REFUSED) {
        front_give_fault(request, 403, "permission_error",
                         "slots and adapters of this server belong to quire serve");
        return;
    }
    relay *r = (relay *)calloc(1, sizeof *r);
    if (!r) {
        front_drop(request);
        return;
    }
    r->s = s;
    r->begin = clock_ms();
    snprintf(r->target, sizeof r->target, "%.*s", (int)strcspn(front_target(request), "?"),
             front_target(request));
    front_headers(request, take_header, r);
    if (!ready && to != ROUTE_PLAIN) {
        front_give_fault(request, 503, "unavailable_error", "the server behind quire serve is not ready");
        relay_end(r);
        return;
    }
    const char *bytes = front_body(request, &n);
    body *b = to == ROUTE_PLAIN ? NULL : body_read(bytes, n);
    if (to == ROUTE_TEXT || to == ROUTE_CHAT) {
        watching state = b ? watch(r, request, b, to == ROUTE_CHAT) : NOT_WATCHED;
        if (state == CLIENT_LEFT) {
            COUNT(s, left, 1);
            front_drop(request);
            body_free(b);
            relay_end(r);
            return;
        }
        if (state == NOT_WATCHED) to = ROUTE_UNWATCHED;
    }
    if (to == ROUTE_UNWATCHED) {
        if (b) r->made = body_without_slot(b, &n); /* slots are this program's */
        r->is_unwatched = true;
        slots_begin_unwatched(s->slots);
    }
    body_free(b);
    if (r->is_watched)
        COUNT(s, watched, 1);
    else if (r->is_unwatched)
        COUNT(s, unwatched, 1);
    else
        COUNT(s, passed, 1);
    pass(r, request);
}

void sidecar_count(sidecar *s, sidecar_counts *out)
{
    pthread_mutex_lock(&s->lock);
    *out = s->counts;
    pthread_mutex_unlock(&s->lock);
}

/* --------------------------------------------------------------------- saving */

static void save_one(sidecar *s, prefix *p)
{
    slot_lease lease;
    uint32_t n, n_held = 0, n_stored = 0;
    const char *why;
    uint32_t *tokens = slots_take_unsaved(s->slots, QUIRE_PAGE_TOKENS, &lease, &n), *list = NULL;
    if (!tokens) return;
    bool worth = n >= s->o.min_tokens && !prefix_has_states(p); /* states were saved before */
    if (worth) list = prefix_save(p, lease.slot, tokens, n, &n_held, &n_stored, &why);
    if (list)
        slots_give_stored(s->slots, &lease, list, n_held, n_stored);
    else if (worth)
        slots_give_unknown(s->slots, &lease);
    else
        slots_give_stored(s->slots, &lease, tokens, n, n); /* not looked at again until it has grown */
    pthread_mutex_lock(&s->lock);
    s->counts.saves += list != NULL;
    s->counts.saved_tokens += n_stored;
    s->counts.saves_refused += worth && !list;
    pthread_mutex_unlock(&s->lock);
    free(list);
    free(tokens);
}

/* In moments when the server is idle, because it does nothing else meanwhile; at the latest after some seconds. */
static void *keep_saving(void *ctx)
{
    sidecar *s = (sidecar *)ctx;
    double last = clock_ms();
    pthread_mutex_lock(&s->lock);
    while (!s->is_stopping) {
        struct timespec t = clock_in_ms(SAVE_EVERY_MS);
        pthread_cond_timedwait(&s->stopping_cond, &s->lock, &t);
        pthread_mutex_unlock(&s->lock);
        if (!slots_busy(s->slots) || clock_ms() - last > SAVE_AT_LATEST_MS) {
            prefix *p = prefix_now(s);
            if (p) save_one(s, p);
            last = clock_ms();
        }
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

sidecar *sidecar_create(const sidecar_options *options)
{
    sidecar *s = (sidecar *)calloc(1, sizeof *s);
    if (!s) return NULL;
    s->o = *options;
    s->slots = slots_create(options->n_slots);
    pthread_mutex_init(&s->lock, NULL);
    clock_cond_init(&s->stopping_cond);
    s->has_saver = s->slots && !pthread_create(&s->saver, NULL, keep_saving, s);
    if (s->has_saver) return s;
    sidecar_destroy(s);
    return NULL;
}

void sidecar_destroy(sidecar *s)
{
    if (!s) return;
    pthread_mutex_lock(&s->lock);
    s->is_stopping = true;
    pthread_cond_broadcast(&s->stopping_cond);
    pthread_mutex_unlock(&s->lock);
    if (s->has_saver) pthread_join(s->saver, NULL);
    prefix_destroy(s->prefix);
    slots_destroy(s->slots);
    pthread_cond_destroy(&s->stopping_cond);
    pthread_mutex_destroy(&s->lock);
    free(s);
}
