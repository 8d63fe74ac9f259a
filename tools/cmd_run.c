/* SPDX-License-Identifier: MIT */
/* quire run: sets the environment that makes a llama.cpp program load the device, says what that saves, and becomes it. */
#define _POSIX_C_SOURCE 200809L
#include <quire/quire.h>

#include "host_program.h"
#include "model.h"
#include "tool.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct run {
    const char *policy, *profile_path;
    bool json, env;
    int argc; /* of the host */
    char **argv;

    /* What the host's arguments say; NULL: nothing. */
    const char *model_path, *ctx, *parallel, *without_device;

    host_program host;
    char device[PLACE_SIZE], beside[PLACE_SIZE];
    model model;
    bool has_model;
    model_use use;
    quire_profile *profile;
    quire_plan *plan; /* NULL: a profile is given, but no model that it could be compared with */
    const char *remark;
} run;

/* ----------------------------------------------------------------- options */

static void set_rest(void *ctx, int argc, char **argv)
{
    run *r = ctx;
    r->argc = argc;
    r->argv = argv;
}

static const tool_option options[] = {
    {"--kv", "POLICY",
     "how the cache is kept: a preset (safe, balanced, small) or codecs, as in r8/r4\n(QUIRE_KV, or balanced)",
     TOOL_WORD(run, policy)},
    {"--profile", "FILE",
     "of the model, for c: codecs and presets\n(MODEL.quire-profile beside the model, if it is there)",
     TOOL_WORD(run, profile_path)},
    {"--env", NULL, "prints the environment, NAME=value, and starts nothing", TOOL_FLAG(run, env)},
    {"--json", NULL, "the line on stderr as one object", TOOL_FLAG(run, json)},
};

static const tool_command command = {
    .name = "run",
    .usage = "[OPTIONS] [--] PROGRAM [ARGUMENTS]",
    .about =
        "Starts an unmodified llama.cpp program with its KV cache in Quire's tiles. Finds the device, lets it look at\n"
        "the ggml that the program loads, checks the policy against the model of -m, sets GGML_BACKEND_PATH, QUIRE_KV\n"
        "and QUIRE_PROFILE, says on stderr what will be saved, and becomes the program.",
    .examples =
        "  quire run -- llama-server -m model.gguf -c 32768\n"
        "  quire run --kv r8/r4 -- llama-cli -m model.gguf\n"
        "  quire run --kv small --profile model.quire-profile -- llama-perplexity -m model.gguf -f text.txt\n"
        "  quire run --kv safe --env llama-server -m model.gguf >/etc/default/llama\n",
    .exit_codes = "that of PROGRAM; before it starts 1 failed or refused, 2 the command line is wrong",
    .options = options,
    .n_options = sizeof options / sizeof options[0],
    .set_rest = set_rest,
};

/* -------------------------------------------------------- the host's arguments */

/* The value of an option of the host under either name, the last one given; or of its variable. */
static const char *argument(const run *r, const char *brief, const char *full, const char *variable)
{
    const char *value = variable ? getenv(variable) : NULL;
    for (int i = 1; i + 1 < r->argc; i++)
        if (!strcmp(r->argv[i], brief) || !strcmp(r->argv[i], full)) value = r->argv[i + 1];
    return value;
}

static bool has_switch(const run *r, const char *brief, const char *full)
{
    for (int i = 1; i < r->argc; i++)
        if (!strcmp(r->argv[i], brief) || !strcmp(r->argv[i], full)) return true;
    return false;
}

static bool is_any(const char *value, const char *a, const char *b)
{
    return value && (!strcmp(value, a) || !strcmp(value, b));
}

/* Arguments with which llama.cpp keeps the cache away from every device, or in plain memory (docs/llama.cpp.md). */
static const char *find_obstacle(const run *r)
{
    if (is_any(argument(r, "-fa", "--flash-attn", "LLAMA_ARG_FLASH_ATTN"), "off", "0")) return "-fa off";
    if (has_switch(r, "-nkvo", "--no-kv-offload")) return "-nkvo";
    if (is_any(argument(r, "-ngl", "--n-gpu-layers", "LLAMA_ARG_N_GPU_LAYERS"), "0", "0") ||
        is_any(argument(r, "-ngl", "--gpu-layers", NULL), "0", "0"))
        return "-ngl 0";
    if (is_any(argument(r, "-dev", "--device", "LLAMA_ARG_DEVICE"), "none", "none")) return "-dev none";
    if (is_any(argument(r, "-ctk", "--cache-type-k", "LLAMA_ARG_CACHE_TYPE_K"), "f32", "f32"))
        return "-ctk f32";
    if (is_any(argument(r, "-ctv", "--cache-type-v", "LLAMA_ARG_CACHE_TYPE_V"), "f32", "f32"))
        return "-ctv f32";
    return NULL;
}

