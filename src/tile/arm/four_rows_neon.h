/* SPDX-License-Identifier: MIT */
/* four_rows_neon: values of four tokens of K side by side, for place_rows_tmpl.h. */
#ifndef QUIRE_TILE_ARM_FOUR_ROWS_NEON_H
#define QUIRE_TILE_ARM_FOUR_ROWS_NEON_H

SIMD_FN void put_four_floats(uint8_t *at, const float *const value[4], uint32_t d)
{
    for (uint32_t c = 0; c < d; c += 4, at += 256) {
        float32x4_t x0 = vld1q_f32(value[0] + c), x1 = vld1q_f32(value[1] + c);
        float32x4_t x2 = vld1q_f32(value[2] + c), x3 = vld1q_f32(value[3] + c);
        float32x4_t low01 = vzip1q_f32(x0, x1), low23 = vzip1q_f32(x2, x3);
        float32x4_t high01 = vzip2q_f32(x0, x1), high23 = vzip2q_f32(x2, x3);
        vst1q_u8(at, vreinterpretq_u8_f32(halves_of(low01, low23, false)));
        vst1q_u8(at + 64, vreinterpretq_u8_f32(halves_of(low01, low23, true)));
        vst1q_u8(at + 128, vreinterpretq_u8_f32(halves_of(high01, high23, false)));
        vst1q_u8(at + 192, vreinterpretq_u8_f32(halves_of(high01, high23, true)));
    }
}

typedef struct sixteen_halves {
    uint16_t of[16];
} sixteen_halves;

/* Eight bytes, one token after the other, of channels c and c + 1. */
SIMD_FN void store_channels(uint8_t *at, uint32x4_t x)
{
    vst1_u8(at, vget_low_u8(vreinterpretq_u8_u32(x)));
    vst1_u8(at + 32, vget_high_u8(vreinterpretq_u8_u32(x)));
}

/* Of 16 channels. */
SIMD_FN void put_four_halves(uint8_t *at, const sixteen_halves half[4])
{
    for (uint32_t c = 0; c < 16; c += 8, at += 256) {
        uint16x8_t x0 = vld1q_u16(half[0].of + c), x1 = vld1q_u16(half[1].of + c);
        uint16x8_t x2 = vld1q_u16(half[2].of + c), x3 = vld1q_u16(half[3].of + c);
        uint32x4_t low01 = vreinterpretq_u32_u16(vzip1q_u16(x0, x1)),
                   low23 = vreinterpretq_u32_u16(vzip1q_u16(x2, x3));
        uint32x4_t high01 = vreinterpretq_u32_u16(vzip2q_u16(x0, x1)),
                   high23 = vreinterpretq_u32_u16(vzip2q_u16(x2, x3));
        store_channels(at, vzip1q_u32(low01, low23));
        store_channels(at + 64, vzip2q_u32(low01, low23));
        store_channels(at + 128, vzip1q_u32(high01, high23));
        store_channels(at + 192, vzip2q_u32(high01, high23));
    }
}

#endif
