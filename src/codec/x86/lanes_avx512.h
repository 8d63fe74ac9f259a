/* SPDX-License-Identifier: MIT */
/* lanes_avx512: 16 lanes as one register. lanes_avx2.h has the same names; templates are written in them. */
#ifndef QUIRE_CODEC_X86_LANES_AVX512_H
#define QUIRE_CODEC_X86_LANES_AVX512_H

#include "core/cpu.h"

#if defined(QUIRE_X86)
#include <immintrin.h>

#define TARGET \
    __attribute__((target("avx2,fma,f16c,bmi,bmi2,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")))
#define LANES TARGET static inline __attribute__((always_inline))
#define LANES_RUN 8u /* vectors that a rotation keeps in registers */

typedef __m512 vf;    /* floats */
typedef __m512i vi;   /* 32-bit integers */
typedef __mmask16 vm; /* one truth per lane */

/* ------------------------------------------------------------------- floats */

LANES vf vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

LANES void vf_store(float *p, vf a)
{
    _mm512_storeu_ps(p, a);
}

LANES vf vf_load_f16(const void *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i_u *)p));
}

LANES void vf_store_f16(void *p, vf a)
{
    _mm256_storeu_si256((__m256i_u *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}

LANES vf vf_round_to_f16(vf a)
{
    return _mm512_cvtph_ps(_mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}

LANES vf vf_load_bf16(const void *p)
{
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i_u *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

/* To nearest even; values are finite and stay so. bf16 is the upper half of each lane. */
LANES vf vf_round_to_bf16(vf a)
{
    __m512i u = _mm512_castps_si512(a);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    u = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
    return _mm512_castsi512_ps(_mm512_and_si512(u, _mm512_set1_epi32((int32_t)0xffff0000u)));
}

LANES void vf_store_bf16(void *p, vf a)
{
    __m512i high = _mm512_srli_epi32(_mm512_castps_si512(vf_round_to_bf16(a)), 16);
    _mm256_storeu_si256((__m256i_u *)p, _mm512_cvtepi32_epi16(high));
}

LANES vf vf_set(float x)
{
    return _mm512_set1_ps(x);
}

LANES vf vf_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}

LANES vf vf_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}

LANES vf vf_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}

LANES vf vf_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}

/* a * b + c rounded once: only where that is exact anyway. */
LANES vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}

/* c - a * b */
LANES vf vf_fnma(vf a, vf b, vf c)
{
    return _mm512_fnmadd_ps(a, b, c);
}

LANES vf vf_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}

LANES vf vf_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}

LANES vf vf_abs(vf a)
{
    return _mm512_abs_ps(a);
}

/* Magnitude of a, sign of b. */
LANES vf vf_signed(vf a, vf b)
{
    const __m512i sign = _mm512_set1_epi32(INT32_MIN);
    return _mm512_castsi512_ps(
        _mm512_ternarylogic_epi32(sign, _mm512_castps_si512(b), _mm512_castps_si512(a), 0xca));
}

LANES vf vf_negate(vm m, vf a)
{
    return _mm512_mask_xor_ps(a, m, a, _mm512_set1_ps(-0.0f));
}

LANES vm vf_le(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ);
}

LANES vm vf_is_nan(vf a)
{
    return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
}

/* b where m holds, else a. */
LANES vf vf_pick(vm m, vf a, vf b)
{
    return _mm512_mask_mov_ps(a, m, b);
}

/* ---------------------------------------------------------- across the lanes */

/* Lane 0 of the result; the lanes fold in halves, as quire_lane_dot() has it. */
LANES float vf_sum(vf a)
{
    __m256 half = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}

LANES __m128 vf_most(vf a)
{
    __m256 half = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_max_ps(x, _mm_movehdup_ps(x));
}

/* Four at once: lane i of the result is that of the i-th. */
#define FOLD4(NAME, OP)                                                                    \
    LANES __m128 NAME(vf a, vf b, vf c, vf d)                                              \
    {                                                                                      \
        vf ab = OP(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));    \
        vf cd = OP(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));    \
        vf x = OP(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd)); \
        x = OP(x, _mm512_permute_ps(x, 0x4e));                                             \
        x = OP(x, _mm512_permute_ps(x, 0xb1));                                             \
        const __m512i firsts = _mm512_setr4_epi32(0, 4, 8, 12);                            \
        return _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, x));                   \
    }

