/* SPDX-License-Identifier: MIT */
/*
 * refit_rows_avx512: the scales and codes of 16 rows of r4 or r3. Included by encode_rows_avx512.c after rows_avx512.h.
 *
 * The codes must be those of C, which searches with quotients v = |x| / s. Whether v lies above a middle m is seen here from
 * |x| - m * s, whose sign is exact. The quotient is rounded, by 2^-24 of it at most, so both agree unless the difference
 * is below m * s * 2^-23 < 2^-16 * s. A row with a value that close to a middle is left to be coded alone.
 *
 * Which middle: v falls into one of 32 buckets, each PER_BUCKET wide; bucket b is what rounds to b. None has two middles,
 * and every middle is more than a sixteenth of a bucket away from the edges. Rows with a v beyond the last bucket are left.
 *
 * Which of the five scales: the one with the least error, x.x - (x.c)^2 / c.c. C adds up the squared differences. Its sums and
 * these have errors of some units in the last place, so where two scales are within that, the row is left too.
 */
#define BUCKET 11
#define BUCKETS_END (31 * BUCKET)
#define CLOSE 0x1p-16f
#define NO_MIDDLE (-128) /* every value is above it, and not close */

typedef struct bucket_table {
    float upper[32];  /* entry nearest to the upper edge */
    float middle[32]; /* the middle between two entries, if there is one */
    int32_t code[32]; /* of the entry, without its sign */
} bucket_table;

static const bucket_table bucket_tables[5] = {
    [3] = {.upper = {14,  14,  14,  45,  45,  45,  79,  79,  79,  127, 127, 127, 127, 127, 127, 127,
                     127, 127, 127, 127, 127, 127, 127, 127, 127, 127, 127, 127, 127, 127, 127, 127},
           .middle = {NO_MIDDLE, NO_MIDDLE, NO_MIDDLE, 29.5f,     NO_MIDDLE, NO_MIDDLE, 62,        NO_MIDDLE,
                      NO_MIDDLE, 103,       NO_MIDDLE, NO_MIDDLE, NO_MIDDLE, NO_MIDDLE, NO_MIDDLE, NO_MIDDLE,
                      NO_MIDDLE, NO_MIDDLE, NO_MIDDLE, NO_MIDDLE, NO_MIDDLE, NO_MIDDLE, NO_MIDDLE, NO_MIDDLE,
                      NO_MIDDLE, NO_MIDDLE, NO_MIDDLE, NO_MIDDLE, NO_MIDDLE, NO_MIDDLE, NO_MIDDLE, NO_MIDDLE},
           .code = {4, 4, 4, 5, 5, 5, 6, 6, 6, 7, 7, 7, 7, 7, 7, 7,
                    7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7}},
    [4] = {.upper = {6,   18,  31,  44,  44,  58,  75,  75,  96,  96,  127, 127, 127, 127, 127, 127,
                     127, 127, 127, 127, 127, 127, 127, 127, 127, 127, 127, 127, 127, 127, 127, 127},
           .middle = {NO_MIDDLE, 12,        24.5f,     37.5f,     NO_MIDDLE, 51,        66.5f,     NO_MIDDLE,
                      85.5f,     NO_MIDDLE, 111.5f,    NO_MIDDLE, NO_MIDDLE, NO_MIDDLE, NO_MIDDLE, NO_MIDDLE,
                      NO_MIDDLE, NO_MIDDLE, NO_MIDDLE, NO_MIDDLE, NO_MIDDLE, NO_MIDDLE, NO_MIDDLE, NO_MIDDLE,
                      NO_MIDDLE, NO_MIDDLE, NO_MIDDLE, NO_MIDDLE, NO_MIDDLE, NO_MIDDLE, NO_MIDDLE, NO_MIDDLE},
           .code = {8,  9,  10, 11, 11, 12, 13, 13, 14, 14, 15, 15, 15, 15, 15, 15,
                    15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15}},
};

typedef struct thirty_two {
    vf low, high;
} thirty_two;

SIMD_FN thirty_two thirty_two_load(const void *p)
{
    return (thirty_two){_mm512_loadu_ps(p), _mm512_loadu_ps((const uint8_t *)p + 64)};
}

