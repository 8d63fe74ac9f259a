/* SPDX-License-Identifier: MIT */
/* plan: its life, groups of layers, page layouts, fingerprints. */
#include "cache/plan_draft.h"
#include "core/geometry.h"

#include <stdarg.h>
#include <stdio.h>

#define FINGERPRINT_VERSION 1u /* raised if a fingerprint gets other ingredients */

quire_status quire_plan_complain(const quire_plan_draft *d, quire_status status, const char *format, ...)
{
    va_list args;
    if (!d->message_size) return status;
    va_start(args, format);
    (void)vsnprintf(d->message, d->message_size, format, args);
    va_end(args);
    return status;
}

static quire_status no_memory(const quire_plan_draft *d)
{
    return quire_plan_complain(d, QUIRE_ENOMEM, "out of memory");
}

/* ---------------------------------------------------------------- lifetime */

quire_plan *quire_plan_hold(const quire_plan *plan)
{
    /* To its users a plan is constant; only the count of owners changes. */
    quire_plan *counted = (quire_plan *)(uintptr_t)plan;
    atomic_fetch_add_explicit(&counted->refs, 1, memory_order_relaxed);
    return counted;
}

static void layout_free(const quire_allocator *a, quire_page_layout *layout)
{
    quire_free(a, layout->layer, (size_t)layout->n_layers * sizeof *layout->layer);
}

void quire_plan_destroy(quire_plan *plan)
{
    if (!plan || atomic_fetch_sub_explicit(&plan->refs, 1, memory_order_acq_rel) != 1) return;
    quire_allocator a = plan->allocator;
    for (uint32_t i = 0; i < plan->n_groups; i++) {
        quire_group *g = &plan->group[i];
        quire_free(&a, g->layer, g->n_layers * sizeof *g->layer);
        layout_free(&a, &g->pages);
        layout_free(&a, &g->sinks);
    }
    quire_free(&a, plan->group, plan->n_layers * sizeof *plan->group);
    quire_free(&a, plan->layer, plan->n_layers * sizeof *plan->layer);
    quire_free(&a, plan->policy, plan->policy_bytes);
    quire_profile_destroy(plan->profile);
    quire_free(&a, plan, sizeof *plan);
}

/* ------------------------------------------------------------------ groups */

static void assign_groups(quire_plan *plan)
{
    for (uint32_t i = 0; i < plan->n_layers; i++) {
        quire_planned_layer *l = &plan->layer[i];
        uint32_t g = 0;
        while (g < plan->n_groups && plan->group[g].window != l->shape.window) g++;
        if (g == plan->n_groups) plan->group[plan->n_groups++].window = l->shape.window;
        l->group = g;
        l->index = plan->group[g].n_layers++;
    }
}

static bool layout_alloc(const quire_allocator *a, quire_page_layout *layout, uint32_t n_layers)
{
    layout->layer = quire_alloc(a, quire_bytes(n_layers, sizeof *layout->layer));
    if (!layout->layer) return false;
    layout->n_layers = n_layers;
    return true;
}

static quire_status finish_layout(const quire_plan_draft *d, quire_page_layout *layout)
{
    uint64_t bytes = 0; /* at most 4096 layers * 65535 heads * 512 KiB < 2^48 */
    for (uint32_t i = 0; i < layout->n_layers; i++) {
        const quire_page_layer *l = &layout->layer[i];
        bytes += ((uint64_t)l->k->tile_bytes + (l->v ? l->v->tile_bytes : 0)) * l->n_heads;
    }
    if (bytes > SIZE_MAX / 2)
        return quire_plan_complain(d, QUIRE_EINVAL, "a page would be larger than the address space");
    quire_page_layout_finish(layout);
    return QUIRE_OK;
}

static quire_status plan_groups(const quire_plan_draft *d, quire_plan *plan)
{
    const quire_allocator *a = &plan->allocator;
    plan->group = quire_alloc(a, quire_bytes(plan->n_layers, sizeof *plan->group));
    if (!plan->group) return no_memory(d);
    assign_groups(plan);
    for (uint32_t i = 0; i < plan->n_groups; i++) {
        quire_group *g = &plan->group[i];
        if (!g->window) g->n_sink_pages = quire_policy_sink_pages(&d->policy);
        g->layer = quire_alloc(a, quire_bytes(g->n_layers, sizeof *g->layer));
        if (!g->layer || !layout_alloc(a, &g->pages, g->n_layers)) return no_memory(d);
        if (g->n_sink_pages && !layout_alloc(a, &g->sinks, g->n_layers)) return no_memory(d);
    }
    for (uint32_t i = 0; i < plan->n_layers; i++) {
        const quire_planned_layer *l = &plan->layer[i];
        quire_group *g = &plan->group[l->group];
        quire_page_layer page = {
            .n_heads = l->shape.n_kv_heads, .k = &l->k, .v = l->shape.v_in_k ? NULL : &l->v};
        g->layer[l->index] = i;
        g->pages.layer[l->index] = page;
        if (!g->n_sink_pages) continue;
        page.k = &l->sink_k;
        if (page.v) page.v = &l->sink_v;
        g->sinks.layer[l->index] = page;
    }
    for (uint32_t i = 0; i < plan->n_groups; i++) {
        quire_status status = finish_layout(d, &plan->group[i].pages);
        if (!status && plan->group[i].n_sink_pages) status = finish_layout(d, &plan->group[i].sinks);
        if (status) return status;
    }
    return QUIRE_OK;
}

