/* SPDX-License-Identifier: MIT */
/* cache: a step: reserve rows, append, attend, commit. */
#include "cache/cache.h"

#include "attend/attend.h"

/* Rows below which the calling thread encodes alone: waking a thread costs more than that. */
#define ROWS_WORTH_THREADS 256u

/* A shared unfinished page that a step replaced by a copy of its own. */
typedef struct replaced_page {
    quire_page *old;
    uint32_t n_before; /* pages the table had before the step */
} replaced_page;

struct quire_step {
    quire_pool *pool;
    quire_workspace *workspace;
    uint32_t n_seqs, n_groups, n_layers;
    uint64_t n_tokens;
    quire_seq **seq;
    uint32_t *tokens;        /* per sequence */
    uint64_t *first_token;   /* where its tokens begin in k, v, q, out */
    uint8_t *appended;       /* [n_layers][n_seqs] */
    replaced_page *replaced; /* [n_seqs][n_groups] */
    quire_attend_job *job;   /* of sequences that have tokens */
    quire_tile_list *
        *list;    /* per group, of sequences that have tokens; NULL until a layer of the group attends */
    size_t bytes; /* of this block, arrays included */
};

/* ---------------------------------------------------- begin, commit, abort */

static quire_step *step_alloc(quire_pool *pool, uint32_t n_seqs)
{
    const quire_plan *plan = pool->main_plan;
    struct {
        size_t n, size;
    } part[] = {
        {1, sizeof(quire_step)},
        {n_seqs, sizeof(quire_seq *)},
        {n_seqs, sizeof(uint32_t)},
        {n_seqs, sizeof(uint64_t)},
        {quire_bytes(plan->n_layers, n_seqs), 1},
        {quire_bytes(plan->n_groups, n_seqs), sizeof(replaced_page)},
        {n_seqs, sizeof(quire_attend_job)},
        {plan->n_groups, sizeof(quire_tile_list *)},
    };
    enum { N_PARTS = sizeof part / sizeof *part };
    size_t at[N_PARTS], bytes = 0;
    for (int i = 0; i < N_PARTS; i++) {
        at[i] = bytes;
        size_t more = quire_bytes(part[i].n, part[i].size);
        if (more > SIZE_MAX / 4) return NULL;
        bytes += (more + 63) / 64 * 64;
    }
    uint8_t *memory = (uint8_t *)quire_alloc(&pool->allocator, bytes);
    if (!memory) return NULL;
    quire_step *step = (quire_step *)(void *)memory;
    step->pool = pool;
    step->n_seqs = n_seqs;
    step->n_groups = plan->n_groups;
    step->n_layers = plan->n_layers;
    step->bytes = bytes;
    step->seq = (quire_seq **)(void *)(memory + at[1]);
    step->tokens = (uint32_t *)(void *)(memory + at[2]);
    step->first_token = (uint64_t *)(void *)(memory + at[3]);
    step->appended = memory + at[4];
    step->replaced = (replaced_page *)(void *)(memory + at[5]);
    step->job = (quire_attend_job *)(void *)(memory + at[6]);
    step->list = (quire_tile_list **)(void *)(memory + at[7]);
    return step;
}

static void step_free(quire_step *step)
{
    quire_allocator a = step->pool->allocator;
    for (uint32_t i = 0; i < step->n_seqs; i++)
        if (step->seq[i]) step->seq[i]->step = NULL;
    quire_pool_return(step->pool, step->workspace);
    for (uint32_t g = 0; g < step->n_groups; g++) quire_tile_list_destroy(step->list[g]);
    quire_free(&a, step, step->bytes);
}

/* Whether an empty pool has room for pages first to end - 1 of a group. Sink pages have a size of their own. */
static bool can_be_had(const quire_plan *plan, uint32_t group, uint32_t first, uint32_t end, size_t budget)
{
    const quire_group *g = &plan->group[group];
    uint32_t n_sinks = g->n_sink_pages < end ? g->n_sink_pages : end;
    n_sinks -= n_sinks < first ? n_sinks : first;
    if (n_sinks) {
        size_t sink = quire_page_stride(g->sinks.bytes);
        if (n_sinks > budget / sink) return false;
        budget -= n_sinks * sink;
    }
    return end - first - n_sinks <= budget / quire_page_stride(g->pages.bytes);
}

