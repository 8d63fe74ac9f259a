/* SPDX-License-Identifier: MIT */
/*
 * A server and a cluster with TLS and logins, configured and made by what docs/store.md shows under "TLS and ACL": the test takes the
 * files and the commands from the page and changes addresses, times, and how many slots move. They move while pages in them are loaded
 * and saved.
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store/conn.h"
#include "store/kit/docs_kit.h"
#include "store/kit/raw_kit.h"
#include "store/kit/run_kit.h"
#include "store/kit/servers.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define NODES 7u /* six, and the master that is added */
#define TEXTS 40u
#define PAGES 3u
#define BYTES 20000u
#define TIMEOUT_MS 10000u

static char out[KIT_OUTPUT];
static char *keys; /* directory of the certificates and the passwords */

/* ------------------------------------------------------------------ commands */

static void write_file(const char *directory, const char *name, const char *text)
{
    char path[600];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fchmod(fileno(f), 0600), 0);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

/* A command of an operator, who is where the certificates are and has the password of admin. What it prints is in out. */
static int type_command(const char *command)
{
    char line[4096];
    snprintf(line, sizeof line, "cd '%s' && export REDISCLI_AUTH=ADMIN-PASSWORD && echo yes | %s 2>&1", keys,
             command);
    FILE *f = popen(line, "r");
    assert_non_null(f);
    size_t n = fread(out, 1, sizeof out - 1, f);
    out[n] = 0;
    int status = pclose(f);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

/* A command of Redis that admin gives to one node. Returns the reply, which stands in out. */
static const char *ask(const kit_server *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
static const char *ask(const kit_server *s, const char *format, ...)
{
    char command[1024], line[1200];
    va_list args;
    va_start(args, format);
    vsnprintf(command, sizeof command, format, args);
    va_end(args);
    snprintf(line, sizeof line, "redis-cli --tls --cacert ca.pem --user admin -p %u %s", s->port, command);
    assert_int_equal(type_command(line), 0);
    for (size_t n = strlen(out); n && out[n - 1] == '\n';) out[--n] = 0;
    return out;
}

static void wait_until(const kit_server *s, const char *command, const char *expected)
{
    for (int i = 0; !strstr(ask(s, "%s", command), expected); i++) {
        if (i > 1200) fail_msg("port %u does not say %s to %s, but:\n%s", s->port, expected, command, out);
        usleep(100000);
    }
}

/* A command of quire store for the remote, with its options and a login. */
static int run_tool(const kit_server *s, const char *command, const char *user)
{
    return kit_quire_store(out,
                           "%s --json --timeout 10000 --remote 127.0.0.1:%u --user %s --password-file %s/%s "
                           "--tls --tls-ca %s/ca.pem --tls-name pages.example",
                           command, s->port, user, keys, user, keys);
}

static int examine(const kit_server *s, const char *user)
{
    return run_tool(s, "doctor", user);
}

/* ------------------------------------------------------------------- servers */

/* In a directory of its own with the certificates and the two files of the page. */
static void start_server(kit_server *s, const char *file)
{
    static const char *const shared[] = {"ca.pem", "server.pem", "server.key"}, *const own[] = {
                                                                                    "server.conf",
                                                                                    "cluster.conf"};
    /* The page's nodes have a machine each, and the test has less time: replicas begin to copy at once and not after 5 seconds, and
     * nodes hear of each other within seconds. */
    const char *const more[] = {"--bind",
                                "127.0.0.1",
                                "--tls-port",
                                "@port",
                                "--repl-diskless-sync-delay",
                                "0",
                                "--cluster-node-timeout",
                                "5000"};
    char from[600], to[600];
    kit_server_prepare(s);
    for (size_t i = 0; i < sizeof shared / sizeof *shared; i++) {
        snprintf(from, sizeof from, "%s/%s", keys, shared[i]);
        snprintf(to, sizeof to, "%s/%s", s->directory, shared[i]);
        assert_int_equal(symlink(from, to), 0);
    }
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        char *text = kit_documented(own[i]);
        write_file(s->directory, own[i], text);
        free(text);
    }
    kit_server_add(s, "redis-server");
    kit_server_add(s, file);
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) kit_server_add(s, more[i]);
    kit_server_restart(s);
}

static quire_store_remote remote_of(const kit_server *s)
{
    static char ca[600];
    quire_store_remote r = kit_remote(s->port);
    snprintf(ca, sizeof ca, "%s/ca.pem", keys);
    r.user = "pages";
    r.password = "PAGES-PASSWORD";
    r.tls = 1;
    r.tls_ca = ca;
    r.tls_name = "pages.example";
    r.stall_ms = 10000; /* a busy machine is no fault */
    return r;
}

