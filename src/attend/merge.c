/* SPDX-License-Identifier: MIT */
/* attend: joining partial results outside of one call. */
#include "attend/attend.h"

#include "core/float_mode.h"

#include <math.h>

QUIRE_APART static void merge(float *acc, float *max, float *sum, const float *acc2, const float *max2,
                              const float *sum2, uint32_t n_rows, uint32_t d_v)
{
    for (uint32_t i = 0; i < n_rows; i++) {
        if (sum2[i] == 0) continue;
        float top = sum[i] == 0 || max2[i] > max[i] ? max2[i] : max[i];
        float a = sum[i] == 0 ? 0 : quire_exp2((max[i] - top) * QUIRE_LOG2_E);
        float b = quire_exp2((max2[i] - top) * QUIRE_LOG2_E);
        max[i] = top;
        sum[i] = sum[i] * a + sum2[i] * b;
        for (size_t c = (size_t)i * d_v; c < (size_t)(i + 1) * d_v; c++) acc[c] = acc[c] * a + acc2[c] * b;
    }
}

void quire_attend_merge(float *acc, float *max, float *sum, const float *acc2, const float *max2,
                        const float *sum2, uint32_t n_rows, uint32_t d_v)
{
    uint32_t mode = quire_float_mode_enter();
    merge(acc, max, sum, acc2, max2, sum2, n_rows, d_v);
    quire_float_mode_leave(mode);
}

QUIRE_APART static void finish(float *acc, const float *max, const float *sum, uint32_t n_rows, uint32_t d_v,
                               const float *sink_logits, uint32_t n_heads)
{
    for (uint32_t i = 0; i < n_rows; i++) {
        float sink = sink_logits && n_heads ? sink_logits[i % n_heads] * QUIRE_LOG2_E : -INFINITY;
        float factor = sum[i] == 0 ? 0 : quire_final_factor(max[i] * QUIRE_LOG2_E, sum[i], sink);
        for (size_t c = (size_t)i * d_v; c < (size_t)(i + 1) * d_v; c++)
            acc[c] = sum[i] == 0 ? 0 : acc[c] * factor;
    }
}

void quire_attend_finish(float *acc, const float *max, const float *sum, uint32_t n_rows, uint32_t d_v,
                         const float *sink_logits, uint32_t n_heads)
{
    uint32_t mode = quire_float_mode_enter();
    finish(acc, max, sum, n_rows, d_v, sink_logits, n_heads);
    quire_float_mode_leave(mode);
}
