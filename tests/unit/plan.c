/* SPDX-License-Identifier: MIT */
/* Plans: codec per layer, groups, fingerprints, refusals, memory that runs out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cache/plan.h"
#include "plan_kit.h"
#include "support/fail_alloc.h"

/* --------------------------------------------------------------- helpers */

/* Gemma 3, 270M: every sixth layer sees everything. */
static quire_geometry gemma(uint32_t windows[18])
{
    quire_geometry g = uniform(18, 4, 1, 256);
    for (uint32_t i = 0; i < 18; i++) windows[i] = i % 6 == 5 ? 0 : 512;
    g.windows = windows;
    return g;
}

static uint64_t fingerprint(const quire_geometry *geometry, const char *policy)
{
    quire_plan *plan = make(geometry, policy);
    uint64_t value = quire_plan_fingerprint(plan);
    assert_true(value != 0);
    quire_plan_destroy(plan);
    return value;
}

static quire_plan_layer info(const quire_plan *plan, uint32_t layer)
{
    quire_plan_layer out = {.size = sizeof out};
    assert_int_equal(quire_plan_layer_info(plan, layer, &out), QUIRE_OK);
    return out;
}

static void check_layer(const quire_plan *plan, uint32_t layer, const char *k, const char *v, double bytes,
                        const char *reason)
{
    quire_plan_layer l = info(plan, layer);
    assert_string_equal(l.k, k);
    if (v)
        assert_string_equal(l.v, v);
    else
        assert_null(l.v);
    assert_true(l.bytes_per_token == bytes);
    if (reason) {
        assert_non_null(l.reason);
        assert_string_equal(l.reason, reason);
    } else {
        assert_null(l.reason);
    }
}

static void check_refused(const quire_geometry *geometry, const char *policy, const quire_profile *profile,
                          quire_status status, const char *fragment)
{
    quire_plan *plan = (quire_plan *)(uintptr_t)64;
    char message[256] = "";
    struct fail_alloc f;
    fail_alloc_init(&f, 0);
    quire_allocator a = fail_alloc_allocator(&f);
    quire_plan_options options = {sizeof(quire_plan_options), profile, &a, message, sizeof message};
    assert_int_equal(quire_plan_create(&plan, geometry, policy, &options), status);
    if (!strstr(message, fragment)) fail_msg("\"%s\" lacks \"%s\"", message, fragment);
    assert_true(plan == (quire_plan *)(uintptr_t)64);
    assert_true(f.outstanding == 0 && f.bytes == 0);
    options.message = NULL; /* a size without a buffer */
    assert_int_equal(quire_plan_create(&plan, geometry, policy, &options), status);
}

/* What is wrong outside of the geometry and the policy is said too: a caller prints the message after any failure. */
static void refused_before_the_plan(void **state)
{
    (void)state;
    quire_geometry g = {sizeof(quire_geometry), .n_layers = 1, .n_q_heads = 1,
                        .n_kv_heads = 1,        .d_k = 64,     .d_v = 64};
    char message[256] = "old";
    struct fail_alloc f;
    fail_alloc_init(&f, 0);
    quire_allocator half = fail_alloc_allocator(&f);
    half.free = NULL;
    quire_plan_options options = {.size = sizeof options, .message = message, .message_size = sizeof message};
    quire_plan *plan = NULL;
    assert_int_equal(quire_plan_create(NULL, &g, "safe", &options), QUIRE_EINVAL);
    assert_non_null(strstr(message, "pointer"));
    options.allocator = &half;
    assert_int_equal(quire_plan_create(&plan, &g, "safe", &options), QUIRE_EINVAL);
    assert_non_null(strstr(message, "allocator"));
    assert_null(plan);
}

/* A profile of made-up rows; another seed gives another digest. */
static quire_profile *make_profile(const quire_geometry *geometry, uint32_t seed, bool finish)
{
    quire_profile *profile = NULL;
    static float rows[8 * 1024];
    assert_int_equal(quire_profile_create(&profile, geometry, NULL), QUIRE_OK);
    for (uint32_t layer = 0; layer < geometry->n_layers; layer++) {
        for (size_t i = 0; i < COUNT(rows); i++) {
            seed = seed * 1664525u + 1013904223u;
            rows[i] = (float)(seed >> 16) / 65536.0f;
        }
        assert_int_equal(quire_profile_observe_k(profile, layer, 8, rows, 8), QUIRE_OK);
        assert_int_equal(quire_profile_observe_q(profile, layer, 0, rows, 8), QUIRE_OK);
    }
    if (finish) assert_int_equal(quire_profile_finish(profile), QUIRE_OK);
    return profile;
}

