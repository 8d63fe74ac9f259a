/* SPDX-License-Identifier: MIT */
/* States of quire serve in a real store: found by the longest strict prefix, loaded as they were saved, or not at all. What was
 * computed twice is never mixed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "serve/states.h"
#include "store/kit/store_kit.h"

#include <stdlib.h>
#include <string.h>

enum { PIECE = 256 << 10, HEAD = 40, N = 1024, SIZE = 4 * PIECE, TRIES = 8 };

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
    static const size_t of[] = {
        1,        PIECE - HEAD - 1, PIECE - HEAD, PIECE - HEAD + 1, 2 * PIECE - HEAD, 2 * PIECE - HEAD + 1,
        5 * PIECE};
    scene s;
    begin(&s);
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        uint8_t *bytes = make(of[i], (uint8_t)i);
        uint32_t n = 64 * (uint32_t)(i + 1);
        assert_true(states_save(s.states, s.tokens, n, bytes, of[i], 1000));
        assert_int_equal(quire_store_flush(s.store, 10000), QUIRE_OK);
        assert_there(&s, n, bytes, of[i]);
        close_scene(&s); /* after a restart too */
        open_scene(&s, "a model", 1);
        assert_there(&s, n, bytes, of[i]);
        free(bytes);
    }
    assert_false(states_save(s.states, s.tokens, 64, NULL, 0, 1000));
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
    assert_true(states_save(s.states, s.tokens, 128, bytes, 1000, 1000));
    assert_true(states_save(s.states, s.tokens, 512, bytes, 1000, 1000));
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

/* ------------------------------------------------------ two of the same prefix */

typedef struct part {
    quire_store *to;
    uint32_t first, end; /* pieces */
} part;

static quire_status copy_object(void *ctx, const quire_object_info *info, const void *bytes, size_t n)
{
    const part *p = (const part *)ctx;
    if (info->page_index < p->first || info->page_index >= p->end) return QUIRE_OK;
    return quire_store_put_object(p->to, bytes, n);
}

/* Adds these pieces of all that `from` has. */
static void copy_pieces(scene *from, scene *to, uint32_t first, uint32_t end)
{
    part p = {to->store, first, end};
    assert_int_equal(quire_store_flush(from->store, 10000), QUIRE_OK);
    assert_int_equal(quire_store_each(from->store, 1, copy_object, &p), QUIRE_OK);
}

/* The scene goes on in a directory that has pieces first to end - 1 alone. */
static void keep_pieces(scene *s, uint32_t first, uint32_t end)
{
    scene next;
    begin(&next);
    copy_pieces(s, &next, first, end);
    close_scene(s);
    kit_remove(s->dir);
    *s = next;
}

static bool save(scene *s, const uint8_t *bytes)
{
    bool good = states_save(s->states, s->tokens, 512, bytes, SIZE, 1000);
    assert_int_equal(quire_store_flush(s->store, 10000), QUIRE_OK);
    return good;
}

static void assert_absent(scene *s)
{
    size_t size;
    assert_null(states_load(s->states, s->tokens, 512, 5000, &size));
}

/* Whichever pieces of the first are lost: what is saved after that is there, and whole. */
static void lost_pieces(void **state)
{
    (void)state;
    uint8_t *a = make(SIZE, 1), *b = make(SIZE, 2);
    for (uint32_t first = 0; first <= 5; first++)
        for (uint32_t end = first; end <= 5; end++) {
            scene s;
            begin(&s);
            assert_true(save(&s, a));
            keep_pieces(&s, first, end);
            bool is_whole = !first && end == 5;
            if (!is_whole) assert_absent(&s);
            assert_true(save(&s, b));
            assert_there(&s, 512, is_whole ? a : b, SIZE);
            assert_int_equal(states_find(s.states, s.tokens, N, 0, 0), 512);
            close_scene(&s); /* after a restart too */
            open_scene(&s, "a model", 1);
            assert_there(&s, 512, is_whole ? a : b, SIZE);
            close_scene(&s);
            kit_remove(s.dir);
        }
    free(a);
    free(b);
}

/* The same bytes again fill in what is lost. */
static void filled_in(void **state)
{
    (void)state;
    uint8_t *a = make(SIZE, 1);
    scene s;
    begin(&s);
    for (uint32_t i = 0; i < TRIES + 2; i++) {
        assert_true(save(&s, a));
        assert_there(&s, 512, a, SIZE);
        keep_pieces(&s, 0, 1 + i % 4);
        assert_absent(&s);
    }
    close_scene(&s);
    kit_remove(s.dir);
    free(a);
}

/* Of two servers one has saved the first pieces, the other the last ones. */
static void saved_at_once(void **state)
{
    (void)state;
    uint8_t *a = make(SIZE, 1), *b = make(SIZE, 2);
    for (uint32_t cut = 1; cut < 5; cut++) {
        scene one, two, both;
        begin(&one);
        begin(&two);
        begin(&both);
        assert_true(save(&one, a));
        assert_true(save(&two, b));
        copy_pieces(&one, &both, 0, cut);
        copy_pieces(&two, &both, cut, 5);
        assert_absent(&both);
        copy_pieces(&one, &both, 0, 5);
        assert_there(&both, 512, a, SIZE);
        scene *all[] = {&one, &two, &both};
        for (int i = 0; i < 3; i++) {
            close_scene(all[i]);
            kit_remove(all[i]->dir);
        }
    }
    free(a);
    free(b);
}

static quire_status has_other_root(void *ctx, const quire_object_info *info, const void *bytes, size_t n)
{
    (void)bytes;
    (void)n;
    return memcmp(info->root, ctx, sizeof info->root) ? QUIRE_OK : QUIRE_EMISMATCH;
}

/* States had no digest once, in a namespace with this text alone: they must not be read as if they had one. */
static void earlier_form(void **state)
{
    (void)state;
    uint8_t root[32], *a = make(SIZE, 1);
    quire_identity identity = kit_identity(1);
    quire_namespace *ns;
    scene s;
    begin(&s);
    assert_int_equal(quire_namespace_create_raw(&ns, s.store, &identity, "a model", PIECE), QUIRE_OK);
    quire_namespace_root(ns, root);
    quire_namespace_destroy(ns);
    assert_true(save(&s, a));
    assert_int_equal(quire_store_each(s.store, 0, has_other_root, root), QUIRE_OK);
    close_scene(&s);
    kit_remove(s.dir);
    free(a);
}

/* There is an end to what is kept beside broken ones: nothing then, until the store has lost one of these too. */
static void broken_often(void **state)
{
    (void)state;
    scene s;
    begin(&s);
    for (uint32_t i = 0; i <= TRIES; i++) {
        uint8_t *bytes = make(SIZE, (uint8_t)i);
        assert_int_equal(save(&s, bytes), i < TRIES);
        if (i < TRIES) assert_there(&s, 512, bytes, SIZE);
        keep_pieces(&s, 0, 1);
        assert_absent(&s);
        free(bytes);
    }
    close_scene(&s);
    kit_remove(s.dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(sizes),         cmocka_unit_test(prefixes),
                                       cmocka_unit_test(lost_pieces),   cmocka_unit_test(filled_in),
                                       cmocka_unit_test(saved_at_once), cmocka_unit_test(broken_often),
                                       cmocka_unit_test(earlier_form)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
