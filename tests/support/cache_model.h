/* SPDX-License-Identifier: MIT */
/*
 * A cache that is an array of rows: what a pool with sequences must look like from outside. Rows are nodes of
 * row_model.h. Pages exist only to know what is still held, which codec a position has, who shares it, and how much of
 * the budget is used.
 */
#ifndef QUIRE_TESTS_CACHE_MODEL_H
#define QUIRE_TESTS_CACHE_MODEL_H

#include "support/row_model.h"

typedef struct model_page {
    uint32_t refs, layout;
} model_page;

typedef struct model_pool {
    quire_pool *real;
    size_t budget, used;
    uint64_t n_pages, n_copies;
} model_pool;

/* Positions and pages are stored at their own index; a page that was given up is NULL. */
typedef struct model_seq {
    quire_seq *real;
    model_pool *pool;
    quire_seq_options ring;
    uint32_t plan, length;
    uint32_t cap; /* positions that there is room for, a multiple of 64 */
    uint32_t *node[ROW_MAX_GROUPS];
    model_page **page[ROW_MAX_GROUPS];
} model_seq;

static inline uint32_t model_pages(uint32_t tokens)
{
    return (tokens + QUIRE_PAGE_TOKENS - 1) / QUIRE_PAGE_TOKENS;
}

model_seq *model_seq_create(model_pool *pool, uint32_t plan, const quire_seq_options *ring);
void model_seq_destroy(const row_world *w, model_seq *s);
model_seq *model_seq_fork(const row_world *w, const model_seq *s);
/* The same rows in pages of their own, as a snapshot has them. */
model_seq *model_seq_restore(const row_world *w, const model_seq *s, model_pool *pool);
size_t model_seq_bytes(const row_world *w, const model_seq *s);

/* Whether the row at j < length is seen by the query at p. */
bool model_sees(const row_world *w, const model_seq *s, uint32_t group, uint32_t p, uint32_t j);
bool model_holds(const model_seq *s, uint32_t group, uint32_t j);
/* Every row that a query at `length` would see is held. */
bool model_can_trim(const row_world *w, const model_seq *s, uint32_t length);
void model_trim(const row_world *w, model_seq *s, uint32_t length);

/* Budget that n more tokens need. */
size_t model_append_bytes(const row_world *w, const model_seq *s, uint32_t n);
/* Pages for n more tokens, filled with the tokens of the bank, not yet part of the length. */
void model_reserve(row_world *w, model_seq *s, const uint32_t *tokens, uint32_t n, model_page **replaced);
void model_commit(const row_world *w, model_seq *s, uint32_t n, model_page **replaced);
void model_abort(const row_world *w, model_seq *s, uint32_t n, model_page **replaced);

/* Largest share of the budget that converting page by page needs beyond what is used now. Sequences that are converted
 * together go on sharing their pages. */
size_t model_convert_bytes(const row_world *w, model_seq *const *seqs, uint32_t n, uint32_t plan,
                           uint32_t flags);
void model_convert(row_world *w, model_seq *const *seqs, uint32_t n, uint32_t plan, uint32_t flags);

/* Attention of one query row over the rows of the model, in double precision. out: d_v values. */
void model_attend(const row_world *w, const model_seq *s, uint32_t layer, uint32_t q_head, uint32_t p,
                  const float *q, double *out);

#endif
