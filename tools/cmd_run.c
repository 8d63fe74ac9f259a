/* SPDX-License-Identifier: MIT */
/* quire run: sets the environment that makes a llama.cpp program load the device, says what that saves, and becomes it. */
#define _POSIX_C_SOURCE 200809L
#include <quire/quire.h>

#include "commands.h"

#include "common/tool.h"
#include "llama/beside_gpu.h"
#include "llama/host_arguments.h"
#include "llama/host_program.h"
#include "llama/host_settings.h"
#include "llama/profile.h"
#include "llama/recommend.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct run {
    const char *policy; /* NULL: none was chosen */
    const char *profile_path;
    uint64_t ram;
    bool json, env;
    int argc; /* of the host */
    char **argv;

    host_arguments host_says;
    host_program host;
    char device[PLACE_SIZE], beside[PLACE_SIZE];
    model model; /* beside a GPU without the layers that are there */
    bool has_model;
    beside_gpu gpu;
    quire_profile *profile;
    model_plan plan; /* empty: a profile is given, but no model that it could be compared with */
    recommendation best;
    const char *remark;
    char memory[512]; /* what there is to say about the memory, or "" */
    char kept[640];   /* why the cache keeps its declared types, or "" */
} run;

/* In place of a policy: what is recommended; what -ctk and -ctv say. */
static const char fit[] = "fit", as_declared[] = "declared";

/* ----------------------------------------------------------------- options */

static void set_rest(void *ctx, int argc, char **argv)
{
    run *r = ctx;
    r->argc = argc;
    r->argv = argv;
}

static const tool_option options[] = {
    {"--kv", "POLICY",
     "how the cache is kept: a preset (safe, balanced, small), codecs for K and V, as in r8/r4; fit,\n"
     "which takes what quire plan recommends; or declared, which keeps the types of -ctk and -ctv and\n"
     "their bytes (default: QUIRE_KV of the environment, kv of the file that QUIRE_CONFIG names, or\n"
     "safe)",
     TOOL_WORD(run, policy)},
    {"--profile", "FILE",
     "the profile of the model, for presets and c: codecs\n"
     "(default: MODEL.quire-profile beside the model, if it exists)",
     TOOL_WORD(run, profile_path)},
    RECOMMEND_RAM_OPTION(run, ram),
    {"--env", NULL, "print the environment, NAME=value, and start nothing", TOOL_FLAG(run, env)},
    {"--json", NULL, "print what is said on stderr as one JSON object", TOOL_FLAG(run, json)},
};

static const tool_command command = {
    .name = "run",
    .usage = "[OPTIONS] [--] PROGRAM [ARGUMENTS]",
    .about =
        "Starts an unmodified llama.cpp program with its KV cache in Quire's tiles. It finds Quire's device, lets the\n"
        "device check the ggml that the program loads, checks the policy against the model of -m, sets\n"
        "GGML_BACKEND_PATH, QUIRE_KV and QUIRE_PROFILE, prints on stderr what will be saved, and becomes the program.\n"
        "\n" RECOMMEND_RULE "\n"
        "If safe does not fit, quire run still uses it, because it takes less than f16; it prints what is needed, what\n"
        "is available and which policy would fit.\n\n"
        "If the program has a GPU and -ngl N leaves layers on the CPU, these get their cache from Quire: quire run asks the\n"
        "program for its devices and changes -dev, -ngl and -ts so that every layer stays where it was.\n\n"
        "The program must load ggml from shared libraries. The device works with " HOST_VERSIONS
        ";\n" HOST_BUILDS ".",
    .examples =
        "  quire run -- llama-server -m model.gguf -c 32768\n"
        "  quire run --kv fit -- llama-server -m model.gguf -c 32768\n"
        "  quire run --kv small --profile model.quire-profile -- llama-perplexity -m model.gguf -f text.txt\n"
        "  quire run --kv safe --env llama-server -m model.gguf >/etc/default/llama\n",
    .exit_codes = "that of PROGRAM; before it starts 1 failed or refused, 2 the command line is wrong",
    TOOL_OPTIONS(options),
    .set_rest = set_rest,
};

