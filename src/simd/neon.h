/* SPDX-License-Identifier: MIT */
/* neon: lanes with NEON, 16 in four registers. See simd.h. NaN as an integer is 0 here. */
#ifndef QUIRE_SIMD_NEON_H
#define QUIRE_SIMD_NEON_H

#include "simd/exp2.h"
#include "simd/simd.h"

#include <arm_neon.h>

#ifndef SIMD_TARGET /* a file may need more than this */
#define SIMD_TARGET "arch=armv8-a"
#endif

typedef struct vf {
    float32x4_t a, b, c, d;
} vf;
typedef struct vi {
    int32x4_t a, b, c, d;
} vi;
typedef struct vm {
    uint32x4_t a, b, c, d;
} vm; /* all bits of a lane, or none */

/* A function of four lanes on all of them. */
#define LANES_1(type, fn, x) ((type){fn((x).a), fn((x).b), fn((x).c), fn((x).d)})
#define LANES_2(type, fn, x, y) \
    ((type){fn((x).a, (y).a), fn((x).b, (y).b), fn((x).c, (y).c), fn((x).d, (y).d)})
#define LANES_3(type, fn, x, y, z)                                                     \
    ((type){fn((x).a, (y).a, (z).a), fn((x).b, (y).b, (z).b), fn((x).c, (y).c, (z).c), \
            fn((x).d, (y).d, (z).d)})

SIMD_FN void simd_prefetch(const uint8_t *p)
{
    __builtin_prefetch(p);
}
SIMD_FN vf vf_load(const float *p)
{
    return (vf){vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)};
}
SIMD_FN void vf_store(float *p, vf x)
{
    vst1q_f32(p, x.a);
    vst1q_f32(p + 4, x.b);
    vst1q_f32(p + 8, x.c);
    vst1q_f32(p + 12, x.d);
}
SIMD_FN vf vf_set1(float x)
{
    return (vf){vdupq_n_f32(x), vdupq_n_f32(x), vdupq_n_f32(x), vdupq_n_f32(x)};
}
SIMD_FN vf vf_add(vf x, vf y)
{
    return LANES_2(vf, vaddq_f32, x, y);
}
SIMD_FN vf vf_sub(vf x, vf y)
{
    return LANES_2(vf, vsubq_f32, x, y);
}
SIMD_FN vf vf_mul(vf x, vf y)
{
    return LANES_2(vf, vmulq_f32, x, y);
}
SIMD_FN vf vf_fma(vf x, vf y, vf z)
{
    return LANES_3(vf, vfmaq_f32, z, x, y);
}
SIMD_FN float32x4_t max_of(float32x4_t x, float32x4_t y)
{
    return vbslq_f32(vcgtq_f32(x, y), x, y);
}
SIMD_FN float32x4_t min_of(float32x4_t x, float32x4_t y)
{
    return vbslq_f32(vcltq_f32(x, y), x, y);
}
SIMD_FN vf vf_max(vf x, vf y)
{
    return LANES_2(vf, max_of, x, y);
} /* y if one is NaN */
SIMD_FN vf vf_min(vf x, vf y)
{
    return LANES_2(vf, min_of, x, y);
}
SIMD_FN vf vf_div_approx(vf x, vf y)
{
    return LANES_2(vf, vdivq_f32, x, y);
}
SIMD_FN vf vf_abs(vf x)
{
    return LANES_1(vf, vabsq_f32, x);
}
SIMD_FN float32x4_t half_at(const uint8_t *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
}
SIMD_FN vf vf_load_f16(const void *from)
{
    const uint8_t *p = (const uint8_t *)from;
    return (vf){half_at(p), half_at(p + 8), half_at(p + 16), half_at(p + 24)};
}
/* The same of the bits that `mask` has, and 16 words of 16 bits likewise. */
SIMD_FN uint16x4_t half_bits(const uint8_t *p, uint32_t mask)
{
    return vand_u16(vreinterpret_u16_u8(vld1_u8(p)), vdup_n_u16((uint16_t)mask));
}
SIMD_FN float32x4_t half_and(const uint8_t *p, uint32_t mask)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(half_bits(p, mask)));
}
SIMD_FN vf vf_load_f16_and(const uint8_t *p, uint32_t mask)
{
    return (vf){half_and(p, mask), half_and(p + 8, mask), half_and(p + 16, mask), half_and(p + 24, mask)};
}
SIMD_FN int32x4_t word_and(const uint8_t *p, uint32_t mask)
{
    return vreinterpretq_s32_u32(vmovl_u16(half_bits(p, mask)));
}
SIMD_FN vi vi_load_u16_and(const uint8_t *p, uint32_t mask)
{
    return (vi){word_and(p, mask), word_and(p + 8, mask), word_and(p + 16, mask), word_and(p + 24, mask)};
}
/* Entries of a table of 16, by the numbers of their four bytes. */
SIMD_FN float32x4_t entry16_of(uint8x16x4_t table, int32x4_t index)
{
    int32x4_t bytes = vmlaq_n_s32(vdupq_n_s32(0x03020100), index, 0x04040404);
    return vreinterpretq_f32_u8(vqtbl4q_u8(table, vreinterpretq_u8_s32(bytes)));
}
SIMD_FN vf vf_entry16(const float *table, vi index)
{
    uint8x16x4_t t = {{vreinterpretq_u8_f32(vld1q_f32(table)), vreinterpretq_u8_f32(vld1q_f32(table + 4)),
                       vreinterpretq_u8_f32(vld1q_f32(table + 8)),
                       vreinterpretq_u8_f32(vld1q_f32(table + 12))}};
    return (vf){entry16_of(t, index.a), entry16_of(t, index.b), entry16_of(t, index.c),
                entry16_of(t, index.d)};
}
SIMD_FN float32x4_t bfloat_at(const uint8_t *p)
{
    return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(p)), 16));
}
SIMD_FN vf vf_load_bf16(const void *from)
{
    const uint8_t *p = (const uint8_t *)from;
    return (vf){bfloat_at(p), bfloat_at(p + 8), bfloat_at(p + 16), bfloat_at(p + 24)};
}
SIMD_FN float vf_reduce_max(vf x)
{
    return vmaxvq_f32(vmaxq_f32(vmaxq_f32(x.a, x.b), vmaxq_f32(x.c, x.d)));
}
SIMD_FN void vf_reduce_max4(const vf x[4], float *to)
{
    for (uint32_t i = 0; i < 4; i++) to[i] = vf_reduce_max(x[i]);
}

