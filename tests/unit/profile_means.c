/* SPDX-License-Identifier: MIT */
/* The means of a profile: found where rows are, the same everywhere, in bounded memory; and files of one mean. */
#include "codec_rows.h"

#include "support/cache_kit.h"
#include "support/peak_alloc.h"
#include "support/reference.h"

#include <stdlib.h>

enum { D = 32, CENTRES = 12, ROWS = 1500 };

static const quire_geometry one_head = {
    .size = sizeof(quire_geometry), .n_layers = 1, .n_q_heads = 1, .n_kv_heads = 1, .d_k = D, .d_v = D};

/* Row t lies around one of CENTRES centres. */
static void clustered_row(uint32_t t, uint32_t d, float *x)
{
    uint64_t centre = ref_below(&(uint64_t){t}, CENTRES) + 100, own = 1000 + t;
    for (uint32_t i = 0; i < d; i++) x[i] = 2 * random_normal(&centre) + 0.3f * random_normal(&own);
}

static quire_profile *profile_of(const quire_geometry *g, uint32_t n_rows, uint32_t at_once)
{
    quire_profile *p = NULL;
    float *k = ref_alloc((size_t)n_rows * g->d_k, sizeof *k);
    float *q = ref_alloc((size_t)g->n_q_heads * g->d_k, sizeof *q);
    uint64_t seed = 77;
    assert_int_equal(quire_profile_create(&p, g, NULL), QUIRE_OK);
    for (uint32_t t = 0; t < n_rows; t++) clustered_row(t, g->d_k, k + (size_t)t * g->d_k);
    for (uint32_t t = 0; t < n_rows; t += at_once) {
        uint32_t n = n_rows - t < at_once ? n_rows - t : at_once;
        REF_OK(quire_profile_observe_k(p, 0, 4 + t, k + (size_t)t * g->d_k, n));
    }
    for (uint32_t t = 0; t < 200; t++) {
        random_row(&seed, q, g->n_q_heads * g->d_k, 1);
        REF_OK(quire_profile_observe_q(p, 0, t, q, 1));
    }
    REF_OK(quire_profile_finish(p));
    free(k);
    free(q);
    return p;
}

static double error_with(const quire_calibration *cal)
{
    static quire_coded_row row;
    quire_coder coder;
    double sum = 0;
    REF_OK(quire_coder_init(&coder, quire_codec_get("c:r4"), QUIRE_K, D, 0));
    for (uint32_t t = 5000; t < 5300; t++) {
        float x[D], y[D];
        clustered_row(t, D, x);
        quire_encode_row(&coder, cal, x, &row, NULL);
        quire_decode_row(&coder, cal, &row, y);
        for (uint32_t i = 0; i < D; i++) y[i] = cal->q_rms[i] * (y[i] - x[i]);
        sum += energy(y, D);
    }
    return sum;
}

/* Rows that were not shown are coded with a quarter of the squared error that one mean leaves. */
static void clusters_are_found(void **state)
{
    (void)state;
    quire_profile *p = profile_of(&one_head, ROWS, ROWS);
    quire_calibration many = quire_profile_head(p, 0, 0), one = many;
    float mean[D] = {0};
    assert_int_equal(many.n_means, 15);
    for (uint32_t t = 0; t < ROWS; t++) {
        float x[D];
        clustered_row(t, D, x);
        for (uint32_t i = 0; i < D; i++) mean[i] += x[i] / ROWS;
    }
    one.mean = mean;
    one.n_means = 1;
    double with_many = error_with(&many), with_one = error_with(&one);
    if (!(with_many < 0.25 * with_one)) fail_msg("15 means: error %g, one: %g", with_many, with_one);
    /* The weights are those of the spread around the means, 0.3. */
    for (uint32_t i = 0; i < D; i++) {
        double weight = sqrt((double)many.q_rms[i] / 0.3);
        if (fabs((double)many.weight[i] / weight - 1) > 0.1)
            fail_msg("channel %u: weight %g, expected %g", i, (double)many.weight[i], weight);
    }
    quire_profile_destroy(p);
}

/* Neither the instruction set nor the chunks of rows change a bit. */
static void same_everywhere(void **state)
{
    (void)state;
    uint64_t digest = 0;
    const char *isa;
    for (uint32_t i = 0; (isa = quire_isa_at(i)); i++) {
        REF_OK(quire_isa_use(isa));
        quire_profile *p = profile_of(&one_head, ROWS, i ? 7 : ROWS);
        if (i) assert_true(quire_profile_digest(p) == digest);
        digest = quire_profile_digest(p);
        quire_profile_destroy(p);
    }
    REF_OK(quire_isa_use(NULL));
}