/* Saves and loads one text. Returns the pages that came; how it went is in stats. */
static uint32_t exchange(const quire_store_remote *remote, quire_store_stats *stats)
{
    kit_raw raw;
    quire_store *store = kit_open(NULL, 0, remote);
    kit_raw_begin(&raw, store, BYTES);
    kit_raw_save(&raw, 1, PAGES);
    (void)quire_store_flush(store, 10000);
    uint32_t n = kit_raw_load(&raw, 1, PAGES, TIMEOUT_MS);
    *stats = kit_stats(store);
    kit_raw_end(&raw);
    quire_store_close(store);
    return n;
}

static void one_server(void **state)
{
    (void)state;
    kit_server s;
    quire_store_stats stats;
    char cert[600], key[600];
    start_server(&s, "server.conf");
    quire_store_remote remote = remote_of(&s);
    assert_int_equal(exchange(&remote, &stats), PAGES);
    assert_int_equal(stats.saved[1], PAGES);
    assert_int_equal(examine(&s, "pages"), 0);
    assert_non_null(strstr(out, "\"remote.rights\",\"severity\":\"ok\""));
    assert_int_equal(examine(&s, "admin"), 0);
    assert_non_null(strstr(out, "\"remote.eviction\",\"severity\":\"ok\""));
    assert_non_null(strstr(out, "\"remote.persistence\",\"severity\":\"ok\""));
    assert_null(strstr(out, "remote.memory"));
    assert_null(strstr(out, "remote.config"));

    remote.password = "ADMIN-PASSWORD";
    assert_int_equal(exchange(&remote, &stats), 0);
    assert_true(stats.misses[QUIRE_MISS_AUTH] > 0);
    remote.user = remote.password = NULL; /* there is no default user */
    assert_int_equal(exchange(&remote, &stats), 0);
    assert_true(stats.misses[QUIRE_MISS_AUTH] > 0);

    assert_string_equal(ask(&s, "CONFIG SET tls-auth-clients yes"), "OK"); /* Redis' default */
    remote = remote_of(&s);
    assert_int_equal(exchange(&remote, &stats), 0);
    snprintf(cert, sizeof cert, "%s/server.pem", keys);
    snprintf(key, sizeof key, "%s/server.key", keys);
    remote.tls_cert = cert;
    remote.tls_key = key;
    assert_int_equal(exchange(&remote, &stats), PAGES);
    kit_server_end(&s);
}

/* ------------------------------------------------------------------- cluster */

typedef struct scene {
    kit_server node[NODES];
    char id[NODES][41];
    char *line[3]; /* create, add-node, rebalance */
    quire_store *store;
    kit_raw raw;
    uint64_t text; /* the last one */
    atomic_bool stop;
    uint32_t n_loads, n_saved;
} scene;

/* One of the page's commands, with the addresses of the test; more: what is added to it. */
static void follow(scene *s, int i, const char *more)
{
    char command[2048] = "";
    size_t n = 0;
    for (const char *at = s->line[i]; *at; n = strlen(command)) {
        static const char address[] = "10.0.0.";
        unsigned number = 0;
        int taken = 0;
        if (strncmp(at, address, strlen(address)) == 0 &&
            sscanf(at, "10.0.0.%u:6379%n", &number, &taken) == 1 && taken && number >= 1 && number <= NODES) {
            snprintf(command + n, sizeof command - n, "127.0.0.1:%u", s->node[number - 1].port);
            at += taken;
        } else {
            snprintf(command + n, sizeof command - n, "%c", *at++);
        }
    }
    snprintf(command + n, sizeof command - n, "%s", more);
    if (type_command(command)) fail_msg("%s\n%s", command, out);
}

static void wait_known(scene *s, uint32_t n)
{
    char known[40];
    snprintf(known, sizeof known, "cluster_known_nodes:%u", n);
    for (uint32_t i = 0; i < n; i++) wait_until(&s->node[i], "CLUSTER INFO", known);
}

static void make_cluster(scene *s)
{
    char *commands = kit_documented("commands"), *rest = commands;
    for (int i = 0; i < 3; i++) {
        s->line[i] = strdup(strsep(&rest, "\n"));
        assert_memory_equal(s->line[i], "redis-cli ", 10);
    }
    assert_string_equal(rest, ""); /* no line of the page is left out */
    free(commands);
    for (uint32_t i = 0; i < NODES; i++) {
        start_server(&s->node[i], "cluster.conf");
        snprintf(s->id[i], sizeof s->id[i], "%s", ask(&s->node[i], "CLUSTER MYID"));
    }
    follow(s, 0, "");
    wait_known(s, NODES - 1);
    for (uint32_t i = 0; i + 1 < NODES; i++) wait_until(&s->node[i], "CLUSTER INFO", "cluster_state:ok");
}

