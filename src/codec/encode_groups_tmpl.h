/* SPDX-License-Identifier: MIT */
/*
 * encode_groups_tmpl: encodes MLX's groups, ggml's blocks and r8. Included by the files of row kernels after the
 * header of their lanes. d is a multiple of 16, so every group has whole vectors, the last one too.
 *
 * Four groups go together: their ends are found in 16 lanes each, their scales in one lane each.
 */

/* Values of a row from group g on, at most four groups; the size of a group is a power of two. */
typedef struct quad {
    const float *x;
    uint32_t n_values, group, n_groups;
} quad;

SIMD_FN quad quad_at(const quire_coder *coder, const float *x, uint32_t g)
{
    uint32_t at = g * coder->group, left = coder->d - at, n = coder->n_groups - g;
    return (quad){x + at, left < 4 * coder->group ? left : 4 * coder->group, coder->group, n < 4 ? n : 4};
}

SIMD_FN void group_ends(const quad *q, uint32_t i, vf *low, vf *high)
{
    uint32_t at = i * q->group, end = at + q->group < q->n_values ? at + q->group : q->n_values;
    *low = *high = vf_load(q->x + at);
    for (at += 16; at < end; at += 16) {
        vf v = vf_load(q->x + at);
        *low = vf_min(*low, v);
        *high = vf_max(*high, v);
    }
}

/* Lowest and highest value of each group; lanes without a group repeat the first. */
SIMD_FN void quad_ends(const quad *q, v4 *lo, v4 *hi)
{
    vf low0, low1, low2, low3, high0, high1, high2, high3;
    group_ends(q, 0, &low0, &high0);
    low1 = low2 = low3 = low0;
    high1 = high2 = high3 = high0;
    if (q->n_groups > 1) group_ends(q, 1, &low1, &high1);
    if (q->n_groups > 2) group_ends(q, 2, &low2, &high2);
    if (q->n_groups > 3) group_ends(q, 3, &low3, &high3);
    *lo = vf_fold_min4(low0, low1, low2, low3);
    *hi = vf_fold_max4(high0, high1, high2, high3);
}

/* quire_store_scale() of all lanes that are groups; out has room for four. */
SIMD_FN void store_scales(const quad *q, v4 s, uint16_t *out, quire_counts *counts)
{
    if (__builtin_expect(v4_store_f16(out, s), 1)) return;
    float lane[4];
    v4_store(lane, s);
    for (uint32_t i = 0; i < q->n_groups; i++) out[i] = quire_store_scale(lane[i], counts);
}

SIMD_FN v4 zero_unless_finite(v4 x)
{
    return v4_keep(v4_lt(v4_abs(x), v4_set1(INFINITY)), x);
}

/*
 * y / s, to be rounded to an integer below 256; r is 1 / s, correctly rounded. The product has an error of 2^-23 at most,
 * the result, before its last rounding, one of 2^-46. It could round to another integer than the true quotient only if
 * y / s were that close to half a unit in the last place above or below n + 1/2. For each n there are a few such pairs of
 * significands; tests/unit/codec_ops.c tries them all. (With an r that is off by one more bit some of them fail.)
 * Quotients near 0 may become anything near 0.
 */
SIMD_FN vf quotient(vf y, vf s, vf r)
{
    vf q = vf_mul(y, r);
    return vf_fma(vf_fnma(q, s, y), r, q);
}

/* ------------------------------------------------------------------- affine */

/*
 * As quire_encode_affine_c(), without branches: which end lies further from zero cannot be predicted. min and max may take
 * the other one of two zeros; neither s nor b shows it. No quotient is below -1/2: b is the end where codes begin, or 0
 * if all values are closer to 0 than s / 2.
 */
