/* SPDX-License-Identifier: MIT */
/* lane_dot: sums over the channels of a row, in the one order that every instruction set can reproduce. */
#ifndef QUIRE_SIMD_LANE_DOT_H
#define QUIRE_SIMD_LANE_DOT_H

#include <stdint.h>

#define QUIRE_LANES 16u

/*
 * Sum of a[i] * b[i]: each product is rounded, lane l adds the products l, l + 16, ..., then the lanes are
 * folded in halves. 16 is one AVX-512 vector, two of AVX2, four of NEON; all of them keep this order.
 */
static inline float quire_lane_dot(const float *a, const float *b, uint32_t n)
{
    float lane[QUIRE_LANES] = {0};
    uint32_t i = 0;
    for (; i + QUIRE_LANES <= n; i += QUIRE_LANES)
        for (uint32_t l = 0; l < QUIRE_LANES; l++) lane[l] += a[i + l] * b[i + l];
    for (uint32_t l = 0; i + l < n; l++) lane[l] += a[i + l] * b[i + l];
    for (uint32_t half = QUIRE_LANES / 2; half; half /= 2)
        for (uint32_t l = 0; l < half; l++) lane[l] += lane[l + half];
    return lane[0];
}

#endif
