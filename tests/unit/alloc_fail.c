/* SPDX-License-Identifier: MIT */
/*
 * Every request for memory refused in turn. The call that made it says ENOMEM, nothing that can be seen has changed,
 * nothing is lost, and the same call works once there is memory again.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "codec/codec.h"
#include "support/cache_kit.h"
#include "support/fail_alloc.h"

#include <string.h>

#define BUDGET ((size_t)1 << 20)
#define POLICY "a8g32/r3,window=q8_0,sinks=4:f16"
#define OTHER_POLICY "c:r4/q4_0,window=f16,edge=1:r8,sinks=70:bf16"

/* A pool with some sequences, all from one allocator. */
typedef struct scene {
    struct fail_alloc memory;
    quire_allocator allocator;
    quire_geometry geometry;
    quire_profile *profile;
    quire_plan *plan, *other;
    quire_pool *pool;
    quire_seq *plain, *fork, *ring;
    quire_batch *batch, *second;
    kit_bytes saved, saved_profile;
} scene;

static void scene_create(scene *s)
{
    *s = (scene){.geometry = kit_geometry(2, 32, 32)};
    fail_alloc_init(&s->memory, 0);
    s->allocator = fail_alloc_allocator(&s->memory);
    s->profile = kit_profile(&s->geometry, 3, NULL);
    s->plan = kit_plan(&s->geometry, POLICY, NULL);
    s->other = kit_plan(&s->geometry, OTHER_POLICY, s->profile);
    s->pool = kit_pool(s->plan, BUDGET, &s->allocator);
    s->plain = kit_seq(s->pool, 0, 0, 0);
    s->ring = kit_seq(s->pool, 80, 10, 5);
    KIT_REQUIRE(!kit_append(s->pool, &s->geometry, s->plain, 100, 1));
    KIT_REQUIRE(!kit_append(s->pool, &s->geometry, s->ring, 300, 2));
    KIT_REQUIRE(!quire_seq_fork(&s->fork, s->plain));
    quire_seq *members[] = {s->plain, s->ring};
    KIT_REQUIRE(!quire_batch_merge(&s->batch, s->pool, members, 2));
    KIT_REQUIRE(!quire_batch_merge(&s->second, s->pool, members + 1, 1));
    KIT_REQUIRE(!quire_seq_save(s->ring, kit_write, &s->saved));
    KIT_REQUIRE(!quire_profile_save(s->profile, kit_write, &s->saved_profile));
}

static void scene_destroy(scene *s)
{
    quire_batch_destroy(s->batch);
    quire_batch_destroy(s->second);
    quire_seq_destroy(s->plain);
    quire_seq_destroy(s->fork);
    quire_seq_destroy(s->ring);
    kit_pool_is_empty(s->pool);
    quire_pool_destroy(s->pool);
    quire_plan_destroy(s->plan);
    quire_plan_destroy(s->other);
    quire_profile_destroy(s->profile);
    kit_bytes_free(&s->saved);
    kit_bytes_free(&s->saved_profile);
}

/* All that can be seen of the sequences and the pool. */
static uint64_t look(const scene *s)
{
    quire_pool_stats stats = {.size = sizeof stats};
    uint64_t hash = 0;
    const quire_seq *seqs[] = {s->plain, s->fork, s->ring};
    for (uint32_t i = 0; i < 3; i++)
        hash = hash * 31 + kit_rows_hash(&s->geometry, seqs[i]) +
               quire_plan_fingerprint(quire_seq_plan(seqs[i]));
    const quire_batch *batches[] = {s->batch, s->second};
    for (uint32_t b = 0; b < 2; b++) {
        uint32_t n;
        quire_seq *const *members = quire_batch_seqs(batches[b], &n);
        for (uint32_t i = 0; i < n; i++)
            hash = hash * 31 + kit_rows_hash(&s->geometry, members[i]) +
                   quire_plan_fingerprint(quire_seq_plan(members[i]));
        hash = hash * 31 + n;
    }
    quire_pool_stats_get(s->pool, &stats);
    return (hash * 31 + stats.used_bytes) * 31 + stats.n_pages;
}

