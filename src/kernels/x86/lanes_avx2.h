/* SPDX-License-Identifier: MIT */
/*
 * lanes: 16 floats or integers at a time, AVX2: two registers each. The words that program.h is written in, and of every
 * word but vf_quotient() the same results as those of lanes_avx512.h. What depends on how products are made is left to
 * the file that includes this: vi_store_planes() and vi_store_bytes().
 */
#ifndef QUIRE_KERNELS_X86_LANES_AVX2_H
#define QUIRE_KERNELS_X86_LANES_AVX2_H

#include "kernels/kernels.h"
#include "kernels/unroll.h"

#include <immintrin.h>
#include <math.h>

#ifndef LANES_TARGET /* a file may need more than this */
#define LANES_TARGET "avx2,fma,f16c,bmi2"
#endif
#define LANES_FN static inline __attribute__((always_inline, target(LANES_TARGET)))
#define LANES_CALL static __attribute__((noinline, target(LANES_TARGET)))

typedef struct vf {
    __m256 a, b;
} vf;
typedef struct vi {
    __m256i a, b;
} vi;
typedef vi vm; /* all bits of a lane, or none */

LANES_FN void lanes_prefetch(const uint8_t *p)
{
    _mm_prefetch((const char *)p, _MM_HINT_T0);
}
LANES_FN vf vf_load(const float *p)
{
    return (vf){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
LANES_FN void vf_store(float *p, vf x)
{
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
LANES_FN vf vf_set1(float x)
{
    return (vf){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
LANES_FN vf vf_add(vf x, vf y)
{
    return (vf){_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)};
}
LANES_FN vf vf_sub(vf x, vf y)
{
    return (vf){_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)};
}
LANES_FN vf vf_mul(vf x, vf y)
{
    return (vf){_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)};
}
LANES_FN vf vf_fma(vf x, vf y, vf z)
{
    return (vf){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
LANES_FN vf vf_max(vf x, vf y)
{
    return (vf){_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)};
} /* y if one is NaN */
LANES_FN vf vf_min(vf x, vf y)
{
    return (vf){_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)};
}
LANES_FN vf vf_quotient(vf x, vf y)
{
    return (vf){_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)};
}
LANES_FN vf vf_abs(vf x)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return (vf){_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
LANES_FN vf vf_half(const uint8_t *p)
{
    return (vf){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
                _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 16)))};
}
/* 16 scales of calibrated rows: the number, and which mean was taken out. */
LANES_FN vf vf_half_without_mean(const uint8_t *p)
{
    const __m128i number = _mm_set1_epi16((int16_t)~QUIRE_MEAN_BITS);
    return (vf){_mm256_cvtph_ps(_mm_and_si128(_mm_loadu_si128((const __m128i *)p), number)),
                _mm256_cvtph_ps(_mm_and_si128(_mm_loadu_si128((const __m128i *)(p + 16)), number))};
}
LANES_FN vi vi_mean_bits(const uint8_t *p)
{
    const __m128i bits = _mm_set1_epi16((int16_t)QUIRE_MEAN_BITS);
    return (vi){_mm256_cvtepu16_epi32(_mm_and_si128(_mm_loadu_si128((const __m128i *)p), bits)),
                _mm256_cvtepu16_epi32(_mm_and_si128(_mm_loadu_si128((const __m128i *)(p + 16)), bits))};
}
/* Entries of a table of 16: from either half, by bit 3. */
LANES_FN __m256 pick_of(__m256 low, __m256 high, __m256i index)
{
    __m256 upper = _mm256_castsi256_ps(_mm256_slli_epi32(index, 28));
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, index), _mm256_permutevar8x32_ps(high, index),
                            upper);
}
LANES_FN vf vf_pick(const float *table, vi index)
{
    __m256 low = _mm256_loadu_ps(table), high = _mm256_loadu_ps(table + 8);
    return (vf){pick_of(low, high, index.a), pick_of(low, high, index.b)};
}
LANES_FN vf vf_bfloat(const uint8_t *p)
{
    __m256i a = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)),
            b = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(p + 16)));
    return (vf){_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(b, 16))};
}
LANES_FN float vf_first(vf x)
{
    return _mm256_cvtss_f32(x.a);
}
LANES_FN float vf_reduce_max(vf x)
{
    __m256 h = _mm256_max_ps(x.a, x.b);
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}
LANES_FN void vf_reduce_max4(const vf x[4], float *to)
{
    for (uint32_t i = 0; i < 4; i++) to[i] = vf_reduce_max(x[i]);
}

