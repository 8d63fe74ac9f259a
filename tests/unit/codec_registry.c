/* SPDX-License-Identifier: MIT */
/* The registry, and every codec at every kind of head size. */
#include "codec_rows.h"

static void names_are_found(void **state)
{
    (void)state;
    assert_int_equal(quire_codec_count(), 71);
    for (uint32_t i = 0; i < quire_codec_count(); i++) {
        const quire_codec_info *info = quire_codec_at(i);
        assert_ptr_equal(quire_codec_find(info->name), info); /* also: no name twice */
        assert_ptr_equal(&quire_codec_get(info->name)->info, info);
        assert_true(strlen(info->summary) > 10);
    }
    assert_null(quire_codec_at(quire_codec_count()));
    assert_null(quire_codec_at(UINT32_MAX));
    const char *unknown[] = {"",        "a4",    "a4g64 ", "A4G64", "h:r4", "h:f16",
                             "c:a4g64", "c:tq4", "c:c:r4", "r7",    "q4_2"};
    for (size_t i = 0; i < COUNT(unknown); i++)
        if (quire_codec_find(unknown[i])) fail_msg("\"%s\" is found", unknown[i]);
    assert_null(quire_codec_find(NULL));
}

static void names_say_what_they_are(void **state)
{
    (void)state;
    const struct {
        const char *name;
        uint32_t bits, group, flags;
    } expected[] = {
        {"f32", 32, 0, QUIRE_CODEC_FLOAT},
        {"f16", 16, 0, QUIRE_CODEC_FLOAT},
        {"bf16", 16, 0, QUIRE_CODEC_FLOAT},
        {"a2g32", 2, 32, QUIRE_CODEC_MLX},
        {"a3g128", 3, 128, QUIRE_CODEC_MLX},
        {"a8g64", 8, 64, QUIRE_CODEC_MLX},
        {"q8_0", 8, 32, QUIRE_CODEC_GGML},
        {"q5_1", 5, 32, QUIRE_CODEC_GGML},
        {"q5_0", 5, 32, QUIRE_CODEC_GGML},
        {"q4_1", 4, 32, QUIRE_CODEC_GGML},
        {"q4_0", 4, 32, QUIRE_CODEC_GGML},
        {"iq4_nl", 4, 32, QUIRE_CODEC_GGML},
        {"r2", 2, 0, QUIRE_CODEC_ROTATED},
        {"r8", 8, 0, QUIRE_CODEC_ROTATED},
        {"tq3", 3, 0, QUIRE_CODEC_ROTATED},
        {"tv2", 2, 0, QUIRE_CODEC_ROTATED | QUIRE_CODEC_MLX_VLM},
        {"tv6", 6, 0, QUIRE_CODEC_ROTATED | QUIRE_CODEC_MLX_VLM},
        {"c:r6", 6, 0, QUIRE_CODEC_ROTATED | QUIRE_CODEC_CALIBRATED},
        {"c:r8", 8, 0, QUIRE_CODEC_ROTATED | QUIRE_CODEC_CALIBRATED},
        {"h:a4g64", 4, 64, QUIRE_CODEC_ROTATED},
        {"h:iq4_nl", 4, 32, QUIRE_CODEC_ROTATED},
    };
    for (size_t i = 0; i < COUNT(expected); i++) {
        const quire_codec_info *info = quire_codec_find(expected[i].name);
        if (!info) fail_msg("%s is missing", expected[i].name);
        if (info->bits != expected[i].bits || info->group != expected[i].group ||
            info->flags != expected[i].flags)
            fail_msg("%s: bits %u group %u flags %u", info->name, info->bits, info->group, info->flags);
    }
}

static void sizes_are_counted(void **state)
{
    (void)state;
    const struct {
        const char *name;
        uint32_t d;
        size_t bytes;
        double bits;
    } expected[] = {
        {"f32", 33, 132, 32 * 48.0 / 33},
        {"bf16", 128, 256, 16},
        {"a4g64", 128, 72, 4.5},
        {"a4g64", 80, 48, 4.8},
        {"a3g32", 64, 32, 4},
        {"a8g128", 128, 132, 8.25},
        {"q8_0", 128, 136, 8.5},
        {"q5_1", 64, 48, 6},
        {"iq4_nl", 64, 36, 4.5},
        {"q4_0", 80, 46, 4.6},
        {"r4", 64, 34, 4.25},
        {"r3", 256, 98, 3.0625},
        {"r5", 1, 6, (16 * 5 + 16) / 1.0},
        {"c:r4", 128, 66, 4.125},
        {"h:q8_0", 32, 34, 8.5},
        {"tq2", 1024, 258, 2.015625},
        {"h:a6g32", 96, 84, 7},
    };
    for (size_t i = 0; i < COUNT(expected); i++) {
        size_t bytes = quire_codec_row_bytes(expected[i].name, expected[i].d);
        double bits = quire_codec_bits(expected[i].name, expected[i].d);
        if (bytes != expected[i].bytes || fabs(bits - expected[i].bits) > 1e-9)
            fail_msg("%s d %u: %zu bytes and %g bits, expected %zu and %g", expected[i].name, expected[i].d,
                     bytes, bits, expected[i].bytes, expected[i].bits);
    }
    assert_int_equal(quire_codec_row_bytes("r9", 64), 0);
    assert_int_equal(quire_codec_row_bytes("r4", 0), 0);
    assert_int_equal(quire_codec_row_bytes("r4", 1025), 0);
    assert_true(quire_codec_bits("r9", 64) == 0);
}

