/* SPDX-License-Identifier: MIT */
/*
 * encode_groups_tmpl: encodes MLX's groups, ggml's blocks and r8. Included by row_kernels_avx2.c and row_kernels_avx512.c
 * after the header of their lanes. d is a multiple of 16, so every group has whole vectors, the last one too.
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
SIMD_FN void quad_ends(const quad *q, __m128 *lo, __m128 *hi)
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
SIMD_FN void store_scales(const quad *q, __m128 s, uint16_t *out, quire_counts *counts)
{
    const __m128i exponent = _mm_set1_epi16(0x7c00);
    __m128i h = _mm_cvtps_ph(s, _MM_FROUND_TO_NEAREST_INT);
    _mm_storel_epi64((__m128i_u *)out, h);
    int odd = _mm_movemask_epi8(_mm_cmpeq_epi16(_mm_and_si128(h, exponent), exponent));
    if (__builtin_expect(!odd, 1)) return;
    float lane[4];
    _mm_storeu_ps(lane, s);
    for (uint32_t i = 0; i < q->n_groups; i++) out[i] = quire_store_scale(lane[i], counts);
}

SIMD_FN __m128 magnitude(__m128 x)
{
    return _mm_andnot_ps(_mm_set1_ps(-0.0f), x);
}

SIMD_FN __m128 zero_unless_finite(__m128 x)
{
    return _mm_and_ps(x, _mm_cmplt_ps(magnitude(x), _mm_set1_ps(INFINITY)));
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
    const __m128 sign = _mm_set1_ps(-0.0f);
    float top = (float)((1u << coder->codec->info.bits) - 1);
    for (uint32_t g = 0; g < coder->n_groups; g += 4) {
        quad q = quad_at(coder, x, g);
        __m128 lo, hi;
        quad_ends(&q, &lo, &hi);
        __m128 s = _mm_max_ps(_mm_div_ps(_mm_sub_ps(hi, lo), _mm_set1_ps(top)), _mm_set1_ps(1e-7f));
        __m128 is_low = _mm_cmpgt_ps(magnitude(lo), magnitude(hi));
        __m128 edge = _mm_blendv_ps(hi, lo, is_low);
        s = _mm_xor_ps(s, _mm_andnot_ps(is_low, sign));
        __m128 q0 = _mm_round_ps(_mm_div_ps(edge, s), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        __m128 fits = _mm_cmpneq_ps(q0, _mm_setzero_ps());
        s = _mm_blendv_ps(s, _mm_div_ps(edge, q0), fits);
        __m128 b = _mm_and_ps(edge, fits);
        float scale[4], bias[4], inverse[4];
        _mm_storeu_ps(scale, s);
        _mm_storeu_ps(bias, b);
        _mm_storeu_ps(inverse, _mm_div_ps(_mm_set1_ps(1), s));
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
    const __m128 top = _mm_set1_ps(127);
    for (uint32_t g = 0; g < coder->n_groups; g += 4) {
        quad q = quad_at(coder, x, g);
        __m128 lo, hi;
        quad_ends(&q, &lo, &hi);
        __m128 most = _mm_max_ps(magnitude(lo), magnitude(hi));
        store_scales(&q, _mm_div_ps(most, top), row->scale + g, counts);
        float inverse[4];
        _mm_storeu_ps(inverse, zero_unless_finite(_mm_div_ps(top, most)));
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
        __m128 lo, hi;
        quad_ends(&q, &lo, &hi);
        __m128 below = magnitude(lo), above = magnitude(hi);
        __m128 extreme = _mm_blendv_ps(hi, lo, _mm_cmpgt_ps(below, above));
        /* Both signs equally far: the first one counts. */
        int both = _mm_movemask_ps(_mm_cmpeq_ps(below, above));
        if (__builtin_expect(both, 0)) {
            float lane[4];
            _mm_storeu_ps(lane, extreme);
            for (uint32_t i = 0; i < q.n_groups; i++) {
                uint32_t left = q.n_values - 32 * i;
                if (both >> i & 1) lane[i] = quire_extreme(q.x + 32 * i, left < 32 ? left : 32);
            }
            extreme = _mm_loadu_ps(lane);
        }
        __m128 d = _mm_div_ps(extreme, _mm_set1_ps((float)-zero));
        store_scales(&q, d, row->scale + g, counts);
        float inverse[4];
        _mm_storeu_ps(inverse, zero_unless_finite(_mm_div_ps(_mm_set1_ps(1), d)));
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
        __m128 lo, hi;
        quad_ends(&q, &lo, &hi);
        float least[4], inverse[4];
        _mm_storeu_ps(least, lo);
        /* A zero is stored with the sign of the first one. */
        int zeros = _mm_movemask_ps(_mm_cmpeq_ps(lo, _mm_setzero_ps()));
        if (__builtin_expect(zeros, 0)) {
            for (uint32_t i = 0; i < q.n_groups; i++) {
                if (!(zeros >> i & 1)) continue;
                const float *first = q.x + 32 * i;
                while (*first != 0) first++;
                least[i] = *first;
            }
            lo = _mm_loadu_ps(least);
        }
        /* + 0: two zeros may have given -0 */
        __m128 range = _mm_add_ps(_mm_sub_ps(hi, lo), _mm_setzero_ps());
        __m128 d = _mm_div_ps(range, _mm_set1_ps(top));
        store_scales(&q, d, row->scale + g, counts);
        store_scales(&q, lo, row->bias + g, counts);
        _mm_storeu_ps(inverse, zero_unless_finite(_mm_div_ps(_mm_set1_ps(1), d)));
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
