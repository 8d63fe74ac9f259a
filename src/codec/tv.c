/* SPDX-License-Identifier: MIT */
/*
 * tv: the TurboQuant codec of mlx-vlm 0.7.10, with its signs and tables. Every operation is the one that MLX does on the CPU of
 * x86-64, in the same order: codes and norms are equal bit for bit.
 */
#include "codec/row_kernels.h"
#include "codec/tv.h"

#include <math.h>

uint32_t quire_tv_size(uint32_t d)
{
    uint32_t i = 0;
    while (i < QUIRE_TV_SIZES && QUIRE_TV_LEAST_D << i != d) i++;
    return i;
}

void quire_count_middles_c(const float *x, uint32_t d, const float *middle, uint32_t bits, uint8_t *code)
{
    int32_t below[QUIRE_MAX_D];
    for (uint32_t i = 0; i < d; i++) below[i] = 0;
    for (uint32_t k = 0; k + 1 < 1u << bits; k++)
        for (uint32_t i = 0; i < d; i++) below[i] += x[i] > middle[k];
    for (uint32_t i = 0; i < d; i++) code[i] = (uint8_t)below[i];
}

/* One after the other, as MLX adds them. */
static float sum_of_squares(const float *x, uint32_t d)
{
    float square[QUIRE_TV_MOST_D], sum = 0;
    for (uint32_t i = 0; i < d; i++) square[i] = x[i] * x[i];
    for (uint32_t i = 0; i < d; i++) sum += square[i];
    return sum;
}

/* x is not rotated yet: mlx-vlm rotates the unit vector. */
void quire_encode_tv(const quire_coder *coder, const float *x, quire_coded_row *row, quire_counts *counts)
{
    float unit[QUIRE_TV_MOST_D], norm = sqrtf(sum_of_squares(x, coder->d));
    float divisor = norm > 1e-6f ? norm : 1e-6f;
    for (uint32_t i = 0; i < coder->d; i++) unit[i] = x[i] / divisor;
    quire_rotate(coder, unit);
    row->scale[0] = quire_store_scale(norm, counts);
    quire_row_kernels_for(coder->d)->count_middles(unit, coder->d, coder->codec->tv->middle,
                                                   coder->codec->info.bits, row->code);
}