static void coders_check_their_arguments(void **state)
{
    (void)state;
    quire_coder coder;
    const quire_codec *r4 = quire_codec_get("r4"), *c = quire_codec_get("c:r4"),
                      *h = quire_codec_get("h:q4_0"), *tv = quire_codec_get("tv4");
    assert_int_equal(quire_coder_init(&coder, NULL, QUIRE_K, 64, 0), QUIRE_EINVAL);
    assert_int_equal(quire_coder_init(&coder, r4, QUIRE_K, 0, 0), QUIRE_EINVAL);
    assert_int_equal(quire_coder_init(&coder, r4, QUIRE_K, 1025, 0), QUIRE_EINVAL);
    assert_int_equal(quire_coder_init(&coder, r4, QUIRE_K, 64, 65), QUIRE_EINVAL);
    assert_int_equal(quire_coder_init(&coder, r4, QUIRE_V, 64, 64), QUIRE_EINVAL);
    assert_int_equal(quire_coder_init(&coder, r4, (quire_side)2, 64, 0), QUIRE_EINVAL);
    assert_int_equal(quire_coder_init(&coder, c, QUIRE_V, 64, 0), QUIRE_EUNSUPPORTED);
    static const uint32_t no_tv[] = {1, 8, 15, 17, 80, 96, 511, 513, 576, 1024};
    for (size_t i = 0; i < COUNT(no_tv); i++) {
        assert_int_equal(quire_coder_init(&coder, tv, QUIRE_K, no_tv[i], 0), QUIRE_EUNSUPPORTED);
        assert_int_equal(quire_codec_row_bytes("tv4", no_tv[i]), 0);
    }
    assert_int_equal(quire_coder_init(&coder, tv, QUIRE_K, 64, 32), QUIRE_EUNSUPPORTED);
    /* The codec that a coder is bound to finds that of another head size. */
    assert_int_equal(quire_coder_init(&coder, tv, QUIRE_K, 64, 0), QUIRE_OK);
    const quire_codec *of_64 = coder.codec;
    assert_int_equal(quire_coder_init(&coder, of_64, QUIRE_K, 128, 0), QUIRE_OK);
    assert_ptr_not_equal(coder.codec, of_64);
    assert_string_equal(coder.codec->info.name, "tv4");

    const struct {
        const quire_codec *codec;
        quire_side side;
        uint32_t d, d_v, block;
    } blocks[] = {
        {r4, QUIRE_K, 128, 0, 128},  {r4, QUIRE_V, 80, 0, 16},
        {r4, QUIRE_K, 576, 512, 64}, {r4, QUIRE_K, 1024, 0, 1024},
        {r4, QUIRE_K, 33, 0, 1},     {c, QUIRE_K, 128, 32, 32},
        {tv, QUIRE_K, 128, 0, 128},  {tv, QUIRE_V, 512, 0, 512},
        {tv, QUIRE_K, 64, 64, 64},   {h, QUIRE_K, 256, 0, 256},
        {h, QUIRE_V, 256, 0, 64},    {h, QUIRE_V, 96, 0, 32},
        {h, QUIRE_K, 576, 512, 64},  {h, QUIRE_K, 192, 0, 64},
        {h, QUIRE_K, 96, 48, 16},    {quire_codec_get("q4_0"), QUIRE_K, 128, 0, 1},
    };
    for (size_t i = 0; i < COUNT(blocks); i++) {
        assert_int_equal(
            quire_coder_init(&coder, blocks[i].codec, blocks[i].side, blocks[i].d, blocks[i].d_v), QUIRE_OK);
        if (coder.block != blocks[i].block)
            fail_msg("%s side %d d %u d_v %u: block %u", blocks[i].codec->info.name, (int)blocks[i].side,
                     blocks[i].d, blocks[i].d_v, coder.block);
    }
}

static uint64_t hash_of(const char *name, quire_side side, uint32_t d, uint32_t d_v)
{
    quire_coder coder;
    quire_hash h;
    assert_int_equal(quire_coder_init(&coder, quire_codec_get(name), side, d, d_v), QUIRE_OK);
    quire_hash_begin(&h);
    quire_coder_hash(&coder, &h);
    return quire_hash_end(&h);
}

