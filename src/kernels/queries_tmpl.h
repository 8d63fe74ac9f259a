/* SPDX-License-Identifier: MIT */
/* queries_tmpl: rows of queries become integers. See score_tmpl.h. */
#ifndef QUIRE_KERNELS_QUERIES_TMPL_H
#define QUIRE_KERNELS_QUERIES_TMPL_H

#include <math.h>

#define LEAST_STEP 1e-36f /* of a query; its inverse is finite */

/* Where the bytes of a row lie: of 64 channels, and how far from there to those of the next 64. */
typedef struct row_bytes {
    int8_t *high, *low, *r;
    size_t z_next, r_next;
} row_bytes;

SIMD_FN row_bytes row_bytes_of(const quire_queries *q, uint32_t i)
{
    size_t stride = (size_t)q->copies * q->z_stride;
    if (!q->fours)
        return (row_bytes){q->z + 2 * i * stride, q->z + (2 * i + 1) * stride, q->r + i * stride, 64, 64};
    int8_t *z = q->z + i / 4 * 8 * stride + i % 4 * 128;
    return (row_bytes){z, z + 64, q->r + i / 4 * 4 * stride + i % 4 * 64, 512, 256};
}

/* Sums over the channels of a part, by lanes: of z, of r, and of |r|. */
typedef struct part_sums {
    vi z, r;
    vf size;
} part_sums;

SIMD_FN part_sums no_part_sums(void)
{
    return (part_sums){vi_set1(0), vi_set1(0), vf_set1(0)};
}

/* Two sums of a part that is complete, and the sum of |r|. */
SIMD_FN float end_part(const part_sums *s, int32_t *sum)
{
    sum[0] = vi_reduce_add(s->z);
    sum[1] = vi_reduce_add(s->r);
    return vf_reduce_add(s->size);
}

/* not_finite: NaN if a value is not finite, else 0. */
SIMD_FN float step_of(const float *x, uint32_t n, float *not_finite)
{
    vf most = vf_set1(0), wrong = vf_set1(0);
    for (uint32_t c = 0; c < n; c += 16) {
        most = vf_max(most, vf_abs(vf_load(x + c)));
        wrong = vf_fma(vf_load(x + c), vf_set1(0), wrong);
    }
    float step = vf_reduce_max(most) / QUIRE_MAX_Z;
    if (!(step > LEAST_STEP)) step = LEAST_STEP;
    *not_finite = vf_reduce_add(wrong);
    return step;
}

/* One row of n values as bytes of z and of r, and the sums of its parts. Gives the sum of |r|. */
SIMD_FN float load_row(const float *x, uint32_t n, float step, row_bytes to, uint32_t part, int32_t *sum)
{
    vf inverse = vf_set1(1.0f / step);
    part_sums so_far = no_part_sums();
    float size = 0;
    for (uint32_t c = 0; c < n; c += 64) {
        vi whole[4], fraction[4];
        for (uint32_t j = 0; j < 4; j++) {
            vf y = vf_mul(vf_load(x + c + j * 16), inverse);
            whole[j] = vf_to_int(y);
            vf rest256 = vf_mul(vf_sub(y, vi_to_float(whole[j])), vf_set1(256));
            fraction[j] = vf_to_int(vf_min(rest256, vf_set1(127)));
            so_far.z = vi_add(so_far.z, whole[j]);
            so_far.r = vi_add(so_far.r, fraction[j]);
            so_far.size = vf_add(so_far.size, vf_abs(vi_to_float(fraction[j])));
            uint32_t end = c + (j + 1) * 16;
            if (end % part && end < n) continue;
            size += end_part(&so_far, sum);
            sum += 2;
            so_far = no_part_sums();
        }
        vi_store_z(whole, to.high + c / 64 * to.z_next, to.low + c / 64 * to.z_next);
        vi_store_bytes(fraction, to.r + c / 64 * to.r_next);
    }
    return size;
}

OPERAND_CALL void OPERAND_NAME(load_queries)(const quire_tile_format *format, quire_queries *q)
{
    uint32_t part = quire_part_size(&format->coder), n = q->z_stride;
    const quire_codec *codec = format->coder.codec;
    bool calibrated = codec->info.flags & QUIRE_CODEC_CALIBRATED;
    if (!format->coder.n_groups) {
        for (uint32_t i = 0; i < q->n; i++) q->unit[i] = 1, q->skip_r_below[i] = 0;
        return;
    }
    for (uint32_t i = 0; i < q->n; i++) {
        float padded[QUIRE_MAX_D + 64];
        int32_t of_parts[2 * (QUIRE_MAX_D + 64) / 32];
        const float *x = q->row + (size_t)i * q->d;
        if (q->d < n) {
            memcpy(padded, x, q->d * sizeof *x);
            memset(padded + q->d, 0, (n - q->d) * sizeof *x);
            x = padded;
        }
        float not_finite, step = step_of(x, n, &not_finite),
                          size = load_row(x, n, step, row_bytes_of(q, i), part, of_parts);
        memcpy(q->sum + (size_t)i * q->n_parts * 2, of_parts, q->n_parts * 2 * sizeof *of_parts);
        q->unit[i] = step + not_finite;
        /* Sums of r * (code - zero) are at most the sum of |r| times the largest of those. With a bias codes are counted from the
         * middle of their range, because what r gives there is never left out but for half a unit in each part. */
        if (codec->has_bias) size += (float)q->n_parts * 256 / (float)((1u << codec->info.bits) - 1);
        q->skip_r_below[i] = 256 / (step * size);
        float *mean_score = q->mean_score + (size_t)i * QUIRE_MEAN_SLOTS;
        for (uint32_t m = 0; calibrated && m < QUIRE_MEAN_SLOTS; m++) mean_score[m] /= step;
    }
}

#endif
