/* SPDX-License-Identifier: MIT */
/*
 * Where every byte of a tile lies, stated a second time. Tiles are kept on disk and read by kernels, so nothing here may
 * be taken from src/tile.
 *
 *   D = head size rounded up to 16; t token, c channel
 *   vector and byte of a code   K: (t/16)*(D/4) + c/4, (t%16)*4 + c%4      V: (c/16)*16 + t/4, (c%16)*4 + t%4
 *   eight vectors are stored together, in lines of 64 bytes, by bit planes
 *     8 bits: 8 lines, one per vector
 *     4 bits: 4 lines; line j has vector 2j in the low halves of its bytes, 2j + 1 in the high ones
 *     2 bits: 2 lines; line j has vectors 4j to 4j + 3 in bits 2i, 2i + 1
 *     1 bit:  1 line; vector i in bit i
 *     3 = 2 + 1, 5 = 4 + 1, 6 = 4 + 2: the plane of the low bits first
 *   then f16 scales [group][64], then f16 biases [group][64] if the codec has them
 *   floats: K [t/16][c][16 tokens], V [c/16][t][16 channels]
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "codec/codec.h"
#include "support/cache_kit.h"
#include "support/codec_sizes.h"
#include "support/random.h"

#include <string.h>

#define ROWS 64u
#define GUARD 128u
#define COUNT(array) (sizeof(array) / sizeof *(array))

static const uint32_t sizes[] = {32, 40, 64, 80, 128, 576};

/* One codec, side and head size, with 64 rows. */
typedef struct subject {
    const char *codec;
    quire_side side;
    uint32_t d;
    quire_tile_format *format;
    quire_coder coder;
    quire_calibration cal;
    size_t bytes;
    float *x;          /* [64][d] */
    uint8_t *expected; /* the tile of all rows */
    uint8_t *guarded, *tile;
} subject;

static quire_profile *profiles[COUNT(sizes)];

/* ------------------------------------------------------- the table above */

static void put_plane(uint8_t *block, uint32_t line, uint32_t bits, uint32_t vector, uint32_t byte,
                      uint32_t code)
{
    uint32_t per_byte = 8 / bits;
    block[(line + vector / per_byte) * 64 + byte] |= (uint8_t)(code << vector % per_byte * bits);
}

static void put_code(uint8_t *tile, uint32_t bits, uint32_t vector, uint32_t byte, uint32_t code)
{
    uint8_t *block = tile + (size_t)(vector / 8) * bits * 64;
    uint32_t v = vector % 8;
    switch (bits) {
    case 3:
        put_plane(block, 0, 2, v, byte, code & 3);
        put_plane(block, 2, 1, v, byte, code >> 2);
        break;
    case 5:
        put_plane(block, 0, 4, v, byte, code & 15);
        put_plane(block, 4, 1, v, byte, code >> 4);
        break;
    case 6:
        put_plane(block, 0, 4, v, byte, code & 15);
        put_plane(block, 4, 2, v, byte, code >> 4);
        break;
    default: put_plane(block, 0, bits, v, byte, code);
    }
}

static void put_value(const subject *s, uint32_t D, uint32_t t, uint32_t c, float x)
{
    size_t i = s->side == QUIRE_K ? ((size_t)(t / 16) * D + c) * 16 + t % 16
                                  : ((size_t)(c / 16) * ROWS + t) * 16 + c % 16;
    if (s->coder.codec->info.bits == 32)
        memcpy(s->expected + 4 * i, &x, 4);
    else
        quire_store_value(s->coder.codec->float_form, s->expected, i, x);
}

static size_t expect(subject *s)
{
    uint32_t D = (s->d + 15) / 16 * 16, bits = s->coder.codec->info.bits;
    bool is_float = s->coder.codec->info.flags & QUIRE_CODEC_FLOAT;
    uint32_t group = s->coder.codec->info.group, n_groups = group ? (s->d + group - 1) / group : 1;
    size_t codes = (size_t)D * ROWS * bits / 8, scales = is_float ? 0 : (size_t)n_groups * ROWS * 2;
    size_t bytes = codes + scales * (s->coder.codec->has_bias ? 2 : 1);
    s->expected = (uint8_t *)calloc(bytes, 1);
    assert_non_null(s->expected);
    for (uint32_t t = 0; t < ROWS; t++) {
        quire_coded_row row;
        quire_encode_row(&s->coder, &s->cal, s->x + (size_t)t * s->d, &row, NULL);
        for (uint32_t c = 0; c < s->d; c++) {
            if (is_float)
                put_value(s, D, t, c, row.value[c]);
            else if (s->side == QUIRE_K)
                put_code(s->expected, bits, t / 16 * (D / 4) + c / 4, t % 16 * 4 + c % 4, row.code[c]);
            else
                put_code(s->expected, bits, c / 16 * 16 + t / 4, c % 16 * 4 + t % 4, row.code[c]);
        }
        for (uint32_t g = 0; g < n_groups && !is_float; g++) {
            size_t at = codes + ((size_t)g * ROWS + t) * 2;
            quire_store16(s->expected + at, row.scale[g]);
            if (s->coder.codec->has_bias) quire_store16(s->expected + at + scales, row.bias[g]);
        }
    }
    return bytes;
}

