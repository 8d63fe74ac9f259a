/* SPDX-License-Identifier: MIT */
/*
 * Which instruction sets are found, and choosing one. Arguments are the levels that must be found, from the first on, and no
 * others: the tests under qemu name those of the processor that it plays.
 */
#define _POSIX_C_SOURCE 200809L /* setenv() */
#include "quire/quire.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

static char **expected;
static int n_expected;

static void test_found(void **state)
{
    (void)state;
    for (int i = 0; i < n_expected; i++) {
        const char *name = quire_isa_at((uint32_t)i);
        assert_non_null(name);
        assert_string_equal(name, expected[i]);
    }
    if (n_expected) assert_null(quire_isa_at((uint32_t)n_expected));
    assert_string_equal(quire_isa_at(0), "c");
}

static void test_use(void **state)
{
    (void)state;
    const char *name, *best = NULL;
    for (uint32_t i = 0; (name = quire_isa_at(i)); i++) {
        assert_int_equal(quire_isa_use(name), QUIRE_OK);
        assert_string_equal(quire_isa_in_use(), name);
        best = name;
    }
    assert_int_equal(quire_isa_use(NULL), QUIRE_OK);
    if (!getenv("QUIRE_ISA")) assert_string_equal(quire_isa_in_use(), best);
    assert_int_equal(quire_isa_use("neon-"), QUIRE_EINVAL);
}

/* Names of levels that this machine does not have are known, and refused. */
static void test_absent(void **state)
{
    (void)state;
    static const char *const names[] = {"c",       "neon",       "neon-dotprod", "neon-i8mm", "avx2",
                                        "avxvnni", "avx512vnni", "avx512vbmi",   "amx"};
    for (size_t i = 0; i < COUNT(names); i++) {
        const char *name = NULL;
        for (uint32_t k = 0; (name = quire_isa_at(k)) && strcmp(name, names[i]);) k++;
        assert_int_equal(quire_isa_use(names[i]), name ? QUIRE_OK : QUIRE_EUNSUPPORTED);
    }
    /* The earlier name means the same. */
    assert_int_equal(quire_isa_use("avx512vbmi"), quire_isa_use("avx512vbmi"));
    if (quire_isa_use("avx512vbmi") == QUIRE_OK) assert_string_equal(quire_isa_in_use(), "avx512vbmi");
    assert_int_equal(quire_isa_use(NULL), QUIRE_OK);
}

/* A limit takes the best of what is not above it. */
static void test_environment(void **state)
{
    (void)state;
    const char *name;
    for (uint32_t i = 0; (name = quire_isa_at(i)); i++) {
        assert_int_equal(setenv("QUIRE_ISA", name, 1), 0);
        assert_int_equal(quire_isa_use_environment(), QUIRE_OK);
        assert_string_equal(quire_isa_in_use(), name);
    }
    assert_int_equal(setenv("QUIRE_ISA", "neon-dot", 1), 0);
    assert_int_equal(quire_isa_use_environment(), QUIRE_EINVAL);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_found),
        cmocka_unit_test(test_use),
        cmocka_unit_test(test_absent),
        cmocka_unit_test(test_environment),
    };
    expected = argv + 1;
    n_expected = argc - 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
