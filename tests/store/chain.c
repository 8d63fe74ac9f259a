/* SPDX-License-Identifier: MIT */
/* Chains: the keys of a prompt that grows and shrinks are those of the prompt; saving with them costs what is new. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store/kit/raw_kit.h"
#include "store/store.h"
#include "support/random.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

#define MOST 2048u /* tokens of the model */

static quire_store *open_with_queue(const char *dir, size_t queue_bytes, uint64_t cap)
{
    quire_store_options o = kit_options(dir, cap, NULL);
    quire_store *store = NULL;
    o.queue_bytes = queue_bytes;
    assert_int_equal(quire_store_open(&store, &o), QUIRE_OK);
    return store;
}

/* ---------------------------------------------------------------------- keys */

/* What the chain must be: a prompt. */
typedef struct model {
    uint32_t tokens[MOST], n_tokens, n_media;
    quire_media media[MOST];
} model;

static void compare(const quire_chain *c, const model *m)
{
    quire_key keys[MOST / 64], objects[MOST / 64];
    uint32_t n = m->n_tokens / 64;
    quire_prompt p = {.size = sizeof p,
                      .tokens = m->tokens,
                      .n_tokens = m->n_tokens,
                      .media = m->media,
                      .media_stride = sizeof *m->media,
                      .n_media = m->n_media};
    assert_int_equal(quire_chain_length(c), m->n_tokens);
    assert_int_equal(c->n_pages, n);
    assert_int_equal(quire_chain_keys(keys, &c->ns->root, &p, n), QUIRE_OK);
    for (uint32_t i = 0; i < n; i++) assert_true(quire_key_equal(&keys[i], &c->keys[i]));
    for (uint32_t g = 0; g < c->ns->n_groups; g++) {
        assert_int_equal(quire_chain_objects(objects, keys, n, g), QUIRE_OK);
        for (uint32_t i = 0; i < n; i++)
            assert_true(quire_key_equal(&objects[i], &quire_chain_group(c, g)[i]));
    }
}

static void append(quire_chain *c, model *m, rng *r)
{
    uint32_t most = rng_below(r, 3) ? 90 : 400, n = rng_below(r, most), n_media = 0, first = m->n_tokens;
    if (n > MOST - m->n_tokens) n = MOST - m->n_tokens;
    struct {
        quire_media media;
        uint32_t zero; /* of a later version */
    } media[400] = {0};
    for (uint32_t i = 0; i < n; i++) {
        m->tokens[first + i] = rng_below(r, 1000);
        if (rng_below(r, 20)) continue;
        media[n_media].media.position = first + i;
        media[n_media].media.digest[i % 32] = (uint8_t)rng_bits(r);
        m->media[m->n_media++] = media[n_media++].media;
    }
    assert_int_equal(quire_chain_append(c, m->tokens + first, n, &media->media, sizeof *media, n_media),
                     QUIRE_OK);
    m->n_tokens += n;
}

static void keys_are_those_of_the_prompt(void **state)
{
    (void)state;
    char *dir = kit_directory(NULL);
    quire_store *store = kit_open(dir, KIT_CAP, NULL);
    kit_scene s;
    static model m;
    rng r = {7};
    kit_scene_begin(&s, store, "k4v4", 1); /* two groups */
    for (uint32_t round = 0; round < 60; round++) {
        quire_chain *c = NULL;
        m.n_tokens = m.n_media = 0;
        assert_int_equal(quire_chain_create(&c, s.ns), QUIRE_OK);
        for (uint32_t step = 0; step < 40; step++) {
            if (rng_below(&r, 3)) {
                append(c, &m, &r);
            } else {
                m.n_tokens = rng_below(&r, m.n_tokens + 1);
                if (rng_below(&r, 3) == 0) m.n_tokens = m.n_tokens / 64 * 64;
                while (m.n_media && m.media[m.n_media - 1].position >= m.n_tokens) m.n_media--;
                assert_int_equal(quire_chain_truncate(c, m.n_tokens), QUIRE_OK);
            }
            compare(c, &m);
        }
        quire_chain_destroy(c);
    }
    kit_scene_end(&s);
    quire_store_close(store);
    kit_remove(dir);
}