/* ------------------------------------------------------------------ subjects */

static bool subject_create(subject *s, uint32_t codec, quire_side side, uint32_t size)
{
    const quire_codec_info *info = quire_codec_at(codec);
    quire_profile *profile = info->flags & QUIRE_CODEC_CALIBRATED ? profiles[size] : NULL;
    if (profile && side == QUIRE_V) return false;
    if (!codec_takes(info, sizes[size], 0)) return false;
    *s = (subject){.codec = info->name, .side = side, .d = sizes[size]};
    quire_tile_format_options options = {sizeof(quire_tile_format_options), .side = side, .d = s->d,
                                         .profile = profile, .layer = profile ? 1 : 0};
    assert_int_equal(quire_tile_format_create(&s->format, s->codec, &options), QUIRE_OK);
    assert_int_equal(quire_coder_init(&s->coder, quire_codec_get(s->codec), side, s->d, 0), QUIRE_OK);
    if (profile) s->cal = quire_profile_head(profile, 1, 1);
    s->x = (float *)calloc((size_t)ROWS * s->d, sizeof(float));
    assert_non_null(s->x);
    rng r = {codec * 1000 + s->d + side};
    for (size_t i = 0; i < (size_t)ROWS * s->d; i++) s->x[i] = rng_normal(&r);
    s->bytes = expect(s);
    if (quire_tile_bytes(s->format) != s->bytes || s->bytes % 64)
        fail_msg("%s side %d d %u: %zu bytes, not %zu", s->codec, (int)side, s->d,
                 quire_tile_bytes(s->format), s->bytes);
    s->guarded = (uint8_t *)aligned_alloc(64, (s->bytes + 2 * GUARD + 63) / 64 * 64);
    assert_non_null(s->guarded);
    memset(s->guarded, 0xcd, s->bytes + 2 * GUARD);
    s->tile = s->guarded + GUARD;
    memset(s->tile, 0, s->bytes);
    return true;
}

static void subject_destroy(subject *s)
{
    quire_tile_format_destroy(s->format);
    free(s->x);
    free(s->expected);
    free(s->guarded);
}

static void encode(const subject *s, uint32_t row, uint32_t n, const float *x)
{
    quire_rows rows = {.size = sizeof(quire_rows), .form = QUIRE_F32, .data = x};
    if (quire_tile_encode(s->format, 1, s->tile, row, n, &rows, NULL)) fail_msg("%s: refused", s->codec);
}

static void encode_own(const subject *s, uint32_t row, uint32_t n)
{
    encode(s, row, n, s->x + (size_t)row * s->d);
}

static void compare(const subject *s, const char *when)
{
    for (size_t i = 0; i < GUARD; i++)
        if (s->guarded[i] != 0xcd || s->tile[s->bytes + i] != 0xcd)
            fail_msg("%s side %d d %u, %s: wrote outside the tile", s->codec, (int)s->side, s->d, when);
    for (size_t i = 0; i < s->bytes; i++)
        if (s->tile[i] != s->expected[i])
            fail_msg("%s side %d d %u, %s: byte %zu is %02x, not %02x", s->codec, (int)s->side, s->d, when, i,
                     s->tile[i], s->expected[i]);
}

static void for_all(void (*check)(subject *s))
{
    for (uint32_t codec = 0; codec < quire_codec_count(); codec++)
        for (uint32_t size = 0; size < COUNT(sizes); size++)
            for (uint32_t side = 0; side < 2; side++) {
                subject s;
                if (!subject_create(&s, codec, side ? QUIRE_V : QUIRE_K, size)) continue;
                check(&s);
                subject_destroy(&s);
            }
}

/* --------------------------------------------------------------------- tests */

static void check_layout(subject *s)
{
    encode_own(s, 0, ROWS);
    compare(s, "all rows at once");
}

static void layout(void **state)
{
    (void)state;
    for_all(check_layout);
}

