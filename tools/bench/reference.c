/* SPDX-License-Identifier: MIT */
/* bench: some output rows again, in double arithmetic over the decoded rows. */
#include "bench/bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LANES 8u
#define NO_NUMBER 1e30 /* the error of an output that is not a number; JSON has no word for it */
#define MAX_HEADS 2u   /* KV heads looked at in a sequence: first and last */
#define MAX_GROUP 4u   /* query heads of each */
#define MAX_QUERIES 3u /* first, middle, last */
#define MAX_SEQS 2u    /* first and last */
#define MAX_SAMPLES (MAX_SEQS * MAX_HEADS * MAX_GROUP * MAX_QUERIES)

/* An output row, and the state of its softmax while it is computed. */
typedef struct sample {
    uint32_t seq, query, head;
    double top, sum;
    double *out; /* d_v */
} sample;

struct bench_reference {
    sample samples[MAX_SAMPLES];
    uint32_t n;
    double *memory;
};

/* The i-th of n numbers spread over [0, count). */
static uint32_t spread_over(uint32_t i, uint32_t n, uint32_t count)
{
    return n > 1 ? (uint32_t)((uint64_t)i * (count - 1) / (n - 1)) : 0;
}

static uint32_t at_most(uint32_t n, uint32_t limit)
{
    return n < limit ? n : limit;
}

static double dot(const float *a, const float *b, uint32_t n)
{
    double lane[LANES] = {0}, sum = 0;
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (uint32_t j = 0; j < LANES; j++) lane[j] += (double)a[i + j] * (double)b[i + j];
    for (; i < n; i++) sum += (double)a[i] * (double)b[i];
    for (uint32_t j = 0; j < LANES; j++) sum += lane[j];
    return sum;
}

static void add_row(sample *s, double score, const float *v, uint32_t d_v)
{
    if (score > s->top) {
        double factor = exp(s->top - score); /* 0 at first: top is -inf */
        for (uint32_t c = 0; c < d_v; c++) s->out[c] *= factor;
        s->sum *= factor;
        s->top = score;
    }
    double weight = exp(score - s->top);
    s->sum += weight;
    for (uint32_t c = 0; c < d_v; c++) s->out[c] += weight * (double)v[c];
}

static void add_tile(const bench_case *c, sample *s, uint32_t tile, const float *k, const float *v)
{
    const bench_shape *p = &c->shape;
    size_t row = ((size_t)s->seq * p->n_queries + s->query) * p->n_q_heads + s->head;
    const float *q = c->q + row * p->d;
    uint32_t last =
        p->lengths[s->seq] - p->n_queries + s->query; /* the position of the query, which it sees */
    for (uint32_t t = 0; t < QUIRE_PAGE_TOKENS && tile * QUIRE_PAGE_TOKENS + t <= last; t++)
        add_row(s, dot(q, k + (size_t)t * p->d, p->d) / sqrt(p->d), v + (size_t)t * p->d_v, p->d_v);
}

/* The samples of one sequence and KV head, first to n - 1. */
static bool compute(bench_case *c, sample *first, uint32_t n, uint32_t kv_head, float *k, float *v)
{
    uint32_t n_tiles = bench_n_tiles(c->shape.lengths[first->seq]);
    for (uint32_t tile = 0; tile < n_tiles; tile++) {
        if (!c->impl->fetch(c, first->seq, kv_head, tile, k, v)) return false;
        for (uint32_t i = 0; i < n; i++) add_tile(c, &first[i], tile, k, v);
    }
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t x = 0; x < c->shape.d_v; x++) first[i].out[x] /= first[i].sum;
    return true;
}

static bench_reference *create(bench_case *c)
{
    const bench_shape *p = &c->shape;
    uint32_t group = p->n_q_heads / p->n_kv_heads;
    uint32_t n_seqs = at_most(p->n_seqs, MAX_SEQS), n_heads = at_most(p->n_kv_heads, MAX_HEADS);
    uint32_t n_group = at_most(group, MAX_GROUP), n_queries = at_most(p->n_queries, MAX_QUERIES);
    bench_reference *r = (bench_reference *)calloc(1, sizeof *r);
    float *k = (float *)malloc(sizeof(float) * QUIRE_PAGE_TOKENS * (p->d + p->d_v));
    if (!r || !k) goto fail;
    r->memory = (double *)calloc((size_t)MAX_SAMPLES * p->d_v, sizeof *r->memory);
    if (!r->memory) goto fail;
    for (uint32_t s = 0; s < n_seqs; s++) {
        for (uint32_t h = 0; h < n_heads; h++) {
            uint32_t first = r->n, kv_head = spread_over(h, n_heads, p->n_kv_heads);
            for (uint32_t i = 0; i < n_group * n_queries; i++, r->n++)
                r->samples[r->n] =
                    (sample){.seq = spread_over(s, n_seqs, p->n_seqs),
                             .query = spread_over(i / n_group, n_queries, p->n_queries),
                             .head = kv_head * group + spread_over(i % n_group, n_group, group),
                             .top = -(double)INFINITY,
                             .out = r->memory + (size_t)r->n * p->d_v};
            if (!compute(c, &r->samples[first], r->n - first, kv_head, k, k + QUIRE_PAGE_TOKENS * p->d))
                goto fail;
        }
    }
    free(k);
    return r;
fail:
    free(k);
    bench_reference_destroy(r);
    return NULL;
}

static double worst_error(const bench_reference *r, bench_case *c)
{
    const bench_shape *p = &c->shape;
    double worst = 0;
    for (uint32_t i = 0; i < r->n; i++) {
        const sample *s = &r->samples[i];
        const float *out = c->impl->output(c, s->seq) + ((size_t)s->query * p->n_q_heads + s->head) * p->d_v;
        double difference = 0, norm = 0;
        for (uint32_t x = 0; x < p->d_v; x++) {
            double e = (double)out[x] - s->out[x];
            difference += e * e;
            norm += s->out[x] * s->out[x];
        }
        double error = sqrt(difference / norm);
        if (isnan(error)) return NO_NUMBER;
        if (error > worst) worst = error;
    }
    return worst;
}

bool bench_check_attention(bench_case *c, double *err)
{
    if (!c->reference) c->reference = create(c);
    if (!c->reference) return false;
    *err = worst_error(c->reference, c);
    return true;
}

void bench_reference_destroy(bench_reference *r)
{
    if (!r) return;
    free(r->memory);
    free(r);
}
