/* SPDX-License-Identifier: MIT */
/* plan: policy to codec per layer, groups, page layouts. Never changes after creation. */
#ifndef QUIRE_CACHE_PLAN_H
#define QUIRE_CACHE_PLAN_H

#include "page/page.h"
#include "quire/page.h"

#define QUIRE_REASON_MAX 320 /* every remark a layer can get, joined */

/* Layers with the same window. */
typedef struct quire_group {
    uint32_t window;
    uint32_t n_layers;
    uint32_t *layer;         /* layer numbers of the model, ascending */
    quire_page_layout pages; /* ordinary pages; in the order of layer[] */
    quire_page_layout sinks; /* the first n_sink_pages pages; unused if that is 0 */
    uint32_t n_sink_pages;
} quire_group;

typedef struct quire_planned_layer {
    quire_layer shape;
    uint32_t group, index;                  /* index within the group */
    quire_tile_format k, v, sink_k, sink_v; /* v unused if shape.v_in_k; sink_* unused without sink pages */
    const char *reason;                     /* text, or NULL if there is nothing to say */
    char text[QUIRE_REASON_MAX];
} quire_planned_layer;

struct quire_plan {
    atomic_uint refs;
    quire_allocator allocator;
    quire_profile *profile; /* held; NULL unless a codec of the policy is calibrated */
    char *policy;           /* canonical */
    size_t policy_bytes;
    uint64_t fingerprint;          /* never 0 */
    uint64_t geometry_fingerprint; /* shapes and windows only: equal for plans that can convert; never 0 */
    uint32_t n_layers, n_groups;
    quire_planned_layer *layer;
    quire_group *group; /* in the order in which the windows appear in the model; room for n_layers */
    double bytes_per_token;
    char warning[200]; /* empty: none */
};

/* warning.c: fills in the warning. profile: the caller's, or NULL; it may be one of another model. */
void quire_plan_warn(quire_plan *plan, const quire_profile *profile);

/* Bytes that one token takes in the ordinary pages of a layer: a whole number, since tiles are multiples of 64. */
uint64_t quire_planned_bytes(const quire_planned_layer *layer);

static inline const quire_page_layout *quire_plan_layout(const quire_plan *plan, uint32_t group,
                                                         uint32_t page_index)
{
    const quire_group *g = &plan->group[group];
    return page_index < g->n_sink_pages ? &g->sinks : &g->pages;
}

#endif
