/* SPDX-License-Identifier: MIT */
/* Conversion: in a full pool, of forks, between plans that agree in part, many times over. */
#include "support/cache_kit.h"

#include "page/page.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static const char *name(quire_status status)
{
    return quire_status_name(status);
}

static quire_pool_stats stats(quire_pool *pool)
{
    quire_pool_stats s = {.size = sizeof s};
    quire_pool_stats_get(pool, &s);
    return s;
}

/* A budget that the pages of one policy fill to the last byte still has room for the way to a smaller one. */
static void full_pool(void **unused)
{
    (void)unused;
    quire_geometry g = {sizeof(quire_geometry), .n_layers = 2, .n_q_heads = 2,
                        .n_kv_heads = 1,        .d_k = 64,     .d_v = 64};
    quire_plan *wide = kit_plan(&g, "f16", NULL), *narrow = kit_plan(&g, "k4v4", NULL);
    quire_pool *pool = kit_pool(wide, 3 * quire_plan_page_bytes(wide, 0), NULL);
    quire_seq *seq = kit_seq(pool, 0, 0, 0);
    assert_string_equal(name(kit_append(pool, &g, seq, 192, 1)), "OK");
    assert_string_equal(name(kit_append(pool, &g, seq, 1, 1)), "EFULL");
    assert_string_equal(name(quire_seq_convert(seq, narrow, 0)), "OK");
    assert_string_equal(name(kit_append(pool, &g, seq, 1, 1)), "OK");
    assert_true(stats(pool).peak_bytes <= 3 * quire_plan_page_bytes(wide, 0));

    /* The way back does not fit, and says so before anything has changed. */
    uint64_t rows = kit_rows_hash(&g, seq);
    size_t used = stats(pool).used_bytes;
    assert_string_equal(name(quire_seq_convert(seq, wide, 0)), "EFULL");
    assert_true(kit_rows_hash(&g, seq) == rows && stats(pool).used_bytes == used);
    assert_ptr_equal(quire_seq_plan(seq), quire_seq_plan(seq));
    assert_true(quire_plan_fingerprint(quire_seq_plan(seq)) == quire_plan_fingerprint(narrow));
    quire_seq_destroy(seq);
    kit_pool_is_empty(pool);
    quire_pool_destroy(pool);
    quire_plan_destroy(wide);
    quire_plan_destroy(narrow);
}

/* Forks in a batch stay shared; each alone would end with pages of its own. */
static void forks_stay_shared(void **unused)
{
    (void)unused;
    quire_geometry g = kit_geometry(1, 32, 32);
    quire_plan *wide = kit_plan(&g, "f16,window=f32", NULL), *narrow = kit_plan(&g, "k4v4,window=r8", NULL);
    quire_pool *pool = kit_pool(wide, 64 << 20, NULL);
    quire_seq *seq = kit_seq(pool, 0, 0, 0), *other = kit_seq(pool, 0, 0, 0);
    assert_string_equal(name(kit_append(pool, &g, seq, 300, 1)), "OK");
    assert_string_equal(name(kit_append(pool, &g, other, 70, 2)), "OK");
    quire_seq *const members[] = {seq, seq, other, seq};
    quire_batch *batch;
    assert_string_equal(name(quire_batch_merge(&batch, pool, members, 4)), "OK");
    quire_seq_destroy(seq);
    quire_seq_destroy(other);
    uint32_t n;
    quire_seq *const *seqs = quire_batch_seqs(batch, &n);
    assert_string_equal(name(quire_seq_trim(seqs[3], 296)),
                        "OK"); /* shares the unfinished page, with fewer rows */
    uint64_t pages = stats(pool).n_pages;
    assert_string_equal(name(quire_batch_convert(batch, narrow, 0)), "OK");
    assert_int_equal(stats(pool).n_pages, pages);

    /* The same rows as a sequence converted alone. */
    quire_seq *alone = kit_seq(pool, 0, 0, 0);
    assert_string_equal(name(kit_append(pool, &g, alone, 300, 1)), "OK");
    assert_string_equal(name(quire_seq_convert(alone, narrow, 0)), "OK");
    assert_true(kit_rows_hash(&g, seqs[0]) == kit_rows_hash(&g, alone));
    assert_true(kit_rows_hash(&g, seqs[1]) == kit_rows_hash(&g, alone));
    assert_string_equal(name(quire_seq_trim(alone, 296)), "OK");
    assert_true(kit_rows_hash(&g, seqs[3]) == kit_rows_hash(&g, alone));
    /* A second time: nothing. */
    uint64_t copies = stats(pool).n_copies;
    size_t used = stats(pool).used_bytes;
    assert_string_equal(name(quire_batch_convert(batch, narrow, 0)), "OK");
    assert_true(stats(pool).n_copies == copies && stats(pool).used_bytes == used);
    quire_seq_destroy(alone);
    quire_batch_destroy(batch);
    kit_pool_is_empty(pool);
    quire_pool_destroy(pool);
    quire_plan_destroy(wide);
    quire_plan_destroy(narrow);
}

