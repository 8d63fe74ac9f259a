/* SPDX-License-Identifier: MIT */
/* kernels: AMX tiles for the integer products, AVX-512 for the rest. */
#include "core/cpu.h"

#if defined(QUIRE_X86)

#define HAS_VBMI
#define SIMD_TARGET                                                                \
    "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx2,fma,f16c,bmi2," \
    "amx-tile,amx-int8"
#include "kernels/x86/products_avx512.h"

/* ------------------------------------------------------------------- tiles */

/* Tile registers: two pairs of sums and two of codes take turns, so that a product need not wait for a store. */
#define SUM_A0 0
#define SUM_A1 1
#define SUM_B0 2
#define SUM_B1 3
#define CODES_A 4
#define CODES_B 5
#define QUERIES_0 6 /* bytes of eight queries, high and low; or r of sixteen */
#define QUERIES_1 7 /* the next eight */

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
SIMD_FN const uint8_t *codes_of(const quire_source *s)
{
    return s->expanded ? (const uint8_t *)s->expanded : s->tile;
}

/* One line of the next tile for each that is read. */
SIMD_FN void fetch_next(const quire_source *s, const uint8_t *codes)
{
    if (s->expanded || !s->next) return;
    for (uint32_t i = 0; i < 16; i++)
        _mm_prefetch((const char *)s->next + (codes - s->tile) + i * 64, _MM_HINT_T1);
}

/* Products of rows of query bytes (32 if `two`, else 16) with a run of `chunks` operands of 64 channels or tokens, whose codes
 * have a sign or not. */
#define TILE_PRODUCTS(sum0, sum1, codes_tile, at)                                      \
    do {                                                                               \
        _tile_zero(sum0);                                                              \
        if (two) _tile_zero(sum1);                                                     \
        for (uint32_t c = 0; c < chunks; c++) {                                        \
            fetch_next(s, (at) + (size_t)c * 1024);                                    \
            _tile_loadd(codes_tile, (at) + (size_t)c * 1024, 64);                      \
            if (chunks > 1) {                                                          \
                _tile_loadd(QUERIES_0, bytes + c * 64, stride);                        \
                if (two) _tile_loadd(QUERIES_1, bytes + 16 * stride + c * 64, stride); \
            }                                                                          \
            if (sign) {                                                                \
                _tile_dpbssd(sum0, QUERIES_0, codes_tile);                             \
                if (two) _tile_dpbssd(sum1, QUERIES_1, codes_tile);                    \
            } else {                                                                   \
                _tile_dpbsud(sum0, QUERIES_0, codes_tile);                             \
                if (two) _tile_dpbsud(sum1, QUERIES_1, codes_tile);                    \
            }                                                                          \
        }                                                                              \
    } while (0)

#define TILE_STORE(sum0, sum1, to)                   \
    do {                                             \
        _tile_stored(sum0, to, 64);                  \
        if (two) _tile_stored(sum1, (to) + 256, 64); \
    } while (0)

/* Where the sums of a run go. Those of r for the same run lie at `r_sums`; NULL: there are none. */
typedef struct tile_target {
    const k_epilogue *k; /* NULL: V */
    const v_epilogue *v;
    uint32_t first, n; /* of the runs: 16 tokens or 16 channels; query rows */
    const int32_t *r_sums;
    bool is_r; /* these are the sums of r: they stay in memory */
} tile_target;

SIMD_FN vi run_sum(const int32_t *sum, uint32_t i)
{
    return vi_add(_mm512_slli_epi32(vi_load(sum + i * 32), 8), vi_load(sum + i * 32 + 16));
}

SIMD_FN void finish_run(const tile_target *to, uint32_t run, const int32_t *sum)
{
    if (!to->k) {
        for (uint32_t i = 0; i < to->n; i++) add_values(to->v, i, to->first + run, run_sum(sum, i));
    } else if (to->r_sums) {
        const int32_t *r_sums = to->r_sums + run * 256;
        for (uint32_t i = 0; i < to->n; i++)
            store_scores(to->k, i, run, run_sum(sum, i), vi_load(r_sums + i * 16), true);
    } else {
        for (uint32_t i = 0; i < to->n; i++) store_scores(to->k, i, run, run_sum(sum, i), vi_set1(0), false);
    }
}

