/* SPDX-License-Identifier: MIT */
/* ggml: the block types of llama.cpp's cache, as its CPU backend writes them. */
#include "codec/row_kernels.h"

#include <math.h>

/*
 * Each block function follows ggml's, operation by operation, with two additions. A block may have fewer than 32
 * values (the last one of a head size that 32 does not divide). And where ggml converts an infinite or undefined
 * float to an integer, that is in blocks of denormal numbers whose reciprocal overflows, all codes stand for 0; the
 * scale of such a block is 0 in f16 anyway.
 */
typedef void block_fn(const float *x, uint32_t n, uint8_t *code, float *scale, float *bias);

static void encode_blocks(const quire_coder *coder, const float *x, quire_coded_row *row,
                          quire_counts *counts, block_fn *encode)
{
    for (uint32_t g = 0; g < coder->n_groups; g++) {
        uint32_t at = g * coder->group;
        float s = 0, b = 0;
        encode(x + at, quire_group_size(coder, g), row->code + at, &s, &b);
        row->scale[g] = quire_store_scale(s, counts);
        if (coder->codec->has_bias) row->bias[g] = quire_store_scale(b, counts);
    }
}

/* 1 / d, or 0 if there is no such number. */
static float reciprocal(float d)
{
    float id = d != 0 ? 1.0f / d : 0;
    return isfinite(id) ? id : 0;
}

float quire_extreme(const float *x, uint32_t n)
{
    float magnitude = 0, value = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (magnitude < fabsf(x[i])) {
            magnitude = fabsf(x[i]);
            value = x[i];
        }
    }
    return value;
}

/* ----------------------------------------------------------------- symmetric */

/*
 * ggml has two versions of q8_0; this is the one of every x86 machine with AVX (127 / max, ties to even). The
 * portable one (1 / d, ties away from zero) differs in a code now and then.
 */
static void block_q8_0(const float *x, uint32_t n, uint8_t *code, float *scale, float *bias)
{
    (void)bias;
    float magnitude = fabsf(quire_extreme(x, n));
    float id = magnitude != 0 ? 127.0f / magnitude : 0;
    if (!isfinite(id)) id = 0;
    *scale = magnitude / 127.0f;
    for (uint32_t i = 0; i < n; i++) code[i] = (uint8_t)((int)rintf(x[i] * id) + 128);
}

/* The extreme gets code 0, so the other end of the range may have to be cut: +zero does not exist. */
static void block_symmetric(const float *x, uint32_t n, int zero, uint8_t *code, float *scale)
{
    float d = quire_extreme(x, n) / (float)-zero, id = reciprocal(d), round = (float)zero + 0.5f;
    *scale = d;
    for (uint32_t i = 0; i < n; i++) {
        int q = (int)(x[i] * id + round);
        code[i] = (uint8_t)(q < 2 * zero - 1 ? q : 2 * zero - 1);
    }
}

static void block_q5_0(const float *x, uint32_t n, uint8_t *code, float *scale, float *bias)
{
    (void)bias;
    block_symmetric(x, n, 16, code, scale);
}

static void block_q4_0(const float *x, uint32_t n, uint8_t *code, float *scale, float *bias)
{
    (void)bias;
    block_symmetric(x, n, 8, code, scale);
}

/* ----------------------------------------------------------- with a minimum */

static void block_minimum(const float *x, uint32_t n, int top, uint8_t *code, float *scale, float *bias)
{
    float lo = x[0], hi = x[0];
    for (uint32_t i = 1; i < n; i++) {
        if (x[i] < lo) lo = x[i];
        if (x[i] > hi) hi = x[i];
    }
    float d = (hi - lo) / (float)top, id = reciprocal(d);
    *scale = d;
    *bias = lo;
    for (uint32_t i = 0; i < n; i++) {
        int q = (int)((x[i] - lo) * id + 0.5f);
        code[i] = (uint8_t)(q < top ? q : top);
    }
}

static void block_q5_1(const float *x, uint32_t n, uint8_t *code, float *scale, float *bias)
{
    block_minimum(x, n, 31, code, scale, bias);
}

static void block_q4_1(const float *x, uint32_t n, uint8_t *code, float *scale, float *bias)
{
    block_minimum(x, n, 15, code, scale, bias);
}

/* --------------------------------------------------------------- with a table */

const int8_t quire_table_iq4_nl[16] = {
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
};

