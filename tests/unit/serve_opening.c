/* SPDX-License-Identifier: MIT */
/* What stands for the beginning of a prompt: the same in all turns of a conversation, another in other conversations. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "serve/opening.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t key_of(const char *body)
{
    uint64_t key;
    assert_true(opening_key(body, strlen(body), NULL, &key));
    return key;
}

#define SYSTEM "{\"role\":\"system\",\"content\":\"Be brief.\"}"
#define USER(text) "{\"role\":\"user\",\"content\":\"" text "\"}"
#define CHAT(list) "{\"messages\":[" list "]}"

static void test_turns(void **state)
{
    uint64_t first = key_of(CHAT(SYSTEM "," USER("Hello")));
    (void)state;
    assert_true(first == key_of(CHAT(SYSTEM "," USER(
                             "Hello") ",{\"role\":\"assistant\",\"content\":\"Hi\"}," USER("More"))));
    assert_true(first == key_of("{\"stream\": true, \"messages\": [ " SYSTEM
                                ",\n " USER("Hello") " ], \"temperature\": 1}"));
    assert_true(first == key_of(CHAT(SYSTEM ",{\"role\":\"user\",\"content\":\"\\u0048ello\"}")));
    assert_true(first != key_of(CHAT(SYSTEM "," USER("Hullo"))));
    assert_true(first != key_of(CHAT(USER("Hello"))));
    assert_true(first != key_of("{\"tools\":[1],\"messages\":[" SYSTEM "," USER("Hello") "]}"));
    assert_true(key_of("{\"tools\":[{\"a\":1}],"
                       "\"messages\":[]}") == key_of("{\"tools\": [ {\"a\" : 1} ]}"));
}

static void test_interfaces(void **state)
{
    (void)state;
    assert_true(key_of("{\"system\":\"S\",\"messages\":[" USER("a") "]}") !=
                key_of("{\"system\":\"T\",\"messages\":[" USER("a") "]}"));
    assert_true(key_of("{\"instructions\":\"S\",\"input\":\"a\"}") !=
                key_of("{\"instructions\":\"S\",\"input\":\"b\"}"));
    assert_true(key_of("{\"input\":[" USER("a") "]}") == key_of("{\"input\":[" USER("a") "," USER("b") "]}"));
    assert_true(key_of("{\"prompt\":[1,2,3]}") != key_of("{\"prompt\":[1,23]}"));
    assert_true(key_of("{\"prompt\":[\"a\",\"b\"]}") == key_of("{\"prompt\":[\"a\",\"c\"]}"));
    assert_true(
        key_of(
            "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"image_url\"}]}]}") !=
        key_of(
            "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"b\"},{\"type\":\"image_url\"}]}]}"));
}

/* Only the first 4 KiB of a text count. */
static void test_long(void **state)
{
    static const size_t lengths[] = {100, 4095, 4096, 5000};
    (void)state;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        char a[8192], b[8192];
        int n = (int)lengths[i];
        snprintf(a, sizeof a, "{\"prompt\":\"%0*dx\"}", n, 0);
        snprintf(b, sizeof b, "{\"prompt\":\"%0*dy\"}", n, 0);
        assert_true((key_of(a) == key_of(b)) == (n >= 4096));
    }
}

static void test_tenants(void **state)
{
    static const char body[] = "{\"prompt\":\"a\"}";
    uint64_t none, a, b;
    (void)state;
    assert_true(opening_key(body, strlen(body), NULL, &none));
    assert_true(opening_key(body, strlen(body), "Bearer a", &a));
    assert_true(opening_key(body, strlen(body), "Bearer b", &b));
    assert_true(a != b && a != none);
}

static void test_no_prompt(void **state)
{
    static const char *const bodies[] = {"",
                                         "{",
                                         "[]",
                                         "7",
                                         "{}",
                                         "{\"content\":\"text\"}",
                                         "{\"messages\":[]}",
                                         "{\"prompt\":[]}",
                                         "{\"messages\":{\"role\":\"user\"}}",
                                         "{\"tools\":null}"};
    uint64_t key;
    (void)state;
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++)
        assert_false(opening_key(bodies[i], strlen(bodies[i]), "Bearer a", &key));
}

/* As deep as a client likes: no key, and no harm. */
static void test_deep(void **state)
{
    enum { DEPTH = 1000000 };
    char *body = (char *)malloc(2 * DEPTH + 64);
    uint64_t key;
    (void)state;
    assert_non_null(body);
    size_t n = (size_t)sprintf(body, "{\"tools\":");
    memset(body + n, '[', DEPTH);
    memset(body + n + DEPTH, ']', DEPTH);
    strcpy(body + n + 2 * (size_t)DEPTH, "}");
    assert_false(opening_key(body, strlen(body), NULL, &key));
    free(body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_turns),   cmocka_unit_test(test_interfaces), cmocka_unit_test(test_long),
        cmocka_unit_test(test_tenants), cmocka_unit_test(test_no_prompt),  cmocka_unit_test(test_deep),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
