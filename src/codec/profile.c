/* SPDX-License-Identifier: MIT */
/* profile: weights and means of a model's K channels, gathered from rows. */
#include "codec/profile.h"

#include "core/float_mode.h"
#include "core/geometry.h"

#include <math.h>

/* The first tokens of a text (attention sinks) are unlike all others and would spoil the mean. */
#define FIRST_POSITION 4u

quire_profile *quire_profile_new(uint32_t n_layers, const quire_allocator *allocator)
{
    quire_allocator a = *allocator;
    quire_profile *p = quire_alloc(&a, sizeof *p);
    if (!p) return NULL;
    atomic_init(&p->refs, 1);
    p->allocator = a;
    p->n_layers = n_layers;
    p->layers = quire_alloc(&a, quire_bytes(n_layers, sizeof *p->layers));
    if (p->layers) return p;
    quire_free(&a, p, sizeof *p);
    return NULL;
}

static void drop_sums(quire_profile *p)
{
    for (uint32_t i = 0; i < p->n_layers; i++) {
        quire_profile_layer *l = &p->layers[i];
        quire_free(&p->allocator, l->sums, (size_t)l->n_kv_heads * l->d_k * sizeof *l->sums);
        quire_free(&p->allocator, l->frequencies, (size_t)(l->d_k / 2) * sizeof *l->frequencies);
        l->sums = NULL;
        l->frequencies = NULL;
    }
    quire_samples_destroy(p);
}

void quire_profile_destroy(quire_profile *profile)
{
    if (!profile || atomic_fetch_sub_explicit(&profile->refs, 1, memory_order_acq_rel) > 1) return;
    quire_allocator a = profile->allocator;
    drop_sums(profile);
    for (uint32_t i = 0; i < profile->n_layers; i++)
        quire_free(&a, profile->layers[i].vectors, profile->layers[i].n_vectors * sizeof(float));
    quire_free(&a, profile->layers, profile->n_layers * sizeof *profile->layers);
    quire_free(&a, profile, sizeof *profile);
}

static bool add_vectors(quire_profile *p, quire_profile_layer *l)
{
    uint32_t n = (uint32_t)quire_profile_floats(l);
    l->vectors = quire_alloc(&p->allocator, quire_bytes(n, sizeof(float)));
    if (l->vectors) l->n_vectors = n;
    return l->vectors;
}

quire_status quire_profile_create(quire_profile **out, const quire_geometry *geometry,
                                  const quire_allocator *allocator)
{
    quire_geometry model;
    quire_allocator a;
    if (!out) return QUIRE_EINVAL;
    quire_status status = quire_geometry_read(&model, geometry, NULL);
    if (!status) status = quire_allocator_read(&a, allocator);
    if (status) return status;
    uint32_t n_layers = model.n_layers;
    uint64_t floats = 0;
    for (uint32_t i = 0; i < n_layers; i++) {
        quire_layer shape = quire_geometry_layer(&model, i);
        floats += (uint64_t)shape.n_kv_heads * shape.d_k * (QUIRE_MAX_MEANS + 2);
    }
    if (floats > QUIRE_PROFILE_MAX_FLOATS) return QUIRE_EINVAL;

    quire_profile *p = quire_profile_new(n_layers, &a);
    if (!p) return QUIRE_ENOMEM;
    for (uint32_t i = 0; i < n_layers; i++) {
        quire_layer shape = quire_geometry_layer(&model, i);
        quire_profile_layer *l = &p->layers[i];
        l->n_q_heads = shape.n_q_heads;
        l->n_kv_heads = shape.n_kv_heads;
        l->d_k = shape.d_k;
        l->n_means = QUIRE_MAX_MEANS;
        /* The vectors too: finish() then needs no memory. */
        l->sums = quire_alloc(&p->allocator, quire_bytes((size_t)l->n_kv_heads * l->d_k, sizeof *l->sums));
        if (l->d_k > 1)
            l->frequencies = quire_alloc(&p->allocator, quire_bytes(l->d_k / 2, sizeof *l->frequencies));
        if (!l->sums || (l->d_k > 1 && !l->frequencies) || !add_vectors(p, l)) goto fail;
    }
    if (!quire_samples_create(p)) goto fail;
    *out = p;
    return QUIRE_OK;
fail:
    quire_profile_destroy(p);
    return QUIRE_ENOMEM;
}

/* ---------------------------------------------------------------- gathering */

