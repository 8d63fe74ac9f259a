/* SPDX-License-Identifier: MIT */
/*
 * encode_rows_avx512: 16 rows of r8, r4 or r3 at once. A lane is a row, so that rotations need no shuffles, every row has its
 * scale in its lane, and what a search waits for is waited for once in 16 rows. Sums are taken in the order of
 * quire_lane_dot(): 16 partial sums by channel % 16, folded in halves.
 */
#include "codec/row_kernels.h"

#include <math.h>

#if defined(QUIRE_X86)

#include "simd/avx512_encode.h"

#include "codec/x86/rows_avx512.h"

/* ---------------------------------------------------------------- rotating */

/* Signs, then strides 1 to 8 of 16 neighbouring channels. */
SIMD_FN void store_sixteen(vf v[16], const float *minus, float (*y)[16])
{
    SIMD_UNROLL(16)
    for (uint32_t i = 0; i < 16; i++)
        v[i] = _mm512_castsi512_ps(
            _mm512_xor_si512(_mm512_castps_si512(v[i]), _mm512_castps_si512(_mm512_set1_ps(minus[i]))));
    butterflies(v, 16);
    SIMD_UNROLL(16)
    for (uint32_t i = 0; i < 16; i++) vf_store(y[i], v[i]);
}

SIMD_FN void load_rows(const uint8_t *data, size_t stride, vf v[16])
{
    SIMD_UNROLL(16)
    for (uint32_t i = 0; i < 16; i++) v[i] = _mm512_loadu_ps(data + i * stride);
    transpose(v);
}

SIMD_STATIC void load_f32(const uint8_t *data, size_t stride, uint32_t d, const float *minus, float (*y)[16])
{
    for (uint32_t c = 0; c < d; c += 16) {
        vf v[16];
        load_rows(data + 4 * c, stride, v);
        store_sixteen(v, minus + c, y + c);
    }
}

/* One of the two values of 16 bits in each lane. */
SIMD_FN vf half_of(vi pairs, const bool is_upper, const bool is_f16)
{
    if (is_f16)
        return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(is_upper ? _mm512_srli_epi32(pairs, 16) : pairs));
    return vi_as_float(is_upper ? _mm512_and_si512(pairs, vi_set1((int32_t)0xffff0000u))
                                : _mm512_slli_epi32(pairs, 16));
}

/* f16 or bf16: each lane has two neighbouring channels. */
SIMD_FN void load_halves(const uint8_t *data, size_t stride, uint32_t d, const float *minus, float (*y)[16],
                         const bool is_f16)
{
    for (uint32_t c = 0; c < d; c += 32) {
        vf pair[16], v[16];
        load_rows(data + 2 * c, stride, pair);
        SIMD_UNROLL(4)
        for (uint32_t half = 0; half < 2; half++) {
            SIMD_UNROLL(16)
            for (uint32_t i = 0; i < 8; i++) {
                vi x = vf_as_int(pair[8 * half + i]);
                v[2 * i] = half_of(x, false, is_f16);
                v[2 * i + 1] = half_of(x, true, is_f16);
            }
            store_sixteen(v, minus + c + 16 * half, y + c + 16 * half);
        }
    }
}

SIMD_STATIC void load_f16(const uint8_t *data, size_t stride, uint32_t d, const float *minus, float (*y)[16])
{
    load_halves(data, stride, d, minus, y, true);
}

SIMD_STATIC void load_bf16(const uint8_t *data, size_t stride, uint32_t d, const float *minus, float (*y)[16])
{
    load_halves(data, stride, d, minus, y, false);
}

/* What is known of rotated rows; the last three are for a search only. */
typedef struct rotated {
    vf most; /* magnitude */
    vf least;
    vf energy;                           /* x.x */
    uint16_t is_below[QUIRE_ROWS_MAX_D]; /* by channel: which rows are not above zero */
} rotated;

/* The larger of two magnitudes, where infinity is more than any number and NaN more than infinity. _mm512_max_ps() would forget a NaN. */
SIMD_FN vf larger(vf a, vf b)
{
    return vi_as_float(_mm512_max_epi32(vf_as_int(a), vf_as_int(b)));
}

/* Strides of 16 and more, which are those of n vectors. is_search: values become magnitudes. */
SIMD_FN void far_strides(float (*y)[16], uint32_t n, rotated *r, const bool is_search)
{
    const vf factor = vf_set1(1.0f / sqrtf((float)(16 * n)));
    vf sum[16], most[4], least[4]; /* four, because each operation waits for the one before it */
    SIMD_UNROLL(4)
    for (uint32_t i = 0; i < 4; i++) {
        most[i] = vf_set1(0);
        least[i] = vf_set1(INFINITY);
    }
    for (uint32_t c = 0; c < 16; c++) {
        vf v[16], squares = vf_set1(0);
        SIMD_UNROLL(16)
        for (uint32_t i = 0; i < n; i++) v[i] = vf_load(y[c + 16 * i]);
        butterflies(v, n);
        SIMD_UNROLL(16)
        for (uint32_t i = 0; i < n; i++) {
            vf x = vf_mul(v[i], factor), a = vf_abs(x);
            most[i % 4] = larger(most[i % 4], a);
            if (is_search) {
                squares = vf_add(squares, vf_mul(x, x));
                least[i % 4] = vf_min(least[i % 4], a);
                r->is_below[c + 16 * i] = (uint16_t)vm_bits(vf_le(x, vf_set1(0)));
            }
            vf_store(y[c + 16 * i], is_search ? a : x);
        }
        if (is_search) sum[c] = squares;
    }
    r->most = larger(larger(most[0], most[1]), larger(most[2], most[3]));
    if (!is_search) return;
    r->least = vf_min(vf_min(least[0], least[1]), vf_min(least[2], least[3]));
    r->energy = fold_sums(sum);
}