/* Nearest entry; a tie takes the upper one. */
static uint8_t nearest_iq4_nl(float v)
{
    const int8_t *t = quire_table_iq4_nl;
    if (v <= (float)t[0]) return 0;
    if (v >= (float)t[15]) return 15;
    uint8_t upper = 1;
    while (v >= (float)t[upper]) upper++;
    return v - (float)t[upper - 1] < (float)t[upper] - v ? (uint8_t)(upper - 1) : upper;
}

/*
 * Cache rows go through the reference function without a search: codes from extreme / -127, then the least squares
 * scale with weights x^2. Below 1e-15 ggml leaves the codes undefined; here they are 0.
 */
static void block_iq4_nl(const float *x, uint32_t n, uint8_t *code, float *scale, float *bias)
{
    (void)bias;
    float most = quire_extreme(x, n), sum_qx = 0, sum_qq = 0;
    if (fabsf(most) < 1e-15f) {
        memset(code, 0, n);
        *scale = 0;
        return;
    }
    float id = 1 / (most / (float)quire_table_iq4_nl[0]);
    for (uint32_t i = 0; i < n; i++) {
        code[i] = nearest_iq4_nl(id * x[i]);
        float q = (float)quire_table_iq4_nl[code[i]], w = x[i] * x[i];
        sum_qx += w * q * x[i];
        sum_qq += w * q * q;
    }
    *scale = sum_qq > 0 ? sum_qx / sum_qq : 0;
}

#define ENCODER(BLOCK, NAME)                                                                 \
    void quire_encode_##NAME(const quire_coder *coder, const float *x, quire_coded_row *row, \
                             quire_counts *counts)                                           \
    {                                                                                        \
        encode_blocks(coder, x, row, counts, block_##BLOCK);                                 \
    }

ENCODER(q8_0, q8_0_c)
ENCODER(q5_1, q5_1_c)
ENCODER(q5_0, q5_0_c)
ENCODER(q4_1, q4_1_c)
ENCODER(q4_0, q4_0_c)
ENCODER(iq4_nl, iq4_nl)

/* -------------------------------------------------------------------- bytes */

/*
 * A block: f16 scale, f16 minimum if there is one, for 5 bits a word of fifth bits, then the codes: bytes with sign
 * for 8 bits, else nibbles, value j and value j + 16 in one byte.
 */
void quire_pack_ggml(const quire_coder *coder, const quire_coded_row *row, uint8_t *bytes)
{
    uint32_t bits = coder->codec->info.bits;
    for (uint32_t g = 0; g < coder->n_groups; g++) {
        const uint8_t *code = row->code + 32 * g;
        quire_store16(bytes, row->scale[g]);
        bytes += 2;
        if (coder->codec->has_bias) {
            quire_store16(bytes, row->bias[g]);
            bytes += 2;
        }
        if (bits == 8) {
            for (int j = 0; j < 32; j++) *bytes++ = code[j] ^ 0x80;
            continue;
        }
        if (bits == 5) {
            uint32_t fifth = 0;
            for (int j = 0; j < 32; j++) fifth |= (uint32_t)(code[j] >> 4 & 1) << j;
            quire_store32(bytes, fifth);
            bytes += 4;
        }
        for (int j = 0; j < 16; j++) *bytes++ = (uint8_t)((code[j] & 15) | (code[j + 16] & 15) << 4);
    }
}

bool quire_unpack_ggml(const quire_coder *coder, const uint8_t *bytes, quire_coded_row *row)
{
    uint32_t bits = coder->codec->info.bits;
    bool finite = true;
    for (uint32_t g = 0; g < coder->n_groups; g++) {
        uint8_t *code = row->code + 32 * g;
        row->scale[g] = quire_load16(bytes);
        finite &= quire_f16_is_finite(row->scale[g]);
        bytes += 2;
        if (coder->codec->has_bias) {
            row->bias[g] = quire_load16(bytes);
            finite &= quire_f16_is_finite(row->bias[g]);
            bytes += 2;
        }
        if (bits == 8) {
            for (int j = 0; j < 32; j++) code[j] = *bytes++ ^ 0x80;
            continue;
        }
        uint32_t fifth = 0;
        if (bits == 5) {
            fifth = quire_load32(bytes);
            bytes += 4;
        }
        for (int j = 0; j < 16; j++, bytes++) {
            code[j] = (uint8_t)((*bytes & 15) | (fifth >> j & 1) << 4);
            code[j + 16] = (uint8_t)(*bytes >> 4 | (fifth >> (j + 16) & 1) << 4);
        }
    }
    return finite;
}
