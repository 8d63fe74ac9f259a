/* SPDX-License-Identifier: MIT */
/* neon_encode: what only encoding needs of lanes with NEON, and four floats as four_sse.h has them. */
#ifndef QUIRE_SIMD_NEON_ENCODE_H
#define QUIRE_SIMD_NEON_ENCODE_H

#include "simd/neon.h"

#define HADAMARD_VECTORS 4u /* that a rotation keeps in registers */

/* ------------------------------------------------------------------- floats */

SIMD_FN void vf_store_f16(void *to, vf a)
{
    uint16_t *p = (uint16_t *)to;
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(a.a)));
    vst1_u16(p + 4, vreinterpret_u16_f16(vcvt_f16_f32(a.b)));
    vst1_u16(p + 8, vreinterpret_u16_f16(vcvt_f16_f32(a.c)));
    vst1_u16(p + 12, vreinterpret_u16_f16(vcvt_f16_f32(a.d)));
}

SIMD_FN float32x4_t round_to_f16(float32x4_t a)
{
    return vcvt_f32_f16(vcvt_f16_f32(a));
}

SIMD_FN vf vf_round_to_f16(vf a)
{
    return LANES_1(vf, round_to_f16, a);
}

/* To nearest even in the upper half of each lane; values are finite and stay so. */
SIMD_FN uint32x4_t to_bf16(float32x4_t a)
{
    uint32x4_t u = vreinterpretq_u32_f32(a), odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
    return vaddq_u32(vaddq_u32(u, vdupq_n_u32(0x7fff)), odd);
}

SIMD_FN float32x4_t round_to_bf16(float32x4_t a)
{
    return vreinterpretq_f32_u32(vandq_u32(to_bf16(a), vdupq_n_u32(0xffff0000u)));
}

SIMD_FN vf vf_round_to_bf16(vf a)
{
    return LANES_1(vf, round_to_bf16, a);
}

SIMD_FN void vf_store_bf16(void *to, vf a)
{
    uint16_t *p = (uint16_t *)to;
    vst1_u16(p, vshrn_n_u32(to_bf16(a.a), 16));
    vst1_u16(p + 4, vshrn_n_u32(to_bf16(a.b), 16));
    vst1_u16(p + 8, vshrn_n_u32(to_bf16(a.c), 16));
    vst1_u16(p + 12, vshrn_n_u32(to_bf16(a.d), 16));
}

SIMD_FN vf vf_div(vf a, vf b)
{
    return LANES_2(vf, vdivq_f32, a, b);
}

/* c - a * b */
SIMD_FN vf vf_fnma(vf a, vf b, vf c)
{
    return LANES_3(vf, vfmsq_f32, c, a, b);
}

/* Magnitude of a, sign of b. */
SIMD_FN float32x4_t copysign_of(float32x4_t a, float32x4_t b)
{
    return vbslq_f32(vdupq_n_u32(0x80000000u), b, a);
}

SIMD_FN vf vf_copysign(vf a, vf b)
{
    return LANES_2(vf, copysign_of, a, b);
}

SIMD_FN float32x4_t negate_of(uint32x4_t m, float32x4_t a)
{
    uint32x4_t sign = vandq_u32(m, vdupq_n_u32(0x80000000u));
    return vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(a), sign));
}

SIMD_FN vf vf_negate(vm m, vf a)
{
    return LANES_2(vf, negate_of, m, a);
}

/* Lane j changes its sign if bit i + j of `minus` is 1; i is a multiple of 16. */
SIMD_FN vf vf_change_signs(vf v, const uint64_t *minus, uint32_t i)
{
    return vf_negate(vm_of_bits((uint32_t)(minus[i / 64] >> i % 64) & 0xffff), v);
}

SIMD_FN vm vf_le(vf a, vf b)
{
    return LANES_2(vm, vcleq_f32, a, b);
}

SIMD_FN uint32x4_t is_nan_of(float32x4_t a)
{
    return vmvnq_u32(vceqq_f32(a, a));
}

SIMD_FN vm vf_is_nan(vf a)
{
    return LANES_1(vm, is_nan_of, a);
}

