/* SPDX-License-Identifier: MIT */
/* quire plan: what a model's KV cache takes under the usual policies, what fits, and what it costs. */
#define _POSIX_C_SOURCE 200809L
#include <quire/quire.h>

#include "evidence.h"
#include "model.h"
#include "place.h"
#include "tool.h"

#include <string.h>
#include <unistd.h>

typedef struct plan_options {
    const char *path, *profile_path;
    uint64_t ctx, parallel, ram;
    bool json;
} plan_options;

/* Presets first, in the order of faithfulness: the first of them that fits is recommended. */
static const char *const policies[] = {"f16",   "safe", "balanced", "small", "r8/r4",
                                       "r5/r4", "r4",   "q8_0",     "k8v4"};
enum { N_POLICIES = sizeof policies / sizeof policies[0], FIRST_PRESET = 1, END_PRESETS = 4 };

typedef struct row {
    const char *policy;
    quire_plan *plan;
    double bits, token_bytes, kv_bytes;
    bool fits;
    uint64_t longest;
} row;

typedef struct table {
    plan_options o;
    model model;
    char profile_path[PLACE_SIZE];
    quire_profile *profile;
    double room; /* for the cache */
    row rows[N_POLICIES];
} table;

/* ----------------------------------------------------------------- options */

static const char *set_model(void *ctx, const char *word)
{
    plan_options *o = ctx;
    if (o->path) return "one model at a time; this is one too many:";
    o->path = word;
    return NULL;
}

static const char *set_ctx(void *ctx, const char *value)
{
    const char *end;
    return tool_number(value, 0, 1, 1u << 30, &((plan_options *)ctx)->ctx, &end) ? NULL
                                                                                 : "a number from 1 to 1G";
}

static const char *set_parallel(void *ctx, const char *value)
{
    const char *end;
    return tool_number(value, 0, 1, 65536, &((plan_options *)ctx)->parallel, &end) ? NULL
                                                                                   : "a number from 1 to 64K";
}

static const char *set_ram(void *ctx, const char *value)
{
    const char *end;
    return tool_number(value, 0, 1, UINT64_C(1) << 50, &((plan_options *)ctx)->ram, &end)
               ? NULL
               : "bytes, as in 16G or 512M";
}

static const tool_option options[] = {
    {"--ctx", "N", "tokens of each sequence (what the model was trained for)", .set = set_ctx},
    {"--parallel", "N", "sequences (1)", .set = set_parallel},
    {"--ram", "BYTES", "for the model and its cache, as in 16G (what is available now)", .set = set_ram},
    {"--profile", "FILE", "(MODEL.quire-profile beside the model, if it is there)",
     TOOL_WORD(plan_options, profile_path)},
    {"--json", NULL, "one object", TOOL_FLAG(plan_options, json)},
};

static const tool_command command = {
    .name = "plan",
    .usage = "[OPTIONS] MODEL.gguf",
    .about =
        "Reads the shape of a model's attention from its file and prints for the usual policies: bits per value, bytes\n"
        "per token, the size of the cache, whether it fits beside the model, the longest context that does, and what\n"
        "the policy cost where it was measured (worst of the models: mean KL divergence against f16, tokens whose\n"
        "likeliest choice stayed the same). Recommends the most faithful preset that fits. Memory for computing\n"
        "comes on top; llama.cpp tells how much.",
    .examples = "  quire plan model.gguf\n"
                "  quire plan --ctx 32K --parallel 4 --ram 16G model.gguf\n"
                "  quire plan --json model.gguf\n",
    .options = options,
    .n_options = sizeof options / sizeof options[0],
    .set_name = set_model,
};

/* ---------------------------------------------------------------- evidence */

/* What was measured of a policy, worst over the models; n is 0: nothing. */
typedef struct fidelity {
    uint32_t n;
    double kld, top1;
} fidelity;

/* Of policies that begin with the first n characters of one, and end there. */
static fidelity measured(const char *canonical, size_t n)
{
    fidelity f = {.top1 = 100};
    for (size_t i = 0; i < N_EVIDENCE; i++) {
        const evidence *e = &evidence_rows[i];
        if (strlen(e->policy) != n || memcmp(e->policy, canonical, n)) continue;
        if (e->kld > f.kld) f.kld = e->kld;
        if (e->top1 > 0 && e->top1 < f.top1) f.top1 = e->top1;
        f.n++;
    }
    return f;
}

/* Of the whole policy; or else of its pair, if what follows leaves the window layers as they were. */
static fidelity find_fidelity(const char *canonical)
{
    fidelity f = measured(canonical, strlen(canonical));
    if (f.n || strstr(canonical, ",window=")) return f;
    return measured(canonical, strcspn(canonical, ","));
}

/* -------------------------------------------------------------------- rows */

