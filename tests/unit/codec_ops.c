/* SPDX-License-Identifier: MIT */
/* The loops over a row, one by one and where they are hardest: every instruction set of this machine against C. */
#include "codec_rows.h"

#include "codec/row_kernels.h"
#include "support/random.h"

#include <stdlib.h>

static void for_each_isa(void (*check)(const quire_row_kernels *ops, const char *isa))
{
    const quire_row_kernels *before = quire_row_kernels_for(1); /* C: no whole vector */
    const char *isa;
    for (uint32_t i = 0; (isa = quire_isa_at(i)); i++) {
        assert_int_equal(quire_isa_use(isa), QUIRE_OK);
        const quire_row_kernels *ops = quire_row_kernels_for(QUIRE_MAX_D);
        if (ops != before) check(ops, isa);
        before = ops;
    }
    quire_isa_use(NULL);
}

/* n units in the last place further from zero. */
static float nudged(float x, int n)
{
    return quire_float_of(quire_bits_of(x) + (uint32_t)n);
}

/* ------------------------------------------------------------------ quotients */

/* Inverse of an odd number modulo 2^64. */
static uint64_t inverse_of(uint64_t odd)
{
    uint64_t x = odd;
    for (int i = 0; i < 6; i++) x *= 2 - odd * x;
    return x;
}

/* The quotient of src/codec/encode_groups_tmpl.h. */
static float corrected_quotient(float y, float s)
{
    float r = 1.0f / s, q = y * r;
    return fmaf(fmaf(-q, s, y), r, q);
}

/*
 * Significands y, s (24 bits) with y / s next to m = middle / 2^25, an odd number of half units in the last place: for them
 * middle * s = y * 2^k + rest with a small rest, and modulo 2^24 each rest belongs to one s.
 */
static uint32_t try_near(uint64_t middle, float half)
{
    uint32_t n = 0;
    for (int rest = -64; rest <= 64; rest++) {
        uint64_t s = inverse_of(middle) * (uint64_t)rest & 0xffffff;
        if (s < 0x800000) continue;
        uint64_t y = (middle * s - (uint64_t)rest) >> 24;
        while (y > 0xffffff && y % 2 == 0) y /= 2;
        if (y > 0xffffff) continue; /* it has more bits: no float */
        float a = (float)y, b = (float)s;
        a = ldexpf(a, (int)lrintf(log2f(half / (a / b))));
        float q = a / b, c = corrected_quotient(a, b);
        if (fabsf(q - half) > 1e-6f * half) fail_msg("y %a s %a: not near %g", a, b, half);
        if (rintf(c) != rintf(q) || rintf(-c) != rintf(-q)) fail_msg("y %a s %a: %a, not %a", a, b, c, q);
        n++;
    }
    return n;
}

/* All that could go wrong in rounding to integers below 256; the rest has a margin of 2^-46. */
static void hard_quotients(void **state)
{
    (void)state;
    uint32_t n = 0;
    for (uint32_t i = 0; i < 256; i++) {
        float half = (float)i + 0.5f;
        uint64_t bits = (quire_bits_of(half) & 0x7fffff) | 0x800000;
        n += try_near(2 * bits + 1, half);
        n += try_near(bits == 0x800000 ? 4 * bits - 1 : 2 * bits - 1, half);
    }
    assert_true(n > 10000);
}

/* ------------------------------------------------------------------------ r */

static const int8_t *const tables[7] = {[2] = quire_table_r2,
                                        [3] = quire_table_r3,
                                        [4] = quire_table_r4,
                                        [5] = quire_table_r5,
                                        [6] = quire_table_r6};

