/* SPDX-License-Identifier: MIT */
/* The remote tier: one server, with and without password and TLS; both tiers together; what lies on the server. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store/kit/servers.h"

#include <string.h>
#include <unistd.h>

/* Saves with one store, loads with another one that has nothing but the remote. Returns the tokens that came. */
static uint32_t exchange(const quire_store_remote *remote, quire_store_stats *stats)
{
    kit_scene s;
    quire_store *store = kit_open(NULL, 0, remote);
    kit_scene_begin(&s, store, "k4v4", 1);
    quire_seq *computed = kit_compute(&s, 320, true);
    (void)quire_store_flush(store, 10000);
    uint64_t sight = kit_sight(&s, computed);
    quire_seq_destroy(computed);
    kit_scene_end(&s);
    quire_store_close(store);

    store = kit_open(NULL, 0, remote);
    kit_scene_begin(&s, store, "k4v4", 1);
    quire_seq *loaded = kit_load(&s, 320, 3000);
    uint32_t n = quire_seq_length(loaded);
    if (n == 320) assert_true(sight == kit_sight(&s, loaded));
    quire_seq_destroy(loaded);
    *stats = kit_stats(store);
    kit_scene_end(&s);
    quire_store_close(store);
    return n;
}

static void single(void **state)
{
    (void)state;
    kit_server server;
    quire_store_stats stats = {.size = sizeof stats};
    kit_server_start(&server, NULL);
    quire_store_remote remote = kit_remote(server.port);
    assert_int_equal(exchange(&remote, &stats), 320);
    assert_int_equal(stats.loaded[1], 6); /* 5 pages, and 1 of the window */
    assert_int_equal(stats.nodes, 1);
    char *n = kit_command(server.port, "DBSIZE");
    assert_string_equal(n, "10");
    free(n);
    assert_int_equal(exchange(&remote, &stats), 320); /* all known */
    n = kit_command(server.port, "DBSIZE");
    assert_string_equal(n, "10");
    free(n);
    remote.ttl_seconds = 100;
    free(kit_command(server.port, "FLUSHALL"));
    assert_int_equal(exchange(&remote, &stats), 320);
    char *key = kit_command(server.port, "RANDOMKEY"), *ttl = kit_command(server.port, "TTL %s", key);
    assert_true(atoi(ttl) > 50 && atoi(ttl) <= 100);
    assert_memory_equal(key, "q1:", 3);
    free(key);
    free(ttl);
    kit_server_end(&server);
}

static void passwords(void **state)
{
    (void)state;
    kit_server server;
    quire_store_stats stats = {.size = sizeof stats};
    const char *args[] = {"--requirepass", "secret", NULL};
    kit_server_start(&server, args);
    quire_store_remote remote = kit_remote(server.port);
    remote.password = "secret";
    assert_int_equal(exchange(&remote, &stats), 320);
    remote.password = "wrong";
    assert_int_equal(exchange(&remote, &stats), 0);
    assert_true(stats.misses[QUIRE_MISS_AUTH] > 0);
    remote.password = NULL;
    assert_int_equal(exchange(&remote, &stats), 0);
    assert_true(stats.misses[QUIRE_MISS_AUTH] > 0);
    kit_server_end(&server);

    /* A user that may do what the store needs, and nothing else. */
    const char *acl[] = {"--user",         "pages",   "on",     ">word",   "~q1:*",   "+getrange",
                         "+set",           "+exists", "+del",   "+auth",   "+expire", "+readonly",
                         "+cluster|slots", "+asking", "--user", "default", "off",     NULL};
    kit_server_start(&server, acl);
    remote = kit_remote(server.port);
    remote.user = "pages";
    remote.password = "word";
    assert_int_equal(exchange(&remote, &stats), 320);
    remote.user = "nobody";
    assert_int_equal(exchange(&remote, &stats), 0);
    kit_server_end(&server);
}

