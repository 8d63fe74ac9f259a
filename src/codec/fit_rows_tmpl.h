/* SPDX-License-Identifier: MIT */
/*
 * fit_rows_tmpl: the steps of r, tq and tv that fit a row: nearest entries, and sums. Included by
 * the files of row kernels after the header of their lanes. d is a multiple of 16.
 */

/*
 * The tables of row_scaled.c from zero upwards; below they are the same with a minus. level[i]: the middles between entries,
 * in the order in which a search by halves asks for them: one, then one of two, one of four, ...
 */
typedef struct half_table {
    float entry[32];
    float level[5][16];
} half_table;

static const half_table half_tables[7] = {
    [2] = {{38, 127}, {{82.5f}}},
    [3] = {{14, 45, 79, 127}, {{62}, {29.5f, 103}}},
    [4] = {{6, 18, 31, 44, 58, 75, 96, 127}, {{51}, {24.5f, 85.5f}, {12, 37.5f, 66.5f, 111.5f}}},
    [5] =
        {{3, 8, 13, 18, 24, 29, 35, 41, 47, 54, 61, 70, 79, 90, 105, 127},
         {{44}, {21, 74.5f}, {10.5f, 32, 57.5f, 97.5f}, {5.5f, 15.5f, 26.5f, 38, 50.5f, 65.5f, 84.5f, 116}}},
    [6] = {{1,  3,  6,  8,  10, 13, 15, 17, 20, 22, 24, 27, 30, 32, 35,  38,
            40, 43, 46, 49, 53, 56, 60, 64, 68, 73, 78, 84, 91, 99, 110, 127},
           {{39},
            {18.5f, 66},
            {9, 28.5f, 51, 87.5f},
            {4.5f, 14, 23, 33.5f, 44.5f, 58, 75.5f, 104.5f},
            {2, 7, 11.5f, 16, 21, 25.5f, 31, 36.5f, 41.5f, 47.5f, 54.5f, 62, 70.5f, 81, 95, 118.5f}}},
};

/*
 * Which entry v takes, and in *below whether with a minus. The value at a middle takes the lower code. So |v| has to be
 * above the middle if v > 0 and at least the middle if v <= 0. Magnitudes compare like integers: one more in the last
 * place makes "above" out of "at least".
 */
SIMD_FN vi nearest(vf v, const half_table *t, uint32_t bits, vm *below)
{
    *below = vf_le(v, vf_set1(0));
    vi magnitude = vi_increment(vf_as_int(vf_abs(v)), *below);
    vi k = vi_increment(vi_set1(0), vi_gt(magnitude, vf_as_int(vf_set1(t->level[0][0]))));
    for (uint32_t l = 1; l + 1 < bits; l++) {
        vf middle = l < 4 ? vf_entry8(t->level[l], k) : vf_entry16(t->level[l], k);
        k = vi_increment(vi_add(k, k), vi_gt(magnitude, vf_as_int(middle)));
    }
    return k;
}

SIMD_FN vf entry_of(const half_table *t, uint32_t bits, vi k, vm below)
{
    if (bits <= 4) return vf_negate(below, vf_entry8(t->entry, k));
    return vf_negate(below, bits == 5 ? vf_entry16(t->entry, k) : vf_entry32(t->entry, k));
}

/* c.c is exact in any order: at most 1024 * 127^2 < 2^24. */
SIMD_FN quire_row_dots assign_bits(const quire_row_work *w, float s, uint8_t *code, uint32_t bits)
{
    const half_table *t = &half_tables[bits];
    int32_t half = 1 << (bits - 1);
    vf xc = vf_set1(0), cc = vf_set1(0);
    for (uint32_t i = 0; i < w->d; i += 16) {
        vm below;
        vf x = vf_load(w->x + i);
        vi k = nearest(vf_div(x, vf_set1(s)), t, bits, &below);
        vf c = entry_of(t, bits, k, below);
        xc = vf_add(xc, vf_mul(x, c));
        cc = vf_fma(c, c, cc);
        /* half + k, or half - 1 - k below zero: all bits the other way. */
        vi_store_u8(code + i, vi_xor_where(below, vi_add(k, vi_set1(half)), vi_set1(2 * half - 1)));
    }
    return (quire_row_dots){vf_reduce_add(xc), vf_reduce_add(cc)};
}

_Static_assert(QUIRE_N_STARTS == 5, "below, four sums are folded together and one alone");

SIMD_FN void fit_scales(float *s, const vf *xc, const vf *cc)
{
    v4 top = vf_fold_add4(xc[0], xc[1], xc[2], xc[3]), bottom = vf_fold_add4(cc[0], cc[1], cc[2], cc[3]);
    v4_store(s, v4_div(top, bottom));
    s[4] = vf_reduce_add(xc[4]) / vf_reduce_add(cc[4]);
}

