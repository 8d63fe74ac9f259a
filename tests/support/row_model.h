/* SPDX-License-Identifier: MIT */
/*
 * What every row of a cache must be, for tests that compare a cache with a plain array of rows.
 *
 * The library promises that a row's bytes follow from its input row, its codec, side and head alone. So the expected
 * bytes are made here one row at a time: encoded into row t of an empty tile and read back. A "node" is one token of
 * one group of layers in one page layout: native bytes and f32 values of all its rows. Nodes are found again by how
 * they came about (input token, then the layouts it was converted to), so that a row is coded once however often
 * it is used.
 */
#ifndef QUIRE_TESTS_ROW_MODEL_H
#define QUIRE_TESTS_ROW_MODEL_H

#include "quire/quire.h"

#include <stdbool.h>
#include <stddef.h>

#define ROW_MAX_LAYERS 4u
#define ROW_MAX_PLANS 8u
#define ROW_MAX_GROUPS 3u
#define ROW_MAX_LAYOUTS (ROW_MAX_PLANS * 2 * ROW_MAX_GROUPS)
#define ROW_BANK 512u   /* different input tokens */
#define ROW_WIDEST 128u /* floats of one layer, side and token, all heads */

/* Codecs of the pages of one group: of one plan, ordinary or sink pages. */
typedef struct row_layout {
    uint32_t group;
    bool exists;
    quire_tile_format *format[ROW_MAX_LAYERS][2]; /* NULL: layer of another group */
    size_t row_bytes[ROW_MAX_LAYERS][2], native_at[ROW_MAX_LAYERS][2], native_bytes;
    size_t page_bytes;
} row_layout;

typedef struct row_node {
    uint32_t layout;
    float *values;
    uint8_t *native;
} row_node;

typedef struct row_map { /* 64-bit keys to numbers */
    uint64_t *key;
    uint32_t *value;
    uint32_t n, cap;
} row_map;

typedef struct row_world {
    uint32_t n_layers, n_groups, n_plans;
    quire_layer layer[ROW_MAX_LAYERS];
    uint32_t group[ROW_MAX_LAYERS];
    uint32_t window[ROW_MAX_GROUPS];
    size_t value_at[ROW_MAX_LAYERS][2], n_values[ROW_MAX_GROUPS];
    quire_profile *profile;
    quire_plan *plan[ROW_MAX_PLANS];
    uint32_t sink_pages[ROW_MAX_PLANS][ROW_MAX_GROUPS];
    row_layout layout[ROW_MAX_LAYOUTS];
    float *
        bank; /* [ROW_BANK][layer][side][ROW_WIDEST]; bf16 numbers that f16 holds too, so any float form will do */
    uint32_t *root; /* [ROW_BANK][ROW_MAX_LAYOUTS], node + 1 */
    row_node *node;
    uint32_t n_nodes, cap_nodes;
    row_map children, contents;
    uint8_t *tile; /* scratch */
} row_world;

/* geometry: n_layers of at most ROW_MAX_LAYERS, V not in K. */
void row_world_create(row_world *w, const quire_geometry *geometry, const char *const *policies,
                      uint32_t n_policies, uint64_t seed);
void row_world_destroy(row_world *w);

/* The layout of a page. */
uint32_t row_layout_of(const row_world *w, uint32_t plan, uint32_t group, uint32_t page_index);
bool row_layouts_equal(const row_world *w, uint32_t a, uint32_t b);

static inline const float *row_input(const row_world *w, uint32_t token, uint32_t layer, quire_side side)
{
    return w->bank + (((size_t)token * ROW_MAX_LAYERS + layer) * 2 + side) * ROW_WIDEST;
}

/* Floats of one token of a layer, all heads. */
static inline uint32_t row_width(const row_world *w, uint32_t layer, quire_side side)
{
    return w->layer[layer].n_kv_heads * (side == QUIRE_K ? w->layer[layer].d_k : w->layer[layer].d_v);
}

uint32_t row_encoded(row_world *w, uint32_t token, uint32_t layout);
uint32_t row_converted(row_world *w, uint32_t node, uint32_t layout);

static inline const float *row_values(const row_world *w, uint32_t node, uint32_t layer, quire_side side)
{
    return w->node[node].values + w->value_at[layer][side];
}

static inline const uint8_t *row_native(const row_world *w, uint32_t node, uint32_t layer, quire_side side)
{
    return w->node[node].native + w->layout[w->node[node].layout].native_at[layer][side];
}

#endif
