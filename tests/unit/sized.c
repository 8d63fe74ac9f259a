/* SPDX-License-Identifier: MIT */
/* Structures of callers that are older or newer than the library: sizes that are none, shorter ones, longer ones with zeros and with
 * something that the library does not know. */
#include "paged_host.h"
#include "frozen/caller.h"

/* Three programs compiled with other headers (tests/unit/frozen). */
static void other_callers(void **unused)
{
    (void)unused;
    float a[CALLER_OUTPUTS], b[CALLER_OUTPUTS], c[CALLER_OUTPUTS];
    caller_of_0_2(a);
    caller_older(b);
    caller_newer(c);
    assert_memory_equal(a, b, sizeof a);
    assert_memory_equal(a, c, sizeof a);
}

/* ------------------------------------------------------------------- inputs */

enum { D = 32 };

typedef struct scene {
    quire_geometry g;
    quire_plan *plan;
    quire_pool *pool;
    quire_seq *seq;
    quire_step *step;
    quire_workspace *workspace;
    quire_tile_list *list;
    quire_profile *profile;
    paged p;
    float x[16 * D], out[16 * D];
    int32_t block, length;
    int64_t slot;
} scene;

static scene *scene_open(void)
{
    scene *s = ref_alloc(1, sizeof *s);
    s->g = (quire_geometry){
        .size = sizeof s->g, .n_layers = 1, .n_q_heads = 2, .n_kv_heads = 1, .d_k = D, .d_v = D};
    s->plan = kit_plan(&s->g, "r4", NULL);
    s->pool = kit_pool(s->plan, 1 << 20, NULL);
    s->seq = kit_seq(s->pool, 0, 0, 0);
    s->length = 5;
    kit_row(1, 0, QUIRE_K, 0, s->x, COUNT(s->x));
    REF_OK(kit_begin(&s->step, s->pool, &s->g, s->seq, 3, 1));
    REF_OK(quire_workspace_create(&s->workspace, NULL, NULL));
    REF_OK(quire_tile_list_create(&s->list, NULL));
    REF_OK(quire_profile_create(&s->profile, &s->g, NULL));
    paged_open(&s->p, "r4", "a4g64", D, D, 2, 64, 1, 1);
    REF_OK(quire_tile_list_add_tiles(s->list, NULL, 0, 0, 1));
    return s;
}

static void scene_close(scene *s)
{
    quire_profile_destroy(s->profile);
    quire_tile_list_destroy(s->list);
    quire_workspace_destroy(s->workspace);
    quire_step_abort(s->step);
    quire_seq_destroy(s->seq);
    quire_pool_destroy(s->pool);
    quire_plan_destroy(s->plan);
    paged_close(&s->p);
    free(s);
}

/* Each puts a good structure at `it` (init) or uses what is there (use). */
#define INPUT(name, type, init, ...)                       \
    static void name##_init(scene *s, void *it)            \
    {                                                      \
        (void)s;                                           \
        type good = init;                                  \
        good.size = sizeof good;                           \
        memcpy(it, &good, sizeof good);                    \
    }                                                      \
    static quire_status name##_use(scene *s, void *memory) \
    {                                                      \
        quire_status status = QUIRE_OK;                    \
        type *it = (type *)memory;                         \
        (void)s;                                           \
        __VA_ARGS__                                        \
        return status;                                     \
    }
#define LIST(...) __VA_ARGS__

INPUT(allocator, quire_allocator, {0}, quire_workspace *w = NULL;
      status = quire_workspace_create(&w, NULL, it); quire_workspace_destroy(w);)
INPUT(executor, quire_executor, {0}, quire_workspace *w = NULL; status = quire_workspace_create(&w, it, NULL);
      quire_workspace_destroy(w);)
INPUT(geometry, quire_geometry, s->g, quire_plan *plan = NULL;
      status = quire_plan_create(&plan, it, "r4", NULL); quire_plan_destroy(plan);)
INPUT(profile_geometry, quire_geometry, s->g, quire_profile *profile = NULL;
      status = quire_profile_create(&profile, it, NULL); quire_profile_destroy(profile);)
