/* SPDX-License-Identifier: MIT */
/* attend: the one program every query row goes through, tile after tile. */
#include "attend/attend.h"

#include <assert.h>
#include <math.h>

#define LARGEST_SCORE 1e30f /* keeps differences of scores finite */

size_t quire_state_floats(const quire_checked_job *job, uint32_t n_rows)
{
    return (size_t)n_rows * (2 + (size_t)job->n_v * (1 + (size_t)job->v_stride));
}

quire_state quire_state_at(const quire_checked_job *job, uint32_t n_rows, float *at)
{
    quire_state s = {.max = at, .sum = at + n_rows, .mean = at + 2 * (size_t)n_rows};
    s.acc = s.mean + (size_t)n_rows * job->n_v;
    return s;
}

void quire_state_clear(const quire_block *b, quire_state *s)
{
    memset(s->sum, 0, sizeof(float) * b->n_rows);
    memset(s->mean, 0, sizeof(float) * b->n_rows * b->job->n_v);
    memset(s->acc, 0, sizeof(float) * b->n_rows * b->job->n_v * b->job->v_stride);
    for (uint32_t i = 0; i < b->n_rows; i++) s->max[i] = -INFINITY;
}

static const float *query_of(const quire_block *b, uint32_t i, uint32_t *query, uint32_t *q_head)
{
    const quire_checked_job *job = b->job;
    uint32_t row = b->first_row + i;
    *query = row / job->n_per_kv;
    *q_head = b->head * job->n_per_kv + row % job->n_per_kv;
    return job->job->q + *query * job->q_stride + *q_head * job->q_head_stride;
}

void quire_block_prepare(const quire_block *b, quire_scratch *s)
{
    const quire_checked_job *job = b->job;
    uint32_t d = job->job->d_k, query, q_head;
    for (uint32_t f = 0; f < job->n_k; f++) {
        quire_calibration cal = quire_format_head(job->k[f], b->head);
        for (uint32_t i = 0; i < b->n_rows; i++) {
            const float *q = query_of(b, i, &query, &q_head);
            size_t at = (size_t)f * b->n_rows + i;
            quire_prepare_query(&job->k[f]->coder, &cal, q, s->query + at * d, &s->mean_score[at]);
        }
    }
}

/* Bits of the rows of a tile at positions [from, to). */
static uint64_t rows_between(const quire_tile_ref *tile, int64_t from, int64_t to)
{
    int64_t lo = from - tile->first, hi = to - tile->first;
    if (lo < 0) lo = 0;
    if (hi > tile->n_rows) hi = tile->n_rows;
    if (lo >= hi) return 0;
    uint64_t below_hi = hi == 64 ? ~(uint64_t)0 : ((uint64_t)1 << hi) - 1;
    return below_hi & ~(((uint64_t)1 << lo) - 1);
}

/* Rows that the query at position p sees by position alone. */
static uint64_t rows_in_sight(const quire_attend_job *job, const quire_tile_ref *tile, int64_t p, bool causal)
{
    int64_t end = causal ? p + 1 : INT64_MAX / 2;
    int64_t begin = job->window ? p - job->window + 1 : 0;
    if (!job->ring_tokens) return rows_between(tile, begin, end);
    int64_t ring_begin = p - (job->ring_tokens - job->ring_sinks) + 1;
    uint64_t kept = rows_between(tile, begin, job->ring_sinks < end ? job->ring_sinks : end);
    return kept | rows_between(tile, ring_begin > begin ? ring_begin : begin, end);
}

/* tanh(x) from the same exponential as everything else. */
static float soft_tanh(float x)
{
    float t = quire_exp2(-2.0f * QUIRE_LOG2_E * fabsf(x));
    return copysignf((1.0f - t) / (1.0f + t), x);
}

typedef struct row_terms {
    float scale, softcap, alibi, mask_slope, mean_score;
    int64_t p;
    const quire_mask *mask;
    size_t mask_row;
} row_terms;

