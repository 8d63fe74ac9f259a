/* SPDX-License-Identifier: MIT */
/* The pool: its budget is exact, pages are shared, copied and reused as told. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/cache_kit.h"
#include "support/fail_alloc.h"

#include <math.h>

#define PAGE QUIRE_PAGE_TOKENS

/* One layer, so that one page is all a sequence of 64 tokens needs. */
static quire_geometry one_layer(uint32_t window)
{
    static uint32_t windows[1];
    windows[0] = window;
    return (quire_geometry){sizeof(quire_geometry), .n_layers = 1, .n_q_heads = 2,
                            .n_kv_heads = 2,        .d_k = 40,     .d_v = 24,
                            .windows = windows};
}

static quire_pool_stats stats_of(quire_pool *pool)
{
    quire_pool_stats stats = {.size = sizeof stats};
    quire_pool_stats_get(pool, &stats);
    assert_true(stats.used_bytes <= stats.resident_bytes);
    assert_true(stats.resident_bytes <= stats.peak_bytes);
    assert_true(stats.peak_bytes <= stats.budget_bytes);
    return stats;
}

static void assert_same(quire_pool_stats a, quire_pool_stats b)
{
    assert_true(a.used_bytes == b.used_bytes && a.n_pages == b.n_pages && a.budget_bytes == b.budget_bytes);
}

/* --------------------------------------------------------------------- budget */

static void fill_and_reuse(void **state)
{
    (void)state;
    enum { N = 20 };
    quire_geometry g = one_layer(0);
    quire_plan *plan = kit_plan(&g, "a4g32/r3", NULL);
    size_t page = quire_plan_page_bytes(plan, 0);
    for (size_t spare = 0; spare < page;
         spare += page - 1) { /* a budget between two pages is that of fewer */
        quire_pool *pool = kit_pool(plan, N * page + spare, NULL);
        quire_seq *seq[N], *extra = kit_seq(pool, 0, 0, 0);
        uint64_t hash[N];
        for (uint32_t i = 0; i < N; i++) {
            seq[i] = kit_seq(pool, 0, 0, 0);
            assert_int_equal(kit_append(pool, &g, seq[i], i % 2 ? PAGE : 1 + i, i), QUIRE_OK);
            hash[i] = kit_rows_hash(&g, seq[i]);
            assert_int_equal(stats_of(pool).n_pages, i + 1);
            assert_int_equal(stats_of(pool).used_bytes, (i + 1) * page);
        }
        quire_pool_stats full = stats_of(pool);
        assert_int_equal(kit_append(pool, &g, extra, 1, 0), QUIRE_EFULL);
        assert_int_equal(kit_append(pool, &g, seq[1], 1, 0), QUIRE_EFULL);
        assert_int_equal(kit_append(pool, &g, seq[0], PAGE, 0), QUIRE_EFULL);
        assert_same(full, stats_of(pool));
        for (uint32_t i = 0; i < N; i++) assert_true(hash[i] == kit_rows_hash(&g, seq[i]));
        assert_int_equal(kit_append(pool, &g, seq[0], PAGE - 1, 0), QUIRE_OK); /* room within the page */
        quire_seq_destroy(seq[7]);
        quire_pool_stats one_free = stats_of(pool);
        assert_int_equal(kit_append(pool, &g, extra, PAGE + 1, 7),
                         QUIRE_EFULL); /* the first page goes back */
        assert_same(one_free, stats_of(pool));
        assert_int_equal(kit_append(pool, &g, extra, PAGE, 7), QUIRE_OK);
        assert_true(kit_rows_hash(&g, extra) == hash[7]);
        assert_int_equal(kit_append(pool, &g, extra, 1, 7), QUIRE_EFULL);
        assert_int_equal(stats_of(pool).peak_bytes, N * page);
        for (uint32_t i = 0; i < N; i++)
            if (i != 7) quire_seq_destroy(seq[i]);
        quire_seq_destroy(extra);
        kit_pool_is_empty(pool);
        quire_pool_destroy(pool);
    }
    quire_pool *pool = NULL;
    quire_pool_options small = {sizeof(quire_pool_options), .budget_bytes = page - 1};
    assert_int_equal(quire_pool_create(&pool, plan, &small), QUIRE_EINVAL);
    assert_null(pool);
    quire_plan_destroy(plan);
}

