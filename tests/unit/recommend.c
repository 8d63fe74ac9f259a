/* SPDX-License-Identifier: MIT */
/* The rule by which a preset is recommended, with sizes made up and with those of a model. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "llama/recommend.h"

#include <string.h>

static const char *choose(double room, bool safe, bool balanced, bool small)
{
    recommend_offer offers[RECOMMEND_PRESETS] = {{80, safe}, {50, balanced}, {40, small}};
    return recommend_presets[recommend_choose(offers, room)];
}

static void test_rule(void **state)
{
    (void)state;
    assert_string_equal(recommend_presets[RECOMMEND_DEFAULT], "safe");
    assert_string_equal(choose(1000, false, false, false), "safe");
    assert_string_equal(choose(80, false, false, false), "safe");
    assert_string_equal(choose(79, false, false, false), "balanced");
    assert_string_equal(choose(49, false, false, false), "small");
    assert_string_equal(choose(39, false, false, false), "small"); /* none fits */
    assert_string_equal(choose(0, false, false, false), "small");
}

/* What is warned of comes last, but before what does not fit. */
static void test_warnings(void **state)
{
    (void)state;
    assert_string_equal(choose(60, false, true, false), "small");
    assert_string_equal(choose(60, false, true, true), "balanced");
    assert_string_equal(choose(45, false, false, true), "small");
    assert_string_equal(choose(1000, true, false, false), "balanced");
    assert_string_equal(choose(1000, true, true, true), "safe");
}

static void fill_model(model *m)
{
    *m = (model){.n_layers = 30, .n_kv_layers = 30, .context = 8192, .file_bytes = 1000};
    for (uint32_t i = 0; i < m->n_layers; i++) {
        m->layers[i] = (quire_layer){.n_q_heads = 9, .n_kv_heads = 3, .d_k = 64, .d_v = 64};
        m->has_kv[i] = true;
    }
}

static void test_model(void **state)
{
    static model m;
    recommendation r;
    char why[256];
    model_use use = {.tokens = 4096, .sequences = 1};
    (void)state;
    fill_model(&m);
    assert_true(recommend(&r, &m, &use, NULL, 11880.0 * 4096, why, sizeof why));
    assert_string_equal(r.policy, "safe");
    assert_true(r.fits);
    assert_true(r.offers[RECOMMEND_DEFAULT].bytes == 11880.0 * 4096);
    assert_true(recommend(&r, &m, &use, NULL, 11880.0 * 4096 - 1, why, sizeof why));
    assert_string_equal(r.policy, "balanced");
    assert_true(r.fits);
    assert_true(recommend(&r, &m, &use, NULL, 1, why, sizeof why));
    assert_string_equal(r.policy, "small");
    assert_false(r.fits);
}

static void test_room(void **state)
{
    static model m;
    (void)state;
    fill_model(&m);
    assert_true(recommend_room(&m, 5000) == 4000);
    assert_true(recommend_room(&m, 999) == 0);
    assert_true(recommend_room(&m, 0) > 0); /* whatever the machine has */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rule),
        cmocka_unit_test(test_warnings),
        cmocka_unit_test(test_model),
        cmocka_unit_test(test_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
