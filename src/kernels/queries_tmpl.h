/* SPDX-License-Identifier: MIT */
/* queries_tmpl: rows of queries become integers. See score_tmpl.h. */
#ifndef QUIRE_KERNELS_QUERIES_TMPL_H
#define QUIRE_KERNELS_QUERIES_TMPL_H

/* One row of n values as bytes of z and of r, and z and r as they are. Gives the step. */
SIMD_FN float load_row(const float *x, uint32_t n, int8_t *high, int8_t *low, int8_t *r_bytes, int32_t *z,
                       int32_t *r)
{
    vf most = vf_set1(0), wrong = vf_set1(0);
    for (uint32_t c = 0; c < n; c += 16) {
        most = vf_max(most, vf_abs(vf_load(x + c)));
        wrong = vf_fma(vf_load(x + c), vf_set1(0), wrong); /* NaN if a value is not finite */
    }
    float step = vf_reduce_max(most) / QUIRE_MAX_Z;
    if (!(step > 1e-30f)) step = 1e-30f;
    vf inverse = vf_set1(1.0f / step);
    for (uint32_t c = 0; c < n; c += 64) {
        vi whole[4], fraction[4];
        for (uint32_t j = 0; j < 4; j++) {
            vf y = vf_mul(vf_load(x + c + j * 16), inverse);
            whole[j] = vf_to_int(y);
            vf rest256 = vf_mul(vf_sub(y, vi_to_float(whole[j])), vf_set1(256));
            fraction[j] = vf_to_int(vf_min(rest256, vf_set1(127)));
            vi_store(z + c + j * 16, whole[j]);
            vi_store(r + c + j * 16, fraction[j]);
        }
        vi_store_z(whole, high + c, low + c);
        vi_store_bytes(fraction, r_bytes + c);
    }
    return step + vf_reduce_add(wrong);
}

SIMD_FN int32_t sum_of(const int32_t *x, uint32_t from, uint32_t to)
{
    vi sum = vi_set1(0);
    for (uint32_t c = from; c < to; c += 16) sum = vi_add(sum, vi_load(x + c));
    return vi_reduce_add(sum);
}

SIMD_CALL void load_queries(const quire_format *format, quire_queries *q)
{
    uint32_t part = quire_part_size(&format->coder), n = q->z_stride;
    bool calibrated = format->coder.codec->info.flags & QUIRE_CODEC_CALIBRATED;
    if (!format->coder.n_groups) {
        for (uint32_t i = 0; i < q->n; i++) q->unit[i] = 1;
        return;
    }
    for (uint32_t i = 0; i < q->n; i++) {
        float x[QUIRE_MAX_D + 64];
        int32_t z[QUIRE_MAX_D + 64], r[QUIRE_MAX_D + 64];
        memcpy(x, q->row + (size_t)i * q->d, q->d * sizeof *x);
        memset(x + q->d, 0, (n - q->d) * sizeof *x);
        size_t stride = (size_t)q->copies * n;
        int8_t *high = q->z + 2 * i * stride;
        float step = load_row(x, n, high, high + stride, q->r + i * stride, z, r);
        for (uint32_t p = 0; p < q->n_parts; p++) {
            uint32_t end = (p + 1) * part < n ? (p + 1) * part : n;
            int32_t *sum = q->sum + ((size_t)i * q->n_parts + p) * 2;
            sum[0] = sum_of(z, p * part, end);
            sum[1] = sum_of(r, p * part, end);
        }
        q->unit[i] = step;
        float *mean_score = q->mean_score + (size_t)i * QUIRE_MEAN_SLOTS;
        for (uint32_t m = 0; calibrated && m < QUIRE_MEAN_SLOTS; m++) mean_score[m] /= step;
    }
}

#endif
