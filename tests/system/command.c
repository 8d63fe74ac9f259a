/* SPDX-License-Identifier: MIT */
/* The command `quire` as a user calls it: help, codecs, bench at tiny shapes, and lines that are wrong. */
#define _GNU_SOURCE /* sched_setaffinity */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "quire/quire.h"
#include "support/command_kit.h"

#include <sched.h>

/* ------------------------------------------------------------------- tests */

static void test_help(void **state)
{
    (void)state;
    need_command();
    result *r = run("--help");
    assert_int_equal(r->code, 0);
    assert_non_null(strstr(r->text, "codecs"));
    assert_non_null(strstr(r->text, "examples:"));
    static const char *const lines[] = {"codecs --help",         "bench --help", "help bench",
                                        "bench --context 1K -h", "rows --help",  "calibrate --help"};
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        r = run(lines[i]);
        assert_int_equal(r->code, 0);
        assert_non_null(strstr(r->text, "usage: quire "));
        assert_non_null(strstr(r->text, "--json"));
        assert_non_null(strstr(r->text, "examples:"));
    }
    assert_int_equal(run("2>/dev/null")->code, 2);
}

static const char *const names[] = {"run",   "plan",      "stat", "cache", "codecs",
                                    "bench", "calibrate", "eval", "rows"};
#define N_NAMES (sizeof names / sizeof names[0])

/* Text, manual and completion come from the same tables. */
static void test_every_command_is_explained(void **state)
{
    static const char *const parts[] = {".TH ", ".SH NAME", ".SH SYNOPSIS", ".SH EXIT STATUS",
                                        ".SH EXAMPLES"};
    char line[128];
    (void)state;
    need_command();
    for (size_t i = 0; i < N_NAMES; i++) {
        snprintf(line, sizeof line, "help --man %s", names[i]);
        result *r = run(line);
        assert_int_equal(r->code, 0);
        for (size_t j = 0; j < sizeof parts / sizeof parts[0]; j++)
            assert_non_null(strstr(r->text, parts[j]));
        if (strcmp(names[i], "eval") == 0) continue; /* its help is that of a script */
        snprintf(line, sizeof line, "%s --help", names[i]);
        r = run(line);
        assert_int_equal(r->code, 0);
        assert_non_null(strstr(r->text, "usage: quire "));
        assert_non_null(strstr(r->text, "--json"));
        assert_non_null(strstr(r->text, "examples:\n  "));
        assert_non_null(strstr(r->text, "Exit codes: "));
    }
    result *r = run("help --man");
    for (size_t i = 0; i < N_NAMES; i++) {
        snprintf(line, sizeof line, "quire\\-%s (1)", names[i]);
        assert_non_null(strstr(r->text, line));
    }
    /* If there is a man, it has nothing to complain about. */
    r = run("help --man run 2>&1 >/tmp/quire-page.$$; ! command -v groff >/dev/null ||"
            "groff -man -Tutf8 -ww -z /tmp/quire-page.$$ 2>&1; rm -f /tmp/quire-page.$$");
    assert_string_equal(r->text, "");
    assert_int_equal(run("help nonsense 2>/dev/null")->code, 2);
}

/* An option that a command has in its own way stands in the help once; one that it would refuse does not. */
static void test_options_of_serve(void **state)
{
    (void)state;
    need_command();
    result *r = run("serve --help 2>/dev/null");
    if (r->code) skip(); /* built without it */
    const char *at = strstr(r->text, "\n  --timeout MS");
    assert_non_null(at);
    assert_non_null(strstr(at, "(default: 2000)"));
    assert_null(strstr(at + 1, "\n  --timeout MS"));
    assert_null(strstr(r->text, "\n  --profile"));
}

static void test_completion(void **state)
{
    (void)state;
    need_command();
    result *r = run("help --completion >/tmp/quire-completion.$$ && F=/tmp/quire-completion.$$ bash -c '. $F;"
                    "COMP_WORDS=(quire pl); COMP_CWORD=1; _quire; echo ${COMPREPLY[*]};"
                    "COMP_WORDS=(quire plan --pa); COMP_CWORD=2; _quire; echo ${COMPREPLY[*]}';"
                    "rm -f /tmp/quire-completion.$$");
    assert_string_equal(r->text, "plan\n--parallel\n");
}