/* ------------------------------------------------------------------ the calls */

/* Each does one thing. What it makes is destroyed again, what it changes stays. */
typedef quire_status call(scene *s);

static quire_status plan_create(scene *s)
{
    quire_plan *plan = NULL;
    quire_plan_options options = {sizeof(quire_plan_options), .profile = s->profile,
                                  .allocator = &s->allocator};
    quire_status status = quire_plan_create(&plan, &s->geometry, OTHER_POLICY, &options);
    quire_plan_destroy(plan);
    return status;
}

static quire_status pool_create(scene *s)
{
    quire_pool *pool = NULL;
    quire_pool_options options = {sizeof(quire_pool_options), .budget_bytes = BUDGET,
                                  .allocator = &s->allocator};
    quire_status status = quire_pool_create(&pool, s->plan, &options);
    quire_pool_destroy(pool);
    return status;
}

static quire_status pool_add_plan(scene *s)
{
    return quire_pool_add_plan(s->pool, s->other);
}

static quire_status seq_create(scene *s)
{
    quire_seq *seq = NULL;
    quire_seq_options ring = {sizeof(quire_seq_options), 100, 4, 8, 0};
    quire_status status = quire_seq_create(&seq, s->pool, &ring);
    quire_seq_destroy(seq);
    return status;
}

static quire_status seq_fork(scene *s)
{
    quire_seq *seq = NULL;
    quire_status status = quire_seq_fork(&seq, s->ring);
    quire_seq_destroy(seq);
    return status;
}

static quire_status convert_all(scene *s)
{
    return quire_seq_convert(s->plain, s->other, 0);
}

static quire_status convert_new(scene *s)
{
    return quire_seq_convert(s->ring, s->other, QUIRE_CONVERT_NEW);
}

/* Pages to be taken, a shared page to be copied, tables to grow, an empty sequence's first page. */
static quire_status step_begin(scene *s)
{
    quire_step *step = NULL;
    quire_seq *empty = NULL, *seqs[] = {s->fork, s->ring, NULL};
    uint32_t n_tokens[] = {1000, 70, 3};
    quire_status status = quire_seq_create(&empty, s->pool, NULL);
    seqs[2] = empty;
    if (!status) status = quire_step_begin(&step, s->pool, seqs, n_tokens, 3);
    quire_step_abort(step);
    quire_seq_destroy(empty);
    return status;
}

/* Two open steps in a new pool: each needs a workspace of its own. */
static quire_status first_steps(scene *s)
{
    quire_pool_options options = {sizeof(quire_pool_options), .budget_bytes = BUDGET,
                                  .allocator = &s->allocator};
    quire_pool *pool = NULL;
    quire_seq *seq[2] = {NULL, NULL};
    quire_step *step[2] = {NULL, NULL};
    uint32_t one = 1;
    quire_status status = quire_pool_create(&pool, s->plan, &options);
    for (uint32_t i = 0; i < 2 && !status; i++) {
        status = quire_seq_create(&seq[i], pool, NULL);
        if (!status) status = quire_step_begin(&step[i], pool, &seq[i], &one, 1);
    }
    for (uint32_t i = 0; i < 2; i++) {
        quire_step_abort(step[i]);
        quire_seq_destroy(seq[i]);
    }
    quire_pool_destroy(pool);
    return status;
}

