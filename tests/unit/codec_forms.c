/* SPDX-License-Identifier: MIT */
/* Native and MLX bytes: there and back without a bit of difference, for every codec and head size. */
#include "codec_rows.h"

#include <stdlib.h>

/* Exactly n bytes at an odd address, so that a sanitizer sees every byte too far and every aligned access. */
typedef struct exact {
    uint8_t *memory, *bytes;
} exact;

static exact exact_bytes(size_t n, int fill)
{
    exact e = {.memory = malloc(n + 1)};
    assert_non_null(e.memory);
    memset(e.memory, fill, n + 1);
    e.bytes = e.memory + 1;
    return e;
}

static void fill_row(const quire_coder *coder, uint32_t row, quire_coded_row *out)
{
    uint64_t seed = coder->d * 31 + row;
    float x[QUIRE_MAX_D];
    random_row(&seed, x, coder->d, row ? 20.0f : 0.3f);
    quire_encode_row(coder, NULL, x, out, NULL);
}

static void native_round_trip(void **state)
{
    (void)state;
    static quire_coded_row a, b;
    for (uint32_t c = 0; c < quire_codec_count(); c++) {
        for (size_t s = 0; s < COUNT(head_sizes); s++) {
            quire_coder coder;
            if (!make_coder(&coder, c, QUIRE_K, head_sizes[s])) continue;
            const char *name = coder.codec->info.name;
            size_t n = quire_row_bytes(&coder);
            assert_int_equal(n, quire_codec_row_bytes(name, coder.d));
            for (uint32_t row = 0; row < 2; row++) {
                exact first = exact_bytes(n, 0x00), second = exact_bytes(n, 0xff);
                fill_row(&coder, row, &a);
                memset(&b, 0xff, sizeof b);
                quire_row_pack(&coder, &a, first.bytes);
                quire_row_pack(&coder, &a, second.bytes);
                if (memcmp(first.bytes, second.bytes, n))
                    fail_msg("%s d %u: bytes left unwritten", name, coder.d);
                if (quire_row_unpack(&coder, first.bytes, &b) != QUIRE_OK || !same_coded(&coder, &a, &b))
                    fail_msg("%s d %u row %u: not the same row after unpacking", name, coder.d, row);
                free(first.memory);
                free(second.memory);
            }
        }
    }
}

/* What every bit of the bytes means is decided by this independent reading of them. */
static uint32_t bits_at(const uint8_t *bytes, size_t at, uint32_t n)
{
    uint32_t v = 0;
    for (uint32_t i = 0; i < n; i++) v |= (uint32_t)(bytes[(at + i) / 8] >> ((at + i) % 8) & 1) << i;
    return v;
}

static void common_form_is_a_bit_stream(void **state)
{
    (void)state;
    const char *names[] = {"a2g32", "a3g64",   "a4g128", "a5g32", "a6g64",
                           "a8g32", "h:a5g64", "r5",     "tq3",   "c:r6"};
    for (size_t i = 0; i < COUNT(names); i++) {
        quire_coder coder;
        static quire_coded_row row;
        uint8_t bytes[2 * QUIRE_MAX_D];
        assert_int_equal(quire_coder_init(&coder, quire_codec_get(names[i]), QUIRE_K, 80, 0), QUIRE_OK);
        fill_row(&coder, 1, &row);
        quire_row_pack(&coder, &row, bytes);
        uint32_t bits = coder.codec->info.bits;
        for (uint32_t j = 0; j < 80; j++)
            if (bits_at(bytes, (size_t)j * bits, bits) != row.code[j]) fail_msg("%s: code %u", names[i], j);
        const uint8_t *scales = bytes + (80 * bits + 31) / 32 * 4;
        for (uint32_t g = 0; g < coder.n_groups; g++) {
            assert_int_equal(quire_load16(scales + 2 * g), row.scale[g]);
            if (coder.codec->has_bias)
                assert_int_equal(quire_load16(scales + 2 * (coder.n_groups + g)), row.bias[g]);
        }
    }
}

/* Non-finite scales and values are refused, wherever they stand. */
static void damaged_scales_are_refused(void **state)
{
    (void)state;
    static quire_coded_row row;
    for (uint32_t c = 0; c < quire_codec_count(); c++) {
        for (uint32_t d = 64; d <= 80; d += 16) {
            quire_coder coder;
            uint8_t bytes[4 * QUIRE_MAX_D];
            if (!make_coder(&coder, c, QUIRE_K, d)) continue;
            fill_row(&coder, 0, &row);
            if (!coder.n_groups) {
                const float odd[] = {NAN, INFINITY, -INFINITY};
                for (int i = 0; i < 3; i++) {
                    fill_row(&coder, 0, &row);
                    row.value[d - 1] = odd[i];
                    quire_row_pack(&coder, &row, bytes);
                    assert_int_equal(quire_row_unpack(&coder, bytes, &row), QUIRE_EFORMAT);
                }
                continue;
            }
            const uint16_t odd[] = {0x7c00, 0xfc00, 0x7e00, 0xffff};
            for (uint32_t g = 0; g < coder.n_groups; g++) {
                for (size_t i = 0; i < COUNT(odd); i++) {
                    fill_row(&coder, 0, &row);
                    row.scale[g] = odd[i];
                    quire_row_pack(&coder, &row, bytes);
                    if (quire_row_unpack(&coder, bytes, &row) != QUIRE_EFORMAT)
                        fail_msg("%s d %u: scale %u = %04x is taken", coder.codec->info.name, d, g, odd[i]);
                    if (!coder.codec->has_bias) continue;
                    fill_row(&coder, 0, &row);
                    row.bias[g] = odd[i];
                    quire_row_pack(&coder, &row, bytes);
                    if (quire_row_unpack(&coder, bytes, &row) != QUIRE_EFORMAT)
                        fail_msg("%s d %u: bias %u = %04x is taken", coder.codec->info.name, d, g, odd[i]);
                }
            }
        }
    }
}