static void look_at_codec(const char *line, uint32_t index)
{
    char start[64];
    const quire_codec_info *info = quire_codec_at(index);
    assert_non_null(info);
    snprintf(start, sizeof start, "{\"name\":\"%s\",", info->name);
    assert_memory_equal(line, start, strlen(start));
    assert_true(strtod(value_of(line, "128"), NULL) == quire_codec_bits(info->name, 128));
    value_of(line, "sides");
    value_of(line, "exchanges");
    value_of(line, "summary");
}

static void test_codecs(void **state)
{
    (void)state;
    need_command();
    result *r = run("codecs --json");
    assert_int_equal(r->code, 0);
    assert_int_equal(each_line(r->text, look_at_codec), quire_codec_count());
    r = run("codecs");
    assert_int_equal(r->code, 0);
    for (uint32_t i = 0; i < quire_codec_count(); i++) {
        char start[64];
        snprintf(start, sizeof start, "\n%s ", quire_codec_at(i)->name);
        assert_non_null(strstr(r->text, start));
    }
    r = run("codecs --json r4 q8_0");
    assert_int_equal(r->code, 0);
    assert_int_equal(each_line(r->text, NULL), 2);
    r = run("codecs --presets --json");
    assert_int_equal(r->code, 0);
    assert_non_null(strstr(r->text, "\"name\":\"balanced\""));
    assert_int_equal(each_line(r->text, NULL), quire_preset_count());
    assert_int_equal(run("codecs --presets r4 2>/dev/null")->code, 2);
}

/* The form is fixed: other programs read it. */
static void look_at_row(const char *line, uint32_t index)
{
    static const char *const keys[] = {"impl",     "op",      "k",       "v",       "d",         "dv",
                                       "kv_heads", "q_heads", "context", "queries", "sequences", "cold",
                                       "threads",  "isa",     "ms",      "read_ms", "err",       "runs"};
    (void)index;
    const char *last = line;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const char *at = value_of(line, keys[i]);
        assert_true(at > last);
        last = at;
    }
    value_of(line, "median_ms");
    assert_true(strtod(value_of(line, "ms"), NULL) > 0);
    double err = strtod(value_of(line, "err"), NULL);
    bool append = strncmp(value_of(line, "op"), "\"append\"", 8) == 0;
    if (append)
        assert_true(strtod(value_of(line, "ns_per_row"), NULL) > 0);
    else
        assert_true(strtod(value_of(line, "read_ms"), NULL) > 0);
    if (!append) { /* where memory and threads were */
        double huge = strtod(value_of(line, "huge"), NULL);
        const char *team = value_of(line, "team");
        assert_true(huge >= 0 && huge <= 1);
        assert_true(!strncmp(team, "\"pinned\"", 8) || !strncmp(team, "\"unpinned\"", 10) ||
                    !strncmp(team, "\"shared\"", 8));
    }
    if (!(append ? err == 0 : err > 0 && err < 1e-3)) fail_msg("error in %s", line);
}

/* Bounds on rows that the line gives; every one of them is looked at. */
static void bench(const char *options, uint32_t n_rows)
{
    char line[512];
    snprintf(line, sizeof line, "bench --json --rounds 2 %s", options);
    result *r = run(line);
    assert_int_equal(r->code, 0);
    assert_int_equal(each_line(r->text, look_at_row), n_rows);
}