/* Final scores of one row in units of log 2; rows that the mask hides leave `visible`. */
static uint64_t finish_scores(const row_terms *r, const quire_tile_ref *tile, uint64_t visible,
                              uint64_t centred, float *score)
{
    for (uint32_t t = 0; t < tile->n_rows; t++) {
        uint64_t bit = (uint64_t)1 << t;
        if (!(visible & bit)) continue;
        float x = (centred & bit ? score[t] + r->mean_score : score[t]) * r->scale;
        if (r->softcap > 0) x = r->softcap * soft_tanh(x / r->softcap);
        int64_t j = (int64_t)tile->first + t;
        if (r->alibi != 0) x += r->alibi * (float)(j - r->p);
        if (r->mask && j >= r->mask->first && j < (int64_t)r->mask->first + r->mask->n_keys) {
            float bias =
                quire_load_value(r->mask->form, r->mask->data, r->mask_row + (size_t)(j - r->mask->first));
            if (!(bias > -INFINITY)) {
                visible &= ~bit;
                continue;
            }
            x += r->mask_slope * bias;
        }
        if (x > LARGEST_SCORE) x = LARGEST_SCORE;
        if (x < -LARGEST_SCORE) x = -LARGEST_SCORE;
        score[t] = x * QUIRE_LOG2_E;
    }
    return visible;
}

/* One tile into the running softmax of one row: weights for mix, max and sum updated, accumulators rescaled. */
static void soften(const quire_block *b, quire_state *s, uint32_t i, uint64_t visible, const float *score,
                   float *weight, uint32_t n_rows)
{
    float top = s->max[i], sum = 0;
    for (uint32_t t = 0; t < n_rows; t++)
        if (visible >> t & 1 && !(score[t] <= top)) top = score[t];
    for (uint32_t t = 0; t < n_rows; t++) {
        if (!(visible >> t & 1)) continue;
        weight[t] = quire_exp2(score[t] - top);
        sum += weight[t];
    }
    if (top != s->max[i] && s->sum[i] != 0) {
        float shrink = quire_exp2(s->max[i] - top);
        size_t n_v = b->job->n_v, stride = b->job->v_stride;
        s->sum[i] *= shrink;
        for (size_t f = 0; f < n_v; f++) s->mean[i * n_v + f] *= shrink;
        for (size_t c = 0; c < n_v * stride; c++) s->acc[i * n_v * stride + c] *= shrink;
    }
    s->max[i] = top;
    s->sum[i] += sum;
}

static uint32_t index_of(const quire_format *const *list, uint32_t n, const quire_format *format)
{
    uint32_t i = 0;
    while (list[i]->fingerprint != format->fingerprint) i++;
    assert(i < n);
    (void)n;
    return i;
}

static const uint8_t *head_tile(const void *first, size_t stride, const quire_format *format, uint32_t head)
{
    return (const uint8_t *)first + head * (stride ? stride : format->tile_bytes);
}

void quire_block_split(const quire_block *b, const quire_attend_options *o, const quire_split *split,
                       quire_scratch *s, quire_state *part)
{
    const quire_checked_job *checked = b->job;
    const quire_attend_job *job = checked->job;
    const quire_kernels *kernels = quire_kernels_get();
    bool causal = !(o->flags & QUIRE_ATTEND_BIDIRECTIONAL);
    uint32_t d_k = job->d_k;
    quire_state_clear(b, part);
    for (uint32_t at = split->begin; at < split->end; at++) {
        const quire_tile_ref *tile = &job->tiles[at];
        uint64_t any = 0, centred;
        for (uint32_t i = 0; i < b->n_rows; i++) {
            int64_t p = (int64_t)job->first_query + (b->first_row + i) / checked->n_per_kv;
            any |= s->visible[i] = rows_in_sight(job, tile, p, causal);
        }
        if (!any) continue;
        uint32_t kf = index_of(checked->k, checked->n_k, tile->k_format);
        const uint8_t *k_tile = head_tile(tile->k, tile->k_head_stride, tile->k_format, b->head);
        kernels->score(tile->k_format, k_tile, tile->n_rows, s->query + (size_t)kf * b->n_rows * d_k, d_k,
                       b->n_rows, s->scores, &centred, s->tile);
        any = 0;
        for (uint32_t i = 0; i < b->n_rows; i++) {
            if (!s->visible[i]) continue;
            uint32_t query, h;
            query_of(b, i, &query, &h);
            row_terms r = {
                .scale = checked->scale,
                .softcap = o->softcap,
                .alibi = o->alibi ? o->alibi[h] : 0,
                .mask_slope = o->mask_slopes ? o->mask_slopes[h] : 1,
                .mean_score = s->mean_score[(size_t)kf * b->n_rows + i],
                .p = (int64_t)job->first_query + query,
                .mask = job->mask,
                .mask_row = job->mask ? query * job->mask->query_stride + h * job->mask->head_stride : 0,
            };
            float *score = s->scores + (size_t)i * QUIRE_TILE_ROWS;
            any |= s->visible[i] = finish_scores(&r, tile, s->visible[i], centred, score);
            if (s->visible[i])
                soften(b, part, i, s->visible[i], score, s->weights + (size_t)i * QUIRE_TILE_ROWS,
                       tile->n_rows);
        }
        if (!any) continue;
        const quire_format *v_format = tile->v ? tile->v_format : tile->k_format;
        const uint8_t *v_tile = tile->v ? head_tile(tile->v, tile->v_head_stride, v_format, b->head) : k_tile;
        uint32_t vf = index_of(checked->v, checked->n_v, v_format);
        for (uint32_t i = 0; i < b->n_rows; i++) s->mean_sums[i] = 0;
        kernels->mix(v_format, v_tile, tile->n_rows, job->d_v, s->weights, s->visible, b->n_rows,
                     part->acc + (size_t)vf * checked->v_stride, (size_t)checked->n_v * checked->v_stride,
                     s->mean_sums, s->tile);
        for (uint32_t i = 0; i < b->n_rows; i++) part->mean[i * checked->n_v + vf] += s->mean_sums[i];
    }
}

