/* SPDX-License-Identifier: MIT */
/* plan: what somebody should know before trusting a policy with a model. Figures: docs/fidelity.md. */
#include "cache/plan.h"

#include <stdio.h>

/* Root mean square error of scores from which texts change visibly. */
#define SCORE_ERROR 0.35
#define MUCH 1000.0 /* from here on the figure says nothing more */
/* Codes of fewer bits need a profile (K) or change texts (V) on the models that were measured. */
enum { K_BITS = 5, V_BITS = 3 };

static const quire_codec *k_codec(const quire_plan *plan, uint32_t layer)
{
    const quire_planned_layer *l = &plan->layer[layer];
    const quire_codec *codec = l->k.coder.codec;
    return l->shape.window || codec->info.flags & QUIRE_CODEC_FLOAT ? NULL : codec;
}

/* The layer whose scores suffer most, by the statistics of the model. */
static double worst_scores(const quire_plan *plan, const quire_profile *profile, uint32_t *worst)
{
    double most = 0, e;
    for (uint32_t i = 0; i < plan->n_layers; i++) {
        const quire_layer *shape = &plan->layer[i].shape;
        const quire_codec *codec = k_codec(plan, i);
        if (!codec || !quire_profile_fits(profile, i, shape->n_kv_heads, shape->d_k)) continue;
        if (quire_profile_score_error(profile, i, codec->info.name, &e) || !(e > most)) continue;
        most = e;
        *worst = i;
    }
    return most;
}

static void warn_by_profile(quire_plan *plan, const quire_profile *profile)
{
    uint32_t layer = 0;
    double worst = worst_scores(plan, profile, &layer);
    unsigned hundredths = (unsigned)(100 * (worst < MUCH ? worst : MUCH) + 0.5);
    char error[24];
    if (hundredths < (unsigned)(100 * SCORE_ERROR)) return;
    /* Whole numbers: the decimal point of printf depends on the locale. */
    if (worst < MUCH)
        snprintf(error, sizeof error, "%u.%02u", hundredths / 100, hundredths % 100);
    else
        snprintf(error, sizeof error, "more than %u", (unsigned)MUCH);
    snprintf(
        plan->warning, sizeof plan->warning,
        "K in %s gives the attention scores of layer %u an error of %s with this model; from 0.35 on, generated "
        "text changes; use more bits for K%s",
        k_codec(plan, layer)->info.name, (unsigned)layer, error,
        k_codec(plan, layer)->info.flags & QUIRE_CODEC_CALIBRATED ? "" : ", or a c: codec");
}

static void warn_by_bits(quire_plan *plan)
{
    for (uint32_t i = 0; i < plan->n_layers; i++) {
        const quire_codec *codec = k_codec(plan, i);
        if (!codec || codec->info.bits >= K_BITS || codec->info.flags & QUIRE_CODEC_CALIBRATED) continue;
        snprintf(
            plan->warning, sizeof plan->warning,
            "K in %s without a profile changes the generated text of many models; use 5 bits or more for K, or a profile",
            codec->info.name);
        return;
    }
}

static void warn_of_v(quire_plan *plan)
{
    for (uint32_t i = 0; i < plan->n_layers; i++) {
        const quire_codec *codec = plan->layer[i].v.coder.codec;
        if (!codec || plan->layer[i].shape.window || codec->info.bits >= V_BITS) continue;
        snprintf(plan->warning, sizeof plan->warning,
                 "V in %s changes the generated text; use 3 bits or more for V", codec->info.name);
        return;
    }
}

void quire_plan_warn(quire_plan *plan, const quire_profile *profile)
{
    if (profile)
        warn_by_profile(plan, profile);
    else
        warn_by_bits(plan);
    if (!plan->warning[0]) warn_of_v(plan);
}

const char *quire_plan_warning(const quire_plan *plan)
{
    return plan->warning[0] ? plan->warning : NULL;
}
