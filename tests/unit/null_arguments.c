/* SPDX-License-Identifier: MIT */
/* Every pointer that quire.h does not allow to be NULL is refused with EINVAL, in every function that returns a status. */
#include "quire/page.h"
#include "quire/quire.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* Each argument list has one NULL too many. */
#define REFUSED(call)                                                                     \
    do {                                                                                  \
        quire_status status = (call);                                                     \
        if (status != QUIRE_EINVAL) fail_msg("%s: %s", #call, quire_status_name(status)); \
    } while (0)

static quire_status write_nothing(void *ctx, const void *bytes, size_t n)
{
    (void)ctx, (void)bytes, (void)n;
    return QUIRE_OK;
}

static quire_status read_zeros(void *ctx, void *bytes, size_t n)
{
    (void)ctx;
    memset(bytes, 0, n);
    return QUIRE_OK;
}

static quire_page *find_nothing(void *ctx, uint32_t group, uint32_t page_index)
{
    (void)ctx, (void)group, (void)page_index;
    return NULL;
}

static const quire_geometry geometry = {
    .size = sizeof(quire_geometry), .n_layers = 1, .n_q_heads = 1, .n_kv_heads = 1, .d_k = 64, .d_v = 64};
static float values[64];

typedef struct scene {
    quire_plan *plan;
    quire_pool *pool;
    quire_seq *seq;
    quire_batch *batch;
} scene;

static scene scene_open(void)
{
    scene s = {0};
    quire_pool_options options = {.size = sizeof options, .budget_bytes = 1 << 20};
    assert_int_equal(quire_plan_create(&s.plan, &geometry, "r8", NULL), QUIRE_OK);
    assert_int_equal(quire_pool_create(&s.pool, s.plan, &options), QUIRE_OK);
    assert_int_equal(quire_seq_create(&s.seq, s.pool, NULL), QUIRE_OK);
    assert_int_equal(quire_batch_merge(&s.batch, s.pool, &s.seq, 1), QUIRE_OK);
    return s;
}

static void scene_close(scene *s)
{
    quire_batch_destroy(s->batch);
    quire_seq_destroy(s->seq);
    quire_pool_destroy(s->pool);
    quire_plan_destroy(s->plan);
}

static void base(void **state)
{
    (void)state;
    quire_threads *threads = NULL;
    quire_executor executor = {.size = sizeof executor};
    REFUSED(quire_threads_create(NULL, 1));
    REFUSED(quire_threads_executor(NULL, &executor));
    assert_int_equal(quire_threads_create(&threads, 1), QUIRE_OK);
    REFUSED(quire_threads_executor(threads, NULL));
    quire_threads_destroy(threads);
    assert_null(quire_codec_find(NULL));
    assert_int_equal(quire_codec_row_bytes(NULL, 64), 0);
    assert_true(quire_codec_bits(NULL, 64) == 0);
}

static void plan_and_profile(void **state)
{
    (void)state;
    scene s = scene_open();
    quire_plan *plan = NULL;
    quire_profile *profile = NULL, *none = NULL;
    quire_plan_layer layer = {.size = sizeof layer};
    quire_rope rope = {.size = sizeof rope, .n_pairs = 32, .frequencies = values};
    size_t bytes;
    double error;
    REFUSED(quire_plan_create(NULL, &geometry, "r8", NULL));
    REFUSED(quire_plan_create(&plan, NULL, "r8", NULL));
    REFUSED(quire_plan_create(&plan, &geometry, NULL, NULL));
    REFUSED(quire_plan_layer_info(NULL, 0, &layer));
    REFUSED(quire_plan_layer_info(s.plan, 0, NULL));
    REFUSED(quire_plan_describe(NULL, write_nothing, NULL));
    REFUSED(quire_plan_describe(s.plan, NULL, NULL));
    REFUSED(quire_plan_bytes(NULL, NULL, 1, 1, &bytes));
    REFUSED(quire_plan_bytes(s.plan, NULL, 1, 1, NULL));

    REFUSED(quire_profile_create(NULL, &geometry, NULL));
    REFUSED(quire_profile_create(&none, NULL, NULL));
    assert_int_equal(quire_profile_create(&profile, &geometry, NULL), QUIRE_OK);
    REFUSED(quire_profile_set_rope(NULL, 0, &rope));
    REFUSED(quire_profile_set_rope(profile, 0, NULL));
    rope.frequencies = NULL;
    REFUSED(quire_profile_set_rope(profile, 0, &rope));
    REFUSED(quire_profile_set_length(NULL, 1));
    REFUSED(quire_profile_observe_k(NULL, 0, 4, values, 1));
    REFUSED(quire_profile_observe_k(profile, 0, 4, NULL, 1));
    REFUSED(quire_profile_observe_q(NULL, 0, 4, values, 1));
    REFUSED(quire_profile_observe_q(profile, 0, 4, NULL, 1));
    REFUSED(quire_profile_finish(NULL));
    assert_int_equal(quire_profile_observe_k(profile, 0, 4, values, 1), QUIRE_OK);
    assert_int_equal(quire_profile_observe_q(profile, 0, 4, values, 1), QUIRE_OK);
    assert_int_equal(quire_profile_finish(profile), QUIRE_OK);
    REFUSED(quire_profile_save(NULL, write_nothing, NULL));
    REFUSED(quire_profile_save(profile, NULL, NULL));
    REFUSED(quire_profile_load(NULL, read_zeros, NULL, NULL));
    REFUSED(quire_profile_load(&none, NULL, NULL, NULL));
    REFUSED(quire_profile_score_error(NULL, 0, "r4", &error));
    REFUSED(quire_profile_score_error(profile, 0, NULL, &error));
    REFUSED(quire_profile_score_error(profile, 0, "r4", NULL));
    assert_true(!plan && !none);
    quire_profile_destroy(profile);
    scene_close(&s);
}

static void tiles(void **state)
{
    (void)state;
    scene s = scene_open();
    static _Alignas(64) uint8_t tile[64 * 256];
    quire_tile_format *format = NULL, *none = NULL;
    quire_tile_list *list = NULL;
    quire_workspace *workspace = NULL;
    quire_tile_format_options options = {.size = sizeof options, .side = QUIRE_K, .d = 64};
    quire_rows rows = {.size = sizeof rows, .data = values}, no_rows = {.size = sizeof no_rows};
    quire_rows_out out = {.size = sizeof out, .data = values}, no_out = {.size = sizeof no_out};
    quire_workspace_stats stats = {.size = sizeof stats};
    quire_attend_job job = {0};
    quire_block_table table = {.size = sizeof table};
    quire_scatter_rows scatter = {.size = sizeof scatter};
    const void *tiles[1] = {tile}, *no_tiles[1] = {NULL};
    const uint8_t row = 0;
    REFUSED(quire_tile_format_create(NULL, "r8", &options));
    REFUSED(quire_tile_format_create(&none, NULL, &options));
    REFUSED(quire_tile_format_create(&none, "r8", NULL));
    assert_int_equal(quire_tile_format_create(&format, "r8", &options), QUIRE_OK);
    assert_true(quire_tile_bytes(format) <= sizeof tile);
    REFUSED(quire_tile_encode(NULL, 0, tile, 0, 1, &rows, NULL));
    REFUSED(quire_tile_encode(format, 0, NULL, 0, 1, &rows, NULL));
    REFUSED(quire_tile_encode(format, 0, tile, 0, 1, NULL, NULL));
    REFUSED(quire_tile_encode(format, 0, tile, 0, 1, &no_rows, NULL));
    REFUSED(quire_tile_decode(NULL, 0, tile, 0, 1, &out));
    REFUSED(quire_tile_decode(format, 0, NULL, 0, 1, &out));
    REFUSED(quire_tile_decode(format, 0, tile, 0, 1, NULL));
    REFUSED(quire_tile_decode(format, 0, tile, 0, 1, &no_out));
    REFUSED(quire_tile_gather(NULL, tile, 0, 1, tiles, &row));
    REFUSED(quire_tile_gather(format, NULL, 0, 1, tiles, &row));
    REFUSED(quire_tile_gather(format, tile, 0, 1, NULL, &row));
    REFUSED(quire_tile_gather(format, tile, 0, 1, no_tiles, &row));
    REFUSED(quire_tile_gather(format, tile, 0, 1, tiles, NULL));

    REFUSED(quire_tile_list_create(NULL, NULL));
    assert_int_equal(quire_tile_list_create(&list, NULL), QUIRE_OK);
    REFUSED(quire_tile_list_add_tiles(NULL, NULL, 0, sizeof(quire_tile_ref), 1));
    REFUSED(quire_tile_list_add_tiles(list, NULL, 1, sizeof(quire_tile_ref), 1));
    REFUSED(quire_tile_list_add_blocks(NULL, &table));
    REFUSED(quire_tile_list_add_blocks(list, NULL));
    REFUSED(quire_tile_list_add_blocks(list, &table));
    REFUSED(quire_tile_list_add_seq(NULL, s.seq, 0));
    REFUSED(quire_tile_list_add_seq(list, NULL, 0));

    REFUSED(quire_workspace_create(NULL, NULL, NULL));
    assert_int_equal(quire_workspace_create(&workspace, NULL, NULL), QUIRE_OK);
    REFUSED(quire_workspace_stats_get(NULL, &stats));
    REFUSED(quire_workspace_stats_get(workspace, NULL));
    REFUSED(quire_attend(NULL, NULL, &job, 1, sizeof job));
    REFUSED(quire_attend(workspace, NULL, NULL, 1, sizeof job));
    REFUSED(quire_attend(workspace, NULL, &job, 1, sizeof job));
    REFUSED(quire_scatter(NULL, &scatter));
    REFUSED(quire_scatter(workspace, NULL));
    REFUSED(quire_scatter(workspace, &scatter));
    assert_null(none);
    quire_workspace_destroy(workspace);
    quire_tile_list_destroy(list);
    quire_tile_format_destroy(format);
    scene_close(&s);
}

static void cache(void **state)
{
    (void)state;
    scene s = scene_open();
    quire_pool *pool = NULL;
    quire_seq *seq = NULL, *no_seq = NULL;
    quire_pool_options options = {.size = sizeof options, .budget_bytes = 1 << 20};
    quire_pool_stats stats = {.size = sizeof stats};
    quire_seq_options ring = {.size = sizeof ring};
    quire_rows_out out = {.size = sizeof out, .data = values};
    quire_snapshot_info info = {.size = sizeof info};
    REFUSED(quire_pool_create(NULL, s.plan, &options));
    REFUSED(quire_pool_create(&pool, NULL, &options));
    REFUSED(quire_pool_create(&pool, s.plan, NULL));
    REFUSED(quire_pool_add_plan(NULL, s.plan));
    REFUSED(quire_pool_add_plan(s.pool, NULL));
    REFUSED(quire_pool_stats_get(NULL, &stats));
    REFUSED(quire_pool_stats_get(s.pool, NULL));
    REFUSED(quire_seq_create(NULL, s.pool, NULL));
    REFUSED(quire_seq_create(&seq, NULL, NULL));
    REFUSED(quire_seq_fork(NULL, s.seq));
    REFUSED(quire_seq_fork(&seq, NULL));
    REFUSED(quire_seq_trim(NULL, 0));
    REFUSED(quire_seq_convert(NULL, s.plan, 0));
    REFUSED(quire_seq_convert(s.seq, NULL, 0));
    REFUSED(quire_seq_options_get(NULL, &ring));
    REFUSED(quire_seq_options_get(s.seq, NULL));
    REFUSED(quire_seq_export(NULL, 0, QUIRE_K, 0, 0, &out));
    REFUSED(quire_seq_export(s.seq, 0, QUIRE_K, 0, 0, NULL));
    REFUSED(quire_seq_save(NULL, write_nothing, NULL));
    REFUSED(quire_seq_save(s.seq, NULL, NULL));
    REFUSED(quire_seq_load(NULL, s.pool, read_zeros, NULL));
    REFUSED(quire_seq_load(&seq, NULL, read_zeros, NULL));
    REFUSED(quire_seq_load(&seq, s.pool, NULL, NULL));
    REFUSED(quire_snapshot_read_info(NULL, read_zeros, NULL));
    REFUSED(quire_snapshot_read_info(&info, NULL, NULL));

    quire_batch *batch = NULL;
    uint32_t index = 0;
    quire_rows rows = {.size = sizeof rows, .data = values};
    REFUSED(quire_batch_merge(NULL, s.pool, &s.seq, 1));
    REFUSED(quire_batch_merge(&batch, NULL, &s.seq, 1));
    REFUSED(quire_batch_merge(&batch, s.pool, NULL, 1));
    REFUSED(quire_batch_merge(&batch, s.pool, &no_seq, 1));
    REFUSED(quire_batch_add(NULL, s.seq));
    REFUSED(quire_batch_add(s.batch, NULL));
    REFUSED(quire_batch_extract(NULL, s.batch, 0));
    REFUSED(quire_batch_extract(&seq, NULL, 0));
    REFUSED(quire_batch_filter(NULL, &index, 1));
    REFUSED(quire_batch_filter(s.batch, NULL, 1));
    REFUSED(quire_batch_extend(NULL, s.batch));
    REFUSED(quire_batch_extend(s.batch, NULL));
    REFUSED(quire_batch_convert(NULL, s.plan, 0));
    REFUSED(quire_batch_convert(s.batch, NULL, 0));
    REFUSED(quire_batch_import(NULL, s.pool, 1, 1, &index, &rows, &rows, sizeof rows));
    REFUSED(quire_batch_import(&batch, NULL, 1, 1, &index, &rows, &rows, sizeof rows));
    REFUSED(quire_batch_import(&batch, s.pool, 1, 1, NULL, &rows, &rows, sizeof rows));
    REFUSED(quire_batch_import(&batch, s.pool, 1, 1, &index, NULL, &rows, sizeof rows));
    REFUSED(quire_batch_import(&batch, s.pool, 1, 1, &index, &rows, NULL, sizeof rows));
    REFUSED(quire_batch_export(NULL, 0, QUIRE_K, 0, &index, &out));
    REFUSED(quire_batch_export(s.batch, 0, QUIRE_K, 0, NULL, &out));
    REFUSED(quire_batch_export(s.batch, 0, QUIRE_K, 0, &index, NULL));
    assert_non_null(quire_batch_seqs(s.batch, NULL));
    assert_true(!pool && !seq && !batch);
    scene_close(&s);
}

static void step(void **state)
{
    (void)state;
    scene s = scene_open();
    quire_step *step = NULL;
    quire_seq *no_seq = NULL;
    const uint32_t one = 1;
    float out[64];
    quire_rows rows = {.size = sizeof rows, .data = values}, no_rows = {.size = sizeof no_rows};
    quire_step_queries queries = {.size = sizeof queries, .q = values, .out = out};
    REFUSED(quire_step_begin(NULL, s.pool, &s.seq, &one, 1));
    REFUSED(quire_step_begin(&step, NULL, &s.seq, &one, 1));
    REFUSED(quire_step_begin(&step, s.pool, NULL, &one, 1));
    REFUSED(quire_step_begin(&step, s.pool, &no_seq, &one, 1));
    REFUSED(quire_step_begin(&step, s.pool, &s.seq, NULL, 1));
    assert_null(step);
    assert_int_equal(quire_step_begin(&step, s.pool, &s.seq, &one, 1), QUIRE_OK);
    REFUSED(quire_step_append(NULL, 0, values, values));
    REFUSED(quire_step_append(step, 0, NULL, values));
    REFUSED(quire_step_append(step, 0, values, NULL));
    REFUSED(quire_step_append_rows(NULL, 0, 0, &rows, &rows));
    REFUSED(quire_step_append_rows(step, 0, 0, NULL, &rows));
    REFUSED(quire_step_append_rows(step, 0, 0, &rows, NULL));
    REFUSED(quire_step_append_rows(step, 0, 0, &no_rows, &rows));
    REFUSED(quire_step_attend(step, 0, values, out)); /* not appended */
    assert_int_equal(quire_step_append(step, 0, values, values), QUIRE_OK);
    REFUSED(quire_step_attend(NULL, 0, values, out));
    REFUSED(quire_step_attend(step, 0, NULL, out));
    REFUSED(quire_step_attend(step, 0, values, NULL));
    REFUSED(quire_step_attend_with(NULL, 0, &queries));
    REFUSED(quire_step_attend_with(step, 0, NULL));
    REFUSED(quire_step_commit(NULL));
    quire_step_abort(step);
    scene_close(&s);
}

static void pages(void **state)
{
    (void)state;
    scene s = scene_open();
    quire_page *page = NULL;
    quire_page_info info = {.size = sizeof info};
    uint32_t kept, first;
    REFUSED(quire_plan_page_info(NULL, 0, 0, &info));
    REFUSED(quire_plan_page_info(s.plan, 0, 0, NULL));
    REFUSED(quire_plan_page_range(NULL, NULL, 0, 1, &kept, &first));
    REFUSED(quire_plan_page_range(s.plan, NULL, 0, 1, NULL, &first));
    REFUSED(quire_plan_page_range(s.plan, NULL, 0, 1, &kept, NULL));
    REFUSED(quire_seq_hold_page(NULL, s.seq, 0, 0));
    REFUSED(quire_seq_hold_page(&page, NULL, 0, 0));
    REFUSED(quire_pool_take_page(NULL, s.pool, s.plan, 0, 0));
    REFUSED(quire_pool_take_page(&page, NULL, s.plan, 0, 0));
    REFUSED(quire_pool_take_page(&page, s.pool, NULL, 0, 0));
    REFUSED(quire_seq_adopt(NULL, 1, find_nothing, NULL));
    REFUSED(quire_seq_adopt(s.seq, 1, NULL, NULL));
    assert_null(page);
    quire_pool_drop_page(s.pool, NULL);
    scene_close(&s);
}

static void destructors(void **state)
{
    (void)state;
    quire_threads_destroy(NULL);
    quire_plan_destroy(NULL);
    quire_profile_destroy(NULL);
    quire_tile_format_destroy(NULL);
    quire_tile_list_destroy(NULL);
    quire_workspace_destroy(NULL);
    quire_pool_destroy(NULL);
    quire_seq_destroy(NULL);
    quire_batch_destroy(NULL);
    quire_step_abort(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(base),        cmocka_unit_test(plan_and_profile),
        cmocka_unit_test(tiles),       cmocka_unit_test(cache),
        cmocka_unit_test(step),        cmocka_unit_test(pages),
        cmocka_unit_test(destructors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
