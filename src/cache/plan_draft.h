/* SPDX-License-Identifier: MIT */
/* plan: what the creation of a plan knows while it runs. For plan.c and plan_layers.c only. */
#ifndef QUIRE_CACHE_PLAN_DRAFT_H
#define QUIRE_CACHE_PLAN_DRAFT_H

#include "cache/plan.h"
#include "cache/policy.h"

typedef struct quire_plan_draft {
    const quire_geometry *geometry;
    const quire_profile *profile; /* the caller's */
    quire_policy policy;
    char *message;
    size_t message_size;
} quire_plan_draft;

/* Writes the caller's message and returns the status. */
quire_status quire_plan_complain(const quire_plan_draft *d, quire_status status, const char *format, ...);

/* Whole pages: rows of one page share a layout. */
static inline uint32_t quire_policy_sink_pages(const quire_policy *policy)
{
    return quire_pages_for(policy->sink_tokens);
}

/* plan_layers.c: the plan keeps the profile if the policy needs one. */
quire_status quire_plan_take_profile(const quire_plan_draft *d, quire_plan *plan);
/* Shapes, formats and reasons of all layers, and bytes per token. */
quire_status quire_plan_layers(const quire_plan_draft *d, quire_plan *plan);

#endif
