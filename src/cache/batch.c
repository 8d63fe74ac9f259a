/* SPDX-License-Identifier: MIT */
/* cache: an ordered set of sequences, and the left-padded form other engines use. */
#include "cache/cache.h"

struct quire_batch {
    quire_pool *pool;
    uint32_t n, cap;
    quire_seq **seq;
};

void quire_batch_destroy(quire_batch *batch)
{
    if (!batch) return;
    quire_allocator a = batch->pool->allocator;
    if (batch->n) quire_seqs_destroy(batch->pool, batch->seq, batch->n);
    quire_free(&a, batch->seq, sizeof *batch->seq * batch->cap);
    quire_free(&a, batch, sizeof *batch);
}

/* Room for n sequences, none in it yet. */
static quire_batch *batch_alloc(quire_pool *pool, uint32_t n)
{
    quire_batch *batch = (quire_batch *)quire_alloc(&pool->allocator, sizeof *batch);
    if (!batch) return NULL;
    batch->pool = pool;
    if (!quire_grow(&pool->allocator, &batch->seq, &batch->cap, 0, n, sizeof *batch->seq)) {
        quire_batch_destroy(batch);
        return NULL;
    }
    return batch;
}

/* Add forks; on failure the batch is as it was. */
static quire_status add_forks(quire_batch *batch, const quire_seq *const *seqs, uint32_t n)
{
    if (n > UINT32_MAX - batch->n) return QUIRE_EINVAL;
    uint32_t n_before = batch->n;
    if (!quire_grow(&batch->pool->allocator, &batch->seq, &batch->cap, batch->n, batch->n + n,
                    sizeof *batch->seq))
        return QUIRE_ENOMEM;
    for (uint32_t i = 0; i < n; i++) {
        quire_status status = quire_seq_fork(&batch->seq[batch->n], seqs[i]);
        if (status) {
            while (batch->n > n_before) quire_seq_destroy(batch->seq[--batch->n]);
            return status;
        }
        batch->n++;
    }
    return QUIRE_OK;
}

quire_status quire_batch_merge(quire_batch **out, quire_pool *pool, quire_seq *const *seqs, uint32_t n)
{
    if (!out || !pool || (n && !seqs)) return QUIRE_EINVAL;
    for (uint32_t i = 0; i < n; i++)
        if (!seqs[i] || seqs[i]->pool != pool) return QUIRE_EINVAL;
    quire_batch *batch = batch_alloc(pool, n);
    if (!batch) return QUIRE_ENOMEM;
    quire_status status = add_forks(batch, (const quire_seq *const *)seqs, n);
    if (status) {
        quire_batch_destroy(batch);
        return status;
    }
    *out = batch;
    return QUIRE_OK;
}

quire_status quire_batch_extract(quire_seq **out, const quire_batch *batch, uint32_t index)
{
    if (!out || !batch || index >= batch->n) return QUIRE_EINVAL;
    return quire_seq_fork(out, batch->seq[index]);
}

quire_status quire_batch_add(quire_batch *batch, const quire_seq *seq)
{
    if (!batch || !seq || seq->pool != batch->pool) return QUIRE_EINVAL;
    return add_forks(batch, &seq, 1);
}

/* The sequences of the new order: kept ones themselves, forks of those that come again. taken: a zeroed byte per old
 * sequence. On failure the forks are gone. */
static quire_status pick(const quire_batch *batch, const uint32_t *indices, uint32_t n, quire_seq **to,
                         uint8_t *taken)
{
    for (uint32_t i = 0; i < n; i++) {
        quire_seq *seq = batch->seq[indices[i]];
        quire_status status = QUIRE_OK;
        if (taken[indices[i]])
            status = quire_seq_fork(&to[i], seq);
        else
            to[i] = seq;
        taken[indices[i]] = 1;
        if (!status) continue;
        while (i--)
            if (to[i] != batch->seq[indices[i]]) quire_seq_destroy(to[i]);
        return status;
    }
    return QUIRE_OK;
}