/* --------------------------------------------------------------------- profile */

/* The profile beside the model is a help, never a hindrance. */
static void try_profile_beside(run *r)
{
    if (!r->has_model) return;
    profile_found found = profile_find_beside(&r->profile, r->beside, &r->model, r->host_says.model);
    if (found == PROFILE_UNREADABLE) r->remark = "the profile beside the model cannot be read";
    if (found == PROFILE_OF_ANOTHER_MODEL)
        r->remark = "the profile beside the model was made for another model";
}

static int load_profile(run *r)
{
    if (!r->profile_path) {
        try_profile_beside(r);
        return TOOL_OK;
    }
    quire_status status = profile_load(&r->profile, r->profile_path);
    if (!status) return TOOL_OK;
    return tool_failed("run", "the profile %s cannot be used: %s", r->profile_path,
                       profile_fault(r->profile_path, status));
}

/* ---------------------------------------------------------------------- policy */

static int refuse_policy(const run *r, const char *why)
{
    bool profile = strstr(why, "needs a profile");
    return tool_failed("run", "the policy %s cannot be used: %s%s%s", r->policy, why,
                       profile ? "; you can make one with: quire calibrate " : "",
                       profile ? r->has_model ? r->host_says.model : "MODEL.gguf" : "");
}

static int make_plan(run *r)
{
    char why[512] = "";
    const model *m = r->has_model ? &r->model : NULL;
    bool given = r->profile_path;
    if (given && !m) return TOOL_OK; /* nothing to compare the profile with */
    quire_status status = model_plan_create(&r->plan, m, r->policy, r->profile, why, sizeof why);
    if (!status && !given && r->profile && model_plan_is_calibrated(&r->plan)) r->profile_path = r->beside;
    return status ? refuse_policy(r, *why ? why : quire_status_text(status)) : TOOL_OK;
}

/* The mark with which rows of a policy travel in rows of a declared type (plugins/ggml/state.c). */
enum { MARK_BYTES = 6 };

static bool has_room(const char *declared, const char *codec, uint32_t d, uint32_t heads)
{
    if (!declared || !codec || !quire_codec_row_bytes(declared, d)) return true;
    if (!strncmp(codec, "c:", 2))
        return false; /* llama.cpp rotates K, and a profile is for rows as they are */
    return quire_codec_row_bytes(codec, d) * heads + MARK_BYTES <= quire_codec_row_bytes(declared, d) * heads;
}

/* A policy that does not fit into the quantized types of -ctk and -ctv is refused by the device, which keeps those. */
static void compare_with_declared(run *r)
{
    quire_plan_layer info = {.size = sizeof info};
    const char *k = r->host_says.type_k, *v = r->host_says.type_v;
    if (!r->has_model || (!k && !v)) return;
    for (uint32_t i = 0; !quire_plan_layer_info(r->plan.plan, i, &info); i++) {
        const quire_layer *l = &r->model.layers[i];
        if (!r->model.has_kv[i] || l->window) continue;
        bool k_fits = has_room(k, info.k, l->d_k, l->n_kv_heads);
        if (k_fits && has_room(v, info.v, l->d_v, l->n_kv_heads)) continue;
        snprintf(
            r->kept, sizeof r->kept,
            "the cache keeps the types of -ctk and -ctv, because %s cannot hold %s; leave them out, and the "
            "policy has room",
            k_fits ? v : k, k_fits ? info.v : info.k);
        return;
    }
}

static double preset_bytes(const run *r, int preset)
{
    return r->best.offers[preset].bytes;
}