/* Attention of one query at the last position, over some of a sequence's tiles of layer 0. */
static void attend_tiles(const quire_tile_ref *tiles, uint32_t n, uint32_t window, const float *q, float *out)
{
    quire_workspace *w;
    quire_attend_job job = {.tile_stride = sizeof(quire_tile_ref),
                            .tiles = tiles,
                            .n_tiles = n,
                            .n_q_heads = 4,
                            .n_kv_heads = 2,
                            .d_k = 32,
                            .d_v = 32,
                            .n_queries = 1,
                            .first_query = tiles[n - 1].first + tiles[n - 1].n_rows - 1,
                            .window = window,
                            .q = q,
                            .out = out};
    assert_string_equal(name(quire_workspace_create(&w, NULL, NULL)), "OK");
    assert_string_equal(name(quire_attend(w, NULL, &job, 1, sizeof(quire_attend_job))), "OK");
    quire_workspace_destroy(w);
}

/* Two plans that agree on a layer have different format objects for it; its outputs must not notice, nor save and
 * load. */
static void equal_layers(void **unused)
{
    (void)unused;
    quire_geometry g = kit_geometry(2, 32, 32);
    quire_plan *a = kit_plan(&g, "f32", NULL), *b = kit_plan(&g, "f32,window=f32", NULL);
    quire_pool *pool = kit_pool(a, 64 << 20, NULL);
    quire_seq *plain = kit_seq(pool, 0, 0, 0), *changed = kit_seq(pool, 0, 0, 0);
    assert_string_equal(name(kit_append(pool, &g, plain, 130, 1)), "OK");
    assert_string_equal(name(kit_append(pool, &g, changed, 130, 1)), "OK");
    assert_string_equal(name(quire_seq_convert(plain, b, 0)), "OK"); /* window layers differ */
    assert_string_equal(name(quire_seq_convert(plain, a, QUIRE_CONVERT_NEW)), "OK");
    assert_string_equal(name(quire_seq_convert(changed, b, QUIRE_CONVERT_NEW)), "OK");
    assert_string_equal(name(kit_append(pool, &g, plain, 100, 3)), "OK");
    assert_string_equal(name(kit_append(pool, &g, changed, 100, 3)), "OK");
    static float out[2][4 * 32], q[4 * 32];
    for (int i = 0; i < 4 * 32; i++) q[i] = (float)(i % 7) - 3;
    for (int s = 0; s < 2; s++) {
        quire_tile_ref tiles[8];
        uint32_t n = quire_seq_tiles(s ? changed : plain, 0, tiles, 8, sizeof(quire_tile_ref));
        attend_tiles(tiles, n, 0, q, out[s]);
    }
    assert_memory_equal(out[0], out[1], sizeof out[0]);

    quire_seq_options none = {.size = sizeof(quire_seq_options)};
    uint64_t before = kit_attend_hash(&g, changed, &none, 5);
    kit_bytes bytes = {0};
    quire_seq *loaded;
    assert_string_equal(name(quire_seq_save(changed, kit_write, &bytes)), "OK");
    assert_string_equal(name(quire_seq_load(&loaded, pool, kit_read, &bytes)), "OK");
    assert_true(kit_attend_hash(&g, loaded, &none, 5) == before);
    kit_bytes_free(&bytes);
    quire_seq_destroy(loaded);
    quire_seq_destroy(plain);
    quire_seq_destroy(changed);
    quire_pool_destroy(pool);
    quire_plan_destroy(a);
    quire_plan_destroy(b);
}