quire_status quire_batch_filter(quire_batch *batch, const uint32_t *indices, uint32_t n)
{
    if (!batch || (n && !indices)) return QUIRE_EINVAL;
    for (uint32_t i = 0; i < batch->n; i++)
        if (batch->seq[i]->step) return QUIRE_EBUSY;
    for (uint32_t i = 0; i < n; i++)
        if (indices[i] >= batch->n) return QUIRE_EINVAL;
    const quire_allocator *a = &batch->pool->allocator;
    uint32_t n_old = batch->n;
    uint8_t *taken = (uint8_t *)quire_alloc(a, n_old);
    quire_batch *kept = taken ? batch_alloc(batch->pool, n) : NULL;
    quire_status status = kept ? pick(batch, indices, n, kept->seq, taken) : QUIRE_ENOMEM;
    if (!status) {
        quire_batch old = *batch;
        *batch = *kept;
        *kept = old;
        batch->n = n;
        kept->n = 0; /* only those that leave stay in the old list */
        for (uint32_t i = 0; i < n_old; i++)
            if (!taken[i]) kept->seq[kept->n++] = kept->seq[i];
    }
    quire_batch_destroy(kept);
    quire_free(a, taken, n_old);
    return status;
}

quire_status quire_batch_extend(quire_batch *batch, const quire_batch *other)
{
    if (!batch || !other || batch == other || batch->pool != other->pool) return QUIRE_EINVAL;
    return add_forks(batch, (const quire_seq *const *)other->seq, other->n);
}

quire_status quire_batch_convert(quire_batch *batch, const quire_plan *plan, uint32_t flags)
{
    if (!batch) return QUIRE_EINVAL;
    return quire_seqs_convert(batch->pool, batch->seq, batch->n, plan, flags);
}

quire_seq *const *quire_batch_seqs(const quire_batch *batch, uint32_t *n)
{
    if (n) *n = batch->n;
    return batch->seq;
}

/* ------------------------------------------------------------- left padding */

/* The block of one sequence, its padding skipped. */
static quire_rows seq_rows(const quire_tile_format *f, uint32_t n_heads, const quire_rows *all, uint32_t seq,
                           uint32_t n_columns, uint32_t padding)
{
    quire_rows dense = *all;
    (void)quire_rows_check(f, n_heads, n_columns, &dense); /* append checks again and refuses */
    return quire_rows_at(&dense, seq, padding, 0);
}

/* The caller's blocks of K and V, one per layer each. */
typedef struct layer_blocks {
    const uint8_t *k, *v;
    size_t stride;
} layer_blocks;

static quire_status import_rows(quire_step *step, const quire_plan *plan, uint32_t n_seqs, uint32_t n_columns,
                                const uint32_t *left_padding, const layer_blocks *blocks)
{
    for (uint32_t layer = 0; layer < plan->n_layers; layer++) {
        const quire_planned_layer *l = &plan->layer[layer];
        uint32_t heads = l->shape.n_kv_heads;
        bool has_v = !l->shape.v_in_k;
        quire_rows k, v = {0};
        quire_status status = quire_read_sized_element(&k, sizeof k, blocks->k, blocks->stride, layer);
        if (!status && has_v)
            status = quire_read_sized_element(&v, sizeof v, blocks->v, blocks->stride, layer);
        if (status) return status;
        if (!k.data || (has_v && !v.data)) return QUIRE_EINVAL;
        for (uint32_t i = 0; i < n_seqs; i++) {
            quire_rows one_k = seq_rows(&l->k, heads, &k, i, n_columns, left_padding[i]), one_v = {0};
            if (has_v) one_v = seq_rows(&l->v, heads, &v, i, n_columns, left_padding[i]);
            status = quire_step_append_rows(step, layer, i, &one_k, &one_v);
            if (status) return status;
        }
    }
    return quire_step_commit(step);
}

