/* SPDX-License-Identifier: MIT */
/* See reference.h. Written to be read: nothing here is fast, and nothing is taken from the library. */
#include "reference.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------ random numbers */

uint64_t ref_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

uint32_t ref_below(uint64_t *state, uint32_t n)
{
    return (uint32_t)((ref_random(state) >> 32) * n >> 32);
}

double ref_uniform(uint64_t *state)
{
    return (double)(ref_random(state) >> 11) * 0x1p-53;
}

float ref_normal(uint64_t *state)
{
    double u = 1 - ref_uniform(state), v = ref_uniform(state);
    return (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
}

void ref_normals(uint64_t *state, float *x, size_t n, float size)
{
    for (size_t i = 0; i < n; i++) x[i] = size * ref_normal(state);
}

/* The same for every call with the same head and channel. */
static float channel_mean(uint32_t head, uint32_t c)
{
    uint64_t state = ((uint64_t)head << 32 | c) * 77 + 5;
    return 1.5f * ref_normal(&state);
}

static bool is_outlier(uint32_t head, uint32_t c)
{
    return (c + 5 * head) % 16 == 3;
}

void ref_k_rows(uint64_t *state, float *k, uint32_t n, uint32_t heads, uint32_t d)
{
    for (uint32_t t = 0; t < n; t++) {
        float mean = ref_below(state, 13) == 0 ? 0 : 1;
        for (uint32_t h = 0; h < heads; h++)
            for (uint32_t c = 0; c < d; c++)
                *k++ = (ref_normal(state) + mean * channel_mean(h, c)) * (is_outlier(h, c) ? 6.0f : 1.0f);
    }
}

void ref_q_rows(uint64_t *state, float *q, uint32_t n, uint32_t heads, uint32_t d)
{
    for (size_t t = 0; t < (size_t)n * heads; t++)
        for (uint32_t c = 0; c < d; c++) *q++ = ref_normal(state) * (is_outlier(0, c) ? 0.2f : 1.0f);
}

quire_profile *ref_profile(const quire_geometry *geometry)
{
    enum { TOKENS = 200 };
    quire_profile *profile = NULL;
    REF_OK(quire_profile_create(&profile, geometry, NULL));
    uint64_t state = 4711;
    for (uint32_t i = 0; i < geometry->n_layers; i++) {
        quire_layer shape = {
            .n_q_heads = geometry->n_q_heads, .n_kv_heads = geometry->n_kv_heads, .d_k = geometry->d_k};
        if (geometry->layers) shape = geometry->layers[i];
        float *k = ref_alloc((size_t)TOKENS * shape.n_kv_heads * shape.d_k, sizeof *k);
        float *q = ref_alloc((size_t)TOKENS * shape.n_q_heads * shape.d_k, sizeof *q);
        ref_k_rows(&state, k, TOKENS, shape.n_kv_heads, shape.d_k);
        ref_q_rows(&state, q, TOKENS, shape.n_q_heads, shape.d_k);
        REF_OK(quire_profile_observe_k(profile, i, 4, k, TOKENS));
        REF_OK(quire_profile_observe_q(profile, i, 0, q, TOKENS));
        free(k);
        free(q);
    }
    REF_OK(quire_profile_finish(profile));
    return profile;
}

/* ---------------------------------------------------------------- attention */

static double f16_value(uint16_t h)
{
    double sign = h >> 15 ? -1 : 1;
    int exponent = h >> 10 & 31, fraction = h & 1023;
    if (exponent == 31) return fraction ? NAN : sign * INFINITY;
    return sign * (exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24));
}

static double mask_value(const quire_mask *mask, size_t byte, size_t i)
{
    const uint8_t *row = (const uint8_t *)mask->data + byte;
    if (mask->form == QUIRE_F32) return (double)((const float *)(const void *)row)[i];
    uint16_t h = ((const uint16_t *)(const void *)row)[i];
    if (mask->form == QUIRE_F16) return f16_value(h);
    uint32_t u = (uint32_t)h << 16;
    float x;
    memcpy(&x, &u, sizeof x);
    return (double)x;
}

/* Whether the query at p sees the key at j by position. */
static bool in_sight(const ref_job *job, int64_t p, int64_t j)
{
    bool both_ways = job->options && job->options->flags & QUIRE_ATTEND_BIDIRECTIONAL;
    if (j > p && !both_ways) return false;
    if (job->window && j <= p - (int64_t)job->window) return false;
    if (!job->ring_tokens || j < (int64_t)job->ring_sinks) return true;
    return j > p - ((int64_t)job->ring_tokens - (int64_t)job->ring_sinks);
}

/* The final score, -inf if the key is not seen. */
static double score_of(const ref_job *job, uint32_t query, uint32_t head, uint32_t j)
{
    const quire_attend_options *o = job->options;
    int64_t p = (int64_t)job->first_query + query;
    if (!in_sight(job, p, j)) return -INFINITY;
    uint32_t kv = head / (job->n_q_heads / job->n_kv_heads);
    const float *q = job->q + ((size_t)query * job->n_q_heads + head) * job->d_k;
    const float *k = job->k + ((size_t)j * job->n_kv_heads + kv) * job->d_k;
    double s = 0, scale = o && o->scale != 0 ? (double)o->scale : 1 / sqrt(job->d_k);
    for (uint32_t c = 0; c < job->d_k; c++) s += (double)q[c] * (double)k[c];
    s *= scale;
    if (o && o->softcap > 0) s = (double)o->softcap * tanh(s / (double)o->softcap);
    if (o && o->alibi) s += (double)o->alibi[head] * (double)((int64_t)j - p);
    const quire_mask *m = job->mask;
    if (!m || j < m->first || j - m->first >= m->n_keys) return s;
    double bias = mask_value(m, query * m->query_stride + head * m->head_stride, j - m->first);
    if (!(bias > -INFINITY)) return -INFINITY;
    return s + bias * (o && o->mask_slopes ? (double)o->mask_slopes[head] : 1);
}

