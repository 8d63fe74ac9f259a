/* SPDX-License-Identifier: MIT */
/* avx512: lanes with AVX-512, 16 in one register. See simd.h. */
#ifndef QUIRE_SIMD_AVX512_H
#define QUIRE_SIMD_AVX512_H

#include "simd/exp2.h"
#include "simd/simd.h"

#include <immintrin.h>

#ifndef SIMD_TARGET /* a file may need more than this */
#define SIMD_TARGET "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c,bmi2"
#endif

typedef __m512 vf;    /* floats */
typedef __m512i vi;   /* 32-bit integers */
typedef __mmask16 vm; /* one truth per lane */

SIMD_FN void simd_prefetch(const uint8_t *p)
{
    _mm_prefetch((const char *)p, _MM_HINT_T0);
}

/* ------------------------------------------------------------------- floats */

SIMD_FN vf vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

SIMD_FN void vf_store(float *p, vf a)
{
    _mm512_storeu_ps(p, a);
}

SIMD_FN vf vf_load_f16(const void *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i_u *)p));
}

/* The same of the bits that `mask` has. */
SIMD_FN vf vf_load_f16_and(const uint8_t *p, uint32_t mask)
{
    const __m256i keep = _mm256_set1_epi16((int16_t)mask);
    return _mm512_cvtph_ps(_mm256_and_si256(_mm256_loadu_si256((const __m256i *)p), keep));
}

SIMD_FN void vf_store_f16(void *p, vf a)
{
    _mm256_storeu_si256((__m256i_u *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}

SIMD_FN vf vf_round_to_f16(vf a)
{
    return _mm512_cvtph_ps(_mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}

SIMD_FN vf vf_load_bf16(const void *p)
{
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i_u *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

/* To nearest even; values are finite and stay so. bf16 is the upper half of each lane. */
SIMD_FN vf vf_round_to_bf16(vf a)
{
    __m512i u = _mm512_castps_si512(a);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    u = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
    return _mm512_castsi512_ps(_mm512_and_si512(u, _mm512_set1_epi32((int32_t)0xffff0000u)));
}

SIMD_FN void vf_store_bf16(void *p, vf a)
{
    __m512i high = _mm512_srli_epi32(_mm512_castps_si512(vf_round_to_bf16(a)), 16);
    _mm256_storeu_si256((__m256i_u *)p, _mm512_cvtepi32_epi16(high));
}

SIMD_FN vf vf_set1(float x)
{
    return _mm512_set1_ps(x);
}

SIMD_FN vf vf_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}

SIMD_FN vf vf_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}

SIMD_FN vf vf_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}

SIMD_FN vf vf_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}

/* About a / b. Instruction sets differ in its last bits. */
SIMD_FN vf vf_div_approx(vf a, vf b)
{
    return _mm512_mul_ps(a, _mm512_rcp14_ps(b));
}

/* a * b + c rounded once: in encoding only where that is exact anyway. */
SIMD_FN vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}

/* c - a * b */
SIMD_FN vf vf_fnma(vf a, vf b, vf c)
{
    return _mm512_fnmadd_ps(a, b, c);
}

SIMD_FN vf vf_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}

SIMD_FN vf vf_max(vf a, vf b) /* b if one is NaN */
{
    return _mm512_max_ps(a, b);
}

SIMD_FN vf vf_abs(vf a)
{
    return _mm512_abs_ps(a);
}

/* Magnitude of a, sign of b. */
SIMD_FN vf vf_copysign(vf a, vf b)
{
    const __m512i sign = _mm512_set1_epi32(INT32_MIN);
    return _mm512_castsi512_ps(
        _mm512_ternarylogic_epi32(sign, _mm512_castps_si512(b), _mm512_castps_si512(a), 0xca));
}

SIMD_FN vf vf_negate(vm m, vf a)
{
    return _mm512_mask_xor_ps(a, m, a, _mm512_set1_ps(-0.0f));
}

SIMD_FN vm vf_le(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ);
}

SIMD_FN vm vf_is_nan(vf a)
{
    return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
}

/* a where m holds, else b; or else 0. */
SIMD_FN vf vf_select(vm m, vf a, vf b)
{
    return _mm512_mask_mov_ps(b, m, a);
}

SIMD_FN vf vf_keep(vm m, vf a)
{
    return _mm512_maskz_mov_ps(m, a);
}

/* ---------------------------------------------------------- across the lanes */

