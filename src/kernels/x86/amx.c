/* SPDX-License-Identifier: MIT */
/* kernels: AMX tiles for the integer products, AVX-512 for the rest. */
#include "core/cpu.h"

#if defined(QUIRE_X86)

#define LANES_TARGET                                                               \
    "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx2,fma,f16c,bmi2," \
    "amx-tile,amx-int8"
#include "kernels/x86/vnni_avx512.h"

/* ------------------------------------------------------------------- tiles */

/* Tile registers: two pairs of sums and two of codes take turns, so that a product need not wait for a store. */
#define SUM_A0 0
#define SUM_A1 1
#define SUM_B0 2
#define SUM_B1 3
#define CODES_A 4
#define CODES_B 5
#define PLANES_0 6 /* eight queries, high and low; or sixteen of r */
#define PLANES_1 7 /* the next eight */

typedef struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16]; /* of a row */
    uint8_t rows[16];
} tile_config;

/* Not the intrinsics: theirs tell gcc 12 of the first eight bytes only, and it may drop stores to the others. */
static inline void load_config(const tile_config *c)
{
    __asm__ volatile("ldtilecfg %0" : : "m"(*c));
}

static inline void store_config(tile_config *c)
{
    __asm__ volatile("sttilecfg %0" : "=m"(*c));
}

__attribute__((target("amx-tile"))) static void enter_tiles(void *saved, uint32_t max_rows)
{
    (void)max_rows;
    _Alignas(64) tile_config c = {
        .palette = 1,
        .bytes = {64, 64, 64, 64, 64, 64, 64, 64},
        .rows = {16, 16, 16, 16, 16, 16, 16, 16},
    };
    store_config((tile_config *)saved);
    load_config(&c);
}

__attribute__((target("amx-tile"))) static void leave_tiles(void *saved)
{
    if (((const tile_config *)saved)->palette)
        load_config((const tile_config *)saved);
    else
        _tile_release();
}

/* ------------------------------------------------------- integer products */

#define FEW_ROWS 4u /* up to here products of vectors are faster */

/* Sums of 16 tokens or channels: z of 16 queries in 32 rows, then r in 16. */
#define SUM_INTS (32u * 16)
#define SUM_STEP (48u * 16)

/* Codes are expanded, or of 8 bits and not looked up, and then lie in the page as they are needed. */
LANES_FN const uint8_t *codes_of(const quire_source *s)
{
    return s->expanded ? (const uint8_t *)s->expanded : s->tile;
}

/* One line of the next tile for each that is read. */
LANES_FN void fetch_next(const quire_source *s, const uint8_t *codes)
{
    if (s->expanded || !s->next) return;
    for (uint32_t i = 0; i < 16; i++)
        _mm_prefetch((const char *)s->next + (codes - s->tile) + i * 64, _MM_HINT_T1);
}

/* Two steps of `chunks` operands of 64 channels each, `apart` bytes apart; planes are loaded by the caller if there is
 * one operand only. */
#define TILE_STEP(sum0, sum1, codes_tile)                                             \
    do {                                                                              \
        _tile_zero(sum0);                                                             \
        if (two) _tile_zero(sum1);                                                    \
        for (uint32_t c = 0; c < chunks; c++) {                                       \
            const uint8_t *codes = at + (size_t)c * 1024;                             \
            fetch_next(s, codes);                                                     \
            _tile_loadd(codes_tile, codes, 64);                                       \
            if (chunks > 1) {                                                         \
                _tile_loadd(PLANES_0, plane + c * 64, stride);                        \
                if (two) _tile_loadd(PLANES_1, plane + 16 * stride + c * 64, stride); \
            }                                                                         \
            _tile_dpbsud(sum0, PLANES_0, codes_tile);                                 \
            if (two) _tile_dpbsud(sum1, PLANES_1, codes_tile);                        \
        }                                                                             \
    } while (0)

#define TILE_STORE(sum0, sum1, to)                   \
    do {                                             \
        _tile_stored(sum0, to, 64);                  \
        if (two) _tile_stored(sum1, (to) + 256, 64); \
    } while (0)

/*
 * Plane rows (16, or 32 if two) with n runs of `chunks` operands of codes, one run every `apart` bytes; the sums of each
 * run go SUM_STEP further.
 */
LANES_FN void tile_products(const quire_source *s, const uint8_t *codes_from, size_t apart, uint32_t n,
                            uint32_t chunks, const int8_t *plane, size_t stride, int32_t *to, const bool two)
{
    if (chunks == 1) {
        _tile_loadd(PLANES_0, plane, stride);
        if (two) _tile_loadd(PLANES_1, plane + 16 * stride, stride);
    }
    for (uint32_t i = 0; i < n; i += 2) {
        const uint8_t *at = codes_from + i * apart;
        TILE_STEP(SUM_A0, SUM_A1, CODES_A);
        if (i) TILE_STORE(SUM_B0, SUM_B1, to + (size_t)(i - 1) * SUM_STEP);
        if (i + 1 == n) {
            TILE_STORE(SUM_A0, SUM_A1, to + (size_t)i * SUM_STEP);
            return;
        }
        at += apart;
        TILE_STEP(SUM_B0, SUM_B1, CODES_B);
        TILE_STORE(SUM_A0, SUM_A1, to + (size_t)i * SUM_STEP);
    }
    TILE_STORE(SUM_B0, SUM_B1, to + (size_t)(n - 1) * SUM_STEP);
}

