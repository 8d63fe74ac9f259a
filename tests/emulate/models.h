/* SPDX-License-Identifier: MIT */
/*
 * models: AVX-512 as two registers of AVX2, where one instruction of AVX2 does to each half what that of AVX-512 does to
 * the whole. Rounding, denormals, saturation and the order of NaN are then those of the processor. What moves or decides
 * across halves is in models_lanes.h. Immediate operands are ordinary arguments.
 */
#ifndef QUIRE_EMULATE_MODELS_H
#define QUIRE_EMULATE_MODELS_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define MODEL_TARGET "avx2,fma,f16c,bmi,bmi2"
#define MODEL static inline __attribute__((always_inline, unused, target(MODEL_TARGET)))
/* For long ones: kernels are unrolled, and the code would become large. */
#define MODEL_CALL static __attribute__((noinline, unused, target(MODEL_TARGET)))

/* Aligned like the real ones, so that structures have the same layout. */
typedef struct __attribute__((aligned(64))) {
    __m256 l, h;
} __m512;

typedef struct __attribute__((aligned(64))) {
    __m256i l, h;
} __m512i;

typedef uint16_t __mmask16;
typedef uint32_t __mmask32;
typedef uint64_t __mmask64;

/* An operand that no kernel uses and nobody has modelled. */
#define MODEL_REQUIRE(holds) ((holds) ? (void)0 : __builtin_trap())

#define MODEL_HALVES_1(result, name, type, half) \
    MODEL result name(type a)                    \
    {                                            \
        return (result){half(a.l), half(a.h)};   \
    }
#define MODEL_HALVES_2(type, name, half)               \
    MODEL type name(type a, type b)                    \
    {                                                  \
        return (type){half(a.l, b.l), half(a.h, b.h)}; \
    }
#define MODEL_HALVES_3(type, name, half)                         \
    MODEL type name(type a, type b, type c)                      \
    {                                                            \
        return (type){half(a.l, b.l, c.l), half(a.h, b.h, c.h)}; \
    }
#define MODEL_SHIFT(name, half, count)                \
    MODEL __m512i name(__m512i a, count n)            \
    {                                                 \
        return (__m512i){half(a.l, n), half(a.h, n)}; \
    }
#define MODEL_SET1(result, name, type, half) \
    MODEL result name(type x)                \
    {                                        \
        return (result){half(x), half(x)};   \
    }

/* ------------------------------------------------------------------- floats */

MODEL_HALVES_2(__m512, _mm512_add_ps, _mm256_add_ps)
MODEL_HALVES_2(__m512, _mm512_sub_ps, _mm256_sub_ps)
MODEL_HALVES_2(__m512, _mm512_mul_ps, _mm256_mul_ps)
MODEL_HALVES_2(__m512, _mm512_div_ps, _mm256_div_ps)
MODEL_HALVES_2(__m512, _mm512_min_ps, _mm256_min_ps)
MODEL_HALVES_2(__m512, _mm512_max_ps, _mm256_max_ps)
MODEL_HALVES_3(__m512, _mm512_fmadd_ps, _mm256_fmadd_ps)
MODEL_HALVES_3(__m512, _mm512_fnmadd_ps, _mm256_fnmadd_ps)
MODEL_HALVES_2(__m512, _mm512_unpacklo_ps, _mm256_unpacklo_ps) /* within 128 bits, as in AVX2 */
MODEL_HALVES_2(__m512, _mm512_unpackhi_ps, _mm256_unpackhi_ps)
MODEL_HALVES_2(__m512i, _mm512_unpacklo_epi32, _mm256_unpacklo_epi32)
MODEL_HALVES_2(__m512i, _mm512_unpackhi_epi32, _mm256_unpackhi_epi32)
MODEL_HALVES_2(__m512i, _mm512_unpacklo_epi64, _mm256_unpacklo_epi64)
MODEL_HALVES_2(__m512i, _mm512_unpackhi_epi64, _mm256_unpackhi_epi64)
MODEL_HALVES_1(__m512, _mm512_castsi512_ps, __m512i, _mm256_castsi256_ps)
MODEL_HALVES_1(__m512, _mm512_cvtepi32_ps, __m512i, _mm256_cvtepi32_ps)
MODEL_SET1(__m512, _mm512_set1_ps, float, _mm256_set1_ps)

