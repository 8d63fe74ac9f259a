/* SPDX-License-Identifier: MIT */
/* quire run as a user calls it: models made here, and hosts that cannot load the device. */
#define _POSIX_C_SOURCE 200809L
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/model_files.h"

#include <sys/stat.h>

/* A program that does `listing` when it is asked for its devices, and else prints its arguments. */
static void write_host(const char *name, const char *listing)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(
        file,
        "#!/bin/sh\ncase \"$*\" in\n*--list-devices) %s ;;\n*) echo \"started: $* <$LLAMA_ARG_N_GPU_LAYERS>\" ;;\n"
        "esac\n",
        listing);
    fclose(file);
    assert_int_equal(chmod(path, 0755), 0);
}

static int set_up(void **state)
{
    model_shape empty = plain_model;
    if (make_folder(state)) return -1;
    write_model("model.gguf", &plain_model);
    write_model("window.gguf", &window_model);
    empty.layers = 0;
    write_model("empty.gguf", &empty);
    empty = plain_model;
    empty.arch = "grok";
    write_model("grok.gguf", &empty);
    empty.arch = "mamba";
    write_model("mamba.gguf", &empty);
    empty = plain_model;
    empty.context = 0;
    write_model("untrained.gguf", &empty);
    write_host("llama-bench", "exit 0");
    write_host("llama-gpu", "echo quire-device Vulkan0 gpu Vulkan - 8000000000");
    write_host("llama-odd", "echo quire-device Vulkan0; echo quire-device X Y Z; exit 0");
    write_host("llama-bad", "echo quire-device Vulkan0 gpu Vulkan - 8000000000; exit 7");
    write_host("llama-killed", "kill -9 $$");
    return 0;
}

static void test_line(void **state)
{
    (void)state;
    need_command();
    expect(
        "run --kv r8/r4 -- true -m %M/model.gguf -c 4096 2>&1", 0,
        "quire run: r8/r4: the KV cache of 4096 tokens takes 35.2 MiB instead of 90.0 MiB in f16, 54.8 MiB saved\n");
    expect("run --ram 16G true -m %M/model.gguf 2>&1", 0,
           "quire run: safe is r8/r8: the KV cache of 8192 tokens takes 92.8");
    expect("run --json --kv r8/r4 -- true --model %M/model.gguf -c 8192 -np 2 2>&1", 0,
           "\"tokens\":4096,\"sequences\":2,\"f16_bytes\":188743680,\"bytes\":73728000,");
    expect("run --kv r4 -- true -m %M/model.gguf 2>&1", 0, "quire run: warning: K in r4");
    expect("run -- true -m %M/model.gguf -fa off 2>&1", 0, "nothing is saved, because -fa off");
    expect("run -- true -m %M/model.gguf --flash_attn off 2>&1", 0, "nothing is saved, because -fa off");
    expect("run -- true --no_kv_offload 2>&1", 0, "because -nkvo");
    expect("run -- true -ngl 0 2>&1", 0, "-ngl 0");
    expect("run -- true --n_gpu_layers 0 2>&1", 0, "-ngl 0");
    static const char *const no_obstacle[] = {"true -ngl 0 --n-gpu-layers 5", "true -ngl 0 --gpu-layers 5",
                                              "true --gpu-layers 0 -ngl 5", "%M/llama-bench -nkvo 0",
                                              "%M/llama-bench -nkvo 1,0 -ngl 0,99"};
    for (size_t i = 0; i < sizeof no_obstacle / sizeof no_obstacle[0]; i++) {
        char line[128];
        snprintf(line, sizeof line, "run %s 2>&1", no_obstacle[i]);
        expect_not(line, 0, "keeps the cache away");
    }
    expect("--version >/dev/null; LLAMA_ARG_N_GPU_LAYERS=0 %B/quire run true --gpu-layers 5 2>&1", 0,
           "name no model file");
    expect("run %M/llama-bench -nkvo 1 2>&1", 0, "-nkvo");
    expect("run %M/llama-bench -m %M/model.gguf,%M/mamba.gguf 2>&1", 0, "name no single model file");
    expect("run -- true -m %M/model.gguf -fa false 2>&1", 0, "nothing is saved, because -fa off");
    expect("run -- true -m %M/model.gguf -fa disabled 2>&1", 0, "nothing is saved, because -fa off");
    expect("run true 2>&1", 0, "name no model file");
    expect("run true -m %M/untrained.gguf 2>&1", 0, "neither -c nor the model's file tells the context");
    expect("run --kv safe true -m %M/model.gguf -c 4096 -np 3 2>&1", 0,
           "the KV cache of 4096 tokens takes 52.2 MiB"); /* three of 1536 */
}

