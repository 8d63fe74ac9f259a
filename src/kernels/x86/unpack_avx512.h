/* SPDX-License-Identifier: MIT */
/* unpack: eight vectors of 64 codes out of their bit planes (docs/formats/tiles.md), AVX-512. */
#ifndef QUIRE_KERNELS_X86_UNPACK_AVX512_H
#define QUIRE_KERNELS_X86_UNPACK_AVX512_H

#include "kernels/kernels.h"
#include "simd/avx512.h"

/* A codec's table as unsigned bytes (128 more), repeated: bits of an index above its own do not matter. */
SIMD_FN __m512i table_bytes(const quire_codec *codec, const uint32_t bits, const bool table)
{
    if (!table) return _mm512_setzero_si512();
    __m512i t;
    int32_t word;
    int64_t words;
    switch (bits) {
    case 2:
        memcpy(&word, codec->table, sizeof word);
        t = _mm512_set1_epi32(word);
        break;
    case 3:
        memcpy(&words, codec->table, sizeof words);
        t = _mm512_set1_epi64(words);
        break;
    case 4: t = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)codec->table)); break;
    case 5: t = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)codec->table)); break;
    default: t = _mm512_loadu_si512(codec->table); break;
    }
    return _mm512_xor_si512(t, _mm512_set1_epi8((char)0x80));
}

/* Bits from `from` on move to bit `to` of every byte; what lands beside them is left to the caller. */
SIMD_FN __m512i move_bits(__m512i x, const uint32_t from, const uint32_t to)
{
    if (from > to) return _mm512_srli_epi16(x, from - to);
    return from < to ? _mm512_slli_epi16(x, to - from) : x;
}

/* Vector i, 0 to 7, of the block at p. */
SIMD_FN __m512i unpack1(const uint8_t *p, const uint32_t i, const uint32_t bits, const bool table,
                        __m512i lut)
{
    if (bits == 8) return _mm512_loadu_si512(p + i * 64);
    const uint32_t low = bits == 2 || bits == 3 ? 2 : 4,
                   high = bits - low; /* widths of the two query_bytes */
    const __m512i keep_low = _mm512_set1_epi8((char)((1 << low) - 1));
    __m512i a = move_bits(_mm512_loadu_si512(p + i * low / 8 * 64), i * low % 8, 0);
    if (high) {
        __m512i b = move_bits(_mm512_loadu_si512(p + low * 64 + i * high / 8 * 64), i * high % 8, low);
        a = _mm512_ternarylogic_epi32(keep_low, a, b, 0xca); /* keep_low ? a : b */
    }
    return table ? _mm512_permutexvar_epi8(a, lut)
                 : _mm512_and_si512(a, _mm512_set1_epi8((char)((1 << bits) - 1)));
}

SIMD_FN __m512i broadcast_word(const int8_t *p)
{
    int32_t word;
    memcpy(&word, p, sizeof word);
    return _mm512_set1_epi32(word);
}

/* The four shifts of vector u of V, out of a byte for each group and token. */
SIMD_FN const int8_t *shifts_of(const quire_coder *coder, const int8_t *shift, uint32_t u)
{
    return shift + u / 16 * 16 / coder->group * QUIRE_TILE_ROWS + u % 16 * 4;
}

/* All vectors of a tile, each at 64 times its number. V may have `shift` added: a byte for each group and token. */
SIMD_FN void expand_codes(const quire_source *s, const int8_t *shift, uint8_t *to, const uint32_t bits,
                          const bool table, const bool shifts)
{
    const quire_coder *coder = &s->format->coder;
    __m512i lut = table_bytes(coder->codec, bits, table);
    for (uint32_t block = 0; block < coder->d_pad / 8; block++) {
        size_t at = (size_t)block * 64 * bits;
        for (uint32_t i = 0; i < bits && s->next; i++)
            _mm_prefetch((const char *)s->next + at + i * 64, _MM_HINT_T1);
        const int8_t *add = shifts ? shifts_of(coder, shift, block * 8) : NULL;
#pragma GCC unroll 8
        for (uint32_t i = 0; i < 8; i++) {
            __m512i x = unpack1(s->tile + at, i, bits, table, lut);
            if (shifts) x = _mm512_add_epi8(x, broadcast_word(add + i * 4));
            _mm512_store_si512(to + ((size_t)block * 8 + i) * 64, x);
        }
    }
    for (size_t at = s->format->code_bytes; at < s->format->tile_bytes && s->next; at += 64)
        _mm_prefetch((const char *)s->next + at, _MM_HINT_T0);
}

/* Vectors of K (16 tokens x 4 channels) as vectors of V (16 channels x 4 tokens), from `from` to `to`. */
SIMD_FN void transpose_codes(const quire_coder *coder, const uint8_t *from, uint8_t *to)
{
    const __m512i pick = _mm512_broadcast_i32x4(
        _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15)); /* 4 x 4 bytes transposed */
    for (uint32_t sub = 0; sub < 4; sub++) {
        for (uint32_t block = 0; block < coder->d_pad / 16; block++) {
            const uint8_t *k = from + ((size_t)sub * (coder->d_pad / 4) + block * 4) * 64;
            __m512i a = _mm512_loadu_si512(k), b = _mm512_loadu_si512(k + 64),
                    c = _mm512_loadu_si512(k + 128), d = _mm512_loadu_si512(k + 192);
            /* Lane j of vector i becomes lane i of vector j. */
            __m512i ab0 = _mm512_shuffle_i64x2(a, b, 0x44), ab1 = _mm512_shuffle_i64x2(a, b, 0xee);
            __m512i cd0 = _mm512_shuffle_i64x2(c, d, 0x44), cd1 = _mm512_shuffle_i64x2(c, d, 0xee);
            uint8_t *v = to + ((size_t)block * 16 + sub * 4) * 64;
            _mm512_storeu_si512(v, _mm512_shuffle_epi8(_mm512_shuffle_i64x2(ab0, cd0, 0x88), pick));
            _mm512_storeu_si512(v + 64, _mm512_shuffle_epi8(_mm512_shuffle_i64x2(ab0, cd0, 0xdd), pick));
            _mm512_storeu_si512(v + 128, _mm512_shuffle_epi8(_mm512_shuffle_i64x2(ab1, cd1, 0x88), pick));
            _mm512_storeu_si512(v + 192, _mm512_shuffle_epi8(_mm512_shuffle_i64x2(ab1, cd1, 0xdd), pick));
        }
    }
}

#endif
