/* SPDX-License-Identifier: MIT */
/* Architectures with rules of their own: which layers keep a cache, what lies beside it, and what it takes. The small models of
 * tests/llama/archs.py compare the same rules with llama.cpp itself; here are the shapes of large ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "llama/model.h"
#include "support/gguf_bytes.h"

#include <stdio.h>
#include <string.h>

static gguf_bytes b;
static gguf_facts facts;
static model m;
static char message[512];
static char begun[32];

static void number(const char *name, uint32_t value)
{
    char key[96];
    snprintf(key, sizeof key, "%s.%s", begun, name);
    gguf_u32(&b, key, value);
}

static void list(const char *name, const uint32_t values[4])
{
    char key[96];
    snprintf(key, sizeof key, "%s.%s", begun, name);
    gguf_array(&b, key, 5, values, 4);
}

static void begin(const char *arch, uint32_t layers, uint32_t heads, uint32_t kv_heads, uint32_t d)
{
    snprintf(begun, sizeof begun, "%s", arch);
    gguf_begin(&b);
    gguf_string(&b, "general.architecture", arch);
    number("block_count", layers);
    number("context_length", 131072);
    number("embedding_length", heads * d);
    number("attention.head_count", heads);
    number("attention.head_count_kv", kv_heads);
}

static void latent(void)
{
    number("attention.key_length", 576);
    number("attention.value_length", 512);
    number("attention.key_length_mla", 192);
    number("attention.value_length_mla", 128);
}

static bool read_it(void)
{
    gguf_end(&b);
    return gguf_read(&facts, b.data, b.n, message, sizeof message) &&
           model_from_facts(&m, &facts, message, sizeof message);
}

static double f16_bytes(uint64_t tokens)
{
    return model_kv_bytes(&m, NULL, &(model_use){.tokens = tokens, .sequences = 1});
}

static double policy_bytes(const char *policy, uint64_t tokens, bool is_host)
{
    model_plan p;
    assert_int_equal(model_plan_create(&p, &m, policy, NULL, NULL, 0), QUIRE_OK);
    p.is_host = is_host;
    double bytes = model_kv_bytes(&m, &p, &(model_use){.tokens = tokens, .sequences = 1});
    model_plan_destroy(&p);
    return bytes;
}

/* DeepSeek V3.2: a latent cache, and an indexer in each layer. */
static void test_indexer(void **state)
{
    (void)state;
    begin("deepseek32", 61, 128, 1, 56);
    latent();
    number("attention.indexer.key_length", 128);
    assert_true(read_it());
    assert_int_equal(m.n_kv_layers, 61);
    assert_true(f16_bytes(4096) == 61.0 * 2 * (576 + 128) * 4096);
    /* The host is told a type and uses it for both. */
    assert_true(policy_bytes("q8_0", 4096, true) == 61.0 * (576 + 128) / 32 * 34 * 4096);
    /* A policy is not used for the indexer's keys. */
    assert_true(policy_bytes("r8", 4096, false) >= 61.0 * 2 * 128 * 4096);
}

/* GLM: an indexer where the file says; without a list in all layers, in files for long contexts in every fourth. */
static void test_listed_indexers(void **state)
{
    static const uint32_t types[] = {1, 0, 0, 1};
    (void)state;
    begin("glm-dsa", 4, 64, 1, 96);
    latent();
    number("attention.indexer.key_length", 128);
    list("attention.indexer.types", types);
    assert_true(read_it());
    assert_true(f16_bytes(4096) == 2.0 * (4 * 576 + 2 * 128) * 4096);
    begin("glm-dsa", 12, 64, 1, 96);
    latent();
    number("attention.indexer.key_length", 128);
    assert_true(read_it());
    assert_true(f16_bytes(4096) == 2.0 * 12 * (576 + 128) * 4096);
    begin("glm-dsa", 12, 64, 1, 96);
    latent();
    number("attention.indexer.key_length", 128);
    number("context_length", 1048576);
    assert_true(read_it());
    assert_true(f16_bytes(4096) == 2.0 * (12 * 576 + 5 * 128) * 4096); /* 0, 1, 2, 6, 10 */
}

/* MiniMax-M3: its first layers have no indexer; llama.cpp gives the others a V beside its keys. */
static void test_later_indexers(void **state)
{
    (void)state;
    begin("minimax-m3", 60, 64, 4, 128);
    number("leading_dense_block_count", 3);
    number("attention.indexer.key_length", 128);
    assert_true(read_it());
    assert_true(f16_bytes(1024) == 2.0 * (60 * 2 * 4 * 128 + 57 * 2 * 128) * 1024);
}