static void tls(void **state)
{
    (void)state;
    kit_server server;
    quire_store_stats stats = {.size = sizeof stats};
    char *dir = kit_directory(NULL), ca[512], other[512], cert[512], key[512];
    kit_certificates(dir);
    snprintf(ca, sizeof ca, "%s/ca.pem", dir);
    snprintf(other, sizeof other, "%s/other-ca.pem", dir);
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
                          "optional",
                          NULL};
    kit_server_start(&server, args);
    quire_store_remote remote = kit_remote(server.port);
    remote.tls = 1;
    remote.tls_ca = ca;
    assert_int_equal(exchange(&remote, &stats), 320);
    remote.tls_name = "pages.example";
    assert_int_equal(exchange(&remote, &stats), 320);
    remote.tls_cert = cert; /* a certificate of our own */
    remote.tls_key = key;
    assert_int_equal(exchange(&remote, &stats), 320);
    remote.tls_name = "other.example"; /* not in the certificate */
    assert_int_equal(exchange(&remote, &stats), 0);
    remote.tls_name = NULL;
    remote.tls_ca = other; /* somebody else's */
    assert_int_equal(exchange(&remote, &stats), 0);
    assert_true(stats.misses[QUIRE_MISS_DOWN] + stats.misses[QUIRE_MISS_CONNECT] > 0);
    remote.tls = 0; /* plain talk to a TLS port */
    assert_int_equal(exchange(&remote, &stats), 0);
    kit_server_end(&server);
    kit_remove(dir);
}

/* What the remote gave is on disk afterwards; what the disk has lost comes from the remote. */
static void both_tiers(void **state)
{
    (void)state;
    kit_server server;
    kit_scene s;
    uint32_t n = 0;
    char *dir = kit_directory(NULL), *empty = kit_directory(NULL);
    kit_server_start(&server, NULL);
    quire_store_remote remote = kit_remote(server.port);
    quire_store *store = kit_open(dir, KIT_CAP, &remote);
    kit_scene_begin(&s, store, "r8/r4", 2);
    quire_seq *computed = kit_compute(&s, 256, true);
    uint64_t sight = kit_sight(&s, computed);
    assert_int_equal(quire_store_flush(store, 10000), QUIRE_OK);
    quire_seq_destroy(computed);
    quire_store_stats stats = kit_stats(store);
    assert_int_equal(stats.saved[0], 8);
    assert_int_equal(stats.saved[1], 8);
    kit_scene_end(&s);
    quire_store_close(store);

    store = kit_open(empty, KIT_CAP, &remote);
    kit_scene_begin(&s, store, "r8/r4", 2);
    quire_prompt p = kit_prompt(&s, 256);
    assert_int_equal(quire_namespace_lookup(s.ns, &p, 0, &n), QUIRE_OK);
    assert_int_equal(n, 0);
    assert_int_equal(quire_namespace_lookup(s.ns, &p, 20000, &n), QUIRE_OK);
    assert_int_equal(n, 256);
    quire_seq *loaded = kit_load(&s, 256, 20000);
    assert_true(sight == kit_sight(&s, loaded));
    quire_seq_destroy(loaded);
    assert_int_equal(quire_store_flush(store, 10000), QUIRE_OK);
    assert_int_equal(quire_namespace_lookup(s.ns, &p, 0, &n), QUIRE_OK);
    assert_int_equal(n, 256);
    kit_server_kill(&server); /* the disk is enough now */
    loaded = kit_load(&s, 256, 3000);
    assert_true(sight == kit_sight(&s, loaded));
    quire_seq_destroy(loaded);
    kit_scene_end(&s);
    quire_store_close(store);
    kit_server_end(&server);
    kit_remove(dir);
    kit_remove(empty);
}

/* Nothing of the identity, the tokens or the pages shows on the server. */
static void sealed(void **state)
{
    (void)state;
    kit_server server;
    quire_store_stats stats = {.size = sizeof stats};
    kit_server_start(&server, NULL);
    quire_store_remote remote = kit_remote(server.port);
    (void)exchange(&remote, &stats);
    kit_scene s;
    quire_store *store = kit_open(NULL, 0, &remote);
    kit_scene_begin(&s, store, "k4v4", 1);
    uint8_t root[32];
    quire_namespace_root(s.ns, root);
    quire_seq *computed = kit_compute(&s, 64, false);
    quire_page *page = NULL;
    assert_int_equal(quire_seq_hold_page(&page, computed, 0, 0), QUIRE_OK);
    valkeyContext *c = kit_connect(server.port);
    valkeyReply *keys = (valkeyReply *)valkeyCommand(c, "KEYS *");
    assert_int_equal(keys->elements, 10);
    for (size_t i = 0; i < keys->elements; i++) {
        valkeyReply *r = (valkeyReply *)valkeyCommand(c, "GET %s", keys->element[i]->str);
        assert_memory_equal(r->str, "QUIRESL", 8);
        assert_null(memmem(r->str, r->len, root, 8));
        assert_null(memmem(r->str, r->len, quire_page_bytes(page), 64));
        assert_null(memmem(r->str, r->len, "QUIREPG", 7));
        freeReplyObject(r);
    }
    freeReplyObject(keys);
    valkeyFree(c);
    quire_pool_drop_page(s.pool, page);
    quire_seq_destroy(computed);
    kit_scene_end(&s);
    quire_store_close(store);
    kit_server_end(&server);
}