/* The last sequence of a step does not fit: none gets anything. */
static void all_or_nothing(void **state)
{
    (void)state;
    quire_geometry g = kit_geometry(1, 32, 32);
    quire_plan *plan = kit_plan(&g, "q8_0/q4_0", NULL);
    size_t pair = quire_plan_page_bytes(plan, 0) + quire_plan_page_bytes(plan, 1);
    quire_pool *pool = kit_pool(plan, 3 * pair + quire_plan_page_bytes(plan, 0), NULL);
    quire_seq *seq[4];
    uint32_t n_tokens[4] = {1, 2, 64, 1};
    quire_step *step = NULL;
    for (int i = 0; i < 4; i++) seq[i] = kit_seq(pool, 0, 0, 0);
    assert_int_equal(quire_step_begin(&step, pool, seq, n_tokens, 4), QUIRE_EFULL);
    assert_null(step);
    assert_int_equal(stats_of(pool).used_bytes, 0);
    for (int i = 0; i < 4; i++) assert_int_equal(quire_seq_length(seq[i]), 0);
    assert_int_equal(quire_step_begin(&step, pool, seq, n_tokens, 3), QUIRE_OK); /* and none is busy */
    quire_step *second = NULL;
    assert_int_equal(quire_step_begin(&second, pool, seq + 2, n_tokens, 1), QUIRE_EBUSY);
    assert_int_equal(quire_step_begin(&second, pool, seq + 3, n_tokens, 1), QUIRE_EFULL);
    quire_seq *twice[] = {seq[3], seq[3]};
    uint32_t none[2] = {0, 0};
    assert_int_equal(quire_step_begin(&second, pool, twice, none, 2), QUIRE_EBUSY);
    quire_step_abort(step);
    for (int i = 0; i < 4; i++) quire_seq_destroy(seq[i]);
    kit_pool_is_empty(pool);
    quire_pool_destroy(pool);
    quire_plan_destroy(plan);
}

/* Pages of several sizes share the budget. Released ones make room for other sizes, and their memory goes back
 * without touching the pages beside them (sizes here are no multiples of the system's pages). */
static void several_sizes(void **state)
{
    (void)state;
    static const char *const policies[] = {"r3/r2", "f16", "q5_0/q4_0", "a8g32/a6g64", "f32"};
    enum { PLANS = 5, SEQS = 60 };
    quire_geometry g = one_layer(0);
    struct fail_alloc memory;
    fail_alloc_init(&memory, 0);
    quire_allocator counting = fail_alloc_allocator(&memory);
    for (int own = 0; own < 2; own++) {
        quire_plan *plan[PLANS];
        for (int i = 0; i < PLANS; i++) plan[i] = kit_plan(&g, policies[i], NULL);
        size_t budget = 30 * quire_plan_page_bytes(plan[1], 0) + 100;
        quire_pool *pool = kit_pool(plan[0], budget, own ? &counting : NULL);
        quire_seq *seq[SEQS] = {0};
        uint64_t hash[SEQS] = {0}, n_full = 0, n_done = 0;
        for (uint32_t round = 0; round < 1500; round++) {
            uint32_t i = round * 7919 % SEQS, p = round * 31 % PLANS;
            if (seq[i]) {
                if (kit_rows_hash(&g, seq[i]) != hash[i])
                    fail_msg("round %u: rows of another sequence changed", round);
                quire_seq_destroy(seq[i]);
                seq[i] = NULL;
                continue;
            }
            seq[i] = kit_seq(pool, 0, 0, 0);
            quire_status status = quire_seq_convert(seq[i], plan[p], 0); /* empty: chooses the plan */
            if (!status) status = kit_append(pool, &g, seq[i], 1 + round % PAGE, round);
            if (status) {
                assert_int_equal(status, QUIRE_EFULL);
                assert_true(stats_of(pool).used_bytes + quire_plan_page_bytes(plan[p], 0) > budget);
                quire_seq_destroy(seq[i]);
                seq[i] = NULL;
                n_full++;
                continue;
            }
            hash[i] = kit_rows_hash(&g, seq[i]);
            n_done++;
            assert_true(stats_of(pool).used_bytes <= budget);
        }
        assert_true(n_full > 20 && n_done > 100);
        for (int i = 0; i < SEQS; i++)
            if (seq[i] && kit_rows_hash(&g, seq[i]) != hash[i]) fail_msg("rows of sequence %d changed", i);
        for (int i = 0; i < SEQS; i++) quire_seq_destroy(seq[i]);
        kit_pool_is_empty(pool);
        quire_pool_destroy(pool);
        for (int i = 0; i < PLANS; i++) quire_plan_destroy(plan[i]);
    }
    assert_true(memory.outstanding == 0 && memory.bytes == 0);
}