/* What quire run --env prints if it takes what quire plan recommends for 4096 tokens. */
static const char *recommended(const char *ram)
{
    static char text[64];
    char line[256];
    snprintf(line, sizeof line, "plan --json --ctx 4096 --ram %s %%M/model.gguf", ram);
    const char *at = value_of(run_in(line)->text, "recommended");
    snprintf(text, sizeof text, "QUIRE_KV=%.*s\n", (int)strcspn(at + 1, "\""), at + 1);
    return text;
}

/* Without --kv it is what quire plan recommends, unless the user has to be asked. */
static void test_default(void **state)
{
    static const char line[] = "QUIRE_KV=safe\n";
    (void)state;
    need_command();
    assert_string_equal(recommended("1G"), line);
    expect("run --env true -m %M/model.gguf -c 4096 2>/dev/null", 0, line);
    expect("run --env true 2>/dev/null", 0, line);
    /* 4096 tokens: safe needs 46.4 MiB, balanced 29.5, small 23.9 */
    expect_not("run --ram 47M true -m %M/model.gguf -c 4096 2>&1", 0, "available");
    static const char too_small[] = "run --ram 40M --env true -m %M/model.gguf -c 4096 2>&1";
    expect(too_small, 0, line);
    expect(
        too_small, 0,
        "quire run: safe needs 46.4 MiB for the KV cache and 40.0 MiB of memory is available beside the model; --kv "
        "balanced would fit, with 29.5 MiB (--kv fit chooses it)\n");
    expect("run --ram 10M true -m %M/model.gguf -c 4096 2>&1", 0,
           "no preset fits, not even --kv small with 23.9 MiB, but -c 768 would fit with safe\n");
    expect("run --ram 10M true -m %M/model.gguf -c 4096 -np 2 2>&1", 0, "but -c 512 would fit with safe\n");
    expect("run --ram 1M sh -c 'exit 5' -m %M/model.gguf 2>&1", 5, "no preset fits");
    expect_not("run --ram 1M true -m %M/model.gguf 2>&1", 0, " -c ");
    /* Who chooses is not told what else there is. */
    expect_not("run --ram 10M --kv safe true -m %M/model.gguf 2>&1", 0, "available");
    expect_not("--version >/dev/null; QUIRE_KV=safe %B/quire run --ram 10M true -m %M/model.gguf 2>&1", 0,
               "available");
    expect("run --json --ram 40M true -m %M/model.gguf -c 4096 2>&1", 0,
           "\"recommended\":\"balanced\",\"fits\":false,\"memory\":\"safe needs 46.4 MiB");
    expect("run --help", 0, "The rule: safe is recommended");
}

/* What Quire cannot help is run as it is. */
static void test_architectures(void **state)
{
    (void)state;
    need_command();
    expect("run -- sh -c 'exit 5' -m %M/grok.gguf -c 4096 2>&1", 5,
           "nothing is saved: llama.cpp switches flash attention off for it");
    expect(
        "plan --ram 1G %M/grok.gguf", 0,
        "Quire does not compress the cache of this architecture, so the policies change nothing: llama.cpp switches");
    expect("plan --json --ram 1G %M/grok.gguf", 0, "\"cache\":\"plain\",\"cache_note\":\"llama.cpp switches");
    expect("run -- sh -c 'exit 5' -m %M/mamba.gguf 2>&1", 5, "without a KV cache: its layers keep a state");
    expect("plan %M/mamba.gguf 2>&1", 1, "without a KV cache: its layers keep a state");
}