static void arguments(void **state)
{
    (void)state;
    char *dir = kit_directory(NULL);
    quire_store *store = kit_open(dir, KIT_CAP, NULL);
    kit_scene s;
    kit_raw raw;
    uint32_t tokens[200] = {0}, n = 77;
    uint8_t bytes[100] = {0};
    const void *pages[3] = {bytes, bytes, bytes};
    void *rooms[3] = {bytes, bytes, bytes};
    quire_chain *c = NULL, *of_plan = NULL;
    quire_load *load = NULL;
    kit_scene_begin(&s, store, "k4v4", 1);
    kit_raw_begin(&raw, store, sizeof bytes);
    assert_int_equal(quire_chain_create(NULL, raw.ns), QUIRE_EINVAL);
    assert_int_equal(quire_chain_create(&c, NULL), QUIRE_EINVAL);
    assert_int_equal(quire_chain_create(&c, raw.ns), QUIRE_OK);
    assert_int_equal(quire_chain_create(&of_plan, s.ns), QUIRE_OK);
    assert_int_equal(quire_chain_append(NULL, tokens, 1, NULL, 0, 0), QUIRE_EINVAL);
    assert_int_equal(quire_chain_append(c, NULL, 1, NULL, 0, 0), QUIRE_EINVAL);
    assert_int_equal(quire_chain_append(c, tokens, UINT32_MAX, NULL, 0, 0), QUIRE_EINVAL);
    assert_int_equal(quire_chain_append(c, tokens, 0, NULL, 0, 0), QUIRE_OK);
    assert_int_equal(quire_chain_append(c, tokens, 100, NULL, 0, 0), QUIRE_OK);
    assert_int_equal(quire_chain_append(of_plan, tokens, 200, NULL, 0, 0), QUIRE_OK);
    /* Positions that count from the appended part, beyond it, or not upwards. */
    const uint32_t wrong[][2] = {{9, 110}, {110, 150}, {99, 110}, {120, 110}, {120, 120}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        quire_media media[2] = {{.position = wrong[i][0]}, {.position = wrong[i][1]}};
        assert_int_equal(quire_chain_append(c, tokens, 50, media, sizeof *media, 2), QUIRE_EINVAL);
        assert_int_equal(quire_chain_append(c, tokens, 50, media, 8, 2), QUIRE_EINVAL);
    }
    assert_int_equal(quire_chain_append(c, tokens, 50, NULL, sizeof(quire_media), 1), QUIRE_EINVAL);
    assert_int_equal(quire_chain_length(c), 100);
    assert_int_equal(quire_chain_length(NULL), 0);
    assert_int_equal(quire_chain_truncate(c, 101), QUIRE_EINVAL);
    assert_int_equal(quire_chain_truncate(NULL, 0), QUIRE_EINVAL);

    assert_int_equal(quire_chain_save_raw(c, 0, 2, pages, &n), QUIRE_EINVAL); /* beyond the chain */
    assert_int_equal(quire_chain_save_raw(c, 2, 0, pages, &n), QUIRE_EINVAL);
    assert_int_equal(quire_chain_save_raw(c, 1, UINT32_MAX, pages, &n), QUIRE_EINVAL);
    assert_int_equal(quire_chain_save_raw(c, 0, 1, NULL, &n), QUIRE_EINVAL);
    assert_int_equal(quire_chain_save_raw(of_plan, 0, 1, pages, &n), QUIRE_EINVAL); /* not raw */
    pages[0] = NULL;
    assert_int_equal(quire_chain_save_raw(c, 0, 1, pages, &n), QUIRE_EINVAL);
    assert_int_equal(quire_chain_save(c, NULL, &n), QUIRE_EINVAL);
    quire_seq *seq = kit_compute(&s, 256, false);
    assert_int_equal(quire_chain_save(c, seq, &n), QUIRE_EINVAL);       /* raw */
    assert_int_equal(quire_chain_save(of_plan, seq, &n), QUIRE_EINVAL); /* the sequence is longer */
    assert_int_equal(quire_load_begin_raw(&load, c, 0, 2, rooms, 10), QUIRE_EINVAL);
    assert_int_equal(quire_load_begin_raw(&load, c, 2, 0, rooms, 10), QUIRE_EINVAL);
    assert_int_equal(quire_load_begin_raw(&load, c, 1, UINT32_MAX, rooms, 10), QUIRE_EINVAL);
    assert_int_equal(quire_load_begin_raw(&load, c, 0, 1, NULL, 10), QUIRE_EINVAL);
    assert_int_equal(quire_load_begin_raw(NULL, c, 0, 1, rooms, 10), QUIRE_EINVAL);
    assert_int_equal(quire_load_begin_raw(&load, of_plan, 0, 1, rooms, 10), QUIRE_EINVAL);
    rooms[0] = NULL;
    assert_int_equal(quire_load_begin_raw(&load, c, 0, 1, rooms, 10), QUIRE_EINVAL);
    assert_null(load);
    assert_int_equal(quire_namespace_lookup_many(NULL, NULL, 0, 0, 0, NULL), QUIRE_EINVAL);
    assert_int_equal(quire_namespace_lookup_many(raw.ns, NULL, 0, 0, 0, NULL), QUIRE_OK);
    quire_prompt p = kit_prompt(&s, 64);
    assert_int_equal(quire_namespace_lookup_many(raw.ns, &p, 4, 1, 0, &n), QUIRE_EINVAL);
    assert_int_equal(quire_namespace_lookup_many(raw.ns, NULL, sizeof p, 1, 0, &n), QUIRE_EINVAL);
    /* A structure that reaches into the next one. */
    assert_int_equal(quire_namespace_lookup_many(raw.ns, &p, sizeof p - 8, 1, 0, &n), QUIRE_EINVAL);
    const quire_chain *none[2] = {c, NULL};
    assert_int_equal(quire_chain_lookup_many(none, 2, 0, &n), QUIRE_EINVAL);
    assert_int_equal(quire_chain_lookup_many(NULL, 1, 0, &n), QUIRE_EINVAL);
    assert_int_equal(n, 77);
    /* Nothing to load, nothing to save. */
    assert_int_equal(quire_chain_save_raw(c, 1, 0, NULL, &n), QUIRE_OK);
    assert_int_equal(n, 0);
    assert_int_equal(quire_load_begin_raw(&load, c, 1, 0, NULL, 10), QUIRE_OK);
    assert_true(quire_load_is_done(load));
    quire_load_cancel(NULL);
    assert_int_equal(quire_load_end(load, &n), QUIRE_OK);
    assert_int_equal(n, 64);
    quire_chain_destroy(NULL);
    quire_chain_destroy(c);
    quire_chain_destroy(of_plan);
    quire_seq_destroy(seq);
    kit_raw_end(&raw);
    kit_scene_end(&s);
    quire_store_close(store);
    kit_remove(dir);
}

