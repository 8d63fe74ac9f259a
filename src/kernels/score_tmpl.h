/* SPDX-License-Identifier: MIT */
/*
 * score_tmpl: queries as integers, and scores. This, softmax_tmpl.h and mix_tmpl.h are the arithmetic around the integer
 * products, written once in lanes of 16 and compiled for each instruction set. A file includes the header of its lanes, then
 * epilogue.h, then defines its engine for the products, then includes families.h, which brings all of this:
 *
 *   dot_k   sums of z * code, and of r * code if asked for, over the channels [from, to) of K, for 64 tokens and n
 *           query rows; gives each to store_scores()
 *   dot_v   sums of z * code over the 64 tokens of V, for blocks [from, to) of 16 channels and n rows; gives each to
 *           add_values()
 *
 * The sums are exact, and the functions here are the same for all engines of an instruction set; so what one query gets
 * depends neither on the engine nor on the queries it shares a call with.
 */
#ifndef QUIRE_KERNELS_SCORE_TMPL_H
#define QUIRE_KERNELS_SCORE_TMPL_H

/* An engine may keep the scales of a tile of K with its expanded form. */
#ifndef ENGINE_KEEPS_SCALES
SIMD_FN const key_scales *kept_key_scales(const quire_source *k)
{
    (void)k;
    return NULL;
}
#endif

/* ------------------------------------------------------------------ queries */

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

/* ------------------------------------------------------------------- scores */

/* What store_scores() needs for one part. */
SIMD_FN void begin_scores(k_epilogue *to, const quire_source *k, const key_scales *scales,
                          const quire_queries *q, uint32_t first, uint32_t n, uint32_t with_r, uint32_t part,
                          float *scores, const bool has_bias)
{
    const quire_codec *codec = k->format->coder.codec;
    int32_t zero = codec->values == QUIRE_VALUES_TABLE ? 128 : codec->zero;
    to->scales = scales;
    to->scores = scores;
    to->with_r = with_r;
    to->add = vm_of_bits(part ? 0xffff : 0);
    to->has_bias = has_bias;
    for (uint32_t i = 0; i < n; i++) {
        const int32_t *sum = q->sum + ((size_t)(first + i) * q->n_parts + part) * 2;
        to->offset[i] = -zero * sum[0];
        to->r_offset[i] = -zero * sum[1];
        to->r_unit[i] = with_r >> i & 1 ? 1.0f / 256 : 0;
        to->weight[i] = (float)sum[0] + (float)sum[1] * to->r_unit[i];
    }
}

/* What the means that were taken out of calibrated rows give. */
SIMD_FN void add_means(const quire_source *k, const float *mean_score, uint32_t n, float *scores)
{
    vi mean[4];
    for (uint32_t j = 0; j < 4; j++)
        mean[j] = vi_load_u16_and(k->tile + k->format->code_bytes + j * 32, QUIRE_MEAN_BITS);
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t j = 0; j < 4; j++) {
            float *at = scores + i * QUIRE_TILE_ROWS + j * 16;
            vf_store(at, vf_add(vf_load(at), vf_entry16(mean_score + (size_t)i * QUIRE_MEAN_SLOTS, mean[j])));
        }
    }
}

/* Bit i: row i needs r. */
SIMD_FN uint32_t rows_with_r(float most, const quire_queries *q, uint32_t first, uint32_t n, uint32_t partial)
{
    uint32_t with_r = partial;
    for (uint32_t i = 0; i < n; i++)
        if (!(most <= q->skip_r_below[first + i])) with_r |= 1u << i;
    return with_r;
}

SIMD_FN void score_codes(const quire_source *k, const quire_queries *q, uint32_t first, uint32_t n,
                         uint32_t partial, float *scores, void *scratch, const code_loops *loops,
                         const bool has_bias)
{
    uint32_t part = quire_part_size(&k->format->coder), d = k->format->coder.d_pad;
    const key_scales *kept = kept_key_scales(k);
    uint32_t with_r = rows_with_r(kept ? kept->most : largest_value(k), q, first, n, partial);
    fetch_scales(k);
    for (uint32_t p = 0; p < q->n_parts; p++) {
        uint32_t to = (p + 1) * part < d ? (p + 1) * part : d;
        key_scales own;
        k_epilogue epilogue;
        if (!kept) load_key_scales(k, p, &own, has_bias);
        begin_scores(&epilogue, k, kept ? kept + p : &own, q, first, n, with_r, p, scores, has_bias);
        loops->dot_k(k, p * part, to, q, first, n, &epilogue, scratch);
    }
    if (k->format->coder.codec->info.flags & QUIRE_CODEC_CALIBRATED)
        add_means(k, q->mean_score + (size_t)first * QUIRE_MEAN_SLOTS, n, scores);
}

#endif
