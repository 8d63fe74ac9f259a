/* SPDX-License-Identifier: MIT */
/*
 * four_sse: four floats, one for each of four groups, and four truths. Included by avx2_encode.h and avx512_encode.h; neon_encode.h has
 * the same functions.
 */
#ifndef QUIRE_SIMD_FOUR_SSE_H
#define QUIRE_SIMD_FOUR_SSE_H

typedef __m128 v4; /* floats */
typedef __m128 m4; /* truths: all bits or none */

SIMD_FN v4 v4_load(const float *p)
{
    return _mm_loadu_ps(p);
}

SIMD_FN void v4_store(float *p, v4 a)
{
    _mm_storeu_ps(p, a);
}

SIMD_FN v4 v4_set1(float x)
{
    return _mm_set1_ps(x);
}

SIMD_FN v4 v4_add(v4 a, v4 b)
{
    return _mm_add_ps(a, b);
}

SIMD_FN v4 v4_sub(v4 a, v4 b)
{
    return _mm_sub_ps(a, b);
}

SIMD_FN v4 v4_div(v4 a, v4 b)
{
    return _mm_div_ps(a, b);
}

SIMD_FN v4 v4_max(v4 a, v4 b)
{
    return _mm_max_ps(a, b);
}

SIMD_FN v4 v4_abs(v4 a)
{
    return _mm_andnot_ps(_mm_set1_ps(-0.0f), a);
}

/* To the nearest integer, ties to even. */
SIMD_FN v4 v4_round(v4 a)
{
    return _mm_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

SIMD_FN m4 v4_gt(v4 a, v4 b)
{
    return _mm_cmpgt_ps(a, b);
}

SIMD_FN m4 v4_lt(v4 a, v4 b)
{
    return _mm_cmplt_ps(a, b);
}

SIMD_FN m4 v4_eq(v4 a, v4 b)
{
    return _mm_cmpeq_ps(a, b);
}

SIMD_FN m4 v4_ne(v4 a, v4 b)
{
    return _mm_cmpneq_ps(a, b);
}

/* a where m holds, else b; or else 0. */
SIMD_FN v4 v4_select(m4 m, v4 a, v4 b)
{
    return _mm_blendv_ps(b, a, m);
}

SIMD_FN v4 v4_keep(m4 m, v4 a)
{
    return _mm_and_ps(a, m);
}

/* -a where m does not hold. */
SIMD_FN v4 v4_negate_unless(m4 m, v4 a)
{
    return _mm_xor_ps(a, _mm_andnot_ps(m, _mm_set1_ps(-0.0f)));
}

/* One bit for each lane. */
SIMD_FN uint32_t m4_bits(m4 m)
{
    return (uint32_t)_mm_movemask_ps(m);
}

/* As halves, to nearest even. Gives whether all of them are finite. */
SIMD_FN bool v4_store_f16(uint16_t *p, v4 a)
{
    const __m128i exponent = _mm_set1_epi16(0x7c00);
    __m128i h = _mm_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT);
    _mm_storel_epi64((__m128i_u *)p, h);
    return !_mm_movemask_epi8(_mm_cmpeq_epi16(_mm_and_si128(h, exponent), exponent));
}

#endif
