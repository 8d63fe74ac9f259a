/* SPDX-License-Identifier: MIT */
/* quire store doctor and ls --remote: directories and servers with something wrong, and whether that is found. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store/kit/docs_kit.h"
#include "store/kit/file_kit.h"
#include "store/kit/raw_kit.h"
#include "store/kit/run_kit.h"
#include "store/kit/servers.h"

#include <arpa/inet.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char out[KIT_OUTPUT];

/* A finding of this check and severity, in the JSON form, with these words in it. */
static bool finds(const char *check, const char *severity, const char *words)
{
    char head[200];
    snprintf(head, sizeof head, "{\"check\":\"%s\",\"severity\":\"%s\",", check, severity);
    for (const char *at = out; (at = strstr(at, head)); at++) {
        const char *end = strchr(at, '\n'), *found = strstr(at, words);
        if (end && found && found < end) return true;
    }
    return false;
}

#define EXPECT_FINDING(check, severity, words)                                        \
    do {                                                                              \
        if (!finds(check, severity, words))                                           \
            fail_msg("no %s of %s with \"%s\" in:\n%s", severity, check, words, out); \
    } while (0)

/* All is well, or only notes. */
static void expect_none(const char *severity)
{
    char words[64];
    snprintf(words, sizeof words, "\"severity\":\"%s\"", severity);
    if (strstr(out, words)) fail_msg("a %s in:\n%s", severity, out);
}

static char *make_store(uint64_t n_texts)
{
    char *dir = kit_directory(NULL);
    quire_store *store = kit_open(dir, KIT_CAP, NULL);
    kit_raw raw;
    kit_raw_begin(&raw, store, 60000);
    for (uint64_t text = 0; text < n_texts; text++) kit_raw_save(&raw, text, 5);
    kit_raw_end(&raw);
    quire_store_close(store);
    return dir;
}

static int examine(const char *dir)
{
    return kit_quire_store(out, "doctor --json --dir %s", dir);
}

/* ---------------------------------------------------------------- directories */

static void write_file(const char *dir, const char *name, const char *text)
{
    char path[600];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fchmod(fileno(f), 0600), 0); /* passwords that others can read are refused */
    fputs(text, f);
    fclose(f);
    assert_int_equal(chmod(path, 0600), 0);
}

static void good_directory(void **state)
{
    (void)state;
    char *dir = make_store(4);
    assert_int_equal(examine(dir), 0);
    expect_none("fault");
    expect_none("warning");
    static const char *const checks[] = {"disk.directory", "disk.owner",   "disk.mode",  "disk.write",
                                         "disk.locks",     "disk.holes",   "disk.open",  "disk.space",
                                         "disk.cap",       "disk.pinned",  "disk.pages", "disk.clock",
                                         "disk.rebuild",   "disk.versions"};
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) EXPECT_FINDING(checks[i], "ok", "");
    assert_int_equal(kit_quire_store(out, "doctor --dir %s", dir), 0);
    assert_non_null(strstr(out, "ok       disk.open"));
    assert_non_null(strstr(out, "0 faults, 0 warnings"));
    kit_files files;
    kit_files_list(&files, dir);
    for (uint32_t i = 0; i < files.n; i++) assert_null(strstr(files.path[i], "doctor")); /* it cleans up */
    kit_files_free(&files);
    assert_int_equal(kit_quire_store(out, "stat --prometheus --dir %s", dir), 0);
    assert_non_null(strstr(out, "\nquire_store_disk_pages 20\n"));
    kit_remove(dir);
}