INPUT(plan_options, quire_plan_options, {0}, quire_plan *plan = NULL;
      status = quire_plan_create(&plan, &s->g, "r4", it); quire_plan_destroy(plan);)
INPUT(pool_options, quire_pool_options, LIST({.budget_bytes = 1 << 20}), quire_pool *pool = NULL;
      status = quire_pool_create(&pool, s->plan, it); quire_pool_destroy(pool);)
INPUT(seq_options, quire_seq_options, {0}, quire_seq *seq = NULL;
      status = quire_seq_create(&seq, s->pool, it); quire_seq_destroy(seq);)
INPUT(plan_bytes, quire_seq_options, {0}, size_t bytes; status = quire_plan_bytes(s->plan, it, 5, 1, &bytes);)
static const float frequencies[4] = {1, 0.5f, 0.25f, 0.125f};
INPUT(rope, quire_rope, LIST({.n_pairs = 4, .frequencies = frequencies}),
      status = quire_profile_set_rope(s->profile, 0, it);)
INPUT(format_options, quire_tile_format_options, LIST({.d = D}), quire_tile_format *format = NULL;
      status = quire_tile_format_create(&format, "r4", it); quire_tile_format_destroy(format);)
INPUT(rows, quire_rows, LIST({.data = s->x}),
      status = quire_tile_encode(s->p.k, 0, s->p.m.k, 0, 1, it, NULL);)
INPUT(step_rows, quire_rows, LIST({.data = s->x}), status = quire_step_append_rows(s->step, 0, 0, it, it);)
INPUT(rows_out, quire_rows_out, LIST({.data = s->out}),
      status = quire_tile_decode(s->p.k, 0, s->p.m.k, 0, 1, it);)
INPUT(counts, quire_counts, {0}, quire_rows r = LIST({.size = sizeof r, .data = s->x});
      status = quire_tile_encode(s->p.k, 0, s->p.m.k, 0, 1, &r, it);)
INPUT(step_queries, quire_step_queries, LIST({.q = s->x, .out = s->out}),
      status = quire_step_attend_with(s->step, 0, it);)
INPUT(attend_options, quire_attend_options, {0},
      status = quire_attend(s->workspace, it, NULL, 0, sizeof(quire_attend_job));)
INPUT(mask, quire_mask, {0}, quire_step_queries q = LIST({.size = sizeof q, .q = s->x, .out = s->out});
      q.masks = it; q.mask_stride = it->size; status = quire_step_attend_with(s->step, 0, &q);)
INPUT(paged_memory, quire_paged_memory, s->p.m, quire_block_table t = LIST({.size = sizeof t, .memory = it});
      status = quire_tile_list_add_blocks(s->list, &t);)
INPUT(block_table, quire_block_table,
      LIST({.memory = &s->p.m, .blocks = &s->block, .lengths = &s->length, .n_seqs = 1}),
      status = quire_tile_list_add_blocks(s->list, it);)
static const quire_rows *one_row(scene *s)
{
    static quire_rows rows;
    rows = (quire_rows){.size = sizeof rows, .data = s->x};
    return &rows;
}
INPUT(scatter_rows, quire_scatter_rows,
      LIST({.memory = &s->p.m, .k = one_row(s), .v = one_row(s), .slots = &s->slot, .n_tokens = 1}),
      status = quire_scatter(s->workspace, it);)

