/* SPDX-License-Identifier: MIT */
/* What every row of a cache must be. */
#include "support/row_model.h"

#include "core/geometry.h"
#include "support/cache_kit.h"
#include "support/random.h"

#include <string.h>

#define TILE_BYTES 65536u

static void *zeros(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size);
    KIT_REQUIRE(p);
    return p;
}

/* ---------------------------------------------------------------------- map */

static uint64_t scatter(uint64_t key)
{
    rng r = {key};
    return rng_bits(&r);
}

static uint32_t map_slot(const row_map *m, uint64_t key)
{
    uint32_t at = (uint32_t)scatter(key) & (m->cap - 1);
    while (m->key[at] && m->key[at] != key) at = (at + 1) & (m->cap - 1);
    return at;
}

static bool map_get(const row_map *m, uint64_t key, uint32_t *value)
{
    if (!m->cap) return false;
    uint32_t at = map_slot(m, key);
    if (!m->key[at]) return false;
    *value = m->value[at];
    return true;
}

/* key is not 0 */
static void map_put(row_map *m, uint64_t key, uint32_t value)
{
    if (2 * (m->n + 1) > m->cap) {
        row_map old = *m;
        m->cap = old.cap ? 2 * old.cap : 1024;
        m->key = (uint64_t *)zeros(m->cap, sizeof *m->key);
        m->value = (uint32_t *)zeros(m->cap, sizeof *m->value);
        for (uint32_t i = 0; i < old.cap; i++) {
            if (!old.key[i]) continue;
            uint32_t at = map_slot(m, old.key[i]);
            m->key[at] = old.key[i];
            m->value[at] = old.value[i];
        }
        free(old.key);
        free(old.value);
    }
    uint32_t at = map_slot(m, key);
    if (!m->key[at]) m->n++;
    m->key[at] = key;
    m->value[at] = value;
}

/* -------------------------------------------------------------------- world */

static void group_layers(row_world *w, const quire_geometry *geometry)
{
    for (uint32_t i = 0; i < w->n_layers; i++) {
        w->layer[i] = quire_geometry_layer(geometry, i);
        uint32_t g = 0;
        while (g < w->n_groups && w->window[g] != w->layer[i].window) g++;
        if (g == w->n_groups) {
            KIT_REQUIRE(w->n_groups < ROW_MAX_GROUPS);
            w->window[w->n_groups++] = w->layer[i].window;
        }
        w->group[i] = g;
        for (uint32_t s = 0; s < 2; s++) {
            uint32_t width = row_width(w, i, s ? QUIRE_V : QUIRE_K);
            KIT_REQUIRE(width <= ROW_WIDEST);
            w->value_at[i][s] = w->n_values[g];
            w->n_values[g] += width;
        }
    }
}

static void add_format(row_world *w, row_layout *l, uint32_t i, quire_side side, const char *codec)
{
    const quire_layer *shape = &w->layer[i];
    quire_tile_format_options options = {.size = sizeof(quire_tile_format_options),
                                         .side = side,
                                         .d = side == QUIRE_K ? shape->d_k : shape->d_v,
                                         .profile = w->profile,
                                         .layer = i};
    KIT_REQUIRE(!quire_tile_format_create(&l->format[i][side], codec, &options));
    size_t tile_bytes = quire_tile_bytes(l->format[i][side]);
    KIT_REQUIRE(tile_bytes <= TILE_BYTES);
    l->page_bytes += tile_bytes * shape->n_kv_heads;
    l->row_bytes[i][side] = quire_codec_row_bytes(codec, options.d);
    l->native_at[i][side] = l->native_bytes;
    l->native_bytes += l->row_bytes[i][side] * shape->n_kv_heads;
}

static void add_plan(row_world *w, uint32_t p, const quire_geometry *geometry, const char *policy)
{
    w->plan[p] = kit_plan(geometry, policy, w->profile);
    for (uint32_t i = 0; i < w->n_layers; i++) {
        quire_plan_layer info = {.size = sizeof info};
        KIT_REQUIRE(!quire_plan_layer_info(w->plan[p], i, &info) && info.group == w->group[i]);
        for (uint32_t sink = 0; sink < (info.sink_tokens ? 2u : 1u); sink++) {
            row_layout *l = &w->layout[(p * 2 + sink) * w->n_groups + info.group];
            l->group = info.group;
            l->exists = true;
            add_format(w, l, i, QUIRE_K, sink ? info.sink_k : info.k);
            add_format(w, l, i, QUIRE_V, sink ? info.sink_v : info.v);
        }
        w->sink_pages[p][info.group] = info.sink_tokens / QUIRE_PAGE_TOKENS;
    }
    for (uint32_t g = 0; g < w->n_groups; g++)
        KIT_REQUIRE(quire_plan_page_bytes(w->plan[p], g) == w->layout[p * 2 * w->n_groups + g].page_bytes);
}

