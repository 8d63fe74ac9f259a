/* SPDX-License-Identifier: MIT */
/*
 * Profiles, kept for ever. They must load with the digest they had, and be saved as the same bytes (version 1: as version
 * 2). v2.profile is made of rows with RoPE: it must be made again byte for byte, on every machine and by every compiler.
 *
 *   golden_profile --write folder     writes v2.profile and v1.profile; only if the recipe changes
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "codec/profile.h"
#include "support/cache_kit.h"

#include <string.h>

#define ANGLES 0x359717b849072f0eu /* digest of the bits of many cosines and sines */

enum { LAYERS = 2, HEADS = 2, D = 12, PAIRS = 5, ROWS = 600 };

static const struct {
    const char *name;
    uint64_t digest;
} files[] = {
    {"v1", 0xe87842c5ea8f36bd},
    {"v2", 0x3331a1e77f77468b},
};

/* Whole numbers only: the rows are the same everywhere. */
static float value(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)((int32_t)(*state >> 40) - (1 << 23)) * 0x1p-21f;
}

/* Angles whose sine and cosine are fractions: what turns the rows needs no sin or cos. */
static const struct {
    double s, c, n;
    float angle; /* asin(s / n) */
} turn[PAIRS] = {{4, 3, 5, 0.9272952180f},
                 {5, 12, 13, 0.3947911197f},
                 {7, 24, 25, 0.2837941092f},
                 {9, 40, 41, 0.2213144423f},
                 {199, 19800, 19801, 0.0100501671f}};

/* Rows around one mean, turned as RoPE turns them at a position. c and s: of the position before. */
static void turned_row(float *x, uint32_t interleaved, const double *c, const double *s, uint64_t *state)
{
    for (uint32_t i = 0; i < D; i++) x[i] = value(state) + (float)(1 + i % 3);
    for (uint32_t p = 0; p < PAIRS; p++) {
        uint32_t ia = interleaved ? 2 * p : p, ib = interleaved ? 2 * p + 1 : p + PAIRS;
        double a = (double)x[ia], b = (double)x[ib];
        x[ia] = (float)(c[p] * a - s[p] * b);
        x[ib] = (float)(s[p] * a + c[p] * b);
    }
}

static quire_profile *gather(void)
{
    const quire_geometry g = {sizeof(quire_geometry), .n_layers = LAYERS, .n_q_heads = HEADS,
                              .n_kv_heads = HEADS,    .d_k = D,           .d_v = D};
    uint64_t state = 7;
    quire_profile *p = NULL;
    KIT_REQUIRE(!quire_profile_create(&p, &g, NULL));
    KIT_REQUIRE(!quire_profile_set_length(p, 131072));
    for (uint32_t l = 0; l < LAYERS; l++) {
        float angles[PAIRS];
        double c[PAIRS], s[PAIRS];
        for (uint32_t i = 0; i < PAIRS; i++) angles[i] = turn[i].angle, c[i] = 1, s[i] = 0;
        const quire_rope rope = {sizeof(quire_rope), PAIRS, l, angles}; /* layer 1: pairs are neighbours */
        KIT_REQUIRE(!quire_profile_set_rope(p, l, &rope));
        for (uint32_t t = 0; t < ROWS; t++) {
            float k[HEADS * D], q[HEADS * D];
            for (uint32_t h = 0; h < HEADS; h++) {
                turned_row(k + h * D, l, c, s, &state);
                turned_row(q + h * D, l, c, s, &state);
            }
            KIT_REQUIRE(!quire_profile_observe_k(p, l, t, k, 1));
            KIT_REQUIRE(!quire_profile_observe_q(p, l, t, q, 1));
            for (uint32_t i = 0; i < PAIRS; i++) {
                double next = (c[i] * turn[i].c - s[i] * turn[i].s) / turn[i].n;
                s[i] = (s[i] * turn[i].c + c[i] * turn[i].s) / turn[i].n;
                c[i] = next;
            }
        }
    }
    KIT_REQUIRE(!quire_profile_finish(p));
    return p;
}