/* --kv fit takes what quire plan recommends. */
static void test_fit(void **state)
{
    static const char *const ram[] = {"100M", "47M", "40M", "25M", "10M", "1M"};
    char line[256];
    (void)state;
    need_command();
    for (size_t i = 0; i < sizeof ram / sizeof ram[0]; i++) {
        const char *word = recommended(ram[i]);
        snprintf(line, sizeof line, "run --kv fit --env --ram %s true -m %%M/model.gguf -c 4096 2>/dev/null",
                 ram[i]);
        expect(line, 0, word);
    }
    expect(
        "run --kv fit --ram 40M true -m %M/model.gguf -c 4096 2>&1", 0,
        "quire run: balanced is r6/r4: the KV cache of 4096 tokens takes 29.5 MiB instead of 90.0 MiB in f16, 60.5 MiB "
        "saved\nquire run: --kv fit chose balanced, because safe needs 46.4 MiB for the KV cache and 40.0 MiB of memory "
        "is available beside the model\n");
    expect("run --kv fit --ram 10M true -m %M/model.gguf -c 4096 2>&1", 0,
           "--kv fit chose small, the smallest preset, but no preset fits: it needs 23.9 MiB");
    expect_not("run --kv fit --ram 100M true -m %M/model.gguf -c 4096 2>&1", 0, "chose");
    expect("run --kv fit true 2>&1", 0,
           "--kv fit chose safe, because the arguments do not tell the size of the cache");
    expect("run --kv fit true -m %M/untrained.gguf 2>&1", 0, "--kv fit chose safe");
    expect(
        "--version >/dev/null; QUIRE_KV=fit %B/quire run --env --ram 40M true -m %M/model.gguf -c 4096 2>/dev/null",
        0, "QUIRE_KV=balanced\n");
}

/* The cells of window layers depend on more than -c. test_cells of unit_gguf has what llama.cpp makes. */
static void test_window_layers(void **state)
{
    (void)state;
    need_command();
    expect("run --kv safe true -m %M/window.gguf -c 4096 2>&1", 0, "takes 21.0 MiB instead of 27.0 MiB");
    expect("--version >/dev/null; ln -s /bin/true %M/llama-server; %B/quire run --kv safe %M/llama-server -m "
           "%M/window.gguf -c 4096 2>&1",
           0, "the KV cache of 4096 tokens takes 43.5 MiB instead of 49.5 MiB");
    expect(
        "--version >/dev/null; ln -s /bin/true %M/llama; %B/quire run --kv safe %M/llama serve -m %M/window.gguf -c "
        "4096 2>&1",
        0, "instead of 49.5 MiB");
    expect("run --kv safe %M/llama-server -m %M/window.gguf -c 4096 -np 1 2>&1", 0, "instead of 27.0 MiB");
    expect("run --kv safe %M/llama-server -m %M/window.gguf -c 4096 -np 2 2>&1", 0, "instead of 42.0 MiB");
    expect("run --kv safe true -m %M/window.gguf -c 4096 -np 2 -kvu 2>&1", 0, "instead of 34.5 MiB");
    expect("run --kv safe true -m %M/window.gguf -c 4096 -ub 1024 2>&1", 0, "instead of 34.5 MiB");
    expect("run --kv safe true -m %M/window.gguf -c 8192 --swa-full 2>&1", 0,
           "takes 72.6 MiB instead of 144 MiB");
    expect("run --kv safe true -m %M/window.gguf -c 4096 -ctk q8_0 -ctv q8_0 2>&1", 0, "takes 13.6 MiB");
}

/* A policy that has no room in the declared types is refused by the device. */
static void test_declared(void **state)
{
    (void)state;
    need_command();
    expect("run --kv safe true -m %M/model.gguf -c 4096 -ctk q8_0 -ctv q8_0 2>&1", 0, "takes 46.4 MiB");
    expect("run --kv safe true -m %M/model.gguf -c 4096 -ctk q4_0 -ctv q4_0 2>&1", 0,
           "the cache keeps the types of -ctk and -ctv, because q4_0 cannot hold r8");
    expect("run --kv a8g64 true -m %M/model.gguf -c 4096 -ctk q8_0 2>&1", 0,
           "because q8_0 cannot hold a8g64");
    expect("run --kv r8/r4 true -m %M/model.gguf -c 4096 -ctk q8_0 -ctv q4_0 2>&1", 0, "takes 35.2 MiB");
    expect_not("run --ram 10M true -m %M/model.gguf -c 4096 -ctk q4_0 -ctv q4_0 2>&1", 0, "available");
}

