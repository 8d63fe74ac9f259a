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

/* Each lane has two neighbouring channels. */
SIMD_STATIC void load_bf16(const uint8_t *data, size_t stride, uint32_t d, const float *minus, float (*y)[16])
{
    const __m512i high = _mm512_set1_epi32((int32_t)0xffff0000u);
    for (uint32_t c = 0; c < d; c += 32) {
        vf pair[16], v[16];
        load_rows(data + 2 * c, stride, pair);
        SIMD_UNROLL(4)
        for (uint32_t half = 0; half < 2; half++) {
            SIMD_UNROLL(16)
            for (uint32_t i = 0; i < 8; i++) {
                __m512i x = _mm512_castps_si512(pair[8 * half + i]);
                v[2 * i] = _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
                v[2 * i + 1] = _mm512_castsi512_ps(_mm512_and_si512(x, high));
            }
            store_sixteen(v, minus + c + 16 * half, y + c + 16 * half);
        }
    }
}

SIMD_STATIC void load_f16(const uint8_t *data, size_t stride, uint32_t d, const float *minus, float (*y)[16])
{
    for (uint32_t c = 0; c < d; c += 32) {
        vf pair[16], v[16];
        load_rows(data + 2 * c, stride, pair);
        SIMD_UNROLL(4)
        for (uint32_t half = 0; half < 2; half++) {
            SIMD_UNROLL(16)
            for (uint32_t i = 0; i < 8; i++) {
                __m512i x = _mm512_castps_si512(pair[8 * half + i]);
                v[2 * i] = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(x));
                v[2 * i + 1] = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(x, 16)));
            }
            store_sixteen(v, minus + c + 16 * half, y + c + 16 * half);
        }
    }
}

/* What the search wants to know of rotated rows, whose values then become magnitudes. */
typedef struct rotated {
    vf most;
    vf energy;          /* x.x */
    vf least;           /* magnitude */
    uint16_t *is_below; /* by channel: which rows are not above zero; NULL: r8, which wants none of this */
} rotated;

/* Strides of 16 and more, which are those of `n` vectors. */
SIMD_FN void far_strides(float (*y)[16], uint32_t d, uint32_t n, float factor, rotated *r)
{
    vf sum[16], most = vf_set1(0), least = vf_set1(INFINITY);
    for (uint32_t c = 0; c < 16; c++) {
        sum[c] = vf_set1(0);
        for (uint32_t at = c; at < d; at += 16 * n) {
            vf v[16];
            SIMD_UNROLL(16)
            for (uint32_t i = 0; i < n; i++) v[i] = vf_load(y[at + 16 * i]);
            butterflies(v, n);
            SIMD_UNROLL(16)
            for (uint32_t i = 0; i < n; i++) {
                vf x = vf_mul(v[i], vf_set1(factor)), a = vf_abs(x);
                most = vf_max(most, a);
                if (r->is_below) {
                    sum[c] = vf_add(sum[c], vf_mul(x, x));
                    least = vf_min(least, a);
                    r->is_below[at + 16 * i] = (uint16_t)vm_bits(vf_le(x, vf_set1(0)));
                    x = a;
                }
                vf_store(y[at + 16 * i], x);
            }
        }
    }
    r->most = most;
    r->least = least;
    if (r->is_below) r->energy = fold_sums(sum);
}

SIMD_STATIC void rotate(const quire_coder *coder, float (*y)[16], rotated *r)
{
    float factor = 1.0f / sqrtf((float)coder->block);
    switch (coder->block / 16) {
    case 1: far_strides(y, coder->d, 1, factor, r); break;
    case 2: far_strides(y, coder->d, 2, factor, r); break;
    case 4: far_strides(y, coder->d, 4, factor, r); break;
    case 8: far_strides(y, coder->d, 8, factor, r); break;
    default: far_strides(y, coder->d, 16, factor, r);
    }
}

/* Not 65504: a rotation keeps the length of a block, so with one value outside of f16 or not a number, the largest after the
 * rotation is at least this, or it is not a number either. Such rows are left to be counted. */
SIMD_FN vm in_range_before(const quire_coder *coder, vf most)
{
    return vf_le(most, vf_set1(0.99f * QUIRE_F16_MAX / sqrtf((float)coder->block)));
}

/* --------------------------------------------------------------------- r8 */

SIMD_STATIC uint32_t code_r8(const quire_coder *coder, float (*y)[16], quire_coded_rows *out)
{
    rotated r = {.is_below = NULL};
    rotate(coder, y, &r);
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
           coder->d % 64 == 0 && coder->d <= QUIRE_ROWS_MAX_D && coder->block >= 16;
}

SIMD_GLOBAL uint32_t quire_encode_rows_avx512(const quire_coder *coder, quire_form form, const uint8_t *data,
                                              size_t stride, quire_coded_rows *out)
{
    float minus[QUIRE_ROWS_MAX_D];
    _Alignas(64) float y[QUIRE_ROWS_MAX_D][16];
    const uint64_t *signs = quire_rotation_signs(coder);
    uint32_t row_bytes = coder->d * (uint32_t)quire_value_bytes(form);
    for (uint32_t c = 0; c < coder->d; c += 16)
        vf_store(minus + c, vf_keep(vm_of_bits(signs[c / 64] >> c % 64 & 0xffff), vf_set1(-0.0f)));
    /* The next rows. They may lie anywhere, and then this is in vain. */
    SIMD_UNROLL(16)
    for (uint32_t i = 0; i < 16; i++)
        for (uint32_t at = 0; at < row_bytes; at += 64) simd_prefetch(data + (16 + i) * stride + at);
    if (form == QUIRE_F32)
        load_f32(data, stride, coder->d, minus, y);
    else if (form == QUIRE_F16)
        load_f16(data, stride, coder->d, minus, y);
    else
        load_bf16(data, stride, coder->d, minus, y);
    return coder->codec->encode == quire_encode_r8 ? code_r8(coder, y, out) : code_r(coder, y, out);
}

#endif
