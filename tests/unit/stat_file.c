/* SPDX-License-Identifier: MIT */
/* Counter files: the layout that docs/formats/stat.md gives, and files that are not to be believed. */
#define _POSIX_C_SOURCE 200809L
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "files/stat_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[] = "/tmp/quire-stat-XXXXXX";
static char path[128];
static size_t n_seen;

static void count(void *ctx, const quire_stat *s)
{
    (void)ctx;
    n_seen += s->pid == (uint64_t)getpid();
}

static uint64_t own_start(void)
{
    char text[1024] = "";
    unsigned long long start = 0;
    FILE *f = fopen("/proc/self/stat", "r");
    assert_non_null(f);
    assert_true(fread(text, 1, sizeof text - 1, f) > 0);
    fclose(f);
    char *at = strrchr(text, ')');
    for (int field = 2; at && field < 22; field++) at = strchr(at + 1, ' ');
    assert_non_null(at);
    sscanf(at, " %llu", &start);
    return start;
}

static quire_stat usual(void)
{
    quire_stat s = {
        .version = QUIRE_STAT_VERSION, .size = sizeof s, .pid = (uint64_t)getpid(), .start = own_start()};
    memcpy(s.magic, QUIRE_STAT_MAGIC, sizeof s.magic);
    return s;
}

static void put(const quire_stat *s, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(s, 1, n, f), n);
    fclose(f);
}

static size_t look(uint64_t pid)
{
    n_seen = 0;
    stat_file_each(pid, count, NULL);
    return n_seen;
}

static int set_up(void **state)
{
    (void)state;
    if (!mkdtemp(folder)) return -1;
    setenv("XDG_RUNTIME_DIR", folder, 1);
    snprintf(path, sizeof path, "%s/quire-stat.%u.%u", folder, (unsigned)getuid(), (unsigned)getpid());
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder);
}

static void test_layout(void **state)
{
    (void)state;
    assert_int_equal(offsetof(quire_stat, program), 32);
    assert_int_equal(offsetof(quire_stat, n_attend), 160);
    assert_int_equal(offsetof(quire_stat, policies), 208);
    assert_int_equal(sizeof(quire_stat_policy), 168);
    assert_int_equal(sizeof(quire_stat), 208 + 8 * 168);
}

static void test_believed(void **state)
{
    (void)state;
    quire_stat s = usual();
    put(&s, sizeof s);
    assert_int_equal(look(0), 1);
    assert_int_equal(look((uint64_t)getpid()), 1);
    assert_int_equal(look((uint64_t)getpid() + 1), 0);
    assert_int_equal(access(path, F_OK), 0);
}

static void test_not_believed(void **state)
{
    (void)state;
    quire_stat s = usual();
    put(&s, sizeof s - 1);
    assert_int_equal(look(0), 0);
    s.magic[0] = 'X';
    put(&s, sizeof s);
    assert_int_equal(look(0), 0);
    s = usual();
    s.version = 2;
    put(&s, sizeof s);
    assert_int_equal(look(0), 0);
    s = usual();
    memset(s.policies, 'x', sizeof s.policies); /* strings without an end */
    bool is_stale;
    put(&s, sizeof s);
    assert_true(stat_file_read(&s, path, &is_stale));
    assert_int_equal(strlen(s.policies[7].policy), sizeof s.policies[7].policy - 1);
    unlink(path);
    assert_int_equal(symlink("/dev/zero", path), 0);
    assert_int_equal(look(0), 0);
    unlink(path);
}

/* The number of a process comes again; the moment of its start does not. */
static void test_stale(void **state)
{
    (void)state;
    quire_stat s = usual();
    s.start++;
    put(&s, sizeof s);
    assert_int_equal(look(0), 0);
    assert_int_not_equal(access(path, F_OK), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout),
        cmocka_unit_test(test_believed),
        cmocka_unit_test(test_not_believed),
        cmocka_unit_test(test_stale),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