static void test_environment(void **state)
{
    (void)state;
    need_command();
    expect("run --kv r5/r4 -- sh -c 'echo $QUIRE_KV $GGML_BACKEND_PATH' 2>/dev/null", 0, "r5/r4 /");
    expect("run --kv r5/r4 --env -- sh 2>/dev/null", 0, "QUIRE_KV=r5/r4\n");
    expect("run --kv declared --env -- sh 2>/dev/null", 0, "GGML_BACKEND_PATH=");
    expect_not("run --kv declared --env -- sh 2>/dev/null", 0, "QUIRE_KV");
    expect("run --kv declared true -m %M/model.gguf 2>&1", 0,
           "keeps the types of -ctk and -ctv and their bytes");
    expect(
        "--version >/dev/null; QUIRE_KV=r4 %B/quire run --kv declared -- sh -c 'echo \"<$QUIRE_KV>\"' 2>/dev/null",
        0, "<>\n");
    expect("run -- sh -c 'exit 7' 2>/dev/null", 7, "");
    expect("run -- sh -c 'echo $0 $*' --help --json 2>/dev/null", 0, "--help --json");
    expect("--version >/dev/null; GGML_BACKEND_PATH=/x/other.so %B/quire run --env sh 2>/dev/null", 0,
           "QUIRE_CHAIN=/x/other.so\n");
    expect("--version >/dev/null; QUIRE_KV=r6/r3 %B/quire run --env sh 2>/dev/null", 0, "QUIRE_KV=r6/r3\n");
}

/* Settings that the device would find in a file are not overruled by defaults. */
static void test_config(void **state)
{
    (void)state;
    need_command();
#define WITH_FILE "--version >/dev/null; export QUIRE_CONFIG=%M/quire.conf; "
    expect(
        "--version >/dev/null; printf '# kv = r2\\nkv = r4\\n kv =  r6/r3 \\nprofile =\\nchain = /x/other.so\\n' "
        ">%M/quire.conf",
        0, "");
    expect(WITH_FILE "%B/quire run --env sh 2>/dev/null", 0, "QUIRE_KV=r6/r3\n");
    expect(WITH_FILE "%B/quire run true -m %M/model.gguf -c 4096 2>&1", 0, "quire run: r6/r3: the KV cache");
    expect(WITH_FILE "QUIRE_KV=r5/r4 %B/quire run --env sh 2>/dev/null", 0, "QUIRE_KV=r5/r4\n");
    expect(WITH_FILE "QUIRE_KV= %B/quire run --env sh 2>/dev/null", 0, "QUIRE_KV=safe\n");
    expect(WITH_FILE "%B/quire run --kv r8/r8 --env sh 2>/dev/null", 0, "QUIRE_KV=r8/r8\n");
    /* An empty variable is no policy, and the file's is not looked at. */
    expect(WITH_FILE "%B/quire run --kv declared --env sh 2>/dev/null", 0, "QUIRE_KV=\n");
    expect(WITH_FILE "%B/quire run --kv declared -- sh -c 'echo \"<${QUIRE_KV-unset}>\"' 2>/dev/null", 0,
           "<>\n");
    expect(WITH_FILE "GGML_BACKEND_PATH=/x/y.so %B/quire run --env sh 2>/dev/null", 0,
           "QUIRE_CHAIN=/x/other.so\n");
    expect("--version >/dev/null; QUIRE_CONFIG=%M/none.conf %B/quire run --env sh 2>/dev/null", 0,
           "QUIRE_KV=safe\n");
#undef WITH_FILE
}

