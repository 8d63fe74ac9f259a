/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "serve/upstream.h"

#include "common/growing.h"
#include "serve/clock.h"
#include "serve/form.h"

#include <curl/curl.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

/* Of an answer; when so much waits for the client, the server has to wait too. */
#define MOST_WAITING (256u << 10)
/* Headers of an answer. A llama-server has a dozen. */
#define MOST_HEADER_BYTES (64u << 10)

struct header_lines {
    struct curl_slist *list;
};

bool header_lines_add(header_lines **lines, const char *name, const char *value)
{
    size_t size = strlen(name) + strlen(value) + 3;
    char *line = (char *)malloc(size);
    if (!*lines) *lines = (header_lines *)calloc(1, sizeof **lines);
    /* libcurl takes "Name:" for the wish to leave a header out, and "Name;" for an empty one. */
    if (line) snprintf(line, size, *value ? "%s: %s" : "%s;", name, value);
    struct curl_slist *list = line && *lines ? curl_slist_append((*lines)->list, line) : NULL;
    free(line);
    if (list) (*lines)->list = list;
    return list;
}

const char *header_lines_find(const header_lines *lines, const char *name)
{
    size_t n = strlen(name);
    for (const struct curl_slist *h = lines ? lines->list : NULL; h; h = h->next)
        if (!strncasecmp(h->data, name, n) && h->data[n] == ':') return h->data + n + 2;
    return NULL;
}

bool header_lines_of_own(header_lines **lines, const char *authorization)
{
    return header_lines_add(lines, "Content-Type", "application/json") &&
           (!authorization || header_lines_add(lines, "Authorization", authorization));
}

void header_lines_free(header_lines *lines)
{
    if (!lines) return;
    curl_slist_free_all(lines->list);
    free(lines);
}

/* Sockets that libcurl waits for: that of the server, and one while a name is looked up. */
#define MOST_SOCKETS 8

struct exchange {
    CURLM *multi;
    CURL *easy;
    int client;
    struct pollfd sockets[MOST_SOCKETS + 1]; /* and the client's */
    nfds_t n_sockets;
    long long timer_ms;    /* when libcurl wants to be called; -1: never */
    long long deadline_ms; /* 0: none */
    struct curl_slist *headers;
    char url[320], fault[CURL_ERROR_SIZE];
    growing head, body; /* names and values, each ended by a 0; what waits to be read */
    size_t n_read;      /* of body */
    size_t n_head;      /* bytes of all headers that came, with those of answers 100 */
    unsigned status;
    long long length;
    bool has_headers, is_paused, is_done, has_failed, was_reached, is_local;
    bool is_helpless; /* no socket could be made for it */
};

bool upstream_init(void)
{
    return curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK;
}

void upstream_end(void)
{
    curl_global_cleanup();
}

/* ---------------------------------------------------------------- callbacks */

static size_t take_header(char *line, size_t one, size_t n, void *ctx)
{
    exchange *x = (exchange *)ctx;
    size_t all = n;
    (void)one; /* is 1 */
    while (n && (line[n - 1] == '\r' || line[n - 1] == '\n')) n--;
    x->n_head += all;
    if (x->n_head > MOST_HEADER_BYTES) return 0;
    if (n >= 5 && !strncmp(line, "HTTP/", 5)) { /* also after an answer 100 */
        x->head.n = 0;
        return all;
    }
    if (!n) {
        long status = 0;
        curl_easy_getinfo(x->easy, CURLINFO_RESPONSE_CODE, &status);
        curl_off_t length = -1;
        curl_easy_getinfo(x->easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length); /* as libcurl checks it */
        x->length = length;
        x->status = (unsigned)status;
        x->has_headers = status >= 200;
        return all;
    }
    const char *colon = (const char *)memchr(line, ':', n);
    if (!colon || memchr(line, 0, n)) return 0;
    const char *value = colon + 1, *end = line + n;
    while (value < end && (*value == ' ' || *value == '\t')) value++;
    if (!growing_add(&x->head, line, (size_t)(colon - line)) || !growing_add(&x->head, "", 1) ||
        !growing_add(&x->head, value, (size_t)(end - value)) || !growing_add(&x->head, "", 1))
        return 0;
    return all;
}

static size_t take_body(char *bytes, size_t one, size_t n, void *ctx)
{
    exchange *x = (exchange *)ctx;
    (void)one;
    if (x->body.n - x->n_read >= MOST_WAITING) {
        x->is_paused = true;
        return CURL_WRITEFUNC_PAUSE;
    }
    if (x->n_read == x->body.n) x->n_read = x->body.n = 0;
    return growing_add(&x->body, bytes, n) ? n : 0;
}

