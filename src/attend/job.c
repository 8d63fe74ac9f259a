/* SPDX-License-Identifier: MIT */
/* attend: what a caller asks for, checked before anything is computed. */
#include "attend/attend.h"

#include <math.h>

/*
 * The list stays in order of fingerprints. So results do not depend on which tile comes first, nor on which of several equal
 * format objects a tile refers to.
 */
static bool add_format(const quire_tile_format **list, uint32_t *n, const quire_tile_format *format)
{
    uint32_t at = 0;
    while (at < *n && list[at]->fingerprint < format->fingerprint) at++;
    if (at < *n && list[at]->fingerprint == format->fingerprint) return true;
    if (*n == QUIRE_MAX_FORMATS) return false;
    memmove(list + at + 1, list + at, sizeof *list * (*n - at));
    list[at] = format;
    (*n)++;
    return true;
}

static uint32_t index_of(const quire_tile_format *const *list, const quire_tile_format *format)
{
    uint32_t i = 0;
    while (list[i]->fingerprint != format->fingerprint) i++;
    return i;
}

static quire_status read_mask(quire_mask *mask, const quire_mask *theirs)
{
    if (!theirs) return QUIRE_OK;
    quire_status status = quire_read_sized(mask, sizeof *mask, theirs);
    if (status) return status;
    if (mask->reserved || (mask->n_keys && (!mask->data || !quire_form_is_float(mask->form))))
        return QUIRE_EINVAL;
    return QUIRE_OK;
}

static quire_status read_tiles(quire_job *job)
{
    const quire_attend_job *s = &job->spec;
    if (s->list_seq >= job->list->n_seqs) return QUIRE_EINVAL;
    const quire_list_seq *seq = &job->list->seq[s->list_seq];
    if (s->list_layer >= seq->n_layers) return QUIRE_EINVAL;
    job->seq = seq;
    if (seq->n_tiles) { /* a list of empty sequences has no arrays */
        job->tile = job->list->tile + seq->first_tile;
        job->split = job->list->split + seq->first_split;
    }
    job->n_tiles = seq->n_tiles;
    job->n_splits = seq->n_splits;
    job->n_layouts = seq->n_used;
    for (uint32_t i = 0; i < seq->n_used; i++) {
        const quire_list_layer *l = quire_list_layer_at(job->list, seq, i, s->list_layer);
        const quire_tile_format *value = quire_list_value_format(l);
        if (l->n_heads != s->n_kv_heads || l->k_format->coder.d != s->d_k || quire_list_d_v(l) != s->d_v)
            return QUIRE_EINVAL;
        if (!add_format(job->k, &job->n_k, l->k_format) || !add_format(job->v, &job->n_v, value))
            return QUIRE_EUNSUPPORTED;
        size_t floats = quire_acc_floats(value) + QUIRE_MEAN_SLOTS;
        if (floats > job->v_stride) job->v_stride = (uint32_t)floats;
    }
    return QUIRE_OK;
}

/* Whether all rows end somewhere, and do not overlap: heads lie inside of tokens or tokens inside of heads. What is only read may
 * overlap. */
static bool rows_are_apart(size_t row, uint32_t n_tokens, size_t token_stride, uint32_t n_heads,
                           size_t head_stride, bool is_written)
{
    size_t heads = row, tokens = row, all;
    if (!quire_extend(&heads, n_heads, head_stride) || !quire_extend(&tokens, n_tokens, token_stride))
        return false;
    all = heads;
    if (!quire_extend(&all, n_tokens, token_stride)) return false;
    if (!is_written) return true;
    if (n_tokens < 2) return n_heads < 2 || head_stride >= row;
    if (n_heads < 2) return token_stride >= row;
    return (head_stride >= row && heads <= token_stride) || (token_stride >= row && tokens <= head_stride);
}

/* One of q and out: values aligned, rows apart, strides filled in. */
static bool check_rows(const quire_attend_job *s, quire_form form, const void *data, size_t *token_stride,
                       size_t *head_stride, uint32_t d, bool is_written)
{
    if (!quire_form_is_float(form)) return false;
    size_t value = quire_value_bytes(form), row = d * value;
    if (((uintptr_t)data | *token_stride | *head_stride) % value) return false;
    quire_fill_strides(row, s->n_q_heads, token_stride, head_stride);
    return rows_are_apart(row, s->n_queries, *token_stride, s->n_q_heads, *head_stride, is_written);
}