/* As many means as rows; what the rows are, f16 holds. Equal rows do no harm. */
static void few_rows(void **state)
{
    (void)state;
    const quire_geometry small = {
        .size = sizeof(quire_geometry), .n_layers = 1, .n_q_heads = 1, .n_kv_heads = 1, .d_k = 2, .d_v = 2};
    static const float k[] = {1, 2, 3, -4, 0.5f, 8};
    quire_profile *p = NULL;
    REF_OK(quire_profile_create(&p, &small, NULL));
    REF_OK(quire_profile_observe_k(p, 0, 4, k, 3));
    REF_OK(quire_profile_observe_q(p, 0, 4, k, 1));
    REF_OK(quire_profile_finish(p));
    quire_calibration c = quire_profile_head(p, 0, 0);
    assert_int_equal(c.n_means, 3);
    for (uint32_t r = 0; r < 3; r++) {
        uint32_t n = 0;
        for (uint32_t m = 0; m < 3; m++) n += !memcmp(c.mean + 2 * m, k + 2 * r, 2 * sizeof *k);
        assert_int_equal(n, 1);
    }
    quire_profile_destroy(p);

    REF_OK(quire_profile_create(&p, &small, NULL));
    for (uint32_t t = 0; t < 40; t++) REF_OK(quire_profile_observe_k(p, 0, 4, k, 1));
    REF_OK(quire_profile_observe_q(p, 0, 4, k, 1));
    REF_OK(quire_profile_finish(p));
    c = quire_profile_head(p, 0, 0);
    for (uint32_t m = 0; m < c.n_means; m++) assert_memory_equal(c.mean + 2 * m, k, 2 * sizeof *k);
    quire_profile_destroy(p);
}

/* Rows that come when the sample is full still count: half of 12,000 rows lie at -5, after the others. */
static void late_rows_count(void **state)
{
    (void)state;
    const quire_geometry small = {
        .size = sizeof(quire_geometry), .n_layers = 1, .n_q_heads = 1, .n_kv_heads = 1, .d_k = 1, .d_v = 1};
    quire_profile *p = NULL;
    uint64_t seed = 3;
    uint32_t n_late = 0;
    REF_OK(quire_profile_create(&p, &small, NULL));
    for (uint32_t t = 0; t < 12000; t++) {
        float x = (t < 6000 ? 5.0f : -5.0f) + random_normal(&seed);
        REF_OK(quire_profile_observe_k(p, 0, 4 + t, &x, 1));
    }
    REF_OK(quire_profile_observe_q(p, 0, 4, &(float){1}, 1));
    REF_OK(quire_profile_finish(p));
    quire_calibration c = quire_profile_head(p, 0, 0);
    for (uint32_t m = 0; m < c.n_means; m++) n_late += c.mean[m] < -3;
    assert_true(n_late >= 4 && n_late <= 11);
    quire_profile_destroy(p);
}

/* Shapes whose samples of 4,096 rows would be larger get fewer rows. */
static void memory_is_bounded(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        quire_geometry g = {sizeof(quire_geometry), .n_layers = i ? 1 : 16, .n_q_heads = i ? 15000 : 8,
                            .d_k = 128, .d_v = 1};
        g.n_kv_heads = g.n_q_heads;
        size_t channels = (size_t)g.n_layers * g.n_kv_heads * g.d_k;
        struct peak_alloc memory = {0};
        quire_allocator a = peak_allocator(&memory);
        quire_profile *p = NULL;
        REF_OK(quire_profile_create(&p, &g, &a));
        assert_true(memory.peak < ((size_t)64 << 20) + channels * (17 * sizeof(float) + 160) + (1 << 20));
        float *rows = ref_alloc((size_t)3 * g.n_q_heads * g.d_k, sizeof *rows);
        rows[0] = 1;
        REF_OK(quire_profile_observe_k(p, 0, 4, rows, 3));
        REF_OK(quire_profile_observe_q(p, 0, 4, rows, 1));
        size_t before = memory.peak;
        REF_OK(quire_profile_finish(p));
        assert_true(memory.peak == before); /* finish takes none */
        assert_int_equal(quire_profile_head(p, 0, 0).n_means, 3);
        free(rows);
        quire_profile_destroy(p);
        assert_int_equal(memory.blocks, 0);
    }
}

