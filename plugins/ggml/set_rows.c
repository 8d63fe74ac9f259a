/* SPDX-License-Identifier: MIT */
/* SET_ROWS: rows of new tokens into the cells that the host chose, in any order. */
#include "device.h"
#include "config.h"
#include "stat.h"

#include <stdlib.h>
#include <string.h>

static bool takes_types(const struct host_tensor *op)
{
    const struct host_tensor *rows = op->src[0], *index = op->src[1];
    return host_codec(op->type) && (rows->type == host.type[TYPE_F32] || rows->type == host.type[TYPE_F16]) &&
           (index->type == host.type[TYPE_I64] || index->type == host.type[TYPE_I32]) &&
           rows->nb[0] == host.ggml_type_size(rows->type) && op->nb[0] == host.ggml_type_size(op->type);
}

bool set_rows_can(const struct host_tensor *op)
{
    const struct host_tensor *root = host_root(op);
    /* Not of the cache: the host's tests. Single values, and rows of what a graph computes, are left to the host. */
    if (!kv_is_cache(op))
        return !root->buffer && root->op == host.op.NONE && op->ne[0] >= 16 && takes_types(op);
    struct kv *kv = kv_of(op);
    if (!kv) return !root->buffer->context && takes_types(op);
    if (kv->format) return true;
    if (op->ne[0] != root->ne[0])
        context_make_plain(op, "SET_ROWS of single values");
    else if (!takes_types(op))
        context_make_plain(op, "SET_ROWS of another type");
    else if (kv->stored && !kv->d)
        context_make_plain(op, NULL); /* a whole graph came by without attention over it */
    kv->stored = true;
    return !kv->plain;
}

static int64_t index_at(const struct host_tensor *index, int64_t i, int64_t j, int64_t k)
{
    const char *at = (const char *)index->data + (size_t)i * index->nb[0] + (size_t)j * index->nb[1] +
                     (size_t)k * index->nb[2];
    int32_t small;
    int64_t large;
    if (index->type == host.type[TYPE_I64]) {
        memcpy(&large, at, sizeof large);
        return large;
    }
    memcpy(&small, at, sizeof small);
    return small;
}

int64_t set_rows_index(const struct host_tensor *op, int64_t i)
{
    return index_at(op->src[1], i, 0, 0);
}

/* ---------------------------------------------------------------------- cache */

struct store {
    struct kv *kv;
    const struct host_tensor *rows, *index;
    uint32_t parts; /* tiles are dealt out to this many tasks per head: no tile has two writers */
};

/* The tokens from i on that go to neighbouring cells of one tile. */
static uint32_t run_of(const struct store *s, int64_t i, uint64_t *row)
{
    *row = (uint64_t)index_at(s->index, i, 0, 0);
    uint32_t n = 1, most = kv_run(s->kv, *row, (uint64_t)(s->rows->ne[1] - i));
    while (n < most && index_at(s->index, i + n, 0, 0) == (int64_t)(*row + n)) n++;
    return n;
}

static void store_task(void *arg, uint32_t task)
{
    const struct store *s = arg;
    struct kv *kv = s->kv;
    uint32_t head = task / s->parts, part = task % s->parts, n;
    quire_form form = kv_float_form(s->rows->type);
    uint64_t row;
    for (int64_t i = 0; i < s->rows->ne[1]; i += n) {
        n = run_of(s, i, &row);
        if (kv_page(kv, row) % s->parts != part) continue;
        quire_rows rows = {.size = sizeof(quire_rows),
                           .form = form,
                           .data = (const char *)s->rows->data + (size_t)i * s->rows->nb[1] +
                                   (size_t)head * kv->d * s->rows->nb[0],
                           .token_stride = s->rows->nb[1]};
        quire_tile_encode(kv->format, head, kv_tile(kv, row) + head * kv->tile_bytes, kv_tile_row(kv, row), n,
                          &rows, NULL);
    }
}

static void record(const struct store *s)
{
    struct recorder *r = s->kv->owner->context->recorder;
    if (!r || s->rows->type != host.type[TYPE_F32]) return;
    const int32_t *positions = NULL;
    if (s->kv->side == QUIRE_K && !recorder_begin(r, s->kv->layer, s->rows, &positions)) return;
    for (int64_t i = 0; i < s->rows->ne[1]; i++) {
        uint64_t cell = (uint64_t)index_at(s->index, i, 0, 0) % s->kv->cells;
        const char *values = (const char *)s->rows->data + (size_t)i * s->rows->nb[1];
        recorder_row(r, s->kv->layer, s->kv->side, positions ? (uint32_t)positions[i] : (uint32_t)cell,
                     (const float *)(const void *)values);
    }
}