/* libcurl's own poll has no word for a peer that closed its half of a connection, so its sockets are polled here. */
static int take_socket(CURL *easy, curl_socket_t fd, int what, void *ctx, void *unused)
{
    exchange *x = (exchange *)ctx;
    nfds_t i = 0;
    (void)easy;
    (void)unused;
    while (i < x->n_sockets && x->sockets[i].fd != fd) i++;
    if (what == CURL_POLL_REMOVE) {
        if (i < x->n_sockets) x->sockets[i] = x->sockets[--x->n_sockets];
        return 0;
    }
    if (i == MOST_SOCKETS) return -1;
    if (i == x->n_sockets) x->n_sockets++;
    x->sockets[i] = (struct pollfd){
        .fd = fd,
        .events = (short)((what & CURL_POLL_IN ? POLLIN : 0) | (what & CURL_POLL_OUT ? POLLOUT : 0))};
    return 0;
}

static int take_timer(CURLM *multi, long timeout_ms, void *ctx)
{
    exchange *x = (exchange *)ctx;
    (void)multi;
    x->timer_ms = timeout_ms < 0 ? -1 : (long long)clock_ms() + timeout_ms;
    return 0;
}

/* ------------------------------------------------------------------ the wire */

/* A machine that has vanished says nothing. Its connections end after this time, with an answer under way or not. */
static int set_socket(void *ctx, curl_socket_t fd, curlsocktype purpose)
{
    static const int on = 1, pause_s = 10, ms = 30000;
    const exchange *x = (const exchange *)ctx;
    (void)purpose;
    if (x->is_local) return CURL_SOCKOPT_OK;
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &pause_s, sizeof pause_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &pause_s, sizeof pause_s);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms);
    return CURL_SOCKOPT_OK;
}

/* As libcurl does it. But libcurl does not say that it was this program's limit, which would be taken for a server that is down. */
static curl_socket_t open_socket(void *ctx, curlsocktype purpose, struct curl_sockaddr *address)
{
    exchange *x = (exchange *)ctx;
    (void)purpose;
    int fd = socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
    if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM))
        x->is_helpless = true;
    return fd < 0 ? CURL_SOCKET_BAD : fd;
}

static bool has_header(const struct curl_slist *list, const char *name)
{
    size_t n = strlen(name);
    for (; list; list = list->next)
        if (!strncasecmp(list->data, name, n) && (list->data[n] == ':' || list->data[n] == ';')) return true;
    return false;
}

/* Those of the client, and none that libcurl would add by itself. A server that leaves a part of a body unread must not take it for the next
 * request: there is none on this connection. */
static bool set_headers(exchange *x, const header_lines *given)
{
    static const char *const own[] = {"Expect", "Accept", "Content-Type"};
    struct curl_slist *list = NULL, *more;
    for (const struct curl_slist *h = given ? given->list : NULL; h; h = h->next, x->headers = list = more)
        if (!(more = curl_slist_append(list, h->data))) return false;
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        char line[32];
        if (has_header(list, own[i])) continue;
        snprintf(line, sizeof line, "%s:", own[i]);
        if (!(more = curl_slist_append(list, line))) return false;
        x->headers = list = more;
    }
    if (!(more = curl_slist_append(list, "Connection: close"))) return false;
    x->headers = list = more;
    return curl_easy_setopt(x->easy, CURLOPT_HTTPHEADER, list) == CURLE_OK;
}

static bool set_request(exchange *x, const upstream *to, const exchange_request *r)
{
    CURL *c = x->easy;
    bool is_head = !strcmp(r->method, "HEAD");
    x->is_local = to->socket;
    snprintf(x->url, sizeof x->url, "http://%s/", to->host);
    curl_easy_setopt(c, CURLOPT_URL, x->url);
    curl_easy_setopt(c, CURLOPT_REQUEST_TARGET, r->target);
    curl_easy_setopt(c, CURLOPT_PATH_AS_IS, 1L);
    if (to->socket) curl_easy_setopt(c, CURLOPT_UNIX_SOCKET_PATH, to->socket);
    curl_easy_setopt(c, CURLOPT_PROXY, ""); /* not that of the environment */
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http");
    curl_easy_setopt(c, CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_FORBID_REUSE, 1L);
#if LIBCURL_VERSION_NUM >= \
    0x075700 /* a name server that says nothing is not waited for when the time is over */
    curl_easy_setopt(c, CURLOPT_QUICK_EXIT, 1L);
#endif
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT_MS, to->connect_ms ? to->connect_ms : 5000L);
    curl_easy_setopt(c, CURLOPT_SOCKOPTFUNCTION, set_socket);
    curl_easy_setopt(c, CURLOPT_SOCKOPTDATA, x);
    curl_easy_setopt(c, CURLOPT_OPENSOCKETFUNCTION, open_socket);
    curl_easy_setopt(c, CURLOPT_OPENSOCKETDATA, x);
    curl_easy_setopt(c, CURLOPT_HTTP_CONTENT_DECODING, 0L);
    curl_easy_setopt(c, CURLOPT_ERRORBUFFER, x->fault);
    curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, take_header);
    curl_easy_setopt(c, CURLOPT_HEADERDATA, x);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, take_body);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, x);
    curl_easy_setopt(c, CURLOPT_USERAGENT, NULL);
    if (r->has_body) {
        curl_easy_setopt(c, CURLOPT_POST, 1L);
        curl_easy_setopt(c, CURLOPT_POSTFIELDS, r->body);
        curl_easy_setopt(c, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)r->body_size);
    }
    if (is_head) curl_easy_setopt(c, CURLOPT_NOBODY, 1L);
    curl_easy_setopt(c, CURLOPT_CUSTOMREQUEST, r->method);
    return set_headers(x, r->headers);
}

