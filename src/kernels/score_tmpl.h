/* SPDX-License-Identifier: MIT */
/*
 * score_tmpl: scores. This, queries_tmpl.h, softmax_tmpl.h and mix_tmpl.h are the arithmetic around the integer
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

/* What store_scores() needs for one part. */
SIMD_FN void begin_scores(k_epilogue *to, const quire_source *k, const key_scales *scales,
                          const quire_queries *q, uint32_t first, uint32_t n, uint32_t with_r, uint32_t part,
                          float *scores, const bool has_bias)
{
    const quire_codec *codec = k->format->coder.codec;
    int32_t zero = codec->values == QUIRE_VALUES_TABLE ? 128 : codec->zero;
    int32_t top = (int32_t)(1u << codec->info.bits % 16) - 1;
    to->scales = scales;
    to->scores = scores;
    to->with_r = with_r;
    to->add = vm_of_bits(part ? 0xffff : 0);
    to->has_bias = has_bias;
    const int32_t *sum = q->sum + ((size_t)first * q->n_parts + part) * 2;
    if (!has_bias && !with_r) { /* most tiles of many models: nothing but the zero point is read */
        for (uint32_t i = 0; i < n; i++, sum += q->n_parts * (size_t)2) to->offset[i] = -zero * sum[0];
        return;
    }
    for (uint32_t i = 0; i < n; i++, sum += q->n_parts * (size_t)2) {
        bool has_r = with_r >> i & 1;
        to->offset[i] = !has_bias ? -zero * sum[0] : has_r ? 0 : (top * sum[1] + 256) >> 9;
        to->r_offset[i] = -zero * sum[1];
        to->r_unit[i] = has_r ? 1.0f / 256 : 0;
        to->weight[i] = (float)sum[0] + (float)sum[1] * (1.0f / 256); /* never without r: load_queries() */
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
        loops->dot_k(k, p * part, to, q, first, n, &epilogue, scratch, loops);
    }
    if (k->format->coder.codec->info.flags & QUIRE_CODEC_CALIBRATED)
        add_means(k, q->mean_score + (size_t)first * QUIRE_MEAN_SLOTS, n, scores);
}

/* What does not depend on how codes are packed is compiled twice: with biases and without. */
COMMON_CALL void COMMON_NAME(score_biased)(const quire_source *k, const quire_queries *q, uint32_t first,
                                           uint32_t n, uint32_t partial, float *scores, void *scratch,
                                           const code_loops *loops)
{
    score_codes(k, q, first, n, partial, scores, scratch, loops, true);
}

COMMON_CALL void COMMON_NAME(score_plain)(const quire_source *k, const quire_queries *q, uint32_t first,
                                          uint32_t n, uint32_t partial, float *scores, void *scratch,
                                          const code_loops *loops)
{
    score_codes(k, q, first, n, partial, scores, scratch, loops, false);
}

#endif