static int store_rows(struct worker *w, struct kv *kv, struct host_tensor *op)
{
    struct store s = {.kv = kv, .rows = op->src[0], .index = op->src[1], .parts = 1};
    uint64_t row, all = (uint64_t)kv->cells * kv->streams;
    int64_t n_tokens = s.rows->ne[1];
    if (s.rows->ne[0] != kv->row || s.rows->ne[2] != 1 || s.rows->ne[3] != 1 || host_offset(op) ||
        !takes_types(op))
        return fallback_run(w, op);
    for (int64_t i = 0; i < n_tokens; i++)
        if ((uint64_t)index_at(s.index, i, 0, 0) >= all) {
            say_trouble("the program sent a row for cell %lld of %s, which has only %llu cells",
                        (long long)index_at(s.index, i, 0, 0), kv->name, (unsigned long long)all);
            return HOST_FAILED;
        }
    worker_expect(w,
                  16.0 * (double)n_tokens * kv->row); /* coding a value costs about as much as 16 products */
    while (s.parts * kv->n_heads < 2 * w->n_threads && n_tokens / s.parts >= 2 * CELLS) s.parts *= 2;
    w->executor.run(w->executor.ctx, store_task, &s, s.parts * kv->n_heads);
    stat_encoded((uint64_t)n_tokens);
    for (int64_t i = 0, n; i < n_tokens; i += n) {
        n = run_of(&s, i, &row);
        kv_wrote(kv, row, (uint64_t)n);
    }
    record(&s);
    return HOST_SUCCESS;
}

/* --------------------------------------------------------------- plain tensors */

enum { MOST = 1024 }; /* values that a format takes at once; blocks of quantized types are far shorter */

struct coder {
    quire_tile_format *format;
    uint32_t d;
    size_t bytes;
};

static bool make_coder(struct coder *c, int type, int64_t d)
{
    quire_tile_format_options options = {
        .size = sizeof(quire_tile_format_options), .side = QUIRE_K, .d = (uint32_t)d};
    c->d = (uint32_t)d;
    c->bytes = host.ggml_row_size(type, d);
    return !d || !quire_tile_format_create(&c->format, host_codec(type), &options);
}

/* Through a tile of one row: the bytes that come out are the declared type's own. */
static void code_values(const struct coder *c, void *tile, const void *values, quire_form form, char *to)
{
    tile_recode(c->format, tile, 0, 1, form, values, 0, QUIRE_NATIVE, to, 0);
}

static void code_row(const struct coder coder[2], void *tile, const struct host_tensor *rows,
                     const char *from, char *to)
{
    quire_form form = kv_float_form(rows->type);
    int64_t i = 0;
    for (; i + MOST <= rows->ne[0]; i += MOST, to += coder[0].bytes)
        code_values(&coder[0], tile, from + (size_t)i * rows->nb[0], form, to);
    if (coder[1].d) code_values(&coder[1], tile, from + (size_t)i * rows->nb[0], form, to);
}

static int store_plain(struct worker *w, struct host_tensor *op)
{
    const struct host_tensor *rows = op->src[0], *index = op->src[1];
    struct coder coder[2] = {{0}};
    int status = HOST_SUCCESS;
    if (!make_coder(&coder[0], op->type, rows->ne[0] >= MOST ? MOST : 0) ||
        !make_coder(&coder[1], op->type, rows->ne[0] % MOST))
        status = HOST_ALLOC_FAILED;
    size_t tile_bytes = coder[0].d ? quire_tile_bytes(coder[0].format) : 0;
    if (!status && coder[1].d && quire_tile_bytes(coder[1].format) > tile_bytes)
        tile_bytes = quire_tile_bytes(coder[1].format);
    void *tile = status ? NULL : worker_scratch(w, tile_bytes);
    if (!status && !tile) status = HOST_ALLOC_FAILED;
    if (!status) memset(tile, 0, tile_bytes);
    for (int64_t i = 0; !status && i < rows->ne[1] * rows->ne[2] * rows->ne[3]; i++) {
        int64_t i1 = i % rows->ne[1], i2 = i / rows->ne[1] % rows->ne[2], i3 = i / rows->ne[1] / rows->ne[2];
        int64_t r = index_at(index, i1, i2 % index->ne[1], i3 % index->ne[2]);
        const char *from = (const char *)rows->data + (size_t)i1 * rows->nb[1] + (size_t)i2 * rows->nb[2] +
                           (size_t)i3 * rows->nb[3];
        char *to = (char *)op->data + (size_t)r * op->nb[1] + (size_t)i2 * op->nb[2] + (size_t)i3 * op->nb[3];
        if (r < 0 || r >= op->ne[1])
            status = HOST_FAILED;
        else
            code_row(coder, tile, rows, from, to);
    }
    quire_tile_format_destroy(coder[0].format);
    quire_tile_format_destroy(coder[1].format);
    return status;
}

int set_rows_run(struct worker *w, struct host_tensor *op)
{
    struct kv *kv = kv_of(op);
    enum kv_place place = kv ? context_settle(kv) : KV_IN_HOST_MEMORY;
    if (place == KV_NO_MEMORY) return HOST_ALLOC_FAILED;
    if (place == KV_IN_TILES) return store_rows(w, kv, op);
    return kv_is_cache(op) ? fallback_run(w, op) : store_plain(w, op);
}