/* A whole step; what fails within it leaves the step usable, so that abort works. */
static quire_status step_whole(scene *s)
{
    enum { N = 40, OUT = N * 4 * 32 };
    quire_step *step = NULL;
    float *q = (float *)calloc(OUT, sizeof(float)), *out = (float *)calloc(OUT, sizeof(float));
    KIT_REQUIRE(q && out);
    memset(out, 0x55, OUT * sizeof(float));
    quire_status status = kit_begin(&step, s->pool, &s->geometry, s->fork, N, 9);
    for (uint32_t layer = 0; layer < s->geometry.n_layers && !status; layer++) {
        kit_row(5, layer, QUIRE_K, 0, q, OUT);
        status = quire_step_attend(step, layer, q, out);
        if (status && !layer)
            for (uint32_t i = 0; i < OUT * sizeof(float); i++) assert_int_equal(((uint8_t *)out)[i], 0x55);
    }
    if (!status) status = quire_step_commit(step);
    if (status) quire_step_abort(step);
    free(q);
    free(out);
    return status;
}

static quire_status batch_merge(scene *s)
{
    quire_batch *batch = NULL;
    quire_seq *members[] = {s->plain, s->ring, s->fork, s->plain};
    quire_status status = quire_batch_merge(&batch, s->pool, members, 4);
    quire_batch_destroy(batch);
    return status;
}

static quire_status batch_extract(scene *s)
{
    quire_seq *seq = NULL;
    quire_status status = quire_batch_extract(&seq, s->batch, 1);
    quire_seq_destroy(seq);
    return status;
}

static quire_status batch_filter(scene *s)
{
    static const uint32_t indices[] = {1, 0, 1, 1, 0, 0, 1, 0, 1, 1};
    return quire_batch_filter(s->batch, indices, 10);
}

static quire_status batch_extend(scene *s)
{
    return quire_batch_extend(s->second, s->batch);
}

static quire_status batch_add(scene *s)
{
    return quire_batch_add(s->batch, s->fork);
}

static quire_status batch_convert(scene *s)
{
    return quire_batch_convert(s->batch, s->other, 0);
}

static quire_status batch_import(scene *s)
{
    enum { COLUMNS = 70, SEQS = 3 };
    static const uint32_t padding[SEQS] = {0, 69, 70};
    float *x = (float *)calloc((size_t)SEQS * COLUMNS * 2 * 32, sizeof(float));
    quire_rows rows[KIT_LAYERS];
    quire_batch *batch = NULL;
    KIT_REQUIRE(x);
    for (uint32_t i = 0; i < KIT_LAYERS; i++)
        rows[i] = (quire_rows){.size = sizeof(quire_rows), .form = QUIRE_F32, .data = x};
    quire_status status =
        quire_batch_import(&batch, s->pool, SEQS, COLUMNS, padding, rows, rows, sizeof(quire_rows));
    quire_batch_destroy(batch);
    free(x);
    return status;
}

static quire_status seq_save(scene *s)
{
    kit_bytes bytes = {0};
    quire_status status = quire_seq_save(s->plain, kit_write, &bytes);
    kit_bytes_free(&bytes);
    return status;
}

static quire_status seq_load(scene *s)
{
    quire_seq *seq = NULL;
    s->saved.at = 0;
    quire_status status = quire_seq_load(&seq, s->pool, kit_read, &s->saved);
    quire_seq_destroy(seq);
    return status;
}

/* One workspace that grows: few tiles and a query, then more of both. */
static quire_status attend(scene *s)
{
    enum { N = 90 };
    quire_workspace *w = NULL;
    quire_tile_ref tile[8];
    uint32_t n_tiles = quire_seq_tiles(s->plain, 0, tile, 8, sizeof(quire_tile_ref));
    float *q = (float *)calloc((size_t)N * 4 * 32, sizeof(float)),
          *out = (float *)calloc((size_t)N * 4 * 32, 4);
    KIT_REQUIRE(q && out);
    quire_status status = quire_workspace_create(&w, NULL, &s->allocator);
    for (uint32_t n = 1; n <= N && !status; n += N - 1) {
        quire_attend_job job[2];
        for (uint32_t i = 0; i < 2; i++)
            job[i] = (quire_attend_job){.tile_stride = sizeof(quire_tile_ref),
                                        .tiles = tile,
                                        .n_tiles = n_tiles,
                                        .n_q_heads = 4,
                                        .n_kv_heads = 2,
                                        .d_k = 32,
                                        .d_v = 32,
                                        .n_queries = n,
                                        .first_query = 2,
                                        .q = q,
                                        .out = out};
        status = quire_attend(w, NULL, job, n == 1 ? 1 : 2, sizeof(quire_attend_job));
    }
    quire_workspace_destroy(w);
    free(q);
    free(out);
    return status;
}

