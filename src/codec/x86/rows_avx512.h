/* SPDX-License-Identifier: MIT */
/* rows_avx512: 16 rows in 16 lanes: what rotating them and searching for their scales share. Included after simd/avx512_encode.h. */
#ifndef QUIRE_CODEC_X86_ROWS_AVX512_H
#define QUIRE_CODEC_X86_ROWS_AVX512_H

/* 16 rows of 16 numbers become columns. */
SIMD_FN void transpose(vf v[16])
{
    vf a[16];
    SIMD_UNROLL(16)
    for (uint32_t i = 0; i < 16; i += 2) {
        a[i] = _mm512_unpacklo_ps(v[i], v[i + 1]);
        a[i + 1] = _mm512_unpackhi_ps(v[i], v[i + 1]);
    }
    SIMD_UNROLL(16)
    for (uint32_t i = 0; i < 16;
         i += 4) { /* v[i + k]: column 4 j + k of rows i to i + 3, in each quarter j */
        v[i] = _mm512_shuffle_ps(a[i], a[i + 2], 0x44);
        v[i + 1] = _mm512_shuffle_ps(a[i], a[i + 2], 0xee);
        v[i + 2] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0x44);
        v[i + 3] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0xee);
    }
    SIMD_UNROLL(16)
    for (uint32_t k = 0; k < 4; k++) {
        vf even = _mm512_shuffle_f32x4(v[k], v[k + 4], 0x88),
           odd = _mm512_shuffle_f32x4(v[k], v[k + 4], 0xdd);
        vf even2 = _mm512_shuffle_f32x4(v[k + 8], v[k + 12], 0x88);
        vf odd2 = _mm512_shuffle_f32x4(v[k + 8], v[k + 12], 0xdd);
        a[k] = _mm512_shuffle_f32x4(even, even2, 0x88);
        a[k + 4] = _mm512_shuffle_f32x4(odd, odd2, 0x88);
        a[k + 8] = _mm512_shuffle_f32x4(even, even2, 0xdd);
        a[k + 12] = _mm512_shuffle_f32x4(odd, odd2, 0xdd);
    }
    SIMD_UNROLL(16)
    for (uint32_t i = 0; i < 16; i++) v[i] = a[i];
}

/* Walsh-Hadamard of n vectors, a power of two. */
SIMD_FN void butterflies(vf v[16], uint32_t n)
{
    SIMD_UNROLL(4)
    for (uint32_t half = 1; half < n; half *= 2) {
        SIMD_UNROLL(16)
        for (uint32_t i = 0; i < n; i++) {
            if (i & half) continue;
            vf a = v[i], b = v[i + half];
            v[i] = vf_add(a, b);
            v[i + half] = vf_sub(a, b);
        }
    }
}

/* The end of quire_lane_dot(): sums by channel % 16. */
SIMD_FN vf fold_sums(vf sum[16])
{
    SIMD_UNROLL(4)
    for (uint32_t half = 8; half; half /= 2) SIMD_UNROLL(16)
    for (uint32_t i = 0; i < half; i++) sum[i] = vf_add(sum[i], sum[i + half]);
    return sum[0];
}

#endif
