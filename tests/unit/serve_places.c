/* SPDX-License-Identifier: MIT */
/* Files that quire serve watches and how many it may open, the directory of pages that it takes by itself, and the key that it makes there. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "serve/limits.h"
#include "serve/pages_place.h"
#include "serve/watched.h"

#include <dirent.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "/tmp/quire-places.XXXXXX";

static const char *in_folder(const char *name)
{
    static char paths[4][128];
    static int at;
    at = (at + 1) % 4;
    snprintf(paths[at], sizeof paths[at], "%s/%s", folder, name);
    return paths[at];
}

static void put(const char *name, const char *text)
{
    FILE *f = fopen(in_folder(name), "wb");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void test_watched(void **state)
{
    (void)state;
    put("a", "one");
    put("b", "one");
    watched *w = watched_create();
    assert_non_null(w);
    assert_true(watched_add(w, in_folder("a")) && watched_add(w, in_folder("none")));
    assert_null(watched_change(w));
    put("none", "");
    assert_string_equal(watched_change(w), in_folder("none"));
    unlink(in_folder("none"));
    assert_null(watched_change(w));
    assert_int_equal(rename(in_folder("b"), in_folder("a")), 0); /* the same bytes, another file */
    assert_string_equal(watched_change(w), in_folder("a"));
    watched_destroy(w);

    w = watched_create();
    assert_true(watched_add(w, in_folder("a")));
    put("a", "tw"); /* in place */
    assert_string_equal(watched_change(w), in_folder("a"));
    watched_destroy(w);
    w = watched_create();
    assert_true(watched_add(w, in_folder("a")));
    unlink(in_folder("a"));
    assert_string_equal(watched_change(w), in_folder("a"));
    watched_destroy(w);
}

static void test_home(void **state)
{
    char path[4096];
    const struct passwd *user = getpwuid(geteuid());
    (void)state;
    setenv("XDG_CACHE_HOME", "/c", 1);
    setenv("HOME", "/h", 1);
    assert_null(pages_find(path, sizeof path));
    assert_string_equal(path, "/c/quire/pages");
    unsetenv("XDG_CACHE_HOME");
    assert_null(pages_find(path, sizeof path));
    assert_string_equal(path, "/h/.cache/quire/pages");
    unsetenv("HOME");
    if (user && user->pw_dir && *user->pw_dir) {
        assert_null(pages_find(path, sizeof path));
        assert_int_equal(strncmp(path, user->pw_dir, strlen(user->pw_dir)), 0);
    } else {
        assert_non_null(pages_find(path, sizeof path));
    }
    assert_non_null(pages_find(path, 8));
}

static size_t read_key(uint8_t key[64], struct stat *st)
{
    FILE *f = fopen(in_folder("serve.key"), "rb");
    assert_non_null(f);
    size_t n = fread(key, 1, 64, f);
    assert_int_equal(fstat(fileno(f), st), 0);
    fclose(f);
    return n;
}

static void test_key(void **state)
{
    uint8_t first[64], second[64];
    struct stat st;
    (void)state;
    assert_null(pages_key(in_folder("serve.key")));
    assert_int_equal(read_key(first, &st), 32);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_null(pages_key(in_folder("serve.key")));
    assert_int_equal(read_key(second, &st), 32);
    assert_memory_equal(first, second, 32);
    DIR *d = opendir(folder); /* nothing else is left */
    int n = 0;
    while (readdir(d)) n++;
    closedir(d);
    assert_int_equal(n, 3);
    if (!geteuid()) {
        assert_int_equal(chown(in_folder("serve.key"), 12345, 12345), 0);
        assert_non_null(strstr(pages_key(in_folder("serve.key")), "another user"));
        unlink(in_folder("serve.key"));
        put("own", "x");
        assert_int_equal(symlink(in_folder("own"), in_folder("serve.key")), 0);
        assert_null(pages_key(in_folder("serve.key")));
        assert_int_equal(lchown(in_folder("serve.key"), 12345, 12345), 0);
        assert_non_null(pages_key(in_folder("serve.key")));
        unlink(in_folder("own"));
    }
    unlink(in_folder("serve.key"));
    assert_non_null(pages_key("/nowhere/at/all/serve.key"));
}

/* All connections together never open more files than there may be. */
static void test_limits(void **state)
{
    (void)state;
    for (uint64_t files = 64; files < 1 << 21; files = files * 3 / 2) {
        uint32_t most = limits_connections(files);
        assert_true(most >= 8 && most <= 8192);
        assert_true(4 * (uint64_t)most + (files < 1024 ? files / 8 : 256) <= files);
    }
    assert_int_equal(limits_connections(1024), 192);
    assert_int_equal(limits_connections(1 << 20), 8192);
    assert_int_equal(limits_connections(3), 8);
}

static int begin(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int end(void **state)
{
    (void)state;
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_watched), cmocka_unit_test(test_home),
                                       cmocka_unit_test(test_key), cmocka_unit_test(test_limits)};
    return cmocka_run_group_tests(tests, begin, end);
}
