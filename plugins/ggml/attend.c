/* SPDX-License-Identifier: MIT */
/*
 * FLASH_ATTN_EXT. K and V of the cache are tiles already; operands that are not of the cache are put into
 * tiles first.
 */
#include "attend.h"
#include "bare.h"
#include "config.h"
#include "stat.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------- operands */

static bool is_packed(const struct host_tensor *t)
{
    return host_codec(t->type) && t->nb[0] == host.ggml_type_size(t->type) && t->ne[0] > 0 &&
           t->ne[0] <= 1024;
}

static bool mask_is_usable(const struct host_tensor *mask, int64_t n_heads)
{
    return !mask || (mask->type == host.type[TYPE_F16] && mask->nb[0] == 2 &&
                     (mask->ne[2] == 1 || mask->ne[2] == n_heads));
}

/*
 * In tiles, or will be. Or without memory yet: what a graph computes (an encoder's K and V, caches that were joined) and the
 * host's tests. That is put into tiles at every step, which takes as long as stock takes for about 8 heads of queries
 * per row; to refuse it would cost more, because the host then computes no layer by flash attention. A cache in plain memory
 * is left to the host.
 */
static bool is_within_reach(const struct host_tensor *t)
{
    return !host_root(t)->buffer || kv_is_ours(t);
}

bool attend_can(const struct host_tensor *op)
{
    const struct host_tensor *q = op->src[0], *k = op->src[1], *v = op->src[2];
    if (q->type != host.type[TYPE_F32] || op->type != host.type[TYPE_F32] || q->nb[0] != 4 ||
        op->nb[0] != 4 || !is_packed(k) || !is_packed(v) || k->ne[0] != q->ne[0] || k->ne[1] != v->ne[1] ||
        k->ne[2] != v->ne[2] || k->ne[3] != v->ne[3] || k->ne[2] < 1 || q->ne[2] % k->ne[2] || k->ne[3] < 1 ||
        q->ne[3] % k->ne[3] || !mask_is_usable(op->src[3], q->ne[2]) || !is_within_reach(k) ||
        !is_within_reach(v))
        return false;
    context_learn(op);
    return true;
}

/* Where a view of the cache begins, if it is one that tiles can stand for: whole rows, heads in order. */
static bool view_of_cache(struct operand *o, uint32_t d)
{
    const struct host_tensor *t = o->t;
    size_t offset = host_offset(t);
    o->heads_apart = kv_has_heads_apart(o->kv, t);
    if (offset % o->kv->row_bytes || t->nb[1] != o->kv->row_bytes || (uint64_t)t->ne[0] != d ||
        t->ne[o->heads_apart ? 3 : 2] != o->kv->n_heads || (uint64_t)t->ne[1] > o->kv->cells ||
        (!o->heads_apart && t->ne[3] > 1 && t->nb[3] != o->kv->cells * o->kv->row_bytes))
        return false;
    o->first_row = offset / o->kv->row_bytes;
    return o->first_row % o->kv->cells == 0 &&
           o->first_row / o->kv->cells + (o->heads_apart ? 1 : (uint64_t)t->ne[3]) <= o->kv->streams;
}

/* *fits: an operand of the cache is in tiles, and they can stand for it. */
static int open_operand(struct operand *o, const struct host_tensor *t, quire_side side, bool *fits)
{
    struct kv *kv = kv_of(t);
    *o = (struct operand){.t = t, .n_tiles = (uint32_t)((t->ne[1] + CELLS - 1) / CELLS)};
    enum kv_place place = kv ? context_settle(kv) : KV_IN_HOST_MEMORY;
    if (place == KV_NO_MEMORY) return HOST_ALLOC_FAILED;
    if (place == KV_IN_TILES) {
        o->kv = kv;
        o->tile_bytes = kv->tile_bytes;
        o->format = kv->format;
        *fits &= view_of_cache(o, kv->side == side ? kv->d : kv->d_v);
        return HOST_SUCCESS;
    }
    *fits &= !kv_is_cache(t);
    if (!*fits) return HOST_SUCCESS;
    quire_tile_format_options options = {
        .size = sizeof(quire_tile_format_options), .side = side, .d = (uint32_t)t->ne[0]};
    if (quire_tile_format_create(&o->format, host_codec(t->type), &options)) return HOST_ALLOC_FAILED;
    o->tile_bytes = quire_tile_bytes(o->format);
    return HOST_SUCCESS;
}

