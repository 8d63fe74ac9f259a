/* SPDX-License-Identifier: MIT */
/* quire plan: what a model's KV cache takes under the usual policies, what fits, and what it costs. */
#define _POSIX_C_SOURCE 200809L
#include <quire/quire.h>

#include "llama/plan_table.h"
#include "common/tool.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const plan_listed listed[PLAN_ROWS] = {
    {"f16", "f16", NULL},
    {"safe", "safe", NULL}, /* the presets in the order of recommend_presets */
    {"balanced", "balanced", NULL},
    {"small", "small", NULL},
    {"r8/r4", "r8/r4", NULL},
    {"r5/r4", "r5/r4", NULL},
    {"r4", "r4", NULL},
    {"k8v4", "k8v4", NULL},
    {"-ctk q8_0", "q8_0,window=q8_0", "stock q8_0"},
    {"-ctk q4_0", "q4_0,window=q4_0", "stock q4_0"},
};

enum { STOCK_BLOCK = 32 };

/* ----------------------------------------------------------------- options */

/* llama.cpp has no more sequences than 256 (LLAMA_MAX_SEQ). */
static const tool_option options[] = {
    {"--ctx", "N", "the tokens of each sequence (default: the context that the model was trained for)",
     TOOL_NUMBER(plan_options, ctx, 1, 1u << 30)},
    {"--parallel", "N", "the number of sequences, as -np of llama-server (default: 1)",
     TOOL_NUMBER(plan_options, parallel, 1, 256)},
    RECOMMEND_RAM_OPTION(plan_options, ram),
    {"--profile", "FILE",
     "the profile of the model (default: MODEL.quire-profile beside the model, if it exists)",
     TOOL_WORD(plan_options, profile_path)},
    {"--json", NULL, "print one JSON object", TOOL_FLAG(plan_options, json)},
};

static const tool_command command = {
    .name = "plan",
    .usage = "[OPTIONS] MODEL.gguf",
    .about =
        "Reads the shape of a model's attention from its file. For each of the usual policies it prints the bits per\n"
        "value, the bytes that one more token takes, the size of the whole KV cache with window layers included,\n"
        "whether that fits beside the model, the longest context that does, and what the policy cost on the models on\n"
        "which it was measured. The rows -ctk q8_0 and -ctk q4_0 are llama.cpp's own cache types, for comparison.\n"
        "At the end it recommends a preset and prints the line to type.\n\n" RECOMMEND_RULE "\n\n"
        "The longest context is never above the one that the model was trained for. Memory for computing comes on top\n"
        "of the cache; llama.cpp prints how much.",
    .examples = "  quire plan model.gguf\n"
                "  quire plan --ctx 32K --parallel 4 --ram 16G model.gguf\n"
                "  quire plan --json model.gguf\n",
    TOOL_OPTIONS(options),
    TOOL_ONE(plan_options, path, "model"),
};

/* -------------------------------------------------------------------- rows */

static bool stock_can(const model *m)
{
    for (uint32_t i = 0; i < m->n_layers; i++)
        if (m->has_kv[i] && (m->layers[i].d_k % STOCK_BLOCK || m->layers[i].d_v % STOCK_BLOCK)) return false;
    return true;
}

static bool fill_row(plan_table *t, plan_row *r, const plan_listed *what, char *why, size_t size)
{
    const model *m = &t->model;
    if (what->stock && !stock_can(m)) return true;
    quire_status status = model_plan_create(&r->plan, m, what->policy, t->profile, why, size);
    if (status) return what->stock;
    r->listed = what;
    r->bits = model_kv_bits(m, &r->plan);
    r->bits_all = model_kv_bits_all(m, &r->plan, &t->use);
    r->kv_bytes = model_kv_bytes(m, &r->plan, &t->use);
    r->token_bytes = model_kv_token_bytes(m, &r->plan);
    r->in_memory = model_kv_tokens(m, &r->plan, &t->use, t->best.room);
    r->fits = r->kv_bytes <= t->best.room;
    return true;
}

/* Of stock's types there is none: it rotates their rows, and the policy of the same name does not. */
const char *plan_warning(const plan_row *r)
{
    return r->listed->stock ? NULL : quire_plan_warning(r->plan.plan);
}

