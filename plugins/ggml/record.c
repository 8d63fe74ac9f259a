/* SPDX-License-Identifier: MIT */
/* What is recorded of a run: a profile of its K and Q rows (QUIRE_PROFILE_RECORD), the rows themselves
 * (QUIRE_ROWS_RECORD). */
#include "kv.h"
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS_MAGIC "QUIREROW"
enum { ROWS_VERSION = 1, ROWS_Q = 2 }; /* kinds of rows: QUIRE_K, QUIRE_V, and this */

struct recorder {
    quire_profile *profile; /* or NULL */
    FILE *rows;             /* or NULL */
    uint64_t n_rows;        /* of K, all layers */
    uint32_t n_layers;
    struct recorded {
        uint32_t window, n_values[3]; /* of a row of K, V, Q */
        uint32_t next;                /* position after the last row of K */
        bool begun, turned;           /* the profile knows how positions turn its rows */
    } layer[];
};

static bool start_rows(struct recorder *r, const quire_geometry *g)
{
    uint32_t head[2] = {ROWS_VERSION, g->n_layers};
    r->rows = fopen(config.rows_record, "wb");
    if (!r->rows) {
        say_trouble("rows: %s: %s", config.rows_record, strerror(errno));
        return false;
    }
    fwrite(ROWS_MAGIC, 1, 8, r->rows);
    fwrite(head, sizeof head, 1, r->rows);
    for (uint32_t i = 0; i < g->n_layers; i++) {
        const quire_layer *l = &g->layers[i];
        uint32_t shape[5] = {l->n_q_heads, l->n_kv_heads, l->d_k, l->d_v, l->window};
        fwrite(shape, sizeof shape, 1, r->rows);
    }
    return true;
}

struct recorder *recorder_create(const quire_geometry *g)
{
    struct recorder *r = calloc(1, sizeof *r + g->n_layers * sizeof r->layer[0]);
    bool right = r && (!config.profile_record || !quire_profile_create(&r->profile, g, NULL));
    if (!right) say_trouble("out of memory, so nothing is recorded");
    if (!right || (config.rows_record && !start_rows(r, g))) {
        if (r) quire_profile_destroy(r->profile);
        free(r);
        return NULL;
    }
    r->n_layers = g->n_layers;
    if (r->profile) quire_profile_set_length(r->profile, config.profile_tokens);
    for (uint32_t i = 0; i < g->n_layers; i++) {
        const quire_layer *l = &g->layers[i];
        r->layer[i] = (struct recorded){
            .window = l->window,
            .n_values = {l->n_kv_heads * l->d_k, l->n_kv_heads * l->d_v, l->n_q_heads * l->d_k}};
    }
    return r;
}

/* ------------------------------------------------------------------------ rope */

/* What turned these rows by their positions, if that was the last thing done to them. */
static const struct host_tensor *rope_of(const struct host_tensor *rows)
{
    while (rows && (rows->op == host.op.VIEW || rows->op == host.op.RESHAPE || rows->op == host.op.PERMUTE ||
                    rows->op == host.op.CONT))
        rows = rows->src[0];
    return rows && rows->op == host.op.ROPE ? rows : NULL;
}

enum {
    ROPE_N_DIMS = 1,
    ROPE_MODE = 2,
    ROPE_BASE = 5,
    ROPE_SCALE = 6,
    ROPE_EXTRAPOLATION = 7
}; /* op_params */
enum { MODE_NEIGHBOURS = 0, MODE_HALVES = 2 };

/* Angles of the plain kinds; others (several position streams, YaRN) are left out, and the profile is then one of the
 * positions it saw. */
static bool learn_rope(struct recorder *r, uint32_t layer, const struct host_tensor *op)
{
    float frequencies[512];
    const struct host_tensor *factors = op->src[2];
    int32_t n = op->op_params[ROPE_N_DIMS] / 2, mode = op->op_params[ROPE_MODE];
    if (n < 1 || n > 512 || (mode != MODE_NEIGHBOURS && mode != MODE_HALVES)) return false;
    if (host_float_param(op, ROPE_EXTRAPOLATION) != 0) return false;
    if (factors && (factors->type != host.type[TYPE_F32] || factors->ne[0] < n || !factors->data))
        return false;
    for (int32_t i = 0; i < n; i++) {
        float x =
            host_float_param(op, ROPE_SCALE) * powf(host_float_param(op, ROPE_BASE), -(float)i / (float)n);
        frequencies[i] = factors ? x / ((const float *)factors->data)[i] : x;
    }
    quire_rope rope = {.size = sizeof(quire_rope),
                       .n_pairs = (uint32_t)n,
                       .interleaved = mode == MODE_NEIGHBOURS,
                       .frequencies = frequencies};
    return !quire_profile_set_rope(r->profile, layer, &rope);
}