static const struct input {
    const char *name;
    void (*init)(scene *s, void *it);
    quire_status (*use)(scene *s, void *it);
    size_t size;
    size_t least; /* bytes without which the call cannot work; what it says then is up to it */
} inputs[] = {
#define I(name, type, least)                                \
    {                                                       \
#name, name##_init, name##_use, sizeof(type), least \
    }
    I(allocator, quire_allocator, 8),
    I(executor, quire_executor, 8),
    I(geometry, quire_geometry, offsetof(quire_geometry, v_in_k)),
    I(profile_geometry, quire_geometry, offsetof(quire_geometry, v_in_k)),
    I(plan_options, quire_plan_options, 8),
    I(pool_options, quire_pool_options, offsetof(quire_pool_options, allocator)),
    I(seq_options, quire_seq_options, 8),
    I(plan_bytes, quire_seq_options, 8),
    I(rope, quire_rope, sizeof(quire_rope)),
    I(format_options, quire_tile_format_options, offsetof(quire_tile_format_options, d_v)),
    I(rows, quire_rows, offsetof(quire_rows, scales)),
    I(step_rows, quire_rows, offsetof(quire_rows, scales)),
    I(rows_out, quire_rows_out, offsetof(quire_rows_out, scales)),
    I(counts, quire_counts, 8),
    I(step_queries, quire_step_queries, offsetof(quire_step_queries, out_token_stride)),
    I(attend_options, quire_attend_options, 8),
    I(mask, quire_mask, 8),
    I(paged_memory, quire_paged_memory, sizeof(quire_paged_memory)),
    I(block_table, quire_block_table, offsetof(quire_block_table, reserved)),
    I(scatter_rows, quire_scatter_rows, offsetof(quire_scatter_rows, layer)),
};

static void expect(scene *s, const struct input *in, size_t size, size_t at, quire_status expected)
{
    _Alignas(16) static uint8_t memory[1 << 17];
    memset(memory, 0, sizeof memory);
    in->init(s, memory);
    if (size < in->size) memset(memory + size, 0xee, in->size - size); /* behind the end: not ours */
    memcpy(memory, &size, sizeof size);
    if (at) memory[at] = 1;
    quire_status status = in->use(s, memory);
    if (status != expected)
        fail_msg("%s of size %zu of %zu, byte %zu set: %s, not %s", in->name, size, in->size, at,
                 quire_status_name(status), quire_status_name(expected));
}

static void sizes(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < COUNT(inputs); i++) {
        const struct input *in = &inputs[i];
        scene *s = scene_open();
        static const size_t none[] = {0, 1, 7, 65537, (size_t)1 << 40, SIZE_MAX - 7, SIZE_MAX};
        for (size_t k = 0; k < COUNT(none); k++) expect(s, in, none[k], 0, QUIRE_EINVAL);
        expect(s, in, in->size, 0, QUIRE_OK);
        for (size_t size = in->least; size < in->size; size += 4) expect(s, in, size, 0, QUIRE_OK);
        static const size_t more[] = {1, 7, 8, 9, 64, 4000};
        for (size_t k = 0; k < COUNT(more); k++) {
            expect(s, in, in->size + more[k], 0, QUIRE_OK);
            expect(s, in, in->size + more[k], in->size, QUIRE_EUNSUPPORTED);
            expect(s, in, in->size + more[k], in->size + more[k] - 1, QUIRE_EUNSUPPORTED);
            expect(s, in, in->size + more[k], in->size + more[k], QUIRE_OK); /* behind the end */
        }
        expect(s, in, 65536, 0, QUIRE_OK);
        expect(s, in, 65536, 65535, QUIRE_EUNSUPPORTED);
        scene_close(s);
    }
}

/* ------------------------------------------------------------------ outputs */

static quire_status pool_stats(scene *s, void *out)
{
    return quire_pool_stats_get(s->pool, (quire_pool_stats *)out);
}

static quire_status workspace_stats(scene *s, void *out)
{
    return quire_workspace_stats_get(s->workspace, (quire_workspace_stats *)out);
}

static quire_status plan_layer(scene *s, void *out)
{
    return quire_plan_layer_info(s->plan, 0, (quire_plan_layer *)out);
}

static quire_status ring(scene *s, void *out)
{
    return quire_seq_options_get(s->seq, (quire_seq_options *)out);
}

static quire_status snapshot(scene *s, void *out)
{
    kit_bytes bytes = {0};
    quire_seq *seq = kit_seq(s->pool, 0, 0, 0); /* that of the scene is in a step */
    REF_OK(quire_seq_save(seq, kit_write, &bytes));
    quire_seq_destroy(seq);
    quire_status status = quire_snapshot_read_info((quire_snapshot_info *)out, kit_read, &bytes);
    kit_bytes_free(&bytes);
    return status;
}

static quire_status executor_out(scene *s, void *out)
{
    static quire_threads *threads; /* the executor refers to it */
    (void)s;
    if (!threads) REF_OK(quire_threads_create(&threads, 1));
    return quire_threads_executor(threads, (quire_executor *)out);
}