/* ------------------------------------------------------------------- sequences */

/* Saved with a chain, loaded without one: the same pages, each handed in once. */
static void sequences(void **state)
{
    (void)state;
    char *dir = kit_directory(NULL);
    quire_store *store = kit_open(dir, KIT_CAP, NULL);
    kit_scene s;
    quire_chain *c = NULL;
    uint32_t dropped = 9;
    kit_scene_begin(&s, store, "k4v4", 5);
    quire_seq *seq = kit_compute(&s, 640, false), *loaded;
    assert_int_equal(quire_chain_create(&c, s.ns), QUIRE_OK);
    assert_int_equal(quire_chain_append(c, s.tokens, 640, NULL, 0, 0), QUIRE_OK);
    assert_int_equal(quire_chain_save(c, seq, &dropped), QUIRE_OK);
    assert_int_equal(dropped, 0);
    assert_int_equal(quire_store_flush(store, 10000), QUIRE_OK);
    uint64_t saved = kit_stats(store).saved[0];
    quire_prompt p = kit_prompt(&s, 640);
    assert_true(saved > 10);
    assert_int_equal(quire_chain_save(c, seq, &dropped), QUIRE_OK);
    assert_int_equal(quire_namespace_save(s.ns, &p, seq), QUIRE_OK);
    assert_int_equal(quire_store_flush(store, 10000), QUIRE_OK);
    assert_int_equal(kit_stats(store).saved[0], saved);
    assert_int_equal(kit_stats(store).known[0], 0);
    loaded = kit_load(&s, 640, 10000);
    assert_int_equal(quire_seq_length(loaded), 640);
    assert_true(kit_sight(&s, loaded) == kit_sight(&s, seq));
    quire_seq_destroy(loaded);
    /* One that was found damaged is handed in again by the same chain. */
    quire_namespace_forget(s.ns, &quire_chain_group(c, 0)[3]);
    assert_int_equal(quire_disk_remove(store->disk, &quire_chain_group(c, 0)[3], 1), 1);
    assert_int_equal(quire_chain_save(c, seq, NULL), QUIRE_OK);
    assert_int_equal(quire_store_flush(store, 10000), QUIRE_OK);
    assert_int_equal(kit_stats(store).saved[0], saved + 1);
    quire_chain_destroy(c);
    quire_seq_destroy(seq);
    kit_scene_end(&s);
    quire_store_close(store);
    kit_remove(dir);
}

/* ------------------------------------------------------------------------- raw */