/* As asked for; or less, if that is beyond the trained context or more than -c can say (an int). */
static uint64_t find_aim(const plan_table *t)
{
    uint64_t tokens = t->o.ctx, most = INT32_MAX / t->o.parallel / 256 * 256;
    if (t->model.context && tokens > t->model.context) tokens = t->model.context;
    return tokens > most ? most : tokens;
}

static uint64_t find_line_tokens(const plan_table *t)
{
    uint64_t longest = plan_best_row(t)->in_memory;
    return t->best.fits || t->aim <= longest ? t->aim : longest;
}

/* -------------------------------------------------------------- sentences */

static void describe_context(plan_table *t)
{
    char rope[PLAN_ROPE_SIZE];
    const model *m = &t->model;
    if (!m->context || t->o.ctx <= m->context) return;
    snprintf(
        t->warning, sizeof t->warning,
        "--ctx %llu is more than the %u tokens that the model was trained for%s; longer contexts need %sRoPE "
        "scaling (llama.cpp's --rope-scaling), and without it llama-server limits each slot to %u tokens",
        (unsigned long long)t->o.ctx, m->context, plan_rope_clause(rope, m), *m->rope_type ? "other " : "",
        m->context);
}

/* Between quotes, if the shell would see something in it. */
static void put_path(FILE *to, const char *path)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+=:,@";
    if (*path && !path[strspn(path, plain)]) {
        fputs(path, to);
        return;
    }
    fputc('\'', to);
    for (; *path; path++)
        if (*path == '\'')
            fputs("'\\''", to);
        else
            fputc(*path, to);
    fputc('\'', to);
}

/*
 * The line to type; NULL: there is none, or no memory for it. With -np, because llama-server would otherwise make four
 * slots, and longer window layers for them.
 */
char *plan_line(const plan_table *t)
{
    char *line = NULL;
    size_t size;
    FILE *to = t->line_tokens ? open_memstream(&line, &size) : NULL;
    if (!to) return NULL;
    fprintf(to, "quire run --kv %s -- llama-server -m ", t->best.policy);
    put_path(to, t->o.path);
    fprintf(to, " -c %llu -np %llu", (unsigned long long)(t->line_tokens * t->o.parallel),
            (unsigned long long)t->o.parallel);
    return fclose(to) ? NULL : line;
}

/* -------------------------------------------------------------------- JSON */

static void print_json_row(const plan_table *t, const plan_row *r, const char *comma)
{
    const char *warning = plan_warning(r);
    plan_cost f = plan_find_cost(r);
    printf(
        "%s{\"policy\":\"%s\",\"canonical\":\"%s\",\"bits\":%.4g,\"bytes_per_token\":%.0f,\"kv_bytes\":%.0f,"
        "\"fits\":%s,\"longest\":%llu,\"longest_in_memory\":%llu,\"bits_all\":%.4g,\"stock\":%s",
        comma, r->listed->name, quire_plan_policy(r->plan.plan), r->bits, r->token_bytes, r->kv_bytes,
        r->fits ? "true" : "false", (unsigned long long)plan_longest(t, r), (unsigned long long)r->in_memory,
        r->bits_all, r->listed->stock ? "true" : "false");
    if (f.n) printf(",\"kld\":%g", f.kld);
    if (f.n && f.top1 < 100) printf(",\"top1\":%g", f.top1);
    if (f.n) printf(",\"models\":%u", f.n);
    if (warning) printf(",\"warning\":"), tool_json_string(stdout, warning);
    printf("}");
}

