/* SPDX-License-Identifier: MIT */
/* models: what AVX-512 has and AVX2 has not: masks, tables, narrowing, and floats taken apart. Lane by lane in plain C where
 * that is fast enough for tests. */
#ifndef QUIRE_EMULATE_MODELS_LANES_H
#define QUIRE_EMULATE_MODELS_LANES_H

/* A register as what it holds. */
typedef union model_lanes {
    __m512 floats;
    __m512i whole;
    float f32[16];
    int32_t i32[16];
    uint32_t u32[16];
    uint16_t u16[32];
    uint8_t u8[64];
} model_lanes;

/* -------------------------------------------------------------------- masks */

/* All bits of the lanes whose bit is set. */
MODEL __m256i model_mask8(uint32_t mask)
{
    const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32((int32_t)mask), bit), bit);
}

MODEL __mmask16 model_bits(__m256 low, __m256 high)
{
    return (__mmask16)(_mm256_movemask_ps(low) | _mm256_movemask_ps(high) << 8);
}

MODEL __m512 _mm512_mask_mov_ps(__m512 other, __mmask16 mask, __m512 a)
{
    return (__m512){_mm256_blendv_ps(other.l, a.l, _mm256_castsi256_ps(model_mask8(mask))),
                    _mm256_blendv_ps(other.h, a.h, _mm256_castsi256_ps(model_mask8(mask >> 8u)))};
}

MODEL __m512 _mm512_maskz_mov_ps(__mmask16 mask, __m512 a)
{
    return _mm512_mask_mov_ps(_mm512_setzero_ps(), mask, a);
}

MODEL __m512 _mm512_maskz_mul_ps(__mmask16 mask, __m512 a, __m512 b)
{
    return _mm512_maskz_mov_ps(mask, _mm512_mul_ps(a, b));
}

MODEL __m512i model_mask_mov_epi32(__m512i other, __mmask16 mask, __m512i a)
{
    return _mm512_castps_si512(_mm512_mask_mov_ps(_mm512_castsi512_ps(other), mask, _mm512_castsi512_ps(a)));
}

MODEL __m512i _mm512_mask_add_epi32(__m512i other, __mmask16 mask, __m512i a, __m512i b)
{
    return model_mask_mov_epi32(other, mask, _mm512_add_epi32(a, b));
}

MODEL __m512i _mm512_mask_xor_epi32(__m512i other, __mmask16 mask, __m512i a, __m512i b)
{
    return model_mask_mov_epi32(other, mask, _mm512_xor_si512(a, b));
}

MODEL __m512 _mm512_mask_xor_ps(__m512 other, __mmask16 mask, __m512 a, __m512 b)
{
    return _mm512_castsi512_ps(_mm512_mask_xor_epi32(_mm512_castps_si512(other), mask, _mm512_castps_si512(a),
                                                     _mm512_castps_si512(b)));
}

MODEL __mmask16 _mm512_cmp_ps_mask(__m512 a, __m512 b, int relation)
{
    switch (relation) {
    case _CMP_LE_OQ:
        return model_bits(_mm256_cmp_ps(a.l, b.l, _CMP_LE_OQ), _mm256_cmp_ps(a.h, b.h, _CMP_LE_OQ));
    case _CMP_GT_OQ:
        return model_bits(_mm256_cmp_ps(a.l, b.l, _CMP_GT_OQ), _mm256_cmp_ps(a.h, b.h, _CMP_GT_OQ));
    case _CMP_UNORD_Q:
        return model_bits(_mm256_cmp_ps(a.l, b.l, _CMP_UNORD_Q), _mm256_cmp_ps(a.h, b.h, _CMP_UNORD_Q));
    default: __builtin_trap();
    }
}

MODEL __mmask16 _mm512_cmpgt_epi32_mask(__m512i a, __m512i b)
{
    return model_bits(_mm256_castsi256_ps(_mm256_cmpgt_epi32(a.l, b.l)),
                      _mm256_castsi256_ps(_mm256_cmpgt_epi32(a.h, b.h)));
}

MODEL_CALL __mmask32 _mm512_cmpge_epu16_mask(__m512i a, __m512i b)
{
    model_lanes x = {.whole = a}, y = {.whole = b};
    __mmask32 mask = 0;
    for (uint32_t i = 0; i < 32; i++) mask |= (uint32_t)(x.u16[i] >= y.u16[i]) << i;
    return mask;
}

MODEL int _mm512_kortestc(__mmask16 a, __mmask16 b)
{
    return (a | b) == 0xffff;
}

