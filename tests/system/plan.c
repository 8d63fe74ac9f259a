/* SPDX-License-Identifier: MIT */
/* quire plan as a user calls it: what it recommends, what it never prints, and models that make no sense. */
#define _POSIX_C_SOURCE 200809L
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/model_files.h"

static int set_up(void **state)
{
    model_shape s;
    if (make_folder(state)) return -1;
    write_model("model.gguf", &plain_model);
    write_model("window.gguf", &window_model);
    s = plain_model;
    s.layers = 0;
    write_model("empty.gguf", &s);
    s = plain_model;
    s.context = 0;
    write_model("untrained.gguf", &s);
    s.context = INT32_MAX;
    write_model("huge.gguf", &s);
    s = plain_model;
    s.heads = s.kv_heads = 0;
    write_model("headless.gguf", &s);
    s = plain_model;
    s.context = 131072;
    s.rope_type = "yarn";
    s.rope_factor = 4;
    s.rope_original = 32768;
    write_model("yarn.gguf", &s);
    s = plain_model;
    s.head_size = 80;
    write_model("odd.gguf", &s);
    write_model("it's a model.gguf", &plain_model);
    return 0;
}

/* The line of the table that begins with a policy. */
static const char *row_of(const result *r, const char *policy)
{
    static char line[512];
    char start[64];
    snprintf(start, sizeof start, "\n%s ", policy);
    const char *at = strstr(r->text, start);
    if (!at) fail_msg("no row %s in %s", policy, r->text);
    snprintf(line, sizeof line, "%.*s", (int)strcspn(at + 1, "\n"), at + 1);
    return line;
}

static void expect_row(const char *arguments, const char *policy, const char *word)
{
    const char *line = row_of(run_in(arguments), policy);
    if (!strstr(line, word)) fail_msg("quire %s: no \"%s\" in \"%s\"", arguments, word, line);
}

/* The object of a policy. */
static const char *object_of(const result *r, const char *policy)
{
    static char object[1024];
    char start[64];
    snprintf(start, sizeof start, "{\"policy\":\"%s\",", policy);
    const char *at = strstr(r->text, start);
    if (!at) fail_msg("no %s in %s", policy, r->text);
    snprintf(object, sizeof object, "%.*s", (int)strcspn(at, "}"), at);
    return object;
}

static double number_of(const char *text, const char *key)
{
    return strtod(value_of(text, key), NULL);
}

static void test_rule(void **state)
{
    (void)state;
    need_command();
    expect("plan --ram 16G %M/model.gguf", 0,
           "\nrecommended: safe\n\n  quire run --kv safe -- llama-server -m /tmp/");
    /* 8192 tokens: safe needs 92.8 MiB, balanced 59.1, small 47.8 */
    expect("plan --ram 93M %M/model.gguf", 0, "\nrecommended: safe\n");
    expect(
        "plan --ram 92M %M/model.gguf", 0,
        "\nrecommended: balanced, because safe does not fit: it needs 92.8 MiB, and 92.0 MiB of memory is available.\n"
        "quire run takes balanced only if you ask for it, as this line does:\n\n  quire run --kv balanced -- ");
    expect("plan --ram 50M %M/model.gguf", 0, "\nrecommended: small, because safe does not fit");
    expect("plan --ram 50M %M/model.gguf", 0, " -c 8192 -np 1\n");
    expect("plan --help", 0, "The rule: safe is recommended");
    expect("plan --help", 0, "--kv fit");
    expect("plan --vram 8G %M/model.gguf 2>&1", 1,
           "the sizes of its weights cannot be read, which --vram needs");
}

/* No line that does not fit. */
static void test_short_of_memory(void **state)
{
    (void)state;
    need_command();
    expect(
        "plan --ram 10M %M/model.gguf", 0,
        "\nrecommended: small, but with a shorter context. At 8192 tokens no preset fits: small needs 47.8 MiB, and "
        "10.0 MiB of memory is available.\nThis line is for 1536 tokens:\n\n  quire run --kv small -- llama-server -m ");
    expect("plan --ram 10M %M/model.gguf", 0, ".gguf -c 1536 -np 1\n");
    expect("plan --ram 10M --parallel 3 %M/model.gguf", 0, ".gguf -c 1536 -np 3\n"); /* 512 each */
    expect(
        "plan --ram 1M %M/model.gguf", 0,
        "\nrecommended: small, but not even 256 tokens fit: they need 1.49 MiB, and 1.00 MiB of memory is available.\n"
        "There is no line to type.\n");
    expect_not("plan --ram 1M %M/model.gguf", 0, "quire run");
    expect_not("plan --ram 1 %M/model.gguf", 0, "quire run");
    expect("plan --json --ram 1M %M/model.gguf", 0,
           "\"recommended\":\"small\",\"fits\":false,\"command_tokens\":0,\"command\":null}");
    expect(
        "plan --json --ram 10M %M/model.gguf", 0,
        "\"recommended\":\"small\",\"fits\":false,\"command_tokens\":1536,\"command\":\"quire run --kv small ");
}

