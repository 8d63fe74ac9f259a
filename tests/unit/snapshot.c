/* SPDX-License-Identifier: MIT */
/* Snapshots: what is loaded is what was saved, bit for bit; what is damaged, cut or foreign is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/cache_kit.h"
#include "support/fail_alloc.h"
#include "support/snapshot_records.h"

#include <string.h>

#define BUDGET ((size_t)4 << 20)

static const char *const policies[] = {
    "k8v4",
    "k4v4",
    "f32",
    "bf16/f16",
    "r5/r3",
    "r8/r2",
    "r6/r4,window=r4",
    "q8_0/q4_0",
    "q5_1/q5_0,window=iq4_nl",
    "q4_1/iq4_nl",
    "a2g32/a3g64",
    "a5g32/a6g128,sinks=70:f16",
    "tq2/tq4",
    "h:a4g64/h:q4_0",
    "c:r4/r3",
    "c:r8/tq3,window=c:r5/r5,edge=1:c:r2/f16,sinks=4:c:r6/r6",
};
#define N_POLICIES (sizeof policies / sizeof *policies)

static size_t used(quire_pool *pool)
{
    quire_pool_stats stats = {.size = sizeof stats};
    quire_pool_stats_get(pool, &stats);
    return stats.used_bytes;
}

static quire_seq *load(quire_pool *pool, kit_bytes *bytes)
{
    quire_seq *seq = NULL;
    bytes->at = 0;
    quire_status status = quire_seq_load(&seq, pool, kit_read, bytes);
    if (status) fail_msg("load: %s", quire_status_name(status));
    assert_int_equal(bytes->at, bytes->n);
    return seq;
}

static void refuse(quire_pool *pool, kit_bytes *bytes, quire_status due, const char *why)
{
    quire_seq *seq = (quire_seq *)(uintptr_t)64;
    size_t before = used(pool);
    bytes->at = 0;
    quire_status status = quire_seq_load(&seq, pool, kit_read, bytes);
    if (status != due) fail_msg("%s: %s, not %s", why, quire_status_name(status), quire_status_name(due));
    assert_true(seq == (quire_seq *)(uintptr_t)64);
    assert_int_equal(used(pool), before);
}

/* ---------------------------------------------------------------- round trips */

/* Save, load into both pools, compare; and all of them go on in the same way. */
static void check_trip(const quire_geometry *g, quire_pool *pool, quire_pool *other, quire_seq *seq,
                       const quire_seq_options *ring, const char *what)
{
    kit_bytes saved = {0}, again = {0};
    quire_snapshot_info info = {.size = sizeof info};
    assert_int_equal(quire_seq_save(seq, kit_write, &saved), QUIRE_OK);
    assert_int_equal(quire_snapshot_read_info(&info, kit_read, &saved), QUIRE_OK);
    assert_string_equal(info.policy, quire_plan_policy(quire_seq_plan(seq)));
    assert_true(info.plan_fingerprint == quire_plan_fingerprint(quire_seq_plan(seq)));
    assert_int_equal(info.length, quire_seq_length(seq));
    assert_true(info.max_tokens == ring->max_tokens && info.sinks == ring->sinks);
    assert_int_equal(info.spare_tokens, ring->spare_tokens);

    uint64_t rows = kit_rows_hash(g, seq), out = kit_attend_hash(g, seq, ring, 5);
    quire_seq *copy[] = {load(pool, &saved), load(other, &saved)};
    for (int i = 0; i < 2; i++) {
        if (kit_rows_hash(g, copy[i]) != rows) fail_msg("%s: other rows", what);
        if (kit_attend_hash(g, copy[i], ring, 5) != out) fail_msg("%s: other attention", what);
        assert_int_equal(quire_seq_trim_floor(copy[i]), quire_seq_trim_floor(seq));
        again.n = 0;
        assert_int_equal(quire_seq_save(copy[i], kit_write, &again), QUIRE_OK);
        if (again.n != saved.n || memcmp(again.data, saved.data, saved.n))
            fail_msg("%s: saved again it is other bytes", what);
    }
    quire_seq *own = NULL; /* the original stays as it was */
    assert_int_equal(quire_seq_fork(&own, seq), QUIRE_OK);
    assert_int_equal(kit_append(pool, g, own, 70, 9), QUIRE_OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(kit_append(i ? other : pool, g, copy[i], 70, 9), QUIRE_OK);
        if (kit_rows_hash(g, copy[i]) != kit_rows_hash(g, own)) fail_msg("%s: goes on otherwise", what);
        if (kit_attend_hash(g, copy[i], ring, 6) != kit_attend_hash(g, own, ring, 6))
            fail_msg("%s: attends otherwise afterwards", what);
        quire_seq_destroy(copy[i]);
    }
    quire_seq_destroy(own);
    kit_bytes_free(&saved);
    kit_bytes_free(&again);
}

