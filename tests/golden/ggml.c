/* SPDX-License-Identifier: MIT */
/* ggml's block types against llama.cpp's own CPU backend: equal bytes, equal decoded values. */
#include "golden.h"

static const char *const names[] = {"q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"};
#define N_NAMES (sizeof names / sizeof names[0])

static void compare_type(const gold_file *file, const char *name)
{
    const gold_array *x = golden_array(file, "x");
    const gold_array *rows = golden_array(file, "%s_rows", name);
    const gold_array *values = golden_array(file, "%s_dequant", name);
    uint32_t n_rows = (uint32_t)x->dim[0], d = (uint32_t)x->dim[1];
    quire_coder coder = golden_coder(name, QUIRE_K, d);
    size_t row_bytes = quire_row_bytes(&coder);
    assert_int_equal(rows->dim[1], row_bytes);

    for (uint32_t r = 0; r < n_rows; r++) {
        /* Codes of blocks that ggml leaves undefined are zeros in the file, and in what we write. */
        const uint8_t *expected = (const uint8_t *)rows->data + r * row_bytes;
        const float *decoded = (const float *)values->data + (size_t)r * d;
        quire_coded_row coded, taken;
        uint8_t bytes[QUIRE_MAX_D * 2];
        float y[QUIRE_MAX_D];
        quire_encode_row(&coder, NULL, (const float *)x->data + (size_t)r * d, &coded, NULL);
        quire_row_pack(&coder, &coded, bytes);
        for (size_t i = 0; i < row_bytes; i++)
            if (bytes[i] != expected[i])
                fail_msg("%s row %u (%s): byte %zu is %02x, ggml writes %02x", name, r,
                         golden_family(file, r), i, bytes[i], expected[i]);

        if (quire_row_unpack(&coder, expected, &taken) != QUIRE_OK)
            fail_msg("%s row %u (%s): refused", name, r, golden_family(file, r));
        quire_decode_row(&coder, NULL, &taken, y);
        for (uint32_t i = 0; i < d; i++)
            if (y[i] != decoded[i])
                fail_msg("%s row %u (%s): value %u is %g, ggml reads %g", name, r, golden_family(file, r), i,
                         (double)y[i], (double)decoded[i]);
    }
}

static void encode_and_decode_as_ggml(void **state)
{
    (void)state;
    gold_file *file = golden_open("ggml.gold");
    for (size_t i = 0; i < N_NAMES; i++) compare_type(file, names[i]);
    gold_close(file);
}

/* The file holds rows where ggml's two versions of q8_0 differ; without them the test could not tell them apart. */
static void versions_of_q8_0_differ(void **state)
{
    (void)state;
    gold_file *file = golden_open("ggml.gold");
    const gold_array *x86 = golden_array(file, "q8_0_rows"), *ref = golden_array(file, "q8_0_ref_rows");
    assert_int_equal(x86->bytes, ref->bytes);
    assert_memory_not_equal(x86->data, ref->data, ref->bytes);
    gold_close(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(encode_and_decode_as_ggml),
                                       cmocka_unit_test(versions_of_q8_0_differ)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
