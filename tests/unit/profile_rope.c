/* SPDX-License-Identifier: MIT */
/* Profiles that are made for more positions than were shown. */
#include "codec/profile.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum {
    D = 8,
    PAIRS = 4,
    SHOWN = 60,
    SERVED = 4096
}; /* SHOWN: few enough that weights are those of one mean */
static const quire_layer layer = {.n_q_heads = 1, .n_kv_heads = 1, .d_k = D, .d_v = D};
static const quire_geometry one = {
    .size = sizeof(quire_geometry), .n_layers = 1, .layer_stride = sizeof(quire_layer), .layers = &layer};
static const float slow[PAIRS] = {1, 0.1f, 0.01f, 0.0005f};

/* Always the same row, turned to a position. */
static void turned_row(uint32_t interleaved, uint32_t position, float *row)
{
    for (uint32_t i = 0; i < PAIRS; i++) {
        uint32_t a = interleaved ? 2 * i : i, b = interleaved ? a + 1 : a + PAIRS;
        double angle = (double)slow[i] * position;
        row[a] = (float)(3 * cos(angle) - 2 * sin(angle));
        row[b] = (float)(3 * sin(angle) + 2 * cos(angle));
    }
}

/* The largest angle by which a mean has its slowest pair turned. */
static double slowest_angle(const quire_calibration *c, uint32_t interleaved)
{
    double most = 0;
    for (uint32_t m = 1; m <= c->n_means; m++) {
        const float *mean = quire_mean_at(c, D, m);
        uint32_t a = interleaved ? D - 2 : PAIRS - 1;
        double angle = atan2((double)mean[D - 1], (double)mean[a]) - atan2(2, 3);
        most = angle > most ? angle : most;
    }
    return most;
}

/* Rows that RoPE turns: shown at positions below 60, the profile is right for 4096 of them. */
static void served_length(void **state)
{
    (void)state;
    static const float wrong[PAIRS] = {0.7f, 0.3f, 0.2f, 0.05f};
    for (uint32_t interleaved = 0; interleaved < 2; interleaved++)
        for (int right = 0; right < 2; right++) {
            quire_profile *p = NULL;
            quire_rope rope = {.size = sizeof(quire_rope), PAIRS, interleaved, right ? slow : wrong};
            double mean[D] = {0}, square[D] = {0}, n = (right ? SERVED : SHOWN) - 4;
            assert_int_equal(quire_profile_create(&p, &one, NULL), QUIRE_OK);
            assert_int_equal(quire_profile_set_rope(p, 0, &rope), QUIRE_OK);
            assert_int_equal(quire_profile_set_length(p, SERVED), QUIRE_OK);
            for (uint32_t t = 4; t < SERVED; t++) {
                float row[D];
                turned_row(interleaved, t, row);
                for (uint32_t i = 0; i < D && t < n + 4; i++) {
                    mean[i] += (double)row[i] / n;
                    square[i] += (double)row[i] * (double)row[i] / n;
                }
                if (t >= SHOWN) continue;
                assert_int_equal(quire_profile_observe_k(p, 0, t, row, 1), QUIRE_OK);
                assert_int_equal(quire_profile_observe_q(p, 0, t, row, 1), QUIRE_OK);
            }
            assert_int_equal(quire_profile_set_rope(p, 0, &rope), QUIRE_EBUSY);
            assert_int_equal(quire_profile_finish(p), QUIRE_OK);
            quire_calibration c = quire_profile_head(p, 0, 0);
            for (uint32_t i = 0; i < D; i++) { /* wrong angles are noticed: then it is of what was shown */
                double q_rms = sqrt(square[i]), sd = sqrt(square[i] - mean[i] * mean[i]);
                assert_true(fabs((double)c.q_rms[i] / q_rms - 1) < 1e-3);
                assert_true(fabs((double)c.weight[i] / sqrt(q_rms / sd) - 1) < 1e-3);
            }
            assert_int_equal(c.n_means, 15);
            double angle = slowest_angle(&c, interleaved), last = (double)slow[PAIRS - 1] * n;
            assert_true(right ? angle > 0.5 * last : angle < 2 * last);
            assert_int_equal(quire_profile_set_length(p, 1), QUIRE_EINVAL);
            quire_profile_destroy(p);
        }
}

