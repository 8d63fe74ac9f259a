/* SPDX-License-Identifier: MIT */
/* The shape of a model from its metadata: architectures with their own rules, and bytes that lie. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "llama/model.h"
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
    assert_true(model_kv_bytes(&m, NULL, &(model_use){.tokens = 1024, .sequences = 2}) ==
                2.0 * 1024 * 30 * 3 * 128 * 2);
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
    model_use use = {.tokens = 8192, .sequences = 1};
    assert_true(model_kv_bytes(&m, NULL, &use) == 1024.0 * (15 * 1024 + 3 * 8192));
    assert_int_equal(model_kv_tokens(&m, NULL, &use, 1024.0 * (15 * 1024 + 3 * 8192)), 8192);
    assert_int_equal(m.n_window_layers, 15);
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
    assert_true(model_kv_bytes(&m, NULL, &(model_use){.tokens = 256, .sequences = 1}) == 256.0 * 256 * 6);
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
    assert_true(model_kv_bytes(&m, NULL, &(model_use){.tokens = 256, .sequences = 1}) == 256.0 * 2 * 576 * 2);
}

static void begin_gemma(uint32_t window)
{
    begin("gemma3", 18, 4, 1);
    gguf_u32(&b, "gemma3.attention.key_length", 256);
    gguf_u32(&b, "gemma3.attention.value_length", 256);
    gguf_u32(&b, "gemma3.attention.sliding_window", window);
    assert_true(read_it());
}

/* What llama.cpp 0.7.0 (b11669) prints as the cells of Gemma3's two caches: full layers, window layers. */
static void test_cells(void **state)
{
    static const struct {
        model_use use;
        uint32_t full, window, caches;
    } cases[] = {
        {{.tokens = 4096, .sequences = 1}, 4096, 1024, 1},
        {{.tokens = 2048, .sequences = 2}, 2048, 1024, 2},                    /* -c 4096 -np 2 */
        {{.tokens = 4096, .sequences = 4, .is_shared = true}, 4096, 2560, 1}, /* llama-server without -np */
        {{.tokens = 4096, .sequences = 2, .is_shared = true}, 4096, 1536, 1}, /* -np 2 -kvu */
        {{.tokens = 4096, .sequences = 1, .batch = 1024}, 4096, 1536, 1},     /* -ub 1024 */
        {{.tokens = 8192, .sequences = 1, .full_windows = true}, 8192, 8192, 1}, /* --swa-full */
        {{.tokens = 100, .sequences = 1}, 256, 256, 1},
        {{.tokens = 600, .sequences = 1}, 768, 768, 1},
    };
    (void)state;
    begin_gemma(512);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        double cells = 3.0 * cases[i].full + 15.0 * cases[i].window;
        assert_true(model_kv_bytes(&m, NULL, &cases[i].use) == 1024 * cells * cases[i].caches);
    }
}

/* Bytes that the device reserves for Gemma3 with these arguments, from its lines "bytes/page": pages of 64 cells. */
static void test_sizes_of_the_device(void **state)
{
    model_plan safe, coded;
    (void)state;
    begin_gemma(512);
    assert_int_equal(model_plan_create(&safe, &m, "safe", NULL, message, sizeof message), QUIRE_OK);
    assert_int_equal(model_plan_create(&coded, &m, "safe,window=r8", NULL, message, sizeof message),
                     QUIRE_OK);
    model_use use = {.tokens = 4096, .sequences = 1};
    assert_true(model_kv_bytes(&m, &safe, &use) == 99072.0 * 64 + 983040.0 * 16);
    assert_true(model_kv_bytes(&m, &coded, &use) == 99072.0 * 64 + 495360.0 * 16);
    assert_true(model_kv_bits(&m, &safe) == 16 * 1548.0 / 3072);
    assert_true(model_kv_bits_all(&m, &safe, &use) == 16 * (99072.0 * 64 + 983040.0 * 16) / (27 * 1048576));
    /* All layers of one length, above 4096: the device gives window layers the codecs of the others. */
    use = (model_use){.tokens = 8192, .sequences = 1, .full_windows = true};
    assert_true(model_kv_bytes(&m, &safe, &use) == 594432.0 * 128);
    use.tokens = 4096;
    assert_true(model_kv_bytes(&m, &safe, &use) == 99072.0 * 64 + 983040.0 * 64);
    model_plan_destroy(&safe);
    model_plan_destroy(&coded);
    begin_gemma(8192);
    assert_int_equal(model_plan_create(&safe, &m, "safe", NULL, message, sizeof message), QUIRE_OK);
    assert_true(model_kv_bytes(&m, &safe, &(model_use){.tokens = 8192, .sequences = 1}) == 594432.0 * 128);
    model_plan_destroy(&safe);
}

static void test_bits(void **state)
{
    model_plan plan;
    (void)state;
    begin("llama", 4, 8, 2);
    assert_true(read_it());
    assert_int_equal(model_plan_create(&plan, &m, "r8/r4", NULL, message, sizeof message), QUIRE_OK);
    assert_true(model_kv_bits(&m, &plan) == 6.25); /* 8.25 and 4.25 at head size 64 */
    assert_true(model_kv_bits_all(&m, &plan, &(model_use){.tokens = 4096, .sequences = 3}) == 6.25);
    assert_true(model_kv_bits(&m, NULL) == 16);
    assert_false(model_plan_is_calibrated(&plan));
    model_plan_destroy(&plan);
    assert_int_equal(model_plan_create(&plan, &m, "x9", NULL, message, sizeof message), QUIRE_EINVAL);
    assert_non_null(strstr(message, "x9"));
}

