/* SPDX-License-Identifier: MIT */
/* mix_tmpl: weights times values, added to accumulators. See score_tmpl.h. */
#ifndef QUIRE_KERNELS_MIX_TMPL_H
#define QUIRE_KERNELS_MIX_TMPL_H

/* An engine may keep the scales of a tile of V with its expanded form, and have their shifts in its codes. */
#ifndef ENGINE_KEEPS_SCALES
SIMD_FN const group_scales *kept_scales(const quire_source *v, uint32_t group)
{
    (void)v;
    (void)group;
    return NULL;
}

SIMD_FN bool has_shift(const quire_source *v)
{
    (void)v;
    return false;
}
#endif

/* Products that are small compared with QUIRE_MAX_Z, in finer units. */
SIMD_FN float refine(const vf product[4], vi z[4])
{
    vf most = vf_set1(1e-20f);
    for (uint32_t j = 0; j < 4; j++) most = vf_max(most, vf_abs(product[j]));
    float unit = vf_reduce_max(most) / QUIRE_MAX_Z;
    for (uint32_t j = 0; j < 4; j++) z[j] = vf_to_int(vf_mul(product[j], vf_set1(1 / unit)));
    return unit;
}

/* Weights of one row times scales as bytes of z, and the sums for biases. `unit` comes in for these scales and is refined. Gives,
 * by lanes, what the shifts add to a sum of codes. */
SIMD_FN vi quantize_weights(const group_scales *s, const float *p, float factor, int8_t *z_bytes, float *unit,
                            float *bias_sum, const bool has_bias, const bool shifted)
{
    vf sum = vf_set1(0), product[4];
    vi z[4];
    for (uint32_t j = 0; j < 4; j++) {
        vf w = vf_load(p + j * 16);
        product[j] = vf_mul(w, s->scale[j]);
        z[j] = vf_to_int(product[j]);
        if (has_bias) sum = vf_fma(w, s->rest[j], sum);
    }
    if (vi_all_within(z, QUIRE_SMALL_Z))
        *unit *= refine(product, z); /* the heaviest token has a small scale */
    vi_store_z(z, z_bytes, z_bytes + 64);
    if (has_bias) vf_store(bias_sum, vf_fma(sum, vf_set1(factor), vf_load(bias_sum)));
    return shifted ? vi_set1(0) : vi_dot4(z, s->shift);
}

/* The bytes of up to four groups lie in memory before the first product reads them: a tile that is loaded too soon after
 * it was stored waits. */
#define GROUPS_AT_ONCE 4u
#define GROUP_Z_BYTES (2 * QUIRE_STRIP_ROWS * 64u)

/* All rows of one group. */
SIMD_FN void quantize_group(const quire_source *v, uint32_t group, const float *p, const uint64_t *visible,
                            const float *factor, uint32_t n, int8_t *z_bytes, float *bias_sum, size_t stride,
                            v_epilogue *to, const bool has_bias, const bool shifted)
{
    group_scales own, seen;
    const group_scales *all = kept_scales(v, group);
    if (!all) {
        load_scales(v, group, ~(uint64_t)0, &own, has_bias);
        all = &own;
    }
    for (uint32_t i = 0; i < n; i++) to->unit[i] = factor[i] * all->most / QUIRE_MAX_Z;
    for (uint32_t first = 0; first < n; first += 4) {
        vi shifts[4] = {vi_set1(0), vi_set1(0), vi_set1(0), vi_set1(0)};
        for (uint32_t j = 0; j < 4 && first + j < n; j++) {
            uint32_t i = first + j;
            const group_scales *s = all;
            if (visible[i] != ~(uint64_t)0) {
                load_scales(v, group, visible[i], &seen, has_bias);
                s = &seen;
                to->unit[i] = factor[i] * s->most / QUIRE_MAX_Z;
            }
            shifts[j] = quantize_weights(s, p + i * QUIRE_TILE_ROWS, factor[i], z_bytes + i * 128,
                                         &to->unit[i], bias_sum + i * stride, has_bias, shifted);
        }
        vi_reduce_add4(shifts, to->offset + first); /* offset has room for whole strips */
    }
}

SIMD_FN void mix_codes(const quire_source *v, uint32_t d_out, const float *p, const uint64_t *visible,
                       const float *factor, uint32_t n, float *acc, size_t stride, void *scratch,
                       const code_loops *loops, const bool has_bias)
{
    const quire_coder *coder = &v->format->coder;
    int8_t *z_bytes = (int8_t *)scratch;
    void *memory = z_bytes + GROUPS_AT_ONCE * GROUP_Z_BYTES;
    v_epilogue epilogue[GROUPS_AT_ONCE];
    uint32_t n_groups = (d_out + coder->group - 1) / coder->group;
    fetch_scales(v);
    for (uint32_t first = 0; first < n_groups; first += GROUPS_AT_ONCE) {
        uint32_t some = n_groups - first < GROUPS_AT_ONCE ? n_groups - first : GROUPS_AT_ONCE;
        for (uint32_t g = 0; g < some; g++) {
            float *bias_sum = acc + coder->d_pad + (size_t)(first + g) * QUIRE_BIAS_LANES;
            epilogue[g].acc = acc;
            epilogue[g].stride = stride;
            if (has_shift(v))
                quantize_group(v, first + g, p, visible, factor, n, z_bytes + g * GROUP_Z_BYTES, bias_sum,
                               stride, &epilogue[g], has_bias, true);
            else
                quantize_group(v, first + g, p, visible, factor, n, z_bytes + g * GROUP_Z_BYTES, bias_sum,
                               stride, &epilogue[g], has_bias, false);
        }
        for (uint32_t g = 0; g < some; g++) {
            uint32_t begin = (first + g) * coder->group,
                     end = begin + coder->group < d_out ? begin + coder->group : d_out;
            loops->dot_v(v, begin / 16, (end + 15) / 16, z_bytes + g * GROUP_Z_BYTES, n, &epilogue[g], memory,
                         loops);
        }
    }
}

OPERAND_CALL void OPERAND_NAME(add_bias_sums)(const quire_tile_format *f, float *acc)
{
    if (!f->coder.codec->has_bias) return;
    for (uint32_t g = 0; g < f->coder.n_groups; g++) {
        uint32_t from = g * f->coder.group, to = from + f->coder.group;
        vf bias_sum = vf_set1(vf_reduce_add(vf_load(acc + f->coder.d_pad + (size_t)g * QUIRE_BIAS_LANES)));
        for (uint32_t c = from; c < to && c < f->coder.d_pad; c += 16)
            vf_store(acc + c, vf_add(vf_load(acc + c), bias_sum));
    }
}

/* What does not depend on how codes are packed is compiled twice: with biases and without. */
OPERAND_CALL void OPERAND_NAME(mix_biased)(const quire_source *v, uint32_t d_out, const float *p,
                                           const uint64_t *visible, const float *factor, uint32_t n,
                                           float *acc, size_t stride, void *scratch, const code_loops *loops)
{
    mix_codes(v, d_out, p, visible, factor, n, acc, stride, scratch, loops, true);
}

OPERAND_CALL void OPERAND_NAME(mix_plain)(const quire_source *v, uint32_t d_out, const float *p,
                                          const uint64_t *visible, const float *factor, uint32_t n,
                                          float *acc, size_t stride, void *scratch, const code_loops *loops)
{
    mix_codes(v, d_out, p, visible, factor, n, acc, stride, scratch, loops, false);
}

#endif
