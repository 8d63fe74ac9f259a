/* SPDX-License-Identifier: MIT */
/* The digest of a model file, which put-slot remembers: when it is used again, and when not. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store/kit/command_kit.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct scene {
    char *dir, path[700], out[KIT_OUTPUT];
} scene;

#define assert_says(s, text) \
    if (!strstr((s)->out, text)) fail_msg("not said: %s\n%s", text, (s)->out)

static const char *in(scene *s, const char *name)
{
    snprintf(s->path, sizeof s->path, "%s/%s", s->dir, name);
    return s->path;
}

static int put_model(scene *s)
{
    return kit_quire(s->out,
                     "put-slot --dir %s/store --cap 32M --model %s/model --secret-file %s/key "
                     "--computed-from-zero %s/a --json",
                     s->dir, s->dir, s->dir, s->dir);
}

/* A model file as old as a minute. */
static void make_model(scene *s, const char *text, int age_s)
{
    struct timespec now, times[2];
    kit_write_text(in(s, "model"), text, 0644);
    clock_gettime(CLOCK_REALTIME, &now);
    times[0] = times[1] = (struct timespec){now.tv_sec - age_s, now.tv_nsec};
    utimensat(AT_FDCWD, in(s, "model"), times, 0);
}

static char *remembered(scene *s)
{
    static char text[65536];
    FILE *f = fopen(in(s, "quire/digests"), "r");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    text[n] = 0;
    if (f) fclose(f);
    return text;
}

/* The line as it would be with another digest: the digit at `at` is another one. */
static void plant(scene *s, const char *text, uint32_t at, uint32_t mode)
{
    char copy[65536], digits[17];
    snprintf(copy, sizeof copy, "%s", text);
    char *line = copy + 16, *end = strchr(line, '\n');
    uint8_t check[32];
    line[at] = line[at] == '0' ? '1' : '0';
    EVP_Digest(line, (size_t)(end - line) - 16, check, NULL, EVP_sha256(), NULL);
    for (int i = 0; i < 8; i++) snprintf(digits + 2 * i, 3, "%02x", check[i]);
    memcpy(end - 16, digits, 16);
    kit_write_text(in(s, "quire/digests"), copy, mode);
}

static void model_digest(void **state)
{
    (void)state;
    char copy[65536];
    scene s;
    s.dir = kit_directory(NULL);
    setenv("XDG_CACHE_HOME", s.dir, 1);
    unsetenv("QUIRE_CACHE");
    kit_write_text(in(&s, "key"), "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", 0600);
    kit_slot_write(in(&s, "a"), &(kit_slot){.version = 3, .n_cells = 300, .n_streams = 4, .salt = 9});
    make_model(&s, "weights", 60);
    assert_int_equal(put_model(&s), 0);
    assert_string_equal(remembered(&s), ""); /* it changed just now: ctime */
    sleep(4);
    assert_int_equal(put_model(&s), 0);
    assert_says(&s, "\"saved\":0,\"known\":4");
    snprintf(copy, sizeof copy, "%s", remembered(&s));
    assert_int_equal(strncmp(copy, "quire digests 1\n", 16), 0);
    /* sha256 of "weights" */
    assert_non_null(strstr(copy, "9a129038d9a00aed0cf6a7ea059ca50a813449061ab87848cf1a13eafdf33b2c"));
    assert_int_equal(kit_mode(in(&s, "quire/digests")), 0600);
    /* A damaged line is not used, */
    copy[16] ^= 1;
    kit_write_text(in(&s, "quire/digests"), copy, 0600);
    copy[16] ^= 1;
    assert_int_equal(put_model(&s), 0);
    assert_says(&s, "\"saved\":0,\"known\":4");
    assert_non_null(strstr(remembered(&s), "9a129038"));
    /* a whole one is: its digest gives another namespace, */
    plant(&s, copy, 0, 0600);
    assert_int_equal(put_model(&s), 0);
    assert_says(&s, "\"saved\":4,\"known\":0");
    /* but not from a file that others can write, */
    plant(&s, copy, 1, 0622);
    assert_int_equal(put_model(&s), 0);
    assert_says(&s, "\"saved\":0,\"known\":4");
    /* nor for a file that has changed and then got its old time back, */
    struct stat before;
    assert_int_equal(stat(in(&s, "model"), &before), 0);
    plant(&s, copy, 2, 0600);
    make_model(&s, "weights", 60);
    assert_int_equal(
        utimensat(AT_FDCWD, in(&s, "model"), (struct timespec[]){before.st_atim, before.st_mtim}, 0), 0);
    assert_int_equal(put_model(&s), 0);
    assert_says(&s, "\"saved\":0,\"known\":4");
    sleep(4); /* old enough to be looked up, with another ctime */
    assert_int_equal(put_model(&s), 0);
    assert_says(&s, "\"saved\":0,\"known\":4");
    /* and without a place to write it works too. */
    setenv("XDG_CACHE_HOME", "/proc/none", 1);
    assert_int_equal(put_model(&s), 0);
    kit_remove(s.dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(model_digest)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