/* Any bytes with finite scales are some row: codes have no forbidden values. */
static void random_bytes_are_rows(void **state)
{
    (void)state;
    uint64_t seed = 77;
    static quire_coded_row row;
    for (uint32_t c = 0; c < quire_codec_count(); c++) {
        for (size_t s = 0; s < COUNT(head_sizes); s++) {
            quire_coder coder;
            float y[QUIRE_MAX_D];
            if (!make_coder(&coder, c, QUIRE_K, head_sizes[s])) continue;
            size_t n = quire_row_bytes(&coder);
            exact e = exact_bytes(n, 0);
            for (size_t i = 0; i < n; i++) e.bytes[i] = (uint8_t)random_bits(&seed);
            if (quire_row_unpack(&coder, e.bytes, &row) == QUIRE_OK) {
                quire_decode_row(&coder, NULL, &row, y);
                for (uint32_t i = 0; coder.n_groups && i < coder.d; i++)
                    if (!isfinite(y[i])) fail_msg("%s d %u: value %u", coder.codec->info.name, coder.d, i);
            }
            free(e.memory);
        }
    }
}

static const quire_form scale_forms[] = {QUIRE_F32, QUIRE_F16, QUIRE_BF16};

static void mlx_round_trip(void **state)
{
    (void)state;
    static quire_coded_row a, b;
    for (uint32_t c = 0; c < quire_codec_count(); c++) {
        for (size_t s = 0; s < COUNT(head_sizes); s++) {
            quire_coder coder;
            if (!make_coder(&coder, c, QUIRE_K, head_sizes[s])) continue;
            const char *name = coder.codec->info.name;
            bool is_mlx = quire_codec_has_mlx(coder.codec);
            fill_row(&coder, 0, &a);
            for (size_t f = 0; f < 2; f++) { /* bf16 rounds: below */
                quire_form form = scale_forms[f];
                exact words = exact_bytes(((size_t)coder.d * coder.codec->info.bits + 31) / 32 * 4, 0xee);
                exact scales = exact_bytes(coder.n_groups * quire_value_bytes(form), 0xee);
                exact biases = exact_bytes(coder.n_groups * quire_value_bytes(form), 0xee);
                quire_status to = quire_row_to_mlx(&coder, &a, words.bytes, scales.bytes, biases.bytes, form);
                memset(&b, 0xff, sizeof b);
                quire_status from =
                    quire_row_from_mlx(&coder, words.bytes, scales.bytes, biases.bytes, form, &b);
                quire_status expected = is_mlx ? QUIRE_OK : QUIRE_EUNSUPPORTED;
                if (to != expected || from != expected)
                    fail_msg("%s d %u: %s, %s", name, coder.d, quire_status_name(to),
                             quire_status_name(from));
                if (is_mlx) {
                    if (!same_coded(&coder, &a, &b))
                        fail_msg("%s d %u: another row comes back", name, coder.d);
                    float x[QUIRE_MAX_D], y[QUIRE_MAX_D];
                    quire_decode_row(&coder, NULL, &a, x);
                    quire_mlx_row_values(&coder, words.bytes, scales.bytes, biases.bytes, form, y);
                    if (memcmp(x, y, coder.d * sizeof *x)) fail_msg("%s d %u: other values", name, coder.d);
                }
                free(words.memory);
                free(scales.memory);
                free(biases.memory);
            }
        }
    }
}

/* One group of 32 whose scale and bias are given. */
static quire_status import(quire_form form, float scale, float bias, quire_coded_row *row)
{
    quire_coder coder;
    uint8_t words[16] = {0}, s[4], b[4];
    assert_int_equal(quire_coder_init(&coder, quire_codec_get("a4g32"), QUIRE_K, 32, 0), QUIRE_OK);
    quire_store_value(form, s, 0, scale);
    quire_store_value(form, b, 0, bias);
    return quire_row_from_mlx(&coder, words, s, b, form, row);
}

