/* SPDX-License-Identifier: MIT */
/* avx2: lanes with AVX2, FMA and F16C, 16 in two registers. See simd.h. */
#ifndef QUIRE_SIMD_AVX2_H
#define QUIRE_SIMD_AVX2_H

#include "simd/exp2.h"
#include "simd/simd.h"

#include <immintrin.h>

#ifndef SIMD_TARGET /* a file may need more than this */
#define SIMD_TARGET "avx2,fma,f16c,bmi2"
#endif

/* Lanes 0 to 7 and 8 to 15. */
typedef struct vf { /* floats */
    __m256 a, b;
} vf;

typedef struct vi { /* 32-bit integers */
    __m256i a, b;
} vi;

typedef vi vm; /* one truth per lane: all bits or none */

SIMD_FN void simd_prefetch(const uint8_t *p)
{
    _mm_prefetch((const char *)p, _MM_HINT_T0);
}

/* ------------------------------------------------------------------- floats */

SIMD_FN vf vf_load(const float *p)
{
    return (vf){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}

SIMD_FN void vf_store(float *p, vf a)
{
    _mm256_storeu_ps(p, a.a);
    _mm256_storeu_ps(p + 8, a.b);
}

SIMD_FN vf vf_load_f16(const void *p)
{
    const __m128i_u *half = (const __m128i_u *)p;
    return (vf){_mm256_cvtph_ps(_mm_loadu_si128(half)), _mm256_cvtph_ps(_mm_loadu_si128(half + 1))};
}

/* The same of the bits that `mask` has. */
SIMD_FN vf vf_load_f16_and(const uint8_t *p, uint32_t mask)
{
    const __m128i keep = _mm_set1_epi16((int16_t)mask);
    return (vf){_mm256_cvtph_ps(_mm_and_si128(_mm_loadu_si128((const __m128i *)p), keep)),
                _mm256_cvtph_ps(_mm_and_si128(_mm_loadu_si128((const __m128i *)(p + 16)), keep))};
}

SIMD_FN void vf_store_f16(void *p, vf a)
{
    __m128i_u *half = (__m128i_u *)p;
    _mm_storeu_si128(half, _mm256_cvtps_ph(a.a, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(half + 1, _mm256_cvtps_ph(a.b, _MM_FROUND_TO_NEAREST_INT));
}

SIMD_FN vf vf_round_to_f16(vf a)
{
    return (vf){_mm256_cvtph_ps(_mm256_cvtps_ph(a.a, _MM_FROUND_TO_NEAREST_INT)),
                _mm256_cvtph_ps(_mm256_cvtps_ph(a.b, _MM_FROUND_TO_NEAREST_INT))};
}

SIMD_FN __m256 from_bf16(__m128i half)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

SIMD_FN vf vf_load_bf16(const void *p)
{
    const __m128i_u *half = (const __m128i_u *)p;
    return (vf){from_bf16(_mm_loadu_si128(half)), from_bf16(_mm_loadu_si128(half + 1))};
}

/* To nearest even in the upper half of each lane; values are finite and stay so. */
SIMD_FN __m256i to_bf16(__m256 a)
{
    __m256i u = _mm256_castps_si256(a);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
}

SIMD_FN vf vf_round_to_bf16(vf a)
{
    const __m256i high = _mm256_set1_epi32((int32_t)0xffff0000u);
    return (vf){_mm256_castsi256_ps(_mm256_and_si256(to_bf16(a.a), high)),
                _mm256_castsi256_ps(_mm256_and_si256(to_bf16(a.b), high))};
}

SIMD_FN void vf_store_bf16(void *p, vf a)
{
    __m256i l = _mm256_srli_epi32(to_bf16(a.a), 16), h = _mm256_srli_epi32(to_bf16(a.b), 16);
    _mm256_storeu_si256((__m256i_u *)p, _mm256_permute4x64_epi64(_mm256_packus_epi32(l, h), 0xd8));
}

SIMD_FN vf vf_set1(float x)
{
    return (vf){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}

SIMD_FN vf vf_add(vf a, vf b)
{
    return (vf){_mm256_add_ps(a.a, b.a), _mm256_add_ps(a.b, b.b)};
}

SIMD_FN vf vf_sub(vf a, vf b)
{
    return (vf){_mm256_sub_ps(a.a, b.a), _mm256_sub_ps(a.b, b.b)};
}

SIMD_FN vf vf_mul(vf a, vf b)
{
    return (vf){_mm256_mul_ps(a.a, b.a), _mm256_mul_ps(a.b, b.b)};
}

SIMD_FN vf vf_div(vf a, vf b)
{
    return (vf){_mm256_div_ps(a.a, b.a), _mm256_div_ps(a.b, b.b)};
}

/* About a / b. Instruction sets differ in its last bits. */
SIMD_FN vf vf_div_approx(vf a, vf b)
{
    return vf_div(a, b);
}

/* a * b + c rounded once: in encoding only where that is exact anyway. */
SIMD_FN vf vf_fma(vf a, vf b, vf c)
{
    return (vf){_mm256_fmadd_ps(a.a, b.a, c.a), _mm256_fmadd_ps(a.b, b.b, c.b)};
}

/* c - a * b */
SIMD_FN vf vf_fnma(vf a, vf b, vf c)
{
    return (vf){_mm256_fnmadd_ps(a.a, b.a, c.a), _mm256_fnmadd_ps(a.b, b.b, c.b)};
}

SIMD_FN vf vf_min(vf a, vf b)
{
    return (vf){_mm256_min_ps(a.a, b.a), _mm256_min_ps(a.b, b.b)};
}

SIMD_FN vf vf_max(vf a, vf b) /* b if one is NaN */
{
    return (vf){_mm256_max_ps(a.a, b.a), _mm256_max_ps(a.b, b.b)};
}

SIMD_FN vf vf_abs(vf a)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return (vf){_mm256_andnot_ps(sign, a.a), _mm256_andnot_ps(sign, a.b)};
}

/* Magnitude of a, sign of b. */
SIMD_FN vf vf_copysign(vf a, vf b)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return (vf){_mm256_or_ps(_mm256_andnot_ps(sign, a.a), _mm256_and_ps(sign, b.a)),
                _mm256_or_ps(_mm256_andnot_ps(sign, a.b), _mm256_and_ps(sign, b.b))};
}

SIMD_FN vf vf_negate(vm m, vf a)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return (vf){_mm256_xor_ps(a.a, _mm256_and_ps(_mm256_castsi256_ps(m.a), sign)),
                _mm256_xor_ps(a.b, _mm256_and_ps(_mm256_castsi256_ps(m.b), sign))};
}

SIMD_FN vm vf_le(vf a, vf b)
{
    return (vm){_mm256_castps_si256(_mm256_cmp_ps(a.a, b.a, _CMP_LE_OQ)),
                _mm256_castps_si256(_mm256_cmp_ps(a.b, b.b, _CMP_LE_OQ))};
}

SIMD_FN vm vf_is_nan(vf a)
{
    return (vm){_mm256_castps_si256(_mm256_cmp_ps(a.a, a.a, _CMP_UNORD_Q)),
                _mm256_castps_si256(_mm256_cmp_ps(a.b, a.b, _CMP_UNORD_Q))};
}

/* a where m holds, else b; or else 0. */
SIMD_FN vf vf_select(vm m, vf a, vf b)
{
    return (vf){_mm256_blendv_ps(b.a, a.a, _mm256_castsi256_ps(m.a)),
                _mm256_blendv_ps(b.b, a.b, _mm256_castsi256_ps(m.b))};
}

SIMD_FN vf vf_keep(vm m, vf a)
{
    return (vf){_mm256_and_ps(_mm256_castsi256_ps(m.a), a.a), _mm256_and_ps(_mm256_castsi256_ps(m.b), a.b)};
}

/* ---------------------------------------------------------- across the lanes */

/* Halves on halves, as quire_lane_dot() folds its lanes. */
SIMD_FN float vf_reduce_add(vf a)
{
    __m256 half = _mm256_add_ps(a.a, a.b);
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}

SIMD_FN float vf_reduce_max(vf a)
{
    __m256 half = _mm256_max_ps(a.a, a.b);
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

/* The largest lane of each of four vectors. */
SIMD_FN void vf_reduce_max4(const vf a[4], float *to)
{
    for (uint32_t i = 0; i < 4; i++) to[i] = vf_reduce_max(a[i]);
}

/* 2^x for x up to a little above 0; below -126 it is 0 (results are flushed): 2^-127 is made of bits that say 0. */
SIMD_FN __m256 exp2_of(__m256 x)
{
    x = _mm256_max_ps(_mm256_set1_ps(-127.0f), x); /* NaN stays */
    __m256 n = _mm256_floor_ps(x), f = _mm256_sub_ps(x, n);
    __m256 r = _mm256_fmadd_ps(_mm256_set1_ps(QUIRE_EXP2_FLOOR_4), f, _mm256_set1_ps(QUIRE_EXP2_FLOOR_3));
    r = _mm256_fmadd_ps(r, f, _mm256_set1_ps(QUIRE_EXP2_FLOOR_2));
    r = _mm256_fmadd_ps(r, f, _mm256_set1_ps(QUIRE_EXP2_FLOOR_1));
    r = _mm256_fmadd_ps(r, f, _mm256_set1_ps(1.0f));
    __m256i power = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_mul_ps(r, _mm256_castsi256_ps(_mm256_slli_epi32(power, 23)));
}

SIMD_FN vf vf_exp2(vf a)
{
    return (vf){exp2_of(a.a), exp2_of(a.b)};
}

/* ----------------------------------------------------------------- integers */

SIMD_FN vi vi_set1(int32_t x)
{
    return (vi){_mm256_set1_epi32(x), _mm256_set1_epi32(x)};
}

SIMD_FN __m256i load256(const void *p)
{
    return _mm256_loadu_si256((const __m256i_u *)p);
}

SIMD_FN void store256(void *p, __m256i x)
{
    _mm256_storeu_si256((__m256i_u *)p, x);
}

SIMD_FN vi vi_load(const void *p)
{
    return (vi){load256(p), load256((const uint8_t *)p + 32)};
}

SIMD_FN void vi_store(void *p, vi a)
{
    store256(p, a.a);
    store256((uint8_t *)p + 32, a.b);
}

SIMD_FN vi vi_add(vi a, vi b)
{
    return (vi){_mm256_add_epi32(a.a, b.a), _mm256_add_epi32(a.b, b.b)};
}

SIMD_FN vi vi_sub(vi a, vi b)
{
    return (vi){_mm256_sub_epi32(a.a, b.a), _mm256_sub_epi32(a.b, b.b)};
}

SIMD_FN vi vi_and(vi a, vi b)
{
    return (vi){_mm256_and_si256(a.a, b.a), _mm256_and_si256(a.b, b.b)};
}

/* a ^ b where m holds, else a. */
SIMD_FN vi vi_xor_where(vm m, vi a, vi b)
{
    b = vi_and(m, b);
    return (vi){_mm256_xor_si256(a.a, b.a), _mm256_xor_si256(a.b, b.b)};
}

SIMD_FN vi vi_shift_left(vi a, uint32_t n)
{
    __m128i count = _mm_cvtsi32_si128((int32_t)n);
    return (vi){_mm256_sll_epi32(a.a, count), _mm256_sll_epi32(a.b, count)};
}

SIMD_FN vi vi_shift_right(vi a, uint32_t n)
{
    __m128i count = _mm_cvtsi32_si128((int32_t)n);
    return (vi){_mm256_srl_epi32(a.a, count), _mm256_srl_epi32(a.b, count)};
}

/* Bits of b where the mask has ones, else those of a. */
SIMD_FN vi vi_merge_bits(vi mask, vi a, vi b)
{
    return (vi){_mm256_or_si256(_mm256_and_si256(mask.a, b.a), _mm256_andnot_si256(mask.a, a.a)),
                _mm256_or_si256(_mm256_and_si256(mask.b, b.b), _mm256_andnot_si256(mask.b, a.b))};
}

/* a + 1 where m holds. */
SIMD_FN vi vi_increment(vi a, vm m)
{
    return vi_sub(a, m);
}

SIMD_FN vm vi_gt(vi a, vi b)
{
    return (vm){_mm256_cmpgt_epi32(a.a, b.a), _mm256_cmpgt_epi32(a.b, b.b)};
}

/* The same bits. */
SIMD_FN vi vf_as_int(vf a)
{
    return (vi){_mm256_castps_si256(a.a), _mm256_castps_si256(a.b)};
}

SIMD_FN vf vi_as_float(vi a)
{
    return (vf){_mm256_castsi256_ps(a.a), _mm256_castsi256_ps(a.b)};
}

SIMD_FN vf vi_to_float(vi a)
{
    return (vf){_mm256_cvtepi32_ps(a.a), _mm256_cvtepi32_ps(a.b)};
}

/* To the nearest integer, ties to even. */
SIMD_FN vi vf_to_int(vf a)
{
    return (vi){_mm256_cvtps_epi32(a.a), _mm256_cvtps_epi32(a.b)};
}

SIMD_FN vi vf_truncate(vf a)
{
    return (vi){_mm256_cvttps_epi32(a.a), _mm256_cvttps_epi32(a.b)};
}

SIMD_FN vi widen_bytes(__m128i bytes)
{
    return (vi){_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8))};
}