void row_world_create(row_world *w, const quire_geometry *geometry, const char *const *policies,
                      uint32_t n_policies, uint64_t seed)
{
    memset(w, 0, sizeof *w);
    KIT_REQUIRE(geometry->n_layers <= ROW_MAX_LAYERS && n_policies <= ROW_MAX_PLANS);
    w->n_layers = geometry->n_layers;
    w->n_plans = n_policies;
    group_layers(w, geometry);
    w->profile = kit_profile(geometry, seed, NULL);
    for (uint32_t p = 0; p < n_policies; p++) add_plan(w, p, geometry, policies[p]);

    size_t n = (size_t)ROW_BANK * ROW_MAX_LAYERS * 2 * ROW_WIDEST;
    w->bank = (float *)zeros(n, sizeof(float));
    w->root = (uint32_t *)zeros((size_t)ROW_BANK * ROW_MAX_LAYOUTS, sizeof(uint32_t));
    w->tile = (uint8_t *)aligned_alloc(64, TILE_BYTES);
    KIT_REQUIRE(w->tile);
    rng r = {seed};
    for (size_t i = 0; i < n; i++) { /* multiples of 1/32 below 4: seven bits */
        int x = (int)(rng_normal(&r) * 32.0f);
        w->bank[i] = (float)(x > 127 ? 127 : x < -127 ? -127 : x) / 32.0f;
    }
}

void row_world_destroy(row_world *w)
{
    for (uint32_t i = 0; i < ROW_MAX_LAYOUTS; i++)
        for (uint32_t layer = 0; layer < ROW_MAX_LAYERS; layer++)
            for (uint32_t s = 0; s < 2; s++) quire_tile_format_destroy(w->layout[i].format[layer][s]);
    for (uint32_t p = 0; p < w->n_plans; p++) quire_plan_destroy(w->plan[p]);
    quire_profile_destroy(w->profile);
    for (uint32_t i = 0; i < w->n_nodes; i++) {
        free(w->node[i].values);
        free(w->node[i].native);
    }
    free(w->node);
    free(w->bank);
    free(w->root);
    free(w->tile);
    free(w->children.key);
    free(w->children.value);
    free(w->contents.key);
    free(w->contents.value);
}

/* ------------------------------------------------------------------ layouts */

uint32_t row_layout_of(const row_world *w, uint32_t plan, uint32_t group, uint32_t page_index)
{
    uint32_t sink = page_index < w->sink_pages[plan][group];
    return (plan * 2 + sink) * w->n_groups + group;
}

bool row_layouts_equal(const row_world *w, uint32_t a, uint32_t b)
{
    for (uint32_t i = 0; i < w->n_layers; i++)
        for (uint32_t s = 0; s < 2; s++) {
            const quire_tile_format *x = w->layout[a].format[i][s], *y = w->layout[b].format[i][s];
            if (!x != !y) return false;
            if (x && quire_tile_format_fingerprint(x) != quire_tile_format_fingerprint(y)) return false;
        }
    return true;
}

/* -------------------------------------------------------------------- nodes */

/* One row through its codec, alone in a tile. */
static void code_row(row_world *w, const quire_tile_format *f, uint32_t head, const float *x, uint32_t t,
                     uint8_t *native, float *values)
{
    quire_rows in = {.size = sizeof(quire_rows), .form = QUIRE_F32, .data = x};
    quire_rows_out bytes = {.size = sizeof(quire_rows_out), .form = QUIRE_NATIVE, .data = native},
                   back = {.size = sizeof back, .form = QUIRE_F32, .data = values};
    memset(w->tile, 0, quire_tile_bytes(f));
    KIT_REQUIRE(!quire_tile_encode(f, head, w->tile, t, 1, &in, NULL));
    KIT_REQUIRE(!quire_tile_decode(f, head, w->tile, t, 1, &bytes));
    KIT_REQUIRE(!quire_tile_decode(f, head, w->tile, t, 1, &back));
}

