/* SPDX-License-Identifier: MIT */
/* quire rows: what policies do to the attention of a real model, from rows that were recorded. */
#include "commands.h"

#include "common/progress.h"
#include "common/tool.h"
#include "llama/profile.h"
#include "llama/rows_measure.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_POLICIES 128

typedef struct rows_options {
    bool json, by_layer;
    const char *path, *profile, *write;
    char policies[MAX_POLICIES][64];
    size_t n_policies;
    uint64_t tokens, every;
} rows_options;

/* Policies are parted by spaces or semicolons, because a policy may contain commas. */
static const char *set_policies(void *ctx, const char *value)
{
    rows_options *o = ctx;
    for (const char *at = value; *at;) {
        size_t n = strcspn(at, "; ");
        if (n >= sizeof o->policies[0] || o->n_policies == MAX_POLICIES)
            return "at most 128 policies of fewer than 64 characters";
        if (n) {
            memcpy(o->policies[o->n_policies], at, n);
            o->policies[o->n_policies++][n] = 0;
        }
        at += n + (at[n] != 0);
    }
    return NULL;
}

static const tool_option options[] = {
    {"--policies", "LIST",
     "policies, separated by spaces; the word all means every codec\n"
     "(default: f16 a8g64 k8v4 a4g64 q8_0 q4_0 r8 r5/r4 r4 r3)",
     .set = set_policies},
    {"--profile", "FILE", "profile, needed for c: codecs", TOOL_WORD(rows_options, profile)},
    {"--tokens", "N", "use at most N tokens, of the first sequence (default: 2048)",
     TOOL_NUMBER(rows_options, tokens, 1, 1u << 20)},
    {"--every", "N", "use every N-th token as a query (default: 32)",
     TOOL_NUMBER(rows_options, every, 1, 1u << 20)},
    {"--by-layer", NULL, "also print a line per layer", TOOL_FLAG(rows_options, by_layer)},
    {"--write", "FILE",
     "write the outputs of the last policy as raw floats in the order\nlayers, queries, heads, values",
     TOOL_WORD(rows_options, write)},
    {"--json", NULL, "print one JSON object per line", TOOL_FLAG(rows_options, json)},
};

static const tool_command command = {
    .name = "rows",
    .usage = "[OPTIONS] FILE",
    .about =
        "Encodes K and V rows that the llama.cpp device recorded (QUIRE_ROWS_RECORD=FILE) and computes attention with the\n"
        "model's own queries. Prints the relative error (root mean square) of the attention output, of K and of V, and\n"
        "the error of the attention scores, which are the arguments of exp in the softmax.",
    .examples = "  quire rows smollm2.rows\n"
                "  quire rows --policies 'r4 c:r4/r4' --profile smollm2.profile --by-layer smollm2.rows\n",
    TOOL_OPTIONS(options),
    TOOL_ONE(rows_options, path, "file"),
};

/* Every codec on both sides; calibrated ones have their plain form on V. */
static void all_policies(rows_options *o)
{
    const quire_codec_info *info;
    o->n_policies = 0;
    for (uint32_t i = 0; (info = quire_codec_at(i)) && o->n_policies < MAX_POLICIES; i++) {
        bool calibrated = info->flags & QUIRE_CODEC_CALIBRATED;
        if (calibrated && !o->profile) continue;
        snprintf(o->policies[o->n_policies++], sizeof o->policies[0], calibrated ? "%s/%s" : "%s", info->name,
                 strchr(info->name, ':') ? strchr(info->name, ':') + 1 : "");
    }
}

/* ------------------------------------------------------------------ output */

static double ratio(double error, double all)
{
    return all > 0 ? sqrt(error / all) : 0;
}

static void print_line(const rows_options *o, const char *policy, int layer, double bits, const rows_error *e)
{
    double out = ratio(e->out, e->out_all), k = ratio(e->k, e->k_all), v = ratio(e->v, e->v_all);
    double score = ratio(e->score, e->n_scores);
    if (o->json) {
        printf("{\"policy\":");
        tool_json_string(stdout, policy);
        if (layer >= 0) printf(",\"layer\":%d", layer);
        printf(",\"bits\":%g,\"out\":%.6g,\"score\":%.6g,\"k\":%.6g,\"v\":%.6g}\n", bits, out, score, k, v);
        return;
    }
    char name[80];
    if (layer >= 0)
        snprintf(name, sizeof name, "  layer %d", layer);
    else
        snprintf(name, sizeof name, "%s", policy);
    printf("%-16s %7.3f %10.6f %10.6f %10.6f %10.6f\n", name, bits, out, score, k, v);
}

static void add_error(rows_error *to, const rows_error *e)
{
    to->out += e->out, to->out_all += e->out_all;
    to->k += e->k, to->k_all += e->k_all;
    to->v += e->v, to->v_all += e->v_all;
    to->score += e->score, to->n_scores += e->n_scores;
}

/* ----------------------------------------------------------------- measure */

typedef struct rows_run {
    rows_options o;
    rows_file file;
    quire_profile *profile;
    quire_workspace *workspace;
    FILE *write;
    float **exact; /* by layer: its attention without a codec, NULL until it is needed */
    progress bar;
    uint32_t n_done; /* layers, of all policies */
} rows_run;

