/* SPDX-License-Identifier: MIT */
/* What the store makes of the remote tier: one fetch for many loads, chains that live on, damage that is replaced. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store/kit/raw_kit.h"
#include "store/kit/servers.h"
#include "store/namespace.h"
#include "store/store.h"

#include <string.h>
#include <unistd.h>

#define THREADS 6
#define PAGES 12u
#define BYTES 3000u

static uint64_t n_calls(uint32_t port, const char *command)
{
    char *info = kit_command(port, "INFO commandstats"), name[64];
    (void)snprintf(name, sizeof name, "cmdstat_%s:calls=", command);
    const char *at = strstr(info, name);
    uint64_t n = at ? strtoull(at + strlen(name), NULL, 10) : 0;
    free(info);
    return n;
}

static void key_name(char name[70], const quire_key *object)
{
    int n = sprintf(name, "q1:");
    for (int i = 0; i < 32; i++) n += sprintf(name + n, "%02x", object->byte[i]);
}

/* ---------------------------------------------------------------- one fetch */

#define PATIENCE_MS 60000 /* of loads that take seconds: a busy machine is not a fault */

typedef struct loader {
    pthread_t thread;
    kit_raw *raw;
    kit_scene *scene;
    uint64_t sight;
    uint32_t n;
} loader;

static void *run_raw(void *arg)
{
    loader *l = (loader *)arg;
    l->n = kit_raw_load(l->raw, 7, PAGES, PATIENCE_MS);
    return NULL;
}

static void *run_seq(void *arg)
{
    loader *l = (loader *)arg;
    quire_seq *loaded = kit_load(l->scene, PAGES * 64, PATIENCE_MS);
    l->n = quire_seq_length(loaded) / 64;
    KIT_REQUIRE(l->n < PAGES || kit_sight(l->scene, loaded) == l->sight);
    quire_seq_destroy(loaded);
    return NULL;
}

static void run_all(loader *l, void *(*run)(void *))
{
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&l[i].thread, NULL, run, &l[i]), 0);
    for (int i = 0; i < THREADS; i++) pthread_join(l[i].thread, NULL);
    for (int i = 0; i < THREADS; i++) assert_int_equal(l[i].n, PAGES);
}

/* Loads of the same pages at the same time. Bytes are the same for all; the server is asked for each page once. */
static void one_fetch(void **state)
{
    (void)state;
    kit_server server;
    kit_proxy proxy;
    loader l[THREADS];
    kit_server_start(&server, NULL);
    kit_proxy_start(&proxy, server.port);
    quire_store_remote remote = kit_remote(proxy.port);
    remote.connections = THREADS + 2;
    remote.stall_ms = PATIENCE_MS;
    quire_store *store = kit_open(NULL, 0, &remote);
    kit_raw raw;
    kit_scene s;
    kit_raw_begin(&raw, store, BYTES);
    kit_raw_save(&raw, 7, PAGES);
    kit_scene_begin(&s, store, "f16", 5);
    quire_seq *computed = kit_compute(&s, PAGES * 64, true);
    uint64_t sight = kit_sight(&s, computed);
    quire_seq_destroy(computed);
    assert_int_equal(quire_store_flush(store, 20000), QUIRE_OK);
    proxy.latency_ms = 1000; /* so that they meet, on a busy machine too */
    for (int i = 0; i < THREADS; i++) l[i] = (loader){.raw = &raw, .scene = &s, .sight = sight};
    uint64_t before = n_calls(server.port, "getrange");
    run_all(l, run_raw);
    uint64_t fetched = n_calls(server.port, "getrange") - before,
             shared = quire_counted(&store->counters.shared);
    print_message("raw: %u loads of %u pages, %u fetched, %u shared\n", THREADS, PAGES, (unsigned)fetched,
                  (unsigned)shared);
    assert_int_equal(fetched + shared, THREADS * PAGES);
    assert_true(fetched <= PAGES * 2); /* those that came late fetch again */
    before = n_calls(server.port, "getrange");
    run_all(l, run_seq);
    fetched = n_calls(server.port, "getrange") - before;
    print_message("sequences: %u fetched\n", (unsigned)fetched);
    assert_true(fetched <= PAGES * 2 * s.ns->n_groups);
    kit_raw_end(&raw);
    kit_scene_end(&s);
    quire_store_close(store);
    kit_proxy_end(&proxy);
    kit_server_end(&server);
}