/* safe was nobody's choice and does not fit: it is used all the same, for f16 would fit even less. */
static void tell_of_safe(run *r)
{
    char a[TOOL_BYTES_SIZE], b[TOOL_BYTES_SIZE], c[TOOL_BYTES_SIZE];
    const model_use *use = &r->host_says.use;
    size_t n =
        (size_t)snprintf(r->memory, sizeof r->memory,
                         "safe needs %s for the KV cache and %s of memory is available beside the model; ",
                         tool_bytes(a, preset_bytes(r, RECOMMEND_DEFAULT)), tool_bytes(b, r->best.room));
    char *more = r->memory + n;
    size_t left = sizeof r->memory - n;
    if (r->best.fits) {
        snprintf(more, left, "--kv %s would fit, with %s (--kv fit chooses it)", r->best.policy,
                 tool_bytes(c, preset_bytes(r, r->best.preset)));
        return;
    }
    uint64_t tokens = model_kv_tokens(&r->model, &r->plan, use, r->best.room);
    n = (size_t)snprintf(more, left, "no preset fits, not even --kv small with %s",
                         tool_bytes(c, preset_bytes(r, RECOMMEND_SMALLEST)));
    if (tokens)
        snprintf(more + n, left - n, ", but -c %llu would fit with safe",
                 (unsigned long long)(tokens * (use->is_shared ? 1 : use->sequences)));
}

/* What --kv fit took, if it is not what everyone gets. */
static void tell_of_fit(run *r)
{
    char a[TOOL_BYTES_SIZE], b[TOOL_BYTES_SIZE], c[TOOL_BYTES_SIZE];
    if (r->best.fits)
        snprintf(
            r->memory, sizeof r->memory,
            "--kv fit chose %s, because safe needs %s for the KV cache and %s of memory is available beside the "
            "model",
            r->policy, tool_bytes(a, preset_bytes(r, RECOMMEND_DEFAULT)), tool_bytes(b, r->best.room));
    else
        snprintf(
            r->memory, sizeof r->memory,
            "--kv fit chose %s, the smallest preset, but no preset fits: it needs %s for the KV cache and %s of "
            "memory is available beside the model",
            r->policy, tool_bytes(c, preset_bytes(r, r->best.preset)), tool_bytes(b, r->best.room));
}

static bool keeps_types(const run *r)
{
    return r->policy && !strcmp(r->policy, as_declared);
}

static int settle_policy(run *r)
{
    char why[512] = "";
    bool none = !r->policy, fitting = r->policy && !strcmp(r->policy, fit);
    bool known = r->has_model && r->host_says.use.tokens;
    if (keeps_types(r)) {
        snprintf(
            r->kept, sizeof r->kept,
            "the cache keeps the types of -ctk and -ctv and their bytes; Quire computes attention on them");
        return TOOL_OK;
    }
    if (none || fitting) r->policy = recommend_presets[RECOMMEND_DEFAULT];
    if (known && (none || fitting)) {
        if (!recommend(&r->best, &r->model, &r->host_says.use, r->profile, recommend_room(&r->model, r->ram),
                       why, sizeof why))
            return refuse_policy(r, why);
        if (fitting) r->policy = r->best.policy;
    } else if (fitting) {
        snprintf(r->memory, sizeof r->memory,
                 "--kv fit chose safe, because the arguments do not tell the size of the cache");
    }
    int code = make_plan(r);
    if (code == TOOL_OK) compare_with_declared(r);
    if (r->has_model && r->model.kind == ARCH_PLAIN && !*r->kept)
        snprintf(r->kept, sizeof r->kept, "nothing is saved: %s", r->model.note);
    if (code != TOOL_OK || !known || r->host_says.obstacle || *r->kept) return code;
    if (none && preset_bytes(r, RECOMMEND_DEFAULT) > r->best.room) tell_of_safe(r);
    if (fitting && (r->best.preset != RECOMMEND_DEFAULT || !r->best.fits)) tell_of_fit(r);
    return TOOL_OK;
}

