/* SPDX-License-Identifier: MIT */
/* shared: functions that two instruction sets share, SHARED_NAME(name); one of them defines those it shares. */
#ifndef QUIRE_KERNELS_SHARED_H
#define QUIRE_KERNELS_SHARED_H

#include "kernels/epilogue.h"

typedef void score_codes_fn(const quire_source *k, const quire_queries *q, uint32_t first, uint32_t n,
                            uint32_t partial, float *scores, void *scratch, const code_loops *loops);

typedef void mix_codes_fn(const quire_source *v, uint32_t d_out, const float *p, const uint64_t *visible,
                          const float *factor, uint32_t n, float *acc, size_t stride, void *scratch,
                          const code_loops *loops);

quire_score_fn SHARED_NAME(score_f32), SHARED_NAME(score_f16), SHARED_NAME(score_bf16);
quire_mix_fn SHARED_NAME(mix_f32), SHARED_NAME(mix_f16), SHARED_NAME(mix_bf16);
quire_expand_tile_fn SHARED_NAME(expand_f32), SHARED_NAME(expand_f16), SHARED_NAME(expand_bf16);
quire_expand_tile_fn SHARED_NAME(transpose_f32), SHARED_NAME(transpose_f16), SHARED_NAME(transpose_bf16);
score_codes_fn SHARED_NAME(score_biased), SHARED_NAME(score_plain);
quire_softmax_update_fn SHARED_NAME(softmax_update);
mix_codes_fn SHARED_NAME(mix_biased), SHARED_NAME(mix_plain);
quire_load_queries_fn SHARED_NAME(load_queries);
quire_add_bias_sums_fn SHARED_NAME(add_bias_sums);

#endif
