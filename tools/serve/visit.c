/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "serve/visit.h"

#include "serve/clock.h"
#include "serve/prompt.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

void sidecar_say(const char *text)
{
    fprintf(stderr, "quire serve: %s\n", text);
}

/* -------------------------------------------------------------------- settling */

static void log_visit(const visit *v, const relay_outcome *o, const body_timings *t)
{
    fprintf(
        stderr,
        "quire serve: path=%s status=%u prompt=%u cached=%u computed=%u restored=%u copied=%u ahead=%u slot=%u first_ms=%.1f "
        "lookup_ms=%.1f save_ms=%.1f load_ms=%.1f write_ms=%.1f restore_ms=%.1f total_ms=%.1f\n",
        v->target, o->status, v->n, t->cache_n, t->prompt_n, v->restored, v->copied, v->primed, v->lease.slot,
        o->first_ms > 0 ? o->first_ms - v->begin : 0, v->lookup, v->save, v->times.load, v->times.write,
        v->times.restore, clock_ms() - v->begin);
}

/* In a row. One may be no fault of the server's: a template with the time in it gives other tokens after midnight. */
enum { MOST_SHORT = 3, MOST_FAILED = 3 };
/* What makes a restore fail can pass: a place that is full, a request that the server cannot answer. */
enum { PAUSE_MS = 60000 };
/* For one token in a slot that is free. */
enum { CLEAR_MS = 60000 };

static void count_short(sidecar *s)
{
    pthread_mutex_lock(&s->lock);
    bool is_last = ++s->n_short == MOST_SHORT;
    pthread_mutex_unlock(&s->lock);
    if (is_last)
        sidecar_say(
            "the server reused less of restored prompts than was restored; prompts are no longer restored");
}

static void forgive_short(sidecar *s)
{
    pthread_mutex_lock(&s->lock);
    if (s->n_short < MOST_SHORT) s->n_short = 0;
    s->n_broken = 0;
    pthread_mutex_unlock(&s->lock);
}

/* The next failure after a pause is the last one again. */
static void count_towards_pause(sidecar *s, uint32_t *n)
{
    pthread_mutex_lock(&s->lock);
    bool is_last = ++*n == MOST_FAILED;
    if (is_last) {
        *n = MOST_FAILED - 1;
        s->paused_until = clock_ms() + PAUSE_MS;
    }
    pthread_mutex_unlock(&s->lock);
    if (is_last)
        sidecar_say(
            "slot files could not be written, or the server did not take them or failed with them, several times in a row; "
            "prompts are no longer restored, for a minute");
}

/* Each failure costs the prompt its time, and may cost a slot what it held. */
static void count_failed(sidecar *s, bool is_of_place)
{
    SERVE_COUNT(&s->counts, restores_failed, 1);
    /* If the store did not give the pages: it has rules of its own for what does not answer. */
    if (is_of_place) count_towards_pause(s, &s->n_failed);
}

/* Told once: it can come again with every long prompt. */
static void count_refused(sidecar *s)
{
    SERVE_COUNT(&s->counts, restores_refused, 1);
    if (!atomic_exchange(&s->has_told_memory, true))
        sidecar_say(
            "a prompt was computed though the store has it: its pages and its slot file would take more memory than "
            "there is for them now (--slot-memory)");
}

static void forgive_failed(sidecar *s)
{
    pthread_mutex_lock(&s->lock);
    s->n_failed = 0;
    pthread_mutex_unlock(&s->lock);
}

/* A request was meant for its slot and got another: what slots hold is not known. */
static void lose_slot(const visit *v)
{
    SERVE_COUNT(&v->s->counts, unsteered, 1);
    slots_begin_unwatched(v->s->slots);
    slots_end_unwatched(v->s->slots);
}

bool sidecar_restores(sidecar *s)
{
    pthread_mutex_lock(&s->lock);
    bool may = s->n_short < MOST_SHORT && clock_ms() >= s->paused_until;
    pthread_mutex_unlock(&s->lock);
    return may;
}