static bool is_replica(const kit_server *s)
{
    return strstr(ask(s, "ROLE"), "slave") != NULL;
}

/* Three replicas, each with a master; what was saved has come to them. */
static void replicas_sync(scene *s)
{
    uint32_t n_replicas = 0, n_keys = 0;
    for (uint32_t i = 0; i + 1 < NODES; i++) {
        if (!is_replica(&s->node[i])) continue;
        n_replicas++;
        wait_until(&s->node[i], "INFO replication", "master_link_status:up");
    }
    assert_int_equal(n_replicas, 3);
    for (int turn = 0; n_keys != TEXTS * PAGES; turn++) {
        n_keys = 0;
        for (uint32_t i = 0; i + 1 < NODES; i++)
            if (is_replica(&s->node[i])) n_keys += (uint32_t)atoi(ask(&s->node[i], "DBSIZE"));
        assert_true(turn < 100);
    }
}

/* A replica takes over: the earlier master now copies from it, with the same login. */
static void replica_takes_over(scene *s)
{
    kit_server *replica = NULL;
    for (uint32_t i = 0; i + 1 < NODES && !replica; i++)
        if (is_replica(&s->node[i])) replica = &s->node[i];
    assert_non_null(replica);
    assert_string_equal(ask(replica, "CLUSTER FAILOVER"), "OK");
    wait_until(replica, "INFO replication", "role:master");
    wait_until(replica, "INFO replication", "state=online");
}

/* ------------------------------------------------------------ a slot that moves */

static uint32_t slot_of(const scene *s, uint64_t text, char key[68])
{
    quire_call call = {0};
    kit_raw_objects(&s->raw, text, 1, NULL, &call.object);
    snprintf(key, 68, "q1:");
    for (int i = 0; i < 32; i++) snprintf(key + 3 + 2 * i, 3, "%02x", call.object.byte[i]);
    return quire_call_slot(&call);
}

/* Another text whose first page is in the slot. */
static uint64_t text_in(scene *s, uint32_t slot)
{
    char key[68];
    while (slot_of(s, ++s->text, key) != slot) continue;
    return s->text;
}

static bool owns(const kit_server *s, const char *key)
{
    return strcmp(ask(s, "GETRANGE %s 0 0", key), "") != 0 && !strstr(out, "MOVED") && !strstr(out, "ASK");
}

static void set_right(scene *s, const char *right)
{
    for (uint32_t i = 0; i < NODES; i++)
        assert_string_equal(ask(&s->node[i], "ACL SETUSER pages %s", right), "OK");
}

/* Between its two masters, the slot's pages are asked for with ASKING. */
static void slot_moves(scene *s)
{
    char key[68];
    uint64_t text = 1;
    uint32_t slot = slot_of(s, text, key), from = 0, to = 0;
    while (is_replica(&s->node[from]) || !owns(&s->node[from], key)) assert_true(++from < NODES - 1);
    while (to == from || is_replica(&s->node[to])) assert_true(++to < NODES - 1);
    assert_string_equal(ask(&s->node[to], "CLUSTER SETSLOT %u IMPORTING %s", slot, s->id[from]), "OK");
    assert_string_equal(ask(&s->node[from], "CLUSTER SETSLOT %u MIGRATING %s", slot, s->id[to]), "OK");
    assert_string_equal(ask(&s->node[from],
                            "MIGRATE 127.0.0.1 %u '' 0 5000 AUTH2 admin ADMIN-PASSWORD KEYS %s",
                            s->node[to].port, key),
                        "OK");
    assert_non_null(strstr(ask(&s->node[from], "EXISTS %s", key), "ASK "));

    assert_int_equal(kit_raw_load(&s->raw, text, PAGES, TIMEOUT_MS), PAGES);
    uint64_t saved = text_in(s, slot);
    kit_raw_save(&s->raw, saved, 1);
    assert_int_equal(quire_store_flush(s->store, 10000), QUIRE_OK);
    assert_int_equal(kit_raw_load(&s->raw, saved, 1, TIMEOUT_MS), 1);
    quire_store_stats good = kit_stats(s->store);
    assert_int_equal(good.misses[QUIRE_MISS_SERVER] + good.misses[QUIRE_MISS_ABSENT] + good.failed[1], 0);

    /* Without the right neither works, and the doctor says which one it is. */
    set_right(s, "-asking");
    assert_int_equal(kit_raw_load(&s->raw, text, PAGES, TIMEOUT_MS), 0);
    kit_raw_save(&s->raw, text_in(s, slot), 1);
    assert_int_equal(quire_store_flush(s->store, 10000), QUIRE_OK);
    quire_store_stats poor = kit_stats(s->store);
    assert_true(poor.misses[QUIRE_MISS_SERVER] > 0);
    assert_int_equal(poor.failed[1], 1);
    (void)examine(&s->node[from], "pages");
    assert_non_null(strstr(out, "The login lacks +asking"));
    set_right(s, "+asking");
    assert_int_equal(kit_raw_load(&s->raw, text, PAGES, TIMEOUT_MS), PAGES);

    assert_string_equal(ask(&s->node[to], "CLUSTER SETSLOT %u NODE %s", slot, s->id[to]), "OK");
    assert_string_equal(ask(&s->node[from], "CLUSTER SETSLOT %u NODE %s", slot, s->id[to]), "OK");
}