/*
 * n runs of codes, one every `apart` bytes. Two pairs of sums take turns: while the products of one run are on their
 * way, the sums of the run before are stored and those of the one before that are used.
 */
SIMD_FN void tile_runs(const quire_source *s, const uint8_t *codes, size_t apart, uint32_t n, uint32_t chunks,
                       const int8_t *bytes, size_t stride, int32_t *memory, const tile_target *to,
                       const bool two, const bool sign)
{
    const uint32_t ints = to->is_r ? 256 : 512;
    const uint32_t mask = to->is_r ? ~0u : 1; /* two places take turns; sums of r keep theirs */
    if (chunks == 1) {
        _tile_loadd(QUERIES_0, bytes, stride);
        if (two) _tile_loadd(QUERIES_1, bytes + 16 * stride, stride);
    }
    for (uint32_t i = 0; i < n; i++) {
        if (i & 1) {
            TILE_PRODUCTS(SUM_B0, SUM_B1, CODES_B, codes + i * apart);
            if (i > 1 && !to->is_r) finish_run(to, i - 2, memory + ((i - 2) & mask) * ints);
            TILE_STORE(SUM_A0, SUM_A1, memory + ((i - 1) & mask) * ints);
        } else {
            TILE_PRODUCTS(SUM_A0, SUM_A1, CODES_A, codes + i * apart);
            if (i > 1 && !to->is_r) finish_run(to, i - 2, memory + ((i - 2) & mask) * ints);
            if (i) TILE_STORE(SUM_B0, SUM_B1, memory + ((i - 1) & mask) * ints);
        }
    }
    if (n & 1)
        TILE_STORE(SUM_A0, SUM_A1, memory + ((n - 1) & mask) * ints);
    else
        TILE_STORE(SUM_B0, SUM_B1, memory + ((n - 1) & mask) * ints);
    if (to->is_r) return;
    if (n > 1) finish_run(to, n - 2, memory + ((n - 2) & mask) * ints);
    finish_run(to, n - 1, memory + ((n - 1) & mask) * ints);
}

/* Many rows, or expanded codes. */
SIMD_CALL void tiles_k(const quire_source *k, uint32_t from, uint32_t to, const quire_queries *q,
                       uint32_t first, uint32_t n, const k_epilogue *epilogue, void *memory)
{
    uint32_t begin = from / 64 * 64, chunks = (to - begin + 63) / 64;
    /* Where there are two copies of a row, one has the even groups of 32 channels and the other the odd ones. */
    size_t stride = (size_t)q->copies * q->z_stride,
           at = begin + (q->copies == 2 ? from / 32 % 2 * q->z_stride : 0);
    const int8_t *z = q->z + 2 * first * stride + at, *r = q->r + first * stride + at;
    size_t apart = (size_t)k->format->coder.d_pad * 16;
    const uint8_t *codes = codes_of(k) + begin * 16;
    int32_t *sums = (int32_t *)memory, *r_sums = sums + 1024;
    if (epilogue->with_r) {
        tile_target of_r = {.is_r = true};
        tile_runs(k, codes, apart, 4, chunks, r, stride, r_sums, &of_r, false, false);
    }
    tile_target of_z = {.k = epilogue, .n = n, .r_sums = epilogue->with_r ? r_sums : NULL};
    if (n > 8)
        tile_runs(k, codes, apart, 4, chunks, z, stride, sums, &of_z, true, false);
    else
        tile_runs(k, codes, apart, 4, chunks, z, stride, sums, &of_z, false, false);
}

