/* SPDX-License-Identifier: MIT */
/* Which layers stay on the CPU beside a GPU: with the arguments that quire run makes, every layer is where it was. */
#define _POSIX_C_SOURCE 200809L
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "llama/offload.h"
#include "llama/vram.h"
#include "support/gguf_bytes.h"

#include <stdio.h>
#include <stdlib.h>

/* --------------------------------------------------------- llama.cpp's rule */

enum { CPU = -1, MANY = 4 };

/* The device of a layer as load_tensors() finds it, from its text: n_gpu_layers, proportions, layers and one more. */
static int place(uint32_t layer, uint32_t n_blocks, uint32_t ngl, const float *split, uint32_t n)
{
    int all = (int)n_blocks + 1, asked = (int)ngl, il = (int)layer;
    int start = all - asked > 0 ? all - asked : 0, act = asked < all ? asked : all;
    float sum = 0, until[MANY];
    for (uint32_t i = 0; i < n; i++) {
        sum += split[i];
        until[i] = sum;
    }
    for (uint32_t i = 0; i < n; i++) until[i] /= sum;
    if (il < start || il - start >= act) return CPU;
    float at = (float)(il - start) / (float)act;
    for (uint32_t i = 0; i < n; i++)
        if (until[i] > at) return (int)i;
    fail();
    return CPU;
}

static uint32_t read_numbers(const char *text, float *out)
{
    uint32_t n = 0;
    char *end;
    for (; *text; text = *end ? end + 1 : end) out[n++] = strtof(text, &end);
    return n;
}

static void add(host_devices *d, const char *name, const char *backend, bool integrated, double bytes)
{
    host_device_seen *s = &d->device[d->n++];
    *s = (host_device_seen){.identity = "-", .is_integrated = integrated, .free = bytes};
    snprintf(s->name, sizeof s->name, "%s", name);
    snprintf(s->backend, sizeof s->backend, "%s", backend);
}

/* Every layer, the output included: on the CPU before, Quire's now; on a GPU before, on the same one now. */
static void compare(const host_devices *d, const char *split, uint32_t n_blocks, uint32_t ngl)
{
    char text[16];
    offload o;
    float before[MANY], after[MANY];
    snprintf(text, sizeof text, "%u", ngl);
    offload_arrange(&o, d, &(offload_arguments){.layers = text, .split = split}, n_blocks);
    if (ngl > n_blocks) {
        assert_int_equal(o.state, OFFLOAD_NOTHING);
        return;
    }
    assert_int_equal(o.state, OFFLOAD_ARRANGED);
    for (uint32_t i = 0; i < d->n; i++) before[i] = (float)d->device[i].free;
    if (split) assert_int_equal(read_numbers(split, before), d->n);
    assert_int_equal(read_numbers(o.split, after), d->n + 1);
    uint32_t own = 0;
    for (uint32_t i = 0; i <= n_blocks; i++) {
        int was = place(i, n_blocks, ngl, before, d->n), is = place(i, n_blocks, 999, after, d->n + 1);
        assert_int_equal(is, was + 1);
        own += is == 0 && i < n_blocks;
    }
    assert_int_equal(own, o.n_own);
}

static void test_split(void **state)
{
    static const char *const splits[] = {NULL, "1,1,1", "3,1,2", "0.1,0.7,0.2", "0,1,0"};
    host_devices one = {.n = 0}, three = {.n = 0};
    (void)state;
    add(&one, "Vulkan0", "Vulkan", false, 8e9);
    add(&three, "CUDA0", "CUDA", false, 23.7e9);
    add(&three, "CUDA1", "CUDA", false, 11.1e9);
    add(&three, "CUDA2", "CUDA", false, 7.9e9);
    for (uint32_t n = 1; n <= 130; n += n < 64 ? 1 : 11)
        for (uint32_t ngl = 0; ngl <= n + 1; ngl++) {
            compare(&one, NULL, n, ngl);
            for (size_t i = 0; i < sizeof splits / sizeof splits[0]; i++) compare(&three, splits[i], n, ngl);
        }
}

/* ---------------------------------------------------------------- arguments */

static offload arrange(const host_devices *d, const char *line)
{
    static char words[512];
    char *argv[32], *more = NULL;
    int argc = 0;
    offload o;
    offload_arguments a;
    snprintf(words, sizeof words, "%s", line);
    for (char *w = strtok_r(words, " ", &more); w; w = strtok_r(NULL, " ", &more)) argv[argc++] = w;
    offload_read(&a, argc, argv);
    offload_arrange(&o, d, &a, 30);
    return o;
}

static void expect_lists(const host_devices *d, const char *line, const char *devices, const char *split)
{
    offload o = arrange(d, line);
    assert_int_equal(o.state, OFFLOAD_ARRANGED);
    assert_string_equal(o.devices, devices);
    assert_string_equal(o.split, split);
}

