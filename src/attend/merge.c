/* SPDX-License-Identifier: MIT */
/* attend: joining partial results outside of one call. */
#include "attend/attend.h"

#include <math.h>

#define LOG2_E 1.44269504f

void quire_attend_merge(float *acc, float *max, float *sum, const float *acc2, const float *max2,
                        const float *sum2, uint32_t n_rows, uint32_t d_v)
{
    for (uint32_t i = 0; i < n_rows; i++) {
        if (sum2[i] == 0) continue;
        float top = sum[i] == 0 || max2[i] > max[i] ? max2[i] : max[i];
        float a = sum[i] == 0 ? 0 : quire_exp2((max[i] - top) * LOG2_E),
              b = quire_exp2((max2[i] - top) * LOG2_E);
        max[i] = top;
        sum[i] = sum[i] * a + sum2[i] * b;
        for (size_t c = (size_t)i * d_v; c < (size_t)(i + 1) * d_v; c++) acc[c] = acc[c] * a + acc2[c] * b;
    }
}

void quire_attend_finish(float *acc, const float *max, const float *sum, uint32_t n_rows, uint32_t d_v,
                         const float *sink_logits, uint32_t n_heads)
{
    for (uint32_t i = 0; i < n_rows; i++) {
        float factor = 0;
        if (sum[i] != 0) {
            float top = max[i], sink = sink_logits ? sink_logits[i % n_heads] : -INFINITY;
            if (sink > top) top = sink;
            float shrink = quire_exp2((max[i] - top) * LOG2_E);
            float extra = sink_logits ? quire_exp2((sink - top) * LOG2_E) : 0;
            factor = shrink / (sum[i] * shrink + extra);
        }
        for (size_t c = (size_t)i * d_v; c < (size_t)(i + 1) * d_v; c++)
            acc[c] = sum[i] == 0 ? 0 : acc[c] * factor;
    }
}
