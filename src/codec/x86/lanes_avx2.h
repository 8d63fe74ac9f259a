/* SPDX-License-Identifier: MIT */
/* lanes_avx2: 16 lanes as two registers. lanes_avx512.h has the same names; templates are written in them. */
#ifndef QUIRE_CODEC_X86_LANES_AVX2_H
#define QUIRE_CODEC_X86_LANES_AVX2_H

#include "core/cpu.h"

#if defined(QUIRE_X86)
#include <immintrin.h>

#define TARGET __attribute__((target("avx2,fma,f16c,bmi,bmi2")))
#define LANES TARGET static inline __attribute__((always_inline))
#define LANES_RUN 4u /* vectors that a rotation keeps in registers */

/* Lanes 0 to 7 and 8 to 15. */
typedef struct vf { /* floats */
    __m256 l, h;
} vf;

typedef struct vi { /* 32-bit integers */
    __m256i l, h;
} vi;

typedef vi vm; /* one truth per lane: all bits or none */

/* ------------------------------------------------------------------- floats */

LANES vf vf_load(const float *p)
{
    return (vf){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}

LANES void vf_store(float *p, vf a)
{
    _mm256_storeu_ps(p, a.l);
    _mm256_storeu_ps(p + 8, a.h);
}

LANES vf vf_load_f16(const void *p)
{
    const __m128i_u *half = (const __m128i_u *)p;
    return (vf){_mm256_cvtph_ps(_mm_loadu_si128(half)), _mm256_cvtph_ps(_mm_loadu_si128(half + 1))};
}

LANES void vf_store_f16(void *p, vf a)
{
    __m128i_u *half = (__m128i_u *)p;
    _mm_storeu_si128(half, _mm256_cvtps_ph(a.l, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(half + 1, _mm256_cvtps_ph(a.h, _MM_FROUND_TO_NEAREST_INT));
}

LANES vf vf_round_to_f16(vf a)
{
    return (vf){_mm256_cvtph_ps(_mm256_cvtps_ph(a.l, _MM_FROUND_TO_NEAREST_INT)),
                _mm256_cvtph_ps(_mm256_cvtps_ph(a.h, _MM_FROUND_TO_NEAREST_INT))};
}

LANES __m256 from_bf16(__m128i half)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

LANES vf vf_load_bf16(const void *p)
{
    const __m128i_u *half = (const __m128i_u *)p;
    return (vf){from_bf16(_mm_loadu_si128(half)), from_bf16(_mm_loadu_si128(half + 1))};
}

/* To nearest even in the upper half of each lane; values are finite and stay so. */
LANES __m256i to_bf16(__m256 a)
{
    __m256i u = _mm256_castps_si256(a);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
}

LANES vf vf_round_to_bf16(vf a)
{
    const __m256i high = _mm256_set1_epi32((int32_t)0xffff0000u);
    return (vf){_mm256_castsi256_ps(_mm256_and_si256(to_bf16(a.l), high)),
                _mm256_castsi256_ps(_mm256_and_si256(to_bf16(a.h), high))};
}

LANES void vf_store_bf16(void *p, vf a)
{
    __m256i l = _mm256_srli_epi32(to_bf16(a.l), 16), h = _mm256_srli_epi32(to_bf16(a.h), 16);
    _mm256_storeu_si256((__m256i_u *)p, _mm256_permute4x64_epi64(_mm256_packus_epi32(l, h), 0xd8));
}

LANES vf vf_set(float x)
{
    return (vf){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}

LANES vf vf_add(vf a, vf b)
{
    return (vf){_mm256_add_ps(a.l, b.l), _mm256_add_ps(a.h, b.h)};
}

LANES vf vf_sub(vf a, vf b)
{
    return (vf){_mm256_sub_ps(a.l, b.l), _mm256_sub_ps(a.h, b.h)};
}

LANES vf vf_mul(vf a, vf b)
{
    return (vf){_mm256_mul_ps(a.l, b.l), _mm256_mul_ps(a.h, b.h)};
}

LANES vf vf_div(vf a, vf b)
{
    return (vf){_mm256_div_ps(a.l, b.l), _mm256_div_ps(a.h, b.h)};
}

/* a * b + c rounded once: only where that is exact anyway. */
LANES vf vf_fma(vf a, vf b, vf c)
{
    return (vf){_mm256_fmadd_ps(a.l, b.l, c.l), _mm256_fmadd_ps(a.h, b.h, c.h)};
}

/* c - a * b */
LANES vf vf_fnma(vf a, vf b, vf c)
{
    return (vf){_mm256_fnmadd_ps(a.l, b.l, c.l), _mm256_fnmadd_ps(a.h, b.h, c.h)};
}

LANES vf vf_min(vf a, vf b)
{
    return (vf){_mm256_min_ps(a.l, b.l), _mm256_min_ps(a.h, b.h)};
}

LANES vf vf_max(vf a, vf b)
{
    return (vf){_mm256_max_ps(a.l, b.l), _mm256_max_ps(a.h, b.h)};
}

LANES vf vf_abs(vf a)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return (vf){_mm256_andnot_ps(sign, a.l), _mm256_andnot_ps(sign, a.h)};
}

/* Magnitude of a, sign of b. */
LANES vf vf_signed(vf a, vf b)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return (vf){_mm256_or_ps(_mm256_andnot_ps(sign, a.l), _mm256_and_ps(sign, b.l)),
                _mm256_or_ps(_mm256_andnot_ps(sign, a.h), _mm256_and_ps(sign, b.h))};
}

LANES vf vf_negate(vm m, vf a)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return (vf){_mm256_xor_ps(a.l, _mm256_and_ps(_mm256_castsi256_ps(m.l), sign)),
                _mm256_xor_ps(a.h, _mm256_and_ps(_mm256_castsi256_ps(m.h), sign))};
}

LANES vm vf_le(vf a, vf b)
{
    return (vm){_mm256_castps_si256(_mm256_cmp_ps(a.l, b.l, _CMP_LE_OQ)),
                _mm256_castps_si256(_mm256_cmp_ps(a.h, b.h, _CMP_LE_OQ))};
}

LANES vm vf_is_nan(vf a)
{
    return (vm){_mm256_castps_si256(_mm256_cmp_ps(a.l, a.l, _CMP_UNORD_Q)),
                _mm256_castps_si256(_mm256_cmp_ps(a.h, a.h, _CMP_UNORD_Q))};
}

/* b where m holds, else a. */
LANES vf vf_pick(vm m, vf a, vf b)
{
    return (vf){_mm256_blendv_ps(a.l, b.l, _mm256_castsi256_ps(m.l)),
                _mm256_blendv_ps(a.h, b.h, _mm256_castsi256_ps(m.h))};
}

/* ---------------------------------------------------------- across the lanes */

/* The lanes fold in halves, as quire_lane_dot() has it. */
LANES float vf_sum(vf a)
{
    __m256 half = _mm256_add_ps(a.l, a.h);
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}

/* In lane 0; the others hold anything. */
LANES __m128 vf_most(vf a)
{
    __m256 half = _mm256_max_ps(a.l, a.h);
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_max_ps(x, _mm_movehdup_ps(x));
}

/* Four at once: lane i of the result is that of the i-th. */
#define FOLD4(NAME, OP)                                                                               \
    LANES __m128 NAME(vf a, vf b, vf c, vf d)                                                         \
    {                                                                                                 \
        __m256 a8 = OP(a.l, a.h), b8 = OP(b.l, b.h), c8 = OP(c.l, c.h), d8 = OP(d.l, d.h);            \
        __m256 ab = OP(_mm256_permute2f128_ps(a8, b8, 0x20), _mm256_permute2f128_ps(a8, b8, 0x31));   \
        __m256 cd = OP(_mm256_permute2f128_ps(c8, d8, 0x20), _mm256_permute2f128_ps(c8, d8, 0x31));   \
        __m256 x = OP(_mm256_unpacklo_ps(ab, cd), _mm256_unpackhi_ps(ab, cd)); /* a c a c, b d b d */ \
        x = OP(x, _mm256_permute_ps(x, 0x4e));                                                        \
        return _mm_unpacklo_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));               \
    }

