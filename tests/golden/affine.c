/* SPDX-License-Identifier: MIT */
/* Affine rows against mx.quantize: equal codes for f16, bf16 and f32 input; scales are those of MLX rounded to f16. */
#include "golden.h"

typedef struct type_case {
    const char *name;
    quire_form form;
} type_case;

static const type_case types[] = {{"f16", QUIRE_F16}, {"bf16", QUIRE_BF16}, {"f32", QUIRE_F32}};
static const uint32_t widths[] = {2, 3, 4, 5, 6, 8}, groups[] = {32, 64, 128};

static void compare_rows(const gold_file *file, const type_case *type, uint32_t bits, uint32_t group)
{
    char name[16];
    snprintf(name, sizeof name, "a%ug%u", bits, group);
    const gold_array *x = golden_array(file, "x_%s", type->name);
    const gold_array *packed = golden_array(file, "%s_b%u_g%u_packed", type->name, bits, group);
    /* MLX rounds scales to the type of its input, ours are f16 always. Rounding bf16 again would prove little, so the
     * file has the scales of the same bf16 rows before that rounding. */
    bool is_bf16 = type->form == QUIRE_BF16;
    quire_form scale_form = is_bf16 ? QUIRE_F32 : type->form;
    const char *part = is_bf16 ? "32" : "";
    const gold_array *scales = golden_array(file, "%s_b%u_g%u_scales%s", type->name, bits, group, part);
    const gold_array *biases = golden_array(file, "%s_b%u_g%u_biases%s", type->name, bits, group, part);
    uint32_t n_rows = (uint32_t)x->dim[0], d = (uint32_t)x->dim[1];
    quire_coder coder = golden_coder(name, QUIRE_K, d);
    size_t words_bytes = (size_t)d * bits / 8;
    assert_int_equal(packed->bytes, n_rows * words_bytes);
    assert_int_equal(scales->dim[1], coder.n_groups);

    for (uint32_t r = 0; r < n_rows; r++) {
        float row[QUIRE_MAX_D];
        quire_coded_row coded;
        uint8_t bytes[QUIRE_MAX_D * 2];
        for (uint32_t i = 0; i < d; i++) row[i] = quire_load_value(type->form, x->data, (size_t)r * d + i);
        quire_encode_row(&coder, NULL, row, &coded, NULL);
        quire_row_pack(&coder, &coded, bytes);
        if (memcmp(bytes, (const uint8_t *)packed->data + r * words_bytes, words_bytes))
            fail_msg("%s %s row %u (%s): codes differ", name, type->name, r, golden_family(file, r));
        for (uint32_t g = 0; g < coder.n_groups; g++) {
            float s = quire_load_value(scale_form, scales->data, r * coder.n_groups + g);
            float b = quire_load_value(scale_form, biases->data, r * coder.n_groups + g);
            if (quire_f32_to_f16(s) != coded.scale[g] || quire_f32_to_f16(b) != coded.bias[g])
                fail_msg("%s %s row %u (%s) group %u: scale %g and bias %g, MLX has %g and %g", name,
                         type->name, r, golden_family(file, r), g, (double)quire_f16_to_f32(coded.scale[g]),
                         (double)quire_f16_to_f32(coded.bias[g]), (double)s, (double)b);
        }
    }
}

static void encode_as_mlx(void **state)
{
    (void)state;
    gold_file *file = golden_open("affine.gold");
    for (size_t t = 0; t < 3; t++)
        for (size_t b = 0; b < 6; b++)
            for (size_t g = 0; g < 3; g++) compare_rows(file, &types[t], widths[b], groups[g]);
    gold_close(file);
}

/* MLX's own arrays of f16 and f32 rows are taken over as the very row that encoding would have made. */
static void import_rows(const gold_file *file, const type_case *type, uint32_t bits, uint32_t group)
{
    char name[16];
    snprintf(name, sizeof name, "a%ug%u", bits, group);
    const gold_array *x = golden_array(file, "x_%s", type->name);
    const uint8_t *words = golden_array(file, "%s_b%u_g%u_packed", type->name, bits, group)->data;
    const uint8_t *scales = golden_array(file, "%s_b%u_g%u_scales", type->name, bits, group)->data;
    const uint8_t *biases = golden_array(file, "%s_b%u_g%u_biases", type->name, bits, group)->data;
    uint32_t n_rows = (uint32_t)x->dim[0], d = (uint32_t)x->dim[1];
    quire_coder coder = golden_coder(name, QUIRE_K, d);
    size_t words_bytes = (size_t)d * bits / 8, scale_bytes = coder.n_groups * quire_value_bytes(type->form);

    for (uint32_t r = 0; r < n_rows; r++) {
        float row[QUIRE_MAX_D];
        quire_coded_row coded, taken;
        for (uint32_t i = 0; i < d; i++) row[i] = quire_load_value(type->form, x->data, (size_t)r * d + i);
        quire_encode_row(&coder, NULL, row, &coded, NULL);
        quire_status status = quire_row_from_mlx(&coder, words + r * words_bytes, scales + r * scale_bytes,
                                                 biases + r * scale_bytes, type->form, &taken);
        if (status != QUIRE_OK) fail_msg("%s %s row %u: %s", name, type->name, r, quire_status_name(status));
        if (memcmp(taken.code, coded.code, d) || memcmp(taken.scale, coded.scale, 2 * coder.n_groups) ||
            memcmp(taken.bias, coded.bias, 2 * coder.n_groups))
            fail_msg("%s %s row %u (%s): imported and encoded rows differ", name, type->name, r,
                     golden_family(file, r));
    }
}

static void import_from_mlx(void **state)
{
    (void)state;
    gold_file *file = golden_open("affine.gold");
    for (size_t b = 0; b < 6; b++) {
        for (size_t g = 0; g < 3; g++) {
            import_rows(file, &types[0], widths[b], groups[g]);
            import_rows(file, &types[2], widths[b], groups[g]);
        }
    }
    gold_close(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(encode_as_mlx), cmocka_unit_test(import_from_mlx)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
