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

#if defined(QUIRE_EMULATE) /* a library for tests: tests/emulate */
#define load_config _tile_loadconfig
#define store_config _tile_storeconfig
#else
/* Not the intrinsics: theirs tell gcc 12 of the first eight bytes only, and it may drop stores to the others. */
static inline void load_config(const tile_config *c)
{
    __asm__ volatile("ldtilecfg %0" : : "m"(*c));
}

static inline void store_config(tile_config *c)
{
    __asm__ volatile("sttilecfg %0" : "=m"(*c));
}
#endif

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

/*
 * Up to here products of vectors are faster: tiles that have slept for a thousand cycles, which memory makes them do,
 * need nearly as many to wake up.
 */
#define FEW_ROWS 4u

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

/* Products of plane rows (32 if `two`, else 16) with a run of `chunks` operands of 64 channels or tokens, whose codes
 * have a sign or not. */
#define TILE_PRODUCTS(sum0, sum1, codes_tile, at)                                     \
    do {                                                                              \
        _tile_zero(sum0);                                                             \
        if (two) _tile_zero(sum1);                                                    \
        for (uint32_t c = 0; c < chunks; c++) {                                       \
            fetch_next(s, (at) + (size_t)c * 1024);                                   \
            _tile_loadd(codes_tile, (at) + (size_t)c * 1024, 64);                     \
            if (chunks > 1) {                                                         \
                _tile_loadd(PLANES_0, plane + c * 64, stride);                        \
                if (two) _tile_loadd(PLANES_1, plane + 16 * stride + c * 64, stride); \
            }                                                                         \
            if (sign) {                                                               \
                _tile_dpbssd(sum0, PLANES_0, codes_tile);                             \
                if (two) _tile_dpbssd(sum1, PLANES_1, codes_tile);                    \
            } else {                                                                  \
                _tile_dpbsud(sum0, PLANES_0, codes_tile);                             \
                if (two) _tile_dpbsud(sum1, PLANES_1, codes_tile);                    \
            }                                                                         \
        }                                                                             \
    } while (0)

#define TILE_STORE(sum0, sum1, to)                   \
    do {                                             \
        _tile_stored(sum0, to, 64);                  \
        if (two) _tile_stored(sum1, (to) + 256, 64); \
    } while (0)

/* Where the sums of a run go. Those of r for the same run lie at `fine`; NULL: there are none. */
typedef struct tile_target {
    const k_sink *k; /* NULL: V */
    const v_sink *v;
    uint32_t first, n; /* of the runs: 16 tokens or 16 channels; query rows */
    const int32_t *fine;
    bool is_fine; /* these are the sums of r: they stay in memory */
} tile_target;

LANES_FN vi run_sum(const int32_t *sum, uint32_t i)
{
    return vi_add(_mm512_slli_epi32(vi_load(sum + i * 32), 8), vi_load(sum + i * 32 + 16));
}

LANES_FN void take_run(const tile_target *to, uint32_t run, const int32_t *sum)
{
    if (!to->k) {
        for (uint32_t i = 0; i < to->n; i++) take_v(to->v, i, to->first + run, run_sum(sum, i));
    } else if (to->fine) {
        const int32_t *fine = to->fine + run * 256;
        for (uint32_t i = 0; i < to->n; i++)
            take_k(to->k, i, run, run_sum(sum, i), vi_load(fine + i * 16), true);
    } else {
        for (uint32_t i = 0; i < to->n; i++) take_k(to->k, i, run, run_sum(sum, i), vi_set1(0), false);
    }
}

/*
 * n runs of codes, one every `apart` bytes. Two pairs of sums take turns: while the products of one run are on their
 * way, the sums of the run before are stored and those of the one before that are used.
 */