SIMD_STATIC void encode_affine(const quire_coder *coder, const float *x, quire_coded_row *row,
                               quire_counts *counts)
{
    float top = (float)((1u << coder->codec->info.bits) - 1);
    for (uint32_t g = 0; g < coder->n_groups; g += 4) {
        quad q = quad_at(coder, x, g);
        v4 lo, hi;
        quad_ends(&q, &lo, &hi);
        v4 s = v4_max(v4_div(v4_sub(hi, lo), v4_set1(top)), v4_set1(1e-7f));
        m4 is_low = v4_gt(v4_abs(lo), v4_abs(hi));
        v4 edge = v4_select(is_low, lo, hi);
        s = v4_negate_unless(is_low, s);
        v4 q0 = v4_round(v4_div(edge, s));
        m4 fits = v4_ne(q0, v4_set1(0));
        s = v4_select(fits, v4_div(edge, q0), s);
        v4 b = v4_keep(fits, edge);
        float scale[4], bias[4], inverse[4];
        v4_store(scale, s);
        v4_store(bias, b);
        v4_store(inverse, v4_div(v4_set1(1), s));
        uint32_t shift = (uint32_t)__builtin_ctz(q.group);
        uint8_t *code = row->code + g * q.group;
        for (uint32_t i = 0; i < q.n_values; i += 16) {
            uint32_t k = i >> shift;
            vf y = vf_sub(vf_load(q.x + i), vf_set1(bias[k]));
            vf v = quotient(y, vf_set1(scale[k]), vf_set1(inverse[k]));
            vi_store_u8(code + i, vf_to_int(vf_min(v, vf_set1(top))));
        }
        store_scales(&q, s, row->scale + g, counts);
        store_scales(&q, b, row->bias + g, counts);
    }
}

/* --------------------------------------------------------------------- ggml */

SIMD_STATIC void encode_q8_0(const quire_coder *coder, const float *x, quire_coded_row *row,
                             quire_counts *counts)
{
    const v4 top = v4_set1(127);
    for (uint32_t g = 0; g < coder->n_groups; g += 4) {
        quad q = quad_at(coder, x, g);
        v4 lo, hi;
        quad_ends(&q, &lo, &hi);
        v4 most = v4_max(v4_abs(lo), v4_abs(hi));
        store_scales(&q, v4_div(most, top), row->scale + g, counts);
        float inverse[4];
        v4_store(inverse, zero_unless_finite(v4_div(top, most)));
        uint8_t *code = row->code + 32 * g;
        for (uint32_t i = 0; i < q.n_values; i += 16) {
            vi v = vf_to_int(vf_mul(vf_load(q.x + i), vf_set1(inverse[i / 32])));
            vi_store_u8(code + i, vi_add(v, vi_set1(128)));
        }
    }
}

/* Codes of (x - lo) * inverse + round, cut off, at most top. */
SIMD_FN void store_truncated(const quad *q, uint8_t *code, const float *lo, const float *inverse, float round,
                             float top)
{
    for (uint32_t i = 0; i < q->n_values; i += 16) {
        vf v = vf_load(q->x + i);
        if (lo) v = vf_sub(v, vf_set1(lo[i / 32]));
        v = vf_add(vf_mul(v, vf_set1(inverse[i / 32])), vf_set1(round));
        vi_store_u8(code + i, vf_truncate(vf_min(v, vf_set1(top))));
    }
}

SIMD_FN void encode_symmetric(const quire_coder *coder, const float *x, quire_coded_row *row,
                              quire_counts *counts, int zero)
{
    for (uint32_t g = 0; g < coder->n_groups; g += 4) {
        quad q = quad_at(coder, x, g);
        v4 lo, hi;
        quad_ends(&q, &lo, &hi);
        v4 below = v4_abs(lo), above = v4_abs(hi);
        v4 extreme = v4_select(v4_gt(below, above), lo, hi);
        /* Both signs equally far: the first one counts. */
        uint32_t both = m4_bits(v4_eq(below, above));
        if (__builtin_expect(both, 0)) {
            float lane[4];
            v4_store(lane, extreme);
            for (uint32_t i = 0; i < q.n_groups; i++) {
                uint32_t left = q.n_values - 32 * i;
                if (both >> i & 1) lane[i] = quire_extreme(q.x + 32 * i, left < 32 ? left : 32);
            }
            extreme = v4_load(lane);
        }
        v4 d = v4_div(extreme, v4_set1((float)-zero));
        store_scales(&q, d, row->scale + g, counts);
        float inverse[4];
        v4_store(inverse, zero_unless_finite(v4_div(v4_set1(1), d)));
        store_truncated(&q, row->code + 32 * g, NULL, inverse, (float)zero + 0.5f, (float)(2 * zero - 1));
    }
}

