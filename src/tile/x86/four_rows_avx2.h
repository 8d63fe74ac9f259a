/* SPDX-License-Identifier: MIT */
/* four_rows_avx2: values of four tokens of K side by side, for place_rows_tmpl.h. */

#ifndef QUIRE_TILE_X86_FOUR_ROWS_AVX2_H
#define QUIRE_TILE_X86_FOUR_ROWS_AVX2_H

/* Eight bytes, one token after the other, of channels c and c + 1, and of c + 8 and c + 9. */
SIMD_FN void store_channels(uint8_t *at, __m256i x)
{
    __m128i low = _mm256_castsi256_si128(x), high = _mm256_extracti128_si256(x, 1);
    _mm_storel_epi64((__m128i_u *)at, low);
    _mm_storeh_pd((double *)(at + 32), _mm_castsi128_pd(low));
    _mm_storel_epi64((__m128i_u *)(at + 256), high);
    _mm_storeh_pd((double *)(at + 288), _mm_castsi128_pd(high));
}

SIMD_FN void put_four_floats(uint8_t *at, const float *const value[4], uint32_t d)
{
    for (uint32_t c = 0; c < d; c += 4, at += 256) {
        __m128 x0 = _mm_loadu_ps(value[0] + c), x1 = _mm_loadu_ps(value[1] + c);
        __m128 x2 = _mm_loadu_ps(value[2] + c), x3 = _mm_loadu_ps(value[3] + c);
        _MM_TRANSPOSE4_PS(x0, x1, x2, x3);
        _mm_storeu_ps((float *)at, x0);
        _mm_storeu_ps((float *)(at + 64), x1);
        _mm_storeu_ps((float *)(at + 128), x2);
        _mm_storeu_ps((float *)(at + 192), x3);
    }
}

typedef __m256i sixteen_halves;

/* Of 16 channels. */
SIMD_FN void put_four_halves(uint8_t *at, const sixteen_halves half[4])
{
    __m256i low01 = _mm256_unpacklo_epi16(half[0], half[1]), low23 = _mm256_unpacklo_epi16(half[2], half[3]);
    __m256i high01 = _mm256_unpackhi_epi16(half[0], half[1]);
    __m256i high23 = _mm256_unpackhi_epi16(half[2], half[3]);
    store_channels(at, _mm256_unpacklo_epi32(low01, low23));
    store_channels(at + 64, _mm256_unpackhi_epi32(low01, low23));
    store_channels(at + 128, _mm256_unpacklo_epi32(high01, high23));
    store_channels(at + 192, _mm256_unpackhi_epi32(high01, high23));
}

#endif
