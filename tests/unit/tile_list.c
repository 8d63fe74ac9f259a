/* SPDX-License-Identifier: MIT */
/* Tile lists: attention with a list has the bits of attention with an array or in a step; what lists refuse. */
#include "list_scene.h"
#include "support/fail_alloc.h"

/* --------------------------------------------------------------- from blocks */

static void blocks_equal_steps(void **unused)
{
    (void)unused;
    static const struct {
        const char *k, *v;
    } pairs[] = {{"r4", "a4g64"}, {"f16", "r3"}, {"h:q4_0", "q8_0"}, {"r8", NULL}, {"a8g32", "f32"}};
    for (size_t i = 0; i < COUNT(pairs); i++)
        for (uint32_t block_tokens = 64; block_tokens <= 192; block_tokens += 128) {
            scene *s = scene_open(pairs[i].k, pairs[i].v, block_tokens);
            quire_block_table table = table_of(s);
            quire_tile_list *list = NULL;
            REF_OK(quire_tile_list_create(&list, NULL));
            REF_OK(quire_tile_list_add_blocks(list, &table));
            assert_int_equal(quire_tile_list_count(list), s->n_seqs);
            check_list(s, list, 0, pairs[i].k);
            REF_OK(quire_tile_list_add_blocks(list, &table)); /* a second time, behind the first */
            assert_int_equal(quire_tile_list_count(list), 2 * s->n_seqs);
            check_list(s, list, s->n_seqs, pairs[i].k);
            check_list(s, list, 0, pairs[i].k);
            quire_tile_list_clear(list);
            assert_int_equal(quire_tile_list_count(list), 0);
            REF_OK(quire_tile_list_add_blocks(list, &table));
            check_list(s, list, 0, "after clear");
            quire_tile_list_destroy(list);
            scene_close(s);
        }
}

static void refuse(scene *s, quire_tile_list *list, const quire_block_table *table, quire_status expected,
                   const char *what)
{
    uint32_t n = quire_tile_list_count(list);
    quire_status status = quire_tile_list_add_blocks(list, table);
    if (status != expected) fail_msg("%s: %s", what, quire_status_name(status));
    if (quire_tile_list_count(list) != n) fail_msg("%s: the list has changed", what);
    check_list(s, list, 0, what);
}

