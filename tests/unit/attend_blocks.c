/* SPDX-License-Identifier: MIT */
/*
 * Blocks of many query rows: calls with so many queries that blocks have 128, 256 and 512 rows give the bits that the same
 * queries get a few at a time, with masks that add something to rows in any part of a block.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "quire/quire.h"
#include "support/random.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { D = 32, N_KV = 16, PER_KV = 2, N_HEADS = N_KV * PER_KV, N_TILES = 5, N_TOKENS = N_TILES * 64 };
enum { FEW = 7 }; /* queries of a call whose rows are one strip */

typedef struct scene {
    quire_tile_format *k, *v;
    uint8_t *memory;
    quire_tile_ref tile[N_TILES];
    float q[N_TOKENS * N_HEADS * D], mask[N_TOKENS * N_TOKENS];
    float want[N_TOKENS * N_HEADS * D], got[N_TOKENS * N_HEADS * D];
} scene;

static scene *open_scene(const char *codec)
{
    rng r = {11};
    float rows[64 * D];
    scene *s = malloc(sizeof *s);
    quire_rows in = {.size = sizeof in, .form = QUIRE_F32, .data = rows};
    quire_tile_format_options options = {.size = sizeof options, .side = QUIRE_K, .d = D};
    assert_non_null(s);
    assert_int_equal(quire_tile_format_create(&s->k, codec, &options), QUIRE_OK);
    options.side = QUIRE_V;
    assert_int_equal(quire_tile_format_create(&s->v, codec, &options), QUIRE_OK);
    size_t k = quire_tile_bytes(s->k), v = quire_tile_bytes(s->v), each = N_KV * (k + v);
    s->memory = aligned_alloc(64, N_TILES * each);
    assert_non_null(s->memory);
    memset(s->memory, 0, N_TILES * each);
    for (uint32_t t = 0; t < N_TILES; t++) {
        uint8_t *at = s->memory + t * each;
        s->tile[t] = (quire_tile_ref){
            .k = at, .v = at + N_KV * k, .k_format = s->k, .v_format = s->v, .first = t * 64, .n_rows = 64};
        for (uint32_t h = 0; h < N_KV; h++) {
            for (int i = 0; i < 64 * D; i++) rows[i] = rng_normal(&r);
            assert_int_equal(quire_tile_encode(s->k, h, at + h * k, 0, 64, &in, NULL), QUIRE_OK);
            assert_int_equal(quire_tile_encode(s->v, h, at + N_KV * k + h * v, 0, 64, &in, NULL), QUIRE_OK);
        }
    }
    for (int i = 0; i < N_TOKENS * N_HEADS * D; i++) s->q[i] = 2 * rng_normal(&r);
    return s;
}

static void close_scene(scene *s)
{
    quire_tile_format_destroy(s->k);
    quire_tile_format_destroy(s->v);
    free(s->memory);
    free(s);
}

/* The queries at the last n positions, `some` of them at a time. */
static void attend(const scene *s, uint32_t n, uint32_t some, bool masked, float *out)
{
    quire_workspace *w;
    uint32_t begin = N_TOKENS - n;
    memset(out, 0x55, sizeof s->got);
    assert_int_equal(quire_workspace_create(&w, NULL, NULL), QUIRE_OK);
    for (uint32_t at = 0; at < n; at += some) {
        size_t row = (size_t)at * N_HEADS * D;
        quire_mask mask = {.size = sizeof mask,
                           .data = s->mask + (size_t)at * N_TOKENS,
                           .query_stride = N_TOKENS * sizeof(float),
                           .form = QUIRE_F32,
                           .n_keys = N_TOKENS};
        quire_attend_job job = {.tiles = s->tile,
                                .tile_stride = sizeof *s->tile,
                                .n_tiles = N_TILES,
                                .n_q_heads = N_HEADS,
                                .n_kv_heads = N_KV,
                                .d_k = D,
                                .d_v = D,
                                .n_queries = n - at < some ? n - at : some,
                                .first_query = begin + at,
                                .q = s->q + row,
                                .out = out + row,
                                .mask = masked ? &mask : NULL};
        assert_int_equal(quire_attend(w, NULL, &job, 1, sizeof job), QUIRE_OK);
    }
    quire_workspace_destroy(w);
}

static void compare(scene *s, const char *codec, uint32_t n, bool masked)
{
    attend(s, n, FEW, masked, s->want);
    attend(s, n, n, masked, s->got);
    for (size_t i = 0; i < (size_t)n * N_HEADS * D; i++)
        if (memcmp(&s->want[i], &s->got[i], sizeof *s->got))
            fail_msg("%s, %u queries%s: query %zu, head %zu has other bits", codec, n,
                     masked ? " with a mask" : "", i / D / N_HEADS, i / D % N_HEADS);
}

/* Rows of one KV head: below 128, 128, a block of 256, one of 512 and one that is not full. */
static const uint32_t counts[] = {60, 64, 128, 131, 256, 300};
static const char *const codecs[] = {"f16", "r8", "r4", "a4g32", "q8_0"};

static void positions(void **state)
{
    (void)state;
    for (uint32_t c = 0; c < sizeof codecs / sizeof *codecs; c++) {
        scene *s = open_scene(codecs[c]);
        for (uint32_t i = 0; i < sizeof counts / sizeof *counts; i++) compare(s, codecs[c], counts[i], false);
        close_scene(s);
    }
}

/* All of the mask is 0 or -inf, but for one query. */
static void masks(void **state)
{
    (void)state;
    static const uint32_t query[] = {0, 40, 70, 100, 200, 299};
    scene *s = open_scene("r4");
    for (uint32_t i = 0; i < sizeof query / sizeof *query; i++) {
        rng r = {i + 1};
        for (int x = 0; x < N_TOKENS * N_TOKENS; x++) s->mask[x] = rng_between(&r, 0, 9) ? 0 : -INFINITY;
        for (int x = 0; x < N_TOKENS; x++) s->mask[query[i] * N_TOKENS + (uint32_t)x] = rng_normal(&r);
        compare(s, "r4", 300, true);
    }
    close_scene(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(positions), cmocka_unit_test(masks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
