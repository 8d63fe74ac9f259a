/* SPDX-License-Identifier: MIT */
/* Finished pages handed out and taken back (page.h). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "quire/page.h"
#include "support/cache_kit.h"
#include "support/fail_alloc.h"

#include <string.h>

#define SEED 11u

typedef struct source {
    const quire_seq *seq;
    quire_pool *pool;
    uint32_t n_given;
    uint32_t wrong_group; /* UINT32_MAX: none */
} source;

/* A copy of the page of another sequence, as a store would bring it. */
static quire_page *find(void *ctx, uint32_t group, uint32_t page_index)
{
    source *s = (source *)ctx;
    if (group == s->wrong_group) return NULL;
    quire_page_info info = {.size = sizeof info};
    quire_page *held = NULL, *page = NULL;
    assert_int_equal(quire_seq_hold_page(&held, s->seq, group, page_index), QUIRE_OK);
    assert_int_equal(quire_pool_take_page(&page, s->pool, quire_seq_plan(s->seq), group, page_index),
                     QUIRE_OK);
    assert_int_equal(quire_plan_page_info(quire_seq_plan(s->seq), group, page_index, &info), QUIRE_OK);
    memcpy(quire_page_mutable_bytes(page), quire_page_bytes(held), info.bytes);
    quire_pool_drop_page(s->pool, held);
    s->n_given++;
    return page;
}

static quire_seq *computed(quire_pool *pool, const quire_geometry *g, uint32_t n, uint32_t max,
                           uint32_t sinks)
{
    quire_seq *seq = kit_seq(pool, max, sinks, 0);
    for (uint32_t done = 0; done < n; done += 32)
        assert_int_equal(kit_append(pool, g, seq, 32, SEED), QUIRE_OK);
    return seq;
}