FOLD4(vf_sum4, _mm256_add_ps)
FOLD4(vf_least4, _mm256_min_ps)
FOLD4(vf_most4, _mm256_max_ps)

LANES __m256 hadamard8(__m256 a)
{
    const __m256 sign1 = _mm256_setr_ps(1, -1, 1, -1, 1, -1, 1, -1);
    const __m256 sign2 = _mm256_setr_ps(1, 1, -1, -1, 1, 1, -1, -1);
    const __m256 sign4 = _mm256_setr_ps(1, 1, 1, 1, -1, -1, -1, -1);
    a = _mm256_fmadd_ps(a, sign1, _mm256_permute_ps(a, 0xb1));
    a = _mm256_fmadd_ps(a, sign2, _mm256_permute_ps(a, 0x4e));
    return _mm256_fmadd_ps(a, sign4, _mm256_permute2f128_ps(a, a, 0x01));
}

/* Butterflies with strides 1, 2, 4, 8. a - b is b's lane times -1, plus a: the product is exact. */
LANES vf vf_hadamard16(vf a)
{
    __m256 l = hadamard8(a.l), h = hadamard8(a.h);
    return (vf){_mm256_add_ps(l, h), _mm256_sub_ps(l, h)};
}

/* ----------------------------------------------------------------- integers */