/* 16 bytes, from and to lanes of 0 to 255. */
SIMD_FN vi vi_load_u8(const uint8_t *p)
{
    return widen_bytes(_mm_loadu_si128((const __m128i_u *)p));
}

SIMD_FN void vi_store_u8(uint8_t *p, vi a)
{
    __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(a.a, a.b), 0xd8);
    __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128((__m128i_u *)p, bytes);
}
/* 16 words of 16 bits, of which the bits that `mask` has. */
SIMD_FN vi vi_load_u16_and(const uint8_t *p, uint32_t mask)
{
    const __m128i keep = _mm_set1_epi16((int16_t)mask);
    return (vi){_mm256_cvtepu16_epi32(_mm_and_si128(_mm_loadu_si128((const __m128i *)p), keep)),
                _mm256_cvtepu16_epi32(_mm_and_si128(_mm_loadu_si128((const __m128i *)(p + 16)), keep))};
}

SIMD_FN int32_t vi_reduce_add(vi a)
{
    __m256i half = _mm256_add_epi32(a.a, a.b);
    __m128i x = _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(x, _mm_shuffle_epi32(x, 0xb1)));
}

/* The sum of the lanes of each of four vectors. */
SIMD_FN void vi_reduce_add4(const vi x[4], int32_t *to)
{
    __m256i h[4];
    for (uint32_t i = 0; i < 4; i++) h[i] = _mm256_add_epi32(x[i].a, x[i].b);
    __m256i a = _mm256_add_epi32(_mm256_unpacklo_epi32(h[0], h[1]), _mm256_unpackhi_epi32(h[0], h[1]));
    __m256i b = _mm256_add_epi32(_mm256_unpacklo_epi32(h[2], h[3]), _mm256_unpackhi_epi32(h[2], h[3]));
    a = _mm256_add_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
    _mm_storeu_si128((__m128i_u *)to,
                     _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1)));
}

