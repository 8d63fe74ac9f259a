/* SPDX-License-Identifier: MIT */
/* plan_table: the rows of `quire plan`, the recommendation and the line to type. */
#define _POSIX_C_SOURCE 200809L
#include "llama/plan_table.h"

#include "common/tool.h"
#include "llama/profile.h"

#include <string.h>

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
    r->plan.is_host = what->stock != NULL;
    r->bits = model_kv_bits(m, &r->plan);
    r->bits_all = model_kv_bits_all(m, &r->plan, &t->use);
    r->kv_bytes = model_kv_bytes(m, &r->plan, &t->use);
    r->token_bytes = model_kv_token_bytes(m, &r->plan);
    r->in_memory = model_kv_tokens(m, &r->plan, &t->use, t->best.room);
    if (t->o.vram && t->gpu.tokens < r->in_memory) r->in_memory = t->gpu.tokens;
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
    if (t->best.policy) fprintf(to, "quire run --kv %s -- ", t->best.policy);
    fprintf(to, "llama-server -m ");
    put_path(to, t->o.path);
    fprintf(to, " -c %llu -np %llu", (unsigned long long)(t->line_tokens * t->o.parallel),
            (unsigned long long)t->o.parallel);
    if (t->o.vram) fprintf(to, " -ngl %u", t->gpu.ngl);
    return fclose(to) ? NULL : line;
}

/* ------------------------------------------------------------------- table */

static int find_profile(plan_table *t)
{
    static const char *const states[] = {
        [PROFILE_NONE] = NULL,
        [PROFILE_FITS] = "is used",
        [PROFILE_UNREADABLE] = "beside the model cannot be read and is not used",
        [PROFILE_OF_ANOTHER_MODEL] = "beside the model was made for another model and is not used",
    };
    const char *path = t->o.profile_path;
    quire_status status = path ? profile_load(&t->profile, path) : QUIRE_OK;
    if (status)
        return tool_failed("plan", "the profile %s cannot be used: %s", path, profile_fault(path, status));
    t->profile_state =
        states[path ? PROFILE_FITS : profile_find_beside(&t->profile, t->profile_path, &t->model, t->o.path)];
    return TOOL_OK;
}

/* Layers of the GPU need no RAM: neither for their weights nor for their cache. */
static int divide(plan_table *t)
{
    model *m = &t->model;
    plan_gpu *g = &t->gpu;
    double bytes = (double)t->o.vram;
    if (!t->o.vram) return TOOL_OK;
    if (!vram_is_known(m))
        return tool_failed("plan", "%s: the sizes of its weights cannot be read, which --vram needs",
                           t->o.path);
    g->ngl = vram_layers(m, &t->use, bytes);
    g->need = vram_need_of(m, &t->use, g->ngl);
    /* Without layers there, the GPU limits nothing: llama.cpp can do without it. */
    g->tokens = g->ngl ? vram_tokens(m, &t->use, g->ngl, bytes) : INT32_MAX;
    g->tokens_all = vram_tokens(m, &t->use, vram_all(m), bytes);
    uint32_t first = plan_first_on_gpu(t);
    for (uint32_t i = first; i < m->n_blocks && i < GGUF_MAX_LAYERS; i++)
        m->file_bytes -= (uint64_t)m->weights.layer[i];
    if (g->ngl) m->file_bytes -= (uint64_t)m->weights.output;
    model_cut(m, first);
    return TOOL_OK;
}

int plan_table_make(plan_table *t)
{
    char message[PLACE_SIZE + 512] = "";
    if (!model_open(&t->model, t->o.path, message, sizeof message)) return tool_failed("plan", "%s", message);
    t->n_kv_layers = t->model.n_kv_layers;
    t->n_window_layers = t->model.n_window_layers;
    if (!t->o.ctx) t->o.ctx = t->model.context;
    if (!t->o.ctx)
        return tool_usage(
            "plan", "%s does not say for how many tokens the model was trained; --ctx is needed", t->o.path);
    int code = find_profile(t);
    if (code != TOOL_OK) return code;
    t->aim = find_aim(t);
    t->use = (model_use){.tokens = t->aim, .sequences = (uint32_t)t->o.parallel};
    code = divide(t);
    if (plan_is_all_on_gpu(t)) t->line_tokens = t->aim;
    if (code != TOOL_OK || plan_is_all_on_gpu(t)) return code;
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
