/* SPDX-License-Identifier: MIT */
/* quire_attend() as hosts with their own page tables call it: what it refuses, layouts, masks, mixed formats. */
#include "attend_host.h"
#include "support/fail_alloc.h"

/* ------------------------------------------------------------------ refusals */

/* A refused call writes nothing, not even for the good job before the bad one. */
static void expect_refusal(host *t, const quire_attend_job *bad, quire_status status, const char *what)
{
    quire_attend_job jobs[2] = {host_job(t), *bad};
    memset(t->out, 0x55, sizeof t->out);
    quire_status got = quire_attend(t->workspace, NULL, jobs, 2, sizeof(quire_attend_job));
    if (got != status) fail_msg("%s: %s", what, quire_status_name(got));
    for (size_t i = 0; i < sizeof t->out; i++)
        if (((const uint8_t *)t->out)[i] != 0x55) fail_msg("%s: something was written", what);
}

#define REFUSED(...)                                                                                  \
    do {                                                                                              \
        quire_attend_job job = host_job(t);                                                           \
        quire_tile_ref tile = t->tile[1];                                                             \
        quire_mask mask = {.size = sizeof(quire_mask), .form = QUIRE_F32, .data = t->q, .n_keys = 1}; \
        job.tiles = &tile;                                                                            \
        job.n_tiles = 1;                                                                              \
        (void)mask;                                                                                   \
        __VA_ARGS__;                                                                                  \
        expect_refusal(t, &job, QUIRE_EINVAL, #__VA_ARGS__);                                          \
    } while (0)

static void refused_options(host *t, const quire_attend_job *job, quire_attend_options options,
                            const char *what)
{
    options.size = sizeof(quire_attend_options);
    quire_status got = quire_attend(t->workspace, &options, job, 1, sizeof(quire_attend_job));
    if (got != QUIRE_EINVAL) fail_msg("%s: %s", what, quire_status_name(got));
}

static void refused_jobs(void **unused)
{
    (void)unused;
    host *t = host_open();
    REFUSED(job.n_q_heads = 0);
    REFUSED(job.n_kv_heads = 0);
    REFUSED(job.n_q_heads = 3);
    REFUSED(job.d_k = 0);
    REFUSED(job.d_k = 32);
    REFUSED(job.d_k = 1025);
    REFUSED(job.d_v = 0);
    REFUSED(job.d_v = 64);
    REFUSED(job.d_v = 1025);
    REFUSED(job.q = NULL);
    REFUSED(job.out = NULL);
    REFUSED(job.tiles = NULL);
    REFUSED(job.n_queries = (uint32_t)INT32_MAX + 1);
    REFUSED(job.first_query = (uint32_t)INT32_MAX + 1);
    REFUSED(job.ring_sinks = 1);
    REFUSED(job.ring_tokens = 4, job.ring_sinks = 4);
    REFUSED(job.ring_tokens = 4, job.ring_sinks = 5);
    REFUSED(tile.k = NULL);
    REFUSED(tile.k_format = NULL);
    REFUSED(tile.v_format = NULL);
    REFUSED(tile.n_rows = 65);
    REFUSED(tile.first = (uint32_t)INT32_MAX + 1);
    REFUSED(tile.k = t->memory[1] + 32); /* not aligned */
    REFUSED(tile.v = t->memory[1] + 32);
    REFUSED(tile.k_head_stride = quire_tile_bytes(t->k[1]) - 64); /* heads overlap */
    REFUSED(tile.v_head_stride = quire_tile_bytes(t->v[1]) - 64);
    REFUSED(tile.k_head_stride += 32);
    REFUSED(job.out_token_stride = (D_V - 1) * sizeof(float));
    REFUSED(job.out_head_stride = (D_V - 1) * sizeof(float));
    REFUSED(job.out_head_stride = D_V * sizeof(float) + 2); /* not aligned */
    REFUSED(job.q_token_stride = 2);
    REFUSED(job.q_form = QUIRE_NATIVE);
    REFUSED(job.out_form = QUIRE_MLX);
    REFUSED(job.tile_stride = 0);
    REFUSED(job.list_seq = 1);
    REFUSED(tile.k_format = t->v[1]); /* of the other side */
    REFUSED(tile.v_format = t->k[1]);
    REFUSED(tile.v = NULL, job.d_v = 65);            /* V in K, but longer than K */
    REFUSED(tile.v = NULL, tile.k_format = t->k[2]); /* the rotation of r4 mixes V with the rest of K */
    REFUSED(mask.data = NULL, job.mask = &mask);
    REFUSED(mask.form = QUIRE_NATIVE, job.mask = &mask);
    REFUSED(mask.form = QUIRE_MLX, job.mask = &mask);

    /* A calibrated format knows the heads of its profile only. Its tiles have the size of the plain r4. */
    quire_geometry one = {sizeof(quire_geometry), .n_layers = 1, .n_q_heads = 1,
                          .n_kv_heads = 1,        .d_k = D,      .d_v = D_V};
    quire_profile *profile = ref_profile(&one);
    quire_tile_format_options options = {sizeof(quire_tile_format_options), .side = QUIRE_K, .d = D,
                                         .profile = profile};
    quire_tile_format *format = NULL;
    REF_OK(quire_tile_format_create(&format, "c:r4", &options));
    REFUSED(tile = t->tile[2], tile.k_format = format);
    quire_tile_format_destroy(format);
    quire_profile_destroy(profile);

    quire_attend_job job = host_job(t);
    quire_attend_options old = {.size = sizeof(size_t) - 1};
    assert_int_equal(quire_attend(NULL, NULL, &job, 1, sizeof(quire_attend_job)), QUIRE_EINVAL);
    assert_int_equal(quire_attend(t->workspace, NULL, NULL, 1, sizeof(quire_attend_job)), QUIRE_EINVAL);
    assert_int_equal(quire_attend(t->workspace, &old, &job, 1, sizeof(quire_attend_job)), QUIRE_EINVAL);
    assert_int_equal(quire_workspace_create(NULL, NULL, NULL), QUIRE_EINVAL);
    REF_OK(quire_attend(t->workspace, NULL, NULL, 0, sizeof(quire_attend_job)));
    check_job(t, &job, NULL, "after all refusals");
    job.max = NULL; /* both are needed to go on with a partial result */
    refused_options(t, &job, (quire_attend_options){.flags = QUIRE_ATTEND_PARTIAL}, "partial without max");
    job = host_job(t);
    job.sum = NULL;
    refused_options(t, &job, (quire_attend_options){.flags = QUIRE_ATTEND_PARTIAL}, "partial without sum");
    job = host_job(t);
    refused_options(t, &job, (quire_attend_options){.flags = 4}, "unknown flag");
    refused_options(t, &job, (quire_attend_options){.scale = NAN}, "scale NaN");
    refused_options(t, &job, (quire_attend_options){.scale = INFINITY}, "scale inf");
    refused_options(t, &job, (quire_attend_options){.softcap = NAN}, "softcap NaN");
    refused_options(t, &job, (quire_attend_options){.softcap = -1}, "softcap below 0");
    host_close(t);
}

static void refused_steps(void **unused)
{
    (void)unused;
    quire_geometry g = {sizeof(quire_geometry), .n_layers = 2, .n_q_heads = 1,
                        .n_kv_heads = 1,        .d_k = D,      .d_v = D};
    ref_cache cache = ref_open(&g, "f32", NULL, NULL);
    quire_seq *seq = ref_seq(&cache, NULL);
    uint32_t one = 1;
    float k[D] = {1}, q[D] = {1}, out[D];
    quire_mask bad = {.size = sizeof(quire_mask), .form = QUIRE_NATIVE, .data = k, .n_keys = 1};
    quire_attend_options old = {.size = sizeof(size_t) - 1};
    quire_step *step = NULL;
    REF_OK(quire_step_begin(&step, cache.pool, &seq, &one, 1));
    assert_int_equal(quire_step_attend(step, 0, q, out), QUIRE_EINVAL); /* not appended */
    REF_OK(quire_step_append(step, 0, k, k));
    REF_OK(quire_step_attend(step, 0, q, out));
    assert_int_equal(quire_step_attend(step, 1, q, out), QUIRE_EINVAL);
    assert_int_equal(quire_step_attend(step, 2, q, out), QUIRE_EINVAL);
    assert_int_equal(quire_step_attend(step, 0, NULL, out), QUIRE_EINVAL);
    assert_int_equal(quire_step_attend(step, 0, q, NULL), QUIRE_EINVAL);
    assert_int_equal(quire_step_attend(NULL, 0, q, out), QUIRE_EINVAL);
    quire_step_queries queries = {.size = sizeof queries, .q = q, .out = out, .options = &old};
    assert_int_equal(quire_step_attend_with(step, 0, &queries), QUIRE_EINVAL);
    queries = (quire_step_queries){
        .size = sizeof queries, .q = q, .out = out, .masks = &bad, .mask_stride = sizeof bad};
    assert_int_equal(quire_step_attend_with(step, 0, &queries), QUIRE_EINVAL);
    quire_step_abort(step);
    quire_seq_destroy(seq);
    ref_close(&cache);
}

/* ---------------------------------------------------------- nothing to see */

static void nothing_to_see(void **unused)
{
    (void)unused;
    host *t = host_open();
    quire_threads *team = NULL;
    REF_OK(quire_threads_create(&team, 4));
    quire_executor executors[] = {
        {.size = sizeof(quire_executor)}, {.size = sizeof(quire_executor)}, ref_backwards(8)};
    REF_OK(quire_threads_executor(team, &executors[1]));
    for (uint32_t e = 0; e < COUNT(executors); e++) {
        quire_workspace *w = NULL;
        REF_OK(quire_workspace_create(&w, &executors[e], NULL));
        /* Beside a job of several splits, which threads take apart. */
        static float out[2 * N_OUT * D_V], max[N_OUT], sum[N_OUT];
        quire_tile_ref far[3] = {t->tile[0], t->tile[1], t->tile[2]};
        for (uint32_t i = 0; i < 3; i++) far[i].first = i * 1024;
        quire_attend_job jobs[] = {host_job(t), host_job(t), host_job(t), host_job(t)};
        memset(out, 0xff, sizeof out);
        jobs[0].tiles = far;
        jobs[0].n_tiles = 3;
        jobs[0].first_query = 4000;
        jobs[1] = (quire_attend_job){.n_q_heads = N_Q,
                                     .n_kv_heads = N_KV,
                                     .d_k = D,
                                     .d_v = D_V,
                                     .q = t->q,
                                     .n_queries = N_QUERIES,
                                     .out = out,
                                     .max = max,
                                     .sum = sum};
        jobs[2].n_queries = 0;
        jobs[2].out = NULL;
        jobs[3].window = 1; /* of rows that no tile has */
        jobs[3].first_query = 100000;
        jobs[3].out = out + N_OUT * D_V;
        jobs[3].max = jobs[3].sum = NULL; /* those of jobs[0] */
        REF_OK(quire_attend(w, NULL, jobs, COUNT(jobs), sizeof(quire_attend_job)));
        for (uint32_t i = 0; i < N_OUT; i++) assert_true(max[i] == -INFINITY && sum[i] == 0);
        for (uint32_t i = 0; i < 2 * N_OUT * D_V; i++)
            if (out[i] != 0)
                fail_msg("executor %u, %s: value %u is %g", e,
                         i < N_OUT * D_V ? "no tiles" : "nothing visible", i, (double)out[i]);
        quire_workspace_destroy(w);
    }
    quire_threads_destroy(team);
    host_close(t);
}

/* ------------------------------------------------------------------ layouts */

/* Queries [head][query][d] and outputs with gaps, as permuted views of ggml have them. */
static void strided_layouts(void **unused)
{
    (void)unused;
    enum { Q_ROW = D + 3, OUT_ROW = D_V + 5 };
    static float q[N_Q * N_QUERIES * Q_ROW], out[N_Q * N_QUERIES * OUT_ROW];
    host *t = host_open();
    quire_attend_job job = host_job(t);
    REF_OK(quire_attend(t->workspace, NULL, &job, 1, sizeof(quire_attend_job)));
    for (uint32_t i = 0; i < COUNT(q); i++) q[i] = NAN;
    for (uint32_t i = 0; i < COUNT(out); i++) out[i] = 12345;
    for (uint32_t i = 0; i < N_QUERIES; i++)
        for (uint32_t h = 0; h < N_Q; h++)
            memcpy(q + (h * N_QUERIES + i) * Q_ROW, t->q + (i * N_Q + h) * D, sizeof *q * D);
    job.q = q;
    job.q_token_stride = sizeof *q * Q_ROW;
    job.q_head_stride = sizeof *q * N_QUERIES * Q_ROW;
    job.out = out;
    job.out_token_stride = sizeof *out * OUT_ROW;
    job.out_head_stride = sizeof *out * N_QUERIES * OUT_ROW;
    REF_OK(quire_attend(t->workspace, NULL, &job, 1, sizeof(quire_attend_job)));
    for (uint32_t i = 0; i < N_QUERIES; i++)
        for (uint32_t h = 0; h < N_Q; h++) {
            const float *row = out + (h * N_QUERIES + i) * OUT_ROW;
            assert_memory_equal(row, t->out + (i * N_Q + h) * D_V, sizeof *row * D_V);
            for (uint32_t c = D_V; c < OUT_ROW; c++) assert_true(row[c] == 12345);
        }
    host_close(t);
}

/* -------------------------------------------------------------------- masks */

/* A mask of part of the keys, per head or for all, in all forms; f16 and bf16 give the bits of the f32 values. */
static void masks_and_slopes(void **unused)
{
    (void)unused;
    enum { FIRST = 30, N_KEYS = 77, ROW = N_KEYS + 4 };
    static const quire_form forms[] = {QUIRE_F32, QUIRE_F16, QUIRE_BF16};
    static const float slopes[N_Q] = {1, 0.5f, 0, -2};
    static float values[3][N_QUERIES * N_Q * ROW], want[N_OUT * D_V];
    host *t = host_open();
    uint64_t state = 3;
    for (uint32_t i = 0; i < N_QUERIES * N_Q * ROW; i++) {
        uint32_t dice = ref_below(&state, 10);
        float x = dice == 0 ? -INFINITY : dice == 1 ? NAN : ((float)ref_below(&state, 200) - 100) / 32;
        for (uint32_t f = 0; f < 3; f++) quire_store_value(forms[f], values[f], i, x);
    }
    for (uint32_t per_head = 0; per_head < 2; per_head++)
        for (uint32_t sloped = 0; sloped < 2; sloped++)
            for (uint32_t f = 0; f < 3; f++) {
                quire_mask mask = {.size = sizeof(quire_mask),
                                   .form = forms[f],
                                   .data = values[f],
                                   .query_stride = quire_value_bytes(forms[f]) * (per_head ? N_Q * ROW : ROW),
                                   .head_stride = per_head ? quire_value_bytes(forms[f]) * ROW : 0,
                                   .first = FIRST,
                                   .n_keys = N_KEYS};
                quire_attend_options options = {sizeof(quire_attend_options),
                                                .mask_slopes = sloped ? slopes : NULL};
                quire_attend_job job = host_job(t);
                char what[64];
                snprintf(what, sizeof what, "mask of form %d, per head %u, slopes %u", (int)forms[f],
                         per_head, sloped);
                job.mask = &mask;
                check_job(t, &job, &options, what);
                if (f == 0) memcpy(want, t->out, sizeof want);
                if (memcmp(want, t->out, sizeof want)) fail_msg("%s: not the bits of an f32 mask", what);
            }
    quire_mask empty = {.size = sizeof(quire_mask), .form = QUIRE_MLX}; /* no keys: not looked at */
    quire_attend_job job = host_job(t);
    job.mask = &empty;
    check_job(t, &job, NULL, "empty mask");
    host_close(t);
}

/* A mask of 0 and -inf is as good as positions, bit for bit; and what it adds to one query is nothing to the others. */
static void masks_of_positions(void **unused)
{
    (void)unused;
    enum { MOST_KEYS = MOST_TILES * TILE_ROWS };
    static const quire_form forms[] = {QUIRE_F32, QUIRE_F16, QUIRE_BF16};
    static float values[N_QUERIES * MOST_KEYS], want[N_OUT * D_V];
    host *t = host_open();
    quire_attend_options all = {sizeof(quire_attend_options), .flags = QUIRE_ATTEND_BIDIRECTIONAL};
    quire_attend_job job = host_job(t);
    REF_OK(quire_attend(t->workspace, NULL, &job, 1, sizeof(quire_attend_job)));
    memcpy(want, t->out, sizeof want);
    for (uint32_t f = 0; f < COUNT(forms); f++) {
        quire_mask mask = {.size = sizeof(quire_mask),
                           .form = forms[f],
                           .data = values,
                           .query_stride = quire_value_bytes(forms[f]) * MOST_KEYS,
                           .n_keys = t->n_rows};
        for (uint32_t adds = 0; adds < 2; adds++) {
            for (uint32_t i = 0; i < N_QUERIES; i++)
                for (uint32_t k = 0; k < t->n_rows; k++) {
                    bool hidden = k > job.first_query + i;
                    float x = hidden ? -INFINITY : adds && i == 1 && k % 7 == 0 ? 0.75f : 0;
                    quire_store_value(forms[f], values, i * MOST_KEYS + k, x);
                }
            job.mask = &mask;
            REF_OK(quire_attend(t->workspace, &all, &job, 1, sizeof(quire_attend_job)));
            for (uint32_t i = 0; i < N_QUERIES; i++) {
                size_t at = (size_t)i * N_Q * D_V;
                bool same = !memcmp(t->out + at, want + at, sizeof(float) * N_Q * D_V);
                if (same != !(adds && i == 1)) fail_msg("form %d, query %u, adds %u", (int)forms[f], i, adds);
            }
        }
    }
    host_close(t);
}

/* By position and by mask: what nobody sees is skipped, and counted. */
static void tiles_skipped(void **unused)
{
    (void)unused;
    static float hides[TILE_ROWS];
    host *t = host_open();
    quire_attend_job job = host_job(t);
    quire_workspace_stats a = {.size = sizeof a}, b = {.size = sizeof b};
    job.n_queries = 1;
    job.first_query = 0; /* sees the first row of the first tile */
    quire_workspace_stats_get(t->workspace, &a);
    REF_OK(quire_attend(t->workspace, NULL, &job, 1, sizeof(quire_attend_job)));
    quire_workspace_stats_get(t->workspace, &b);
    assert_int_equal(b.tiles_read - a.tiles_read, job.n_kv_heads);
    assert_int_equal(b.tiles_skipped - a.tiles_skipped, job.n_kv_heads * (job.n_tiles - 1));
    for (uint32_t k = 0; k < TILE_ROWS; k++) hides[k] = -INFINITY;
    quire_mask mask = {.size = sizeof(quire_mask), .form = QUIRE_F32, .data = hides, .n_keys = TILE_ROWS};
    job.first_query = (job.n_tiles - 1) * TILE_ROWS;
    job.mask = &mask;
    REF_OK(quire_attend(t->workspace, NULL, &job, 1, sizeof(quire_attend_job)));
    quire_workspace_stats_get(t->workspace, &a);
    assert_int_equal(a.tiles_read - b.tiles_read, job.n_kv_heads * (job.n_tiles - 1));
    assert_int_equal(a.tiles_skipped - b.tiles_skipped, job.n_kv_heads);
    host_close(t);
}

/* ------------------------------------------------------------------ formats */

static void mixed_formats(void **unused)
{
    (void)unused;
    static const float alibi[N_Q] = {0.5f, 0.1f, 0.01f, 0}, sinks[N_Q] = {0, 3, -3, 30};
    host *t = host_open();
    quire_attend_job job = host_job(t);
    quire_attend_options options = {sizeof(quire_attend_options), .flags = QUIRE_ATTEND_BIDIRECTIONAL,
                                    .softcap = 4, .alibi = alibi, .sink_logits = sinks};
    check_job(t, &job, NULL, "four formats");
    for (uint32_t i = 0; i < t->n_tiles; i++) t->tile[i].k_head_stride = t->tile[i].v_head_stride = 0;
    check_job(t, &job, NULL, "four formats, tile after tile");
    job.first_query = 70; /* in the second tile */
    check_job(t, &job, &options, "four formats, all options");
    host_close(t);
}

static void as_many_formats_as_may_be(void **unused)
{
    (void)unused;
    host *t = host_open();
    uint64_t state = 12;
    for (uint32_t i = 12; t->n_tiles < 16; i++) /* from a5g32 on: none that host_open() uses */
        add_tile(t, quire_codec_at(i)->name, quire_codec_at(i)->name, &state);
    quire_attend_job job = host_job(t);
    check_job(t, &job, NULL, "16 formats");
    add_tile(t, "iq4_nl", "iq4_nl", &state);
    for (int side = 0; side < 2; side++) {
        quire_tile_ref all[17];
        memcpy(all, t->tile, sizeof all);
        all[16].k_head_stride = all[16].v_head_stride = 0;
        if (side) /* 17 formats of K only, and of V only */
            all[16].v_format = all[15].v_format;
        else
            all[16].k_format = all[15].k_format;
        job = host_job(t);
        job.tiles = all;
        expect_refusal(t, &job, QUIRE_EUNSUPPORTED, side ? "17 formats of K" : "17 formats of V");
    }
    host_close(t);
}

/* ------------------------------------------------------------------- memory */

static void memory_that_runs_out(void **unused)
{
    (void)unused;
    host *t = host_open();
    quire_attend_job job = host_job(t);
    for (uint64_t n = 1, calls = n; calls >= n; n++) {
        struct fail_alloc f;
        fail_alloc_init(&f, n);
        quire_allocator a = fail_alloc_allocator(&f);
        quire_workspace *w = NULL;
        memset(t->out, 0x55, sizeof t->out);
        quire_status status = quire_workspace_create(&w, NULL, &a);
        if (!status) status = quire_attend(w, NULL, &job, 1, sizeof(quire_attend_job));
        calls = f.calls;
        assert_int_equal(status, calls < n ? QUIRE_OK : QUIRE_ENOMEM);
        for (size_t i = 0; i < sizeof t->out && status; i++)
            assert_int_equal(((const uint8_t *)t->out)[i], 0x55);
        if (!status)
            REF_OK(
                quire_attend(w, NULL, &job, 1, sizeof(quire_attend_job))); /* the same again needs no more */
        assert_int_equal(f.calls, calls);
        quire_workspace_destroy(w);
        assert_int_equal(f.outstanding, 0);
    }
    check_job(t, &job, NULL, "after all failures");
    host_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refused_jobs),
        cmocka_unit_test(refused_steps),
        cmocka_unit_test(nothing_to_see),
        cmocka_unit_test(strided_layouts),
        cmocka_unit_test(masks_and_slopes),
        cmocka_unit_test(masks_of_positions),
        cmocka_unit_test(tiles_skipped),
        cmocka_unit_test(mixed_formats),
        cmocka_unit_test(as_many_formats_as_may_be),
        cmocka_unit_test(memory_that_runs_out),
    };
    return cmocka_run_group_tests_name("attend_api", tests, NULL, NULL);
}