#define REFUSED(expected, ...)                                   \
    do {                                                         \
        quire_block_table table = table_of(s);                   \
        quire_paged_memory m = s->p.m;                           \
        int32_t blocks[MOST_SEQS][24], lengths[MOST_SEQS];       \
        memcpy(blocks, s->blocks, sizeof blocks);                \
        memcpy(lengths, s->lengths, sizeof lengths);             \
        table.memory = &m;                                       \
        table.blocks = blocks[0];                                \
        table.lengths = lengths;                                 \
        __VA_ARGS__;                                             \
        refuse(s, list, &table, QUIRE_##expected, #__VA_ARGS__); \
    } while (0)

static void refused_blocks(void **unused)
{
    (void)unused;
    scene *s = scene_open("r4", "a4g64", 192);
    quire_tile_list *list = NULL;
    quire_block_table good = table_of(s);
    REF_OK(quire_tile_list_create(&list, NULL));
    REF_OK(quire_tile_list_add_blocks(list, &good));
    assert_int_equal(quire_tile_list_add_blocks(NULL, &good), QUIRE_EINVAL);
    refuse(s, list, NULL, QUIRE_EINVAL, "no table");
    REFUSED(EINVAL, blocks[4][1] = -1);
    REFUSED(EINVAL, blocks[4][5] = (int32_t)s->p.m.n_blocks);
    REFUSED(EINVAL, blocks[6][0] = INT32_MAX);
    REFUSED(EINVAL, lengths[6] = -1);
    REFUSED(EINVAL, lengths[2] = INT32_MIN);
    REFUSED(EINVAL, memset(blocks, 0, sizeof blocks),
            lengths[6] = 24 * 192 + 1); /* more than a row of the table has */
    REFUSED(EINVAL, memset(blocks, 0, sizeof blocks),
            table.row_stride = 5 * sizeof(int32_t)); /* sequence 4 has six blocks */
    REFUSED(EINVAL, memset(blocks, 0, sizeof blocks), table.row_stride = 0);
    REFUSED(EINVAL, table.row_stride += 2);
    REFUSED(EINVAL, table.blocks = NULL);
    REFUSED(EINVAL, table.lengths = NULL);
    REFUSED(EINVAL, table.lengths = (const int32_t *)(const void *)((const uint8_t *)lengths + 1));
    REFUSED(EINVAL, table.blocks = (const int32_t *)(const void *)((const uint8_t *)blocks + 2));
    REFUSED(EINVAL, table.memory = NULL);
    REFUSED(EINVAL, table.reserved = 1);
    REFUSED(EINVAL, table.size = 0);
    REFUSED(EINVAL, table.size = 7);
    REFUSED(EINVAL, table.size = 8); /* no memory */
    REFUSED(EINVAL, table.size = (size_t)1 << 40);
    REFUSED(EINVAL, m.size = 7);
    REFUSED(EINVAL, m.k = NULL);
    REFUSED(EINVAL, m.k = (uint8_t *)m.k + 32);
    REFUSED(EINVAL, m.v = (uint8_t *)m.v + 32);
    REFUSED(EINVAL, m.k_format = NULL);
    REFUSED(EINVAL, m.v_format = NULL);
    REFUSED(EINVAL, m.k_format = s->p.v);
    REFUSED(EINVAL, m.v_format = s->p.k);
    REFUSED(EINVAL, m.v = NULL); /* K's format has no V in it */
    REFUSED(EINVAL, m.n_kv_heads = 0);
    REFUSED(EINVAL, m.n_layers = 0);
    REFUSED(EINVAL, m.block_tokens = 0);
    REFUSED(EINVAL, m.block_tokens = 96);
    REFUSED(EINVAL, m.n_blocks = (uint32_t)INT32_MAX + 1);
    REFUSED(EINVAL, m.n_blocks = 0);
    REFUSED(EINVAL, m.k_head_stride += 32);
    REFUSED(EINVAL, m.v_tile_stride += 32);
    REFUSED(EINVAL, m.k_layer_stride += 1);
    REFUSED(EINVAL, m.v_block_stride += 63);
    REFUSED(EINVAL, m.k_head_stride = quire_tile_bytes(s->p.k) - 64);
    REFUSED(EINVAL, m.v_head_stride = 0);
    REFUSED(EINVAL, m.k_tile_stride = 0); /* tiles on top of each other */
    REFUSED(EINVAL, m.k_layer_stride = 0);
    REFUSED(EINVAL, m.v_block_stride = 0);
    REFUSED(EINVAL, m.v_layer_stride = quire_tile_bytes(s->p.v) - 64);
    REFUSED(EINVAL, m.k_block_stride = SIZE_MAX / 64 * 64); /* offsets that no size_t holds */
    REFUSED(EINVAL, m.k_block_stride = (size_t)1 << 62);
    REFUSED(EINVAL, m.v_layer_stride = (size_t)1 << 63);
    REFUSED(EINVAL, m.k_tile_stride = (size_t)1 << 63);
    REFUSED(EINVAL, m.v_head_stride = SIZE_MAX / 64 * 64);
    /* What is not used is not looked at. */
    quire_paged_memory one = s->p.m;
    quire_block_table table = good;
    one.n_layers = 1;
    one.k_layer_stride = one.v_layer_stride = 0;
    table.memory = &one;
    REF_OK(quire_tile_list_add_blocks(list, &table));
    table = (quire_block_table){.size = sizeof table, .memory = &one}; /* no sequences */
    REF_OK(quire_tile_list_add_blocks(list, &table));
    assert_int_equal(quire_tile_list_count(list), 2 * s->n_seqs);
    table = good; /* one sequence needs no stride */
    table.n_seqs = 1;
    table.row_stride = 0;
    REF_OK(quire_tile_list_add_blocks(list, &table));
    check_list(s, list, 0, "after all refusals");
    quire_tile_list_destroy(list);
    scene_close(s);
}

/* ------------------------------------------------------------- refused jobs */

static void refused_jobs(void **unused)
{
    (void)unused;
    scene *s = scene_open("r4", "a4g64", 64);
    quire_tile_list *list = NULL, *empty = NULL;
    quire_block_table table = table_of(s);
    float out[OUT_FLOATS];
    REF_OK(quire_tile_list_create(&list, NULL));
    REF_OK(quire_tile_list_create(&empty, NULL));
    REF_OK(quire_tile_list_add_blocks(list, &table));
#define REFUSED_JOB(seq, ...)                                                                      \
    do {                                                                                           \
        quire_attend_job job = list_job(s, list, seq, 0, out);                                     \
        __VA_ARGS__;                                                                               \
        memset(out, 0x55, sizeof out);                                                             \
        quire_status got = quire_attend(s->workspace[0], NULL, &job, 1, sizeof job);               \
        if (got != QUIRE_EINVAL) fail_msg("%s: %s", #__VA_ARGS__, quire_status_name(got));         \
        for (size_t i = 0; i < sizeof out; i++) assert_int_equal(((const uint8_t *)out)[i], 0x55); \
    } while (0)
    REFUSED_JOB(0, job.list_seq = s->n_seqs);
    REFUSED_JOB(0, job.list_seq = UINT32_MAX);
    REFUSED_JOB(0, job.list_layer = LAYERS);
    REFUSED_JOB(0, job.list_layer = UINT32_MAX);
    REFUSED_JOB(1, job.list_layer = LAYERS); /* a sequence without tokens has layers too */
    REFUSED_JOB(0, job.list = empty);
    REFUSED_JOB(0, job.n_kv_heads = 2);
    REFUSED_JOB(0, job.d_k = 64);
    REFUSED_JOB(0, job.d_v = 48);
    REFUSED_JOB(0, job.out_token_stride = D_V * sizeof(float)); /* heads of the next token on top of ours */
    REFUSED_JOB(0, job.out_head_stride = 2 * D_V * sizeof(float), job.out_token_stride = N_Q * D_V * 4);
    REFUSED_JOB(0, job.out_token_stride = (size_t)1 << 62);
    REFUSED_JOB(0, job.q_token_stride = (size_t)1 << 62);
    REFUSED_JOB(0, job.q_head_stride = SIZE_MAX / 4 * 4);
    check_list(s, list, 0, "after refused jobs");
    quire_tile_list_destroy(list);
    quire_tile_list_destroy(empty);
    quire_tile_list_destroy(NULL);
    quire_tile_list_clear(NULL);
    assert_int_equal(quire_tile_list_count(NULL), 0);
    scene_close(s);
}

/* ------------------------------------------------- from arrays and sequences */

/* The last query of every layer, tiles in an array (list NULL) or in the list of the layer's group. */
static void attend_layers(scene *s, const quire_seq *seq, quire_tile_list *const *list, size_t pad,
                          float (*out)[N_Q * D_V])
{
    quire_seq_options ring = {.size = sizeof ring};
    REF_OK(quire_seq_options_get(seq, &ring));
    for (uint32_t l = 0; l < s->g.n_layers; l++) {
        quire_plan_layer info = {.size = sizeof info};
        REF_OK(quire_plan_layer_info(quire_seq_plan(seq), l, &info));
        size_t stride = sizeof(quire_tile_ref) + pad;
        uint32_t n = quire_seq_tiles(seq, l, NULL, 0, stride);
        uint8_t *memory = ref_alloc(n + 1, stride);
        /* An odd stride and an odd address: elements are copied, never pointed at. */
        quire_tile_ref *tiles = (quire_tile_ref *)(void *)(memory + pad);
        assert_int_equal(quire_seq_tiles(seq, l, tiles, n, stride), n);
        quire_attend_job job = {.n_q_heads = info.n_q_heads,
                                .n_kv_heads = info.n_kv_heads,
                                .d_k = info.d_k,
                                .d_v = info.d_v,
                                .n_queries = 1,
                                .first_query = quire_seq_length(seq) - 1,
                                .window = info.window,
                                .ring_tokens = ring.max_tokens,
                                .ring_sinks = ring.sinks,
                                .q = s->q[l],
                                .out = out[l]};
        if (list) {
            job.list = list[info.group];
            job.list_layer = info.group_index;
            job.list_seq = 1;
        } else {
            job.tiles = tiles;
            job.n_tiles = n;
            job.tile_stride = stride;
        }
        REF_OK(quire_attend(s->workspace[l % 3], NULL, &job, 1, sizeof job));
        free(memory);
    }
}

static void seqs_equal_steps(void **unused)
{
    (void)unused;
    static const char *const policies[] = {"r4/a4g64", "r4/a4g64,window=q8_0,sinks=70:f16",
                                           "f32/r3,edge=1:r8,sinks=4:bf16"};
    for (size_t i = 0; i < COUNT(policies); i++)
        for (uint32_t ring = 0; ring < 2; ring++) {
            scene s = {.g = kit_geometry(N_KV, D, D_V)};
            quire_tile_list *list[8] = {NULL};
            float step_out[LAYERS][N_Q * D_V], array[LAYERS][N_Q * D_V], listed[LAYERS][N_Q * D_V];
            s.plan = kit_plan(&s.g, policies[i], NULL);
            s.pool = kit_pool(s.plan, (size_t)16 << 20, NULL);
            open_workspaces(&s);
            for (uint32_t l = 0; l < LAYERS; l++) kit_row(7, l, QUIRE_K, 1, s.q[l], COUNT(s.q[l]));
            quire_seq *seq = ring ? kit_seq(s.pool, 300, 10, 70) : kit_seq(s.pool, 0, 0, 70);
            REF_OK(kit_append(s.pool, &s.g, seq, 700, 5));
            quire_step *step = NULL;
            REF_OK(kit_begin(&step, s.pool, &s.g, seq, 1, 5));
            for (uint32_t l = 0; l < LAYERS; l++) REF_OK(quire_step_attend(step, l, s.q[l], step_out[l]));
            REF_OK(quire_step_commit(step));
            attend_layers(&s, seq, NULL, 0, array);
            assert_memory_equal(array, step_out, sizeof array);
            attend_layers(&s, seq, NULL, 3, array);
            assert_memory_equal(array, step_out, sizeof array);
            uint32_t n_groups = quire_plan_n_groups(s.plan);
            quire_seq *nothing = kit_seq(s.pool, 0, 0, 0);
            for (uint32_t g = 0; g < n_groups; g++) {
                REF_OK(quire_tile_list_create(&list[g], NULL));
                REF_OK(quire_tile_list_add_seq(list[g], nothing, g));
                REF_OK(quire_tile_list_add_seq(list[g], seq, g));
                assert_int_equal(quire_tile_list_add_seq(list[g], seq, n_groups), QUIRE_EINVAL);
                assert_int_equal(quire_tile_list_add_seq(list[g], NULL, g), QUIRE_EINVAL);
                assert_int_equal(quire_tile_list_count(list[g]), 2);
            }
            assert_int_equal(quire_tile_list_add_seq(NULL, seq, 0), QUIRE_EINVAL);
            attend_layers(&s, seq, list, 0, listed);
            assert_memory_equal(listed, step_out, sizeof listed);
            for (uint32_t g = 0; g < n_groups; g++) quire_tile_list_destroy(list[g]);
            quire_seq_destroy(seq);
            quire_seq_destroy(nothing);
            close_workspaces(&s);
            quire_pool_destroy(s.pool);
            quire_plan_destroy(s.plan);
        }
}

/* Tiles of layer 0 of a sequence of the paged memory, as an array. */
static uint32_t tile_array(const scene *s, uint32_t seq, quire_tile_ref *tiles)
{
    uint32_t n = 0, length = (uint32_t)s->lengths[seq];
    for (uint32_t first = 0; first < length; first += 64, n++) {
        int64_t slot = paged_slot(&s->p, s->blocks[seq], first);
        tiles[n] = (quire_tile_ref){.k = paged_tile(&s->p, QUIRE_K, 0, 0, slot),
                                    .v = paged_tile(&s->p, QUIRE_V, 0, 0, slot),
                                    .k_head_stride = s->p.m.k_head_stride,
                                    .v_head_stride = s->p.m.v_head_stride,
                                    .k_format = s->p.k,
                                    .v_format = s->p.v,
                                    .first = first,
                                    .n_rows = length - first < 64 ? length - first : 64};
    }
    return n;
}

static void check_layer_0(scene *s, const quire_tile_list *list, uint32_t list_seq, uint32_t seq,
                          const char *what)
{
    float out[OUT_FLOATS];
    quire_attend_job job = list_job(s, list, seq, 0, out);
    job.list_seq = list_seq;
    REF_OK(quire_attend(s->workspace[0], NULL, &job, 1, sizeof job));
    if (memcmp(out, s->expected[seq][0], sizeof out)) fail_msg("%s: another result", what);
}

static void refused_tiles(void **unused)
{
    (void)unused;
    scene *s = scene_open("r4", "a4g64", 64);
    quire_tile_ref tiles[20];
    uint32_t n = tile_array(s, 4, tiles);
    quire_tile_list *list = NULL;
    REF_OK(quire_tile_list_create(&list, NULL));
    REF_OK(quire_tile_list_add_tiles(list, NULL, 0, 0, N_KV)); /* a sequence without tiles */
    REF_OK(quire_tile_list_add_tiles(list, tiles, n, sizeof *tiles, N_KV));
    check_layer_0(s, list, 0, 1, "no tiles");
    check_layer_0(s, list, 1, 4, "tiles");
#define REFUSED_TILES(expected, ...)                                                           \
    do {                                                                                       \
        quire_tile_ref bad[20], *array = bad;                                                  \
        size_t stride = sizeof *bad;                                                           \
        uint32_t heads = N_KV;                                                                 \
        memcpy(bad, tiles, sizeof bad);                                                        \
        __VA_ARGS__;                                                                           \
        quire_status got = quire_tile_list_add_tiles(list, array, n, stride, heads);           \
        if (got != QUIRE_##expected) fail_msg("%s: %s", #__VA_ARGS__, quire_status_name(got)); \
        assert_int_equal(quire_tile_list_count(list), 2);                                      \
        check_layer_0(s, list, 1, 4, #__VA_ARGS__);                                            \
    } while (0)
    REFUSED_TILES(EINVAL, array = NULL);
    REFUSED_TILES(EINVAL, stride = 0);
    REFUSED_TILES(EINVAL, stride = 8);
    REFUSED_TILES(EINVAL, stride = (size_t)1 << 60);
    REFUSED_TILES(EUNSUPPORTED,
                  stride = 2 * sizeof *bad); /* a newer program that uses a member we do not know */
    REFUSED_TILES(EINVAL, heads = 0);
    REFUSED_TILES(EINVAL, bad[17].n_rows = 65);
    REFUSED_TILES(EINVAL, bad[17].n_rows = 65536 + 64);
    REFUSED_TILES(EINVAL, bad[3].first = (uint32_t)INT32_MAX + 1);
    REFUSED_TILES(EINVAL, bad[3].k = (const uint8_t *)bad[3].k + 16);
    REFUSED_TILES(EINVAL, bad[17].v = (const uint8_t *)bad[17].v + 16);
    REFUSED_TILES(EINVAL, bad[5].k_head_stride += 16);
    REFUSED_TILES(EINVAL, bad[5].v_head_stride = 64);
    REFUSED_TILES(EINVAL, bad[5].v_head_stride = SIZE_MAX / 64 * 64);
    REFUSED_TILES(EINVAL, bad[5].k_format = s->p.v);
    REFUSED_TILES(EINVAL, bad[5].v = NULL);
    /* Formats that two objects describe are one. A list may refer to either while both live. */
    quire_tile_format *twin = NULL;
    quire_tile_format_options options = {sizeof options, .side = QUIRE_K, .d = D};
    REF_OK(quire_tile_format_create(&twin, "r4", &options));
    for (uint32_t i = 0; i < n; i += 2) tiles[i].k_format = twin;
    REF_OK(quire_tile_list_add_tiles(list, tiles, n, sizeof *tiles, N_KV));
    check_layer_0(s, list, 2, 4, "two objects of one format");
    quire_tile_list_destroy(list);
    quire_tile_format_destroy(twin);
    scene_close(s);
}

/* ------------------------------------------------------------ out of memory */

static quire_status add_tiles(scene *s, quire_tile_list *list, quire_seq *seq)
{
    quire_tile_ref tiles[20];
    (void)seq;
    return quire_tile_list_add_tiles(list, tiles, tile_array(s, 4, tiles), sizeof *tiles, N_KV);
}

static quire_status add_blocks(scene *s, quire_tile_list *list, quire_seq *seq)
{
    quire_block_table table = table_of(s);
    (void)seq;
    return quire_tile_list_add_blocks(list, &table);
}

static quire_status add_seq(scene *s, quire_tile_list *list, quire_seq *seq)
{
    (void)s;
    return quire_tile_list_add_seq(list, seq, 0);
}

/* Every request for memory refused in turn: the list is as it was, and works. */
static void no_memory(void **unused)
{
    (void)unused;
    static quire_status (*const add[])(scene *, quire_tile_list *, quire_seq *) = {add_tiles, add_blocks,
                                                                                   add_seq};
    static const uint32_t n_added[] = {1, 7, 1};
    scene *s = scene_open("r4", "a4g64", 64);
    quire_seq *seq = kit_seq(s->pool, 0, 0, 0);
    REF_OK(kit_append(s->pool, &s->g, seq, 1500, 9));
    for (size_t i = 0; i < COUNT(add); i++) {
        uint64_t n = 1;
        for (;; n++) {
            struct fail_alloc memory;
            fail_alloc_init(&memory, 0);
            quire_allocator a = fail_alloc_allocator(&memory);
            quire_tile_list *list = NULL;
            REF_OK(quire_tile_list_create(&list, &a));
            quire_tile_ref tiles[20];
            REF_OK(quire_tile_list_add_tiles(list, tiles, tile_array(s, 6, tiles), sizeof *tiles, N_KV));
            memory.fail_at = memory.calls + n;
            quire_status status = add[i](s, list, seq);
            bool refused = memory.calls >= memory.fail_at;
            memory.fail_at = 0;
            assert_int_equal(status, refused ? QUIRE_ENOMEM : QUIRE_OK);
            assert_int_equal(quire_tile_list_count(list), refused ? 1 : 1 + n_added[i]);
            check_layer_0(s, list, 0, 6, "after ENOMEM");
            if (refused) REF_OK(add[i](s, list, seq));
            assert_int_equal(quire_tile_list_count(list), 1 + n_added[i]);
            check_layer_0(s, list, 0, 6, "after another try");
            if (add[i] == add_tiles) check_layer_0(s, list, 1, 4, "the added tiles");
            if (add[i] == add_blocks) check_list(s, list, 1, "the added blocks");
            quire_tile_list_destroy(list);
            assert_int_equal(memory.outstanding, 0);
            assert_int_equal(memory.bytes, 0);
            if (!refused) break;
        }
        assert_true(n > 1);
    }
    quire_seq_destroy(seq);
    scene_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_equal_steps), cmocka_unit_test(refused_blocks),
        cmocka_unit_test(refused_jobs),       cmocka_unit_test(seqs_equal_steps),
        cmocka_unit_test(refused_tiles),      cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
