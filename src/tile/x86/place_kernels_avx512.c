/* SPDX-License-Identifier: MIT */
/* place_kernels_avx512: rows into and out of tiles with AVX-512. */
#include "tile/place_kernels.h"

#if defined(QUIRE_X86)

#include "simd/avx512.h"

#include "tile/x86/four_rows_avx2.h"

#include "tile/place_rows_tmpl.h"

/* ------------------------------------------------------------- 16 rows */

/* The bits of a plane, `width` from bit `low` on, of the i-th vector of a block, where they lie in their line. */
SIMD_FN vi bits_of_plane(vi x, uint32_t i, uint32_t low, uint32_t width)
{
    const vi mask = vi_set1((int32_t)(((1u << width) - 1) * 0x01010101u));
    return vi_shift_left(vi_and(vi_shift_right(x, low), mask), i * width % 8);
}

/* n vectors of a block from the first-th on. Lines of which they are a part keep the rest. */
SIMD_FN void put_vectors(uint8_t *block, uint32_t first, uint32_t n, const vi *x, uint32_t offset,
                         uint32_t low, uint32_t width)
{
    uint32_t in_line = 8 / width < n ? 8 / width : n;
    for (uint32_t i = 0; i < n; i += in_line) {
        uint8_t *line = block + offset + (first + i) * width / 8 * 64;
        vi sum = vi_set1(0), mask = vi_set1(0);
        for (uint32_t k = i; k < i + in_line; k++) {
            sum = vi_add(sum, bits_of_plane(x[k], first + k, low, width));
            mask = vi_add(mask, bits_of_plane(vi_set1(-1), first + k, 0, width));
        }
        vi_store(line, in_line * width == 8 ? sum : vi_merge_bits(mask, vi_load(line), sum));
    }
}

SIMD_FN void put_block(uint8_t *block, uint32_t first, uint32_t n, const vi *x, uint32_t bits)
{
    uint32_t low = bits == 8 ? 8 : bits >= 4 ? 4 : 2; /* bits of the first plane */
    put_vectors(block, first, n, x, 0, 0, low);
    if (low < bits) put_vectors(block, first, n, x, 64 * low, low, bits - low);
}

SIMD_FN void put_rows_k_bits(const quire_coder *coder, uint8_t *tile, uint32_t t,
                             const quire_coded_rows *rows, uint32_t bits)
{
    uint8_t *block = tile + (size_t)t / 16 * (coder->d / 32) * 64 * bits;
    for (uint32_t u = 0; u < coder->d / 4; u += 8, block += 64 * bits) {
        vi x[8];
        for (uint32_t i = 0; i < 8; i++) x[i] = vi_load(rows->vector[u + i]);
        put_block(block, 0, 8, x, bits);
    }
}

/* 16 channels: four vectors of 16 rows x 4 channels become four of 16 channels x 4 rows. */
SIMD_FN void put_rows_v_bits(const quire_coder *coder, uint8_t *tile, uint32_t t,
                             const quire_coded_rows *rows, uint32_t bits)
{
    const __m512i four_by_four =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    uint8_t *block = tile + (size_t)t / 32 * 64 * bits;
    for (uint32_t u = 0; u < coder->d / 4; u += 4, block += 128 * bits) {
        vf a[4];
        for (uint32_t i = 0; i < 4; i++)
            a[i] = vi_as_float(_mm512_shuffle_epi8(vi_load(rows->vector[u + i]), four_by_four));
        vf low = _mm512_shuffle_f32x4(a[0], a[1], 0x88), high = _mm512_shuffle_f32x4(a[0], a[1], 0xdd);
        vf low2 = _mm512_shuffle_f32x4(a[2], a[3], 0x88), high2 = _mm512_shuffle_f32x4(a[2], a[3], 0xdd);
        const vi x[4] = {vf_as_int(_mm512_shuffle_f32x4(low, low2, 0x88)),
                         vf_as_int(_mm512_shuffle_f32x4(high, high2, 0x88)),
                         vf_as_int(_mm512_shuffle_f32x4(low, low2, 0xdd)),
                         vf_as_int(_mm512_shuffle_f32x4(high, high2, 0xdd))};
        if (t % 32)
            put_block(block, 4, 4, x, bits);
        else
            put_block(block, 0, 4, x, bits);
    }
}

#define PUT_ROWS(SIDE)                                                                    \
    SIMD_STATIC void put_rows_##SIDE(const quire_coder *coder, uint8_t *tile, uint32_t t, \
                                     const quire_coded_rows *rows)                        \
    {                                                                                     \
        switch (coder->codec->info.bits) {                                                \
        case 3: put_rows_##SIDE##_bits(coder, tile, t, rows, 3); break;                   \
        case 4: put_rows_##SIDE##_bits(coder, tile, t, rows, 4); break;                   \
        default: put_rows_##SIDE##_bits(coder, tile, t, rows, 8);                         \
        }                                                                                 \
    }

PUT_ROWS(k)
PUT_ROWS(v)

const quire_place_kernels quire_place_kernels_avx512 = {
    .put_codes = {quire_put_codes_words, put_codes_v},
    .get_codes = {quire_get_codes_words, get_codes_v},
    .put_values = {put_values_k, put_values_v},
    .put_four_values = {put_four_values_k, put_four_values_v},
    .get_values = {get_values_k, get_values_v},
    .put_rows = {put_rows_k, put_rows_v},
};

#endif