static void read_arguments(run *r)
{
    r->model_path = argument(r, "-m", "--model", "LLAMA_ARG_MODEL");
    r->ctx = argument(r, "-c", "--ctx-size", "LLAMA_ARG_CTX_SIZE");
    r->parallel = argument(r, "-np", "--parallel", "LLAMA_ARG_N_PARALLEL");
    r->without_device = find_obstacle(r);
}

/* -c is the context of all sequences together. */
static void read_use(run *r)
{
    uint64_t tokens = 0, sequences = 1;
    const char *end;
    if (r->ctx) tool_number(r->ctx, 0, 0, 1u << 30, &tokens, &end);
    if (r->parallel) tool_number(r->parallel, 0, 1, 65536, &sequences, &end);
    if (!tokens) tokens = r->model.context;
    r->use = (model_use){tokens / sequences, (uint32_t)sequences};
}

/* ---------------------------------------------------------- policy and profile */

static quire_status make_plan(run *r, const quire_profile *profile, char *why, size_t size)
{
    quire_geometry any = {
        .version = QUIRE_OPTIONS, .n_layers = 1, .n_q_heads = 8, .n_kv_heads = 8, .d_k = 128, .d_v = 128};
    quire_geometry geometry = r->has_model ? model_geometry(&r->model) : any;
    quire_plan_options o = {
        .version = QUIRE_OPTIONS, .profile = profile, .message = why, .message_size = size};
    return quire_plan_create(&r->plan, &geometry, r->policy, &o);
}

static int refuse_policy(const run *r, const char *why)
{
    bool profile = strstr(why, "needs a profile");
    return tool_failed("run", "policy %s: %s%s%s", r->policy, why,
                       profile ? "; this makes one: quire calibrate " : "",
                       profile ? r->model_path ? r->model_path : "MODEL.gguf" : "");
}

/* The profile beside the model is a help, never a hindrance. */
static void try_profile_beside(run *r)
{
    char why[512] = "";
    if (!r->has_model || !model_profile_path(r->beside, sizeof r->beside, r->model_path) ||
        access(r->beside, R_OK))
        return;
    if (tool_load_profile(&r->profile, r->beside))
        r->remark = "the profile beside the model cannot be read";
    else if (make_plan(r, r->profile, why, sizeof why) == QUIRE_EMISMATCH)
        r->remark = "the profile beside the model is of another model";
    else if (r->plan && model_plan_is_calibrated(r->plan))
        r->profile_path = r->beside;
    if (r->profile_path) return;
    quire_plan_destroy(r->plan);
    r->plan = NULL;
}

static int settle_policy(run *r)
{
    char why[512] = "";
    if (!r->profile_path) {
        try_profile_beside(r);
        if (r->plan) return TOOL_OK;
        quire_status status = make_plan(r, NULL, why, sizeof why);
        return status ? refuse_policy(r, *why ? why : quire_status_text(status)) : TOOL_OK;
    }
    quire_status status = tool_load_profile(&r->profile, r->profile_path);
    if (status) return tool_failed("run", "profile %s: %s", r->profile_path, quire_status_text(status));
    if (!r->has_model) return TOOL_OK;
    status = make_plan(r, r->profile, why, sizeof why);
    return status ? refuse_policy(r, *why ? why : quire_status_text(status)) : TOOL_OK;
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
    const char *other = getenv("GGML_BACKEND_PATH");
    if (other && *other && !strstr(other, "libggml-quire") && !getenv("QUIRE_CHAIN"))
        set(r, "QUIRE_CHAIN", other);
    set(r, "GGML_BACKEND_PATH", r->device);
    set(r, "QUIRE_KV", r->policy);
    if (r->profile_path) set(r, "QUIRE_PROFILE", r->profile_path);
}

/* -------------------------------------------------------------------- the line */

