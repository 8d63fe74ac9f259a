/* SPDX-License-Identifier: MIT */
/*
 * values_tmpl: whole rows of values: reading, rotating, expanding, calibrating. Included by the files
 * of row kernels after the header of their lanes. d is a multiple of 16 everywhere.
 */

/* ------------------------------------------------------------------ reading */

SIMD_FN vf in_range(vf v, vf limit, quire_counts *counts)
{
    vm inside = vf_le(vf_abs(v), limit);
    if (__builtin_expect(vm_all(inside), 1)) return v;
    uint32_t nan = vm_bits(vf_is_nan(v)), outside = ~vm_bits(inside) & 0xffff & ~nan;
    counts->nan += (uint32_t)__builtin_popcount(nan);
    counts->saturated += (uint32_t)__builtin_popcount(outside);
    v = vf_select(inside, v, vf_copysign(limit, v));
    return vf_select(vm_of_bits(nan), vf_set1(0), v);
}

/* Not the maximum: that would lose a NaN. */
SIMD_FN bool all_in_range(const float *x, uint32_t d, vf limit)
{
    vm inside = vf_le(vf_abs(vf_load(x)), limit);
    for (uint32_t i = 16; i < d; i += 16) inside = vm_and(inside, vf_le(vf_abs(vf_load(x + i)), limit));
    return vm_all(inside);
}

SIMD_STATIC const float *load(quire_form form, const void *data, uint32_t d, float limit, float *y,
                              quire_counts *counts)
{
    const uint8_t *bytes = (const uint8_t *)data;
    vf most = vf_set1(limit);
    if (form == QUIRE_F32) {
        const float *x = (const float *)data;
        bool is_aligned = (uintptr_t)data % sizeof *x == 0;
        if (__builtin_expect(is_aligned && all_in_range(x, d, most), 1)) return x;
        for (uint32_t i = 0; i < d; i += 16)
            vf_store(y + i, in_range(vf_load((const float *)(bytes + 4 * i)), most, counts));
    } else if (form == QUIRE_F16) {
        for (uint32_t i = 0; i < d; i += 16)
            vf_store(y + i, in_range(vf_load_f16(bytes + 2 * i), most, counts));
    } else {
        for (uint32_t i = 0; i < d; i += 16)
            vf_store(y + i, in_range(vf_load_bf16(bytes + 2 * i), most, counts));
    }
    return y;
}

SIMD_STATIC void store(quire_form form, const float *x, uint32_t d, void *data)
{
    uint8_t *bytes = (uint8_t *)data;
    if (form == QUIRE_F32) {
        memcpy(data, x, d * sizeof *x);
        return;
    }
    vf most = vf_set1(form == QUIRE_F16 ? QUIRE_F16_MAX : QUIRE_BF16_MAX);
    for (uint32_t i = 0; i < d; i += 16) {
        vf v = vf_load(x + i);
        v = vf_copysign(vf_min(vf_abs(v), most), v);
        if (form == QUIRE_F16)
            vf_store_f16(bytes + 2 * i, v);
        else
            vf_store_bf16(bytes + 2 * i, v);
    }
}

/* ----------------------------------------------------------------- rotating */

SIMD_FN vf change_signs(vf v, const uint64_t *minus, uint32_t i)
{
    return minus ? vf_change_signs(v, minus, i) : v;
}

/* Strides below 16 * n, n vectors at a time, then, if they are all, times factor. */
SIMD_FN void near_strides(const float *x, float *y, uint32_t d, uint32_t n, const uint64_t *before,
                          const bool is_all, float factor, const uint64_t *after)
{
    for (uint32_t at = 0; at < d; at += 16 * n) {
        vf v[HADAMARD_VECTORS];
        for (uint32_t i = 0; i < n; i++)
            v[i] = vf_hadamard16(change_signs(vf_load(x + at + 16 * i), before, at + 16 * i));
        for (uint32_t half = 1; half < n; half *= 2) {
            for (uint32_t i = 0; i < n; i++) {
                if (i & half) continue;
                vf a = v[i], b = v[i + half];
                v[i] = vf_add(a, b);
                v[i + half] = vf_sub(a, b);
            }
        }
        for (uint32_t i = 0; i < n; i++)
            vf_store(y + at + 16 * i,
                     is_all ? change_signs(vf_mul(v[i], vf_set1(factor)), after, at + 16 * i) : v[i]);
    }
}

/* One stride of 16 or more, through memory. */
SIMD_FN void far_stride(float *y, uint32_t d, uint32_t half)
{
    for (uint32_t at = 0; at < d; at += 2 * half) {
        for (uint32_t i = at; i < at + half; i += 16) {
            vf a = vf_load(y + i), b = vf_load(y + i + half);
            vf_store(y + i, vf_add(a, b));
            vf_store(y + i + half, vf_sub(a, b));
        }
    }
}