/* ------------------------------------------------------------- fingerprints */

static void fingerprint(quire_plan *plan)
{
    quire_hash shapes, all;
    quire_hash_begin(&shapes);
    quire_hash_u64(&shapes, FINGERPRINT_VERSION);
    quire_hash_u64(&shapes, plan->n_layers);
    for (uint32_t i = 0; i < plan->n_layers; i++) {
        const quire_layer *s = &plan->layer[i].shape;
        const uint32_t field[] = {s->n_q_heads, s->n_kv_heads, s->d_k, s->d_v, s->window, s->v_in_k};
        for (size_t j = 0; j < sizeof field / sizeof *field; j++) quire_hash_u64(&shapes, field[j]);
    }
    plan->geometry_fingerprint = quire_hash_end(&shapes);

    quire_hash_begin(&all);
    quire_hash_u64(&all, FINGERPRINT_VERSION);
    quire_hash_u64(&all, QUIRE_TILE_LAYOUT);
    quire_hash_u64(&all, plan->geometry_fingerprint);
    for (uint32_t i = 0; i < plan->n_layers; i++) {
        /* Formats that are unused are zero, and so is their fingerprint. */
        const quire_planned_layer *l = &plan->layer[i];
        quire_hash_u64(&all, l->k.fingerprint);
        quire_hash_u64(&all, l->v.fingerprint);
        quire_hash_u64(&all, l->sink_k.fingerprint);
        quire_hash_u64(&all, l->sink_v.fingerprint);
        quire_hash_u64(&all, plan->group[l->group].n_sink_pages);
    }
    plan->fingerprint = quire_hash_end(&all);
}

/* ------------------------------------------------------------------- create */

static quire_status build(const quire_plan_draft *d, quire_plan *plan, uint32_t n_layers)
{
    size_t length = strlen(d->policy.canonical) + 1;
    plan->policy = quire_alloc(&plan->allocator, length);
    if (!plan->policy) return no_memory(d);
    plan->policy_bytes = length;
    memcpy(plan->policy, d->policy.canonical, length);

    plan->layer = quire_alloc(&plan->allocator, quire_bytes(n_layers, sizeof *plan->layer));
    if (!plan->layer) return no_memory(d);
    plan->n_layers = n_layers;

    quire_status status = quire_plan_take_profile(d, plan);
    if (!status) status = quire_plan_layers(d, plan);
    if (!status) status = plan_groups(d, plan);
    if (!status) fingerprint(plan);
    return status;
}

quire_status quire_plan_create(quire_plan **out, const quire_geometry *geometry, const char *policy,
                               const quire_plan_options *options)
{
    quire_plan_options o = {0};
    quire_geometry model;
    quire_allocator a;
    const char *why;
    quire_plan *plan = NULL;
    quire_status status = options ? quire_read_sized(&o, sizeof o, options) : QUIRE_OK;
    if (status) return status;
    quire_plan_draft d = {.geometry = &model,
                          .profile = o.profile,
                          .message = o.message,
                          .message_size = o.message ? o.message_size : 0};
    if (d.message_size) d.message[0] = 0;
    if (!out) return quire_plan_complain(&d, QUIRE_EINVAL, "there is no pointer for the plan");
    status = quire_allocator_read(&a, o.allocator);
    if (status)
        return quire_plan_complain(&d, status,
                                   "the allocator lacks some of its functions, or its size is not set");
    status = quire_geometry_read(&model, geometry, &why);
    if (status) return quire_plan_complain(&d, status, "%s", why);
    status = quire_policy_parse(&d.policy, policy, d.profile, d.message, d.message_size);
    if (status) return status;

    plan = quire_alloc(&a, sizeof *plan);
    if (!plan) return no_memory(&d);
    atomic_init(&plan->refs, 1);
    plan->allocator = a;
    status = build(&d, plan, model.n_layers);
    if (status) goto fail;
    quire_plan_warn(plan, d.profile);
    *out = plan;
    return QUIRE_OK;

fail:
    quire_plan_destroy(plan);
    return status;
}
