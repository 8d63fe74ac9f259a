/* SPDX-License-Identifier: MIT */
/* Faults of the remote under load: every load ends by its deadline, and the store is back soon after the fault's end. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store/base.h"
#include "store/kit/servers.h"

#include <unistd.h>

#define TOKENS 384u
#define TIMEOUT_MS 250u
#define THREADS 3

static kit_server server;
static kit_proxy proxy;

/* How late this machine wakes a sleeping thread: that is not the store's fault. */
typedef struct watch {
    pthread_t thread;
    atomic_bool stop;
    _Atomic uint64_t worst;
} watch;

static void *run_watch(void *arg)
{
    watch *w = (watch *)arg;
    while (!w->stop) {
        uint64_t before = quire_now();
        usleep(2000);
        uint64_t late = quire_now() - before - 2 * QUIRE_MS;
        if (late > w->worst && late < QUIRE_SECOND * 100) w->worst = late;
    }
    return NULL;
}

typedef struct client {
    pthread_t thread;
    quire_store *store;
    atomic_bool *stop;
    uint64_t seed, worst; /* most that a load took beyond its deadline, ns */
    uint32_t n_loads, n_whole;
    _Atomic uint64_t last_whole;
} client;

static void begin_scene(kit_scene *s, quire_store *store, uint64_t seed)
{
    quire_geometry g = kit_geometry(4, 128, 128);
    kit_scene_begin_with(s, store, &g, "f16", seed, 0, 0);
}

static void *run_client(void *arg)
{
    client *c = (client *)arg;
    kit_scene s;
    begin_scene(&s, c->store, c->seed);
    quire_seq *computed = kit_compute(&s, TOKENS, false);
    uint64_t sight = kit_sight(&s, computed);
    for (uint32_t i = 0; !*c->stop; i++) {
        uint64_t before = quire_now();
        quire_seq *loaded = kit_load(&s, TOKENS, TIMEOUT_MS);
        uint64_t took = quire_now() - before;
        if (took > TIMEOUT_MS * QUIRE_MS && took - TIMEOUT_MS * QUIRE_MS > c->worst)
            c->worst = took - TIMEOUT_MS * QUIRE_MS;
        c->n_loads++;
        if (quire_seq_length(loaded) == TOKENS) {
            KIT_REQUIRE(kit_sight(&s, loaded) == sight);
            c->n_whole++;
            c->last_whole = quire_now();
        }
        quire_seq_destroy(loaded);
        quire_prompt p = kit_prompt(&s, TOKENS);
        if (i % 3 ==
            0) { /* a new namespace has not seen the pages yet: they are saved again if they are gone */
            quire_identity id = kit_identity(1);
            quire_namespace_destroy(s.ns);
            KIT_REQUIRE(!quire_namespace_create(&s.ns, c->store, &id, s.plan, &s.ring));
            KIT_REQUIRE(!quire_namespace_save(s.ns, &p, computed));
        }
        usleep(5000);
    }
    quire_seq_destroy(computed);
    kit_scene_end(&s);
    return NULL;
}

static void no_fault(void) {}

static void under_fault(const char *name, void (*begin_fault)(void), void (*end_fault)(void),
                        uint32_t seconds_tenth)
{
    atomic_bool stop = false;
    watch w = {.stop = false};
    client c[THREADS];
    quire_store_remote remote = kit_remote(proxy.port);
    quire_store *store = kit_open(NULL, 0, &remote);
    pthread_create(&w.thread, NULL, run_watch, &w);
    for (int i = 0; i < THREADS; i++) {
        c[i] = (client){.store = store, .stop = &stop, .seed = 50 + (uint64_t)i};
        pthread_create(&c[i].thread, NULL, run_client, &c[i]);
    }
    for (int i = 0; i < THREADS; i++) /* everybody hits */
        for (int t = 0; !c[i].last_whole; t++) {
            if (t == 3000) fail_msg("no whole load before the fault");
            usleep(10000);
        }
    begin_fault();
    usleep(seconds_tenth * 100000);
    end_fault();
    uint64_t over = quire_now(), slowest = 0;
    for (int i = 0; i < THREADS; i++) {
        while (c[i].last_whole < over && quire_now() - over < 20 * QUIRE_SECOND) usleep(10000);
        uint64_t back = quire_now() - over;
        if (back > slowest) slowest = back;
    }
    stop = true;
    uint64_t worst = 0;
    uint32_t n = 0, n_whole = 0;
    for (int i = 0; i < THREADS; i++) {
        pthread_join(c[i].thread, NULL);
        if (c[i].worst > worst) worst = c[i].worst;
        n += c[i].n_loads;
        n_whole += c[i].n_whole;
    }
    w.stop = true;
    pthread_join(w.thread, NULL);
    quire_store_stats stats = kit_stats(store);
    print_message(
        "%s: %u loads, %u whole; latest %u ms after its deadline (the machine: %u ms); back after %u ms; breaks %u\n",
        name, n, n_whole, (unsigned)(worst / QUIRE_MS), (unsigned)(w.worst / QUIRE_MS),
        (unsigned)(slowest / QUIRE_MS), (unsigned)stats.breaks);
    assert_true(worst <= 100 * QUIRE_MS + 3 * w.worst);
    assert_true(slowest <= 5 * QUIRE_SECOND);
    quire_store_close(store);
}