/* DeepSeek V4: windows in every layer, and compressed rows beside them. */
static void test_compressed(void **state)
{
    static const uint32_t ratios[] = {0, 4, 128, 4};
    (void)state;
    begin("deepseek4", 4, 64, 1, 64);
    number("attention.key_length", 512);
    number("attention.value_length", 512);
    number("attention.sliding_window", 128);
    number("attention.indexer.key_length", 128);
    list("attention.compress_ratios", ratios);
    assert_true(read_it());
    assert_int_equal(m.n_window_layers, 4);
    double rows =
        4 * 512 * 768 + 2 * 512 * 16384 + 512 * 512 + 2 * 128 * 16384; /* 65536 / 4, and 65536 / 128 */
    assert_true(f16_bytes(65536) == 2 * rows);
    assert_true(model_kv_token_bytes(&m, NULL) == 2 * (2 * 512 / 4.0 + 512 / 128.0 + 2 * 128 / 4.0));
}

static void test_recurrent(void **state)
{
    static const uint32_t some[] = {1, 0, 1, 1}, heads[] = {0, 2, 2, 0}, ffn[] = {0, 0, 64, 64};
    (void)state;
    begin("qwen3next", 48, 16, 2, 256);
    assert_true(read_it());
    assert_int_equal(m.n_kv_layers, 12); /* every fourth, which the file need not say */
    begin("qwen3next", 4, 16, 2, 256);
    list("attention.recurrent_layers", some);
    assert_true(read_it());
    assert_int_equal(m.n_kv_layers, 1);
    assert_true(m.has_kv[1]);
    begin("nemotron_h", 4, 2, 2, 64);
    list("attention.head_count_kv", heads);
    list("feed_forward_length", ffn);
    assert_true(read_it());
    assert_int_equal(m.n_kv_layers, 1);
    assert_true(m.has_kv[1]);
    begin("mamba", 4, 2, 2, 64);
    assert_false(read_it());
    assert_int_equal(m.kind, ARCH_NONE);
    assert_non_null(strstr(message, "without a KV cache: its layers keep a state"));
}

static void test_windows(void **state)
{
    (void)state;
    begin("exaone4", 30, 32, 8, 128); /* only the model of 64 layers has windows */
    number("attention.sliding_window", 4096);
    assert_true(read_it());
    assert_int_equal(m.n_window_layers, 0);
    begin("exaone4", 64, 40, 8, 128);
    number("attention.sliding_window", 4096);
    assert_true(read_it());
    assert_int_equal(m.n_window_layers, 48);
    begin("llama4", 48, 40, 8, 128); /* 8192 whatever the file says */
    number("attention.sliding_window", 512);
    assert_true(read_it());
    assert_int_equal(m.layers[0].window, 8192);
    begin("lfm2", 4, 16, 4, 64); /* no layer without a window: the device sees none either */
    number("attention.sliding_window", 128);
    assert_true(read_it());
    assert_int_equal(m.n_window_layers, 4);
    assert_true(f16_bytes(8192) == 4.0 * 2 * 2 * 4 * 64 * 768);
    assert_true(policy_bytes("q8_0", 8192, false) == 4.0 * 2 * 4 * 68 * 768);
}

/* Layers that use the cache of another one are counted once; a model whose layers all have their own is like any other. */
static void test_shared(void **state)
{
    (void)state;
    begin("gemma3n", 35, 8, 2, 256);
    number("attention.sliding_window", 1024);
    assert_true(read_it());
    assert_int_equal(m.n_kv_layers, 20);
    assert_int_equal(m.n_window_layers, 16);
    assert_true(f16_bytes(1024) == 20.0 * 2 * 2 * 2 * 256 * 1024);
    begin("gemma4", 30, 8, 2, 256);
    assert_true(read_it());
    assert_int_equal(m.n_kv_layers, 30);
    assert_int_equal(m.kind, ARCH_TILES);
    assert_null(m.note);
}

/* Layers that run twice keep rows for each time. */
static void test_loops(void **state)
{
    (void)state;
    begin("nanbeige", 10, 8, 2, 64);
    number("num_loops", 2);
    assert_true(read_it());
    assert_int_equal(m.n_kv_layers, 20);
    assert_true(f16_bytes(1024) == 20.0 * 2 * 2 * 2 * 64 * 1024);
    begin("nanbeige", 600, 8, 2, 64);
    number("num_loops", 2);
    assert_false(read_it());
    begin("nanbeige", 2, 8, 2, 64);
    number("num_loops", 2147483647);
    read_it(); /* only that nothing overflows */
}

/* What is stored as without Quire takes as much under every policy. */
static void test_plain(void **state)
{
    (void)state;
    begin("grok", 64, 48, 8, 128);
    assert_true(read_it());
    assert_int_equal(m.kind, ARCH_PLAIN);
    assert_non_null(m.note);
    assert_true(policy_bytes("r4", 4096, false) == f16_bytes(4096));
    assert_true(policy_bytes("q8_0", 4096, true) < f16_bytes(4096));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_indexer),        cmocka_unit_test(test_listed_indexers),
        cmocka_unit_test(test_later_indexers), cmocka_unit_test(test_compressed),
        cmocka_unit_test(test_recurrent),      cmocka_unit_test(test_windows),
        cmocka_unit_test(test_shared),         cmocka_unit_test(test_loops),
        cmocka_unit_test(test_plain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
