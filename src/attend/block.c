/* SPDX-License-Identifier: MIT */
/* attend: a block of query rows over the tiles of a split: scores, softmax, values. */
#include "attend/attend.h"

#include <math.h>

/* The query of row i as floats; other forms are converted into `row`. */
static const float *query_values(const quire_block *b, uint32_t i, float *row)
{
    const quire_attend_job *spec = &b->job->spec;
    uint32_t query, q_head;
    const uint8_t *q = quire_query_of(b, i, &query, &q_head);
    if (spec->q_form == QUIRE_F32) return (const float *)(const void *)q;
    for (uint32_t c = 0; c < spec->d_k; c++) row[c] = quire_load_value(spec->q_form, q, c);
    return row;
}

void quire_block_prepare(const quire_block *b, quire_scratch *s)
{
    const quire_job *job = b->job;
    uint32_t d = job->spec.d_k;
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
            quire_prepare_query(&format->coder, &cal, query_values(b, i, s->row), q->row + (size_t)i * d,
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
    const quire_mask *mask; /* n_keys 0: none */
    const uint8_t *mask_row;
} row_terms;

/* Final scores of one row in units of log 2. */
static void finish_scores(const row_terms *r, const quire_list_tile *tile, uint64_t visible, float *score)
{
    for (uint32_t t = 0; t < tile->n_rows; t++) {
        if (!(visible >> t & 1)) continue;
        float x = score[t] * r->unit * r->scale;
        if (r->softcap > 0) x = r->softcap * soft_tanh(x / r->softcap);
        int64_t j = (int64_t)tile->first + t;
        if (r->alibi != 0) x += r->alibi * (float)(j - r->p);
        if (j >= r->mask->first && j < (int64_t)r->mask->first + r->mask->n_keys)
            x += r->mask_slope * quire_load_value(r->mask->form, r->mask_row, (size_t)(j - r->mask->first));
        if (x > QUIRE_LARGEST_SCORE) x = QUIRE_LARGEST_SCORE;
        if (x < -QUIRE_LARGEST_SCORE) x = -QUIRE_LARGEST_SCORE;
        score[t] = x * QUIRE_LOG2_E;
    }
}

/* One tile of a block on its way through the kernels. */
typedef struct tile_pass {
    const quire_block *block;
    const quire_attend_options *options;
    const quire_list_tile *tile, *next; /* next NULL: none */
    const quire_job_layout *layout;
    quire_scratch *s;
    uint8_t *k_memory, *v_memory; /* for expanded tiles; the same if one strip is all */
    uint64_t *visible;            /* [rows] */
    quire_source k, v;
    quire_score_fn *score;
    quire_mix_fn *mix;                             /* NULL: V is not open yet */
    uint64_t mask_adds[QUIRE_MAX_QUERY_ROWS / 64]; /* bit i: the mask adds something to scores of row i */
    bool scale_only;                               /* besides the mask, scores need nothing but their scale */
    bool weighs_means;
    bool is_integer; /* the codes of K */
} tile_pass;

static const uint8_t *k_tile(const quire_list_layer *l, const quire_list_tile *tile, uint32_t head)
{
    return (const uint8_t *)(l->k + tile->k + head * l->k_head_stride);
}

static const uint8_t *v_tile(const quire_list_layer *l, const quire_list_tile *tile, uint32_t head)
{
    return (const uint8_t *)(l->v + tile->v + head * l->v_head_stride);
}

/* The layer of the next tile, if it will be read and its tiles are as large. */
static const quire_list_layer *next_layer(const tile_pass *p)
{
    return p->next ? p->block->job->layout[p->next->layout].layer : NULL;
}

/* The kernels' view of a tile's K and of the next one, and the expanded form if enough rows share it. */
static void open_keys(tile_pass *p)
{
    const quire_block *b = p->block;
    const quire_kernels *kernels = b->job->kernels;
    const quire_list_layer *layer = p->layout->layer, *next = next_layer(p);
    const quire_format *format = layer->k_format;
    quire_family family = quire_family_of(format->coder.codec);
    p->score = kernels->score[family];
    p->is_integer = !quire_family_is_float(family);
    p->k = (quire_source){.format = format, .tile = k_tile(layer, p->tile, b->head)};
    if (next && next->k_format->tile_bytes == format->tile_bytes) p->k.next = k_tile(next, p->next, b->head);
    if (!quire_must_expand(kernels, format, b->n_rows)) return;
    kernels->expand[family](&p->k, p->k_memory);
    p->k.expanded = p->k_memory;
}

/* The same for V, which may be a part of K. */
static void open_values(tile_pass *p)
{
    const quire_block *b = p->block;
    const quire_kernels *kernels = b->job->kernels;
    const quire_list_layer *layer = p->layout->layer, *next = next_layer(p);
    const quire_format *format = quire_list_value_format(layer);
    quire_family family = quire_family_of(format->coder.codec);
    p->mix = kernels->mix[family];
    if (!layer->v_format) {
        p->v = (quire_source){.format = format, .tile = p->k.tile};
        if (kernels->transpose_k_to_v[family]) {
            kernels->transpose_k_to_v[family](&p->v, p->v_memory);
            p->v.expanded = p->v_memory;
        }
        return;
    }
    p->v = (quire_source){.format = format, .tile = v_tile(layer, p->tile, b->head)};
    if (next && next->v_format && next->v_format->tile_bytes == format->tile_bytes)
        p->v.next = v_tile(next, p->next, b->head);
    if (!quire_must_expand(kernels, format, b->n_rows)) return;
    kernels->expand[family](&p->v, p->v_memory);
    p->v.expanded = p->v_memory;
}

/* Some rows of a block on a tile. */
typedef struct strip {
    uint32_t first, n; /* query rows of the block */
    uint64_t *visible;
    float *scores; /* later weights */
    float unit[QUIRE_STRIP_ROWS], factor[QUIRE_STRIP_ROWS];
} strip;

/* Soft cap, slopes and masks of a strip's rows that have any; unit[i] becomes 1. */
static void add_terms(const tile_pass *p, strip *st)
{
    const quire_attend_options *o = p->options;
    const quire_job *job = p->block->job;
    const quire_mask *mask = &job->mask;
    for (uint32_t i = 0; i < st->n; i++) {
        uint32_t query, h, row = st->first + i;
        if (p->scale_only && !(p->mask_adds[row / 64] >> row % 64 & 1)) continue;
        quire_query_of(p->block, row, &query, &h);
        row_terms r = {
            .unit = p->s->queries[p->layout->k_index].unit[row],
            .scale = job->scale,
            .softcap = o->softcap,
            .alibi = o->alibi ? o->alibi[h] : 0,
            .mask_slope = o->mask_slopes ? o->mask_slopes[h] : 1,
            .p = (int64_t)job->spec.first_query + query,
            .mask = mask,
            .mask_row = (const uint8_t *)mask->data + query * mask->query_stride + h * mask->head_stride,
        };
        finish_scores(&r, p->tile, st->visible[i], st->scores + (size_t)i * QUIRE_TILE_ROWS);
        st->unit[i] = 1;
    }
}

/* V in K: the weights of the rows by the mean that was taken out of them. */
static void weigh_means(const tile_pass *p, const strip *st, float *acc)
{
    const quire_format *f = p->k.format;
    const quire_job *job = p->block->job;
    for (uint32_t t = 0; t < QUIRE_TILE_ROWS; t++) {
        uint32_t mean = quire_load16(p->k.tile + f->code_bytes + t * 2) & QUIRE_MEAN_BITS;
        for (uint32_t i = 0; mean && i < st->n; i++)
            if (st->visible[i] >> t & 1)
                acc[i * quire_acc_stride(job) + job->v_stride - QUIRE_MEAN_SLOTS + mean] +=
                    st->factor[i] * st->scores[i * QUIRE_TILE_ROWS + t];
    }
}

/* Scores of a strip; false: none of its rows sees the tile. */
static bool score_strip(const tile_pass *p, strip *st)
{
    const quire_scratch *s = p->s;
    uint64_t any = 0;
    uint32_t incomplete = 0; /* rows that do not see the whole tile */
    for (uint32_t i = 0; i < st->n; i++) {
        any |= st->visible[i];
        if (st->visible[i] != ~(uint64_t)0) incomplete |= 1u << i;
    }
    if (!any) return false;
    p->score(&p->k, &s->queries[p->layout->k_index], st->first, st->n, incomplete, st->scores, s->kernel);
    memcpy(st->unit, s->log_unit + (size_t)p->layout->k_index * p->block->n_rows + st->first,
           st->n * sizeof *st->unit);
    add_terms(p, st);
    return true;
}

static void softmax_strip(const tile_pass *p, strip *st, quire_state *partial)
{
    const quire_job *job = p->block->job;
    quire_softmax softmax = {.max = partial->max + st->first,
                             .sum = partial->lanes + (size_t)st->first * QUIRE_SUM_LANES,
                             .acc = partial->acc + st->first * quire_acc_stride(job),
                             .stride = quire_acc_stride(job),
                             .integer_products = p->is_integer};
    job->kernels->softmax_update(st->scores, st->visible, st->unit, st->n, &softmax, st->factor);
}

static void mix_strip(tile_pass *p, const strip *st, quire_state *partial)
{
    const quire_job *job = p->block->job;
    if (!p->mix) open_values(p);
    float *acc =
        partial->acc + st->first * quire_acc_stride(job) + (size_t)p->layout->v_index * job->v_stride;
    p->mix(&p->v, job->spec.d_v, st->scores, st->visible, st->factor, st->n, acc, quire_acc_stride(job),
           p->s->kernel);
    if (p->weighs_means) weigh_means(p, st, acc);
}

/*
 * All rows of a block on some tiles. The scores of a strip and a tile are made before the values of the one before: where
 * tiles of the processor do the products, they are idle for less time.
 */
static void run_strips(tile_pass *passes, uint32_t n_passes, quire_state *partial)
{
    uint32_t n_rows = passes->block->n_rows, k = 0;
    strip two[2], *held = NULL;
    tile_pass *held_by = NULL;
    for (uint32_t first = 0; first < n_rows; first += QUIRE_STRIP_ROWS) {
        for (uint32_t t = 0; t < n_passes; t++, k ^= 1) {
            tile_pass *p = &passes[t];
            strip *st = &two[k];
            st->first = first;
            st->n = n_rows - first < QUIRE_STRIP_ROWS ? n_rows - first : QUIRE_STRIP_ROWS;
            st->visible = p->visible + first;
            st->scores = p->s->scores + (size_t)k * QUIRE_STRIP_ROWS * QUIRE_TILE_ROWS;
            bool seen = score_strip(p, st);
            if (held) mix_strip(held_by, held, partial);
            held = seen ? st : NULL;
            held_by = p;
            if (held) softmax_strip(p, held, partial);
        }
    }
    if (held) mix_strip(held_by, held, partial);
}

/* Whether any row of the block sees the tile; if so it is ready for run_strips(). */
static bool start_pass(tile_pass *p, uint32_t at, uint32_t place)
{
    const quire_job *job = p->block->job;
    quire_scratch *s = p->s;
    p->tile = &job->tile[at];
    p->visible = s->visible + (size_t)place * p->block->n_rows;
    if (!quire_visibility(p->block, p->options->flags, p->tile, p->visible, p->mask_adds)) return false;
    p->next = at + 1 < job->n_tiles ? &job->tile[at + 1] : NULL;
    p->layout = &job->layout[p->tile->layout];
    p->k_memory = s->k + place * s->expanded_bytes;
    p->v_memory = p->block->n_rows > QUIRE_STRIP_ROWS ? s->v + place * s->expanded_bytes : p->k_memory;
    p->scale_only = p->options->softcap == 0 && !p->options->alibi && job->scale > 0;
    p->weighs_means = !p->layout->layer->v_format && p->layout->layer->k_format->profile;
    open_keys(p);
    if (p->k_memory != p->v_memory) open_values(p);
    return true;
}

void quire_block_split(const quire_block *b, const quire_attend_options *o, const quire_split *split,
                       quire_scratch *s, quire_state *partial)
{
    quire_state_clear(b, partial);
    uint32_t at = split->begin, at_once = b->n_rows > QUIRE_STRIP_ROWS ? s->n_tiles : 1;
    while (at < split->end) {
        tile_pass passes[QUIRE_TILES_AT_ONCE];
        uint32_t n = 0;
        for (; at < split->end && n < at_once; at++) {
            passes[n] = (tile_pass){.block = b, .options = o, .s = s};
            bool seen = start_pass(&passes[n], at, n);
            s->stats.tiles_read += seen;
            s->stats.tiles_skipped += !seen;
            n += seen;
        }
        if (n) run_strips(passes, n, partial);
    }
    quire_state_add_lanes(b, partial);
}
