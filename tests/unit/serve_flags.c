/* SPDX-License-Identifier: MIT */
/* llama.cpp's config.ini: read as llama.cpp reads it, below variables and flags; what makes rows untrue is refused by file and key. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "serve/flags.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[] = "/tmp/quire-config.XXXXXX", message[PLACE_SIZE + 512];
static host_config config;
static serve_flags flags;
static const char of_system[] = "/etc/llama.cpp/config.ini", of_user[] = "/u/.config/llama.cpp/config.ini",
                  of_xdg[] = "/xdg/llama.cpp/config.ini";

static void put_bytes(const char *name, const void *bytes, size_t n)
{
    char path[256];
    snprintf(path, sizeof path, "%s%s", root, name);
    for (char *slash = path + sizeof root; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = 0;
        mkdir(path, 0700);
    }
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
}

static void put(const char *name, const char *text)
{
    put_bytes(name, text, strlen(text));
}

static void drop(const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "%s%s", root, name);
    unlink(path);
}

static const char *read_again(const char *xdg)
{
    const host_config_place where = {.root = root, .xdg = xdg, .home = "/u"};
    host_config_free(&config);
    return host_config_read(&config, &where, message, sizeof message);
}

static int clear(void **state)
{
    (void)state;
    drop(of_system);
    drop(of_user);
    drop(of_xdg);
    host_config_free(&config);
    flags_free(&flags);
    return 0;
}

/* "key=value key=value", in the order in which they are applied. */
static const char *entries(void)
{
    static char text[1024];
    size_t n = 0;
    *text = 0;
    for (size_t i = 0; i < config.n; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%s=%s", i ? "|" : "", config.entries[i].key,
                              config.entries[i].value);
    return text;
}

static void expect_entries(const char *text, const char *want)
{
    put(of_user, text);
    assert_null(read_again(NULL));
    assert_string_equal(entries(), want);
}

static void test_lines(void **state)
{
    (void)state;
    expect_entries("", "");
    expect_entries("a=1", "a=1");
    expect_entries("a = 1\r\nb\t=\t2 \r\n", "a=1|b=2");
    expect_entries("a=1\rb=2", "a=1|b=2");
    expect_entries("; no\n  # no\n\t\na=x y  # rest\nb=p;q\nc=\nd= #\n", "a=x y|b=p|c=|d=");
    expect_entries("_a.b-c9=1\n", "_a.b-c9=1");
    expect_entries("version=2\na=1", "a=1");
    /* Within a section by the bytes of the key, and of the same key the last. */
    expect_entries("c=3\nb=2\na=1\nb=4\nB=5", "B=5|a=1|b=2|b=4|c=3");
    assert_string_equal(host_config_value(&config, NULL, "--b", NULL), "4");
}

static void test_sections(void **state)
{
    (void)state;
    expect_entries("a=1\n[x]\nb=2\n[*]\nz=3\n[ default]\nc=4\n",
                   "z=3|c=4"); /* what was there before is gone */
    expect_entries("[*]\na=1\n[*] ; again\nb=1\n[gone:Q4]\nb=2", "b=1");
    expect_entries("[x\ny]\na=1\n", "");
    expect_entries("[ x ]\nlora=1\n", "");
}

static void test_not_understood(void **state)
{
    static const char *const texts[] = {
        " a=1",       "--a=1", "a",   "a b=1",   "1=2", "[default ]\na=1",  "[* ]\n",
        "[]",         "[x",    "[ ]", "[x] y=1", "=1",  "\xef\xbb\xbf_a=1", /* a mark of UTF-8 */
        "a=1\nb\nc=2"};
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        put(of_user, texts[i]);
        if (!read_again(NULL)) fail_msg("\"%s\" is understood", texts[i]);
        assert_non_null(strstr(message, of_user));
    }
    assert_non_null(strstr(message, "line 2"));
    put_bytes(of_user, "a=1\0b=2", 7);
    assert_non_null(read_again(NULL));
    char *large = (char *)malloc(2 << 20);
    assert_non_null(large);
    memset(large, '\n', 2 << 20);
    put_bytes(of_user, large, 2 << 20);
    free(large);
    assert_non_null(read_again(NULL));
    drop(of_user);
    char path[256];
    snprintf(path, sizeof path, "%s%s", root, of_user);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_non_null(read_again(NULL));
    rmdir(path);
    assert_null(read_again(NULL));
}