/* -------------------------------------------------------------------- files */

/* A file of one layer and head with the right hash. Version 1 has one mean and does not say so. */
static void write_file(const quire_calibration *c, uint32_t d, uint32_t version, uint32_t n_means,
                       kit_bytes *to)
{
    uint8_t head[28] = "QUIREPRF", tail[8];
    quire_hash h;
    quire_store32(head + 8, version);
    quire_store32(head + 12, 1);
    quire_store32(head + 16, 1);
    quire_store32(head + 20, d);
    quire_store32(head + 24, n_means);
    kit_write(to, head, version == 1 ? 24 : 28);
    kit_write(to, c->mean, (size_t)n_means * d * sizeof(float));
    kit_write(to, c->weight, d * sizeof(float));
    kit_write(to, c->q_rms, d * sizeof(float));
    quire_hash_begin(&h);
    quire_hash_add(&h, to->data, to->n);
    quire_store64(tail, quire_hash_end(&h));
    kit_write(to, tail, sizeof tail);
}

static void wrong_numbers_of_means(void **state)
{
    (void)state;
    static const float mean[40] = {1, 2}, ones[] = {1, 1};
    quire_calibration c = {.mean = mean, .weight = ones, .q_rms = ones};
    for (uint32_t n = 0; n < 20; n++) {
        kit_bytes bytes = {0};
        quire_profile *p = NULL;
        write_file(&c, 2, 2, n, &bytes);
        assert_int_equal(quire_profile_load(&p, kit_read, &bytes, NULL),
                         n < 1 || n > 15 ? QUIRE_EFORMAT : QUIRE_OK);
        if (p) assert_int_equal(quire_profile_head(p, 0, 0).n_means, n);
        quire_profile_destroy(p);
        kit_bytes_free(&bytes);
    }
}

/* Attention on rows coded with a profile, against softmax in double over the decoded rows. Gives how many means they use. */
static uint32_t attend_with(const quire_geometry *g, const quire_profile *profile, const char *policy)
{
    enum { TOKENS = 150, CHUNK = 20 };
    uint32_t d = g->d_k, first = TOKENS - CHUNK, n_means = 0, chunk = CHUNK;
    bool used[QUIRE_MEAN_SLOTS] = {false};
    const char codec[] = {policy[0], policy[1], policy[2], policy[3], 0};
    size_t row_bytes = quire_codec_row_bytes(codec, d);
    float *k = ref_alloc((size_t)TOKENS * d, sizeof *k), *v = ref_alloc((size_t)TOKENS * g->d_v, sizeof *v);
    float *q = ref_alloc((size_t)CHUNK * g->n_q_heads * d, sizeof *q);
    float *out = ref_alloc((size_t)CHUNK * g->n_q_heads * g->d_v, sizeof *out);
    double *expected = ref_alloc((size_t)CHUNK * g->n_q_heads * g->d_v, sizeof *expected);
    uint8_t *native = ref_alloc(TOKENS, row_bytes);
    uint64_t seed = 9;
    for (uint32_t t = 0; t < TOKENS; t++) clustered_row(t, d, k + (size_t)t * d);
    ref_normals(&seed, v, (size_t)TOKENS * g->d_v, 1);
    ref_normals(&seed, q, (size_t)CHUNK * g->n_q_heads * d, 0.3f);
    ref_cache cache = ref_open(g, policy, profile, NULL);
    quire_seq *seq = ref_seq(&cache, NULL);
    ref_step(&cache, &seq, &first, 1, k, g->v_in_k ? NULL : v, NULL, NULL);
    ref_step(&cache, &seq, &chunk, 1, k + (size_t)first * d, g->v_in_k ? NULL : v + (size_t)first * g->d_v, q,
             out);
    quire_rows_out rows = {.size = sizeof(quire_rows_out), .form = QUIRE_NATIVE, .data = native};
    REF_OK(quire_seq_export(seq, 0, QUIRE_K, 0, TOKENS, &rows));
    for (uint32_t t = 0; t < TOKENS; t++) used[native[(t + 1) * row_bytes - 2] & 15] = true;
    for (uint32_t m = 1; m < QUIRE_MEAN_SLOTS; m++) n_means += used[m];
    ref_export(seq, 0, QUIRE_K, 0, TOKENS, k);
    if (!g->v_in_k) ref_export(seq, 0, QUIRE_V, 0, TOKENS, v);
    ref_job job = {.n_q_heads = g->n_q_heads,
                   .n_kv_heads = 1,
                   .d_k = d,
                   .d_v = g->d_v,
                   .n_keys = TOKENS,
                   .n_queries = CHUNK,
                   .first_query = first,
                   .q = q,
                   .k = k,
                   .v = g->v_in_k ? NULL : v};
    ref_attend(&job, expected, NULL);
    double worst = ref_worst_error(out, expected, (size_t)CHUNK * g->n_q_heads, g->d_v, NULL);
    if (!(worst <= REF_BOUND)) fail_msg("%s with %s: error %g", policy, quire_isa_in_use(), worst);
    quire_seq_destroy(seq);
    ref_close(&cache);
    free(k), free(v), free(q), free(out), free(expected), free(native);
    return n_means;
}