static void round_trips(void **state)
{
    (void)state;
    static const quire_seq_options none = {.size = sizeof(quire_seq_options)};
    static const quire_seq_options rings[] = {{sizeof(quire_seq_options), 100, 10, 0, 0},
                                              {sizeof(quire_seq_options), 90, 70, 20, 0},
                                              {sizeof(quire_seq_options), 30, 0, 5, 0},
                                              {sizeof(quire_seq_options), 0, 0, 300, 0}};
    quire_geometry g = kit_geometry(2, 32, 48);
    quire_profile *profile = kit_profile(&g, 3, NULL);
    for (uint32_t p = 0; p < N_POLICIES; p++) {
        quire_plan *plan = kit_plan(&g, policies[p], profile);
        quire_plan *second = kit_plan(&g, policies[(p + 5) % N_POLICIES], profile);
        quire_pool *pool = kit_pool(plan, BUDGET, NULL), *other = kit_pool(second, BUDGET, NULL);
        assert_int_equal(quire_pool_add_plan(other, plan), QUIRE_OK);
        quire_seq *seq = kit_seq(pool, 0, 0, 0), *fork = NULL;
        check_trip(&g, pool, other, seq, &none, "empty");
        assert_int_equal(kit_append(pool, &g, seq, 64, 1), QUIRE_OK);
        check_trip(&g, pool, other, seq, &none, "a full page");
        assert_int_equal(kit_append(pool, &g, seq, 90, 1), QUIRE_OK);
        check_trip(&g, pool, other, seq, &none, policies[p]);
        assert_int_equal(quire_seq_fork(&fork, seq), QUIRE_OK);
        assert_int_equal(kit_append(pool, &g, fork, 10, 2), QUIRE_OK);
        check_trip(&g, pool, other, fork, &none, "a fork");
        assert_int_equal(quire_seq_convert(fork, second, QUIRE_CONVERT_NEW), QUIRE_OK);
        assert_int_equal(kit_append(pool, &g, fork, 100, 2), QUIRE_OK);
        check_trip(&g, pool, other, fork, &none, "converted from here on");
        assert_int_equal(quire_seq_convert(seq, second, 0), QUIRE_OK);
        check_trip(&g, pool, other, seq, &none, "converted");
        quire_seq_destroy(seq);
        quire_seq_destroy(fork);
        for (uint32_t r = 0; r < 4; r++) {
            seq = kit_seq(pool, rings[r].max_tokens, rings[r].sinks, rings[r].spare_tokens);
            for (uint32_t n = 0; n < 400; n += 37) {
                assert_int_equal(kit_append(pool, &g, seq, 37, r), QUIRE_OK);
                if (n % 111 == 0) check_trip(&g, pool, other, seq, &rings[r], "a ring");
            }
            assert_int_equal(quire_seq_trim(seq, quire_seq_trim_floor(seq)), QUIRE_OK);
            check_trip(&g, pool, other, seq, &rings[r], "a ring trimmed to its floor");
            quire_seq_destroy(seq);
        }
        kit_pool_is_empty(pool);
        kit_pool_is_empty(other);
        quire_pool_destroy(pool);
        quire_pool_destroy(other);
        quire_plan_destroy(plan);
        quire_plan_destroy(second);
    }
    quire_profile_destroy(profile);
}

/* ------------------------------------------------------------------- refusals */

/* A small one with everything in it: two groups, a hole, sinks, pages of two plans. */
typedef struct small {
    quire_geometry g;
    struct fail_alloc memory;
    quire_plan *plan, *other;
    quire_pool *pool;
    kit_bytes bytes;
} small;