/* Halves on halves, as quire_lane_dot() folds its lanes. */
SIMD_FN float vf_reduce_add(vf a)
{
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

SIMD_FN float vf_reduce_max(vf a)
{
    return _mm512_reduce_max_ps(a);
}

/* The largest lane of each of four vectors. */
SIMD_FN void vf_reduce_max4(const vf x[4], float *to)
{
    vf a = _mm512_max_ps(_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpackhi_ps(x[0], x[1]));
    vf b = _mm512_max_ps(_mm512_unpacklo_ps(x[2], x[3]), _mm512_unpackhi_ps(x[2], x[3]));
    a = _mm512_max_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
    a = _mm512_max_ps(a, _mm512_shuffle_f32x4(a, a, 0x4e));
    a = _mm512_max_ps(a, _mm512_shuffle_f32x4(a, a, 0xb1));
    _mm_storeu_ps(to, _mm512_castps512_ps128(a));
}

/* 2^x for x up to a little above 0; below -126 it is 0 (results are flushed). */
SIMD_FN vf vf_exp2(vf x)
{
    vf f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); /* x - floor(x); 0 for -inf */
    vf r = _mm512_fmadd_ps(_mm512_set1_ps(QUIRE_EXP2_FLOOR_4), f, _mm512_set1_ps(QUIRE_EXP2_FLOOR_3));
    r = _mm512_fmadd_ps(r, f, _mm512_set1_ps(QUIRE_EXP2_FLOOR_2));
    r = _mm512_fmadd_ps(r, f, _mm512_set1_ps(QUIRE_EXP2_FLOOR_1));
    r = _mm512_fmadd_ps(r, f, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(r, x);
}

/* ----------------------------------------------------------------- integers */

SIMD_FN vi vi_set1(int32_t x)
{
    return _mm512_set1_epi32(x);
}

SIMD_FN vi vi_load(const void *p)
{
    return _mm512_loadu_si512(p);
}

SIMD_FN void vi_store(void *p, vi a)
{
    _mm512_storeu_si512(p, a);
}

SIMD_FN vi vi_add(vi a, vi b)
{
    return _mm512_add_epi32(a, b);
}

SIMD_FN vi vi_sub(vi a, vi b)
{
    return _mm512_sub_epi32(a, b);
}

SIMD_FN vi vi_and(vi a, vi b)
{
    return _mm512_and_si512(a, b);
}

/* a ^ b where m holds, else a. */
SIMD_FN vi vi_xor_where(vm m, vi a, vi b)
{
    return _mm512_mask_xor_epi32(a, m, a, b);
}

SIMD_FN vi vi_shift_left(vi a, uint32_t n)
{
    return _mm512_sll_epi32(a, _mm_cvtsi32_si128((int32_t)n));
}

SIMD_FN vi vi_shift_right(vi a, uint32_t n)
{
    return _mm512_srl_epi32(a, _mm_cvtsi32_si128((int32_t)n));
}

/* Bits of b where the mask has ones, else those of a. */
SIMD_FN vi vi_merge_bits(vi mask, vi a, vi b)
{
    return _mm512_ternarylogic_epi32(mask, b, a, 0xca);
}

/* a + 1 where m holds. */
SIMD_FN vi vi_increment(vi a, vm m)
{
    return _mm512_mask_add_epi32(a, m, a, _mm512_set1_epi32(1));
}

SIMD_FN vm vi_gt(vi a, vi b)
{
    return _mm512_cmpgt_epi32_mask(a, b);
}

/* The same bits. */
SIMD_FN vi vf_as_int(vf a)
{
    return _mm512_castps_si512(a);
}

SIMD_FN vf vi_as_float(vi a)
{
    return _mm512_castsi512_ps(a);
}

SIMD_FN vf vi_to_float(vi a)
{
    return _mm512_cvtepi32_ps(a);
}

/* To the nearest integer, ties to even. */
SIMD_FN vi vf_to_int(vf a)
{
    return _mm512_cvtps_epi32(a);
}

SIMD_FN vi vf_truncate(vf a)
{
    return _mm512_cvttps_epi32(a);
}

/* 16 bytes, from and to lanes of 0 to 255. */
SIMD_FN vi vi_load_u8(const uint8_t *p)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i_u *)p));
}

SIMD_FN void vi_store_u8(uint8_t *p, vi a)
{
    _mm_storeu_si128((__m128i_u *)p, _mm512_cvtepi32_epi8(a));
}