/* ---------------------------------------------------------------- models */

static void smollm(void **state)
{
    (void)state;
    quire_geometry g = uniform(30, 9, 3, 64);
    quire_plan *plan = make(&g, "k8v4");
    assert_string_equal(quire_plan_policy(plan), "a8g64/a4g64");
    assert_int_equal(quire_plan_n_groups(plan), 1);
    /* K 64 + 4 bytes, V 32 + 4 */
    for (uint32_t i = 0; i < 30; i++) check_layer(plan, i, "a8g64", "a4g64", 3 * (68 + 36), NULL);
    assert_true(quire_plan_bytes_per_token(plan) == 30 * 3 * (68 + 36));
    assert_int_equal(quire_plan_page_bytes(plan, 0), 64 * 30 * 3 * (68 + 36));
    assert_int_equal(quire_plan_page_bytes(plan, 1), 0);
    quire_plan_layer l = {.size = sizeof l};
    assert_int_equal(quire_plan_layer_info(plan, 30, &l), QUIRE_EINVAL);
    assert_int_equal(quire_plan_layer_info(plan, 0, NULL), QUIRE_EINVAL);
    quire_plan_destroy(plan);
    quire_plan_destroy(NULL);
}

static void windows(void **state)
{
    (void)state;
    uint32_t w[18];
    quire_geometry g = gemma(w);
    quire_plan *plan = make(&g, "r4,edge=1:r8,sinks=65:f16");
    assert_int_equal(quire_plan_n_groups(plan), 2);
    assert_int_equal(plan->group[0].window, 512); /* the first layer's group comes first */
    assert_int_equal(plan->group[1].window, 0);
    assert_int_equal(plan->group[0].n_layers, 15);
    assert_int_equal(plan->group[1].n_layers, 3);
    for (uint32_t i = 0; i < 3; i++) assert_int_equal(plan->group[1].layer[i], 6 * i + 5);
    for (uint32_t i = 0; i < 18; i++) {
        quire_plan_layer l = info(plan, i);
        assert_int_equal(l.window, w[i]);
        assert_int_equal(l.group, w[i] ? 0 : 1);
        assert_int_equal(plan->group[l.group].layer[plan->layer[i].index], i);
        assert_int_equal(l.sink_tokens, w[i] ? 0 : 128); /* 65 tokens are two pages */
        assert_true(w[i] ? !l.sink_k && !l.sink_v : !strcmp(l.sink_k, "f16") && !strcmp(l.sink_v, "f16"));
        if (w[i]) check_layer(plan, i, "f16", "f16", 1024, "window layer: kept as small float pages");
    }
    check_layer(plan, 5, "r8", "r8", 2 * 258, "edge layer; the first 128 tokens are sinks");
    check_layer(plan, 11, "r4", "r4", 2 * 130, "the first 128 tokens are sinks");
    check_layer(plan, 17, "r8", "r8", 2 * 258, "edge layer; the first 128 tokens are sinks");
    assert_true(quire_plan_bytes_per_token(plan) == 4 * 258 + 2 * 130); /* window layers left out */
    assert_int_equal(quire_plan_page_bytes(plan, 0), 64 * 15 * 1024);
    assert_int_equal(quire_plan_page_bytes(plan, 1), 64 * (4 * 258 + 2 * 130));
    assert_int_equal(plan->group[1].sinks.bytes, 64 * 3 * 1024);
    assert_ptr_equal(quire_plan_layout(plan, 1, 0), &plan->group[1].sinks);
    assert_ptr_equal(quire_plan_layout(plan, 1, 1), &plan->group[1].sinks);
    assert_ptr_equal(quire_plan_layout(plan, 1, 2), &plan->group[1].pages);
    assert_ptr_equal(quire_plan_layout(plan, 0, 0), &plan->group[0].pages);
    quire_plan_destroy(plan);

    plan = make(&g, "r4,window=r8/bf16,edge=2:r5"); /* two ends of three layers: all of them */
    check_layer(plan, 0, "r8", "bf16", 258 + 512, "window layer");
    for (uint32_t i = 5; i < 18; i += 6) check_layer(plan, i, "r5", "r5", 2 * 162, "edge layer");
    quire_plan_destroy(plan);

    for (uint32_t i = 0; i < 18; i++) w[i] = i + 1; /* a group each, and none that grows */
    plan = make(&g, "r4,edge=4096:r5,sinks=100000:f16");
    assert_int_equal(quire_plan_n_groups(plan), 18);
    assert_true(quire_plan_bytes_per_token(plan) == 0);
    quire_plan_destroy(plan);
}

