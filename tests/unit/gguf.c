/* SPDX-License-Identifier: MIT */
/* The shape of a model from its metadata: architectures with their own rules, and bytes that lie. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "model.h"
#include "support/gguf_bytes.h"

#include <stdio.h>
#include <stdlib.h>

static gguf_bytes b;
static gguf_facts facts;
static model m;
static char message[256];

static bool read_it(void)
{
    gguf_end(&b);
    return gguf_read(&facts, b.data, b.n, message, sizeof message) &&
           model_from_facts(&m, &facts, message, sizeof message);
}

static void begin(const char *arch, uint32_t layers, uint32_t heads, uint32_t kv_heads)
{
    char key[64];
    gguf_begin(&b);
    gguf_strings(&b, "tokenizer.ggml.tokens", 20); /* skipped, also before the architecture */
    gguf_string(&b, "general.architecture", arch);
    snprintf(key, sizeof key, "%s.block_count", arch);
    gguf_u32(&b, key, layers);
    snprintf(key, sizeof key, "%s.context_length", arch);
    gguf_u32(&b, key, 4096);
    snprintf(key, sizeof key, "%s.embedding_length", arch);
    gguf_u32(&b, key, heads * 64);
    snprintf(key, sizeof key, "%s.attention.head_count", arch);
    gguf_u32(&b, key, heads);
    snprintf(key, sizeof key, "%s.attention.head_count_kv", arch);
    if (kv_heads) gguf_u32(&b, key, kv_heads);
}

static void test_plain(void **state)
{
    (void)state;
    begin("llama", 30, 9, 3);
    assert_true(read_it());
    assert_int_equal(m.n_layers, 30);
    assert_int_equal(m.n_kv_layers, 30);
    assert_int_equal(m.context, 4096);
    for (uint32_t i = 0; i < 30; i++) {
        assert_int_equal(m.layers[i].n_kv_heads, 3);
        assert_int_equal(m.layers[i].d_k, 64);
        assert_int_equal(m.layers[i].d_v, 64);
        assert_int_equal(m.layers[i].window, 0);
    }
    assert_true(model_kv_bytes(&m, NULL, &(model_use){1000, 2}) == 2.0 * 1000 * 30 * 3 * 128 * 2);
    /* The window of Mistral's files is not used by llama.cpp. */
    begin("llama", 2, 8, 0);
    gguf_u32(&b, "llama.attention.sliding_window", 512);
    assert_true(read_it());
    assert_int_equal(m.layers[0].window, 0);
    assert_int_equal(m.layers[0].n_kv_heads, 8); /* as many as query heads */
}

static void test_windows(void **state)
{
    static const uint32_t flags[] = {1, 0, 1, 1};
    (void)state;
    begin("gemma3", 18, 4, 1);
    gguf_u32(&b, "gemma3.attention.key_length", 256);
    gguf_u32(&b, "gemma3.attention.value_length", 256);
    gguf_u32(&b, "gemma3.attention.sliding_window", 512);
    assert_true(read_it());
    for (uint32_t i = 0; i < 18; i++) assert_int_equal(m.layers[i].window, i % 6 == 5 ? 0 : 512);
    /* 1024 cells in 15 layers, all in 3 */
    assert_true(model_kv_bytes(&m, NULL, &(model_use){8192, 1}) == 1024.0 * (15 * 1024 + 3 * 8192));
    assert_int_equal(model_kv_tokens(&m, NULL, 1, 1024.0 * (15 * 1024 + 3 * 8192)), 8192);
    gguf_u32(&b, "gemma3.attention.sliding_window_pattern", 3);
    assert_true(read_it());
    for (uint32_t i = 0; i < 18; i++) assert_int_equal(m.layers[i].window, i % 3 == 2 ? 0 : 512);
    begin("newcomer", 4, 4, 1);
    gguf_u32(&b, "newcomer.attention.sliding_window", 128);
    gguf_array(&b, "newcomer.attention.sliding_window_pattern", 7, flags, 4);
    assert_true(read_it());
    for (uint32_t i = 0; i < 4; i++) assert_int_equal(m.layers[i].window, flags[i] ? 128 : 0);
    begin("cohere2moe", 8, 4, 1);
    gguf_u32(&b, "cohere2moe.attention.sliding_window", 128);
    assert_true(read_it());
    for (uint32_t i = 0; i < 8; i++) assert_int_equal(m.layers[i].window, i % 4 ? 128 : 0);
}