static void test_places(void **state)
{
    (void)state;
    put(of_system, "a=1\nb=1\n");
    put(of_user, "b=2\n");
    put(of_xdg, "b=3\n");
    assert_null(read_again(NULL));
    assert_string_equal(entries(), "a=1|b=1|b=2");
    assert_null(read_again(""));
    assert_string_equal(entries(), "a=1|b=1|b=2");
    assert_null(read_again("/xdg"));
    assert_string_equal(entries(), "a=1|b=1|b=3");
    assert_null(read_again("/xdg/")); /* another process's */
    assert_non_null(read_again("xdg"));
    const host_config_place account = {.root = root, .user_home = "/u"};
    host_config_free(&config);
    assert_null(host_config_read(&config, &account, message, sizeof message));
    assert_string_equal(entries(), "a=1|b=1|b=2");
}

static const char *read_line(const char *text, char **words, bool with_files)
{
    int n = 0;
    const serve_place place = {.socket = "/s", .folder = "/f", .config = with_files ? &config : NULL};
    while (words[n]) n++;
    if (text) put(of_user, text);
    const char *wrong = read_again(NULL);
    assert_null(wrong);
    flags_free(&flags);
    return flags_read(&flags, n, words, &place, message, sizeof message);
}

static const char *judge(const char *text)
{
    static char server[] = "llama-server", flag[] = "-m", model[] = "a.gguf"; /* flags point to them */
    static char *words[] = {server, flag, model, NULL};
    return read_line(text, words, true);
}

static void test_refused(void **state)
{
    static const char *const texts[] = {"lora=/x.gguf",
                                        "lora-scaled=/x.gguf:2",
                                        "lora-init-without-apply=0",
                                        "control-vector=/x",
                                        "control-vector-scaled=/x:1",
                                        "override-kv=a=int:1",
                                        "cache-reuse=64",
                                        "LLAMA_ARG_CACHE_REUSE=64",
                                        "context-shift=1",
                                        "context-shift=true",
                                        "context-shift=maybe",
                                        "no-context-shift=0",
                                        "no-context-shift=no",
                                        "LLAMA_ARG_CONTEXT_SHIFT=on",
                                        "LLAMA_ARG_NO_CONTEXT_SHIFT=1",
                                        "gan=2",
                                        "grp-attn-n=2",
                                        "LLAMA_ARG_GRP_ATTN_N=2",
                                        "gaw=2",
                                        "models-preset=/x.ini",
                                        "models-dir=/x",
                                        "fim-qwen-7b-spec=0",
                                        "gpt-oss-20b-default=0",
                                        "embd-gemma-default=",
                                        "hf=a/b",
                                        "hf-repo=a/b",
                                        "hfr=a/b",
                                        "hf-file=x",
                                        "hff=x",
                                        "mu=x",
                                        "model-url=x",
                                        "LLAMA_ARG_MODEL_URL=x",
                                        "dr=x",
                                        "docker-repo=x",
                                        "kv-unified=1",
                                        "kvu=true",
                                        "no-kv-unified=0",
                                        "no-kvu=no",
                                        "LLAMA_ARG_KV_UNIFIED=1",
                                        "LLAMA_ARG_NO_KV_UNIFIED=1",
                                        "no-cache-prompt=1",
                                        "cache-prompt=0",
                                        "cache-prompt=no",
                                        "LLAMA_ARG_CACHE_PROMPT=0",
                                        "slot-save-path=/tmp",
                                        "ssl-key-file=x",
                                        "ssl-cert-file=x",
                                        "embedding=0",
                                        "embeddings=1",
                                        "rerank=0",
                                        "reranking=1",
                                        "sleep-idle-seconds=60",
                                        "LLAMA_ARG_SLEEP_IDLE_SECONDS=60",
                                        "np=x",
                                        "ctx-size=x",
                                        "port=x",
                                        "api_key=k",
                                        "hf_repo=a/b"};
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        if (!judge(texts[i])) fail_msg("%s is taken", texts[i]);
        if (strchr(message, '\n')) fail_msg("%s", message);
        char key[64];
        snprintf(key, sizeof key, "%.*s in %s", (int)strcspn(texts[i], "="), texts[i], root);
        /* of these three what counts is known after flags and variables only */
        if (!strstr(message, key) && !strstr(texts[i], "=x")) fail_msg("%s: %s", texts[i], message);
    }
    put(of_system, "[*]\nlora = /x\n");
    assert_non_null(judge(""));
    assert_non_null(strstr(message, of_system));
}

static void test_harmless(void **state)
{
    (void)state;
    assert_null(judge("threads=2\ntemp=0.5\ncontext-shift=false\nno-context-shift=true\ncache-reuse=0\n"
                      "kv-unified=off\nno-kv-unified=1\ncache-prompt=on\nno-cache-prompt=false\n"
                      "sleep-idle-seconds=-1\nunknown=1\nspec-default=1\n[other]\nlora=/x\n"));
    assert_string_equal(flags.rope, "");
    assert_string_equal(flags.model, "a.gguf");
    assert_int_equal(flags.port, 8080);
}