/* Halves on halves, as quire_lane_dot() folds its lanes. */
SIMD_FN float vf_reduce_add(vf x)
{
    float32x4_t q = vaddq_f32(vaddq_f32(x.a, x.c), vaddq_f32(x.b, x.d));
    float32x2_t h = vadd_f32(vget_low_f32(q), vget_high_f32(q));
    return vget_lane_f32(h, 0) + vget_lane_f32(h, 1);
}

/* 2^x for x up to a little above 0; below -126 it is 0 (results are flushed): 2^-127 is made of bits that say 0. */
SIMD_FN float32x4_t exp2_of(float32x4_t x)
{
    x = max_of(vdupq_n_f32(-127.0f), x); /* NaN stays */
    float32x4_t n = vrndmq_f32(x), f = vsubq_f32(x, n);
    float32x4_t r = vfmaq_f32(vdupq_n_f32(QUIRE_EXP2_FLOOR_3), vdupq_n_f32(QUIRE_EXP2_FLOOR_4), f);
    r = vfmaq_f32(vdupq_n_f32(QUIRE_EXP2_FLOOR_2), r, f);
    r = vfmaq_f32(vdupq_n_f32(QUIRE_EXP2_FLOOR_1), r, f);
    r = vfmaq_f32(vdupq_n_f32(1.0f), r, f);
    int32x4_t power = vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23);
    return vmulq_f32(r, vreinterpretq_f32_s32(power));
}
SIMD_FN vf vf_exp2(vf x)
{
    return LANES_1(vf, exp2_of, x);
}

SIMD_FN vm vm_of_bits(uint64_t bits)
{
    static const uint32_t each[16] = {0x1,   0x2,   0x4,   0x8,   0x10,   0x20,   0x40,   0x80,
                                      0x100, 0x200, 0x400, 0x800, 0x1000, 0x2000, 0x4000, 0x8000};
    uint32x4_t x = vdupq_n_u32((uint32_t)bits);
    return (vm){vtstq_u32(x, vld1q_u32(each)), vtstq_u32(x, vld1q_u32(each + 4)),
                vtstq_u32(x, vld1q_u32(each + 8)), vtstq_u32(x, vld1q_u32(each + 12))};
}
SIMD_FN float32x4_t keep_of(uint32x4_t m, float32x4_t x)
{
    return vreinterpretq_f32_u32(vandq_u32(m, vreinterpretq_u32_f32(x)));
}
SIMD_FN vf vf_keep(vm m, vf x)
{
    return LANES_2(vf, keep_of, m, x);
} /* others 0 */
SIMD_FN vf vf_select(vm m, vf x, vf other)
{
    return LANES_3(vf, vbslq_f32, m, x, other);
}