/* The first two rows of a sample go to the positions 4 and 4 + 0.618 * 4092. */
static void rows_are_moved(void **state)
{
    (void)state;
    for (uint32_t interleaved = 0; interleaved < 2; interleaved++) {
        quire_profile *p = NULL;
        quire_rope rope = {.size = sizeof(quire_rope), PAIRS, interleaved, slow};
        float row[D], expected[2][D];
        assert_int_equal(quire_profile_create(&p, &one, NULL), QUIRE_OK);
        assert_int_equal(quire_profile_set_rope(p, 0, &rope), QUIRE_OK);
        assert_int_equal(quire_profile_set_length(p, SERVED), QUIRE_OK);
        for (uint32_t t = 50; t < 52; t++) {
            turned_row(interleaved, t, row);
            assert_int_equal(quire_profile_observe_k(p, 0, t, row, 1), QUIRE_OK);
            assert_int_equal(quire_profile_observe_q(p, 0, t, row, 1), QUIRE_OK);
        }
        assert_int_equal(quire_profile_finish(p), QUIRE_OK);
        quire_calibration c = quire_profile_head(p, 0, 0);
        assert_int_equal(c.n_means, 2);
        turned_row(interleaved, 4, expected[0]);
        turned_row(interleaved, 2532, expected[1]);
        for (uint32_t m = 0; m < 2; m++) {
            double least = INFINITY;
            for (uint32_t e = 0; e < 2; e++) {
                double far = 0;
                for (uint32_t i = 0; i < D; i++)
                    far = fmax(far, fabs((double)c.mean[m * D + i] - (double)expected[e][i]));
                least = fmin(least, far);
            }
            assert_true(least < 4e-3); /* f16 */
        }
        quire_profile_destroy(p);
    }
}

static void misuse(void **state)
{
    (void)state;
    static const quire_geometry small = {
        .size = sizeof(quire_geometry), .n_layers = 1, .n_q_heads = 1, .n_kv_heads = 1, .d_k = 4, .d_v = 4};
    static const float angles[4] = {0};
    quire_rope rope = {.size = sizeof(quire_rope), 2, 0, angles};
    quire_profile *p = NULL;
    assert_int_equal(quire_profile_create(&p, &small, NULL), QUIRE_OK);
    assert_int_equal(quire_profile_set_rope(NULL, 0, &rope), QUIRE_EINVAL);
    assert_int_equal(quire_profile_set_rope(p, 1, &rope), QUIRE_EINVAL);
    assert_int_equal(quire_profile_set_rope(p, 0, NULL), QUIRE_EINVAL);
    rope.n_pairs = 3;
    assert_int_equal(quire_profile_set_rope(p, 0, &rope), QUIRE_EINVAL);
    rope = (quire_rope){.size = sizeof(quire_rope), 1, 0, NULL};
    assert_int_equal(quire_profile_set_rope(p, 0, &rope), QUIRE_EINVAL);
    assert_int_equal(quire_profile_set_length(NULL, 1), QUIRE_EINVAL);
    quire_profile_destroy(p);
}

/* Against the C library in a longer type. golden_profile compares the bits. */
static void angles(void **state)
{
    (void)state;
    uint64_t random = 1;
    double worst = 0, c, s;
    for (uint32_t i = 0; i < 200000; i++) {
        uint64_t z = quire_random(&random);
        double size = (double)(1ull << z % 34) * (double)(z >> 11) * 0x1p-53, x = i % 2 ? size : -size;
        if (i % 7 == 0) x = (double)(int64_t)(z % 100000) * 0.78539816339744830962; /* corners */
        quire_angle(x, &c, &s);
        double e = fmax(fabs((double)(cosl((long double)x) - (long double)c)),
                        fabs((double)(sinl((long double)x) - (long double)s)));
        if (e > worst) worst = e;
    }
    if (worst > 0x1p-52) fail_msg("error %g", worst);
    quire_angle(0, &c, &s);
    assert_true(c == 1 && s == 0);
    quire_angle(1e300, &c, &s);
    assert_true(fabs(c * c + s * s - 1) < 1e-15);
    quire_angle((double)INFINITY, &c, &s);
    assert_true(isnan(c) && isnan(s));
    quire_angle((double)NAN, &c, &s);
    assert_true(isnan(c) && isnan(s));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(served_length), cmocka_unit_test(rows_are_moved),
                                       cmocka_unit_test(misuse), cmocka_unit_test(angles)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
