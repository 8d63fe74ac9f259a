/* SPDX-License-Identifier: MIT */
/*
 * Every instruction set of this machine against C: the same bytes in tiles, the same counts, the same decoded rows, whatever
 * the input. Tiles and rows end at a page that cannot be touched. A failure names the seed; SEED=n repeats that case alone. With an argument n, one case of n runs.
 */
#define _GNU_SOURCE /* MAP_ANONYMOUS */
#include "codec_rows.h"

#include "codec/row_kernels.h"
#include "kernels/kernels.h" /* unused: the three tables of variants have distinct names */
#include "support/cache_kit.h"
#include "support/random.h"
#include "tile/place_kernels.h"

#include <float.h>
#include <sys/mman.h>
#include <unistd.h>

#define ROWS 64u
#define MAX_ISAS 8u

typedef struct shape {
    uint32_t d, d_v; /* d_v: of V in K */
} shape;

/* 40 and 100 are no whole vectors of 16. With d_v 72 rotations have blocks of 8. */
static const shape shapes[] = {{16, 0},  {40, 0},  {48, 0},  {64, 0},    {80, 0},
                               {80, 72}, {96, 0},  {100, 0}, {112, 0},   {128, 0},
                               {192, 0}, {256, 0}, {512, 0}, {576, 512}, {1024, 0}};

static const char *isas[MAX_ISAS];
static uint32_t n_isas;
static uint64_t every = 1;
static quire_profile *profiles[COUNT(shapes)];

/* ------------------------------------------------------------------- memory */

/* Bytes that end at a guard page; what lies before them is filled with a pattern. */
typedef struct guarded {
    uint8_t *map, *data;
    size_t map_bytes, before;
} guarded;

#define PATTERN 0xa5

static guarded guarded_create(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), n = (bytes + page - 1) / page * page + page;
    guarded g = {.map_bytes = n + page, .before = n - bytes};
    g.map = (uint8_t *)mmap(NULL, g.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(g.map != MAP_FAILED);
    assert_int_equal(mprotect(g.map + n, page, PROT_NONE), 0);
    memset(g.map, PATTERN, g.before);
    g.data = g.map + g.before;
    return g;
}

static bool guarded_is_intact(const guarded *g)
{
    uint8_t wrong = 0;
    for (size_t i = 0; i < g->before; i++) wrong |= g->map[i] ^ PATTERN;
    return !wrong;
}

static void guarded_destroy(guarded *g)
{
    munmap(g->map, g->map_bytes);
}

/* --------------------------------------------------------------------- rows */

static float any_bits(rng *r)
{
    return quire_float_of((uint32_t)(rng_bits(r) >> 32));
}

/* A power of two from 2^-20 to 2^19. */
static float any_size(rng *r)
{
    return ldexpf(1, (int)rng_below(r, 40) - 20);
}

static const quire_form forms[] = {QUIRE_F32, QUIRE_F16, QUIRE_BF16};

enum { N_KINDS = 21 };

