/* SPDX-License-Identifier: MIT */
/* Hostile values: nothing that is stored or decoded is ever NaN or infinite, and what was changed is counted. */
#include "codec_rows.h"

#include <float.h>

#define MOST_D 128u

/* 80 has a short last group of most codecs; tv takes powers of two. */
static uint32_t D = 80;

static bool make_hygiene_coder(quire_coder *coder, uint32_t index, quire_side side)
{
    D = quire_codec_at(index)->flags & QUIRE_CODEC_MLX_VLM ? MOST_D : 80;
    return make_coder(coder, index, side, D);
}

static void check_finite(const quire_coder *coder, const quire_calibration *cal, const quire_coded_row *row,
                         const char *what)
{
    const char *name = coder->codec->info.name;
    float y[QUIRE_MAX_D];
    for (uint32_t g = 0; g < coder->n_groups; g++) {
        if (!isfinite(quire_f16_to_f32(row->scale[g]))) fail_msg("%s %s: scale %u not finite", name, what, g);
        if (coder->codec->has_bias && !isfinite(quire_f16_to_f32(row->bias[g])))
            fail_msg("%s %s: bias %u not finite", name, what, g);
    }
    quire_expand_row(coder, row, y);
    for (uint32_t i = 0; i < coder->d; i++)
        if (!isfinite(y[i])) fail_msg("%s %s: expanded value %u is %g", name, what, i, (double)y[i]);
    quire_decode_row(coder, cal, row, y);
    /* The largest finite floats may add up to infinity in a rotation; no float codec rotates. */
    for (uint32_t i = 0; i < coder->d; i++)
        if (!isfinite(y[i])) fail_msg("%s %s: decoded value %u is %g", name, what, i, (double)y[i]);
}

static float largest(const quire_codec_info *info)
{
    if (!strcmp(info->name, "f32")) return FLT_MAX;
    return !strcmp(info->name, "bf16") ? QUIRE_BF16_MAX : 65504.0f;
}

/* A hostile row and what counting must give. Scales may saturate too where the values reach the limit. */
typedef struct hostile {
    const char *what;
    uint64_t nan, saturated;
    bool reaches_limit;
} hostile;

static hostile make_hostile(uint32_t kind, float limit, float *x)
{
    uint64_t seed = kind + 1;
    random_row(&seed, x, D, 1);
    switch (kind) {
    case 0:
        x[3] = NAN;
        x[79] = -NAN;
        return (hostile){"NaN", 2, 0, false};
    case 1:
        x[0] = INFINITY;
        x[64] = -INFINITY;
        return (hostile){"infinity", 0, 2, true};
    case 2:
        for (uint32_t i = 0; i < D; i++) x[i] = NAN;
        return (hostile){"all NaN", D, 0, false};
    case 3:
        for (uint32_t i = 0; i < D; i++) x[i] = INFINITY;
        return (hostile){"all infinite", 0, D, true};
    case 4:
        for (uint32_t i = 0; i < D; i++) x[i] = i % 2 ? -INFINITY : INFINITY;
        return (hostile){"both infinities", 0, D, true};
    case 5:
        x[7] = limit;
        x[8] = -limit;
        return (hostile){"at the limit", 0, 0, true};
    case 6:
        for (uint32_t i = 0; i < D; i++) x[i] = i % 3 ? limit : -limit;
        return (hostile){"all at the limit", 0, 0, true};
    case 7:
        for (uint32_t i = 0; i < D; i++) x[i] *= 1e-40f;
        return (hostile){"denormal", 0, 0, false};
    case 8:
        for (uint32_t i = 0; i < D; i++) x[i] = i % 2 ? 1e-45f : 0;
        return (hostile){"smallest denormal", 0, 0, false};
    case 9:
        for (uint32_t i = 0; i < D; i++) x[i] *= 1e-20f;
        return (hostile){"squares underflow", 0, 0, false};
    case 10:
        for (uint32_t i = 0; i < D; i++) x[i] = i % 2 ? -0.0f : 0.0f;
        return (hostile){"zero", 0, 0, false};
    case 11:
        for (uint32_t i = 0; i < D; i++) x[i] = i < 40 ? 3e-39f : -limit;
        return (hostile){"denormal beside the limit", 0, 0, true};
    case 12:
        x[0] = nextafterf(limit, INFINITY);
        x[1] = NAN;
        return (hostile){"just over the limit", 1, 1, true};
    default: return (hostile){0};
    }
}