/* ----------------------------------------------------------------------- sizes */

/*
 * What the cache will take. Where K or V is declared in a quantized type, the device has no float rows for the window
 * layers and gives them the codecs of the others.
 */
static double planned_bytes(const run *r)
{
    char policy[512];
    quire_plan_layer info = {.size = sizeof info};
    const char *k = r->host_says.type_k, *v = r->host_says.type_v;
    model_plan coded;
    uint32_t full = 0;
    while (full < r->model.n_layers && (!r->model.has_kv[full] || r->model.layers[full].window)) full++;
    if ((k || v) && r->model.n_window_layers && full < r->model.n_layers && !strstr(r->policy, "window=") &&
        !quire_plan_layer_info(r->plan.plan, full, &info) &&
        snprintf(policy, sizeof policy, "%s,window=%s/%s", r->policy, k ? info.k : "f16",
                 v && info.v ? info.v : "f16") < (int)sizeof policy &&
        !model_plan_create(&coded, &r->model, policy, r->profile, NULL, 0)) {
        double bytes = model_kv_bytes(&r->model, &coded, &r->host_says.use);
        model_plan_destroy(&coded);
        return bytes;
    }
    return model_kv_bytes(&r->model, &r->plan, &r->host_says.use);
}

/* ------------------------------------------------------------------------ GPU */

static bool is_arranged(const run *r)
{
    return r->gpu.place.state == OFFLOAD_ARRANGED;
}

/* -ngl 0 keeps the cache from Quire's device only where there is no other one. */
static void look_for_gpu(run *r)
{
    static const char no_layers[] = "-ngl 0";
    const char *obstacle = r->host_says.obstacle;
    if (obstacle && strcmp(obstacle, no_layers)) return;
    beside_gpu_find(&r->gpu, r->host.path, r->device, r->argc, r->argv, &r->host_says,
                    r->has_model ? &r->model : NULL);
    if (r->gpu.place.state == OFFLOAD_ARRANGED || r->gpu.place.state == OFFLOAD_NOTHING)
        r->host_says.obstacle = NULL;
    if (is_arranged(r)) model_cut(&r->model, r->gpu.place.n_own);
}

/* ---------------------------------------------------------------- environment */

static void set(const run *r, const char *name, const char *value)
{
    if (r->env)
        printf("%s=%s\n", name, value);
    else
        setenv(name, value, 1);
}

/* A backend that was to be loaded is loaded too, by the device. */
static void set_environment(const run *r)
{
    const char *chain = host_setting_chain();
    if (chain && !getenv("QUIRE_CHAIN")) set(r, "QUIRE_CHAIN", chain);
    set(r, "GGML_BACKEND_PATH", r->device);
    if (!keeps_types(r)) set(r, "QUIRE_KV", r->policy);
    if (keeps_types(r) && !r->env) unsetenv("QUIRE_KV");
    if (keeps_types(r) && host_setting("QUIRE_KV", "kv"))
        set(r, "QUIRE_KV", ""); /* stands against the file's */
    if (r->profile_path) set(r, "QUIRE_PROFILE", r->profile_path);
}

/* The arguments that place layers become new ones; with --env, which starts nothing, variables. */
static void set_placing(void *ctx, const char *name, const char *value)
{
    const run *r = ctx;
    if (value && r->env)
        printf("%s=%s\n", name, value);
    else if (!r->env)
        unsetenv(name);
}

static bool place_layers(run *r)
{
    if (!is_arranged(r)) return true;
    if (!r->env || !r->gpu.is_placed) beside_gpu_variables(&r->gpu, set_placing, r);
    if (r->env) return true;
    r->argv = offload_argv(&r->gpu.place, r->argc, r->argv);
    return r->argv;
}

/* -------------------------------------------------------------------- the line */

static const char *canonical(const run *r)
{
    return r->plan.plan ? quire_plan_policy(r->plan.plan) : r->policy;
}

