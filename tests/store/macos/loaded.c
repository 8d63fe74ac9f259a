/* SPDX-License-Identifier: MIT */
/* A library of the store with OpenSSL inside stays loaded after dlclose(): store/os_macos.c, built as a module with the calls of Linux. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dlfcn.h>

static void stays_loaded(void **state)
{
    (void)state;
    void *module = dlopen(MODULE, RTLD_NOW | RTLD_LOCAL);
    if (!module) fail_msg("%s", dlerror());
    const char *systems = (const char *)dlsym(module, "quire_os_punching_systems");
    assert_non_null(systems);
    assert_int_equal(dlclose(module), 0);
    assert_non_null(dlopen(MODULE, RTLD_NOW | RTLD_NOLOAD));
    assert_string_equal(systems, "APFS");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(stays_loaded)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