static quire_status counts_out(scene *s, void *out)
{
    return counts_use(s, out);
}

/* As many bytes as the size says, the same whatever it is, zeros behind what the library knows, nothing behind that. */
static void outputs(void **unused)
{
    (void)unused;
    static const struct {
        const char *name;
        quire_status (*get)(scene *s, void *out);
        size_t size;
    } outs[] = {
        {"pool_stats", pool_stats, sizeof(quire_pool_stats)},
        {"workspace_stats", workspace_stats, sizeof(quire_workspace_stats)},
        {"plan_layer", plan_layer, sizeof(quire_plan_layer)},
        {"ring", ring, sizeof(quire_seq_options)},
        {"snapshot", snapshot, sizeof(quire_snapshot_info)},
        {"executor", executor_out, sizeof(quire_executor)},
        {"counts", counts_out, sizeof(quire_counts)},
    };
    _Alignas(16) static uint8_t full[1024], memory[2048];
    for (size_t i = 0; i < COUNT(outs); i++) {
        scene *s = scene_open();
        size_t own = outs[i].size;
        bool adds = outs[i].get == counts_out; /* to what is there */
        memset(full, 0, sizeof full);
        memcpy(full, &own, sizeof own);
        REF_OK(outs[i].get(s, full));
        for (size_t size = 0; size < own + 40; size++) {
            memset(memory, adds && size >= 8 ? 0 : 0xa5, sizeof memory);
            memset(memory + size, 0xa5, 64);
            memcpy(memory, &size, sizeof size);
            if (size < 8) memset(memory + 8, 0xa5, 64);
            quire_status status = outs[i].get(s, memory);
            if (status != (size < 8 ? QUIRE_EINVAL : QUIRE_OK))
                fail_msg("%s of size %zu: %s", outs[i].name, size, quire_status_name(status));
            size_t filled = size < 8 ? 8 : size;
            assert_memory_equal(memory, &size, sizeof size);
            for (size_t b = 8; b < filled; b++)
                if (memory[b] != (b < own ? full[b] : 0))
                    fail_msg("%s of size %zu: byte %zu is %02x", outs[i].name, size, b, memory[b]);
            for (size_t b = filled; b < filled + 56; b++)
                if (memory[b] != 0xa5)
                    fail_msg("%s of size %zu: byte %zu was written", outs[i].name, size, b);
        }
        scene_close(s);
    }
}

/* ------------------------------------------------------------------- arrays */

/* Two elements `stride` bytes apart, with a byte behind the first one set to `tail` if there is room for it. */
static const void *spread(uint8_t *memory, const void *element, size_t size, size_t stride, uint8_t tail)
{
    memset(memory, 0, 4096);
    for (size_t i = 0; i < 2; i++) memcpy(memory + i * stride, element, size < stride ? size : stride);
    if (stride > size) memory[size] = tail;
    return memory;
}

static quire_status plan_with(const quire_geometry *g)
{
    quire_plan *plan = NULL;
    quire_status status = quire_plan_create(&plan, g, "r4", NULL);
    quire_plan_destroy(plan);
    return status;
}