LANES_FN void tile_runs(const quire_source *s, const uint8_t *codes, size_t apart, uint32_t n,
                        uint32_t chunks, const int8_t *plane, size_t stride, int32_t *memory,
                        const tile_target *to, const bool two, const bool sign)
{
    const uint32_t ints = to->is_fine ? 256 : 512;
    const uint32_t mask = to->is_fine ? ~0u : 1; /* two places take turns; sums of r keep theirs */
    if (chunks == 1) {
        _tile_loadd(PLANES_0, plane, stride);
        if (two) _tile_loadd(PLANES_1, plane + 16 * stride, stride);
    }
    for (uint32_t i = 0; i < n; i++) {
        if (i & 1) {
            TILE_PRODUCTS(SUM_B0, SUM_B1, CODES_B, codes + i * apart);
            if (i > 1 && !to->is_fine) take_run(to, i - 2, memory + ((i - 2) & mask) * ints);
            TILE_STORE(SUM_A0, SUM_A1, memory + ((i - 1) & mask) * ints);
        } else {
            TILE_PRODUCTS(SUM_A0, SUM_A1, CODES_A, codes + i * apart);
            if (i > 1 && !to->is_fine) take_run(to, i - 2, memory + ((i - 2) & mask) * ints);
            if (i) TILE_STORE(SUM_B0, SUM_B1, memory + ((i - 1) & mask) * ints);
        }
    }
    if (n & 1)
        TILE_STORE(SUM_A0, SUM_A1, memory + ((n - 1) & mask) * ints);
    else
        TILE_STORE(SUM_B0, SUM_B1, memory + ((n - 1) & mask) * ints);
    if (to->is_fine) return;
    if (n > 1) take_run(to, n - 2, memory + ((n - 2) & mask) * ints);
    take_run(to, n - 1, memory + ((n - 1) & mask) * ints);
}

/* Many rows, or expanded codes. */
LANES_CALL void tiles_k(const quire_source *k, uint32_t from, uint32_t to, const quire_queries *q,
                        uint32_t first, uint32_t n, const k_sink *sink, void *memory)
{
    uint32_t begin = from / 64 * 64, chunks = (to - begin + 63) / 64;
    planes p = planes_at(q, first, from);
    const int8_t *plane = p.main - (from - begin), *rest = p.fine - (from - begin);
    size_t apart = (size_t)k->format->coder.d_pad * 16;
    const uint8_t *codes = codes_of(k) + begin * 16;
    int32_t *sums = (int32_t *)memory, *fine = sums + 1024;
    if (sink->fine) {
        tile_target r = {.is_fine = true};
        tile_runs(k, codes, apart, 4, chunks, rest, p.stride, fine, &r, false, false);
    }
    tile_target z = {.k = sink, .n = n, .fine = sink->fine ? fine : NULL};
    if (n > 8)
        tile_runs(k, codes, apart, 4, chunks, plane, p.stride, sums, &z, true, false);
    else
        tile_runs(k, codes, apart, 4, chunks, plane, p.stride, sums, &z, false, false);
}

LANES_FN void dot_k(const quire_source *k, uint32_t from, uint32_t to, const quire_queries *q, uint32_t first,
                    uint32_t n, const k_sink *sink, void *memory, const quire_packing packed)
{
    if (n <= FEW_ROWS && !k->expanded)
        quire_loops_avx512[packed].dot_k(k, from, to, q, first, n, sink, memory);
    else
        tiles_k(k, from, to, q, first, n, sink, memory);
}

#define ENGINE_SLEEPS
#define ENGINE_KEEPS_SCALES

/* The sums of this product go nowhere. */
LANES_FN void keep_engine_awake(void)
{
    _tile_dpbssd(SUM_A0, CODES_A, PLANES_0);
}

/* Behind the codes of an expanded tile, and of the K that a V was turned from, lie its scales. */
LANES_FN void *behind_codes(const quire_format *format, const void *expanded)
{
    size_t at = 2 * (size_t)QUIRE_TILE_ROWS * format->coder.d_pad;
    return (uint8_t *)(uintptr_t)expanded + at;
}

LANES_FN const key_scales *kept_key_scales(const quire_source *k)
{
    return k->expanded ? (const key_scales *)behind_codes(k->format, k->expanded) : NULL;
}

LANES_FN const group_scales *kept_scales(const quire_source *v, uint32_t group)
{
    return v->expanded ? (const group_scales *)behind_codes(v->format, v->expanded) + group : NULL;
}

/* Codes of 8 bits have no room for a sign. */
LANES_FN bool has_shift(const quire_source *v, uint32_t bits)
{
    return v->expanded && bits != 8;
}

LANES_CALL void tiles_v(const quire_source *v, uint32_t from, uint32_t to, const int8_t *plane, uint32_t n,
                        const v_sink *sink, int32_t *sums, bool sign)
{
    const uint8_t *codes = codes_of(v) + (size_t)from * 1024;
    tile_target z = {.v = sink, .n = n, .first = from};
    if (n > 8 && sign)
        tile_runs(v, codes, 1024, to - from, 1, plane, 64, sums, &z, true, true);
    else if (n > 8)
        tile_runs(v, codes, 1024, to - from, 1, plane, 64, sums, &z, true, false);
    else if (sign)
        tile_runs(v, codes, 1024, to - from, 1, plane, 64, sums, &z, false, true);
    else
        tile_runs(v, codes, 1024, to - from, 1, plane, 64, sums, &z, false, false);
}

