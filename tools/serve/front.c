/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "serve/front.h"

#include "common/growing.h"
#include "serve/deadlines.h"
#include "serve/form.h"
#include "serve/wire_fault.h"

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/* Of the thread of a connection. libcurl needs the most of it. */
#define STACK_BYTES (256u << 10)
/* What MHD keeps of a connection: the line and the headers of a request must fit. */
#define CONNECTION_BYTES (64u << 10)
#define PIECE_BYTES (16u << 10)

struct front {
    struct MHD_Daemon *daemon;
    front_options options;
    deadlines_options limits;
    deadlines *deadlines;
    atomic_size_t n_bodies; /* bytes of bodies of all requests */
    atomic_uint n_requests; /* from their first line to the last byte of their answers */
    atomic_bool is_ending;
    int socket; /* that listens */
    uint16_t port;
    char path[sizeof((struct sockaddr_un *)0)->sun_path]; /* of a UNIX socket, or "" */
};

typedef struct added_header {
    struct added_header *next;
    char *name, *value;
} added_header;

struct front_request {
    front *front;
    struct MHD_Connection *connection;
    deadline *deadline;
    char *target;
    const char *method;
    growing body;
    bool has_started, has_answer;
    enum MHD_Result result; /* of giving the answer */
    added_header *headers, **last;
};

/* ------------------------------------------------------------------ requests */

const char *front_method(const front_request *r)
{
    return r->method;
}

const char *front_target(const front_request *r)
{
    return r->target;
}

const char *front_header(const front_request *r, const char *name)
{
    return MHD_lookup_connection_value(r->connection, MHD_HEADER_KIND, name);
}

bool front_has_body(const front_request *r)
{
    return r->body.n || front_header(r, "Content-Length") || front_header(r, "Transfer-Encoding");
}

const char *front_body(const front_request *r, size_t *size)
{
    *size = r->body.n;
    return r->body.bytes ? r->body.bytes : "";
}

int front_socket(const front_request *r)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(r->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    return info ? info->connect_fd : -1;
}

typedef struct visit {
    const front_request *r;
    void (*each)(void *ctx, const char *name, const char *value);
    void *ctx;
    const char *name; /* that is looked for */
    bool is_named;
} visit;

static enum MHD_Result visit_connection(void *ctx, enum MHD_ValueKind kind, const char *name,
                                        const char *value)
{
    visit *v = (visit *)ctx;
    (void)kind;
    if (!strcasecmp(name, "Connection") && value && form_names(value, v->name)) v->is_named = true;
    return MHD_YES;
}

static enum MHD_Result visit_header(void *ctx, enum MHD_ValueKind kind, const char *name, const char *value)
{
    visit *v = (visit *)ctx;
    (void)kind;
    v->name = name;
    v->is_named = false;
    MHD_get_connection_values(v->r->connection, MHD_HEADER_KIND, visit_connection, v);
    if (!v->is_named) v->each(v->ctx, name, value ? value : "");
    return MHD_YES;
}

void front_headers(const front_request *r, void (*each)(void *ctx, const char *name, const char *value),
                   void *ctx)
{
    visit v = {.r = r, .each = each, .ctx = ctx};
    MHD_get_connection_values(r->connection, MHD_HEADER_KIND, visit_header, &v);
}

/* ------------------------------------------------------------------- answers */

bool front_add_header(front_request *r, const char *name, const char *value)
{
    added_header *h = (added_header *)calloc(1, sizeof *h);
    if (h) {
        h->name = strdup(name);
        h->value = strdup(value);
    }
    if (!h || !h->name || !h->value) {
        if (h) free(h->name);
        if (h) free(h->value);
        free(h);
        return false;
    }
    *r->last = h;
    r->last = &h->next;
    return true;
}

static void free_headers(front_request *r)
{
    for (added_header *h = r->headers, *next; h; h = next) {
        next = h->next;
        free(h->name);
        free(h->value);
        free(h);
    }
    r->headers = NULL;
    r->last = &r->headers;
}

