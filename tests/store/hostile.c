/* SPDX-License-Identifier: MIT */
/*
 * Memory under hostile peers: servers that announce far more than was asked for, on eight connections at once. What the process holds at
 * most meanwhile is measured by the kernel (VmHWM); what the peers have sent is not memory of the store.
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store/base.h"
#include "store/kit/raw_kit.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define CONNECTIONS 8u
#define PAGE 100000u
#define PAGES 32u

/* ---------------------------------------------------------------- the peer */

/* What it says once, and what it says again and again after that. */
typedef struct peer {
    const char *name, *head, *again;
    uint64_t at_most;   /* bytes per connection */
    bool answers_first; /* EXISTS is answered: pages are asked for */
} peer;

static void push(int fd, const char *bytes, size_t n)
{
    while (n) {
        ssize_t sent = send(fd, bytes, n, MSG_NOSIGNAL);
        if (sent <= 0) _exit(0);
        bytes += sent;
        n -= (size_t)sent;
    }
}

/* One connection, in a process of its own: its memory does not count. */
static void talk(const peer *p, int fd)
{
    static char in[1 << 16], block[1 << 16];
    size_t n_again = strlen(p->again), n_block = 0;
    while (n_again && n_block + n_again <= sizeof block) {
        memcpy(block + n_block, p->again, n_again);
        n_block += n_again;
    }
    for (bool began = false; !began;) {
        ssize_t n = recv(fd, in, sizeof in - 1, 0);
        if (n <= 0) _exit(0);
        in[n] = 0;
        bool asks = strstr(in, "GETRANGE") != NULL;
        if (!p->answers_first || asks) {
            began = true;
        } else if (strstr(in, "CLUSTER")) {
            static const char no[] = "-ERR This instance has cluster support disabled\r\n";
            push(fd, no, sizeof no - 1);
        }
        if (p->answers_first && !asks)
            for (const char *at = in; (at = strstr(at, "EXISTS\r")); at++) push(fd, ":1\r\n", 4);
    }
    push(fd, p->head, strlen(p->head));
    for (uint64_t sent = 0; n_block && sent < p->at_most; sent += n_block) push(fd, block, n_block);
    while (recv(fd, in, sizeof in, 0) > 0) {
    }
    _exit(0);
}

static pid_t start_peer(const peer *p, uint32_t *port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    KIT_REQUIRE(fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0 && listen(fd, 256) == 0);
    KIT_REQUIRE(getsockname(fd, (struct sockaddr *)&a, &n) == 0);
    *port = ntohs(a.sin_port);
    pid_t pid = fork();
    KIT_REQUIRE(pid >= 0);
    if (pid) {
        close(fd);
        return pid;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)setpgid(0, 0);
    signal(SIGCHLD, SIG_IGN);
    for (;;) {
        int client = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
        if (client >= 0 && fork() == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            talk(p, client);
        }
        if (client >= 0) close(client);
    }
}

/* ------------------------------------------------------------------ memory */

/* KiB; of /proc/self/status. */
static uint64_t status_of(const char *name)
{
    char line[256];
    unsigned long long value = 0;
    FILE *f = fopen("/proc/self/status", "r");
    KIT_REQUIRE(f);
    while (fgets(line, sizeof line, f))
        if (strncmp(line, name, strlen(name)) == 0) (void)sscanf(line + strlen(name), ": %llu", &value);
    fclose(f);
    return value;
}

static void reset_peak(void)
{
    int fd = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, "5", 1) != 1) {
        printf("skipped: /proc/self/clear_refs cannot be written\n");
        exit(77);
    }
    close(fd);
}

static void never(void *ctx, uint32_t page, const void *bytes)
{
    (void)ctx;
    (void)page;
    (void)bytes;
    fail_msg("a page came");
}

static void *run_loads(void *arg)
{
    quire_namespace *ns = (quire_namespace *)arg;
    uint32_t tokens[64 * PAGES], n = 1;
    for (uint64_t text = 0; text < 6; text++) {
        kit_raw_tokens(tokens, text, PAGES);
        quire_prompt p = {.size = sizeof p, .tokens = tokens, .n_tokens = 64 * PAGES};
        KIT_REQUIRE(!quire_namespace_load_raw(ns, &p, 400, never, NULL, &n));
        KIT_REQUIRE(n == 0);
    }
    return NULL;
}