static void wrong_directories(void **state)
{
    (void)state;
    char path[600];
    assert_int_equal(examine("/proc/none"), 1);
    EXPECT_FINDING("disk.directory", "fault", "No such file");
    assert_int_equal(examine("/etc/passwd"), 1);
    EXPECT_FINDING("disk.directory", "fault", "not a directory");

    char *dir = kit_directory(NULL);
    assert_int_equal(examine(dir), 0);
    EXPECT_FINDING("disk.open", "note", "holds no store yet");
    snprintf(path, sizeof path, "%s/quire-store", dir);
    assert_int_equal(access(path, F_OK), -1); /* nothing was made */
    kit_remove(dir);

    dir = make_store(4); /* modes, a foreign file */
    assert_int_equal(chmod(dir, 0755), 0);
    snprintf(path, sizeof path, "%s/slab-00000001", dir);
    assert_int_equal(chmod(path, 0644), 0);
    write_file(dir, "serve.key", "of quire serve, not foreign");
    snprintf(path, sizeof path, "%s/serve.key", dir);
    assert_int_equal(chmod(path, 0600), 0);
    write_file(dir, "notes.txt", "hello");
    assert_int_equal(examine(dir), 0);
    EXPECT_FINDING("disk.files", "note", "1 files are not the store's");
    EXPECT_FINDING("disk.mode", "warning", "mode 755");
    EXPECT_FINDING("disk.file_mode", "warning", "slab-00000001");
    EXPECT_FINDING("disk.files", "note", "notes.txt");
    kit_remove(dir);

    if (geteuid() == 0) { /* another owner */
        dir = make_store(4);
        snprintf(path, sizeof path, "%s/index", dir);
        assert_int_equal(chown(path, 12345, 12345), 0);
        assert_int_equal(examine(dir), 1);
        EXPECT_FINDING("disk.file_owner", "fault", "1 files belong to another user");
        assert_int_equal(chown(dir, 12345, 12345), 0);
        assert_int_equal(examine(dir), 1);
        EXPECT_FINDING("disk.owner", "warning", "belongs to user 12345");
        EXPECT_FINDING("disk.open", "note", "was not opened");
        kit_remove(dir);
    }

    dir = kit_directory(NULL); /* the old form */
    write_file(dir, "segment-00", "old");
    assert_int_equal(examine(dir), 1);
    EXPECT_FINDING("disk.form", "fault", "LMDB segments");
    kit_remove(dir);

    static const uint8_t later[] = {9, 0, 0, 0, 0xf6, 0xff, 0xff, 0xff}; /* a later version */
    dir = make_store(1);
    snprintf(path, sizeof path, "%s/quire-store", dir);
    kit_overwrite(path, 8, later, sizeof later);
    assert_int_equal(examine(dir), 1);
    EXPECT_FINDING("disk.open", "fault", "another version");
    kit_remove(dir);
}

static void damaged_directories(void **state)
{
    (void)state;
    char path[600];
    char *dir = make_store(4); /* without its index */
    snprintf(path, sizeof path, "%s/index", dir);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(examine(dir), 0);
    EXPECT_FINDING("disk.index", "warning", "missing");
    EXPECT_FINDING("disk.rebuild", "warning", "20 pages");
    assert_int_equal(examine(dir), 0);
    EXPECT_FINDING("disk.rebuild", "ok", "");

    kit_overwrite(path, 0, "this is no database at all, is it?", 34); /* a damaged one */
    assert_int_equal(examine(dir), 0);
    EXPECT_FINDING("disk.rebuild", "warning", "made anew");

    snprintf(path, sizeof path, "%s/slab-00000001", dir); /* without the slab */
    assert_int_equal(unlink(path), 0);
    assert_int_equal(examine(dir), 0);
    EXPECT_FINDING("disk.pages", "warning", "20 of 20 pages that were looked at are damaged");
    EXPECT_FINDING("disk.pages", "warning", "a slab file is missing");
    kit_remove(dir);
}

