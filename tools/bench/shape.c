/* SPDX-License-Identifier: MIT */
/* bench: rows, queries, formats and profiles of a shape. */
#include "bench/bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COLD_BYTES ((size_t)1 << 30)
#define PROFILE_TOKENS 512u

const char *bench_op_name(bench_op op)
{
    static const char *const names[BENCH_N_OPS] = {"decode", "prefill", "append"};
    return names[op];
}

uint32_t bench_n_tiles(uint32_t length)
{
    return (length + QUIRE_PAGE_TOKENS - 1) / QUIRE_PAGE_TOKENS;
}

uint32_t bench_n_layers(const bench_shape *s, size_t layer_bytes)
{
    return s->cold ? (uint32_t)((COLD_BYTES + layer_bytes - 1) / layer_bytes) : 1;
}

bool bench_is_calibrated(const bench_shape *s)
{
    const quire_codec_info *info = quire_codec_find(s->codecs.k);
    return info && info->flags & QUIRE_CODEC_CALIBRATED;
}

/* Mean and deviation of a channel; the squares of the deviations have the mean 1. Other codecs get equal channels, so
 * that their errors can be compared with those of earlier measurements. */
static void channel_of(const bench_shape *s, uint32_t head, uint32_t channel, float *mean, float *deviation)
{
    uint64_t state = s->seed ^ ((uint64_t)head << 32 | channel) * 0x9e3779b97f4a7c15u;
    float x[2];
    bench_gauss(&state, x, 2);
    *mean = 0.7f * x[0];
    *deviation = expf(0.3f * x[1] - 0.09f); /* E exp(2 * 0.3 x) = exp(0.18) */
}

void bench_fill_rows(const bench_shape *s, quire_side side, uint32_t head, uint64_t salt, float *rows,
                     uint32_t n)
{
    uint32_t d = side == QUIRE_K ? s->d : s->d_v;
    uint64_t state = s->seed * 0x2545f4914f6cdd1du ^ salt << 20 ^ (uint64_t)head << 1 ^ (uint64_t)side;
    bench_gauss(&state, rows, (size_t)n * d);
    if (side != QUIRE_K || !bench_is_calibrated(s)) return;
    for (uint32_t c = 0; c < d; c++) {
        float mean, deviation;
        channel_of(s, head, c, &mean, &deviation);
        for (uint32_t t = 0; t < n; t++) rows[(size_t)t * d + c] = mean + deviation * rows[(size_t)t * d + c];
    }
}

/* Elements of K have the variance 1, so a score q.k / sqrt(d) has the deviation of q's elements. */
float *bench_make_queries(const bench_shape *s)
{
    size_t n = (size_t)s->n_seqs * s->n_queries * s->n_q_heads * s->d;
    float *q = (float *)malloc(n * sizeof *q);
    if (!q) return NULL;
    uint64_t state = s->seed + 0x51ed2701;
    bench_gauss(&state, q, n);
    for (size_t i = 0; i < n; i++) q[i] *= (float)s->spread;
    return q;
}

quire_profile *bench_profile(const bench_shape *s)
{
    quire_geometry g = {sizeof(quire_geometry),      .n_layers = 1, .n_q_heads = s->n_q_heads,
                        .n_kv_heads = s->n_kv_heads, .d_k = s->d,   .d_v = s->d_v,
                        .v_in_k = s->v_in_k};
    quire_profile *profile = NULL;
    float *head = (float *)malloc(sizeof(float) * PROFILE_TOKENS * s->d);
    float *k = (float *)malloc(sizeof(float) * PROFILE_TOKENS * s->n_kv_heads * s->d);
    float *q = (float *)malloc(sizeof(float) * s->n_q_heads * s->d);
    if (!head || !k || !q || quire_profile_create(&profile, &g, NULL)) goto fail;
    for (uint32_t h = 0; h < s->n_kv_heads; h++) {
        bench_fill_rows(s, QUIRE_K, h, 0x7777, head, PROFILE_TOKENS);
        for (uint32_t t = 0; t < PROFILE_TOKENS; t++)
            memcpy(k + ((size_t)t * s->n_kv_heads + h) * s->d, head + (size_t)t * s->d, sizeof(float) * s->d);
    }
    if (quire_profile_observe_k(profile, 0, 4, k, PROFILE_TOKENS)) goto fail;
    uint64_t state = s->seed + 99;
    for (uint32_t t = 0; t < PROFILE_TOKENS; t++) {
        bench_gauss(&state, q, (size_t)s->n_q_heads * s->d);
        if (quire_profile_observe_q(profile, 0, 0, q, 1)) goto fail;
    }
    if (quire_profile_finish(profile)) goto fail;
    goto done;
fail:
    quire_profile_destroy(profile);
    profile = NULL;
done:
    free(head);
    free(k);
    free(q);
    return profile;
}

bool bench_formats(const bench_shape *s, quire_tile_format **k, quire_tile_format **v, char *message,
                   size_t size)
{
    quire_profile *profile = NULL;
    const char *name = s->codecs.k;
    quire_status status = QUIRE_ENOMEM;
    *k = *v = NULL;
    if (bench_is_calibrated(s) && !(profile = bench_profile(s))) goto fail;
    status = quire_tile_format_create(
        k, s->codecs.k,
        &(quire_tile_format_options){sizeof(quire_tile_format_options), .side = QUIRE_K, .d = s->d,
                                     .d_v = s->v_in_k ? s->d_v : 0, .profile = profile});
    if (status) goto fail;
    if (!s->v_in_k) {
        name = s->codecs.v;
        status = quire_tile_format_create(
            v, name,
            &(quire_tile_format_options){sizeof(quire_tile_format_options), .side = QUIRE_V, .d = s->d_v});
        if (status) goto fail;
    }
    quire_profile_destroy(profile);
    return true;
fail:
    snprintf(message, size, "%s with head size %u: %s", name, name == s->codecs.k ? s->d : s->d_v,
             quire_status_text(status));
    quire_tile_format_destroy(*k);
    quire_profile_destroy(profile);
    *k = NULL;
    return false;
}

bench_case *bench_case_begin(const bench_impl *impl, size_t self_bytes, const bench_shape *s,
                             bench_team *team, char *message, size_t size)
{
    bench_case *c = (bench_case *)calloc(1, sizeof *c);
    void *self = calloc(1, self_bytes);
    snprintf(message, size, "out of memory");
    if (!c || !self) {
        free(c);
        free(self);
        return NULL;
    }
    *c = (bench_case){.impl = impl, .self = self, .team = team, .shape = *s};
    return c;
}

void bench_case_destroy(bench_case *c)
{
    if (!c) return;
    if (c->self) c->impl->destroy(c);
    bench_reference_destroy(c->reference);
    free(c->q);
    free(c);
}