static void print_json(const plan_table *t)
{
    const model *m = &t->model;
    printf("{\"model\":");
    tool_json_string(stdout, t->o.path);
    printf(",\"architecture\":");
    tool_json_string(stdout, m->arch);
    printf(",\"layers\":%u,\"window_layers\":%u,\"trained_tokens\":%u", m->n_kv_layers, m->n_window_layers,
           m->context);
    if (*m->rope_type) {
        printf(",\"rope_scaling\":{\"type\":");
        tool_json_string(stdout, m->rope_type);
        printf(",\"factor\":%g,\"original_tokens\":%u}", m->rope_factor, m->rope_original);
    }
    printf(",\"model_bytes\":%llu,\"room_bytes\":%.0f,\"tokens\":%llu,\"sequences\":%llu,\"policies\":[",
           (unsigned long long)m->file_bytes, t->best.room, (unsigned long long)t->o.ctx,
           (unsigned long long)t->o.parallel);
    for (int i = 0; i < PLAN_ROWS; i++)
        if (t->rows[i].listed) print_json_row(t, &t->rows[i], i ? "," : "");
    printf("],\"default\":\"%s\",\"recommended\":\"%s\",\"fits\":%s", recommend_presets[RECOMMEND_DEFAULT],
           t->best.policy, t->best.fits ? "true" : "false");
    if (t->profile_state) printf(",\"profile_state\":"), tool_json_string(stdout, t->profile_state);
    if (*t->warning) printf(",\"context_warning\":"), tool_json_string(stdout, t->warning);
    char *line = plan_line(t);
    printf(",\"command_tokens\":%llu,\"command\":", (unsigned long long)t->line_tokens);
    if (line)
        tool_json_string(stdout, line);
    else
        printf("null");
    printf("}\n");
    free(line);
}

/* -------------------------------------------------------------------- main */

static int find_profile(plan_table *t)
{
    const char *path = t->o.profile_path;
    if (!path && model_profile_path(t->profile_path, sizeof t->profile_path, t->o.path) &&
        !access(t->profile_path, R_OK))
        path = t->profile_path;
    if (!path) return TOOL_OK;
    quire_status status = tool_load_profile(&t->profile, path);
    if (status && t->o.profile_path)
        return tool_failed("plan", "the profile %s cannot be used: %s", path, quire_status_text(status));
    t->profile_state = status ? "beside the model cannot be read and is not used" : "is used";
    if (!status && !t->o.profile_path && !model_profile_fits(&t->model, t->profile)) {
        t->profile_state = "beside the model was made for another model and is not used";
        quire_profile_destroy(t->profile);
        t->profile = NULL;
    }
    return TOOL_OK;
}

static int make_table(plan_table *t)
{
    char message[PLACE_SIZE + 512] = "";
    if (!model_open(&t->model, t->o.path, message, sizeof message)) return tool_failed("plan", "%s", message);
    if (!t->o.ctx) t->o.ctx = t->model.context;
    if (!t->o.ctx)
        return tool_usage(
            "plan", "%s does not say for how many tokens the model was trained; --ctx is needed", t->o.path);
    int code = find_profile(t);
    if (code != TOOL_OK) return code;
    t->aim = find_aim(t);
    t->use = (model_use){.tokens = t->aim, .sequences = (uint32_t)t->o.parallel};
    if (!recommend(&t->best, &t->model, &t->use, t->profile, recommend_room(&t->model, t->o.ram), message,
                   sizeof message))
        return tool_failed("plan", "%s: %s", t->o.path, message);
    t->use.tokens = t->o.ctx;
    for (int i = 0; i < PLAN_ROWS; i++)
        if (!fill_row(t, &t->rows[i], &listed[i], message, sizeof message))
            return tool_failed("plan", "%s: the policy %s cannot be used: %s", t->o.path, listed[i].policy,
                               message);
    t->line_tokens = find_line_tokens(t);
    describe_context(t);
    return TOOL_OK;
}

int cmd_plan(int argc, char **argv)
{
    static plan_table t; /* large */
    t.o.parallel = 1;
    int code = tool_parse(&command, argc, argv, &t.o);
    if (code >= 0) return code;
    if (!t.o.path) return tool_usage("plan", "it needs a model; quire plan --help explains it");
    code = make_table(&t);
    if (code == TOOL_OK && t.o.json) {
        print_json(&t);
    } else if (code == TOOL_OK) {
        plan_print_text(&t);
    }
    for (int i = 0; i < PLAN_ROWS; i++) model_plan_destroy(&t.rows[i].plan);
    quire_profile_destroy(t.profile);
    return code == TOOL_OK ? tool_finish("plan") : code;
}
