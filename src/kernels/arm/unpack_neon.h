/* SPDX-License-Identifier: MIT */
/*
 * unpack: quarters of vectors of 64 codes out of their bit planes (docs/formats/tiles.md), NEON. The dot product takes
 * signed bytes: codes of up to 6 bits are that; those of 8 bits become it by subtracting 128; table entries are it, and
 * are 128 less than what the rest counts with. is_less() tells.
 */
#ifndef QUIRE_KERNELS_ARM_UNPACK_NEON_H
#define QUIRE_KERNELS_ARM_UNPACK_NEON_H

#include "kernels/kernels.h"
#include "simd/neon.h"

SIMD_FN bool is_less(const uint32_t bits, const bool table)
{
    return table || bits == 8;
}

typedef struct lookup {
    uint8x16_t entries[4];
} lookup;

SIMD_FN lookup table_bytes(const quire_codec *codec, const uint32_t bits, const bool table)
{
    uint8_t entry[64] = {0};
    if (table) memcpy(entry, codec->table, bits < 6 ? (size_t)1 << bits : 64);
    return (lookup){{vld1q_u8(entry), vld1q_u8(entry + 16), vld1q_u8(entry + 32), vld1q_u8(entry + 48)}};
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
SIMD_FN int8x16_t unpack1(const uint8_t *p, const uint32_t i, const uint32_t quarter, const uint32_t bits,
                          const bool table, const lookup *t)
{
    p += quarter * 16;
    if (bits == 8) return vreinterpretq_s8_u8(veorq_u8(vld1q_u8(p + i * 64), vdupq_n_u8(0x80)));
    const uint32_t low = bits == 2 || bits == 3 ? 2 : 4,
                   high = bits - low; /* widths of the two query_bytes */
    const uint32_t at = i * low % 8;
    uint8x16_t x = vld1q_u8(p + i * low / 8 * 64);
    if (at) x = move_bits(x, at, 0);
    if (high) {
        uint8x16_t y = move_bits(vld1q_u8(p + low * 64 + i * high / 8 * 64), i * high % 8, low);
        x = vbslq_u8(vdupq_n_u8((uint8_t)((1 << low) - 1)), x, y);
    }
    if (high || at + low < 8) x = vandq_u8(x, vdupq_n_u8((uint8_t)((1 << bits) - 1)));
    return vreinterpretq_s8_u8(table ? look_up(t, x, bits) : x);
}

/* All vectors of a tile, each at 64 times its number. */
SIMD_FN void expand_codes(const quire_source *s, int8_t *to, const uint32_t bits, const bool table)
{
    const quire_coder *coder = &s->format->coder;
    const lookup t = table_bytes(coder->codec, bits, table);
    for (uint32_t block = 0; block < coder->d_pad / 8; block++) {
        size_t at = (size_t)block * 64 * bits;
        for (uint32_t i = 0; i < bits && s->next; i++) simd_prefetch(s->next + at + i * 64);
        SIMD_UNROLL(8)
        for (uint32_t i = 0; i < 8; i++)
            for (uint32_t quarter = 0; quarter < 4; quarter++)
                vst1q_s8(to + ((size_t)block * 8 + i) * 64 + quarter * 16,
                         unpack1(s->tile + at, i, quarter, bits, table, &t));
    }
    for (size_t at = s->format->code_bytes; at < s->format->tile_bytes && s->next; at += 64)
        simd_prefetch(s->next + at);
}

/* A tile of K (16 tokens x 4 channels in a vector) as one of V (16 channels x 4 tokens). */
SIMD_FN void transpose_codes(const quire_source *s, int8_t *to, const uint32_t bits, const bool table)
{
    static const uint8_t transposed[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
    const quire_coder *coder = &s->format->coder;
    const lookup t = table_bytes(coder->codec, bits, table);
    const uint8x16_t pick = vld1q_u8(transposed); /* 4 x 4 bytes */
    uint32_t per_sub = coder->d_pad / 4;
    for (uint32_t block = 0; block < coder->d_pad / 8; block++) {
        SIMD_UNROLL(8)
        for (uint32_t i = 0; i < 8; i++) {
            uint32_t u = block * 8 + i, sub = u / per_sub, quad = u % per_sub;
            /* Quarter j of this vector becomes quarter quad % 4 of vector sub * 4 + j of the channels' block. */
            int8_t *v = to + ((size_t)(quad / 4) * 16 + sub * 4) * 64 + quad % 4 * 16;
            for (uint32_t j = 0; j < 4; j++)
                vst1q_s8(
                    v + j * 64,
                    vqtbl1q_s8(unpack1(s->tile + (size_t)block * 64 * bits, i, j, bits, table, &t), pick));
        }
    }
}

/* The functions of one way of packing. */
#define UNPACK_PACKING(name, bits, table)                            \
    SIMD_CALL void expand_##name(const quire_source *s, void *to)    \
    {                                                                \
        expand_codes(s, (int8_t *)to, bits, table);                  \
    }                                                                \
    SIMD_CALL void transpose_##name(const quire_source *s, void *to) \
    {                                                                \
        transpose_codes(s, (int8_t *)to, bits, table);               \
    }

#endif
