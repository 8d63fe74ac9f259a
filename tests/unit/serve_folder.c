/* SPDX-License-Identifier: MIT */
/* The folder of a quire serve, while another one that starts in the same moment takes it for that of a process that was killed. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* Between the making of a folder and its lock. */
static char *make_and_lose(char *folder);
#define mkdtemp make_and_lose
#include "serve/folder.c" /* with that function in the place of the real one */
#undef mkdtemp

static int n_lost, n_held;
static int others[8];

int tool_failed(const char *command, const char *format, ...)
{
    (void)command;
    (void)format;
    return TOOL_FAILED;
}

static char *make_and_lose(char *folder)
{
    char path[128];
    if (!mkdtemp(folder)) return NULL;
    snprintf(path, sizeof path, "%s/lock", folder);
    if (n_held) { /* it has the lock and will remove the folder */
        others[--n_held] = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        assert_int_equal(flock(others[n_held], LOCK_EX | LOCK_NB), 0);
    } else if (n_lost) { /* it has removed the folder */
        n_lost--;
        assert_int_equal(rmdir(folder), 0);
    }
    return folder;
}

static void test_taken_by_others(void **state)
{
    char folder[64];
    struct stat about;
    (void)state;
    n_lost = n_held = 3;
    assert_int_equal(folder_make(folder, sizeof folder, false), TOOL_OK);
    assert_int_equal(n_lost + n_held, 0);
    assert_int_equal(stat(folder, &about), 0);
    assert_int_equal(about.st_mode & 0777, 0700);
    for (int i = 0; i < 3; i++) close(others[i]);
    char second[64]; /* removes the three whose lock is free now, and not the one that is in use */
    assert_int_equal(folder_make(second, sizeof second, false), TOOL_OK);
    assert_int_equal(stat(folder, &about), 0);
    assert_string_not_equal(folder, second);
    folder_remove(folder);
    folder_remove(second);
    assert_int_equal(stat(folder, &about), -1);
}

static void test_never(void **state)
{
    char folder[64];
    (void)state;
    n_lost = 1000;
    assert_int_equal(folder_make(folder, sizeof folder, false), TOOL_FAILED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_taken_by_others),
        cmocka_unit_test(test_never),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