/* Take the pages that `tokens` more rows need in one table; they are not cleared yet. On failure the table is as it was. */
static quire_status reserve_rows(quire_seq *seq, uint32_t group, uint32_t tokens, replaced_page *replaced)
{
    quire_pages *pages = &seq->pool->pages;
    quire_table *t = &seq->table[group];
    uint32_t n_before = t->n, end = quire_pages_for(seq->length + tokens), need = end - t->gap;
    *replaced = (replaced_page){NULL, n_before};
    if (!tokens) return QUIRE_OK;
    /* Before the table grows for pages that can never be had. */
    if (!can_be_had(seq->plan, group, end - (need - t->n), end, pages->budget)) return QUIRE_EFULL;
    if (!quire_grow(&seq->pool->allocator, &t->page, &t->cap, t->n, need, sizeof *t->page))
        return QUIRE_ENOMEM;
    while (t->n < need) {
        uint32_t index = quire_table_index(t, t->n);
        quire_page *page = quire_page_take_uncleared(pages, quire_plan_layout(seq->plan, group, index));
        if (!page) goto full;
        t->page[t->n++] = page;
    }
    if (seq->length % QUIRE_PAGE_TOKENS && quire_page_is_shared(t->page[n_before - 1])) {
        quire_page *copy = quire_page_copy(pages, t->page[n_before - 1]);
        if (!copy) goto full;
        replaced->old = t->page[n_before - 1];
        t->page[n_before - 1] = copy;
    }
    return QUIRE_OK;
full:
    while (t->n > n_before) quire_page_drop(pages, t->page[--t->n]);
    return QUIRE_EFULL;
}

static void unreserve_rows(quire_seq *seq, uint32_t group, replaced_page *replaced)
{
    quire_pages *pages = &seq->pool->pages;
    quire_table *t = &seq->table[group];
    while (t->n > replaced->n_before) quire_page_drop(pages, t->page[--t->n]);
    if (replaced->old) {
        quire_page_drop(pages, t->page[t->n - 1]);
        t->page[t->n - 1] = replaced->old;
    }
}

/* Pages that are untouched can become huge without a copy, so this comes before they are cleared. */
static void settle_and_clear(quire_step *step)
{
    quire_pages_settle(&step->pool->pages);
    for (uint32_t i = 0; i < step->n_seqs; i++)
        for (uint32_t g = 0; g < step->n_groups; g++) {
            const quire_table *t = &step->seq[i]->table[g];
            uint32_t n_before = step->replaced[(size_t)i * step->n_groups + g].n_before;
            for (uint32_t k = n_before; k < t->n; k++) quire_page_clear(t->page[k]);
        }
}

static quire_status check_begin(const quire_pool *pool, quire_seq *const *seqs, const uint32_t *n_tokens,
                                uint32_t n)
{
    if (!pool || (n && (!seqs || !n_tokens))) return QUIRE_EINVAL;
    for (uint32_t i = 0; i < n; i++) {
        if (!seqs[i] || seqs[i]->pool != pool) return QUIRE_EINVAL;
        if (n_tokens[i] > QUIRE_MAX_TOKENS - seqs[i]->length) return QUIRE_EINVAL;
        if (seqs[i]->step) return QUIRE_EBUSY;
    }
    return QUIRE_OK;
}

