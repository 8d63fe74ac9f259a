/* SPDX-License-Identifier: MIT */
/* Rotations and calibration: what is done to a row is undone in the query and in the output. */
#include "codec_rows.h"

static void rotation_is_orthogonal(void **state)
{
    (void)state;
    const char *names[] = {"r4", "tq2", "c:r8", "h:q4_0", "h:a4g64", "tv4"};
    for (size_t c = 0; c < COUNT(names); c++) {
        for (size_t s = 0; s < COUNT(head_sizes); s++) {
            for (int side = QUIRE_K; side <= QUIRE_V; side++) {
                quire_coder coder;
                uint32_t d = head_sizes[s];
                if (quire_coder_init(&coder, quire_codec_get(names[c]), (quire_side)side, d, 0) != QUIRE_OK)
                    continue;
                uint64_t seed = d;
                float x[QUIRE_MAX_D], y[QUIRE_MAX_D], u[QUIRE_MAX_D];
                random_row(&seed, x, d, 1);
                random_row(&seed, y, d, 1);
                double before = 0, after = 0;
                for (uint32_t i = 0; i < d; i++) before += (double)x[i] * (double)y[i];
                memcpy(u, x, d * sizeof *u);
                quire_rotate(&coder, u);
                quire_rotate(&coder, y);
                for (uint32_t i = 0; i < d; i++) after += (double)u[i] * (double)y[i];
                if (fabs(before - after) > 1e-4 * sqrt((double)d))
                    fail_msg("%s side %d d %u: dot %g becomes %g", names[c], side, d, before, after);
                if (coder.block > 1 && squared_distance(u, x, d) < 0.1 * energy(x, d))
                    fail_msg("%s side %d d %u: not rotated at all", names[c], side, d);
                quire_unrotate(&coder, u);
                if (squared_distance(u, x, d) > 1e-11 * energy(x, d))
                    fail_msg("%s side %d d %u: does not come back", names[c], side, d);
            }
        }
    }
}

/* The signs and the order of the transform, from their definition. */
static void rotation_by_definition(void **state)
{
    (void)state;
    uint64_t mixed = 0x9e3779b97f4a7c15u; /* random_bits() is splitmix64 */
    float sign[QUIRE_MAX_D];
    for (uint32_t i = 0; i < QUIRE_MAX_D; i++) sign[i] = random_bits(&mixed) & 1 ? -1.0f : 1.0f;
    const struct {
        const char *name;
        quire_side side;
        uint32_t d, block;
    } cases[] = {{"r4", QUIRE_K, 1024, 1024},
                 {"r4", QUIRE_V, 80, 16},
                 {"h:q4_0", QUIRE_K, 128, 128},
                 {"h:q4_0", QUIRE_V, 128, 64},
                 {"r3", QUIRE_K, 33, 1}};
    for (size_t c = 0; c < COUNT(cases); c++) {
        quire_coder coder;
        uint32_t d = cases[c].d, n = cases[c].block;
        assert_int_equal(quire_coder_init(&coder, quire_codec_get(cases[c].name), cases[c].side, d, 0),
                         QUIRE_OK);
        bool is_signed = cases[c].name[0] == 'r';
        for (uint32_t j = 0; j < d; j += 5) { /* column j of the matrix */
            float x[QUIRE_MAX_D] = {0};
            x[j] = 1;
            quire_rotate(&coder, x);
            for (uint32_t i = 0; i < d; i++) {
                double expected = 0;
                if (i / n == j / n) {
                    uint32_t ones = 0;
                    for (uint32_t both = i % n & j % n; both; both &= both - 1) ones++;
                    expected = (ones % 2 ? -1 : 1) * (is_signed ? (double)sign[j] : 1) / sqrt((double)n);
                }
                if (fabs((double)x[i] - expected) > 1e-6)
                    fail_msg("%s d %u: row %u column %u is %g, not %g", cases[c].name, d, i, j, (double)x[i],
                             expected);
            }
        }
    }
}

