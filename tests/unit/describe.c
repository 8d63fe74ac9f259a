/* SPDX-License-Identifier: MIT */
/* What plans say about themselves: bytes per token of every codec, reasons, the text for people. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "plan_kit.h"
#include "support/codec_sizes.h"

#include <string.h>

/* ----------------------------------------------------------------- sizes */

static void bits_per_value(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        double bits;
    } table[] = {
        {"f32", 32},      {"f16", 16},    {"bf16", 16},     {"a8g64", 8.5},   {"a4g64", 4.5}, {"a4g32", 5},
        {"a4g128", 4.25}, {"a3g64", 3.5}, {"a2g128", 2.25}, {"q8_0", 8.5},    {"q5_1", 6},    {"q5_0", 5.5},
        {"q4_1", 5},      {"q4_0", 4.5},  {"iq4_nl", 4.5},  {"r8", 8.125},    {"r5", 5.125},  {"r4", 4.125},
        {"r3", 3.125},    {"tq2", 2.125}, {"h:q8_0", 8.5},  {"h:a4g64", 4.5}, {"tv4", 4.125}, {"tv3", 3.125},
    };
    quire_geometry g = uniform(1, 1, 1, 128);
    for (size_t i = 0; i < COUNT(table); i++) {
        quire_plan *plan = make(&g, table[i].name);
        assert_true(quire_plan_bytes_per_token(plan) == 2 * 128 * table[i].bits / 8);
        assert_true(quire_codec_bits(table[i].name, 128) == table[i].bits);
        quire_plan_destroy(plan);
    }
    /* There is none that a plan cannot use, whatever the head size; only tv takes powers of two alone. */
    for (uint32_t i = 0; i < quire_codec_count(); i++) {
        const quire_codec_info *codec = quire_codec_at(i);
        if (codec->flags & QUIRE_CODEC_CALIBRATED) continue;
        for (uint32_t d = 1; d <= 1024; d += d < 130 ? 1 : 149) {
            if (!codec_takes(codec, d, 0)) continue;
            g = uniform(1, 1, 1, d);
            quire_plan_destroy(make(&g, codec->name));
        }
    }
}

static void odd_head_sizes(void **state)
{
    (void)state;
    static const struct {
        uint32_t d_k, d_v;
        const char *policy;
        double bytes;
        const char *reason;
    } table[] = {
        {80, 80, "a4g64", 2 * 48,
         "head size 80 is not a multiple of 64: the last group of a row has 16 values"},
        {40, 40, "a4g64", 2 * 28,
         "head size 40 is less than 64: a row is one short group; head size 40 is padded to 48"},
        {33, 33, "a8g32", 2 * 56,
         "head size 33 is not a multiple of 32: the last group of a row has 1 value; head size 33 is padded to 48"},
        {80, 80, "r4", 2 * 42, NULL},
        {40, 40, "f16", 2 * 96, "head size 40 is padded to 48"},
        {33, 33, "r8/f16", 50 + 96, "head size 33 is padded to 48"},
        {80, 80, "r4/a4g64", 42 + 48,
         "V head size 80 is not a multiple of 64: the last group of a row has 16 values"},
        {80, 64, "a4g64/a4g64", 48 + 36,
         "K head size 80 is not a multiple of 64: the last group of a row has 16 values"},
        {1023, 1001, "f16,edge=1:a4g128/a4g64", 512 + 32 + 504 + 64,
         "edge layer; K head size 1023 is not a multiple of 128: the last group of a row has 127 values; "
         "K head size 1023 is padded to 1024; V head size 1001 is not a multiple of 64: the last group of a row "
         "has 41 values; V head size 1001 is padded to 1008"},
    };
    for (size_t i = 0; i < COUNT(table); i++) {
        quire_geometry g = uniform(1, 1, 1, table[i].d_k);
        g.d_v = table[i].d_v;
        quire_plan *plan = make(&g, table[i].policy);
        quire_plan_layer l = {.size = sizeof l};
        assert_int_equal(quire_plan_layer_info(plan, 0, &l), QUIRE_OK);
        assert_true(l.bytes_per_token == table[i].bytes);
        assert_true(!l.reason == !table[i].reason);
        if (l.reason) assert_string_equal(l.reason, table[i].reason);
        quire_plan_destroy(plan);
    }
}

