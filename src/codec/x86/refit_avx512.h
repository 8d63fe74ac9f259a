/* SPDX-License-Identifier: MIT */
/*
 * refit_avx512: the search of r2 to r5 without divisions. Included by row_kernels_avx512.c after fit_rows_tmpl.h, whose refit()
 * does all that this one does not.
 *
 * v = x * (1 / s) differs from C's quotient by less than 2^-22 of it (three roundings of 2^-24). Both take the same entry
 * unless |v| lies within 127 * 2^-22 < 2^-15 of a middle, or of zero, where the sign is decided. Lanes that come within
 * 2^-14 of one are rare (about one row in a hundred has any); then the whole step is done again with divisions.
 *
 * Which entry: |v| up to 127 falls into one of 30 buckets; bucket b is what rounds to b after multiplication by
 * PER_BUCKET. With that number no bucket holds two middles of any table, bucket 0 holds none, and every middle is at
 * least a sixteenth of a bucket away from the edges. So one comparison with the bucket's middle decides, and the same
 * difference tells whether it was close.
 */
#define PER_BUCKET 0.2316f
#define CLOSE 0x1p-14f

/* By bits: the entries nearest to the lower edges of the buckets. Those nearest to the upper edges come one later. */
static const float at_edge[6][33] = {
    [2] = {38, 38, 38, 38,  38,  38,  38,  38,  38,  38,  38,  38,  38,  38,  38,  38, 38,
           38, 38, 38, 127, 127, 127, 127, 127, 127, 127, 127, 127, 127, 127, 127, 127},
    [3] = {14, 14, 14, 14, 14, 14, 14, 14, 45,  45,  45,  45,  45,  45,  45,  79, 79,
           79, 79, 79, 79, 79, 79, 79, 79, 127, 127, 127, 127, 127, 127, 127, 127},
    [4] = {6,  6,  6,  6,  18, 18, 18, 31, 31, 31, 44,  44,  44,  58,  58,  58, 75,
           75, 75, 75, 75, 96, 96, 96, 96, 96, 96, 127, 127, 127, 127, 127, 127},
    [5] = {3,  3,  8,  13, 13, 18, 24, 29,  35,  35,  41,  47,  47,  54,  61,  61, 70,
           70, 79, 79, 79, 90, 90, 90, 105, 105, 105, 105, 127, 127, 127, 127, 127},
};

/* A number per bucket. */
typedef struct buckets {
    __m512 low, high;
} buckets;

SIMD_FN buckets buckets_load(const float *p)
{
    return (buckets){_mm512_loadu_ps(p), _mm512_loadu_ps(p + 16)};
}

/* The lowest five bits of index count. */
SIMD_FN __m512 bucket_at(buckets b, __m512 index)
{
    return _mm512_permutex2var_ps(b.low, _mm512_castps_si512(index), b.high);
}

/* Where 1 / s is a normal number with all its bits. */
SIMD_FN bool has_reciprocals(const float *s)
{
    bool all = true;
    for (uint32_t j = 0; j < QUIRE_N_STARTS; j++) all &= s[j] >= 0x1p-100f && s[j] <= 0x1p100f;
    return all;
}

SIMD_STATIC void refit_by_buckets(const quire_row_work *w, float *s, float *error)
{
    enum { N = QUIRE_N_STARTS, SMALLER_MAGNITUDE = 0xa };
    if (w->bits > 5 || !has_reciprocals(s)) {
        refit(w, s, error);
        return;
    }
    const __m512 half = _mm512_set1_ps(0.5f), last = _mm512_set1_ps(126), none = _mm512_setzero_ps();
    const __m512 to_integer = _mm512_set1_ps(0x1.8p23f); /* the sum has the integer in its lowest bits */
    buckets lower = buckets_load(at_edge[w->bits]), upper = buckets_load(at_edge[w->bits] + 1), middle;
    middle.low = _mm512_maskz_mul_ps(0xfffe, half, _mm512_add_ps(lower.low, upper.low)); /* of bucket 0: 0 */
    middle.high = _mm512_mul_ps(half, _mm512_add_ps(lower.high, upper.high));

    float kept[N][QUIRE_MAX_D];
    __m512 xc[N], cc[N], inverse[N], closest = last;
    for (uint32_t j = 0; j < N; j++) {
        inverse[j] = _mm512_set1_ps(1.0f / s[j]);
        xc[j] = cc[j] = none;
    }
    for (uint32_t i = 0; i < w->d; i += 16) {
        __m512 x = _mm512_loadu_ps(w->x + i);
        for (uint32_t j = 0; j < N; j++) {
            __m512 v = _mm512_mul_ps(x, inverse[j]), a = _mm512_range_ps(v, last, SMALLER_MAGNITUDE);
            __m512 bucket = _mm512_fmadd_ps(a, _mm512_set1_ps(PER_BUCKET), to_integer);
            __m512 above = _mm512_sub_ps(a, bucket_at(middle, bucket));
            closest = _mm512_range_ps(closest, above, SMALLER_MAGNITUDE);
            __mmask16 is_upper = _mm512_cmp_ps_mask(above, none, _CMP_GT_OQ);
            __m512 c = _mm512_mask_mov_ps(bucket_at(lower, bucket), is_upper, bucket_at(upper, bucket));
            c = vf_copysign(c, v);
            xc[j] = _mm512_add_ps(xc[j], _mm512_mul_ps(x, c));
            cc[j] = _mm512_fmadd_ps(c, c, cc[j]);
            if (error) _mm512_storeu_ps(kept[j] + i, c);
        }
    }
    if (_mm512_cmp_ps_mask(closest, _mm512_set1_ps(CLOSE), _CMP_LE_OQ)) {
        refit(w, s, error);
        return;
    }
    fit_scales(s, xc, cc);
    if (error) measure_errors(w, s, kept, error);
}

#undef PER_BUCKET
#undef CLOSE
