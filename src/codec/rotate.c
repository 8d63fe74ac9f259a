/* SPDX-License-Identifier: MIT */
/* rotate: Walsh-Hadamard rotations, which spread outliers over a whole row. */
#include "codec/row_kernels.h"
#include "codec/tv.h"

#include <math.h>

/* Bit i % 64 of word i / 64: channel i changes its sign. Bit 0 of the outputs of splitmix64 with the seed
 * 0x9e3779b97f4a7c15; without signs a row that is constant over its channels would end in a single one. */
static const uint64_t minus[QUIRE_MAX_D / 64] = {
    0x6cdaf47f6198faaau, 0xd254d481be9c3645u, 0x5a037575dee4e58au, 0x86237e9ca946f9a2u,
    0xdf3d7b3beb3ae8bbu, 0x61eadd6632f9ff2fu, 0xdd159a479454c1bau, 0xa3cf786c7a78d898u,
    0x82f7ce90a30dacfau, 0xaf77a8caa176f7d8u, 0xce3210f14e0e5362u, 0x7dfb475f3e87f0dbu,
    0x3f303f3ae12bfc4cu, 0xeb100339e1d16bd0u, 0x685cce82ffdaa530u, 0x70a273830bcbe437u,
};

static void change_signs(float *x, uint32_t d, const uint64_t *signs)
{
    for (uint32_t i = 0; i < d; i++)
        if (signs[i / 64] >> (i % 64) & 1) x[i] = -x[i];
}

/* Natural (Sylvester) order; its own inverse. */
void quire_hadamard_c(const float *x, float *y, uint32_t d, uint32_t n, const uint64_t *before,
                      const uint64_t *after)
{
    if (x != y) memcpy(y, x, d * sizeof *y);
    if (before) change_signs(y, d, before);
    for (uint32_t half = 1; half < n; half *= 2) {
        for (uint32_t at = 0; at < d; at += 2 * half) {
            for (uint32_t i = at; i < at + half; i++) {
                float a = y[i], b = y[i + half];
                y[i] = a + b;
                y[i + half] = a - b;
            }
        }
    }
    float factor = 1.0f / sqrtf((float)n);
    for (uint32_t i = 0; i < d; i++) y[i] *= factor;
    if (after) change_signs(y, d, after);
}

const uint64_t *quire_rotation_signs(const quire_coder *coder)
{
    if (coder->codec->rotation == QUIRE_ROTATION_TV)
        return quire_tv_minus[coder->side][quire_tv_size(coder->d)];
    return coder->codec->rotation == QUIRE_ROTATION_SIGNED ? minus : NULL;
}

const float *quire_rotated(const quire_coder *coder, const float *x, float *y)
{
    if (coder->codec->rotation == QUIRE_ROTATION_NONE) return x;
    quire_row_kernels_for(coder->d)->hadamard(x, y, coder->d, coder->block, quire_rotation_signs(coder),
                                              NULL);
    return y;
}

void quire_rotate(const quire_coder *coder, float *x)
{
    quire_rotated(coder, x, x);
}

void quire_unrotate(const quire_coder *coder, float *x)
{
    if (coder->codec->rotation == QUIRE_ROTATION_NONE) return;
    quire_row_kernels_for(coder->d)->hadamard(x, x, coder->d, coder->block, NULL,
                                              quire_rotation_signs(coder));
}

void quire_apply_unit(const quire_coder *coder, float *x)
{
    if (!coder->codec->tv) return;
    for (uint32_t i = 0; i < coder->d; i++) x[i] *= coder->codec->tv->unit;
}