/* The layers that -ngl leaves on the CPU. llama_gpu does this with a real host. */
static void test_gpu(void **state)
{
    static const char *const no_gpu[] = {"odd", "bad", "killed"};
    char line[256];
    (void)state;
    need_command();
    expect(
        "run --kv r8/r4 %M/llama-gpu -m %M/model.gguf -c 4096 -ngl 16 -v 2>&1", 0,
        "quire run: r8/r4: the KV cache of 4096 tokens in the layers that are not on the GPU takes 17.6 MiB instead of "
        "45.0 MiB in f16, 27.4 MiB saved\nquire run: of 30 layers, 15 have their cache in Quire, 15 are on the GPU: -dev "
        "QUIRE0,Vulkan0 -ngl 999 -ts 15,16\n");
    expect("run %M/llama-gpu -m %M/model.gguf -c 4096 -ngl 16 -v 2>/dev/null", 0,
           "model.gguf -c 4096 -v -dev QUIRE0,Vulkan0 -ngl 999 -ts 15,16 <>\n");
    expect(
        "--version >/dev/null; LLAMA_ARG_N_GPU_LAYERS=1 %B/quire run %M/llama-gpu -m %M/model.gguf -c 4096 2>/dev/null",
        0, "model.gguf -c 4096 -dev QUIRE0,Vulkan0 -ngl 999 -ts 30,1 <>\n");
    expect(
        "--version >/dev/null; QUIRE_KV=fit %B/quire run %M/llama-gpu -m %M/model.gguf -c 4096 -ngl 0 2>/dev/null",
        0, "-ts 31,0 <>\n");
    expect("run --json --kv r8/r4 %M/llama-gpu -m %M/model.gguf -c 4096 -ngl 16 2>&1", 0,
           "\"layers\":15,\"gpu_layers\":15,\"arguments\":\"-dev QUIRE0,Vulkan0 -ngl 999 -ts 15,16\"");
    expect("run --env %M/llama-gpu -m %M/model.gguf -c 4096 -ngl 16 2>&1", 0,
           "the program needs these in place of its own arguments: -dev QUIRE0,Vulkan0 -ngl 999 -ts 15,16\n");
    expect("run %M/llama-gpu -m %M/model.gguf -c 4096 -ngl 99 2>&1", 0,
           "nothing is saved, because all layers are on the GPU, and their cache with them\nstarted: -m ");
    expect("run %M/llama-gpu -m %M/model.gguf -ngl 16 2>&1", 0, "with -c N, Quire has the layers");
    expect("run %M/llama-gpu -m %M/model.gguf -c 4096 2>&1", 0, "without -ngl llama.cpp itself chooses");
    for (size_t i = 0; i < sizeof no_gpu / sizeof no_gpu[0]; i++) {
        snprintf(line, sizeof line, "run %%M/llama-%s -m %%M/model.gguf -c 4096 -ngl 16 2>&1", no_gpu[i]);
        expect(line, 0, "the KV cache of 4096 tokens takes ");
        expect(line, 0, "model.gguf -c 4096 -ngl 16 <>\n");
    }
}

static void test_refusals(void **state)
{
    (void)state;
    need_command();
    expect("run 2>&1", 2, "it needs a program");
    expect("run --nonsense sh 2>&1", 2, "--nonsense");
    expect("run -- /nowhere/llama-server 2>&1", 1, "the program /nowhere/llama-server does not exist");
    expect("run --kv x9 -- sh 2>&1", 1, "\"x9\" is not a preset or a codec");
    expect("run --kv c:r4/r4 -- sh -m %M/model.gguf 2>&1", 1,
           "needs a profile; you can make one with: quire calibrate /tmp/");
    expect("run --profile /nowhere -- sh 2>&1", 1, "the profile /nowhere cannot be used");
    expect("run -- sh -m /nowhere.gguf 2>&1", 1, "/nowhere.gguf: No such file");
    expect("run --profile /nowhere sh 2>&1", 1, "the profile /nowhere cannot be used: No such file");
    expect("run sh -c 'exit 3' -mu http://h/x -m /nowhere.gguf 2>&1", 3,
           "name no model file"); /* to be fetched */
    expect("run -- sh -m %M/empty.gguf 2>&1", 1, "0 layers");
    expect("run -- sh -m %B/quire 2>&1", 1, "not a GGUF file");
    expect("--version >/dev/null; QUIRE_PLUGIN=/nowhere.so %B/quire run sh 2>&1", 1, "libggml-quire.so");
}

static void test_hosts(void **state)
{
    (void)state;
    need_command();
    expect("run -- %B/fake_static_host 2>&1", 1, "has ggml built in, so it cannot load the device");
    expect("run -- %B/fake_shared_host 2>&1", 1, "cannot load the device: ggml 0.99.0 is not supported");
    expect("run -- %B/fake_shared_host 2>&1", 1, "llama.cpp 0.5.0 to 0.7.0, where 0.7.0 is build b11669");
    expect("run -- %B/fake_static_host 2>&1", 1, "b11669");
    expect("run --help", 0, "b11669");
}

static void test_profile_beside(void **state)
{
    (void)state;
    need_command();
    expect(
        "--version >/dev/null; echo nonsense >%M/model.quire-profile; %B/quire run -- true -m %M/model.gguf 2>&1;"
        "rm %M/model.quire-profile",
        0, "the profile beside the model cannot be read");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_line),     cmocka_unit_test(test_environment),
        cmocka_unit_test(test_config),   cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_hosts),    cmocka_unit_test(test_profile_beside),
        cmocka_unit_test(test_default),  cmocka_unit_test(test_architectures),
        cmocka_unit_test(test_fit),      cmocka_unit_test(test_window_layers),
        cmocka_unit_test(test_declared), cmocka_unit_test(test_gpu),
    };
    return cmocka_run_group_tests(tests, set_up, remove_folder);
}
