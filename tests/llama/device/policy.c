/* SPDX-License-Identifier: MIT */
/* A policy in place of the declared types: rows are codes of the library, and travel behind a mark. */
#include "scene.h"
#include "tests.h"

#include <math.h>
#include <string.h>

void test_policy_attend(void)
{
    static const struct {
        int d_k, d_v, heads;
        bool v_in_k;
    } sizes[] = {{64, 64, 3, false}, {128, 128, 2, false}, {80, 80, 2, false},  {256, 256, 1, false},
                 {96, 96, 1, false}, {192, 128, 2, false}, {576, 512, 1, true}, {40, 40, 1, false}};
    static const kit_type types[] = {F16, F16, F16, F16, BF16, F32};
    static const int queries[] = {1, 33, 2, 7, 200}, gqas[] = {1, 4, 3, 8};
    for (int i = 0; i < 24; i++) {
        scene s = {.s = {.k = types[i % 6],
                         .v = types[i % 6],
                         .d_k = sizes[i % 8].d_k,
                         .d_v = sizes[i % 8].d_v,
                         .heads = sizes[i % 8].heads,
                         .v_in_k = sizes[i % 8].v_in_k,
                         .gqa = gqas[i % 4],
                         .cells = i % 3 ? 256 : 300,
                         .streams = 1,
                         .layers = i < 8 ? 4 : 1},
                   .n_q = queries[i % 5],
                   .n_kv = i % 3 ? 256 : 300,
                   .streams = 1,
                   .mask = (mask_kind)(i % N_MASKS),
                   .softcap = i % 7 == 3,
                   .sinks = i % 7 == 5,
                   .peaked = i % 2 == 0};
        if (i % 4 == 1) s.s.streams = 2, s.streams = 2;
        kit_seed(2000 + (uint64_t)i);
        kit_label("%s: %s", kit.policy, scene_text(&s));
        play p;
        if (play_open(&p, &s)) {
            for (int l = 0; l < s.s.layers; l++) play_check(&p, l);
        }
        play_close(&p);
    }
}

static const shape plain = {.k = F16,
                            .v = F16,
                            .d_k = 128,
                            .d_v = 128,
                            .heads = 2,
                            .gqa = 2,
                            .cells = 200,
                            .streams = 2,
                            .layers = 1};

static float *fill(cache *c, side keep)
{
    int rows = cache_rows(c);
    int64_t *cell = KIT_NEW(int64_t, rows);
    float *x[2] = {KIT_NEW(float, rows * c->row[K]), KIT_NEW(float, rows * c->row[V])};
    for (int i = 0; i < rows; i++) cell[i] = i;
    random_rows(x[K], c->row[K], rows, K);
    random_rows(x[V], c->row[V], rows, V);
    batch b = {.n = rows, .cell = cell, .k = x[K], .v = x[V]};
    kit_check(cache_write(c, 0, &b) == GG_SUCCESS, "SET_ROWS fails");
    free(cell);
    free(x[keep == K ? V : K]);
    return x[keep];
}

static void check_rows(cache *a, cache *b, side x, const float *in, bool *applied)
{
    int rows = cache_rows(a), n = rows * a->row[x];
    size_t row = a->bytes[x], all = (size_t)rows * row;
    uint8_t *from = kit_alloc(all, 1), *got = kit_alloc(all, 1);
    uint16_t *half = KIT_NEW(uint16_t, n);
    float *held = KIT_NEW(float, n), *copied = KIT_NEW(float, n), *rounded = KIT_NEW(float, n);
    cache_values(a, 0, x, held);
    double cost = kit_nmse_f(held, in, (size_t)n);
    kit_note("%s: error of the codec %.2e", x == K ? "K" : "V", cost);
    kit_check(cost < 0.2, "%s: stored values have error %.2e", x == K ? "K" : "V", cost);

    /* A codec of its own travels behind a mark, a NaN as f16; the declared type as it is. */
    cache_get(a, 0, x, 0, rows, from);
    gg.fp32_to_fp16_row(in, half, n);
    uint16_t first;
    memcpy(&first, from, 2);
    bool marked = (first & 0x7c00) == 0x7c00 && (first & 0x3ff);
    *applied |= marked;
    if (!marked) kit_same(from, half, all, "rows without a mark, and f16");

    /* Same bytes, same values: into another cache, other cells, one by one, as streams. */
    cache_set(b, 0, x, 0, rows, from);
    cache_get(b, 0, x, 0, rows, got);
    kit_same(got, from, all, "rows set into another cache");
    cache_values(b, 0, x, copied);
    kit_same(copied, held, (size_t)n * sizeof(float), "their values");
    for (int i = 0; i < rows; i += 3) {
        cache_set(b, 0, x, (i * 7) % rows, 1, from + (size_t)i * row);
        cache_get(b, 0, x, (i * 7) % rows, 1, got);
        if (!kit_same(got, from + (size_t)i * row, row, "a row set into another cell")) break;
    }
    gg.backend_tensor_copy(a->stream[x][0][1], b->stream[x][0][0]);
    cache_get(b, 0, x, 0, rows / 2, got);
    kit_same(got, from + all / 2, all / 2, "a stream copied");

    /* Rows of stock llama.cpp are encoded. */
    gg.fp16_to_fp32_row(half, rounded, n);
    cache_set(b, 0, x, 0, rows, half);
    cache_values(b, 0, x, copied);
    double again = kit_nmse_f(copied, rounded, (size_t)n);
    kit_check(again <= 1.1 * cost + 1e-7, "plain rows have error %.2e, stored ones %.2e", again, cost);
    free(from);
    free(got);
    free(half);
    free(held);
    free(copied);
    free(rounded);
}