static bool saw_anything(const quire_profile_layer *l)
{
    for (size_t i = 0; i < (size_t)l->n_kv_heads * l->d_k; i++)
        if (l->sums[i].n_k || l->sums[i].n_q) return true;
    return false;
}

quire_status quire_profile_set_length(quire_profile *profile, uint32_t n_tokens)
{
    if (!profile || profile->finished) return QUIRE_EINVAL;
    profile->length = n_tokens;
    return QUIRE_OK;
}

quire_status quire_profile_set_rope(quire_profile *profile, uint32_t layer, const quire_rope *rope)
{
    quire_rope r;
    if (!profile || profile->finished || layer >= profile->n_layers) return QUIRE_EINVAL;
    quire_status status = quire_read_sized(&r, sizeof r, rope);
    if (status) return status;
    quire_profile_layer *l = &profile->layers[layer];
    if (r.n_pairs > l->d_k / 2 || (r.n_pairs && !r.frequencies)) return QUIRE_EINVAL;
    if (saw_anything(l)) return QUIRE_EBUSY;
    for (uint32_t i = 0; i < r.n_pairs; i++) l->frequencies[i] = r.frequencies[i];
    l->n_pairs = r.n_pairs;
    l->interleaved = r.interleaved != 0;
    return QUIRE_OK;
}

static bool can_observe(const quire_profile *p, uint32_t layer, const float *rows, uint32_t n_tokens)
{
    return p && !p->finished && layer < p->n_layers && (rows || !n_tokens);
}

QUIRE_APART static void add_k(const quire_profile *p, quire_profile_layer *l, uint32_t first, const float *k,
                              uint32_t n_tokens)
{
    size_t n = (size_t)l->n_kv_heads * l->d_k;
    for (uint32_t t = 0; t < n_tokens; t++) {
        if ((uint64_t)first + t < FIRST_POSITION) continue;
        for (size_t i = 0; i < n; i++) {
            double x = (double)k[t * n + i];
            if (!isfinite(x)) continue;
            l->sums[i].k += x;
            l->sums[i].kk += x * x;
            l->sums[i].n_k++;
        }
        for (uint32_t h = 0; h < l->n_kv_heads; h++)
            quire_rope_observe(l, l->sums + (size_t)h * l->d_k, k + t * n + (size_t)h * l->d_k, first + t,
                               false);
        quire_sample_add(p, l, first + t, k + t * n);
    }
}

quire_status quire_profile_observe_k(quire_profile *profile, uint32_t layer, uint32_t first, const float *k,
                                     uint32_t n_tokens)
{
    if (!can_observe(profile, layer, k, n_tokens)) return QUIRE_EINVAL;
    uint32_t mode = quire_float_mode_enter();
    add_k(profile, &profile->layers[layer], first, k, n_tokens);
    quire_float_mode_leave(mode);
    return QUIRE_OK;
}

QUIRE_APART static void add_q(quire_profile_layer *l, uint32_t first, const float *q, uint32_t n_tokens)
{
    uint32_t heads_per_kv = l->n_q_heads / l->n_kv_heads;
    for (uint32_t t = 0; t < n_tokens; t++) {
        for (uint32_t h = 0; h < l->n_q_heads; h++, q += l->d_k) {
            quire_channel_sums *sums = l->sums + (size_t)(h / heads_per_kv) * l->d_k;
            for (uint32_t i = 0; i < l->d_k; i++) {
                double x = (double)q[i];
                if (!isfinite(x)) continue;
                sums[i].qq += x * x;
                sums[i].n_q++;
            }
            quire_rope_observe(l, sums, q, first + t, true);
        }
    }
}

quire_status quire_profile_observe_q(quire_profile *profile, uint32_t layer, uint32_t first, const float *q,
                                     uint32_t n_tokens)
{
    if (!can_observe(profile, layer, q, n_tokens)) return QUIRE_EINVAL;
    uint32_t mode = quire_float_mode_enter();
    add_q(&profile->layers[layer], first, q, n_tokens);
    quire_float_mode_leave(mode);
    return QUIRE_OK;
}

/* Errors matter as much as queries are large, and are as large as what is coded spreads. */
static float weight_of(double q_rms, double variance)
{
    double sd = sqrt(variance > 1e-12 ? variance : 1e-12);
    return (float)quire_within(sqrt(q_rms / sd), (double)QUIRE_WEIGHT_MIN, (double)QUIRE_WEIGHT_MAX);
}

