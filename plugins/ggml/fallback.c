/* SPDX-License-Identifier: MIT */
/*
 * Ops on the cache that have no code of their own here. The host's CPU backend computes them: on the bytes themselves if
 * the cache is plain, else on the values of the rows that the op touches. Rows that the op changed are coded again; the
 * others keep their codes. It is slow, and it is what keeps a host right that does something unforeseen.
 */
#include "device.h"
#include "bare.h"
#include "config.h"

#include <stdlib.h>
#include <string.h>

struct host_backend *worker_cpu(struct worker *w)
{
    if (!w->cpu) w->cpu = host.ggml_backend_init_by_type(HOST_DEVICE_CPU, NULL);
    if (w->cpu) host_set_threads(w->cpu, (int)w->n_threads);
    return w->cpu;
}

/* -------------------------------------------------------------------- values */

/* Whole rows of one tensor of the cache, as values of its declared type. */
struct part {
    struct kv *kv;
    size_t begin, end;
    char *bytes, *before; /* before: only if the op writes here */
};

struct parts {
    struct part part[HOST_MAX_SRC + 1];
    uint32_t n;
};

/* Bytes from the first value of a tensor to its last one. */
static size_t extent(const struct host_tensor *t)
{
    bool blocks = host.ggml_blck_size(t->type) > 1;
    size_t n = blocks ? host.ggml_row_size(t->type, t->ne[0]) : host.ggml_type_size(t->type);
    for (int i = 0; i < 4; i++) {
        if (t->ne[i] < 1) return 0;
        if (i || !blocks) n += (size_t)(t->ne[i] - 1) * t->nb[i];
    }
    return n;
}

static struct part *part_of(struct parts *p, const struct kv *kv)
{
    for (uint32_t i = 0; i < p->n; i++)
        if (p->part[i].kv == kv) return &p->part[i];
    return NULL;
}

static void add_part(struct parts *p, const struct host_tensor *t, struct kv *kv)
{
    size_t begin = host_offset(t), end = begin + extent(t);
    begin -= begin % kv->row_bytes;
    end = (end + kv->row_bytes - 1) / kv->row_bytes * kv->row_bytes;
    struct part *part = part_of(p, kv);
    if (!part) {
        part = &p->part[p->n++];
        *part = (struct part){.kv = kv, .begin = begin, .end = end};
    }
    if (begin < part->begin) part->begin = begin;
    if (end > part->end) part->end = end;
}

/* false: no memory. */
static bool read_part(struct part *p, bool is_written)
{
    size_t n = p->end - p->begin;
    p->bytes = malloc(n + 1);
    p->before = is_written ? malloc(n + 1) : NULL;
    if (!p->bytes || (is_written && !p->before)) return false;
    state_get_values(p->kv, p->begin, n, p->bytes);
    if (is_written) memcpy(p->before, p->bytes, n);
    return true;
}

/* A row of quantized values whose codec is another one. */
static void recode_row(struct kv *kv, uint64_t row, const char *bytes)
{
    quire_tile_format_options options = {
        .size = sizeof(quire_tile_format_options), .side = kv->side, .d = kv->d};
    quire_tile_format *declared = NULL;
    float *values = malloc(kv->row * sizeof *values);
    void *tile = NULL;
    if (values && !quire_tile_format_create(&declared, host_codec(kv->type), &options))
        tile = tile_create(declared);
    for (uint32_t h = 0; tile && h < kv->n_heads; h++) {
        float *head = values + (size_t)h * kv->d;
        /* A scale that is not finite stands for no values. */
        if (!tile_recode(declared, tile, 0, 1, QUIRE_NATIVE, bytes + h * (kv->row_bytes / kv->n_heads), 0,
                         QUIRE_F32, head, 0))
            memset(head, 0, kv->d * sizeof *head);
    }
    if (tile) kv_write(kv, row, 1, values);
    free(tile);
    free(values);
    quire_tile_format_destroy(declared);
}

static void write_part(const struct part *p)
{
    struct kv *kv = p->kv;
    for (size_t at = p->begin; at < p->end; at += kv->row_bytes) {
        const char *row = p->bytes + (at - p->begin);
        if (!memcmp(row, p->before + (at - p->begin), kv->row_bytes)) continue;
        if (kv->marked && !host_is_float(kv->type))
            recode_row(kv, at / kv->row_bytes, row);
        else
            state_set(kv, at, kv->row_bytes, row);
    }
}

