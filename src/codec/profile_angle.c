/* SPDX-License-Identifier: MIT */
/*
 * profile: sine and cosine with the same bits everywhere. C libraries round them differently, and what a profile gathers with
 * them is digested. Only operations that IEEE 754 rounds exactly are used, in one order.
 */
#include "codec/profile.h"

#include <math.h>

/*
 * Half of pi in three parts of 20 bits and a rest. A product of a part with a whole number below 2^33 is exact, so that an
 * angle below ANGLE_MAX loses nothing but the rounding of the last two subtractions, 2^-53.
 */
#define ANGLE_MAX 0x1p33
#define HALF_PI_1 0x1.921fcp+0
#define HALF_PI_2 (-0x1.5777ap-21)
#define HALF_PI_3 (-0x1.73dccp-43)
#define HALF_PI_4 0x1.898cc51701b84p-64
#define TWO_PI 0x1.921fb54442d18p+2
#define TWO_BY_PI 0x1.45f306dc9c883p-1
#define WHOLE 0x1.8p52 /* added and subtracted, it leaves the nearest whole number */

/* Taylor's series up to the terms that a double can still feel: |x| is at most a quarter of pi and a little. */
static double sine(double x)
{
    double z = x * x, p = 1.0 / 355687428096000;
    p = p * z - 1.0 / 1307674368000;
    p = p * z + 1.0 / 6227020800;
    p = p * z - 1.0 / 39916800;
    p = p * z + 1.0 / 362880;
    p = p * z - 1.0 / 5040;
    p = p * z + 1.0 / 120;
    p = p * z - 1.0 / 6;
    return x + x * (p * z);
}

static double cosine(double x)
{
    double z = x * x, p = -1.0 / 6402373705728000;
    p = p * z + 1.0 / 20922789888000;
    p = p * z - 1.0 / 87178291200;
    p = p * z + 1.0 / 479001600;
    p = p * z - 1.0 / 3628800;
    p = p * z + 1.0 / 40320;
    p = p * z - 1.0 / 720;
    p = p * z + 1.0 / 24;
    p = p * z - 0.5;
    return 1 + p * z;
}

void quire_angle(double angle, double *c, double *s)
{
    if (!isfinite(angle)) {
        *c = *s = NAN;
        return;
    }
    /* No model has such angles: the result may be less exact. fmod() itself is, in every C library. */
    if (fabs(angle) >= ANGLE_MAX) angle = fmod(angle, TWO_PI);
    double n = (angle * TWO_BY_PI + WHOLE) - WHOLE;
    double x = angle - n * HALF_PI_1;
    x -= n * HALF_PI_2;
    x -= n * HALF_PI_3;
    x -= n * HALF_PI_4;
    double sx = sine(x), cx = cosine(x);
    switch ((int64_t)n & 3) {
    case 0: *c = cx, *s = sx; break;
    case 1: *c = -sx, *s = cx; break;
    case 2: *c = -cx, *s = -sx; break;
    default: *c = sx, *s = -cx; break;
    }
}