/* 16 words of 16 bits, of which the bits that `mask` has. */
SIMD_FN vi vi_load_u16_and(const uint8_t *p, uint32_t mask)
{
    const __m256i keep = _mm256_set1_epi16((int16_t)mask);
    return _mm512_cvtepu16_epi32(_mm256_and_si256(_mm256_loadu_si256((const __m256i *)p), keep));
}

SIMD_FN int32_t vi_reduce_add(vi a)
{
    return _mm512_reduce_add_epi32(a);
}

/* The sum of the lanes of each of four vectors. */
SIMD_FN void vi_reduce_add4(const vi x[4], int32_t *to)
{
    vi a = _mm512_add_epi32(_mm512_unpacklo_epi32(x[0], x[1]), _mm512_unpackhi_epi32(x[0], x[1]));
    vi b = _mm512_add_epi32(_mm512_unpacklo_epi32(x[2], x[3]), _mm512_unpackhi_epi32(x[2], x[3]));
    a = _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    __m256i h = _mm256_add_epi32(_mm512_castsi512_si256(a), _mm512_extracti64x4_epi64(a, 1));
    _mm_storeu_si128((__m128i_u *)to,
                     _mm_add_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1)));
}

/* Bytes of four vectors that two steps of packing have mixed, by lanes of 128 bits, in order again. */
SIMD_FN __m512i quads_in_order(__m512i x)
{
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm512_permutexvar_epi32(order, x);
}

/* 64 whole numbers of up to 16 bits, |z| <= 32639, as two rows of bytes. */
SIMD_FN void vi_store_z(const vi z[4], int8_t *high_to, int8_t *low_to)
{
    const __m512i round = _mm512_set1_epi16(128), byte = _mm512_set1_epi16(255);
    __m512i a = _mm512_packs_epi32(z[0], z[1]), b = _mm512_packs_epi32(z[2], z[3]);
    __m512i low = _mm512_packus_epi16(_mm512_and_si512(a, byte), _mm512_and_si512(b, byte));
    __m512i high = _mm512_packs_epi16(_mm512_srai_epi16(_mm512_add_epi16(a, round), 8),
                                      _mm512_srai_epi16(_mm512_add_epi16(b, round), 8));
    _mm512_storeu_si512(high_to, quads_in_order(high));
    _mm512_storeu_si512(low_to, quads_in_order(low));
}

/* Whether all of 64 whole numbers of 16 bits lie between -limit and limit. */
SIMD_FN bool vi_all_within(const vi z[4], int16_t limit)
{
    __m512i a = _mm512_packs_epi32(z[0], z[1]), b = _mm512_packs_epi32(z[2], z[3]);
    __m512i most = _mm512_max_epu16(_mm512_abs_epi16(a), _mm512_abs_epi16(b));
    return !_mm512_cmpge_epu16_mask(most, _mm512_set1_epi16(limit));
}

/* 64 whole numbers of 8 bits. */
SIMD_FN void vi_store_bytes(const vi z[4], int8_t *to)
{
    for (uint32_t j = 0; j < 4; j++) _mm_storeu_si128((__m128i *)(to + j * 16), _mm512_cvtepi32_epi8(z[j]));
}

/* Sums of z[j] * k[j], numbers of 16 bits, over all j and some of the lanes: their total is what counts. */
SIMD_FN vi vi_dot4(const vi z[4], const vi k[4])
{
    __m512i a = _mm512_madd_epi16(_mm512_packs_epi32(z[0], z[1]), _mm512_packs_epi32(k[0], k[1]));
    __m512i b = _mm512_madd_epi16(_mm512_packs_epi32(z[2], z[3]), _mm512_packs_epi32(k[2], k[3]));
    return _mm512_add_epi32(a, b);
}

/* ------------------------------------------------------------------- truths */

SIMD_FN uint32_t vm_bits(vm m)
{
    return m;
}

SIMD_FN vm vm_and(vm a, vm b)
{
    return (vm)(a & b);
}

SIMD_FN bool vm_all(vm m)
{
    return _mm512_kortestc(m, m);
}

/* From the lowest 16 bits of a word, one for each lane. */
SIMD_FN vm vm_of_bits(uint64_t bits)
{
    return (vm)bits;
}

/* ------------------------------------------------------------------- tables */

/* Entry `index` of a table of 16 floats; indices are below 16. */
SIMD_FN vf vf_entry16(const float *table, vi index)
{
    return _mm512_permutexvar_ps(index, _mm512_loadu_ps(table));
}

#endif