static void queue(front_request *r, unsigned status, struct MHD_Response *response)
{
    r->has_answer = true;
    r->result = MHD_NO;
    if (!response) return;
    /* Otherwise a proxy that keeps its connection would send its next requests until the end. */
    if (atomic_load(&r->front->is_ending)) MHD_add_response_header(response, "Connection", "close");
    for (added_header *h = r->headers; h; h = h->next) MHD_add_response_header(response, h->name, h->value);
    r->result = MHD_queue_response(r->connection, status, response);
    MHD_destroy_response(response);
}

typedef struct given {
    front_answer answer;
    front *front;
    deadline *deadline;
} given;

/* Asked for the next piece, the client has taken the last one, or there is room for it. */
static ssize_t read_piece(void *ctx, uint64_t at, char *bytes, size_t size)
{
    given *g = (given *)ctx;
    (void)at;
    deadline_begin(g->front->deadlines, g->deadline, STAGE_ANSWER);
    long n = g->answer.read(g->answer.ctx, bytes, size);
    deadline_begin(g->front->deadlines, g->deadline, STAGE_SENDING);
    return n > 0 ? n : n == 0 ? MHD_CONTENT_READER_END_OF_STREAM : MHD_CONTENT_READER_END_WITH_ERROR;
}

static void end_answer(void *ctx)
{
    given *g = (given *)ctx;
    if (g->answer.end) g->answer.end(g->answer.ctx);
    free(g);
}

void front_give(front_request *r, const front_answer *answer)
{
    given *copy = (given *)malloc(sizeof *copy);
    uint64_t length = answer->length < 0 ? MHD_SIZE_UNKNOWN : (uint64_t)answer->length;
    struct MHD_Response *response = NULL;
    if (copy) {
        *copy = (given){*answer, r->front, r->deadline};
        response = MHD_create_response_from_callback(length, PIECE_BYTES, read_piece, copy, end_answer);
    }
    if (!response) {
        free(copy);
        if (answer->end) answer->end(answer->ctx);
    }
    queue(r, answer->status, response);
}

void front_give_text(front_request *r, unsigned status, const char *type, const char *text)
{
    struct MHD_Response *response =
        MHD_create_response_from_buffer(strlen(text), (void *)(size_t)text,
                                        MHD_RESPMEM_MUST_COPY); /* it is not const for reasons of history */
    if (response) MHD_add_response_header(response, "Content-Type", type);
    queue(r, status, response);
}

void front_drop(front_request *r)
{
    queue(r, 0, NULL);
}

void front_give_fault(front_request *r, unsigned status, const char *kind, const char *sentence)
{
    char text[512];
    fault_text(text, sizeof text, status, kind, sentence);
    front_give_text(r, status, "application/json; charset=utf-8", text);
}

/* -------------------------------------------------------------------- daemon */

static deadline *deadline_of(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? (deadline *)info->socket_context : NULL;
}

/* MHD closes the socket after it has told so. */
static void note_connection(void *ctx, struct MHD_Connection *connection, void **mine,
                            enum MHD_ConnectionNotificationCode what)
{
    front *f = (front *)ctx;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (what == MHD_CONNECTION_NOTIFY_CLOSED)
        deadlines_remove(f->deadlines, (deadline *)*mine);
    else if (info)
        *mine = deadlines_add(f->deadlines, info->connect_fd);
}

/* Called first, with what the client sent: MHD itself decodes the path and takes the query apart. */
static void *begin_request(void *ctx, const char *target, struct MHD_Connection *connection)
{
    front_request *r = (front_request *)calloc(1, sizeof *r);
    if (!r) return NULL;
    r->front = (front *)ctx;
    atomic_fetch_add(&r->front->n_requests, 1);
    r->connection = connection;
    r->last = &r->headers;
    r->target = strdup(target);
    r->deadline = deadline_of(connection);
    deadline_begin(r->front->deadlines, r->deadline, STAGE_HEADERS);
    return r;
}

/* MHD before 1.0 adds the second line of a folded header to its name, which makes another header of it: a length, a key, or none. The name
 * then lies elsewhere; otherwise it is before the value, in one line. */
static bool is_folded(const char *name, size_t n_name, const char *value)
{
    return *MHD_get_version() == '0' && value &&
           (uintptr_t)value - (uintptr_t)(name + n_name) > CONNECTION_BYTES;
}