void test_policy_rows(void)
{
    bool applied = false;
    kit_label("%s: %s", kit.policy, shape_text(&plain));
    for (int x = K; x <= V; x++) {
        cache a = {.s = plain}, b = {.s = plain};
        kit_seed(31);
        bool ok = cache_open(&a, &plain), ok_b = cache_open(&b, &plain);
        if (ok && ok_b) {
            float *in = fill(&a, (side)x);
            free(fill(&b, (side)x));
            check_rows(&a, &b, (side)x, in, &applied);
            free(in);
        }
        cache_close(&a);
        cache_close(&b);
    }
    kit_check(applied || !strcmp(kit.policy, "f16"), "rows have no mark: the policy is not in use");
}

/* NaN and infinity in rows that are seen: what comes out is finite, and other rows keep their values. */
void test_policy_nan(void)
{
    test_nan_rows();
    kit_label("%s: NaN in visible rows, %s", kit.policy, shape_text(&plain));
    cache c;
    kit_seed(32);
    if (cache_open(&c, &plain)) {
        int rows = cache_rows(&c), n = rows * c.row[K];
        free(fill(&c, K));
        float *before = KIT_NEW(float, n), *after = KIT_NEW(float, n), bad[3 * 256], q[128 * 4], out[128 * 4];
        int64_t cell[3] = {3, 70, 390};
        for (int i = 0; i < 3 * 256; i++)
            bad[i] = i % 50 == 7 ? NAN : i % 50 == 9 ? INFINITY : i % 50 == 11 ? -3e38f : kit_normal();
        for (int i = 0; i < 128 * 4; i++) q[i] = kit_normal();
        for (int x = K; x <= V; x++) {
            cache_values(&c, 0, (side)x, before);
            batch b = {.n = 3, .cell = cell, .k = bad, .v = bad};
            kit_check(cache_write(&c, 0, &b) == GG_SUCCESS, "SET_ROWS fails");
            cache_values(&c, 0, (side)x, after);
            int odd = 0;
            for (int i = 0; i < n; i++) odd += !isfinite(after[i]);
            kit_check(odd == 0, "%d values are not finite", odd);
            for (int i = 0; i < 3; i++)
                memcpy(after + cell[i] * 256, before + cell[i] * 256, 256 * sizeof(float));
            kit_same(after, before, (size_t)n * sizeof(float), "other rows");
            free(fill(&c, K));
        }
        batch b = {.n = 3, .cell = cell, .k = bad, .v = bad};
        attention a = {.n_q = 1, .n_kv = 200, .streams = 1, .scale = 0.1f, .q = q};
        kit_check(cache_step(&c, 0, &b, &a, out) == GG_SUCCESS, "FLASH_ATTN_EXT fails");
        int odd = 0;
        for (int i = 0; i < 128 * 4; i++) odd += !isfinite(out[i]);
        kit_check(odd == 0, "%d outputs are not finite", odd);
        free(before);
        free(after);
    }
    cache_close(&c);
}

/* ------------------------------------------------------ rows that cannot be read */

enum { N_FOREIGN = 16, FIRST = 40 };

/* In a process with another policy. */
void test_policy_give(void)
{
    cache c;
    kit_seed(33);
    kit_label("%s gives rows", kit.policy);
    if (cache_open(&c, &plain)) {
        free(fill(&c, K));
        size_t n = N_FOREIGN * c.bytes[K];
        cache_get(&c, 0, K, FIRST, N_FOREIGN, shared_bytes);
        cache_get(&c, 0, V, FIRST, N_FOREIGN, shared_bytes + n);
        cache_set(&c, 0, K, 0, N_FOREIGN, shared_bytes);
        uint8_t *got = kit_alloc(n, 1);
        cache_get(&c, 0, K, 0, N_FOREIGN, got);
        kit_same(got, shared_bytes, n, "own rows");
        free(got);
        /* A fingerprint that nobody knows. */
        for (size_t i = 0; i < 2 * n; i += c.bytes[K]) shared_bytes[i + 3] ^= 0x10;
    }
    cache_close(&c);
}

