/* SPDX-License-Identifier: MIT */
/* Slot files of llama-server through pages and back: both versions, what put-slot refuses, and whom files belong to. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store/kit/command_kit.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define KEY "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define ZERO "--computed-from-zero"

/* A directory with a secret and the tokens of a prompt that shares its first 230 with the slots of salt 9. */
typedef struct scene {
    char *dir, common[2000], path[700], other[700], out[KIT_OUTPUT];
} scene;

static const char *in(scene *s, const char *name)
{
    snprintf(s->path, sizeof s->path, "%s/%s", s->dir, name);
    return s->path;
}

static void begin(scene *s)
{
    s->dir = kit_directory(NULL);
    setenv("XDG_CACHE_HOME", s->dir, 1);
    unsetenv("QUIRE_CACHE");
    kit_write_text(in(s, "key"), KEY, 0600);
    snprintf(s->common, sizeof s->common, "--dir %s/store --cap 32M --weights w --secret-file %s/key", s->dir,
             s->dir);
    FILE *f = fopen(in(s, "tokens"), "w");
    fprintf(f, "{\"tokens\": [");
    for (uint32_t i = 0; i < 400; i++) fprintf(f, "%u, ", i < 230 ? i * 3 + 9 : i);
    fprintf(f, "1]}\n");
    fclose(f);
}

static void write_slot(scene *s, const char *name, kit_slot slot)
{
    if (!slot.version) slot.version = 3;
    if (!slot.n_cells) slot.n_cells = 300;
    if (!slot.n_streams) slot.n_streams = 4;
    if (!slot.salt) slot.salt = 9;
    kit_slot_write(in(s, name), &slot);
}

static int put(scene *s, const char *name, const char *more)
{
    return kit_quire(s->out, "put-slot %s %s/%s %s --json", s->common, s->dir, name, more);
}

static int get(scene *s, const char *like, const char *to, const char *more)
{
    return kit_quire(s->out, "get-slot %s --like %s/%s --tokens %s/tokens %s/%s %s", s->common, s->dir, like,
                     s->dir, s->dir, to, more);
}

/* Into "by-layout", by the layout that putting a slot prints. */
static void get_by_layout(scene *s, const char *name, const char *expected)
{
    assert_int_equal(put(s, name, ZERO), 0);
    char layout[500], *at = strstr(s->out, "\"layout\":\"");
    assert_non_null(at);
    snprintf(layout, sizeof layout, "%.*s", (int)strcspn(at + 10, "\""), at + 10);
    assert_non_null(strstr(layout, expected));
    assert_int_equal(kit_quire(s->out, "get-slot %s --layout '%s' --tokens %s/tokens %s/by-layout", s->common,
                               layout, s->dir, s->dir),
                     0);
}

static bool same(scene *s, const char *a, const char *b)
{
    char line[1600];
    snprintf(line, sizeof line, "cmp -s %s/%s %s/%s", s->dir, a, s->dir, b);
    return system(line) == 0;
}

#define assert_says(s, text) \
    if (!strstr((s)->out, text)) fail_msg("not in \"%s\": \"%s\"", (s)->out, text)

/* ------------------------------------------------------------------ versions */

