/* SPDX-License-Identifier: MIT */
/* Rows into and out of sequences and batches: forms, strides, refusals that write nothing, halves that saturate. */
#include "support/cache_kit.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static const char *name(quire_status status)
{
    return quire_status_name(status);
}

/* A batch whose sequences have different codecs, or have lost rows, is refused before anything is written. */
static void refused_whole(void **unused)
{
    (void)unused;
    quire_geometry g = {sizeof(quire_geometry), .n_layers = 1, .n_q_heads = 1,
                        .n_kv_heads = 1,        .d_k = 32,     .d_v = 32};
    quire_plan *plan = kit_plan(&g, "a8g32", NULL), *other = kit_plan(&g, "a4g32", NULL);
    quire_pool *pool = kit_pool(plan, 16 << 20, NULL);
    quire_seq *two[2] = {kit_seq(pool, 0, 0, 0), kit_seq(pool, 64, 0, 0)};
    assert_string_equal(name(kit_append(pool, &g, two[0], 10, 1)), "OK");
    assert_string_equal(name(kit_append(pool, &g, two[1], 20, 2)), "OK");
    quire_batch *batch;
    assert_string_equal(name(quire_batch_merge(&batch, pool, two, 2)), "OK");
    uint32_t n, padding[2] = {77, 77};
    static uint8_t bytes[300 * 2 * 128];
    quire_rows_out out = {.size = sizeof(quire_rows_out), .form = QUIRE_NATIVE, .data = bytes};
    assert_string_equal(name(quire_batch_export(batch, 0, QUIRE_K, 25, padding, &out)), "OK");
    assert_true(padding[0] == 15 && padding[1] == 5);

    memset(bytes, 0x55, sizeof bytes);
    padding[0] = padding[1] = 77;
    assert_string_equal(name(quire_seq_convert(quire_batch_seqs(batch, &n)[1], other, 0)), "OK");
    assert_string_equal(name(quire_batch_export(batch, 0, QUIRE_K, 25, padding, &out)), "EUNSUPPORTED");
    out.form = QUIRE_F32;
    assert_string_equal(name(quire_batch_export(batch, 0, (quire_side)2, 25, padding, &out)), "EINVAL");
    assert_string_equal(name(quire_batch_export(batch, 0, QUIRE_K, 19, padding, &out)), "EINVAL");
    assert_string_equal(name(kit_append(pool, &g, quire_batch_seqs(batch, &n)[1], 200, 2)), "OK");
    assert_string_equal(name(quire_batch_export(batch, 0, QUIRE_K, 220, padding, &out)), "ERANGE");
    for (size_t i = 0; i < sizeof bytes; i++) assert_int_equal(bytes[i], 0x55);
    assert_true(padding[0] == 77 && padding[1] == 77);

    /* Rows that name another codec than the one they meet. */
    quire_rows_out named = {
        .size = sizeof(quire_rows_out), .form = QUIRE_NATIVE, .data = bytes, .codec = "q8_0"};
    assert_string_equal(name(quire_seq_export(two[0], 0, QUIRE_K, 0, 10, &named)), "EMISMATCH");
    named.codec = "a8g32";
    assert_string_equal(name(quire_seq_export(two[0], 0, QUIRE_K, 0, 10, &named)), "OK");
    named.token_stride = 4; /* rows would overlap: elements for bytes */
    assert_string_equal(name(quire_seq_export(two[0], 0, QUIRE_K, 0, 10, &named)), "EINVAL");
    quire_batch_destroy(batch);
    quire_seq_destroy(two[0]);
    quire_seq_destroy(two[1]);
    quire_pool_destroy(pool);
    quire_plan_destroy(plan);
    quire_plan_destroy(other);
}

