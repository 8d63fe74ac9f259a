/* SPDX-License-Identifier: MIT */
/*
 * unpack: quarters of vectors of 64 codes out of their bit planes (docs/formats/tiles.md), NEON. The engine that includes this
 * says what bytes it multiplies and how they lie in an expanded tile:
 *
 *   SIGNED_CODES   false: codes are unsigned, and entries of a table 128 more than they are. true: they are signed bytes. Codes
 *                  of up to 6 bits are that already, those of 8 bits become it by subtracting 128. What the rest counts with
 *                  is 128 more than those and than the entries of a table: is_less() tells.
 *   put_two        quarters of the vectors u and u + 1, u even
 */
#ifndef QUIRE_KERNELS_ARM_UNPACK_NEON_H
#define QUIRE_KERNELS_ARM_UNPACK_NEON_H

#include "kernels/kernels.h"
#include "simd/neon.h"

SIMD_FN bool is_less(const uint32_t bits, const bool table)
{
    return SIGNED_CODES && (table || bits == 8);
}

typedef struct lookup {
    uint8x16_t entries[4];
} lookup;

SIMD_FN lookup table_bytes(const quire_codec *codec, const uint32_t bits, const bool table)
{
    const uint8x16_t more = vdupq_n_u8(SIGNED_CODES ? 0 : 0x80);
    uint8_t entry[64] = {0};
    if (table) memcpy(entry, codec->table, bits < 6 ? (size_t)1 << bits : 64);
    return (lookup){{veorq_u8(vld1q_u8(entry), more), veorq_u8(vld1q_u8(entry + 16), more),
                     veorq_u8(vld1q_u8(entry + 32), more), veorq_u8(vld1q_u8(entry + 48), more)}};
}

SIMD_FN uint8x16_t look_up(const lookup *t, uint8x16_t index, const uint32_t bits)
{
    if (bits <= 4) return vqtbl1q_u8(t->entries[0], index);
    if (bits == 5) return vqtbl2q_u8((uint8x16x2_t){{t->entries[0], t->entries[1]}}, index);
    return vqtbl4q_u8((uint8x16x4_t){{t->entries[0], t->entries[1], t->entries[2], t->entries[3]}}, index);
}

/* Bits from `from` on move to bit `to` of every byte; what lands beside them is left to the caller. */
SIMD_FN uint8x16_t move_bits(uint8x16_t x, const uint32_t from, const uint32_t to)
{
    return vshlq_u8(x, vdupq_n_s8((int8_t)((int32_t)to - (int32_t)from)));
}

/* A quarter of vector i, 0 to 7, of the block at p. */
SIMD_FN uint8x16_t unpack1(const uint8_t *p, const uint32_t i, const uint32_t quarter, const uint32_t bits,
                           const bool table, const lookup *t)
{
    p += quarter * 16;
    if (bits == 8) return veorq_u8(vld1q_u8(p + i * 64), vdupq_n_u8(SIGNED_CODES ? 0x80 : 0));
    const uint32_t low = bits == 2 || bits == 3 ? 2 : 4, high = bits - low; /* widths of the two planes */
    const uint32_t at = i * low % 8;
    uint8x16_t x = vld1q_u8(p + i * low / 8 * 64);
    if (at) x = move_bits(x, at, 0);
    if (high) {
        uint8x16_t y = move_bits(vld1q_u8(p + low * 64 + i * high / 8 * 64), i * high % 8, low);
        x = vbslq_u8(vdupq_n_u8((uint8_t)((1 << low) - 1)), x, y);
    }
    if (high || at + low < 8) x = vandq_u8(x, vdupq_n_u8((uint8_t)((1 << bits) - 1)));
    return table ? look_up(t, x, bits) : x;
}

/* All vectors of a tile. */
SIMD_FN void expand_codes(const quire_source *s, uint8_t *to, const uint32_t bits, const bool table)
{
    const quire_coder *coder = &s->format->coder;
    const lookup t = table_bytes(coder->codec, bits, table);
    for (uint32_t block = 0; block < coder->d_pad / 8; block++) {
        const uint8_t *from = s->tile + (size_t)block * 64 * bits;
        for (uint32_t i = 0; i < bits && s->next; i++) simd_prefetch(s->next + (from - s->tile) + i * 64);
        SIMD_UNROLL(4)
        for (uint32_t i = 0; i < 8; i += 2)
            for (uint32_t quarter = 0; quarter < 4; quarter++)
                put_two(to, block * 8 + i, quarter, unpack1(from, i, quarter, bits, table, &t),
                        unpack1(from, i + 1, quarter, bits, table, &t));
    }
    for (size_t at = s->format->code_bytes; at < s->format->tile_bytes && s->next; at += 64)
        simd_prefetch(s->next + at);
}

/* A tile of K (16 tokens x 4 channels in a vector) as one of V (16 channels x 4 tokens). */
SIMD_FN void transpose_codes(const quire_source *s, uint8_t *to, const uint32_t bits, const bool table)
{
    static const uint8_t transposed[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
    const quire_coder *coder = &s->format->coder;
    const lookup t = table_bytes(coder->codec, bits, table);
    const uint8x16_t pick = vld1q_u8(transposed); /* 4 x 4 bytes */
    uint32_t per_sub = coder->d_pad / 4;
    for (uint32_t block = 0; block < coder->d_pad / 8; block++) {
        const uint8_t *from = s->tile + (size_t)block * 64 * bits;
        SIMD_UNROLL(8)
        for (uint32_t i = 0; i < 8; i++) {
            uint32_t u = block * 8 + i, sub = u / per_sub, quad = u % per_sub;
            /* Quarter j of this vector becomes quarter quad % 4 of vector sub * 4 + j of the channels' block. */
            for (uint32_t j = 0; j < 4; j += 2)
                put_two(to, quad / 4 * 16 + sub * 4 + j, quad % 4,
                        vqtbl1q_u8(unpack1(from, i, j, bits, table, &t), pick),
                        vqtbl1q_u8(unpack1(from, i, j + 1, bits, table, &t), pick));
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