LANES_FN void dot_v(const quire_source *v, uint32_t from, uint32_t to, const int8_t *plane, uint32_t n,
                    const v_sink *sink, void *memory, const quire_packing packed)
{
    if (n <= FEW_ROWS && !v->expanded)
        quire_loops_avx512[packed].dot_v(v, from, to, plane, n, sink, memory);
    else
        tiles_v(v, from, to, plane, n, sink, (int32_t *)memory, packed != QUIRE_PACKING_l8);
}

#include "kernels/program.h"

#define TILE_LOOPS(name, bits, table)                                                                       \
    LANES_CALL void dot_k_##name(const quire_source *k, uint32_t from, uint32_t to, const quire_queries *q, \
                                 uint32_t first, uint32_t n, const k_sink *sink, void *memory)              \
    {                                                                                                       \
        dot_k(k, from, to, q, first, n, sink, memory, QUIRE_PACKING_##name);                                \
    }                                                                                                       \
    LANES_CALL void dot_v_##name(const quire_source *v, uint32_t from, uint32_t to, const int8_t *plane,    \
                                 uint32_t n, const v_sink *sink, void *memory)                              \
    {                                                                                                       \
        dot_v(v, from, to, plane, n, sink, memory, QUIRE_PACKING_##name);                                   \
    }

CODE_PACKINGS(TILE_LOOPS)
static const code_loops loops[] = PROGRAM_LOOPS_TABLE;
#define LOOPS loops
PROGRAM_FAMILIES(PROGRAM_FAMILY)

/* ---------------------------------------------------------- expanded tiles */

/* Scales of all groups, and their shifts as bytes. */
LANES_CALL void keep_scales(const quire_source *v, void *expanded, int8_t *shift)
{
    group_scales *s = (group_scales *)behind_codes(v->format, expanded);
    bool has_bias = v->format->coder.codec->has_bias;
    for (uint32_t g = 0; g < v->format->coder.n_groups; g++) {
        load_scales(v, g, ~(uint64_t)0, &s[g], has_bias);
        vi_store_bytes(s[g].shift, shift + (size_t)g * QUIRE_TILE_ROWS);
    }
}

LANES_CALL void keep_key_scales(const quire_source *k, void *expanded)
{
    bool has_bias = k->format->coder.codec->has_bias;
    key_scales *s = (key_scales *)behind_codes(k->format, expanded);
    for (uint32_t p = 0; p < quire_n_parts(&k->format->coder); p++) load_key_scales(k, p, &s[p], has_bias);
    s->most = largest_value(k);
}

LANES_FN void expand_tile(const quire_source *s, uint8_t *to, const uint32_t bits, const bool table)
{
    int8_t shift[QUIRE_MAX_GROUPS * QUIRE_TILE_ROWS];
    if (s->format->coder.side == QUIRE_K) {
        keep_key_scales(s, to);
        expand_codes(s, NULL, to, bits, table, false);
        return;
    }
    keep_scales(s, to, shift);
    expand_codes(s, shift, to, bits, table, bits != 8);
}

/* K as V: through a copy that lies behind it. */
LANES_FN void turn_tile(const quire_source *s, uint8_t *to, const uint32_t bits, const bool table)
{
    const quire_coder *coder = &s->format->coder;
    uint8_t *k = to + (size_t)QUIRE_TILE_ROWS * coder->d_pad;
    int8_t shift[QUIRE_MAX_GROUPS * QUIRE_TILE_ROWS];
    keep_scales(s, to, shift);
    expand_codes(s, NULL, k, bits, table, false);
    turn_codes(coder, k, to);
    for (uint32_t u = 0; u < coder->d_pad && bits != 8; u++) {
        __m512i add = broadcast_word(shifts_of(coder, shift, u));
        _mm512_store_si512(to + u * 64, _mm512_add_epi8(_mm512_load_si512(to + u * 64), add));
    }
}

#define TILE_PACKING(name, bits, table)                            \
    LANES_CALL void expand_##name(const quire_source *s, void *to) \
    {                                                              \
        expand_tile(s, (uint8_t *)to, bits, table);                \
    }                                                              \
    LANES_CALL void turn_##name(const quire_source *s, void *to)   \
    {                                                              \
        turn_tile(s, (uint8_t *)to, bits, table);                  \
    }

CODE_PACKINGS(TILE_PACKING)

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
    PROGRAM_ROLES,
    .expand_from = {8, 8, 8, 5, 5, 5, 5, 5, 17, 5, 5, 17, 5, 5, 5, 5, 5},
    .whole_channels = 64,
    .enter = enter_tiles,
    .leave = leave_tiles,
};

#endif