static double available_bytes(void)
{
    char line[128];
    unsigned long long kib = 0;
    FILE *f = fopen("/proc/meminfo", "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %llu", &kib) == 1) break;
    if (f) fclose(f);
    if (kib) return (double)kib * 1024;
    return (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
}

static bool fill_row(table *t, row *r, const char *policy, char *why, size_t size)
{
    quire_geometry geometry = model_geometry(&t->model);
    quire_plan_options o = {
        .version = QUIRE_OPTIONS, .profile = t->profile, .message = why, .message_size = size};
    quire_status status = quire_plan_create(&r->plan, &geometry, policy, &o);
    /* A profile of another model is as good as none. */
    if (status == QUIRE_EMISMATCH && !t->o.profile_path) {
        o.profile = NULL;
        status = quire_plan_create(&r->plan, &geometry, policy, &o);
    }
    if (status) return false;
    model_use use = {t->o.ctx, (uint32_t)t->o.parallel};
    r->policy = policy;
    r->bits = model_kv_bits(&t->model, r->plan);
    r->kv_bytes = model_kv_bytes(&t->model, r->plan, &use);
    r->token_bytes = model_kv_token_bytes(&t->model, r->plan);
    r->longest = model_kv_tokens(&t->model, r->plan, use.sequences, t->room);
    r->fits = r->kv_bytes <= t->room;
    return true;
}

/* The most faithful preset that fits and is no danger to the model; else the smallest. */
static const row *recommend(const table *t)
{
    for (int i = FIRST_PRESET; i < END_PRESETS; i++)
        if (t->rows[i].fits && !quire_plan_warning(t->rows[i].plan)) return &t->rows[i];
    return &t->rows[END_PRESETS - 1];
}

/* ------------------------------------------------------------------ output */

static uint64_t recommended_ctx(const table *t, const row *r)
{
    uint64_t longest = r->longest / 256 * 256;
    return r->fits || !longest ? t->o.ctx : longest;
}

/* The line to type; a path with other characters than these is quoted. */
static const char *run_line(const table *t, const row *r)
{
    static char line[2 * PLACE_SIZE];
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+=:,@";
    const char *quote = t->o.path[strspn(t->o.path, plain)] ? "'" : "";
    int n = snprintf(line, sizeof line, "quire run --kv %s -- llama-server -m %s%s%s -c %llu", r->policy,
                     quote, t->o.path, quote, (unsigned long long)(recommended_ctx(t, r) * t->o.parallel));
    if (t->o.parallel > 1 && n > 0 && n < (int)sizeof line)
        snprintf(line + n, sizeof line - (size_t)n, " -np %llu", (unsigned long long)t->o.parallel);
    return line;
}

static void print_row(const row *r)
{
    char kv[TOOL_BYTES_SIZE], longest[32] = "any", measured[48] = "not measured";
    const char *canonical = quire_plan_policy(r->plan);
    size_t pair = strcspn(canonical, ",");
    fidelity f = find_fidelity(canonical);
    if (!strcmp(r->policy, "f16")) snprintf(measured, sizeof measured, "the measure");
    if (f.n) snprintf(measured, sizeof measured, "KL %.2g, same token %.1f %%", f.kld, f.top1);
    if (f.n && f.top1 >= 100) snprintf(measured, sizeof measured, "KL %.2g", f.kld);
    if (r->longest < UINT64_C(1) << 31)
        snprintf(longest, sizeof longest, "%llu", (unsigned long long)(r->longest / 256 * 256));
    printf("%-10s %-12.*s %6.2f %9.0f  %9s  %-4s  %9s  %s%s\n", r->policy, (int)pair, canonical, r->bits,
           r->token_bytes, tool_bytes(kv, r->kv_bytes), r->fits ? "yes" : "no", longest, measured,
           quire_plan_warning(r->plan) ? " (!)" : "");
}

static void print_text(const table *t)
{
    char a[TOOL_BYTES_SIZE], b[TOOL_BYTES_SIZE];
    const model *m = &t->model;
    uint32_t windows = 0;
    const char *warning = NULL;
    for (uint32_t i = 0; i < m->n_layers; i++) windows += m->has_kv[i] && m->layers[i].window;
    printf("%s: %s, %u layers with a cache", *m->name ? m->name : t->o.path, m->arch, m->n_kv_layers);
    if (windows) printf(" (%u with a window)", windows);
    printf(", %u KV head%s, head size %u", m->layers[0].n_kv_heads, m->layers[0].n_kv_heads == 1 ? "" : "s",
           m->layers[0].d_k);
    if (m->layers[0].d_v != m->layers[0].d_k) printf("/%u", m->layers[0].d_v);
    printf(", trained for %u tokens\n", m->context);
    printf("%llu tokens x %llu, %s for the cache beside %s of model\n\n", (unsigned long long)t->o.ctx,
           (unsigned long long)t->o.parallel, tool_bytes(a, t->room), tool_bytes(b, (double)m->file_bytes));
    printf("%-10s %-12s %6s %9s  %9s  %-4s  %9s  %s\n", "policy", "codecs", "bits", "B/token", "KV cache",
           "fits", "longest", "measured");
    for (int i = 0; i < N_POLICIES; i++) {
        print_row(&t->rows[i]);
        if (quire_plan_warning(t->rows[i].plan)) warning = quire_plan_warning(t->rows[i].plan);
    }
    if (warning) printf("(!) %s\n", warning);
    if (t->profile) printf("with the profile %s\n", t->o.profile_path ? t->o.profile_path : t->profile_path);
    const row *r = recommend(t);
    printf("\nrecommended: %s%s\n\n  %s\n", r->policy,
           r->fits ? "" : ", with a shorter context: at that length nothing fits", run_line(t, r));
}

