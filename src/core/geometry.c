/* SPDX-License-Identifier: MIT */
/* geometry: the caller's model shape, checked and brought to one form. */
#include "core/geometry.h"

quire_layer quire_geometry_layer(const quire_geometry *geometry, uint32_t layer)
{
    if (geometry->layers) {
        quire_layer own;
        (void)quire_read_element(&own, sizeof own, geometry->layers, geometry->layer_stride, layer);
        return own;
    }
    return (quire_layer){
        .n_q_heads = geometry->n_q_heads,
        .n_kv_heads = geometry->n_kv_heads,
        .d_k = geometry->d_k,
        .d_v = geometry->d_v,
        .window = geometry->windows ? geometry->windows[layer] : 0,
        .v_in_k = geometry->v_in_k,
    };
}

static const char *layer_fault(const quire_layer *l)
{
    if (l->n_kv_heads < 1 || l->n_kv_heads > QUIRE_MAX_HEADS)
        return "the number of KV heads must be 1 to 65535";
    if (l->n_q_heads < 1 || l->n_q_heads > QUIRE_MAX_HEADS)
        return "the number of query heads must be 1 to 65535";
    if (l->n_q_heads % l->n_kv_heads)
        return "the number of query heads must be a multiple of the number of KV heads";
    if (l->d_k < 1 || l->d_k > QUIRE_MAX_D) return "the K head size must be 1 to 1024";
    if (l->d_v < 1 || l->d_v > QUIRE_MAX_D) return "the V head size must be 1 to 1024";
    if (l->v_in_k > 1) return "v_in_k must be 0 or 1";
    if (l->v_in_k && l->d_v > l->d_k) return "V cannot be a prefix of K if its head size is larger";
    return NULL;
}

quire_status quire_geometry_read(quire_geometry *out, const quire_geometry *geometry, const char **why)
{
    const char *fault = NULL;
    quire_status status = quire_read_sized(out, sizeof *out, geometry);
    if (status == QUIRE_EINVAL)
        fault = "the geometry is NULL, or its size is not set";
    else if (status)
        fault = "the geometry has members that this version of the library does not know";
    else if (out->n_layers < 1 || out->n_layers > QUIRE_MAX_LAYERS)
        fault = "the number of layers must be 1 to 4096";
    else if (out->layers && out->windows)
        fault = "give either windows or layers, not both";
    else if (out->layers && (out->layer_stride < sizeof(uint32_t) || out->layer_stride % sizeof(uint32_t)))
        fault = "layer_stride must be sizeof(quire_layer)";
    for (uint32_t i = 0; !fault && i < out->n_layers; i++) {
        quire_layer l;
        if (out->layers) status = quire_read_element(&l, sizeof l, out->layers, out->layer_stride, i);
        if (status)
            fault = "a layer has members that this version of the library does not know";
        else {
            l = quire_geometry_layer(out, i);
            fault = layer_fault(&l);
        }
    }
    if (why) *why = fault;
    return !fault ? QUIRE_OK : status ? status : QUIRE_EINVAL;
}
