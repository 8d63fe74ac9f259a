/* SPDX-License-Identifier: MIT */
/* exp2: powers of 2, one at a time, and the constants of the versions in lanes. */
#ifndef QUIRE_SIMD_EXP2_H
#define QUIRE_SIMD_EXP2_H

#include "core/core.h"

/*
 * 2^x for x <= 0, relative error below 3e-7 down to 2^-126, 0 below. It is
 * the series of 2^f on [-1/2, 1/2] to degree 6, whose remainder is (ln 2 / 2)^7 / 7! = 1.2e-7.
 */
#define QUIRE_EXP2_6 1.54035304e-4f
#define QUIRE_EXP2_5 1.33335581e-3f
#define QUIRE_EXP2_4 9.61812911e-3f
#define QUIRE_EXP2_3 5.55041087e-2f
#define QUIRE_EXP2_2 2.40226507e-1f
#define QUIRE_EXP2_1 6.93147181e-1f

/* The same with floor(x) taken off: 2^f on [0, 1], exact at 0, relative error 3e-6. Two operations less where the
 * processor has one for 2^floor(x). */
#define QUIRE_EXP2_FLOOR_4 1.34266652e-2f
#define QUIRE_EXP2_FLOOR_3 5.22425026e-2f
#define QUIRE_EXP2_FLOOR_2 2.41280198e-1f
#define QUIRE_EXP2_FLOOR_1 6.93044841e-1f

static inline float quire_exp2(float x)
{
    if (!(x >= -126.0f)) return x < -126.0f ? 0.0f : x; /* NaN stays NaN */
    float rounded = x + 12582912.0f;                    /* 1.5 * 2^23: the sum rounds x to a whole number */
    int32_t n = (int32_t)(quire_bits_of(rounded) - 0x4b400000u);
    float f = x - (rounded - 12582912.0f);
    float r = QUIRE_EXP2_6;
    r = r * f + QUIRE_EXP2_5;
    r = r * f + QUIRE_EXP2_4;
    r = r * f + QUIRE_EXP2_3;
    r = r * f + QUIRE_EXP2_2;
    r = r * f + QUIRE_EXP2_1;
    r = r * f + 1.0f;
    return quire_float_of((uint32_t)(n + 127) << 23) * r;
}

#endif