/* A page that is used again holds nothing of its former life. */
static void reused_pages_are_zero(void **state)
{
    (void)state;
    quire_geometry g = one_layer(0);
    quire_plan *plan = kit_plan(&g, "f16", NULL);
    quire_pool *pool = kit_pool(plan, quire_plan_page_bytes(plan, 0), NULL);
    quire_seq *seq = kit_seq(pool, 0, 0, 0);
    assert_int_equal(kit_append(pool, &g, seq, PAGE, 1), QUIRE_OK);
    quire_seq_destroy(seq);
    seq = kit_seq(pool, 0, 0, 0);
    float zero[2 * 40] = {0};
    quire_step *step = NULL;
    uint32_t one = 1;
    assert_int_equal(quire_step_begin(&step, pool, &seq, &one, 1), QUIRE_OK);
    assert_int_equal(quire_step_append(step, 0, zero, zero), QUIRE_OK);
    assert_int_equal(quire_step_commit(step), QUIRE_OK);
    quire_tile_ref tile;
    assert_int_equal(quire_seq_tiles(seq, 0, &tile, 1, sizeof(quire_tile_ref)), 1);
    for (uint32_t h = 0; h < 2; h++)
        for (size_t i = 0; i < quire_tile_bytes(tile.k_format); i++)
            assert_int_equal(((const uint8_t *)tile.k)[h * tile.k_head_stride + i], 0);
    quire_seq_destroy(seq);
    quire_pool_destroy(pool);
    quire_plan_destroy(plan);
}

/* -------------------------------------------------------------------- sharing */

static void copies_are_counted(void **state)
{
    (void)state;
    quire_geometry g = kit_geometry(1, 32, 32); /* two groups: two pages per 64 tokens */
    quire_plan *plan = kit_plan(&g, "r4", NULL);
    quire_pool *pool = kit_pool(plan, 1 << 20, NULL);
    quire_seq *a = kit_seq(pool, 0, 0, 100), *b = NULL, *c = NULL;
    assert_int_equal(kit_append(pool, &g, a, 100, 1), QUIRE_OK);
    uint64_t rows = kit_rows_hash(&g, a);
    assert_int_equal(stats_of(pool).n_pages, 4);
    assert_int_equal(quire_seq_fork(&b, a), QUIRE_OK);
    assert_int_equal(quire_seq_fork(&c, b), QUIRE_OK);
    quire_pool_stats shared = stats_of(pool);
    assert_int_equal(shared.n_pages, 4); /* once, however many hold them */
    assert_int_equal(shared.n_copies, 0);

    quire_step *step = NULL;
    assert_int_equal(kit_begin(&step, pool, &g, b, 2, 2), QUIRE_OK);
    assert_int_equal(stats_of(pool).n_pages, 6); /* the unfinished page of each group */
    quire_step_abort(step);
    assert_int_equal(stats_of(pool).n_pages, 4);
    assert_true(kit_rows_hash(&g, b) == rows);
    assert_int_equal(kit_append(pool, &g, b, 2, 2), QUIRE_OK);
    assert_int_equal(stats_of(pool).n_copies, 4); /* the aborted ones too */
    assert_int_equal(kit_append(pool, &g, c, 3, 3), QUIRE_OK);
    assert_int_equal(stats_of(pool).n_copies, 6);
    assert_int_equal(kit_append(pool, &g, a, 3, 3), QUIRE_OK); /* nobody else holds it any more */
    assert_int_equal(stats_of(pool).n_copies, 6);
    assert_true(kit_rows_hash(&g, a) == kit_rows_hash(&g, c));
    assert_int_equal(quire_seq_trim(b, 100), QUIRE_OK);
    assert_true(kit_rows_hash(&g, b) == rows);
    quire_seq_destroy(a);
    assert_int_equal(stats_of(pool).n_pages, 6);
    quire_seq_destroy(c);
    assert_true(kit_rows_hash(&g, b) == rows);
    quire_seq_destroy(b);
    kit_pool_is_empty(pool);
    quire_pool_destroy(pool);
    quire_plan_destroy(plan);
}