static enum MHD_Result check_header(void *ctx, enum MHD_ValueKind kind, const char *name, size_t n_name,
                                    const char *value, size_t n_value)
{
    (void)kind;
    if (is_folded(name, n_name, value)) form_fold((form *)ctx);
    form_header((form *)ctx, name, n_name, value ? value : "", value ? n_value : 0);
    return MHD_YES;
}

/* false: it has an answer already. */
static bool check_form(front_request *r, const char *version)
{
    form f = {0};
    form_line(&f, r->method, r->target);
    MHD_get_connection_values_n(r->connection, MHD_HEADER_KIND, check_header, &f);
    form_end(&f, version, r->front->options.most_body);
    if (!f.status) return true;
    front_add_header(r, "Connection", "close"); /* where the next request begins is not known */
    front_give_fault(r, f.status, "invalid_request_error", f.sentence);
    return false;
}

/* false: the connection is to be closed, because MHD takes no answer in the middle of a request. */
static bool take_body(front *f, front_request *r, const char *data, size_t n)
{
    deadline_received(f->deadlines, r->deadline, n);
    if (n > f->options.most_body - r->body.n) {
        wire_fault(front_socket(r), 413, "invalid_request_error", "the body of the request is too large");
        return false;
    }
    if (atomic_fetch_add(&f->n_bodies, n) + n > f->options.most_bodies) {
        atomic_fetch_sub(&f->n_bodies, n);
        deadlines_need_memory(f->deadlines);
        wire_fault(front_socket(r), 503, "unavailable_error",
                   "the bodies of all requests take too much memory now");
        return false;
    }
    if (growing_add(&r->body, data, n)) return true;
    atomic_fetch_sub(&f->n_bodies, n);
    return false;
}

static enum MHD_Result take_request(void *ctx, struct MHD_Connection *connection, const char *path,
                                    const char *method, const char *version, const char *data, size_t *n,
                                    void **mine)
{
    front *f = (front *)ctx;
    front_request *r = (front_request *)*mine;
    (void)path;
    if (!r || !r->target) return MHD_NO;
    if (!r->has_started) { /* the headers are there */
        r->has_started = true;
        r->method = method;
        deadline_begin(f->deadlines, r->deadline, STAGE_BODY);
        return check_form(r, version) ? MHD_YES : r->result;
    }
    if (*n) {
        if (!take_body(f, r, data, *n)) return MHD_NO;
        *n = 0;
        return MHD_YES;
    }
    deadline_begin(f->deadlines, r->deadline, STAGE_ANSWER);
    /* The answer may take as long as it takes; only a client that sends nothing is timed out. */
    MHD_set_connection_option(connection, MHD_CONNECTION_OPTION_TIMEOUT, 0u);
    f->options.handle(f->options.ctx, r);
    deadline_begin(f->deadlines, r->deadline, STAGE_SENDING);
    return r->has_answer ? r->result : MHD_NO;
}

static void end_request(void *ctx, struct MHD_Connection *connection, void **mine,
                        enum MHD_RequestTerminationCode why)
{
    front_request *r = (front_request *)*mine;
    (void)ctx;
    (void)why;
    if (!r) return;
    MHD_set_connection_option(connection, MHD_CONNECTION_OPTION_TIMEOUT, r->front->limits.idle_ms / 1000);
    deadline_begin(r->front->deadlines, r->deadline, STAGE_LINE);
    atomic_fetch_sub(&r->front->n_bodies, r->body.n);
    atomic_fetch_sub(&r->front->n_requests, 1);
    free_headers(r);
    growing_free(&r->body);
    free(r->target);
    free(r);
    *mine = NULL;
}

/* The target goes to the server as it is; MHD's own decoding would only cost time. */
static size_t leave(void *ctx, struct MHD_Connection *connection, char *text)
{
    (void)ctx;
    (void)connection;
    return strlen(text);
}

static bool listen_at_path(front *f, char *message, size_t size)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    const char *path = f->options.host;
    if (strlen(path) >= sizeof a.sun_path) {
        snprintf(message, size, "the path of the socket is too long: %s", path);
        return false;
    }
    strcpy(a.sun_path, path);
    f->socket = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    unlink(path); /* of a process that is gone; one that lives is not asked, as llama-server does not */
    if (f->socket < 0 || bind(f->socket, (struct sockaddr *)&a, sizeof a) || listen(f->socket, 1024)) {
        snprintf(message, size, "%s cannot be listened at: %s", path, strerror(errno));
        return false;
    }
    strcpy(f->path, path);
    return true;
}