static void expect_reason(const host_devices *d, const char *line, const char *part)
{
    offload o = arrange(d, line);
    assert_int_equal(o.state, OFFLOAD_NOTHING);
    assert_non_null(strstr(o.reason, part));
}

static void test_arguments(void **state)
{
    host_devices none = {.n = 0}, d = {.n = 0};
    (void)state;
    add(&d, "Vulkan0", "Vulkan", false, 8e9);
    assert_int_equal(arrange(&none, "llama-server -ngl 16").state, OFFLOAD_NONE);
    expect_lists(&d, "llama-server -ngl 0", "QUIRE0,Vulkan0", "31,0");
    expect_lists(&d, "llama-server -ngl 1", "QUIRE0,Vulkan0", "30,1");
    expect_lists(&d, "llama-server --gpu-layers 16", "QUIRE0,Vulkan0", "15,16");
    expect_lists(&d, "llama-server --n_gpu_layers 30", "QUIRE0,Vulkan0", "1,30");
    expect_lists(&d, "llama-server -ngl 3 -ngl 16 -dev Vulkan0", "QUIRE0,Vulkan0", "15,16");
    expect_lists(&d, "llama-server -ngl 16 -sm none -mg 0", "QUIRE0,Vulkan0", "15,16");
    expect_lists(&d, "/usr/bin/llama-bench -ngl 16", "QUIRE0/Vulkan0", "15/16");
    expect_reason(&d, "llama-server", "without -ngl");
    expect_reason(&d, "llama-server -ngl auto", "without -ngl");
    expect_reason(&d, "llama-server -ngl -1", "without -ngl");
    expect_reason(&d, "llama-server -fit off", "all layers are on the GPU");
    expect_reason(&d, "llama-server -ngl all", "all layers are on the GPU");
    expect_reason(&d, "llama-server -ngl 31", "all layers are on the GPU");
    expect_reason(&d, "llama-bench", "all layers are on the GPU");
    expect_reason(&d, "llama-bench -ngl 0,16", "not one number");
    expect_reason(&d, "llama-server -ngl many", "not one number");
    expect_reason(&d, "llama-server -ngl 16 -sm row", "-sm row");
    expect_reason(&d, "llama-server -ngl 16 --rpc host:50052", "--rpc");
    assert_int_equal(arrange(&d, "llama-server -ngl 16 -dev none").state, OFFLOAD_NONE);
    assert_int_equal(arrange(&d, "llama-server -ngl 16 -dev Vulkan7").state, OFFLOAD_NONE);
    assert_int_equal(arrange(&d, "llama-server -ngl 16 -sm none -mg -1").state, OFFLOAD_NONE);
    assert_int_equal(arrange(&d, "llama-server -dev QUIRE0").state, OFFLOAD_NONE);
    assert_int_equal(arrange(&d, "llama-server -dev Vulkan0,QUIRE0 -ts 1,1").state, OFFLOAD_OWN);
    setenv("LLAMA_ARG_N_GPU_LAYERS", "16", 1);
    expect_lists(&d, "llama-server", "QUIRE0,Vulkan0", "15,16");
    expect_lists(&d, "llama-server -ngl 1", "QUIRE0,Vulkan0", "30,1");
    unsetenv("LLAMA_ARG_N_GPU_LAYERS");
}

/* As llama.cpp chooses: a card that two backends see counts once, and integrated ones only where there is no other. */
static void test_devices(void **state)
{
    host_devices d = {.n = 0};
    (void)state;
    add(&d, "Vulkan0", "Vulkan", true, 8e9);
    add(&d, "Vulkan1", "Vulkan", true, 8e9);
    add(&d, "SYCL0", "SYCL", true, 8e9);
    expect_lists(&d, "llama-server -ngl 16", "QUIRE0,Vulkan0,Vulkan1", "15,8,8");
    add(&d, "CUDA0", "CUDA", false, 8e9);
    add(&d, "Vulkan2", "Vulkan", false, 8e9);
    snprintf(d.device[3].identity, HOST_DEVICE_NAME, "0000:01:00.0");
    snprintf(d.device[4].identity, HOST_DEVICE_NAME, "0000:01:00.0");
    expect_lists(&d, "llama-server -ngl 16", "QUIRE0,CUDA0", "15,16");
    expect_lists(&d, "llama-server -ngl 16 -dev Vulkan2,Vulkan0 -ts 3,1", "QUIRE0,Vulkan2,Vulkan0",
                 "15,12,4");
}

static void test_line(void **state)
{
    char *given[] = {"llama-server", "-m",  "a.gguf", "-ngl", "16", "--device",
                     "Vulkan0",      "-sm", "none",   "-c",   "512"};
    static const char *const made[] = {"llama-server",   "-m",   "a.gguf", "-c",  "512",  "-dev",
                                       "QUIRE0,Vulkan0", "-ngl", "999",    "-ts", "15,16"};
    host_devices d = {.n = 0};
    (void)state;
    add(&d, "Vulkan0", "Vulkan", false, 8e9);
    offload o = arrange(&d, "llama-server -ngl 16");
    char **line = offload_argv(&o, 11, given);
    assert_non_null(line);
    for (size_t i = 0; i < sizeof made / sizeof made[0]; i++) assert_string_equal(line[i], made[i]);
    assert_null(line[sizeof made / sizeof made[0]]);
    free(line);
    assert_true(offload_is_placed(11, given));
    assert_false(offload_is_placed(3, given));
}

