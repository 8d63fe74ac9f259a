/* SPDX-License-Identifier: MIT */
/* attend: partial results: of a split inside of a call, and of whole calls. */
#include "attend/attend.h"

#include "core/float_mode.h"

#include <math.h>

/* ---------------------------------------------------------- inside a call */

static size_t whole_lanes(size_t n)
{
    return (n + QUIRE_SUM_LANES - 1) / QUIRE_SUM_LANES * QUIRE_SUM_LANES;
}

size_t quire_state_floats(const quire_job *job, uint32_t n_rows)
{
    return 2 * whole_lanes(n_rows) + (size_t)n_rows * (QUIRE_SUM_LANES + quire_acc_stride(job));
}

quire_state quire_state_at(const quire_job *job, uint32_t n_rows, float *at)
{
    (void)job;
    quire_state s = {.max = at, .sum = at + whole_lanes(n_rows)};
    s.lanes = s.sum + whole_lanes(n_rows);
    s.acc = s.lanes + (size_t)n_rows * QUIRE_SUM_LANES;
    return s;
}

void quire_state_clear(const quire_block *b, quire_state *s)
{
    memset(s->sum, 0, sizeof(float) * b->n_rows);
    memset(s->lanes, 0, sizeof(float) * b->n_rows * (QUIRE_SUM_LANES + quire_acc_stride(b->job)));
    for (uint32_t i = 0; i < b->n_rows; i++) s->max[i] = -INFINITY;
}

/* A score that is NaN reaches every value, whether or not the partial result is folded with others. */
static void fill_with_nan(const quire_job *job, quire_state *s, uint32_t i)
{
    size_t n = quire_acc_stride(job);
    s->sum[i] = NAN;
    for (size_t x = i * n; x < (i + 1) * n; x++) s->acc[x] = NAN;
}

void quire_state_add_lanes(const quire_block *b, quire_state *partial)
{
    const quire_job *job = b->job;
    for (uint32_t i = 0; i < b->n_rows; i++) {
        float *lane = partial->lanes + (size_t)i * QUIRE_SUM_LANES;
        for (uint32_t half = QUIRE_SUM_LANES / 2; half; half /= 2)
            for (uint32_t l = 0; l < half; l++) lane[l] += lane[l + half];
        partial->sum[i] = lane[0];
        for (uint32_t f = 0; f < job->n_v; f++) {
            if (!job->v[f]->coder.codec->has_bias) continue;
            job->kernels->add_bias_sums(job->v[f], partial->acc + ((size_t)i * job->n_v + f) * job->v_stride);
        }
        if (partial->max[i] != partial->max[i]) fill_with_nan(job, partial, i);
    }
}

void quire_state_fold(const quire_block *b, uint32_t from, uint32_t to, quire_state *total,
                      const quire_state *partial)
{
    size_t n_acc = quire_acc_stride(b->job);
    for (uint32_t i = from; i < to; i++) {
        if (partial->sum[i] == 0) continue;
        float top = total->max[i] > partial->max[i] ? total->max[i] : partial->max[i];
        float a = total->sum[i] == 0 ? 0 : quire_exp2(total->max[i] - top),
              c = quire_exp2(partial->max[i] - top);
        total->max[i] = top;
        total->sum[i] = total->sum[i] * a + partial->sum[i] * c;
        float *acc = total->acc + i * n_acc;
        const float *more = partial->acc + i * n_acc;
        for (size_t x = 0; x < n_acc; x++) acc[x] = acc[x] * a + more[x] * c;
    }
}

void quire_state_copy(const quire_block *b, uint32_t from, uint32_t to, quire_state *copy,
                      const quire_state *state)
{
    size_t n_acc = quire_acc_stride(b->job), n = to - from;
    memcpy(copy->max + from, state->max + from, sizeof(float) * n);
    memcpy(copy->sum + from, state->sum + from, sizeof(float) * n);
    memcpy(copy->acc + from * n_acc, state->acc + from * n_acc, sizeof(float) * n * n_acc);
}

/* One row of floats to the caller's form. */
static void store_out(quire_form form, const float *row, uint8_t *out, uint32_t d)
{
    for (uint32_t c = 0; c < d; c++) quire_store_value(form, out, c, row[c]);
}

/* Values of one format: the accumulators times a factor, rotations and calibration undone. row has room for all channels of it. */
static void finish_format(const quire_block *b, uint32_t f, const float *acc, float factor, float *row)
{
    const quire_tile_format *format = b->job->v[f];
    const quire_coder *coder = &format->coder;
    float mean_sum[QUIRE_MEAN_SLOTS];
    for (uint32_t c = 0; c < coder->d; c++) row[c] = acc[c] * factor;
    for (uint32_t m = 0; format->profile && m < QUIRE_MEAN_SLOTS; m++)
        mean_sum[m] = acc[b->job->v_stride - QUIRE_MEAN_SLOTS + m] * factor;
    quire_calibration cal = quire_tile_format_head(format, b->head);
    quire_finish_value(coder, &cal, row, mean_sum);
}