static void counts_of_values(void **state)
{
    (void)state;
    quire_geometry g = one_layer(0);
    quire_plan *plan = kit_plan(&g, "a8g64/a4g64", NULL);
    quire_pool *pool = kit_pool(plan, 1 << 20, NULL);
    quire_seq *seq = kit_seq(pool, 0, 0, 0);
    float k[2 * 40] = {NAN, 1, INFINITY, -1e30f}, v[2 * 24] = {2, NAN, NAN};
    quire_step *step = NULL;
    uint32_t one = 1;
    for (int kept = 0; kept < 2; kept++) {
        assert_int_equal(quire_step_begin(&step, pool, &seq, &one, 1), QUIRE_OK);
        assert_int_equal(quire_step_append(step, 0, k, v), QUIRE_OK);
        if (kept)
            assert_int_equal(quire_step_commit(step), QUIRE_OK);
        else
            quire_step_abort(step);
    }
    quire_pool_stats stats = stats_of(pool);
    assert_int_equal(stats.nan, 6);
    assert_int_equal(stats.saturated, 4);
    assert_int_equal(stats.recoded, 0);
    (void)kit_rows_hash(&g, seq); /* finds every value finite */
    quire_seq_destroy(seq);
    quire_pool_destroy(pool);
    quire_plan_destroy(plan);
}

/* What quire_plan_bytes() promises is enough and, without rings, not more than is used. */
static void promised_bytes(void **state)
{
    (void)state;
    static const uint32_t chunks[] = {1, 7, 64, 100};
    static const quire_seq_options rings[] = {{sizeof(quire_seq_options), 0, 0, 0, 0},
                                              {sizeof(quire_seq_options), 150, 10, 0, 0},
                                              {sizeof(quire_seq_options), 70, 4, 33, 0},
                                              {sizeof(quire_seq_options), 0, 0, 50, 0}};
    quire_geometry g = kit_geometry(1, 16, 16);
    quire_plan *plan = kit_plan(&g, "r4,sinks=70:f16", NULL);
    for (uint32_t c = 0; c < 4; c++)
        for (uint32_t r = 0; r < 4; r++) {
            size_t bytes = kit_plan_bytes(plan, &rings[r], 700, chunks[c]), most = 0;
            quire_pool *pool = kit_pool(plan, bytes, NULL); /* no byte more */
            quire_seq *seq = NULL;
            quire_step *step = NULL;
            assert_int_equal(quire_seq_create(&seq, pool, &rings[r]), QUIRE_OK);
            while (quire_seq_length(seq) < 700) {
                uint32_t left = 700 - quire_seq_length(seq), n = left < chunks[c] ? left : chunks[c];
                quire_status status = kit_begin(&step, pool, &g, seq, n, 1);
                if (status)
                    fail_msg("ring %u, chunk %u, length %u: %s", r, chunks[c], quire_seq_length(seq),
                             quire_status_name(status));
                if (stats_of(pool).used_bytes > most) most = stats_of(pool).used_bytes;
                assert_int_equal(quire_step_commit(step), QUIRE_OK);
            }
            /* At most a page of each group is promised for a place within pages that did not come about, and sink
             * pages are counted as if ordinary ones took their place. */
            assert_true(most <= bytes);
            if (!rings[r].max_tokens) assert_true(bytes - most <= 2 * quire_plan_page_bytes(plan, 1));
            quire_seq_destroy(seq);
            quire_pool_destroy(pool);
        }
    quire_plan_destroy(plan);
}

