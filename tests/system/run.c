/* SPDX-License-Identifier: MIT */
/* quire run and quire plan as a user calls them: models made here, and hosts that cannot load the device. */
#define _POSIX_C_SOURCE 200809L
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/command_kit.h"
#include "support/gguf_bytes.h"

static char folder[] = "/tmp/quire-run-XXXXXX";

/* 30 layers of 3 KV heads of 64: 23040 bytes per token in f16, 9000 in r8/r4. */
static void write_model(const char *name, uint32_t layers)
{
    static gguf_bytes b;
    char path[256];
    gguf_begin(&b);
    gguf_string(&b, "general.architecture", "llama");
    gguf_u32(&b, "llama.block_count", layers);
    gguf_u32(&b, "llama.context_length", 8192);
    gguf_u32(&b, "llama.embedding_length", 576);
    gguf_u32(&b, "llama.attention.head_count", 9);
    gguf_u32(&b, "llama.attention.head_count_kv", 3);
    gguf_end(&b);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(b.data, 1, b.n, file), b.n);
    fclose(file);
}

static int set_up(void **state)
{
    if (find_command(state)) return -1;
    if (!mkdtemp(folder)) return -1;
    write_model("model.gguf", 30);
    write_model("empty.gguf", 0);
    return 0;
}

static int tear_down(void **state)
{
    char line[256];
    (void)state;
    snprintf(line, sizeof line, "rm -r %s", folder);
    return system(line);
}

/* %M is the folder of the models, %B that of the programs. */
static result *run_in(const char *arguments)
{
    char line[2048], *to = line, bin[PATH_MAX];
    snprintf(bin, sizeof bin, "%s", quire_path);
    *strrchr(bin, '/') = 0;
    for (const char *p = arguments; *p; p++)
        if (*p == '%' && (p[1] == 'M' || p[1] == 'B'))
            to += sprintf(to, "%s", *++p == 'M' ? folder : bin);
        else
            *to++ = *p;
    *to = 0;
    return run(line);
}

static void expect(const char *arguments, int code, const char *word)
{
    result *r = run_in(arguments);
    if (r->code != code || !strstr(r->text, word))
        fail_msg("quire %s: exit code %d, no \"%s\" in \"%s\"", arguments, r->code, word, r->text);
}

static void test_line(void **state)
{
    (void)state;
    need_command();
    expect("run --kv r8/r4 -- true -m %M/model.gguf -c 4096 2>&1", 0,
           "quire run: r8/r4: KV cache of 4096 tokens 35.2 MiB instead of 90.0 MiB in f16, 54.8 MiB saved\n");
    expect("run true -m %M/model.gguf 2>&1", 0, "balanced is r6/r4: KV cache of 8192 tokens");
    expect("run --json --kv r8/r4 -- true --model %M/model.gguf -c 8192 -np 2 2>&1", 0,
           "\"tokens\":4096,\"sequences\":2,\"f16_bytes\":188743680,\"bytes\":73728000,");
    expect("run --kv r4 -- true -m %M/model.gguf 2>&1", 0, "quire run: warning: K in r4");
    expect("run -- true -m %M/model.gguf -fa off 2>&1", 0, "nothing is saved, because -fa off");
    expect("run -- true -ngl 0 2>&1", 0, "-ngl 0");
    expect("run true 2>&1", 0, "name no model file");
}

static void test_environment(void **state)
{
    (void)state;
    need_command();
    expect("run --kv r5/r4 -- sh -c 'echo $QUIRE_KV $GGML_BACKEND_PATH' 2>/dev/null", 0, "r5/r4 /");
    expect("run --kv r5/r4 --env -- sh 2>/dev/null", 0, "QUIRE_KV=r5/r4\n");
    expect("run -- sh -c 'exit 7' 2>/dev/null", 7, "");
    expect("run -- sh -c 'echo $0 $*' --help --json 2>/dev/null", 0, "--help --json");
    expect("--version >/dev/null; GGML_BACKEND_PATH=/x/other.so %B/quire run --env sh 2>/dev/null", 0,
           "QUIRE_CHAIN=/x/other.so\n");
    expect("--version >/dev/null; QUIRE_KV=r6/r3 %B/quire run --env sh 2>/dev/null", 0, "QUIRE_KV=r6/r3\n");
}

static void test_refusals(void **state)
{
    (void)state;
    need_command();
    expect("run 2>&1", 2, "it needs a program");
    expect("run --nonsense sh 2>&1", 2, "--nonsense");
    expect("run -- /nowhere/llama-server 2>&1", 1, "there is no program /nowhere/llama-server");
    expect("run --kv x9 -- sh 2>&1", 1, "\"x9\" is not a preset or a codec");
    expect("run --kv c:r4/r4 -- sh -m %M/model.gguf 2>&1", 1,
           "needs a profile; this makes one: quire calibrate");
    expect("run --profile /nowhere -- sh 2>&1", 1, "profile /nowhere");
    expect("run -- sh -m /nowhere.gguf 2>&1", 1, "/nowhere.gguf: No such file");
    expect("run -- sh -m %M/empty.gguf 2>&1", 1, "0 layers");
    expect("run -- sh -m %B/quire 2>&1", 1, "not a GGUF file");
    expect("--version >/dev/null; QUIRE_PLUGIN=/nowhere.so %B/quire run sh 2>&1", 1, "libggml-quire.so");
}

static void test_hosts(void **state)
{
    (void)state;
    need_command();
    expect("run -- %B/fake_static_host 2>&1", 1, "has ggml built in, so it cannot load the device");
    expect("run -- %B/fake_shared_host 2>&1", 1, "cannot load the device: ggml 0.99.0 is not supported");
}

static void test_profile_beside(void **state)
{
    (void)state;
    need_command();
    expect(
        "--version >/dev/null; echo nonsense >%M/model.quire-profile; %B/quire run -- true -m %M/model.gguf 2>&1;"
        "rm %M/model.quire-profile",
        0, "the profile beside the model cannot be read");
}

static void test_plan(void **state)
{
    (void)state;
    need_command();
    expect("plan %M/model.gguf", 0, "recommended: safe");
    expect("plan --ram 100M %M/model.gguf", 0, "quire run --kv safe -- llama-server -m /tmp/quire-run-");
    expect("plan --ram 60M %M/model.gguf", 0, "recommended: balanced");
    expect("plan --ram 10M %M/model.gguf", 0, "at that length nothing fits");
    expect("plan --parallel 2 --ctx 1K %M/model.gguf", 0, "-c 2048 -np 2\n");
    result *r = run_in("plan --json --ctx 4096 %M/model.gguf");
    assert_int_equal(r->code, 0);
    assert_non_null(
        strstr(r->text, "\"policy\":\"r8/r4\",\"canonical\":\"r8/r4\",\"bits\":6.25,\"bytes_per_token\":9000,"
                        "\"kv_bytes\":36864000,\"fits\":true"));
    assert_int_equal(each_line(r->text, NULL), 1);
    expect("plan 2>&1", 2, "needs a model");
    expect("plan --ram lots %M/model.gguf 2>&1", 2, "--ram expects bytes");
    expect("plan %M/empty.gguf 2>&1", 1, "0 layers");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_line),  cmocka_unit_test(test_environment),    cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_hosts), cmocka_unit_test(test_profile_beside), cmocka_unit_test(test_plan),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