/* The last one, with what follows it. */
SIMD_FN void last_stride(float *y, uint32_t d, uint32_t half, float factor, const uint64_t *after)
{
    for (uint32_t at = 0; at < d; at += 2 * half) {
        for (uint32_t i = at; i < at + half; i += 16) {
            vf a = vf_load(y + i), b = vf_load(y + i + half);
            vf_store(y + i, change_signs(vf_mul(vf_add(a, b), vf_set1(factor)), after, i));
            vf_store(y + i + half, change_signs(vf_mul(vf_sub(a, b), vf_set1(factor)), after, i + half));
        }
    }
}

SIMD_STATIC void hadamard(const float *x, float *y, uint32_t d, uint32_t n, const uint64_t *before,
                          const uint64_t *after)
{
    if (n < 16) {
        quire_hadamard_c(x, y, d, n, before, after);
        return;
    }
    float factor = 1.0f / sqrtf((float)n);
    uint32_t run = n / 16 < HADAMARD_VECTORS ? n / 16 : HADAMARD_VECTORS;
    if (16 * run < n) { /* factor and signs have to wait */
        near_strides(x, y, d, HADAMARD_VECTORS, before, false, 0, NULL);
        for (uint32_t half = 16 * run; half < n / 2; half *= 2) far_stride(y, d, half);
        last_stride(y, d, n / 2, factor, after);
        return;
    }
    switch (run) {
    case 1: near_strides(x, y, d, 1, before, true, factor, after); break;
    case 2: near_strides(x, y, d, 2, before, true, factor, after); break;
    case 4: near_strides(x, y, d, 4, before, true, factor, after); break;
    default: near_strides(x, y, d, HADAMARD_VECTORS, before, true, factor, after);
    }
}

/* ---------------------------------------------------------- floats and codes */

SIMD_STATIC void encode_float(const quire_coder *coder, const float *x, quire_coded_row *row,
                              quire_counts *counts)
{
    (void)counts;
    float *y = row->value;
    if (coder->codec->float_form == QUIRE_F16)
        for (uint32_t i = 0; i < coder->d; i += 16) vf_store(y + i, vf_round_to_f16(vf_load(x + i)));
    else if (coder->codec->float_form == QUIRE_BF16)
        for (uint32_t i = 0; i < coder->d; i += 16) vf_store(y + i, vf_round_to_bf16(vf_load(x + i)));
    else
        memcpy(y, x, coder->d * sizeof *y);
}

/* table: NULL if codes are numbers. */
SIMD_FN void expand_codes(const quire_coder *coder, const quire_coded_row *row, const byte_table *table,
                          float *y)
{
    const quire_codec *codec = coder->codec;
    for (uint32_t g = 0; g < coder->n_groups; g++) {
        uint32_t at = g * coder->group, end = at + quire_group_size(coder, g);
        vf s = vf_set1(quire_f16_to_f32(row->scale[g] & quire_scale_mask(codec)));
        vf b = vf_set1(codec->has_bias ? quire_f16_to_f32(row->bias[g]) : 0);
        for (uint32_t i = at; i < end; i += 16) {
            const uint8_t *code = row->code + i;
            vf t = table ? vf_from_table(table, code)
                         : vi_to_float(vi_sub(vi_load_u8(code), vi_set1(codec->zero)));
            vf v = vf_mul(s, t);
            vf_store(y + i, codec->has_bias ? vf_add(v, b) : v);
        }
    }
}

SIMD_STATIC void expand(const quire_coder *coder, const quire_coded_row *row, float *y)
{
    const quire_codec *codec = coder->codec;
    if (codec->values == QUIRE_VALUES_FLOAT) {
        memcpy(y, row->value, coder->d * sizeof *y);
    } else if (codec->values == QUIRE_VALUES_TABLE) {
        byte_table table = byte_table_load(codec->table, codec->info.bits);
        expand_codes(coder, row, &table, y);
    } else {
        expand_codes(coder, row, NULL, y);
    }
}

/* -------------------------------------------------------------- calibrating */

SIMD_STATIC void weigh(const float *x, const float *mean, const float *weight, uint32_t d, float *y)
{
    for (uint32_t i = 0; i < d; i += 16) {
        vf v = vf_load(x + i);
        if (mean) v = vf_sub(v, vf_load(mean + i));
        vf_store(y + i, vf_mul(vf_load(weight + i), v));
    }
}

SIMD_STATIC float distance(const float *x, const float *mean, const float *weight, uint32_t d)
{
    vf sum = vf_set1(0);
    for (uint32_t i = 0; i < d; i += 16) {
        vf v = vf_load(x + i);
        if (mean) v = vf_sub(v, vf_load(mean + i));
        v = vf_mul(vf_load(weight + i), v);
        sum = vf_add(sum, vf_mul(v, v));
    }
    return vf_reduce_add(sum);
}

SIMD_STATIC void unweigh(float *x, const float *weight, uint32_t d)
{
    for (uint32_t i = 0; i < d; i += 16) vf_store(x + i, vf_div(vf_load(x + i), vf_load(weight + i)));
}

SIMD_STATIC void add_mean(float *x, const float *mean, float factor, uint32_t d)
{
    for (uint32_t i = 0; i < d; i += 16)
        vf_store(x + i, vf_add(vf_load(x + i), vf_mul(vf_load(mean + i), vf_set1(factor))));
}