/* Pinned pages, a small limit, little space. */
static void tight_directories(void **state)
{
    (void)state;
    uint32_t tokens[64 * 40];
    char *dir = kit_directory(NULL);
    quire_store *store = kit_open(dir, 16u << 20, NULL);
    kit_raw raw;
    kit_raw_begin(&raw, store, 300000);
    kit_raw_save(&raw, 1, 35);
    assert_int_equal(quire_store_flush(store, 20000), QUIRE_OK);
    kit_raw_tokens(tokens, 1, 35);
    quire_prompt prompt = {.size = sizeof prompt, .tokens = tokens, .n_tokens = 64 * 35};
    assert_int_equal(quire_namespace_pin(raw.ns, &prompt, 1, 10000, NULL), QUIRE_OK);
    kit_raw_end(&raw);
    quire_store_close(store);
    assert_int_equal(examine(dir), 0);
    EXPECT_FINDING("disk.cap", "warning", "less than one prefix");
    EXPECT_FINDING("disk.pinned", "warning", "more than half of the limit");
    kit_remove(dir);

    dir = kit_directory(NULL);
    if (unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
        mount("tmpfs", dir, "tmpfs", 0, "size=8m,mode=700") == 0) {
        quire_store_close(kit_open(dir, KIT_CAP, NULL));
        assert_int_equal(examine(dir), 0);
        EXPECT_FINDING("disk.file_system", "note", "tmpfs");
        EXPECT_FINDING("disk.space", "warning", "has only 0.00");
        assert_int_equal(mount(NULL, dir, NULL, MS_REMOUNT | MS_RDONLY, NULL), 0);
        assert_int_equal(examine(dir), 1);
        EXPECT_FINDING("disk.write", "fault", "Read-only");
        EXPECT_FINDING("disk.open", "fault", "");
        (void)umount(dir);
    }
    kit_remove(dir);
}

/* -------------------------------------------------------------------- servers */

static int examine_remote(uint32_t port, const char *more)
{
    return kit_quire_store(out, "doctor --json --timeout 3000 --remote 127.0.0.1:%u %s", port, more);
}

static void configurations(void **state)
{
    (void)state;
    kit_server s;
    const char *good[] = {"--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru", NULL};
    kit_server_start(&s, good);
    assert_int_equal(examine_remote(s.port, ""), 0);
    expect_none("fault");
    expect_none("warning");
    EXPECT_FINDING("remote.reach", "ok", "answers");
    EXPECT_FINDING("remote.rights", "ok", "");
    EXPECT_FINDING("remote.eviction", "ok", "allkeys-lru");
    EXPECT_FINDING("remote.persistence", "ok", "");
    char *left = kit_command(s.port, "DBSIZE");
    assert_string_equal(left, "0"); /* it cleans up */
    free(left);

    free(kit_command(s.port, "CONFIG SET maxmemory-policy noeviction"));
    free(kit_command(s.port, "CONFIG SET appendonly yes"));
    free(kit_command(s.port, "CONFIG SET proto-max-bulk-len 1048576"));
    assert_int_equal(examine_remote(s.port, ""), 1);
    EXPECT_FINDING("remote.eviction", "fault", "evicts nothing");
    EXPECT_FINDING("remote.persistence", "warning", "appendonly");
    EXPECT_FINDING("remote.value_size", "warning", "1048576");
    free(kit_command(s.port, "CONFIG SET maxmemory 0"));
    free(kit_command(s.port, "CONFIG SET appendonly no"));
    valkeyContext *c = kit_connect(s.port);
    freeReplyObject(valkeyCommand(c, "CONFIG SET save %s", "3600 1"));
    valkeyFree(c);
    assert_int_equal(examine_remote(s.port, ""), 0);
    EXPECT_FINDING("remote.memory", "warning", "maxmemory 0");
    EXPECT_FINDING("remote.persistence", "warning", "(save)");
    kit_server_kill(&s);
    assert_int_equal(examine_remote(s.port, ""), 1);
    EXPECT_FINDING("remote.reach", "fault", "refused");
    kit_server_end(&s);
}

/* ------------------------------------------------------- servers that are none */

typedef struct lie {
    const char *command, *answer; /* "": the connection is closed */
} lie;