/* Sums of the values of all formats, beginning with 0: there is no -0 among them. */
static void finish_row(const quire_block *b, const float *acc, float factor, float *out, float *scratch)
{
    const quire_job *job = b->job;
    uint32_t d_v = job->spec.d_v;
    if (job->n_v == 1 && job->v[0]->coder.d == d_v) {
        if (!job->v[0]->profile && job->v[0]->coder.codec->rotation == QUIRE_ROTATION_NONE) {
            for (uint32_t c = 0; c < d_v; c++) out[c] = acc[c] * factor + 0.0f;
            return;
        }
        finish_format(b, 0, acc, factor, out);
        for (uint32_t c = 0; c < d_v; c++) out[c] += 0.0f;
        return;
    }
    memset(out, 0, sizeof(float) * d_v);
    for (uint32_t f = 0; f < job->n_v; f++) {
        finish_format(b, f, acc + (size_t)f * job->v_stride, factor, scratch);
        for (uint32_t c = 0; c < d_v; c++) out[c] += scratch[c];
    }
}

void quire_block_finish(const quire_block *b, const quire_attend_options *o, uint32_t from, uint32_t to,
                        const quire_state *total, quire_scratch *s)
{
    const quire_job *job = b->job;
    const quire_attend_job *spec = &job->spec;
    bool is_f32 = spec->out_form == QUIRE_F32;
    for (uint32_t i = from; i < to; i++) {
        uint32_t query, q_head;
        quire_query_of(b, i, &query, &q_head);
        uint8_t *at = (uint8_t *)spec->out + query * spec->out_token_stride + q_head * spec->out_head_stride;
        float *out = is_f32 ? (float *)(void *)at : s->sum_row;
        bool empty = total->sum[i] == 0;
        if (empty) {
            memset(out, 0, sizeof(float) * spec->d_v);
        } else {
            float sink = o->sink_logits ? o->sink_logits[q_head] * QUIRE_LOG2_E : -INFINITY;
            bool partial = o->flags & QUIRE_ATTEND_PARTIAL;
            float factor = partial ? 1.0f : quire_final_factor(total->max[i], total->sum[i], sink);
            finish_row(b, total->acc + i * quire_acc_stride(job), factor, out, s->row);
        }
        if (!is_f32) store_out(spec->out_form, out, at, spec->d_v);
        size_t row = (size_t)query * spec->n_q_heads + q_head;
        if (spec->max) spec->max[row] = empty ? -INFINITY : total->max[i] * QUIRE_LN_2;
        if (spec->sum) spec->sum[row] = total->sum[i];
    }
}

/* ------------------------------------------------------------ between calls */

QUIRE_APART static void merge(float *acc, float *max, float *sum, const float *acc2, const float *max2,
                              const float *sum2, uint32_t n_rows, uint32_t d_v)
{
    for (uint32_t i = 0; i < n_rows; i++) {
        if (sum2[i] == 0) continue;
        float top = sum[i] == 0 || max2[i] > max[i] ? max2[i] : max[i];
        float a = sum[i] == 0 ? 0 : quire_exp2((max[i] - top) * QUIRE_LOG2_E);
        float b = quire_exp2((max2[i] - top) * QUIRE_LOG2_E);
        max[i] = top;
        sum[i] = sum[i] * a + sum2[i] * b;
        for (size_t c = (size_t)i * d_v; c < (size_t)(i + 1) * d_v; c++) acc[c] = acc[c] * a + acc2[c] * b;
    }
}

void quire_attend_merge(float *acc, float *max, float *sum, const float *acc2, const float *max2,
                        const float *sum2, uint32_t n_rows, uint32_t d_v)
{
    uint32_t mode = quire_float_mode_enter();
    merge(acc, max, sum, acc2, max2, sum2, n_rows, d_v);
    quire_float_mode_leave(mode);
}

QUIRE_APART static void finish(float *acc, const float *max, const float *sum, uint32_t n_rows, uint32_t d_v,
                               const float *sink_logits, uint32_t n_heads)
{
    for (uint32_t i = 0; i < n_rows; i++) {
        float sink = sink_logits && n_heads ? sink_logits[i % n_heads] * QUIRE_LOG2_E : -INFINITY;
        float factor = sum[i] == 0 ? 0 : quire_final_factor(max[i] * QUIRE_LOG2_E, sum[i], sink);
        for (size_t c = (size_t)i * d_v; c < (size_t)(i + 1) * d_v; c++)
            acc[c] = sum[i] == 0 ? 0 : acc[c] * factor;
    }
}

void quire_attend_finish(float *acc, const float *max, const float *sum, uint32_t n_rows, uint32_t d_v,
                         const float *sink_logits, uint32_t n_heads)
{
    uint32_t mode = quire_float_mode_enter();
    finish(acc, max, sum, n_rows, d_v, sink_logits, n_heads);
    quire_float_mode_leave(mode);
}
