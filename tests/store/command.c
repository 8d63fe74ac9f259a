/* SPDX-License-Identifier: MIT */
/* quire store: the commands on a real directory. Slot files are in slots.c. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store/kit/command_kit.h"
#include "store/kit/raw_kit.h"

#include <string.h>

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
    char *dir = kit_directory(NULL), *second = kit_directory(NULL), out[KIT_OUTPUT];
    quire_store *store = kit_open(dir, KIT_CAP, NULL);
    kit_raw raw;
    kit_raw_begin(&raw, store, 60000);
    for (uint64_t text = 0; text < 4; text++) kit_raw_save(&raw, text, 5);
    kit_raw_end(&raw);
    quire_store_close(store);
    assert_int_equal(kit_quire(out, "stat --dir %s --json", dir), 0);
    assert_non_null(strstr(out, "\"objects\":20,\"pinned\":0"));
    assert_non_null(strstr(out, "\"cap_bytes\":67108864"));
    assert_int_equal(kit_quire(out, "ls --dir %s", dir), 0);
    assert_non_null(strstr(out, "60000"));
    assert_int_equal(kit_quire(out, "verify --dir %s", dir), 0);
    assert_non_null(strstr(out, "20 objects, 0 damaged"));
    assert_int_equal(kit_quire(out, "export --dir %s %s/pages.quire >/dev/full", dir, second), 1);
    assert_int_equal(kit_quire(out, "export --dir %s %s/pages.quire", dir, second), 0);
    assert_int_equal(kit_quire(out, "import --dir %s/new --cap 32M %s/pages.quire --json", second, second),
                     0);
    assert_non_null(strstr(out, "\"objects\":20,\"left_out\":0"));
    assert_int_equal(kit_quire(out, "stat --dir %s/new --json", second), 0);
    assert_non_null(strstr(out, "\"objects\":20,"));
    assert_int_equal(kit_quire(out, "gc --dir %s/new --max-bytes 600K --json", second), 0);
    assert_non_null(strstr(out, "\"removed\":11"));
    damage(dir);
    assert_int_equal(kit_quire(out, "verify --dir %s --json", dir), 1);
    assert_non_null(strstr(out, "\"damaged\":1"));
    assert_int_equal(kit_quire(out, "gc --dir %s", dir), 0);
    assert_int_equal(kit_quire(out, "verify --dir %s", dir), 0);
    kit_remove(dir);
    kit_remove(second);
}

static void command_lines(void **state)
{
    (void)state;
    char out[KIT_OUTPUT];
    static const char *const names[] = {"stat",     "ls",       "verify", "gc", "export", "import",
                                        "put-slot", "get-slot", "du",     "rm", "quota",  "doctor"};
    assert_int_equal(kit_quire(out, "--help"), 0);
    assert_int_equal(kit_quire(out, "%s", ""), 2);
    assert_int_equal(kit_quire(out, "tidy"), 2);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_int_equal(kit_quire(out, "%s --help", names[i]), 0);
        assert_non_null(strstr(out, "examples:"));
        assert_int_equal(kit_quire(out, "%s", names[i]), 2); /* nothing given */
        assert_int_equal(kit_quire(out, "%s --no-such-option", names[i]), 2);
    }
    /* Options about a remote that would have no effect: above all, TLS that is not on. */
    static const char *const idle[] = {"--remote h --tls-ca f", "--remote h --tls-cert f --tls-key f",
                                       "--remote h --tls-name n", "--dir /proc/none --tls",
                                       "--dir /proc/none --user u"};
    for (size_t i = 0; i < sizeof idle / sizeof *idle; i++)
        assert_int_equal(kit_quire(out, "doctor %s", idle[i]), 2);
    static const char *const addresses[] = {"::1",  "fe80::1:6379", "[::1", "[::1]6379",
                                            "[]:1", "h:",           ":1",   "h:1:2"};
    for (size_t i = 0; i < sizeof addresses / sizeof *addresses; i++)
        assert_int_equal(kit_quire(out, "doctor --remote %s", addresses[i]), 2);
    assert_int_equal(kit_quire(out, "doctor --remote [::1]:1"), 1); /* nobody is there */
    assert_null(strstr(out, "Name or service"));
    assert_int_equal(kit_quire(out, "stat --dir /proc/none"), 1);
    assert_int_equal(kit_quire(out, "gc --dir /proc/none --max-age soon"), 2);
    assert_int_equal(kit_quire(out, "gc --dir /proc/none --max-age 30w"),
                     2); /* an unknown unit is not seconds */
    assert_int_equal(kit_quire(out, "gc --dir /proc/none --max-age nan"), 2);
    assert_int_equal(kit_quire(out, "gc --dir /proc/none --max-bytes nan"), 2);
    assert_int_equal(kit_quire(out, "gc --dir /proc/none --max-bytes 1Gi"), 2);
    assert_int_equal(
        kit_quire(
            out,
            "put-slot --dir /proc/none --weights w --secret-file /dev/null --computed-from-zero /dev/null"),
        1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(administration), cmocka_unit_test(command_lines)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