static void arrays(void **unused)
{
    (void)unused;
    scene *s = scene_open();
    _Alignas(16) static uint8_t memory[4096 + 16];
    quire_layer layer = {.n_q_heads = 2, .n_kv_heads = 1, .d_k = D, .d_v = D};
    quire_geometry g = {.size = sizeof g, .n_layers = 2};
    for (size_t stride = 0; stride <= 64; stride += 4) {
        g.layer_stride = stride;
        g.layers = (const quire_layer *)spread(memory, &layer, sizeof layer, stride, 0);
        assert_int_equal(plan_with(&g),
                         stride < 16 ? QUIRE_EINVAL : QUIRE_OK); /* windows and v_in_k may lack */
        g.layers = (const quire_layer *)spread(memory, &layer, sizeof layer, stride, 1);
        if (stride > sizeof layer) assert_int_equal(plan_with(&g), QUIRE_EUNSUPPORTED);
    }
    g.layer_stride = (size_t)1 << 40;
    assert_int_equal(plan_with(&g), QUIRE_EINVAL);

    /* Jobs at odd addresses: the library copies elements, it never points at them. */
    float out[2][D];
    quire_attend_job job = {.n_q_heads = 1, .n_kv_heads = 1, .d_k = D, .d_v = D, .n_queries = 1, .q = s->x};
    for (size_t stride = 0; stride < sizeof job + 20; stride++) {
        job.out = out[0];
        const quire_attend_job *jobs =
            (const quire_attend_job *)spread(memory + 1, &job, sizeof job, stride, 0);
        job.out = out[1];
        if (stride > 8) memcpy(memory + 1 + stride, &job, sizeof job < stride ? sizeof job : stride);
        memset(out, 0x55, sizeof out);
        size_t at = offsetof(quire_attend_job, out);
        if (stride > at && stride < at + sizeof job.out)
            continue; /* half a pointer: no structure ends there */
        bool whole = stride > at;
        bool idle =
            stride > offsetof(quire_attend_job, d_v) && stride <= offsetof(quire_attend_job, n_queries);
        quire_status status = quire_attend(s->workspace, NULL, jobs, 2, stride);
        if (status != (whole || idle ? QUIRE_OK : QUIRE_EINVAL))
            fail_msg("stride %zu: %s", stride, quire_status_name(status));
        for (int i = 0; i < D && whole; i++) assert_true(out[0][i] == 0 && out[1][i] == 0); /* no tiles */
        if (stride <= sizeof job) continue;
        jobs = (const quire_attend_job *)spread(memory + 1, &job, sizeof job, stride, 9);
        assert_int_equal(quire_attend(s->workspace, NULL, jobs, 2, stride), QUIRE_EUNSUPPORTED);
    }
    assert_int_equal(quire_attend(s->workspace, NULL, &job, 1, (size_t)1 << 40), QUIRE_EINVAL);

    /* An element with a size of its own cannot be longer than the way to the next one. */
    quire_mask mask = {.size = sizeof mask};
    quire_step_queries queries = {.size = sizeof queries, .q = s->x, .out = s->out, .masks = &mask};
    queries.mask_stride = sizeof mask;
    assert_int_equal(quire_step_attend_with(s->step, 0, &queries), QUIRE_OK);
    queries.mask_stride = sizeof mask - 8;
    assert_int_equal(quire_step_attend_with(s->step, 0, &queries), QUIRE_EINVAL);
    queries.mask_stride = 0;
    assert_int_equal(quire_step_attend_with(s->step, 0, &queries), QUIRE_EINVAL);
    quire_rows rows = {.size = sizeof rows, .data = s->x};
    uint32_t padding = 0;
    for (size_t stride = 0; stride <= sizeof rows; stride += 8) {
        quire_batch *batch = NULL;
        quire_status status = quire_batch_import(&batch, s->pool, 1, 1, &padding, &rows, &rows, stride);
        assert_int_equal(status, stride < sizeof rows ? QUIRE_EINVAL : QUIRE_OK);
        quire_batch_destroy(batch);
    }
    scene_close(s);
}

/* Reserved members must be 0. */
static void reserved(void **unused)
{
    (void)unused;
    scene *s = scene_open();
#define RESERVED(name, type)                                                                    \
    do {                                                                                        \
        _Alignas(16) uint8_t memory[sizeof(type)];                                              \
        name##_init(s, memory);                                                                 \
        ((type *)(void *)memory)->reserved = 1;                                                 \
        if (name##_use(s, memory) != QUIRE_EINVAL) fail_msg(#name ": reserved is not checked"); \
    } while (0)
    RESERVED(executor, quire_executor);
    RESERVED(seq_options, quire_seq_options);
    RESERVED(plan_bytes, quire_seq_options);
    RESERVED(attend_options, quire_attend_options);
    RESERVED(mask, quire_mask);
    RESERVED(block_table, quire_block_table);
    scene_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(other_callers), cmocka_unit_test(sizes),
                                       cmocka_unit_test(outputs), cmocka_unit_test(arrays),
                                       cmocka_unit_test(reserved)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