static void load_all(kit_raw *raw, quire_chain *c, uint64_t text, uint32_t first, uint32_t n)
{
    uint8_t *bytes = (uint8_t *)malloc(raw->page_bytes * n), *expected = (uint8_t *)malloc(raw->page_bytes);
    void **rooms = (void **)malloc(sizeof *rooms * n);
    quire_load *load = NULL;
    uint32_t got = 0;
    for (uint32_t i = 0; i < n; i++) rooms[i] = bytes + raw->page_bytes * (n - 1 - i);
    assert_int_equal(quire_load_begin_raw(&load, c, first, n, rooms, 20000), QUIRE_OK);
    while (!quire_load_is_done(load)) usleep(1000);
    assert_int_equal(quire_load_end(load, &got), QUIRE_OK);
    assert_int_equal(got, (first + n) * 64);
    for (uint32_t i = 0; i < n; i++) {
        kit_raw_page(raw, text, first + i, expected);
        assert_memory_equal(rooms[i], expected, raw->page_bytes);
    }
    free(rooms);
    free(expected);
    free(bytes);
}

/* The queue is full: the last ones are not taken, and are when they are handed in again. */
static void dropped_pages(void **state)
{
    (void)state;
    enum { N = 40 };
    char *dir = kit_directory(NULL);
    quire_store *store = open_with_queue(dir, 1u << 20, KIT_CAP);
    kit_raw raw;
    uint32_t tokens[N * 64], dropped = 0, rounds = 0;
    uint8_t *bytes = (uint8_t *)malloc(300000 * N);
    const void *pages[N];
    quire_chain *c = NULL;
    kit_raw_begin(&raw, store, 300000);
    kit_raw_tokens(tokens, 1, N);
    assert_int_equal(quire_chain_create(&c, raw.ns), QUIRE_OK);
    assert_int_equal(quire_chain_append(c, tokens, N * 64, NULL, 0, 0), QUIRE_OK);
    for (uint32_t i = 0; i < N; i++) {
        pages[i] = bytes + 300000 * i;
        kit_raw_page(&raw, 1, i, bytes + 300000 * i);
    }
    for (uint32_t done = 0; done < N; rounds++) {
        assert_int_equal(quire_chain_save_raw(c, done, N - done, pages + done, &dropped), QUIRE_OK);
        if (!rounds) assert_in_range(dropped, 1, N - 1);
        assert_true(kit_stats(store).queued_bytes[0] <= 1u << 20);
        done = N - dropped;
        assert_int_equal(quire_store_flush(store, 30000), QUIRE_OK);
        assert_int_equal(kit_stats(store).saved[0], done);
    }
    assert_int_equal(kit_stats(store).known[0], 0);
    load_all(&raw, c, 1, 0, N);
    load_all(&raw, c, 1, 17, 9);
    assert_int_equal(kit_raw_load(&raw, 1, N, 20000), N);
    quire_chain_destroy(c);
    kit_raw_end(&raw);
    quire_store_close(store);
    free(bytes);
    kit_remove(dir);
}

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); /* of all threads; other programs do not count */
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The whole of a long prompt, page by page, with a flush now and then, as a command does it. */
static void long_prompt(void **state)
{
    (void)state;
    enum { N = 2048, BYTES = 8000 };
    char *dir = kit_directory(NULL);
    quire_store *store = kit_open(dir, KIT_CAP, NULL);
    kit_raw raw;
    uint32_t *tokens = (uint32_t *)calloc(N * 64, sizeof *tokens), dropped;
    uint8_t bytes[BYTES];
    quire_chain *c = NULL;
    const void *page = bytes;
    kit_raw_begin(&raw, store, BYTES);
    for (uint32_t i = 0; i < N * 64; i++) tokens[i] = i * 7;
    assert_int_equal(quire_chain_create(&c, raw.ns), QUIRE_OK);
    double begin = cpu_seconds();
    for (uint32_t i = 0; i < N * 64; i += 16)
        assert_int_equal(quire_chain_append(c, tokens + i, 16, NULL, 0, 0), QUIRE_OK);
    double keys = cpu_seconds() - begin;
    uint64_t time = quire_now();
    begin = cpu_seconds();
    for (uint32_t i = 0; i < N; i++) {
        kit_raw_page(&raw, 3, i, bytes);
        assert_int_equal(quire_chain_save_raw(c, i, 1, &page, &dropped), QUIRE_OK);
        assert_int_equal(dropped, 0);
        if (i % 32 == 31) assert_int_equal(quire_store_flush(store, 60000), QUIRE_OK);
    }
    double saves = cpu_seconds() - begin;
    assert_int_equal(kit_stats(store).saved[0], N);
    print_message("%d pages: keys %.3f s, saved in %.2f s (%.2f s of CPU time)\n", N, keys,
                  (double)(quire_now() - time) * 1e-9, saves);
    double slack = 1;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    slack = 20;
#endif
    assert_true(keys < slack * 0.1);
    assert_true(saves < slack * 5);
    /* The first page is the last to go: it was used last. */
    uint64_t removed = 0;
    assert_int_equal(quire_store_flush(store, 20000), QUIRE_OK);
    assert_int_equal(quire_store_gc(store, 0, 100 * BYTES, &removed), QUIRE_OK);
    assert_true(removed > N / 2);
    const quire_chain *chains[1] = {c};
    assert_int_equal(quire_chain_lookup_many(chains, 1, 0, &dropped), QUIRE_OK);
    assert_int_equal(dropped, (N - removed) * 64);
    load_all(&raw, c, 3, 7, 48);
    quire_chain_destroy(c);
    kit_raw_end(&raw);
    quire_store_close(store);
    free(tokens);
    kit_remove(dir);
}