/* Sums of z[j] * k[j], numbers of 16 bits, over all j and some of the lanes: their total is what counts. */
SIMD_FN __m256i dot4_of(__m256i z0, __m256i z1, __m256i k0, __m256i k1)
{
    return _mm256_madd_epi16(_mm256_packs_epi32(z0, z1), _mm256_packs_epi32(k0, k1));
}

SIMD_FN vi vi_dot4(const vi z[4], const vi k[4])
{
    return (vi){
        _mm256_add_epi32(dot4_of(z[0].a, z[1].a, k[0].a, k[1].a), dot4_of(z[2].a, z[3].a, k[2].a, k[3].a)),
        _mm256_add_epi32(dot4_of(z[0].b, z[1].b, k[0].b, k[1].b), dot4_of(z[2].b, z[3].b, k[2].b, k[3].b))};
}

/* By lanes of 16 bits: the larger of two packed pairs, without their signs. */
SIMD_FN __m256i larger_of(__m256i z0, __m256i z1, __m256i z2, __m256i z3)
{
    return _mm256_max_epu16(_mm256_abs_epi16(_mm256_packs_epi32(z0, z1)),
                            _mm256_abs_epi16(_mm256_packs_epi32(z2, z3)));
}

/* Whether all of 64 whole numbers of 16 bits lie between -limit and limit. */
SIMD_FN bool vi_all_within(const vi z[4], int16_t limit)
{
    __m256i most = _mm256_max_epu16(larger_of(z[0].a, z[1].a, z[2].a, z[3].a),
                                    larger_of(z[0].b, z[1].b, z[2].b, z[3].b));
    __m256i large = _mm256_cmpeq_epi16(_mm256_max_epu16(most, _mm256_set1_epi16(limit)), most);
    return _mm256_testz_si256(large, large);
}