static void there_and_back(void **state)
{
    (void)state;
    for (uint32_t version = 3; version <= 4; version++)
        for (int transposed = 0; transposed < 2; transposed++) {
            scene s;
            begin(&s);
            write_slot(&s, "a", (kit_slot){.version = version, .transposed = transposed});
            assert_int_equal(put(&s, "a", ZERO), 0);
            assert_says(&s, "\"tokens\":301,\"cells\":300");
            assert_says(&s, "\"saved\":4,\"known\":0,\"failed\":0");
            assert_int_equal(put(&s, "a", ZERO), 0);
            assert_says(&s, "\"saved\":0,\"known\":4");
            /* The prompt parts from it in the fourth page: three come. What vouched for them comes too. */
            assert_int_equal(get(&s, "a", "b", "--json"), 0);
            assert_says(&s, "{\"tokens\":192,\"of\":401,\"vouched\":\"computed-from-zero\"}");
            /* What came is the file that a server with these three pages writes. */
            write_slot(&s, "c",
                       (kit_slot){.version = version,
                                  .transposed = transposed,
                                  .n_cells = 192,
                                  .n_tokens = 192,
                                  .n_streams = 1});
            assert_true(same(&s, "b", "c"));
            /* What was stored without encryption is replaced by what is encrypted. */
            assert_int_equal(put(&s, "a", ZERO " --seal-disk"), 0);
            assert_says(&s, "\"saved\":4,\"known\":0");
            assert_int_equal(put(&s, "a", ZERO " --seal-disk"), 0);
            assert_says(&s, "\"saved\":0,\"known\":4");
            assert_int_equal(get(&s, "a", "e", "--seal-disk"), 0);
            assert_true(same(&s, "e", "c"));
            assert_int_equal(
                kit_quire(s.out,
                          "put-slot --remote 127.0.0.1:1 --weights w --secret-file %s/key --seal-disk " ZERO
                          " %s/a",
                          s.dir, s.dir),
                2);
            assert_says(&s, "give --dir DIRECTORY with --seal-disk");
            assert_int_equal(get(&s, "a", "d", "--kv r8/r4"), 1);
            assert_says(&s, "0 of 401 tokens");
            assert_int_not_equal(access(in(&s, "b"), F_OK), -1);
            assert_int_equal(access(in(&s, "d"), F_OK), -1);
            kit_remove(s.dir);
        }
}

/* Zeros behind codes are not stored, and come back. A slot of other codes shares nothing with it. */
static void codes(void **state)
{
    (void)state;
    scene s;
    begin(&s);
    write_slot(&s, "a", (kit_slot){.version = 4, .coded = 12});
    write_slot(&s, "few", (kit_slot){.version = 4, .coded = 12, .n_cells = 3});
    write_slot(&s, "other", (kit_slot){.version = 4, .coded = 14});
    assert_int_equal(put(&s, "a", ZERO), 0);
    assert_says(&s, "\"page_bytes\":4608"); /* 3 layers, K and V, 64 rows of 12 bytes */
    assert_says(&s, "12of34/0");
    assert_int_equal(get(&s, "few", "b", "--json"), 0);
    write_slot(&s, "c",
               (kit_slot){.version = 4, .coded = 12, .n_cells = 192, .n_tokens = 192, .n_streams = 1});
    assert_true(same(&s, "b", "c"));
    get_by_layout(&s, "a", "");
    assert_true(same(&s, "by-layout", "c"));
    assert_int_equal(get(&s, "other", "d", ""), 1);
    kit_remove(s.dir);
}

/* Rows that mean the same in both versions are shared, and the file has the version of the server that gets it. */
static void between_versions(void **state)
{
    (void)state;
    scene s;
    begin(&s);
    for (uint32_t version = 3; version <= 4; version++) {
        kit_slot own = {.version = version, .v_type = 1, .salt = 9 + version * 1000},
                 other = {.version = 7 - version, .v_type = 1};
        FILE *f = fopen(in(&s, "tokens"), "w");
        for (uint32_t i = 0; i < 128; i++) fprintf(f, "%u ", i * 3 + own.salt);
        fclose(f);
        write_slot(&s, "own", own);
        write_slot(&s, "other", other);
        assert_int_equal(put(&s, "own", ZERO), 0);
        assert_int_equal(get(&s, "other", "got", ""), 0);
        other.salt = own.salt;
        other.n_cells = other.n_tokens = 128;
        other.n_streams = 1;
        write_slot(&s, "wanted", other);
        assert_true(same(&s, "got", "wanted"));
    }
    /* By the printed layout as well. */
    get_by_layout(&s, "own", "llama slot 4 ");
    assert_int_equal(get(&s, "own", "by-file", ""), 0);
    assert_true(same(&s, "by-layout", "by-file"));
    kit_remove(s.dir);
}

