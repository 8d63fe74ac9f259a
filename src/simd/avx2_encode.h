/* SPDX-License-Identifier: MIT */
/* avx2_encode: what only encoding needs of lanes with AVX2. */
#ifndef QUIRE_SIMD_AVX2_ENCODE_H
#define QUIRE_SIMD_AVX2_ENCODE_H

#include "simd/avx2.h"

#include "simd/four_sse.h"

#define HADAMARD_VECTORS 4u /* that a rotation keeps in registers */

/* Four vectors at once: lane i of the result is the sum, the least or the largest lane of the i-th. */
#define FOLD4(NAME, OP)                                                                               \
    SIMD_FN __m128 NAME(vf a, vf b, vf c, vf d)                                                       \
    {                                                                                                 \
        __m256 a8 = OP(a.a, a.b), b8 = OP(b.a, b.b), c8 = OP(c.a, c.b), d8 = OP(d.a, d.b);            \
        __m256 ab = OP(_mm256_permute2f128_ps(a8, b8, 0x20), _mm256_permute2f128_ps(a8, b8, 0x31));   \
        __m256 cd = OP(_mm256_permute2f128_ps(c8, d8, 0x20), _mm256_permute2f128_ps(c8, d8, 0x31));   \
        __m256 x = OP(_mm256_unpacklo_ps(ab, cd), _mm256_unpackhi_ps(ab, cd)); /* a c a c, b d b d */ \
        x = OP(x, _mm256_permute_ps(x, 0x4e));                                                        \
        return _mm_unpacklo_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));               \
    }

FOLD4(vf_fold_add4, _mm256_add_ps)
FOLD4(vf_fold_min4, _mm256_min_ps)
FOLD4(vf_fold_max4, _mm256_max_ps)

SIMD_FN __m256 hadamard8(__m256 a)
{
    const __m256 sign1 = _mm256_setr_ps(1, -1, 1, -1, 1, -1, 1, -1);
    const __m256 sign2 = _mm256_setr_ps(1, 1, -1, -1, 1, 1, -1, -1);
    const __m256 sign4 = _mm256_setr_ps(1, 1, 1, 1, -1, -1, -1, -1);
    a = _mm256_fmadd_ps(a, sign1, _mm256_permute_ps(a, 0xb1));
    a = _mm256_fmadd_ps(a, sign2, _mm256_permute_ps(a, 0x4e));
    return _mm256_fmadd_ps(a, sign4, _mm256_permute2f128_ps(a, a, 0x01));
}

/* Butterflies with strides 1, 2, 4, 8. a - b is b's lane times -1, plus a: the product is exact. */
SIMD_FN vf vf_hadamard16(vf a)
{
    __m256 l = hadamard8(a.a), h = hadamard8(a.b);
    return (vf){_mm256_add_ps(l, h), _mm256_sub_ps(l, h)};
}

/* Lane j changes its sign if bit i + j of `minus` is 1; i is a multiple of 16. */
SIMD_FN vf vf_change_signs(vf v, const uint64_t *minus, uint32_t i)
{
    const __m256i to_top = _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24);
    const __m256i sign = _mm256_set1_epi32(INT32_MIN);
    __m256i bits = _mm256_set1_epi16((int16_t)quire_load16((const uint8_t *)minus + i / 8));
    __m256i a = _mm256_sllv_epi32(bits, to_top);
    __m256i b = _mm256_sllv_epi32(bits, _mm256_sub_epi32(to_top, _mm256_set1_epi32(8)));
    return (vf){_mm256_xor_ps(v.a, _mm256_castsi256_ps(_mm256_and_si256(a, sign))),
                _mm256_xor_ps(v.b, _mm256_castsi256_ps(_mm256_and_si256(b, sign)))};
}

SIMD_FN __m256 entry32(const float *table, __m256i index)
{
    __m256 low = entry16_of(_mm256_loadu_ps(table), _mm256_loadu_ps(table + 8), index);
    __m256 high = entry16_of(_mm256_loadu_ps(table + 16), _mm256_loadu_ps(table + 24), index);
    return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(index, 27))); /* by bit 4 */
}

/* Entry `index` of a table of 8 or 32 floats; indices are below the size. */
SIMD_FN vf vf_entry8(const float *table, vi index)
{
    __m256 entries = _mm256_loadu_ps(table);
    return (vf){_mm256_permutevar8x32_ps(entries, index.a), _mm256_permutevar8x32_ps(entries, index.b)};
}

SIMD_FN vf vf_entry32(const float *table, vi index)
{
    return (vf){entry32(table, index.a), entry32(table, index.b)};
}

/* A codec's table, to be looked up by 16 codes at once. */
typedef struct byte_table {
    uint32_t n;         /* sixteens of entries */
    __m128i entries[4]; /* beyond the end: 0 */
} byte_table;

SIMD_FN byte_table byte_table_load(const int8_t *table, uint32_t bits)
{
    byte_table t = {bits > 4 ? 1u << (bits - 4) : 1, {{0}}};
    memcpy(t.entries, table, (size_t)1 << bits);
    return t;
}

/* An index of 0x70 to 0x7f takes an entry, one from 0x80 on gives 0: each code finds itself in one sixteen. */
SIMD_FN vf vf_from_table(const byte_table *t, const uint8_t *code)
{
    __m128i rest = _mm_loadu_si128((const __m128i_u *)code), found = _mm_setzero_si128();
    for (uint32_t i = 0; i < t->n; i++) {
        __m128i index = _mm_adds_epu8(rest, _mm_set1_epi8(0x70));
        found = _mm_or_si128(found, _mm_shuffle_epi8(t->entries[i], index));
        rest = _mm_sub_epi8(rest, _mm_set1_epi8(16));
    }
    return vi_to_float((vi){_mm256_cvtepi8_epi32(found), _mm256_cvtepi8_epi32(_mm_srli_si128(found, 8))});
}

#endif