static void version_1_is_read(void **state)
{
    (void)state;
    quire_profile *p = profile_of(&one_head, 50, 50), *old = NULL, *again = NULL;
    quire_calibration c = quire_profile_head(p, 0, 0);
    kit_bytes bytes = {0}, saved = {0};
    write_file(&c, D, 1, 1, &bytes);
    REF_OK(quire_profile_load(&old, kit_read, &bytes, NULL));
    assert_int_equal(bytes.at, bytes.n);
    quire_calibration one = quire_profile_head(old, 0, 0);
    assert_int_equal(one.n_means, 1);
    assert_memory_equal(one.mean, c.mean, D * sizeof(float));
    assert_memory_equal(one.weight, c.weight, D * sizeof(float));
    assert_memory_equal(one.q_rms, c.q_rms, D * sizeof(float));
    assert_int_equal(attend_with(&one_head, old, "c:r4/r4"), 1);

    /* Saved it becomes version 2, and stays the same profile. */
    REF_OK(quire_profile_save(old, kit_write, &saved));
    assert_int_equal(saved.n, bytes.n + 4);
    assert_int_equal(quire_load32(saved.data + 8), 2);
    REF_OK(quire_profile_load(&again, kit_read, &saved, NULL));
    assert_true(quire_profile_digest(again) == quire_profile_digest(old));
    assert_true(quire_profile_layer_digest(again, 0) == quire_profile_layer_digest(old, 0));

    for (size_t n = 0; n < bytes.n; n++) { /* cut off anywhere */
        kit_bytes part = {.data = bytes.data, .n = n};
        quire_profile *none = NULL;
        assert_int_equal(quire_profile_load(&none, kit_read, &part, NULL), QUIRE_EIO);
    }
    kit_bytes_free(&bytes);
    kit_bytes_free(&saved);
    quire_profile_destroy(again);
    quire_profile_destroy(old);
    quire_profile_destroy(p);
}

/* Scores, and values where V is a part of K, whose means have to be mixed too. */
static void many_means_at_once(void **state)
{
    (void)state;
    static const struct {
        uint32_t n_q_heads, d_k, d_v, v_in_k;
    } shapes[] = {{4, 64, 32, 0}, {1, 32, 32, 1}, {20, 80, 64, 1}, {16, 576, 512, 1}};
    const char *isa;
    for (size_t s = 0; s < COUNT(shapes); s++) {
        quire_geometry g = {sizeof(quire_geometry),    .n_layers = 1,        .n_q_heads = shapes[s].n_q_heads,
                            .n_kv_heads = 1,           .d_k = shapes[s].d_k, .d_v = shapes[s].d_v,
                            .v_in_k = shapes[s].v_in_k};
        quire_profile *p = profile_of(&g, 300, 300);
        for (uint32_t i = 0; (isa = quire_isa_at(i)); i++) {
            REF_OK(quire_isa_use(isa));
            assert_true(attend_with(&g, p, "c:r4/r4") >= 8);
            assert_true(attend_with(&g, p, "c:r8/r8") >= 8);
        }
        REF_OK(quire_isa_use(NULL));
        quire_profile_destroy(p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clusters_are_found), cmocka_unit_test(same_everywhere),
        cmocka_unit_test(few_rows),           cmocka_unit_test(late_rows_count),
        cmocka_unit_test(memory_is_bounded),  cmocka_unit_test(version_1_is_read),
        cmocka_unit_test(many_means_at_once), cmocka_unit_test(wrong_numbers_of_means),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
