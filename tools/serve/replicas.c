/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "serve/replicas.h"

#include "serve/choose.h"
#include "serve/clock.h"

#include <ctype.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How often a replica is asked, and how long its answer may take. One that is slow but not silent stays for so many questions. */
enum { ASK_EVERY_MS = 1000, ASK_LIMIT_MS = 1000, MOST_SLOW = 3 };
enum { CONNECT_MS = 1000 };

typedef struct replica {
    replicas *all;
    const char *name;
    uint64_t hash;
    upstream to;
    pthread_t checker;
    bool has_checker;
    /* Under the lock of the list. */
    bool is_ready, is_doubted, was_told;
    uint32_t n_slow, in_flight;
    uint64_t requests, failures, declined;
    const char *why; /* it is not ready */
} replica;

struct replicas {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* one is doubted, or the end has come */
    bool is_ending;
    header_lines *headers; /* of questions */
    size_t n;
    replica list[];
};

/* ------------------------------------------------------------------- addresses */

const char *replica_wrong(const char *name)
{
    static const char form[] = "HOST:PORT, or [ADDRESS]:PORT for IPv6";
    const char *colon = strrchr(name, ':');
    bool in_brackets = *name == '[';
    size_t n = colon ? (size_t)(colon - name) : 0, digits = colon ? strlen(colon + 1) : 0;
    if (!n || n > 255 || !digits || digits > 5 || strspn(colon + 1, "0123456789") != digits) return form;
    long port = strtol(colon + 1, NULL, 10);
    if (port < 1 || port > 65535) return form;
    if (in_brackets)
        return n > 2 && name[n - 1] == ']' && strspn(name + 1, "0123456789abcdefABCDEF:.") == n - 2 ? NULL
                                                                                                    : form;
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)name[i]) && !strchr(".-_", name[i])) return form;
    return NULL;
}

/* --------------------------------------------------------------------- states */

/* Under the lock. */
static void set_state(replica *r, bool is_ready, const char *why)
{
    bool is_new = r->is_ready != is_ready || !r->was_told || r->why != why;
    r->is_ready = is_ready;
    r->why = why;
    r->n_slow = 0;
    if (!is_new) return;
    r->was_told = true;
    if (is_ready)
        fprintf(stderr, "quire serve: the replica %s is ready\n", r->name);
    else
        fprintf(stderr, "quire serve: the replica %s gets no requests: %s\n", r->name, why);
}

/* NULL: it is ready. *end: EXCHANGE_HELPLESS if it could not be asked. */
static const char *ask(const replica *r, exchange_end *end)
{
    char *body;
    size_t n;
    const exchange_request question = {.method = "GET",
                                       .target = "/quire/health",
                                       .headers = r->all->headers,
                                       .client = -1,
                                       .timeout_ms = ASK_LIMIT_MS};
    unsigned status = upstream_try(&r->to, &question, 1u << 20, &body, &n, end);
    free(body);
    switch (status) {
    case 200: return NULL;
    case 0: return "it does not answer";
    case 503: return "it is not ready";
    case 508: return "it is this gateway itself, or one before it";
    default: return "it is not a quire serve";
    }
}

static void *check(void *ctx)
{
    replica *r = (replica *)ctx;
    replicas *all = r->all;
    pthread_mutex_lock(&all->lock);
    while (!all->is_ending) {
        r->is_doubted = false;
        pthread_mutex_unlock(&all->lock);
        double begin = clock_ms();
        exchange_end end;
        const char *why = ask(r, &end);
        bool was_slow = clock_ms() - begin > ASK_LIMIT_MS * 0.9;
        pthread_mutex_lock(&all->lock);
        if (all->is_ending) break;
        bool is_known = end != EXCHANGE_HELPLESS; /* else it stays what it was */
        if (is_known && (!why || !was_slow || !r->is_ready || ++r->n_slow >= MOST_SLOW))
            set_state(r, !why, why);
        struct timespec until = clock_in_ms(ASK_EVERY_MS);
        int late = 0;
        while (!all->is_ending && !r->is_doubted && !late)
            late = pthread_cond_timedwait(&all->changed, &all->lock, &until);
    }
    pthread_mutex_unlock(&all->lock);
    return NULL;
}

replicas *replicas_start(const char *const *names, size_t n, const char *via)
{
    replicas *r = (replicas *)calloc(1, sizeof *r + n * sizeof *r->list);
    if (!r) return NULL;
    pthread_mutex_init(&r->lock, NULL);
    clock_cond_init(&r->changed);
    r->n = n;
    bool good = header_lines_add(&r->headers, "Via", via);
    for (size_t i = 0; i < n; i++)
        r->list[i] = (replica){.all = r,
                               .name = names[i],
                               .hash = choose_hash(CHOOSE_START, names[i], strlen(names[i])),
                               .to = {.host = names[i], .connect_ms = CONNECT_MS},
                               .is_ready = true};
    for (size_t i = 0; good && i < n; i++)
        good = r->list[i].has_checker = !pthread_create(&r->list[i].checker, NULL, check, &r->list[i]);
    if (good) return r;
    replicas_stop(r);
    return NULL;
}