/* ----------------------------------------------------------------- integers */

SIMD_FN vi vi_sub(vi a, vi b)
{
    return LANES_2(vi, vsubq_s32, a, b);
}

SIMD_FN vi vi_and(vi a, vi b)
{
    return LANES_2(vi, vandq_s32, a, b);
}

SIMD_FN int32x4_t xor_where_of(uint32x4_t m, int32x4_t a, int32x4_t b)
{
    return veorq_s32(a, vandq_s32(vreinterpretq_s32_u32(m), b));
}

/* a ^ b where m holds, else a. */
SIMD_FN vi vi_xor_where(vm m, vi a, vi b)
{
    return LANES_3(vi, xor_where_of, m, a, b);
}

SIMD_FN vi vi_shift_left(vi a, uint32_t n)
{
    vi by = vi_set1((int32_t)n);
    return LANES_2(vi, vshlq_s32, a, by);
}

SIMD_FN int32x4_t shift_right_of(int32x4_t a, int32x4_t by)
{
    return vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(a), by));
}

SIMD_FN vi vi_shift_right(vi a, uint32_t n)
{
    vi by = vi_set1(-(int32_t)n);
    return LANES_2(vi, shift_right_of, a, by);
}

SIMD_FN int32x4_t merge_bits_of(int32x4_t mask, int32x4_t a, int32x4_t b)
{
    return vbslq_s32(vreinterpretq_u32_s32(mask), b, a);
}

/* Bits of b where the mask has ones, else those of a. */
SIMD_FN vi vi_merge_bits(vi mask, vi a, vi b)
{
    return LANES_3(vi, merge_bits_of, mask, a, b);
}

SIMD_FN int32x4_t increment_of(int32x4_t a, uint32x4_t m)
{
    return vsubq_s32(a, vreinterpretq_s32_u32(m));
}

/* a + 1 where m holds. */
SIMD_FN vi vi_increment(vi a, vm m)
{
    return LANES_2(vi, increment_of, a, m);
}

SIMD_FN vm vi_gt(vi a, vi b)
{
    return LANES_2(vm, vcgtq_s32, a, b);
}

/* The same bits. */
SIMD_FN vi vf_as_int(vf a)
{
    return LANES_1(vi, vreinterpretq_s32_f32, a);
}

SIMD_FN vi vf_truncate(vf a)
{
    return LANES_1(vi, vcvtq_s32_f32, a);
}

SIMD_FN int32x4_t widen_words(uint16x4_t x)
{
    return vreinterpretq_s32_u32(vmovl_u16(x));
}

/* 16 bytes, from and to lanes of 0 to 255; what lies outside of that saturates. */
SIMD_FN vi vi_load_u8(const uint8_t *p)
{
    uint8x16_t x = vld1q_u8(p);
    uint16x8_t low = vmovl_u8(vget_low_u8(x)), high = vmovl_u8(vget_high_u8(x));
    return (vi){widen_words(vget_low_u16(low)), widen_words(vget_high_u16(low)),
                widen_words(vget_low_u16(high)), widen_words(vget_high_u16(high))};
}

SIMD_FN void vi_store_u8(uint8_t *p, vi a)
{
    vst1q_u8(p, vcombine_u8(vqmovun_s16(first_words(a)), vqmovun_s16(last_words(a))));
}

/* ------------------------------------------------------------------- truths */

SIMD_FN uint32_t bits_of(uint32x4_t m)
{
    static const uint32_t each[4] = {1, 2, 4, 8};
    return vaddvq_u32(vandq_u32(m, vld1q_u32(each)));
}

SIMD_FN uint32_t vm_bits(vm m)
{
    return bits_of(m.a) | bits_of(m.b) << 4 | bits_of(m.c) << 8 | bits_of(m.d) << 12;
}

SIMD_FN vm vm_and(vm a, vm b)
{
    return LANES_2(vm, vandq_u32, a, b);
}

SIMD_FN bool vm_all(vm m)
{
    return vminvq_u32(vandq_u32(vandq_u32(m.a, m.b), vandq_u32(m.c, m.d))) != 0;
}

/* ------------------------------------------------------------------- tables */

