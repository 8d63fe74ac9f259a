/* SPDX-License-Identifier: MIT */
/* Buffers, tensors and rows of the cache. */
#define _DEFAULT_SOURCE
#include "kv.h"
#include "stat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct host_buffer_type buft_host, buft_kv;

/* --------------------------------------------------------------------- buffer */

void *kv_reserve(size_t size)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

struct kv_buffer *kv_buffer_create(size_t size)
{
    struct kv_buffer *b = calloc(1, sizeof *b);
    if (!b) return NULL;
    b->size = size ? size : 1;
    b->base = kv_reserve(b->size);
    if (b->base) return b;
    free(b);
    return NULL;
}

static void destroy_kv(struct kv *kv)
{
    for (uint32_t s = 0; s < kv->streams; s++) kv_set_high(kv, s, 0);
    stat_detach(kv);
    quire_tile_format_destroy(kv->format);
    if (kv->host) host.ggml_backend_buffer_free(kv->host);
    free(kv->streams_of);
    free(kv->refused);
    free(kv->high);
    free(kv);
}

void kv_buffer_destroy(struct kv_buffer *b)
{
    for (uint32_t i = 0; i < b->n_kv; i++) destroy_kv(b->kv[i]);
    free(b->kv);
    if (b->pages) munmap(b->pages, b->pages_size);
    munmap(b->base, b->size);
    free(b);
}

void kv_buffer_clear(struct kv_buffer *b)
{
    b->cleared = true;
    madvise(b->base, b->size, MADV_DONTNEED);
    if (b->pages) madvise(b->pages, b->pages_size, MADV_DONTNEED);
    b->said_refused = false;
    for (uint32_t i = 0; i < b->n_kv; i++) {
        struct kv *kv = b->kv[i];
        for (uint32_t s = 0; s < kv->streams; s++) kv_set_high(kv, s, 0);
        free(kv->refused);
        kv->refused = NULL;
        kv->n_refused = 0;
    }
}

/* -------------------------------------------------------------------- tensors */

bool kv_owns(const struct host_buffer *b)
{
    return b->buft == &buft_host || b->buft == &buft_kv;
}

/* cache_k_l<layer> or cache_v_l<layer>, nothing more. */
static bool parse_name(const char *name, quire_side *side, uint32_t *layer)
{
    char letter;
    int n = 0;
    unsigned number;
    if (strncmp(name, "cache_", 6)) return false; /* asked for every operand of every op */
    if (sscanf(name, "cache_%c_l%5u%n", &letter, &number, &n) != 2 || name[n]) return false;
    if (letter != 'k' && letter != 'v') return false;
    *side = letter == 'k' ? QUIRE_K : QUIRE_V;
    *layer = number;
    return true;
}

bool kv_is_root(const struct host_tensor *t, quire_side *side, uint32_t *layer)
{
    return !t->view_src && t->ne[1] > 1 && t->ne[3] == 1 && t->ne[0] > 0 && t->ne[0] <= UINT32_MAX &&
           t->ne[1] <= INT32_MAX && t->ne[2] <= 65536 && host_codec(t->type) &&
           parse_name(t->name, side, layer);
}

bool kv_is_cache(const struct host_tensor *t)
{
    quire_side side;
    uint32_t layer;
    const struct host_tensor *root = host_root(t);
    return root->buffer && kv_owns(root->buffer) && kv_is_root(root, &side, &layer);
}

struct kv *kv_of(const struct host_tensor *t)
{
    const struct host_tensor *root = host_root(t);
    if (!root->extra || !root->buffer || !root->buffer->context || !kv_owns(root->buffer)) return NULL;
    struct kv *kv = root->extra;
    return kv->plain ? NULL : kv;
}

bool kv_is_ours(const struct host_tensor *t)
{
    return kv_of(t) || (kv_is_cache(t) && !host_root(t)->buffer->context);
}

/* ----------------------------------------------------------------------- rows */

void kv_set_high(struct kv *kv, uint64_t stream, uint32_t high)
{
    stat_rows(kv, kv->high[stream], high);
    kv->high[stream] = high;
}

