/* SPDX-License-Identifier: MIT */
/* attend: new rows into the tiles of paged memory. */
#include "attend/workspace.h"

typedef struct scatter {
    quire_paged_memory memory;
    quire_rows rows[2]; /* K and V, strides filled in */
    uint32_t n_sides, n_tokens, layer;
    const int64_t *slots;
    atomic_ullong nan, saturated, recoded;
    _Atomic(uint32_t) status;
} scatter;

/* Tokens from i on whose slots follow each other in one tile. */
static uint32_t run_length(const scatter *s, uint32_t i)
{
    uint64_t slot = (uint64_t)s->slots[i], room = QUIRE_TILE_ROWS - slot % QUIRE_TILE_ROWS;
    uint32_t n = 1;
    while (n < room && i + n < s->n_tokens && s->slots[i + n] == s->slots[i] + n) n++;
    return n;
}

static uint8_t *tile_at(const quire_paged_memory *m, quire_side side, uint32_t layer, uint32_t head,
                        uint64_t slot)
{
    uint64_t block = slot / m->block_tokens, tile = slot % m->block_tokens / QUIRE_TILE_ROWS;
    if (side == QUIRE_K)
        return (uint8_t *)m->k + block * m->k_block_stride + tile * m->k_tile_stride +
               head * m->k_head_stride + layer * m->k_layer_stride;
    return (uint8_t *)m->v + block * m->v_block_stride + tile * m->v_tile_stride + head * m->v_head_stride +
           layer * m->v_layer_stride;
}

static const quire_tile_format *format_of(const scatter *s, quire_side side)
{
    return side == QUIRE_K ? s->memory.k_format : s->memory.v_format;
}

/* A task is one head and one side. */
static quire_side side_of(const scatter *s, uint32_t task, uint32_t *head)
{
    *head = task / s->n_sides;
    return task % s->n_sides ? QUIRE_V : QUIRE_K;
}

/* A codec's own bytes are the only rows that can be damaged. */
static bool can_be_damaged(const scatter *s, quire_side side)
{
    return s->rows[side].form == QUIRE_NATIVE &&
           format_of(s, side)->coder.codec->values != QUIRE_VALUES_FLOAT;
}

static void check_task(void *arg, uint32_t task)
{
    scatter *s = (scatter *)arg;
    uint32_t head;
    quire_side side = side_of(s, task, &head);
    if (!can_be_damaged(s, side)) return;
    quire_scale_places scales = quire_scale_places_of(&format_of(s, side)->coder);
    for (uint32_t i = 0; i < s->n_tokens; i++) {
        if (s->slots[i] < 0) continue;
        quire_rows row = quire_rows_at(&s->rows[side], 0, i, head);
        if (quire_scales_are_finite(scales, (const uint8_t *)row.data)) continue;
        atomic_store_explicit(&s->status, (uint32_t)QUIRE_EFORMAT, memory_order_relaxed);
        return;
    }
}

/* Nobody else writes to its tiles. */
static void scatter_task(void *arg, uint32_t task)
{
    scatter *s = (scatter *)arg;
    uint32_t head;
    quire_side side = side_of(s, task, &head);
    const quire_tile_format *format = format_of(s, side);
    quire_counts counts = {0};
    for (uint32_t i = 0, run; i < s->n_tokens; i += run) {
        run = 1;
        if (s->slots[i] < 0) continue;
        run = run_length(s, i);
        quire_rows rows = quire_rows_at(&s->rows[side], 0, i, head);
        quire_status status =
            quire_tile_write(format, head, tile_at(&s->memory, side, s->layer, head, (uint64_t)s->slots[i]),
                             (uint32_t)((uint64_t)s->slots[i] % QUIRE_TILE_ROWS), run, &rows, &counts);
        if (status) {
            atomic_store_explicit(&s->status, (uint32_t)status, memory_order_relaxed);
            break;
        }
    }
    atomic_fetch_add_explicit(&s->nan, counts.nan, memory_order_relaxed);
    atomic_fetch_add_explicit(&s->saturated, counts.saturated, memory_order_relaxed);
    atomic_fetch_add_explicit(&s->recoded, counts.recoded, memory_order_relaxed);
}

static quire_status read_side(scatter *s, quire_side side, const quire_rows *theirs)
{
    const quire_paged_memory *m = &s->memory;
    const quire_tile_format *format = format_of(s, side);
    if (format->coder.side != side || m->n_kv_heads > format->n_heads) return QUIRE_EINVAL;
    quire_status status = quire_rows_read(&s->rows[side], theirs);
    return status ? status : quire_rows_check(format, m->n_kv_heads, s->n_tokens, &s->rows[side]);
}

static quire_status read_scatter(scatter *s, const quire_scatter_rows *r)
{
    quire_status status = quire_paged_memory_read(&s->memory, r->memory);
    if (status) return status;
    const quire_paged_memory *m = &s->memory;
    s->n_tokens = r->n_tokens;
    s->layer = r->layer;
    s->slots = r->slots;
    s->n_sides = m->v ? 2 : 1;
    if (r->layer >= m->n_layers || (r->n_tokens && !r->slots) || (!m->v && !m->k_format->coder.d_v) ||
        (uintptr_t)r->slots % sizeof *r->slots)
        return QUIRE_EINVAL;
    for (uint32_t i = 0; i < r->n_tokens; i++)
        if (r->slots[i] >= 0 && (uint64_t)r->slots[i] >= (uint64_t)m->n_blocks * m->block_tokens)
            return QUIRE_EINVAL;
    if (!r->n_tokens) return QUIRE_OK;
    status = read_side(s, QUIRE_K, r->k);
    return status || !m->v ? status : read_side(s, QUIRE_V, r->v);
}

static quire_status run(const quire_workspace *w, scatter *s, void (*task)(void *, uint32_t))
{
    quire_workspace_run(w, task, s, s->n_sides * s->memory.n_kv_heads);
    return (quire_status)atomic_load_explicit(&s->status, memory_order_relaxed);
}

quire_status quire_scatter(quire_workspace *w, const quire_scatter_rows *rows)
{
    quire_scatter_rows r;
    quire_counts counts;
    scatter s = {.status = QUIRE_OK};
    if (!w) return QUIRE_EINVAL;
    quire_status status = quire_read_sized(&r, sizeof r, rows);
    if (!status && r.counts) status = quire_read_sized(&counts, sizeof counts, r.counts);
    if (!status) status = read_scatter(&s, &r);
    if (status || !r.n_tokens) return status;
    if (can_be_damaged(&s, QUIRE_K) || (s.n_sides > 1 && can_be_damaged(&s, QUIRE_V)))
        status = run(w, &s, check_task);
    if (status) return status;
    status = run(w, &s, scatter_task);
    if (r.counts) {
        counts.nan += atomic_load_explicit(&s.nan, memory_order_relaxed);
        counts.saturated += atomic_load_explicit(&s.saturated, memory_order_relaxed);
        counts.recoded += atomic_load_explicit(&s.recoded, memory_order_relaxed);
        (void)quire_write_sized(r.counts, &counts, sizeof counts);
    }
    return status;
}