SIMD_FN void rotate(const quire_coder *coder, float (*y)[16], rotated *r, const bool is_search)
{
    switch (coder->d) {
    case 64: far_strides(y, 4, r, is_search); break;
    case 128: far_strides(y, 8, r, is_search); break;
    default: far_strides(y, 16, r, is_search);
    }
}

/* A rotation keeps the length of a row. So with one value outside of f16, the largest after the rotation is at least
 * 65504 / sqrt(d). Values that are not finite, and sums that overflow, leave some that are infinite or NaN, and so is the largest
 * then. Such rows are left, to be counted. */
SIMD_FN vm in_range_before(const quire_coder *coder, vf most)
{
    return vf_le(most, vf_set1(0.99f * QUIRE_F16_MAX / sqrtf((float)coder->d)));
}

/* --------------------------------------------------------------------- r8 */

SIMD_STATIC uint32_t code_r8(const quire_coder *coder, float (*y)[16], quire_coded_rows *out)
{
    rotated r;
    rotate(coder, y, &r, false);
    __m256i half = _mm512_cvtps_ph(vf_div(r.most, vf_set1(127)), _MM_FROUND_TO_NEAREST_INT);
    _mm256_storeu_si256((__m256i_u *)out->scale, half);
    /* A scale that is not a normal number has lost bits; its codes may have to be cut off at 127. */
    vf s = _mm512_cvtph_ps(half);
    vm done = vm_and(in_range_before(coder, r.most), vf_le(vf_set1(0x1p-14f), s));
    vf inverse = vf_div(vf_set1(1), s);
    const vf to_integer = vf_set1(0x1.8p23f + 128); /* the sum has the code in its lowest byte */
    for (uint32_t c = 0; c < coder->d; c += 4) {
        vi code[4];
        SIMD_UNROLL(16)
        for (uint32_t i = 0; i < 4; i++) {
            vf x = vf_load(y[c + i]), q = vf_mul(x, inverse);
            q = vf_fma(vf_fnma(q, s, x), inverse, q); /* quotient() of encode_groups_tmpl.h */
            code[i] = vf_as_int(vf_add(q, to_integer));
        }
        vi word = _mm512_mask_mov_epi8(code[0], 0x2222222222222222u, _mm512_slli_epi32(code[1], 8));
        word = _mm512_mask_mov_epi8(word, 0x4444444444444444u, _mm512_slli_epi32(code[2], 16));
        word = _mm512_mask_mov_epi8(word, 0x8888888888888888u, _mm512_slli_epi32(code[3], 24));
        vi_store(out->vector[c / 4], word);
    }
    return ~vm_bits(done) & 0xffff;
}

#include "codec/x86/refit_rows_avx512.h"

/* ------------------------------------------------------------- any of them */

bool quire_takes_rows_avx512(const quire_coder *coder)
{
    const quire_codec *codec = coder->codec;
    uint32_t bits = codec->info.bits;
    return (codec->encode == quire_encode_r8 ||
            (codec->encode == quire_encode_r && (bits == 3 || bits == 4))) &&
           codec->rotation == QUIRE_ROTATION_SIGNED && !quire_codec_is_calibrated(codec) &&
           coder->block == coder->d && (coder->d == 64 || coder->d == 128 || coder->d == 256);
}

SIMD_GLOBAL uint32_t quire_encode_rows_avx512(const quire_coder *coder, quire_form form, const uint8_t *data,
                                              size_t stride, quire_coded_rows *out)
{
    float minus[QUIRE_ROWS_MAX_D];
    _Alignas(64) float y[QUIRE_ROWS_MAX_D][16];
    const uint64_t *signs = quire_rotation_signs(coder);
    for (uint32_t c = 0; c < coder->d; c += 16)
        vf_store(minus + c, vf_keep(vm_of_bits(signs[c / 64] >> c % 64 & 0xffff), vf_set1(-0.0f)));
    if (form == QUIRE_F32)
        load_f32(data, stride, coder->d, minus, y);
    else if (form == QUIRE_F16)
        load_f16(data, stride, coder->d, minus, y);
    else
        load_bf16(data, stride, coder->d, minus, y);
    return coder->codec->encode == quire_encode_r8 ? code_r8(coder, y, out) : code_r(coder, y, out);
}

#endif