/* A tile that the query does not see changes no bit, although it is the first of its format. */
static void unseen_format(void **unused)
{
    (void)unused;
    static const char *const codecs[] = {"f32", "r8", "q8_0", "f32", "h:a4g32"};
    quire_geometry g = kit_geometry(2, 32, 32);
    quire_plan *plan = kit_plan(&g, "f32", NULL);
    quire_pool *pool = kit_pool(plan, 64 << 20, NULL);
    quire_seq *seq = kit_seq(pool, 0, 0, 0);
    for (int i = 0; i < 5; i++) {
        quire_plan *next = kit_plan(&g, codecs[i], NULL);
        assert_string_equal(name(quire_seq_convert(seq, next, QUIRE_CONVERT_NEW)), "OK");
        assert_string_equal(name(kit_append(pool, &g, seq, 64, 1)), "OK");
        quire_plan_destroy(next);
    }
    quire_tile_ref tiles[8];
    assert_int_equal(quire_seq_tiles(seq, 0, tiles, 8, sizeof(quire_tile_ref)), 5);
    static float out[2][4 * 32], q[4 * 32];
    for (int i = 0; i < 4 * 32; i++) q[i] = (float)(i % 11) * 0.3f - 1.5f;
    for (uint32_t hidden = 1; hidden < 4; hidden++) {
        attend_tiles(tiles, 5, 320 - 64 * hidden, q, out[0]);
        attend_tiles(tiles + hidden, 5 - hidden, 0, q, out[1]);
        assert_memory_equal(out[0], out[1], sizeof out[0]);
    }
    quire_seq_destroy(seq);
    quire_pool_destroy(pool);
    quire_plan_destroy(plan);
}

/* One plan after the other, finished pages kept: refused before there are more formats than attend can take. */
static void as_many_plans_as_may_be(void **unused)
{
    (void)unused;
    quire_geometry g = kit_geometry(1, 32, 32);
    quire_plan *first = kit_plan(&g, "f32", NULL);
    quire_pool *pool = kit_pool(first, 64 << 20, NULL);
    quire_seq *seq = kit_seq(pool, 0, 0, 0);
    quire_seq_options none = {.size = sizeof(quire_seq_options)};
    uint32_t n_taken = 0;
    quire_status status = QUIRE_OK;
    for (uint32_t i = 3; i < 30 && !status; i++) {
        quire_plan *plan = kit_plan(&g, quire_codec_at(i)->name, NULL);
        status = quire_seq_convert(seq, plan, QUIRE_CONVERT_NEW);
        quire_plan_destroy(plan);
        if (status) break;
        n_taken++;
        assert_string_equal(name(kit_append(pool, &g, seq, 64, i)), "OK");
        kit_attend_hash(&g, seq, &none, 1); /* aborts unless attend says OK */
    }
    assert_string_equal(name(status), "EUNSUPPORTED");
    assert_true(n_taken >= 12);
    /* A whole conversion makes room again. */
    assert_string_equal(name(quire_seq_convert(seq, first, 0)), "OK");
    quire_seq_destroy(seq);
    kit_pool_is_empty(pool);
    quire_pool_destroy(pool);
    quire_plan_destroy(first);
}

/* quire_plan_bytes() is enough, and not much more than enough. */
static void budget(void **unused)
{
    (void)unused;
    quire_geometry g = kit_geometry(1, 32, 32);
    quire_plan *plan = kit_plan(&g, "k8v4,sinks=4:f32", NULL);
    static const quire_seq_options rings[] = {{sizeof(quire_seq_options), 0, 0, 0, 0},
                                              {sizeof(quire_seq_options), 100, 4, 0, 0},
                                              {sizeof(quire_seq_options), 200, 70, 33, 0},
                                              {sizeof(quire_seq_options), 0, 0, 50, 0}};
    for (size_t r = 0; r < sizeof rings / sizeof *rings; r++)
        for (uint32_t chunk = 1; chunk < 400; chunk = chunk * 3 + 1) {
            size_t bytes = kit_plan_bytes(plan, &rings[r], 1000, chunk);
            quire_pool *pool = kit_pool(plan, bytes, NULL);
            quire_seq *seq = kit_seq(pool, rings[r].max_tokens, rings[r].sinks, rings[r].spare_tokens);
            for (uint32_t left = 1000, n; left; left -= n) {
                n = left < chunk ? left : chunk;
                quire_status status = kit_append(pool, &g, seq, n, 1);
                if (status) fail_msg("ring %zu, chunks of %u, %u left: %s", r, chunk, left, name(status));
            }
            size_t three = 3 * (quire_plan_page_bytes(plan, 0) + quire_plan_page_bytes(plan, 1));
            if (stats(pool).peak_bytes + three < bytes)
                fail_msg("ring %zu, chunks of %u: %zu bytes said, %zu used", r, chunk, bytes,
                         stats(pool).peak_bytes);
            quire_seq_destroy(seq);
            quire_pool_destroy(pool);
        }
    quire_plan_destroy(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full_pool),
        cmocka_unit_test(forks_stay_shared),
        cmocka_unit_test(equal_layers),
        cmocka_unit_test(unseen_format),
        cmocka_unit_test(as_many_plans_as_may_be),
        cmocka_unit_test(budget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