/* Bytes of the entries `index` of a table of floats. */
SIMD_FN uint8x16_t entry_bytes(int32x4_t index)
{
    return vreinterpretq_u8_s32(vmlaq_n_s32(vdupq_n_s32(0x03020100), index, 0x04040404));
}

SIMD_FN uint8x16x4_t table16(const float *table)
{
    return (uint8x16x4_t){{vreinterpretq_u8_f32(vld1q_f32(table)), vreinterpretq_u8_f32(vld1q_f32(table + 4)),
                           vreinterpretq_u8_f32(vld1q_f32(table + 8)),
                           vreinterpretq_u8_f32(vld1q_f32(table + 12))}};
}

SIMD_FN float32x4_t entry8_of(uint8x16x2_t table, int32x4_t index)
{
    return vreinterpretq_f32_u8(vqtbl2q_u8(table, entry_bytes(index)));
}

/* Entry `index` of a table of 8 or 32 floats; indices are below the size. */
SIMD_FN vf vf_entry8(const float *table, vi index)
{
    uint8x16x2_t t = {{vreinterpretq_u8_f32(vld1q_f32(table)), vreinterpretq_u8_f32(vld1q_f32(table + 4))}};
    return (vf){entry8_of(t, index.a), entry8_of(t, index.b), entry8_of(t, index.c), entry8_of(t, index.d)};
}

/* Bytes beyond a half of the table are 0 in the first lookup, and left by the second. */
SIMD_FN float32x4_t entry32_of(uint8x16x4_t low, uint8x16x4_t high, int32x4_t index)
{
    uint8x16_t at = entry_bytes(index);
    return vreinterpretq_f32_u8(vqtbx4q_u8(vqtbl4q_u8(low, at), high, vsubq_u8(at, vdupq_n_u8(64))));
}

SIMD_FN vf vf_entry32(const float *table, vi index)
{
    uint8x16x4_t low = table16(table), high = table16(table + 16);
    return (vf){entry32_of(low, high, index.a), entry32_of(low, high, index.b),
                entry32_of(low, high, index.c), entry32_of(low, high, index.d)};
}

/* A codec's table, to be looked up by 16 codes at once. */
typedef struct byte_table {
    int8x16x4_t entries; /* beyond the end: 0 */
} byte_table;

SIMD_FN byte_table byte_table_load(const int8_t *table, uint32_t bits)
{
    int8_t all[64] = {0};
    memcpy(all, table, (size_t)1 << bits);
    return (byte_table){{{vld1q_s8(all), vld1q_s8(all + 16), vld1q_s8(all + 32), vld1q_s8(all + 48)}}};
}

SIMD_FN vf vf_from_table(const byte_table *t, const uint8_t *code)
{
    int8x16_t x = vqtbl4q_s8(t->entries, vld1q_u8(code));
    int16x8_t low = vmovl_s8(vget_low_s8(x)), high = vmovl_s8(vget_high_s8(x));
    return vi_to_float((vi){vmovl_s16(vget_low_s16(low)), vmovl_s16(vget_high_s16(low)),
                            vmovl_s16(vget_low_s16(high)), vmovl_s16(vget_high_s16(high))});
}

/* ----------------------------------------------------------------- rotation */

/* Strides 1 and 2. a - b is b's lane times -1, plus a: the product is exact. */
SIMD_FN float32x4_t hadamard4(float32x4_t a)
{
    static const float sign1[4] = {1, -1, 1, -1}, sign2[4] = {1, 1, -1, -1};
    a = vfmaq_f32(vrev64q_f32(a), a, vld1q_f32(sign1));
    return vfmaq_f32(vextq_f32(a, a, 2), a, vld1q_f32(sign2));
}

/* Butterflies with strides 1, 2, 4, 8. */
SIMD_FN vf vf_hadamard16(vf x)
{
    x = LANES_1(vf, hadamard4, x);
    x = (vf){vaddq_f32(x.a, x.b), vsubq_f32(x.a, x.b), vaddq_f32(x.c, x.d), vsubq_f32(x.c, x.d)};
    return (vf){vaddq_f32(x.a, x.c), vaddq_f32(x.b, x.d), vsubq_f32(x.a, x.c), vsubq_f32(x.b, x.d)};
}

