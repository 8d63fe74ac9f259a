/* SPDX-License-Identifier: MIT */
/* worst: an input, what attention makes of it, and what it may make. */
#include "worst.h"

#include "reference.h"

#include "attend/tile_list.h"

#include <math.h>
#include <stdlib.h>

static void open_side(worst_side *s, const char *codec, quire_side side, uint32_t d,
                      const quire_profile *profile)
{
    quire_tile_format_options options = {.size = sizeof options, .side = side, .d = d, .profile = profile};
    if (strncmp(codec, "c:", 2) != 0) options.profile = NULL;
    REF_OK(quire_tile_format_create(&s->format, codec, &options));
    size_t bytes = s->format->tile_bytes * (WORST_TOKENS / QUIRE_TILE_ROWS);
    s->tiles = (uint8_t *)aligned_alloc(64, bytes);
    assert_non_null(s->tiles);
    memset(s->tiles, 0, bytes);
    s->row = (quire_coded_row *)ref_alloc(WORST_TOKENS, sizeof *s->row);
    memset(s->row, 0, WORST_TOKENS * sizeof *s->row);
    s->value = (float *)ref_alloc((size_t)WORST_TOKENS * d, sizeof *s->value);
    s->range = (double *)ref_alloc(WORST_TOKENS, sizeof *s->range);
    s->mean = (uint32_t *)ref_alloc(WORST_TOKENS, sizeof *s->mean);
}

void worst_open(worst_input *in, const char *k, const char *v, uint32_t d_k, uint32_t d_v, uint32_t n_tokens,
                const quire_profile *profile)
{
    memset(in, 0, sizeof *in);
    open_side(&in->side[QUIRE_K], k, QUIRE_K, d_k, profile);
    open_side(&in->side[QUIRE_V], v, QUIRE_V, d_v, profile);
    in->n_tokens = n_tokens;
    in->undo = (worst_undo *)ref_alloc(2 * (size_t)WORST_TOKENS, sizeof *in->undo);
    REF_OK(quire_workspace_create(&in->workspace, NULL, NULL));
}

void worst_close(worst_input *in)
{
    for (uint32_t i = 0; i < 2; i++) {
        worst_side *s = &in->side[i];
        quire_tile_format_destroy(s->format);
        free(s->tiles);
        free(s->row);
        free(s->value);
        free(s->range);
        free(s->mean);
    }
    free(in->undo);
    quire_workspace_destroy(in->workspace);
}

quire_coded_row *worst_change(worst_input *in, uint32_t side, uint32_t t)
{
    quire_coded_row *row = &in->side[side].row[t];
    if (!in->is_changed[side][t]) {
        in->is_changed[side][t] = true;
        in->undo[in->n_undo++] = (worst_undo){side, t, *row};
    }
    return row;
}

void worst_begin(worst_input *in)
{
    for (uint32_t i = 0; i < in->n_undo; i++) in->is_changed[in->undo[i].side][in->undo[i].token] = false;
    in->n_undo = 0;
    in->terms_before = in->terms;
}

/* The tile, the decoded row and its range, from the codes. */
static void refresh(worst_input *in)
{
    for (uint32_t i = 0; i < in->n_undo; i++) {
        worst_side *s = &in->side[in->undo[i].side];
        uint32_t t = in->undo[i].token, d = s->format->coder.d;
        uint8_t *tile = s->tiles + t / QUIRE_TILE_ROWS * s->format->tile_bytes;
        quire_rows_out to = {.size = sizeof to, .form = QUIRE_F32, .data = s->value + (size_t)t * d};
        quire_tile_put(s->format, tile, t % QUIRE_TILE_ROWS, &s->row[t]);
        REF_OK(quire_tile_decode(s->format, 0, tile, t % QUIRE_TILE_ROWS, 1, &to));
        s->range[t] = bound_range(s->format, &s->row[t]);
        s->mean[t] = quire_row_mean(&s->format->coder, &s->row[t]);
    }
}

void worst_undo_all(worst_input *in)
{
    for (uint32_t i = 0; i < in->n_undo; i++)
        in->side[in->undo[i].side].row[in->undo[i].token] = in->undo[i].row;
    refresh(in);
    in->terms = in->terms_before;
    worst_begin(in);
}