/* llama.cpp rotates quantized rows. Version 4 says by how much, version 3 does not: such rows are not mixed. */
static void rotations(void **state)
{
    (void)state;
    static const kit_slot kinds[] = {{.version = 3},
                                     {.version = 3, .k_type = 8, .v_type = 1},
                                     {.version = 4, .k_type = 8, .v_type = 1},
                                     {.version = 4},
                                     {.version = 4, .rot_v = 64},
                                     {.version = 4, .rot_k = 64, .rot_v = 64},
                                     {.version = 4, .rot_v = 128}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        scene s;
        begin(&s);
        write_slot(&s, "a", kinds[i]);
        assert_int_equal(put(&s, "a", ZERO), 0);
        for (size_t j = 0; j < sizeof kinds / sizeof *kinds; j++) {
            write_slot(&s, "like", kinds[j]);
            assert_int_equal(get(&s, "like", "b", ""), i == j ? 0 : 1);
        }
        kit_remove(s.dir);
    }
}

static void unknown_versions(void **state)
{
    (void)state;
    scene s;
    begin(&s);
    for (uint32_t version = 1; version <= 6; version++) {
        if (version == 3 || version == 4) continue;
        write_slot(&s, "a", (kit_slot){.version = version});
        assert_int_equal(put(&s, "a", ZERO), 1);
        assert_says(&s, "the slot file has an unknown version (known are 3 and 4)");
    }
    kit_remove(s.dir);
}

/* ------------------------------------------------------------- what is refused */

static void not_vouched(void **state)
{
    (void)state;
    scene s;
    begin(&s);
    write_slot(&s, "a", (kit_slot){0});
    assert_int_equal(put(&s, "a", ""), 2);
    assert_says(&s, "--computed-from-zero");
    assert_says(&s, "--context-shift");
    assert_int_equal(get(&s, "a", "b", ""), 1); /* nothing was stored */
    kit_remove(s.dir);
}

static void shown_by_the_file(void **state)
{
    (void)state;
    static const struct {
        kit_slot slot;
        const char *why;
    } cases[] = {
        {{.is_reversed = true}, "not 0, 1, 2 and so on in the order of the cells"},
        {{.first_position = 1}, "not 0, 1, 2 and so on in the order of the cells"},
        {{.has_two_sequences = true}, "several sequences"},
        {{.n_tokens = 299}, "fewer tokens than cells"},
    };
    scene s;
    begin(&s);
    for (uint32_t version = 3; version <= 4; version++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            kit_slot slot = cases[i].slot;
            slot.version = version;
            write_slot(&s, "a", slot);
            assert_int_equal(put(&s, "a", ZERO), 1);
            assert_says(&s, cases[i].why);
        }
    kit_remove(s.dir);
}

/* Answers what is asked for with these texts. Returns the port; the process ends with the test. */
static uint32_t serve(const char *adapters, const char *slots)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, n), 0);
    assert_int_equal(listen(fd, 8), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &n), 0);
    if (fork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) {
            char ask[1024] = {0}, answer[4096];
            int c = accept(fd, NULL, NULL);
            size_t have = 0;
            while (have < sizeof ask - 1 && !strstr(ask, "\r\n\r\n")) {
                ssize_t got = read(c, ask + have, sizeof ask - 1 - have);
                if (got <= 0) break;
                have += (size_t)got;
            }
            const char *body = strncmp(ask, "GET /slots ", 11) == 0           ? slots
                               : strncmp(ask, "GET /lora-adapters ", 19) == 0 ? adapters
                                                                              : NULL;
            snprintf(answer, sizeof answer,
                     "HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                     body ? "200 OK" : "501 Not Implemented", strlen(body ? body : "{}"), body ? body : "{}");
            (void)!write(c, answer, strlen(answer));
            close(c);
        }
    }
    close(fd);
    return ntohs(a.sin_port);
}