/* Bytes whose bit is not set are not read. */
MODEL_CALL __m512i _mm512_maskz_loadu_epi8(__mmask64 mask, const void *p)
{
    model_lanes x = {.whole = _mm512_setzero_si512()};
    for (uint32_t i = 0; i < 64; i++)
        if (mask >> i & 1) x.u8[i] = ((const uint8_t *)p)[i];
    return x.whole;
}

/* --------------------------------------------------- places and narrow lanes */

MODEL __m128 model_quarter(__m512 a, int i)
{
    __m256 half = i & 2 ? a.h : a.l;
    return i & 1 ? _mm256_extractf128_ps(half, 1) : _mm256_castps256_ps128(half);
}

/* Two quarters of a, then two of b, as the pairs of bits name them. */
MODEL __m512 _mm512_shuffle_f32x4(__m512 a, __m512 b, int order)
{
    return (__m512){_mm256_set_m128(model_quarter(a, order >> 2 & 3), model_quarter(a, order & 3)),
                    _mm256_set_m128(model_quarter(b, order >> 6 & 3), model_quarter(b, order >> 4 & 3))};
}

MODEL __m512i _mm512_shuffle_i64x2(__m512i a, __m512i b, int order)
{
    return _mm512_castps_si512(_mm512_shuffle_f32x4(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), order));
}

/* Lane i of the result is the one that index i names; its upper bits do not count. */
MODEL_CALL __m512 _mm512_permutexvar_ps(__m512i index, __m512 a)
{
    model_lanes at = {.whole = index}, from = {.floats = a}, to;
    for (uint32_t i = 0; i < 16; i++) to.u32[i] = from.u32[at.u32[i] % 16];
    return to.floats;
}

MODEL_CALL __m512 _mm512_permutex2var_ps(__m512 a, __m512i index, __m512 b)
{
    model_lanes at = {.whole = index}, x = {.floats = a}, y = {.floats = b}, to;
    for (uint32_t i = 0; i < 16; i++)
        to.u32[i] = at.u32[i] & 16 ? y.u32[at.u32[i] % 16] : x.u32[at.u32[i] % 16];
    return to.floats;
}

MODEL_CALL __m512i _mm512_permutexvar_epi8(__m512i index, __m512i a)
{
    model_lanes at = {.whole = index}, from = {.whole = a}, to;
    for (uint32_t i = 0; i < 64; i++) to.u8[i] = from.u8[at.u8[i] % 64];
    return to.whole;
}

MODEL __m512i _mm512_permutexvar_epi32(__m512i index, __m512i a)
{
    return _mm512_castps_si512(_mm512_permutexvar_ps(index, _mm512_castsi512_ps(a)));
}

MODEL_CALL __m512i _mm512_permutex2var_epi16(__m512i a, __m512i index, __m512i b)
{
    model_lanes at = {.whole = index}, x = {.whole = a}, y = {.whole = b}, to;
    for (uint32_t i = 0; i < 32; i++)
        to.u16[i] = at.u16[i] & 32 ? y.u16[at.u16[i] % 32] : x.u16[at.u16[i] % 32];
    return to.whole;
}

MODEL_CALL __m512i _mm512_mask_mov_epi8(__m512i other, __mmask64 mask, __m512i a)
{
    model_lanes to = {.whole = a}, from = {.whole = other};
    for (uint32_t i = 0; i < 64; i++)
        if (!(mask >> i & 1)) to.u8[i] = from.u8[i];
    return to.whole;
}

MODEL __m512i _mm512_mask_shuffle_epi8(__m512i other, __mmask64 mask, __m512i a, __m512i index)
{
    return _mm512_mask_mov_epi8(other, mask, _mm512_shuffle_epi8(a, index));
}

/* Bit i: bytes i have a bit in common. */
MODEL_CALL __mmask64 _mm512_test_epi8_mask(__m512i a, __m512i b)
{
    model_lanes x = {.whole = a}, y = {.whole = b};
    __mmask64 mask = 0;
    for (uint32_t i = 0; i < 64; i++) mask |= (uint64_t)((x.u8[i] & y.u8[i]) != 0) << i;
    return mask;
}

/* Narrowing leaves out the upper bits; nothing saturates. */
MODEL_CALL __m128i _mm512_cvtepi32_epi8(__m512i a)
{
    model_lanes from = {.whole = a}, to;
    for (uint32_t i = 0; i < 16; i++) to.u8[i] = (uint8_t)from.u32[i];
    return _mm512_castsi512_si128(to.whole);
}

MODEL_CALL __m256i _mm512_cvtepi32_epi16(__m512i a)
{
    model_lanes from = {.whole = a}, to;
    for (uint32_t i = 0; i < 16; i++) to.u16[i] = (uint16_t)from.u32[i];
    return to.whole.l;
}

