/* SPDX-License-Identifier: MIT */
/* slot_state: what follows the first cache in a slot file: windows, recurrent states, checkpoints. */
#include "files/slot_file.h"
#include "files/slot_reader.h"

#include <stdlib.h>
#include <string.h>

#define CHECKPOINTS 0x504b4353u /* "SCKP" */
#define MOST_CELLS (1u << 26)
#define MOST_ROW (UINT64_C(1) << 32)
#define MOST_TYPE 256u /* ggml has fewer */

/* Where the parts of one KV cache are. */
typedef struct cache_parts {
    size_t count_at, cells_at, rows_at; /* the number of cells, their positions, the first layer */
    uint32_t n_cells, n_layers, first;  /* first: the lowest position */
    bool transposed;
} cache_parts;

/* Type, size and rows of K or V of one layer; *element is 0 unless they are transposed. */
static bool read_layer(slot_reader *r, uint32_t n_cells, bool transposed, uint64_t *row, uint32_t *element)
{
    uint64_t type = slot_take(r, 4);
    *element = transposed ? (uint32_t)slot_take(r, 4) : 0;
    *row = transposed ? slot_take(r, 4) * *element : slot_take(r, 8);
    if (r->failed || type >= MOST_TYPE || !*row || *row > MOST_ROW) return false;
    slot_skip(r, *row * n_cells);
    return !r->failed;
}

static bool read_cache(slot_reader *r, uint32_t version, cache_parts *c)
{
    uint32_t n_streams = (uint32_t)slot_take(r, 4), element;
    uint64_t row;
    *c = (cache_parts){0};
    if (r->failed || !n_streams || n_streams > 256) return false;
    for (uint32_t s = 0; s < n_streams; s++) {
        size_t at = r->at;
        uint32_t n = (uint32_t)slot_take(r, 4);
        if (r->failed) return false;
        if (!n) continue;
        if (c->n_cells || n > MOST_CELLS) return false;
        *c = (cache_parts){.count_at = at, .cells_at = r->at, .n_cells = n};
        for (uint32_t i = 0; i < n; i++) {
            uint32_t position = (uint32_t)slot_take(r, 4), n_sequences = (uint32_t)slot_take(r, 4);
            slot_skip(r, 4);
            if (r->failed || n_sequences != 1) return false;
            if (!i || position < c->first) c->first = position; /* cells of a ring are in any order */
        }
        c->transposed = slot_take(r, 4) != 0;
        c->n_layers = (uint32_t)slot_take(r, 4);
        if (version > 3) slot_skip(r, 8);
        c->rows_at = r->at;
        if (r->failed || !c->n_layers || c->n_layers > SLOT_MAX_LAYERS) return false;
        for (uint32_t i = 0; i < 2 * c->n_layers; i++)
            if (!read_layer(r, n, i >= c->n_layers && c->transposed, &row, &element)) return false;
    }
    return c->n_cells > 0;
}

/* One cell: states of the layers that have them, as many as there are. */
static bool read_recurrent(slot_reader *r)
{
    uint32_t n_cells = (uint32_t)slot_take(r, 4), element;
    uint64_t row;
    slot_skip(r, 4); /* its position */
    uint32_t n_sequences = (uint32_t)slot_take(r, 4), transposed = (uint32_t)slot_take(r, 4);
    uint32_t n_layers = (uint32_t)slot_take(r, 4);
    if (r->failed || n_cells != 1 || n_sequences || transposed || !n_layers || n_layers > SLOT_MAX_LAYERS)
        return false;
    for (;;) {
        slot_reader ahead = *r;
        uint64_t word = slot_take(&ahead, 4);
        if (r->at == r->n || (!ahead.failed && word == CHECKPOINTS)) return true;
        if (!read_layer(r, 1, false, &row, &element)) return false;
    }
}

size_t slot_tail_size(uint32_t version, const uint8_t *tail, size_t n)
{
    slot_reader r = {.bytes = tail, .n = n};
    cache_parts c;
    while (r.at < r.n) {
        slot_reader begin = r, ahead = r;
        if (slot_take(&ahead, 4) == CHECKPOINTS && !ahead.failed) return r.at;
        if (read_cache(&r, version, &c)) continue;
        r = begin;
        if (!read_recurrent(&r)) return n;
    }
    return n;
}

/* -------------------------------------------------------------------- windows */

bool slot_tail_is_cache(uint32_t version, const uint8_t *tail, size_t n)
{
    slot_reader r = {.bytes = tail, .n = n};
    cache_parts c;
    return read_cache(&r, version, &c) && r.at == n;
}

typedef struct writer {
    uint8_t *bytes;
    size_t at;
} writer;

static void put_bytes(writer *w, const uint8_t *bytes, size_t n)
{
    if (bytes)
        memcpy(w->bytes + w->at, bytes, n);
    else
        memset(w->bytes + w->at, 0, n);
    w->at += n;
}

static void put_word(writer *w, uint32_t value)
{
    uint8_t bytes[4];
    for (int i = 0; i < 4; i++) bytes[i] = (uint8_t)(value >> 8 * i);
    put_bytes(w, bytes, sizeof bytes);
}

uint8_t *slot_widen_tail(uint32_t version, const uint8_t *tail, size_t n, size_t *n_out)
{
    slot_reader r = {.bytes = tail, .n = n};
    cache_parts c;
    if (!read_cache(&r, version, &c) || r.at != n || !c.first) return NULL;
    size_t size = n + 12;
    slot_reader rows = {.bytes = tail, .n = n, .at = c.rows_at};
    uint64_t row;
    uint32_t element;
    for (uint32_t i = 0; i < 2 * c.n_layers; i++) {
        if (!read_layer(&rows, c.n_cells, i >= c.n_layers && c.transposed, &row, &element)) return NULL;
        size += (size_t)row;
    }
    writer w = {.bytes = (uint8_t *)malloc(size)};
    if (!w.bytes) return NULL;
    put_bytes(&w, tail, c.count_at);
    put_word(&w, c.n_cells + 1);
    put_word(&w, c.first - 1);
    put_word(&w, 1);
    put_bytes(&w, tail + c.cells_at + 8, 4); /* the sequence of the others */
    put_bytes(&w, tail + c.cells_at, c.rows_at - c.cells_at);
    rows = (slot_reader){.bytes = tail, .n = n, .at = c.rows_at};
    for (uint32_t i = 0; i < 2 * c.n_layers; i++) {
        size_t head = rows.at;
        (void)read_layer(&rows, c.n_cells, i >= c.n_layers && c.transposed, &row, &element);
        size_t bytes = (size_t)row * c.n_cells, from = rows.at - bytes,
               step = element ? element : (size_t)row;
        put_bytes(&w, tail + head, from - head);
        for (size_t j = 0; j < row; j += step) {
            put_bytes(&w, NULL, step);
            put_bytes(&w, tail + from + j * c.n_cells, step * c.n_cells);
        }
    }
    put_bytes(&w, tail + rows.at, n - rows.at); /* streams without cells */
    *n_out = w.at;
    return w.bytes;
}