static quire_plan *make_plan(const rows_run *r, const char *policy, char *message, size_t size)
{
    quire_plan *plan = NULL;
    quire_layer *layers = calloc(r->file.n_layers, sizeof *layers);
    quire_geometry geometry = {.version = QUIRE_OPTIONS, .n_layers = r->file.n_layers, .layers = layers};
    quire_plan_options with = {
        .version = QUIRE_OPTIONS, .profile = r->profile, .message = message, .message_size = size};
    for (uint32_t i = 0; layers && i < r->file.n_layers; i++) layers[i] = r->file.layers[i].shape;
    if (layers && quire_plan_create(&plan, &geometry, policy, &with)) plan = NULL;
    free(layers);
    return plan;
}

static quire_status exact_of(const rows_run *r, rows_case *c, size_t n_out)
{
    float **kept = &r->exact[c->layer];
    if (!*kept) {
        float *out = malloc(n_out * sizeof *out);
        quire_status status = out ? rows_exact(c, out) : QUIRE_ENOMEM;
        if (status) {
            free(out);
            return status;
        }
        *kept = out;
    }
    c->exact = *kept;
    return QUIRE_OK;
}

static quire_status measure_layer(const rows_run *r, const quire_plan *plan, uint32_t layer, bool write,
                                  rows_error *e, double *bits)
{
    const quire_layer *l = &r->file.layers[layer].shape;
    quire_plan_layer info;
    quire_plan_layer_info(plan, layer, &info);
    rows_case c = {.file = &r->file,
                   .layer = layer,
                   .k = info.k,
                   .v = info.v,
                   .profile = r->profile,
                   .every = (uint32_t)r->o.every,
                   .workspace = r->workspace};
    size_t n_out = (size_t)rows_n_queries(&c) * l->n_q_heads * l->d_v;
    quire_status status = exact_of(r, &c, n_out);
    if (status) return status;
    float *out = write ? malloc(n_out * sizeof *out) : NULL;
    status = write && !out ? QUIRE_ENOMEM : rows_measure(&c, e, out);
    if (out && !status && fwrite(out, sizeof *out, n_out, r->write) != n_out) status = QUIRE_EIO;
    free(out);
    *bits = (quire_codec_bits(info.k, l->d_k) * l->d_k + quire_codec_bits(info.v, l->d_v) * l->d_v) /
            (l->d_k + l->d_v);
    return status;
}

static int measure_policy(rows_run *r, const char *policy, bool write)
{
    char message[512] = "";
    rows_error all = {0};
    double bits = 0, all_bits = 0;
    uint32_t n = 0;
    quire_plan *plan = make_plan(r, policy, message, sizeof message);
    if (!plan)
        return tool_failed("rows", "%s: %s", policy, *message ? message : "the plan could not be created");
    quire_status status = QUIRE_OK;
    for (uint32_t i = 0; i < r->file.n_layers && !status; i++) {
        rows_error e = {0};
        if (!r->file.layers[i].n[ROWS_K]) continue;
        status = measure_layer(r, plan, i, write, &e, &bits);
        if (status) break;
        progress_show(&r->bar, ++r->n_done);
        if (r->o.by_layer) progress_end(&r->bar);
        if (r->o.by_layer) print_line(&r->o, policy, (int)i, bits, &e);
        add_error(&all, &e);
        all_bits += bits;
        n++;
    }
    quire_plan_destroy(plan);
    progress_end(&r->bar);
    if (status) return tool_failed("rows", "%s: %s", policy, quire_status_text(status));
    print_line(&r->o, policy, -1, all_bits / n, &all);
    fflush(stdout);
    return TOOL_OK;
}

static int run(rows_run *r)
{
    char message[512];
    if (!rows_file_read(&r->file, r->o.path, (uint32_t)r->o.tokens, message, sizeof message))
        return tool_failed("rows", "%s", message);
    if (r->o.profile && profile_load(&r->profile, r->o.profile))
        return tool_failed("rows", "%s: the file is not a profile, or cannot be read", r->o.profile);
    r->exact = calloc(r->file.n_layers, sizeof *r->exact);
    if (!r->exact || quire_workspace_create(&r->workspace, NULL, NULL))
        return tool_failed("rows", "out of memory");
    if (r->o.write && !(r->write = fopen(r->o.write, "wb")))
        return tool_failed("rows", "%s: %s", r->o.write, strerror(errno));
    if (r->o.n_policies == 1 && !strcmp(r->o.policies[0], "all")) all_policies(&r->o);
    if (!r->o.n_policies) set_policies(&r->o, "f16 a8g64 k8v4 a4g64 q8_0 q4_0 r8 r5/r4 r4 r3");
    if (!r->o.json)
        printf("%u tokens\n%-16s %7s %10s %10s %10s %10s\n", r->file.n_tokens, "policy", "bits", "output",
               "score", "K", "V");
    int code = TOOL_OK;
    progress_start(&r->bar, "measuring", "layers", (double)r->o.n_policies * r->file.n_layers);
    for (size_t i = 0; i < r->o.n_policies && code == TOOL_OK; i++)
        code = measure_policy(r, r->o.policies[i], r->write && i + 1 == r->o.n_policies);
    if (r->write && fclose(r->write)) code = tool_failed("rows", "%s could not be written", r->o.write);
    return code == TOOL_OK ? tool_finish("rows") : code;
}

int cmd_rows(int argc, char **argv)
{
    rows_run r = {.o = {.tokens = 2048, .every = 32}};
    int code = tool_parse(&command, argc, argv, &r.o);
    if (code >= 0) return code;
    if (!r.o.path) return tool_usage("rows", "give a file of recorded rows; see quire rows --help");
    code = run(&r);
    quire_workspace_destroy(r.workspace);
    quire_profile_destroy(r.profile);
    for (uint32_t i = 0; r.exact && i < r.file.n_layers; i++) free(r.exact[i]);
    free(r.exact);
    rows_file_free(&r.file);
    return code;
}