static bool has_pair(const char *flag, const char *value)
{
    for (int i = 1; i + 1 < flags.argc; i++)
        if (!strcmp(flags.argv[i], flag) && !strcmp(flags.argv[i + 1], value)) return true;
    return false;
}

static void test_precedence(void **state)
{
    static const char file[] =
        "port=1111\nhost=1.1.1.1\nnp=2\nc=1000\nctx-size=512\nmodel=file.gguf\napi-key=k1\n"
        "api-prefix=/f\napi-key-file=/keys\nrope-freq-base=5000\nswa-full=0\n";
    char *bare[] = {(char[]){"llama-server"}, NULL};
    char *line[] = {(char[]){"llama-server"},
                    (char[]){"--port"},
                    (char[]){"3333"},
                    (char[]){"-c"},
                    (char[]){"0"},
                    (char[]){"-m"},
                    (char[]){"line.gguf"},
                    NULL};
    (void)state;
    assert_null(read_line(file, bare, true));
    assert_int_equal(flags.port, 1111);
    assert_string_equal(flags.host, "1.1.1.1");
    assert_int_equal(flags.n_slots, 2);
    assert_int_equal(flags.context, 512); /* "ctx-size" comes after "c" */
    assert_string_equal(flags.model, "file.gguf");
    assert_string_equal(flags.api_key, "k1");
    assert_string_equal(flags.api_key_file, "/keys");
    assert_string_equal(flags.prefix, "/f");
    assert_string_equal(flags.rope, "config.ini:rope-freq-base=5000");
    assert_true(flags.swa_full);
    assert_true(has_pair("-m", "file.gguf") && has_pair("-c", "1024") && has_pair("--host", "/s"));

    setenv("LLAMA_ARG_PORT", "2222", 1);
    setenv("LLAMA_ARG_N_PARALLEL", "3", 1);
    setenv("LLAMA_ARG_MODEL", "variable.gguf", 1);
    assert_null(read_line(NULL, bare, true));
    assert_int_equal(flags.port, 2222);
    assert_int_equal(flags.n_slots, 3);
    assert_string_equal(flags.model, "variable.gguf");

    setenv("LLAMA_ARG_PORT", "2222", 1);
    assert_null(read_line(NULL, line, true));
    assert_int_equal(flags.port, 3333);
    assert_string_equal(flags.model, "line.gguf");
    assert_int_equal(flags.context, 0);
    assert_true(has_pair("-c", "0")); /* else the server would take the file's */
    assert_false(has_pair("-m", "file.gguf"));
    unsetenv("LLAMA_ARG_MODEL");

    put(of_system, "port=9\nLLAMA_ARG_CTX_SIZE=64\n[*]\nport=10\n");
    assert_null(read_line("[*]\nport=11\nnp=2\n[default]\nnp=4\n", bare, true));
    assert_int_equal(flags.port, 11);
    assert_int_equal(flags.n_slots, 4);
    assert_true(has_pair("-c", "256"));
    assert_null(read_line(NULL, bare, false)); /* the files count only if they were read */
    assert_int_equal(flags.port, 8080);
}

static void test_rope(void **state)
{
    char *line[] = {(char[]){"llama-server"}, (char[]){"--rope-freq-base"}, (char[]){"7"}, NULL};
    (void)state;
    put(of_system, "rope-freq-base=1\n");
    assert_null(read_line("rope-freq-base=2\nLLAMA_ARG_YARN_EXT_FACTOR=1\n", line, true));
    assert_string_equal(flags.rope, "--rope-freq-base=7 config.ini:rope-freq-base=1 "
                                    "config.ini:LLAMA_ARG_YARN_EXT_FACTOR=1 config.ini:rope-freq-base=2");
}

static int begin(void **state)
{
    (void)state;
    extern char **environ;
    for (char **v = environ; *v;) {
        char name[128];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(*v, "="), *v);
        if (!strncmp(name, "LLAMA_", 6))
            unsetenv(name);
        else
            v++;
    }
    return mkdtemp(root) ? 0 : -1;
}

static int end(void **state)
{
    char line[128];
    clear(state);
    snprintf(line, sizeof line, "rm -r %s", root);
    return system(line);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_lines, clear),
        cmocka_unit_test_teardown(test_sections, clear),
        cmocka_unit_test_teardown(test_not_understood, clear),
        cmocka_unit_test_teardown(test_places, clear),
        cmocka_unit_test_teardown(test_refused, clear),
        cmocka_unit_test_teardown(test_harmless, clear),
        cmocka_unit_test_teardown(test_precedence, clear),
        cmocka_unit_test_teardown(test_rope, clear),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
