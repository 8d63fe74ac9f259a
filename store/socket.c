/* SPDX-License-Identifier: MIT */
/* store: sockets, with or without TLS. */
#define _GNU_SOURCE
#include "store/os.h"
#include "store/transport.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#define HOST_MAX 256u
#define MAX_ADDRESSES 8u
#define POLLS 64u /* more than that are polled from memory of the allocator */

typedef struct sockets {
    quire_allocator allocator;
    const quire_store_remote *options;
    SSL_CTX *tls; /* NULL: plain */
} sockets;

struct quire_link {
    sockets *owner;
    int fd;
    SSL *tls;
    bool is_connected;
    int wake_bytes; /* how many must have come before poll() says so */
    char host[HOST_MAX];
    uint32_t n_addresses, at, tried; /* at: the one that is being tried */
    struct sockaddr_storage address[MAX_ADDRESSES];
    socklen_t length[MAX_ADDRESSES];
};

static uint64_t now(void *ctx)
{
    (void)ctx;
    return quire_now();
}

/* --------------------------------------------------------------- connecting */

static bool look_up(quire_link *l, uint32_t port)
{
    char number[16];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | AI_NUMERICHOST};
    struct addrinfo *found = NULL;
    (void)snprintf(number, sizeof number, "%u", (unsigned)port);
    if (getaddrinfo(l->host, number, &hints, &found)) { /* no address: a name */
        hints.ai_flags = AI_NUMERICSERV | AI_ADDRCONFIG;
        if (getaddrinfo(l->host, number, &hints, &found)) return false;
    }
    for (const struct addrinfo *i = found; i && l->n_addresses < MAX_ADDRESSES; i = i->ai_next) {
        if (i->ai_addrlen > sizeof *l->address) continue;
        memcpy(&l->address[l->n_addresses], i->ai_addr, i->ai_addrlen);
        l->length[l->n_addresses++] = i->ai_addrlen;
    }
    freeaddrinfo(found);
    return l->n_addresses > 0;
}