/* --------------------------------------------------------------- describe */

struct sink {
    char text[4096];
    size_t used;
    uint32_t calls, fail_at;
};

static quire_status collect(void *ctx, const void *bytes, size_t n)
{
    struct sink *s = ctx;
    if (++s->calls == s->fail_at) return QUIRE_EFULL;
    assert_true(s->used + n < sizeof s->text);
    memcpy(s->text + s->used, bytes, n);
    s->used += n;
    s->text[s->used] = 0;
    return QUIRE_OK;
}

static void check_text(const quire_geometry *geometry, const char *policy, const char *expected)
{
    struct sink s = {.used = 0};
    quire_plan *plan = make(geometry, policy);
    assert_int_equal(quire_plan_describe(plan, collect, &s), QUIRE_OK);
    assert_string_equal(s.text, expected);
    for (uint32_t n = s.calls; n; n--) { /* a write that fails is the last one */
        struct sink broken = {.fail_at = n};
        assert_int_equal(quire_plan_describe(plan, collect, &broken), QUIRE_EIO);
        assert_int_equal(broken.calls, n);
    }
    assert_int_equal(quire_plan_describe(plan, NULL, &s), QUIRE_EINVAL);
    quire_plan_destroy(plan);
}

static void describe(void **state)
{
    (void)state;
    static const uint32_t w[] = {0, 0, 512, 512, 0, 0};
    quire_geometry g = uniform(6, 32, 8, 128);
    check_text(&g, "k8v4",
               "policy: a8g64/a4g64\n"
               "group 0: full attention, 6 layers, 638976 bytes/page\n"
               "layers 0-5: K a8g64 V a4g64, 1664 bytes/token each\n"
               "total: 9984 bytes/token, 40.6% of f16\n");
    g.windows = w;
    check_text(
        &g, "k4v4,edge=1:a8g64/a4g64,sinks=4:bf16/f16",
        "policy: a4g64/a4g64,edge=1:a8g64/a4g64,sinks=4:bf16/f16\n"
        "group 0: full attention, 4 layers, 360448 bytes/page; tokens 0-63: K bf16 V f16, 1048576 bytes/page\n"
        "group 1: window of 512 tokens, 2 layers, 524288 bytes/page\n"
        "layer 0: K a8g64 V a4g64, 1664 bytes/token, edge layer; the first 64 tokens are sinks\n"
        "layer 1: K a4g64 V a4g64, 1152 bytes/token, the first 64 tokens are sinks\n"
        "layers 2-3: K f16 V f16, 4096 bytes/token each, window layer: kept as small float pages\n"
        "layer 4: K a4g64 V a4g64, 1152 bytes/token, the first 64 tokens are sinks\n"
        "layer 5: K a8g64 V a4g64, 1664 bytes/token, edge layer; the first 64 tokens are sinks\n"
        "total: 5632 bytes/token, 34.4% of f16; window layers do not grow with the length\n"
        "warning: K in a4g64 without a profile changes the generated text of many models; use 5 bits or more for K, or a "
        "profile\n");
    static const quire_layer layers[] = {{1, 1, 16, 16, 9, 0}};
    g = per_layer(layers, 1);
    check_text(&g, "r4,window=r4",
               "policy: r4/r4,window=r4/r4\n"
               "group 0: window of 9 tokens, 1 layer, 1280 bytes/page\n"
               "layer 0: K r4 V r4, 20 bytes/token, window layer\n"
               "total: no layer grows with the length\n");
    static const quire_layer mixed[] = {{2, 1, 192, 128, 0, 1}, {2, 1, 64, 64, 0, 0}};
    g = per_layer(mixed, 2);
    check_text(
        &g, "f16,sinks=1:f32",
        "policy: f16/f16,sinks=1:f32/f32\n"
        "group 0: full attention, 2 layers, 40960 bytes/page; tokens 0-63: K f32 V f32, 81920 bytes/page\n"
        "layer 0: K f16, 384 bytes/token, the first 64 tokens are sinks; V is a prefix of K\n"
        "layer 1: K f16 V f16, 256 bytes/token, the first 64 tokens are sinks\n"
        "total: 640 bytes/token, 100.0% of f16\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_per_value),
        cmocka_unit_test(odd_head_sizes),
        cmocka_unit_test(describe),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