/* A load that others follow gives up at its deadline: they still come to their pages. */
static void leader_gives_up(void **state)
{
    (void)state;
    kit_server server;
    kit_proxy proxy;
    kit_server_start(&server, NULL);
    kit_proxy_start(&proxy, server.port);
    quire_store_remote remote = kit_remote(proxy.port);
    remote.stall_ms = 20000;
    remote.connections = 2;
    quire_store *store = kit_open(NULL, 0, &remote);
    kit_raw raw;
    kit_raw_begin(&raw, store, BYTES);
    kit_raw_save(&raw, 7, PAGES);
    assert_int_equal(quire_store_flush(store, 20000), QUIRE_OK);
    proxy.latency_ms = 200;
    for (int i = 0; i < 5; i++) {
        loader l = {.raw = &raw};
        assert_int_equal(pthread_create(&l.thread, NULL, run_raw, &l), 0);
        usleep(20000);
        (void)kit_raw_load(&raw, 7, PAGES, 100 + 100 * (uint32_t)i);
        pthread_join(l.thread, NULL);
        assert_int_equal(l.n, PAGES);
    }
    kit_raw_end(&raw);
    quire_store_close(store);
    kit_proxy_end(&proxy);
    kit_server_end(&server);
}

/* ------------------------------------------------------------------- chains */

static int ttl_of(uint32_t port, const quire_key *object)
{
    char name[70], *text;
    key_name(name, object);
    text = kit_command(port, "TTL %s", name);
    int ttl = atoi(text);
    free(text);
    return ttl;
}

static void shorten(uint32_t port, const quire_key *objects, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        char name[70];
        key_name(name, &objects[i]);
        free(kit_command(port, "EXPIRE %s 50", name));
    }
}

/* Whoever uses a chain renews the life of all of it: by loading from the remote, from the disk, and by saving its continuation. */
static void chains_live_on(void **state)
{
    (void)state;
    kit_server server;
    char *dir = kit_directory(NULL);
    quire_key objects[PAGES];
    kit_server_start(&server, NULL);
    for (int how = 0; how < 3; how++) {
        quire_store_remote remote = kit_remote(server.port);
        kit_raw raw;
        remote.ttl_seconds = 1000;
        quire_store *store = kit_open(how == 1 ? dir : NULL, KIT_CAP, &remote);
        kit_raw_begin(&raw, store, 1000);
        kit_raw_save(&raw, (uint64_t)how, PAGES - 1);
        assert_int_equal(quire_store_flush(store, 20000), QUIRE_OK);
        kit_raw_objects(&raw, (uint64_t)how, PAGES, NULL, objects);
        for (uint32_t i = 0; i < PAGES - 1; i++) assert_true(ttl_of(server.port, &objects[i]) > 900);
        kit_raw_end(&raw);
        quire_store_close(store); /* another process forgets what this one has renewed */
        shorten(server.port, objects, PAGES - 1);
        store = kit_open(how == 1 ? dir : NULL, KIT_CAP, &remote);
        kit_raw_begin(&raw, store, 1000);
        if (how < 2)
            assert_int_equal(kit_raw_load(&raw, (uint64_t)how, PAGES - 1, 5000), PAGES - 1);
        else
            kit_raw_save(&raw, (uint64_t)how, PAGES); /* the last is new */
        assert_int_equal(quire_store_flush(store, 20000), QUIRE_OK);
        for (uint32_t i = 0; i < PAGES - 1; i++) assert_true(ttl_of(server.port, &objects[i]) > 900);
        uint64_t before = n_calls(server.port, "expire");
        (void)kit_raw_load(&raw, (uint64_t)how, PAGES - 1, 5000); /* again, at once: not renewed again */
        assert_int_equal(quire_store_flush(store, 20000), QUIRE_OK);
        assert_int_equal(n_calls(server.port, "expire"), before);
        kit_raw_end(&raw);
        quire_store_close(store);
    }
    kit_server_end(&server);
    kit_remove(dir);
}

/* ------------------------------------------------------------------- damage */