SIMD_FN void dot_k(const quire_source *k, uint32_t from, uint32_t to, const quire_queries *q, uint32_t first,
                   uint32_t n, const k_epilogue *epilogue, void *memory, const code_loops *loops)
{
    const code_loops *few = (const code_loops *)loops->multiply;
    if (q->fours)
        few->dot_k(k, from, to, q, first, n, epilogue, memory, few);
    else
        tiles_k(k, from, to, q, first, n, epilogue, memory);
}

#define ENGINE_SLEEPS
#define ENGINE_KEEPS_SCALES

/* The sums of this product go nowhere. */
SIMD_FN void keep_engine_awake(void)
{
    _tile_dpbssd(SUM_A0, CODES_A, QUERIES_0);
}

/* Behind the codes of an expanded tile, and of the K that a V was transposed from, lie its scales. */
SIMD_FN void *behind_codes(const quire_tile_format *format, const void *expanded)
{
    size_t at = 2 * (size_t)QUIRE_TILE_ROWS * format->coder.d_pad;
    return (uint8_t *)(uintptr_t)expanded + at;
}

SIMD_FN const key_scales *kept_key_scales(const quire_source *k)
{
    return k->expanded ? (const key_scales *)behind_codes(k->format, k->expanded) : NULL;
}

SIMD_FN const group_scales *kept_scales(const quire_source *v, uint32_t group)
{
    return v->expanded ? (const group_scales *)behind_codes(v->format, v->expanded) + group : NULL;
}

/* Whether a code with its shift is a byte with sign. Of 8 bits only if all shifts are -128. */
SIMD_FN bool fits_byte(const quire_codec *codec)
{
    return codec->info.bits != 8 || (!codec->has_bias && codec->zero == 128);
}

SIMD_FN bool has_shift(const quire_source *v)
{
    return v->expanded && fits_byte(v->format->coder.codec);
}

SIMD_CALL void tiles_v(const quire_source *v, uint32_t from, uint32_t to, const int8_t *z, uint32_t n,
                       const v_epilogue *epilogue, int32_t *sums, bool sign)
{
    const uint8_t *codes = codes_of(v) + (size_t)from * 1024;
    tile_target of_z = {.v = epilogue, .n = n, .first = from};
    if (n > 8 && sign)
        tile_runs(v, codes, 1024, to - from, 1, z, 64, sums, &of_z, true, true);
    else if (n > 8)
        tile_runs(v, codes, 1024, to - from, 1, z, 64, sums, &of_z, true, false);
    else if (sign)
        tile_runs(v, codes, 1024, to - from, 1, z, 64, sums, &of_z, false, true);
    else
        tile_runs(v, codes, 1024, to - from, 1, z, 64, sums, &of_z, false, false);
}

SIMD_FN void dot_v(const quire_source *v, uint32_t from, uint32_t to, const int8_t *z, uint32_t n,
                   const v_epilogue *epilogue, void *memory, const code_loops *loops)
{
    const code_loops *few = (const code_loops *)loops->multiply;
    if (n <= FEW_ROWS && !v->expanded)
        few->dot_v(v, from, to, z, n, epilogue, memory, few);
    else
        tiles_v(v, from, to, z, n, epilogue, (int32_t *)memory, has_shift(v));
}

#define MULTIPLY_NAME(name) quire_loops_avx512[QUIRE_PACKING_##name]
#define FLOAT_NAME SHARED_NAME
#include "kernels/families.h"

static const code_loops loops[] = PACKING_LOOPS;
#define LOOPS loops
INTEGER_FAMILIES(INTEGER_FAMILY)

/* ---------------------------------------------------------- expanded tiles */

/* Scales of all groups, and their shifts as bytes. */
SIMD_CALL void keep_scales(const quire_source *v, void *expanded, int8_t *shift)
{
    group_scales *s = (group_scales *)behind_codes(v->format, expanded);
    bool has_bias = v->format->coder.codec->has_bias;
    for (uint32_t g = 0; g < v->format->coder.n_groups; g++) {
        load_scales(v, g, ~(uint64_t)0, &s[g], has_bias);
        vi_store_bytes(s[g].shift, shift + (size_t)g * QUIRE_TILE_ROWS);
    }
}