/* The lowest five bits of index count. */
SIMD_FN vf pick(thirty_two t, vi index)
{
    return _mm512_permutex2var_ps(t.low, index, t.high);
}

/* The index, into upper and code, of the entry that magnitudes x take with the scale s; per_bucket: 1 / (BUCKET * s). */
SIMD_FN vi nearest_entry(thirty_two middle, vf x, vf s, vf per_bucket, vf *closest)
{
    enum { SMALLER_MAGNITUDE = 0xa };
    vi bucket = vf_as_int(vf_fma(x, per_bucket, vf_set1(0x1.8p23f)));
    vf above = vf_fnma(pick(middle, bucket), s, x);
    *closest = _mm512_range_ps(*closest, above, SMALLER_MAGNITUDE);
    return vi_sub(bucket, _mm512_srli_epi32(vf_as_int(above), 31));
}

/* Five scales of each row become those that fit their entries best. xc: x.c. Returns the rows where C has the same. */
SIMD_STATIC vm refit_rows(const bucket_table *t, float (*y)[16], uint32_t d, vf most, vf s[QUIRE_N_STARTS],
                          vf xc[QUIRE_N_STARTS])
{
    enum { N = QUIRE_N_STARTS };
    const thirty_two middle = thirty_two_load(t->middle), upper = thirty_two_load(t->upper);
    vf sum[N][16], cc[N], per_bucket[N], closest = vf_set1(INFINITY), largest = s[0], smallest = s[0];
    SIMD_UNROLL(5)
    for (uint32_t j = 0; j < N; j++) {
        cc[j] = vf_set1(0);
        per_bucket[j] = vf_div(vf_set1(1.0f / BUCKET), s[j]);
        largest = vf_max(largest, s[j]);
        smallest = vf_min(smallest, s[j]);
    }
    for (uint32_t c = 0; c < 16; c++) {
        vf part[N];
        SIMD_UNROLL(5)
        for (uint32_t j = 0; j < N; j++) part[j] = vf_set1(0);
        for (uint32_t at = c; at < d; at += 16) {
            vf x = vf_load(y[at]);
            SIMD_UNROLL(5)
            for (uint32_t j = 0; j < N; j++) {
                vf entry = pick(upper, nearest_entry(middle, x, s[j], per_bucket[j], &closest));
                part[j] = vf_add(part[j], vf_mul(x, entry));
                cc[j] = vf_fma(entry, entry, cc[j]);
            }
        }
        SIMD_UNROLL(5)
        for (uint32_t j = 0; j < N; j++) sum[j][c] = part[j];
    }
    vm same = vm_and(vf_le(most, vf_mul(smallest, vf_set1(BUCKETS_END))),
                     vf_le(vf_mul(largest, vf_set1(CLOSE)), closest));
    for (uint32_t j = 0; j < N; j++) {
        xc[j] = fold_sums(sum[j]);
        s[j] = vf_div(xc[j], cc[j]);
    }
    return same;
}

/* The best of five scales. Rows for which that is not certain leave *done. */
SIMD_FN vf best_scale(const vf s[QUIRE_N_STARTS], const vf xc[QUIRE_N_STARTS], vf energy, uint32_t d,
                      vm *done)
{
    vf gain[QUIRE_N_STARTS], best = s[0];
    vf most = gain[0] = vf_mul(s[0], xc[0]);
    for (uint32_t j = 1; j < QUIRE_N_STARTS; j++) {
        gain[j] = vf_mul(s[j], xc[j]);
        best = vf_select(vf_le(gain[j], most), best, s[j]);
        most = vf_max(most, gain[j]);
    }
    /* Units in the last place: d / 16 + 4 additions and a product in each x.c, which counts twice, two more operations; and
     * as many in the sums of C, which have two operations more in each term. All that for both of two scales. */
    float units = 2 * (2 * ((float)d / 16 + 5) + 2) + 2 * ((float)d / 16 + 8);
    vf near = vf_sub(most, vf_mul(energy, vf_set1(units * 0x1p-24f)));
    for (uint32_t j = 0; j < QUIRE_N_STARTS; j++) {
        uint32_t other =
            ~vm_bits(vm_and(vf_le(s[j], best), vf_le(best, s[j]))) & ~vm_bits(vf_le(gain[j], near));
        *done = vm_and(*done, vm_of_bits(~other & 0xffff));
    }
    return best;
}