FOLD4(vf_sum4, _mm512_add_ps)
FOLD4(vf_least4, _mm512_min_ps)
FOLD4(vf_most4, _mm512_max_ps)

/* Butterflies with strides 1, 2, 4, 8. a - b is b's lane times -1, plus a: the product is exact. */
LANES vf vf_hadamard16(vf a)
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

/* ----------------------------------------------------------------- integers */

LANES vi vi_set(int32_t x)
{
    return _mm512_set1_epi32(x);
}

LANES vi vi_load(const void *p)
{
    return _mm512_loadu_si512(p);
}

LANES void vi_store(void *p, vi a)
{
    _mm512_storeu_si512(p, a);
}

LANES vi vi_add(vi a, vi b)
{
    return _mm512_add_epi32(a, b);
}

LANES vi vi_sub(vi a, vi b)
{
    return _mm512_sub_epi32(a, b);
}

LANES vi vi_and(vi a, vi b)
{
    return _mm512_and_si512(a, b);
}

LANES vi vi_xor(vm m, vi a, vi b) /* where m holds */
{
    return _mm512_mask_xor_epi32(a, m, a, b);
}

LANES vi vi_left(vi a, uint32_t n)
{
    return _mm512_sll_epi32(a, _mm_cvtsi32_si128((int32_t)n));
}

LANES vi vi_right(vi a, uint32_t n)
{
    return _mm512_srl_epi32(a, _mm_cvtsi32_si128((int32_t)n));
}

/* Bits of b where the mask has ones, else those of a. */
LANES vi vi_merge(vi mask, vi a, vi b)
{
    return _mm512_ternarylogic_epi32(mask, b, a, 0xca);
}

/* a + 1 where m holds. */
LANES vi vi_count(vi a, vm m)
{
    return _mm512_mask_add_epi32(a, m, a, _mm512_set1_epi32(1));
}

LANES vm vi_gt(vi a, vi b)
{
    return _mm512_cmpgt_epi32_mask(a, b);
}

LANES vi vi_bits(vf a)
{
    return _mm512_castps_si512(a);
}

LANES vf vi_as_floats(vi a)
{
    return _mm512_castsi512_ps(a);
}

LANES vf vi_to_floats(vi a)
{
    return _mm512_cvtepi32_ps(a);
}

LANES vi vf_round(vf a)
{
    return _mm512_cvtps_epi32(a);
}

LANES vi vf_truncate(vf a)
{
    return _mm512_cvttps_epi32(a);
}

/* 16 bytes, from and to lanes of 0 to 255. */
LANES vi vi_load_bytes(const uint8_t *p)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i_u *)p));
}

LANES void vi_store_bytes(uint8_t *p, vi a)
{
    _mm_storeu_si128((__m128i_u *)p, _mm512_cvtepi32_epi8(a));
}

/* ------------------------------------------------------------------- truths */

LANES uint32_t vm_bits(vm m)
{
    return m;
}

LANES vm vm_and(vm a, vm b)
{
    return (vm)(a & b);
}

LANES bool vm_all(vm m)
{
    return _mm512_kortestc(m, m);
}

/* From a word with one bit per lane. */
LANES vm vm_of(uint32_t bits)
{
    return (vm)bits;
}

/* ------------------------------------------------------------------- tables */

/* Entry `index` of a table of 8, 16 or 32 floats; indices are below the size. */
LANES vf vf_entry8(const float *table, vi index)
{
    return _mm512_permutexvar_ps(index, _mm512_loadu_ps(table));
}

LANES vf vf_entry16(const float *table, vi index)
{
    return _mm512_permutexvar_ps(index, _mm512_loadu_ps(table));
}

LANES vf vf_entry32(const float *table, vi index)
{
    return _mm512_permutex2var_ps(_mm512_loadu_ps(table), index, _mm512_loadu_ps(table + 16));
}

/* A codec's table, to be looked up by 16 codes at once. */
typedef struct byte_table {
    __m512i entries;
} byte_table;

LANES byte_table byte_table_load(const int8_t *table, uint32_t bits)
{
    return (byte_table){_mm512_maskz_loadu_epi8(~(uint64_t)0 >> (64 - (1u << bits)), table)};
}

LANES vf vf_from_table(const byte_table *t, const uint8_t *code)
{
    __m512i index = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i_u *)code));
    __m512i found = _mm512_permutexvar_epi8(index, t->entries);
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm512_castsi512_si128(found)));
}

#endif
#endif