/* What the log was told. Threads of the store write to it. */
typedef struct log_words {
    atomic_uint lost, back, damaged, other;
    uint32_t port;
} log_words;

static void hear(void *ctx, quire_log_level level, const char *sentence)
{
    log_words *h = (log_words *)ctx;
    char node[64];
    snprintf(node, sizeof node, " 127.0.0.1:%u ", h->port);
    bool is_node = strstr(sentence, node) != NULL;
    size_t n = strlen(sentence);
    if (!n || sentence[n - 1] != '.')
        atomic_fetch_add(&h->other, 1);
    else if (is_node && level == QUIRE_LOG_WARNING && strstr(sentence, "does not answer"))
        atomic_fetch_add(&h->lost, 1);
    else if (is_node && level == QUIRE_LOG_INFO && strstr(sentence, "answers again"))
        atomic_fetch_add(&h->back, 1);
    else if (level == QUIRE_LOG_WARNING && strstr(sentence, "damaged"))
        atomic_fetch_add(&h->damaged, 1);
    else
        atomic_fetch_add(&h->other, 1);
}

/* Loads until the log was told of so many losses that nothing followed, or 20 seconds have passed. */
static void load_until(kit_scene *s, const log_words *heard, uint32_t n_lost)
{
    for (int i = 0; i < 400 && atomic_load(&heard->lost) - atomic_load(&heard->back) != n_lost; i++) {
        quire_seq_destroy(kit_load(s, 256, 200));
        usleep(50000);
    }
}

/* The log is told once of a node that is lost, once that it is back, and of pages that are damaged. On a busy machine the node can be too
 * slow for a moment, which is told in the same way. */
static void told(void **state)
{
    (void)state;
    kit_server server;
    kit_scene s;
    log_words heard = {.other = 0};
    kit_server_start(&server, NULL);
    heard.port = server.port;
    quire_store_remote remote = kit_remote(server.port);
    quire_log log = {.size = sizeof log, .ctx = &heard, .write = hear};
    quire_store_options options = kit_options(NULL, 0, &remote);
    options.log = &log;
    quire_store *store = NULL;
    assert_int_equal(quire_store_open(&store, &options), QUIRE_OK);
    log = (quire_log){0}; /* the store has copied it */
    kit_scene_begin(&s, store, "r8/r4", 2);
    quire_seq_destroy(kit_compute(&s, 256, true));
    assert_int_equal(quire_store_flush(store, 10000), QUIRE_OK);
    assert_int_equal(heard.damaged + heard.other, 0);
    load_until(&s, &heard, 0);
    assert_int_equal(heard.lost, heard.back);
    valkeyContext *c =
        kit_connect(server.port); /* every page, because a load does not need those before a window */
    valkeyReply *keys = (valkeyReply *)valkeyCommand(c, "KEYS *");
    assert_true(keys && keys->elements == 8);
    for (size_t i = 0; i < keys->elements; i++)
        free(kit_command(server.port, "SETRANGE %s 300 xxxxxxxx", keys->element[i]->str));
    freeReplyObject(keys);
    valkeyFree(c);
    quire_seq_destroy(kit_load(&s, 256, 3000));
    uint32_t damaged = heard.damaged;
    assert_true(damaged > 0 && damaged <= 8);
    assert_int_equal(heard.other, 0);

    kit_server_kill(&server);
    load_until(&s, &heard, 1);
    assert_true(heard.lost > 0);
    assert_int_equal(heard.lost, heard.back + 1);
    kit_server_restart(&server);
    load_until(&s, &heard, 0);
    assert_true(heard.back > 0);
    assert_int_equal(heard.lost, heard.back);
    assert_true(heard.damaged >= damaged && heard.damaged <= 8);
    assert_int_equal(heard.other, 0);
    kit_scene_end(&s);
    quire_store_close(store);
    kit_server_end(&server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(single),     cmocka_unit_test(passwords), cmocka_unit_test(tls),
        cmocka_unit_test(both_tiers), cmocka_unit_test(sealed),    cmocka_unit_test(told),
    };
    kit_need_redis();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