/* Row of one query and head; score has room for n_keys. */
static double attend_row(const ref_job *job, uint32_t query, uint32_t head, double *score, double *out)
{
    const float *v = job->v ? job->v : job->k;
    size_t v_row = job->v ? job->d_v : job->d_k, kv = head / (job->n_q_heads / job->n_kv_heads);
    double top = -INFINITY, sum = 0, sink = -INFINITY;
    memset(out, 0, sizeof *out * job->d_v);
    for (uint32_t j = 0; j < job->n_keys; j++) {
        score[j] = score_of(job, query, head, j);
        if (score[j] > top) top = score[j];
    }
    if (top == -INFINITY) return -INFINITY;
    if (job->options && job->options->sink_logits) sink = (double)job->options->sink_logits[head];
    for (uint32_t j = 0; j < job->n_keys; j++) {
        if (score[j] == -INFINITY) continue;
        double weight = exp(score[j] - top);
        const float *row = v + ((size_t)j * job->n_kv_heads + kv) * v_row;
        sum += weight;
        for (uint32_t c = 0; c < job->d_v; c++) out[c] += weight * (double)row[c];
    }
    /* 1 / (sum + exp(sink - top)), whichever of the two is larger. */
    double factor = sink > top ? exp(top - sink) / (sum * exp(top - sink) + 1) : 1 / (sum + exp(sink - top));
    for (uint32_t c = 0; c < job->d_v; c++) out[c] *= factor;
    return top + log(sum);
}

void ref_attend(const ref_job *job, double *out, double *lse)
{
    double *score = ref_alloc(job->n_keys, sizeof *score);
    for (uint32_t i = 0; i < job->n_queries; i++)
        for (uint32_t h = 0; h < job->n_q_heads; h++) {
            size_t at = (size_t)i * job->n_q_heads + h;
            double l = attend_row(job, i, h, score, out + at * job->d_v);
            if (lse) lse[at] = l;
        }
    free(score);
}

double ref_row_error(const float *out, const double *expected, uint32_t d)
{
    double difference = 0, norm = 0;
    for (uint32_t c = 0; c < d; c++) {
        double e = (double)out[c] - expected[c];
        difference += e * e;
        norm += expected[c] * expected[c];
    }
    double error = sqrt(difference) / fmax(sqrt(norm), REF_FLOOR);
    return isfinite(error) ? error : INFINITY;
}

double ref_worst_error(const float *out, const double *expected, size_t n, uint32_t d, size_t *row)
{
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        double error = ref_row_error(out + i * d, expected + i * d, d);
        if (error <= worst) continue;
        worst = error;
        if (row) *row = i;
    }
    return worst;
}

/* ------------------------------------------------------------------- caches */

ref_cache ref_open(const quire_geometry *geometry, const char *policy, const quire_profile *profile,
                   const quire_executor *executor)
{
    ref_cache cache = {0};
    char message[256] = "";
    quire_plan_options plan_options = {.size = sizeof(quire_plan_options),
                                       .profile = profile,
                                       .message = message,
                                       .message_size = sizeof message};
    if (quire_plan_create(&cache.plan, geometry, policy, &plan_options))
        fail_msg("policy %s: %s", policy, message);
    quire_pool_options pool_options = {
        .size = sizeof(quire_pool_options), .budget_bytes = (size_t)1 << 28, .executor = executor};
    REF_OK(quire_pool_create(&cache.pool, cache.plan, &pool_options));
    return cache;
}

void ref_close(ref_cache *cache)
{
    quire_pool_destroy(cache->pool);
    quire_plan_destroy(cache->plan);
    *cache = (ref_cache){0};
}

quire_seq *ref_seq(const ref_cache *cache, const quire_seq_options *ring)
{
    quire_seq *seq = NULL;
    REF_OK(quire_seq_create(&seq, cache->pool, ring));
    return seq;
}

void ref_step(const ref_cache *cache, quire_seq *const *seqs, const uint32_t *n_tokens, uint32_t n_seqs,
              const float *k, const float *v, const float *q, float *out)
{
    quire_step *step = NULL;
    REF_OK(quire_step_begin(&step, cache->pool, seqs, n_tokens, n_seqs));
    REF_OK(quire_step_append(step, 0, k, v));
    if (q) REF_OK(quire_step_attend(step, 0, q, out));
    REF_OK(quire_step_commit(step));
}

void ref_export(const quire_seq *seq, uint32_t layer, quire_side side, uint32_t first, uint32_t n, float *to)
{
    quire_rows_out rows = {.size = sizeof(quire_rows_out), .form = QUIRE_F32, .data = to};
    REF_OK(quire_seq_export(seq, layer, side, first, n, &rows));
}

void *ref_alloc(size_t n, size_t size)
{
    void *memory = calloc(n ? n : 1, size);
    if (!memory) fail_msg("no memory for %zu x %zu bytes", n, size);
    return memory;
}

static void run_backwards(void *ctx, void (*task)(void *arg, uint32_t index), void *arg, uint32_t n_tasks)
{
    (void)ctx;
    while (n_tasks--) task(arg, n_tasks);
}

quire_executor ref_backwards(uint32_t n_threads)
{
    return (quire_executor){.size = sizeof(quire_executor), .run = run_backwards, .n_threads = n_threads};
}
