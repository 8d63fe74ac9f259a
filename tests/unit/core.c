/* SPDX-License-Identifier: MIT */
/* core: half floats, hash, exponential, thread team, float mode, status texts. */
#include "core/core.h"
#include "core/float_mode.h"
#include "kernels/kernels.h"

#include <fenv.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>

#include <cmocka.h>

static uint64_t state = 42;

static uint64_t next(void)
{
    uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Every f16 goes to f32 and back unchanged. */
static void f16_round_trip(void **unused)
{
    (void)unused;
    for (uint32_t h = 0; h < 65536; h++) {
        float x = quire_f16_to_f32((uint16_t)h);
        if (isnan(x))
            assert_true(isnan(quire_f16_to_f32(quire_f32_to_f16(x))));
        else
            assert_int_equal(quire_f32_to_f16(x), h);
    }
    assert_true(quire_f16_to_f32(0x3c00) == 1.0f && quire_f16_to_f32(0x7bff) == 65504.0f);
    assert_true(quire_f16_to_f32(1) == 0x1p-24f && quire_f16_to_f32(0x8400) == -0x1p-14f);
}

/* The nearest f16 by search among all of them, in double; ties to the even one. */
static uint16_t nearest_f16(float x)
{
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    double a = fabs((double)x);
    if (a >= 65520) return sign | 0x7c00;
    uint32_t lo = 0, hi = 0x7c00; /* value(lo) <= a < value(hi), taking infinity for 65536 */
    while (hi - lo > 1) {
        uint32_t mid = (lo + hi) / 2;
        if ((double)quire_f16_to_f32((uint16_t)mid) <= a)
            lo = mid;
        else
            hi = mid;
    }
    double below = quire_f16_to_f32((uint16_t)lo),
           above = hi == 0x7c00 ? 65536.0 : quire_f16_to_f32((uint16_t)hi);
    if (a - below > above - a || (a - below == above - a && lo % 2)) lo = hi;
    return sign | (uint16_t)lo;
}

static void f16_rounding(void **unused)
{
    (void)unused;
    for (int i = 0; i < 2000000; i++) {
        uint32_t bits = (uint32_t)next();
        /* Half of the samples around f16's range, some exactly midway between two f16. */
        if (i % 2) bits = (bits & 0x807fffff) | (100 + bits % 48) << 23;
        if (i % 4 == 1) bits = (bits & ~0x1fffu) | 0x1000;
        float x = quire_float_of(bits);
        if (isnan(x)) continue;
        uint16_t got = quire_f32_to_f16(x), want = nearest_f16(x);
        if (got != want) fail_msg("f32 bits %08x: f16 %04x, expected %04x", bits, got, want);
    }
}

static void bf16_rounding(void **unused)
{
    (void)unused;
    for (int i = 0; i < 1000000; i++) {
        float x = quire_float_of((uint32_t)next());
        if (!isfinite(x)) continue;
        uint16_t h = quire_f32_to_bf16(x), up = (uint16_t)(h + 1), down = (uint16_t)(h - 1);
        if ((h & 0x7f80) == 0x7f80 || (h & 0x7fff) == 0) continue;
        double e = fabs((double)quire_bf16_to_f32(h) - x);
        assert_true(e <= fabs((double)quire_bf16_to_f32(up) - x) &&
                    e <= fabs((double)quire_bf16_to_f32(down) - x));
    }
    assert_int_equal(quire_f32_to_bf16(quire_float_of(0x3f808000)), 0x3f80); /* tie: even stays */
    assert_int_equal(quire_f32_to_bf16(quire_float_of(0x3f818000)), 0x3f82);
}

/* The same bytes in any pieces give the same hash; any changed bit another one. */
static void hash_pieces(void **unused)
{
    (void)unused;
    uint8_t bytes[300];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (uint8_t)next();
    quire_hash h;
    quire_hash_begin(&h);
    quire_hash_add(&h, bytes, sizeof bytes);
    uint64_t whole = quire_hash_end(&h);
    for (int round = 0; round < 200; round++) {
        quire_hash_begin(&h);
        for (size_t at = 0, n; at < sizeof bytes; at += n) {
            n = 1 + next() % 70;
            if (n > sizeof bytes - at) n = sizeof bytes - at;
            quire_hash_add(&h, bytes + at, n);
        }
        assert_true(quire_hash_end(&h) == whole);
    }
    for (size_t bit = 0; bit < 8 * sizeof bytes; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        quire_hash_begin(&h);
        quire_hash_add(&h, bytes, sizeof bytes);
        assert_true(quire_hash_end(&h) != whole);
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    /* Frozen: fingerprints are kept in files. */
    quire_hash_begin(&h);
    quire_hash_text(&h, "quire");
    assert_true(quire_hash_end(&h) == 0x937646bb1c1ffa53u);
}

static void exponential(void **unused)
{
    (void)unused;
    double worst = 0;
    for (int i = 0; i <= 1260000; i++) {
        float x = -(float)i * 1e-4f;
        double e = fabs(quire_exp2(x) / exp2((double)x) - 1);
        if (e > worst) worst = e;
    }
    if (worst > 3e-7) fail_msg("relative error %g", worst);
    assert_true(quire_exp2(0) == 1.0f && quire_exp2(-1) == 0.5f && quire_exp2(-126) == 0x1p-126f);
    assert_true(quire_exp2(-127) == 0 && quire_exp2(-INFINITY) == 0 && isnan(quire_exp2(NAN)));
}

typedef struct counted {
    atomic_uint calls[64];
} counted;

static void count_task(void *arg, uint32_t i)
{
    atomic_fetch_add(&((counted *)arg)->calls[i], 1);
}

static void *many_calls(void *arg)
{
    quire_executor e = *(quire_executor *)arg;
    for (uint32_t round = 0; round < 300; round++) {
        counted c = {{0}};
        uint32_t n = round % 65;
        e.run(e.ctx, count_task, &c, n);
        for (uint32_t i = 0; i < 64; i++)
            if (atomic_load(&c.calls[i]) != (i < n)) return arg;
    }
    return NULL;
}

/* Every task exactly once, also with several callers on one team. */
static void thread_team(void **unused)
{
    (void)unused;
    for (uint32_t n = 1; n <= 7; n += 2) {
        quire_threads *t;
        assert_int_equal(quire_threads_create(&t, n), QUIRE_OK);
        quire_executor e = {.size = sizeof e};
        quire_threads_executor(t, &e);
        assert_int_equal(e.n_threads, n);
        pthread_t caller[3];
        for (int i = 0; i < 3; i++) assert_int_equal(pthread_create(&caller[i], NULL, many_calls, &e), 0);
        for (int i = 0; i < 3; i++) {
            void *fault;
            pthread_join(caller[i], &fault);
            assert_null(fault);
        }
        quire_threads_destroy(t);
    }
    quire_threads *t;
    assert_int_equal(quire_threads_create(&t, 0), QUIRE_EINVAL);
    quire_threads_destroy(NULL);
}

/* A host's rounding and denormal modes change no byte, and come back. */
static void host_float_mode(void **unused)
{
    (void)unused;
    static const char *const codecs[] = {"a4g64", "h:a3g32", "q8_0", "iq4_nl", "r4",
                                         "r8",    "tq3",     "f16",  "bf16"};
    for (size_t k = 0; k < sizeof codecs / sizeof *codecs; k++) {
        quire_tile_format *f;
        quire_tile_format_options o = {sizeof(quire_tile_format_options), .side = QUIRE_K, .d = 128};
        assert_int_equal(quire_tile_format_create(&f, codecs[k], &o), QUIRE_OK);
        static float x[64 * 128], y[2][64 * 128];
        for (int i = 0; i < 64 * 128; i++) x[i] = ((float)(next() % 2001) - 1000) * (i % 5 ? 1e-3f : 1e-41f);
        quire_rows rows = {.size = sizeof(quire_rows), .form = QUIRE_F32, .data = x};
        uint8_t *tile[2];
        for (int mode = 0; mode < 2; mode++) {
            tile[mode] = (uint8_t *)aligned_alloc(64, quire_tile_bytes(f));
            memset(tile[mode], 0, quire_tile_bytes(f));
            if (mode) assert_int_equal(fesetround(FE_UPWARD), 0);
#if defined(__SSE__)
            uint32_t csr = __builtin_ia32_stmxcsr();
            if (mode) __builtin_ia32_ldmxcsr(csr | 0x8040); /* flush denormals, results and operands */
            uint32_t before = __builtin_ia32_stmxcsr() & 0xffc0;
#endif
            quire_rows_out out = {.size = sizeof(quire_rows_out), .form = QUIRE_F32, .data = y[mode]};
            assert_int_equal(quire_tile_encode(f, 0, tile[mode], 0, 64, &rows, NULL), QUIRE_OK);
            assert_int_equal(quire_tile_decode(f, 0, tile[mode], 0, 64, &out), QUIRE_OK);
#if defined(__SSE__)
            assert_int_equal(__builtin_ia32_stmxcsr() & 0xffc0, before);
            __builtin_ia32_ldmxcsr(csr);
#endif
            fesetround(FE_TONEAREST);
        }
        if (memcmp(tile[0], tile[1], quire_tile_bytes(f)))
            fail_msg("%s: bytes depend on the host's mode", codecs[k]);
        if (memcmp(y[0], y[1], sizeof y[0]))
            fail_msg("%s: decoded rows depend on the host's mode", codecs[k]);
        free(tile[0]);
        free(tile[1]);
        quire_tile_format_destroy(f);
    }
}

static void status_texts(void **unused)
{
    (void)unused;
    assert_string_equal(quire_status_name(QUIRE_OK), "OK");
    assert_string_equal(quire_status_name(QUIRE_EIO), "EIO");
    assert_string_equal(quire_version(), "0.2.0");
    for (int i = QUIRE_OK; i <= QUIRE_EIO; i++) assert_true(strlen(quire_status_text((quire_status)i)) > 5);
    assert_string_equal(quire_status_name((quire_status)999), "UNKNOWN");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f16_round_trip),  cmocka_unit_test(f16_rounding), cmocka_unit_test(bf16_rounding),
        cmocka_unit_test(hash_pieces),     cmocka_unit_test(exponential),  cmocka_unit_test(thread_team),
        cmocka_unit_test(host_float_mode), cmocka_unit_test(status_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