static void make_row(rng *r, uint32_t kind, float *x, uint32_t d)
{
    float size = any_size(r);
    uint32_t at = rng_below(r, d), top = (2u << rng_between(r, 1, 7)) - 1;
    for (uint32_t i = 0; i < d; i++) {
        float normal = rng_normal(r), sign = rng_below(r, 2) ? -1.0f : 1.0f;
        switch (kind) {
        default: x[i] = normal; break;
        case 1: x[i] = size * normal; break;
        case 2: x[i] = rng_below(r, 20) ? normal : 50 * normal; break; /* outliers */
        case 3: x[i] = size; break;                                    /* constant */
        case 4: x[i] = -size; break;
        case 5: x[i] = 0; break;
        case 6: x[i] = sign * 0.0f; break;
        case 7:
            x[i] = rng_below(r, 2) ? sign * 0.0f : fabsf(normal);
            break; /* least is a zero of either sign */
        case 8: x[i] = rng_below(r, 2) ? sign * 0.0f : -fabsf(normal); break; /* largest */
        case 9: x[i] = sign * quire_float_of(rng_below(r, 1u << 23)); break;  /* denormal */
        case 10: x[i] = 1e-20f * normal; break;                               /* squares underflow */
        case 11: x[i] = 3e4f * normal; break;                                 /* near the limit of f16 */
        case 12: x[i] = sign * 65504.0f; break;
        case 13: x[i] = any_bits(r); break; /* NaN, infinity, anything */
        case 14:                            /* halves between codes: ties of MLX's and ggml's rules */
            x[i] = size * (i % 16 ? 0.5f * (float)rng_below(r, 2 * top) : (float)top);
            break;
        case 15: x[i] = size * (float)((int)rng_below(r, 255) - 127); break; /* whole numbers */
        case 16: x[i] = i == at ? size * normal : 0; break;                  /* a single one */
        case 17: x[i] = i / 32 == at / 32 ? 1e4f * normal : normal; break;   /* one group */
        case 18: x[i] = i % 2 ? size : -size; break;                         /* both ends as far from zero */
        case 19: x[i] = i == at ? (rng_below(r, 2) ? NAN : sign * INFINITY) : 1e-7f * normal; break;
        case 20:
            x[i] = i / 4 == at / 4 ? sign * 3e38f : normal;
            break; /* sums overflow, in some channels only */
        }
    }
}

/* ROWS rows of a form. Every kind comes, the usual one most often. */
static void make_rows(rng *r, quire_form form, uint8_t *data, uint32_t d)
{
    float x[QUIRE_MAX_D];
    size_t one = quire_value_bytes(form);
    for (uint32_t t = 0; t < ROWS; t++, data += d * one) {
        uint32_t kind = rng_below(r, 2 * N_KINDS);
        make_row(r, kind < N_KINDS ? kind : rng_below(r, 3), x, d);
        for (uint32_t i = 0; i < d; i++) {
            if (form == QUIRE_F32 || kind != 13) {
                quire_store_value(form, data, i, x[i]);
            } else {
                uint16_t h = (uint16_t)rng_bits(r);
                memcpy(data + 2 * i, &h, 2);
            }
        }
    }
}

/* Some rows become such that one channel stands out after the rotation, or only a few are not zero. */
static void add_peaks(rng *r, const quire_coder *coder, quire_form form, uint8_t *data)
{
    size_t one = quire_value_bytes(form);
    for (uint32_t t = rng_below(r, 8); t < ROWS; t += 8) {
        float x[QUIRE_MAX_D], noise = rng_below(r, 2) ? 1.0f : 0.0f;
        for (uint32_t i = 0; i < coder->d; i++) x[i] = noise * rng_normal(r);
        for (uint32_t n = rng_between(r, 1, 3); n; n--)
            x[rng_below(r, coder->d)] = ldexpf(4, (int)rng_below(r, 8));
        quire_unrotate(coder, x);
        for (uint32_t i = 0; i < coder->d; i++) quire_store_value(form, data + t * coder->d * one, i, x[i]);
    }
}

/* ----------------------------------------------------------------- one case */

typedef struct test_case {
    const char *codec;
    quire_tile_format *format;
    quire_form form;
    uint32_t d;
    guarded rows, tile, out;
    uint8_t *expected, *decoded;
    uint64_t seed;
} test_case;

static void differ(const test_case *c, const char *isa, const char *what)
{
    fail_msg("%s d %u form %d with %s: %s (SEED=%llu)", c->codec, c->d, (int)c->form, isa, what,
             (unsigned long long)c->seed);
}

