/* SPDX-License-Identifier: MIT */
/* quire store: the commands on a real directory, and a slot file through pages and back. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store/kit/raw_kit.h"

#include <libgen.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Runs `quire store ...`; its output is in out. Returns the exit code. */
static int quire(char out[8192], const char *format, ...) __attribute__((format(printf, 2, 3)));

static int quire(char out[8192], const char *format, ...)
{
    char self[1024] = {0}, line[4096], command[6000];
    va_list args;
    assert_true(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    snprintf(command, sizeof command, "%s/quire store %s 2>&1", dirname(self), line);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    size_t n = fread(out, 1, 8191, f);
    out[n] = 0;
    int status = pclose(f);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

/* A byte of the first object in the file. */
static void damage(const char *dir)
{
    static char bytes[8 << 20];
    char path[600];
    snprintf(path, sizeof path, "%s/slab-00000001", dir);
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    size_t n = fread(bytes, 1, sizeof bytes, f);
    const char *at = memmem(bytes, n, "QUIREPG", 8);
    assert_non_null(at);
    fseek(f, (long)(at - bytes) + 5000, SEEK_SET);
    fputc(~at[5000], f);
    fclose(f);
}

static void administration(void **state)
{
    (void)state;
    char *dir = kit_directory(NULL), *second = kit_directory(NULL), out[8192];
    quire_store *store = kit_open(dir, KIT_CAP, NULL);
    kit_raw raw;
    kit_raw_begin(&raw, store, 60000);
    for (uint64_t text = 0; text < 4; text++) kit_raw_save(&raw, text, 5);
    kit_raw_end(&raw);
    quire_store_close(store);
    assert_int_equal(quire(out, "stat --dir %s --json", dir), 0);
    assert_non_null(strstr(out, "\"objects\":20,\"pinned\":0"));
    assert_non_null(strstr(out, "\"cap_bytes\":67108864"));
    assert_int_equal(quire(out, "ls --dir %s", dir), 0);
    assert_non_null(strstr(out, "60000"));
    assert_int_equal(quire(out, "verify --dir %s", dir), 0);
    assert_non_null(strstr(out, "20 objects, 0 damaged"));
    assert_int_equal(quire(out, "export --dir %s %s/pages.quire >/dev/full", dir, second), 1);
    assert_int_equal(quire(out, "export --dir %s %s/pages.quire", dir, second), 0);
    assert_int_equal(quire(out, "import --dir %s/new --cap 32M %s/pages.quire --json", second, second), 0);
    assert_non_null(strstr(out, "\"objects\":20,\"left_out\":0"));
    assert_int_equal(quire(out, "stat --dir %s/new --json", second), 0);
    assert_non_null(strstr(out, "\"objects\":20,"));
    assert_int_equal(quire(out, "gc --dir %s/new --max-bytes 600K --json", second), 0);
    assert_non_null(strstr(out, "\"removed\":11"));
    damage(dir);
    assert_int_equal(quire(out, "verify --dir %s --json", dir), 1);
    assert_non_null(strstr(out, "\"damaged\":1"));
    assert_int_equal(quire(out, "gc --dir %s", dir), 0);
    assert_int_equal(quire(out, "verify --dir %s", dir), 0);
    kit_remove(dir);
    kit_remove(second);
}

static void command_lines(void **state)
{
    (void)state;
    char out[8192];
    static const char *const names[] = {"stat",   "ls",     "verify",   "gc",
                                        "export", "import", "put-slot", "get-slot"};
    assert_int_equal(quire(out, "--help"), 0);
    assert_int_equal(quire(out, "%s", ""), 2);
    assert_int_equal(quire(out, "tidy"), 2);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_int_equal(quire(out, "%s --help", names[i]), 0);
        assert_non_null(strstr(out, "examples:"));
        assert_int_equal(quire(out, "%s", names[i]), 2); /* nothing given */
        assert_int_equal(quire(out, "%s --no-such-option", names[i]), 2);
    }
    assert_int_equal(quire(out, "stat --dir /proc/none"), 1);
    assert_int_equal(quire(out, "gc --dir /proc/none --max-age soon"), 2);
    assert_int_equal(quire(out, "gc --dir /proc/none --max-age 30w"), 2); /* an unknown unit is not seconds */
    assert_int_equal(quire(out, "gc --dir /proc/none --max-age nan"), 2);
    assert_int_equal(quire(out, "gc --dir /proc/none --max-bytes nan"), 2);
    assert_int_equal(quire(out, "gc --dir /proc/none --max-bytes 1Gi"), 2);
    assert_int_equal(quire(out, "put-slot --dir /proc/none --weights w --secret-file /dev/null /dev/null"),
                     1);
}

/* ---------------------------------------------------------------------- slots */

static void put32(FILE *f, uint32_t value)
{
    for (int i = 0; i < 4; i++) fputc((int)(value >> 8 * i & 0xff), f);
}

#define LAYERS 3u

/* As llama-server writes it: cells in another order than positions, one token more than cells. */
static void write_slot(const char *path, uint32_t n, uint32_t n_streams, bool transposed, uint32_t salt)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    put32(f, 0x67677371);
    put32(f, 3);
    put32(f, n + 1 + 4);
    put32(f, UINT32_MAX);
    put32(f, 1);
    put32(f, n + 1);
    for (uint32_t i = 0; i <= n; i++) put32(f, i * 3 + salt);
    put32(f, 0);
    put32(f, n_streams);
    for (uint32_t s = 0; s + 1 < n_streams; s++) put32(f, 0);
    put32(f, n);
    for (uint32_t i = 0; i < n; i++) { /* cell i holds position n - 1 - i */
        put32(f, n - 1 - i);
        put32(f, 1);
        put32(f, 0);
    }
    put32(f, transposed);
    put32(f, LAYERS);
    for (uint32_t side = 0; side < 2; side++)
        for (uint32_t l = 0; l < LAYERS; l++) {
            put32(f, side ? 8 : 1);
            if (side && transposed) {
                put32(f, 2);
                put32(f, 10);
                for (uint32_t j = 0; j < 10; j++)
                    for (uint32_t i = 0; i < n; i++) fputc((int)(j + i), f), fputc((int)(l + salt), f);
                continue;
            }
            uint32_t row = side ? 34 : 16 + 2 * l;
            put32(f, row);
            put32(f, 0);
            for (uint32_t i = 0; i < n; i++)
                for (uint32_t j = 0; j < row; j++)
                    fputc((int)((n - 1 - i) * 31 + j * 7 + l + side * 50 + salt), f);
        }
    fclose(f);
}