/* score = prepared query . expanded row (+ mean score) = query . decoded row */
static void query_meets_row(void **state)
{
    (void)state;
    static test_calibration c;
    static quire_coded_row row;
    const quire_calibration *cal = make_calibration(&c, 3);
    uint32_t n_rows[QUIRE_MEAN_SLOTS] = {0};
    for (uint32_t index = 0; index < quire_codec_count(); index++) {
        for (size_t s = 0; s < COUNT(head_sizes); s++) {
            for (uint32_t r = 0; r < 4; r++) {
                quire_coder coder;
                uint32_t d = head_sizes[s];
                uint64_t seed = d * 7 + r;
                float k[QUIRE_MAX_D], q[QUIRE_MAX_D], y[QUIRE_MAX_D], prepared[QUIRE_MAX_D];
                float mean_score[QUIRE_MEAN_SLOTS];
                if (!make_coder(&coder, index, QUIRE_K, d)) continue;
                random_row(&seed, k, d, 1);
                random_row(&seed, q, d, 1);
                add_mean(cal, d, r * 5 + (uint32_t)s, k);
                const quire_calibration *used = r < 3 ? cal : NULL;
                quire_encode_row(&coder, used, k, &row, NULL);
                quire_prepare_query(&coder, used, q, prepared, mean_score);
                quire_expand_row(&coder, &row, y);
                uint32_t mean = quire_row_mean(&coder, &row);
                const float *m = quire_mean_at(cal, d, mean);
                double score = (double)mean_score[mean], direct = 0, size = 0;
                for (uint32_t i = 0; i < d; i++) score += (double)prepared[i] * (double)y[i];
                quire_decode_row(&coder, used, &row, y);
                for (uint32_t i = 0; i < d; i++) {
                    direct += (double)q[i] * (double)y[i];
                    size += (double)q[i] * (double)q[i] *
                            ((double)y[i] * (double)y[i] + (m ? (double)m[i] * (double)m[i] : 0));
                }
                if (fabs(score - direct) > 1e-5 * sqrt(size))
                    fail_msg("%s d %u row %u: score %g, directly %g", coder.codec->info.name, d, r, score,
                             direct);
                if (mean_score[0] != 0 || (!used && (mean || mean_score[1] != 0)))
                    fail_msg("%s: a mean from nowhere", coder.codec->info.name);
                if (used && coder.codec->info.flags & QUIRE_CODEC_CALIBRATED) n_rows[mean]++;

                memcpy(y, prepared, d * sizeof *y); /* in place gives the same */
                quire_prepare_query(&coder, used, q, q, mean_score);
                assert_memory_equal(q, y, d * sizeof *q);
            }
        }
    }
    for (uint32_t i = 0; i < QUIRE_MEAN_SLOTS; i++) assert_true(n_rows[i] > 10); /* every mean was seen */
}

/* finish(sum of p y) = sum of p decoded, for V and for V inside K */
static void values_are_finished(void **state)
{
    (void)state;
    enum { N = 5 };
    static test_calibration c;
    static quire_coded_row row;
    const quire_calibration *cal = make_calibration(&c, 4);
    for (uint32_t index = 0; index < quire_codec_count(); index++) {
        for (size_t s = 0; s < COUNT(head_sizes); s++) {
            for (int side = QUIRE_K; side <= QUIRE_V; side++) {
                quire_coder coder;
                uint32_t d = head_sizes[s];
                if (!make_coder(&coder, index, (quire_side)side, d)) continue;
                float acc[QUIRE_MAX_D] = {0}, direct[QUIRE_MAX_D] = {0};
                float mean_sum[QUIRE_MEAN_SLOTS] = {0};
                uint64_t seed = d * 11 + index;
                for (uint32_t r = 0; r < N; r++) {
                    float x[QUIRE_MAX_D], p = (float)random_uniform(&seed);
                    random_row(&seed, x, d, 1);
                    add_mean(cal, d, r * 3, x);
                    quire_encode_row(&coder, cal, x, &row, NULL);
                    quire_expand_row(&coder, &row, x);
                    for (uint32_t i = 0; i < d; i++) acc[i] += p * x[i];
                    mean_sum[quire_row_mean(&coder, &row)] += p;
                    quire_decode_row(&coder, cal, &row, x);
                    for (uint32_t i = 0; i < d; i++) direct[i] += p * x[i];
                }
                quire_finish_value(&coder, cal, acc, mean_sum);
                if (squared_distance(acc, direct, d) > 1e-9 * (energy(direct, d) + d))
                    fail_msg("%s side %d d %u: value differs", coder.codec->info.name, side, d);
            }
        }
    }
}

/* The row loses the mean that leaves least of it, counted by channels in double; none, if all leave more. */
static void calibration_chooses(void **state)
{
    (void)state;
    static test_calibration c;
    static quire_coded_row row;
    const quire_calibration *cal = make_calibration(&c, 6);
    quire_coder coder;
    enum { D = 128, ROWS = 320 };
    assert_int_equal(quire_coder_init(&coder, quire_codec_get("c:r4"), QUIRE_K, D, 0), QUIRE_OK);
    for (uint32_t r = 0; r < ROWS; r++) {
        uint64_t seed = r;
        float x[D];
        double rest[QUIRE_MEAN_SLOTS] = {0};
        uint32_t nearest = 0;
        /* from rows that have nothing of a mean to rows that have all of it */
        for (uint32_t i = 0; i < D; i++)
            x[i] = random_normal(&seed) + c.mean[r % 15 * D + i] * (float)r / ROWS;
        for (uint32_t m = 0; m < QUIRE_MEAN_SLOTS; m++) {
            const float *mean = quire_mean_at(cal, D, m);
            for (uint32_t i = 0; i < D; i++) {
                double e = (double)c.weight[i] * ((double)x[i] - (mean ? (double)mean[i] : 0));
                rest[m] += e * e;
            }
            if (rest[m] < rest[nearest]) nearest = m;
        }
        quire_encode_row(&coder, cal, x, &row, NULL);
        uint32_t chosen = quire_row_mean(&coder, &row);
        if (chosen != nearest && rest[chosen] > rest[nearest] * (1 + 1e-5))
            fail_msg("row %u: mean %u leaves %g, mean %u %g", r, chosen, rest[chosen], nearest,
                     rest[nearest]);
        if (r < 15) assert_int_equal(chosen, 0);
        if (r > 305) assert_int_equal(chosen, r % 15 + 1);
    }
    /* A tie takes the first, which is none. */
    float zero[D] = {0};
    memset(c.mean, 0, sizeof c.mean);
    quire_encode_row(&coder, cal, zero, &row, NULL);
    assert_int_equal(quire_row_mean(&coder, &row), 0);
}