/* Heads outside of tokens: only those strides need to be given that are not dense by themselves. */
static void head_major(void **unused)
{
    (void)unused;
    quire_geometry g = {sizeof(quire_geometry), .n_layers = 1, .n_q_heads = 3,
                        .n_kv_heads = 3,        .d_k = 16,     .d_v = 16};
    quire_plan *plan = kit_plan(&g, "f32", NULL);
    quire_pool *pool = kit_pool(plan, 16 << 20, NULL);
    quire_seq *two[2] = {kit_seq(pool, 0, 0, 0), kit_seq(pool, 0, 0, 0)};
    assert_string_equal(name(kit_append(pool, &g, two[0], 5, 1)), "OK");
    assert_string_equal(name(kit_append(pool, &g, two[1], 9, 2)), "OK");
    quire_batch *batch, *back;
    assert_string_equal(name(quire_batch_merge(&batch, pool, two, 2)), "OK");
    static float x[2][3][12][16], y[9][3][16];
    uint32_t padding[2];
    quire_rows_out out = {.size = sizeof(quire_rows_out),
                          .form = QUIRE_F32,
                          .data = x,
                          .token_stride = 64,
                          .head_stride = 12 * 64};
    assert_string_equal(name(quire_batch_export(batch, 0, QUIRE_V, 12, padding, &out)), "OK");
    quire_rows_out dense = {.size = sizeof(quire_rows_out), .form = QUIRE_F32, .data = y};
    assert_string_equal(name(quire_seq_export(two[1], 0, QUIRE_V, 0, 9, &dense)), "OK");
    for (int t = 0; t < 9; t++)
        for (int h = 0; h < 3; h++) assert_memory_equal(x[1][h][3 + t], y[t][h], 64);

    quire_rows in = {
        .size = sizeof(quire_rows), .form = QUIRE_F32, .data = x, .token_stride = 64, .head_stride = 12 * 64};
    assert_string_equal(name(quire_batch_import(&back, pool, 2, 12, padding, &in, &in, sizeof(quire_rows))),
                        "OK");
    memset(y, 0, sizeof y);
    assert_string_equal(name(quire_seq_export(quire_batch_seqs(back, NULL)[1], 0, QUIRE_K, 0, 9, &dense)),
                        "OK");
    for (int t = 0; t < 9; t++)
        for (int h = 0; h < 3; h++) assert_memory_equal(x[1][h][3 + t], y[t][h], 64);
    quire_batch_destroy(batch);
    quire_batch_destroy(back);
    quire_seq_destroy(two[0]);
    quire_seq_destroy(two[1]);
    quire_pool_destroy(pool);
    quire_plan_destroy(plan);
}

/* V of a layer that keeps K only is the first part of K, for sequences and batches. */
static void prefix_of_k(void **unused)
{
    (void)unused;
    quire_geometry g = {sizeof(quire_geometry),
                        .n_layers = 1,
                        .n_q_heads = 4,
                        .n_kv_heads = 1,
                        .d_k = 96,
                        .d_v = 64,
                        .v_in_k = 1};
    quire_plan *plan = kit_plan(&g, "r4", NULL);
    quire_pool *pool = kit_pool(plan, 16 << 20, NULL);
    quire_seq *seq = kit_seq(pool, 0, 0, 0);
    assert_string_equal(name(kit_append(pool, &g, seq, 70, 1)), "OK");
    static float k[70][96], v[70][64], padded[80][64];
    quire_rows_out out = {.size = sizeof(quire_rows_out), .form = QUIRE_F32, .data = k};
    assert_string_equal(name(quire_seq_export(seq, 0, QUIRE_K, 0, 70, &out)), "OK");
    out.data = v;
    assert_string_equal(name(quire_seq_export(seq, 0, QUIRE_V, 0, 70, &out)), "OK");
    for (int t = 0; t < 70; t++) assert_memory_equal(k[t], v[t], 64 * sizeof(float));
    quire_batch *batch;
    uint32_t padding;
    assert_string_equal(name(quire_batch_merge(&batch, pool, &seq, 1)), "OK");
    out.data = padded;
    memset(padded, 0x55, sizeof padded);
    assert_string_equal(name(quire_batch_export(batch, 0, QUIRE_V, 80, &padding, &out)), "OK");
    assert_int_equal(padding, 10);
    for (int i = 0; i < 10 * 64; i++) assert_true(padded[i / 64][i % 64] == 0);
    assert_memory_equal(padded[10], v, sizeof v);
    out.form = QUIRE_NATIVE;
    assert_string_equal(name(quire_seq_export(seq, 0, QUIRE_V, 0, 70, &out)), "EUNSUPPORTED");
    quire_batch_destroy(batch);
    quire_seq_destroy(seq);
    quire_pool_destroy(pool);
    quire_plan_destroy(plan);
}

