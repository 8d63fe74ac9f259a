/* SPDX-License-Identifier: MIT */
/* quire plan: what a model's KV cache takes under the usual policies, what fits, and what it costs. */
#include <quire/quire.h>

#include "commands.h"

#include "common/tool.h"
#include "llama/plan_table.h"

#include <stdlib.h>

/* ----------------------------------------------------------------- options */

/* llama.cpp has no more sequences than 256 (LLAMA_MAX_SEQ). */
static const tool_option options[] = {
    {"--ctx", "N", "the tokens of each sequence (default: the context that the model was trained for)",
     TOOL_NUMBER(plan_options, ctx, 1, 1u << 30)},
    {"--parallel", "N", "the number of sequences, as -np of llama-server (default: 1)",
     TOOL_NUMBER(plan_options, parallel, 1, 256)},
    RECOMMEND_RAM_OPTION(plan_options, ram),
    {"--vram", "BYTES",
     "the memory of a GPU, as in 8G: how many layers fit into it with their cache, and what the others need in\n"
     "RAM (default: there is no GPU)",
     TOOL_BYTES(plan_options, vram, 1, UINT64_C(1) << 50)},
    {"--profile", "FILE",
     "the profile of the model (default: MODEL.quire-profile beside the model, if it exists)",
     TOOL_WORD(plan_options, profile_path)},
    {"--json", NULL, "print one JSON object", TOOL_FLAG(plan_options, json)},
};

static const tool_command command = {
    .name = "plan",
    .usage = "[OPTIONS] MODEL.gguf",
    .about =
        "Reads the shape of a model's attention from its file, of which the beginning without the weights is enough. It\n"
        "says if Quire cannot compress the cache of that architecture, or a part of it, and why. For each of the usual\n"
        "policies it prints the bits per value, the bytes that one more token takes, the size of the whole KV cache with\n"
        "window layers included, whether that fits beside the model, the longest context that does, and what the policy\n"
        "cost on the models on which it was measured. The rows -ctk q8_0 and -ctk q4_0 are llama.cpp's own cache types,\n"
        "for comparison.\n"
        "At the end it recommends a preset and prints the line to type.\n\n" RECOMMEND_RULE "\n\n"
        "The longest context is never above the one that the model was trained for. Memory for computing comes on top\n"
        "of the cache; llama.cpp prints how much.\n\n"
        "With --vram it finds the largest -ngl with which weights, cache in f16 and a reserve for computing fit into a\n"
        "GPU. The reserve is for " VRAM_RESERVE ".\n"
        "The table is then about the other layers, whose cache Quire keeps in RAM.",
    .examples = "  quire plan model.gguf\n"
                "  quire plan --ctx 32K --parallel 4 --ram 16G model.gguf\n"
                "  quire plan --vram 8G --ctx 16K model.gguf\n"
                "  quire plan --json model.gguf\n",
    TOOL_OPTIONS(options),
    TOOL_ONE(plan_options, path, "model"),
};

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

static void print_json_gpu(const plan_table *t)
{
    const plan_gpu *g = &t->gpu;
    printf(
        ",\"gpu\":{\"ngl\":%u,\"layers\":%u,\"weights_bytes\":%.0f,\"kv_bytes\":%.0f,\"reserve_bytes\":%.0f,"
        "\"longest\":%llu,\"longest_all\":%llu}",
        g->ngl, t->model.n_blocks - plan_first_on_gpu(t), g->need.weights, g->need.kv, g->need.reserve,
        (unsigned long long)g->tokens, (unsigned long long)g->tokens_all);
}

static void print_json(const plan_table *t)
{
    const model *m = &t->model;
    printf("{\"model\":");
    tool_json_string(stdout, t->o.path);
    printf(",\"architecture\":");
    tool_json_string(stdout, m->arch);
    printf(",\"cache\":\"%s\"", arch_kind_name(m->kind));
    if (m->note) printf(",\"cache_note\":"), tool_json_string(stdout, m->note);
    printf(",\"layers\":%u,\"window_layers\":%u,\"trained_tokens\":%u", t->n_kv_layers, t->n_window_layers,
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
    printf("]");
    if (t->o.vram) print_json_gpu(t);
    if (t->best.policy)
        printf(",\"default\":\"%s\",\"recommended\":\"%s\",\"fits\":%s", recommend_presets[RECOMMEND_DEFAULT],
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

int cmd_plan(int argc, char **argv)
{
    static plan_table t; /* large */
    t.o.parallel = 1;
    int code = tool_parse(&command, argc, argv, &t.o);
    if (code >= 0) return code;
    if (!t.o.path) return tool_usage("plan", "it needs a model; quire plan --help explains it");
    code = plan_table_make(&t);
    if (code == TOOL_OK && t.o.json) {
        print_json(&t);
    } else if (code == TOOL_OK) {
        plan_print_text(&t);
    }
    for (int i = 0; i < PLAN_ROWS; i++) model_plan_destroy(&t.rows[i].plan);
    quire_profile_destroy(t.profile);
    return code == TOOL_OK ? tool_finish("plan") : code;
}