static void close_operand(struct operand *o)
{
    if (!o->kv) quire_tile_format_destroy(o->format);
}

static size_t scratch_bytes(const struct operand *o)
{
    return o->kv ? 0 : o->tile_bytes * o->n_tiles * (size_t)(o->t->ne[2] * o->t->ne[3]);
}

char *operand_tile(const struct operand *o, uint32_t stream, uint32_t tile)
{
    if (o->heads_apart) return kv_tile(o->kv, o->first_row + (uint64_t)tile * CELLS) + stream * o->tile_bytes;
    if (o->kv) return kv_tile(o->kv, o->first_row + (uint64_t)stream * o->kv->cells + (uint64_t)tile * CELLS);
    return o->tiles + ((size_t)stream * o->n_tiles + tile) * (size_t)o->t->ne[2] * o->tile_bytes;
}

static void tile_task(void *arg, uint32_t task)
{
    const struct operand *o = arg;
    const struct host_tensor *t = o->t;
    uint32_t heads = (uint32_t)t->ne[2], head = task % heads, tile = task / heads % o->n_tiles,
             stream = task / heads / o->n_tiles, n = (uint32_t)t->ne[1] - tile * CELLS;
    char *to = operand_tile(o, stream, tile) + head * o->tile_bytes;
    quire_rows rows = {.size = sizeof(quire_rows),
                       .form = QUIRE_NATIVE,
                       .data = (const char *)t->data + (size_t)tile * CELLS * t->nb[1] + head * t->nb[2] +
                               stream * t->nb[3],
                       .token_stride = t->nb[1]};
    memset(to, 0, o->tile_bytes);
    quire_tile_encode(o->format, head, to, 0, n < CELLS ? n : CELLS, &rows, NULL);
}

static void fill_tiles(struct worker *w, struct operand *o, char *tiles)
{
    if (o->kv) return;
    o->tiles = tiles;
    w->executor.run(w->executor.ctx, tile_task, o, o->n_tiles * (uint32_t)(o->t->ne[2] * o->t->ne[3]));
}

/* -------------------------------------------------------------------- refused */

bool attend_sees(const struct host_tensor *mask, int64_t stream, int64_t cell)
{
    if (!mask) return true;
    for (int64_t h = 0; h < mask->ne[2]; h++)
        for (int64_t i = 0; i < mask->ne[1]; i++) {
            uint16_t value;
            memcpy(&value,
                   (const char *)mask->data + (size_t)cell * 2 + (size_t)i * mask->nb[1] +
                       (size_t)h * mask->nb[2] + (size_t)(stream % mask->ne[3]) * mask->nb[3],
                   2);
            if (value != 0xfc00) return true;
        }
    return false;
}

/* Whether a query would see a row that could not be restored. */
static bool sees_refused(const struct operand *o, const struct host_tensor *mask)
{
    if (!o->kv || !o->kv->n_refused) return false;
    uint64_t apart = o->heads_apart ? 0 : o->kv->cells;
    for (int64_t s = 0; s < o->t->ne[3]; s++)
        for (int64_t c = 0; c < o->t->ne[1]; c++)
            if (kv_is_refused(o->kv, o->first_row + (uint64_t)s * apart + (uint64_t)c) &&
                attend_sees(mask, s, c)) {
                bare_say_needed();
                return true;
            }
    return false;
}

/* --------------------------------------------------------------------- attend */

/* As ggml does: powers of two spread over the heads. */
static void fill_slopes(float *slope, uint32_t n_heads, float max_bias)
{
    uint32_t whole = 1;
    while (whole * 2 <= n_heads) whole *= 2;
    float even = powf(2.0f, -max_bias / (float)whole), odd = powf(2.0f, -max_bias / 2.0f / (float)whole);
    for (uint32_t h = 0; h < n_heads; h++)
        slope[h] = h < whole ? powf(even, (float)(h + 1)) : powf(odd, (float)(2 * (h - whole) + 1));
}