/* ----------------------------------------------------------- across the lanes */

MODEL int _mm512_reduce_add_epi32(__m512i a)
{
    model_lanes x = {.whole = a};
    uint32_t sum = 0;
    for (uint32_t i = 0; i < 16; i++) sum += x.u32[i];
    return (int32_t)sum;
}

/* No instruction but a sequence, and each compiler has its own. Its order decides what becomes of NaN. */
#if defined(__clang__)
#define MODEL_MAX(low, high, max) max(low, high)
#else
#define MODEL_MAX(low, high, max) max(high, low)
#endif

MODEL float _mm512_reduce_max_ps(__m512 a)
{
    __m256 half = MODEL_MAX(a.l, a.h, _mm256_max_ps);
    __m128 x = MODEL_MAX(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1), _mm_max_ps);
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ps(x, _mm_movehdup_ps(x)));
}

/* ------------------------------------------------------------ floats in parts */

#define MODEL_SIGN 0x80000000u
#define MODEL_INFINITY 0x7f800000u
#define MODEL_QUIET 0x00400000u
#define MODEL_NO_NUMBER 0xffc00000u /* what an invalid operation gives */

MODEL uint32_t model_bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

MODEL float model_float_of(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

MODEL bool model_is_nan(uint32_t u)
{
    return (u & ~MODEL_SIGN) > MODEL_INFINITY;
}

MODEL bool model_is_signalling(uint32_t u)
{
    return model_is_nan(u) && !(u & MODEL_QUIET);
}

/* Denormals count as zero if the float mode says so (bit 6), and results become zero (bit 15). */
MODEL uint32_t model_flushed(uint32_t u, uint32_t mode_bit)
{
    bool denormal = !(u & MODEL_INFINITY);
    return denormal && __builtin_ia32_stmxcsr() >> mode_bit & 1 ? u & MODEL_SIGN : u;
}

/* a - floor(a), for the one operand that is in use. The difference is rounded down too, whatever the float mode says; that
 * makes a negative zero of whole numbers. Infinity gives a positive one. */
MODEL __m256 model_rest(__m256 a)
{
    const __m256 sign = _mm256_set1_ps(-0.0f), infinity = _mm256_set1_ps(__builtin_inff());
    uint32_t mode = __builtin_ia32_stmxcsr();
    __m256 rest, floor = _mm256_floor_ps(a);
    __builtin_ia32_ldmxcsr((mode & ~0x6000u) | 0x2000u);
    __asm__ volatile("vsubps %2, %1, %0"
                     : "=x"(rest)
                     : "x"(a), "x"(floor)); /* between the two, not anywhere */
    __builtin_ia32_ldmxcsr(mode);
    return _mm256_andnot_ps(_mm256_cmp_ps(_mm256_andnot_ps(sign, a), infinity, _CMP_EQ_OQ), rest);
}

MODEL_CALL __m512 _mm512_reduce_ps(__m512 a, int how)
{
    MODEL_REQUIRE(how == (_MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC));
    return (__m512){model_rest(a.l), model_rest(a.h)};
}

/* a * 2^floor(b), rounded once: a double has room for the product before that. */
MODEL float model_scale(float a, float b)
{
    uint32_t x = model_flushed(model_bits_of(a), 6), y = model_bits_of(b);
    bool up = y == MODEL_INFINITY, down = y == (MODEL_INFINITY | MODEL_SIGN);
    if (model_is_nan(x)) {
        if (up && !model_is_signalling(x)) return model_float_of(MODEL_INFINITY);
        if (down && !model_is_signalling(x)) return 0;
        return model_float_of(x | MODEL_QUIET);
    }
    if (model_is_nan(y)) return model_float_of(y | MODEL_QUIET);
    bool zero = !(x & ~MODEL_SIGN), infinite = (x & ~MODEL_SIGN) == MODEL_INFINITY;
    if ((zero && up) || (infinite && down)) return model_float_of(MODEL_NO_NUMBER);
    float whole = __builtin_floorf(model_float_of(model_flushed(y, 6)));
    int64_t exponent = whole > 400 ? 400 : whole < -400 ? -400 : (int64_t)whole;
    int64_t bits = (exponent + 1023) << 52;
    double power;
    memcpy(&power, &bits, sizeof power);
    return (float)((double)a * power);
}

MODEL_CALL __m512 _mm512_scalef_ps(__m512 a, __m512 b)
{
    model_lanes x = {.floats = a}, y = {.floats = b}, to;
    for (uint32_t i = 0; i < 16; i++) to.f32[i] = model_scale(x.f32[i], y.f32[i]);
    return to.floats;
}

/* The one with the smaller magnitude, without its sign: 0xa is the operand in use. A number wins over NaN. */
MODEL uint32_t model_smaller(uint32_t a, uint32_t b)
{
    if (model_is_signalling(a)) return a | MODEL_QUIET;
    if (model_is_signalling(b)) return b | MODEL_QUIET;
    a = model_flushed(a, 6) & ~MODEL_SIGN;
    b = model_flushed(b, 6) & ~MODEL_SIGN;
    if (model_is_nan(a) && model_is_nan(b)) return a;
    if (model_is_nan(a)) return b;
    return model_is_nan(b) || a <= b ? a : b;
}

MODEL_CALL __m512 _mm512_range_ps(__m512 a, __m512 b, int how)
{
    MODEL_REQUIRE(how == 0xa);
    model_lanes x = {.floats = a}, y = {.floats = b}, to;
    for (uint32_t i = 0; i < 16; i++) to.u32[i] = model_smaller(x.u32[i], y.u32[i]);
    return to.floats;
}

/*
 * 1 / x as Intel's processors approximate it: a line for each of 64 parts of [1, 2). With j the next ten bits of the
 * fraction the result has the 17 bits (256 * start - slope * j) / 512, rounded down; powers of two are exact. These numbers
 * were computed from the results of a Cascade Lake for all fractions and are the only ones that give them. Processors of
 * other makers may differ, by less than 2^-14.
 */
typedef struct model_line {
    uint32_t start;
    uint16_t slope;
} model_line;

static const model_line model_reciprocals[64] = {
    {262137, 1009}, {258102, 977}, {254194, 949}, {250400, 921}, {246715, 893}, {243143, 869}, {239667, 843},
    {236294, 821},  {233010, 797}, {229820, 777}, {226712, 755}, {223690, 735}, {220748, 717}, {217883, 699},
    {215089, 681},  {212364, 663}, {209711, 647}, {207121, 631}, {204598, 617}, {202131, 601}, {199725, 587},
    {197375, 573},  {195082, 561}, {192837, 547}, {190646, 535}, {188504, 523}, {186413, 513}, {184362, 501},
    {182359, 491},  {180397, 479}, {178478, 469}, {176599, 459}, {174762, 451}, {172959, 441}, {171196, 433},
    {169464, 423},  {167770, 415}, {166109, 407}, {164480, 399}, {162883, 391}, {161320, 385}, {159781, 377},
    {158273, 369},  {156795, 363}, {155345, 357}, {153917, 349}, {152518, 343}, {151144, 337}, {149795, 331},
    {148469, 325},  {147166, 319}, {145890, 315}, {144630, 309}, {143393, 303}, {142180, 299}, {140983, 293},
    {139810, 289},  {138655, 285}, {137517, 279}, {136403, 275}, {135305, 271}, {134223, 267}, {133157, 263},
    {132107, 259},
};

MODEL uint32_t model_reciprocal(uint32_t u)
{
    uint32_t sign = u & MODEL_SIGN;
    u = model_flushed(u & ~MODEL_SIGN, 6);
    if (u > MODEL_INFINITY) return sign | u | MODEL_QUIET;
    if (u == MODEL_INFINITY) return sign;
    if (!u) return sign | MODEL_INFINITY;
    int32_t exponent = (int32_t)(u >> 23);
    uint32_t fraction = u & 0x7fffff;
    if (!exponent) {
        int32_t shift = __builtin_clz(fraction) - 8;
        fraction = fraction << shift & 0x7fffff;
        exponent = 1 - shift;
    }
    /* 24 bits with the leading one, and the exponent that goes with them. */
    const model_line *line = &model_reciprocals[fraction >> 17];
    uint32_t bits =
        fraction ? ((line->start << 8) - line->slope * (fraction >> 7 & 1023)) >> 9 << 7 : 1u << 24;
    int32_t of_result = 253 - exponent;
    if (bits >> 24) {
        bits >>= 1;
        of_result++;
    }
    if (of_result >= 255) return sign | MODEL_INFINITY;
    if (of_result > 0) return sign | ((uint32_t)of_result << 23) | (bits & 0x7fffff);
    return sign | model_flushed(bits >> (1 - of_result), 15);
}

MODEL_CALL __m512 _mm512_rcp14_ps(__m512 a)
{
    model_lanes x = {.floats = a}, to;
    for (uint32_t i = 0; i < 16; i++) to.u32[i] = model_reciprocal(x.u32[i]);
    return to.floats;
}

#endif