quire_status quire_step_begin(quire_step **out, quire_pool *pool, quire_seq *const *seqs,
                              const uint32_t *n_tokens, uint32_t n_seqs)
{
    if (!out) return QUIRE_EINVAL;
    quire_status status = check_begin(pool, seqs, n_tokens, n_seqs);
    if (status) return status;
    quire_step *step = step_alloc(pool, n_seqs);
    if (!step) return QUIRE_ENOMEM;
    uint64_t n_done = 0; /* tables reserved, sequence after sequence */
    step->workspace = quire_pool_borrow(pool);
    if (!step->workspace) status = QUIRE_ENOMEM;
    for (uint32_t i = 0; i < n_seqs && !status; i++) {
        if (seqs[i]->step) {
            status = QUIRE_EBUSY; /* named twice */
            break;
        }
        seqs[i]->step = step;
        step->seq[i] = seqs[i];
        step->tokens[i] = n_tokens[i];
        step->first_token[i] = step->n_tokens;
        step->n_tokens += n_tokens[i];
        for (uint32_t g = 0; g < step->n_groups && !status; g++) {
            status = reserve_rows(seqs[i], g, n_tokens[i], &step->replaced[(size_t)i * step->n_groups + g]);
            if (!status) n_done++;
        }
    }
    if (!status) {
        settle_and_clear(step);
        *out = step;
        return QUIRE_OK;
    }
    while (n_done--) {
        uint32_t i = (uint32_t)(n_done / step->n_groups), g = (uint32_t)(n_done % step->n_groups);
        unreserve_rows(step->seq[i], g, &step->replaced[n_done]);
    }
    step_free(step);
    return status;
}

void quire_step_abort(quire_step *step)
{
    if (!step) return;
    for (uint32_t i = 0; i < step->n_seqs; i++)
        for (uint32_t g = 0; g < step->n_groups; g++)
            unreserve_rows(step->seq[i], g, &step->replaced[(size_t)i * step->n_groups + g]);
    step_free(step);
}

quire_status quire_step_commit(quire_step *step)
{
    if (!step) return QUIRE_EINVAL;
    for (uint32_t layer = 0; layer < step->n_layers; layer++)
        for (uint32_t i = 0; i < step->n_seqs; i++)
            if (step->tokens[i] && !step->appended[(size_t)layer * step->n_seqs + i]) return QUIRE_EINVAL;
    for (uint32_t i = 0; i < step->n_seqs; i++) {
        quire_seq *seq = step->seq[i];
        for (uint32_t g = 0; g < step->n_groups; g++)
            quire_page_drop(&step->pool->pages, step->replaced[(size_t)i * step->n_groups + g].old);
        seq->length += step->tokens[i];
        quire_seq_release(seq, seq->length);
    }
    step_free(step);
    return QUIRE_OK;
}

/* ------------------------------------------------------------------ append */

/* Rows of one layer for all heads of one sequence, per side, strides filled in. */
typedef struct append_work {
    quire_step *step;
    uint32_t layer, seq_index, n_sides;
    quire_rows rows[2];
    _Atomic(uint32_t) status; /* a fault of any head */
} append_work;

static void append_head(void *arg, uint32_t head)
{
    append_work *w = (append_work *)arg;
    const quire_seq *seq = w->step->seq[w->seq_index];
    const quire_planned_layer *l = &seq->plan->layer[w->layer];
    const quire_table *t = &seq->table[l->group];
    quire_counts counts = {0};
    uint32_t end = seq->length + w->step->tokens[w->seq_index];
    for (uint32_t p = seq->length, run; p < end; p += run) {
        uint32_t row = p % QUIRE_PAGE_TOKENS;
        run = QUIRE_PAGE_TOKENS - row < end - p ? QUIRE_PAGE_TOKENS - row : end - p;
        const quire_page *page = t->page[quire_table_entry(t, p / QUIRE_PAGE_TOKENS)];
        for (uint32_t s = 0; s < w->n_sides; s++) {
            quire_side side = s ? QUIRE_V : QUIRE_K;
            quire_rows one = quire_rows_at(&w->rows[s], 0, p - seq->length, head);
            quire_status status =
                quire_tile_write(quire_page_format(page, l->index, side), head,
                                 quire_page_tile(page, l->index, side, head), row, run, &one, &counts);
            if (status) {
                atomic_store_explicit(&w->status, (uint32_t)status, memory_order_relaxed);
                return;
            }
        }
    }
    quire_pool_count(w->step->pool, &counts);
}

