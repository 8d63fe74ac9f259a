/* SPDX-License-Identifier: MIT */
/* A host that keeps tiles in blocks of its own memory, as engines with block tables do. */
#ifndef QUIRE_TESTS_PAGED_HOST_H
#define QUIRE_TESTS_PAGED_HOST_H

#include "support/cache_kit.h"
#include "support/reference.h"

#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

typedef struct paged {
    quire_paged_memory m;
    quire_tile_format *k, *v;
    uint8_t *memory;
    size_t bytes;
} paged;

/* v NULL: V is the first d_v channels of K. Memory is [block][layer][tile][head], K and V beside each other, and each block has
 * a gap behind it, so that no stride follows from the others. */
static inline void paged_open(paged *p, const char *k, const char *v, uint32_t d_k, uint32_t d_v,
                              uint32_t n_blocks, uint32_t block_tokens, uint32_t n_kv_heads,
                              uint32_t n_layers)
{
    *p = (paged){0};
    quire_tile_format_options options = {sizeof(quire_tile_format_options), .side = QUIRE_K, .d = d_k,
                                         .d_v = v ? 0 : d_v};
    REF_OK(quire_tile_format_create(&p->k, k, &options));
    options = (quire_tile_format_options){sizeof(quire_tile_format_options), .side = QUIRE_V, .d = d_v};
    if (v) REF_OK(quire_tile_format_create(&p->v, v, &options));
    size_t k_bytes = quire_tile_bytes(p->k), head = k_bytes + (v ? quire_tile_bytes(p->v) : 0) + 64;
    size_t tile = head * n_kv_heads, layer = tile * (block_tokens / 64), block = layer * n_layers + 128;
    p->bytes = block * n_blocks;
    p->memory = aligned_alloc(64, p->bytes);
    assert_non_null(p->memory);
    memset(p->memory, 0, p->bytes);
    p->m = (quire_paged_memory){
        .size = sizeof(quire_paged_memory),
        .k = p->memory,
        .k_block_stride = block,
        .k_tile_stride = tile,
        .k_head_stride = head,
        .k_layer_stride = layer,
        .k_format = p->k,
        .n_blocks = n_blocks,
        .block_tokens = block_tokens,
        .n_kv_heads = n_kv_heads,
        .n_layers = n_layers,
    };
    if (!v) return;
    p->m.v = p->memory + k_bytes;
    p->m.v_block_stride = block;
    p->m.v_tile_stride = tile;
    p->m.v_head_stride = head;
    p->m.v_layer_stride = layer;
    p->m.v_format = p->v;
}

static inline void paged_close(paged *p)
{
    quire_tile_format_destroy(p->k);
    quire_tile_format_destroy(p->v);
    free(p->memory);
}

static inline uint8_t *paged_tile(const paged *p, quire_side side, uint32_t layer, uint32_t head,
                                  int64_t slot)
{
    const quire_paged_memory *m = &p->m;
    size_t block = (size_t)(slot / m->block_tokens), tile = (size_t)(slot % m->block_tokens / 64);
    return side == QUIRE_K ? (uint8_t *)m->k + block * m->k_block_stride + tile * m->k_tile_stride +
                                 head * m->k_head_stride + layer * m->k_layer_stride
                           : (uint8_t *)m->v + block * m->v_block_stride + tile * m->v_tile_stride +
                                 head * m->v_head_stride + layer * m->v_layer_stride;
}

/* One row of one head, by the function that writes rows into tiles. */
static inline quire_status paged_put(const paged *p, quire_side side, uint32_t layer, uint32_t head,
                                     int64_t slot, quire_form form, const void *row, quire_counts *counts)
{
    quire_rows rows = {.size = sizeof rows, .form = form, .data = row};
    return quire_tile_encode(side == QUIRE_K ? p->k : p->v, head, paged_tile(p, side, layer, head, slot),
                             (uint32_t)(slot % 64), 1, &rows, counts);
}

/* Where position i of a sequence with these blocks lies. */
static inline int64_t paged_slot(const paged *p, const int32_t *blocks, uint32_t i)
{
    return (int64_t)blocks[i / p->m.block_tokens] * p->m.block_tokens + i % p->m.block_tokens;
}

/* Rows [first, first + n) of kit_append() with this seed, all layers and heads. */
static inline void paged_fill(const paged *p, const int32_t *blocks, uint32_t first, uint32_t n,
                              uint64_t seed, uint32_t d_k, uint32_t d_v)
{
    float x[16 * 128];
    for (uint32_t layer = 0; layer < p->m.n_layers; layer++)
        for (uint32_t i = first; i < first + n; i++)
            for (int side = 0; side < (p->v ? 2 : 1); side++) {
                uint32_t d = side ? d_v : d_k;
                assert_true((size_t)p->m.n_kv_heads * d <= COUNT(x));
                kit_row(seed, layer, (quire_side)side, i, x, (size_t)p->m.n_kv_heads * d);
                for (uint32_t h = 0; h < p->m.n_kv_heads; h++)
                    REF_OK(paged_put(p, (quire_side)side, layer, h, paged_slot(p, blocks, i), QUIRE_F32,
                                     x + (size_t)h * d, NULL));
            }
}

/* An executor that runs its tasks one after the other from the last to the first. */
static inline void run_backwards(void *ctx, void (*task)(void *arg, uint32_t index), void *arg,
                                 uint32_t n_tasks)
{
    (void)ctx;
    while (n_tasks--) task(arg, n_tasks);
}

#endif
