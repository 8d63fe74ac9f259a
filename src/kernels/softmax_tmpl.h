/* SPDX-License-Identifier: MIT */
/* softmax_tmpl: scores of a tile become weights, with running maximum and sum. See score_tmpl.h. */
#ifndef QUIRE_KERNELS_SOFTMAX_TMPL_H
#define QUIRE_KERNELS_SOFTMAX_TMPL_H

#include <math.h>

/* Called from softmax_update() if it has more than four rows. An engine that becomes slow without work defines it. */
#ifndef ENGINE_SLEEPS
SIMD_FN void keep_engine_awake(void) {}
#endif

/* From here on a difference of scores is rounded so much that a weight might exceed 1 by more than z has room. */
#define LARGE_SCORE 8192.0f

/* Scores so large that their differences might not be finite. */
SIMD_CALL void clamp_scores(float *x, float unit)
{
    for (uint32_t t = 0; t < QUIRE_TILE_ROWS; t++) {
        float s = x[t] * unit;
        if (s > QUIRE_LARGEST_SCORE) s = QUIRE_LARGEST_SCORE;
        if (s < -QUIRE_LARGEST_SCORE) s = -QUIRE_LARGEST_SCORE;
        x[t] = s;
    }
}

/* By lanes: the largest visible score. */
SIMD_FN vf largest_scores(const float *x, uint64_t visible)
{
    if (visible == ~(uint64_t)0)
        return vf_max(vf_max(vf_load(x), vf_load(x + 16)), vf_max(vf_load(x + 32), vf_load(x + 48)));
    vf top = vf_set1(-INFINITY);
    for (uint32_t j = 0; j < 4; j++)
        top = vf_max(vf_select(vm_of_bits(visible >> j * 16), vf_load(x + j * 16), vf_set1(-INFINITY)), top);
    return top;
}

COMMON_CALL void COMMON_NAME(softmax_update)(float *scores, const uint64_t *visible, const float *unit,
                                             uint32_t n, quire_softmax *s, float *factor)
{
    float top[16], by[16], most[16], shrink[16], share[16];
    vf_store(top, vf_set1(0));
    vf_store(most, vf_set1(0));
    for (uint32_t first = 0; first < n; first += 4) {
        vf each[4];
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t row = first + i < n ? first + i : n - 1;
            each[i] = largest_scores(scores + (size_t)row * QUIRE_TILE_ROWS, visible[row]);
        }
        vf_reduce_max4(each, top + first);
    }
    for (uint32_t i = 0; i < n; i++) {
        by[i] = unit[i];
        top[i] = visible[i] ? top[i] * by[i] : -INFINITY;
        if (visible[i] && !(fabsf(top[i]) < LARGE_SCORE)) {
            float *x = scores + (size_t)i * QUIRE_TILE_ROWS;
            clamp_scores(x, by[i]);
            by[i] = 1;
            top[i] = vf_reduce_max(largest_scores(x, visible[i]));
        }
        most[i] = s->max[i];
    }
    vf old = vf_load(most), new = vf_max(vf_load(top), old);
    vf_store(most, new);
    vf_store(shrink, vf_exp2(vf_sub(old, new))); /* -inf - -inf: NaN, in rows that stay empty */
    vf_store(share, vf_exp2(vf_sub(vf_load(top), new)));
    for (uint32_t i = 0; i < n; i++) {
        float *x = scores + (size_t)i * QUIRE_TILE_ROWS;
        if (s->integer_products && i % 8 == 4) keep_engine_awake();
        factor[i] = 0;
        if (!visible[i]) {
            for (uint32_t j = 0; j < 4; j++) vf_store(x + j * 16, vf_set1(0));
            continue;
        }
        vf sum = vf_set1(0), by_i = vf_set1(by[i]), down = vf_set1(-top[i]);
        for (uint32_t j = 0; j < 4; j++) {
            vf p = vf_exp2(vf_fma(vf_load(x + j * 16), by_i, down));
            if (visible[i] != ~(uint64_t)0) p = vf_keep(vm_of_bits(visible[i] >> j * 16), p);
            sum = vf_add(sum, p);
            vf_store(x + j * 16, p);
        }
        float *total = s->sum + (size_t)i * 16;
        vf_store(total, vf_fma(vf_load(total), vf_set1(shrink[i]), vf_mul(sum, vf_set1(share[i]))));
        s->max[i] = most[i];
        factor[i] = share[i];
        if (shrink[i] != 1) {
            float *acc = s->acc + i * s->stride;
            for (size_t c = 0; c < s->stride; c += 16)
                vf_store(acc + c, vf_mul(vf_load(acc + c), vf_set1(shrink[i])));
        }
    }
}

#endif