/* The next address that does not refuse at once. */
static bool begin_connect(quire_link *l)
{
    int one = 1;
    for (; l->tried < l->n_addresses; l->tried++, l->at = (l->at + 1) % l->n_addresses) {
        if (l->fd >= 0) close(l->fd);
        l->fd = quire_os_socket(l->address[l->at].ss_family);
        if (l->fd < 0) continue;
        (void)setsockopt(l->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (connect(l->fd, (const struct sockaddr *)&l->address[l->at], l->length[l->at]) == 0 ||
            errno == EINPROGRESS)
            return true;
    }
    return false;
}

static bool begin_tls(quire_link *l)
{
    const char *name = l->owner->options->tls_name ? l->owner->options->tls_name : l->host;
    l->tls = SSL_new(l->owner->tls);
    if (!l->tls) return false;
    /* Either a name or an address must be in the certificate. */
    X509_VERIFY_PARAM *wanted = SSL_get0_param(l->tls);
    bool good = X509_VERIFY_PARAM_set1_ip_asc(wanted, name) == 1 ||
                (X509_VERIFY_PARAM_set1_host(wanted, name, 0) == 1 &&
                 SSL_set_tlsext_host_name(l->tls, (char *)(uintptr_t)name) == 1);
    SSL_set_mode(l->tls, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_set_connect_state(l->tls);
    return good && SSL_set_fd(l->tls, l->fd) == 1;
}

static void link_close(quire_link *l)
{
    if (!l) return;
    quire_allocator a = l->owner->allocator;
    SSL_free(l->tls);
    if (l->fd >= 0) close(l->fd);
    quire_mem_free(&a, l, sizeof *l);
}

static quire_link *link_open(void *ctx, const char *host, uint32_t port, uint32_t attempt)
{
    sockets *s = (sockets *)ctx;
    quire_link *l = (quire_link *)quire_mem_take(&s->allocator, sizeof *l);
    if (!l) return NULL;
    l->owner = s;
    l->fd = -1;
    l->wake_bytes = 1;
    (void)snprintf(l->host, sizeof l->host, "%s", host);
    bool good = look_up(l, port);
    if (good) {
        l->at = attempt % l->n_addresses;
        good = begin_connect(l);
    }
    if (good) return l;
    link_close(l);
    return NULL;
}

static int link_connect(quire_link *l)
{
    if (!l->is_connected) {
        struct pollfd p = {.fd = l->fd, .events = POLLOUT};
        int error = 0;
        socklen_t n = sizeof error;
        if (poll(&p, 1, 0) <= 0) return 0;
        if (getsockopt(l->fd, SOL_SOCKET, SO_ERROR, &error, &n) || error) {
            l->tried++;
            l->at = (l->at + 1) % l->n_addresses;
            return begin_connect(l) ? 0 : -1;
        }
        l->is_connected = true;
        if (l->owner->tls && !begin_tls(l)) return -1;
    }
    if (!l->tls) return 1;
    ERR_clear_error();
    int rc = SSL_do_handshake(l->tls);
    if (rc == 1) return 1;
    int why = SSL_get_error(l->tls, rc);
    return why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE ? 0 : -1;
}

/* ----------------------------------------------------------- reading, writing */

static bool is_only_busy(const quire_link *l, int rc)
{
    int why = SSL_get_error(l->tls, rc);
    return why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE;
}

static ssize_t link_read(quire_link *l, void *to, size_t n)
{
    if (n > INT_MAX) n = INT_MAX;
    if (l->tls) {
        ERR_clear_error();
        int rc = SSL_read(l->tls, to, (int)n);
        return rc > 0 ? rc : is_only_busy(l, rc) ? 0 : -1;
    }
    ssize_t got = recv(l->fd, to, n, 0);
    if (got > 0) return got;
    return got < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : -1;
}

static ssize_t link_write(quire_link *l, const struct iovec *parts, int n_parts)
{
    if (!l->tls) {
        struct msghdr m = {.msg_iov = (struct iovec *)(uintptr_t)parts, .msg_iovlen = n_parts};
        ssize_t sent = quire_os_send(l->fd, &m);
        if (sent >= 0) return sent;
        return errno == EAGAIN || errno == EINTR ? 0 : -1;
    }
    ssize_t sent = 0;
    for (int i = 0; i < n_parts; i++)
        for (size_t at = 0; at < parts[i].iov_len;) {
            size_t n = parts[i].iov_len - at < INT_MAX ? parts[i].iov_len - at : INT_MAX;
            ERR_clear_error();
            int rc = SSL_write(l->tls, (const uint8_t *)parts[i].iov_base + at, (int)n);
            if (rc <= 0) return is_only_busy(l, rc) ? sent : -1;
            at += (size_t)rc;
            sent += rc;
        }
    return sent;
}

static bool link_pending(const quire_link *l)
{
    return l->tls && SSL_has_pending(l->tls);
}

static size_t link_unsent(const quire_link *l)
{
    return quire_os_unsent(l->fd);
}

static void link_expect(quire_link *l, size_t n)
{
    int wanted = n > INT_MAX ? INT_MAX : (int)n;
    if (l->tls) return; /* its records are not the bytes that were asked for */
    if (wanted == l->wake_bytes) return;
    if (setsockopt(l->fd, SOL_SOCKET, SO_RCVLOWAT, &wanted, sizeof wanted) == 0) l->wake_bytes = wanted;
}

/* --------------------------------------------------------------------- poll */

static short events_of(const quire_link_poll *p)
{
    const quire_link *l = p->link;
    if (!l->is_connected) return POLLOUT;
    if (l->tls && !SSL_is_init_finished(l->tls)) return SSL_want_write(l->tls) ? POLLOUT : POLLIN;
    return (short)(POLLIN | (p->wants_write ? POLLOUT : 0));
}

static void link_poll(void *ctx, quire_link_poll *polls, uint32_t n, uint64_t ns)
{
    sockets *s = (sockets *)ctx;
    struct pollfd few[POLLS], *p = few;
    if (n > POLLS) p = (struct pollfd *)quire_mem_take(&s->allocator, sizeof *p * n);
    if (!p) { /* the first ones, then; the others have their turn when these are served */
        p = few;
        n = POLLS;
    }
    for (uint32_t i = 0; i < n; i++)
        p[i] = (struct pollfd){.fd = polls[i].link->fd, .events = events_of(&polls[i])};
    int ready = quire_os_poll(p, n, ns);
    for (uint32_t i = 0; i < n; i++) {
        short got = ready > 0 ? p[i].revents : 0;
        polls[i].readable = (got & (POLLIN | POLLERR | POLLHUP | POLLNVAL)) != 0;
        polls[i].writable = (got & (POLLOUT | POLLERR | POLLHUP | POLLNVAL)) != 0;
    }
    if (p != few) quire_mem_free(&s->allocator, p, sizeof *p * n);
}

/* ---------------------------------------------------------------- lifetime */

/* Our own context, not libvalkey's: it checks the certificate, and the handshake can be waited for. */
static const char *make_tls(sockets *s)
{
    const quire_store_remote *o = s->options;
    s->tls = SSL_CTX_new(TLS_client_method());
    if (!s->tls || SSL_CTX_set_min_proto_version(s->tls, TLS1_2_VERSION) != 1)
        return "TLS could not be initialised";
    SSL_CTX_set_verify(s->tls, SSL_VERIFY_PEER, NULL);
    if (o->tls_ca ? SSL_CTX_load_verify_locations(s->tls, o->tls_ca, NULL) != 1
                  : SSL_CTX_set_default_verify_paths(s->tls) != 1)
        return "the trusted certificates cannot be read";
    if (!o->tls_cert != !o->tls_key) return "give a client certificate and its key together";
    if (o->tls_cert && (SSL_CTX_use_certificate_chain_file(s->tls, o->tls_cert) != 1 ||
                        SSL_CTX_use_PrivateKey_file(s->tls, o->tls_key, SSL_FILETYPE_PEM) != 1))
        return "the client certificate or its key cannot be read";
    return NULL;
}

bool quire_sockets_create(quire_transport *out, const quire_store_remote *options,
                          const quire_allocator *allocator, const char **wrong)
{
    sockets *s = (sockets *)quire_mem_take(allocator, sizeof *s);
    *wrong = NULL;
    if (!s) return false;
    s->allocator = *allocator;
    s->options = options;
    *out = (quire_transport){.ctx = s,
                             .now = now,
                             .open = link_open,
                             .close = link_close,
                             .connect = link_connect,
                             .read = link_read,
                             .write = link_write,
                             .pending = link_pending,
                             .unsent = link_unsent,
                             .expect = link_expect,
                             .poll = link_poll};
    if (options->tls) *wrong = make_tls(s);
    return true;
}

void quire_sockets_destroy(quire_transport *t)
{
    sockets *s = (sockets *)t->ctx;
    if (!s) return;
    quire_allocator a = s->allocator;
    SSL_CTX_free(s->tls);
    quire_mem_free(&a, s, sizeof *s);
    t->ctx = NULL;
}