/* The new node, or an equal one that was there before. */
static uint32_t keep_node(row_world *w, row_node node)
{
    const row_layout *l = &w->layout[node.layout];
    size_t value_bytes = w->n_values[l->group] * sizeof(float);
    uint64_t hash = node.layout + 1;
    for (size_t i = 0; i < l->native_bytes; i++) hash = (hash ^ node.native[i]) * 0x100000001b3u;
    hash = scatter(hash) | 1;
    uint32_t same;
    bool known = map_get(&w->contents, hash, &same);
    if (known && w->node[same].layout == node.layout &&
        !memcmp(w->node[same].native, node.native, l->native_bytes) &&
        !memcmp(w->node[same].values, node.values, value_bytes)) {
        free(node.values);
        free(node.native);
        return same;
    }
    if (w->n_nodes == w->cap_nodes) {
        w->cap_nodes = w->cap_nodes * 2 + 1024;
        w->node = (row_node *)realloc(w->node, w->cap_nodes * sizeof *w->node);
        KIT_REQUIRE(w->node);
    }
    w->node[w->n_nodes] = node;
    if (!known) map_put(&w->contents, hash, w->n_nodes);
    return w->n_nodes++;
}

static row_node new_node(const row_world *w, uint32_t layout)
{
    const row_layout *l = &w->layout[layout];
    KIT_REQUIRE(l->exists);
    return (row_node){.layout = layout,
                      .values = (float *)zeros(w->n_values[l->group], sizeof(float)),
                      .native = (uint8_t *)zeros(l->native_bytes, 1)};
}

/* All rows of one layer and side of a node from their values. */
static void code_side(row_world *w, const row_node *to, uint32_t i, quire_side side, const float *x,
                      uint32_t t)
{
    const row_layout *l = &w->layout[to->layout];
    uint32_t heads = w->layer[i].n_kv_heads, d = row_width(w, i, side) / heads;
    for (uint32_t h = 0; h < heads; h++)
        code_row(w, l->format[i][side], h, x + (size_t)h * d, t,
                 to->native + l->native_at[i][side] + h * l->row_bytes[i][side],
                 to->values + w->value_at[i][side] + (size_t)h * d);
}

uint32_t row_encoded(row_world *w, uint32_t token, uint32_t layout)
{
    uint32_t *root = &w->root[(size_t)token * ROW_MAX_LAYOUTS + layout];
    if (*root) return *root - 1;
    row_node node = new_node(w, layout);
    for (uint32_t i = 0; i < w->n_layers; i++)
        for (uint32_t s = 0; s < 2 && w->layout[layout].format[i][s]; s++) {
            quire_side side = s ? QUIRE_V : QUIRE_K;
            code_side(w, &node, i, side, row_input(w, token, i, side), token % QUIRE_PAGE_TOKENS);
        }
    *root = keep_node(w, node) + 1;
    return *root - 1;
}

uint32_t row_converted(row_world *w, uint32_t from, uint32_t layout)
{
    uint64_t key = ((uint64_t)from << 16 | layout) + 1;
    uint32_t found;
    if (map_get(&w->children, key, &found)) return found;
    row_node node = new_node(w, layout);
    const row_layout *old = &w->layout[w->node[from].layout], *l = &w->layout[layout];
    for (uint32_t i = 0; i < w->n_layers; i++)
        for (uint32_t s = 0; s < 2 && l->format[i][s]; s++) {
            quire_side side = s ? QUIRE_V : QUIRE_K;
            const float *x = row_values(w, from, i, side);
            if (quire_tile_format_fingerprint(old->format[i][s]) ==
                quire_tile_format_fingerprint(l->format[i][s])) {
                /* The codec stays: so do the codes. */
                memcpy(node.native + l->native_at[i][s], row_native(w, from, i, side),
                       l->row_bytes[i][s] * w->layer[i].n_kv_heads);
                memcpy(node.values + w->value_at[i][s], x, row_width(w, i, side) * sizeof(float));
            } else {
                code_side(w, &node, i, side, x, from % QUIRE_PAGE_TOKENS);
            }
        }
    found = keep_node(w, node);
    map_put(&w->children, key, found);
    return found;
}