static void kill_server(void)
{
    kit_server_kill(&server);
}

static void restart_server(void)
{
    kit_server_restart(&server);
}

static void add_latency(void)
{
    proxy.latency_ms = 2000;
}

static void cut_objects(void)
{
    proxy.cut_after = 100000;
}

static void trickle(void)
{
    proxy.trickle_ms = 20;
}

static void be_silent(void)
{
    proxy.is_silent = true;
}

static void refuse(void)
{
    proxy.refuses = true;
}

static void all_well(void)
{
    kit_proxy_reset(&proxy);
}

static void change_password(void)
{
    free(kit_command(server.port, "CONFIG SET requirepass other"));
    proxy.refuses = true; /* all connect anew */
    usleep(60000);
    proxy.refuses = false;
}

static void change_password_back(void)
{
    valkeyContext *c = kit_connect(server.port);
    freeReplyObject(valkeyCommand(c, "AUTH other"));
    freeReplyObject(valkeyCommand(c, "CONFIG SET requirepass %s", ""));
    valkeyFree(c);
}

#define FAULT(function, title, begin, end, tenths) \
    static void function(void **state)             \
    {                                              \
        (void)state;                               \
        under_fault(title, begin, end, tenths);    \
    }

FAULT(none, "no fault", no_fault, no_fault, 5)
FAULT(killed, "server killed and restarted", kill_server, restart_server, 15)
FAULT(latency, "2 s latency", add_latency, all_well, 25)
FAULT(cut, "connection cut in mid-object", cut_objects, all_well, 15)
FAULT(loris, "one byte every 20 ms", trickle, all_well, 25)
FAULT(silent, "silence", be_silent, all_well, 25)
FAULT(refused, "connections refused", refuse, all_well, 20)
FAULT(password, "password changed", change_password, change_password_back, 15)

/* Peers that are no servers, or bad ones: nothing but misses, by the deadline. What memory they cost: store_hostile. */
static void strangers(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t n_zeros;
    } peers[] = {
        {"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", 0},
        {"$1000000000\r\n", 1000000000},
        {"*1000000000\r\n", 0},
        {"*2\r\n*2\r\n*2\r\n*2\r\n*2\r\n*2\r\n*2\r\n*2\r\n*2\r\n*2\r\n*2\r\n", 0},
        {"+OK\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n", 0},
        {":1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n", 0},
        {"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:1\r\n", 0},
        {"*1\r\n*3\r\n:-5\r\n:99999999\r\n*2\r\n$0\r\n\r\n:70000\r\n:1\r\n:1\r\n", 0},
        {"\x16\x03\x01\x02\x00\x01", 0},
        {"-MOVED 1 127.0.0.1:1\r\n-MOVED 1 nowhere\r\n-ASK\r\n-MOVED\r\n-ASK 5 :\r\n-MOVED 99999 127.0.0.1:99999\r\n",
         0},
        {"", 0},
    };
    for (size_t i = 0; i < sizeof peers / sizeof *peers; i++) {
        kit_peer peer;
        kit_scene s;
        kit_peer_start(&peer, peers[i].text, peers[i].n_zeros);
        quire_store_remote remote = kit_remote(peer.port);
        quire_store *store = kit_open(NULL, 0, &remote);
        begin_scene(&s, store, 60);
        quire_seq *computed = kit_compute(&s, 64, true);
        for (int j = 0; j < 3; j++) {
            uint64_t before = quire_now();
            quire_seq *loaded = kit_load(&s, 64, 100);
            assert_int_equal(quire_seq_length(loaded), 0);
            assert_true(quire_now() - before < 2 * QUIRE_SECOND);
            quire_seq_destroy(loaded);
        }
        quire_seq_destroy(computed);
        kit_scene_end(&s);
        quire_store_close(store);
        kit_peer_end(&peer);
    }
}

static int start(void **state)
{
    (void)state;
    kit_server_start(&server, NULL);
    kit_proxy_start(&proxy, server.port);
    return 0;
}

static int end(void **state)
{
    (void)state;
    kit_proxy_end(&proxy);
    kit_server_end(&server);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(none),    cmocka_unit_test(killed),   cmocka_unit_test(latency),
        cmocka_unit_test(cut),     cmocka_unit_test(loris),    cmocka_unit_test(silent),
        cmocka_unit_test(refused), cmocka_unit_test(password), cmocka_unit_test(strangers),
    };
    kit_need_redis();
    return cmocka_run_group_tests(tests, start, end);
}
