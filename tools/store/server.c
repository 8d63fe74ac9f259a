/* SPDX-License-Identifier: MIT */
/* store_server: a plain connection to one node of the remote tier. */
#define _GNU_SOURCE
#include "store/server.h"

#include "common/tool.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* No reply that the commands ask for is larger or has more parts. */
#define MAX_REPLY (64u << 20)
#define MAX_PARTS (1 << 20)

static bool fail(server *s, server_state state, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)vsnprintf(s->why, sizeof s->why, format, args);
    va_end(args);
    (void)tool_plain(s->why);
    s->state = state;
    return false;
}

/* ------------------------------------------------------------------ connect */

static int connect_one(const struct addrinfo *a, uint32_t timeout_ms)
{
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), why = 0;
    socklen_t n = sizeof why;
    if (fd < 0) return -1;
    if (connect(fd, a->ai_addr, a->ai_addrlen) && errno == EINPROGRESS) {
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        if (poll(&p, 1, (int)timeout_ms) != 1)
            why = ETIMEDOUT;
        else
            (void)getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &n);
    } else if (errno != EINPROGRESS) {
        why = errno;
    }
    struct timeval t = {.tv_sec = timeout_ms / 1000, .tv_usec = timeout_ms % 1000 * 1000};
    if (!why && (fcntl(fd, F_SETFL, 0) || setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t) ||
                 setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t)))
        why = errno;
    if (!why) return fd;
    close(fd);
    errno = why;
    return -1;
}

static bool connect_to(server *s, uint32_t timeout_ms)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    char port[16];
    (void)snprintf(port, sizeof port, "%u", s->address.port);
    int rc = getaddrinfo(s->address.host, port, &hints, &list);
    if (rc) return fail(s, SERVER_UNREACHABLE, "%s", gai_strerror(rc));
    for (const struct addrinfo *a = list; a && s->fd < 0; a = a->ai_next) {
        errno = 0;
        s->fd = connect_one(a, timeout_ms);
    }
    int why = errno;
    freeaddrinfo(list);
    return s->fd >= 0 || fail(s, SERVER_UNREACHABLE, "%s", strerror(why));
}

/* ---------------------------------------------------------------------- TLS */

static void note_certificate(server *s)
{
    X509 *certificate = SSL_get1_peer_certificate(s->ssl);
    int days = 0, seconds = 0;
    if (certificate && ASN1_TIME_diff(&days, &seconds, NULL, X509_get0_notAfter(certificate))) {
        s->has_certificate = true;
        s->certificate_days = days + seconds / 86400.0;
    }
    X509_free(certificate);
}

static bool begin_tls(server *s, const quire_store_remote *o)
{
    const char *name = o->tls_name ? o->tls_name : s->address.host;
    uint8_t binary[16];
    bool is_address = inet_pton(AF_INET, name, binary) == 1 || inet_pton(AF_INET6, name, binary) == 1;
    s->context = SSL_CTX_new(TLS_client_method());
    if (!s->context) return fail(s, SERVER_NO_TLS, "no memory");
    SSL_CTX_set_verify(s->context, SSL_VERIFY_PEER, NULL);
    if (!(o->tls_ca ? SSL_CTX_load_verify_locations(s->context, o->tls_ca, NULL)
                    : SSL_CTX_set_default_verify_paths(s->context)))
        return fail(s, SERVER_NO_TLS, "%s cannot be read",
                    o->tls_ca ? o->tls_ca : "the system's certificates");
    if (o->tls_cert && SSL_CTX_use_certificate_chain_file(s->context, o->tls_cert) != 1)
        return fail(s, SERVER_NO_TLS, "%s cannot be read", o->tls_cert);
    if (o->tls_key && SSL_CTX_use_PrivateKey_file(s->context, o->tls_key, SSL_FILETYPE_PEM) != 1)
        return fail(s, SERVER_NO_TLS, "%s cannot be read or does not belong to the certificate", o->tls_key);
    s->ssl = SSL_new(s->context);
    if (!s->ssl || SSL_set_fd(s->ssl, s->fd) != 1) return fail(s, SERVER_NO_TLS, "no memory");
    /* A password follows: without the name nobody knows who gets it. */
    X509_VERIFY_PARAM *wanted = SSL_get0_param(s->ssl);
    bool is_named = is_address ? X509_VERIFY_PARAM_set1_ip_asc(wanted, name) == 1
                               : X509_VERIFY_PARAM_set1_host(wanted, name, 0) == 1 &&
                                     SSL_set_tlsext_host_name(s->ssl, (char *)(uintptr_t)name) == 1;
    if (!is_named) return fail(s, SERVER_NO_TLS, "the name of the server cannot be checked");
    ERR_clear_error();
    int rc = SSL_connect(s->ssl);
    note_certificate(s);
    if (rc == 1) return true;
    long verify = SSL_get_verify_result(s->ssl);
    const char *reason = ERR_reason_error_string(ERR_peek_error());
    if (verify == X509_V_ERR_HOSTNAME_MISMATCH || verify == X509_V_ERR_IP_ADDRESS_MISMATCH)
        return fail(s, SERVER_NO_TLS, "the certificate is not for %s", name);
    if (verify != X509_V_OK)
        return fail(s, SERVER_NO_TLS, "the certificate is not accepted: %s",
                    X509_verify_cert_error_string(verify));
    return fail(s, SERVER_NO_TLS, "%s", reason ? reason : "the server does not speak TLS on this port");
}

/* ----------------------------------------------------------------- commands */