/* A form that carries codes must fit every page it goes to, sink pages included. Damaged rows are found before any head is written:
 * rows that were appended before would be mixed with them. */
static quire_status check_rows(const quire_seq *seq, const quire_planned_layer *l, quire_side side,
                               uint32_t n_tokens, quire_rows *rows)
{
    const quire_tile_format *f = side == QUIRE_K ? &l->k : &l->v;
    quire_status status = quire_rows_check(f, l->shape.n_kv_heads, n_tokens, rows);
    if (status) return status;
    if (quire_form_is_float(rows->form)) return QUIRE_OK;
    const quire_table *t = &seq->table[l->group];
    for (uint32_t i = seq->length / QUIRE_PAGE_TOKENS; i < quire_pages_for(seq->length + n_tokens); i++) {
        const quire_tile_format *held = quire_page_format(t->page[quire_table_entry(t, i)], l->index, side);
        if (held->fingerprint != f->fingerprint) return QUIRE_EUNSUPPORTED;
    }
    return quire_rows_are_damaged(f, l->shape.n_kv_heads, n_tokens, rows) ? QUIRE_EFORMAT : QUIRE_OK;
}

quire_status quire_step_append_rows(quire_step *step, uint32_t layer, uint32_t seq_index, const quire_rows *k,
                                    const quire_rows *v)
{
    if (!step || layer >= step->n_layers || seq_index >= step->n_seqs || !k) return QUIRE_EINVAL;
    const quire_seq *seq = step->seq[seq_index];
    const quire_planned_layer *l = &seq->plan->layer[layer];
    uint32_t n_tokens = step->tokens[seq_index], n_heads = l->shape.n_kv_heads;
    if (!l->shape.v_in_k && !v) return QUIRE_EINVAL;
    append_work w = {
        .step = step, .layer = layer, .seq_index = seq_index, .n_sides = l->shape.v_in_k ? 1 : 2};
    for (uint32_t s = 0; s < w.n_sides; s++) {
        quire_status status = quire_rows_read(&w.rows[s], s ? v : k);
        if (!status && n_tokens) status = check_rows(seq, l, s ? QUIRE_V : QUIRE_K, n_tokens, &w.rows[s]);
        if (status) return status;
    }
    const quire_executor *e = &step->pool->executor;
    if (e->run && e->n_threads > 1 && n_heads > 1 && (uint64_t)n_tokens * n_heads >= ROWS_WORTH_THREADS) {
        e->run(e->ctx, append_head, &w, n_heads);
    } else {
        for (uint32_t h = 0; h < n_heads; h++) append_head(&w, h);
    }
    quire_status status = (quire_status)atomic_load_explicit(&w.status, memory_order_relaxed);
    if (!status) step->appended[(size_t)layer * step->n_seqs + seq_index] = 1;
    return status;
}

quire_status quire_step_append(quire_step *step, uint32_t layer, const float *k, const float *v)
{
    if (!step || layer >= step->n_layers) return QUIRE_EINVAL;
    const quire_layer *shape = &step->pool->main_plan->layer[layer].shape;
    if (step->n_tokens && (!k || (!v && !shape->v_in_k))) return QUIRE_EINVAL;
    for (uint32_t i = 0; i < step->n_seqs; i++) {
        if (!step->tokens[i]) continue;
        size_t at = (size_t)step->first_token[i] * shape->n_kv_heads;
        quire_rows k_rows = {.size = sizeof k_rows, .form = QUIRE_F32, .data = k + at * shape->d_k};
        quire_rows v_rows = {
            .size = sizeof v_rows, .form = QUIRE_F32, .data = shape->v_in_k ? NULL : v + at * shape->d_v};
        quire_status status = quire_step_append_rows(step, layer, i, &k_rows, &v_rows);
        if (status) return status;
    }
    return QUIRE_OK;
}

