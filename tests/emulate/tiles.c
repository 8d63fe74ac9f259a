/* SPDX-License-Identifier: MIT */
/* tiles: the registers of AMX and what instructions do to them. What a processor refuses ends the program. */
#include <immintrin.h>

#define N_TILES 8
#define MOST_ROWS 16
#define MOST_BYTES 64

typedef struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16]; /* of a row */
    uint8_t rows[16];
} tile_config;

typedef struct tile {
    _Alignas(64) uint8_t row[MOST_ROWS][MOST_BYTES];
} tile;

static _Thread_local tile_config config;
static _Thread_local tile tiles[N_TILES];

static tile *configured(int i)
{
    MODEL_REQUIRE(config.palette == 1 && i >= 0 && i < N_TILES && config.rows[i] && config.bytes[i]);
    return &tiles[i];
}

void quire_emulate_tile_release(void)
{
    memset(&config, 0, sizeof config);
    memset(tiles, 0, sizeof tiles);
}

/* Of the registers nothing stays. */
void quire_emulate_tile_loadconfig(const void *from)
{
    tile_config c;
    memcpy(&c, from, sizeof c);
    quire_emulate_tile_release();
    if (!c.palette) return;
    MODEL_REQUIRE(c.palette == 1 && !c.start_row);
    for (int i = 0; i < 14; i++) MODEL_REQUIRE(!c.reserved[i]);
    for (int i = 0; i < 16; i++)
        MODEL_REQUIRE(i < N_TILES ? c.rows[i] <= MOST_ROWS && c.bytes[i] <= MOST_BYTES
                                  : !c.rows[i] && !c.bytes[i]);
    config = c;
}

void quire_emulate_tile_storeconfig(void *to)
{
    memcpy(to, &config, sizeof config);
}

void quire_emulate_tile_zero(int i)
{
    memset(configured(i), 0, sizeof(tile));
}

/* Rows and bytes beyond the configured ones become zero. */
void quire_emulate_tile_loadd(int i, const void *base, size_t stride)
{
    tile *t = configured(i);
    memset(t, 0, sizeof *t);
    for (uint32_t r = 0; r < config.rows[i]; r++)
        memcpy(t->row[r], (const uint8_t *)base + r * stride, config.bytes[i]);
}

void quire_emulate_tile_stored(int i, void *base, size_t stride)
{
    tile *t = configured(i);
    for (uint32_t r = 0; r < config.rows[i]; r++)
        memcpy((uint8_t *)base + r * stride, t->row[r], config.bytes[i]);
}

/* Bytes with their signs or without as numbers of 16 bits: the even ones, or the odd ones. */
MODEL __m256i even_bytes(__m256i x, bool sign)
{
    return sign ? _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8) : _mm256_and_si256(x, _mm256_set1_epi16(255));
}

MODEL __m256i odd_bytes(__m256i x, bool sign)
{
    return sign ? _mm256_srai_epi16(x, 8) : _mm256_srli_epi16(x, 8);
}

/* Lane n of row m gets the four products of quad k of row m of a with quad n of row k of b, for all k. */
MODEL void multiply(int to, int a, int b, bool sign)
{
    tile *sum = configured(to), *x = configured(a), *y = configured(b);
    MODEL_REQUIRE(to != a && to != b && a != b);
    MODEL_REQUIRE(config.bytes[a] % 4 == 0 && config.bytes[to] % 4 == 0);
    MODEL_REQUIRE(config.rows[to] == config.rows[a] && config.bytes[to] == config.bytes[b] &&
                  config.bytes[a] == 4 * config.rows[b]);
    for (uint32_t k = 0; k < config.rows[b]; k++) {
        for (uint32_t half = 0; half < MOST_BYTES; half += 32) { /* beyond the configured bytes b is zero */
            __m256i codes = _mm256_load_si256((const __m256i *)(y->row[k] + half));
            __m256i even = even_bytes(codes, sign), odd = odd_bytes(codes, sign);
            for (uint32_t m = 0; m < config.rows[a]; m++) {
                int32_t quad;
                memcpy(&quad, x->row[m] + 4 * k, sizeof quad);
                __m256i q = _mm256_set1_epi32(quad), *s = (__m256i *)(sum->row[m] + half);
                __m256i products = _mm256_add_epi32(_mm256_madd_epi16(even_bytes(q, true), even),
                                                    _mm256_madd_epi16(odd_bytes(q, true), odd));
                _mm256_store_si256(s, _mm256_add_epi32(_mm256_load_si256(s), products));
            }
        }
    }
}

MODEL_CALL void multiply_signed(int sum, int a, int b)
{
    multiply(sum, a, b, true);
}

MODEL_CALL void multiply_unsigned(int sum, int a, int b)
{
    multiply(sum, a, b, false);
}

void quire_emulate_tile_dpbssd(int sum, int a, int b)
{
    multiply_signed(sum, a, b);
}

void quire_emulate_tile_dpbsud(int sum, int a, int b)
{
    multiply_unsigned(sum, a, b);
}