/* Answers every command in the bytes that have come. */
static bool answer(int fd, const char *in, const lie *lies)
{
    for (; *in; in++)
        for (const lie *l = lies; l->command; l++) {
            if (strncmp(in, l->command, strlen(l->command)) || in[strlen(l->command)] != '\r') continue;
            if (!*l->answer || send(fd, l->answer, strlen(l->answer), MSG_NOSIGNAL) < 0) return false;
        }
    return true;
}

static pid_t pretend(const lie *lies, uint32_t *port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0 && !bind(fd, (struct sockaddr *)&a, sizeof a) && !listen(fd, 8));
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &n), 0);
    *port = ntohs(a.sin_port);
    pid_t pid = fork();
    if (!pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (int peer; (peer = accept(fd, NULL, NULL)) >= 0; close(peer)) {
            char in[65536];
            for (ssize_t got; (got = recv(peer, in, sizeof in - 1, 0)) > 0;) {
                in[got] = 0;
                if (!answer(peer, in, lies)) break;
            }
        }
        _exit(0);
    }
    close(fd);
    return pid;
}

#define LIST "ls --long --timeout 2000 --remote 127.0.0.1:%u %s"
#define SINGLE                              \
    {"PING", "+PONG\r\n"},                  \
    {                                       \
        "CLUSTER", "-ERR not a cluster\r\n" \
    }
#define KEYS(key)                             \
    {                                         \
        "SCAN", "*2\r\n$1\r\n0\r\n*1\r\n" key \
    }