static void test_trained_context(void **state)
{
    (void)state;
    need_command();
    static const char warning[] =
        "--ctx 32768 is more than the 8192 tokens that the model was trained for; longer contexts need RoPE scaling "
        "(llama.cpp's --rope-scaling), and without it llama-server limits each slot to 8192 tokens";
    expect("plan --ctx 32768 --ram 16G %M/model.gguf", 0, warning);
    expect("plan --ctx 32768 --ram 16G --json %M/model.gguf", 0, warning);
    expect(
        "plan --ctx 32768 --ram 16G %M/model.gguf", 0,
        "\nrecommended: safe, for 8192 tokens, the context that the model was trained for\n\n  quire run ");
    expect("plan --ctx 32768 --ram 16G %M/model.gguf", 0, ".gguf -c 8192 -np 1\n");
    expect("plan --ctx 32768 --ram 16G --parallel 2 %M/model.gguf", 0, ".gguf -c 16384 -np 2\n");
    expect_not("plan --ctx 8192 --ram 16G %M/model.gguf", 0, "warning");
    /* safe does not fit at 32768 tokens, but at those of the line */
    expect("plan --ctx 32768 --ram 100M %M/model.gguf", 0, "\nrecommended: safe, for 8192 tokens");
    expect_row("plan --ctx 32768 --ram 100M %M/model.gguf", "safe", " no ");
    /* The longest is that of the model, with a mark if the memory holds more. */
    expect_row("plan --ram 16G %M/model.gguf", "f16", "  8192*  ");
    expect_row("plan --ram 92M %M/model.gguf", "safe", "  7936   ");
    expect("plan --ram 92M %M/model.gguf", 0,
           "The memory would hold more, with balanced 12544 tokens."); /* safe: less */
    result *r = run_in("plan --json --ram 1G %M/model.gguf");
    assert_true(number_of(object_of(r, "safe"), "longest") == 8192);
    assert_true(number_of(object_of(r, "safe"), "longest_in_memory") == 90368);
    assert_true(number_of(r->text, "trained_tokens") == 8192);
}

static void test_rope_scaling(void **state)
{
    (void)state;
    need_command();
    expect(
        "plan --ram 16G %M/yarn.gguf", 0,
        "It was trained for 131072 tokens, with RoPE scaling in the file (yarn, factor 4, original context 32768).\n");
    expect("plan --ram 16G %M/yarn.gguf", 0, ".gguf -c 131072 -np 1\n");
    expect(
        "plan --ram 16G --ctx 256K %M/yarn.gguf", 0,
        "--ctx 262144 is more than the 131072 tokens that the model was trained for, with RoPE scaling in the file "
        "(yarn, factor 4, original context 32768); longer contexts need other RoPE scaling");
    expect(
        "plan --ram 16G --json %M/yarn.gguf", 0,
        "\"trained_tokens\":131072,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"original_tokens\":32768}");
}

static void test_window_layers(void **state)
{
    (void)state;
    need_command();
    expect("plan --ctx 4096 --ram 16G %M/window.gguf", 0,
           "18 layers with a KV cache (15 of them keep only a window)");
    expect_row("plan --ctx 4096 --ram 16G %M/window.gguf", "safe", " 8.06  12.47      1548   21.0 MiB  yes ");
    expect_row("plan --ctx 4096 --ram 16G %M/window.gguf", "-ctk q8_0",
               " 8.50   8.50      1632   14.3 MiB  yes ");
    expect("plan --ctx 4096 --ram 16G %M/window.gguf", 0, "\"all\" also the window layers, at 4096 tokens");
    expect_not("plan --ctx 4096 --ram 16G %M/model.gguf", 0, "window");
    result *r = run_in("plan --json --ctx 4096 --ram 16G %M/window.gguf");
    assert_true(number_of(object_of(r, "f16"), "kv_bytes") == 27 * 1048576);
    assert_true(number_of(object_of(r, "safe"), "kv_bytes") == 99072.0 * 64 + 983040.0 * 16);
    assert_true(number_of(object_of(r, "safe"), "bits_all") == 12.47);
    assert_true(number_of(r->text, "window_layers") == 15);
}

