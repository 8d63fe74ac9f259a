/* SPDX-License-Identifier: MIT */
/* What a healthy host does not send. */
#include "scene.h"
#include "tests.h"

#include <math.h>
#include <string.h>

/* Queries that see nothing, with and without sinks, between others that do: as the CPU has it. */
static void run_masked(kit_type k, kit_type v, bool sinks, int n_q)
{
    scene s = {.s = {.k = k,
                     .v = v,
                     .d_k = 64,
                     .d_v = 64,
                     .heads = 2,
                     .gqa = 2,
                     .cells = 256,
                     .streams = 1,
                     .layers = 1},
               .n_q = n_q,
               .n_kv = 256,
               .streams = 1,
               .mask = MASK_RANDOM,
               .sinks = sinks};
    kit_label("blind queries, %s", scene_text(&s));
    play p;
    if (play_open(&p, &s)) {
        size_t n = attention_out(&s.s, &p.a), bytes_k = p.c.bytes[K] * 256, bytes_v = p.c.bytes[V] * 256;
        float *got = KIT_NEW(float, n), *expected = KIT_NEW(float, n);
        uint8_t *held_k = kit_alloc(bytes_k, 1), *held_v = kit_alloc(bytes_v, 1);
        for (int all = 0; all < 2; all++) {
            for (int i = 0; i < n_q; i++) {
                for (int j = 0; j < 256 && (all || i % 2 == 0); j++) p.mask[i * 256 + j] = 0xfc00;
            }
            kit_check(play_step(&p, 0, got) == GG_SUCCESS, "FLASH_ATTN_EXT fails");
            cache_get(&p.c, 0, K, 0, 256, held_k);
            cache_get(&p.c, 0, V, 0, 256, held_v);
            kit_check(attend_on_cpu(&s.s, &p.a, held_k, held_v, expected) == GG_SUCCESS, "the CPU fails");
            for (int i = 0; i < n_q; i++) {
                size_t row = n / (size_t)n_q, at = (size_t)i * row;
                double e = kit_nmse_f(got + at, expected + at, row);
                if (all || i % 2 == 0)
                    kit_check(e == 0, "query %d of %d sees nothing: error %.2e", i, n_q, e);
                else
                    kit_check(e < 5e-4, "query %d of %d: error %.2e", i, n_q, e);
            }
        }
        free(got);
        free(expected);
        free(held_k);
        free(held_v);
    }
    play_close(&p);
}

void test_masked(void)
{
    kit_seed(11);
    run_masked(F16, F16, false, 1);
    run_masked(F16, F16, true, 7);
    run_masked(F32, BF16, false, 33);
    run_masked(Q8_0, Q8_0, false, 5);
    run_masked(Q8_0, Q4_0, true, 2);
    run_masked(Q4_1, Q5_1, false, 40);
}

/* Nothing to store, nothing to ask, nothing to look at, nothing to read. */
static void run_empty(kit_type t)
{
    shape s = {
        .k = t, .v = t, .d_k = 64, .d_v = 64, .heads = 2, .gqa = 2, .cells = 128, .streams = 1, .layers = 1};
    kit_label("empty, %s", shape_text(&s));
    cache c;
    if (cache_open(&c, &s)) {
        float q[64 * 4], out[64 * 4], x[128] = {1};
        int64_t cell[1] = {3};
        uint16_t mask[128] = {0};
        uint8_t before[256 * 4], after[256 * 4];
        for (int i = 0; i < 64 * 4; i++) q[i] = kit_normal();
        batch none = {.n = 0, .cell = cell, .k = x, .v = x}, one = {.n = 1, .cell = cell, .k = x, .v = x};
        kit_check(cache_write(&c, 0, &none) == GG_SUCCESS, "SET_ROWS of no rows fails");
        kit_check(cache_write(&c, 0, &one) == GG_SUCCESS, "SET_ROWS fails");
        cache_get(&c, 0, K, 3, 1, before);
        kit_check(cache_write(&c, 0, &none) == GG_SUCCESS, "SET_ROWS of no rows fails");

        attention a = {.n_q = 0, .n_kv = 128, .streams = 1, .scale = 1, .q = q, .mask = mask};
        kit_check(cache_step(&c, 0, NULL, &a, out) == GG_SUCCESS, "attention of no queries fails");
        a.n_q = 1;
        a.n_kv = 0;
        memset(out, 0xff, sizeof out);
        kit_check(cache_step(&c, 0, NULL, &a, out) == GG_SUCCESS, "attention to no cells fails");
        for (int i = 0; i < 64 * 4; i++) {
            if (!kit_check(out[i] == 0, "attention to no cells: value %d is %g", i, (double)out[i])) break;
        }
        gg.backend_tensor_get(c.side[K][0], after, 0, 0);
        gg.backend_tensor_set(c.side[K][0], after, 5, 0);
        gg.backend_tensor_memset(c.side[K][0], 1, 7, 0);
        cache_get(&c, 0, K, 3, 1, after);
        kit_same(after, before, c.bytes[K], "after operations on nothing");
    }
    cache_close(&c);
}