static bool shape_is_valid(const quire_attend_job *s)
{
    return s->n_kv_heads && s->n_q_heads && s->n_q_heads % s->n_kv_heads == 0 && s->d_k &&
           s->d_k <= QUIRE_MAX_D && s->d_v && s->d_v <= QUIRE_MAX_D && s->n_queries <= (uint32_t)INT32_MAX &&
           s->first_query <= (uint32_t)INT32_MAX &&
           (s->ring_tokens ? s->ring_sinks < s->ring_tokens : !s->ring_sinks);
}

quire_status quire_job_read(quire_job *job, const quire_attend_job *spec, const quire_attend_options *o)
{
    const quire_tile_list *list = job->list;
    *job = (quire_job){.spec = *spec, .list = list};
    quire_attend_job *s = &job->spec;
    if (!shape_is_valid(s) || (s->n_queries && (!s->q || !s->out))) return QUIRE_EINVAL;
    if (!check_rows(s, s->q_form, s->q, &s->q_token_stride, &s->q_head_stride, s->d_k, false) ||
        !check_rows(s, s->out_form, s->out, &s->out_token_stride, &s->out_head_stride, s->d_v, true))
        return QUIRE_EINVAL;
    if (o->flags & QUIRE_ATTEND_PARTIAL &&
        ((s->n_queries && (!s->max || !s->sum)) || s->out_form != QUIRE_F32))
        return QUIRE_EINVAL;
    quire_status status = read_mask(&job->mask, s->mask);
    if (!status) status = read_tiles(job);
    if (status) return status;
    job->n_per_kv = s->n_q_heads / s->n_kv_heads;
    uint64_t rows = (uint64_t)s->n_queries * job->n_per_kv;
    if (rows > UINT32_MAX - QUIRE_MAX_QUERY_ROWS) return QUIRE_EINVAL;
    job->n_rows = (uint32_t)rows;
    job->block_rows = QUIRE_MIN_BLOCK_ROWS;
    job->blocks_per_head = (job->n_rows + job->block_rows - 1) / job->block_rows;
    job->scale = o->scale != 0 ? o->scale : 1.0f / sqrtf((float)s->d_k);
    return QUIRE_OK;
}

/* Query rows of a block from which tiles of a format are expanded. */
static uint32_t expand_from(const quire_kernels *kernels, quire_family family,
                            const quire_tile_format *format)
{
    if (!kernels->expand[family]) return UINT32_MAX;
    return quire_must_expand(kernels, format, 0) ? 0 : kernels->expand_from[family];
}

void quire_job_fill_layouts(quire_job *job)
{
    const quire_kernels *kernels = job->kernels;
    for (uint32_t i = 0; i < job->n_layouts; i++) {
        const quire_list_layer *l = quire_list_layer_at(job->list, job->seq, i, job->spec.list_layer);
        const quire_tile_format *value = quire_list_value_format(l);
        quire_family k = quire_family_of(l->k_format->coder.codec), v = quire_family_of(value->coder.codec);
        job->layout[i] = (quire_job_layout){
            .k = l->k,
            .v = l->v,
            .k_head_stride = l->k_head_stride,
            .v_head_stride = l->v_head_stride,
            .k_format = l->k_format,
            .v_format = value,
            .score = kernels->score[k],
            .mix = kernels->mix[v],
            .expand_k = kernels->expand[k],
            .expand_v = kernels->expand[v],
            .transpose = kernels->transpose_k_to_v[v],
            .expand_k_from = expand_from(kernels, k, l->k_format),
            .expand_v_from = expand_from(kernels, v, value),
            .k_index = index_of(job->k, l->k_format),
            .v_index = index_of(job->v, value),
            .v_in_k = !l->v_format,
            .weighs_means = !l->v_format && l->k_format->profile,
            .is_integer = !quire_family_is_float(k),
        };
    }
}