LANES_FN const int32_t *dot_k(const quire_source *k, uint32_t from, uint32_t to, const quire_queries *q,
                              uint32_t first, uint32_t n, bool fine, void *memory, const uint32_t bits,
                              const bool table)
{
    int32_t *dots = (int32_t *)memory;
    size_t stride = (size_t)q->copies * q->plane_stride,
           copy = q->copies == 2 ? from / 32 % 2 * q->plane_stride : 0;
    const int8_t *plane = q->plane + 2 * first * stride + copy, *rest = q->fine + first * stride + copy;
    if (n <= FEW_ROWS && !k->expanded) {
        planes p = {plane + from, rest + from, stride};
        sums at = {.a = dots, .stride = 32, .fine = SUM_INTS, .fine_stride = 16};
        if (fine)
            vnni_k(k, from, to, &p, n, 3, (packing){false, bits, table}, false, at, SUM_STEP);
        else
            vnni_k(k, from, to, &p, n, 2, (packing){false, bits, table}, false, at, SUM_STEP);
        return dots;
    }
    uint32_t begin = from / 64 * 64, chunks = (to - begin + 63) / 64;
    size_t apart = (size_t)k->format->coder.d_pad * 16;
    const uint8_t *codes = codes_of(k) + begin * 16;
    if (n > 8)
        tile_products(k, codes, apart, 4, chunks, plane + begin, stride, dots, true);
    else
        tile_products(k, codes, apart, 4, chunks, plane + begin, stride, dots, false);
    if (fine) tile_products(k, codes, apart, 4, chunks, rest + begin, stride, dots + SUM_INTS, false);
    return dots;
}

LANES_FN vi at_k(const int32_t *dots, uint32_t i, uint32_t j)
{
    const int32_t *at = dots + j * SUM_STEP + i * 32;
    return vi_add(_mm512_slli_epi32(vi_load(at), 8), vi_load(at + 16));
}

LANES_FN vi at_k_fine(const int32_t *dots, uint32_t i, uint32_t j)
{
    return vi_load(dots + j * SUM_STEP + SUM_INTS + i * 16);
}

LANES_FN const int32_t *dot_v(const quire_source *v, uint32_t from, uint32_t to, const int8_t *plane,
                              uint32_t n, void *memory, const uint32_t bits, const bool table)
{
    int32_t *dots = (int32_t *)memory;
    if (n <= FEW_ROWS && !v->expanded) {
        sums at = {.a = dots, .stride = 32};
        vnni_v(v, from, to, plane, n, (packing){false, bits, table}, false, at, SUM_STEP);
    } else if (n > 8) {
        tile_products(v, codes_of(v) + (size_t)from * 1024, 1024, to - from, 1, plane, 64, dots, true);
    } else {
        tile_products(v, codes_of(v) + (size_t)from * 1024, 1024, to - from, 1, plane, 64, dots, false);
    }
    return dots;
}

LANES_FN vi at_v(const int32_t *dots, uint32_t i, uint32_t b)
{
    const int32_t *at = dots + b * SUM_STEP + i * 32;
    return vi_add(_mm512_slli_epi32(vi_load(at), 8), vi_load(at + 16));
}

#include "kernels/program.h"

#include "kernels/float_program.h"

PROGRAM_FAMILIES(PROGRAM_FAMILY)
PROGRAM_FAMILIES(UNPACK_FAMILY)

/* Tiles are 64 channels wide. For groups of 32 each plane row is there twice, once without the odd groups and once
 * without the even ones. */
static void load_tiles(const quire_format *format, quire_queries *q)
{
    q->copies = format->coder.n_groups && quire_part_size(&format->coder) == 32 ? 2 : 1;
    load_queries(format, q);
    if (q->copies == 1) return;
    for (uint32_t i = 0; i < 3 * q->n; i++) {
        size_t stride = 2 * (size_t)q->plane_stride;
        int8_t *even = i < 2 * q->n ? q->plane + i * stride : q->fine + (i - 2 * q->n) * stride;
        int8_t *odd = even + q->plane_stride;
        for (uint32_t c = 0; c < q->plane_stride; c += 64) {
            memset(odd + c, 0, 32);
            memcpy(odd + c + 32, even + c + 32, 32);
            memset(even + c + 32, 0, 32);
        }
    }
}

const quire_kernels quire_kernels_amx = {
    .load = load_tiles,
    .soften = soften,
    .settle = settle,
    .score = PROGRAM_SLOTS(score),
    .mix = PROGRAM_SLOTS(mix),
    .expand = PROGRAM_SLOTS(expand),
    .expand_from = {8, 8, 8, 5, 5, 5, 5, 5, ~0u, 5, 5, 5, 5, 5},
    .whole_channels = 64,
    .turn = PROGRAM_SLOTS(turn),
    .enter = enter_tiles,
    .leave = leave_tiles,
};

#endif