/* A damaged object is replaced by the next save, in the same namespace too; what is good by now is not removed. */
static void damage_is_replaced(void **state)
{
    (void)state;
    kit_server server;
    quire_key objects[PAGES];
    char name[70];
    kit_server_start(&server, NULL);
    quire_store_remote remote = kit_remote(server.port);
    quire_store *store = kit_open(NULL, 0, &remote);
    kit_raw raw;
    kit_raw_begin(&raw, store, 1000);
    kit_raw_save(&raw, 7, PAGES);
    assert_int_equal(quire_store_flush(store, 20000), QUIRE_OK);
    kit_raw_objects(&raw, 7, PAGES, NULL, objects);
    key_name(name, &objects[3]);
    free(kit_command(server.port, "SETRANGE %s 500 damage", name));
    assert_int_equal(kit_raw_load(&raw, 7, PAGES, 5000), 3);
    kit_raw_save(&raw, 7, PAGES); /* the engine has computed the rest */
    assert_int_equal(quire_store_flush(store, 20000), QUIRE_OK);
    assert_int_equal(kit_raw_load(&raw, 7, PAGES, 5000), PAGES);
    quire_store_stats stats = kit_stats(store);
    assert_int_equal(stats.removed[1], 1);
    assert_int_equal(stats.misses[QUIRE_MISS_SEAL], 1);
    /* Another server was faster: the object that was found damaged is good when it shall be removed. */
    quire_key keys[PAGES];
    kit_raw_objects(&raw, 7, PAGES, keys, objects);
    quire_object_id id = quire_namespace_object(raw.ns, keys, &objects[3], 0, 3);
    quire_store_discard(store, &id, &raw.ns->seal_key, QUIRE_REMOTE);
    assert_int_equal(quire_store_flush(store, 20000), QUIRE_OK);
    assert_int_equal(kit_stats(store).removed[1], 1);
    assert_int_equal(kit_raw_load(&raw, 7, PAGES, 5000), PAGES);
    kit_raw_end(&raw);
    quire_store_close(store);
    kit_server_end(&server);
}

/* ------------------------------------------------------------ in every tier */

static uint32_t n_stored(const kit_raw *raw, uint32_t n_pages, uint32_t timeout_ms)
{
    uint32_t tokens[PAGES * 64], n = 0;
    quire_chain *chain;
    kit_raw_tokens(tokens, 7, n_pages);
    assert_int_equal(quire_chain_create(&chain, raw->ns), QUIRE_OK);
    assert_int_equal(quire_chain_append(chain, tokens, n_pages * 64, NULL, 0, 0), QUIRE_OK);
    assert_int_equal(quire_chain_stored(chain, timeout_ms, &n), QUIRE_OK);
    quire_chain_destroy(chain);
    return n / 64;
}