LANES vi vi_set(int32_t x)
{
    return (vi){_mm256_set1_epi32(x), _mm256_set1_epi32(x)};
}

LANES vi vi_load(const void *p)
{
    const __m256i_u *half = (const __m256i_u *)p;
    return (vi){_mm256_loadu_si256(half), _mm256_loadu_si256(half + 1)};
}

LANES void vi_store(void *p, vi a)
{
    __m256i_u *half = (__m256i_u *)p;
    _mm256_storeu_si256(half, a.l);
    _mm256_storeu_si256(half + 1, a.h);
}

LANES vi vi_add(vi a, vi b)
{
    return (vi){_mm256_add_epi32(a.l, b.l), _mm256_add_epi32(a.h, b.h)};
}

LANES vi vi_sub(vi a, vi b)
{
    return (vi){_mm256_sub_epi32(a.l, b.l), _mm256_sub_epi32(a.h, b.h)};
}

LANES vi vi_and(vi a, vi b)
{
    return (vi){_mm256_and_si256(a.l, b.l), _mm256_and_si256(a.h, b.h)};
}

LANES vi vi_xor(vm m, vi a, vi b) /* where m holds */
{
    b = vi_and(m, b);
    return (vi){_mm256_xor_si256(a.l, b.l), _mm256_xor_si256(a.h, b.h)};
}

LANES vi vi_left(vi a, uint32_t n)
{
    __m128i count = _mm_cvtsi32_si128((int32_t)n);
    return (vi){_mm256_sll_epi32(a.l, count), _mm256_sll_epi32(a.h, count)};
}

LANES vi vi_right(vi a, uint32_t n)
{
    __m128i count = _mm_cvtsi32_si128((int32_t)n);
    return (vi){_mm256_srl_epi32(a.l, count), _mm256_srl_epi32(a.h, count)};
}

/* Bits of b where the mask has ones, else those of a. */
LANES vi vi_merge(vi mask, vi a, vi b)
{
    return (vi){_mm256_or_si256(_mm256_and_si256(mask.l, b.l), _mm256_andnot_si256(mask.l, a.l)),
                _mm256_or_si256(_mm256_and_si256(mask.h, b.h), _mm256_andnot_si256(mask.h, a.h))};
}

/* a + 1 where m holds. */
LANES vi vi_count(vi a, vm m)
{
    return vi_sub(a, m);
}

LANES vm vi_gt(vi a, vi b)
{
    return (vm){_mm256_cmpgt_epi32(a.l, b.l), _mm256_cmpgt_epi32(a.h, b.h)};
}

LANES vi vi_bits(vf a)
{
    return (vi){_mm256_castps_si256(a.l), _mm256_castps_si256(a.h)};
}

LANES vf vi_as_floats(vi a)
{
    return (vf){_mm256_castsi256_ps(a.l), _mm256_castsi256_ps(a.h)};
}