static void mla(void **state)
{
    (void)state;
    quire_geometry g = uniform(27, 16, 1, 576);
    g.d_v = 512;
    g.v_in_k = 1;
    quire_plan *plan = make(&g, "r4/a4g64,edge=1:f16,sinks=1:r8/f32");
    check_layer(plan, 0, "f16", NULL, 1152, "edge layer; the first 64 tokens are sinks; V is a prefix of K");
    check_layer(plan, 1, "r4", NULL, 288 + 2, "the first 64 tokens are sinks; V is a prefix of K");
    assert_string_equal(info(plan, 1).sink_k, "r8");
    assert_null(info(plan, 1).sink_v);
    assert_null(plan->group[0].pages.layer[1].v);
    assert_null(plan->group[0].sinks.layer[1].v);
    assert_int_equal(plan->group[0].sinks.bytes, 64 * 27 * 578);
    quire_plan_destroy(plan);

    /* The codec must know where V ends: no rotation block may lie across it. */
    g.d_k = 192;
    g.d_v = 32;
    plan = make(&g, "h:a4g64,sinks=1:h:q8_0");
    assert_int_equal(plan->layer[0].k.coder.block, 32);
    assert_int_equal(plan->layer[0].sink_k.coder.block, 32);
    quire_plan_destroy(plan);
}

static void large(void **state)
{
    (void)state;
    quire_geometry g = uniform(128, 128, 128, 128);
    quire_plan *plan = make(&g, "k4v4");
    assert_true(quire_plan_bytes_per_token(plan) == 128.0 * 128 * 144);
    assert_int_equal(quire_plan_page_bytes(plan, 0), 64ull * 128 * 128 * 144);
    quire_plan_destroy(plan);

    g = uniform(4096, 65535, 65535, 1024); /* the most a geometry can ask for */
    plan = make(&g, "f32");
    assert_true(quire_plan_page_bytes(plan, 0) == 64ull * 4096 * 65535 * 8192);
    quire_plan_destroy(plan);
}

static void shapes_per_layer(void **state)
{
    (void)state;
    static const quire_layer layers[] = {
        {8, 4, 128, 128, 0, 0}, {8, 2, 64, 128, 0, 0},   {8, 8, 80, 80, 256, 0},
        {8, 1, 576, 512, 0, 1}, {8, 2, 96, 96, 1024, 0}, {8, 2, 64, 40, 256, 0},
    };
    quire_geometry g = per_layer(layers, COUNT(layers));
    quire_plan *plan = make(&g, "a8g64/a4g64");
    assert_int_equal(quire_plan_n_groups(plan), 3);
    assert_int_equal(info(plan, 5).group, info(plan, 2).group);
    check_layer(plan, 0, "a8g64", "a4g64", 4 * (136 + 72), NULL);
    check_layer(plan, 1, "a8g64", "a4g64", 2 * (68 + 72), NULL);
    check_layer(plan, 2, "f16", "f16", 8 * 320, "window layer: kept as small float pages");
    check_layer(plan, 3, "a8g64", NULL, 576 + 36, "V is a prefix of K");
    check_layer(plan, 5, "f16", "f16", 2 * (128 + 96),
                "window layer: kept as small float pages; V head size 40 is padded to 48");
    assert_true(quire_plan_bytes_per_token(plan) == 4 * 208 + 2 * 140 + 612);
    /* Tiles lie one after another, in the order of the group. */
    const quire_page_layout *pages = &plan->group[0].pages;
    assert_int_equal(pages->n_layers, 3);
    assert_int_equal(pages->layer[0].offset, 0);
    assert_int_equal(pages->layer[1].offset, 64 * 4 * 208);
    assert_int_equal(pages->layer[2].offset, 64 * (4 * 208 + 2 * 140));
    quire_plan_destroy(plan);
}

/* ----------------------------------------------------------- fingerprints */

