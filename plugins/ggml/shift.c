/* SPDX-License-Identifier: MIT */
/*
 * The host moves a context by turning the K rows it keeps: ROPE in place if the declared type is a float, else a copy
 * to f32, its own ops, and a copy back. Rows are decoded, turned and coded again; those that do not change keep their
 * bytes.
 */
#include "device.h"
#include "config.h"

#include <stdlib.h>
#include <string.h>

/* Rows are counted from the start of the tensor, values from the start of the row. */
struct place {
    uint64_t row;
    uint32_t value;
};

static struct place place_of(const struct kv *kv, const struct host_tensor *t, int64_t i1, int64_t i2,
                             int64_t i3)
{
    size_t offset = host_offset(t) + (size_t)i1 * t->nb[1] + (size_t)i2 * t->nb[2] + (size_t)i3 * t->nb[3];
    size_t within = offset % kv->row_bytes;
    return (struct place){
        .row = offset / kv->row_bytes,
        .value = (uint32_t)(within / host.ggml_type_size(kv->type) * (size_t)host.ggml_blck_size(kv->type))};
}

/* One row at hand at a time; a changed one is coded when the next is fetched. */
struct hand {
    struct kv *kv;
    float *values, *before;
    uint64_t row;
    bool full;
};

static bool open_hand(struct hand *h, struct kv *kv)
{
    *h = (struct hand){.kv = kv, .values = malloc(2 * kv->row * sizeof(float))};
    h->before = h->values + kv->row;
    return h->values;
}

/* What was refused is not made valid by turning it. */
static void put_back(struct hand *h)
{
    bool changed = h->full && memcmp(h->values, h->before, h->kv->row * sizeof(float));
    if (changed && !kv_is_refused(h->kv, h->row)) kv_write(h->kv, h->row, 1, h->values);
    h->full = false;
}

static float *fetch(struct hand *h, uint64_t row)
{
    if (h->full && h->row == row) return h->values;
    put_back(h);
    if (kv_is_unwritten(h->kv, row))
        memset(h->values, 0, h->kv->row * sizeof(float));
    else
        kv_read(h->kv, row, 1, h->values);
    memcpy(h->before, h->values, h->kv->row * sizeof(float));
    h->row = row;
    h->full = true;
    return h->values;
}

static void close_hand(struct hand *h)
{
    put_back(h);
    free(h->values);
}

static bool in_row(const struct kv *kv, struct place p, int64_t n)
{
    return p.row < (uint64_t)kv->cells * kv->streams && (uint64_t)p.value + (uint64_t)n <= kv->row;
}

/* ----------------------------------------------------------------------- copy */

/* Values of a view of the cache to or from f32 of the same shape. */
static int copy(struct kv *kv, const struct host_tensor *view, const struct host_tensor *floats,
                bool to_floats)
{
    struct hand hand;
    int64_t n = view->ne[0];
    if (!open_hand(&hand, kv)) return HOST_ALLOC_FAILED;
    for (int64_t i3 = 0; i3 < view->ne[3]; i3++)
        for (int64_t i2 = 0; i2 < view->ne[2]; i2++)
            for (int64_t i1 = 0; i1 < view->ne[1]; i1++) {
                struct place p = place_of(kv, view, i1, i2, i3);
                char *f = (char *)floats->data + (size_t)i1 * floats->nb[1] + (size_t)i2 * floats->nb[2] +
                          (size_t)i3 * floats->nb[3];
                float *values = fetch(&hand, p.row) + p.value;
                if (to_floats)
                    memcpy(f, values, (size_t)n * sizeof(float));
                else
                    memcpy(values, f, (size_t)n * sizeof(float));
            }
    close_hand(&hand);
    return HOST_SUCCESS;
}

/* Whether each run of values that the copy takes at once is within a row. */
static bool is_in_rows(const struct kv *kv, const struct host_tensor *view)
{
    for (int64_t i3 = 0; i3 < view->ne[3]; i3++)
        for (int64_t i2 = 0; i2 < view->ne[2]; i2++)
            for (int64_t i1 = 0; i1 < view->ne[1]; i1++)
                if (!in_row(kv, place_of(kv, view, i1, i2, i3), view->ne[0])) return false;
    return true;
}

static bool same_shape(const struct host_tensor *a, const struct host_tensor *b)
{
    return !memcmp(a->ne, b->ne, sizeof a->ne);
}

static int run_copy(struct worker *w, struct host_tensor *op)
{
    struct kv *from = kv_of(op->src[0]), *to = kv_of(op);
    struct kv *kv = from ? from : to;
    if (context_settle(kv) != KV_IN_TILES || !is_in_rows(kv, from ? op->src[0] : op))
        return fallback_run(w, op);
    return from ? copy(from, op->src[0], op, true) : copy(to, op, op->src[0], false);
}

/* ----------------------------------------------------------------------- rope */

