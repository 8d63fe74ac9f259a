/* SPDX-License-Identifier: MIT */
/* What the golden tests of codecs share: opening a file and naming its rows. */
#ifndef QUIRE_TESTS_GOLDEN_H
#define QUIRE_TESTS_GOLDEN_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "codec/codec.h"
#include "gold.h"

static inline gold_file *golden_open(const char *name)
{
    const char *folder = getenv("QUIRE_GOLDEN");
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", folder ? folder : "tests/golden", name);
    gold_file *file = gold_open(path);
    if (!file) fail_msg("%s cannot be read; QUIRE_GOLDEN names the folder", path);
    return file;
}

/* The array of a name made as by printf; it must be there. */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static inline const gold_array *
golden_array(const gold_file *file, const char *format, ...)
{
    char name[64];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    const gold_array *array = gold_find(file, name);
    if (!array) fail_msg("no array %s", name);
    return array;
}

/* Line `row` of the array "families", for messages. */
static inline const char *golden_family(const gold_file *file, uint32_t row)
{
    static char line[64];
    const gold_array *text = golden_array(file, "families");
    const char *at = (const char *)text->data, *end = at + text->bytes;
    for (; row && at < end; row--) at = (const char *)memchr(at, '\n', (size_t)(end - at)) + 1;
    size_t n = 0;
    while (at + n < end && at[n] != '\n' && n + 1 < sizeof line) n++;
    memcpy(line, at, n);
    line[n] = 0;
    return line;
}

static inline quire_coder golden_coder(const char *codec, quire_side side, uint32_t d)
{
    quire_coder coder;
    if (quire_coder_init(&coder, quire_codec_get(codec), side, d, 0) != QUIRE_OK)
        fail_msg("%s: cannot be used with head size %u", codec, d);
    return coder;
}

#endif