static void slots(void **state)
{
    (void)state;
    char *dir = kit_directory(NULL), out[8192], other[8192];
    for (int transposed = 0; transposed < 2; transposed++) {
        char common[2000], path[700];
        FILE *f;
        snprintf(path, sizeof path, "%s/key", dir);
        f = fopen(path, "w");
        for (int i = 0; i < 64; i++) fputc("0123456789abcdef"[i % 16], f);
        fclose(f);
        snprintf(common, sizeof common, "--dir %s/store --cap 32M --weights w%d --secret-file %s/key", dir,
                 transposed, dir);
        snprintf(path, sizeof path, "%s/a", dir);
        write_slot(path, 300, 4, transposed, 9);
        snprintf(path, sizeof path, "%s/tokens", dir);
        f = fopen(path, "w");
        fprintf(f, "{\"tokens\": [");
        for (uint32_t i = 0; i < 400; i++) fprintf(f, "%u, ", i < 230 ? i * 3 + 9 : i);
        fprintf(f, "1]}\n");
        fclose(f);
        assert_int_equal(quire(out, "put-slot %s %s/a --json", common, dir), 0);
        assert_non_null(strstr(out, "\"tokens\":301,\"cells\":300"));
        assert_non_null(strstr(out, "\"saved\":4,\"known\":0,\"failed\":0"));
        assert_int_equal(quire(out, "put-slot %s %s/a --json", common, dir), 0);
        assert_non_null(strstr(out, "\"saved\":0,\"known\":4"));
        /* The prompt parts from it in the fourth page: three come. */
        assert_int_equal(quire(out, "get-slot %s --like %s/a --tokens %s/tokens %s/b", common, dir, dir, dir),
                         0);
        assert_string_equal(out, "192 of 401 tokens\n");
        /* What came is a slot itself, with the same pages. */
        assert_int_equal(quire(other, "put-slot %s %s/b --json", common, dir), 0);
        assert_non_null(strstr(other, "\"tokens\":192,\"cells\":192"));
        assert_non_null(strstr(other, "\"saved\":0,\"known\":3"));
        assert_int_equal(
            quire(out, "get-slot %s --kv r8/r4 --like %s/a --tokens %s/tokens %s/c", common, dir, dir, dir),
            1);
        assert_string_equal(out, "0 of 401 tokens\n");
        assert_true(access("c", F_OK) != 0);
    }
    kit_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(administration), cmocka_unit_test(command_lines),
                                       cmocka_unit_test(slots)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