SIMD_FN vi vi_load(const void *from)
{
    const int32_t *p = (const int32_t *)from;
    return (vi){vld1q_s32(p), vld1q_s32(p + 4), vld1q_s32(p + 8), vld1q_s32(p + 12)};
}
SIMD_FN void vi_store(void *to, vi x)
{
    int32_t *p = (int32_t *)to;
    vst1q_s32(p, x.a);
    vst1q_s32(p + 4, x.b);
    vst1q_s32(p + 8, x.c);
    vst1q_s32(p + 12, x.d);
}
SIMD_FN vi vi_set1(int32_t x)
{
    return (vi){vdupq_n_s32(x), vdupq_n_s32(x), vdupq_n_s32(x), vdupq_n_s32(x)};
}
SIMD_FN vi vi_add(vi x, vi y)
{
    return LANES_2(vi, vaddq_s32, x, y);
}
SIMD_FN vf vi_to_float(vi x)
{
    return LANES_1(vf, vcvtq_f32_s32, x);
}
SIMD_FN vi vf_to_int(vf x)
{
    return LANES_1(vi, vcvtnq_s32_f32, x);
} /* nearest even */
SIMD_FN int32_t vi_reduce_add(vi x)
{
    return vaddvq_s32(vaddq_s32(vaddq_s32(x.a, x.b), vaddq_s32(x.c, x.d)));
}

/* The sum of the lanes of each of four vectors. */
SIMD_FN void vi_reduce_add4(const vi x[4], int32_t *to)
{
    int32x4_t s[4];
    for (uint32_t i = 0; i < 4; i++) s[i] = vaddq_s32(vaddq_s32(x[i].a, x[i].b), vaddq_s32(x[i].c, x[i].d));
    vst1q_s32(to, vpaddq_s32(vpaddq_s32(s[0], s[1]), vpaddq_s32(s[2], s[3])));
}

/* 16 numbers as 16 bits, the first eight and the last. */
SIMD_FN int16x8_t first_words(vi x)
{
    return vcombine_s16(vqmovn_s32(x.a), vqmovn_s32(x.b));
}
SIMD_FN int16x8_t last_words(vi x)
{
    return vcombine_s16(vqmovn_s32(x.c), vqmovn_s32(x.d));
}

/* Whether all of 64 whole numbers of 16 bits lie between -limit and limit. */
SIMD_FN bool vi_all_within(const vi z[4], int16_t limit)
{
    uint16x8_t most = vdupq_n_u16(0);
    for (uint32_t j = 0; j < 4; j++) {
        uint16x8_t x = vreinterpretq_u16_s16(vabsq_s16(first_words(z[j])));
        most = vmaxq_u16(most, vmaxq_u16(x, vreinterpretq_u16_s16(vabsq_s16(last_words(z[j])))));
    }
    return vmaxvq_u16(most) < (uint16_t)limit;
}

/* Sums of z[j] * k[j], numbers of 16 bits, over all j and some of the lanes: their total is what counts. */
SIMD_FN int32x4_t dot4_of(int32x4_t z0, int32x4_t z1, int32x4_t z2, int32x4_t z3, int32x4_t k0, int32x4_t k1,
                          int32x4_t k2, int32x4_t k3)
{
    return vpaddq_s32(vmlaq_s32(vmulq_s32(z0, k0), z2, k2), vmlaq_s32(vmulq_s32(z1, k1), z3, k3));
}
SIMD_FN vi vi_dot4(const vi z[4], const vi k[4])
{
    return (vi){dot4_of(z[0].a, z[1].a, z[2].a, z[3].a, k[0].a, k[1].a, k[2].a, k[3].a),
                dot4_of(z[0].b, z[1].b, z[2].b, z[3].b, k[0].b, k[1].b, k[2].b, k[3].b),
                dot4_of(z[0].c, z[1].c, z[2].c, z[3].c, k[0].c, k[1].c, k[2].c, k[3].c),
                dot4_of(z[0].d, z[1].d, z[2].d, z[3].d, k[0].d, k[1].d, k[2].d, k[3].d)};
}

#endif