/* Quads of numbers as packing two and then two registers leaves them, brought into order. */
SIMD_FN __m256i quads_in_order(__m256i x)
{
    return _mm256_permutevar8x32_epi32(x, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

/* ------------------------------------------------------------------- truths */

SIMD_FN uint32_t vm_bits(vm m)
{
    uint32_t l = (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(m.a));
    uint32_t h = (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(m.b));
    return l | h << 8;
}

SIMD_FN vm vm_and(vm a, vm b)
{
    return vi_and(a, b);
}

SIMD_FN bool vm_all(vm m)
{
    return _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_and_si256(m.a, m.b))) == 0xff;
}

/* From the lowest 16 bits of a word, one for each lane. */
SIMD_FN vm vm_of_bits(uint64_t bits)
{
    const __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    uint32_t word = (uint32_t)bits;
    __m256i a = _mm256_and_si256(_mm256_set1_epi32((int32_t)word), lane);
    __m256i b = _mm256_and_si256(_mm256_set1_epi32((int32_t)(word >> 8)), lane);
    return (vm){_mm256_cmpeq_epi32(a, lane), _mm256_cmpeq_epi32(b, lane)};
}
/* ------------------------------------------------------------------- tables */

/* By bit 3 of the index from either half of a table. */
SIMD_FN __m256 entry16_of(__m256 low, __m256 high, __m256i index)
{
    __m256 upper = _mm256_castsi256_ps(_mm256_slli_epi32(index, 28));
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, index), _mm256_permutevar8x32_ps(high, index),
                            upper);
}

/* Entry `index` of a table of 16 floats; indices are below 16. */
SIMD_FN vf vf_entry16(const float *table, vi index)
{
    __m256 low = _mm256_loadu_ps(table), high = _mm256_loadu_ps(table + 8);
    return (vf){entry16_of(low, high, index.a), entry16_of(low, high, index.b)};
}

#endif