static bool try_address(front *f, const struct addrinfo *i)
{
    int on = 1;
    f->socket = socket(i->ai_family, i->ai_socktype | SOCK_CLOEXEC, i->ai_protocol);
    if (f->socket < 0) return false;
    setsockopt(f->socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (!bind(f->socket, i->ai_addr, i->ai_addrlen) && !listen(f->socket, 1024)) return true;
    int why = errno;
    close(f->socket);
    f->socket = -1;
    errno = why;
    return false;
}

static bool listen_at_port(front *f, char *message, size_t size)
{
    char port[8];
    struct addrinfo want = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found = NULL;
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    snprintf(port, sizeof port, "%u", f->options.port);
    int wrong = getaddrinfo(f->options.host, port, &want, &found);
    if (wrong) {
        snprintf(message, size, "the address %s is not known: %s", f->options.host, gai_strerror(wrong));
        return false;
    }
    for (const struct addrinfo *i = found; i && f->socket < 0; i = i->ai_next) (void)try_address(f, i);
    if (f->socket < 0)
        snprintf(message, size, "port %s of %s cannot be listened at: %s", port, f->options.host,
                 strerror(errno));
    freeaddrinfo(found);
    if (f->socket < 0 || getsockname(f->socket, (struct sockaddr *)&a, &n)) return false;
    f->port = ntohs(a.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&a)->sin6_port
                                            : ((struct sockaddr_in *)&a)->sin_port);
    return true;
}

static bool is_path(const char *host)
{
    size_t n = strlen(host);
    return n > 5 && !strcmp(host + n - 5, ".sock");
}

front *front_start(const front_options *options, char *message, size_t size)
{
    front *f = (front *)calloc(1, sizeof *f);
    if (!f) {
        snprintf(message, size, "out of memory");
        return NULL;
    }
    f->options = *options;
    if (!f->options.most_bodies) f->options.most_bodies = (size_t)1 << 30;
    options = &f->options;
    f->socket = -1;
    f->limits = deadlines_defaults(options->header_seconds, options->most_connections);
    f->deadlines = deadlines_create(&f->limits);
    if (!f->deadlines) {
        snprintf(message, size, "out of memory");
    } else if (is_path(options->host) ? listen_at_path(f, message, size) : listen_at_port(f, message, size)) {
        f->daemon = MHD_start_daemon(
            MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL | MHD_USE_ITC |
                MHD_USE_SUPPRESS_DATE_NO_CLOCK,
            0, NULL, NULL, take_request, f, MHD_OPTION_LISTEN_SOCKET, f->socket, MHD_OPTION_NOTIFY_COMPLETED,
            end_request, NULL, MHD_OPTION_URI_LOG_CALLBACK, begin_request, f, MHD_OPTION_UNESCAPE_CALLBACK,
            leave, NULL, MHD_OPTION_NOTIFY_CONNECTION, note_connection, f, MHD_OPTION_STRICT_FOR_CLIENT, 1,
            MHD_OPTION_CONNECTION_LIMIT, options->most_connections, MHD_OPTION_CONNECTION_TIMEOUT,
            f->limits.idle_ms / 1000, MHD_OPTION_THREAD_STACK_SIZE, (size_t)STACK_BYTES,
            MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_BYTES, MHD_OPTION_END);
        if (f->daemon) return f;
        snprintf(message, size, "the HTTP server cannot be started");
    }
    front_stop(f);
    return NULL;
}

uint16_t front_port(const front *f)
{
    return f->port;
}

void front_quiesce(front *f)
{
    atomic_store(&f->is_ending, true);
    int fd = MHD_quiesce_daemon(f->daemon);
    if (fd >= 0) close(fd);
    f->socket = -1;
}

bool front_is_busy(front *f)
{
    return atomic_load(&f->n_requests) > 0;
}

void front_stop(front *f)
{
    if (!f) return;
    if (f->daemon)
        MHD_stop_daemon(f->daemon);
    else if (f->socket >= 0)
        close(f->socket);
    if (*f->path) unlink(f->path);
    deadlines_destroy(f->deadlines);
    free(f);
}
