/* SPDX-License-Identifier: MIT */
/*
 * unpack: eight vectors of 64 codes out of their bit planes (docs/formats/tiles.md), AVX-512. With VBMI (HAS_VBMI) one
 * instruction looks up 64 entries, without it one looks up 16.
 */
#ifndef QUIRE_KERNELS_X86_UNPACK_AVX512_H
#define QUIRE_KERNELS_X86_UNPACK_AVX512_H

#include "kernels/kernels.h"
#include "simd/avx512.h"

/* A codec's table as unsigned bytes (128 more). */
typedef struct code_table {
#if defined(HAS_VBMI)
    __m512i all; /* repeated: bits of an index above its own do not matter */
#else
    __m512i
        entries[4]; /* sixteen each, in every lane of 128 bits; tables of less than sixteen are repeated */
#endif
} code_table;

SIMD_FN __m512i biased(__m512i table)
{
    return _mm512_xor_si512(table, _mm512_set1_epi8((char)0x80));
}

/* The first sixteen entries, in every lane. */
SIMD_FN __m512i short_table(const int8_t *table, const uint32_t bits)
{
    int32_t word;
    int64_t words;
    if (bits == 2) {
        memcpy(&word, table, sizeof word);
        return _mm512_set1_epi32(word);
    }
    if (bits == 3) {
        memcpy(&words, table, sizeof words);
        return _mm512_set1_epi64(words);
    }
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)table));
}

#if defined(HAS_VBMI)

SIMD_FN code_table table_bytes(const quire_codec *codec, const uint32_t bits, const bool table)
{
    code_table t = {_mm512_setzero_si512()};
    if (!table) return t;
    if (bits <= 4)
        t.all = short_table(codec->table, bits);
    else if (bits == 5)
        t.all = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)codec->table));
    else
        t.all = _mm512_loadu_si512(codec->table);
    t.all = biased(t.all);
    return t;
}

#else

SIMD_FN code_table table_bytes(const quire_codec *codec, const uint32_t bits, const bool table)
{
    code_table t;
    for (uint32_t i = 0; i < 4; i++) {
        t.entries[i] = _mm512_setzero_si512();
        if (table && i < (bits > 4 ? 1u << (bits - 4) : 1))
            t.entries[i] = biased(short_table(codec->table + i * 16, bits));
    }
    return t;
}

#endif

/* Bits from `from` on move to bit `to` of every byte; what lands beside them is left to the caller. */
SIMD_FN __m512i move_bits(__m512i x, const uint32_t from, const uint32_t to)
{
    if (from > to) return _mm512_srli_epi16(x, from - to);
    return from < to ? _mm512_slli_epi16(x, to - from) : x;
}

/* Widths of the two planes of a code. */
SIMD_FN uint32_t low_bits(const uint32_t bits)
{
    return bits == 2 || bits == 3 ? 2 : 4;
}

/* Vector i of the plane of lower bits of the block at p; what lies above them is left to the caller. */
SIMD_FN __m512i unpack_low(const uint8_t *p, const uint32_t i, const uint32_t bits)
{
    const uint32_t low = low_bits(bits);
    return move_bits(_mm512_loadu_si512(p + i * low / 8 * 64), i * low % 8, 0);
}

/* Codes with anything above their bits. */
SIMD_FN __m512i unpack_bits(const uint8_t *p, const uint32_t i, const uint32_t bits)
{
    const uint32_t low = low_bits(bits), high = bits - low;
    __m512i a = unpack_low(p, i, bits);
    if (!high) return a;
    const __m512i keep_low = _mm512_set1_epi8((char)((1 << low) - 1));
    __m512i b = move_bits(_mm512_loadu_si512(p + low * 64 + i * high / 8 * 64), i * high % 8, low);
    return _mm512_ternarylogic_epi32(keep_low, a, b, 0xca); /* keep_low ? a : b */
}

#if defined(HAS_VBMI)

SIMD_FN __m512i look_up(const uint8_t *p, const uint32_t i, const uint32_t bits, const code_table *t)
{
    return _mm512_permutexvar_epi8(unpack_bits(p, i, bits), t->all);
}

#else

/* The lower four bits choose one of sixteen entries; the plane of the others says of which sixteen. */
SIMD_FN __m512i look_up(const uint8_t *p, const uint32_t i, const uint32_t bits, const code_table *t)
{
    const __m512i keep = _mm512_set1_epi8(15);
    if (bits <= 4) return _mm512_shuffle_epi8(t->entries[0], _mm512_and_si512(unpack_bits(p, i, bits), keep));
    const uint32_t high = bits - 4, from = i * high % 8;
    __m512i index = _mm512_and_si512(unpack_low(p, i, bits), keep);
    __m512i plane = _mm512_loadu_si512(p + 4 * 64 + i * high / 8 * 64);
    __mmask64 bit4 = _mm512_test_epi8_mask(plane, _mm512_set1_epi8((char)(1 << from)));
    __m512i a = _mm512_shuffle_epi8(t->entries[0], index);
    a = _mm512_mask_shuffle_epi8(a, bit4, t->entries[1], index);
    if (bits == 5) return a;
    __mmask64 bit5 = _mm512_test_epi8_mask(plane, _mm512_set1_epi8((char)(2 << from)));
    __m512i b = _mm512_shuffle_epi8(t->entries[2], index);
    b = _mm512_mask_shuffle_epi8(b, bit4, t->entries[3], index);
    return _mm512_mask_mov_epi8(a, bit5, b);
}

#endif

/* Vector i, 0 to 7, of the block at p. */
SIMD_FN __m512i unpack1(const uint8_t *p, const uint32_t i, const uint32_t bits, const bool table,
                        const code_table *t)
{
    if (bits == 8) return _mm512_loadu_si512(p + i * 64);
    if (table) return look_up(p, i, bits, t);
    return _mm512_and_si512(unpack_bits(p, i, bits), _mm512_set1_epi8((char)((1 << bits) - 1)));
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
    const code_table t = table_bytes(coder->codec, bits, table);
    for (uint32_t block = 0; block < coder->d_pad / 8; block++) {
        size_t at = (size_t)block * 64 * bits;
        for (uint32_t i = 0; i < bits && s->next; i++)
            _mm_prefetch((const char *)s->next + at + i * 64, _MM_HINT_T1);
        const int8_t *add = shifts ? shifts_of(coder, shift, block * 8) : NULL;
#pragma GCC unroll 8
        for (uint32_t i = 0; i < 8; i++) {
            __m512i x = unpack1(s->tile + at, i, bits, table, &t);
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