static void fingerprints(void **state)
{
    (void)state;
    uint32_t w[18];
    quire_geometry g = gemma(w), other;
    quire_layer layers[18];
    static const char *const different[] = {
        "r4",
        "r4/r5",
        "r5/r4",
        "r4,edge=1:r8",
        "r4,edge=1:r8/r4",
        "r4,sinks=64:f16",
        "r4,sinks=65:f16",
        "r4,sinks=64:f16/bf16",
        "r4,window=bf16",
        "k4v4",
        "h:a4g64",
    };
    for (size_t i = 0; i < COUNT(different); i++)
        for (size_t j = 0; j < i; j++)
            assert_true(fingerprint(&g, different[i]) != fingerprint(&g, different[j]));
    assert_true(fingerprint(&g, "k=r4,v=r4") == fingerprint(&g, "r4"));
    assert_true(fingerprint(&g, "r4,sinks=1:f16") == fingerprint(&g, "r4,sinks=64:f16"));
    assert_true(fingerprint(&g, "r4,edge=1:r4") == fingerprint(&g, "r4"));

    /* The same model, told in the other way. */
    for (uint32_t i = 0; i < 18; i++) layers[i] = (quire_layer){4, 1, 256, 256, w[i], 0};
    other = per_layer(layers, 18);
    assert_true(fingerprint(&other, "r4") == fingerprint(&g, "r4"));
    quire_plan *a = make(&g, "r4"), *b = make(&other, "k8v4,sinks=64:f16");
    assert_true(a->geometry_fingerprint == b->geometry_fingerprint && a->geometry_fingerprint != 0);
    quire_plan_destroy(b);
    uint32_t *fields[] = {&layers[3].n_q_heads, &layers[3].d_k,    &layers[3].d_v,
                          &layers[5].window,    &layers[3].window, &layers[0].v_in_k};
    const uint32_t values[] = {8, 128, 128, 512, 0, 1};
    for (size_t i = 0; i < COUNT(fields); i++) {
        uint32_t before = *fields[i];
        *fields[i] = values[i];
        b = make(&other, "r4");
        assert_true(a->geometry_fingerprint != b->geometry_fingerprint && a->fingerprint != b->fingerprint);
        quire_plan_destroy(b);
        *fields[i] = before;
    }
    quire_plan_destroy(a);
}

/* --------------------------------------------------------------- refusals */

static void refusals(void **state)
{
    (void)state;
    quire_geometry g = uniform(2, 4, 2, 64), bad = g, other = uniform(2, 4, 2, 80);
    check_refused(&g, "r4,q=1", NULL, QUIRE_EINVAL, "\"q=1\" has an unknown key");
    check_refused(&g, NULL, NULL, QUIRE_EINVAL, "no policy was given");
    check_refused(NULL, "r4", NULL, QUIRE_EINVAL, "its size is not set");
    bad.n_q_heads = 3;
    check_refused(&bad, "r4", NULL, QUIRE_EINVAL, "multiple of the number of KV heads");
    check_refused(
        &other, "r4/tv4", NULL, QUIRE_EUNSUPPORTED,
        "codec tv4 cannot keep the V rows of layer 0, whose head size is 80; tv codecs take head sizes of 16, 32, "
        "64, 128, 256 and 512");
    bad = uniform(1, 4, 1, 64);
    bad.d_v = 32;
    bad.v_in_k = 1;
    check_refused(
        &bad, "tv4", NULL, QUIRE_EUNSUPPORTED,
        "codec tv4 cannot keep the K rows of layer 0, whose head size is 64, because V is a part of K");

    check_refused(&g, "c:r4/r4", NULL, QUIRE_EINVAL, "codec c:r4 needs a profile");
    check_refused(&g, "r4,edge=1:c:r8/r4", NULL, QUIRE_EINVAL, "codec c:r8 needs a profile");
    check_refused(&g, "r4,sinks=1:c:r8/r4", NULL, QUIRE_EINVAL, "codec c:r8 needs a profile");
    check_refused(&g, "r4,window=c:r5/r4", NULL, QUIRE_EINVAL, "codec c:r5 needs a profile");
    quire_profile *profile = make_profile(&g, 1, false);
    check_refused(&g, "c:r4/r4", profile, QUIRE_EINVAL, "the profile is not finished");
    quire_profile_destroy(profile);
    profile = make_profile(&g, 1, true);
    check_refused(&other, "c:r4/r4", profile, QUIRE_EMISMATCH, "the profile was made for another model");
    other = uniform(3, 4, 2, 64);
    check_refused(&other, "balanced", profile, QUIRE_EMISMATCH, "the profile was made for another model");
    other = uniform(2, 4, 1, 64);
    check_refused(&other, "r4,sinks=1:c:r8/r4", profile, QUIRE_EMISMATCH,
                  "the profile was made for another model");
    quire_profile_destroy(profile);

    quire_plan *plan;
    quire_plan_options options = {.size = 0};
    assert_int_equal(quire_plan_create(&plan, &g, "r4", &options), QUIRE_EINVAL);
    assert_int_equal(quire_plan_create(NULL, &g, "r4", NULL), QUIRE_EINVAL);
    assert_int_equal(quire_plan_create(&plan, &g, "r4", NULL), QUIRE_OK);
    quire_plan_destroy(plan);
}

