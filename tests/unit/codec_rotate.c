/* SPDX-License-Identifier: MIT */
/* Rotations and calibration: what is done to a row is undone in the query and in the output. */
#include "codec_rows.h"

static void rotation_is_orthogonal(void **state)
{
    (void)state;
    const char *names[] = {"r4", "tq2", "c:r8", "h:q4_0", "h:a4g64"};
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
    uint32_t with_mean = 0, without_mean = 0;
    for (uint32_t index = 0; index < quire_codec_count(); index++) {
        for (size_t s = 0; s < COUNT(head_sizes); s++) {
            for (uint32_t r = 0; r < 4; r++) {
                quire_coder coder;
                uint32_t d = head_sizes[s];
                uint64_t seed = d * 7 + r;
                float k[QUIRE_MAX_D], q[QUIRE_MAX_D], y[QUIRE_MAX_D], prepared[QUIRE_MAX_D], mean_score;
                make_coder(&coder, index, QUIRE_K, d);
                random_row(&seed, k, d, 1);
                random_row(&seed, q, d, 1);
                /* half of the rows lie around the mean */
                for (uint32_t i = 0; r % 2 && i < d; i++) k[i] += c.mean[i];
                const quire_calibration *used = r < 3 ? cal : NULL;
                quire_encode_row(&coder, used, k, &row, NULL);
                quire_prepare_query(&coder, used, q, prepared, &mean_score);
                quire_expand_row(&coder, &row, y);
                bool centred = quire_row_is_centred(&coder, &row);
                double score = centred ? (double)mean_score : 0, direct = 0, size = 0;
                for (uint32_t i = 0; i < d; i++) score += (double)prepared[i] * (double)y[i];
                quire_decode_row(&coder, used, &row, y);
                for (uint32_t i = 0; i < d; i++) {
                    direct += (double)q[i] * (double)y[i];
                    size += (double)q[i] * (double)q[i] *
                            ((double)y[i] * (double)y[i] + (double)c.mean[i] * (double)c.mean[i]);
                }
                if (fabs(score - direct) > 1e-5 * sqrt(size))
                    fail_msg("%s d %u row %u: score %g, directly %g", coder.codec->info.name, d, r, score,
                             direct);
                if (!used && (centred || mean_score != 0))
                    fail_msg("%s: a mean from nowhere", coder.codec->info.name);
                with_mean += centred;
                without_mean += !centred && used && (coder.codec->info.flags & QUIRE_CODEC_CALIBRATED);

                memcpy(y, prepared, d * sizeof *y); /* in place gives the same */
                quire_prepare_query(&coder, used, q, q, &mean_score);
                assert_memory_equal(q, y, d * sizeof *q);
            }
        }
    }
    assert_true(with_mean > 50 && without_mean > 50); /* both kinds of rows were seen */
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
                float acc[QUIRE_MAX_D] = {0}, direct[QUIRE_MAX_D] = {0}, mean_sum = 0;
                uint64_t seed = d * 11 + index;
                for (uint32_t r = 0; r < N; r++) {
                    float x[QUIRE_MAX_D], p = (float)random_uniform(&seed);
                    random_row(&seed, x, d, 1);
                    for (uint32_t i = 0; r % 2 && i < d; i++) x[i] += c.mean[i];
                    quire_encode_row(&coder, cal, x, &row, NULL);
                    quire_expand_row(&coder, &row, x);
                    for (uint32_t i = 0; i < d; i++) acc[i] += p * x[i];
                    if (quire_row_is_centred(&coder, &row)) mean_sum += p;
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

/* The row keeps the variant with the smaller error for queries, and says which. */
static void calibration_chooses(void **state)
{
    (void)state;
    static test_calibration c;
    static quire_coded_row row, other;
    const quire_calibration *cal = make_calibration(&c, 6);
    quire_coder coder, plain;
    enum { D = 128 };
    assert_int_equal(quire_coder_init(&coder, quire_codec_get("c:r4"), QUIRE_K, D, 0), QUIRE_OK);
    assert_int_equal(quire_coder_init(&plain, quire_codec_get("r4"), QUIRE_K, D, 0), QUIRE_OK);
    for (uint32_t r = 0; r < 200; r++) {
        uint64_t seed = r;
        float x[D], y[D], error[2];
        random_row(&seed, x, D, 1);
        /* from rows that have nothing of the mean to rows that have all of it */
        for (uint32_t i = 0; i < D; i++) x[i] += c.mean[i] * (float)r / 200;
        for (int with = 0; with < 2; with++) {
            for (uint32_t i = 0; i < D; i++) y[i] = c.weight[i] * (with ? x[i] - c.mean[i] : x[i]);
            quire_encode_row(&plain, NULL, y, &other, NULL);
            quire_decode_row(&plain, NULL, &other, y);
            for (uint32_t i = 0; i < D; i++)
                y[i] = c.q_rms[i] * (y[i] / c.weight[i] + (with ? c.mean[i] : 0) - x[i]);
            error[with] = (float)energy(y, D);
        }
        quire_encode_row(&coder, cal, x, &row, NULL);
        if (fabsf(error[0] / error[1] - 1) > 1e-4f &&
            quire_row_is_centred(&coder, &row) != (error[1] < error[0]))
            fail_msg("row %u: errors %g with the mean, %g without", r, (double)error[1], (double)error[0]);
        if (r == 0) assert_false(quire_row_is_centred(&coder, &row));
        if (r == 199) assert_true(quire_row_is_centred(&coder, &row));
    }
    /* A tie takes the mean out. */
    float zero[D] = {0};
    memset(c.mean, 0, sizeof c.mean);
    quire_encode_row(&coder, cal, zero, &row, NULL);
    assert_true(quire_row_is_centred(&coder, &row));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rotation_is_orthogonal), cmocka_unit_test(rotation_by_definition),
        cmocka_unit_test(query_meets_row),        cmocka_unit_test(values_are_finished),
        cmocka_unit_test(calibration_chooses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