/* Queries as they would be if scores were divided by sqrt(d): some models scale them before. */
static void record(const struct operand *k, const struct host_tensor *op)
{
    const struct host_tensor *q = op->src[0];
    struct recorder *r = k->kv ? k->kv->owner->context->recorder : NULL;
    if (!r) return;
    float factor = host_float_param(op, 0) * sqrtf((float)q->ne[0]);
    size_t row = (size_t)(q->ne[0] * q->ne[2]);
    float *rows = malloc(row * sizeof *rows);
    for (int64_t s = 0; rows && s < q->ne[3]; s++)
        for (int64_t i = 0; i < q->ne[1]; i++) {
            for (int64_t h = 0; h < q->ne[2]; h++)
                memcpy(rows + h * q->ne[0],
                       (const char *)q->data + (size_t)i * q->nb[1] + (size_t)h * q->nb[2] +
                           (size_t)s * q->nb[3],
                       (size_t)q->ne[0] * sizeof *rows);
            for (size_t j = 0; j < row; j++) rows[j] *= factor;
            recorder_q(r, k->kv->layer, (uint32_t)(q->ne[1] - 1 - i), rows);
        }
    free(rows);
}

struct lists { /* carved out of the scratch */
    quire_tile_ref *refs;
    quire_attend_job *jobs;
    quire_mask *masks;
    float *slopes;
};

static void fill_refs(quire_tile_ref *refs, const struct operand *k, const struct operand *v, bool v_in_k,
                      uint32_t stream)
{
    for (uint32_t i = 0; i < k->n_tiles; i++) {
        uint32_t left = (uint32_t)k->t->ne[1] - i * CELLS;
        refs[i] = (quire_tile_ref){.k = operand_tile(k, stream, i),
                                   .v = v_in_k ? NULL : operand_tile(v, stream, i),
                                   .k_head_stride = k->tile_bytes,
                                   .v_head_stride = v_in_k ? 0 : v->tile_bytes,
                                   .k_format = k->format,
                                   .v_format = v_in_k ? NULL : v->format,
                                   .first = i * CELLS,
                                   .n_rows = left < CELLS ? left : CELLS};
    }
}

quire_attend_job attend_job(const struct host_tensor *op, uint32_t stream, uint32_t first, uint32_t n)
{
    const struct host_tensor *q = op->src[0];
    return (quire_attend_job){
        .tile_stride = sizeof(quire_tile_ref),
        .n_q_heads = (uint32_t)q->ne[2],
        .n_kv_heads = (uint32_t)op->src[1]->ne[2],
        .d_k = (uint32_t)q->ne[0],
        .d_v = (uint32_t)op->ne[0],
        .n_queries = n,
        .q = (const char *)q->data + (size_t)stream * q->nb[3] + (size_t)first * q->nb[1],
        .q_token_stride = q->nb[1],
        .q_head_stride = q->nb[2],
        .out = (char *)op->data + (size_t)stream * op->nb[3] + (size_t)first * op->nb[2],
        .out_token_stride = op->nb[2],
        .out_head_stride = op->nb[1]};
}

static void add_mask(quire_attend_job *job, quire_mask *m, const struct host_tensor *op, uint32_t stream)
{
    const struct host_tensor *mask = op->src[3];
    if (!mask) return;
    *m = (quire_mask){.size = sizeof(quire_mask),
                      .form = QUIRE_F16,
                      .data = (const char *)mask->data + (size_t)(stream % mask->ne[3]) * mask->nb[3],
                      .query_stride = mask->nb[1],
                      .head_stride = mask->ne[2] > 1 ? mask->nb[2] : 0,
                      .n_keys = (uint32_t)op->src[1]->ne[1]};
    job->mask = m;
}

quire_attend_options attend_options(const struct host_tensor *op, float *slopes)
{
    float max_bias = host_float_param(op, 1), scale = host_float_param(op, 0);
    if (max_bias > 0) fill_slopes(slopes, (uint32_t)op->src[0]->ne[2], max_bias);
    return (quire_attend_options){.size = sizeof(quire_attend_options),
                                  .flags = QUIRE_ATTEND_BIDIRECTIONAL, /* the mask decides */
                                  .scale = scale != 0 ? scale : 1e-30f,
                                  .softcap = host_float_param(op, 2),
                                  .mask_slopes = max_bias > 0 ? slopes : NULL,
                                  .sink_logits = op->src[4] ? op->src[4]->data : NULL};
}

