/* SPDX-License-Identifier: MIT */
#include "serve/route.h"

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
    bool is_for_tenants; /* tells nothing about the requests of others, and changes nothing for them */
} posts[] = {
    {"/completion", ROUTE_TEXT, true},
    {"/completions", ROUTE_TEXT, true},
    {"/v1/completions", ROUTE_TEXT, true},
    {"/chat/completions", ROUTE_CHAT, true},
    {"/v1/chat/completions", ROUTE_CHAT, true},
    {"/v1/messages", ROUTE_MESSAGES, true},
    {"/responses", ROUTE_RESPONSES, true},
    {"/v1/responses", ROUTE_RESPONSES, true},
    {"/api/chat", ROUTE_UNWATCHED, true},
    {"/infill", ROUTE_UNWATCHED, true},
    {"/tokenize", ROUTE_PLAIN, true},
    {"/detokenize", ROUTE_PLAIN, true},
    {"/apply-template", ROUTE_PLAIN, true},
    {"/chat/completions/input_tokens", ROUTE_PLAIN, true},
    {"/v1/chat/completions/input_tokens", ROUTE_PLAIN, true},
    {"/responses/input_tokens", ROUTE_PLAIN, true},
    {"/v1/responses/input_tokens", ROUTE_PLAIN, true},
    {"/v1/messages/count_tokens", ROUTE_PLAIN, true},
    {"/v1/chat/completions/control", ROUTE_PLAIN, false}, /* of a request that is running */
    {"/props", ROUTE_PLAIN, false},
    {"/tools", ROUTE_PLAIN, false},
    {"/cors-proxy", ROUTE_PLAIN, false},
    {"/v1/streams/lookup", ROUTE_PLAIN, false},
    {"/lora-adapters", ROUTE_REFUSED, false},
};

/* Without the prefix of the server, if it has it. */
static const char *below(const char *path, const char *api_prefix)
{
    size_t n = strlen(api_prefix);
    return strncmp(path, api_prefix, n) ? path : path + n;
}

route route_of(const char *method, const char *target, const char *api_prefix)
{
    char path[PATH_SIZE];
    bool is_post = !strcmp(method, "POST");
    if (!cut_path(target, path)) return is_post ? ROUTE_REFUSED : ROUTE_PLAIN;
    if (!strcmp(path, "/quire/metrics")) return ROUTE_METRICS;
    if (!strcmp(path, "/quire/health")) return ROUTE_HEALTH;
    if (!is_post) return ROUTE_PLAIN;
    if (strstr(path, "/slots")) return ROUTE_REFUSED;
    const char *rest = below(path, api_prefix);
    for (size_t i = 0; i < sizeof posts / sizeof *posts; i++)
        if (!strcmp(rest, posts[i].path)) return posts[i].to;
    return ROUTE_UNWATCHED;
}

/* What is not listed is refused: a later llama-server may have endpoints that show the prompts of others, as GET /slots and GET /v1/stream
 * do. */
bool route_is_for_tenants(const char *method, const char *target, const char *api_prefix)
{
    static const char *const gets[] = {"/health", "/v1/health", "/models", "/v1/models", "/props"};
    char path[PATH_SIZE];
    if (!strcmp(method, "OPTIONS")) return true; /* answered without looking at anything */
    if (!cut_path(target, path)) return false;
    const char *rest = below(path, api_prefix);
    bool found = false;
    if (!strcmp(method, "GET") || !strcmp(method, "HEAD"))
        for (size_t i = 0; i < sizeof gets / sizeof *gets; i++) found = found || !strcmp(rest, gets[i]);
    if (strcmp(method, "POST") != 0) return found;
    for (size_t i = 0; i < sizeof posts / sizeof *posts; i++)
        found = found || (posts[i].is_for_tenants && !strcmp(rest, posts[i].path));
    return found;
}

bool route_is_of_one_server(const char *method, const char *target)
{
    /* Tools and the proxy do things outside of the server: a request that is sent again would do them twice. */
    static const struct {
        const char *end;
        bool also_reads;
    } ends[] = {{"/metrics", true},
                {"/cors-proxy", true},
                {"/lora-adapters", false},
                {"/chat/completions/control", false}, /* of a request that runs on one of them */
                {"/props", false},
                {"/tools", false}};
    char path[PATH_SIZE];
    bool reads = !strcmp(method, "GET") || !strcmp(method, "HEAD");
    if (!cut_path(target, path)) return true; /* nobody can say */
    if (strstr(path, "/slots")) return true;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        size_t n = strlen(path), k = strlen(ends[i].end);
        bool is_it = n >= k && !strcmp(path + n - k, ends[i].end);
        if (is_it && (ends[i].also_reads || !reads)) return true;
    }
    return false;
}