SIMD_STATIC void encode_q5_0(const quire_coder *coder, const float *x, quire_coded_row *row,
                             quire_counts *counts)
{
    encode_symmetric(coder, x, row, counts, 16);
}

SIMD_STATIC void encode_q4_0(const quire_coder *coder, const float *x, quire_coded_row *row,
                             quire_counts *counts)
{
    encode_symmetric(coder, x, row, counts, 8);
}

SIMD_FN void encode_minimum(const quire_coder *coder, const float *x, quire_coded_row *row,
                            quire_counts *counts, float top)
{
    for (uint32_t g = 0; g < coder->n_groups; g += 4) {
        quad q = quad_at(coder, x, g);
        v4 lo, hi;
        quad_ends(&q, &lo, &hi);
        float least[4], inverse[4];
        v4_store(least, lo);
        /* A zero is stored with the sign of the first one. */
        uint32_t zeros = m4_bits(v4_eq(lo, v4_set1(0)));
        if (__builtin_expect(zeros, 0)) {
            for (uint32_t i = 0; i < q.n_groups; i++) {
                if (!(zeros >> i & 1)) continue;
                const float *first = q.x + 32 * i;
                while (*first != 0) first++;
                least[i] = *first;
            }
            lo = v4_load(least);
        }
        /* + 0: two zeros may have given -0 */
        v4 range = v4_add(v4_sub(hi, lo), v4_set1(0));
        v4 d = v4_div(range, v4_set1(top));
        store_scales(&q, d, row->scale + g, counts);
        store_scales(&q, lo, row->bias + g, counts);
        v4_store(inverse, zero_unless_finite(v4_div(v4_set1(1), d)));
        store_truncated(&q, row->code + 32 * g, least, inverse, 0.5f, top);
    }
}

SIMD_STATIC void encode_q5_1(const quire_coder *coder, const float *x, quire_coded_row *row,
                             quire_counts *counts)
{
    encode_minimum(coder, x, row, counts, 31);
}

SIMD_STATIC void encode_q4_1(const quire_coder *coder, const float *x, quire_coded_row *row,
                             quire_counts *counts)
{
    encode_minimum(coder, x, row, counts, 15);
}

/* ----------------------------------------------------------------------- r8 */

SIMD_STATIC void encode_r8(const quire_coder *coder, const float *x, quire_coded_row *row,
                           quire_counts *counts)
{
    vf most = vf_abs(vf_load(x));
    for (uint32_t i = 16; i < coder->d; i += 16) most = vf_max(most, vf_abs(vf_load(x + i)));
    row->scale[0] = quire_store_row_scale(coder->codec, vf_reduce_max(most) / 127.0f, counts);
    float s = quire_f16_to_f32(row->scale[0]);
    if (!(s > 0)) {
        memset(row->code, 128, coder->d);
        return;
    }
    vf scale = vf_set1(s), inverse = vf_set1(1.0f / s);
    for (uint32_t i = 0; i < coder->d; i += 16) {
        vf v = quotient(vf_load(x + i), scale, inverse);
        v = vf_min(vf_max(v, vf_set1(-127)), vf_set1(127));
        vi_store_u8(row->code + i, vi_add(vf_to_int(v), vi_set1(128)));
    }
}
