/* SPDX-License-Identifier: MIT */
/* vouch_server: what a llama-server tells about its adapters. */
#define _GNU_SOURCE
#include "store/vouch.h"

#include <ctype.h>
#include <errno.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#define MAX_ANSWER (16u << 20)
#define SCHEME "http://"

typedef struct address {
    char host[256], port[8], path[512];
} address;

static bool split(const char *url, address *a)
{
    if (strncmp(url, SCHEME, strlen(SCHEME)) != 0) return false;
    url += strlen(SCHEME);
    bool in_brackets = *url == '['; /* of an IPv6 address */
    size_t n = in_brackets ? strcspn(++url, "]") : strcspn(url, ":/");
    if (!n || n >= sizeof a->host || (in_brackets && url[n] != ']')) return false;
    snprintf(a->host, sizeof a->host, "%.*s", (int)n, url);
    url += n + in_brackets;
    uint64_t port = 80;
    if (*url == ':') {
        const char *rest;
        if (!tool_number(url + 1, '/', 1, 65535, &port, &rest)) return false;
        url += 1 + strcspn(url + 1, "/");
    }
    snprintf(a->port, sizeof a->port, "%u", (unsigned)port);
    n = strlen(url);
    while (n && url[n - 1] == '/') n--;
    if (n >= sizeof a->path || (*url && *url != '/')) return false;
    snprintf(a->path, sizeof a->path, "%.*s", (int)n, url);
    return true;
}

bool vouch_is_url(const char *url)
{
    address a;
    return split(url, &a);
}

static int dial(const address *a, uint64_t timeout_ms)
{
    struct addrinfo want = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    struct timeval limit = {(time_t)(timeout_ms / 1000), (suseconds_t)(timeout_ms % 1000 * 1000)};
    int fd = -1;
    if (getaddrinfo(a->host, a->port, &want, &found)) {
        errno = EHOSTUNREACH;
        return -1;
    }
    for (struct addrinfo *i = found; i && fd < 0; i = i->ai_next) {
        fd = socket(i->ai_family, i->ai_socktype | SOCK_CLOEXEC, i->ai_protocol);
        if (fd < 0) continue;
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
        if (connect(fd, i->ai_addr, i->ai_addrlen)) {
            int why = errno;
            close(fd);
            errno = why;
            fd = -1;
        }
    }
    freeaddrinfo(found);
    return fd;
}

static bool send_all(int fd, const char *text)
{
    for (size_t n = strlen(text); n;) {
        ssize_t sent = send(fd, text, n, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return false;
        text += sent;
        n -= (size_t)sent;
    }
    return true;
}

/* Until the peer closes; NULL: errno says why. */
static char *receive_all(int fd)
{
    char *text = NULL;
    size_t n = 0, cap = 0;
    for (;;) {
        if (n + 1 >= cap) {
            char *more = cap < MAX_ANSWER ? (char *)realloc(text, cap = cap * 2 + 65536) : NULL;
            if (!more) {
                free(text);
                errno = cap < MAX_ANSWER ? ENOMEM : EMSGSIZE;
                return NULL;
            }
            text = more;
        }
        ssize_t got = recv(fd, text + n, cap - 1 - n, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            int why = errno;
            free(text);
            errno = why;
            return NULL;
        }
        if (!got) break;
        n += (size_t)got;
    }
    text[n] = 0;
    return text;
}

/* Without the white space between the words of JSON. Quotes within a string have a backslash before them, so a search for "name": finds
 * names only. */
static void compact(char *text)
{
    char *to = text;
    for (bool quoted = false; *text; text++) {
        if (*text == '"') quoted = !quoted;
        if (!quoted && isspace((unsigned char)*text)) continue;
        *to++ = *text;
        if (quoted && *text == '\\' && text[1]) *to++ = *++text;
    }
    *to = 0;
}

/* The list that the server answers, to be freed; NULL: *why says what came instead. */
static char *ask(const store_options *o, const address *a, const char *what, const char **why)
{
    char request[1100];
    snprintf(request, sizeof request, "GET %s%s HTTP/1.0\r\nHost: %s:%s\r\nConnection: close\r\n\r\n",
             a->path, what, a->host, a->port);
    int fd = dial(a, o->timeout_ms);
    char *answer = fd >= 0 && send_all(fd, request) ? receive_all(fd) : NULL;
    *why = answer ? "" : strerror(errno);
    if (fd >= 0) close(fd);
    if (!answer) return NULL;
    char *body = strstr(answer, "\r\n\r\n");
    bool good = body && strncmp(answer, "HTTP/1.", 7) == 0 && strncmp(answer + 8, " 200 ", 5) == 0;
    *why = good ? "the answer is not a list" : "the server refused to answer, or is no llama-server";
    if (good) {
        memmove(answer, body + 4, strlen(body + 4) + 1);
        compact(answer);
        good = *answer == '[' && answer[strlen(answer) - 1] == ']';
    }
    if (good) return answer;
    free(answer);
    return NULL;
}

static int judge_adapters(const store_options *o, const char *list)
{
    static const char name[] = "\"scale\":";
    uint32_t n = 0, n_other = 0;
    for (const char *at = list; (at = strstr(at, name)); n++) {
        double scale = strtod(at += strlen(name), NULL);
        if (scale != 0 && (float)scale != (float)o->adapter_scale) n_other++;
    }
    if (!o->adapter && strcmp(list, "[]") != 0)
        return tool_failed(
            o->command,
            "the server has a LoRA adapter loaded, which requests can switch on; give --adapter, or save slots of a server without adapters");
    if (o->adapter && !n)
        return tool_failed(o->command, "the server has no LoRA adapter loaded, and --adapter is given");
    if (o->adapter && n_other)
        return tool_failed(o->command,
                           "the server uses a LoRA adapter with another scale than --adapter-scale");
    return TOOL_OK;
}

static int judge_slots(const store_options *o, const char *list)
{
    static const char name[] = "\"lora\":[";
    for (const char *at = list; (at = strstr(at, name));)
        if (*(at += strlen(name)) != ']')
            return tool_failed(o->command, "the last request of a slot chose LoRA adapters of its own");
    return TOOL_OK;
}

int vouch_ask_server(const store_options *o)
{
    static const struct {
        const char *path;
        int (*judge)(const store_options *o, const char *list);
    } questions[] = {{"/lora-adapters", judge_adapters}, {"/slots", judge_slots}};
    address a;
    int code = split(o->server, &a) ? TOOL_OK : TOOL_FAILED;
    for (size_t i = 0; i < sizeof questions / sizeof *questions && !code; i++) {
        const char *why;
        char *list = ask(o, &a, questions[i].path, &why);
        code = list ? questions[i].judge(o, list)
                    : tool_failed(o->command, "%s%s: %s", o->server, questions[i].path, why);
        free(list);
    }
    return code;
}