static void check_foreign(cache *c, side x, const uint8_t *foreign)
{
    size_t bytes = N_FOREIGN * c->bytes[x];
    int n_kv = c->s.cells;
    uint16_t *open = KIT_NEW(uint16_t, 3 * n_kv), *hidden = KIT_NEW(uint16_t, 3 * n_kv);
    float q[3 * 4 * 128], clean[3 * 4 * 128], out[3 * 4 * 128];
    for (int i = 0; i < 3 * 4 * 128; i++) q[i] = kit_normal();
    for (int i = 0; i < 3 * n_kv; i++) {
        bool is_foreign = i % n_kv >= FIRST && i % n_kv < FIRST + N_FOREIGN;
        hidden[i] = is_foreign ? 0xfc00 : 0;
        open[i] = is_foreign && i != 2 * n_kv + FIRST + 3 ? 0xfc00 : 0; /* one query sees one such row */
    }
    attention a = {.n_q = 3, .n_kv = n_kv, .streams = 1, .scale = 0.1f, .q = q, .mask = hidden}, seen = a,
              all = a;
    seen.mask = open;
    all.mask = NULL;
    uint8_t *own = kit_alloc(bytes, 1);
    cache_get(c, 0, x, FIRST, N_FOREIGN, own);
    kit_check(cache_step(c, 0, NULL, &a, clean) == GG_SUCCESS, "FLASH_ATTN_EXT fails");

    cache_set(c, 0, x, FIRST, N_FOREIGN, foreign);
    kit_check(cache_step(c, 0, NULL, &seen, out) != GG_SUCCESS,
              "a row of another policy is visible, and attention succeeds");
    kit_check(cache_step(c, 0, NULL, &all, out) != GG_SUCCESS, "the same without a mask");
    kit_check(cache_step(c, 0, NULL, &a, out) == GG_SUCCESS,
              "rows of another policy are hidden, and attention fails");
    kit_same(out, clean, sizeof out, "outputs with hidden rows of another policy");
    a.first_stream = 1; /* all of it is visible there */
    a.mask = NULL;
    kit_check(cache_step(c, 0, NULL, &a, out) == GG_SUCCESS, "attention to another stream fails");

    /* Overwritten: half by SET_ROWS, half by rows of their own. */
    int64_t cell[N_FOREIGN / 2];
    float *rows = KIT_NEW(float, N_FOREIGN / 2 * 256);
    for (int i = 0; i < N_FOREIGN / 2; i++) cell[i] = FIRST + i;
    random_rows(rows, 256, N_FOREIGN / 2, x);
    batch b = {.n = N_FOREIGN / 2, .cell = cell, .k = rows, .v = rows};
    kit_check(cache_step(c, 0, &b, &all, out) != GG_SUCCESS,
              "rows of another policy are still there, and attention succeeds");
    cache_set(c, 0, x, FIRST + N_FOREIGN / 2, N_FOREIGN / 2, own + bytes / 2);
    kit_check(cache_step(c, 0, NULL, &all, out) == GG_SUCCESS, "all are overwritten, and attention fails");
    double *exact = KIT_NEW(double, 3 * 4 * 128);
    if (cache_attend_exactly(c, 0, &all, exact)) {
        double e = kit_nmse(out, exact, 3 * 4 * 128);
        kit_check(e < tolerance(&c->s), "error %.2e", e);
    }
    free(exact);
    free(open);
    free(hidden);
    free(own);
    free(rows);
}

void test_policy_take(void)
{
    for (int x = K; x <= V; x++) {
        cache c;
        kit_seed(34);
        kit_label("%s given %s rows of another policy", kit.policy ? kit.policy : "declared types",
                  x == K ? "K" : "V");
        if (cache_open(&c, &plain)) {
            free(fill(&c, K));
            check_foreign(&c, (side)x, shared_bytes + (x == K ? 0 : N_FOREIGN * c.bytes[K]));
            /* A copied stream is refused as its source is; clearing ends that. */
            cache_set(&c, 0, (side)x, FIRST, N_FOREIGN, shared_bytes + (x == K ? 0 : N_FOREIGN * c.bytes[K]));
            gg.backend_tensor_copy(c.stream[x][0][0], c.stream[x][0][1]);
            float q[128 * 4] = {0}, out[128 * 4];
            attention a = {
                .n_q = 1, .n_kv = plain.cells, .first_stream = 1, .streams = 1, .scale = 1, .q = q};
            kit_check(cache_step(&c, 0, NULL, &a, out) != GG_SUCCESS,
                      "a copy of such a row is visible, and attention succeeds");
            gg.backend_buffer_clear(c.buffer, 0);
            free(fill(&c, K));
            kit_check(cache_step(&c, 0, NULL, &a, out) == GG_SUCCESS, "attention fails after clearing");
        }
        cache_close(&c);
    }
}
