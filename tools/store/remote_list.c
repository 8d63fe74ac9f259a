/* SPDX-License-Identifier: MIT */
/* store_remote_list: quire store ls --remote: what the remote tier holds, node by node. */
#define _POSIX_C_SOURCE 200809L
#include "store/options.h"
#include "store/server.h"

#include <string.h>

typedef struct sums {
    uint64_t n, bytes, n_expiring;
    int64_t ttl_min, ttl_max; /* seconds */
} sums;

static void add(sums *s, uint64_t bytes, int64_t ttl)
{
    s->n++;
    s->bytes += bytes;
    if (ttl < 0) return;
    if (!s->n_expiring || ttl < s->ttl_min) s->ttl_min = ttl;
    if (!s->n_expiring || ttl > s->ttl_max) s->ttl_max = ttl;
    s->n_expiring++;
}

static void join(sums *to, const sums *from)
{
    if (from->n_expiring && (!to->n_expiring || from->ttl_min < to->ttl_min)) to->ttl_min = from->ttl_min;
    if (from->n_expiring && (!to->n_expiring || from->ttl_max > to->ttl_max)) to->ttl_max = from->ttl_max;
    to->n += from->n;
    to->bytes += from->bytes;
    to->n_expiring += from->n_expiring;
}

static void print_sums(const store_options *o, const char *node, const sums *s)
{
    if (o->json) {
        printf("{\"node\":");
        tool_json_string(stdout, node);
        printf(",\"objects\":%llu,\"bytes\":%llu,\"expiring\":%llu,\"ttl_min\":%lld,\"ttl_max\":%lld}\n",
               (unsigned long long)s->n, (unsigned long long)s->bytes, (unsigned long long)s->n_expiring,
               (long long)s->ttl_min, (long long)s->ttl_max);
        return;
    }
    printf("%-28s %8llu objects %10.3f GB", node, (unsigned long long)s->n, (double)s->bytes / 1e9);
    if (s->n_expiring)
        printf("  %llu expire in %lld to %lld s", (unsigned long long)s->n_expiring, (long long)s->ttl_min,
               (long long)s->ttl_max);
    printf("\n");
}

static void print_key(const store_options *o, const char *key, uint64_t bytes, int64_t ttl)
{
    if (o->json) {
        printf("{\"key\":");
        tool_json_string(stdout, key);
        printf(",\"bytes\":%llu,\"ttl\":", (unsigned long long)bytes);
        printf(ttl < 0 ? "null}\n" : "%lld}\n", (long long)ttl);
    } else if (ttl < 0) {
        printf("%s %10llu\n", key, (unsigned long long)bytes);
    } else {
        printf("%s %10llu  %lld s\n", key, (unsigned long long)bytes, (long long)ttl);
    }
}

/* Sizes and lives of the keys of one step, all asked for at once. false: lost, or an error, which is in why. */
static bool look_at_keys(const store_options *o, server *s, const valkeyReply *keys, sums *sum)
{
    bool good = true;
    for (size_t i = 0; i < keys->elements && good; i++) {
        const valkeyReply *k = keys->element[i];
        good =
            k->str && server_send(s, "STRLEN %b", k->str, k->len) && server_send(s, "TTL %b", k->str, k->len);
    }
    for (size_t i = 0; i < keys->elements && good; i++) {
        valkeyReply *length = server_reply(s), *ttl = length ? server_reply(s) : NULL;
        good = length && ttl;
        const char *key = keys->element[i]->str ? tool_plain(keys->element[i]->str) : "";
        for (valkeyReply *r = length; r && good; r = r == length ? ttl : NULL)
            if (r->type == VALKEY_REPLY_ERROR) {
                (void)snprintf(s->why, sizeof s->why, "%s", tool_plain(r->str));
                good = false;
            } else if (r->type != VALKEY_REPLY_INTEGER || (r == length && r->integer < 0)) {
                (void)snprintf(s->why, sizeof s->why, "it does not answer as a Valkey or Redis server does");
                good = false;
            }
        if (good && ttl->integer != -2) { /* gone meanwhile */
            add(sum, (uint64_t)length->integer, ttl->integer);
            if (o->list_long) print_key(o, key, (uint64_t)length->integer, ttl->integer);
        }
        freeReplyObject(length);
        freeReplyObject(ttl);
    }
    return good && !ferror(stdout);
}

static bool scan(const store_options *o, server *s, sums *sum)
{
    char cursor[32] = "0";
    do {
        valkeyReply *r = server_ask(s, "SCAN %s MATCH q1:* COUNT 500", cursor);
        bool good = r && r->type == VALKEY_REPLY_ARRAY && r->elements == 2 && r->element[0]->str &&
                    r->element[1]->type == VALKEY_REPLY_ARRAY;
        if (r && r->type == VALKEY_REPLY_ERROR)
            (void)snprintf(s->why, sizeof s->why, "%s", tool_plain(r->str));
        if (good) {
            (void)snprintf(cursor, sizeof cursor, "%s", r->element[0]->str);
            good = look_at_keys(o, s, r->element[1], sum);
        }
        freeReplyObject(r);
        if (!good) return false;
    } while (strcmp(cursor, "0") != 0);
    return true;
}

int store_list_remote(const store_options *o)
{
    static server_nodes nodes; /* large */
    server_address given = {.port = o->remote.port};
    server s;
    sums all = {0};
    uint32_t n_failed = 0;
    (void)snprintf(given.host, sizeof given.host, "%s", o->remote.host);
    if (!server_open(&s, &o->remote, &given, (uint32_t)o->timeout_ms) || !server_list(&s, &nodes)) {
        int code = tool_failed(o->command, "%s:%u: %s", given.host, given.port,
                               *s.why ? s.why : "the connection was lost");
        server_close(&s);
        return code;
    }
    server_close(&s);
    for (uint32_t i = 0; i < nodes.n_masters; i++) {
        const server_address *a = &nodes.node[i];
        char name[SERVER_HOST + 16];
        sums sum = {0};
        (void)snprintf(name, sizeof name, "%s:%u", a->host, a->port);
        if (server_open(&s, &o->remote, a, (uint32_t)o->timeout_ms) && scan(o, &s, &sum)) {
            print_sums(o, name, &sum);
            join(&all, &sum);
        } else {
            n_failed++;
            (void)tool_failed(o->command, "%s: %s", name, *s.why ? s.why : "the connection was lost");
        }
        server_close(&s);
    }
    if (nodes.n_masters > 1) print_sums(o, "all", &all);
    int code = tool_finish(o->command);
    return code ? code : n_failed ? TOOL_FAILED : TOOL_OK;
}