static quire_status profile_whole(scene *s)
{
    float x[4 * 32];
    kit_bytes bytes = {0};
    quire_profile *profile = NULL;
    kit_row(4, 0, QUIRE_K, 0, x, 4 * 32);
    quire_status status = quire_profile_create(&profile, &s->geometry, &s->allocator);
    if (!status) status = quire_profile_observe_k(profile, 0, 4, x, 1);
    if (!status) status = quire_profile_observe_q(profile, 0, 0, x, 1);
    if (!status) status = quire_profile_finish(profile);
    if (!status) status = quire_profile_save(profile, kit_write, &bytes);
    kit_bytes_free(&bytes);
    quire_profile_destroy(profile);
    return status;
}

static quire_status profile_load(scene *s)
{
    quire_profile *profile = NULL;
    s->saved_profile.at = 0;
    quire_status status = quire_profile_load(&profile, kit_read, &s->saved_profile, &s->allocator);
    quire_profile_destroy(profile);
    return status;
}

static quire_status format_create(scene *s)
{
    quire_tile_format *format = NULL;
    quire_tile_format_options options = {sizeof(quire_tile_format_options), .side = QUIRE_K, .d = 32,
                                         .profile = s->profile, .allocator = &s->allocator};
    quire_status status = quire_tile_format_create(&format, "c:r4", &options);
    quire_tile_format_destroy(format);
    return status;
}

/* ----------------------------------------------------------------------- test */

static const struct subject {
    const char *name;
    call *run;
    bool keeps; /* the pool keeps capacity (workspaces, page sizes, tables) that a failed call made */
    uint32_t n_requests; /* at least so many, or the test has missed them */
} subjects[] = {
    {"plan_create", plan_create, false, 6},     {"pool_create", pool_create, false, 8},
    {"pool_add_plan", pool_add_plan, true, 3},  {"seq_create", seq_create, false, 2},
    {"seq_fork", seq_fork, false, 4},           {"convert_all", convert_all, true, 3},
    {"convert_new", convert_new, true, 3},      {"step_begin", step_begin, true, 5},
    {"first_steps", first_steps, false, 20},    {"step_whole", step_whole, true, 3},
    {"batch_merge", batch_merge, false, 14},    {"batch_extract", batch_extract, false, 4},
    {"batch_filter", batch_filter, false, 10},  {"batch_extend", batch_extend, true, 8},
    {"batch_add", batch_add, true, 4},          {"batch_convert", batch_convert, true, 3},
    {"batch_import", batch_import, true, 12},   {"seq_save", seq_save, false, 1},
    {"seq_load", seq_load, false, 4},           {"attend", attend, false, 3},
    {"profile_whole", profile_whole, false, 8}, {"profile_load", profile_load, false, 5},
    {"format_create", format_create, false, 1},
};

