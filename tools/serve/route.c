/* SPDX-License-Identifier: MIT */
#include "serve/route.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { PATH_SIZE = 256 };

static int digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* The path as llama-server understands it, without the query; false: it is too long to be one of those below. */
static bool decode(const char *target, char *path)
{
    size_t n = 0;
    for (; *target && *target != '?' && *target != '#'; target++) {
        int high = *target == '%' ? digit(target[1]) : -1, low = high >= 0 ? digit(target[2]) : -1;
        if (n + 1 >= PATH_SIZE) return false;
        path[n++] = low >= 0 ? (char)(high * 16 + low) : *target;
        if (low >= 0) target += 2;
    }
    path[n] = 0;
    return true;
}

static const struct {
    const char *path;
    route to;
} posts[] = {
    {"/completion", ROUTE_TEXT},       {"/completions", ROUTE_TEXT},         {"/v1/completions", ROUTE_TEXT},
    {"/chat/completions", ROUTE_CHAT}, {"/v1/chat/completions", ROUTE_CHAT}, {"/api/chat", ROUTE_UNWATCHED},
    {"/tokenize", ROUTE_PLAIN},        {"/detokenize", ROUTE_PLAIN},         {"/apply-template", ROUTE_PLAIN},
    {"/props", ROUTE_PLAIN},           {"/lora-adapters", ROUTE_REFUSED},
};

route route_of(const char *method, const char *target, const char *api_prefix)
{
    char path[PATH_SIZE];
    bool is_post = !strcmp(method, "POST");
    size_t n = strlen(api_prefix);
    if (!decode(target, path)) return is_post ? ROUTE_UNWATCHED : ROUTE_PLAIN;
    if (!strcmp(path, "/quire/metrics")) return ROUTE_METRICS;
    if (!strcmp(path, "/quire/health")) return ROUTE_HEALTH;
    if (!is_post) return ROUTE_PLAIN;
    if (strstr(path, "/slots")) return ROUTE_REFUSED;
    const char *rest = strncmp(path, api_prefix, n) ? path : path + n;
    for (size_t i = 0; i < sizeof posts / sizeof *posts; i++)
        if (!strcmp(rest, posts[i].path)) return posts[i].to;
    return ROUTE_UNWATCHED;
}

bool route_is_of_one_server(const char *method, const char *target)
{
    static const char *const ends[] = {"/metrics", "/lora-adapters", "/props"};
    char path[PATH_SIZE];
    bool reads = !strcmp(method, "GET") || !strcmp(method, "HEAD");
    if (!decode(target, path)) return true; /* nobody can say */
    if (strstr(path, "/slots")) return true;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        size_t n = strlen(path), k = strlen(ends[i]);
        bool is_it = n >= k && !strcmp(path + n - k, ends[i]);
        if (is_it && (!i || !reads)) return true;
    }
    return false;
}
