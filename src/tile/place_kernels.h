/* SPDX-License-Identifier: MIT */
/*
 * place_kernels: moving the codes or values of one row into and out of a tile. The C versions (tile.c, ending in _c) are the
 * definition; every variant gives the same bytes and touches no bit of another row.
 */
#ifndef QUIRE_TILE_PLACE_KERNELS_H
#define QUIRE_TILE_PLACE_KERNELS_H

#include "core/cpu.h"
#include "tile/tile.h"

/* The bit planes of a code, lowest bits first: 3 = 2 + 1, 5 = 4 + 1, 6 = 4 + 2. */
typedef struct quire_bit_planes {
    uint32_t n;
    uint32_t width[2];
} quire_bit_planes;

static inline quire_bit_planes quire_bit_planes_of(uint32_t bits)
{
    switch (bits) {
    case 3: return (quire_bit_planes){2, {2, 1}};
    case 5: return (quire_bit_planes){2, {4, 1}};
    case 6: return (quire_bit_planes){2, {4, 2}};
    default: return (quire_bit_planes){1, {bits, 0}};
    }
}

/* d_pad codes of row t. */
typedef void quire_place_put_codes_fn(const quire_coder *coder, uint8_t *tile, uint32_t t,
                                      const uint8_t *code);
typedef void quire_place_get_codes_fn(const quire_coder *coder, const uint8_t *tile, uint32_t t,
                                      uint8_t *code);
/* d values of row t, which the codec's form rounds. */
typedef void quire_place_put_values_fn(const quire_coder *coder, uint8_t *tile, uint32_t t,
                                       const float *value);
/* Rows t to t + 3, where t is a multiple of four: K values of neighbouring tokens lie side by side. */
typedef void quire_place_put_four_fn(const quire_coder *coder, uint8_t *tile, uint32_t t,
                                     const float *const value[4]);
typedef void quire_place_get_values_fn(const quire_coder *coder, const uint8_t *tile, uint32_t t,
                                       float *value);

/* 16 rows from row t on, a multiple of 16; d is a multiple of 64. */
typedef void quire_place_put_rows_fn(const quire_coder *coder, uint8_t *tile, uint32_t t,
                                     const quire_coded_rows *rows);

typedef struct quire_place_kernels {
    quire_place_put_codes_fn *put_codes[2]; /* by side */
    quire_place_get_codes_fn *get_codes[2];
    quire_place_put_values_fn *put_values[2];
    quire_place_put_four_fn *put_four_values[2];
    quire_place_get_values_fn *get_values[2];
    quire_place_put_rows_fn *put_rows[2]; /* NULL where no row kernel makes them */
} quire_place_kernels;

quire_place_put_codes_fn quire_put_codes_c;
quire_place_get_codes_fn quire_get_codes_c;
quire_place_put_values_fn quire_put_values_c;
quire_place_put_four_fn quire_put_four_values_c;
quire_place_get_values_fn quire_get_values_c;

/* place_words.c: K in words of 64 bits, for any machine. */
quire_place_put_codes_fn quire_put_codes_words;
quire_place_get_codes_fn quire_get_codes_words;

#if defined(QUIRE_X86)
extern const quire_place_kernels quire_place_kernels_avx2, quire_place_kernels_avx512;
#elif defined(QUIRE_ARM)
extern const quire_place_kernels quire_place_kernels_neon;
#endif

/* Those in use. Variants take whole vectors of 16 channels; other head sizes take C. */
const quire_place_kernels *quire_place_kernels_for(uint32_t d);

#endif