/* ------------------------------------------------------------------- the op */

/* Attention asks for itself which rows it sees; any other op is taken to see all of its rows. */
static bool sees_refused(const struct parts *p, const struct host_tensor *op)
{
    if (op->op == host.op.FLASH_ATTN_EXT) return false;
    if (bare_op_is_lost(op)) return true;
    for (uint32_t i = 0; i < p->n; i++) {
        const struct kv *kv = p->part[i].kv;
        for (size_t at = p->part[i].begin; kv->n_refused && at < p->part[i].end; at += kv->row_bytes)
            if (kv_is_refused(kv, at / kv->row_bytes)) {
                bare_say_needed();
                return true;
            }
    }
    return false;
}

/* The same tensor without its history, in memory that the CPU can read. */
static struct host_tensor *stand_in(struct host_context *ctx, const struct host_tensor *t, struct parts *p)
{
    struct host_tensor *x = host.ggml_new_tensor_4d(ctx, t->type, t->ne[0], t->ne[1], t->ne[2], t->ne[3]);
    struct kv *kv = kv_of(t);
    struct part *part = kv ? part_of(p, kv) : NULL;
    memcpy(x->nb, t->nb, sizeof x->nb);
    memcpy(x->name, t->name, sizeof x->name);
    x->data = part ? part->bytes + (host_offset(t) - part->begin) : t->data;
    if (kv_is_cache(t)) return x;
    x->buffer = t->buffer;
    x->extra = t->extra;
    return x;
}

static int compute(struct worker *w, const struct host_tensor *op, struct parts *p)
{
    size_t bytes = (HOST_MAX_SRC + 2) * host.ggml_tensor_overhead() + (1 << 20);
    struct host_context *ctx = host.ggml_init((struct host_init_params){.mem_size = bytes, .no_alloc = true});
    if (!ctx || !worker_cpu(w)) {
        if (ctx) host.ggml_free(ctx);
        return HOST_ALLOC_FAILED;
    }
    struct host_tensor *x = stand_in(ctx, op, p);
    x->op = op->op;
    x->flags = op->flags;
    memcpy(x->op_params, op->op_params, sizeof x->op_params);
    for (int i = 0; i < HOST_MAX_SRC; i++)
        if (op->src[i]) x->src[i] = stand_in(ctx, op->src[i], p);
    struct host_graph *graph = host.ggml_new_graph(ctx);
    host.ggml_build_forward_expand(graph, x);
    int status = host.ggml_backend_graph_compute(w->cpu, graph);
    host.ggml_free(ctx);
    return status;
}

/* Makes the plan if that has not happened; only tensors that are in tiles then have a part. */
static int find_parts(struct parts *p, const struct host_tensor *op)
{
    for (int i = -1; i < HOST_MAX_SRC; i++) {
        const struct host_tensor *t = i < 0 ? op : op->src[i];
        struct kv *kv = t ? kv_of(t) : NULL;
        if (!kv) continue;
        enum kv_place place = context_settle(kv);
        if (place == KV_NO_MEMORY) return HOST_ALLOC_FAILED;
        if (place == KV_IN_TILES) add_part(p, t, kv);
    }
    return HOST_SUCCESS;
}

int fallback_run(struct worker *w, struct host_tensor *op)
{
    struct parts p = {.n = 0};
    struct lost_rows lost = {0};
    struct kv *written = NULL;
    int status = find_parts(&p, op);
    if (!status && sees_refused(&p, op)) status = HOST_FAILED;
    if (!status) written = kv_of(op);
    for (uint32_t i = 0; !status && i < p.n; i++)
        if (!read_part(&p.part[i], p.part[i].kv == written)) status = HOST_ALLOC_FAILED;
    if (!status && !bare_note_lost(&lost, op)) status = HOST_ALLOC_FAILED;
    if (!status) status = compute(w, op, &p);
    bare_put_back(&lost);
    if (!status && written) write_part(part_of(&p, written));
    for (uint32_t i = 0; i < p.n; i++) {
        free(p.part[i].bytes);
        free(p.part[i].before);
    }
    return status;
}