MODEL __m512 _mm512_abs_ps(__m512 a)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return (__m512){_mm256_andnot_ps(sign, a.l), _mm256_andnot_ps(sign, a.h)};
}

MODEL __m512 _mm512_setzero_ps(void)
{
    return (__m512){_mm256_setzero_ps(), _mm256_setzero_ps()};
}

MODEL __m512 _mm512_setr_ps(float a, float b, float c, float d, float e, float f, float g, float h, float i,
                            float j, float k, float l, float m, float n, float o, float p)
{
    return (__m512){_mm256_setr_ps(a, b, c, d, e, f, g, h), _mm256_setr_ps(i, j, k, l, m, n, o, p)};
}

MODEL __m512 _mm512_setr4_ps(float a, float b, float c, float d)
{
    return (__m512){_mm256_setr_ps(a, b, c, d, a, b, c, d), _mm256_setr_ps(a, b, c, d, a, b, c, d)};
}

MODEL __m512 _mm512_loadu_ps(const void *p)
{
    return (__m512){_mm256_loadu_ps((const float *)p), _mm256_loadu_ps((const float *)p + 8)};
}

MODEL void _mm512_storeu_ps(void *p, __m512 a)
{
    _mm256_storeu_ps((float *)p, a.l);
    _mm256_storeu_ps((float *)p + 8, a.h);
}

/* Half precision never flushes denormals, in either width. */
MODEL __m512 _mm512_cvtph_ps(__m256i a)
{
    return (__m512){_mm256_cvtph_ps(_mm256_castsi256_si128(a)),
                    _mm256_cvtph_ps(_mm256_extracti128_si256(a, 1))};
}

MODEL __m256i _mm512_cvtps_ph(__m512 a, int rounding)
{
    MODEL_REQUIRE(rounding == _MM_FROUND_TO_NEAREST_INT);
    __m128i low = _mm256_cvtps_ph(a.l, _MM_FROUND_TO_NEAREST_INT);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(low),
                                   _mm256_cvtps_ph(a.h, _MM_FROUND_TO_NEAREST_INT), 1);
}

MODEL __m256 _mm512_extractf32x8_ps(__m512 a, int half)
{
    return half & 1 ? a.h : a.l;
}

MODEL __m256 _mm512_castps512_ps256(__m512 a)
{
    return a.l;
}

MODEL __m128 _mm512_castps512_ps128(__m512 a)
{
    return _mm256_castps256_ps128(a.l);
}

MODEL float _mm512_cvtss_f32(__m512 a)
{
    return _mm_cvtss_f32(_mm256_castps256_ps128(a.l));
}

/* Within 128 bits: lane i takes the one that bits 2i and 2i + 1 name. */
MODEL __m512 _mm512_permute_ps(__m512 a, int order)
{
    const __m256i lanes = _mm256_setr_epi32(order, order >> 2, order >> 4, order >> 6, order, order >> 2,
                                            order >> 4, order >> 6); /* two bits of each count */
    return (__m512){_mm256_permutevar_ps(a.l, lanes), _mm256_permutevar_ps(a.h, lanes)};
}

/* The same, but the upper two of each four come from b. */
MODEL __m512 _mm512_shuffle_ps(__m512 a, __m512 b, int order)
{
    __m512 x = _mm512_permute_ps(a, order), y = _mm512_permute_ps(b, order);
    return (__m512){_mm256_blend_ps(x.l, y.l, 0xcc), _mm256_blend_ps(x.h, y.h, 0xcc)};
}

/* ----------------------------------------------------------------- integers */

