/* SPDX-License-Identifier: MIT */
/* attend: the one program every query row goes through, tile after tile. */
#include "attend/attend.h"

#include <assert.h>
#include <math.h>

#define LANES 16u

static size_t whole_lanes(size_t n)
{
    return (n + LANES - 1) / LANES * LANES;
}

static size_t acc_stride(const quire_checked_job *job)
{
    return (size_t)job->n_v * job->v_stride;
}

size_t quire_state_floats(const quire_checked_job *job, uint32_t n_rows)
{
    return 2 * whole_lanes(n_rows) + (size_t)n_rows * (LANES + acc_stride(job));
}

quire_state quire_state_at(const quire_checked_job *job, uint32_t n_rows, float *at)
{
    (void)job;
    quire_state s = {.max = at, .sum = at + whole_lanes(n_rows)};
    s.lanes = s.sum + whole_lanes(n_rows);
    s.acc = s.lanes + (size_t)n_rows * LANES;
    return s;
}

void quire_state_clear(const quire_block *b, quire_state *s)
{
    memset(s->sum, 0, sizeof(float) * b->n_rows);
    memset(s->lanes, 0, sizeof(float) * b->n_rows * (LANES + acc_stride(b->job)));
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
        const quire_format *format = job->k[f];
        quire_calibration cal = quire_format_head(format, b->head);
        quire_queries *q = &s->queries[f];
        q->n = b->n_rows;
        q->d = d;
        q->z_stride = quire_z_stride(d);
        q->n_parts = quire_n_parts(&format->coder);
        q->copies = 1;
        for (uint32_t i = 0; i < b->n_rows; i++) {
            const float *x = query_of(b, i, &query, &q_head);
            quire_prepare_query(&format->coder, &cal, x, q->row + (size_t)i * d,
                                q->mean_score + (size_t)i * QUIRE_MEAN_SLOTS);
        }
        job->kernels->load_queries(format, q);
        /* An error of r / 256, evenly spread over (-1/2, 1/2) in each of d channels, times values of this size. */
        float worst = 0.29f * sqrtf((float)d) * fabsf(job->scale);
        for (uint32_t i = 0; i < b->n_rows; i++) {
            s->log_unit[(size_t)f * b->n_rows + i] = q->unit[i] * job->scale * QUIRE_LOG2_E;
            q->skip_r_below[i] = QUIRE_SKIP_R_ERROR / (worst * q->unit[i]);
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

/* What is added to the scores of one query row besides their scale. */
typedef struct row_terms {
    float unit, scale, softcap, alibi, mask_slope;
    int64_t p;
    const quire_mask *mask;
    size_t mask_row;
} row_terms;

/* Final scores of one row in units of log 2. */
static void finish_scores(const row_terms *r, const quire_tile_ref *tile, uint64_t visible, float *score)
{
    for (uint32_t t = 0; t < tile->n_rows; t++) {
        if (!(visible >> t & 1)) continue;
        float x = score[t] * r->unit * r->scale;
        if (r->softcap > 0) x = r->softcap * soft_tanh(x / r->softcap);
        int64_t j = (int64_t)tile->first + t;
        if (r->alibi != 0) x += r->alibi * (float)(j - r->p);
        if (r->mask && j >= r->mask->first && j < (int64_t)r->mask->first + r->mask->n_keys)
            x += r->mask_slope *
                 quire_load_value(r->mask->form, r->mask->data, r->mask_row + (size_t)(j - r->mask->first));
        if (x > QUIRE_LARGEST_SCORE) x = QUIRE_LARGEST_SCORE;
        if (x < -QUIRE_LARGEST_SCORE) x = -QUIRE_LARGEST_SCORE;
        score[t] = x * QUIRE_LOG2_E;
    }
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

static const quire_format *v_format_of(const quire_tile_ref *tile)
{
    return tile->v ? tile->v_format : tile->k_format;
}

/* One tile of a block on its way through the kernels. */
typedef struct visit {
    const quire_block *block;
    const quire_attend_options *options;
    const quire_tile_ref *tile, *next; /* NULL: none */
    quire_scratch *s;
    uint8_t *k_memory, *v_memory; /* for expanded tiles; the same if one strip is all */
    uint64_t *visible;            /* [rows] */
    quire_source k, v;
    uint32_t k_index, v_index;
    quire_score_fn *score;
    quire_mix_fn *mix;                        /* NULL: V is not open yet */
    uint64_t adds[QUIRE_MAX_QUERY_ROWS / 64]; /* bit i: the mask adds something to scores of row i */
    bool plain; /* scores need their scale, perhaps the mask, and nothing else */
    bool weighs_means;
    bool is_integer; /* the codes of K */
} visit;

/* Rows that each query sees by position; false: none sees any. */
static bool look(const visit *v)
{
    uint64_t *visible = v->visible;
    const quire_checked_job *checked = v->block->job;
    const quire_attend_job *job = checked->job;
    bool causal = !(v->options->flags & QUIRE_ATTEND_BIDIRECTIONAL);
    uint32_t first = v->block->first_row, n = v->block->n_rows, per_kv = checked->n_per_kv;
    int64_t p = (int64_t)job->first_query + first / per_kv;
    if (v->tile->n_rows == QUIRE_TILE_ROWS && !job->window && !job->ring_tokens &&
        (!causal || (int64_t)v->tile->first + QUIRE_TILE_ROWS <= p + 1)) {
        for (uint32_t i = 0; i < n; i++) visible[i] = ~(uint64_t)0;
        return true;
    }
    uint64_t any = 0;
    for (uint32_t i = 0; i < n; p++) {
        uint64_t seen = rows_in_sight(job, v->tile, p, causal);
        uint32_t end = (first + i) / per_kv * per_kv + per_kv - first; /* of this query's rows */
        for (; i < end && i < n; i++) visible[i] = seen;
        any |= seen;
    }
    return any;
}

static bool mask_touches(const quire_mask *m, const quire_tile_ref *tile)
{
    return m && m->n_keys && m->first < (uint64_t)tile->first + tile->n_rows &&
           (uint64_t)m->first + m->n_keys > tile->first;
}

/* What the mask says of the four keys whose values are one word: all 0, all hidden, or neither. */
typedef enum mask_word { WORD_ZERO, WORD_HIDDEN, WORD_MIXED } mask_word;

static mask_word read_four(quire_form form, const void *data, size_t at)
{
    uint64_t x[2] = {0, 0}, hidden;
    const uint8_t *p = (const uint8_t *)data;
    if (form == QUIRE_F32) {
        memcpy(x, p + at * 4, sizeof x);
        hidden = 0xff800000ff800000u;
        return x[0] == hidden && x[1] == hidden ? WORD_HIDDEN : x[0] | x[1] ? WORD_MIXED : WORD_ZERO;
    }
    memcpy(x, p + at * 2, sizeof *x);
    hidden = form == QUIRE_F16 ? 0xfc00fc00fc00fc00u : 0xff80ff80ff80ff80u;
    return x[0] == hidden ? WORD_HIDDEN : x[0] ? WORD_MIXED : WORD_ZERO;
}

/* Takes the rows that one row of a mask hides out of `seen`; true: it adds something to the score of another one. */
static bool apply_mask(const quire_mask *m, size_t mask_row, const quire_tile_ref *tile, uint64_t *seen)
{
    int64_t from = (int64_t)m->first - tile->first, to = from + m->n_keys;
    if (to > tile->n_rows) to = tile->n_rows;
    size_t row = mask_row - (size_t)from; /* of the tile's first row, which may lie before it */
    bool adds = false;
    for (int64_t t = from > 0 ? from : 0; t < to;) {
        mask_word four = t + 4 <= to ? read_four(m->form, m->data, row + (size_t)t) : WORD_MIXED;
        if (four != WORD_MIXED) {
            if (four == WORD_HIDDEN) *seen &= ~((uint64_t)15 << t);
            t += 4;
            continue;
        }
        float bias = quire_load_value(m->form, m->data, row + (size_t)t);
        if (!(bias > -INFINITY))
            *seen &= ~((uint64_t)1 << t);
        else if (bias != 0)
            adds = true;
        t++;
    }
    return adds;
}

/* The same for all query rows; false: none sees any row of the tile. */
static bool look_through_mask(visit *v)
{
    const quire_block *b = v->block;
    const quire_mask *m = b->job->job->mask;
    uint64_t any = 0, last_before = 0, last_after = 0, adds = 0;
    size_t last = SIZE_MAX;
    for (uint32_t i = 0; i < b->n_rows; i++) {
        uint32_t query, h;
        query_of(b, i, &query, &h);
        size_t row = query * m->query_stride + h * m->head_stride;
        if (row != last || v->visible[i] != last_before) { /* heads often share a row */
            last = row;
            last_before = last_after = v->visible[i];
            adds = apply_mask(m, row, v->tile, &last_after);
        }
        v->visible[i] = last_after;
        v->adds[i / 64] |= adds << i % 64;
        any |= last_after;
    }
    return any;
}

/* The kernels' view of a tile's K and of the next one, and the expanded form if enough rows share it. */
static void open_keys(visit *v)
{
    const quire_tile_ref *next = v->next;
    const quire_block *b = v->block;
    const quire_kernels *kernels = b->job->kernels;
    const quire_tile_ref *tile = v->tile;
    const quire_format *format = tile->k_format;
    quire_family family = quire_family_of(format->coder.codec);
    v->k_index = index_of(b->job->k, b->job->n_k, format);
    v->score = kernels->score[family];
    v->is_integer = !quire_family_is_float(family);
    v->k = (quire_source){.format = format, .tile = head_tile(tile->k, tile->k_head_stride, format, b->head)};
    if (next && next->k_format->tile_bytes == format->tile_bytes)
        v->k.next = head_tile(next->k, next->k_head_stride, format, b->head);
    if (!quire_must_expand(kernels, format, b->n_rows)) return;
    kernels->expand[family](&v->k, v->k_memory);
    v->k.expanded = v->k_memory;
}

/* The same for V, which may be a part of K. */
static void open_values(visit *v)
{
    const quire_tile_ref *next = v->next;
    const quire_block *b = v->block;
    const quire_kernels *kernels = b->job->kernels;
    const quire_tile_ref *tile = v->tile;
    const quire_format *format = v_format_of(tile);
    quire_family family = quire_family_of(format->coder.codec);
    v->v_index = index_of(b->job->v, b->job->n_v, format);
    v->mix = kernels->mix[family];
    if (!tile->v) {
        v->v = (quire_source){.format = format, .tile = v->k.tile};
        if (kernels->transpose_k_to_v[family]) {
            kernels->transpose_k_to_v[family](&v->v, v->v_memory);
            v->v.expanded = v->v_memory;
        }
        return;
    }
    v->v = (quire_source){.format = format, .tile = head_tile(tile->v, tile->v_head_stride, format, b->head)};
    if (next && next->v && next->v_format->tile_bytes == format->tile_bytes)
        v->v.next = head_tile(next->v, next->v_head_stride, format, b->head);
    if (!quire_must_expand(kernels, format, b->n_rows)) return;
    kernels->expand[family](&v->v, v->v_memory);
    v->v.expanded = v->v_memory;
}

/* Some rows of a block on a tile. */
typedef struct strip {
    uint32_t first, n; /* query rows of the block */
    uint64_t *visible;
    float *scores; /* later weights */
    float unit[QUIRE_STRIP_ROWS], factor[QUIRE_STRIP_ROWS];
} strip;

/* Soft cap, slopes and masks of a strip's rows that have any; unit[i] becomes 1. */
static void add_terms(const visit *v, strip *st)
{
    const quire_attend_options *o = v->options;
    const quire_checked_job *checked = v->block->job;
    const quire_mask *mask = checked->job->mask;
    for (uint32_t i = 0; i < st->n; i++) {
        uint32_t query, h, row = st->first + i;
        if (v->plain && !(v->adds[row / 64] >> row % 64 & 1)) continue;
        query_of(v->block, row, &query, &h);
        row_terms r = {
            .unit = v->s->queries[v->k_index].unit[row],
            .scale = checked->scale,
            .softcap = o->softcap,
            .alibi = o->alibi ? o->alibi[h] : 0,
            .mask_slope = o->mask_slopes ? o->mask_slopes[h] : 1,
            .p = (int64_t)checked->job->first_query + query,
            .mask = mask,
            .mask_row = mask ? query * mask->query_stride + h * mask->head_stride : 0,
        };
        finish_scores(&r, v->tile, st->visible[i], st->scores + (size_t)i * QUIRE_TILE_ROWS);
        st->unit[i] = 1;
    }
}

/* V in K: the weights of the rows by the mean that was taken out of them. */
static void weigh_means(const visit *v, const strip *st, float *acc)
{
    const quire_format *f = v->k.format;
    const quire_checked_job *job = v->block->job;
    for (uint32_t t = 0; t < QUIRE_TILE_ROWS; t++) {
        uint32_t mean = quire_load16(v->k.tile + f->code_bytes + t * 2) & QUIRE_MEAN_BITS;
        for (uint32_t i = 0; mean && i < st->n; i++)
            if (st->visible[i] >> t & 1)
                acc[i * acc_stride(job) + job->v_stride - QUIRE_MEAN_SLOTS + mean] +=
                    st->factor[i] * st->scores[i * QUIRE_TILE_ROWS + t];
    }
}

/* Scores of a strip; false: none of its rows sees the tile. */
static bool score_strip(const visit *v, strip *st)
{
    const quire_scratch *s = v->s;
    uint64_t any = 0;
    uint32_t partial = 0;
    for (uint32_t i = 0; i < st->n; i++) {
        any |= st->visible[i];
        if (st->visible[i] != ~(uint64_t)0) partial |= 1u << i;
    }
    if (!any) return false;
    v->score(&v->k, &s->queries[v->k_index], st->first, st->n, partial, st->scores, s->kernel);
    memcpy(st->unit, s->log_unit + (size_t)v->k_index * v->block->n_rows + st->first,
           st->n * sizeof *st->unit);
    add_terms(v, st);
    return true;
}

static void soften_strip(const visit *v, strip *st, quire_state *part)
{
    const quire_checked_job *job = v->block->job;
    quire_softmax softmax = {.max = part->max + st->first,
                             .sum = part->lanes + (size_t)st->first * LANES,
                             .acc = part->acc + st->first * acc_stride(job),
                             .stride = acc_stride(job),
                             .integer_products = v->is_integer};
    job->kernels->softmax_update(st->scores, st->visible, st->unit, st->n, &softmax, st->factor);
}

static void mix_strip(visit *v, const strip *st, quire_state *part)
{
    const quire_checked_job *job = v->block->job;
    if (!v->mix) open_values(v);
    float *acc = part->acc + st->first * acc_stride(job) + (size_t)v->v_index * job->v_stride;
    v->mix(&v->v, job->job->d_v, st->scores, st->visible, st->factor, st->n, acc, acc_stride(job),
           v->s->kernel);
    if (v->weighs_means) weigh_means(v, st, acc);
}

/*
 * All rows of a block on some tiles. The scores of a strip and a tile are made before the values of the one before: where
 * tiles of the processor do the products, they are idle for less time.
 */
static void run_strips(visit *visits, uint32_t n_visits, quire_state *part)
{
    uint32_t n_rows = visits->block->n_rows, k = 0;
    strip two[2], *held = NULL;
    visit *held_by = NULL;
    for (uint32_t first = 0; first < n_rows; first += QUIRE_STRIP_ROWS) {
        for (uint32_t t = 0; t < n_visits; t++, k ^= 1) {
            visit *v = &visits[t];
            strip *st = &two[k];
            st->first = first;
            st->n = n_rows - first < QUIRE_STRIP_ROWS ? n_rows - first : QUIRE_STRIP_ROWS;
            st->visible = v->visible + first;
            st->scores = v->s->scores + (size_t)k * QUIRE_STRIP_ROWS * QUIRE_TILE_ROWS;
            bool seen = score_strip(v, st);
            if (held) mix_strip(held_by, held, part);
            held = seen ? st : NULL;
            held_by = v;
            if (held) soften_strip(v, held, part);
        }
    }
    if (held) mix_strip(held_by, held, part);
}

/* The lanes of a finished split become sums and values. */
static void settle_state(const quire_block *b, quire_state *part)
{
    const quire_checked_job *job = b->job;
    for (uint32_t i = 0; i < b->n_rows; i++) {
        float *lane = part->lanes + (size_t)i * LANES;
        for (uint32_t half = LANES / 2; half; half /= 2)
            for (uint32_t l = 0; l < half; l++) lane[l] += lane[l + half];
        part->sum[i] = lane[0];
        for (uint32_t f = 0; f < job->n_v; f++)
            job->kernels->add_bias_sums(job->v[f], part->acc + ((size_t)i * job->n_v + f) * job->v_stride);
    }
}

/* Whether any row of the block sees the tile; if so it is ready for run_strips(). */
static bool open_tile(visit *v, uint32_t at, uint32_t place)
{
    const quire_checked_job *checked = v->block->job;
    const quire_attend_job *job = checked->job;
    quire_scratch *s = v->s;
    v->tile = &job->tiles[at];
    v->visible = s->visible + (size_t)place * v->block->n_rows;
    if (!look(v)) return false;
    v->next = at + 1 < job->n_tiles ? &job->tiles[at + 1] : NULL;
    v->k_memory = s->k + place * s->expanded_bytes;
    v->v_memory = v->block->n_rows > QUIRE_STRIP_ROWS ? s->v + place * s->expanded_bytes : v->k_memory;
    if (mask_touches(job->mask, v->tile) && !look_through_mask(v)) return false;
    v->plain = v->options->softcap == 0 && !v->options->alibi && checked->scale > 0;
    v->weighs_means = !v->tile->v && v->tile->k_format->profile;
    open_keys(v);
    if (v->k_memory != v->v_memory) open_values(v);
    return true;
}

void quire_block_split(const quire_block *b, const quire_attend_options *o, const quire_split *split,
                       quire_scratch *s, quire_state *part)
{
    quire_state_clear(b, part);
    uint32_t at = split->begin, at_once = b->n_rows > QUIRE_STRIP_ROWS ? s->n_tiles : 1;
    while (at < split->end) {
        visit visits[QUIRE_TILES_AT_ONCE];
        uint32_t n = 0;
        for (; at < split->end && n < at_once; at++) {
            visits[n] = (visit){.block = b, .options = o, .s = s};
            bool seen = open_tile(&visits[n], at, n);
            s->stats.tiles_read += seen;
            s->stats.tiles_skipped += !seen;
            n += seen;
        }
        if (n) run_strips(visits, n, part);
    }
    settle_state(b, part);
}

void quire_state_fold(const quire_block *b, quire_state *total, const quire_state *part)
{
    size_t n_acc = acc_stride(b->job);
    for (uint32_t i = 0; i < b->n_rows; i++) {
        if (part->sum[i] == 0) continue;
        float top = total->max[i] > part->max[i] ? total->max[i] : part->max[i];
        float a = total->sum[i] == 0 ? 0 : quire_exp2(total->max[i] - top),
              c = quire_exp2(part->max[i] - top);
        total->max[i] = top;
        total->sum[i] = total->sum[i] * a + part->sum[i] * c;
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
            float mean_sum[QUIRE_MEAN_SLOTS];
            for (uint32_t c = 0; c < coder->d; c++) s->row[c] = acc[c] * factor;
            for (uint32_t m = 0; m < QUIRE_MEAN_SLOTS; m++)
                mean_sum[m] = acc[job->v_stride - QUIRE_MEAN_SLOTS + m] * factor;
            quire_calibration cal = quire_format_head(job->v[f], b->head);
            quire_finish_value(coder, &cal, s->row, mean_sum);
            for (uint32_t c = 0; c < d_v; c++) out[c] += s->row[c];
        }
        size_t at = (size_t)query * job->job->n_q_heads + q_head;
        if (job->job->max) job->job->max[at] = empty ? -INFINITY : total->max[i] * QUIRE_LN_2;
        if (job->job->sum) job->job->sum[at] = total->sum[i];
    }
}