static void small_create(small *s)
{
    *s = (small){.g = kit_geometry(1, 16, 16)};
    fail_alloc_init(&s->memory, 0);
    quire_allocator a = fail_alloc_allocator(&s->memory);
    s->plan = kit_plan(&s->g, "r2,window=r2", NULL);
    s->other = kit_plan(&s->g, "a2g32/r3,window=r2", NULL);
    s->pool = kit_pool(s->plan, (size_t)1 << 20, &a);
    quire_seq *seq = kit_seq(s->pool, 100, 4, 0);
    KIT_REQUIRE(!kit_append(s->pool, &s->g, seq, 130, 1) &&
                !quire_seq_convert(seq, s->other, QUIRE_CONVERT_NEW));
    KIT_REQUIRE(!kit_append(s->pool, &s->g, seq, 140, 1) && !quire_seq_save(seq, kit_write, &s->bytes));
    quire_seq_destroy(seq);
}

static void small_destroy(small *s)
{
    kit_pool_is_empty(s->pool);
    quire_pool_destroy(s->pool);
    quire_plan_destroy(s->plan);
    quire_plan_destroy(s->other);
    kit_bytes_free(&s->bytes);
    assert_true(s->memory.outstanding == 0 && s->memory.bytes == 0);
}

/* Every byte changed in turn, in every bit of the first kilobyte and in one bit and all bits elsewhere. */
static void damage(void **state)
{
    (void)state;
    small s;
    small_create(&s);
    print_message("%zu bytes\n", s.bytes.n);
    for (size_t i = 0; i < s.bytes.n; i++)
        for (uint32_t k = 0; k < 9; k++) {
            if (i >= 1024 && k != i % 8 && k != 8) continue;
            quire_seq *seq = NULL;
            quire_snapshot_info info = {.size = sizeof info};
            uint8_t change = (uint8_t)(k == 8 ? 0xffu : 1u << k);
            s.bytes.data[i] = (uint8_t)(s.bytes.data[i] ^ change);
            s.bytes.at = 0;
            quire_status status = quire_seq_load(&seq, s.pool, kit_read, &s.bytes);
            if (!status) fail_msg("byte %zu of %zu xor %02x: accepted", i, s.bytes.n, change);
            if (used(s.pool)) fail_msg("byte %zu of %zu xor %02x: pages are left", i, s.bytes.n, change);
            s.bytes.at = 0;
            status = quire_snapshot_read_info(&info, kit_read, &s.bytes);
            if (!status && i < 56) fail_msg("byte %zu xor %02x: the head was accepted", i, change);
            s.bytes.data[i] = (uint8_t)(s.bytes.data[i] ^ change);
        }
    quire_seq_destroy(load(s.pool, &s.bytes));
    small_destroy(&s);
}

static void truncation(void **state)
{
    (void)state;
    small s;
    small_create(&s);
    size_t n = s.bytes.n;
    for (s.bytes.n = 0; s.bytes.n < n; s.bytes.n++) refuse(s.pool, &s.bytes, QUIRE_EIO, "cut");
    quire_seq_destroy(load(s.pool, &s.bytes));
    small_destroy(&s);
}

/* Two pages of one layout change places, each with its own hash. */
static void exchange(void **state)
{
    (void)state;
    small s;
    snapshot_record r[32];
    small_create(&s);
    size_t n = snapshot_records(s.bytes.data, s.bytes.n, r, 32), n_tried = 0;
    assert_true(n > 5 && r[n - 1].at + r[n - 1].bytes + 8 == s.bytes.n);
    for (size_t i = 0; i < n; i++)
        for (size_t k = i + 1; k < n; k++) {
            uint8_t *a = s.bytes.data + r[i].at, *b = s.bytes.data + r[k].at;
            if (r[i].kind != 'p' || r[k].kind != 'p' || memcmp(a, b, 16)) continue;
            for (int round = 0; round < 2; round++) { /* there and back */
                for (size_t x = 0; x < r[i].bytes + 8; x++) {
                    uint8_t byte = a[x];
                    a[x] = b[x];
                    b[x] = byte;
                }
                if (!round) refuse(s.pool, &s.bytes, QUIRE_EFORMAT, "pages exchanged");
            }
            n_tried++;
        }
    assert_true(n_tried > 0);
    snapshot_fix_hashes(s.bytes.data, s.bytes.n); /* changes nothing, if the walk is right */
    quire_seq_destroy(load(s.pool, &s.bytes));
    /* Right hashes, wrong contents: a scale that is not finite, in a row that is not even used. */
    for (size_t i = 0; i < n; i++) {
        uint8_t *end = s.bytes.data + r[i].at + r[i].bytes - 2, old = end[1];
        if (r[i].kind != 'p') continue;
        end[1] |= 0x7c;
        snapshot_fix_hashes(s.bytes.data, s.bytes.n);
        refuse(s.pool, &s.bytes, QUIRE_EFORMAT, "an infinite scale");
        end[1] = old;
    }
    small_destroy(&s);
}

