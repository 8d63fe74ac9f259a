/* SPDX-License-Identifier: MIT */
/*
 * emulated_models: the models of the emulated library against the instructions of this processor, intrinsic by intrinsic, on
 * random and hostile operands, with denormals kept and flushed. What the processor lacks is left out and named.
 */
#define _GNU_SOURCE /* syscall() */
#include "cases.h"

#include "support/random.h"

#include <cpuid.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))
#define N_ROUNDS 4000u

static const char *const need_names[N_NEEDS] = {"AVX512F",    "AVX512BW", "AVX512DQ", "AVX512VBMI",
                                                "AVX512VNNI", "AVX-VNNI", "AMX"};

/* The same questions as those of core/cpu.c, for each extension by itself. */
static void find_needs(bool has[N_NEEDS])
{
    uint32_t a, b, c, d, low = 0, high = 0, b7 = 0, c7 = 0, d7 = 0, a71 = 0;
    memset(has, 0, N_NEEDS * sizeof *has);
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return;
    if (!__get_cpuid_count(7, 0, &a, &b7, &c7, &d7)) return;
    if (a >= 1) __get_cpuid_count(7, 1, &a71, &b, &c, &d);
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    enum {
        AVX_VNNI = 1u << 4,
        AMX_TILE = 1u << 24,
        AMX_INT8 = 1u << 25,
        REQUEST_PERMISSION = 0x1023,
        TILE_DATA = 18
    };
    has[NEEDS_AVXVNNI] = (low & 0x6) == 0x6 && a71 & AVX_VNNI;
    has[NEEDS_F] = (low & 0xe6) == 0xe6 && b7 & bit_AVX512F;
    has[NEEDS_BW] = has[NEEDS_F] && b7 & bit_AVX512BW;
    has[NEEDS_DQ] = has[NEEDS_F] && b7 & bit_AVX512DQ;
    has[NEEDS_VBMI] = has[NEEDS_BW] && c7 & bit_AVX512VBMI;
    has[NEEDS_VNNI] = has[NEEDS_F] && c7 & bit_AVX512VNNI;
    has[NEEDS_AMX] = has[NEEDS_F] && (low & 0x60000) == 0x60000 && d7 & AMX_TILE && d7 & AMX_INT8 &&
                     syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

/* ----------------------------------------------------------------- operands */

/* Zeros, denormals, edges of normal numbers, halves and whole numbers, edges of integers, infinity, quiet and signalling
 * NaN; edges of bytes and halves of words. */
static const uint32_t hostile[] = {
    0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007fffff, 0x807fffff, 0x00800000, 0x80800000,
    0x00400000, 0x00200000, 0x00200001, 0x001fffff, 0x3f000000, 0xbf000000, 0x3f800000, 0xbf800000,
    0x3f7fffff, 0x3f800001, 0xbf800001, 0x3fc00000, 0x40200000, 0xc0200000, 0x42fe0000, 0x4b000000,
    0x4b000001, 0x4effffff, 0x4f000000, 0xcf000000, 0xcf000001, 0x4f800000, 0x477fe000, 0x477ff000,
    0x33000000, 0x33000001, 0x387fc000, 0x7e7fffff, 0x7e800000, 0x7e800001, 0x7f000000, 0x7f000001,
    0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc00000, 0x7fc12345, 0xffd23456,
    0x7f800001, 0xff800001, 0x7fa34567, 0xc2fc0000, 0xc3150000, 0xc3150001, 0xc3160000, 0x42ff0000,
    0x43000000, 0x80808080, 0x7f7f7f7f, 0xffffffff, 0x80007fff, 0x7fff8000, 0x80008000, 0x00ff00ff,
    0xff00ff00, 0x01010101, 0x7c00fc00, 0x7e017c01, 0x03ff8001, 0x04007bff};

static uint32_t lane(rng *r, uint32_t kind)
{
    uint32_t bits = (uint32_t)rng_bits(r);
    switch (kind) {
    case 0: return bits;
    case 1: return hostile[bits % COUNT(hostile)];
    case 2: return (bits & 0x807fffff) | (97 + bits % 61) << 23; /* floats from 2^-30 to 2^30 */
    case 3: return bits & 0x83ff83ff;                            /* denormals, of f16 too */
    case 4: return (bits & 0xff7fffff) | 0x7f000000;             /* what has no exponent beyond */
    default: return bits & 0x3f3f3f3f;                           /* indices */
    }
}

static void fill(rng *r, uint8_t *in, uint32_t bytes)
{
    for (uint32_t operand = 0; operand < bytes; operand += 64) {
        uint32_t mixed = rng_below(r, 2), kind = rng_below(r, 6);
        for (uint32_t i = 0; i < 64; i += 4) {
            uint32_t x = lane(r, mixed ? rng_below(r, 6) : kind);
            memcpy(in + operand + i, &x, sizeof x);
        }
    }
}

/* --------------------------------------------------------------- comparison */

static bool is_nan(uint32_t u)
{
    return (u & 0x7fffffff) > 0x7f800000;
}

static bool same(const emulate_case *c, const uint8_t *a, const uint8_t *b, uint32_t *at)
{
    for (*at = 0; *at < EMULATE_OUT; *at += 4) {
        uint32_t x, y;
        memcpy(&x, a + *at, sizeof x);
        memcpy(&y, b + *at, sizeof y);
        if (x != y && !(c->any_nan && is_nan(x) && is_nan(y))) return false;
    }
    return true;
}

/* Kept and flushed denormals: the modes of encoding and of attention. */
static const uint32_t modes[] = {0x1f80, 0x9fc0};

static bool compare(const emulate_case *model, const emulate_case *real, const uint8_t *in)
{
    static _Alignas(64) uint8_t want[EMULATE_OUT], got[EMULATE_OUT];
    for (uint32_t m = 0; m < COUNT(modes); m++) {
        uint32_t own = __builtin_ia32_stmxcsr(), at;
        memset(want, 0, sizeof want);
        memset(got, 0, sizeof got);
        __builtin_ia32_ldmxcsr(modes[m]);
        real->run(in, want);
        model->run(in, got);
        __builtin_ia32_ldmxcsr(own);
        if (same(model, got, want, &at)) continue;
        uint32_t x, y, operand[4];
        memcpy(&x, got + at, sizeof x);
        memcpy(&y, want + at, sizeof y);
        for (uint32_t i = 0; i < 4; i++) memcpy(&operand[i], in + 64 * i + at % 64, sizeof *operand);
        printf(
            "%s, float mode %#x: byte %u is %08x, by the instruction %08x; operands there %08x %08x %08x %08x\n",
            model->name, modes[m], at, x, y, operand[0], operand[1], operand[2], operand[3]);
        return false;
    }
    return true;
}

/* Every fraction, with exponents at random. */
static bool compare_reciprocals(const emulate_case *model, const emulate_case *real, rng *r)
{
    static _Alignas(64) uint8_t in[EMULATE_IN];
    for (uint32_t first = 0; first < 1u << 23; first += 16) {
        for (uint32_t i = 0; i < 16; i++) {
            uint32_t x = (uint32_t)rng_bits(r) << 23 | (first + i);
            memcpy(in + 4 * i, &x, sizeof x);
        }
        if (!compare(model, real, in)) return false;
    }
    return true;
}

/* No processor with tiles may ever run this: products of whole tiles against their definition. */
static bool check_products(const emulate_case *model, rng *r)
{
    static _Alignas(64) uint8_t in[EMULATE_IN], got[EMULATE_OUT];
    bool sign = strcmp(model->name, "tile_dpbssd") == 0;
    if (!sign && strcmp(model->name, "tile_dpbsud")) return true;
    for (uint32_t round = 0; round < 100; round++) {
        fill(r, in, EMULATE_IN);
        model->run(in, got);
        for (uint32_t at = 0; at < 256; at++) {
            uint32_t want, found, m = at / 16, n = at % 16;
            memcpy(&want, in + 4 * at, sizeof want);
            memcpy(&found, got + 4 * at, sizeof found);
            for (uint32_t k = 0; k < 64; k++) {
                uint8_t b = in[2048 + k / 4 * 64 + 4 * n + k % 4];
                want += (uint32_t)((int8_t)in[1024 + 64 * m + k] * (sign ? (int8_t)b : b));
            }
            if (found == want) continue;
            printf("%s: row %u, lane %u is %08x, by definition %08x\n", model->name, m, n, found, want);
            return false;
        }
    }
    return true;
}

int main(void)
{
    static _Alignas(64) uint8_t in[EMULATE_IN];
    uint32_t n_compared = 0, n_wrong = 0, n_left[N_NEEDS] = {0};
    bool has[N_NEEDS];
    rng r = {1};
    find_needs(has);
    for (uint32_t i = 0; quire_emulate_models[i].name; i++) {
        const emulate_case *model = &quire_emulate_models[i], *real = &quire_emulate_instructions[i];
        n_wrong += !check_products(model, &r);
        if (!has[real->needs]) {
            n_left[real->needs]++;
            continue;
        }
        bool right = true;
        for (uint32_t round = 0; round < N_ROUNDS && right; round++) {
            fill(&r, in, real->needs == NEEDS_AMX ? EMULATE_IN : 4 * 64);
            right = compare(model, real, in);
        }
        if (right && strcmp(model->name, "rcp14_ps") == 0) right = compare_reciprocals(model, real, &r);
        n_compared++;
        n_wrong += !right;
    }
    printf("%u models compared with instructions, %u differ\n", n_compared, n_wrong);
    for (uint32_t i = 0; i < N_NEEDS; i++)
        if (n_left[i]) printf("%u left out: no %s here\n", n_left[i], need_names[i]);
    return n_wrong != 0;
}