static void test_layers_without_a_cache(void **state)
{
    static const uint32_t kv_heads[] = {0, 2, 0, 4};
    (void)state;
    begin("hybrid", 4, 4, 0);
    gguf_array(&b, "hybrid.attention.head_count_kv", 5, kv_heads, 4);
    assert_true(read_it());
    assert_int_equal(m.n_kv_layers, 2);
    assert_false(m.has_kv[0]);
    assert_true(m.has_kv[3]);
    assert_true(model_kv_bytes(&m, NULL, &(model_use){10, 1}) == 10.0 * 256 * 6);
    assert_true(model_kv_token_bytes(&m, NULL) == 256.0 * 6);
    assert_int_equal(m.layers[0].n_kv_heads, 4); /* a shape that stands for what is missing */
    begin("interval", 8, 4, 2);
    gguf_u32(&b, "interval.full_attention_interval", 4);
    assert_true(read_it());
    assert_int_equal(m.n_kv_layers, 2);
    begin("shared", 8, 4, 2);
    gguf_u32(&b, "shared.attention.shared_kv_layers", 3);
    assert_true(read_it());
    assert_int_equal(m.n_kv_layers, 5);
    begin("predicts", 8, 4, 2);
    gguf_u32(&b, "predicts.nextn_predict_layers", 1);
    assert_true(read_it());
    assert_int_equal(m.n_layers, 7);
}

static void test_mla(void **state)
{
    (void)state;
    begin("deepseek2", 2, 16, 1);
    gguf_u32(&b, "deepseek2.attention.key_length", 576);
    gguf_u32(&b, "deepseek2.attention.value_length", 512);
    gguf_u32(&b, "deepseek2.attention.key_length_mla", 192);
    gguf_u32(&b, "deepseek2.attention.value_length_mla", 128);
    assert_true(read_it());
    assert_int_equal(m.layers[0].v_in_k, 1);
    assert_int_equal(m.layers[0].d_k, 576);
    assert_true(model_kv_bytes(&m, NULL, &(model_use){10, 1}) == 10.0 * 2 * 576 * 2);
}

static void test_bits(void **state)
{
    quire_plan *plan = NULL;
    (void)state;
    begin("llama", 4, 8, 2);
    assert_true(read_it());
    quire_geometry g = model_geometry(&m);
    assert_int_equal(quire_plan_create(&plan, &g, "r8/r4", NULL), QUIRE_OK);
    assert_true(model_kv_bits(&m, plan) == 6.25); /* 8.25 and 4.25 at head size 64 */
    assert_true(model_kv_bits(&m, NULL) == 16);
    assert_false(model_plan_is_calibrated(plan));
    quire_plan_destroy(plan);
}

/* Every shorter file is refused, and no byte that is not there is read (a sanitizer would tell). */
static void test_cut_off(void **state)
{
    (void)state;
    begin("llama", 30, 9, 3);
    gguf_end(&b);
    for (size_t n = 0; n < b.n; n++) {
        uint8_t *copy = (uint8_t *)malloc(n ? n : 1);
        memcpy(copy, b.data, n);
        assert_false(gguf_read(&facts, copy, n, message, sizeof message));
        free(copy);
    }
}

static void expect_refusal(const char *word)
{
    assert_false(read_it());
    if (!strstr(message, word)) fail_msg("\"%s\" does not say \"%s\"", message, word);
}

static void test_lies(void **state)
{
    static const uint32_t negative[] = {UINT32_MAX};
    (void)state;
    begin("llama", 30, 9, 3);
    b.data[0] = 'X';
    expect_refusal("not a GGUF file");
    begin("llama", 30, 9, 3);
    b.data[4] = 1;
    expect_refusal("version");
    begin("llama", 30, 9, 3); /* a string of 2^63 bytes */
    gguf_key(&b, "general.name", 8);
    gguf_number(&b, UINT64_C(1) << 63, 8);
    expect_refusal("damaged");
    begin("llama", 30, 9, 3); /* an array whose size overflows */
    gguf_key(&b, "general.numbers", 9);
    gguf_number(&b, 10, 4);
    gguf_number(&b, UINT64_C(1) << 61, 8);
    expect_refusal("damaged");
    begin("llama", 30, 9, 3); /* an array of arrays */
    gguf_key(&b, "general.numbers", 9);
    gguf_number(&b, 9, 4);
    gguf_number(&b, 1, 8);
    expect_refusal("damaged");
    begin("llama", 30, 9, 3);
    gguf_key(&b, "general.kind", 99);
    expect_refusal("damaged");
    begin("llama", 30, 9, 0);
    gguf_array(&b, "llama.attention.head_count_kv", 5, negative, 1);
    expect_refusal("head_count_kv");
    begin("llama", 30, 9, 3);
    gguf_string(&b, "llama.block_count", "many");
    expect_refusal("block_count");
    begin("llama", 0, 9, 3);
    expect_refusal("0 layers");
    begin("llama", 100000, 9, 3);
    expect_refusal("100000 layers");
    begin("mamba", 8, 0, 0);
    expect_refusal("without a KV cache");
    gguf_begin(&b);
    expect_refusal("architecture");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_layers_without_a_cache),
        cmocka_unit_test(test_mla),
        cmocka_unit_test(test_bits),
        cmocka_unit_test(test_cut_off),
        cmocka_unit_test(test_lies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
