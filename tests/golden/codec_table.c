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
    "Made from the registry by `build/release/bin/golden_codec_table docs/codecs.md`; a test fails when it is not\n"
    "current. Bits per value count everything: codes, scales, biases, padding. What each one does exactly:\n"
    "[formats/codecs.md](formats/codecs.md).\n\n"
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
        const char *with = c->flags & QUIRE_CODEC_MLX ? "MLX" : c->flags & QUIRE_CODEC_GGML ? "ggml" : "";
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
