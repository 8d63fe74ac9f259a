/* SPDX-License-Identifier: MIT */
/* plan_text: the table of `quire plan` for people, and the evidence in it. */
#include "common/tool.h"
#include "llama/evidence.h"
#include "llama/plan_table.h"

#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- evidence */

/* Of policies that begin with the first n characters of one, and end there. */
static plan_cost measured(const char *canonical, size_t n)
{
    plan_cost f = {.top1 = 100};
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
plan_cost plan_find_cost(const plan_row *r)
{
    const char *name = r->listed->stock ? r->listed->stock : quire_plan_policy(r->plan.plan);
    plan_cost f = measured(name, strlen(name));
    if (f.n || strstr(name, ",window=")) return f;
    return measured(name, strcspn(name, ","));
}

static bool is_first_of_model(size_t i)
{
    for (size_t j = 0; j < i; j++)
        if (!strcmp(evidence_rows[j].model, evidence_rows[i].model)) return false;
    return true;
}

static uint32_t n_models(void)
{
    uint32_t n = 0;
    for (size_t i = 0; i < N_EVIDENCE; i++) n += is_first_of_model(i);
    return n;
}

/* -------------------------------------------------------------------- text */

static const char *plural(uint64_t n)
{
    return n == 1 ? "" : "s";
}

const char *plan_rope_clause(char *text, const model *m)
{
    char rope[MODEL_ROPE_SIZE];
    *text = 0;
    if (*m->rope_type)
        snprintf(text, PLAN_ROPE_SIZE, ", with RoPE scaling in the file (%s)", model_rope_text(rope, m));
    return text;
}

/* What the architecture keeps Quire from doing. */
static void print_kind(const model *m)
{
    static const char *const begin[] = {
        [ARCH_TILES] = "Note",
        [ARCH_PARTLY] = "A part of the cache of this architecture is stored as without Quire",
        [ARCH_PLAIN] =
            "Quire does not compress the cache of this architecture, so the policies change nothing",
    };
    if (m->note) printf("%s: %s.\n", begin[m->kind], m->note);
}

/* What is on the GPU of --vram, and what that leaves. */
static void print_gpu(const plan_table *t)
{
    char a[TOOL_BYTES_SIZE], b[TOOL_BYTES_SIZE], c[TOOL_BYTES_SIZE], d[TOOL_BYTES_SIZE];
    const plan_gpu *g = &t->gpu;
    uint32_t n = t->model.n_blocks, on_gpu = n - plan_first_on_gpu(t);
    tool_bytes(a, (double)t->o.vram);
    tool_bytes(d, g->need.reserve);
    if (!g->ngl) {
        printf("%s of a GPU's memory are too little: computing alone needs a reserve of %s there.\n", a, d);
        return;
    }
    if (on_gpu == n)
        printf("%s of a GPU's memory hold all %u layers", a, n);
    else
        printf("%s of a GPU's memory hold the last %u of %u layers", a, on_gpu, n);
    printf(
        " and the output (-ngl %u): %s of weights, %s of KV cache in f16,\nand a reserve of %s for computing. ",
        g->ngl, tool_bytes(b, g->need.weights), tool_bytes(c, g->need.kv), d);
    if (on_gpu)
        printf("There is room for %llu tokens%s", (unsigned long long)g->tokens,
               t->o.parallel == 1 ? "" : " of each sequence");
    else
        printf("No layer fits");
    if (on_gpu == n)
        printf(". No cache is left for Quire.\n");
    else if (g->tokens_all)
        printf("; all layers fit with up to %llu tokens.\n", (unsigned long long)g->tokens_all);
    else
        printf("; all layers do not fit with any context.\n");
}

static void print_head(const plan_table *t)
{
    char a[TOOL_BYTES_SIZE], b[TOOL_BYTES_SIZE], rope[PLAN_ROPE_SIZE];
    const model *m = &t->model;
    const quire_layer *l = &m->layers[0];
    printf("%s (%s): %u layer%s with a KV cache", *m->name ? m->name : t->o.path, m->arch, t->n_kv_layers,
           plural(t->n_kv_layers));
    if (t->n_window_layers) printf(" (%u of them keep only a window)", t->n_window_layers);
    printf(", %u KV head%s of size %u", l->n_kv_heads, plural(l->n_kv_heads), l->d_k);
    if (l->d_v != l->d_k) printf(" for K and %u for V", l->d_v);
    if (!m->context)
        printf(". The file does not say for how many tokens the model was trained.\n");
    else
        printf(".%sIt was trained for %u tokens%s.\n", *m->rope_type ? "\n" : " ", m->context,
               plan_rope_clause(rope, m));
    print_kind(m);
    if (t->o.vram) print_gpu(t);
    if (plan_is_all_on_gpu(t)) return;
    printf(
        "The table is for %llu sequence%s of %llu tokens%s%s of memory is available for the cache, beside the %s "
        "of the model%s.\n\n",
        (unsigned long long)t->o.parallel, plural(t->o.parallel), (unsigned long long)t->o.ctx,
        t->o.vram ? " in the layers that are not on the GPU.\n" : ". ", tool_bytes(a, t->best.room),
        tool_bytes(b, (double)m->file_bytes), t->o.vram ? " that stay in RAM" : "");
}

static void print_cost(const plan_row *r)
{
    plan_cost f = plan_find_cost(r);
    if (!strcmp(r->listed->name, "f16"))
        printf("none: it is the reference");
    else if (!f.n)
        printf("not measured");
    else
        printf("KL %.2g", f.kld);
    if (f.n && f.top1 < 100) printf(", same token %.1f %%", f.top1);
    if (f.n && f.n < n_models()) printf(" (%u of %u models)", f.n, n_models());
    printf("%s\n", plan_warning(r) ? " (!)" : "");
}

static void print_row(const plan_table *t, const plan_row *r)
{
    char kv[TOOL_BYTES_SIZE], most[32] = "any ";
    const char *canonical = quire_plan_policy(r->plan.plan);
    uint64_t tokens = plan_longest(t, r);
    if (tokens < UINT64_C(1) << 31)
        snprintf(most, sizeof most, "%llu%c", (unsigned long long)tokens, tokens < r->in_memory ? '*' : ' ');
    printf("%-10s %-12.*s %6.2f", r->listed->name, (int)strcspn(canonical, ","), canonical, r->bits);
    if (t->model.n_window_layers) printf(" %6.2f", r->bits_all);
    printf(" %9.0f  %9s  %-4s %10s  ", r->token_bytes, tool_bytes(kv, r->kv_bytes), r->fits ? "yes" : "no",
           most);
    print_cost(r);
}

static void print_table(const plan_table *t)
{
    bool windows = t->model.n_window_layers;
    if (windows) printf("%-10s %-12s %13s\n", "", "", "bits per value");
    printf("%-10s %-12s %6s", "policy", "codecs", windows ? "full" : "bits");
    if (windows) printf(" %6s", "all");
    printf(" %9s  %9s  %-4s %10s  %s\n", "B/token", "KV cache", "fits", "longest ", "cost");
    for (int i = 0; i < PLAN_ROWS; i++)
        if (t->rows[i].listed) print_row(t, &t->rows[i]);
}

static void print_models(void)
{
    uint32_t left = n_models();
    for (size_t i = 0; i < N_EVIDENCE; i++)
        if (is_first_of_model(i))
            printf("%s%s", evidence_rows[i].model, --left > 1 ? ", " : left ? " and " : "");
}

static void print_notes(const plan_table *t)
{
    char rope[PLAN_ROPE_SIZE];
    const model *m = &t->model;
    const plan_row *capped = NULL; /* the presets first, f16 last */
    const char *warning = NULL;
    bool stock = false;
    for (int i = 1; i <= PLAN_ROWS; i++) {
        const plan_row *r = &t->rows[i % PLAN_ROWS];
        if (!r->listed) continue;
        if (!capped && plan_longest(t, r) < r->in_memory) capped = r;
        stock |= r->listed->stock != NULL;
        if (plan_warning(r)) warning = plan_warning(r);
    }
    printf(
        "\ncost: the mean KL divergence from an f16 cache, and how often the likeliest token is the same; the worst of\n"
        "      ");
    print_models();
    printf(" at 2048 tokens. Your model may differ (docs/fidelity.md).\n");
    if (m->n_window_layers)
        printf(
            "bits: \"full\" counts the layers that keep every token, \"all\" also the window layers, at %llu tokens."
            " Policies leave\n      window layers in f16 unless they name another codec, as safe,window=r8 does.\n",
            (unsigned long long)t->o.ctx);
    if (stock)
        printf(
            "-ctk: llama.cpp's own cache types for K and V (-ctk q8_0 -ctv q8_0), measured with its own attention. "
            "It rotates\n      these rows%s.\n",
            m->n_window_layers ? ", and quantizes window layers too" : "");
    if (capped)
        printf(
            "*:    The memory would hold more, with %s %llu tokens%s. The model was trained for %u%s; longer contexts\n"
            "      need %sRoPE scaling (llama.cpp's --rope-scaling).\n",
            capped->listed->name,
            (unsigned long long)(capped->in_memory < INT32_MAX ? capped->in_memory : INT32_MAX),
            t->o.parallel == 1 ? "" : " of each sequence", m->context, plan_rope_clause(rope, m),
            *m->rope_type ? "other " : "");
    if (warning) printf("(!):  %s.\n", warning);
    if (t->profile_state)
        printf("\nThe profile %s %s.\n", t->o.profile_path ? t->o.profile_path : t->profile_path,
               t->profile_state);
    if (*t->warning) printf("\nwarning: %s.\n", t->warning);
}

/* Why it is not safe, or not the context of --ctx. */
static void print_reasons(const plan_table *t)
{
    char a[TOOL_BYTES_SIZE], b[TOOL_BYTES_SIZE];
    const recommendation *best = &t->best;
    const recommend_offer *safe = &best->offers[RECOMMEND_DEFAULT], *chosen = &best->offers[best->preset];
    model_use least = t->use;
    least.tokens = 256;
    tool_bytes(b, best->room);
    if (t->aim < t->o.ctx)
        printf(", for %llu tokens, %s", (unsigned long long)t->aim,
               t->aim == t->model.context ? "the context that the model was trained for"
                                          : "the most that -c of llama.cpp can say");
    if (!t->line_tokens)
        printf(
            ", but not even 256 tokens fit: they need %s, and %s of memory is available.\nThere is no line to type.",
            tool_bytes(a, model_kv_bytes(&t->model, &plan_best_row(t)->plan, &least)), b);
    else if (!best->fits)
        printf(
            ", but with a shorter context. At %llu tokens no preset fits: %s needs %s, and %s of memory is available.\n"
            "This line is for %llu tokens:",
            (unsigned long long)t->aim, best->policy, tool_bytes(a, chosen->bytes), b,
            (unsigned long long)t->line_tokens);
    else if (best->preset != RECOMMEND_DEFAULT && safe->bytes > best->room)
        printf(
            ", because safe does not fit: it needs %s, and %s of memory is available.\nquire run takes %s only if you "
            "ask for it, as this line does:",
            tool_bytes(a, safe->bytes), b, best->policy);
    else if (best->preset != RECOMMEND_DEFAULT)
        printf(", because Quire warns of safe for this model:");
}

static void print_recommendation(const plan_table *t)
{
    char *line = plan_line(t);
    if (t->best.policy) {
        printf("\nrecommended: %s", t->best.policy);
        print_reasons(t);
        printf("\n");
    }
    if (line) printf("\n  %s\n", line);
    free(line);
}

void plan_print_text(const plan_table *t)
{
    print_head(t);
    if (!plan_is_all_on_gpu(t)) {
        print_table(t);
        print_notes(t);
    }
    print_recommendation(t);
}