static void asks_the_server(void **state)
{
    (void)state;
    static const char loaded
        [] = "[{\"id\":0,\"path\":\"a \\\"scale\\\":0 b\",\"scale\": %s}]",
  plain[] = "[{\"id\":0,\"params\":{\"n_keep\":0,\"lora\":[]},\"next_token\":[]}]",
  chosen[] =
        "[{\"id\":0,\"params\":{\"lora\":[]}},{\"id\":1,\"params\":{\"lora\":[{\"id\":0,\"scale\":0.5}]}}]";
    char on[200], off[200];
    snprintf(on, sizeof on, loaded, "1.0");
    snprintf(off, sizeof off, loaded, "0.0");
    const struct {
        const char *adapters, *slots, *more;
        int code;
        const char *says;
    } cases[] = {
        {"[]", plain, "", 0, "\"saved\":"},
        {on, plain, "", 1, "LoRA adapter"},
        {off, plain, "", 1, "LoRA adapter"}, /* any request can switch it on */
        {on, plain, "--adapter a --adapter-scale 1", 0, "\"saved\":"},
        {on, plain, "--adapter a --adapter-scale 0.5", 1, "scale"},
        {"[]", plain, "--adapter a --adapter-scale 1", 1, "no LoRA adapter"},
        {on, chosen, "--adapter a --adapter-scale 1", 1, "of its own"},
        {NULL, plain, "", 1, "/lora-adapters"},
        {"[]", NULL, "", 1, "/slots"},
        {"not JSON", plain, "", 1, "/lora-adapters"},
    };
    scene s;
    begin(&s);
    write_slot(&s, "a", (kit_slot){0});
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char more[400];
        snprintf(more, sizeof more, ZERO " --server http://127.0.0.1:%u %s",
                 serve(cases[i].adapters, cases[i].slots), cases[i].more);
        assert_int_equal(put(&s, "a", more), cases[i].code);
        assert_says(&s, cases[i].says);
    }
    assert_int_equal(put(&s, "a", ZERO " --server http://127.0.0.1:1"), 1); /* nobody listens */
    assert_int_equal(put(&s, "a", ZERO " --server https://127.0.0.1:1"), 2);
    kit_remove(s.dir);
}

/* A process with this command line and environment that does nothing. */
static pid_t pretend(const char *const *args, const char *const *env)
{
    int go[2];
    assert_int_equal(pipe2(go, O_CLOEXEC), 0);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execve("/proc/self/exe", (char *const *)(uintptr_t)args, (char *const *)(uintptr_t)env);
        _exit(127);
    }
    close(go[1]); /* the other end closes with exec */
    char c;
    (void)!read(go[0], &c, 1);
    close(go[0]);
    return pid;
}

static void reads_the_process(void **state)
{
    (void)state;
    static const struct {
        const char *args[8], *env[3];
        int code;
        const char *says;
    } cases[] = {
        {{"/usr/bin/llama-server", "-m", "x", "--no-context-shift"}, {"A=1"}, 0, "\"saved\":"},
        {{"ld.so", "/usr/bin/llama-server", "--cache-reuse", "0"},
         {"LLAMA_ARG_CONTEXT_SHIFT=0"},
         0,
         "\"saved\":"},
        {{"llama-server", "--context-shift"}, {NULL}, 1, "--context-shift"},
        {{"llama-server", "--cache-reuse", "32"}, {NULL}, 1, "--cache-reuse"},
        {{"llama-server", "--context_shift"}, {NULL}, 1, "--context_shift"},
        {{"llama-server", "--cache_reuse", "32"}, {NULL}, 1, "--cache_reuse"},
        {{"llama-server", "--rope_freq-base", "1"}, {NULL}, 1, "--rope_freq-base"},
        {{"llama-server", "--override-kv", "llama.rope.freq_base=float:1"}, {NULL}, 1, "--override-kv"},
        {{"llama-server", "--fim-qwen-7b-default"}, {NULL}, 1, "--fim-qwen-7b-default"},
        {{"llama-server", "--lora", "l.gguf"}, {NULL}, 1, "--lora"},
        {{"llama-server", "--control-vector", "c.gguf"}, {NULL}, 1, "--control-vector"},
        {{"llama-server"}, {"A=1", "LLAMA_ARG_CONTEXT_SHIFT=1"}, 1, "LLAMA_ARG_CONTEXT_SHIFT"},
        {{"llama-server"}, {"LLAMA_ARG_CACHE_REUSE=8"}, 1, "LLAMA_ARG_CACHE_REUSE"},
        {{"llama-server"}, {"LLAMA_ATTN_ROT_DISABLE=1"}, 1, "LLAMA_ATTN_ROT_DISABLE"},
        {{"sleep", "60"}, {NULL}, 1, "not a llama-server"},
    };
    scene s;
    begin(&s);
    write_slot(&s, "a", (kit_slot){0});
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char more[200];
        pid_t pid = pretend(cases[i].args, cases[i].env);
        snprintf(more, sizeof more, ZERO " --pid %d", (int)pid);
        assert_int_equal(put(&s, "a", more), cases[i].code);
        assert_says(&s, cases[i].says);
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
    }
    assert_int_equal(put(&s, "a", ZERO " --pid 4194304"), 1); /* above the largest */
    kit_remove(s.dir);
}

