/* SPDX-License-Identifier: MIT */
/*
 * unpack: halves of vectors of 64 codes out of their bit planes (docs/formats/tiles.md), AVX2. The file that includes
 * this says how codes lie in an expanded tile:
 *
 *   VECTOR_BYTES   of one vector of 64 codes
 *   put_half       32 bytes, half 0 or 1 of vector number u
 *   put_quarter    16 bytes, quarter 0 to 3
 */
#ifndef QUIRE_KERNELS_X86_UNPACK_AVX2_H
#define QUIRE_KERNELS_X86_UNPACK_AVX2_H

#include "kernels/kernels.h"
#include "simd/avx2.h"

/*
 * A codec's table as unsigned bytes (128 more), by sixteens. From the second on they hold the difference (exclusive or)
 * to the sixteen before: a lookup with index - 16 k gives 0 where the index is below 16 k, so that all lookups together
 * give the entry and nothing has to choose.
 */
typedef struct lookup {
    __m256i entries[4];
} lookup;

SIMD_FN lookup table_bytes(const quire_codec *codec, const uint32_t bits, const bool table)
{
    lookup t;
    const uint32_t sixteens = bits == 6 ? 4 : bits == 5 ? 2 : 1;
    uint8_t entry[64] = {0};
    if (table) memcpy(entry, codec->table, bits < 6 ? (size_t)1 << bits : 64);
    __m256i last = _mm256_setzero_si256();
    for (uint32_t k = 0; k < sixteens; k++) {
        __m256i x = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(entry + k * 16)));
        x = _mm256_xor_si256(x, _mm256_set1_epi8((char)0x80));
        t.entries[k] = _mm256_xor_si256(x, last);
        last = x;
    }
    return t;
}

SIMD_FN __m256i look_up(const lookup *t, __m256i index, const uint32_t bits)
{
    __m256i x = _mm256_shuffle_epi8(t->entries[0], index);
    const uint32_t sixteens = bits == 6 ? 4 : bits == 5 ? 2 : 1;
    SIMD_UNROLL(3)
    for (uint32_t k = 1; k < sixteens; k++) {
        __m256i from_k = _mm256_sub_epi8(index, _mm256_set1_epi8((char)(16 * k)));
        x = _mm256_xor_si256(x, _mm256_shuffle_epi8(t->entries[k], from_k));
    }
    return x;
}

/* Bits from `from` on move to bit `to` of every byte; what lands beside them is left to the caller. */
SIMD_FN __m256i move_bits(__m256i x, const uint32_t from, const uint32_t to)
{
    if (from > to) return _mm256_srli_epi16(x, (int)(from - to));
    return from < to ? _mm256_slli_epi16(x, (int)(to - from)) : x;
}

/* A half of vector i, 0 to 7, of the block at p, as bytes. */
SIMD_FN __m256i unpack1(const uint8_t *p, const uint32_t i, const uint32_t half, const uint32_t bits,
                        const bool table, const lookup *t)
{
    p += half * 32;
    if (bits == 8) return load256(p + i * 64);
    const uint32_t low = bits == 2 || bits == 3 ? 2 : 4,
                   high = bits - low; /* widths of the two query_bytes */
    const __m256i keep_low = _mm256_set1_epi8((char)((1 << low) - 1)),
                  keep_high = _mm256_set1_epi8((char)((1 << bits) - (1 << low)));
    __m256i x = _mm256_and_si256(move_bits(load256(p + i * low / 8 * 64), i * low % 8, 0), keep_low);
    if (high) {
        __m256i y = move_bits(load256(p + low * 64 + i * high / 8 * 64), i * high % 8, low);
        x = _mm256_or_si256(x, _mm256_and_si256(y, keep_high));
    }
    return table ? look_up(t, x, bits) : x;
}

/* Lines of the next tile, as many as this one's codes take; the caller comes by for every block. */
SIMD_FN void expand_codes(const quire_source *s, uint8_t *to, const uint32_t bits, const bool table)
{
    const quire_coder *coder = &s->format->coder;
    const lookup t = table_bytes(coder->codec, bits, table);
    for (uint32_t block = 0; block < coder->d_pad / 8; block++) {
        size_t at = (size_t)block * 64 * bits;
        for (uint32_t i = 0; i < bits && s->next; i++)
            _mm_prefetch((const char *)s->next + at + i * 64, _MM_HINT_T1);
        SIMD_UNROLL(8)
        for (uint32_t i = 0; i < 8; i++)
            for (uint32_t half = 0; half < 2; half++)
                put_half(to, block * 8 + i, half, unpack1(s->tile + at, i, half, bits, table, &t));
    }
    for (size_t at = s->format->code_bytes; at < s->format->tile_bytes && s->next; at += 64)
        _mm_prefetch((const char *)s->next + at, _MM_HINT_T0);
}

/* A tile of K (16 tokens x 4 channels in a vector) as one of V (16 channels x 4 tokens). */
SIMD_FN void transpose_codes(const quire_source *s, uint8_t *to, const uint32_t bits, const bool table)
{
    const quire_coder *coder = &s->format->coder;
    const lookup t = table_bytes(coder->codec, bits, table);
    const __m128i pick =
        _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15); /* 4 x 4 bytes transposed */
    uint32_t per_sub = coder->d_pad / 4;
    for (uint32_t block = 0; block < coder->d_pad / 8; block++) {
        SIMD_UNROLL(8)
        for (uint32_t i = 0; i < 8; i++) {
            uint32_t u = block * 8 + i, sub = u / per_sub, quad = u % per_sub;
            /* Quarter j of this vector becomes quarter quad % 4 of vector sub * 4 + j of the channels' block. */
            uint32_t v = quad / 4 * 16 + sub * 4;
            for (uint32_t half = 0; half < 2; half++) {
                __m256i x = unpack1(s->tile + (size_t)block * 64 * bits, i, half, bits, table, &t);
                put_quarter(to, v + 2 * half, quad % 4, _mm_shuffle_epi8(_mm256_castsi256_si128(x), pick));
                put_quarter(to, v + 2 * half + 1, quad % 4,
                            _mm_shuffle_epi8(_mm256_extracti128_si256(x, 1), pick));
            }
        }
    }
}

/* The functions of one way of packing. */
#define UNPACK_PACKING(name, bits, table)                            \
    SIMD_CALL void expand_##name(const quire_source *s, void *to)    \
    {                                                                \
        expand_codes(s, (uint8_t *)to, bits, table);                 \
    }                                                                \
    SIMD_CALL void transpose_##name(const quire_source *s, void *to) \
    {                                                                \
        transpose_codes(s, (uint8_t *)to, bits, table);              \
    }

#endif