exchange *exchange_begin(const upstream *to, const exchange_request *r)
{
    exchange *x = (exchange *)calloc(1, sizeof *x);
    if (!x) return NULL;
    x->client = r->client;
    x->length = -1;
    x->deadline_ms = r->timeout_ms ? (long long)clock_ms() + r->timeout_ms : 0;
    x->multi = curl_multi_init();
    x->easy = curl_easy_init();
    x->timer_ms = -1;
    if (x->multi) {
        curl_multi_setopt(x->multi, CURLMOPT_SOCKETFUNCTION, take_socket);
        curl_multi_setopt(x->multi, CURLMOPT_SOCKETDATA, x);
        curl_multi_setopt(x->multi, CURLMOPT_TIMERFUNCTION, take_timer);
        curl_multi_setopt(x->multi, CURLMOPT_TIMERDATA, x);
    }
    if (x->multi && x->easy && set_request(x, to, r) && curl_multi_add_handle(x->multi, x->easy) == CURLM_OK)
        return x;
    exchange_free(x);
    return NULL;
}

void exchange_free(exchange *x)
{
    if (!x) return;
    if (x->multi && x->easy) curl_multi_remove_handle(x->multi, x->easy);
    curl_easy_cleanup(x->easy);
    curl_multi_cleanup(x->multi);
    curl_slist_free_all(x->headers);
    growing_free(&x->head);
    growing_free(&x->body);
    free(x);
}

static void look_for_end(exchange *x)
{
    int left;
    for (CURLMsg *m; (m = curl_multi_info_read(x->multi, &left));)
        if (m->msg == CURLMSG_DONE) {
            curl_off_t connected_us = 0;
            curl_easy_getinfo(x->easy, CURLINFO_CONNECT_TIME_T, &connected_us);
            x->was_reached = connected_us > 0;
            x->is_done = true;
            x->has_failed = m->data.result != CURLE_OK || !x->has_headers;
            if (x->has_failed && !*x->fault)
                snprintf(x->fault, sizeof x->fault, "%s", curl_easy_strerror(m->data.result));
        }
}

static int wait_ms(const exchange *x)
{
    long long now = (long long)clock_ms(), until = -1;
    if (x->timer_ms >= 0) until = x->timer_ms;
    if (x->deadline_ms && (until < 0 || x->deadline_ms < until)) until = x->deadline_ms;
    if (until < 0) return -1;
    return until <= now ? 0 : until - now > 60000 ? 60000 : (int)(until - now);
}

/* Tells libcurl what poll() has found. */
static bool act(exchange *x, const struct pollfd *found, nfds_t n)
{
    int running;
    for (nfds_t i = 0; i < n; i++) {
        short e = found[i].revents;
        int what = (e & (POLLIN | POLLHUP) ? CURL_CSELECT_IN : 0) | (e & POLLOUT ? CURL_CSELECT_OUT : 0) |
                   (e & (POLLERR | POLLNVAL) ? CURL_CSELECT_ERR : 0);
        if (what && curl_multi_socket_action(x->multi, found[i].fd, what, &running) != CURLM_OK) return false;
    }
    if (x->timer_ms >= 0 && (long long)clock_ms() >= x->timer_ms) {
        x->timer_ms = -1;
        if (curl_multi_socket_action(x->multi, CURL_SOCKET_TIMEOUT, 0, &running) != CURLM_OK) return false;
    }
    return true;
}