static bool write_all(server *s, const char *bytes, size_t n)
{
    while (n) {
        ssize_t sent = s->ssl ? SSL_write(s->ssl, bytes, n < 1 << 20 ? (int)n : 1 << 20)
                              : send(s->fd, bytes, n, MSG_NOSIGNAL);
        if (sent <= 0) return false;
        bytes += sent;
        n -= (size_t)sent;
    }
    return true;
}

static bool send_formatted(server *s, const char *format, va_list args)
{
    char *text = NULL;
    int n = valkeyvFormatCommand(&text, format, args);
    bool sent = n > 0 && s->fd >= 0 && write_all(s, text, (size_t)n);
    if (n > 0) valkeyFreeCommand(text);
    return sent;
}

bool server_send(server *s, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    bool sent = send_formatted(s, format, args);
    va_end(args);
    return sent;
}

valkeyReply *server_reply(server *s)
{
    char bytes[16384];
    void *reply = NULL;
    if (s->fd < 0) return NULL;
    for (size_t all = 0; all < MAX_REPLY;) {
        if (valkeyReaderGetReply(s->reader, &reply) != VALKEY_OK) return NULL;
        if (reply) return (valkeyReply *)reply;
        ssize_t n = s->ssl ? SSL_read(s->ssl, bytes, sizeof bytes) : recv(s->fd, bytes, sizeof bytes, 0);
        if (n <= 0 || valkeyReaderFeed(s->reader, bytes, (size_t)n) != VALKEY_OK) return NULL;
        all += (size_t)n;
    }
    return NULL;
}

valkeyReply *server_ask(server *s, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    bool sent = send_formatted(s, format, args);
    va_end(args);
    return sent ? server_reply(s) : NULL;
}

/* ---------------------------------------------------------------- open, close */

static bool log_in(server *s, const quire_store_remote *o)
{
    valkeyReply *r = o->password || o->user
                         ? o->user ? server_ask(s, "AUTH %s %s", o->user, o->password ? o->password : "")
                                   : server_ask(s, "AUTH %s", o->password)
                         : server_ask(s, "PING");
    bool good = r && (r->type != VALKEY_REPLY_ERROR || strncmp(r->str, "NOPERM", 6) == 0);
    if (!r)
        (void)fail(s, SERVER_UNREACHABLE, "it does not answer as a Valkey or Redis server does");
    else if (!good)
        (void)fail(s, SERVER_NO_LOGIN, "it says \"%s\"", r->str);
    freeReplyObject(r);
    return good;
}

bool server_open(server *s, const quire_store_remote *remote, const server_address *address,
                 uint32_t timeout_ms)
{
    memset(s, 0, sizeof *s);
    s->fd = -1;
    s->address = *address;
    s->reader = valkeyReaderCreate();
    if (!s->reader) return fail(s, SERVER_UNREACHABLE, "no memory");
    s->reader->maxelements = MAX_PARTS;
    if (!connect_to(s, timeout_ms)) return false;
    (void)signal(SIGPIPE, SIG_IGN);
    if (remote->tls && !begin_tls(s, remote)) return false;
    return log_in(s, remote);
}

void server_close(server *s)
{
    SSL_free(s->ssl);
    SSL_CTX_free(s->context);
    if (s->reader) valkeyReaderFree(s->reader);
    if (s->fd >= 0) close(s->fd);
    s->ssl = NULL;
    s->context = NULL;
    s->reader = NULL;
    s->fd = -1;
}

/* -------------------------------------------------------------------- nodes */

static void add_node(server_nodes *nodes, const server *s, const valkeyReply *r, bool is_master)
{
    if (r->type != VALKEY_REPLY_ARRAY || r->elements < 2 || r->element[1]->type != VALKEY_REPLY_INTEGER ||
        r->element[1]->integer < 1 || r->element[1]->integer > 65535)
        return;
    server_address a = {.port = (uint32_t)r->element[1]->integer};
    const char *host = r->element[0]->str;
    (void)snprintf(a.host, sizeof a.host, "%s", host && *host && strcmp(host, "?") ? host : s->address.host);
    (void)tool_plain(a.host);
    for (uint32_t i = 0; i < nodes->n_nodes; i++)
        if (nodes->node[i].port == a.port && !strcmp(nodes->node[i].host, a.host)) return;
    if (nodes->n_nodes == SERVER_MAX_NODES) return;
    nodes->node[nodes->n_nodes++] = a;
    if (is_master) nodes->n_masters = nodes->n_nodes;
}

bool server_list(server *s, server_nodes *out)
{
    memset(out, 0, sizeof *out);
    valkeyReply *r = server_ask(s, "CLUSTER SLOTS");
    if (!r) return false;
    out->is_refused = r->type == VALKEY_REPLY_ERROR && strncmp(r->str, "NOPERM", 6) == 0;
    out->is_cluster = r->type == VALKEY_REPLY_ARRAY;
    for (size_t of = 2; of < 64 && out->is_cluster; of++) /* masters first, then first replicas, and so on */
        for (size_t i = 0; i < r->elements; i++) {
            const valkeyReply *range = r->element[i];
            if (range->type != VALKEY_REPLY_ARRAY || range->elements <= of) continue;
            long long first = range->element[0]->integer, last = range->element[1]->integer;
            if (of == 2 && first >= 0 && first <= last && last < 16384)
                out->n_slots += (uint32_t)(last - first + 1);
            add_node(out, s, range->element[of], of == 2);
        }
    freeReplyObject(r);
    if (!out->is_cluster) {
        out->node[0] = s->address;
        out->n_nodes = out->n_masters = 1;
    }
    return true;
}