void replicas_stop(replicas *r)
{
    if (!r) return;
    pthread_mutex_lock(&r->lock);
    r->is_ending = true;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    for (size_t i = 0; i < r->n; i++)
        if (r->list[i].has_checker) pthread_join(r->list[i].checker, NULL);
    header_lines_free(r->headers);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

/* ------------------------------------------------------------------- requests */

bool replicas_take(replicas *r, uint64_t key, bool tried[REPLICAS_MOST], size_t *which)
{
    choose_entry entries[REPLICAS_MOST];
    pthread_mutex_lock(&r->lock);
    for (size_t i = 0; i < r->n; i++)
        entries[i] = (choose_entry){r->list[i].hash, r->list[i].in_flight, r->list[i].is_ready && !tried[i]};
    size_t i = choose_replica(key, entries, r->n);
    if (i < r->n) {
        r->list[i].in_flight++;
        r->list[i].requests++;
        tried[i] = true;
        *which = i; /* else it stays what it was: the log names the last one that was tried */
    }
    pthread_mutex_unlock(&r->lock);
    return i < r->n;
}

void replicas_give(replicas *r, size_t which, replica_result result)
{
    replica *one = &r->list[which];
    pthread_mutex_lock(&r->lock);
    one->in_flight--;
    one->failures += result == REPLICA_UNREACHED || result == REPLICA_FAILED;
    one->declined += result == REPLICA_NOT_READY;
    if (result == REPLICA_UNREACHED) set_state(one, false, "it does not answer");
    if (result == REPLICA_NOT_READY) set_state(one, false, "it is not ready");
    if (result == REPLICA_FAILED) {
        one->is_doubted = true;
        pthread_cond_broadcast(&r->changed);
    }
    pthread_mutex_unlock(&r->lock);
}

const upstream *replicas_address(const replicas *r, size_t which)
{
    return &r->list[which].to;
}

const char *replicas_name(const replicas *r, size_t which)
{
    return r->list[which].name;
}

/* -------------------------------------------------------------------- figures */

static const struct {
    const char *name, *type, *text;
} figures[] = {
    {"requests_total", "counter", "Requests that were sent to a replica."},
    {"failures_total", "counter", "Of these, those that it did not answer, or not wholly."},
    {"declined_total", "counter", "Of these, those that it was not ready for."},
    {"in_flight", "gauge", "Requests that it answers now."},
    {"ready", "gauge", "1: it gets requests; 0: it is asked every second whether it can."},
};

static uint64_t figure(const replica *r, size_t which)
{
    const uint64_t values[] = {r->requests, r->failures, r->declined, r->in_flight, r->is_ready};
    return values[which];
}

bool replicas_print_metrics(replicas *r, growing *out)
{
    char line[512];
    bool good = true;
    pthread_mutex_lock(&r->lock);
    for (size_t f = 0; f < sizeof figures / sizeof *figures; f++) {
        snprintf(line, sizeof line,
                 "# HELP quire_gateway_replica_%s %s\n# TYPE quire_gateway_replica_%s %s\n", figures[f].name,
                 figures[f].text, figures[f].name, figures[f].type);
        good = growing_add_text(out, line) && good;
        for (size_t i = 0; i < r->n; i++) {
            snprintf(line, sizeof line, "quire_gateway_replica_%s{replica=\"%s\"} %llu\n", figures[f].name,
                     r->list[i].name, (unsigned long long)figure(&r->list[i], f));
            good = growing_add_text(out, line) && good;
        }
    }
    pthread_mutex_unlock(&r->lock);
    return good;
}

bool replicas_print_states(replicas *r, growing *out, size_t *n_ready)
{
    char line[512];
    bool good = growing_add_text(out, "[");
    *n_ready = 0;
    pthread_mutex_lock(&r->lock);
    for (size_t i = 0; i < r->n; i++) {
        const replica *one = &r->list[i];
        *n_ready += one->is_ready;
        snprintf(line, sizeof line, "%s{\"replica\":\"%s\",\"ready\":%s,\"why\":\"%s\",\"in_flight\":%u}",
                 i ? "," : "", one->name, one->is_ready ? "true" : "false", one->is_ready ? "" : one->why,
                 one->in_flight);
        good = growing_add_text(out, line) && good;
    }
    pthread_mutex_unlock(&r->lock);
    return growing_add_text(out, "]") && good;
}