/* Halves on halves, as quire_lane_dot() folds its lanes. */
LANES_FN float vf_reduce_add(vf x)
{
    __m256 h = _mm256_add_ps(x.a, x.b);
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

/* 2^x for x up to a little above 0; below -126 it is 0 (results are flushed): 2^-127 is made of bits that say 0. */
LANES_FN __m256 exp2_of(__m256 x)
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
LANES_FN vf vf_exp2(vf x)
{
    return (vf){exp2_of(x.a), exp2_of(x.b)};
}

LANES_FN vm vm_of_bits(uint64_t bits)
{
    const __m256i each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    __m256i a = _mm256_and_si256(_mm256_set1_epi32((int32_t)(bits & 0xff)), each),
            b = _mm256_and_si256(_mm256_set1_epi32((int32_t)(bits >> 8 & 0xff)), each);
    return (vm){_mm256_cmpeq_epi32(a, each), _mm256_cmpeq_epi32(b, each)};
}
LANES_FN vf vf_keep(vm m, vf x)
{
    return (vf){_mm256_and_ps(_mm256_castsi256_ps(m.a), x.a), _mm256_and_ps(_mm256_castsi256_ps(m.b), x.b)};
} /* others 0 */
LANES_FN vf vf_select(vm m, vf x, vf other)
{
    return (vf){_mm256_blendv_ps(other.a, x.a, _mm256_castsi256_ps(m.a)),
                _mm256_blendv_ps(other.b, x.b, _mm256_castsi256_ps(m.b))};
}

LANES_FN __m256i load256(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}
LANES_FN void store256(void *p, __m256i x)
{
    _mm256_storeu_si256((__m256i *)p, x);
}
LANES_FN vi vi_load(const int32_t *p)
{
    return (vi){load256(p), load256(p + 8)};
}
LANES_FN void vi_store(int32_t *p, vi x)
{
    store256(p, x.a);
    store256(p + 8, x.b);
}
LANES_FN vi vi_set1(int32_t x)
{
    return (vi){_mm256_set1_epi32(x), _mm256_set1_epi32(x)};
}
LANES_FN vi vi_add(vi x, vi y)
{
    return (vi){_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)};
}
LANES_FN vf vi_to_float(vi x)
{
    return (vf){_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)};
}
LANES_FN vi vf_to_int(vf x)
{
    return (vi){_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)};
} /* nearest even */
LANES_FN int32_t vi_reduce_add(vi x)
{
    __m256i h = _mm256_add_epi32(x.a, x.b);
    __m128i q = _mm_add_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
    q = _mm_add_epi32(q, _mm_shuffle_epi32(q, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(q, _mm_shuffle_epi32(q, 0xb1)));
}

/* Sums of z[j] * k[j], numbers of 16 bits, over all j and some of the lanes: their total is what counts. */
LANES_FN __m256i dot4_of(__m256i z0, __m256i z1, __m256i k0, __m256i k1)
{
    return _mm256_madd_epi16(_mm256_packs_epi32(z0, z1), _mm256_packs_epi32(k0, k1));
}
LANES_FN vi vi_dot4(const vi z[4], const vi k[4])
{
    return (vi){
        _mm256_add_epi32(dot4_of(z[0].a, z[1].a, k[0].a, k[1].a), dot4_of(z[2].a, z[3].a, k[2].a, k[3].a)),
        _mm256_add_epi32(dot4_of(z[0].b, z[1].b, k[0].b, k[1].b), dot4_of(z[2].b, z[3].b, k[2].b, k[3].b))};
}

/* By lanes of 16 bits: the larger of two packed pairs, without their signs. */
LANES_FN __m256i larger_of(__m256i z0, __m256i z1, __m256i z2, __m256i z3)
{
    return _mm256_max_epu16(_mm256_abs_epi16(_mm256_packs_epi32(z0, z1)),
                            _mm256_abs_epi16(_mm256_packs_epi32(z2, z3)));
}
/* Whether all of 64 whole numbers of 16 bits lie between -limit and limit. */
LANES_FN bool vi_all_within(const vi z[4], int16_t limit)
{
    __m256i most = _mm256_max_epu16(larger_of(z[0].a, z[1].a, z[2].a, z[3].a),
                                    larger_of(z[0].b, z[1].b, z[2].b, z[3].b));
    __m256i large = _mm256_cmpeq_epi16(_mm256_max_epu16(most, _mm256_set1_epi16(limit)), most);
    return _mm256_testz_si256(large, large);
}

/* Quads of numbers as packing two and then two registers leaves them, brought into order. */
LANES_FN __m256i quads_in_order(__m256i x)
{
    return _mm256_permutevar8x32_epi32(x, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

#endif
