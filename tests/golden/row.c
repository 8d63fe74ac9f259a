/* SPDX-License-Identifier: MIT */
/* Quire's own row codecs against a second implementation in numpy: equal codes, equal scales. */
#include "golden.h"

#include <math.h>

static const char *const names[] = {"r2", "r3", "r4", "r5", "r6", "r8", "tq2", "tq3", "tq4"};
static const uint32_t sizes[] = {64, 80, 128, 256, 576};
#define N_NAMES (sizeof names / sizeof names[0])
#define N_SIZES (sizeof sizes / sizeof sizes[0])

/* Some rows are larger than what encoding takes in, to reach scales that f16 cannot hold: these go past that step. */
static void encode(const quire_coder *coder, const float *x, quire_coded_row *coded)
{
    float y[QUIRE_MAX_D];
    quire_counts counts = {.size = sizeof(quire_counts)};
    bool in_range = true;
    for (uint32_t i = 0; i < coder->d; i++) in_range &= fabsf(x[i]) <= QUIRE_F16_MAX;
    if (in_range) {
        quire_encode_row(coder, NULL, x, coded, NULL);
        return;
    }
    memcpy(y, x, coder->d * sizeof *y);
    quire_rotate(coder, y);
    coder->codec->encode(coder, y, coded, &counts);
}

static void compare(const gold_file *file, const char *name, quire_side side, uint32_t d)
{
    char letter = side == QUIRE_K ? 'K' : 'V';
    const gold_array *x = golden_array(file, "x_d%u", d);
    const gold_array *codes = golden_array(file, "%s_%c_d%u_codes", name, letter, d);
    const gold_array *scales = golden_array(file, "%s_%c_d%u_scales", name, letter, d);
    quire_coder coder = golden_coder(name, side, d);
    for (uint32_t r = 0; r < (uint32_t)x->dim[0]; r++) {
        const uint8_t *code = (const uint8_t *)codes->data + (size_t)r * d;
        uint16_t scale = quire_load16((const uint8_t *)scales->data + 2 * r);
        quire_coded_row coded;
        encode(&coder, (const float *)x->data + (size_t)r * d, &coded);
        for (uint32_t i = 0; i < d; i++)
            if (coded.code[i] != code[i])
                fail_msg("%s %c d %u row %u (%s): code %u is %u, expected %u", name, letter, d, r,
                         golden_family(file, r), i, coded.code[i], code[i]);
        if (coded.scale[0] != scale)
            fail_msg("%s %c d %u row %u (%s): scale %04x, expected %04x", name, letter, d, r,
                     golden_family(file, r), coded.scale[0], scale);
    }
}

static void encode_as_numpy(void **state)
{
    (void)state;
    gold_file *file = golden_open("row.gold");
    for (size_t s = 0; s < N_SIZES; s++) {
        for (size_t i = 0; i < N_NAMES; i++) {
            compare(file, names[i], QUIRE_K, sizes[s]);
            if (names[i][0] == 'r') compare(file, names[i], QUIRE_V, sizes[s]);
        }
    }
    gold_close(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(encode_as_numpy)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