/* --------------------------------------------------------------------- look-up */

static void look_up_many(void **state)
{
    (void)state;
    enum { N = 60 };
    char *dir = kit_directory(NULL);
    quire_store *store = kit_open(dir, KIT_CAP, NULL);
    kit_raw raw, other;
    quire_chain *chains[2 * N];
    static uint32_t tokens[N][10 * 64];
    struct {
        quire_prompt prompt;
        uint64_t zero; /* of a later version */
    } prompts[N] = {0};
    uint32_t n[2 * N] = {0}, one;
    quire_identity id = kit_identity(3);
    kit_raw_begin(&raw, store, 1000);
    other = raw;
    assert_int_equal(quire_namespace_create_raw(&other.ns, store, &id, "other", 1000), QUIRE_OK);
    for (uint32_t i = 0; i < N; i++) {
        kit_raw_tokens(tokens[i], i / 2, 10); /* some are the same */
        if (i % 10 && i % 2 == 0) kit_raw_save(&raw, i / 2, i % 10);
        if (i % 2 == 0) kit_raw_save(&other, i / 2, (i + 3) % 10);
        prompts[i].prompt =
            (quire_prompt){.size = sizeof prompts[i], .tokens = tokens[i], .n_tokens = 40 * (i % 17)};
        for (uint32_t k = 0; k < 2; k++) {
            assert_int_equal(quire_chain_create(&chains[2 * i + k], k ? other.ns : raw.ns), QUIRE_OK);
            assert_int_equal(quire_chain_append(chains[2 * i + k], tokens[i], 40 * (i % 17), NULL, 0, 0),
                             QUIRE_OK);
        }
    }
    assert_int_equal(quire_store_flush(store, 10000), QUIRE_OK);
    assert_int_equal(quire_namespace_lookup_many(raw.ns, &prompts->prompt, sizeof *prompts, N, 0, n),
                     QUIRE_OK);
    uint32_t n_found = 0;
    for (uint32_t i = 0; i < N; i++) {
        assert_int_equal(quire_namespace_lookup(raw.ns, &prompts[i].prompt, 0, &one), QUIRE_OK);
        assert_int_equal(n[i], one);
        n_found += one > 0;
    }
    assert_true(n_found > 4);
    assert_int_equal(quire_chain_lookup_many((const quire_chain *const *)chains, 2 * N, 0, n), QUIRE_OK);
    for (uint32_t i = 0; i < N; i++)
        for (uint32_t k = 0; k < 2; k++) {
            quire_namespace *ns = k ? other.ns : raw.ns;
            assert_int_equal(quire_namespace_lookup(ns, &prompts[i].prompt, 0, &one), QUIRE_OK);
            assert_int_equal(n[2 * i + k], one);
        }
    /* One of them is wrong: nothing is asked, nothing is written. */
    prompts[N - 1].prompt.tokens = NULL;
    prompts[N - 1].prompt.n_tokens = 64;
    n[0] = 12345;
    assert_int_equal(quire_namespace_lookup_many(raw.ns, &prompts->prompt, sizeof *prompts, N, 0, n),
                     QUIRE_EINVAL);
    assert_int_equal(n[0], 12345);
    for (uint32_t i = 0; i < 2 * N; i++) quire_chain_destroy(chains[i]);
    quire_namespace_destroy(other.ns);
    kit_raw_end(&raw);
    quire_store_close(store);
    kit_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arguments),    cmocka_unit_test(keys_are_those_of_the_prompt),
        cmocka_unit_test(sequences),    cmocka_unit_test(dropped_pages),
        cmocka_unit_test(look_up_many), cmocka_unit_test(long_prompt),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