/* Any order, some rows twice, some with other rows there before. */
static void check_independence(subject *s)
{
    uint32_t order[ROWS];
    rng r = {s->d + s->bytes};
    for (uint32_t i = 0; i < ROWS; i++) order[i] = i;
    for (uint32_t i = 0; i < ROWS; i++) {
        uint32_t at = rng_between(&r, i, ROWS - 1), x = order[at];
        order[at] = order[i];
        order[i] = x;
    }
    for (uint32_t i = 0; i < ROWS; i++) {
        if (i % 3 == 0) encode(s, order[i], 1, s->x + (size_t)order[ROWS - 1 - i] * s->d);
        encode_own(s, order[i], 1);
        if (i % 5 == 0) encode_own(s, order[i / 2], 1);
    }
    compare(s, "rows in a random order");
    encode(s, 17, 1, s->x);
    encode(s, 40, 20, s->x);
    encode_own(s, 40, 20);
    encode_own(s, 17, 1);
    compare(s, "rows replaced and put back");
}

static void independence(void **state)
{
    (void)state;
    for_all(check_independence);
}

/* A row alone is the row of the full tile and nothing else; cleared rows are zeros, their neighbours stay. */
static void check_clearing(subject *s)
{
    uint8_t *full = s->expected, *zero = (uint8_t *)calloc(s->bytes, 1);
    assert_non_null(zero);
    s->expected = zero;
    encode_own(s, 0, ROWS);
    quire_tile_clear(s->format, s->tile, 0, ROWS);
    compare(s, "all rows cleared");

    encode_own(s, 20, 9);
    uint8_t *part = (uint8_t *)malloc(s->bytes);
    assert_non_null(part);
    memcpy(part, s->tile, s->bytes);
    encode_own(s, 0, 20);
    encode_own(s, 29, ROWS - 29);
    s->expected = full;
    compare(s, "neighbours written around rows that were there");
    quire_tile_clear(s->format, s->tile, 0, 20);
    quire_tile_clear(s->format, s->tile, 29, ROWS); /* n beyond the end stops at the end */
    s->expected = part;
    compare(s, "neighbours cleared");
    for (size_t i = 0; i < s->bytes; i++) /* no bit that the full tile does not have at the same place */
        if (part[i] & ~full[i]) fail_msg("%s: byte %zu of a part is not of the whole", s->codec, i);
    s->expected = full;
    free(zero);
    free(part);
}

static void clearing(void **state)
{
    (void)state;
    for_all(check_clearing);
}

/* Rows of two other tiles, in another order, are the rows themselves; what is not a row is refused. */
static void check_gathering(subject *s)
{
    uint8_t *from = (uint8_t *)aligned_alloc(64, 2 * s->bytes);
    const void *tiles[ROWS];
    uint8_t rows[ROWS];
    assert_non_null(from);
    memset(from, 0, 2 * s->bytes);
    for (uint32_t t = 0; t < ROWS;
         t++) { /* the even ones from back to front in one tile, the odd ones in the other */
        quire_rows one = {.size = sizeof(quire_rows), .form = QUIRE_F32, .data = s->x + (size_t)t * s->d};
        rows[t] = (uint8_t)(ROWS - 1 - t / 2);
        tiles[t] = from + t % 2 * s->bytes;
        assert_int_equal(quire_tile_encode(s->format, 1, from + t % 2 * s->bytes, rows[t], 1, &one, NULL),
                         QUIRE_OK);
    }
    assert_int_equal(quire_tile_gather(s->format, s->tile, 0, 20, tiles, rows), QUIRE_OK);
    assert_int_equal(quire_tile_gather(s->format, s->tile, 20, ROWS - 20, tiles + 20, rows + 20), QUIRE_OK);
    compare(s, "rows gathered from two tiles");
    assert_int_equal(quire_tile_gather(s->format, s->tile, 1, ROWS, tiles, rows), QUIRE_EINVAL);
    rows[ROWS - 1] = ROWS;
    assert_int_equal(quire_tile_gather(s->format, s->tile, 0, ROWS, tiles, rows), QUIRE_EINVAL);
    tiles[0] = NULL;
    assert_int_equal(quire_tile_gather(s->format, s->tile, 0, 1, tiles, rows), QUIRE_EINVAL);
    compare(s, "refused rows");
    free(from);
}

static void gathering(void **state)
{
    (void)state;
    for_all(check_gathering);
}