void quire_state_fold(const quire_block *b, quire_state *total, const quire_state *part)
{
    size_t n_v = b->job->n_v, n_acc = n_v * b->job->v_stride;
    for (uint32_t i = 0; i < b->n_rows; i++) {
        if (part->sum[i] == 0) continue;
        float top = total->max[i] > part->max[i] ? total->max[i] : part->max[i];
        float a = total->sum[i] == 0 ? 0 : quire_exp2(total->max[i] - top),
              c = quire_exp2(part->max[i] - top);
        total->max[i] = top;
        total->sum[i] = total->sum[i] * a + part->sum[i] * c;
        for (size_t f = i * n_v; f < (i + 1) * n_v; f++)
            total->mean[f] = total->mean[f] * a + part->mean[f] * c;
        for (size_t x = i * n_acc; x < (i + 1) * n_acc; x++)
            total->acc[x] = total->acc[x] * a + part->acc[x] * c;
    }
}

void quire_block_finish(const quire_block *b, const quire_attend_options *o, const quire_state *total,
                        quire_scratch *s)
{
    const quire_checked_job *job = b->job;
    uint32_t d_v = job->job->d_v;
    for (uint32_t i = 0; i < b->n_rows; i++) {
        uint32_t query, q_head;
        query_of(b, i, &query, &q_head);
        float *out = job->job->out + query * job->out_stride + q_head * job->out_head_stride;
        bool empty = total->sum[i] == 0;
        memset(out, 0, sizeof(float) * d_v);
        for (uint32_t f = 0; f < job->n_v && !empty; f++) {
            float sink = o->sink_logits ? o->sink_logits[q_head] * QUIRE_LOG2_E : -INFINITY;
            bool partial = o->flags & QUIRE_ATTEND_PARTIAL;
            float factor = partial ? 1.0f : quire_final_factor(total->max[i], total->sum[i], sink);
            const float *acc = total->acc + ((size_t)i * job->n_v + f) * job->v_stride;
            const quire_coder *coder = &job->v[f]->coder;
            for (uint32_t c = 0; c < coder->d; c++) s->row[c] = acc[c] * factor;
            quire_calibration cal = quire_format_head(job->v[f], b->head);
            quire_finish_value(coder, &cal, s->row, total->mean[(size_t)i * job->n_v + f] * factor);
            for (uint32_t c = 0; c < d_v; c++) out[c] += s->row[c];
        }
        size_t at = (size_t)query * job->job->n_q_heads + q_head;
        if (job->job->max) job->job->max[at] = empty ? -INFINITY : total->max[i] * QUIRE_LN_2;
        if (job->job->sum) job->job->sum[at] = total->sum[i];
    }
}