/* Values on middles, on entries and next to them for some of the scales; zeros of both signs; denormals. */
static void make_work(rng *r, quire_row_work *w, float *x, float *s)
{
    static const uint32_t sizes[] = {16, 48, 128, 1024};
    w->bits = rng_between(r, 2, 6);
    w->d = sizes[rng_below(r, COUNT(sizes))];
    w->table = tables[w->bits];
    w->x = x;
    int size = rng_below(r, 4) ? (int)rng_below(r, 12) - 6 : (int)rng_below(r, 240) - 140;
    for (uint32_t k = 0; k < QUIRE_N_STARTS; k++)
        s[k] = ldexpf(0.5f + 0.5f * (float)rng_between(r, 1, 1u << 23) * 0x1p-23f, size);
    bool has_ties = rng_below(r, 3);
    for (uint32_t i = 0; i < w->d; i++) {
        uint32_t at = rng_below(r, (1u << w->bits) - 1), kind = has_ties ? rng_below(r, 40) : 40;
        float middle = (float)(w->table[at] + w->table[at + 1]) / 2, scale = s[rng_below(r, QUIRE_N_STARTS)];
        switch (kind) {
        case 0: x[i] = nudged(middle * scale, (int)rng_below(r, 9) - 4); break;
        case 1: x[i] = nudged((float)w->table[at] * scale, (int)rng_below(r, 3) - 1); break;
        case 2: x[i] = rng_below(r, 2) ? 0.0f : -0.0f; break;
        case 3: x[i] = quire_float_of(rng_below(r, 8) | (uint32_t)rng_below(r, 2) << 31); break;
        case 4: x[i] = 1000 * scale * rng_normal(r); break;
        default: x[i] = 46 * scale * rng_normal(r);
        }
        if (middle == 0 && kind == 0) x[i] = 0;
    }
}

static bool same_floats(const float *a, const float *b)
{
    return memcmp(a, b, QUIRE_N_STARTS * sizeof *a) == 0;
}

static void check_rows(const quire_row_kernels *ops, const char *isa)
{
    static float x[QUIRE_MAX_D];
    static uint8_t code[2][QUIRE_MAX_D];
    for (uint64_t seed = 1; seed <= 10000; seed++) {
        rng r = {seed};
        quire_row_work w;
        float s[QUIRE_N_STARTS], other[QUIRE_N_STARTS], error[2][QUIRE_N_STARTS];
        make_work(&r, &w, x, s);
        quire_row_dots c = quire_assign_c(&w, s[0], code[0]), v = ops->assign(&w, s[0], code[1]);
        if (memcmp(&c, &v, sizeof c) || memcmp(code[0], code[1], w.d))
            fail_msg("%s: other codes, %u bits, d %u, seed %u", isa, w.bits, w.d, (unsigned)seed);
        bool with_error = rng_below(&r, 2);
        memcpy(other, s, sizeof s);
        quire_refit_c(&w, s, with_error ? error[0] : NULL);
        ops->refit(&w, other, with_error ? error[1] : NULL);
        if (!same_floats(s, other) || (with_error && !same_floats(error[0], error[1])))
            fail_msg("%s: other scales, %u bits, d %u, seed %u", isa, w.bits, w.d, (unsigned)seed);
    }
}

static void rows(void **state)
{
    (void)state;
    for_each_isa(check_rows);
}

/* ---------------------------------------------------------------- rotations */

static void check_rotations(const quire_row_kernels *ops, const char *isa)
{
    static float x[QUIRE_MAX_D], expected[QUIRE_MAX_D], y[QUIRE_MAX_D];
    for (uint32_t n = 1; n <= QUIRE_MAX_D; n *= 2) {
        for (uint32_t d = n < 16 ? 16 : n; d <= QUIRE_MAX_D; d += n < 16 ? 16 : n) {
            rng r = {d};
            uint64_t signs[QUIRE_MAX_D / 64];
            for (uint32_t i = 0; i < COUNT(signs); i++) signs[i] = rng_bits(&r);
            for (uint32_t i = 0; i < d; i++)
                x[i] = rng_below(&r, 8) ? rng_normal(&r) : rng_below(&r, 2) ? 0.0f : -0.0f;
            for (uint32_t which = 0; which < 4; which++) {
                const uint64_t *before = which & 1 ? signs : NULL, *after = which & 2 ? signs : NULL;
                quire_hadamard_c(x, expected, d, n, before, after);
                ops->hadamard(x, y, d, n, before, after);
                if (memcmp(y, expected, d * sizeof *y)) fail_msg("%s: d %u, blocks of %u", isa, d, n);
                memcpy(y, x, d * sizeof *y);
                ops->hadamard(y, y, d, n, before, after);
                if (memcmp(y, expected, d * sizeof *y)) fail_msg("%s: d %u, %u, in place", isa, d, n);
            }
        }
    }
}

static void rotations(void **state)
{
    (void)state;
    for_each_isa(check_rotations);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hard_quotients),
        cmocka_unit_test(rows),
        cmocka_unit_test(rotations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
