/* SPDX-License-Identifier: MIT */
/* plan: which codec each layer gets, and why. */
#include "cache/plan_draft.h"
#include "core/geometry.h"

#include <stdarg.h>
#include <stdio.h>

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

quire_status quire_plan_take_profile(const quire_plan_draft *d, quire_plan *plan)
{
    const quire_codec *codec = calibrated_codec(&d->policy);
    if (!codec) return QUIRE_OK;
    if (!d->profile)
        return quire_plan_complain(d, QUIRE_EINVAL, "codec %s needs a profile", codec->info.name);
    if (!quire_profile_digest(d->profile))
        return quire_plan_complain(d, QUIRE_EINVAL, "the profile is not finished");
    plan->profile = quire_profile_hold(d->profile);
    return QUIRE_OK;
}

/* ----------------------------------------------------------------- formats */

static quire_status init_format(const quire_plan_draft *d, const quire_plan *plan, uint32_t i,
                                quire_side side, const quire_codec *codec, quire_tile_format *out)
{
    const quire_layer *shape = &plan->layer[i].shape;
    const quire_profile *profile = is_calibrated(codec) ? plan->profile : NULL;
    uint32_t size = side == QUIRE_K ? shape->d_k : shape->d_v;
    uint32_t d_v = side == QUIRE_K && shape->v_in_k ? shape->d_v : 0;
    if (profile && !quire_profile_fits(profile, i, shape->n_kv_heads, size))
        return quire_plan_complain(d, QUIRE_EMISMATCH, "the profile was made for another model (layer %u)",
                                   (unsigned)i);
    quire_status status = quire_tile_format_init(out, codec, side, size, d_v, profile, i);
    if (status == QUIRE_EUNSUPPORTED && codec->sized)
        return quire_plan_complain(
            d, status, "codec %s cannot keep the %c rows of layer %u, whose head size is %u%s",
            codec->info.name, side == QUIRE_K ? 'K' : 'V', (unsigned)i, (unsigned)size,
            d_v && d_v != size ? ", because V is a part of K"
                               : "; tv codecs take head sizes of 16, 32, 64, 128, 256 and 512");
    if (status)
        return quire_plan_complain(
            d, status, "codec %s cannot keep the %c rows of layer %u, whose head size is %u",
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

/* full: how many full-attention layers come before this one, of n_full. */
static quire_status plan_layer(const quire_plan_draft *d, quire_plan *plan, uint32_t i, uint32_t full,
                               uint32_t n_full)
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
            remark(l, "the first %u tokens are sinks",
                   (unsigned)quire_policy_sink_pages(policy) * QUIRE_PAGE_TOKENS);
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

quire_status quire_plan_layers(const quire_plan_draft *d, quire_plan *plan)
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