SIMD_CALL void keep_key_scales(const quire_source *k, void *expanded)
{
    bool has_bias = k->format->coder.codec->has_bias;
    key_scales *s = (key_scales *)behind_codes(k->format, expanded);
    for (uint32_t p = 0; p < quire_n_parts(&k->format->coder); p++) load_key_scales(k, p, &s[p], has_bias);
    s->most = largest_value(k);
}

/* K as V: through a copy that lies behind it. */
SIMD_CALL void transpose_shifted(quire_expand_tile_fn *expand_k, const quire_source *s, uint8_t *to)
{
    const quire_coder *coder = &s->format->coder;
    uint8_t *k = to + (size_t)QUIRE_TILE_ROWS * coder->d_pad;
    int8_t shift[QUIRE_MAX_GROUPS * QUIRE_TILE_ROWS];
    keep_scales(s, to, shift);
    expand_k(s, k);
    transpose_codes(coder, k, to);
    for (uint32_t u = 0; u < coder->d_pad && fits_byte(coder->codec); u++) {
        __m512i add = broadcast_word(shifts_of(coder, shift, u));
        _mm512_store_si512(to + u * 64, _mm512_add_epi8(_mm512_load_si512(to + u * 64), add));
    }
}

#define TILE_PACKING(name, bits, table)                               \
    SIMD_CALL void expand_k_##name(const quire_source *s, void *to)   \
    {                                                                 \
        expand_codes(s, NULL, (uint8_t *)to, bits, table, false);     \
    }                                                                 \
    SIMD_CALL void expand_##name(const quire_source *s, void *to)     \
    {                                                                 \
        int8_t shift[QUIRE_MAX_GROUPS * QUIRE_TILE_ROWS];             \
        if (s->format->coder.side == QUIRE_K) {                       \
            keep_key_scales(s, to);                                   \
            expand_k_##name(s, to);                                   \
            return;                                                   \
        }                                                             \
        keep_scales(s, to, shift);                                    \
        if (fits_byte(s->format->coder.codec))                        \
            expand_codes(s, shift, (uint8_t *)to, bits, table, true); \
        else                                                          \
            expand_codes(s, NULL, (uint8_t *)to, bits, table, false); \
    }                                                                 \
    SIMD_CALL void transpose_##name(const quire_source *s, void *to)  \
    {                                                                 \
        transpose_shifted(expand_k_##name, s, (uint8_t *)to);         \
    }

CODE_PACKINGS(TILE_PACKING)

/* Few rows are for products of vectors. Tiles are 64 channels wide. For groups of 32 each row of query bytes is there twice, once without the odd groups and once
 * without the even ones. */
static void load_tiles(const quire_tile_format *format, quire_queries *q)
{
    q->fours = q->n <= FEW_ROWS && !quire_must_expand(&quire_kernels_amx, format, q->n);
    if (q->fours) {
        load_queries(format, q);
        return;
    }
    q->copies = format->coder.n_groups && quire_part_size(&format->coder) == 32 ? 2 : 1;
    load_queries(format, q);
    if (q->copies == 1) return;
    for (uint32_t i = 0; i < 3 * q->n; i++) {
        size_t stride = 2 * (size_t)q->z_stride;
        int8_t *even = i < 2 * q->n ? q->z + i * stride : q->r + (i - 2 * q->n) * stride;
        int8_t *odd = even + q->z_stride;
        for (uint32_t c = 0; c < q->z_stride; c += 64) {
            memset(odd + c, 0, 32);
            memcpy(odd + c + 32, even + c + 32, 32);
            memset(even + c + 32, 0, 32);
        }
    }
}

const quire_kernels quire_kernels_amx = {
    .load_queries = load_tiles,
    COMMON_ROLES,
    .expand_from = {8, 8, 8, 5, 5, 5, 5, 5, 17, 5, 5, 17, 5, 5, 5, 5, 5},
    .whole_channels = 64,
    .enter = enter_tiles,
    .leave = leave_tiles,
};

#endif