static void foreign(void **state)
{
    (void)state;
    small s;
    small_create(&s);
    quire_geometry wider = kit_geometry(1, 16, 16), geometry = kit_geometry(2, 16, 16);
    static const uint32_t windows[KIT_LAYERS] = {0, KIT_WINDOW + 1, 0};
    wider.windows = windows;
    quire_plan *plans[] = {
        s.plan,  /* knows not the plan that new rows have */
        s.other, /* knows not the pages of the first plan */
        kit_plan(&s.g, "r2,window=r3", NULL),
        kit_plan(&geometry, "a2g32/r3,window=r2", NULL),
        kit_plan(&wider, "a2g32/r3,window=r2", NULL),
    };
    kit_bytes empty = {0};
    quire_seq *seq = kit_seq(s.pool, 0, 0, 0);
    assert_int_equal(quire_seq_save(seq, kit_write, &empty), QUIRE_OK);
    quire_seq_destroy(seq);
    for (int i = 0; i < 5; i++) {
        quire_pool *pool = kit_pool(plans[i], 1 << 20, NULL);
        refuse(pool, &s.bytes, QUIRE_EMISMATCH, quire_plan_policy(plans[i]));
        if (i > 1) refuse(pool, &empty, QUIRE_EMISMATCH, "an empty one of another plan");
        if (i < 2) assert_int_equal(quire_pool_add_plan(pool, plans[1 - i]), QUIRE_OK);
        if (i < 2) quire_seq_destroy(load(pool, &s.bytes));
        quire_pool_destroy(pool);
        if (i > 1) quire_plan_destroy(plans[i]);
    }
    /* The same policy with another profile is another plan. */
    quire_profile *one = kit_profile(&s.g, 1, NULL), *two = kit_profile(&s.g, 2, NULL);
    quire_plan *calibrated[] = {kit_plan(&s.g, "c:r4/r4", one), kit_plan(&s.g, "c:r4/r4", two)};
    quire_pool *pools[] = {kit_pool(calibrated[0], 1 << 20, NULL), kit_pool(calibrated[1], 1 << 20, NULL)};
    seq = kit_seq(pools[0], 0, 0, 0);
    kit_bytes bytes = {0};
    assert_int_equal(kit_append(pools[0], &s.g, seq, 5, 1), QUIRE_OK);
    assert_int_equal(quire_seq_save(seq, kit_write, &bytes), QUIRE_OK);
    refuse(pools[1], &bytes, QUIRE_EMISMATCH, "another profile");
    quire_seq_destroy(seq);
    for (int i = 0; i < 2; i++) {
        quire_pool_destroy(pools[i]);
        quire_plan_destroy(calibrated[i]);
    }
    quire_profile_destroy(one);
    quire_profile_destroy(two);
    kit_bytes_free(&bytes);
    kit_bytes_free(&empty);
    /* Versions to come, and what is no snapshot. */
    for (uint32_t version = 0; version < 256; version++) {
        s.bytes.data[8] = (uint8_t)version;
        if (version != 1) refuse(s.pool, &s.bytes, QUIRE_EVERSION, "version");
    }
    s.bytes.data[8] = 1;
    s.bytes.data[11] = 1;
    refuse(s.pool, &s.bytes, QUIRE_EVERSION, "version 2^24 + 1");
    s.bytes.data[11] = 0;
    s.bytes.data[0] = 'q';
    refuse(s.pool, &s.bytes, QUIRE_EFORMAT, "magic");
    small_destroy(&s);
}

