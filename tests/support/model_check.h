/* SPDX-License-Identifier: MIT */
/* Comparing sequences and pools with their model. false: *why says what differs. */
#ifndef QUIRE_TESTS_MODEL_CHECK_H
#define QUIRE_TESTS_MODEL_CHECK_H

#include "support/cache_model.h"

typedef struct model_why {
    char text[256];
} model_why;

/* Rows [first, first + n), n <= 64, as f32 and in the codec's own bytes, or the refusals that are due. */
bool model_check_rows(const row_world *w, const model_seq *s, uint32_t layer, quire_side side, uint32_t first,
                      uint32_t n, model_why *why);
/* Length, plan, trim floor, tiles. */
bool model_check_shape(const row_world *w, const model_seq *s, model_why *why);
/* All rows of all layers, and the shape. */
bool model_check_seq(const row_world *w, const model_seq *s, model_why *why);
/* What the pool says about its pages. */
bool model_check_pool(model_pool *pool, model_why *why);
/* out: what attend gave for n queries from position `first` on. */
bool model_check_attend(const row_world *w, const model_seq *s, uint32_t layer, uint32_t first, uint32_t n,
                        const float *q, const float *out, model_why *why);

#endif