/* A channel of which K or Q was not seen is left as it is. */
static void finish_channel(const quire_channel_sums *sums, float *mean, float *weight, float *q_rms)
{
    *mean = 0;
    *weight = 1;
    *q_rms = 1;
    if (!sums->n_k || !sums->n_q) return;
    double m = sums->k / (double)sums->n_k;
    double square = sums->qq / (double)sums->n_q; /* of turned channels rounding can make it negative */
    double rms = quire_within(sqrt((square > 0 ? square : 0) + 1e-12), 0, (double)QUIRE_Q_RMS_MAX);
    *mean = (float)quire_within(m, (double)-QUIRE_F16_MAX, (double)QUIRE_F16_MAX);
    *weight = weight_of(rms, sums->kk / (double)sums->n_k - m * m);
    *q_rms = (float)rms;
}

static bool saw_both(const quire_profile_layer *l)
{
    bool k = false, q = false;
    for (size_t i = 0; i < (size_t)l->n_kv_heads * l->d_k; i++) {
        k |= l->sums[i].n_k > 0;
        q |= l->sums[i].n_q > 0;
    }
    return k && q;
}

/* One mean from the sums, and weights for the spread around it; with these the means, and around them the spread that counts. */
QUIRE_APART static void finish_layer(const quire_profile *p, quire_profile_layer *l)
{
    uint32_t d = l->d_k, n_means = saw_both(l) ? quire_sample_means(p, l) : 0;
    l->n_means = n_means ? n_means : 1;
    for (uint32_t h = 0; h < l->n_kv_heads; h++) {
        quire_channel_sums *sums = l->sums + (size_t)h * d;
        bool moved = quire_rope_spread(l, sums, FIRST_POSITION, p->length);
        float *mean = quire_profile_vectors(l, h), *weight = mean + (size_t)l->n_means * d,
              *q_rms = weight + d;
        for (uint32_t c = 0; c < d; c++) finish_channel(&sums[c], &mean[c], &weight[c], &q_rms[c]);
        const double *variance =
            n_means ? quire_means_find(p, l, h, FIRST_POSITION, moved ? p->length : 0) : NULL;
        for (uint32_t c = 0; variance && c < d; c++)
            if (sums[c].n_q) weight[c] = weight_of((double)q_rms[c], variance[c]);
    }
}

quire_status quire_profile_finish(quire_profile *profile)
{
    if (!profile || profile->finished) return QUIRE_EINVAL;
    bool seen = false;
    for (uint32_t i = 0; i < profile->n_layers && !seen; i++) seen = saw_both(&profile->layers[i]);
    if (!seen) return QUIRE_EINVAL;

    uint32_t mode = quire_float_mode_enter();
    for (uint32_t i = 0; i < profile->n_layers; i++) finish_layer(profile, &profile->layers[i]);
    quire_float_mode_leave(mode);
    drop_sums(profile);
    profile->finished = true;
    profile->digest = quire_profile_compute_digest(profile);
    return QUIRE_OK;
}

/* ------------------------------------------------------------------ reading */

uint64_t quire_profile_digest(const quire_profile *profile)
{
    return profile ? profile->digest : 0;
}

bool quire_profile_fits(const quire_profile *profile, uint32_t layer, uint32_t n_kv_heads, uint32_t d_k)
{
    if (!profile || !profile->finished || layer >= profile->n_layers) return false;
    return profile->layers[layer].n_kv_heads == n_kv_heads && profile->layers[layer].d_k == d_k;
}

uint32_t quire_profile_n_heads(const quire_profile *profile, uint32_t layer)
{
    return profile && layer < profile->n_layers ? profile->layers[layer].n_kv_heads : 0;
}

quire_calibration quire_profile_head(const quire_profile *profile, uint32_t layer, uint32_t head)
{
    if (!profile) return (quire_calibration){0};
    const quire_profile_layer *l = &profile->layers[layer];
    const float *v = quire_profile_vectors(l, head), *weight = v + (size_t)l->n_means * l->d_k;
    return (quire_calibration){.mean = v, .weight = weight, .q_rms = weight + l->d_k, .n_means = l->n_means};
}

quire_profile *quire_profile_hold(const quire_profile *profile)
{
    /* As with a plan, only the count of owners changes. */
    quire_profile *counted = (quire_profile *)(uintptr_t)profile;
    atomic_fetch_add_explicit(&counted->refs, 1, memory_order_relaxed);
    return counted;
}