enum { BATCH = 1024 }; /* rows turned at once: bounds the memory */

struct turn {
    const struct host_tensor *op;
    struct kv *kv;
    struct hand hand;
};

static float *head_values(struct turn *t, int64_t head, int64_t cell)
{
    struct place p = place_of(t->kv, t->op, head, cell, 0);
    return in_row(t->kv, p, t->op->ne[0]) ? fetch(&t->hand, p.row) + p.value : NULL;
}

static bool move_rows(struct turn *t, const int64_t *cells, int64_t n, float *to, const float *from)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t h = 0; h < t->op->ne[1]; h++) {
            size_t at = (size_t)((i * t->op->ne[1] + h) * t->op->ne[0]),
                   bytes = (size_t)t->op->ne[0] * sizeof(float);
            float *values = head_values(t, h, cells[i]);
            if (!values) return false;
            if (to)
                memcpy(to + at, values, bytes);
            else
                memcpy(values, from + at, bytes);
        }
    return true;
}

/* The host's own ROPE, on a copy of the rows. */
static int turn_rows(struct worker *w, struct turn *t, const int64_t *cells, int64_t n)
{
    const struct host_tensor *op = t->op, *factors = op->src[2];
    const int32_t *shift = op->src[1]->data;
    size_t bytes =
        (size_t)(op->ne[0] * op->ne[1] * n) * sizeof(float) + (factors ? factors->nb[1] : 0) + (2 << 20);
    int status = HOST_FAILED;
    struct host_context *ctx = host.ggml_init((struct host_init_params){.mem_size = bytes});
    if (!ctx) return HOST_ALLOC_FAILED;
    struct host_tensor *x = host.ggml_new_tensor_4d(ctx, host.type[TYPE_F32], op->ne[0], op->ne[1], n, 1);
    struct host_tensor *pos = host.ggml_new_tensor_4d(ctx, host.type[TYPE_I32], n, 1, 1, 1), *f = NULL;
    if (factors) {
        f = host.ggml_new_tensor_4d(ctx, host.type[TYPE_F32], factors->ne[0], 1, 1, 1);
        memcpy(f->data, factors->data, (size_t)factors->ne[0] * sizeof(float));
    }
    for (int64_t i = 0; i < n; i++) ((int32_t *)pos->data)[i] = shift[cells[i]];
    struct host_tensor *y =
        host.ggml_rope_ext_inplace(ctx, x, pos, f, (int)op->ne[0], 0, 0, 1, 1, 0, 1, 0, 0);
    memcpy(y->op_params, op->op_params, sizeof y->op_params);
    struct host_graph *graph = host.ggml_new_graph(ctx);
    host.ggml_build_forward_expand(graph, y);
    if (worker_cpu(w) && move_rows(t, cells, n, x->data, NULL)) {
        put_back(&t->hand);
        status = host.ggml_backend_graph_compute(w->cpu, graph);
        if (!status && !move_rows(t, cells, n, NULL, y->data)) status = HOST_FAILED;
    }
    host.ggml_free(ctx);
    return status;
}

static int run_rope(struct worker *w, struct host_tensor *op)
{
    struct turn t = {.op = op, .kv = kv_of(op)};
    const int32_t *shift = op->src[1]->data;
    int64_t cells[BATCH], n = 0;
    int status = HOST_SUCCESS;
    if (op->ne[3] != 1 || op->src[1]->ne[0] != op->ne[2] || context_settle(t.kv) != KV_IN_TILES)
        return fallback_run(w, op);
    if (!open_hand(&t.hand, t.kv)) return HOST_ALLOC_FAILED;
    for (int64_t i = 0; i < op->ne[2] && !status; i++) {
        if (shift[i]) cells[n++] = i;
        if (n == BATCH || (n && i + 1 == op->ne[2])) {
            status = turn_rows(w, &t, cells, n);
            n = 0;
        }
    }
    close_hand(&t.hand);
    return status;
}

/* ------------------------------------------------------------------------ ops */

bool shift_can(const struct host_tensor *op)
{
    if (op->op == host.op.ROPE)
        return op->view_src && kv_is_ours(op) && op->src[1]->type == host.type[TYPE_I32];
    const struct host_tensor *from = op->src[0];
    int f32 = host.type[TYPE_F32];
    if (!same_shape(from, op) || kv_is_ours(from) == kv_is_ours(op)) return false;
    const struct host_tensor *floats = kv_is_ours(from) ? op : from, *view = kv_is_ours(from) ? from : op;
    return floats->type == f32 && floats->nb[0] == sizeof(float) &&
           view->nb[0] == host.ggml_type_size(view->type);
}

int shift_run(struct worker *w, struct host_tensor *op)
{
    if (!shift_can(op)) return fallback_run(w, op); /* it has become plain, or was taken for its tiles */
    return op->op == host.op.ROPE ? run_rope(w, op) : run_copy(w, op);
}
