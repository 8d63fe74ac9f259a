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
        const quire_tile_format *format = job->k[f];
        quire_calibration cal = quire_tile_format_head(format, b->head);
        quire_queries *q = &s->queries[f];
        q->n = b->n_rows;
        q->d = d;
        q->z_stride = quire_z_stride(d);
        q->n_parts = quire_n_parts(&format->coder);
        q->copies = 1;
        q->fours = false;
        for (uint32_t i = 0; i < b->n_rows; i++) {
            quire_prepare_query(&format->coder, &cal, query_values(b, i, s->row), q->row + (size_t)i * d,
                                q->mean_score + (size_t)i * QUIRE_MEAN_SLOTS);
        }
        job->kernels->load_queries(format, q);
        float skip_r = QUIRE_SKIP_R_ERROR * sqrtf((float)d) / fabsf(job->scale);
        for (uint32_t i = 0; i < b->n_rows; i++) {
            s->log_unit[(size_t)f * b->n_rows + i] = q->unit[i] * job->scale * QUIRE_LOG2_E;
            q->skip_r_below[i] *= skip_r;
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

/* What all tiles of a split have in common. */
typedef struct walk {
    const quire_block *block;
    const quire_job *job;
    const quire_attend_options *options;
    quire_scratch *s;
    quire_sight sight;
    size_t stride;   /* floats of the accumulators of one row */
    bool scale_only; /* besides the mask, scores need nothing but their scale */
    bool one_strip;
} walk;

/* One tile of a block on its way through the kernels. */
typedef struct tile_pass {
    const quire_list_tile *tile;
    const quire_list_tile *next; /* NULL: none */
    const quire_job_layout *layout;
    const uint64_t *visible; /* [rows] */
    bool is_whole;           /* all rows of the block see all of it, and the mask adds nothing */
    bool has_values;         /* V is open */
    bool any_mask_adds;      /* unless is_whole: mask_adds is not 0 */
    uint32_t place;          /* of its expanded forms */
    quire_source k, v;
    uint64_t
        mask_adds[QUIRE_MAX_QUERY_ROWS / 64]; /* unless is_whole: bit i: the mask adds something to row i */
} tile_pass;

/* The kernels' view of a tile's K and of the next one, and the expanded form if enough rows share it. */
static void open_keys(const walk *w, tile_pass *p)
{
    const quire_job_layout *l = p->layout;
    const quire_job_layout *next = p->next ? &w->job->layout[p->next->layout] : NULL;
    uint32_t head = w->block->head;
    p->k = (quire_source){.format = l->k_format, .tile = quire_k_tile(l, p->tile, head)};
    if (next == l || (next && next->k_format->tile_bytes == l->k_format->tile_bytes))
        p->k.next = quire_k_tile(next, p->next, head);
    if (w->block->n_rows < l->expand_k_from) return;
    uint8_t *memory = w->s->k + p->place * w->s->expanded_bytes;
    l->expand_k(&p->k, memory);
    p->k.expanded = memory;
}

/* The same for V, which may be a part of K. With one strip of rows, nobody needs the expanded K any more. */
static void open_values(const walk *w, tile_pass *p)
{
    const quire_job_layout *l = p->layout;
    const quire_job_layout *next = p->next ? &w->job->layout[p->next->layout] : NULL;
    uint32_t head = w->block->head;
    uint8_t *memory = (w->one_strip ? w->s->k : w->s->v) + p->place * w->s->expanded_bytes;
    p->has_values = true;
    p->v = (quire_source){.format = l->v_format, .tile = p->k.tile};
    if (l->v_in_k) {
        if (!l->transpose) return;
        l->transpose(&p->v, memory);
        p->v.expanded = memory;
        return;
    }
    p->v.tile = quire_v_tile(l, p->tile, head);
    if (next == l || (next && !next->v_in_k && next->v_format->tile_bytes == l->v_format->tile_bytes))
        p->v.next = quire_v_tile(next, p->next, head);
    if (w->block->n_rows < l->expand_v_from) return;
    l->expand_v(&p->v, memory);
    p->v.expanded = memory;
}

/* Some rows of a block on a tile. */
typedef struct strip {
    tile_pass *pass;
    uint32_t first, n; /* query rows of the block */
    const uint64_t *visible;
    float *scores;     /* later weights */
    const float *unit; /* log_unit of the scratch, or own_unit */
    float own_unit[QUIRE_STRIP_ROWS], factor[QUIRE_STRIP_ROWS];
} strip;

/* Soft cap, slopes and masks of a strip's rows that have any; their unit becomes 1. */
static void add_terms(const walk *w, strip *st)
{
    const tile_pass *p = st->pass;
    const quire_attend_options *o = w->options;
    const quire_job *job = w->job;
    const quire_mask *mask = &job->mask;
    memcpy(st->own_unit, st->unit, st->n * sizeof *st->unit);
    st->unit = st->own_unit;
    for (uint32_t i = 0; i < st->n; i++) {
        uint32_t query, h, row = st->first + i;
        if (w->scale_only && !(p->mask_adds[row / 64] >> row % 64 & 1)) continue;
        quire_query_of(w->block, row, &query, &h);
        row_terms r = {
            .unit = w->s->queries[p->layout->k_index].unit[row],
            .scale = job->scale,
            .softcap = o->softcap,
            .alibi = o->alibi ? o->alibi[h] : 0,
            .mask_slope = o->mask_slopes ? o->mask_slopes[h] : 1,
            .p = (int64_t)job->spec.first_query + query,
            .mask = mask,
            .mask_row = (const uint8_t *)mask->data + query * mask->query_stride + h * mask->head_stride,
        };
        finish_scores(&r, p->tile, st->visible[i], st->scores + (size_t)i * QUIRE_TILE_ROWS);
        st->own_unit[i] = 1;
    }
}

/* V in K: the weights of the rows by the mean that was taken out of them. */
static void weigh_means(const walk *w, const strip *st, float *acc)
{
    const quire_source *k = &st->pass->k;
    for (uint32_t t = 0; t < QUIRE_TILE_ROWS; t++) {
        uint32_t mean = quire_load16(k->tile + k->format->code_bytes + t * 2) & QUIRE_MEAN_BITS;
        for (uint32_t i = 0; mean && i < st->n; i++)
            if (st->visible[i] >> t & 1)
                acc[i * w->stride + w->job->v_stride - QUIRE_MEAN_SLOTS + mean] +=
                    st->factor[i] * st->scores[i * QUIRE_TILE_ROWS + t];
    }
}

/* Scores of a strip; false: none of its rows sees the tile. */
static bool score_strip(const walk *w, strip *st)
{
    const quire_scratch *s = w->s;
    const tile_pass *p = st->pass;
    const quire_job_layout *l = p->layout;
    uint32_t incomplete = 0; /* rows that do not see the whole tile */
    st->visible = p->visible + st->first;
    st->unit = s->log_unit + (size_t)l->k_index * w->block->n_rows + st->first;
    if (!p->is_whole) {
        uint64_t any = 0;
        for (uint32_t i = 0; i < st->n; i++) {
            any |= st->visible[i];
            if (st->visible[i] != ~(uint64_t)0) incomplete |= 1u << i;
        }
        if (!any) return false;
    }
    l->score(&p->k, &s->queries[l->k_index], st->first, st->n, incomplete, st->scores, s->kernel);
    if (!w->scale_only || (!p->is_whole && p->any_mask_adds)) add_terms(w, st);
    return true;
}

static void softmax_strip(const walk *w, strip *st, quire_softmax *softmax)
{
    softmax->integer_products = st->pass->layout->is_integer;
    w->job->kernels->softmax_update(st->scores, st->visible, st->unit, st->n, softmax, st->factor);
}

static void mix_strip(const walk *w, const strip *st, quire_state *partial)
{
    tile_pass *p = st->pass;
    const quire_job_layout *l = p->layout;
    float *acc = partial->acc + st->first * w->stride + (size_t)l->v_index * w->job->v_stride;
    if (!p->has_values) open_values(w, p);
    l->mix(&p->v, w->job->spec.d_v, st->scores, st->visible, st->factor, st->n, acc, w->stride, w->s->kernel);
    if (l->weighs_means) weigh_means(w, st, acc);
}

static quire_softmax softmax_of(const walk *w, const quire_state *partial, uint32_t first)
{
    return (quire_softmax){.max = partial->max + first,
                           .sum = partial->lanes + (size_t)first * QUIRE_SUM_LANES,
                           .acc = partial->acc + first * w->stride,
                           .stride = w->stride};
}

/*
 * All rows of a block on some tiles. The scores of a strip and a tile are made before the values of the one before: where
 * tiles of the processor do the products, they are idle for less time.
 */
static void run_strips(const walk *w, tile_pass *passes, uint32_t n_passes, quire_state *partial)
{
    uint32_t n_rows = w->block->n_rows, k = 0;
    strip two[2], *held = NULL;
    for (uint32_t first = 0; first < n_rows; first += QUIRE_STRIP_ROWS) {
        quire_softmax softmax = softmax_of(w, partial, first);
        for (uint32_t t = 0; t < n_passes; t++, k ^= 1) {
            strip *st = &two[k];
            st->pass = &passes[t];
            st->first = first;
            st->n = n_rows - first < QUIRE_STRIP_ROWS ? n_rows - first : QUIRE_STRIP_ROWS;
            st->scores = w->s->scores + (size_t)k * QUIRE_STRIP_ROWS * QUIRE_TILE_ROWS;
            bool seen = score_strip(w, st);
            if (held) mix_strip(w, held, partial);
            held = seen ? st : NULL;
            if (held) softmax_strip(w, held, &softmax);
        }
    }
    if (held) mix_strip(w, held, partial);
}

/* Whether any row of the block sees the tile; if so its K is ready. */
static bool start_pass(const walk *w, tile_pass *p, uint32_t at, uint32_t place)
{
    const quire_job *job = w->job;
    quire_scratch *s = w->s;
    p->tile = &job->tile[at];
    if (quire_sees_none(&w->sight, p->tile->first, p->tile->n_rows)) return false;
    p->is_whole = quire_sees_whole(&w->sight, p->tile);
    p->visible = s->all_visible;
    if (!p->is_whole) {
        uint64_t *visible = s->visible + (size_t)place * w->block->n_rows;
        memset(p->mask_adds, 0, sizeof p->mask_adds);
        p->visible = visible;
        if (!quire_visibility(w->block, w->options->flags, p->tile, visible, p->mask_adds)) return false;
        p->any_mask_adds = false;
        for (uint32_t i = 0; i < QUIRE_MAX_QUERY_ROWS / 64; i++) p->any_mask_adds |= p->mask_adds[i] != 0;
    }
    p->next = at + 1 < job->n_tiles ? &job->tile[at + 1] : NULL;
    p->layout = &job->layout[p->tile->layout];
    p->place = place;
    p->has_values = false;
    open_keys(w, p);
    return true;
}

/* A block of one strip: tile after tile. Gives the number of tiles that were read. */
static uint32_t walk_strip(const walk *w, const quire_split *split, quire_state *partial)
{
    quire_softmax softmax = softmax_of(w, partial, 0);
    tile_pass p;
    strip st = {.pass = &p, .n = w->block->n_rows, .scores = w->s->scores};
    uint32_t n_read = 0;
    for (uint32_t at = split->begin; at < split->end; at++) {
        if (!start_pass(w, &p, at, 0)) continue;
        n_read++;
        score_strip(w, &st);
        softmax_strip(w, &st, &softmax);
        mix_strip(w, &st, partial);
    }
    return n_read;
}

/* A block of several strips: some tiles at a time, expanded. */
static uint32_t walk_strips(const walk *w, const quire_split *split, quire_state *partial)
{
    uint32_t n_read = 0;
    for (uint32_t at = split->begin; at < split->end;) {
        tile_pass passes[QUIRE_TILES_AT_ONCE];
        uint32_t n = 0;
        for (; at < split->end && n < w->s->n_tiles; at++) {
            if (!start_pass(w, &passes[n], at, n)) continue;
            open_values(w, &passes[n++]);
        }
        if (n) run_strips(w, passes, n, partial);
        n_read += n;
    }
    return n_read;
}

void quire_block_split(const quire_block *b, const quire_attend_options *o, const quire_split *split,
                       quire_scratch *s, quire_state *partial)
{
    const quire_job *job = b->job;
    walk w = {
        .block = b,
        .job = job,
        .options = o,
        .s = s,
        .sight = quire_block_sight(b, o->flags),
        .stride = quire_acc_stride(job),
        .scale_only = o->softcap == 0 && !o->alibi && job->scale > 0,
        .one_strip = b->n_rows <= QUIRE_STRIP_ROWS,
    };
    quire_state_clear(b, partial);
    memset(s->all_visible, 0xff, sizeof *s->all_visible * b->n_rows);
    uint32_t n_read = w.one_strip ? walk_strip(&w, split, partial) : walk_strips(&w, split, partial);
    s->stats.tiles_read += n_read;
    s->stats.tiles_skipped += split->end - split->begin - n_read;
    quire_state_add_lanes(b, partial);
}
