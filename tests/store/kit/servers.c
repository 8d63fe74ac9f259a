/* SPDX-License-Identifier: MIT */
/* Real servers for the tests of the store. */
#define _GNU_SOURCE
#include "store/kit/servers.h"

#include "store/base.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

void kit_need_redis(void)
{
    if (system("command -v redis-server >/dev/null 2>&1") == 0) return;
    printf("skipped: redis-server is not installed\n");
    exit(77);
}

/* As long as the socket is open the system gives the port to nobody else; redis-server, which listens with SO_REUSEADDR, can have it. */
static int keep_port(uint32_t port)
{
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    KIT_REQUIRE(fd >= 0);
    if (bind(fd, (struct sockaddr *)&a, sizeof a) == 0) { /* not before: then two could keep the same one */
        KIT_REQUIRE(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
        return fd;
    }
    close(fd);
    return -1;
}

/* Its bus port, 10,000 above, must be free too. */
static void take_port(kit_server *s)
{
    static uint32_t next;
    if (!next) next = 20000 + (uint32_t)getpid() * 37 % 9000;
    for (;;) {
        s->port = next;
        next = next >= 30000 ? 20000 : next + 1;
        if ((s->kept[0] = keep_port(s->port)) < 0) continue;
        if ((s->kept[1] = keep_port(s->port + 10000)) >= 0) return;
        close(s->kept[0]);
    }
}

valkeyContext *kit_connect(uint32_t port)
{
    struct timeval t = {5, 0};
    valkeyContext *c = valkeyConnectWithTimeout("127.0.0.1", (int)port, t);
    if (c && !c->err) valkeySetTimeout(c, t);
    if (c && c->err) {
        valkeyFree(c);
        c = NULL;
    }
    return c;
}

char *kit_command(uint32_t port, const char *format, ...)
{
    va_list args;
    char *text = NULL;
    valkeyContext *c = kit_connect(port);
    if (!c) return strdup("(no connection)");
    va_start(args, format);
    valkeyReply *r = (valkeyReply *)valkeyvCommand(c, format, args);
    va_end(args);
    if (!r)
        text = strdup("(lost)");
    else if (r->type == VALKEY_REPLY_INTEGER)
        KIT_REQUIRE(asprintf(&text, "%lld", r->integer) > 0);
    else
        text = strdup(r->str ? r->str : r->type == VALKEY_REPLY_NIL ? "(nil)" : "(array)");
    freeReplyObject(r);
    valkeyFree(c);
    return text;
}

bool kit_says(uint32_t port, const char *command, const char *expected)
{
    valkeyContext *c = kit_connect(port);
    if (!c) return false;
    valkeyReply *r = (valkeyReply *)valkeyCommand(c, command);
    bool found = r && r->str && strstr(r->str, expected);
    freeReplyObject(r);
    valkeyFree(c);
    return found;
}

void kit_wait_for(uint32_t port, const char *command, const char *expected)
{
    for (int i = 0; i < 2400; i++) {
        if (kit_says(port, command, expected)) return;
        usleep(50000);
    }
    fprintf(stderr, "port %u does not say %s to %s\n", port, expected, command);
    abort();
}

/* ------------------------------------------------------------------ servers */

static void launch(kit_server *s)
{
    pid_t parent = getpid();
    s->pid = fork();
    KIT_REQUIRE(s->pid >= 0);
    if (s->pid) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    int log = chdir(s->directory) ? -1 : open("log", O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (log < 0 || dup2(log, 1) < 0 || dup2(log, 2) < 0) _exit(126);
    execvp("redis-server", s->args);
    _exit(127);
}

static void wait_ready(const kit_server *s)
{
    for (int i = 0; i < 4800; i++) { /* two minutes: a machine may be busy */
        valkeyContext *c = kit_connect(s->port);
        bool up = c != NULL;
        if (c) valkeyFree(c);
        if (up) return;
        if (waitpid(s->pid, NULL, WNOHANG) == s->pid) break; /* it has ended */
        usleep(25000);
    }
    fprintf(stderr, "redis-server on port %u does not come up\n", s->port);
    abort();
}

void kit_server_prepare(kit_server *s)
{
    *s = (kit_server){.directory = kit_directory(NULL)};
    take_port(s);
}

void kit_server_add(kit_server *s, const char *arg)
{
    char number[16];
    (void)snprintf(number, sizeof number, "%u", s->port);
    KIT_REQUIRE(s->n_args + 1 < sizeof s->args / sizeof *s->args); /* NULL is the last */
    s->args[s->n_args++] = strdup(strcmp(arg, "@port") == 0 ? number : arg);
}

void kit_server_start(kit_server *s, const char *const *args)
{
    const char *fixed[] = {"redis-server", "--bind", "127.0.0.1", "--save", "",  "--appendonly",
                           "no",           "--port", NULL,        "--dir",  ".", "--loglevel",
                           "warning"};
    bool tls = false;
    kit_server_prepare(s);
    for (int i = 0; args && args[i]; i++) tls |= strcmp(args[i], "--tls-port") == 0;
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        kit_server_add(s, fixed[i] ? fixed[i] : tls ? "0" : "@port");
    for (int i = 0; args && args[i]; i++) kit_server_add(s, args[i]);
    launch(s);
    wait_ready(s);
}

void kit_server_kill(kit_server *s)
{
    if (s->pid <= 0) return;
    kill(s->pid, SIGKILL);
    waitpid(s->pid, NULL, 0);
    s->pid = 0;
}

void kit_server_restart(kit_server *s)
{
    kit_server_kill(s);
    launch(s);
    wait_ready(s);
}

void kit_server_end(kit_server *s)
{
    kit_server_kill(s);
    for (int i = 0; i < 2; i++) close(s->kept[i]);
    for (uint32_t i = 0; i < s->n_args; i++) free(s->args[i]);
    kit_remove(s->directory);
}

quire_store_remote kit_remote(uint32_t port)
{
    return (quire_store_remote){.size = sizeof(quire_store_remote), .host = "127.0.0.1", .port = port};
}

void kit_certificates(const char *directory)
{
    char command[4096];
    snprintf(
        command, sizeof command,
        "cd '%s' && exec >openssl.log 2>&1 && "
        "openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 2 -subj /CN=ca && "
        "openssl req -x509 -newkey rsa:2048 -nodes -keyout other.key -out other-ca.pem -days 2 -subj /CN=other && "
        "openssl req -newkey rsa:2048 -nodes -keyout server.key -out server.csr -subj /CN=server && "
        "printf 'subjectAltName=IP:127.0.0.1,DNS:pages.example' > ext && "
        "openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out server.pem -days 2 -extfile ext",
        directory);
    KIT_REQUIRE(system(command) == 0);
}

/* ------------------------------------------------------------------ cluster */

static void expect_ok(char *reply)
{
    if (strcmp(reply, "OK")) fprintf(stderr, "cluster: %s\n", reply);
    KIT_REQUIRE(strcmp(reply, "OK") == 0);
    free(reply);
}

void kit_cluster_range(const kit_cluster *c, uint32_t i, uint32_t *first, uint32_t *last)
{
    *first = 16384 * i / c->n_masters;
    *last = 16384 * (i + 1) / c->n_masters - 1;
}

void kit_cluster_start(kit_cluster *c)
{
    kit_cluster_start_with(c, KIT_MASTERS, KIT_NODES - KIT_MASTERS);
}

void kit_cluster_start_with(kit_cluster *c, uint32_t n_masters, uint32_t n_replicas)
{
    const char *args[] = {"--cluster-enabled",
                          "yes",
                          "--cluster-config-file",
                          "nodes.conf",
                          "--cluster-node-timeout",
                          "1000",
                          "--cluster-replica-validity-factor",
                          "0",
                          "--repl-diskless-sync-delay",
                          "0",
                          NULL};
    char known[40];
    *c = (kit_cluster){.n_masters = n_masters, .n_nodes = n_masters + n_replicas};
    (void)snprintf(known, sizeof known, "cluster_known_nodes:%u", c->n_nodes);
    for (uint32_t i = 0; i < c->n_nodes; i++) kit_server_start(&c->node[i], args);
    for (uint32_t i = 0; i < n_masters; i++) {
        uint32_t first, last;
        kit_cluster_range(c, i, &first, &last);
        expect_ok(kit_command(c->node[i].port, "CLUSTER ADDSLOTSRANGE %d %d", (int)first, (int)last));
        expect_ok(kit_command(c->node[i].port, "CLUSTER SET-CONFIG-EPOCH %d", (int)i + 1));
    }
    for (uint32_t i = 1; i < c->n_nodes; i++)
        expect_ok(kit_command(c->node[0].port, "CLUSTER MEET 127.0.0.1 %d", (int)c->node[i].port));
    for (uint32_t i = 0; i < c->n_nodes; i++) kit_wait_for(c->node[i].port, "CLUSTER INFO", known);
    for (uint32_t i = 0; i < n_replicas; i++) {
        char *id = kit_command(c->node[i].port, "CLUSTER MYID");
        char *reply = NULL;
        for (int k = 0; k < 1000 && (!reply || strcmp(reply, "OK"));
             k++) { /* a node is known before its name is */
            free(reply);
            if (k) usleep(50000);
            reply = kit_command(c->node[i + n_masters].port, "CLUSTER REPLICATE %s", id);
        }
        expect_ok(reply);
        free(id);
    }
    for (uint32_t i = 0; i < c->n_nodes; i++)
        kit_wait_for(c->node[i].port, "CLUSTER INFO", "cluster_state:ok");
    for (uint32_t i = n_masters; i < c->n_nodes; i++)
        kit_wait_for(c->node[i].port, "INFO replication", "master_link_status:up");
}

void kit_cluster_end(kit_cluster *c)
{
    for (uint32_t i = 0; i < c->n_nodes; i++) kit_server_end(&c->node[i]);
}

/* -------------------------------------------------------------------- sockets */

static int listen_on(uint32_t *port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    KIT_REQUIRE(fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0 && listen(fd, 64) == 0);
    KIT_REQUIRE(getsockname(fd, (struct sockaddr *)&a, &n) == 0);
    *port = ntohs(a.sin_port);
    return fd;
}

static bool readable(int fd, int ms)
{
    struct timeval t = {.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000};
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fd, &set);
    return select(fd + 1, &set, NULL, NULL, &t) > 0;
}

static void reset(int fd)
{
    struct linger now = {1, 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close(fd);
}

static bool send_all(int fd, const char *bytes, size_t n, const atomic_bool *stop)
{
    for (size_t done = 0; done < n;) {
        ssize_t sent = send(fd, bytes + done, n - done, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EAGAIN && !*stop) {
            usleep(500);
            continue;
        }
        if (sent <= 0) return false;
        done += (size_t)sent;
    }
    return true;
}

/* --------------------------------------------------------------------- proxy */

typedef struct pair {
    kit_proxy *proxy;
    int client, server;
    uint64_t sent;
} pair;

static bool pass(pair *p, int from, int to, bool faults)
{
    static _Thread_local char bytes[1 << 16];
    kit_proxy *x = p->proxy;
    ssize_t n = recv(from, bytes, sizeof bytes, 0);
    if (n <= 0) return false;
    if (!faults) return send_all(to, bytes, (size_t)n, &x->stop);
    for (uint32_t waited = 0; waited < x->latency_ms && !x->stop; waited += 5) usleep(5000);
    while (x->is_silent && !x->stop) usleep(5000);
    for (ssize_t i = 0; i < n && x->trickle_ms && !x->stop; i++) {
        if (!send_all(to, bytes + i, 1, &x->stop)) return false;
        usleep(x->trickle_ms * 1000);
        if (i + 1 == n) return true;
        if (!x->trickle_ms) return send_all(to, bytes + i + 1, (size_t)(n - i - 1), &x->stop);
    }
    uint32_t cut = x->cut_after;
    if (cut && p->sent + (uint64_t)n >= cut) {
        if (p->sent < cut) (void)send_all(to, bytes, (size_t)(cut - p->sent), &x->stop);
        return false;
    }
    p->sent += (uint64_t)n;
    return send_all(to, bytes, (size_t)n, &x->stop);
}

static void *run_pair(void *arg)
{
    pair *p = (pair *)arg;
    kit_proxy *x = p->proxy;
    bool good = true;
    while (good && !x->stop && !x->refuses) {
        fd_set set;
        struct timeval t = {0, 20000};
        FD_ZERO(&set);
        FD_SET(p->client, &set);
        FD_SET(p->server, &set);
        if (select((p->client > p->server ? p->client : p->server) + 1, &set, NULL, NULL, &t) <= 0) continue;
        if (FD_ISSET(p->client, &set)) good = pass(p, p->client, p->server, false);
        if (good && FD_ISSET(p->server, &set)) good = pass(p, p->server, p->client, true);
    }
    reset(p->client);
    close(p->server);
    x->n_threads--;
    free(p);
    return NULL;
}

static void *run_proxy(void *arg)
{
    kit_proxy *x = (kit_proxy *)arg;
    while (!x->stop) {
        if (!readable(x->fd, 20)) continue;
        int client = accept4(x->fd, NULL, NULL, SOCK_CLOEXEC),
            server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        struct sockaddr_in a = {.sin_family = AF_INET,
                                .sin_port = htons((uint16_t)x->target),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        pthread_t thread;
        if (client < 0 || x->refuses || connect(server, (struct sockaddr *)&a, sizeof a)) {
            if (client >= 0) reset(client);
            close(server);
            continue;
        }
        pair *p = (pair *)calloc(1, sizeof *p);
        *p = (pair){.proxy = x, .client = client, .server = server};
        x->n_threads++;
        KIT_REQUIRE(pthread_create(&thread, NULL, run_pair, p) == 0);
        pthread_detach(thread);
    }
    return NULL;
}

void kit_proxy_start(kit_proxy *p, uint32_t target)
{
    memset(p, 0, sizeof *p);
    p->target = target;
    p->fd = listen_on(&p->port);
    KIT_REQUIRE(pthread_create(&p->thread, NULL, run_proxy, p) == 0);
}

void kit_proxy_reset(kit_proxy *p)
{
    p->latency_ms = p->cut_after = p->trickle_ms = 0;
    p->refuses = p->is_silent = false;
}

void kit_proxy_end(kit_proxy *p)
{
    p->stop = true;
    pthread_join(p->thread, NULL);
    while (p->n_threads) usleep(5000);
    close(p->fd);
}

/* ---------------------------------------------------------------------- peer */

static void talk(kit_peer *p, int client)
{
    static const char zeros[1 << 16];
    char ignored[4096];
    uint64_t sent = 0;
    bool good = readable(client, 2000) && send_all(client, p->text, strlen(p->text), &p->stop);
    while (good && !p->stop && sent < p->n_zeros) {
        good = send_all(client, zeros, sizeof zeros, &p->stop);
        sent += sizeof zeros;
        if (sent > p->n_sent) p->n_sent = sent;
    }
    while (good && !p->stop)
        if (readable(client, 20) && recv(client, ignored, sizeof ignored, 0) <= 0) good = false;
    close(client);
}

static void *run_peer(void *arg)
{
    kit_peer *p = (kit_peer *)arg;
    while (!p->stop) {
        if (!readable(p->fd, 20)) continue;
        int client = accept4(p->fd, NULL, NULL, SOCK_CLOEXEC);
        if (client >= 0) talk(p, client);
    }
    return NULL;
}

void kit_peer_start(kit_peer *p, const char *text, uint64_t n_zeros)
{
    memset(p, 0, sizeof *p);
    p->text = text;
    p->n_zeros = n_zeros;
    p->fd = listen_on(&p->port);
    KIT_REQUIRE(pthread_create(&p->thread, NULL, run_peer, p) == 0);
}

void kit_peer_end(kit_peer *p)
{
    p->stop = true;
    pthread_join(p->thread, NULL);
    close(p->fd);
}

#ifdef __SANITIZE_THREAD__
/* OpenSSL remembers what it found out about a trusted certificate under a lock, and marks that it did with an atomic variable, which
 * ThreadSanitizer does not see in a library that was built without it. */
__attribute__((visibility("default"))) const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void)
{
    return "race:^ASN1_STRING_cmp$\n";
}
#endif