static void hostile_rows(const quire_coder *coder, const quire_calibration *cal)
{
    const quire_codec_info *info = &coder->codec->info;
    static quire_coded_row row, again;
    float x[MOST_D];
    for (uint32_t kind = 0; make_hostile(kind, largest(info), x).what; kind++) {
        hostile h = make_hostile(kind, largest(info), x);
        quire_counts counts = {.size = sizeof(quire_counts)};
        memset(&row, 0xff, sizeof row);
        quire_encode_row(coder, cal, x, &row, &counts);
        check_finite(coder, cal, &row, h.what);
        /* A rotated row may be 4 times larger (16 divides D), a weighted one w times: then scales may saturate. */
        uint64_t scales = cal || (h.reaches_limit && (info->flags & QUIRE_CODEC_ROTATED))
                              ? 2 * (uint64_t)coder->n_groups
                              : 0;
        if (counts.nan != h.nan || counts.saturated < h.saturated || counts.saturated > h.saturated + scales)
            fail_msg("%s %s: counted %llu NaN and %llu saturated, expected %llu and %llu", info->name, h.what,
                     (unsigned long long)counts.nan, (unsigned long long)counts.saturated,
                     (unsigned long long)h.nan, (unsigned long long)h.saturated);
        if (counts.recoded) fail_msg("%s %s: recoded is not for encoding", info->name, h.what);
        quire_encode_row(coder, cal, x, &again, NULL); /* counts may be NULL */
        if (!same_coded(coder, &row, &again)) fail_msg("%s %s: not the same twice", info->name, h.what);
    }
}

static void hostile_values_in_every_codec(void **state)
{
    (void)state;
    static test_calibration c;
    const quire_calibration *cal = make_calibration(&c, 1);
    for (uint32_t i = 0; i < quire_codec_count(); i++) {
        for (int side = QUIRE_K; side <= QUIRE_V; side++) {
            quire_coder coder;
            if (!make_hygiene_coder(&coder, i, (quire_side)side)) continue;
            hostile_rows(&coder, NULL);
            if (side == QUIRE_K) hostile_rows(&coder, cal);
        }
    }
}

/* The largest weights, means and values together. */
static void extreme_calibration(void **state)
{
    (void)state;
    static test_calibration c;
    const quire_calibration *cal = make_calibration(&c, 2);
    static const float weights[] = {1e-4f, 1e4f}, errors[] = {1e-6f, FLT_MAX};
    for (uint32_t i = 0; i < quire_codec_count(); i++) {
        quire_coder coder;
        if (!(quire_codec_at(i)->flags & QUIRE_CODEC_CALIBRATED)) continue;
        make_hygiene_coder(&coder, i, QUIRE_K);
        for (int w = 0; w < 4; w++) {
            for (uint32_t j = 0; j < D; j++) {
                c.weight[j] = w == 3 ? weights[j % 2] : weights[w % 2];
                c.q_rms[j] = errors[w / 2];
            }
            for (uint32_t j = 0; j < COUNT(c.mean); j++) c.mean[j] = j % 3 ? 65504.0f : -65504.0f;
            hostile_rows(&coder, cal);
        }
    }
}

/* Rows of tiny numbers decode to about themselves or to zero, never to something larger. */
static void tiny_rows_stay_tiny(void **state)
{
    (void)state;
    static const float sizes[] = {1e-45f, 1e-40f, 1e-37f, 1e-30f, 1e-20f, 1e-12f, 1e-8f};
    for (uint32_t i = 0; i < quire_codec_count(); i++) {
        quire_coder coder;
        make_hygiene_coder(&coder, i, QUIRE_K);
        for (size_t s = 0; s < COUNT(sizes); s++) {
            static quire_coded_row row;
            float x[MOST_D], y[MOST_D];
            uint64_t seed = 9;
            random_row(&seed, x, D, sizes[s]);
            quire_encode_row(&coder, NULL, x, &row, NULL);
            quire_decode_row(&coder, NULL, &row, y);
            /* half of the smallest f16 scale, times the largest code */
            double slack = 0x1p-24 * 255;
            for (uint32_t j = 0; j < D; j++)
                if (!(fabs((double)y[j]) <= slack + 8 * (double)sizes[s]))
                    fail_msg("%s size %g: value %u is %g", coder.codec->info.name, (double)sizes[s], j,
                             (double)y[j]);
        }
    }
}