static void mlx_scales_that_do_not_fit(void **state)
{
    (void)state;
    static quire_coded_row row;
    assert_int_equal(import(QUIRE_BF16, 0x1.04p-3f, -1.5f, &row), QUIRE_OK);
    assert_int_equal(row.scale[0], quire_f32_to_f16(0x1.04p-3f));
    assert_int_equal(row.bias[0], quire_f32_to_f16(-1.5f));
    assert_int_equal(import(QUIRE_BF16, 65280, 0, &row), QUIRE_OK); /* the largest bf16 below 65504 */
    assert_int_equal(import(QUIRE_BF16, 0, 0, &row), QUIRE_OK);
    assert_int_equal(import(QUIRE_BF16, 65536, 0, &row), QUIRE_EMISMATCH);
    assert_int_equal(import(QUIRE_BF16, 1, 65536, &row), QUIRE_EMISMATCH);
    assert_int_equal(import(QUIRE_BF16, 0x1.02p-20f, 0, &row), QUIRE_EMISMATCH); /* subnormal in f16 */
    assert_int_equal(import(QUIRE_BF16, 1e-7f, 0, &row), QUIRE_EMISMATCH);
    assert_int_equal(import(QUIRE_BF16, NAN, 0, &row), QUIRE_EMISMATCH);
    assert_int_equal(import(QUIRE_F16, 0x1p-24f, 65504, &row), QUIRE_OK);
    assert_int_equal(import(QUIRE_F16, INFINITY, 0, &row), QUIRE_EMISMATCH);
    assert_int_equal(import(QUIRE_F16, 1, NAN, &row), QUIRE_EMISMATCH);
    assert_int_equal(import(QUIRE_F32, 0.1f, 1e-7f, &row), QUIRE_OK);
    assert_int_equal(row.scale[0], quire_f32_to_f16(0.1f));
    assert_int_equal(import(QUIRE_F32, 65519, 0, &row), QUIRE_OK); /* rounds to 65504 */
    assert_int_equal(import(QUIRE_F32, 65520, 0, &row), QUIRE_EMISMATCH);
    assert_int_equal(import(QUIRE_F32, 1, -INFINITY, &row), QUIRE_EMISMATCH);
    assert_int_equal(import(QUIRE_NATIVE, 1, 0, &row), QUIRE_EINVAL);
    assert_int_equal(import(QUIRE_MLX, 1, 0, &row), QUIRE_EINVAL);
}

/* bf16 scales: what came from bf16 goes back unchanged; our own f16 scales are rounded, to the nearest. */
static void mlx_bf16_scales(void **state)
{
    (void)state;
    quire_coder coder;
    static quire_coded_row row;
    uint8_t words[16], scales[2], biases[2];
    assert_int_equal(quire_coder_init(&coder, quire_codec_get("a4g32"), QUIRE_K, 32, 0), QUIRE_OK);
    assert_int_equal(import(QUIRE_BF16, 0x1.04p-3f, -1.5f, &row), QUIRE_OK);
    assert_int_equal(quire_row_to_mlx(&coder, &row, words, scales, biases, QUIRE_BF16), QUIRE_OK);
    assert_int_equal(quire_load16(scales), quire_f32_to_bf16(0x1.04p-3f));
    assert_int_equal(quire_load16(biases), quire_f32_to_bf16(-1.5f));
    row.scale[0] = quire_f32_to_f16(0x1.034p0f);
    assert_int_equal(quire_row_to_mlx(&coder, &row, words, scales, biases, QUIRE_BF16), QUIRE_OK);
    assert_int_equal(quire_load16(scales), quire_f32_to_bf16(0x1.04p0f));
}

/* ggml's bytes of one block, written out by hand. */
static void ggml_blocks(void **state)
{
    (void)state;
    quire_coder coder;
    static quire_coded_row row;
    uint8_t bytes[64];
    for (uint32_t j = 0; j < 32; j++) row.code[j] = (uint8_t)j;
    row.scale[0] = 0x1234;
    row.bias[0] = 0x5678;
    assert_int_equal(quire_coder_init(&coder, quire_codec_get("q5_1"), QUIRE_K, 32, 0), QUIRE_OK);
    quire_row_pack(&coder, &row, bytes);
    const uint8_t head[] = {0x34, 0x12, 0x78, 0x56, 0x00, 0x00, 0xff, 0xff, 0x00, 0x11, 0x22};
    assert_memory_equal(bytes, head, sizeof head);
    assert_int_equal(bytes[23], 0xff);
    assert_int_equal(quire_coder_init(&coder, quire_codec_get("h:q8_0"), QUIRE_K, 32, 0), QUIRE_OK);
    quire_row_pack(&coder, &row, bytes);
    const uint8_t signed_codes[] = {0x34, 0x12, 0x80, 0x81, 0x82};
    assert_memory_equal(bytes, signed_codes, sizeof signed_codes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(native_round_trip),
        cmocka_unit_test(common_form_is_a_bit_stream),
        cmocka_unit_test(damaged_scales_are_refused),
        cmocka_unit_test(random_bytes_are_rows),
        cmocka_unit_test(mlx_round_trip),
        cmocka_unit_test(mlx_scales_that_do_not_fit),
        cmocka_unit_test(mlx_bf16_scales),
        cmocka_unit_test(ggml_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