static void test_bench(void **state)
{
    (void)state;
    need_command();
    bench("--context 100,256 --heads 2:4 --d 64 --codecs k8v4,r5/r3,c:r4/r3", 6);
    bench(
        "--op prefill,append --queries 8 --context 200 --heads 2:4 --d 64,128 --codecs a4g64,f16,q4_0 --threads 1",
        12);
    bench("--d 48/32 --heads 1:3 --context 70 --codecs r8,bf16", 2);
    bench("--d 96:32 --heads 2:2 --lengths 1,64,200 --codecs h:a5g32,tq3 --spread 6 --seed 7", 2);
    bench("--sequences 3 --queries 2 --context 130 --heads 1:2 --d 32 --codecs r6", 1);
    result *r = run("bench --json --rounds 2 --context 100 --heads 1:1 --d 64 --codecs a8g64");
    assert_non_null(strstr(
        r->text, "\"impl\":\"quire\",\"op\":\"decode\",\"k\":\"a8g64\",\"v\":\"a8g64\",\"d\":64,\"dv\":64,"
                 "\"kv_heads\":1,\"q_heads\":1,\"context\":100,\"queries\":1,\"sequences\":1,"
                 "\"cold\":false,\"threads\":2,\"isa\":\""));
    assert_non_null(strstr(r->text, "\"runs\":2,"));
}

static void test_bench_isas(void **state)
{
    (void)state;
    need_command();
    uint32_t n = 0;
    while (quire_isa_at(n)) n++;
    bench("--op decode,append --isa all --context 100 --heads 2:4 --d 64 --codecs a4g64,r4", 4 * n);
}

static void test_tables_and_plot(void **state)
{
    (void)state;
    need_command();
    char folder[] = "/tmp/quire-command-XXXXXX", line[512];
    assert_non_null(mkdtemp(folder));
    snprintf(line, sizeof line,
             "bench --rounds 1 --context 64,128 --heads 1:2 --d 32 --codecs r4,f16 --plot %s/p.svg >%s/1.md",
             folder, folder);
    assert_int_equal(run(line)->code, 0);
    snprintf(line, sizeof line, "bench --markdown %s/p.jsonl >%s/2.md", folder, folder);
    assert_int_equal(run(line)->code, 0);
    snprintf(line, sizeof line, "--version && cmp %s/1.md %s/2.md && cat %s/p.svg %s/2.md && rm -r %s",
             folder, folder, folder, folder, folder);
    result *r = run(line);
    assert_int_equal(r->code, 0);
    assert_non_null(strstr(r->text, "<svg "));
    assert_non_null(strstr(r->text, "</svg>"));
    assert_non_null(strstr(r->text, "| codec |"));
    assert_non_null(strstr(r->text, "| r4 |"));
    assert_non_null(strstr(r->text, "2 threads ("));
}

/* Threads that can run on the first processor only: one has it for itself, two share it. */
static void test_bench_team(void **state)
{
    (void)state;
    need_command();
    cpu_set_t all, one;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE && !CPU_COUNT(&one); i++)
        if (CPU_ISSET(i, &all)) CPU_SET(i, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    const char *line = "bench --json --rounds 1 --context 64 --heads 1:2 --d 32 --codecs r4 --threads";
    char full[128];
    snprintf(full, sizeof full, "%s 1", line);
    assert_non_null(strstr(run(full)->text, "\"team\":\"pinned\""));
    snprintf(full, sizeof full, "%s 2", line);
    assert_non_null(strstr(run(full)->text, "\"team\":\"shared\""));
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
}

/* One layer with one head of 32 channels; rows of K, V and Q in turn, and the begin of a second sequence. */
static void write_rows(FILE *to, uint32_t n_tokens)
{
    const uint32_t head[] = {1, 1, 1, 1, 32, 32, 0};
    float row[32];
    fwrite("QUIREROW", 1, 8, to);
    fwrite(head, sizeof head, 1, to);
    for (uint32_t t = 0; t <= n_tokens; t++)
        for (uint32_t kind = 0; kind < 3; kind++) {
            const uint32_t at[] = {0, kind, t % n_tokens};
            for (uint32_t c = 0; c < 32; c++) row[c] = (float)((t * 31 + c * 7 + kind * 3) % 17) - 8;
            fwrite(at, sizeof at, 1, to);
            fwrite(row, sizeof row, 1, to);
        }
}