/* --------------------------------------------------------------- whose files */

static void modes(void **state)
{
    (void)state;
    scene s;
    begin(&s);
    umask(0);
    write_slot(&s, "a", (kit_slot){0});
    assert_int_equal(put(&s, "a", ZERO), 0);
    kit_write_text(in(&s, "b"), "was here before", 0666);
    assert_int_equal(get(&s, "a", "b", ""), 0);
    assert_int_equal(kit_mode(in(&s, "b")), 0600);
    assert_int_equal(kit_quire(s.out, "export --dir %s/store %s/pages", s.dir, s.dir), 0);
    assert_int_equal(kit_mode(in(&s, "pages")), 0600);
    /* What is no file is written to and stays what it is. */
    assert_int_equal(kit_quire(s.out, "export --dir %s/store /dev/stdout > %s/piped", s.dir, s.dir), 0);
    assert_int_equal(access("/dev/stdout", W_OK), 0);
    assert_int_equal(kit_quire(s.out, "export --dir %s/store %s/no/such", s.dir, s.dir), 1);
    static const mode_t shared[] = {0640, 0604, 0644, 0620, 0602, 0666};
    for (size_t i = 0; i < sizeof shared / sizeof *shared; i++) {
        chmod(in(&s, "key"), shared[i]);
        assert_int_equal(put(&s, "a", ZERO), 1);
        assert_says(&s, "others can read or change the secret");
    }
    if (!geteuid()) { /* somebody else's, which a group may read and nobody may change */
        assert_int_equal(chown(in(&s, "key"), 12345, 12345), 0);
        chmod(in(&s, "key"), 0640);
        assert_int_equal(put(&s, "a", ZERO), 0);
        chmod(in(&s, "key"), 0660);
        assert_int_equal(put(&s, "a", ZERO), 1);
        assert_int_equal(chown(in(&s, "key"), 0, 0), 0);
    }
    chmod(in(&s, "key"), 0400);
    assert_int_equal(put(&s, "a", ZERO), 0);
    kit_write_text(in(&s, "password"), "x\n", 0644);
    assert_int_equal(
        kit_quire(s.out, "put-slot %s --password-file %s/password " ZERO " %s/a", s.common, s.dir, s.dir), 2);
    assert_says(&s, "only you can read and change");
    umask(022);
    kit_remove(s.dir);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(there_and_back),    cmocka_unit_test(codes),
    cmocka_unit_test(between_versions),  cmocka_unit_test(rotations),
    cmocka_unit_test(unknown_versions),  cmocka_unit_test(not_vouched),
    cmocka_unit_test(shown_by_the_file), cmocka_unit_test(asks_the_server),
    cmocka_unit_test(reads_the_process), cmocka_unit_test(modes),
};

int main(int argc, char **argv)
{
    (void)argc;
    if (!strstr(argv[0], "store_slots")) pause(); /* pretend() started it */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
