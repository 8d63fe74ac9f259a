/* SPDX-License-Identifier: MIT */
/* Prompt-cache files of mlx-lm: conversions that must come back, and files that lie. tests/mlx has the real mlx-lm. */
#define _POSIX_C_SOURCE 200809L /* open_memstream */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/mlx_bytes.h"

static char message[256];

static bool read_it(mlx_cache *c, const mlx_bytes *b)
{
    return mlx_cache_read(c, (const uint8_t *)b->data, b->n, message, sizeof message);
}

static void expect_codecs(const mlx_bytes *b, mlx_layout layout, const char *k, const char *v)
{
    mlx_cache c;
    assert_non_null(b->data);
    if (!read_it(&c, b)) fail_msg("%s", message);
    assert_int_equal(c.layout, layout);
    assert_int_equal(c.n_layers, 1);
    assert_int_equal(c.layers[0].n_rows, 5);
    assert_int_equal(c.layers[0].n_heads, 2);
    assert_int_equal(c.layers[0].sides[0].d, 32);
    assert_string_equal(c.layers[0].sides[0].codec, k);
    assert_string_equal(c.layers[0].sides[1].codec, v);
    const char *model = safetensors_metadata(&c.file, layout == MLX_LAYOUT_A ? "1.model" : "0.model");
    assert_non_null(model);
    assert_string_equal(model, "m");
    mlx_cache_free(&c);
}

static void test_conversions(void **state)
{
    (void)state;
    mlx_bytes a = mlx_file(MLX_PLAIN_A, MLX_PLAIN_BYTES);
    expect_codecs(&a, MLX_LAYOUT_A, "f16", "f16");
    mlx_bytes b = mlx_converted(&a, MLX_LAYOUT_B, NULL, NULL);
    expect_codecs(&b, MLX_LAYOUT_B, "f16", "f16");
    mlx_bytes back = mlx_converted(&b, MLX_LAYOUT_A, NULL, NULL),
              again = mlx_converted(&back, MLX_LAYOUT_B, NULL, NULL);
    assert_int_equal(again.n, b.n);
    assert_memory_equal(again.data, b.data, b.n); /* nothing was lost on the way */
    mlx_bytes q = mlx_converted(&b, MLX_LAYOUT_B, "a4g32", "a4g32");
    expect_codecs(&q, MLX_LAYOUT_B, "a4g32", "a4g32");
    mlx_bytes split = mlx_converted(&b, MLX_LAYOUT_A, "a8g32", "a3g32");
    expect_codecs(&split, MLX_LAYOUT_A, "a8g32", "a3g32");
    mlx_bytes wide = mlx_converted(&split, MLX_LAYOUT_B, "f32", "f32");
    expect_codecs(&wide, MLX_LAYOUT_B, "f32", "f32");
    mlx_bytes *all[] = {&a, &b, &back, &again, &q, &split, &wide};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]->data);
}

static void test_not_converted(void **state)
{
    static const char *const pairs[][2] = {{"r4", "r4"},       {"f16", "a4g32"},   {"a4g64", "a4g64"},
                                           {"a4g32", "a4g64"}, {"a8g32", "a4g32"}, {"c:r4", "r4"}};
    (void)state;
    mlx_bytes a = mlx_file(MLX_PLAIN_A, MLX_PLAIN_BYTES);
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
        assert_null(mlx_converted(&a, MLX_LAYOUT_B, pairs[i][0], pairs[i][1]).data);
    free(a.data);
}

#define META_A "{\"__metadata__\":{\"0.0\":\"\",\"2.0\":\"KVCache\"},"
#define META_Q(o, g, b)                                                         \
    "{\"__metadata__\":{\"0.0.0\":\"" o "\",\"0.0.1\":\"" g "\",\"0.0.2\":\"" b \
    "\",\"2.0\":\"QuantizedKVCache\"},"
#define META_R(offset, index)                                                                        \
    "{\"__metadata__\":{\"0.0.0\":\"1\",\"0.0.1\":\"5\",\"0.0.2\":\"" offset "\",\"0.0.3\":\"" index \
    "\",\"2.0\":\"RotatingKVCache\"},"
#define PLACE(name, type, shape, from, to) \
    "\"" name "\":{\"dtype\":\"" type "\",\"shape\":" shape ",\"data_offsets\":[" from "," to "]}"
#define QUANTIZED                                                             \
    PLACE("0.0.0", "U32", "[1,2,5,4]", "0", "160")                            \
    "," PLACE("0.0.1", "F16", "[1,2,5,1]", "160", "180") "," PLACE(           \
        "0.0.2", "F16", "[1,2,5,1]", "180",                                   \
        "200") "," PLACE("0.1.0", "U32", "[1,2,5,4]", "200",                  \
                         "360") "," PLACE("0.1.1", "F16", "[1,2,5,1]", "360", \
                                          "380") "," PLACE("0.1.2", "F16", "[1,2,5,1]", "380", "400") "}"