/* The most that the process held above what it had before, in KiB. */
static uint64_t measure(const peer *p, uint64_t *n_connections)
{
    quire_store_remote remote = {.size = sizeof remote, .host = "127.0.0.1", .connections = CONNECTIONS};
    pthread_t threads[CONNECTIONS];
    kit_raw raw;
    pid_t pid = start_peer(p, &remote.port);
    (void)malloc_trim(0); /* what an earlier peer made the process take is to be taken again */
    reset_peak();
    uint64_t before = status_of("VmRSS");
    quire_store *store = kit_open(NULL, 0, &remote);
    kit_raw_begin(&raw, store, PAGE);
    for (uint32_t i = 0; i < CONNECTIONS; i++)
        KIT_REQUIRE(!pthread_create(&threads[i], NULL, run_loads, raw.ns));
    for (uint32_t i = 0; i < CONNECTIONS; i++) KIT_REQUIRE(!pthread_join(threads[i], NULL));
    uint64_t peak = status_of("VmHWM");
    quire_store_stats s = kit_stats(store);
    kit_raw_end(&raw);
    quire_store_close(store);
    kill(-pid, SIGKILL);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    KIT_REQUIRE(s.reconnects > 0);
    *n_connections = s.reconnects;
    return peak > before ? peak - before : 0;
}

/* ------------------------------------------------------------------- tests */

#define SLOT_RANGE \
    "*3\r\n:0\r\n:16383\r\n*3\r\n$9\r\n127.0.0.1\r\n:1\r\n$40\r\n0123456789012345678901234567890123456789\r\n"

/* Eight pages of 100 kB are read at a time, and lines of at most 128 KiB; the rest is the threads' stacks and what OpenSSL takes. */
#define BOUND_KIB (16u << 10)

static void hostile_peers(void **state)
{
    (void)state;
    static const peer peers[] = {
        {"a value of a gigabyte", "$1000000000\r\n", "zzzzzzzz", 1000000000, false},
        {"a value of a gigabyte instead of a page", "$1000000000\r\n", "zzzzzzzz", 1000000000, true},
        {"a line without an end", "+", "zzzzzzzz", 1000000000, false},
        {"a line without an end instead of a page", "+", "zzzzzzzz", 1000000000, true},
        {"an array of a billion numbers", "*1000000000\r\n", ":1\r\n", 1000000000, false},
        {"an array of a billion values instead of a page", "*1000000000\r\n", "$8\r\nzzzzzzzz\r\n",
         1000000000, true},
        {"arrays in arrays", "", "*1\r\n", 1000000000, false},
        {"arrays in arrays instead of a page", "", "*1\r\n", 1000000000, true},
        {"slots without an end", "*1000000000\r\n", SLOT_RANGE, 1000000000, false},
        {"answers to nothing", "", "+OK\r\n", 1000000000, true},
    };
    uint64_t worst = 0;
    for (size_t i = 0; i < sizeof peers / sizeof *peers; i++) {
        uint64_t n_connections, kib = measure(&peers[i], &n_connections);
        print_message("%s: %.1f MB, %llu connections\n", peers[i].name, (double)kib * 1024 / 1e6,
                      (unsigned long long)n_connections);
        if (kib > worst) worst = kib;
        assert_in_range(kib, 0, BOUND_KIB);
    }
    print_message("at most %.1f MB\n", (double)worst * 1024 / 1e6);
}

/* The measure itself: memory that is taken and given back is seen. */
static void measure_works(void **state)
{
    (void)state;
    const size_t n = 64u << 20;
    reset_peak();
    uint64_t before = status_of("VmRSS");
    volatile char *memory = (volatile char *)malloc(n);
    assert_non_null((const void *)(uintptr_t)memory);
    for (size_t i = 0; i < n; i += 4096) memory[i] = 1;
    free((void *)(uintptr_t)memory);
    assert_in_range(status_of("VmHWM") - before, 60u << 10, 80u << 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(measure_works), cmocka_unit_test(hostile_peers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