MODEL_HALVES_2(__m512i, _mm512_add_epi8, _mm256_add_epi8)
MODEL_HALVES_2(__m512i, _mm512_add_epi16, _mm256_add_epi16)
MODEL_HALVES_2(__m512i, _mm512_add_epi32, _mm256_add_epi32)
MODEL_HALVES_2(__m512i, _mm512_sub_epi32, _mm256_sub_epi32)
MODEL_HALVES_2(__m512i, _mm512_and_si512, _mm256_and_si256)
MODEL_HALVES_2(__m512i, _mm512_xor_si512, _mm256_xor_si256)
MODEL_HALVES_2(__m512i, _mm512_max_epu16, _mm256_max_epu16)
MODEL_HALVES_2(__m512i, _mm512_max_epi32, _mm256_max_epi32)
MODEL_HALVES_2(__m512i, _mm512_madd_epi16, _mm256_madd_epi16)
MODEL_HALVES_2(__m512i, _mm512_packs_epi32, _mm256_packs_epi32)   /* within 128 bits */
MODEL_HALVES_2(__m512i, _mm512_packs_epi16, _mm256_packs_epi16)   /* within 128 bits */
MODEL_HALVES_2(__m512i, _mm512_packus_epi16, _mm256_packus_epi16) /* within 128 bits */
MODEL_HALVES_2(__m512i, _mm512_shuffle_epi8, _mm256_shuffle_epi8) /* within 128 bits */
MODEL_HALVES_1(__m512i, _mm512_abs_epi16, __m512i, _mm256_abs_epi16)
MODEL_HALVES_1(__m512i, _mm512_castps_si512, __m512, _mm256_castps_si256)
MODEL_HALVES_1(__m512i, _mm512_cvtps_epi32, __m512, _mm256_cvtps_epi32)
MODEL_HALVES_1(__m512i, _mm512_cvttps_epi32, __m512, _mm256_cvttps_epi32)
MODEL_SHIFT(_mm512_slli_epi16, _mm256_slli_epi16, int)
MODEL_SHIFT(_mm512_srli_epi16, _mm256_srli_epi16, int)
MODEL_SHIFT(_mm512_srai_epi16, _mm256_srai_epi16, int)
MODEL_SHIFT(_mm512_slli_epi32, _mm256_slli_epi32, int)
MODEL_SHIFT(_mm512_srli_epi32, _mm256_srli_epi32, int)
MODEL_SHIFT(_mm512_sll_epi32, _mm256_sll_epi32, __m128i)
MODEL_SHIFT(_mm512_srl_epi32, _mm256_srl_epi32, __m128i)
MODEL_SET1(__m512i, _mm512_set1_epi8, char, _mm256_set1_epi8)
MODEL_SET1(__m512i, _mm512_set1_epi16, short, _mm256_set1_epi16)
MODEL_SET1(__m512i, _mm512_set1_epi32, int, _mm256_set1_epi32)
MODEL_SET1(__m512i, _mm512_set1_epi64, long long, _mm256_set1_epi64x)
MODEL_SET1(__m512i, _mm512_broadcast_i32x4, __m128i, _mm256_broadcastsi128_si256)

MODEL __m512i _mm512_broadcast_i64x4(__m256i x)
{
    return (__m512i){x, x};
}

MODEL __m512i _mm512_setzero_si512(void)
{
    return (__m512i){_mm256_setzero_si256(), _mm256_setzero_si256()};
}

MODEL __m512i _mm512_setr4_epi32(int a, int b, int c, int d)
{
    return (__m512i){_mm256_setr_epi32(a, b, c, d, a, b, c, d), _mm256_setr_epi32(a, b, c, d, a, b, c, d)};
}

MODEL __m512i _mm512_setr_epi32(int a, int b, int c, int d, int e, int f, int g, int h, int i, int j, int k,
                                int l, int m, int n, int o, int p)
{
    return (__m512i){_mm256_setr_epi32(a, b, c, d, e, f, g, h), _mm256_setr_epi32(i, j, k, l, m, n, o, p)};
}

MODEL __m512i _mm512_loadu_si512(const void *p)
{
    return (__m512i){_mm256_loadu_si256((const __m256i_u *)p), _mm256_loadu_si256((const __m256i_u *)p + 1)};
}