int attend_jobs(struct worker *w, const quire_attend_options *options, const quire_attend_job *jobs,
                uint32_t n)
{
    if (!w->workspace && quire_workspace_create(&w->workspace, &w->executor, NULL)) return HOST_ALLOC_FAILED;
    quire_workspace_stats before = {.size = sizeof before}, after = {.size = sizeof after};
    quire_workspace_stats_get(w->workspace, &before);
    quire_status status = quire_attend(w->workspace, options, jobs, n, sizeof(quire_attend_job));
    quire_workspace_stats_get(w->workspace, &after);
    stat_tiles(after.tiles_read - before.tiles_read, after.tiles_skipped - before.tiles_skipped);
    if (status) say_trouble("attention failed: %s", quire_status_text(status));
    return status == QUIRE_ENOMEM ? HOST_ALLOC_FAILED : status ? HOST_FAILED : HOST_SUCCESS;
}

static int attend(struct worker *w, struct host_tensor *op, struct operand *k, struct operand *v, bool v_in_k)
{
    const struct host_tensor *q = op->src[0];
    uint32_t n_jobs = (uint32_t)q->ne[3], k_streams = (uint32_t)k->t->ne[3], n_heads = (uint32_t)q->ne[2];
    size_t k_bytes = scratch_bytes(k), v_bytes = scratch_bytes(v);
    size_t refs_bytes = (size_t)k_streams * k->n_tiles * sizeof(quire_tile_ref);
    size_t list_bytes = n_jobs * (sizeof(quire_attend_job) + sizeof(quire_mask)) + n_heads * sizeof(float);
    char *scratch = worker_scratch(w, k_bytes + v_bytes + refs_bytes + list_bytes);
    if (!scratch) return HOST_ALLOC_FAILED;
    worker_expect(w, (double)(q->ne[1] * q->ne[2] * q->ne[3]) * (double)k->t->ne[1] *
                         (double)(q->ne[0] + op->ne[0]));
    fill_tiles(w, k, scratch);
    fill_tiles(w, v, scratch + k_bytes);
    struct lists l = {.refs = (quire_tile_ref *)(void *)(scratch + k_bytes + v_bytes)};
    l.jobs = (quire_attend_job *)(void *)((char *)l.refs + refs_bytes);
    l.masks = (quire_mask *)(void *)(l.jobs + n_jobs);
    l.slopes = (float *)(void *)(l.masks + n_jobs);

    for (uint32_t s = 0; s < k_streams; s++) fill_refs(l.refs + (size_t)s * k->n_tiles, k, v, v_in_k, s);
    for (uint32_t s = 0; s < n_jobs; s++) {
        l.jobs[s] = attend_job(op, s, 0, (uint32_t)q->ne[1]);
        l.jobs[s].tiles = l.refs + (size_t)(s / (n_jobs / k_streams)) * k->n_tiles;
        l.jobs[s].n_tiles = k->n_tiles;
        add_mask(&l.jobs[s], &l.masks[s], op, s);
    }
    quire_attend_options options = attend_options(op, l.slopes);
    return attend_jobs(w, &options, l.jobs, n_jobs);
}

int attend_run(struct worker *w, struct host_tensor *op)
{
    struct operand k, v = {0};
    bool fits = true;
    int status = open_operand(&k, op->src[1], QUIRE_K, &fits);
    if (status) return status;
    bool v_in_k = k.kv && kv_of(op->src[2]) == k.kv;
    status = open_operand(&v, op->src[2], QUIRE_V, &fits);
    if (!status && (sees_refused(&k, op->src[3]) || sees_refused(&v, op->src[3]) || bare_op_is_lost(op)))
        status = HOST_FAILED;
    if (!status && !fits)
        status = fallback_run(w, op);
    else if (!status && !select_attend(w, op, &k, &v, v_in_k, &status))
        status = attend(w, op, &k, &v, v_in_k);
    if (!status) record(&k, op);
    close_operand(&k);
    close_operand(&v);
    return status;
}