/* Codes for the scale s; x.c and c.c. */
SIMD_STATIC vf assign_rows(const bucket_table *t, uint32_t bits, float (*y)[16], uint32_t d,
                           const uint16_t *is_below, vf s, vf *c_c, vf *closest, quire_coded_rows *out)
{
    const thirty_two middle = thirty_two_load(t->middle), upper = thirty_two_load(t->upper);
    const thirty_two code = thirty_two_load(t->code);
    const vi all = vi_set1((1 << bits) - 1);
    vf sum[16], cc = vf_set1(0), per_bucket = vf_div(vf_set1(1.0f / BUCKET), s);
    *closest = vf_set1(INFINITY);
    for (uint32_t c = 0; c < 16; c += 4) {
        SIMD_UNROLL(4)
        for (uint32_t k = 0; k < 4; k++) sum[c + k] = vf_set1(0);
        for (uint32_t at = c; at < d; at += 16) {
            vi word = vi_set1(0);
            SIMD_UNROLL(4)
            for (uint32_t k = 0; k < 4; k++) {
                vf x = vf_load(y[at + k]);
                vi index = nearest_entry(middle, x, s, per_bucket, closest);
                vf entry = pick(upper, index);
                sum[c + k] = vf_add(sum[c + k], vf_mul(x, entry));
                cc = vf_fma(entry, entry, cc);
                vi one = vi_xor_where(vm_of_bits(is_below[at + k]), vf_as_int(pick(code, index)), all);
                word = vi_add(word, _mm512_slli_epi32(one, 8 * k));
            }
            vi_store(out->vector[at / 4], word);
        }
    }
    *c_c = cc;
    return fold_sums(sum);
}

SIMD_STATIC uint32_t code_r(const quire_coder *coder, float (*y)[16], quire_coded_rows *out)
{
    enum { N = QUIRE_N_STARTS };
    uint32_t bits = coder->codec->info.bits;
    const bucket_table *t = &bucket_tables[bits];
    float first[16];
    rotated r;
    rotate(coder, y, &r, true);
    vf_store(first, r.energy);
    for (uint32_t i = 0; i < 16; i++) first[i] = quire_first_scale(first[i], coder->d, bits);
    vf s[N], xc[N], scale = vf_load(first);
    /* With a magnitude above `least`, no quotient becomes zero; with these scales, none is inexact otherwise. */
    vm done = vm_and(in_range_before(coder, r.most), vf_le(vf_set1(0x1p-100f), r.least));
    done = vm_and(done, vm_and(vf_le(vf_set1(0x1p-60f), scale), vf_le(scale, vf_set1(0x1p40f))));
    if (!vm_bits(done)) return 0xffff;
    for (uint32_t j = 0; j < N; j++) s[j] = vf_mul(vf_set1(quire_row_starts[j]), scale);
    for (uint32_t round = 0; round < 2; round++)
        done = vm_and(done, refit_rows(t, y, coder->d, r.most, s, xc));
    vf cc, closest, best = best_scale(s, xc, r.energy, coder->d, &done);
    vf fit = assign_rows(t, bits, y, coder->d, r.is_below, best, &cc, &closest, out);
    fit = quire_row_shrinks(coder) ? vf_div(fit, cc) : vf_div(r.energy, fit);
    done = vm_and(done, vf_le(vf_mul(best, vf_set1(CLOSE)), closest));
    done = vm_and(done, vf_le(r.most, vf_mul(best, vf_set1(BUCKETS_END))));
    done = vm_and(done, vm_and(vf_le(vf_set1(0x1p-60f), fit), vf_le(fit, vf_set1(QUIRE_F16_MAX))));
    _mm256_storeu_si256((__m256i_u *)out->scale, _mm512_cvtps_ph(fit, _MM_FROUND_TO_NEAREST_INT));
    return ~vm_bits(done) & 0xffff;
}

#undef BUCKET
#undef BUCKETS_END
#undef CLOSE
#undef NO_MIDDLE