quire_status quire_batch_import(quire_batch **out, quire_pool *pool, uint32_t n_seqs, uint32_t n_columns,
                                const uint32_t *left_padding, const quire_rows *k, const quire_rows *v,
                                size_t rows_stride)
{
    if (!out || !pool || !k || (n_seqs && !left_padding) || rows_stride < sizeof(size_t)) return QUIRE_EINVAL;
    layer_blocks blocks = {(const uint8_t *)k, (const uint8_t *)v, rows_stride};
    const quire_plan *plan = pool->main_plan;
    for (uint32_t layer = 0; layer < plan->n_layers; layer++)
        if (!v && !plan->layer[layer].shape.v_in_k) return QUIRE_EINVAL;
    for (uint32_t i = 0; i < n_seqs; i++)
        if (left_padding[i] > n_columns) return QUIRE_EINVAL;
    quire_status status = QUIRE_ENOMEM;
    quire_step *step = NULL;
    size_t bytes = quire_bytes(n_seqs, sizeof(uint32_t));
    uint32_t *n_tokens = (uint32_t *)quire_alloc(&pool->allocator, bytes);
    quire_batch *batch = batch_alloc(pool, n_seqs);
    if (!n_tokens || !batch) goto fail;
    for (; batch->n < n_seqs; batch->n++) {
        n_tokens[batch->n] = n_columns - left_padding[batch->n];
        status = quire_seq_create(&batch->seq[batch->n], pool, NULL);
        if (status) goto fail;
    }
    status = quire_step_begin(&step, pool, batch->seq, n_tokens, n_seqs);
    if (status) goto fail;
    status = import_rows(step, plan, n_seqs, n_columns, left_padding, &blocks);
    if (status) {
        quire_step_abort(step);
        goto fail;
    }
    quire_free(&pool->allocator, n_tokens, bytes);
    *out = batch;
    return QUIRE_OK;
fail:
    quire_free(&pool->allocator, n_tokens, bytes);
    quire_batch_destroy(batch);
    return status;
}

/* Zeros in the first n columns of one sequence. */
static void clear_columns(const quire_planned_layer *l, quire_side side, const quire_rows_out *rows,
                          const quire_rows *dense, uint32_t seq, uint32_t n)
{
    bool prefix = side == QUIRE_V && l->shape.v_in_k;
    const quire_tile_format *format = side == QUIRE_K ? &l->k : &l->v;
    quire_row_address bytes = {l->shape.d_v * quire_value_bytes(rows->form), 0};
    if (!prefix) bytes = quire_rows_one(format, rows->form, rows->scale_form);
    bool has_biases = bytes.scales && format->coder.codec->has_bias; /* tv codecs have only scales */
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t h = 0; h < l->shape.n_kv_heads; h++) {
            quire_rows_out one = quire_rows_out_at(rows, dense, seq, t, h);
            memset(one.data, 0, bytes.data);
            if (bytes.scales) memset(one.scales, 0, bytes.scales);
            if (has_biases) memset(one.biases, 0, bytes.scales);
        }
}

/* Codes of one block are of one codec. */
static bool same_codec(const quire_batch *batch, uint32_t layer, quire_side side)
{
    for (uint32_t i = 1; i < batch->n; i++) {
        const quire_planned_layer *a = &batch->seq[0]->plan->layer[layer],
                                  *b = &batch->seq[i]->plan->layer[layer];
        if ((side == QUIRE_K ? &a->k : &a->v)->fingerprint != (side == QUIRE_K ? &b->k : &b->v)->fingerprint)
            return false;
    }
    return true;
}

quire_status quire_batch_export(const quire_batch *batch, uint32_t layer, quire_side side, uint32_t n_columns,
                                uint32_t *left_padding, const quire_rows_out *rows)
{
    quire_rows_out own;
    if (!batch || !left_padding || layer >= batch->pool->main_plan->n_layers) return QUIRE_EINVAL;
    quire_status read = quire_read_sized(&own, sizeof own, rows);
    if (read) return read;
    rows = &own;
    if (!quire_form_is_float(rows->form) && !same_codec(batch, layer, side)) return QUIRE_EUNSUPPORTED;
    quire_rows dense = quire_rows_of(rows);
    for (uint32_t i = 0; i < batch->n; i++) {
        uint32_t length = batch->seq[i]->length;
        if (length > n_columns) return QUIRE_EINVAL;
        quire_status status =
            quire_seq_check_export(batch->seq[i], layer, side, 0, length, n_columns, &dense);
        if (status) return status;
    }
    for (uint32_t i = 0; i < batch->n; i++) {
        const quire_seq *seq = batch->seq[i];
        left_padding[i] = n_columns - seq->length;
        clear_columns(&seq->plan->layer[layer], side, rows, &dense, i, left_padding[i]);
        quire_rows_out one = quire_rows_out_at(rows, &dense, i, left_padding[i], 0);
        quire_status status = quire_seq_export(seq, layer, side, 0, seq->length, &one);
        if (status) return status;
    }
    return QUIRE_OK;
}
