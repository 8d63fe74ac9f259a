/* SPDX-License-Identifier: MIT */
/* avx512_encode: what only encoding needs of lanes with AVX-512. */
#ifndef QUIRE_SIMD_AVX512_ENCODE_H
#define QUIRE_SIMD_AVX512_ENCODE_H

#include "simd/avx512.h"

#include "simd/four_sse.h"

#define HADAMARD_VECTORS 8u /* that a rotation keeps in registers */

/* Four vectors at once: lane i of the result is the sum, the least or the largest lane of the i-th. */
#define FOLD4(NAME, OP)                                                                    \
    SIMD_FN __m128 NAME(vf a, vf b, vf c, vf d)                                            \
    {                                                                                      \
        vf ab = OP(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));    \
        vf cd = OP(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));    \
        vf x = OP(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd)); \
        x = OP(x, _mm512_permute_ps(x, 0x4e));                                             \
        x = OP(x, _mm512_permute_ps(x, 0xb1));                                             \
        const __m512i firsts = _mm512_setr4_epi32(0, 4, 8, 12);                            \
        return _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, x));                   \
    }

FOLD4(vf_fold_add4, _mm512_add_ps)
FOLD4(vf_fold_min4, _mm512_min_ps)
FOLD4(vf_fold_max4, _mm512_max_ps)

/* Lane j changes its sign if bit i + j of `minus` is 1; i is a multiple of 16. */
SIMD_FN vf vf_change_signs(vf v, const uint64_t *minus, uint32_t i)
{
    return vf_negate(vm_of_bits((uint32_t)(minus[i / 64] >> i % 64) & 0xffff), v);
}

/* Butterflies with strides 1, 2, 4, 8. a - b is b's lane times -1, plus a: the product is exact. */
SIMD_FN vf vf_hadamard16(vf a)
{
    const vf sign1 = _mm512_castsi512_ps(_mm512_set1_epi64((int64_t)0xbf8000003f800000u));
    const vf sign2 = _mm512_setr4_ps(1, 1, -1, -1);
    const vf sign4 = _mm512_setr_ps(1, 1, 1, 1, -1, -1, -1, -1, 1, 1, 1, 1, -1, -1, -1, -1);
    const vf sign8 = _mm512_setr_ps(1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1, -1);
    a = _mm512_fmadd_ps(a, sign1, _mm512_permute_ps(a, 0xb1));
    a = _mm512_fmadd_ps(a, sign2, _mm512_permute_ps(a, 0x4e));
    a = _mm512_fmadd_ps(a, sign4, _mm512_shuffle_f32x4(a, a, 0xb1));
    return _mm512_fmadd_ps(a, sign8, _mm512_shuffle_f32x4(a, a, 0x4e));
}

/* Entry `index` of a table of 8 or 32 floats; indices are below the size. */
SIMD_FN vf vf_entry8(const float *table, vi index)
{
    return _mm512_permutexvar_ps(index, _mm512_loadu_ps(table));
}

SIMD_FN vf vf_entry32(const float *table, vi index)
{
    return _mm512_permutex2var_ps(_mm512_loadu_ps(table), index, _mm512_loadu_ps(table + 16));
}

/* A codec's table, to be looked up by 16 codes at once: words of 16 bits, whose permutations are older than those of bytes. */
typedef struct byte_table {
    __m512i low, high; /* 32 entries each */
} byte_table;

SIMD_FN byte_table byte_table_load(const int8_t *table, uint32_t bits)
{
    __m512i entries = _mm512_maskz_loadu_epi8(~(uint64_t)0 >> (64 - (1u << bits)), table);
    return (byte_table){_mm512_cvtepi8_epi16(_mm512_castsi512_si256(entries)),
                        _mm512_cvtepi8_epi16(_mm512_extracti64x4_epi64(entries, 1))};
}

SIMD_FN vf vf_from_table(const byte_table *t, const uint8_t *code)
{
    __m256i index = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i_u *)code));
    __m512i found = _mm512_permutex2var_epi16(t->low, _mm512_castsi256_si512(index), t->high);
    return _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(_mm512_castsi512_si256(found)));
}

#endif