/* Rows into the tile, a few runs at a time. Which ones depends on the seed only. */
static quire_counts encode(const test_case *c, uint8_t *tile, bool all)
{
    rng r = {c->seed};
    quire_counts counts = {.size = sizeof(quire_counts)};
    size_t row_bytes = c->d * quire_value_bytes(c->form);
    for (uint32_t runs = all ? 1 : 8; runs; runs--) {
        uint32_t row = all ? 0 : rng_below(&r, ROWS);
        uint32_t n = all ? ROWS : rng_between(&r, 1, rng_below(&r, 3) ? 1 : ROWS - row);
        uint32_t from = rng_below(&r, ROWS - n + 1);
        quire_rows rows = {
            .size = sizeof(quire_rows), .form = c->form, .data = c->rows.data + from * row_bytes};
        assert_int_equal(quire_tile_encode(c->format, 1, tile, row, n, &rows, &counts), QUIRE_OK);
    }
    return counts;
}

/* C first, into c->expected; then everything else. What was in the tile before is `before`, or nothing. */
static void compare_encoding(test_case *c, const uint8_t *before)
{
    size_t bytes = quire_tile_bytes(c->format);
    quire_counts expected = {.size = sizeof(quire_counts)};
    for (uint32_t i = 0; i < n_isas; i++) {
        uint8_t *tile = i ? c->tile.data : c->expected;
        if (before)
            memcpy(tile, before, bytes);
        else
            memset(tile, 0, bytes);
        assert_int_equal(quire_isa_use(isas[i]), QUIRE_OK);
        quire_counts counts = encode(c, tile, !before);
        if (i == 0) {
            expected = counts;
            continue;
        }
        if (memcmp(tile, c->expected, bytes)) differ(c, isas[i], "other bytes");
        if (counts.nan != expected.nan || counts.saturated != expected.saturated || counts.recoded)
            differ(c, isas[i], "other counts");
        if (!guarded_is_intact(&c->tile)) differ(c, isas[i], "wrote before the tile");
    }
}

static void compare_decoding(const test_case *c)
{
    size_t row_bytes = c->d * quire_value_bytes(c->form), bytes = quire_tile_bytes(c->format);
    memcpy(c->tile.data, c->expected, bytes);
    for (uint32_t i = 0; i < n_isas; i++) {
        quire_rows_out out = {
            .size = sizeof(quire_rows_out), .form = c->form, .data = i ? c->out.data : c->decoded};
        assert_int_equal(quire_isa_use(isas[i]), QUIRE_OK);
        assert_int_equal(quire_tile_decode(c->format, 1, c->tile.data, 0, ROWS, &out), QUIRE_OK);
        if (i && memcmp(c->out.data, c->decoded, ROWS * row_bytes)) differ(c, isas[i], "decodes otherwise");
    }
    if (!guarded_is_intact(&c->out)) differ(c, "any", "wrote before the rows");
    if (memcmp(c->tile.data, c->expected, bytes)) differ(c, "any", "reading changed the tile");
}

/* Row codecs that search for their scale: ten times slower than others in C. */
static bool has_search(const quire_codec_info *info)
{
    return !info->group && info->bits < 8;
}

static void run_case(uint32_t codec, quire_side side, uint32_t at, quire_form form, uint64_t seed)
{
    const quire_codec_info *info = quire_codec_at(codec);
    shape s = shapes[at];
    if (side == QUIRE_V && (s.d_v || (info->flags & QUIRE_CODEC_CALIBRATED))) return;
    if (!codec_takes(info, s.d, s.d_v)) return;
    if (has_search(info) && s.d >= 512 && form != forms[seed / 6 % 3]) return; /* one of the forms */
    quire_tile_format_options options = {sizeof(quire_tile_format_options), .side = side, .d = s.d,
                                         .d_v = s.d_v};
    if (info->flags & QUIRE_CODEC_CALIBRATED) {
        options.profile = profiles[at];
        options.layer = 1;
    }
    test_case c = {.codec = info->name, .form = form, .d = s.d, .seed = seed};
    assert_int_equal(quire_tile_format_create(&c.format, info->name, &options), QUIRE_OK);
    size_t bytes = quire_tile_bytes(c.format), row_bytes = s.d * quire_value_bytes(form);
    c.rows = guarded_create(ROWS * row_bytes + (seed % 5 == 4)); /* then at an odd address */
    c.out = guarded_create(ROWS * row_bytes);
    c.tile = guarded_create(bytes);
    c.expected = (uint8_t *)aligned_alloc(64, bytes);
    c.decoded = (uint8_t *)malloc(ROWS * row_bytes);
    uint8_t *before = (uint8_t *)malloc(bytes);
    assert_true(c.expected && c.decoded && before);

    rng r = {seed};
    make_rows(&r, form, c.rows.data, s.d);
    add_peaks(&r, &c.format->coder, form, c.rows.data);
    for (size_t i = 0; i < bytes; i++) before[i] = (uint8_t)rng_bits(&r);
    compare_encoding(&c, before);
    compare_encoding(&c, NULL);
    compare_decoding(&c);

    free(before);
    free(c.decoded);
    free(c.expected);
    guarded_destroy(&c.tile);
    guarded_destroy(&c.out);
    guarded_destroy(&c.rows);
    quire_tile_format_destroy(c.format);
}