MODEL void _mm512_storeu_si512(void *p, __m512i a)
{
    _mm256_storeu_si256((__m256i_u *)p, a.l);
    _mm256_storeu_si256((__m256i_u *)p + 1, a.h);
}

/* These fault unless the address is a multiple of 64. */
MODEL __m512i _mm512_load_si512(const void *p)
{
    MODEL_REQUIRE((uintptr_t)p % 64 == 0);
    return _mm512_loadu_si512(p);
}

MODEL void _mm512_store_si512(void *p, __m512i a)
{
    MODEL_REQUIRE((uintptr_t)p % 64 == 0);
    _mm512_storeu_si512(p, a);
}

MODEL __m128i _mm512_castsi512_si128(__m512i a)
{
    return _mm256_castsi256_si128(a.l);
}

MODEL __m256i _mm512_castsi512_si256(__m512i a)
{
    return a.l;
}

MODEL __m256i _mm512_extracti64x4_epi64(__m512i a, int half)
{
    return half & 1 ? a.h : a.l;
}

/* The upper bits are not defined; here they are neither zero nor what they were. */
MODEL __m512i _mm512_castsi256_si512(__m256i a)
{
    return (__m512i){a, _mm256_set1_epi8(0x5a)};
}

MODEL __m512i _mm512_cvtepu8_epi32(__m128i a)
{
    return (__m512i){_mm256_cvtepu8_epi32(a), _mm256_cvtepu8_epi32(_mm_srli_si128(a, 8))};
}

MODEL __m512i _mm512_cvtepi8_epi16(__m256i a)
{
    return (__m512i){_mm256_cvtepi8_epi16(_mm256_castsi256_si128(a)),
                     _mm256_cvtepi8_epi16(_mm256_extracti128_si256(a, 1))};
}

MODEL __m512i _mm512_cvtepi16_epi32(__m256i a)
{
    return (__m512i){_mm256_cvtepi16_epi32(_mm256_castsi256_si128(a)),
                     _mm256_cvtepi16_epi32(_mm256_extracti128_si256(a, 1))};
}

MODEL __m512i _mm512_cvtepu16_epi32(__m256i a)
{
    return (__m512i){_mm256_cvtepu16_epi32(_mm256_castsi256_si128(a)),
                     _mm256_cvtepu16_epi32(_mm256_extracti128_si256(a, 1))};
}

/* Four products of bytes of x, without sign, and y, with sign, added to each lane of 32 bits. Neither they nor the sums of
 * two leave 32 bits, and the sum of all wraps around, as it does in the processor. */
MODEL __m256i _mm256_dpbusd_avx_epi32(__m256i sum, __m256i x, __m256i y)
{
    __m256i even = _mm256_madd_epi16(_mm256_and_si256(x, _mm256_set1_epi16(255)),
                                     _mm256_srai_epi16(_mm256_slli_epi16(y, 8), 8));
    __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(x, 8), _mm256_srai_epi16(y, 8));
    return _mm256_add_epi32(sum, _mm256_add_epi32(even, odd));
}

MODEL_HALVES_3(__m512i, _mm512_dpbusd_epi32, _mm256_dpbusd_avx_epi32)

/* Bit i of the truth table, i being made of a bit of a, of b and of c. */
MODEL __m256i model_ternary(__m256i a, __m256i b, __m256i c, int table)
{
    const __m256i ones = _mm256_set1_epi8(-1);
    __m256i result = _mm256_setzero_si256();
    for (int i = 0; i < 8; i++) {
        if (!(table >> i & 1)) continue;
        __m256i x = i & 4 ? a : _mm256_xor_si256(a, ones), y = i & 2 ? b : _mm256_xor_si256(b, ones),
                z = i & 1 ? c : _mm256_xor_si256(c, ones);
        result = _mm256_or_si256(result, _mm256_and_si256(x, _mm256_and_si256(y, z)));
    }
    return result;
}

MODEL __m512i _mm512_ternarylogic_epi32(__m512i a, __m512i b, __m512i c, int table)
{
    return (__m512i){model_ternary(a.l, b.l, c.l, table), model_ternary(a.h, b.h, c.h, table)};
}

#endif