/* Output and log-sum-exp of the library. */
static double attend(worst_input *in, float *out)
{
    const worst_side *k = &in->side[QUIRE_K], *v = &in->side[QUIRE_V];
    const worst_terms *x = &in->terms;
    quire_tile_ref tile[WORST_TOKENS / QUIRE_TILE_ROWS];
    uint32_t n_tiles = (in->n_tokens + QUIRE_TILE_ROWS - 1) / QUIRE_TILE_ROWS;
    for (uint32_t i = 0; i < n_tiles; i++) {
        uint32_t first = i * QUIRE_TILE_ROWS, rest = in->n_tokens - first;
        tile[i] = (quire_tile_ref){.k = k->tiles + i * k->format->tile_bytes,
                                   .v = v->tiles + i * v->format->tile_bytes,
                                   .k_format = k->format,
                                   .v_format = v->format,
                                   .first = first,
                                   .n_rows = rest < QUIRE_TILE_ROWS ? rest : QUIRE_TILE_ROWS};
    }
    quire_mask mask = {
        .size = sizeof mask, .data = x->mask, .form = QUIRE_F32, .n_keys = x->has_mask ? in->n_tokens : 0};
    float max, sum;
    quire_attend_job job = {.tiles = tile,
                            .tile_stride = sizeof *tile,
                            .n_tiles = n_tiles,
                            .n_q_heads = 1,
                            .n_kv_heads = 1,
                            .d_k = k->format->coder.d,
                            .d_v = v->format->coder.d,
                            .n_queries = 1,
                            .first_query = in->n_tokens - 1,
                            .q = x->q,
                            .out = out,
                            .max = &max,
                            .sum = &sum,
                            .mask = &mask};
    quire_attend_options options = {.size = sizeof options,
                                    .scale = x->scale,
                                    .softcap = x->softcap,
                                    .alibi = x->alibi != 0 ? &x->alibi : NULL,
                                    .sink_logits = x->sink > -INFINITY ? &x->sink : NULL};
    REF_OK(quire_attend(in->workspace, &options, &job, 1, sizeof job));
    return (double)max + log((double)sum);
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

worst_result worst_measure(worst_input *in)
{
    static bound_answer answer;
    float out[QUIRE_MAX_D];
    refresh(in);
    const worst_side *k = &in->side[QUIRE_K], *v = &in->side[QUIRE_V];
    const worst_terms *x = &in->terms;
    uint32_t split = QUIRE_SPLIT_TOKENS, d_v = v->format->coder.d;
    bound_job job = {.k_format = k->format,
                     .v_format = v->format,
                     .n = in->n_tokens,
                     .n_splits = (in->n_tokens + split - 1) / split,
                     .tiles_of_split = (least(in->n_tokens, split) + QUIRE_TILE_ROWS - 1) / QUIRE_TILE_ROWS,
                     .d_v = d_v,
                     .k = k->value,
                     .v = v->value,
                     .k_range = k->range,
                     .v_range = v->range,
                     .k_mean = k->mean,
                     .q = x->q,
                     .mask = x->has_mask ? x->mask : NULL,
                     .scale = x->scale,
                     .softcap = x->softcap,
                     .alibi = x->alibi,
                     .sink = x->sink,
                     .portable = strcmp(quire_isa_in_use(), "c") == 0};
    bound_attend(&job, &answer);
    if (!(answer.lse > -INFINITY)) return (worst_result){0}; /* sees nothing */
    double lse = attend(in, out), error = 0;
    for (uint32_t c = 0; c < d_v; c++) {
        double difference = (double)out[c] - answer.out[c];
        error += difference * difference;
    }
    error = sqrt(error);
    if (!(answer.allowed < INFINITY)) return (worst_result){0}; /* nothing is promised */
    worst_result r = {.by_bound = error / answer.allowed,
                      .by_lse = fabs(lse - answer.lse) / answer.lse_allowed,
                      .by_range = error / (answer.range + 1e-30)};
    if (!isfinite(error)) r.by_bound = INFINITY;
    if (!isfinite(lse)) r.by_lse = INFINITY;
    return r;
}