static void profiles(void **state)
{
    (void)state;
    quire_geometry g = uniform(3, 4, 2, 64), other = uniform(3, 4, 2, 80);
    quire_profile *p = make_profile(&g, 1, true), *q = make_profile(&g, 2, true);
    quire_plan_options with_p = {sizeof(quire_plan_options), .profile = p},
                       with_q = {sizeof(quire_plan_options), .profile = q};
    quire_plan *a, *b;
    assert_int_equal(quire_plan_create(&a, &g, "balanced", &with_p), QUIRE_OK);
    assert_int_equal(quire_plan_create(&b, &g, "balanced", &with_q), QUIRE_OK);
    assert_string_equal(quire_plan_policy(a), "c:r5/r4");
    assert_true(quire_plan_fingerprint(a) != quire_plan_fingerprint(b));
    assert_true(a->geometry_fingerprint == b->geometry_fingerprint);
    quire_plan_destroy(b);
    /* A profile that no codec needs is not looked at. */
    assert_int_equal(quire_plan_create(&b, &other, "k8v4", &with_p), QUIRE_OK);
    assert_null(b->profile);
    assert_true(quire_plan_fingerprint(b) == fingerprint(&other, "k8v4"));
    quire_plan_destroy(b);
    quire_profile_destroy(p);
    quire_profile_destroy(q);
    assert_non_null(quire_tile_format_head(&a->layer[2].k, 1).mean); /* the plan has its own copy */
    quire_plan_destroy(a);
}

/* ----------------------------------------------------------------- memory */

static void memory_runs_out(void **state)
{
    (void)state;
    static const uint32_t w[] = {0, 128, 64, 0};
    quire_geometry g = uniform(4, 4, 2, 64);
    quire_profile *profile = make_profile(&g, 1, true);
    uint64_t n;
    g.windows = w;
    for (n = 1;; n++) {
        struct fail_alloc f;
        fail_alloc_init(&f, n);
        quire_allocator a = fail_alloc_allocator(&f);
        char message[64] = "";
        quire_plan_options options = {sizeof(quire_plan_options), profile, &a, message, sizeof message};
        quire_plan *plan = NULL;
        quire_status status = quire_plan_create(&plan, &g, "balanced,edge=1:r8,sinks=64:f16", &options);
        if (f.calls < n) {
            assert_int_equal(status, QUIRE_OK);
            quire_plan_destroy(plan);
            assert_true(f.outstanding == 0 && f.bytes == 0);
            break;
        }
        assert_int_equal(status, QUIRE_ENOMEM);
        assert_string_equal(message, "out of memory");
        assert_null(plan);
        assert_true(f.outstanding == 0 && f.bytes == 0);
    }
    assert_true(n > 10); /* the loop did fail something */
    quire_profile_destroy(profile);
}

static void references(void **state)
{
    (void)state;
    struct fail_alloc f;
    fail_alloc_init(&f, 0);
    quire_allocator a = fail_alloc_allocator(&f);
    quire_geometry g = uniform(2, 4, 2, 64);
    quire_plan_options options = {sizeof(quire_plan_options), .allocator = &a};
    quire_plan *plan, *held;
    assert_int_equal(quire_plan_create(&plan, &g, "r4", &options), QUIRE_OK);
    held = quire_plan_hold(plan);
    assert_ptr_equal(held, plan);
    quire_plan_destroy(plan);
    assert_true(f.outstanding > 0);
    assert_string_equal(quire_plan_policy(held), "r4/r4");
    quire_plan_destroy(held);
    assert_true(f.outstanding == 0 && f.bytes == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(smollm),
        cmocka_unit_test(windows),
        cmocka_unit_test(mla),
        cmocka_unit_test(large),
        cmocka_unit_test(shapes_per_layer),
        cmocka_unit_test(fingerprints),
        cmocka_unit_test(refusals),
        cmocka_unit_test(profiles),
        cmocka_unit_test(memory_runs_out),
        cmocka_unit_test(references),
        cmocka_unit_test(refused_before_the_plan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