#define K_RIGHT PLACE("0.0", "F16", "[1,2,5,32]", "0", "640") ","
#define V(type, shape, from, to) PLACE("0.1", type, shape, from, to) "}"

/* Each differs from a right file in one point. */
static void test_lies(void **state)
{
    static const struct {
        const char *header, *word;
    } lies[] = {
        {"{}", "not a prompt cache"},
        {"[]", "not the JSON"},
        {"{\"a\":1}", "not the JSON"},
        {META_A K_RIGHT V("F16", "[1,2,5,32]", "640", "1281"), "outside of the data"},
        {META_A K_RIGHT V("F16", "[1,2,5,32]", "640", "1279"), "does not have the size of its shape"},
        {META_A K_RIGHT V("F16", "[1,2,5,32]", "638", "1278"), "overlap"},
        {META_A K_RIGHT V("F16", "[1,2,5,32]", "1280", "640"), "outside of the data"},
        {META_A K_RIGHT V("F16", "[1,2,5,33]", "640", "1280"), "does not have the size of its shape"},
        {META_A K_RIGHT V("F16", "[4294967296,4294967296,5,32]", "640", "1280"),
         "does not have the size of its shape"},
        {META_A K_RIGHT V("F16", "[99999999999999999999,2,5,32]", "640", "1280"), "too large"},
        {META_A K_RIGHT V("F16", "[1,2,-5,32]", "640", "1280"), "a number is missing"},
        {META_A K_RIGHT V("F16", "[1,1,1,1,1,1,1,1,320]", "640", "1280"), "too many dimensions"},
        {META_A K_RIGHT V("F8", "[1,2,5,32]", "640", "1280"), "unknown type"},
        {META_A K_RIGHT V("I16", "[1,2,5,32]", "640", "1280"), "not f16, bf16 or f32"},
        {META_A K_RIGHT V("F16", "[1,5,2,32]", "640", "1280"), "not rows of the same tokens"},
        {META_A K_RIGHT V("F16", "[10,32]", "640", "1280"), "not rows of the same tokens"},
        {META_A K_RIGHT K_RIGHT V("F16", "[1,2,5,32]", "640", "1280"), "overlap"},
        {META_A PLACE("0.0", "F16", "[1,2,5,32]", "0", "640") "}", "missing"},
        {META_A "\"0.0\":{\"dtype\":\"F16\",\"shape\":[1,2,5,32]}}", "has no dtype, shape or data_offsets"},
        {META_A "\"0.0\":{\"dtype\":\"F16\",\"dtype\":\"F16\"}}", "other fields"},
        {META_A "\"0.0\":{\"color\":\"red\"}}", "other fields"},
        {META_A "\"0.0", "not terminated"},
        {META_A "\"\\u0000\":1}", "not valid JSON"},
        {META_A "\"\\ud800x\":1}", "not valid JSON"},
        {META_A K_RIGHT V("F16", "[1,2,5,32]", "640", "1280") "x", "after its end"},
        {META_Q("5", "64", "4") K_RIGHT V("F16", "[1,2,5,32]", "640", "1280"), "missing"},
        {META_Q("5", "64", "4") QUANTIZED, ""},
        {META_Q("5", "7", "4") QUANTIZED, "do not match the arrays"},
        {META_Q("6", "32", "4") QUANTIZED, "larger than the array"},
        {META_R("9", "5") K_RIGHT V("F16", "[1,2,5,32]", "640", "1280"), ""},
        {META_R("9", "6") K_RIGHT V("F16", "[1,2,5,32]", "640", "1280"), "do not match the arrays"},
        {META_R("0", "3") K_RIGHT V("F16", "[1,2,5,32]", "640", "1280"), "do not match the arrays"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        mlx_bytes b = mlx_file(lies[i].header, MLX_PLAIN_BYTES);
        mlx_cache c;
        bool right = read_it(&c, &b);
        if (right) mlx_cache_free(&c);
        if (right != !*lies[i].word || (!right && !strstr(message, lies[i].word)))
            fail_msg("%s: \"%s\", not \"%s\"", lies[i].header, right ? "" : message, lies[i].word);
        free(b.data);
    }
}

/* A file that ends anywhere, and a header that is longer than the file. */
static void test_cut_off(void **state)
{
    (void)state;
    mlx_bytes a = mlx_file(MLX_PLAIN_A, MLX_PLAIN_BYTES);
    mlx_cache c;
    for (size_t n = 0; n < a.n; n++) {
        char *copy = (char *)malloc(n ? n : 1);
        memcpy(copy, a.data, n);
        assert_false(mlx_cache_read(&c, (const uint8_t *)copy, n, message, sizeof message));
        free(copy);
    }
    memset(a.data, 0xff, 8);
    assert_false(read_it(&c, &a));
    free(a.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conversions),
        cmocka_unit_test(test_not_converted),
        cmocka_unit_test(test_lies),
        cmocka_unit_test(test_cut_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