/* Budgets of every size below what it needs. */
static void no_room(void **state)
{
    (void)state;
    small s;
    small_create(&s);
    quire_seq *seq = load(s.pool, &s.bytes);
    size_t need = used(s.pool), step = quire_plan_page_bytes(s.plan, 0) + quire_plan_page_bytes(s.plan, 1);
    quire_seq_destroy(seq);
    for (size_t budget = step; budget < need; budget += 200) {
        struct fail_alloc memory;
        fail_alloc_init(&memory, 0);
        quire_allocator a = fail_alloc_allocator(&memory);
        quire_pool *pool = kit_pool(s.plan, budget, &a);
        assert_int_equal(quire_pool_add_plan(pool, s.other), QUIRE_OK);
        uint64_t blocks = memory.outstanding;
        refuse(pool, &s.bytes, QUIRE_EFULL, "a small pool");
        assert_true(memory.outstanding == blocks);
        quire_pool_destroy(pool);
        assert_true(memory.outstanding == 0);
    }
    /* A writer that fails, wherever. */
    seq = load(s.pool, &s.bytes);
    for (size_t i = 1; i < s.bytes.n; i += 13) {
        kit_bytes cut = {.fail_after = i};
        assert_int_equal(quire_seq_save(seq, kit_write, &cut), QUIRE_EIO);
        kit_bytes_free(&cut);
    }
    quire_seq_destroy(seq);
    small_destroy(&s);
}

/* ---------------------------------------------------------------------- secrets */

static bool holds(const kit_bytes *b, float marker)
{
    for (size_t i = 0; i + 4 <= b->n; i++)
        if (!memcmp(b->data + i, &marker, 4)) return true;
    return false;
}

static void append_marked(quire_pool *pool, quire_seq *seq, uint32_t n, float value, bool commit)
{
    float *x = (float *)malloc(sizeof(float) * 16 * n);
    quire_step *step = NULL;
    KIT_REQUIRE(x);
    for (uint32_t i = 0; i < 16 * n; i++) x[i] = value;
    assert_int_equal(quire_step_begin(&step, pool, &seq, &n, 1), QUIRE_OK);
    for (uint32_t layer = 0; layer < KIT_LAYERS; layer++)
        assert_int_equal(quire_step_append(step, layer, x, x), QUIRE_OK);
    if (commit)
        assert_int_equal(quire_step_commit(step), QUIRE_OK);
    else
        quire_step_abort(step);
    free(x);
}

/* Rows that were trimmed or never kept, and rows of sequences that are gone, are in no snapshot. */
static void trimmed_rows_stay(void **state)
{
    (void)state;
    const float secret = 1234.5678f, plain = 1.0f;
    quire_geometry g = kit_geometry(1, 16, 16);
    quire_plan *plan = kit_plan(&g, "f32,window=f32", NULL);
    quire_pool *pool =
        kit_pool(plan, 4 * (quire_plan_page_bytes(plan, 0) + quire_plan_page_bytes(plan, 1)), NULL);
    quire_seq *seq = kit_seq(pool, 0, 0, 200), *fork = NULL;
    for (int round = 0; round < 4; round++) {
        kit_bytes with = {0}, without = {0}, forked = {0};
        append_marked(pool, seq, round ? 10 : 63, plain, true);
        uint32_t length = quire_seq_length(seq);
        append_marked(pool, seq, 100, secret, round != 3);
        if (round != 3) {
            assert_int_equal(quire_seq_save(seq, kit_write, &with), QUIRE_OK);
            assert_true(holds(&with, secret)); /* or the search finds nothing at all */
        }
        if (round == 1) quire_seq_destroy(seq);
        if (round == 1) seq = kit_seq(pool, 0, 0, 200);
        if (round == 1) append_marked(pool, seq, length, plain, true); /* in the same memory */
        assert_int_equal(quire_seq_trim(seq, length), QUIRE_OK);
        assert_int_equal(quire_seq_fork(&fork, seq), QUIRE_OK);
        append_marked(pool, fork, 1, plain, true); /* a copy of the unfinished page */
        assert_int_equal(quire_seq_save(seq, kit_write, &without), QUIRE_OK);
        assert_int_equal(quire_seq_save(fork, kit_write, &forked), QUIRE_OK);
        if (holds(&without, secret) || holds(&forked, secret))
            fail_msg("round %d: trimmed rows were saved", round);
        assert_true(holds(&without, plain));
        quire_seq_destroy(fork);
        kit_bytes_free(&with);
        kit_bytes_free(&without);
        kit_bytes_free(&forked);
    }
    quire_seq_destroy(seq);
    kit_pool_is_empty(pool);
    quire_pool_destroy(pool);
    quire_plan_destroy(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trips),       cmocka_unit_test(damage),  cmocka_unit_test(truncation),
        cmocka_unit_test(exchange),          cmocka_unit_test(foreign), cmocka_unit_test(no_room),
        cmocka_unit_test(trimmed_rows_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