/* Padding in every codec that has packed arrays. tv codecs have no biases: an array that is given stays as it is. */
static void packed_padding(void **unused)
{
    (void)unused;
    quire_geometry g = {sizeof(quire_geometry), .n_layers = 1, .n_q_heads = 2,
                        .n_kv_heads = 2,        .d_k = 64,     .d_v = 64};
    static uint8_t words[2][7][2][64], scales[2][7][2][8], biases[2][7][2][8];
    for (uint32_t i = 0; i < quire_codec_count(); i++) {
        const quire_codec_info *c = quire_codec_at(i);
        bool has_biases = c->flags & QUIRE_CODEC_MLX;
        if (!has_biases && !(c->flags & QUIRE_CODEC_MLX_VLM)) continue;
        if (c->group > 64) continue;
        quire_plan *plan = kit_plan(&g, c->name, NULL);
        quire_pool *pool = kit_pool(plan, 1 << 20, NULL);
        quire_seq *two[2] = {kit_seq(pool, 0, 0, 0), kit_seq(pool, 0, 0, 0)};
        quire_batch *batch;
        uint32_t padding[2];
        assert_string_equal(name(kit_append(pool, &g, two[1], 5, 1)), "OK");
        assert_string_equal(name(quire_batch_merge(&batch, pool, two, 2)), "OK");
        for (int given = has_biases; given < 2; given++) {
            size_t word = ((size_t)64 * c->bits + 31) / 32 * 4, scale = c->group == 32 ? 4 : 2;
            quire_rows_out out = {.size = sizeof(quire_rows_out),
                                  .form = QUIRE_MLX,
                                  .scale_form = QUIRE_F16,
                                  .data = words,
                                  .scales = scales,
                                  .biases = given ? biases : NULL,
                                  .token_stride = sizeof words[0][0],
                                  .head_stride = sizeof words[0][0][0],
                                  .scale_token_stride = sizeof scales[0][0],
                                  .scale_head_stride = sizeof scales[0][0][0]};
            memset(words, 0x55, sizeof words);
            memset(scales, 0x55, sizeof scales);
            memset(biases, 0x55, sizeof biases);
            assert_string_equal(name(quire_batch_export(batch, 0, QUIRE_K, 7, padding, &out)), "OK");
            assert_true(padding[0] == 7 && padding[1] == 2);
            for (uint32_t t = 0; t < 9; t++) /* all of the first sequence, two columns of the second */
                for (uint32_t h = 0; h < 2; h++) {
                    for (size_t b = 0; b < word; b++) assert_int_equal(words[t / 7][t % 7][h][b], 0);
                    for (size_t b = 0; b < 8; b++) {
                        assert_int_equal(scales[t / 7][t % 7][h][b], b < scale ? 0 : 0x55);
                        assert_int_equal(biases[t / 7][t % 7][h][b], has_biases && b < scale ? 0 : 0x55);
                    }
                }
        }
        quire_batch_destroy(batch);
        quire_seq_destroy(two[0]);
        quire_seq_destroy(two[1]);
        quire_pool_destroy(pool);
        quire_plan_destroy(plan);
    }
}

