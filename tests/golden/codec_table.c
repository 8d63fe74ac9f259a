/* SPDX-License-Identifier: MIT */
/* docs/codecs.md is the registry in words: this program writes it (argument: a path) and tests that it is current. */
#include <quire/quire.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char head[] =
    "# The codecs\n\n"
    "Made from the registry by `build/release/bin/golden_codec_table docs/codecs.md`; the test `golden_codec_table` fails\n"
    "if this page is out of date. [formats/codecs.md](formats/codecs.md) defines each codec exactly.\n\n"
    "## How to read a codec name\n\n"
    "A codec name says how the rows of K or V are stored; the number after the letters is the bits of a code. `f32`,\n"
    "`f16` and `bf16` are plain floats, not quantized. `a4g64` is MLX's affine format: 4-bit codes, and a scale and a\n"
    "bias for each group of 64 values (`g64`). `q8_0`, `q4_0`, `iq4_nl` and the other `q` and `iq` names are the block\n"
    "formats of llama.cpp, in blocks of 32 values. `r4` is a format of Quire: the row of a head is rotated (a Walsh-Hadamard\n"
    "transform, which spreads outliers over all channels), each value becomes one of 16 fixed levels,\n"
    "and the row has a single scale, chosen for the least error. `r8` has evenly spaced levels, and its scale follows\n"
    "from the largest value of the row. `tq4` is TurboQuant: the rotation and levels of `r4`,\n"
    "with the scale taken from the norm of the row. `tv4` is TurboQuant as mlx-vlm keeps it, with the signs, tables and norms\n"
    "of that program, for head sizes 16, 32, 64, 128, 256 and 512. Two prefixes change what is quantized: `h:` as in `h:a4g64` rotates\n"
    "the row first, and `c:` as in `c:r4` (K only) first removes a mean and weights the channels, both taken from a\n"
    "[profile](formats/profile.md) that is recorded once per model. In a pair such as `r6/r4` the first codec is for K\n"
    "and the second for V; one name alone stands for both. `safe`, `balanced`, `small`, `k8v4` and `k4v4` are not\n"
    "codecs but names for such pairs ([presets](policy.md#presets)).\n\n"
    "## The list\n\n"
    "Bits per value count codes, scales, biases and padding.\n\n"
    "| name | bits at head size 64 | 128 | 256 | sides | exchanges rows with | |\n"
    "|---|---|---|---|---|---|---|\n";

static size_t add(char *text, size_t size, size_t used, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text + used, size - used, format, args);
    va_end(args);
    if (n < 0 || (size_t)n >= size - used) abort();
    return used + (size_t)n;
}

static size_t write_table(char *text, size_t size)
{
    size_t used = add(text, size, 0, "%s", head);
    for (uint32_t i = 0; i < quire_codec_count(); i++) {
        const quire_codec_info *c = quire_codec_at(i);
        const char *with = c->flags & QUIRE_CODEC_MLX       ? "MLX"
                           : c->flags & QUIRE_CODEC_MLX_VLM ? "mlx-vlm"
                           : c->flags & QUIRE_CODEC_GGML    ? "ggml"
                                                            : "";
        used =
            add(text, size, used, "| `%s` | %.5g | %.5g | %.5g | %s | %s | %s |\n", c->name,
                quire_codec_bits(c->name, 64), quire_codec_bits(c->name, 128), quire_codec_bits(c->name, 256),
                c->flags & QUIRE_CODEC_CALIBRATED ? "K" : "K V", with, c->summary);
    }
    return used;
}

static char made[32768], kept[32768];

static void table_is_current(void **state)
{
    (void)state;
    const char *golden = getenv("QUIRE_GOLDEN");
    char path[4096];
    snprintf(path, sizeof path, "%s/../../docs/codecs.md", golden ? golden : "tests/golden");
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("%s cannot be read", path);
    size_t n = fread(kept, 1, sizeof kept - 1, f);
    fclose(f);
    kept[n] = 0;
    write_table(made, sizeof made);
    assert_string_equal(kept, made);
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        FILE *f = fopen(argv[1], "wb");
        if (!f) return 1;
        size_t n = write_table(made, sizeof made);
        bool good = fwrite(made, 1, n, f) == n;
        return fclose(f) == 0 && good ? 0 : 1;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(table_is_current)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