static bool may_restore(sidecar *s)
{
    return sidecar_restores(s) && slots_are_watched(s->slots);
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
void visit_settle(visit *v, const relay_outcome *o)
{
    sidecar *s = v->s;
    body_timings t = o->counted;
    bool told = o->end == EXCHANGE_DONE && o->status == 200 && o->is_counted;
    /* Nothing of a slot with rows of another may have been reused. */
    bool right = told && t.cache_n + t.prompt_n == v->n && (v->lease.is_own || !t.cache_n);
    /* Not if the server was started again, or put another request into the slot, after it was restored. */
    uint32_t expected = v->advanced > v->restored ? v->advanced : v->restored;
    bool has_less = told && !v->is_lost && expected && t.cache_n + 1 < expected;
    /* Nor if the request of a client that left could still begin there. */
    bool is_short = has_less && !v->lease.is_after_left && slots_are_undisturbed(s->slots, &v->lease);
    /* What a slot was filled with can make the server fail, and every request that is running with it. */
    bool is_broken = o->end == EXCHANGE_DONE && o->status == 500 && (v->restored || v->copied);
    if (o->end == EXCHANGE_LEFT && !o->status) slots_note_left(s->slots, &v->lease);
    if (right)
        slots_give(s->slots, &v->lease, v->tokens, v->n, t.predicted_n ? t.predicted_n - 1 : 0);
    else
        slots_give_unknown(s->slots, &v->lease);
    if (told) {
        count_tokens(v, &t);
        worth_computed(&s->worth, t.prompt_n, t.prompt_ms);
        SERVE_COUNT(&s->counts, miscounted, !right);
        SERVE_COUNT(&s->counts, restores_short, is_short);
    }
    if (is_short && v->to == ROUTE_MESSAGES && s->o.n_slots > 1)
        lose_slot(v); /* the server has chosen another one */
    else if (is_short)
        count_short(s);
    else if (is_broken)
        count_towards_pause(s, &s->n_broken);
    else if (told && v->restored && !has_less)
        forgive_short(s);
    if (s->o.log_requests) log_visit(v, o, &t);
}

/* A slot whose tokens are not known: if the server says that it computed all of them, all rows in it are new. */
void visit_settle_blindly(visit *v, const relay_outcome *o)
{
    v->lease.is_own = o->end == EXCHANGE_DONE && o->status == 200 && o->is_counted && o->counted.prompt_n &&
                      !o->counted.cache_n;
    slots_give_unknown(v->s->slots, &v->lease);
}

/* ------------------------------------------------------------------ restoring */

/* What is in the slot of the lease and would be lost. A request that has memory for a slot file itself does not wait for more. */
static void save_before(visit *v, bool waits)
{
    static const budget_wait wait = {.ms = PREFIX_SAVE_WAIT_MS};
    double begin = clock_ms();
    saver_save_before(v->s->saver, &v->lease, waits ? &wait : NULL);
    v->save = clock_ms() - begin;
}

/* Not if the server was started again: then the slot is somebody else's. */
static bool holds_slot(void *ctx)
{
    visit *v = (visit *)ctx;
    return slots_is_valid(v->s->slots, &v->lease);
}

/* Fills the slot of the lease from a file; tells whether that was done, and what the slot holds now. */
static bool fill(visit *v, const char *name, uint32_t n, uint32_t n_stored)
{
    sidecar *s = v->s;
    if (!holds_slot(v)) return false;
    bool good = prefix_restore(v->keep, v->lease.slot, name, &v->times);
    if (good)
        v->lease.is_own = true; /* the file has replaced all that was there */
    else
        v->lease.n_same = 0; /* and it may have, without being whole */
    slots_hold(s->slots, &v->lease, v->tokens, good ? n : 0, good ? n_stored : 0);
    if (good)
        forgive_failed(s);
    else if (holds_slot(v)) /* else the server has ended */
        count_failed(s, true);
    return good;
}

static bool has_left(void *ctx)
{
    struct pollfd p = {.fd = *(int *)ctx, .events = POLLRDHUP};
    return poll(&p, 1, 0) > 0 && p.revents;
}

typedef struct memory_waiter {
    visit *v;
    int client;
} memory_waiter;

static bool stops_waiting(void *ctx)
{
    memory_waiter *w = (memory_waiter *)ctx;
    return !holds_slot(w->v) || has_left(&w->client);
}

/* To wait for memory must not take longer than to compute the tokens. */
static double memory_wait(sidecar *s, uint32_t n_tokens)
{
    static const double unknown = 500, most = 60000;
    double each = worth_ms_per_token(&s->worth), ms = each > 0 ? each * n_tokens / 2 : unknown;
    return ms < most ? ms : most;
}

/* warm: tokens that the slot needs not compute again. Returns what that is then. */
static uint32_t restore(visit *v, uint32_t warm, int client)
{
    sidecar *s = v->s;
    memory_waiter waiter = {v, client};
    uint32_t stored = 0, loaded = 0;
    prefix_file file;
    prefix_lack lack;
    if (v->keep && may_restore(s) && v->n > warm + QUIRE_PAGE_TOKENS) {
        double begin = clock_ms();
        stored = prefix_look_up(v->keep, v->tokens, v->n);
        v->lookup = clock_ms() - begin;
    }
    if (stored > warm && worth_restoring(&s->worth, stored / QUIRE_PAGE_TOKENS, stored - warm)) {
        const budget_wait wait = {memory_wait(s, stored - warm), stops_waiting, &waiter};
        loaded = prefix_load(v->keep, v->tokens, stored, &wait, &v->times, &file, &lack);
        if (!loaded && lack == LACKS_MEMORY) {
            count_refused(s);
        } else if (!loaded) {
            count_failed(s, lack == LACKS_PLACE);
            worth_failed(&s->worth, stored / QUIRE_PAGE_TOKENS, v->times.load + v->times.write);
        }
    }
    /* What the slot holds is given away only now that there is something better. A request that cannot name its slot gets the one that
     * shares most, which is this one if the store has no more than it. */
    bool better = loaded > warm;
    if (better && (v->to != ROUTE_MESSAGES || loaded > v->lease.n_same)) slots_exchange(s->slots, &v->lease);
    save_before(v, !loaded);
    if (better && fill(v, file.name, loaded, loaded)) {
        v->restored = v->lease.n_same = loaded;
        worth_restored(&s->worth, stored / QUIRE_PAGE_TOKENS,
                       v->times.load + v->times.write + v->times.restore);
        SERVE_COUNT(&s->counts, restores, 1);
    }
    if (loaded) prefix_drop(v->keep, &file);
    return better ? v->restored : warm;
}

/* For a model whose slots can go on from their ends alone: the whole pages are computed, and the state there is saved. */
static void advance(visit *v, uint32_t have, uint32_t same, int client)
{
    sidecar *s = v->s;
    if (v->n < s->o.min_tokens || !may_restore(s) || !holds_slot(v)) return;
    const prefix_place place = {
        .slot = v->lease.slot, .is_own = v->lease.is_own, .have = have, .same = same, .client = client};
    prefix_progress done = prefix_advance(v->keep, &place, v->tokens, v->n);
    v->advanced = done.n_tokens;
    v->primed += done.n_computed;
    worth_computed(&s->worth, done.n_computed, done.compute_ms);
    SERVE_COUNT(&s->counts, saves, done.n_saved);
    SERVE_COUNT(&s->counts, saved_tokens, done.n_saved ? done.n_tokens : 0);
    v->is_lost = done.is_lost;
    if (done.lacks_memory) saver_refuse(s->saver, PREFIX_NO_MEMORY);
    if (done.n_tokens) v->lease.is_own = true; /* nothing of others was reused */
    if (done.n_tokens || done.is_lost)
        slots_hold(s->slots, &v->lease, v->tokens, done.n_tokens, done.n_tokens);
}

/* As much of the prompt as the slot, the store and for states the server can give. */
static void prepare(visit *v, int client)
{
    uint32_t same = v->lease.n_same;
    if (!v->keep || !prefix_has_states(v->keep)) {
        (void)restore(v, same, client);
        return;
    }
    uint32_t have = restore(v, v->lease.is_whole ? same : 0, client);
    advance(v, have, same, client);
}

/* From the slot of another request, which has just computed the same beginning. */
static void copy(visit *v, const flight *from, uint32_t n_shared)
{
    sidecar *s = v->s;
    if (!may_restore(s) || n_shared < v->lease.n_same + s->o.restore_least) return;
    slots_exchange(s->slots, &v->lease);
    save_before(v, true);
    bool good = fill(v, flight_copy(from), n_shared, 0);
    if (good) v->copied = n_shared;
    SERVE_COUNT(&s->counts, shared, good);
}

/* Computes the first n tokens before the request itself is sent. false: it was not done. */
static bool compute(visit *v, uint32_t n, int client)
{
    sidecar *s = v->s;
    body_timings t;
    const prompt_source from = {.to = &s->o.to, .headers = v->headers, .client = client};
    if (!prompt_compute(&from, v->tokens, n, v->lease.slot, v->lease.is_own, &t)) return false;
    v->primed += t.prompt_n;
    v->lease.is_own = true;
    worth_computed(&s->worth, t.prompt_n, t.prompt_ms);
    return true;
}

/* Others may wait for what this request computes: they get a copy before it makes its first token. */
static void lead(visit *v, int client)
{
    uint32_t have = v->restored > v->lease.n_same ? v->restored : v->lease.n_same, n_shared;
    char name[SWAP_NAME];
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

/*
 * A request of /v1/messages cannot name its slot. The server gives it the free one that shares most tokens with the prompt, so that must
 * be the slot of the lease. While others are at work, nobody knows what will be free in the next moment: then all of the prompt but its
 * last token is computed there. false: it cannot be made so.
 */
static bool point_to_slot(visit *v, int client)
{
    sidecar *s = v->s;
    if (s->o.n_slots == 1 && v->lease.is_own) return true; /* else the server would reuse what is in it */
    uint32_t have = v->lease.n_same, brought = v->restored > v->copied ? v->restored : v->copied;
    if (have < brought) have = brought;
    have += v->primed;
    if (v->advanced || v->is_lost) have = v->advanced;
    uint32_t others = slots_most_shared(s->slots, &v->lease, v->tokens, v->n);
    uint32_t n = (others / QUIRE_PAGE_TOKENS + 1) * QUIRE_PAGE_TOKENS;
    bool is_alone = slots_point(s->slots, &v->lease);
    if (is_alone && have > others) return true;
    if (!is_alone || n >= v->n) n = v->n - 1;
    return n <= have ? have > others : n > others && compute(v, n, client);
}

bool visit_take_slot(visit *v, int client)
{
    sidecar *s = v->s;
    flight *met = NULL;
    uint32_t n_shared = 0;
    flight_part part = FLIGHT_ALONE;
    /* A copy of a slot with states could be used at its very end alone. */
    if (v->keep && s->o.n_slots > 1 && !prefix_has_states(v->keep)) {
        const flight_request r = {.owner = v->owner,
                                  .tokens = v->tokens,
                                  .n = v->n,
                                  .n_have = slots_look_up(s->slots, v->owner, v->tokens, v->n),
                                  .ms_per_token = worth_ms_per_token(&s->worth),
                                  .has_left = has_left,
                                  .ctx = &client};
        part = flights_enter(s->flights, &r, &met, &n_shared);
    }
    if (part == FLIGHT_LEADS) v->leads = met;
    bool here =
        part != FLIGHT_LEFT && slots_take(s->slots, v->owner, v->tokens, v->n, has_left, &client, &v->lease);
    if (here) {
        v->use = USES_LEASE;
        if (part == FLIGHT_JOINS) copy(v, met, n_shared);
        if (!v->copied) prepare(v, client);
        if (v->leads) lead(v, client);
        if (v->to == ROUTE_MESSAGES && !point_to_slot(v, client)) {
            slots_give_unknown(s->slots, &v->lease);
            SERVE_COUNT(&s->counts, unsteered, 1);
            slots_begin_unwatched(s->slots);
            v->use = USES_ANY;
        }
    }
    if (part == FLIGHT_JOINS) flight_leave(met);
    return here;
}

/* Before a request whose tokens are not known: the server tells of a slot how much it holds, even if nothing is computed in it. */
static bool clear_slot(visit *v, uint32_t slot)
{
    static const uint32_t one[] = {1};
    sidecar *s = v->s;
    header_lines *headers = NULL;
    body_timings t;
    bool good = header_lines_of_own(&headers, s->o.prefix.authorization);
    const prompt_source from = {.to = &s->o.to, .headers = headers, .client = -1, .timeout_ms = CLEAR_MS};
    good = good && prompt_compute(&from, one, 1, slot, false, &t);
    header_lines_free(headers);
    return good;
}

bool visit_take_blindly(visit *v, const body *b, route to, int client)
{
    sidecar *s = v->s;
    if (!s->o.tenants) {
        slots_begin_unwatched(s->slots);
        v->use = USES_ANY;
        return true;
    }
    /* Such a request can name its slot. */
    bool one = b && to != ROUTE_UNWATCHED && to != ROUTE_MESSAGES && body_is_alone(b);
    bool here = one ? slots_take(s->slots, v->owner, NULL, 0, has_left, &client, &v->lease)
                    : slots_take_all(s->slots, has_left, &client, &v->lease);
    if (!here) return false;
    v->use = one ? USES_BLINDLY : USES_ALL;
    slot_lease each = v->lease;
    uint32_t first = one ? v->lease.slot : 0, n = one ? 1 : s->o.n_slots;
    for (each.slot = first; each.slot < first + n; each.slot++) {
        saver_save_before(s->saver, &each, NULL);
        if (!clear_slot(v, each.slot)) v->is_unclear = true;
    }
    return true;
}
