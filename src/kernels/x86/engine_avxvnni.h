/* SPDX-License-Identifier: MIT */
/* engine: products with AVX-VNNI, of bytes: codes are unsigned, the two rows of z and that of r signed. */
#ifndef QUIRE_KERNELS_X86_ENGINE_AVXVNNI_H
#define QUIRE_KERNELS_X86_ENGINE_AVXVNNI_H

#define SIMD_TARGET "avx2,fma,f16c,bmi2,avxvnni"
#include "simd/avx2.h"

/* ------------------------------------------------------------ expanded tile */

#define VECTOR_BYTES 64u

SIMD_FN void put_half(uint8_t *to, size_t u, uint32_t half, __m256i x)
{
    store256(to + u * VECTOR_BYTES + half * 32, x);
}

SIMD_FN void put_quarter(uint8_t *to, size_t u, uint32_t quarter, __m128i x)
{
    _mm_storeu_si128((__m128i *)(to + u * VECTOR_BYTES + quarter * 16), x);
}

#include "kernels/x86/unpack_avx2.h"

/* ------------------------------------------------------------------- query_bytes */

/* 32 numbers of 16 bits in four registers as 64 bytes. */
SIMD_FN void split_z(__m256i z0, __m256i z1, __m256i z2, __m256i z3, int8_t *high_to, int8_t *low_to)
{
    __m256i a = _mm256_packs_epi32(z0, z1), b = _mm256_packs_epi32(z2, z3);
    const __m256i round = _mm256_set1_epi16(128), byte = _mm256_set1_epi16(255);
    __m256i high = _mm256_packs_epi16(_mm256_srai_epi16(_mm256_add_epi16(a, round), 8),
                                      _mm256_srai_epi16(_mm256_add_epi16(b, round), 8));
    __m256i low = _mm256_packus_epi16(_mm256_and_si256(a, byte), _mm256_and_si256(b, byte));
    store256(high_to, quads_in_order(high));
    store256(low_to, quads_in_order(low));
}

/* 64 whole numbers of up to 16 bits, |z| <= 32639, as two rows of bytes. */
SIMD_FN void vi_store_z(const vi z[4], int8_t *high_to, int8_t *low_to)
{
    split_z(z[0].a, z[0].b, z[1].a, z[1].b, high_to, low_to);
    split_z(z[2].a, z[2].b, z[3].a, z[3].b, high_to + 32, low_to + 32);
}

/* 64 whole numbers of 8 bits. */
SIMD_FN void vi_store_bytes(const vi z[4], int8_t *to)
{
    for (uint32_t j = 0; j < 4; j += 2) {
        __m256i a = _mm256_packs_epi32(z[j].a, z[j].b), b = _mm256_packs_epi32(z[j + 1].a, z[j + 1].b);
        store256(to + j * 16, quads_in_order(_mm256_packs_epi16(a, b)));
    }
}

#define R_IS_STORED
#include "kernels/multiply_queries.h"

/* ----------------------------------------------------------------- products */

typedef __m256i codes;

typedef struct row_sums {
    __m256i high, low, r;
} row_sums;

SIMD_FN codes codes_packed(const uint8_t *p, const uint32_t i, const uint32_t half, const uint32_t bits,
                           const bool table, const lookup *t)
{
    return unpack1(p, i, half, bits, table, t);
}

SIMD_FN codes codes_expanded(const uint8_t *p, size_t u, const uint32_t half)
{
    return load256(p + u * VECTOR_BYTES + half * 32);
}

SIMD_FN row_sums no_sums(void)
{
    return (row_sums){_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256()};
}

SIMD_FN __m256i broadcast_word(const int8_t *p)
{
    int32_t word;
    memcpy(&word, p, sizeof word);
    return _mm256_set1_epi32(word);
}

/* One row of bytes of `group` quads. The products of a group make a chain of their own, which is added at its end: an
 * accumulator that took each of them would be busy longer (5 cycles each) than the multipliers (2 a cycle). */
SIMD_FN __m256i add_bytes(__m256i sum, codes x[][2], const uint32_t h, const uint32_t group,
                          const int8_t *bytes)
{
    if (group == 1) return _mm256_dpbusd_avx_epi32(sum, x[0][h], broadcast_word(bytes));
    __m256i chain = _mm256_setzero_si256();
    SIMD_UNROLL(4)
    for (uint32_t j = 0; j < group; j++)
        chain = _mm256_dpbusd_avx_epi32(chain, x[j][h], broadcast_word(bytes + j * 4));
    sum = _mm256_add_epi32(sum, chain);
    __asm__("" : "+x"(sum)); /* now; else the compiler adds chains to one another and keeps them in memory */
    return sum;
}

SIMD_FN void add_codes(row_sums *a, codes x[][2], const uint32_t h, const uint32_t group,
                       const query_bytes *q, uint32_t row, size_t at, const bool with_r)
{
    const int8_t *z = q->z + 2 * row * q->stride + at;
    a->high = add_bytes(a->high, x, h, group, z);
    a->low = add_bytes(a->low, x, h, group, z + q->stride);
    if (with_r) a->r = add_bytes(a->r, x, h, group, q->r + row * q->r_stride + at);
}

SIMD_FN __m256i sum_of_z(row_sums a)
{
    return _mm256_add_epi32(_mm256_slli_epi32(a.high, 8), a.low);
}

SIMD_FN __m256i sum_of_r(row_sums a)
{
    return a.r;
}

SIMD_FN uint32_t halves_at_once(const uint32_t rows, const bool with_r)
{
    (void)rows;
    (void)with_r;
    return 1;
}

/* Twelve accumulators leave no room for codes, and are enough by themselves. */
SIMD_FN uint32_t vectors_at_once(const uint32_t rows, const bool with_r)
{
    return with_r && rows > 3 ? 1 : 4;
}

#define MULTIPLY_NAME(name) quire_multiply_##name##_avxvnni
#include "kernels/x86/products_avx2.h"

#endif