/* -------------------------------------------------------------- four floats */

typedef float32x4_t v4;
typedef uint32x4_t m4; /* truths: all bits or none */

SIMD_FN v4 halves_of(v4 a, v4 b, bool upper)
{
    float64x2_t x = vreinterpretq_f64_f32(a), y = vreinterpretq_f64_f32(b);
    return vreinterpretq_f32_f64(upper ? vzip2q_f64(x, y) : vzip1q_f64(x, y));
}

/* Four vectors at once: lane i of the result is the sum, the least or the largest lane of the i-th, halves on halves. */
#define FOLD4(NAME, OP, PAIRS)                                                       \
    SIMD_FN v4 NAME(vf a, vf b, vf c, vf d)                                          \
    {                                                                                \
        v4 a4 = OP(OP(a.a, a.c), OP(a.b, a.d)), b4 = OP(OP(b.a, b.c), OP(b.b, b.d)); \
        v4 c4 = OP(OP(c.a, c.c), OP(c.b, c.d)), d4 = OP(OP(d.a, d.c), OP(d.b, d.d)); \
        return PAIRS(OP(halves_of(a4, b4, false), halves_of(a4, b4, true)),          \
                     OP(halves_of(c4, d4, false), halves_of(c4, d4, true)));         \
    }

FOLD4(vf_fold_add4, vaddq_f32, vpaddq_f32)
FOLD4(vf_fold_min4, vminq_f32, vpminq_f32)
FOLD4(vf_fold_max4, vmaxq_f32, vpmaxq_f32)

SIMD_FN v4 v4_load(const float *p)
{
    return vld1q_f32(p);
}

SIMD_FN void v4_store(float *p, v4 a)
{
    vst1q_f32(p, a);
}

SIMD_FN v4 v4_set1(float x)
{
    return vdupq_n_f32(x);
}

SIMD_FN v4 v4_add(v4 a, v4 b)
{
    return vaddq_f32(a, b);
}

SIMD_FN v4 v4_sub(v4 a, v4 b)
{
    return vsubq_f32(a, b);
}

SIMD_FN v4 v4_div(v4 a, v4 b)
{
    return vdivq_f32(a, b);
}

SIMD_FN v4 v4_max(v4 a, v4 b)
{
    return max_of(a, b);
}

SIMD_FN v4 v4_abs(v4 a)
{
    return vabsq_f32(a);
}

/* To the nearest integer, ties to even. */
SIMD_FN v4 v4_round(v4 a)
{
    return vrndnq_f32(a);
}

SIMD_FN m4 v4_gt(v4 a, v4 b)
{
    return vcgtq_f32(a, b);
}

SIMD_FN m4 v4_lt(v4 a, v4 b)
{
    return vcltq_f32(a, b);
}

SIMD_FN m4 v4_eq(v4 a, v4 b)
{
    return vceqq_f32(a, b);
}

SIMD_FN m4 v4_ne(v4 a, v4 b)
{
    return vmvnq_u32(vceqq_f32(a, b));
}

/* a where m holds, else b; or else 0. */
SIMD_FN v4 v4_select(m4 m, v4 a, v4 b)
{
    return vbslq_f32(m, a, b);
}

SIMD_FN v4 v4_keep(m4 m, v4 a)
{
    return keep_of(m, a);
}

/* -a where m does not hold. */
SIMD_FN v4 v4_negate_unless(m4 m, v4 a)
{
    return negate_of(vmvnq_u32(m), a);
}

/* One bit for each lane. */
SIMD_FN uint32_t m4_bits(m4 m)
{
    return bits_of(m);
}

/* As halves, to nearest even. Gives whether all of them are finite. */
SIMD_FN bool v4_store_f16(uint16_t *p, v4 a)
{
    const uint16x4_t exponent = vdup_n_u16(0x7c00);
    uint16x4_t h = vreinterpret_u16_f16(vcvt_f16_f32(a));
    vst1_u16(p, h);
    return !vmaxv_u16(vceq_u16(vand_u16(h, exponent), exponent));
}

#endif
