/* SPDX-License-Identifier: MIT */
/* Whether the settings of the system allow huge OS pages. */
#define _POSIX_C_SOURCE 200809L
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/reserve.h"
#include "support/cache_kit.h"

#include <sys/stat.h>
#include <unistd.h>

static void write_file(const char *folder, const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    KIT_REQUIRE(file && fputs(text, file) >= 0 && !fclose(file));
}

/* The system's setting "never" counts, although MADV_COLLAPSE does not ask for it. */
static void refused_by_the_system(void **state)
{
    (void)state;
    char folder[] = "/tmp/quire-huge-XXXXXX", path[256];
    assert_non_null(mkdtemp(folder));
    assert_true(quire_huge_is_allowed(folder)); /* nothing is known */
    write_file(folder, "enabled", "always madvise [never]\n");
    assert_false(quire_huge_is_allowed(folder));
    write_file(folder, "enabled", "always [madvise] never\n");
    assert_true(quire_huge_is_allowed(folder));
    write_file(folder, "enabled", "");
    assert_true(quire_huge_is_allowed(folder));
    snprintf(path, sizeof path, "%s/hugepages-2048kB", folder);
    assert_int_equal(mkdir(path, 0700), 0);
    write_file(folder, "enabled", "[always] madvise never\n");
    write_file(folder, "hugepages-2048kB/enabled", "always inherit madvise [never]\n");
    assert_false(quire_huge_is_allowed(folder));
    write_file(folder, "hugepages-2048kB/enabled", "always [inherit] madvise never\n");
    assert_true(quire_huge_is_allowed(folder));
    write_file(folder, "enabled", "always madvise [never]\n");
    assert_false(quire_huge_is_allowed(folder));
    write_file(folder, "hugepages-2048kB/enabled", "always inherit [madvise] never\n");
    assert_true(quire_huge_is_allowed(folder));
    const char *const names[] = {"hugepages-2048kB/enabled", "hugepages-2048kB", "enabled"};
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        remove(path);
    }
    rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(refused_by_the_system)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