/* Also if the first pages are smaller than the others: that budget is valid, whatever the length and the steps. */
static void promised_small_sinks(void **state)
{
    (void)state;
    static const char *const policies[] = {"f32,sinks=128:r4", "f32,sinks=64:r2", "r2,sinks=128:f32", "f32"};
    static const uint32_t lengths[] = {1, 64, 65, 128, 129, 192, 300}, chunks[] = {1, 50, 64, 300};
    static const quire_seq_options rings[] = {{sizeof(quire_seq_options), 0, 0, 0, 0},
                                              {sizeof(quire_seq_options), 70, 4, 0, 0},
                                              {sizeof(quire_seq_options), 1, 0, 0, 0}};
    for (uint32_t i = 0; i < 4 * 7 * 4 * 3 * 2; i++) {
        const char *policy = policies[i % 4];
        uint32_t length = lengths[i / 4 % 7], chunk = chunks[i / 28 % 4];
        const quire_seq_options *ring = &rings[i / 112 % 3];
        quire_geometry g = i / 336 ? kit_geometry(1, 16, 16) : one_layer(0);
        quire_plan *plan = kit_plan(&g, policy, NULL);
        quire_pool_options o = {sizeof o, .budget_bytes = kit_plan_bytes(plan, ring, length, chunk)};
        quire_pool *pool = NULL;
        quire_seq *seq = NULL;
        if (quire_pool_create(&pool, plan, &o)) fail_msg("%s, length %u: budget refused", policy, length);
        assert_int_equal(quire_seq_create(&seq, pool, ring), QUIRE_OK);
        for (uint32_t n; (n = length - quire_seq_length(seq));) {
            quire_status status = kit_append(pool, &g, seq, n < chunk ? n : chunk, 1);
            if (status)
                fail_msg("%s, %u of %u in steps of %u: %s", policy, quire_seq_length(seq), length, chunk,
                         quire_status_name(status));
        }
        quire_seq_destroy(seq);
        quire_pool_destroy(pool);
        o.budget_bytes = kit_plan_bytes(plan, NULL, 1, 1) - 1;
        pool = NULL;
        assert_int_equal(quire_pool_create(&pool, plan, &o), QUIRE_EINVAL);
        assert_null(pool);
        quire_plan_destroy(plan);
    }
}

static void refused_bytes(void **state)
{
    (void)state;
    quire_geometry g = kit_geometry(1, 16, 16),
                   vast = {sizeof(quire_geometry), .n_layers = 4096, .n_q_heads = 30000,
                           .n_kv_heads = 30000,    .d_k = 1024,      .d_v = 1024};
    quire_plan *plan = kit_plan(&g, "f16", NULL);
    const uint32_t most = INT32_MAX;
    const quire_seq_options bad[] = {
        {0, 0, 0, 0, 0}, {0, 150, 10, 0, 0}, {sizeof(quire_seq_options), 10, 10, 0, 0}};
    size_t bytes = 77;
    for (int i = 0; i < 3; i++)
        assert_int_equal(quire_plan_bytes(plan, &bad[i], 100, 1, &bytes), QUIRE_EINVAL);
    assert_int_equal(quire_plan_bytes(NULL, NULL, 100, 1, &bytes), QUIRE_EINVAL);
    assert_int_equal(quire_plan_bytes(plan, NULL, 100, 1, NULL), QUIRE_EINVAL);
    assert_int_equal(quire_plan_bytes(plan, NULL, most + 1, 1, &bytes), QUIRE_EINVAL);
    assert_int_equal(bytes, 77);
    assert_int_equal(quire_plan_bytes(plan, NULL, most, UINT32_MAX, &bytes), QUIRE_OK);
    assert_int_equal(quire_plan_bytes(plan, NULL, 0, 0, &bytes), QUIRE_OK);
    assert_int_equal(bytes, 0);
    quire_plan_destroy(plan);

    /* More bytes than a size_t can count. */
    plan = kit_plan(&vast, "f32", NULL);
    assert_int_equal(quire_plan_bytes(plan, NULL, most, 1, &bytes), QUIRE_EINVAL);
    assert_int_equal(quire_plan_bytes(plan, NULL, most / 1024, 1, &bytes), QUIRE_OK);
    assert_true(bytes == (most / 1024 / 64 + 1) * quire_plan_page_bytes(plan, 0));
    quire_plan_destroy(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fill_and_reuse),       cmocka_unit_test(all_or_nothing),
        cmocka_unit_test(several_sizes),        cmocka_unit_test(reused_pages_are_zero),
        cmocka_unit_test(copies_are_counted),   cmocka_unit_test(counts_of_values),
        cmocka_unit_test(promised_bytes),       cmocka_unit_test(refused_bytes),
        cmocka_unit_test(promised_small_sinks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