SIMD_FN void measure_errors(const quire_row_work *w, const float *s, float (*c)[QUIRE_MAX_D], float *error)
{
    enum { N = QUIRE_N_STARTS };
    vf sum[N];
    for (uint32_t j = 0; j < N; j++) sum[j] = vf_set1(0);
    for (uint32_t i = 0; i < w->d; i += 16) {
        for (uint32_t j = 0; j < N; j++) {
            vf rest = vf_sub(vf_load(w->x + i), vf_mul(vf_set1(s[j]), vf_load(c[j] + i)));
            sum[j] = vf_add(sum[j], vf_mul(rest, rest));
        }
    }
    v4_store(error, vf_fold_add4(sum[0], sum[1], sum[2], sum[3]));
    error[4] = vf_reduce_add(sum[4]);
}

SIMD_FN void refit_bits(const quire_row_work *w, float *s, float *error, uint32_t bits)
{
    enum { N = QUIRE_N_STARTS };
    const half_table *t = &half_tables[bits];
    float kept[N][QUIRE_MAX_D];
    vf xc[N], cc[N];
    for (uint32_t j = 0; j < N; j++) xc[j] = cc[j] = vf_set1(0);
    for (uint32_t i = 0; i < w->d; i += 16) {
        vf x = vf_load(w->x + i);
        for (uint32_t j = 0; j < N; j++) {
            vm below;
            vi k = nearest(vf_div(x, vf_set1(s[j])), t, bits, &below);
            vf c = entry_of(t, bits, k, below);
            xc[j] = vf_add(xc[j], vf_mul(x, c));
            cc[j] = vf_fma(c, c, cc[j]);
            if (error) vf_store(kept[j] + i, c);
        }
    }
    fit_scales(s, xc, cc);
    if (error) measure_errors(w, s, kept, error);
}

SIMD_STATIC quire_row_dots assign(const quire_row_work *w, float s, uint8_t *code)
{
    switch (w->bits) {
    case 2: return assign_bits(w, s, code, 2);
    case 3: return assign_bits(w, s, code, 3);
    case 4: return assign_bits(w, s, code, 4);
    case 5: return assign_bits(w, s, code, 5);
    default: return assign_bits(w, s, code, 6);
    }
}

SIMD_STATIC void refit(const quire_row_work *w, float *s, float *error)
{
    switch (w->bits) {
    case 2: refit_bits(w, s, error, 2); break;
    case 3: refit_bits(w, s, error, 3); break;
    case 4: refit_bits(w, s, error, 4); break;
    case 5: refit_bits(w, s, error, 5); break;
    default: refit_bits(w, s, error, 6);
    }
}

/* middle: see quire_tv; up to 8 of a level lie in one vector. A value at a middle takes the lower code. */
SIMD_FN void count_bits(const float *x, uint32_t d, const float *middle, uint8_t *code, uint32_t bits)
{
    for (uint32_t i = 0; i < d; i += 16) {
        vf v = vf_load(x + i);
        vi k = vi_set1(0), one = vi_set1(1);
        for (uint32_t l = 0; l < bits; l++) {
            const float *level = middle + ((1u << l) - 1);
            vf m = l < 4 ? vf_entry8(level, k) : l == 4 ? vf_entry16(level, k) : vf_entry32(level, k);
            k = vi_xor_where(vf_le(v, m), vi_add(vi_add(k, k), one), one);
        }
        vi_store_u8(code + i, k);
    }
}

SIMD_STATIC void count_middles(const float *x, uint32_t d, const float *middle, uint32_t bits, uint8_t *code)
{
    switch (bits) {
    case 2: count_bits(x, d, middle, code, 2); break;
    case 3: count_bits(x, d, middle, code, 3); break;
    case 4: count_bits(x, d, middle, code, 4); break;
    case 5: count_bits(x, d, middle, code, 5); break;
    default: count_bits(x, d, middle, code, 6);
    }
}

SIMD_STATIC float dot(const float *a, const float *b, uint32_t n)
{
    vf sum = vf_set1(0);
    for (uint32_t i = 0; i < n; i += 16) sum = vf_add(sum, vf_mul(vf_load(a + i), vf_load(b + i)));
    return vf_reduce_add(sum);
}

/* What this file and the two templates before it have for a table; refit() is left to the file, which may have a better one. */
#define ROW_KERNELS                                                                                       \
    .load = load, .store = store, .hadamard = hadamard, .encode_float = encode_float,                     \
    .encode_affine = encode_affine, .encode_q8_0 = encode_q8_0, .encode_q5_1 = encode_q5_1,               \
    .encode_q5_0 = encode_q5_0, .encode_q4_1 = encode_q4_1, .encode_q4_0 = encode_q4_0,                   \
    .encode_r8 = encode_r8, .assign = assign, .count_middles = count_middles, .dot = dot, .weigh = weigh, \
    .distance = distance, .unweigh = unweigh, .add_mean = add_mean, .expand = expand