static void tell_json(const run *r, double f16, double bytes)
{
    fprintf(stderr, "{\"policy\":");
    tool_json_string(stderr, r->policy);
    fprintf(stderr, ",\"canonical\":");
    tool_json_string(stderr, r->plan ? quire_plan_policy(r->plan) : r->policy);
    fprintf(stderr, ",\"device\":");
    tool_json_string(stderr, r->device);
    if (r->profile_path) fprintf(stderr, ",\"profile\":"), tool_json_string(stderr, r->profile_path);
    if (f16 > 0)
        fprintf(stderr,
                ",\"tokens\":%llu,\"sequences\":%u,\"f16_bytes\":%.0f,\"bytes\":%.0f,\"saved_bytes\":%.0f",
                (unsigned long long)r->use.tokens, r->use.sequences, f16, bytes,
                r->without_device ? 0 : f16 - bytes);
    if (r->without_device) fprintf(stderr, ",\"obstacle\":"), tool_json_string(stderr, r->without_device);
    if (r->remark) fprintf(stderr, ",\"remark\":"), tool_json_string(stderr, r->remark);
    fprintf(stderr, "}\n");
}

static void tell_text(const run *r, double f16, double bytes)
{
    char a[TOOL_BYTES_SIZE], b[TOOL_BYTES_SIZE], c[TOOL_BYTES_SIZE];
    const char *canonical = r->plan ? quire_plan_policy(r->plan) : r->policy;
    fprintf(stderr, "quire run: %s%s%s: ", r->policy, strcmp(canonical, r->policy) ? " is " : "",
            strcmp(canonical, r->policy) ? canonical : "");
    if (r->without_device)
        fprintf(stderr, "nothing is saved, because %s keeps the cache where the device is not",
                r->without_device);
    else if (f16 > 0)
        fprintf(stderr, "KV cache of %llu tokens %s instead of %s in f16, %s saved",
                (unsigned long long)(r->use.tokens * r->use.sequences), tool_bytes(a, bytes),
                tool_bytes(b, f16), tool_bytes(c, f16 - bytes));
    else
        fprintf(stderr, "the arguments name no model file, so what is saved is not known");
    if (r->profile_path) fprintf(stderr, ", with the profile %s", r->profile_path);
    if (r->remark) fprintf(stderr, "; %s", r->remark);
    fputc('\n', stderr);
}

static void tell(const run *r)
{
    double f16 = 0, bytes = 0;
    if (r->has_model && r->plan && r->use.tokens) {
        f16 = model_kv_bytes(&r->model, NULL, &r->use);
        bytes = model_kv_bytes(&r->model, r->plan, &r->use);
    }
    if (r->json) {
        tell_json(r, f16, bytes);
        return;
    }
    tell_text(r, f16, bytes);
    const char *warning = r->plan ? quire_plan_warning(r->plan) : NULL;
    if (warning) fprintf(stderr, "quire run: warning: %s\n", warning);
}

/* ------------------------------------------------------------------------ main */

static int prepare(run *r)
{
    char message[1024];
    if (!host_program_find(&r->host, r->argv[0]))
        return tool_failed("run", "there is no program %s", r->argv[0]);
    if (r->host.kind == HOST_STATIC)
        return tool_failed(
            "run",
            "%s has ggml built in, so it cannot load the device; it takes a llama.cpp with shared "
            "libraries, as distributions have it or as -DGGML_BACKEND_DL=ON builds it",
            r->host.path);
    if (!place_plugin(r->device))
        return tool_failed("run",
                           "libggml-quire.so is not beside this program; QUIRE_PLUGIN says where it is");
    read_arguments(r);
    if (r->model_path && !(r->has_model = model_open(&r->model, r->model_path, message, sizeof message)))
        return tool_failed("run", "%s", message);
    read_use(r);
    int code = settle_policy(r);
    if (code != TOOL_OK) return code;
    set_environment(r);
    if (!r->env && !host_program_accepts(&r->host, r->device, message, sizeof message))
        return tool_failed("run", "%s cannot load the device: %s", r->host.path, message);
    return TOOL_OK;
}

int cmd_run(int argc, char **argv)
{
    static run r; /* large */
    int code = tool_parse(&command, argc, argv, &r);
    if (code >= 0) return code;
    if (r.argc < 1) return tool_usage("run", "it needs a program; quire run --help");
    const char *kv = getenv("QUIRE_KV"), *profile = getenv("QUIRE_PROFILE");
    if (!r.policy) r.policy = kv && *kv ? kv : "balanced";
    if (!r.profile_path && profile && *profile) r.profile_path = profile;
    code = prepare(&r);
    if (code == TOOL_OK) tell(&r);
    quire_plan_destroy(r.plan);
    quire_profile_destroy(r.profile);
    if (code != TOOL_OK || r.env) return code;
    fflush(NULL);
    execv(r.host.path, r.argv);
    return tool_failed("run", "%s: %s", r.host.path, strerror(errno));
}