static void copies(void **state)
{
    (void)state;
    static const struct {
        const char *policy;
        uint32_t max_tokens, sinks;
    } cases[] = {
        {"k4v4", 0, 0}, {"f16", 0, 0}, {"r4,sinks=64:f16", 0, 0}, {"r5/r3", 200, 70}, {"q8_0", 150, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        quire_geometry g = kit_geometry(2, 32, 32);
        quire_plan *plan = kit_plan(&g, cases[i].policy, NULL);
        quire_pool *pool = kit_pool(plan, 8u << 20, NULL);
        quire_seq *seq = computed(pool, &g, 448, cases[i].max_tokens, cases[i].sinks);
        quire_seq *copy = kit_seq(pool, cases[i].max_tokens, cases[i].sinks, 0);
        source s = {.seq = seq, .pool = pool, .wrong_group = UINT32_MAX};
        quire_seq_options ring = {.size = sizeof ring};
        assert_int_equal(quire_seq_options_get(seq, &ring), QUIRE_OK);
        assert_int_equal(quire_seq_adopt(copy, 7, find, &s), QUIRE_OK);
        assert_int_equal(quire_seq_length(copy), 448);
        assert_true(kit_rows_hash(&g, seq) == kit_rows_hash(&g, copy));
        assert_true(kit_attend_hash(&g, seq, &ring, 3) == kit_attend_hash(&g, copy, &ring, 3));
        assert_int_equal(kit_append(pool, &g, seq, 100, SEED), QUIRE_OK);
        assert_int_equal(kit_append(pool, &g, copy, 100, SEED), QUIRE_OK);
        assert_true(kit_rows_hash(&g, seq) == kit_rows_hash(&g, copy));
        quire_seq_destroy(copy);
        quire_seq_destroy(seq);
        kit_pool_is_empty(pool);
        quire_pool_destroy(pool);
        quire_plan_destroy(plan);
    }
}

/* From every length to every longer one. */
static void extensions(void **state)
{
    (void)state;
    for (uint32_t from = 0; from <= 6; from++)
        for (uint32_t to = from; to <= 6; to++) {
            quire_geometry g = kit_geometry(1, 16, 16);
            quire_plan *plan = kit_plan(&g, "f16", NULL);
            quire_pool *pool = kit_pool(plan, 4u << 20, NULL);
            quire_seq *short_one = computed(pool, &g, from * 64, 160, 10),
                      *long_one = computed(pool, &g, to * 64, 160, 10);
            source s = {.seq = long_one, .pool = pool, .wrong_group = UINT32_MAX};
            assert_int_equal(quire_seq_adopt(short_one, to, find, &s), QUIRE_OK);
            assert_true(kit_rows_hash(&g, short_one) == kit_rows_hash(&g, long_one));
            assert_int_equal(quire_seq_trim_floor(short_one), quire_seq_trim_floor(long_one));
            quire_seq_destroy(short_one);
            quire_seq_destroy(long_one);
            kit_pool_is_empty(pool);
            quire_pool_destroy(pool);
            quire_plan_destroy(plan);
        }
}

static void refusals(void **state)
{
    (void)state;
    quire_geometry g = kit_geometry(2, 32, 32);
    quire_plan *plan = kit_plan(&g, "k4v4", NULL), *other = kit_plan(&g, "f16", NULL);
    quire_pool *pool = kit_pool(plan, 8u << 20, NULL);
    quire_seq *seq = computed(pool, &g, 128, 0, 0), *copy = kit_seq(pool, 0, 0, 0);
    quire_step *step = NULL;
    source s = {.seq = seq, .pool = pool, .wrong_group = 1};
    uint64_t before = kit_rows_hash(&g, copy);
    quire_page *page = NULL;
    assert_int_equal(quire_seq_hold_page(&page, seq, 0, 2), QUIRE_ERANGE); /* not there */
    assert_int_equal(quire_seq_hold_page(&page, seq, 0, UINT32_MAX), QUIRE_ERANGE);
    assert_int_equal(quire_seq_hold_page(&page, seq, 2, 0), QUIRE_EINVAL);
    assert_int_equal(quire_seq_hold_page(&page, NULL, 0, 0), QUIRE_EINVAL);
    assert_int_equal(quire_seq_hold_page(NULL, seq, 0, 0), QUIRE_EINVAL);
    assert_int_equal(quire_seq_hold_page(&page, seq, 1, 0), QUIRE_ERANGE); /* the window has passed it */
    assert_int_equal(kit_append(pool, &g, seq, 30, SEED), QUIRE_OK);
    assert_int_equal(quire_seq_hold_page(&page, seq, 0, 2), QUIRE_ERANGE); /* not finished */
    assert_int_equal(quire_pool_take_page(&page, pool, other, 0, 0), QUIRE_EMISMATCH);
    assert_int_equal(quire_pool_take_page(&page, pool, plan, 2, 0), QUIRE_EINVAL);
    assert_int_equal(quire_pool_take_page(NULL, pool, plan, 0, 0), QUIRE_EINVAL);
    assert_int_equal(quire_pool_take_page(&page, NULL, plan, 0, 0), QUIRE_EINVAL);
    assert_int_equal(quire_pool_take_page(&page, pool, NULL, 0, 0), QUIRE_EINVAL);
    assert_null(page);
    assert_int_equal(quire_seq_adopt(seq, 3, find, &s), QUIRE_EINVAL); /* 158 tokens */
    assert_int_equal(quire_seq_trim(seq, 128), QUIRE_OK);
    assert_int_equal(quire_seq_adopt(seq, 1, find, &s), QUIRE_EINVAL);
    assert_int_equal(kit_begin(&step, pool, &g, copy, 3, SEED), QUIRE_OK);
    assert_int_equal(quire_seq_adopt(copy, 2, find, &s), QUIRE_EBUSY);
    quire_step_abort(step);
    quire_page *kept[2]; /* group 0 gives pages before group 1 fails: they stay the caller's */
    for (uint32_t i = 0; i < 2; i++) assert_int_equal(quire_seq_hold_page(&kept[i], seq, 0, i), QUIRE_OK);
    assert_int_equal(quire_seq_adopt(copy, 2, find, &s), QUIRE_EMISMATCH);
    assert_true(kit_rows_hash(&g, copy) == before && quire_seq_length(copy) == 0);
    for (uint32_t i = 0; i < 2; i++) quire_pool_drop_page(pool, kept[i]);
    quire_seq_destroy(copy);
    quire_seq_destroy(seq);
    quire_pool_destroy(pool); /* the two copies that find() made go with it */
    quire_plan_destroy(plan);
    quire_plan_destroy(other);
}

static quire_pool_stats stats_of(quire_pool *pool)
{
    quire_pool_stats stats = {.size = sizeof stats};
    assert_int_equal(quire_pool_stats_get(pool, &stats), QUIRE_OK);
    return stats;
}

/* Two pools of one plan: a page of one is not adopted by a sequence of the other, and each counts its own pages. */
static void other_pool(void **state)
{
    (void)state;
    quire_geometry g = kit_geometry(2, 32, 32);
    quire_plan *plan = kit_plan(&g, "k4v4", NULL);
    quire_pool *a = kit_pool(plan, 8u << 20, NULL), *b = kit_pool(plan, 8u << 20, NULL);
    quire_seq *seq = computed(a, &g, 64, 0, 0), *copy = kit_seq(b, 0, 0, 0);
    quire_page *page = NULL;
    source s = {.seq = seq, .pool = a, .wrong_group = UINT32_MAX};
    assert_int_equal(quire_seq_adopt(copy, 1, find, &s), QUIRE_EMISMATCH);
    assert_int_equal(quire_seq_length(copy), 0);
    assert_int_equal(stats_of(b).n_pages, 0);
    assert_int_equal(kit_append(b, &g, copy, 64, SEED), QUIRE_OK);
    assert_true(kit_rows_hash(&g, copy) == kit_rows_hash(&g, seq));
    quire_seq_destroy(copy);
    kit_pool_is_empty(b);

    /* Dropped with the other pool named: it goes back to where it came from. */
    quire_pool_stats before = stats_of(a);
    assert_int_equal(quire_pool_take_page(&page, a, plan, 0, 0), QUIRE_OK);
    quire_pool_drop_page(b, page);
    assert_int_equal(stats_of(a).n_pages, before.n_pages);
    assert_int_equal(stats_of(a).used_bytes, before.used_bytes);
    kit_pool_is_empty(b);
    quire_seq_destroy(seq);
    quire_pool_destroy(a); /* the copy that find() made goes with it */
    quire_pool_destroy(b);
    quire_plan_destroy(plan);
}

/* A window of one token: of whole pages nothing is needed. */
static void narrow_window(void **state)
{
    (void)state;
    quire_layer layers[] = {{1, 1, 16, 16, 0, 0}, {1, 1, 16, 16, 1, 0}};
    quire_geometry g = {sizeof(quire_geometry), .n_layers = 2, .layer_stride = sizeof(quire_layer),
                        .layers = layers};
    quire_plan *plan = kit_plan(&g, "f16", NULL);
    quire_pool *pool = kit_pool(plan, 4u << 20, NULL);
    quire_seq *seq = kit_seq(pool, 0, 0, 0), *copy = kit_seq(pool, 0, 0, 0);
    assert_int_equal(kit_append(pool, &g, seq, 256, SEED), QUIRE_OK);
    for (uint32_t n = 1; n <= 4; n++) {
        source s = {.seq = seq, .pool = pool, .wrong_group = 1};
        assert_int_equal(quire_seq_adopt(copy, n, find, &s), QUIRE_OK);
        assert_int_equal(s.n_given, 1);
    }
    assert_true(kit_rows_hash(&g, seq) == kit_rows_hash(&g, copy));
    assert_int_equal(kit_append(pool, &g, copy, 70, SEED), QUIRE_OK);
    quire_seq_destroy(copy);
    quire_seq_destroy(seq);
    kit_pool_is_empty(pool);
    quire_pool_destroy(pool);
    quire_plan_destroy(plan);
}

/* Each allocation of adopt fails once: no page was asked for, and the sequence is as it was. */
static void adopt_without_memory(void **state)
{
    (void)state;
    quire_geometry g = kit_geometry(1, 16, 16);
    quire_plan *plan = kit_plan(&g, "f16", NULL);
    quire_status status = QUIRE_ENOMEM;
    for (uint64_t n = 0; status; n++) {
        struct fail_alloc f;
        fail_alloc_init(&f, 0);
        quire_allocator a = fail_alloc_allocator(&f);
        quire_pool *pool = kit_pool(plan, 4u << 20, &a);
        quire_seq *seq = computed(pool, &g, 64 * 20, 160, 10), *copy = computed(pool, &g, 64 * 2, 160, 10);
        source s = {.seq = seq, .pool = pool, .wrong_group = UINT32_MAX};
        uint64_t before = kit_rows_hash(&g, copy);
        f.fail_at = f.calls + n + 1;
        status = quire_seq_adopt(copy, 20, find, &s);
        f.fail_at = 0;
        if (status) {
            assert_int_equal(status, QUIRE_ENOMEM);
            assert_int_equal(s.n_given, 0);
            assert_true(kit_rows_hash(&g, copy) == before);
            assert_int_equal(kit_append(pool, &g, copy, 70, SEED), QUIRE_OK);
        } else {
            assert_true(n >= 1);
            assert_true(kit_rows_hash(&g, copy) == kit_rows_hash(&g, seq));
        }
        quire_seq_destroy(copy);
        quire_seq_destroy(seq);
        kit_pool_is_empty(pool);
        quire_pool_destroy(pool);
        assert_int_equal(f.outstanding, 0);
    }
    quire_plan_destroy(plan);
}

/* A page that is held stays as it is when its sequence trims into it and goes on otherwise. */
static void held(void **state)
{
    (void)state;
    quire_geometry g = kit_geometry(2, 32, 32);
    quire_plan *plan = kit_plan(&g, "r4", NULL);
    quire_pool *pool = kit_pool(plan, 8u << 20, NULL);
    quire_seq *seq = computed(pool, &g, 128, 0, 0);
    quire_page_info info = {.size = sizeof info};
    assert_int_equal(quire_plan_page_info(plan, 0, 1, &info), QUIRE_OK);
    quire_page *page = NULL;
    assert_int_equal(quire_seq_hold_page(&page, seq, 0, 1), QUIRE_OK);
    void *copy = malloc(info.bytes);
    memcpy(copy, quire_page_bytes(page), info.bytes);
    assert_int_equal(quire_seq_trim(seq, 110), QUIRE_OK);
    assert_int_equal(kit_append(pool, &g, seq, 60, SEED + 1), QUIRE_OK);
    assert_memory_equal(copy, quire_page_bytes(page), info.bytes);
    quire_seq_destroy(seq);
    assert_memory_equal(copy, quire_page_bytes(page), info.bytes);
    quire_pool_drop_page(pool, page);
    kit_pool_is_empty(pool);
    free(copy);
    quire_pool_destroy(pool);
    quire_plan_destroy(plan);
}

/* Pages made resident in any order, side by side or not, hold what is put into them. */
static void populated(void **state)
{
    (void)state;
    quire_geometry g = {sizeof(quire_geometry), .n_layers = 8, .n_q_heads = 8,
                        .n_kv_heads = 8,        .d_k = 128,    .d_v = 128};
    quire_plan *plan = kit_plan(&g, "k4v4", NULL);
    size_t bytes = quire_plan_page_bytes(plan, 0);
    quire_pool *pool = kit_pool(plan, 40 * ((bytes + 4095) / 4096 * 4096), NULL);
    quire_page *page[40], *some[20];
    for (uint32_t i = 0; i < 40; i++)
        assert_int_equal(quire_pool_take_page(&page[i], pool, plan, 0, i), QUIRE_OK);
    assert_int_equal(quire_pool_take_page(&some[0], pool, plan, 0, 40), QUIRE_EFULL);
    for (uint32_t i = 0; i < 20; i++) some[i] = page[(i * 7 + 3) % 40];
    quire_pool_populate(pool, some, 20);
    quire_pool_populate(pool, page, 40);
    quire_pool_populate(pool, page, 0);
    for (uint32_t i = 0; i < 40; i++) memset(quire_page_mutable_bytes(page[i]), (int)i, bytes);
    for (uint32_t i = 0; i < 40; i++) {
        const uint8_t *b = quire_page_bytes(page[i]);
        assert_true(b[0] == i && b[bytes / 2] == i && b[bytes - 1] == i);
        quire_pool_drop_page(pool, page[i]);
    }
    kit_pool_is_empty(pool);
    quire_pool_destroy(pool);
    quire_plan_destroy(plan);
}

static void ranges(void **state)
{
    (void)state;
    quire_geometry g = kit_geometry(1, 16, 16); /* group 1 has a window of 40 */
    quire_plan *plan = kit_plan(&g, "f16", NULL);
    uint32_t kept, first;
    assert_int_equal(quire_plan_page_range(plan, NULL, 0, 10, &kept, &first), QUIRE_OK);
    assert_int_equal(kept, 0);
    assert_int_equal(first, 0);
    assert_int_equal(quire_plan_page_range(plan, NULL, 1, 10, &kept, &first), QUIRE_OK);
    assert_int_equal(kept, 0);
    assert_int_equal(first, 9);
    quire_seq_options ring = {sizeof(quire_seq_options), 200, 70, 0, 0};
    assert_int_equal(quire_plan_page_range(plan, &ring, 0, 10, &kept, &first),
                     QUIRE_OK); /* 130 back from 640: position 511 */
    assert_int_equal(kept, 2);
    assert_int_equal(first, 7);
    assert_int_equal(quire_plan_page_range(plan, &ring, 0, 3, &kept, &first),
                     QUIRE_OK); /* sinks and window meet */
    assert_int_equal(kept, 0);
    assert_int_equal(first, 0);
    assert_int_equal(quire_plan_page_range(plan, &ring, 0, 0, &kept, &first), QUIRE_OK);
    assert_int_equal(first, 0);

    kept = first = 77; /* what is refused writes nothing */
    const uint32_t most = INT32_MAX / 64;
    const quire_seq_options bad[] = {{0, 200, 70, 0, 0},
                                     {sizeof(quire_seq_options), 200, 200, 0, 0},
                                     {sizeof(quire_seq_options), 0, 1, 0, 0}};
    assert_int_equal(quire_plan_page_range(NULL, NULL, 0, 1, &kept, &first), QUIRE_EINVAL);
    assert_int_equal(quire_plan_page_range(plan, NULL, 0, 1, NULL, &first), QUIRE_EINVAL);
    assert_int_equal(quire_plan_page_range(plan, NULL, 0, 1, &kept, NULL), QUIRE_EINVAL);
    assert_int_equal(quire_plan_page_range(plan, NULL, 2, 1, &kept, &first), QUIRE_EINVAL);
    assert_int_equal(quire_plan_page_range(plan, NULL, 0, most + 1, &kept, &first), QUIRE_EINVAL);
    assert_int_equal(quire_plan_page_range(plan, NULL, 0, UINT32_MAX, &kept, &first), QUIRE_EINVAL);
    for (int i = 0; i < 3; i++)
        assert_int_equal(quire_plan_page_range(plan, &bad[i], 0, 1, &kept, &first), QUIRE_EINVAL);
    assert_true(kept == 77 && first == 77);
    assert_int_equal(quire_plan_page_range(plan, NULL, 0, most, &kept, &first), QUIRE_OK);
    quire_plan_destroy(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies),        cmocka_unit_test(extensions),
        cmocka_unit_test(refusals),      cmocka_unit_test(held),
        cmocka_unit_test(ranges),        cmocka_unit_test(populated),
        cmocka_unit_test(narrow_window), cmocka_unit_test(adopt_without_memory),
        cmocka_unit_test(other_pool),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