/* ------------------------------------------------------------------ many slots */

/* Loads all texts again and again, and saves new ones. */
static void *use(void *arg)
{
    scene *s = (scene *)arg;
    while (!s->stop) {
        for (uint64_t text = 1; text <= TEXTS; text++, s->n_loads++) {
            KIT_REQUIRE(kit_raw_load(&s->raw, text, PAGES, TIMEOUT_MS) == PAGES);
            usleep(5000); /* moving slots needs the processors too */
        }
        kit_raw_save(&s->raw, ++s->text, PAGES);
        KIT_REQUIRE(!quire_store_flush(s->store, 10000));
        KIT_REQUIRE(kit_raw_load(&s->raw, s->text, PAGES, TIMEOUT_MS) == PAGES);
        s->n_saved++;
    }
    return NULL;
}

static void slots_are_shared_anew(scene *s)
{
    pthread_t thread;
    char weight[100];
    quire_store_stats before = kit_stats(s->store);
    assert_int_equal(pthread_create(&thread, NULL, use, s), 0);
    follow(s, 1, "");
    wait_known(s, NODES);
    wait_until(&s->node[NODES - 1], "CLUSTER INFO", "cluster_state:ok"); /* before that it takes no pages */
    snprintf(weight, sizeof weight, " --cluster-weight %s=0.25", s->id[NODES - 1]); /* a third of the time */
    follow(s, 2, weight);
    s->stop = true;
    pthread_join(thread, NULL);
    quire_store_stats after = kit_stats(s->store);
    for (int i = 0; i < QUIRE_MISS_COUNT; i++) assert_int_equal(after.misses[i], before.misses[i]);
    assert_int_equal(after.failed[1], before.failed[1]);
    print_message("%u loads and %u saves while slots moved\n", s->n_loads, s->n_saved);
    assert_true(s->n_loads > 0 && s->n_saved > 0);
    assert_true(atoi(ask(&s->node[NODES - 1], "DBSIZE")) > 0); /* a thirteenth of more than 200 */
}

static void cluster(void **state)
{
    (void)state;
    static scene s; /* large */
    make_cluster(&s);
    quire_store_remote remote = remote_of(&s.node[1]);
    s.store = kit_open(NULL, 0, &remote);
    kit_raw_begin(&s.raw, s.store, BYTES);
    while (s.text < TEXTS) kit_raw_save(&s.raw, ++s.text, PAGES);
    assert_int_equal(quire_store_flush(s.store, 20000), QUIRE_OK);
    assert_int_equal(kit_stats(s.store).saved[1], TEXTS * PAGES);
    for (uint64_t text = 1; text <= TEXTS; text++)
        assert_int_equal(kit_raw_load(&s.raw, text, PAGES, TIMEOUT_MS), PAGES);
    assert_int_equal(examine(&s.node[0], "pages"), 0);
    assert_non_null(strstr(out, "\"remote.rights\",\"severity\":\"ok\""));
    assert_int_equal(run_tool(&s.node[0], "ls", "pages"), 1);
    assert_int_equal(run_tool(&s.node[0], "ls", "admin"), 0);
    assert_non_null(strstr(out, "{\"node\":\"all\",\"objects\":120,"));
    replicas_sync(&s);
    slot_moves(&s);
    slots_are_shared_anew(&s);
    replica_takes_over(&s);
    kit_raw_end(&s.raw);
    quire_store_close(s.store);
    for (uint32_t i = 0; i < NODES; i++) kit_server_end(&s.node[i]);
    for (int i = 0; i < 3; i++) free(s.line[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_server),
        cmocka_unit_test(cluster),
    };
    kit_need_redis();
    keys = kit_directory(NULL);
    kit_certificates(keys);
    write_file(keys, "pages", "PAGES-PASSWORD\n");
    write_file(keys, "admin", "ADMIN-PASSWORD\n");
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kit_remove(keys);
    return failed;
}
