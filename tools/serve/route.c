/* SPDX-License-Identifier: MIT */
#include "serve/route.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

enum { PATH_SIZE = 256 };

/* The path without the query; false: no endpoint has such a path, and a server might read it in another way. */
static bool cut_path(const char *target, char *path)
{
    size_t n = strcspn(target, "?#");
    if (n >= PATH_SIZE || memchr(target, '%', n) || *target != '/') return false;
    memcpy(path, target, n);
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
    {"/props", ROUTE_PLAIN},           {"/lora-adapters", ROUTE_REFUSED},    {"/tools", ROUTE_PLAIN},
    {"/cors-proxy", ROUTE_PLAIN},      {"/v1/streams/lookup", ROUTE_PLAIN},
};

route route_of(const char *method, const char *target, const char *api_prefix)
{
    char path[PATH_SIZE];
    bool is_post = !strcmp(method, "POST");
    size_t n = strlen(api_prefix);
    if (!cut_path(target, path)) return is_post ? ROUTE_REFUSED : ROUTE_PLAIN;
    if (!strcmp(path, "/quire/metrics")) return ROUTE_METRICS;
    if (!strcmp(path, "/quire/health")) return ROUTE_HEALTH;
    if (!is_post) return ROUTE_PLAIN;
    if (strstr(path, "/slots")) return ROUTE_REFUSED;
    const char *rest = strncmp(path, api_prefix, n) ? path : path + n;
    for (size_t i = 0; i < sizeof posts / sizeof *posts; i++)
        if (!strcmp(rest, posts[i].path)) return posts[i].to;
    return ROUTE_UNWATCHED;
}