/* ------------------------------------------------------------------ weights */

typedef struct tensor_line {
    const char *name;
    uint64_t bytes;
} tensor_line;

static void put_tensors(gguf_bytes *b, const tensor_line *list, uint32_t n)
{
    uint64_t offset = 0;
    for (uint32_t i = 0; i < n; i++) {
        gguf_text(b, list[i].name);
        gguf_number(b, 2, 4);
        gguf_number(b, 64, 8);
        gguf_number(b, 1000, 8);
        gguf_number(b, 0, 4);
        gguf_number(b, offset, 8);
        offset += list[i].bytes;
    }
    b->data[8] = (uint8_t)n;
}

static const tensor_line tensors[] = {
    {"token_embd.weight", 4096},       {"per_layer_token_embd.weight", 800}, {"blk.0.attn_q.weight", 256},
    {"blk.1.attn_q.weight", 512},      {"blk.1.ffn_up.weight", 1024},        {"blk.x.weight", 64},
    {"blk.2000.ffn_up.weight", 64},    {"output_norm.weight", 32},           {"output.weight", 2048},
    {"rope_factors_long.weight", 192},
};
enum {
    N_TENSORS = sizeof tensors / sizeof tensors[0],
    WEIGHTS = 4096 + 800 + 256 + 512 + 1024 + 64 + 64 + 32 + 2048 + 192
};

static void test_weights(void **state)
{
    static gguf_bytes b;
    static gguf_weights w;
    (void)state;
    gguf_begin(&b);
    gguf_string(&b, "general.architecture", "llama");
    gguf_end(&b);
    put_tensors(&b, tensors, N_TENSORS);
    uint64_t data = (b.n + 31) / 32 * 32;
    assert_true(gguf_add_weights(&w, b.data, b.n, data + WEIGHTS));
    assert_true(w.embedding == 4096 && w.output == 2080 && w.layer[0] == 256 && w.layer[1] == 1536);
    assert_true(w.has_output && w.n_tokens == 1000 && w.has_long_factors);
    for (size_t n = 0; n < b.n; n++) assert_false(gguf_add_weights(&w, b.data, n, data + WEIGHTS));
    assert_false(gguf_add_weights(&w, b.data, b.n, data + 100)); /* the last one would lie outside */
}

/* 10 layers of 100 MB with a cache of 1 MB at 1000 tokens, and an output that is the embedding. */
static void fill_model(model *m)
{
    *m = (model){.n_layers = 10, .n_blocks = 10, .n_kv_layers = 10, .context = 4096};
    m->weights.embedding = 50e6;
    m->weights.output = 1e6;
    m->weights.n_tokens = 1000;
    for (uint32_t i = 0; i < m->n_layers; i++) {
        m->layers[i] = (quire_layer){.n_q_heads = 8, .n_kv_heads = 4, .d_k = 64, .d_v = 64};
        m->has_kv[i] = true;
        m->weights.layer[i] = 100e6;
    }
}

static void test_vram(void **state)
{
    static model m;
    model_use use = {.tokens = 1024, .sequences = 1};
    (void)state;
    fill_model(&m);
    vram_need half = vram_need_of(&m, &use, 6);
    assert_true(half.weights == 551e6 && half.kv == 5 * 1024 * 1024.0);
    assert_true(vram_need_of(&m, &use, 0).weights == 0 && vram_need_of(&m, &use, 0).kv == 0);
    assert_true(vram_need_of(&m, &use, 1).weights == 51e6 && vram_need_of(&m, &use, 1).kv == 0);
    assert_true(vram_need_of(&m, &use, 11).weights == 1051e6 && vram_need_of(&m, &use, 99).weights == 1051e6);
    assert_int_equal(vram_layers(&m, &use, vram_bytes(&half)), 6);
    assert_int_equal(vram_layers(&m, &use, vram_bytes(&half) - 1), 5);
    assert_int_equal(vram_layers(&m, &use, 1e12), 11);
    assert_int_equal(vram_layers(&m, &use, 1e6), 0);
    assert_int_equal(vram_tokens(&m, &use, 6, vram_bytes(&half)), 1024);
    assert_int_equal(vram_tokens(&m, &use, 11, vram_bytes(&half)), 0);
    model_cut(&m, 5);
    assert_int_equal(m.n_kv_layers, 5);
    assert_true(model_kv_bytes(&m, NULL, &use) == 5 * 1024 * 1024.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split), cmocka_unit_test(test_arguments), cmocka_unit_test(test_devices),
        cmocka_unit_test(test_line),  cmocka_unit_test(test_weights),   cmocka_unit_test(test_vram),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