static void test_rows(void **state)
{
    (void)state;
    need_command();
    char path[] = "/tmp/quire-rows-XXXXXX", line[128];
    FILE *file = fdopen(mkstemp(path), "wb");
    assert_non_null(file);
    write_rows(file, 8);
    assert_int_equal(fclose(file), 0);
    for (uint32_t tokens = 1; tokens <= 9; tokens++) { /* fewer than there are, all, more */
        snprintf(line, sizeof line, "rows --policies r8 --json --tokens %u %s", tokens, path);
        result *r = run(line);
        assert_int_equal(r->code, 0);
        assert_non_null(strstr(r->text, "\"policy\":\"r8\""));
    }
    unlink(path);
}

/* Exit code 2 and one sentence that names what is wrong. */
static void test_wrong_lines(void **state)
{
    (void)state;
    need_command();
    static const struct {
        const char *line, *word;
        int code;
    } wrong[] = {
        {"nonsense", "nonsense", 2},
        {"codecs r99", "r99", 2},
        {"codecs --nonsense", "--nonsense", 2},
        {"bench --nonsense 1", "--nonsense", 2},
        {"bench nonsense", "nonsense", 2},
        {"bench --threads", "--threads", 2},
        {"bench --threads 0", "--threads", 2},
        {"bench --threads=2x", "2x", 2},
        {"bench --json=1", "--json", 2},
        {"bench --codecs a4g64,r99", "--codecs", 2},
        {"bench --codecs a4g64/", "--codecs", 2},
        {"bench --codecs r4/c:r4 --context 64", "c:r4", 2},
        {"bench --op decode,bake", "--op", 2},
        {"bench --context 0", "--context", 2},
        {"bench --context 99999999999", "--context", 2},
        {"bench --heads 8:30", "--heads", 2},
        {"bench --d 512/576", "--d", 2},
        {"bench --d 576/512 --codecs a8g64/a4g64", "a8g64/a4g64", 2},
        {"bench --isa mmx", "--isa", 2},
        {"bench --op prefill --queries 100 --context 64", "100 queries", 2},
        {"bench --lengths 10,20 --context 64", "--lengths", 2},
        {"bench --vs-ggml /nowhere --context 64", "/nowhere", 1},
        {"bench --markdown /nowhere/rows.jsonl", "/nowhere", 1},
        {"bench --markdown /proc/self/comm", "line 1", 1},
        {"bench --context 2048M --sequences 64 --codecs f16", "memory", 1},
        {"plan", "it needs a model", 2},
        {"plan --parallel 300 x.gguf", "--parallel", 2},
        {"plan --ctx many x.gguf", "--ctx", 2},
        {"plan /nowhere.gguf", "/nowhere.gguf", 1},
        {"run", "it needs a program", 2},
        {"run --ram much true", "--ram", 2},
        {"run /nowhere/llama-server", "/nowhere/llama-server does not exist", 1},
        {"rows", "a file", 2},
        {"rows --nonsense x", "--nonsense", 2},
        {"rows /nowhere", "/nowhere", 1},
        {"rows /proc/self/comm", "not a file of recorded rows", 1},
        {"calibrate", "a model", 2},
        {"calibrate --length 1 x.gguf", "--length", 2},
        {"calibrate /nowhere.gguf", "/nowhere.gguf", 1},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        char line[256];
        snprintf(line, sizeof line, "%s 2>&1 >/dev/null", wrong[i].line);
        result *r = run(line);
        char *end = strchr(r->text, '\n');
        if (r->code != wrong[i].code || !strstr(r->text, wrong[i].word) ||
            strncmp(r->text, "quire", 5) != 0 || !end || end[1])
            fail_msg("quire %s: exit code %d, \"%s\"", wrong[i].line, r->code, r->text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_help),
        cmocka_unit_test(test_every_command_is_explained),
        cmocka_unit_test(test_options_of_serve),
        cmocka_unit_test(test_completion),
        cmocka_unit_test(test_codecs),
        cmocka_unit_test(test_bench),
        cmocka_unit_test(test_bench_isas),
        cmocka_unit_test(test_bench_team),
        cmocka_unit_test(test_tables_and_plot),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_wrong_lines),
    };
    return cmocka_run_group_tests(tests, find_command, NULL);
}
