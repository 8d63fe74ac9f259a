/* SPDX-License-Identifier: MIT */
/* Profiles that are made for more positions than were shown. */
#include "codec/codec.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* Rows of a mean that RoPE turns: shown at positions below 64, the profile is right for 4096 of them. */
static void served_length(void **state)
{
    (void)state;
    enum { D = 8, PAIRS = 4, SHOWN = 64, SERVED = 4096 };
    static const quire_layer layer = {.n_q_heads = 1, .n_kv_heads = 1, .d_k = D, .d_v = D};
    static const quire_geometry one = {.version = QUIRE_OPTIONS, .n_layers = 1, .layers = &layer};
    static const float slow[PAIRS] = {1, 0.1f, 0.01f, 0.0005f}, wrong[PAIRS] = {0.7f, 0.3f, 0.2f, 0.05f};
    for (uint32_t interleaved = 0; interleaved < 2; interleaved++)
        for (int right = 0; right < 2; right++) {
            quire_profile *p = NULL;
            quire_rope rope = {PAIRS, interleaved, right ? slow : wrong};
            double mean[2][D] = {{0}};
            assert_int_equal(quire_profile_create(&p, &one, NULL), QUIRE_OK);
            assert_int_equal(quire_profile_set_rope(p, 0, &rope), QUIRE_OK);
            assert_int_equal(quire_profile_set_length(p, SERVED), QUIRE_OK);
            for (uint32_t t = 4; t < SERVED; t++) {
                float row[D];
                for (uint32_t i = 0; i < PAIRS; i++) {
                    uint32_t a = interleaved ? 2 * i : i, b = interleaved ? a + 1 : a + PAIRS;
                    double angle = (double)slow[i] * t;
                    row[a] = (float)(3 * cos(angle) - 2 * sin(angle));
                    row[b] = (float)(3 * sin(angle) + 2 * cos(angle));
                }
                for (uint32_t i = 0; i < D; i++) {
                    mean[0][i] += (double)row[i] / (SERVED - 4);
                    if (t < SHOWN) mean[1][i] += (double)row[i] / (SHOWN - 4);
                }
                if (t >= SHOWN) continue;
                assert_int_equal(quire_profile_observe_k(p, 0, t, row, 1), QUIRE_OK);
                assert_int_equal(quire_profile_observe_q(p, 0, t, row, 1), QUIRE_OK);
            }
            assert_int_equal(quire_profile_set_rope(p, 0, &rope), QUIRE_EBUSY);
            assert_int_equal(quire_profile_finish(p), QUIRE_OK);
            quire_calibration c = quire_profile_head(p, 0, 0);
            for (uint32_t i = 0; i < D;
                 i++) /* wrong angles are noticed: then it is the mean of what was shown */
                assert_true(fabs((double)c.mean[i] - mean[!right][i]) < 1e-3);
            assert_int_equal(quire_profile_set_length(p, 1), QUIRE_EINVAL);
            quire_profile_destroy(p);
        }
}

static void misuse(void **state)
{
    (void)state;
    static const quire_geometry small = {
        .version = QUIRE_OPTIONS, .n_layers = 1, .n_q_heads = 1, .n_kv_heads = 1, .d_k = 4, .d_v = 4};
    static const float angles[4] = {0};
    quire_rope rope = {2, 0, angles};
    quire_profile *p = NULL;
    assert_int_equal(quire_profile_create(&p, &small, NULL), QUIRE_OK);
    assert_int_equal(quire_profile_set_rope(NULL, 0, &rope), QUIRE_EINVAL);
    assert_int_equal(quire_profile_set_rope(p, 1, &rope), QUIRE_EINVAL);
    assert_int_equal(quire_profile_set_rope(p, 0, NULL), QUIRE_EINVAL);
    rope.n_pairs = 3;
    assert_int_equal(quire_profile_set_rope(p, 0, &rope), QUIRE_EINVAL);
    rope = (quire_rope){1, 0, NULL};
    assert_int_equal(quire_profile_set_rope(p, 0, &rope), QUIRE_EINVAL);
    assert_int_equal(quire_profile_set_length(NULL, 1), QUIRE_EINVAL);
    quire_profile_destroy(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(served_length), cmocka_unit_test(misuse)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