static void lists(void **state)
{
    (void)state;
    static const struct {
        lie lies[8];
        int code;
        const char *says;
    } cases[] = {
        {{SINGLE, KEYS("$4\r\nq1:a\r\n"), {"STRLEN", ":7\r\n"}, {"TTL", ":-1\r\n"}}, 0, "q1:a"},
        {{SINGLE, KEYS(":5\r\n"), {"STRLEN", ":7\r\n"}, {"TTL", ":-1\r\n"}}, 1, "127.0.0.1"},
        {{SINGLE, KEYS("*0\r\n"), {"STRLEN", ":7\r\n"}, {"TTL", ":-1\r\n"}}, 1, "127.0.0.1"},
        {{SINGLE, KEYS("$4\r\nq1:a\r\n"), {"STRLEN", ":-7\r\n"}, {"TTL", ":-1\r\n"}},
         1,
         "does not answer as"},
        {{SINGLE, KEYS("$4\r\nq1:a\r\n"), {"STRLEN", "+7\r\n"}, {"TTL", ":-1\r\n"}}, 1, "does not answer as"},
        {{SINGLE, KEYS("$8\r\nq1:\x1b[2Ja\r\n"), {"STRLEN", ":7\r\n"}, {"TTL", ":-1\r\n"}}, 0, "[2Ja"},
        {{SINGLE, {"SCAN", "-NO \x1b[2J\r\n"}}, 1, "NO ?[2J"},
        {{{"PING", "-NO \x1b[2J\r\n"}}, 1, "NO ?[2J"},
        {{{"PING", "+PONG\r\n"},
          {"CLUSTER", "*1\r\n*3\r\n:0\r\n:9223372036854775807\r\n*2\r\n$4\r\n\x1b[2J\r\n:1\r\n"}},
         1,
         "?[2J:1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint32_t port;
        pid_t pid = pretend(cases[i].lies, &port);
        for (int json = 0; json < 2; json++) {
            assert_int_equal(kit_quire_store(out, LIST, port, json ? "--json" : ""), cases[i].code);
            if (!json && !strstr(out, cases[i].says)) fail_msg("no \"%s\" in:\n%s", cases[i].says, out);
            assert_null(strchr(out, 27));
        }
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
    }
}

/* One that closes the connection when it is asked for something is not well. */
static void closes(void **state)
{
    (void)state;
    static const lie lies[] = {{"PING", "+PONG\r\n"}, {"EXISTS", ""}, {NULL, NULL}};
    uint32_t port;
    pid_t pid = pretend(lies, &port);
    assert_int_equal(examine_remote(port, ""), 1);
    EXPECT_FINDING("remote.reach", "fault", "closed the connection");
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static void logins(void **state)
{
    (void)state;
    kit_server s;
    char *dir = kit_directory(NULL), *rights = kit_documented_rights(), more[800], command[400];
    kit_server_start(&s, NULL);
    /* The rights of docs/store.md; then some less. */
    snprintf(command, sizeof command, "ACL SETUSER pages on >secret %s", rights);
    free(rights);
    valkeyContext *c = kit_connect(s.port);
    freeReplyObject(valkeyCommand(c, command));
    valkeyFree(c);
    free(kit_command(s.port, "ACL SETUSER poor on >secret ~q1:* +exists +auth"));
    write_file(dir, "right", "secret\n");
    write_file(dir, "wrong", "guess\n");
    snprintf(more, sizeof more, "--user pages --password-file %s/right", dir);
    assert_int_equal(examine_remote(s.port, more), 0);
    expect_none("warning");
    EXPECT_FINDING("remote.rights", "ok", "");
    EXPECT_FINDING("remote.config", "note", "does not let this login");
    EXPECT_FINDING("remote.info", "note", "");
    snprintf(more, sizeof more, "--user pages --password-file %s/wrong", dir);
    assert_int_equal(examine_remote(s.port, more), 1);
    EXPECT_FINDING("remote.login", "fault", "it says \\\"WRONGPASS");
    snprintf(more, sizeof more, "--user poor --password-file %s/right", dir);
    assert_int_equal(examine_remote(s.port, more), 1);
    EXPECT_FINDING("remote.rights", "fault", "lacks +getrange +set,");
    EXPECT_FINDING("remote.rights", "warning", "lacks +expire");
    EXPECT_FINDING("remote.rights", "warning", "lacks +del");
    EXPECT_FINDING("remote.rights", "warning", "lacks +asking");
    EXPECT_FINDING("remote.rights", "warning", "lacks +readonly");
    EXPECT_FINDING("remote.rights", "warning", "lacks +cluster|slots");
    assert_null(strstr(out, "secret"));
    kit_server_end(&s);
    kit_remove(dir);
}

static void certificates(void **state)
{
    (void)state;
    kit_server s;
    char *dir = kit_directory(NULL), ca[600], pem[600], key[600], more[800];
    kit_certificates(dir); /* they last two days */
    snprintf(ca, sizeof ca, "%s/ca.pem", dir);
    snprintf(pem, sizeof pem, "%s/server.pem", dir);
    snprintf(key, sizeof key, "%s/server.key", dir);
    const char *args[] = {"--tls-port",
                          "@port",
                          "--tls-cert-file",
                          pem,
                          "--tls-key-file",
                          key,
                          "--tls-ca-cert-file",
                          ca,
                          "--tls-auth-clients",
                          "no",
                          NULL};
    kit_server_start(&s, args);
    snprintf(more, sizeof more, "--tls --tls-ca %s", ca);
    assert_int_equal(examine_remote(s.port, more), 0);
    EXPECT_FINDING("remote.tls", "warning", "expires in ");
    snprintf(more, sizeof more, "--tls --tls-ca %s --tls-name elsewhere.example", ca);
    assert_int_equal(examine_remote(s.port, more), 1);
    EXPECT_FINDING("remote.tls", "fault", "not for elsewhere.example");
    snprintf(more, sizeof more, "--tls --tls-ca %s/other-ca.pem", dir);
    assert_int_equal(examine_remote(s.port, more), 1);
    EXPECT_FINDING("remote.tls", "fault", "not accepted");
    assert_int_equal(examine_remote(s.port, ""), 1); /* without TLS */
    EXPECT_FINDING("remote.reach", "fault", "");
    kit_server_end(&s);
    const char *plain[] = {NULL};
    kit_server_start(&s, plain);
    snprintf(more, sizeof more, "--tls --tls-ca %s", ca);
    assert_int_equal(examine_remote(s.port, more), 1);
    EXPECT_FINDING("remote.tls", "fault", "");
    kit_server_end(&s);
    kit_remove(dir);
}

static void clusters(void **state)
{
    (void)state;
    kit_cluster c;
    kit_raw raw;
    char words[80];
    kit_cluster_start_with(&c, 3, 1);
    for (int i = 0; i < 2; i++) kit_wait_for(c.node[i].port, "CLUSTER NODES", "slave");
    quire_store_remote remote = kit_remote(c.node[0].port);
    remote.ttl_seconds = 3000;
    quire_store *store = kit_open(NULL, 0, &remote);
    kit_raw_begin(&raw, store, 10000);
    for (uint64_t text = 0; text < 8; text++) kit_raw_save(&raw, text, 5);
    assert_int_equal(quire_store_flush(store, 20000), QUIRE_OK);
    assert_int_equal(kit_stats(store).saved[1], 40);
    kit_raw_end(&raw);
    quire_store_close(store);

    assert_int_equal(kit_quire_store(out, "ls --remote 127.0.0.1:%u --json", c.node[1].port), 0);
    assert_non_null(strstr(out, "{\"node\":\"all\",\"objects\":40,\"bytes\":4"));
    const char *all = strstr(out, "\"expiring\":40,\"ttl_min\":");
    assert_non_null(all);
    assert_in_range(atoi(strstr(all, "min\":") + 5), 2000, 3000);
    for (int i = 0; i < 3; i++) {
        snprintf(words, sizeof words, "{\"node\":\"127.0.0.1:%u\",\"objects\":", c.node[i].port);
        assert_non_null(strstr(out, words));
    }
    snprintf(words, sizeof words, "127.0.0.1:%u", c.node[3].port); /* a replica has nothing of its own */
    assert_null(strstr(out, words));
    assert_int_equal(kit_quire_store(out, "ls --remote 127.0.0.1:%u --long", c.node[1].port), 0);
    uint32_t n = 0;
    for (const char *at = out; (at = strstr(at, "q1:")); at++) n++;
    assert_int_equal(n, 40);
    assert_int_equal(kit_quire_store(out, "ls --dir /tmp --remote 127.0.0.1:1"), 2);
    assert_int_equal(kit_quire_store(out, "ls --remote 127.0.0.1:1"), 1);

    for (int i = 0; i < 480; i++) { /* until the node knows of the replica */
        assert_int_equal(examine_remote(c.node[0].port, ""), 0);
        if (finds("remote.cluster", "ok", "3 masters and 1 replicas")) break;
        usleep(250000);
    }
    EXPECT_FINDING("remote.cluster", "ok", "3 masters and 1 replicas");
    free(kit_command(c.node[2].port, "CONFIG SET maxmemory-policy noeviction"));
    free(kit_command(c.node[2].port, "CONFIG SET maxmemory 1"));
    assert_int_equal(examine_remote(c.node[0].port, ""), 1);
    snprintf(words, sizeof words, "127.0.0.1:%u refuses to store: OOM", c.node[2].port);
    EXPECT_FINDING("remote.write", "fault", words);
    free(kit_command(c.node[2].port, "CONFIG SET maxmemory 0"));
    assert_int_equal(examine_remote(c.node[0].port, ""), 0);
    kit_server_kill(&c.node[1]); /* a master without a replica */
    kit_wait_for(c.node[0].port, "CLUSTER INFO", "cluster_state:fail");
    assert_int_equal(examine_remote(c.node[0].port, ""), 1);
    EXPECT_FINDING("remote.cluster", "fault", "");
    kit_cluster_end(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_directory),
        cmocka_unit_test(wrong_directories),
        cmocka_unit_test(damaged_directories),
        cmocka_unit_test(configurations),
        cmocka_unit_test(lists),
        cmocka_unit_test(closes),
        cmocka_unit_test(logins),
        cmocka_unit_test(certificates),
        cmocka_unit_test(clusters),
        cmocka_unit_test(tight_directories), /* the last: it changes what is mounted */
    };
    kit_need_redis();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