void test_empty(void)
{
    kit_seed(12);
    run_empty(F16);
    run_empty(Q8_0);
    run_empty(F32);
}

/* Rows with NaN and infinity in cells that nobody sees: no other row and no output changes. */
static void run_nan(kit_type t)
{
    scene s = {.s = {.k = t,
                     .v = t,
                     .d_k = 128,
                     .d_v = 128,
                     .heads = 2,
                     .gqa = 4,
                     .cells = 256,
                     .streams = 1,
                     .layers = 1},
               .n_q = 7,
               .n_kv = 256,
               .streams = 1,
               .mask = MASK_SEQUENCES};
    kit_label("NaN in hidden rows, %s", scene_text(&s));
    play p;
    if (play_open(&p, &s)) {
        size_t n = attention_out(&s.s, &p.a);
        float *clean = KIT_NEW(float, n), *got = KIT_NEW(float, n);
        uint8_t *before[2], *after[2];
        kit_check(play_step(&p, 0, clean) == GG_SUCCESS, "FLASH_ATTN_EXT fails");
        int64_t cell[256];
        int count = 0;
        for (int r = 0; r < 256; r++) {
            if (p.position[r] < 0) cell[count++] = r;
        }
        for (int x = K; x <= V; x++) {
            before[x] = kit_alloc(256, p.c.bytes[x]);
            after[x] = kit_alloc(256, p.c.bytes[x]);
            cache_get(&p.c, 0, (side)x, 0, 256, before[x]);
        }
        float *bad = KIT_NEW(float, count * 256);
        static const float odd[] = {NAN, INFINITY, -INFINITY, 3e38f};
        for (int i = 0; i < count * 256; i++) bad[i] = i / 256 % 2 ? odd[i % 4] : odd[i / 512 % 4];
        batch b = {.n = count, .cell = cell, .k = bad, .v = bad};
        cache_write(&p.c, 0, &b); /* may be refused or stored somehow */
        kit_check(play_attend(&p, 0, got) == GG_SUCCESS, "FLASH_ATTN_EXT fails");
        kit_same(got, clean, n * sizeof(float), "outputs");
        for (int x = K; x <= V; x++) {
            size_t row = p.c.bytes[x];
            cache_get(&p.c, 0, (side)x, 0, 256, after[x]);
            for (int i = 0; i < count; i++)
                memcpy(after[x] + (size_t)cell[i] * row, before[x] + (size_t)cell[i] * row, row);
            kit_same(after[x], before[x], 256 * row, x == K ? "other rows of K" : "other rows of V");
            free(before[x]);
            free(after[x]);
        }
        free(bad);
        free(clean);
        free(got);
    }
    play_close(&p);
}

void test_nan_rows(void)
{
    kit_seed(13);
    for (int t = F32; t < N_CACHE_TYPES; t++) run_nan((kit_type)t);
}

/* A cell that does not exist: the CPU backend ends the program; doing so or an error is right, anything else is not. */
void test_bad_cell(void)
{
    shape s = {.k = F16,
               .v = F16,
               .d_k = 64,
               .d_v = 64,
               .heads = 2,
               .gqa = 2,
               .cells = 128,
               .streams = 1,
               .layers = 1};
    static const int64_t bad[] = {128, -1, INT64_MAX, INT64_MIN, 1 << 20};
    cache c;
    if (cache_open(&c, &s)) {
        float x[3 * 128] = {1};
        for (int i = 0; i < 5; i++) {
            int64_t cell[3] = {3, bad[i], 5};
            kit_label("cell %lld of 128", (long long)bad[i]);
            batch b = {.n = 3, .cell = cell, .k = x, .v = x};
            kit_check(cache_write(&c, 0, &b) != GG_SUCCESS, "SET_ROWS succeeds");
        }
    }
    cache_close(&c);
}