/* The codec's own bytes can be damaged. Rows that were appended before stay, in every head and on both sides. */
static void damaged_append(void **unused)
{
    (void)unused;
    quire_geometry g = {sizeof(quire_geometry), .n_layers = 1, .n_q_heads = 3,
                        .n_kv_heads = 3,        .d_k = 32,     .d_v = 32};
    static const char *const codecs[] = {"r4", "a4g32", "q8_0", "tq3"};
    for (size_t i = 0; i < sizeof codecs / sizeof *codecs; i++) {
        quire_plan *plan = kit_plan(&g, codecs[i], NULL);
        quire_pool *pool = kit_pool(plan, 1 << 20, NULL);
        quire_seq *from = kit_seq(pool, 0, 0, 0), *to = kit_seq(pool, 0, 0, 0);
        assert_string_equal(name(kit_append(pool, &g, from, 140, 1)), "OK");
        static uint8_t k[140 * 3 * 64], v[140 * 3 * 64], back[140 * 3 * 64];
        size_t row = quire_codec_row_bytes(codecs[i], 32);
        quire_rows_out out = {.size = sizeof(quire_rows_out), .form = QUIRE_NATIVE, .data = k};
        assert_string_equal(name(quire_seq_export(from, 0, QUIRE_K, 0, 70, &out)), "OK");
        out.data = v;
        assert_string_equal(name(quire_seq_export(from, 0, QUIRE_V, 0, 70, &out)), "OK");
        quire_rows k_rows = {.size = sizeof(quire_rows), .form = QUIRE_NATIVE, .data = k}, v_rows = k_rows;
        v_rows.data = v;
        quire_step *step;
        uint32_t n = 70;
        assert_string_equal(name(quire_step_begin(&step, pool, &to, &n, 1)), "OK");
        assert_string_equal(name(quire_step_append_rows(step, 0, 0, &k_rows, &v_rows)), "OK");
        out.data = back; /* other rows, of which only the very last one is damaged */
        assert_string_equal(name(quire_seq_export(from, 0, QUIRE_K, 70, 70, &out)), "OK");
        memset(back + (70 * 3 - 1) * row, 0xff, row);
        k_rows.data = v_rows.data = back;
        assert_string_equal(name(quire_step_append_rows(step, 0, 0, &k_rows, &v_rows)), "EFORMAT");
        k_rows.data = k;
        assert_string_equal(name(quire_step_append_rows(step, 0, 0, &k_rows, &v_rows)), "EFORMAT");
        assert_string_equal(name(quire_step_commit(step)), "OK");
        assert_string_equal(name(quire_seq_export(to, 0, QUIRE_K, 0, 70, &out)), "OK");
        assert_memory_equal(back, k, 70 * 3 * row);
        assert_string_equal(name(quire_seq_export(to, 0, QUIRE_V, 0, 70, &out)), "OK");
        assert_memory_equal(back, v, 70 * 3 * row);
        quire_seq_destroy(from);
        quire_seq_destroy(to);
        quire_pool_destroy(pool);
        quire_plan_destroy(plan);
    }
}

/* A rotated row may decode to more than its input had; a half that cannot hold it gets its largest value. */
static void halves_saturate(void **unused)
{
    (void)unused;
    for (uint32_t i = 0; i < quire_codec_count(); i++) {
        const quire_codec_info *c = quire_codec_at(i);
        if (c->flags & QUIRE_CODEC_CALIBRATED) continue;
        quire_tile_format *f;
        quire_tile_format_options o = {sizeof(quire_tile_format_options), .side = QUIRE_V, .d = 64};
        assert_string_equal(name(quire_tile_format_create(&f, c->name, &o)), "OK");
        uint8_t *tile = (uint8_t *)aligned_alloc(64, quire_tile_bytes(f));
        memset(tile, 0, quire_tile_bytes(f));
        static float x[64 * 64];
        for (int e = 0; e < 64 * 64; e++) x[e] = (e * 7919 % 13 < 6 ? -1.0f : 1.0f) * 65504.0f;
        quire_rows in = {.size = sizeof(quire_rows), .form = QUIRE_F32, .data = x};
        assert_string_equal(name(quire_tile_encode(f, 0, tile, 0, 64, &in, NULL)), "OK");
        static uint16_t h[64 * 64];
        quire_rows_out out = {.size = sizeof(quire_rows_out), .form = QUIRE_F16, .data = h};
        assert_string_equal(name(quire_tile_decode(f, 0, tile, 0, 64, &out)), "OK");
        for (int e = 0; e < 64 * 64; e++)
            if ((h[e] & 0x7c00) == 0x7c00) fail_msg("%s: value %d is %04x", c->name, e, h[e]);
        free(tile);
        quire_tile_format_destroy(f);
    }
}