static const char *warning(const run *r)
{
    return r->plan.plan ? quire_plan_warning(r->plan.plan) : NULL;
}

static void add_member(const char *key, const char *text)
{
    if (!text || !*text) return;
    fprintf(stderr, ",\"%s\":", key);
    tool_json_string(stderr, text);
}

static void tell_json(const run *r, double f16, double bytes)
{
    const model_use *use = &r->host_says.use;
    char text[BESIDE_GPU_TEXT];
    fprintf(stderr, "{\"policy\":");
    tool_json_string(stderr, r->policy);
    add_member("canonical", canonical(r));
    add_member("device", r->device);
    add_member("profile", r->profile_path);
    if (f16 > 0)
        fprintf(stderr,
                ",\"tokens\":%llu,\"sequences\":%u,\"f16_bytes\":%.0f,\"bytes\":%.0f,\"saved_bytes\":%.0f,"
                "\"shared\":%s",
                (unsigned long long)use->tokens, use->sequences, f16, bytes,
                r->host_says.obstacle || *r->kept ? 0 : f16 - bytes, use->is_shared ? "true" : "false");
    if (r->best.policy)
        fprintf(stderr, ",\"room_bytes\":%.0f,\"recommended\":\"%s\",\"fits\":%s", r->best.room,
                r->best.policy, bytes <= r->best.room ? "true" : "false");
    add_member("obstacle", r->host_says.obstacle);
    add_member("kept", r->kept);
    add_member("remark", r->remark);
    add_member("memory", r->memory);
    add_member("warning", warning(r));
    if (is_arranged(r)) {
        fprintf(stderr, ",\"layers\":%u,\"gpu_layers\":%u", r->gpu.place.n_own,
                r->gpu.n_blocks - r->gpu.place.n_own);
        add_member("arguments", beside_gpu_arguments(&r->gpu, text));
    }
    fprintf(stderr, "}\n");
}

static void tell_text(const run *r, double f16, double bytes)
{
    char a[TOOL_BYTES_SIZE], b[TOOL_BYTES_SIZE], c[TOOL_BYTES_SIZE], text[BESIDE_GPU_TEXT];
    fprintf(stderr, "quire run: %s%s%s: ", r->policy, strcmp(canonical(r), r->policy) ? " is " : "",
            strcmp(canonical(r), r->policy) ? canonical(r) : "");
    if (r->host_says.obstacle)
        fprintf(stderr, "nothing is saved, because %s keeps the cache away from Quire's device",
                r->host_says.obstacle);
    else if (*r->kept)
        fprintf(stderr, "%s", r->kept);
    else if (r->gpu.place.state == OFFLOAD_OWN)
        fprintf(stderr, "Quire has the cache of the layers that -dev and -ts give to its device");
    else if (f16 > 0)
        fprintf(stderr, "the KV cache of %llu tokens%s takes %s instead of %s in f16, %s saved",
                (unsigned long long)r->host_says.ctx,
                is_arranged(r) ? " in the layers that are not on the GPU" : "", tool_bytes(a, bytes),
                tool_bytes(b, f16), tool_bytes(c, f16 - bytes));
    else if (r->has_model && !r->host_says.ctx)
        fprintf(stderr,
                "neither -c nor the model's file tells the context, so Quire cannot say what is saved");
    else
        fprintf(stderr, r->host_says.model ? "nothing is saved"
                        : r->host_says.has_models
                            ? "the arguments name no single model file, so Quire cannot say what is saved"
                            : "the arguments name no model file, so Quire cannot say what is saved");
    if (r->profile_path && !r->host_says.obstacle && !*r->kept)
        fprintf(stderr, ", with the profile %s", r->profile_path);
    if (r->remark) fprintf(stderr, "; %s", r->remark);
    fputc('\n', stderr);
    if (is_arranged(r))
        fprintf(stderr, "quire run: of %u layers, %u have their cache in Quire, %u are on the GPU%s: %s\n",
                r->gpu.n_blocks, r->gpu.place.n_own, r->gpu.n_blocks - r->gpu.place.n_own,
                r->env && r->gpu.is_placed ? "; the program needs these in place of its own arguments" : "",
                beside_gpu_arguments(&r->gpu, text));
    if (*r->memory) fprintf(stderr, "quire run: %s\n", r->memory);
    if (warning(r)) fprintf(stderr, "quire run: warning: %s\n", warning(r));
}