LANES vf vi_to_floats(vi a)
{
    return (vf){_mm256_cvtepi32_ps(a.l), _mm256_cvtepi32_ps(a.h)};
}

LANES vi vf_round(vf a)
{
    return (vi){_mm256_cvtps_epi32(a.l), _mm256_cvtps_epi32(a.h)};
}

LANES vi vf_truncate(vf a)
{
    return (vi){_mm256_cvttps_epi32(a.l), _mm256_cvttps_epi32(a.h)};
}

LANES vi widen_bytes(__m128i bytes)
{
    return (vi){_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8))};
}

/* 16 bytes, from and to lanes of 0 to 255. */
LANES vi vi_load_bytes(const uint8_t *p)
{
    return widen_bytes(_mm_loadu_si128((const __m128i_u *)p));
}

LANES void vi_store_bytes(uint8_t *p, vi a)
{
    __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(a.l, a.h), 0xd8);
    __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128((__m128i_u *)p, bytes);
}

/* ------------------------------------------------------------------- truths */

LANES uint32_t vm_bits(vm m)
{
    uint32_t l = (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(m.l));
    uint32_t h = (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(m.h));
    return l | h << 8;
}

LANES vm vm_and(vm a, vm b)
{
    return vi_and(a, b);
}

LANES bool vm_all(vm m)
{
    return _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_and_si256(m.l, m.h))) == 0xff;
}

/* From a word with one bit per lane. */
LANES vm vm_of(uint32_t bits)
{
    const __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    __m256i l = _mm256_and_si256(_mm256_set1_epi32((int32_t)bits), lane);
    __m256i h = _mm256_and_si256(_mm256_set1_epi32((int32_t)(bits >> 8)), lane);
    return (vm){_mm256_cmpeq_epi32(l, lane), _mm256_cmpeq_epi32(h, lane)};
}

/* ------------------------------------------------------------------- tables */

LANES __m256 entry16(const float *table, __m256i index)
{
    __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), index);
    __m256 high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table + 8), index);
    return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(index, 28))); /* by bit 3 */
}

LANES __m256 entry32(const float *table, __m256i index)
{
    __m256 low = entry16(table, index), high = entry16(table + 16, index);
    return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(index, 27))); /* by bit 4 */
}

/* Entry `index` of a table of 8, 16 or 32 floats; indices are below the size. */
LANES vf vf_entry8(const float *table, vi index)
{
    __m256 entries = _mm256_loadu_ps(table);
    return (vf){_mm256_permutevar8x32_ps(entries, index.l), _mm256_permutevar8x32_ps(entries, index.h)};
}

LANES vf vf_entry16(const float *table, vi index)
{
    return (vf){entry16(table, index.l), entry16(table, index.h)};
}

LANES vf vf_entry32(const float *table, vi index)
{
    return (vf){entry32(table, index.l), entry32(table, index.h)};
}

/* A codec's table, to be looked up by 16 codes at once. */
typedef struct byte_table {
    uint32_t n;         /* parts of 16 entries */
    __m128i entries[4]; /* beyond the end: 0 */
} byte_table;

LANES byte_table byte_table_load(const int8_t *table, uint32_t bits)
{
    byte_table t = {bits > 4 ? 1u << (bits - 4) : 1, {{0}}};
    memcpy(t.entries, table, (size_t)1 << bits);
    return t;
}

/* An index of 0x70 to 0x7f takes an entry, one from 0x80 on gives 0: each code finds itself in one part. */
LANES vf vf_from_table(const byte_table *t, const uint8_t *code)
{
    __m128i rest = _mm_loadu_si128((const __m128i_u *)code), found = _mm_setzero_si128();
    for (uint32_t i = 0; i < t->n; i++) {
        __m128i index = _mm_adds_epu8(rest, _mm_set1_epi8(0x70));
        found = _mm_or_si128(found, _mm_shuffle_epi8(t->entries[i], index));
        rest = _mm_sub_epi8(rest, _mm_set1_epi8(16));
    }
    return vi_to_floats((vi){_mm256_cvtepi8_epi32(found), _mm256_cvtepi8_epi32(_mm_srli_si128(found, 8))});
}

#endif
#endif