/* Refuse request n of the call. False: it makes fewer. */
static bool fail_at(const struct subject *what, uint64_t n)
{
    scene s;
    scene_create(&s);
    uint64_t seen = look(&s), outstanding = s.memory.outstanding, bytes = s.memory.bytes;
    s.memory.fail_at = s.memory.calls + n;
    quire_status status = what->run(&s);
    bool refused = s.memory.calls >= s.memory.fail_at;
    s.memory.fail_at = 0;
    if (status != (refused ? QUIRE_ENOMEM : QUIRE_OK))
        fail_msg("%s, request %d: %s", what->name, (int)n, quire_status_name(status));
    if (refused) {
        if (look(&s) != seen) fail_msg("%s, request %d: something changed", what->name, (int)n);
        if (!what->keeps && (s.memory.outstanding != outstanding || s.memory.bytes != bytes))
            fail_msg("%s, request %d: %d blocks more than before", what->name, (int)n,
                     (int)(s.memory.outstanding - outstanding));
        status = what->run(&s);
        if (status) fail_msg("%s, after request %d: %s", what->name, (int)n, quire_status_name(status));
    }
    scene_destroy(&s);
    if (s.memory.outstanding || s.memory.bytes)
        fail_msg("%s, request %d: %d blocks were lost", what->name, (int)n, (int)s.memory.outstanding);
    return refused;
}

static void every_request(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof subjects / sizeof *subjects; i++) {
        uint64_t n = 1;
        while (fail_at(&subjects[i], n)) n++;
        print_message("%-16s %d requests\n", subjects[i].name, (int)n - 1);
        if (n - 1 < subjects[i].n_requests)
            fail_msg("%s: fewer than %u requests", subjects[i].name, subjects[i].n_requests);
    }
}

/* A call that fails again and again keeps no more memory than one that failed once. */
static void failing_again(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof subjects / sizeof *subjects; i++)
        for (uint64_t n = 1; n <= 4; n++) {
            scene s;
            uint64_t kept[8];
            scene_create(&s);
            for (int round = 0; round < 8; round++) {
                s.memory.fail_at = s.memory.calls + n;
                (void)subjects[i].run(&s);
                s.memory.fail_at = 0;
                kept[round] = s.memory.outstanding;
            }
            scene_destroy(&s);
            /* The first rounds may add what the pool keeps; batch_extend and batch_add succeed and grow. */
            bool grows = subjects[i].run == batch_extend || subjects[i].run == batch_add;
            if (kept[7] > kept[4] && !grows)
                fail_msg("%s, request %d: grew from %d to %d blocks", subjects[i].name, (int)n, (int)kept[4],
                         (int)kept[7]);
        }
}

/* Half an allocator is a mistake of its author: whoever takes one says so, instead of taking memory from elsewhere. */
static void half_allocators(void **state)
{
    (void)state;
    for (uint32_t given = 0; given < 32; given++) {
        scene s;
        scene_create(&s);
        quire_allocator whole = s.allocator, a = {.size = sizeof a, .ctx = whole.ctx};
        if (given & 1) a.alloc = whole.alloc;
        if (given & 2) a.free = whole.free;
        if (given & 4) a.reserve = whole.reserve;
        if (given & 8) a.release = whole.release;
        if (given & 16) a.discard = whole.discard;
        bool is_whole = (given % 4 == 0 || given % 4 == 3) && (given / 4 == 0 || given / 4 == 7);
        quire_status expected = is_whole ? QUIRE_OK : QUIRE_EINVAL;
        s.allocator = a;
        assert_int_equal(plan_create(&s), expected);
        assert_int_equal(pool_create(&s), expected);
        assert_int_equal(profile_whole(&s), expected);
        assert_int_equal(profile_load(&s), expected);
        assert_int_equal(format_create(&s), expected);
        quire_workspace *workspace = NULL;
        quire_tile_list *list = NULL;
        assert_int_equal(quire_workspace_create(&workspace, NULL, &a), expected);
        assert_int_equal(quire_tile_list_create(&list, &a), expected);
        assert_true(!workspace == !is_whole && !list == !is_whole);
        quire_workspace_destroy(workspace);
        quire_tile_list_destroy(list);
        s.allocator = whole;
        scene_destroy(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_request), cmocka_unit_test(failing_again),
                                       cmocka_unit_test(half_allocators)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
