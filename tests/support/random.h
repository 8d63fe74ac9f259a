/* SPDX-License-Identifier: MIT */
/* Random numbers for tests: splitmix64, the same on every machine. */
#ifndef QUIRE_TESTS_RANDOM_H
#define QUIRE_TESTS_RANDOM_H

#include <stdint.h>

typedef struct rng {
    uint64_t state;
} rng;

static inline uint64_t rng_bits(rng *r)
{
    uint64_t z = r->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* 0 to n - 1; 0 if n is 0. */
static inline uint32_t rng_below(rng *r, uint32_t n)
{
    return n ? (uint32_t)((rng_bits(r) >> 32) * n >> 32) : 0;
}

/* lo to hi, both included. */
static inline uint32_t rng_between(rng *r, uint32_t lo, uint32_t hi)
{
    return lo + rng_below(r, hi - lo + 1);
}

/* About normal: the sum of twelve 16-bit uniform numbers has variance 1. Exact sums, no libm. */
static inline float rng_normal(rng *r)
{
    int64_t sum = 0;
    for (int i = 0; i < 3; i++)
        for (uint64_t bits = rng_bits(r), k = 0; k < 4; k++, bits >>= 16) sum += (int64_t)(bits & 0xffff);
    return (float)(sum - 6 * 65535) / 65536.0f;
}

#endif