/* llama.cpp's own types, with what was measured of them there. */
static void test_stock_rows(void **state)
{
    static const char line[] = "plan --json --ctx 4096 --ram 16G %M/model.gguf";
    (void)state;
    need_command();
    result *r = run_in(line);
    assert_true(number_of(object_of(r, "-ctk q8_0"), "kv_bytes") == 12240.0 * 4096);
    assert_true(number_of(object_of(r, "-ctk q8_0"), "kld") > 0);
    assert_true(number_of(object_of(r, "-ctk q8_0"), "kld") < 0.001);
    assert_true(number_of(object_of(r, "-ctk q8_0"), "top1") > 98);
    assert_true(number_of(object_of(r, "-ctk q4_0"), "kv_bytes") == 6480.0 * 4096);
    assert_true(number_of(object_of(r, "-ctk q4_0"), "kld") > number_of(object_of(r, "small"), "kld"));
    assert_null(strstr(object_of(r, "-ctk q4_0"), "warning"));
    expect_not("plan --ram 16G %M/model.gguf", 0, "not measured");
    /* It has no rows of other lengths than multiples of 32. */
    expect_not("plan --ram 16G %M/odd.gguf", 0, "-ctk q8_0");
}

static void test_json(void **state)
{
    (void)state;
    need_command();
    result *r = run_in("plan --json --ctx 4096 %M/model.gguf");
    assert_int_equal(r->code, 0);
    assert_non_null(
        strstr(r->text, "\"policy\":\"r8/r4\",\"canonical\":\"r8/r4\",\"bits\":6.25,\"bytes_per_token\":9000,"
                        "\"kv_bytes\":36864000,\"fits\":true"));
    assert_non_null(strstr(r->text, "\"default\":\"safe\",\"recommended\":\"safe\",\"fits\":true,"));
    assert_int_equal(each_line(r->text, NULL), 1);
}

static void test_path(void **state)
{
    (void)state;
    need_command();
    expect("plan \"%M/it's a model.gguf\"", 0, "/it'\\''s a model.gguf' -c 8192 -np 1\n");
}

static void test_profile(void **state)
{
    (void)state;
    need_command();
    expect_not("plan --ram 16G %M/model.gguf", 0, "profile %M");
    expect(
        "--version >/dev/null; echo nonsense >%M/yarn.quire-profile; %B/quire plan --ram 16G %M/yarn.gguf; rm "
        "%M/yarn.quire-profile",
        0, "yarn.quire-profile beside the model cannot be read and is not used.\n");
}

static void test_hostile(void **state)
{
    (void)state;
    need_command();
    expect("plan 2>&1", 2, "it needs a model");
    expect("plan --ram lots %M/model.gguf 2>&1", 2, "--ram expects bytes");
    expect("plan --ram 16Gi %M/model.gguf 2>&1", 2, "--ram expects bytes");
    expect("plan --ram 1.5T %M/model.gguf", 0, "1.50 TiB");
    expect("plan --parallel 257 %M/model.gguf 2>&1", 2, "--parallel expects a number from 1 to 256");
    expect("plan --ctx 0 %M/model.gguf 2>&1", 2, "--ctx expects a number");
    expect("plan --ctx 2G %M/model.gguf 2>&1", 2, "--ctx expects a number");
    expect("plan %M/model.gguf %M/model.gguf 2>&1", 2, "give only one model; the second one is");
    expect("plan --profile /nowhere %M/model.gguf 2>&1", 1, "the profile /nowhere cannot be used");
    expect("plan %M/empty.gguf 2>&1", 1, "0 layers");
    expect("plan %M/headless.gguf 2>&1", 1, "without a KV cache");
    expect("plan %M/nowhere.gguf 2>&1", 1, "No such file");
    expect("plan --profile %M/nowhere %M/model.gguf 2>&1", 1, "No such file");
    expect("--version >/dev/null; mkfifo %M/pipe && timeout 10 %B/quire plan %M/pipe 2>&1", 1,
           "it is not a file");
    /* A file that does not say for what it was trained. */
    expect("plan %M/untrained.gguf 2>&1", 2,
           "does not say for how many tokens the model was trained; --ctx is needed");
    expect("plan --ctx 4096 --ram 16G %M/untrained.gguf", 0, "The file does not say for how many tokens");
    expect("plan --ctx 4096 --ram 16G %M/untrained.gguf", 0, ".gguf -c 4096 -np 1\n");
    expect_not("plan --ctx 4096 --ram 16G %M/untrained.gguf", 0, "*");
    /* -c is an int, whatever fits into a memory that nobody has */
    expect("plan --ctx 1G --parallel 256 --ram 1048576G %M/untrained.gguf", 0,
           ".gguf -c 2147418112 -np 256\n");
    expect("plan --ram 1048576G %M/huge.gguf", 0, ".gguf -c 2147483392 -np 1\n");
    result *r = run_in("plan --json --ram 1048576G --parallel 256 %M/huge.gguf");
    assert_int_equal(r->code, 0);
    assert_int_equal(each_line(r->text, NULL), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rule),
        cmocka_unit_test(test_short_of_memory),
        cmocka_unit_test(test_trained_context),
        cmocka_unit_test(test_rope_scaling),
        cmocka_unit_test(test_window_layers),
        cmocka_unit_test(test_stock_rows),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_path),
        cmocka_unit_test(test_profile),
        cmocka_unit_test(test_hostile),
    };
    return cmocka_run_group_tests(tests, set_up, remove_folder);
}