static void tell(const run *r)
{
    double f16 = 0, bytes = 0;
    bool known = r->has_model && r->gpu.place.state != OFFLOAD_OWN;
    if (known && r->plan.plan && r->host_says.use.tokens) {
        f16 = model_kv_bytes(&r->model, NULL, &r->host_says.use);
        bytes = planned_bytes(r);
    }
    if (r->json)
        tell_json(r, f16, bytes);
    else
        tell_text(r, f16, bytes);
}

/* ------------------------------------------------------------------------ main */

static int prepare(run *r)
{
    char message[PLACE_SIZE + 1024];
    if (!host_program_find(&r->host, r->argv[0]))
        return tool_failed("run", "the program %s does not exist or cannot be run", r->argv[0]);
    if (r->host.kind == HOST_STATIC)
        return tool_failed(
            "run",
            "%s has ggml built in, so it cannot load the device; use a llama.cpp with shared libraries, as "
            "distributions have it or as -DBUILD_SHARED_LIBS=ON -DGGML_BACKEND_DL=ON builds it, with " HOST_VERSIONS,
            r->host.path);
    if (!place_plugin(r->device))
        return tool_failed("run",
                           "libggml-quire.so is not beside this program; set QUIRE_PLUGIN to its path");
    host_arguments_read(&r->host_says, r->argc, r->argv);
    const char *path = r->host_says.model;
    if (path && !(r->has_model = model_open(&r->model, path, message, sizeof message))) {
        if (r->model.kind != ARCH_NONE) return tool_failed("run", "%s", message);
        fprintf(stderr, "quire run: %s\n", message); /* it runs as without Quire */
    }
    look_for_gpu(r);
    if (r->has_model) host_arguments_complete(&r->host_says, r->model.context);
    int code = load_profile(r);
    if (code == TOOL_OK) code = settle_policy(r);
    if (code != TOOL_OK) return code;
    if (r->gpu.place.state == OFFLOAD_NOTHING)
        snprintf(r->kept, sizeof r->kept, "nothing is saved, because %s", r->gpu.place.reason);
    set_environment(r);
    if (!r->env && !host_program_accepts(&r->host, r->device, message, sizeof message)) {
        tool_failed("run", "%s cannot load the device: %s", r->host.path, message);
        if (!strncmp(message, "ggml ", 5))
            tool_failed("run", "the device works with " HOST_VERSIONS "; " HOST_BUILDS);
        return TOOL_FAILED;
    }
    return TOOL_OK;
}

int cmd_run(int argc, char **argv)
{
    static run r; /* large */
    int code = tool_parse(&command, argc, argv, &r);
    if (code >= 0) return code;
    if (r.argc < 1) return tool_usage("run", "it needs a program; quire run --help explains it");
    if (!r.policy) r.policy = host_setting("QUIRE_KV", "kv");
    if (!r.profile_path) r.profile_path = host_setting("QUIRE_PROFILE", "profile");
    code = prepare(&r);
    if (code == TOOL_OK) tell(&r);
    if (code == TOOL_OK && !place_layers(&r)) code = tool_failed("run", "out of memory");
    model_plan_destroy(&r.plan);
    quire_profile_destroy(r.profile);
    if (code != TOOL_OK || r.env) return code;
    fflush(NULL);
    execv(r.host.path, r.argv);
    return tool_failed("run", "%s cannot be started: %s", r.host.path, strerror(errno));
}