/* A file of version 1: one layer, two heads of three channels. */
static void put_version_1(kit_bytes *to)
{
    static const uint32_t head[] = {1, 1, 2, 3};                        /* version, layers, KV heads, d_k */
    static const float vectors[] = {1, -2, 0.5f, 1, 2, 0.125f, 3, 1, 4, /* means, weights, q_rms of head 0 */
                                    0, 7,  -9,   4, 1, 1,      2, 6, 5};
    uint8_t bytes[8 + sizeof head + sizeof vectors + 8];
    memcpy(bytes, "QUIREPRF", 8);
    for (size_t i = 0; i < 4; i++) quire_store32(bytes + 8 + 4 * i, head[i]);
    for (size_t i = 0; i < sizeof vectors / 4; i++)
        quire_store32(bytes + 24 + 4 * i, quire_bits_of(vectors[i]));
    quire_hash h;
    quire_hash_begin(&h);
    quire_hash_add(&h, bytes, sizeof bytes - 8);
    quire_store64(bytes + sizeof bytes - 8, quire_hash_end(&h));
    kit_write(to, bytes, sizeof bytes);
}

static void read_file(kit_bytes *bytes, const char *name)
{
    char path[1100];
    uint8_t part[4096];
    const char *golden = getenv("QUIRE_GOLDEN");
    snprintf(path, sizeof path, "%s/profile/%s.profile", golden ? golden : "tests/golden", name);
    FILE *file = fopen(path, "rb");
    if (!file) fail_msg("%s cannot be read; QUIRE_GOLDEN names the folder", path);
    for (size_t n; (n = fread(part, 1, sizeof part, file)) > 0;) kit_write(bytes, part, n);
    fclose(file);
}

static void old_files_load(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        kit_bytes bytes = {0}, again = {0};
        quire_profile *p = NULL;
        read_file(&bytes, files[i].name);
        assert_int_equal(quire_profile_load(&p, kit_read, &bytes, NULL), QUIRE_OK);
        if (quire_profile_digest(p) != files[i].digest)
            fail_msg("%s: digest 0x%llx", files[i].name, (unsigned long long)quire_profile_digest(p));
        assert_int_equal(quire_profile_save(p, kit_write, &again), QUIRE_OK);
        if (quire_load32(bytes.data + 8) == 1) {
            assert_int_equal(quire_load32(again.data + 8), 2);
            assert_int_equal(again.n, bytes.n + 4); /* the number of means */
        } else {
            assert_int_equal(again.n, bytes.n);
            assert_memory_equal(again.data, bytes.data, bytes.n);
        }
        quire_profile_destroy(p);
        kit_bytes_free(&bytes);
        kit_bytes_free(&again);
    }
}

static void made_anew(void **state)
{
    (void)state;
    kit_bytes bytes = {0}, anew = {0};
    quire_profile *p = gather();
    read_file(&bytes, "v2");
    assert_int_equal(quire_profile_save(p, kit_write, &anew), QUIRE_OK);
    assert_int_equal(anew.n, bytes.n);
    for (size_t i = 0; i < bytes.n; i++)
        if (anew.data[i] != bytes.data[i]) fail_msg("differs from byte %zu on", i);
    quire_profile_destroy(p);
    kit_bytes_free(&bytes);
    kit_bytes_free(&anew);
}

/* Sines and cosines have the same bits everywhere; those of the C library do not, and a profile holds what they give. */
static void angles(void **state)
{
    (void)state;
    uint64_t random = 1;
    quire_hash h;
    quire_hash_begin(&h);
    for (uint32_t i = 0; i < 200000; i++) {
        uint64_t z = quire_random(&random), bits;
        double size = (double)(1ull << z % 34) * (double)(z >> 11) * 0x1p-53, x[2];
        quire_angle(i % 2 ? size : -size, &x[0], &x[1]);
        for (int j = 0; j < 2; j++) {
            memcpy(&bits, &x[j], 8);
            quire_hash_u64(&h, bits);
        }
    }
    if (quire_hash_end(&h) != ANGLES) fail_msg("other bits: 0x%llx", (unsigned long long)quire_hash_end(&h));
}

static void write_file(const char *folder, const char *name, const kit_bytes *bytes)
{
    char path[1100];
    snprintf(path, sizeof path, "%s/%s.profile", folder, name);
    FILE *file = fopen(path, "wb");
    KIT_REQUIRE(file && fwrite(bytes->data, 1, bytes->n, file) == bytes->n && !fclose(file));
}

static int write_files(const char *folder)
{
    kit_bytes v1 = {0}, v2 = {0};
    quire_profile *p = gather();
    put_version_1(&v1);
    KIT_REQUIRE(!quire_profile_save(p, kit_write, &v2));
    write_file(folder, "v1", &v1);
    write_file(folder, "v2", &v2);
    quire_profile_destroy(p);
    kit_bytes_free(&v1);
    kit_bytes_free(&v2);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(old_files_load),
        cmocka_unit_test(made_anew),
        cmocka_unit_test(angles),
    };
    if (argc == 3 && !strcmp(argv[1], "--write")) return write_files(argv[2]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