/* A number that the profile has no mean for stands for none: in decoded rows, in scores and in values. */
static void means_that_are_not_there(void **state)
{
    (void)state;
    enum { D = 32 };
    static test_calibration c;
    static quire_coded_row row;
    quire_calibration few = *make_calibration(&c, 7);
    quire_coder coder;
    float x[D], with[D], without[D], mean_score[QUIRE_MEAN_SLOTS];
    uint64_t seed = 1;
    few.n_means = 2;
    assert_int_equal(quire_coder_init(&coder, quire_codec_get("c:r5"), QUIRE_K, D, 0), QUIRE_OK);
    random_row(&seed, x, D, 1);
    quire_encode_row(&coder, &few, x, &row, NULL);
    row.scale[0] &= 0xfff0;
    quire_decode_row(&coder, &few, &row, without);
    for (uint32_t m = 1; m < QUIRE_MEAN_SLOTS; m++) {
        row.scale[0] = (uint16_t)((row.scale[0] & 0xfff0) | m);
        quire_decode_row(&coder, &few, &row, with);
        assert_true((memcmp(with, without, sizeof with) == 0) == (m > 2));
    }
    quire_prepare_query(&coder, &few, x, with, mean_score);
    for (uint32_t m = 0; m < QUIRE_MEAN_SLOTS; m++) assert_true((mean_score[m] != 0) == (m == 1 || m == 2));
    float acc[D] = {0}, sums[QUIRE_MEAN_SLOTS] = {9, 0, 0, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5};
    quire_finish_value(&coder, &few, acc, sums);
    for (uint32_t i = 0; i < D; i++) assert_true(acc[i] == 0);
}

/* Without calibration a c: codec loses almost nothing against the plain one, though its scale has six bits only. */
static void coarse_scales(void **state)
{
    (void)state;
    static const char *const names[][2] = {{"r2", "c:r2"}, {"r3", "c:r3"}, {"r4", "c:r4"},
                                           {"r5", "c:r5"}, {"r6", "c:r6"}, {"r8", "c:r8"}};
    static quire_coded_row row;
    enum { D = 128, ROWS = 400 };
    for (size_t n = 0; n < COUNT(names); n++) {
        double error[2] = {0}, along[2] = {0};
        for (int which = 0; which < 2; which++) {
            quire_coder coder;
            uint64_t seed = 5;
            assert_int_equal(quire_coder_init(&coder, quire_codec_get(names[n][which]), QUIRE_K, D, 0),
                             QUIRE_OK);
            for (uint32_t r = 0; r < ROWS; r++) {
                float x[D], y[D];
                double xy = 0;
                random_row(&seed, x, D, 1 + (float)r / ROWS);
                quire_encode_row(&coder, NULL, x, &row, NULL);
                assert_true(which == 0 || (row.scale[0] & 0x800f) == 0);
                quire_decode_row(&coder, NULL, &row, y);
                for (uint32_t i = 0; i < D; i++) xy += (double)x[i] * (double)y[i];
                error[which] += squared_distance(x, y, D) / energy(x, D) / ROWS;
                along[which] += fabs(xy / energy(x, D) - 1) / ROWS;
            }
        }
        if (!(error[1] < 1.02 * error[0]))
            fail_msg("%s: error %g, %s %g", names[n][1], error[1], names[n][0], error[0]);
        if (n < 2 && !(along[1] < 0.003)) fail_msg("%s: x.y is off by %g", names[n][1], along[1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rotation_is_orthogonal), cmocka_unit_test(rotation_by_definition),
        cmocka_unit_test(query_meets_row),        cmocka_unit_test(values_are_finished),
        cmocka_unit_test(calibration_chooses),    cmocka_unit_test(means_that_are_not_there),
        cmocka_unit_test(coarse_scales),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