/* Values of the limit survive. 1 %: MLX's rule cuts one end of a symmetric range by one code of 128. */
static void saturated_values_are_the_limit(void **state)
{
    (void)state;
    D = 80;
    const char *names[] = {"f16", "bf16", "f32", "a8g32", "q8_0"};
    for (size_t i = 0; i < COUNT(names); i++) {
        quire_coder coder;
        static quire_coded_row row;
        float x[MOST_D], y[MOST_D];
        assert_int_equal(quire_coder_init(&coder, quire_codec_get(names[i]), QUIRE_K, D, 0), QUIRE_OK);
        for (uint32_t j = 0; j < D; j++) x[j] = j % 2 ? INFINITY : -INFINITY;
        quire_encode_row(&coder, NULL, x, &row, NULL);
        quire_decode_row(&coder, NULL, &row, y);
        double limit = (double)largest(&coder.codec->info);
        for (uint32_t j = 0; j < D; j++)
            if (fabs((double)y[j] / (j % 2 ? limit : -limit) - 1) > 1e-2)
                fail_msg("%s: value %u is %g", names[i], j, (double)y[j]);
    }
}

/* A constant row of the largest value, rotated: one value 32 times as large. Its scale does not fit, nor its bias. */
static void saturated_scales_are_counted(void **state)
{
    (void)state;
    const struct {
        const char *name;
        uint64_t saturated;
    } cases[] = {{"h:q8_0", 0}, {"h:q4_0", 1},  {"h:iq4_nl", 0},
                 {"h:q4_1", 1}, {"h:a4g64", 2}, {"h:a8g64", 1}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        quire_coder coder;
        static quire_coded_row row;
        float x[QUIRE_MAX_D];
        quire_counts counts = {.size = sizeof(quire_counts)};
        assert_int_equal(quire_coder_init(&coder, quire_codec_get(cases[i].name), QUIRE_K, QUIRE_MAX_D, 0),
                         QUIRE_OK);
        for (uint32_t j = 0; j < QUIRE_MAX_D; j++) x[j] = 65504;
        quire_encode_row(&coder, NULL, x, &row, &counts);
        if (counts.saturated != cases[i].saturated || counts.nan)
            fail_msg("%s: %llu counted", cases[i].name, (unsigned long long)counts.saturated);
    }
}

/* Blocks whose scale has no reciprocal: ggml's conversion to integers is undefined there, ours gives zeros. */
static void denormal_ggml_blocks_are_zero(void **state)
{
    (void)state;
    D = 80;
    const struct {
        const char *name;
        uint8_t zero;
    } cases[] = {{"q8_0", 128}, {"q5_0", 16}, {"q4_0", 8}, {"q5_1", 0}, {"q4_1", 0}, {"iq4_nl", 0}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        quire_coder coder;
        static quire_coded_row row;
        float x[MOST_D];
        uint64_t seed = 6;
        random_row(&seed, x, D, 1e-40f);
        assert_int_equal(quire_coder_init(&coder, quire_codec_get(cases[i].name), QUIRE_K, D, 0), QUIRE_OK);
        quire_encode_row(&coder, NULL, x, &row, NULL);
        for (uint32_t j = 0; j < D; j++)
            if (row.code[j] != cases[i].zero) fail_msg("%s: code %u is %u", cases[i].name, j, row.code[j]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hostile_values_in_every_codec), cmocka_unit_test(extreme_calibration),
        cmocka_unit_test(tiny_rows_stay_tiny),           cmocka_unit_test(saturated_values_are_the_limit),
        cmocka_unit_test(saturated_scales_are_counted),  cmocka_unit_test(denormal_ggml_blocks_are_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