/* Reading back: values and native bytes do not depend on the row's place. */
static void check_reading(subject *s)
{
    uint8_t native[2][QUIRE_MAX_D * 4 + 64];
    float y[2][QUIRE_MAX_D];
    size_t row_bytes = quire_codec_row_bytes(s->codec, s->d);
    encode_own(s, 0, ROWS);
    for (uint32_t t = 0; t < ROWS; t += 7) {
        quire_coded_row row;
        quire_encode_row(&s->coder, &s->cal, s->x + (size_t)t * s->d, &row, NULL);
        quire_decode_row(&s->coder, &s->cal, &row, y[0]);
        quire_row_pack(&s->coder, &row, native[0]);
        quire_rows_out values = {.size = sizeof(quire_rows_out), .form = QUIRE_F32, .data = y[1]};
        quire_rows_out bytes = {.size = sizeof(quire_rows_out), .form = QUIRE_NATIVE, .data = native[1]};
        native[1][row_bytes] = 0xcd;
        assert_int_equal(quire_tile_decode(s->format, 1, s->tile, t, 1, &values), QUIRE_OK);
        assert_int_equal(quire_tile_decode(s->format, 1, s->tile, t, 1, &bytes), QUIRE_OK);
        if (memcmp(y[0], y[1], s->d * sizeof(float)) || memcmp(native[0], native[1], row_bytes) ||
            native[1][row_bytes] != 0xcd)
            fail_msg("%s side %d d %u: row %u reads otherwise", s->codec, (int)s->side, s->d, t);
        if (s->coder.codec->info.flags & QUIRE_CODEC_CALIBRATED)
            encode(s, t, 1, s->x + (size_t)(t ? t - 1 : 1) * s->d);
        quire_rows back = {.size = sizeof(quire_rows), .form = QUIRE_NATIVE, .data = native[0]};
        assert_int_equal(quire_tile_encode(s->format, 1, s->tile, t, 1, &back, NULL), QUIRE_OK);
    }
    compare(s, "rows written back from native bytes");
}

static void reading(void **state)
{
    (void)state;
    for_all(check_reading);
}

/* Native bytes can be damaged: a scale or bias that is not finite. Nothing is written then, also not the rows before it. */
static void check_damage(subject *s)
{
    enum { N = 8, BAD = 3 };
    static uint8_t native[N][QUIRE_MAX_D * 4 + 64];
    if (s->coder.codec->info.flags & QUIRE_CODEC_FLOAT) return;
    size_t row_bytes = quire_codec_row_bytes(s->codec, s->d);
    encode_own(s, 0, ROWS);
    quire_rows_out out = {.size = sizeof(quire_rows_out),
                          .form = QUIRE_NATIVE,
                          .data = native,
                          .token_stride = sizeof native[0]};
    quire_rows in = {
        .size = sizeof(quire_rows), .form = QUIRE_NATIVE, .data = native, .token_stride = sizeof native[0]};
    assert_int_equal(quire_tile_decode(s->format, 1, s->tile, 20, N, &out), QUIRE_OK);
    uint32_t n_bad = 0, n_scales = (s->coder.codec->has_bias ? 2 : 1) * s->coder.n_groups;
    for (size_t at = 0; at < row_bytes; at += 2) { /* scales lie at even places in all of these forms */
        uint8_t kept[2];
        quire_coded_row row;
        memcpy(kept, native[BAD] + at, 2);
        quire_store16(native[BAD] + at, at % 4 ? 0x7c00 : 0xfe00);
        bool is_damaged = quire_row_unpack(&s->coder, native[BAD], &row);
        quire_status status = quire_tile_encode(s->format, 1, s->tile, 40, N, &in, NULL);
        assert_int_equal(status, is_damaged ? QUIRE_EFORMAT : QUIRE_OK);
        memcpy(native[BAD] + at, kept, 2);
        n_bad += is_damaged;
        if (is_damaged) compare(s, "damaged rows");
        encode_own(s, 40, N);
    }
    assert_int_equal(n_bad, n_scales);
    compare(s, "after damaged rows");
}

static void damage(void **state)
{
    (void)state;
    for_all(check_damage);
}

static int create_profiles(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < COUNT(sizes); i++) {
        quire_geometry g = kit_geometry(2, sizes[i], sizes[i]);
        profiles[i] = kit_profile(&g, i + 1, NULL);
    }
    return 0;
}

static int destroy_profiles(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < COUNT(sizes); i++) quire_profile_destroy(profiles[i]);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layout),    cmocka_unit_test(independence), cmocka_unit_test(clearing),
        cmocka_unit_test(gathering), cmocka_unit_test(reading),      cmocka_unit_test(damage),
    };
    return cmocka_run_group_tests(tests, create_profiles, destroy_profiles);
}
