/* SPDX-License-Identifier: MIT */
/* The file of --tenants: what is taken, what is refused, which key of a request counts, and reading it again. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "serve/tenants.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* SHA-256 of "one", "two", "three". */
#define ONE "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed"
#define TWO "3fc4ccfe745870e2c0d99f71f30ff0656c8dedd41cc1d7d3d376b0dbe685e2f3"
#define THREE "8b5b9db0c13db24256c829aa364aa90c6d2eba318b9232a4ab9313b954d3555f"

static char folder[] = "/tmp/quire-tenants.XXXXXX", path[64], message[512];

static void put(const char *name, const void *bytes, size_t n, mode_t mode)
{
    char whole[128];
    snprintf(whole, sizeof whole, "%s/%s", folder, name);
    unlink(whole);
    FILE *f = fopen(whole, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
    assert_int_equal(chmod(whole, mode), 0);
}

static tenants *try_bytes(const void *bytes, size_t n)
{
    put("tenants", bytes, n, 0600);
    *message = 0;
    return tenants_open(path, message, sizeof message);
}

static tenants *try_text(const char *text)
{
    return try_bytes(text, strlen(text));
}

static void refuse(const char *text, const char *why)
{
    assert_null(try_text(text));
    if (!strstr(message, why)) fail_msg("\"%s\" has no \"%s\"", message, why);
}

static void test_read(void **state)
{
    tenant a, b, c;
    (void)state;
    tenants *t = try_text("# keys\n\n" ONE " a.key  Ann and others \r\n\t" TWO "\tb.key\n" THREE " a.key x");
    assert_non_null(t);
    assert_int_equal(tenants_count(t), 3);
    assert_true(tenants_find(t, "Bearer one", NULL, &a));
    assert_string_equal(a.name, "Ann and others");
    assert_true(tenants_find(t, NULL, "two", &b));
    assert_string_equal(b.name, "");
    assert_true(tenants_find(t, "three", NULL, &c)); /* as llama-server takes it */
    assert_true(a.number && b.number && a.number != b.number);
    assert_int_equal(a.number, c.number); /* the same secret */
    assert_memory_equal(a.secret, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", 32);
    tenants_close(t);
}

static void test_headers(void **state)
{
    tenant a;
    (void)state;
    tenants *t = try_text(ONE " a.key ann\n");
    assert_true(tenants_find(t, "", "one", &a));
    assert_true(tenants_find(t, " \t Bearer one \t", NULL, &a));
    assert_true(tenants_find(t, NULL, "Bearer one", &a));
    assert_false(tenants_find(t, "Bearer two", "one", &a)); /* the server looks at the first alone */
    assert_false(tenants_find(t, "bearer one", NULL, &a));
    assert_false(tenants_find(t, "Bearer  one", NULL, &a));
    assert_false(tenants_find(t, "Basic one", NULL, &a));
    assert_false(tenants_find(t, "one,", NULL, &a));
    assert_false(tenants_find(t, NULL, NULL, &a));
    assert_false(tenants_find(t, "Bearer ", NULL, &a));
    assert_false(tenants_find(t, ONE, NULL, &a)); /* who has read the file has no key */
    tenants_close(t);
}

static void test_metrics_key(void **state)
{
    tenant a;
    (void)state;
    tenants *t = try_text(ONE " - figures\n" TWO " a.key\n");
    assert_true(tenants_find(t, "Bearer one", NULL, &a));
    assert_true(a.reads_metrics);
    assert_int_equal(a.number, 0);
    assert_true(tenants_find(t, "Bearer two", NULL, &a));
    assert_false(a.reads_metrics);
    tenants_close(t);
}

static void test_refused(void **state)
{
    char text[8192];
    (void)state;
    refuse("", "names no tenant");
    refuse("# nothing\n", "names no tenant");
    refuse("one a.key\n", "line 1");
    refuse("\n" ONE "0 a.key\n", "line 2");
    refuse(ONE "\n", "missing");
    refuse("g692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed a.key\n", "64 hex digits");
    refuse(ONE " a.key\n" ONE " b.key\n", "the same key");
    refuse(ONE " none.key\n", "No such file");
    refuse(ONE " short.key\n", "32 bytes");
    refuse(ONE " open.key\n", "others can read");
    refuse(ONE " a.key a\001b\n", "printable");
    snprintf(text, sizeof text, "%s a.key %064d\n", ONE, 0);
    refuse(text, "63 bytes");
    memset(text, 'x', 5000);
    text[5000] = 0;
    refuse(text, "too long");
    assert_null(try_bytes(ONE " a.key\n\0\n" TWO " b.key\n", 2 * 71 + 2)); /* a byte 0 hides nothing */
    static const mode_t shared[] = {0644, 0640, 0604, 0620, 0602};
    for (size_t i = 0; i < sizeof shared / sizeof *shared; i++) {
        put("tenants", ONE " a.key\n", 71, shared[i]);
        assert_null(tenants_open(path, message, sizeof message));
        assert_non_null(strstr(message, "others can read or change it"));
    }
    assert_null(tenants_open("/nonexistent/x", message, sizeof message));
}

static void test_read_again(void **state)
{
    tenant before, after;
    (void)state;
    tenants *t = try_text(ONE " a.key ann\n" TWO " b.key bob\n");
    assert_true(tenants_find(t, "two", NULL, &before));
    put("tenants", "broken\n", 7, 0600);
    assert_false(tenants_read_again(t, message, sizeof message));
    assert_true(tenants_find(t, "two", NULL, &after));
    put("tenants", TWO " b.key\n" THREE " c.key\n", 2 * 71, 0600);
    assert_true(tenants_read_again(t, message, sizeof message));
    assert_false(tenants_find(t, "one", NULL, &after));
    assert_true(tenants_find(t, "two", NULL, &after));
    assert_int_equal(before.number, after.number); /* slots are marked with it */
    assert_true(tenants_find(t, "three", NULL, &after));
    assert_int_equal(after.number, 3); /* never one that another had */
    tenants_close(t);
}

static int set_up(void **state)
{
    (void)state;
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/tenants", folder);
    put("a.key", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", 32, 0600);
    put("b.key", "6262626262626262626262626262626262626262626262626262626262626262\n", 65, 0400);
    put("c.key", "cccccccccccccccccccccccccccccccc", 32, 0600);
    put("short.key", "short", 5, 0600);
    put("open.key", "dddddddddddddddddddddddddddddddd", 32, 0644);
    return 0;
}

static int tear_down(void **state)
{
    static const char *const names[] = {"a.key", "b.key", "c.key", "short.key", "open.key", "tenants"};
    char whole[128];
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(whole, sizeof whole, "%s/%s", folder, names[i]);
        unlink(whole);
    }
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read),    cmocka_unit_test(test_headers),    cmocka_unit_test(test_metrics_key),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_read_again),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