/* Something happens on the wire, or the client leaves. */
static exchange_end step(exchange *x)
{
    struct pollfd found[MOST_SOCKETS + 1];
    nfds_t n = x->n_sockets;
    if (x->is_paused && x->body.n - x->n_read < MOST_WAITING / 2) {
        x->is_paused = false;
        curl_easy_pause(x->easy, CURLPAUSE_CONT);
        return EXCHANGE_GOES_ON; /* that may have brought bytes */
    }
    memcpy(found, x->sockets, sizeof *found * n);
    found[n] = (struct pollfd){.fd = x->client, .events = POLLRDHUP}; /* poll() leaves out -1 */
    int ready = poll(found, n + 1, wait_ms(x));
    if (ready < 0 && errno != EINTR) return EXCHANGE_FAILED;
    if (ready > 0 && found[n].revents) return EXCHANGE_LEFT;
    if (ready < 0) return EXCHANGE_GOES_ON;
    if (x->deadline_ms && (long long)clock_ms() >= x->deadline_ms) return EXCHANGE_TIMED_OUT;
    if (!act(x, found, n)) return EXCHANGE_FAILED;
    look_for_end(x);
    return EXCHANGE_GOES_ON;
}

/* Libcurl needs more than the socket, for names, and does not say what it lacked. */
static bool may_open_files(void)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0) close(fd);
    return fd >= 0;
}

exchange_end exchange_wait(exchange *x)
{
    exchange_end end = EXCHANGE_GOES_ON;
    while (end == EXCHANGE_GOES_ON && !x->has_headers && !x->is_done) end = step(x);
    if (end != EXCHANGE_GOES_ON || x->has_headers) return end;
    if (x->was_reached) return EXCHANGE_FAILED;
    return x->is_helpless || !may_open_files() ? EXCHANGE_HELPLESS : EXCHANGE_UNREACHED;
}

size_t exchange_read(exchange *x, char *bytes, size_t size, exchange_end *end)
{
    *end = EXCHANGE_GOES_ON;
    while (*end == EXCHANGE_GOES_ON && x->body.n == x->n_read && !x->is_done) *end = step(x);
    size_t n = x->body.n - x->n_read;
    if (*end != EXCHANGE_GOES_ON) return 0;
    if (!n) {
        *end = x->has_failed ? EXCHANGE_FAILED : EXCHANGE_DONE;
        return 0;
    }
    n = n < size ? n : size;
    memcpy(bytes, x->body.bytes + x->n_read, n);
    x->n_read += n;
    return n;
}

unsigned exchange_status(const exchange *x)
{
    return x->status;
}

long long exchange_length(const exchange *x)
{
    return x->length;
}

static bool is_named(const exchange *x, const char *header)
{
    for (size_t at = 0; at < x->head.n;) {
        const char *name = x->head.bytes + at, *value = name + strlen(name) + 1;
        if (!strcasecmp(name, "Connection") && form_names(value, header)) return true;
        at += strlen(name) + strlen(value) + 2;
    }
    return false;
}

void exchange_headers(const exchange *x, void (*each)(void *ctx, const char *name, const char *value),
                      void *ctx)
{
    for (size_t at = 0; at < x->head.n;) {
        const char *name = x->head.bytes + at, *value = name + strlen(name) + 1;
        if (!is_named(x, name)) each(ctx, name, value);
        at += strlen(name) + strlen(value) + 2;
    }
}

const char *exchange_fault(const exchange *x)
{
    return *x->fault ? x->fault : "the connection broke off";
}

unsigned upstream_try(const upstream *to, const exchange_request *request, size_t most, char **body,
                      size_t *size, exchange_end *why)
{
    char piece[16384], target[512];
    growing all = {0};
    exchange_request wire = *request;
    snprintf(target, sizeof target, "%s%s", to->api_prefix ? to->api_prefix : "", request->target);
    wire.target = target;
    exchange *x = exchange_begin(to, &wire);
    exchange_end end = x ? exchange_wait(x) : EXCHANGE_HELPLESS;
    unsigned status = 0;
    while (end == EXCHANGE_GOES_ON) {
        size_t n = exchange_read(x, piece, sizeof piece, &end);
        if (n && (all.n + n > most || !growing_add(&all, piece, n))) end = EXCHANGE_FAILED;
    }
    if (end == EXCHANGE_DONE && growing_add(&all, "", 1)) status = exchange_status(x);
    exchange_free(x);
    *why = end;
    *body = NULL;
    *size = 0;
    if (status) {
        *body = all.bytes;
        *size = all.n - 1;
    } else {
        growing_free(&all);
    }
    return status;
}

unsigned upstream_ask(const upstream *to, const exchange_request *request, size_t most, char **body,
                      size_t *size)
{
    exchange_end end;
    return upstream_try(to, request, most, body, size, &end);
}