/* ------------------------------------------------------------------ attend */

/* The tiles of a group, prepared when its first layer attends; the other layers of the step use them again. */
static quire_status prepare_list(quire_step *step, uint32_t group)
{
    if (step->list[group]) return QUIRE_OK;
    quire_tile_list *list;
    quire_status status = quire_tile_list_create(&list, &step->pool->allocator);
    if (status) return status;
    for (uint32_t i = 0; i < step->n_seqs && !status; i++) {
        const quire_seq *seq = step->seq[i];
        if (step->tokens[i]) status = quire_seq_list_tiles(list, seq, group, seq->length + step->tokens[i]);
    }
    if (status)
        quire_tile_list_destroy(list);
    else
        step->list[group] = list;
    return status;
}

quire_status quire_step_attend_with(quire_step *step, uint32_t layer, const quire_step_queries *queries)
{
    quire_step_queries q;
    if (!step || layer >= step->n_layers) return QUIRE_EINVAL;
    quire_status status = quire_read_sized(&q, sizeof q, queries);
    if (status) return status;
    if (step->n_tokens && (!q.q || !q.out)) return QUIRE_EINVAL;
    for (uint32_t i = 0; q.masks && i < step->n_seqs && !status; i++) {
        quire_mask mask;
        if (step->tokens[i]) status = quire_read_sized_element(&mask, sizeof mask, q.masks, q.mask_stride, i);
    }
    if (status) return status;
    const quire_planned_layer *l = &step->pool->main_plan->layer[layer];
    const quire_layer *shape = &l->shape;
    for (uint32_t i = 0; i < step->n_seqs; i++)
        if (step->tokens[i] && !step->appended[(size_t)layer * step->n_seqs + i]) return QUIRE_EINVAL;
    status = prepare_list(step, l->group);
    if (status) return status;
    quire_fill_strides(shape->d_k * quire_value_bytes(q.q_form), shape->n_q_heads, &q.q_token_stride,
                       &q.q_head_stride);
    quire_fill_strides(shape->d_v * quire_value_bytes(q.out_form), shape->n_q_heads, &q.out_token_stride,
                       &q.out_head_stride);
    uint32_t n_jobs = 0;
    for (uint32_t i = 0; i < step->n_seqs; i++) {
        const quire_seq *seq = step->seq[i];
        if (!step->tokens[i]) continue;
        size_t token = (size_t)step->first_token[i], row = token * shape->n_q_heads;
        step->job[n_jobs] = (quire_attend_job){
            .list = step->list[l->group],
            .list_seq = n_jobs,
            .list_layer = l->index,
            .n_q_heads = shape->n_q_heads,
            .n_kv_heads = shape->n_kv_heads,
            .d_k = shape->d_k,
            .d_v = shape->d_v,
            .n_queries = step->tokens[i],
            .first_query = seq->length,
            .window = shape->window,
            .ring_tokens = seq->ring.max_tokens,
            .ring_sinks = seq->ring.sinks,
            .q_form = q.q_form,
            .out_form = q.out_form,
            .q = (const uint8_t *)q.q + token * q.q_token_stride,
            .q_token_stride = q.q_token_stride,
            .q_head_stride = q.q_head_stride,
            .out = (uint8_t *)q.out + token * q.out_token_stride,
            .out_token_stride = q.out_token_stride,
            .out_head_stride = q.out_head_stride,
            .max = q.max ? q.max + row : NULL,
            .sum = q.sum ? q.sum + row : NULL,
            .mask = q.masks ? (const quire_mask *)(const void *)((const uint8_t *)q.masks + i * q.mask_stride)
                            : NULL,
        };
        n_jobs++;
    }
    return quire_attend(step->workspace, q.options, step->job, n_jobs, sizeof *step->job);
}

quire_status quire_step_attend(quire_step *step, uint32_t layer, const float *q, float *out)
{
    quire_step_queries queries = {.size = sizeof queries, .q = q, .out = out};
    return quire_step_attend_with(step, layer, &queries);
}
