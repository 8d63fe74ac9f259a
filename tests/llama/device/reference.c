/* SPDX-License-Identifier: MIT */
/* Attention as it is defined, in double precision, and as the CPU backend computes it. */
#include "cache.h"

#include <math.h>

/* Factor of the mask in query head h, as ggml defines ALiBi. */
static double slope(int h, int heads_q, float max_bias)
{
    if (!(max_bias > 0)) return 1;
    int power = 1;
    while (power * 2 <= heads_q) power *= 2;
    double bias = (double)max_bias;
    return h < power ? exp2(-bias * (h + 1) / power) : exp2(-bias / 2 * (2 * (h - power) + 1) / power);
}

static void attend_row(const shape *s, const attention *a, const float *q, const double *add, const float *k,
                       const float *v, int row_k, int row_v, const float *sink, double *score, double *out)
{
    double top = sink ? (double)*sink : -INFINITY, sum = 0;
    for (int j = 0; j < a->n_kv; j++) {
        score[j] = -INFINITY;
        if (add && isinf(add[j])) continue;
        double dot = 0;
        for (int i = 0; i < s->d_k; i++)
            dot += (double)q[i] * (double)k[(size_t)j * (size_t)row_k + (size_t)i];
        dot *= (double)a->scale;
        if (a->softcap != 0) dot = (double)a->softcap * tanh(dot / (double)a->softcap);
        score[j] = dot + (add ? add[j] : 0);
        if (score[j] > top) top = score[j];
    }
    for (int i = 0; i < s->d_v; i++) out[i] = 0;
    if (isinf(top)) return;
    if (sink) sum = exp((double)*sink - top);
    for (int j = 0; j < a->n_kv; j++) {
        if (isinf(score[j])) continue;
        double p = exp(score[j] - top);
        sum += p;
        for (int i = 0; i < s->d_v; i++) out[i] += p * (double)v[(size_t)j * (size_t)row_v + (size_t)i];
    }
    for (int i = 0; i < s->d_v; i++) out[i] /= sum;
}

void attend_exactly(const shape *s, const attention *a, const values *x, double *out)
{
    int heads_q = s->heads * s->gqa, mask_heads = a->mask_heads ? a->mask_heads : 1;
    double *score = KIT_NEW(double, a->n_kv), *add = KIT_NEW(double, a->n_kv);
    float *mask = KIT_NEW(float, a->n_kv);
    for (int t = 0; t < a->streams; t++) {
        size_t first = (size_t)(a->first_stream + t) * (size_t)x->cells;
        for (int i = 0; i < a->n_q; i++) {
            for (int h = 0; h < heads_q; h++) {
                if (a->mask) {
                    size_t line =
                        ((size_t)t * (size_t)mask_heads + (size_t)(h % mask_heads)) * (size_t)a->n_q +
                        (size_t)i;
                    gg.fp16_to_fp32_row(a->mask + line * (size_t)a->n_kv, mask, a->n_kv);
                    double m = slope(h, heads_q, a->max_bias);
                    for (int j = 0; j < a->n_kv; j++) add[j] = m * (double)mask[j];
                }
                size_t n = ((size_t)t * (size_t)a->n_q + (size_t)i) * (size_t)heads_q + (size_t)h;
                const float *k = x->k + first * (size_t)x->row_k + (size_t)(h / s->gqa * s->d_k);
                /* V inside K has the head stride of K. */
                const float *v =
                    x->v + first * (size_t)x->row_v + (size_t)(h / s->gqa * (s->v_in_k ? s->d_k : s->d_v));
                attend_row(s, a, a->q + n * (size_t)s->d_k, a->mask ? add : NULL, k, v, x->row_k, x->row_v,
                           a->sinks ? a->sinks + h : NULL, score, out + n * (size_t)s->d_v);
            }
        }
    }
    free(score);
    free(add);
    free(mask);
}

int attend_on_cpu(const shape *s, const attention *a, const void *k, const void *v, float *out)
{
    int heads_q = s->heads * s->gqa, status = -1;
    size_t head = (size_t)s->d_k * sizeof(float), token = head * (size_t)heads_q;
    size_t bytes_k = kit_row_bytes(s->k, s->heads * s->d_k), bytes_v = kit_row_bytes(s->v, s->heads * s->d_v);
    size_t cells = (size_t)s->cells, first = (size_t)a->first_stream;
    kit_job job;
    kit_job_begin(&job, kit.cpu_dev, kit.cpu);
    gg_tensor *tk = kit_job_input(&job, s->k, s->heads * s->d_k, s->cells, s->streams, 1);
    gg_tensor *tv = kit_job_input(&job, s->v, s->heads * s->d_v, s->cells, s->streams, 1);
    gg_tensor *tq = kit_job_input(&job, F32, s->d_k, heads_q, a->n_q * a->streams, 1), *mask = NULL,
              *sinks = NULL;
    if (a->mask)
        mask = kit_job_input(&job, F16, a->n_kv, a->n_q, a->mask_heads ? a->mask_heads : 1, a->streams);
    if (a->sinks) sinks = kit_job_input(&job, F32, heads_q, 1, 1, 1);

    gg_tensor *kk =
        gg.view_4d(job.ops, tk, s->d_k, s->heads, a->n_kv, a->streams, kit_row_bytes(s->k, s->d_k), bytes_k,
                   bytes_k * cells, bytes_k * cells * first);
    gg_tensor *vv =
        gg.view_4d(job.ops, tv, s->d_v, s->heads, a->n_kv, a->streams, kit_row_bytes(s->v, s->d_v), bytes_v,
                   bytes_v * cells, bytes_v * cells * first);
    gg_tensor *qq =
        gg.view_4d(job.ops, tq, s->d_k, heads_q, a->n_q, a->streams, head, token, token * (size_t)a->n_q, 0);
    gg_tensor *result =
        gg.flash_attn_ext(job.ops, gg.permute(job.ops, qq, 0, 2, 1, 3), gg.permute(job.ops, kk, 0, 2, 1, 3),
                          gg.permute(job.ops, vv, 0, 2, 1, 3), mask, a->scale, a->max_bias, a->softcap);
    if (sinks) gg.flash_attn_ext_add_sinks(result, sinks);
    kit_job_add(&job, result);
    if (kit_job_ready(&job)) {
        gg.backend_tensor_set(tk, k, 0, gg.nbytes(tk));
        gg.backend_tensor_set(tv, v, 0, gg.nbytes(tv));
        gg.backend_tensor_set(tq, a->q, 0, gg.nbytes(tq));
        if (mask) gg.backend_tensor_set(mask, a->mask, 0, gg.nbytes(mask));
        if (sinks) gg.backend_tensor_set(sinks, a->sinks, 0, gg.nbytes(sinks));
        status = kit_job_run(&job);
        gg.backend_tensor_get(result, out, 0, gg.nbytes(result));
    }
    kit_job_end(&job);
    return status;
}