/* -------------------------------------------------------------------- tests */

/* The seed tells codec, side, shape and form, so it is enough to repeat a case. */
static void run_seed(uint64_t seed)
{
    uint64_t rest = seed;
    uint32_t side = (uint32_t)(rest % 2), form = (uint32_t)(rest / 2 % 3);
    rest /= 6;
    uint32_t at = (uint32_t)(rest % COUNT(shapes)), codec = (uint32_t)(rest / COUNT(shapes));
    run_case(codec % quire_codec_count(), side ? QUIRE_V : QUIRE_K, at, forms[form], seed);
}

static void same_as_c(void **state)
{
    (void)state;
    const char *only = getenv("SEED");
    if (only) {
        run_seed(strtoull(only, NULL, 10));
        return;
    }
    if (n_isas < 2) skip();
    uint64_t n_cases = (uint64_t)6 * COUNT(shapes) * quire_codec_count();
    for (uint64_t seed = 0; seed < n_cases; seed += every) run_seed(seed);
}

/* Many rows of the most usual shape. */
static void same_as_c_often(void **state)
{
    (void)state;
    if (n_isas < 2) skip();
    uint32_t at = 0;
    while (shapes[at].d != 128) at++;
    for (uint64_t codec = 0; codec < quire_codec_count(); codec++) {
        const quire_codec_info *info = quire_codec_at((uint32_t)codec);
        for (uint64_t round = 1; round <= (has_search(info) ? 6 : 30); round += every) {
            uint64_t cycle = codec + round * quire_codec_count();
            run_seed((cycle * COUNT(shapes) + at) * 6 + round % 6);
        }
    }
}

/* Instruction sets that use the functions of one before them need no comparison. */
static void find_isas(void)
{
    const quire_row_kernels *codec_ops[MAX_ISAS];
    const quire_place_kernels *tile_ops[MAX_ISAS];
    const char *isa;
    for (uint32_t i = 0; (isa = quire_isa_at(i)) && n_isas < MAX_ISAS; i++) {
        assert_int_equal(quire_isa_use(isa), QUIRE_OK);
        codec_ops[n_isas] = quire_row_kernels_for(16);
        tile_ops[n_isas] = quire_place_kernels_for(16);
        bool is_new = true;
        for (uint32_t k = 0; k < n_isas; k++)
            is_new &= codec_ops[k] != codec_ops[n_isas] || tile_ops[k] != tile_ops[n_isas];
        if (is_new) isas[n_isas++] = isa;
    }
}

static int set_up(void **state)
{
    (void)state;
    find_isas();
    for (uint32_t i = 0; i < COUNT(shapes); i++) {
        quire_geometry g = kit_geometry(2, shapes[i].d, shapes[i].d);
        profiles[i] = kit_profile(&g, i + 1, NULL);
    }
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    quire_isa_use(NULL);
    for (uint32_t i = 0; i < COUNT(shapes); i++) quire_profile_destroy(profiles[i]);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 1) every = strtoull(argv[1], NULL, 10);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_as_c),
        cmocka_unit_test(same_as_c_often),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
