/* SPDX-License-Identifier: MIT */
/* geometry.h: the shape of a model. */
#ifndef QUIRE_GEOMETRY_H
#define QUIRE_GEOMETRY_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Interface: stable. */

/* Passed in arrays. */
typedef struct quire_layer {
    uint32_t n_q_heads; /* a multiple of n_kv_heads */
    uint32_t n_kv_heads;
    uint32_t d_k, d_v; /* head sizes */
    uint32_t window;   /* sliding window in tokens, including the query's own position; 0: full attention */
    uint32_t v_in_k;   /* 1: V is the first d_v channels of K (MLA), and only K is stored. The default scale,
                        * 1 / sqrt(d_k), is rarely right for such a model: set quire_attend_options.scale */
} quire_layer;

/* The shape of the model: either one shape for all layers, or one per layer in layers[]. */
typedef struct quire_geometry {
    size_t size;
    uint32_t n_layers;
    uint32_t n_q_heads, n_kv_heads, d_k, d_v, v_in_k; /* of every layer, unless layers is given */
    const uint32_t *windows;                          /* n_layers sliding windows, or NULL */
    const quire_layer *layers;                        /* n_layers shapes, or NULL; used instead of windows */
    size_t layer_stride;                              /* sizeof(quire_layer), if layers is given */
} quire_geometry;

#ifdef __cplusplus
}
#endif
#endif