static void hashes_tell_coders_apart(void **state)
{
    (void)state;
    uint64_t r4 = hash_of("r4", QUIRE_K, 128, 0);
    assert_true(r4 == hash_of("r4", QUIRE_K, 128, 0));
    assert_true(r4 != hash_of("r5", QUIRE_K, 128, 0));
    assert_true(r4 != hash_of("tq4", QUIRE_K, 128, 0));
    assert_true(r4 != hash_of("tv4", QUIRE_K, 128, 0));
    assert_true(r4 != hash_of("r4", QUIRE_V, 128, 0));
    assert_true(r4 != hash_of("r4", QUIRE_K, 64, 0));
    assert_true(r4 != hash_of("r4", QUIRE_K, 128, 32));
}

/* The largest relative error that rows of normal numbers may have, generous: it shall find rubbish. */
static double error_bound(const quire_codec_info *info)
{
    static const double bound[] = {0, 0, 0.7, 0.2, 0.06, 0.02, 0.006, 0, 0.0008};
    if (info->flags & QUIRE_CODEC_FLOAT) return 1e-4;
    return bound[info->bits];
}

/* Encodes the same row into differently filled memory, and decodes it. */
static void check_row(const quire_coder *coder, const quire_calibration *cal, const float *x, uint32_t seed)
{
    const char *name = coder->codec->info.name;
    static quire_coded_row a, b;
    float y[QUIRE_MAX_D];
    memset(&a, 0, sizeof a);
    memset(&b, 0xff, sizeof b);
    quire_encode_row(coder, cal, x, &a, NULL);
    quire_encode_row(coder, cal, x, &b, NULL);
    if (!same_coded(coder, &a, &b)) fail_msg("%s d %u row %u: not the same twice", name, coder->d, seed);
    for (uint32_t i = 0; coder->n_groups && i < coder->d_pad; i++)
        if (i < coder->d ? a.code[i] >> coder->codec->info.bits : a.code[i])
            fail_msg("%s d %u row %u: code %u is %u", name, coder->d, seed, i, a.code[i]);
    for (uint32_t i = 0; i < QUIRE_MAX_D; i++) y[i] = -77;
    quire_decode_row(coder, cal, &a, y);
    for (uint32_t i = coder->d; i < QUIRE_MAX_D; i++)
        if (y[i] != -77) fail_msg("%s d %u: decode writes past the row", name, coder->d);
    double error = squared_distance(x, y, coder->d) / energy(x, coder->d);
    if (!(error < error_bound(&coder->codec->info)))
        fail_msg("%s side %d d %u row %u: squared error %g", name, (int)coder->side, coder->d, seed, error);
}

static void every_codec_at_every_head_size(void **state)
{
    (void)state;
    for (uint32_t c = 0; c < quire_codec_count(); c++) {
        for (size_t s = 0; s < COUNT(head_sizes); s++) {
            for (int side = QUIRE_K; side <= QUIRE_V; side++) {
                quire_coder coder;
                if (!make_coder(&coder, c, (quire_side)side, head_sizes[s])) continue;
                for (uint32_t row = 0; row < 3; row++) {
                    uint64_t seed = row + 1;
                    float x[QUIRE_MAX_D];
                    random_row(&seed, x, coder.d, row ? 1.0f : 0.01f);
                    x[0] += 0.01f; /* no row of one tiny number */
                    check_row(&coder, NULL, x, row);
                }
            }
        }
    }
}

/* Blocks of rows and d = 1 would hide what a shorter last group does to the groups before it: nothing. */
static void last_group_stands_alone(void **state)
{
    (void)state;
    const char *names[] = {"a4g64", "a3g32", "q4_0", "q5_1", "iq4_nl", "q8_0"};
    float x[QUIRE_MAX_D];
    uint64_t seed = 5;
    random_row(&seed, x, 96, 1);
    for (size_t i = 0; i < COUNT(names); i++) {
        quire_coder whole, cut;
        static quire_coded_row a, b;
        assert_int_equal(quire_coder_init(&whole, quire_codec_get(names[i]), QUIRE_V, 64, 0), QUIRE_OK);
        assert_int_equal(quire_coder_init(&cut, quire_codec_get(names[i]), QUIRE_V, 77, 0), QUIRE_OK);
        quire_encode_row(&whole, NULL, x, &a, NULL);
        quire_encode_row(&cut, NULL, x, &b, NULL);
        assert_int_equal(cut.n_groups, whole.n_groups + 1);
        assert_memory_equal(a.code, b.code, 64);
        assert_memory_equal(a.scale, b.scale, 2 * whole.n_groups);
        /* and its scale comes from its own 13 values */
        float own[32];
        memcpy(own, x + 64, 13 * sizeof *own);
        assert_int_equal(quire_coder_init(&whole, quire_codec_get(names[i]), QUIRE_V, 13, 0), QUIRE_OK);
        quire_encode_row(&whole, NULL, own, &a, NULL);
        assert_memory_equal(a.code, b.code + 64, 13);
        assert_int_equal(a.scale[0], b.scale[cut.n_groups - 1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_found),          cmocka_unit_test(names_say_what_they_are),
        cmocka_unit_test(sizes_are_counted),        cmocka_unit_test(coders_check_their_arguments),
        cmocka_unit_test(hashes_tell_coders_apart), cmocka_unit_test(every_codec_at_every_head_size),
        cmocka_unit_test(last_group_stands_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
