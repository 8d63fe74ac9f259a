/* SPDX-License-Identifier: MIT */
/* plan_table: what `quire plan` found out, for those who print it. */
#ifndef QUIRE_TOOLS_PLAN_TABLE_H
#define QUIRE_TOOLS_PLAN_TABLE_H

#include "common/place.h"
#include "llama/model.h"
#include "llama/recommend.h"
#include "llama/vram.h"

typedef struct plan_options {
    const char *path, *profile_path;
    uint64_t ctx, parallel, ram, vram; /* vram 0: there is no GPU */
    bool json;
} plan_options;

/*
 * A row of the table. stock: what llama.cpp does by itself with that type of -ctk and -ctv, as the evidence names it. It
 * codes window layers too, and head sizes must be multiples of its blocks of 32.
 */
typedef struct plan_listed {
    const char *name, *policy, *stock;
} plan_listed;

/* f16, the presets in the order of recommend_presets, others. */
enum { PLAN_ROWS = 10, PLAN_FIRST_PRESET = 1 };

typedef struct plan_row {
    const plan_listed *listed; /* NULL: not for this model */
    model_plan plan;
    double bits, bits_all, token_bytes, kv_bytes;
    bool fits;
    uint64_t in_memory; /* the longest context that fits */
} plan_row;

/* What fits into the GPU of --vram. */
typedef struct plan_gpu {
    uint32_t ngl;
    vram_need need;
    uint64_t tokens, tokens_all; /* the longest contexts there: with this -ngl, and with all layers */
} plan_gpu;

typedef struct plan_table {
    plan_options o;
    model model; /* with --vram without the cache of the layers that are on the GPU */
    uint32_t n_kv_layers, n_window_layers; /* of all layers */
    plan_gpu gpu;
    model_use use;
    char profile_path[PLACE_SIZE];
    quire_profile *profile;
    const char *profile_state; /* "is used"; NULL: there is no profile */
    plan_row rows[PLAN_ROWS];
    uint64_t aim; /* tokens that the recommendation is for: those of --ctx, or fewer */
    recommendation best;
    uint64_t line_tokens; /* of each sequence in the line to type: what fits of them; 0: there is no line */
    char warning[512];    /* of the context */
} plan_table;

/* Reads the model and fills in the rest from t->o. Returns TOOL_OK, or the exit code of what it has told. */
int plan_table_make(plan_table *t);

/* The row of what is recommended. */
static inline const plan_row *plan_best_row(const plan_table *t)
{
    return &t->rows[PLAN_FIRST_PRESET + t->best.preset];
}

/* The first layer that is on the GPU. */
static inline uint32_t plan_first_on_gpu(const plan_table *t)
{
    uint32_t first = vram_first(&t->model, t->gpu.ngl), n = t->model.n_blocks;
    return !t->o.vram || first > n ? n : first;
}

/* No cache is left for RAM: there are no rows and no recommendation. */
static inline bool plan_is_all_on_gpu(const plan_table *t)
{
    return t->o.vram && !t->model.n_kv_layers;
}

/* The longest context that fits, but never beyond what the model was trained for. */
static inline uint64_t plan_longest(const plan_table *t, const plan_row *r)
{
    uint32_t trained = t->model.context;
    return trained && r->in_memory > trained ? trained : r->in_memory;
}

/* The line to type, to be freed; NULL: there is none, or no memory for it. */
char *plan_line(const plan_table *t);

/* What was measured of a policy, worst over the models; n is 0: nothing. */
typedef struct plan_cost {
    uint32_t n; /* of the models */
    double kld, top1;
} plan_cost;

plan_cost plan_find_cost(const plan_row *r);
/* The warning of a row's policy, or NULL. */
const char *plan_warning(const plan_row *r);

/* ", with RoPE scaling in the file (...)", or "". */
enum { PLAN_ROPE_SIZE = MODEL_ROPE_SIZE + 48 };
const char *plan_rope_clause(char *text, const model *m);

void plan_print_text(const plan_table *t);

#endif
