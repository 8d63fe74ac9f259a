/* SPDX-License-Identifier: MIT */
/* GET_ROWS: rows of the cache, or of single heads, that a model has selected, as floats. */
#include "bare.h"
#include "config.h"
#include "device.h"

#include <string.h>

enum { ROWS_PER_TASK = 32 };

struct gather {
    const struct host_tensor *op, *from, *index;
    struct kv *kv;
    uint32_t heads; /* of each row that is taken */
};

bool get_rows_can(const struct host_tensor *op)
{
    const struct host_tensor *from = op->src[0], *index = op->src[1];
    if (!kv_is_ours(from) || op->type != host.type[TYPE_F32] || op->nb[0] != sizeof(float) ||
        index->type != host.type[TYPE_I32] || from->nb[0] != host.ggml_type_size(from->type))
        return false;
    context_learn_rows(from);
    return true;
}

/* Whole rows, or rows of one head each. */
static bool open_gather(struct gather *g, struct host_tensor *op, struct kv *kv)
{
    size_t head = kv->row_bytes / kv->n_heads;
    *g = (struct gather){.op = op, .from = op->src[0], .index = op->src[1], .kv = kv};
    g->heads = g->from->ne[0] == kv->row ? kv->n_heads : 1;
    if (g->heads == 1 && g->from->ne[0] != kv->d) return false;
    size_t taken = g->heads * head;
    return host_offset(g->from) % taken == 0 && g->from->nb[1] % taken == 0 && g->from->nb[2] % taken == 0 &&
           g->from->nb[3] % taken == 0;
}

/* Where the i-th row that is taken stands in the index, or another tensor has what belongs to it. */
struct place {
    int64_t i0, i1, i2;
};

static struct place place_of(const struct gather *g, int64_t i)
{
    const int64_t *n = g->index->ne;
    return (struct place){i % n[0], i / n[0] % n[1], i / n[0] / n[1]};
}

static size_t bytes_to(struct place p, const size_t *nb)
{
    return (size_t)p.i0 * nb[0] + (size_t)p.i1 * nb[1] + (size_t)p.i2 * nb[2];
}

/* The first value of the i-th row that is taken. -1: there is no such row. */
static int64_t offset_of(const struct gather *g, int64_t i)
{
    struct place p = place_of(g, i);
    int32_t row;
    memcpy(&row, (const char *)g->index->data + bytes_to(p, g->index->nb), sizeof row);
    if (row < 0 || row >= g->from->ne[1]) return -1;
    p.i0 = row;
    size_t offset = host_offset(g->from) + bytes_to(p, g->from->nb + 1);
    return offset / g->kv->row_bytes < (uint64_t)g->kv->cells * g->kv->streams ? (int64_t)offset : -1;
}

static char *result_of(const struct gather *g, int64_t i)
{
    return (char *)g->op->data + bytes_to(place_of(g, i), g->op->nb + 1);
}

static int64_t n_rows(const struct gather *g)
{
    return g->index->ne[0] * g->index->ne[1] * g->index->ne[2];
}

static void gather_task(void *arg, uint32_t task)
{
    const struct gather *g = arg;
    const struct kv *kv = g->kv;
    int64_t first = (int64_t)task * ROWS_PER_TASK, end = first + ROWS_PER_TASK;
    for (int64_t i = first; i < end && i < n_rows(g); i++) {
        size_t offset = (size_t)offset_of(g, i);
        uint64_t row = offset / kv->row_bytes;
        uint32_t head = (uint32_t)(offset % kv->row_bytes / (kv->row_bytes / kv->n_heads));
        float *to = (float *)(void *)result_of(g, i);
        for (uint32_t h = head; h < head + g->heads; h++, to += kv->d) {
            quire_rows_out out = {.size = sizeof(quire_rows_out), .form = QUIRE_F32, .data = to};
            if (kv_is_unwritten(kv, row))
                memset(to, 0, kv->d * sizeof *to);
            else
                quire_tile_decode(kv->format, h, kv_tile(kv, row) + h * kv->tile_bytes, kv_tile_row(kv, row),
                                  1, &out);
        }
    }
}

/* Whether all rows are there. */
static bool is_sound(const struct gather *g)
{
    for (int64_t i = 0; i < n_rows(g); i++) {
        int64_t offset = offset_of(g, i);
        if (offset < 0) {
            say_trouble("the program asked for a row of %s that it does not have", g->kv->name);
            return false;
        }
        if (g->kv->n_refused && kv_is_refused(g->kv, (uint64_t)offset / g->kv->row_bytes)) {
            bare_say_needed();
            return false;
        }
    }
    return true;
}

int get_rows_run(struct worker *w, struct host_tensor *op)
{
    struct gather g;
    struct kv *kv = kv_of(op->src[0]);
    enum kv_place place = kv ? context_settle(kv) : KV_IN_HOST_MEMORY;
    if (place == KV_NO_MEMORY) return HOST_ALLOC_FAILED;
    if (place != KV_IN_TILES || !open_gather(&g, op, kv)) return fallback_run(w, op);
    if (!is_sound(&g)) return HOST_FAILED;
    worker_expect(w, 16.0 * (double)(n_rows(&g) * g.from->ne[0])); /* as for coding: set_rows.c */
    w->executor.run(w->executor.ctx, gather_task, &g,
                    (uint32_t)((n_rows(&g) + ROWS_PER_TASK - 1) / ROWS_PER_TASK));
    return HOST_SUCCESS;
}