/* The positions of n rows; NULL: the host has put something else there by now. */
static const int32_t *positions_of(const struct host_tensor *rope, int64_t n)
{
    const struct host_tensor *t = rope->src[1];
    if (!t || t->type != host.type[TYPE_I32] || t->ne[0] != n || !t->data) return NULL;
    const int32_t *position = t->data;
    for (int64_t i = 0; i < n; i++)
        if (position[i] < 0 || position[i] >= 1 << 24) return NULL; /* floats are outside */
    return position;
}

bool recorder_begin(struct recorder *r, uint32_t layer, const struct host_tensor *k,
                    const int32_t **positions)
{
    *positions = NULL;
    if (layer >= r->n_layers || !r->profile) return true;
    struct recorded *l = &r->layer[layer];
    const struct host_tensor *rope = rope_of(k);
    if (rope && l->window) *positions = positions_of(rope, k->ne[1]);
    if (!l->begun && rope && (*positions || !l->window)) l->turned = learn_rope(r, layer, rope);
    l->begun = true;
    l->next = 0;
    return *positions || !l->window || !l->turned;
}

/* ------------------------------------------------------------------------ rows */

/* docs/formats/recorded.md. Cells of window layers are no positions, so these are left out. */
static void write_row(struct recorder *r, uint32_t layer, uint32_t kind, uint32_t position, const float *row)
{
    uint32_t head[3] = {layer, kind, position};
    if (!r->rows || r->layer[layer].window) return;
    fwrite(head, sizeof head, 1, r->rows);
    fwrite(row, sizeof *row, r->layer[layer].n_values[kind], r->rows);
}

void recorder_row(struct recorder *r, uint32_t layer, quire_side side, uint32_t position, const float *row)
{
    if (layer >= r->n_layers) return;
    write_row(r, layer, side, position, row);
    if (side == QUIRE_V) return;
    r->layer[layer].next = position + 1;
    r->n_rows++;
    if (r->profile) quire_profile_observe_k(r->profile, layer, position, row, 1);
}

void recorder_q(struct recorder *r, uint32_t layer, uint32_t behind, const float *row)
{
    if (layer >= r->n_layers || behind >= r->layer[layer].next) return;
    uint32_t position = r->layer[layer].next - 1 - behind;
    if (r->profile) quire_profile_observe_q(r->profile, layer, position, row, 1);
    write_row(r, layer, ROWS_Q, position, row);
}

static quire_status write_bytes(void *ctx, const void *bytes, size_t n)
{
    return fwrite(bytes, 1, n, ctx) == n ? QUIRE_OK : QUIRE_EIO;
}

/* Beside the file first, so that a half-written one never has its name. */
static bool save(const quire_profile *profile, const char *path)
{
    size_t n = strlen(path) + 8;
    char *part = malloc(n);
    if (!part) return false;
    snprintf(part, n, "%s.part", path);
    FILE *f = fopen(part, "wb");
    bool right = f && !quire_profile_save(profile, write_bytes, f);
    if (f && fclose(f)) right = false;
    if (right) right = !rename(part, path);
    if (!right && f) remove(part);
    free(part);
    return right;
}

static void finish_profile(struct recorder *r)
{
    if (quire_profile_finish(r->profile))
        say_trouble("profile: nothing was recorded, so no profile was written");
    else if (!save(r->profile, config.profile_record))
        say_trouble("profile: %s: %s", config.profile_record, strerror(errno));
    else
        say_info("profile of %llu rows of K written to %s", (unsigned long long)r->n_rows,
                 config.profile_record);
    quire_profile_destroy(r->profile);
}

static void finish_rows(struct recorder *r)
{
    bool right = !ferror(r->rows);
    if (fclose(r->rows)) right = false;
    if (right)
        say_info("rows written to %s", config.rows_record);
    else
        say_trouble("rows: %s: not all rows could be written", config.rows_record);
}

void recorder_finish(struct recorder *r)
{
    if (!r) return;
    if (r->profile) finish_profile(r);
    if (r->rows) finish_rows(r);
    free(r);
}
