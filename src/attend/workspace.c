/* SPDX-License-Identifier: MIT */
/* attend: workspaces: threads, and memory that grows to what the largest call needs. */
#include "attend/workspace.h"

#define EXPANDED_BYTES ((size_t)1 << 20) /* of a worker at most: half of the second cache */

quire_status quire_workspace_create(quire_workspace **out, const quire_executor *executor,
                                    const quire_allocator *allocator)
{
    if (!out) return QUIRE_EINVAL;
    quire_allocator a;
    quire_executor e;
    quire_status status = quire_allocator_read(&a, allocator);
    if (!status) status = quire_executor_read(&e, executor);
    if (status) return status;
    quire_workspace *w = (quire_workspace *)quire_alloc(&a, sizeof *w);
    if (!w) return QUIRE_ENOMEM;
    w->allocator = a;
    w->executor = e;
    quire_tile_list_init(&w->list, &a);
    *out = w;
    return QUIRE_OK;
}

void quire_workspace_destroy(quire_workspace *w)
{
    if (!w) return;
    quire_allocator a = w->allocator;
    quire_tile_list_fini(&w->list);
    quire_free(&a, w->jobs, sizeof *w->jobs * w->cap_jobs);
    quire_free(&a, w->memory, w->bytes);
    quire_free(&a, w, sizeof *w);
}

quire_status quire_workspace_stats_get(const quire_workspace *w, quire_workspace_stats *out)
{
    return w ? quire_write_sized(out, &w->stats, sizeof w->stats) : QUIRE_EINVAL;
}

/* ---------------------------------------------------------------- lay out */

/* Hands out pieces of one block of memory; with base NULL it only counts. */
typedef struct carver {
    uint8_t *base;
    size_t used;
} carver;

static void *carve(carver *c, size_t n, size_t size)
{
    size_t at = c->used, bytes = quire_bytes(n, size);
    c->used = bytes > SIZE_MAX / 2 - at ? SIZE_MAX / 2 : (at + bytes + 63) / 64 * 64;
    return c->base ? c->base + at : NULL;
}

static void lay_out_queries(carver *m, const quire_call_needs *n, quire_queries *q)
{
    size_t rows = n->rows;
    size_t whole =
        (rows + QUIRE_STRIP_ROWS - 1) / QUIRE_STRIP_ROWS * QUIRE_STRIP_ROWS; /* kernels read whole strips */
    size_t bytes = 2 * (size_t)quire_z_stride(n->d);
    quire_queries laid = {
        .row = (float *)carve(m, rows * n->d, sizeof(float)),
        .z = (int8_t *)carve(m, 2 * whole, bytes),
        .r = (int8_t *)carve(m, whole, bytes),
        .sum = (int32_t *)carve(m, 2 * rows * n->n_sums, sizeof(int32_t)),
        .unit = (float *)carve(m, rows, sizeof(float)),
        .mean_score = (float *)carve(m, rows * QUIRE_MEAN_SLOTS, sizeof(float)),
        .skip_r_below = (float *)carve(m, rows, sizeof(float)),
    };
    if (m->base) *q = laid;
}

/*
 * Accumulators of many rows do not fit into the first cache, and each tile changes all of them. So a strip of rows goes
 * over a few tiles before the next one does; those lie expanded in the second cache.
 */
static uint32_t tiles_at_once(size_t rows, size_t expanded)
{
    size_t n = EXPANDED_BYTES / (2 * expanded);
    if (rows <= QUIRE_STRIP_ROWS || n < 1) return 1;
    return n < QUIRE_TILES_AT_ONCE ? (uint32_t)n : QUIRE_TILES_AT_ONCE;
}

static void lay_out_scratch(carver *m, const quire_call_needs *n, quire_scratch *s)
{
    size_t rows = n->rows, expanded = quire_expanded_bytes(n->d);
    uint32_t n_tiles = tiles_at_once(n->rows, expanded);
    quire_scratch laid = {
        .queries = (quire_queries *)carve(m, n->n_k, sizeof(quire_queries)),
        .log_unit = (float *)carve(m, n->n_k * rows, sizeof(float)),
        .visible = (uint64_t *)carve(m, n_tiles * rows, sizeof(uint64_t)),
        .all_visible = (uint64_t *)carve(m, rows, sizeof(uint64_t)),
        .scores = (float *)carve(m, (size_t)2 * QUIRE_STRIP_ROWS * QUIRE_TILE_ROWS, sizeof(float)),
        .k = (uint8_t *)carve(m, n_tiles, expanded),
        .v = (uint8_t *)carve(m, n_tiles, expanded),
        .expanded_bytes = expanded,
        .n_tiles = n_tiles,
        .kernel = carve(m, 1, quire_kernel_scratch(n->d)),
        .row = (float *)carve(m, QUIRE_MAX_D, sizeof(float)),
        .sum_row = (float *)carve(m, QUIRE_MAX_D, sizeof(float)),
        .partial = (float *)carve(m, n->state_floats, sizeof(float)),
        .total = (float *)carve(m, n->state_floats, sizeof(float)),
    };
    for (uint32_t i = 0; i < n->n_k; i++) lay_out_queries(m, n, m->base ? &laid.queries[i] : NULL);
    if (m->base) *s = laid;
}

/* Lays out all memory of a call. Called once to count, once to place. */
static void lay_out(carver *m, const quire_call_needs *n, quire_call_memory *out)
{
    out->layouts = (quire_job_layout *)carve(m, (size_t)n->n_layouts, sizeof *out->layouts);
    out->scratch = (quire_scratch *)carve(m, n->n_workers, sizeof *out->scratch);
    for (uint32_t i = 0; i < n->n_workers; i++) lay_out_scratch(m, n, m->base ? &out->scratch[i] : NULL);
    out->states = (float *)carve(m, (size_t)n->n_states, n->state_floats * sizeof(float));
}

quire_status quire_workspace_lay_out(quire_workspace *w, const quire_call_needs *needs,
                                     quire_call_memory *out)
{
    /* Decode makes the same call again and again. */
    if (!w->memory || memcmp(&w->laid_for, needs, sizeof *needs) != 0) {
        carver count = {0};
        lay_out(&count, needs, out);
        if (count.used > w->bytes) {
            uint8_t *memory = (uint8_t *)quire_alloc(&w->allocator, count.used);
            if (!memory) return QUIRE_ENOMEM;
            quire_free(&w->allocator, w->memory, w->bytes);
            w->memory = memory;
            w->bytes = count.used;
        }
        carver place = {.base = w->memory};
        lay_out(&place, needs, &w->laid_out);
        w->laid_for = *needs;
    }
    *out = w->laid_out;
    for (uint32_t i = 0; i < needs->n_workers; i++) out->scratch[i].stats = (quire_workspace_stats){0};
    return QUIRE_OK;
}
