/* SPDX-License-Identifier: MIT */
/* States of quire serve in a real store: found by the longest strict prefix, loaded as they were saved, or not at all. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "serve/states.h"
#include "store/kit/store_kit.h"

#include <stdlib.h>
#include <string.h>

enum { PIECE = 256 << 10, N = 1024 };

typedef struct scene {
    char *dir;
    quire_store *store;
    states *states;
    uint32_t tokens[N];
} scene;

static void open_scene(scene *s, const char *text, uint8_t tenant)
{
    const char *why;
    quire_identity identity = kit_identity(tenant);
    s->store = kit_open(s->dir, KIT_CAP, NULL);
    s->states = states_create(s->store, &identity, text, &why);
    assert_non_null(s->states);
}

static void close_scene(scene *s)
{
    states_destroy(s->states);
    quire_store_close(s->store);
}

static void begin(scene *s)
{
    s->dir = kit_directory(NULL);
    for (uint32_t i = 0; i < N; i++) s->tokens[i] = i * 7 + 1;
    open_scene(s, "a model", 1);
}

static uint8_t *make(size_t n, uint8_t salt)
{
    uint8_t *bytes = (uint8_t *)malloc(n);
    for (size_t i = 0; i < n; i++) bytes[i] = (uint8_t)(i * 31 + (i >> 9) + salt);
    return bytes;
}

static void assert_there(scene *s, uint32_t n_tokens, const uint8_t *bytes, size_t n)
{
    size_t size = 0;
    uint8_t *got = states_load(s->states, s->tokens, n_tokens, 5000, &size);
    assert_non_null(got);
    assert_int_equal(size, n);
    assert_memory_equal(got, bytes, n);
    free(got);
}

static void sizes(void **state)
{
    (void)state;
    static const size_t of[] = {1, PIECE - 9, PIECE - 8, PIECE - 7, 2 * PIECE - 8, 2 * PIECE - 7, 5 * PIECE};
    scene s;
    begin(&s);
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        uint8_t *bytes = make(of[i], (uint8_t)i);
        uint32_t n = 64 * (uint32_t)(i + 1);
        assert_true(states_save(s.states, s.tokens, n, bytes, of[i]));
        assert_int_equal(quire_store_flush(s.store, 10000), QUIRE_OK);
        assert_there(&s, n, bytes, of[i]);
        close_scene(&s); /* after a restart too */
        open_scene(&s, "a model", 1);
        assert_there(&s, n, bytes, of[i]);
        free(bytes);
    }
    assert_false(states_save(s.states, s.tokens, 64, NULL, 0));
    close_scene(&s);
    kit_remove(s.dir);
}

static void prefixes(void **state)
{
    (void)state;
    scene s;
    begin(&s);
    uint8_t *bytes = make(1000, 3);
    size_t size;
    assert_int_equal(states_find(s.states, s.tokens, N, 0, 0), 0);
    assert_true(states_save(s.states, s.tokens, 128, bytes, 1000));
    assert_true(states_save(s.states, s.tokens, 512, bytes, 1000));
    assert_int_equal(quire_store_flush(s.store, 10000), QUIRE_OK);
    assert_int_equal(states_find(s.states, s.tokens, N, 0, 0), 512);
    assert_int_equal(states_find(s.states, s.tokens, 512, 0, 0), 512);
    assert_int_equal(states_find(s.states, s.tokens, 511, 0, 0), 128);
    assert_int_equal(states_find(s.states, s.tokens, 511, 128, 0), 0); /* only above 128 */
    assert_int_equal(states_find(s.states, s.tokens, 127, 0, 0), 0);
    assert_null(states_load(s.states, s.tokens, 256, 1000, &size));

    /* One other token, in the first page or in the last: not of this prompt. */
    s.tokens[3]++;
    assert_int_equal(states_find(s.states, s.tokens, N, 0, 0), 0);
    s.tokens[3]--;
    s.tokens[511]++;
    assert_int_equal(states_find(s.states, s.tokens, N, 0, 0), 128);
    assert_null(states_load(s.states, s.tokens, 512, 1000, &size));
    s.tokens[511]--;

    /* Not of another model or another tenant either. */
    close_scene(&s);
    open_scene(&s, "another model", 1);
    assert_int_equal(states_find(s.states, s.tokens, N, 0, 0), 0);
    close_scene(&s);
    open_scene(&s, "a model", 2);
    assert_int_equal(states_find(s.states, s.tokens, N, 0, 0), 0);
    close_scene(&s);
    free(bytes);
    kit_remove(s.dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(sizes), cmocka_unit_test(prefixes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
