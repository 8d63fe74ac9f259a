/* SPDX-License-Identifier: MIT */
/* lanes: 16 floats or integers at a time, AVX-512. The words that program.h is written in. */
#ifndef QUIRE_KERNELS_X86_LANES_AVX512_H
#define QUIRE_KERNELS_X86_LANES_AVX512_H

#include "kernels/kernels.h"

#include <immintrin.h>
#include <math.h>

#ifndef LANES_TARGET /* a file may need more than this */
#define LANES_TARGET "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx2,fma,f16c,bmi2"
#endif
#define LANES_FN static inline __attribute__((always_inline, target(LANES_TARGET)))
#define LANES_CALL static __attribute__((noinline, target(LANES_TARGET)))

typedef __m512 vf;
typedef __m512i vi;
typedef __mmask16 vm;

LANES_FN void lanes_prefetch(const uint8_t *p)
{
    _mm_prefetch((const char *)p, _MM_HINT_T0);
}
LANES_FN vf vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
LANES_FN void vf_store(float *p, vf x)
{
    _mm512_storeu_ps(p, x);
}
LANES_FN vf vf_set1(float x)
{
    return _mm512_set1_ps(x);
}
LANES_FN vf vf_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}
LANES_FN vf vf_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}
LANES_FN vf vf_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}
LANES_FN vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}
LANES_FN vf vf_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
} /* b if one is NaN */
LANES_FN vf vf_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}
/* About a / b. Instruction sets differ in its last bits. */
LANES_FN vf vf_quotient(vf a, vf b)
{
    return _mm512_mul_ps(a, _mm512_rcp14_ps(b));
}
LANES_FN vf vf_abs(vf a)
{
    return _mm512_abs_ps(a);
}
LANES_FN vf vf_half(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
/* 16 scales of calibrated rows: the number, and which mean was taken out. */
LANES_FN vf vf_half_without_mean(const uint8_t *p)
{
    const __m256i number = _mm256_set1_epi16((int16_t)~QUIRE_MEAN_BITS);
    return _mm512_cvtph_ps(_mm256_and_si256(_mm256_loadu_si256((const __m256i *)p), number));
}
LANES_FN vi vi_mean_bits(const uint8_t *p)
{
    const __m256i bits = _mm256_set1_epi16((int16_t)QUIRE_MEAN_BITS);
    return _mm512_cvtepu16_epi32(_mm256_and_si256(_mm256_loadu_si256((const __m256i *)p), bits));
}
/* Entries of a table of 16. */
LANES_FN vf vf_pick(const float *table, vi index)
{
    return _mm512_permutexvar_ps(index, _mm512_loadu_ps(table));
}
LANES_FN vf vf_bfloat(const uint8_t *p)
{
    __m512i x = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
}
LANES_FN float vf_reduce_max(vf a)
{
    return _mm512_reduce_max_ps(a);
}
/* The largest of each of four vectors. */
LANES_FN void vf_reduce_max4(const vf x[4], float *to)
{
    vf a = _mm512_max_ps(_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpackhi_ps(x[0], x[1]));
    vf b = _mm512_max_ps(_mm512_unpacklo_ps(x[2], x[3]), _mm512_unpackhi_ps(x[2], x[3]));
    a = _mm512_max_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
    a = _mm512_max_ps(a, _mm512_shuffle_f32x4(a, a, 0x4e));
    a = _mm512_max_ps(a, _mm512_shuffle_f32x4(a, a, 0xb1));
    _mm_storeu_ps(to, _mm512_castps512_ps128(a));
}
LANES_FN float vf_first(vf a)
{
    return _mm512_cvtss_f32(a);
}

/* Halves on halves, as quire_lane_dot() folds its lanes. */
LANES_FN float vf_reduce_add(vf a)
{
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

/* 2^x for x up to a little above 0; below -126 it is 0 (results are flushed). */
LANES_FN vf vf_exp2(vf x)
{
    vf f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); /* x - floor(x); 0 for -inf */
    vf r = _mm512_fmadd_ps(_mm512_set1_ps(QUIRE_EXP2_FLOOR_4), f, _mm512_set1_ps(QUIRE_EXP2_FLOOR_3));
    r = _mm512_fmadd_ps(r, f, _mm512_set1_ps(QUIRE_EXP2_FLOOR_2));
    r = _mm512_fmadd_ps(r, f, _mm512_set1_ps(QUIRE_EXP2_FLOOR_1));
    r = _mm512_fmadd_ps(r, f, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(r, x);
}

LANES_FN vm vm_of_bits(uint64_t bits)
{
    return (vm)bits;
}
LANES_FN vf vf_keep(vm m, vf x)
{
    return _mm512_maskz_mov_ps(m, x);
} /* others 0 */
LANES_FN vf vf_select(vm m, vf x, vf other)
{
    return _mm512_mask_mov_ps(other, m, x);
}

LANES_FN vi vi_load(const int32_t *p)
{
    return _mm512_loadu_si512(p);
}
LANES_FN void vi_store(int32_t *p, vi x)
{
    _mm512_storeu_si512(p, x);
}
LANES_FN vi vi_set1(int32_t x)
{
    return _mm512_set1_epi32(x);
}
LANES_FN vi vi_add(vi a, vi b)
{
    return _mm512_add_epi32(a, b);
}
LANES_FN vf vi_to_float(vi a)
{
    return _mm512_cvtepi32_ps(a);
}
LANES_FN vi vf_to_int(vf a)
{
    return _mm512_cvtps_epi32(a);
} /* nearest even */
LANES_FN int32_t vi_reduce_add(vi a)
{
    return _mm512_reduce_add_epi32(a);
}

/* 64 whole numbers of up to 16 bits, |z| <= QUIRE_MAX_Z, as two rows of bytes. */
LANES_FN void vi_store_planes(const vi z[4], int8_t *high_to, int8_t *low_to)
{
    const __mmask64 second = 0xffffffff00000000;
    const __m512i order = _mm512_broadcast_i64x4(
        _mm256_setr_epi8(0, 2, 4, 6, 16, 18, 20, 22, 32, 34, 36, 38, 48, 50, 52, 54, 8, 10, 12, 14, 24, 26,
                         28, 30, 40, 42, 44, 46, 56, 58, 60, 62)); /* of the low bytes */
    const __m512i upper = _mm512_add_epi8(order, _mm512_set1_epi8(1)), round = _mm512_set1_epi16(128);
    __m512i a = _mm512_packs_epi32(z[0], z[1]), b = _mm512_packs_epi32(z[2], z[3]);
    __m512i low = _mm512_mask_permutexvar_epi8(_mm512_permutexvar_epi8(order, a), second, order, b);
    a = _mm512_add_epi16(a, round);
    b = _mm512_add_epi16(b, round);
    __m512i high = _mm512_mask_permutexvar_epi8(_mm512_permutexvar_epi8(upper, a), second, upper, b);
    _mm512_storeu_si512(high_to, high);
    _mm512_storeu_si512(low_to, low);
}

/* Whether all of 64 whole numbers of 16 bits lie between -limit and limit. */
LANES_FN bool vi_all_within(const vi z[4], int16_t limit)
{
    __m512i a = _mm512_packs_epi32(z[0], z[1]), b = _mm512_packs_epi32(z[2], z[3]);
    __m512i most = _mm512_max_epu16(_mm512_abs_epi16(a), _mm512_abs_epi16(b));
    return !_mm512_cmpge_epu16_mask(most, _mm512_set1_epi16(limit));
}

/* 64 whole numbers of 8 bits. */
LANES_FN void vi_store_bytes(const vi z[4], int8_t *to)
{
    for (uint32_t j = 0; j < 4; j++) _mm_storeu_si128((__m128i *)(to + j * 16), _mm512_cvtepi32_epi8(z[j]));
}

/* Sums of z[j] * k[j], numbers of 16 bits, over all j and some of the lanes: their total is what counts. */
LANES_FN vi vi_dot4(const vi z[4], const vi k[4])
{
    __m512i a = _mm512_madd_epi16(_mm512_packs_epi32(z[0], z[1]), _mm512_packs_epi32(k[0], k[1]));
    __m512i b = _mm512_madd_epi16(_mm512_packs_epi32(z[2], z[3]), _mm512_packs_epi32(k[2], k[3]));
    return _mm512_add_epi32(a, b);
}

#endif