void kv_wrote(struct kv *kv, uint64_t row, uint64_t n)
{
    uint64_t stream = row / kv->cells, end = row % kv->cells + n;
    if (end > kv->high[stream]) kv_set_high(kv, stream, (uint32_t)end);
    if (!kv->n_refused) return;
    for (uint64_t r = row; r < row + n; r++)
        if (kv_is_refused(kv, r)) {
            kv->refused[r / 64] &= ~(UINT64_C(1) << r % 64);
            kv->n_refused--;
        }
}

void kv_refuse(struct kv *kv, uint64_t row)
{
    uint64_t n = (uint64_t)kv->cells * kv->streams;
    if (!kv->refused) kv->refused = calloc((size_t)(n / 64 + 1), sizeof *kv->refused);
    if (!kv->refused || kv_is_refused(kv, row)) return;
    kv->refused[row / 64] |= UINT64_C(1) << row % 64;
    kv->n_refused++;
}

bool kv_is_refused(const struct kv *kv, uint64_t row)
{
    return kv->refused && kv->refused[row / 64] >> row % 64 & 1;
}

bool kv_has_heads_apart(const struct kv *kv, const struct host_tensor *t)
{
    size_t head = host.ggml_row_size(kv->type, t->ne[0]);
    return t->ne[2] == 1 && t->ne[3] > 1 && t->nb[3] == head && (uint64_t)(t->ne[0] * t->ne[3]) == kv->row;
}

quire_form kv_float_form(int type)
{
    if (type == host.type[TYPE_F32]) return QUIRE_F32;
    return type == host.type[TYPE_F16] ? QUIRE_F16 : QUIRE_BF16;
}

void kv_decode(const struct kv *kv, uint64_t row, uint32_t n, quire_form form, void *to, size_t head_stride,
               size_t row_stride)
{
    char *tile = kv_tile(kv, row);
    for (uint32_t h = 0; h < kv->n_heads; h++) {
        quire_rows_out rows = {.size = sizeof(quire_rows_out),
                               .form = form,
                               .data = (char *)to + h * head_stride,
                               .token_stride = row_stride};
        quire_tile_decode(kv->format, h, tile + h * kv->tile_bytes, kv_tile_row(kv, row), n, &rows);
    }
}

void kv_read(const struct kv *kv, uint64_t row, uint32_t n, float *values)
{
    kv_decode(kv, row, n, QUIRE_F32, values, kv->d * sizeof(float), kv->row * sizeof(float));
}

void kv_write(struct kv *kv, uint64_t row, uint32_t n, const float *values)
{
    char *tile = kv_tile(kv, row);
    for (uint32_t h = 0; h < kv->n_heads; h++) {
        quire_rows rows = {.size = sizeof(quire_rows),
                           .form = QUIRE_F32,
                           .data = values + (size_t)h * kv->d,
                           .token_stride = kv->row * sizeof(float)};
        quire_tile_encode(kv->format, h, tile + h * kv->tile_bytes, kv_tile_row(kv, row), n, &rows, NULL);
    }
    kv_wrote(kv, row, n);
}

void *tile_create(const quire_tile_format *format)
{
    size_t bytes = quire_tile_bytes(format);
    void *tile = aligned_alloc(64, bytes);
    if (tile) memset(tile, 0, bytes);
    return tile;
}

bool tile_recode(const quire_tile_format *format, void *tile, uint32_t head, uint32_t n, quire_form from_form,
                 const void *from, size_t from_stride, quire_form to_form, void *to, size_t to_stride)
{
    quire_rows in = {
        .size = sizeof(quire_rows), .form = from_form, .data = from, .token_stride = from_stride};
    quire_rows_out out = {
        .size = sizeof(quire_rows_out), .form = to_form, .data = to, .token_stride = to_stride};
    return !quire_tile_encode(format, head, tile, 0, n, &in, NULL) &&
           !quire_tile_decode(format, head, tile, 0, n, &out);
}