/* Of the model as it was read last: made-up rows. */
static quire_profile *make_profile(void)
{
    quire_profile *profile = NULL;
    static float rows[8 * 4 * 64];
    quire_geometry g = model_geometry(&m);
    for (uint32_t i = 0; i < sizeof rows / sizeof rows[0]; i++) rows[i] = (float)(i * 31 % 17) - 8;
    assert_int_equal(quire_profile_create(&profile, &g, NULL), QUIRE_OK);
    for (uint32_t layer = 0; layer < m.n_layers; layer++) {
        assert_int_equal(quire_profile_observe_k(profile, layer, 8, rows, 8), QUIRE_OK);
        assert_int_equal(quire_profile_observe_q(profile, layer, 0, rows, 8), QUIRE_OK);
    }
    assert_int_equal(quire_profile_finish(profile), QUIRE_OK);
    return profile;
}

/* A profile of another model would hide what policies without c: codecs are warned of. */
static void test_profile(void **state)
{
    model_plan plan;
    (void)state;
    begin("llama", 4, 4, 4);
    assert_true(read_it());
    quire_profile *profile = make_profile();
    assert_true(model_profile_fits(&m, profile));
    begin("llama", 4, 4, 2);
    assert_true(read_it());
    assert_false(model_profile_fits(&m, profile));
    assert_int_equal(model_plan_create(&plan, &m, "r4", profile, message, sizeof message), QUIRE_OK);
    assert_null(quire_plan_warning(plan.plan));
    model_plan_destroy(&plan);
    assert_int_equal(model_plan_create(&plan, &m, "r4", NULL, message, sizeof message), QUIRE_OK);
    assert_non_null(quire_plan_warning(plan.plan));
    model_plan_destroy(&plan);
    quire_profile_destroy(profile);
}

static void expect_rope(const char *text)
{
    char rope[MODEL_ROPE_SIZE];
    assert_true(read_it());
    assert_string_equal(model_rope_text(rope, &m), text);
}

static void test_rope(void **state)
{
    (void)state;
    begin("llama", 4, 8, 2);
    expect_rope("");
    gguf_string(&b, "llama.rope.scaling.type", "yarn");
    gguf_f32(&b, "llama.rope.scaling.factor", 4);
    gguf_u32(&b, "llama.rope.scaling.original_context_length", 1024);
    expect_rope("yarn, factor 4, original context 1024");
    begin("llama", 4, 8, 2); /* a name of before, without a type */
    gguf_f32(&b, "llama.rope.scale_linear", 2.5f);
    expect_rope("linear, factor 2.5");
    begin("llama", 4, 8, 2);
    gguf_string(&b, "llama.rope.scaling.type", "longrope");
    gguf_u32(&b, "llama.rope.scaling.original_context_length", 2048);
    expect_rope("longrope, original context 2048");
    m.weights = (gguf_weights){.n_tokens = 1};
    assert_string_equal(model_rope_factors(&m, 4096), ""); /* one set */
    m.weights.has_long_factors = true;
    assert_string_equal(model_rope_factors(&m, 2048), "factors=short");
    assert_string_equal(model_rope_factors(&m, 2304), "factors=long");
    m.weights = (gguf_weights){.n_tokens = 0}; /* nobody knows */
    assert_string_equal(model_rope_factors(&m, 2304), "factors=long");
    begin("llama", 4, 8, 2); /* these change nothing */
    gguf_string(&b, "llama.rope.scaling.type", "linear");
    gguf_f32(&b, "llama.rope.scaling.factor", 1);
    gguf_u32(&b, "llama.rope.scaling.original_context_length", 4096);
    expect_rope("");
    begin("llama", 4, 8, 2);
    gguf_string(&b, "llama.rope.scaling.type", "none");
    gguf_f32(&b, "llama.rope.scaling.factor", 8);
    expect_rope("");
}

/* The cache does not depend on them, so a model with nonsense there is still a model. */
static void test_rope_nonsense(void **state)
{
    static const uint32_t list[] = {4, 4};
    (void)state;
    begin("llama", 4, 8, 2);
    gguf_f32(&b, "llama.rope.scaling.factor", -4);
    gguf_u32(&b, "llama.rope.scaling.original_context_length", UINT32_MAX);
    gguf_u32(&b, "llama.rope.scaling.type", 7);
    expect_rope("");
    begin("llama", 4, 8, 2);
    gguf_key(&b, "llama.rope.scaling.factor", 6);
    gguf_number(&b, 0x7fc00000, 4); /* NaN */
    expect_rope("");
    begin("llama", 4, 8, 2);
    gguf_array(&b, "llama.rope.scaling.factor", 5, list, 2);
    expect_rope("");
    begin("llama", 4, 8, 2);
    gguf_string(&b, "llama.rope.scaling.type", "a name that is far too long for a type of scaling");
    gguf_u32(&b, "llama.rope.scaling.factor", INT32_MAX);
    gguf_u32(&b, "llama.rope.scaling.original_context_length", INT32_MAX);
    expect_rope("a name that is , factor 2.147e+09, original context 2147483647");
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
        cmocka_unit_test(test_cells),
        cmocka_unit_test(test_sizes_of_the_device),
        cmocka_unit_test(test_bits),
        cmocka_unit_test(test_profile),
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_rope_nonsense),
        cmocka_unit_test(test_cut_off),
        cmocka_unit_test(test_lies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
