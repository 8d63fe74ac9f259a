/* SPDX-License-Identifier: MIT */
/*
 * Splits that are spread over threads: the bits are those of one thread, also where the partial results of a block do not all fit
 * into memory at once and are folded in several rounds. Every split has one tile, at a position 1,024 tokens behind the one before.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "quire/quire.h"
#include "support/random.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { D = 64, N_TILES = 6, N_SPLITS = 150, MOST_KV = 3, MOST_ROWS = MOST_KV * 96, N_JOBS = 3 };

typedef struct scene {
    quire_tile_format *k, *v;
    uint8_t *memory;
    quire_tile_list *list; /* sequences of N_SPLITS splits, of 70 and of none */
    float q[MOST_ROWS * D];
} scene;

typedef struct results {
    float out[N_JOBS][MOST_ROWS * D], max[N_JOBS][MOST_ROWS], sum[N_JOBS][MOST_ROWS];
} results;

static void open_scene(scene *s, const char *codec, uint32_t n_kv)
{
    rng r = {3};
    float rows[64 * D];
    quire_rows in = {.size = sizeof in, .form = QUIRE_F32, .data = rows};
    quire_tile_format_options options = {.size = sizeof options, .side = QUIRE_K, .d = D};
    assert_int_equal(quire_tile_format_create(&s->k, codec, &options), QUIRE_OK);
    options.side = QUIRE_V;
    assert_int_equal(quire_tile_format_create(&s->v, codec, &options), QUIRE_OK);
    size_t k = quire_tile_bytes(s->k), v = quire_tile_bytes(s->v), each = MOST_KV * (k + v);
    s->memory = aligned_alloc(64, N_TILES * each);
    assert_non_null(s->memory);
    memset(s->memory, 0, N_TILES * each);
    for (uint32_t t = 0; t < N_TILES; t++)
        for (uint32_t h = 0; h < MOST_KV; h++) {
            uint8_t *at = s->memory + t * each;
            for (int i = 0; i < 64 * D; i++) rows[i] = rng_normal(&r);
            assert_int_equal(quire_tile_encode(s->k, h, at + h * k, 0, 64, &in, NULL), QUIRE_OK);
            assert_int_equal(quire_tile_encode(s->v, h, at + MOST_KV * k + h * v, 0, 64, &in, NULL),
                             QUIRE_OK);
        }
    quire_tile_ref refs[N_SPLITS];
    for (uint32_t i = 0; i < N_SPLITS; i++) {
        uint8_t *at = s->memory + i * 5 % N_TILES * each;
        refs[i] = (quire_tile_ref){.k = at,
                                   .v = at + MOST_KV * k,
                                   .k_format = s->k,
                                   .v_format = s->v,
                                   .first = i * 1024,
                                   .n_rows = 64};
    }
    assert_int_equal(quire_tile_list_create(&s->list, NULL), QUIRE_OK);
    assert_int_equal(quire_tile_list_add_tiles(s->list, refs, N_SPLITS, sizeof *refs, n_kv), QUIRE_OK);
    assert_int_equal(quire_tile_list_add_tiles(s->list, refs, 70, sizeof *refs, n_kv), QUIRE_OK);
    assert_int_equal(quire_tile_list_add_tiles(s->list, refs, 0, sizeof *refs, n_kv), QUIRE_OK);
    for (int i = 0; i < MOST_ROWS * D; i++) s->q[i] = 2 * rng_normal(&r);
}

static void close_scene(scene *s)
{
    quire_tile_list_destroy(s->list);
    quire_tile_format_destroy(s->k);
    quire_tile_format_destroy(s->v);
    free(s->memory);
}

static void attend(const scene *s, const quire_executor *executor, uint32_t n_kv, uint32_t per_kv,
                   uint32_t flags, results *out)
{
    static const uint32_t sequence[N_JOBS] = {1, 2, 0}; /* not in the order of their lengths */
    quire_workspace *w;
    quire_attend_job job[N_JOBS];
    quire_attend_options options = {.size = sizeof options, .flags = flags};
    memset(out, 0x55, sizeof *out);
    for (uint32_t i = 0; i < N_JOBS; i++)
        job[i] = (quire_attend_job){.list = s->list,
                                    .list_seq = sequence[i],
                                    .n_q_heads = n_kv * per_kv,
                                    .n_kv_heads = n_kv,
                                    .d_k = D,
                                    .d_v = D,
                                    .n_queries = 1,
                                    .first_query = N_SPLITS * 1024,
                                    .q = s->q,
                                    .out = out->out[i],
                                    .max = out->max[i],
                                    .sum = out->sum[i]};
    assert_int_equal(quire_workspace_create(&w, executor, NULL), QUIRE_OK);
    for (int again = 0; again < 2; again++) /* the second call finds what the first one left */
        assert_int_equal(quire_attend(w, &options, job, N_JOBS, sizeof *job), QUIRE_OK);
    quire_workspace_destroy(w);
}

/* Tasks from the last to the first, none at the same time. */
static void run_backwards(void *ctx, void (*task)(void *, uint32_t), void *arg, uint32_t n)
{
    (void)ctx;
    while (n--) task(arg, n);
}

static void compare_threads(const char *codec, uint32_t n_kv, uint32_t per_kv, uint32_t flags)
{
    static const uint32_t counts[] = {2, 3, 7, 64};
    scene *s = malloc(sizeof *s);
    results *want = malloc(sizeof *want), *got = malloc(sizeof *got);
    assert_true(s && want && got);
    open_scene(s, codec, n_kv);
    attend(s, NULL, n_kv, per_kv, flags, want);
    for (uint32_t i = 0; i < 2 * sizeof counts / sizeof *counts; i++) {
        quire_threads *team = NULL;
        quire_executor e = {.size = sizeof e, .run = run_backwards, .n_threads = counts[i / 2]};
        if (i % 2 && e.n_threads < 8) {
            assert_int_equal(quire_threads_create(&team, e.n_threads), QUIRE_OK);
            assert_int_equal(quire_threads_executor(team, &e), QUIRE_OK);
        }
        attend(s, &e, n_kv, per_kv, flags, got);
        if (memcmp(got, want, sizeof *got))
            fail_msg("%s, %u x %u heads, flags %u: %u threads give other bits", codec, n_kv, per_kv, flags,
                     e.n_threads);
        quire_threads_destroy(team);
    }
    close_scene(s);
    free(got);
    free(want);
    free(s);
}

static void one_block_in_rounds(void **state)
{
    (void)state;
    compare_threads("r4", 1, 96, 0);
    compare_threads("a4g64", 1, 96, QUIRE_ATTEND_PARTIAL);
}

static void blocks_across_rounds(void **state)
{
    (void)state;
    compare_threads("f16", 3, 96, 0);
    compare_threads("r8", 3, 5, QUIRE_ATTEND_PARTIAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_block_in_rounds),
        cmocka_unit_test(blocks_across_rounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
