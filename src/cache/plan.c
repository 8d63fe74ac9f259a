/* SPDX-License-Identifier: MIT */
/* plan: policy to codec per layer, groups, page layouts. */
#include "cache/plan.h"
#include "cache/policy.h"
#include "core/geometry.h"

#include <stdarg.h>
#include <stdio.h>

#define FINGERPRINT_VERSION 1u /* raised if a fingerprint gets other ingredients */

/* What creation knows while it runs. */
typedef struct draft {
    const quire_geometry *geometry;
    const quire_profile *profile; /* the caller's */
    quire_policy policy;
    char *message;
    size_t message_size;
} draft;

static quire_status complain(const draft *d, quire_status status, const char *format, ...)
{
    va_list args;
    if (!d->message_size) return status;
    va_start(args, format);
    (void)vsnprintf(d->message, d->message_size, format, args);
    va_end(args);
    return status;
}

static quire_status no_memory(const draft *d)
{
    return complain(d, QUIRE_ENOMEM, "out of memory");
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

/* ----------------------------------------------------------------- profile */

static bool is_calibrated(const quire_codec *codec)
{
    return codec && codec->info.flags & QUIRE_CODEC_CALIBRATED;
}

/* The first calibrated codec of the policy, whether or not a layer uses it: an answer that depends on the
 * policy alone is easier to understand. */
static const quire_codec *calibrated_codec(const quire_policy *policy)
{
    const quire_codec *k[] = {policy->main.k, policy->window.k, policy->edge.k, policy->sinks.k};
    for (size_t i = 0; i < sizeof k / sizeof *k; i++)
        if (is_calibrated(k[i])) return k[i];
    return NULL;
}

static quire_status take_profile(const draft *d, quire_plan *plan)
{
    const quire_codec *codec = calibrated_codec(&d->policy);
    if (!codec) return QUIRE_OK;
    if (!d->profile) return complain(d, QUIRE_EINVAL, "codec %s needs a profile", codec->info.name);
    if (!quire_profile_digest(d->profile)) return complain(d, QUIRE_EINVAL, "the profile is not finished");
    plan->profile = quire_profile_hold(d->profile);
    return QUIRE_OK;
}

/* ----------------------------------------------------------------- formats */

static quire_status init_format(const draft *d, const quire_plan *plan, uint32_t i, quire_side side,
                                const quire_codec *codec, quire_format *out)
{
    const quire_layer *shape = &plan->layer[i].shape;
    const quire_profile *profile = is_calibrated(codec) ? plan->profile : NULL;
    uint32_t size = side == QUIRE_K ? shape->d_k : shape->d_v;
    uint32_t d_v = side == QUIRE_K && shape->v_in_k ? shape->d_v : 0;
    if (profile && !quire_profile_fits(profile, i, shape->n_kv_heads, size))
        return complain(d, QUIRE_EMISMATCH, "the profile was made for another model (layer %u)", (unsigned)i);
    quire_status status = quire_format_init(out, codec, side, size, d_v, profile, i);
    if (status)
        return complain(d, status, "codec %s cannot keep the %c rows of layer %u, whose head size is %u",
                        codec->info.name, side == QUIRE_K ? 'K' : 'V', (unsigned)i, (unsigned)size);
    return QUIRE_OK;
}

/* Adds a remark to the layer's reason. */
static void remark(quire_planned_layer *l, const char *format, ...)
{
    size_t used = strlen(l->text);
    va_list args;
    if (used && used + 3 < sizeof l->text) {
        memcpy(l->text + used, "; ", 3);
        used += 2;
    }
    va_start(args, format);
    (void)vsnprintf(l->text + used, sizeof l->text - used, format, args);
    va_end(args);
    l->reason = l->text;
}

/* What a codec makes of an awkward head size. who: "head size", "K head size" or "V head size". */
static void remark_size(quire_planned_layer *l, const char *who, const quire_coder *coder)
{
    unsigned d = coder->d, pad = coder->d_pad, group = coder->codec->info.group;
    if (coder->n_groups && group && d < group)
        remark(l, "%s %u is less than %u: a row is one short group", who, d, group);
    else if (coder->n_groups && group && d % group)
        remark(l, "%s %u is not a multiple of %u: the last group of a row has %u value%s", who, d, group,
               d % group, d % group == 1 ? "" : "s");
    if (pad != d) remark(l, "%s %u is padded to %u", who, d, pad);
}

static void remark_sizes(quire_planned_layer *l)
{
    const quire_coder *k = &l->k.coder, *v = &l->v.coder;
    if (l->shape.v_in_k || (k->d == v->d && k->codec->info.group == v->codec->info.group)) {
        remark_size(l, "head size", k);
    } else {
        remark_size(l, "K head size", k);
        remark_size(l, "V head size", v);
    }
}

/* Whole pages: rows of one page share a layout. */
static uint32_t sink_pages(const quire_policy *policy)
{
    return quire_pages_for(policy->sink_tokens);
}

/* full: how many full-attention layers come before this one, of n_full. */
static quire_status plan_layer(const draft *d, quire_plan *plan, uint32_t i, uint32_t full, uint32_t n_full)
{
    const quire_policy *policy = &d->policy;
    quire_planned_layer *l = &plan->layer[i];
    quire_codec_pair pair = policy->main;
    quire_status status;
    if (l->shape.window) {
        bool floats = policy->window.k->info.flags & policy->window.v->info.flags & QUIRE_CODEC_FLOAT;
        pair = policy->window;
        remark(l, floats ? "window layer: kept as small float pages" : "window layer");
    } else if (full < policy->edge_layers || full + policy->edge_layers >= n_full) {
        /* With edge_layers 0 the second condition is full >= n_full, which is never true. */
        pair = policy->edge;
        remark(l, "edge layer");
    }
    status = init_format(d, plan, i, QUIRE_K, pair.k, &l->k);
    if (!status && !l->shape.v_in_k) status = init_format(d, plan, i, QUIRE_V, pair.v, &l->v);
    if (!status && !l->shape.window && policy->sink_tokens) {
        status = init_format(d, plan, i, QUIRE_K, policy->sinks.k, &l->sink_k);
        if (!status && !l->shape.v_in_k)
            status = init_format(d, plan, i, QUIRE_V, policy->sinks.v, &l->sink_v);
        if (!status)
            remark(l, "the first %u tokens are sinks", (unsigned)sink_pages(policy) * QUIRE_PAGE_TOKENS);
    }
    if (status) return status;
    if (l->shape.v_in_k) remark(l, "V is a prefix of K");
    remark_sizes(l);
    return QUIRE_OK;
}

uint64_t quire_planned_bytes(const quire_planned_layer *layer)
{
    uint64_t tiles = (uint64_t)layer->k.tile_bytes + (layer->shape.v_in_k ? 0 : layer->v.tile_bytes);
    return tiles * layer->shape.n_kv_heads / QUIRE_PAGE_TOKENS;
}

static quire_status plan_layers(const draft *d, quire_plan *plan)
{
    uint32_t n_full = 0, full = 0;
    for (uint32_t i = 0; i < plan->n_layers; i++) {
        plan->layer[i].shape = quire_geometry_layer(d->geometry, i);
        n_full += !plan->layer[i].shape.window;
    }
    for (uint32_t i = 0; i < plan->n_layers; i++) {
        quire_status status = plan_layer(d, plan, i, full, n_full);
        if (status) return status;
        if (plan->layer[i].shape.window) continue;
        plan->bytes_per_token += (double)quire_planned_bytes(&plan->layer[i]);
        full++;
    }
    return QUIRE_OK;
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

static quire_status finish_layout(const draft *d, quire_page_layout *layout)
{
    uint64_t bytes = 0; /* at most 4096 layers * 65535 heads * 512 KiB < 2^48 */
    for (uint32_t i = 0; i < layout->n_layers; i++) {
        const quire_page_layer *l = &layout->layer[i];
        bytes += ((uint64_t)l->k->tile_bytes + (l->v ? l->v->tile_bytes : 0)) * l->n_heads;
    }
    if (bytes > SIZE_MAX / 2)
        return complain(d, QUIRE_EINVAL, "a page would be larger than the address space");
    quire_page_layout_finish(layout);
    return QUIRE_OK;
}

static quire_status plan_groups(const draft *d, quire_plan *plan)
{
    const quire_allocator *a = &plan->allocator;
    plan->group = quire_alloc(a, quire_bytes(plan->n_layers, sizeof *plan->group));
    if (!plan->group) return no_memory(d);
    assign_groups(plan);
    for (uint32_t i = 0; i < plan->n_groups; i++) {
        quire_group *g = &plan->group[i];
        if (!g->window) g->n_sink_pages = sink_pages(&d->policy);
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

static quire_status build(const draft *d, quire_plan *plan, uint32_t n_layers)
{
    size_t length = strlen(d->policy.canonical) + 1;
    plan->policy = quire_alloc(&plan->allocator, length);
    if (!plan->policy) return no_memory(d);
    plan->policy_bytes = length;
    memcpy(plan->policy, d->policy.canonical, length);

    plan->layer = quire_alloc(&plan->allocator, quire_bytes(n_layers, sizeof *plan->layer));
    if (!plan->layer) return no_memory(d);
    plan->n_layers = n_layers;

    quire_status status = take_profile(d, plan);
    if (!status) status = plan_layers(d, plan);
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
    quire_status status = !out ? QUIRE_EINVAL : options ? quire_read_sized(&o, sizeof o, options) : QUIRE_OK;
    if (!status) status = quire_allocator_read(&a, o.allocator);
    if (status) return status;
    draft d = {.geometry = &model,
               .profile = o.profile,
               .message = o.message,
               .message_size = o.message ? o.message_size : 0};
    if (d.message_size) d.message[0] = 0;
    status = quire_geometry_read(&model, geometry, &why);
    if (status) return complain(&d, status, "%s", why);
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