/* Beam search: an index may come again, and one sequence can be added. */
static void reorder_and_add(void **unused)
{
    (void)unused;
    quire_geometry g = kit_geometry(1, 32, 32);
    quire_plan *plan = kit_plan(&g, "a4g32", NULL);
    quire_pool *pool = kit_pool(plan, 16 << 20, NULL);
    quire_seq *three[3];
    uint64_t hash[3];
    for (uint32_t i = 0; i < 3; i++) {
        three[i] = kit_seq(pool, 0, 0, 0);
        assert_string_equal(name(kit_append(pool, &g, three[i], 10 + 60 * i, i)), "OK");
        hash[i] = kit_rows_hash(&g, three[i]);
    }
    quire_batch *batch;
    assert_string_equal(name(quire_batch_merge(&batch, pool, three, 2)), "OK");
    assert_string_equal(name(quire_batch_add(batch, three[2])), "OK");
    static const uint32_t order[] = {2, 0, 2, 1, 2};
    assert_string_equal(name(quire_batch_filter(batch, order, 5)), "OK");
    uint32_t n;
    quire_seq *const *seqs = quire_batch_seqs(batch, &n);
    assert_int_equal(n, 5);
    for (uint32_t i = 0; i < 5; i++) assert_true(kit_rows_hash(&g, seqs[i]) == hash[order[i]]);
    assert_string_equal(name(kit_append(pool, &g, seqs[0], 3, 9)), "OK"); /* the twins do not notice */
    assert_true(kit_rows_hash(&g, seqs[2]) == hash[2] && kit_rows_hash(&g, three[2]) == hash[2]);
    assert_string_equal(name(quire_batch_filter(batch, &(uint32_t){5}, 1)), "EINVAL");
    assert_string_equal(name(quire_batch_extend(batch, batch)), "EINVAL");
    assert_string_equal(name(quire_batch_filter(batch, NULL, 0)), "OK");
    quire_batch_seqs(batch, &n);
    assert_int_equal(n, 0);
    quire_batch_destroy(batch);
    for (int i = 0; i < 3; i++) quire_seq_destroy(three[i]);
    kit_pool_is_empty(pool);
    quire_pool_destroy(pool);
    quire_plan_destroy(plan);
}

/* What can never fit is refused before memory is taken for its table. */
static void impossible_step(void **unused)
{
    (void)unused;
    quire_geometry g = kit_geometry(1, 32, 32);
    quire_plan *plan = kit_plan(&g, "a4g32", NULL);
    quire_pool *pool = kit_pool(plan, 1 << 20, NULL);
    quire_seq *seq = kit_seq(pool, 0, 0, 0);
    quire_step *step;
    uint32_t tokens = INT32_MAX;
    assert_string_equal(name(quire_step_begin(&step, pool, &seq, &tokens, 1)), "EFULL");
    tokens = 0;
    assert_string_equal(name(quire_step_begin(&step, pool, &seq, &tokens, 1)), "OK");
    for (uint32_t i = 0; i < g.n_layers; i++) {
        assert_string_equal(name(quire_step_append(step, i, NULL, NULL)), "OK");
        assert_string_equal(name(quire_step_attend(step, i, NULL, NULL)), "OK");
    }
    assert_string_equal(name(quire_step_commit(step)), "OK");
    assert_true(isfinite(quire_plan_bytes_per_token(plan)));
    quire_seq_destroy(seq);
    quire_pool_destroy(pool);
    quire_plan_destroy(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refused_whole),   cmocka_unit_test(head_major),
        cmocka_unit_test(prefix_of_k),     cmocka_unit_test(halves_saturate),
        cmocka_unit_test(reorder_and_add), cmocka_unit_test(impossible_step),
        cmocka_unit_test(packed_padding),  cmocka_unit_test(damaged_append),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