static void print_json_row(const row *r, const char *comma)
{
    const char *warning = quire_plan_warning(r->plan);
    fidelity f = find_fidelity(quire_plan_policy(r->plan));
    printf(
        "%s{\"policy\":\"%s\",\"canonical\":\"%s\",\"bits\":%.4g,\"bytes_per_token\":%.0f,\"kv_bytes\":%.0f,"
        "\"fits\":%s,\"longest\":%llu",
        comma, r->policy, quire_plan_policy(r->plan), r->bits, r->token_bytes, r->kv_bytes,
        r->fits ? "true" : "false", (unsigned long long)r->longest);
    if (f.n) printf(",\"kld\":%g", f.kld);
    if (f.n && f.top1 < 100) printf(",\"top1\":%g", f.top1);
    if (warning) printf(",\"warning\":"), tool_json_string(stdout, warning);
    printf("}");
}

static void print_json(const table *t)
{
    const row *r = recommend(t);
    printf("{\"model\":");
    tool_json_string(stdout, t->o.path);
    printf(",\"architecture\":");
    tool_json_string(stdout, t->model.arch);
    printf(
        ",\"layers\":%u,\"model_bytes\":%llu,\"room_bytes\":%.0f,\"tokens\":%llu,\"sequences\":%llu,\"policies\":[",
        t->model.n_kv_layers, (unsigned long long)t->model.file_bytes, t->room, (unsigned long long)t->o.ctx,
        (unsigned long long)t->o.parallel);
    for (int i = 0; i < N_POLICIES; i++) print_json_row(&t->rows[i], i ? "," : "");
    printf("],\"recommended\":\"%s\",\"fits\":%s,\"command\":", r->policy, r->fits ? "true" : "false");
    tool_json_string(stdout, run_line(t, r));
    printf("}\n");
}

/* -------------------------------------------------------------------- main */

static int find_profile(table *t)
{
    const char *path = t->o.profile_path;
    if (!path && model_profile_path(t->profile_path, sizeof t->profile_path, t->o.path) &&
        !access(t->profile_path, R_OK))
        path = t->profile_path;
    quire_status status = path ? tool_load_profile(&t->profile, path) : QUIRE_OK;
    if (status && t->o.profile_path)
        return tool_failed("plan", "profile %s: %s", path, quire_status_text(status));
    return TOOL_OK;
}

static int make_table(table *t)
{
    char message[PLACE_SIZE + 512] = "";
    if (!model_open(&t->model, t->o.path, message, sizeof message)) return tool_failed("plan", "%s", message);
    if (!t->o.ctx) t->o.ctx = t->model.context;
    if (!t->o.ctx) return tool_usage("plan", "the file does not say for how many tokens; --ctx does");
    t->room = (t->o.ram ? (double)t->o.ram : available_bytes()) - (double)t->model.file_bytes;
    if (t->room < 0) t->room = 0;
    int code = find_profile(t);
    for (int i = 0; code == TOOL_OK && i < N_POLICIES; i++)
        if (!fill_row(t, &t->rows[i], policies[i], message, sizeof message))
            code = tool_failed("plan", "%s: policy %s: %s", t->o.path, policies[i], message);
    return code;
}

int cmd_plan(int argc, char **argv)
{
    static table t; /* large */
    t.o.parallel = 1;
    int code = tool_parse(&command, argc, argv, &t.o);
    if (code >= 0) return code;
    if (!t.o.path) return tool_usage("plan", "it needs a model; quire plan --help");
    code = make_table(&t);
    if (code == TOOL_OK && t.o.json)
        print_json(&t);
    else if (code == TOOL_OK)
        print_text(&t);
    for (int i = 0; i < N_POLICIES; i++) quire_plan_destroy(t.rows[i].plan);
    quire_profile_destroy(t.profile);
    if (code == TOOL_OK && (fflush(stdout) || ferror(stdout)))
        code = tool_failed("plan", "the output could not be written");
    return code;
}
