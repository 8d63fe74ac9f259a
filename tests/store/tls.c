/* SPDX-License-Identifier: MIT */
/* Values of many sizes over TLS from a real server: no sleep may be longer than the machine makes it. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store/conn.h"
#include "store/kit/servers.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#define SIZES 40
#define MOST 16u
#define STALL (50 * QUIRE_MS)
#define TRIES 4

static quire_transport sockets; /* what the counting one is made of */
static uint64_t longest;        /* sleep */
static uint32_t n_blind;        /* sleeps while decrypted bytes were waiting */

static void counting_poll(void *ctx, quire_link_poll *polls, uint32_t n, uint64_t ns)
{
    bool hidden = false;
    for (uint32_t i = 0; i < n; i++) hidden |= sockets.pending(polls[i].link);
    uint64_t before = quire_now();
    sockets.poll(ctx, polls, n, ns);
    uint64_t took = quire_now() - before;
    n_blind += hidden && ns;
    if (took > longest) longest = took;
}

/* How late this machine and the server are: a thread that asks the server for something small, again and again. */
typedef struct sentinel {
    pthread_t thread;
    atomic_bool stop;
    quire_lane *lane;
    _Atomic uint64_t worst;
} sentinel;

static void *watch(void *arg)
{
    sentinel *s = (sentinel *)arg;
    while (!s->stop) {
        quire_call call = {.verb = QUIRE_EXISTS};
        uint64_t before = quire_now();
        usleep(2000);
        quire_lane_run(s->lane, &call, 1, quire_deadline(20000));
        uint64_t late = quire_now() - before - 2 * QUIRE_MS;
        if (late > s->worst) s->worst = late;
    }
    return NULL;
}

typedef struct arrival {
    const uint8_t *expected;
    size_t n;
    bool whole;
} arrival;

static void on_value(void *ctx, const uint8_t *bytes, size_t n)
{
    arrival *a = (arrival *)ctx;
    a->whole = n == a->n && memcmp(bytes, a->expected, n) == 0;
}

static void run(quire_lane *lane, quire_verb verb, const uint8_t *value, size_t bytes, uint32_t n)
{
    quire_call calls[MOST];
    arrival arrivals[MOST];
    for (uint32_t i = 0; i < n; i++) {
        arrivals[i] = (arrival){value + i, bytes, false}; /* each is shifted by one */
        calls[i] = (quire_call){.verb = verb,
                                .object = {{(uint8_t)i, 77}},
                                .value = value + i,
                                .bytes = bytes,
                                .on_value = on_value,
                                .ctx = &arrivals[i]};
    }
    quire_lane_run(lane, calls, n, quire_deadline(60000));
    for (uint32_t i = 0; i < n; i++) {
        if (calls[i].miss) fail_msg("%s", quire_miss_name(calls[i].miss));
        if (verb == QUIRE_GET) assert_true(arrivals[i].whole);
    }
}

static void sizes(void **state)
{
    (void)state;
    kit_server server;
    char *dir = kit_directory(NULL), ca[512], cert[512], key[512];
    kit_certificates(dir);
    snprintf(ca, sizeof ca, "%s/ca.pem", dir);
    snprintf(cert, sizeof cert, "%s/server.pem", dir);
    snprintf(key, sizeof key, "%s/server.key", dir);
    const char *args[] = {"--tls-port",
                          "@port",
                          "--tls-cert-file",
                          cert,
                          "--tls-key-file",
                          key,
                          "--tls-ca-cert-file",
                          ca,
                          "--tls-auth-clients",
                          "no",
                          NULL};
    kit_server_start(&server, args);
    quire_store_remote o = kit_remote(server.port);
    o.tls = 1;
    o.tls_ca = ca;
    o.in_flight_bytes = 512u << 20;
    o.stall_ms = 10000;
    quire_allocator a = quire_mem_allocator(NULL);
    static quire_counters counters;
    const char *wrong;
    quire_remote *remote, *other;
    assert_true(quire_sockets_create(&sockets, &o, &a, &wrong) && !wrong);
    quire_transport counting = sockets;
    counting.poll = counting_poll;
    assert_int_equal(quire_remote_create(&remote, &o, &a, &counters, NULL, &counting, NULL, 0), QUIRE_OK);
    assert_int_equal(quire_remote_create(&other, &o, &a, &counters, NULL, NULL, NULL, 0), QUIRE_OK);
    atomic_bool stop = false;
    quire_lane *lane = quire_lane_create(remote, &stop), *idle = quire_lane_create(other, &stop);
    size_t most = (16u << 20) + MOST;
    uint8_t *value = (uint8_t *)malloc(most);
    for (size_t i = 0; i < most; i++) value[i] = (uint8_t)(i * 2654435761u >> 13);
    uint32_t n_stalls = 0, n_loads = 0;
    uint64_t worst = 0;
    for (int i = 0; i < SIZES; i++) {
        size_t bytes = (size_t)(1024.0 * pow(16384.0, i / (SIZES - 1.0)));
        uint32_t n_stored = bytes > 4u << 20 ? 4 : MOST; /* the machine's memory is small */
        run(lane, QUIRE_SET, value, bytes, n_stored);
        for (uint32_t n = 1; n <= n_stored; n += 1 + n / 2, n_loads++) {
            uint64_t excess = UINT64_MAX;
            /* The sentinel does not see all lateness of the server: only what comes every time is ours. */
            for (int t = 0; t < TRIES && excess > STALL; t++) {
                sentinel s = {.lane = idle};
                assert_int_equal(pthread_create(&s.thread, NULL, watch, &s), 0);
                longest = 0;
                run(lane, QUIRE_GET, value, bytes, n);
                s.stop = true;
                pthread_join(s.thread, NULL);
                uint64_t over = longest > s.worst ? longest - s.worst : 0;
                if (over < excess) excess = over;
            }
            n_stalls += excess > STALL;
            if (excess > worst) worst = excess;
        }
    }
    print_message(
        "%u loads in %d sizes: %u stalls, longest sleep %u ms beyond the machine's, %u with bytes waiting\n",
        n_loads, SIZES, n_stalls, (unsigned)(worst / QUIRE_MS), n_blind);
    assert_int_equal(n_stalls, 0);
    assert_int_equal(n_blind, 0);
    free(value);
    quire_lane_destroy(lane);
    quire_lane_destroy(idle);
    quire_remote_destroy(remote);
    quire_remote_destroy(other);
    quire_sockets_destroy(&sockets);
    kit_server_end(&server);
    kit_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(sizes)};
    kit_need_redis();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