/* What the remote has lost, or never got, is not taken as stored because the disk has it. */
static void stored_in_every_tier(void **state)
{
    (void)state;
    char name[70], *directory = kit_directory(NULL);
    quire_key objects[PAGES];
    kit_server server;
    kit_proxy proxy;
    kit_raw raw;
    kit_server_start(&server, NULL);
    kit_proxy_start(&proxy, server.port);
    quire_store_remote remote = kit_remote(proxy.port);
    remote.stall_ms = 20000;
    quire_store *store = kit_open(directory, 64 << 20, &remote);
    kit_raw_begin(&raw, store, BYTES);
    assert_int_equal(n_stored(&raw, PAGES, 5000), 0);
    kit_raw_save(&raw, 7, PAGES - 2);
    assert_int_equal(quire_store_flush(store, 20000), QUIRE_OK);
    assert_int_equal(n_stored(&raw, PAGES, 5000), PAGES - 2);
    kit_raw_objects(&raw, 7, PAGES, NULL, objects);
    key_name(name, &objects[3]);
    free(kit_command(server.port, "DEL %s", name));
    assert_int_equal(n_stored(&raw, PAGES, 5000), 3);
    assert_int_equal(n_stored(&raw, PAGES, 0), PAGES - 2); /* the disk alone */
    proxy.latency_ms = 1500;                               /* others are being sent, and might be that one */
    kit_raw_save(&raw, 8, 4);
    assert_int_equal(n_stored(&raw, PAGES, 20000), PAGES - 2);
    proxy.latency_ms = 0;
    assert_int_equal(quire_store_flush(store, 20000), QUIRE_OK);
    assert_int_equal(n_stored(&raw, PAGES, 5000), 3);
    free(kit_command(server.port, "FLUSHALL"));
    assert_int_equal(n_stored(&raw, PAGES, 5000), 0);
    assert_int_equal(kit_raw_load(&raw, 7, PAGES, 5000), PAGES - 2); /* from the disk */
    kit_raw_save(&raw, 7, PAGES - 2);
    assert_int_equal(quire_store_flush(store, 20000), QUIRE_OK);
    assert_int_equal(n_stored(&raw, PAGES, 5000), PAGES - 2);
    kit_server_kill(&server); /* a remote that is gone wants nothing */
    assert_int_equal(n_stored(&raw, PAGES, 500), PAGES - 2);
    quire_chain *chain;
    assert_int_equal(quire_chain_create(&chain, raw.ns), QUIRE_OK);
    assert_int_equal(quire_chain_stored(chain, 0, NULL), QUIRE_EINVAL);
    assert_int_equal(quire_chain_stored(NULL, 0, &(uint32_t){0}), QUIRE_EINVAL);
    quire_chain_destroy(chain);
    kit_raw_end(&raw);
    quire_store_close(store);
    kit_proxy_end(&proxy);
    /* Without a directory the remote decides. */
    kit_server_end(&server);
    kit_server_start(&server, NULL);
    remote = kit_remote(server.port);
    store = kit_open(NULL, 0, &remote);
    kit_raw_begin(&raw, store, BYTES);
    kit_raw_save(&raw, 7, 5);
    assert_int_equal(quire_store_flush(store, 20000), QUIRE_OK);
    assert_int_equal(n_stored(&raw, PAGES, 5000), 5);
    kit_raw_end(&raw);
    quire_store_close(store);
    kit_server_end(&server);
    kit_remove(directory);
}

/* A program that ends does not wait for what a slow remote has not taken yet, but the disk gets all of it. */
static void ends_in_time(void **state)
{
    (void)state;
    char *directory = kit_directory(NULL);
    kit_server server;
    kit_proxy proxy;
    kit_raw raw;
    kit_server_start(&server, NULL);
    kit_proxy_start(&proxy, server.port);
    quire_store_remote remote = kit_remote(proxy.port);
    remote.stall_ms = remote.connect_ms = 60000;
    quire_store *store = kit_open(directory, 64 << 20, &remote);
    kit_raw_begin(&raw, store, BYTES);
    kit_raw_save(&raw, 7, 2);
    assert_int_equal(quire_store_flush(store, 20000), QUIRE_OK);
    atomic_store(&proxy.is_silent, true);
    kit_raw_save(&raw, 8, PAGES);
    assert_int_equal(quire_store_flush(store, 300), QUIRE_EIO);
    uint64_t before = quire_now();
    assert_int_equal(quire_store_stop_remote(NULL), QUIRE_EINVAL);
    assert_int_equal(quire_store_stop_remote(store), QUIRE_OK);
    assert_int_equal(kit_raw_load(&raw, 8, PAGES, 60000), PAGES); /* from the disk */
    assert_int_equal(n_stored(&raw, 2, 60000), 2);                /* a remote that is gone wants nothing */
    kit_raw_end(&raw);
    quire_store_close(store);
    assert_true(quire_now() - before < 40 * QUIRE_SECOND); /* the remote would be waited for 60 seconds */
    kit_proxy_end(&proxy);
    store = kit_open(directory, 0, NULL);
    kit_raw_begin(&raw, store, BYTES);
    assert_int_equal(kit_raw_load(&raw, 8, PAGES, 5000), PAGES);
    kit_raw_end(&raw);
    quire_store_close(store);
    kit_server_end(&server);
    kit_remove(directory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_fetch),
        cmocka_unit_test(leader_gives_up),
        cmocka_unit_test(chains_live_on),
        cmocka_unit_test(damage_is_replaced),
        cmocka_unit_test(stored_in_every_tier),
        cmocka_unit_test(ends_in_time),
    };
    kit_need_redis();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
