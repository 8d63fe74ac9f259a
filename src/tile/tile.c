/* SPDX-License-Identifier: MIT */
/* tile: one row into and out of a tile. The layout is stated in docs/formats/tiles.md. */
#include "tile/place_kernels.h"

#include <assert.h>

/*
 * The codes of a row that lie in one vector of 64: K has 4 neighbouring channels there, next to each other, V has 16,
 * four bytes apart.
 */
typedef struct run {
    uint32_t vector, byte; /* of its first channel */
} run;

static inline uint32_t run_length(quire_side side)
{
    return side == QUIRE_K ? 4 : 16;
}

static inline uint32_t run_step(quire_side side)
{
    return side == QUIRE_K ? 1 : 4;
}

/* Run of row t that begins at channel c, a multiple of the run's length. */
static inline run run_at(const quire_coder *coder, uint32_t t, uint32_t c)
{
    if (coder->side == QUIRE_K) return (run){t / 16 * (coder->d_pad / 4) + c / 4, t % 16 * 4};
    return (run){c + t / 4, t % 4};
}

/* Where plane `width` of a vector keeps a byte: offset and shift. Eight vectors are stored together. */
static inline size_t place(uint32_t bits, uint32_t plane_offset, uint32_t width, run r, uint32_t *shift)
{
    uint32_t in_block = r.vector % 8 * width;
    *shift = in_block % 8;
    return (size_t)(r.vector / 8) * 64 * bits + plane_offset + (in_block / 8) * 64 + r.byte;
}

/* code has d_pad codes. */
void quire_put_codes_c(const quire_coder *coder, uint8_t *tile, uint32_t t, const uint8_t *code)
{
    uint32_t bits = coder->codec->info.bits, offset = 0, low = 0, shift;
    uint32_t length = run_length(coder->side), step = run_step(coder->side);
    quire_bit_planes p = quire_bit_planes_of(bits);
    for (uint32_t i = 0; i < p.n; i++) {
        uint32_t width = p.width[i], mask = (1u << width) - 1;
        for (uint32_t c = 0; c < coder->d_pad; c += length) {
            uint8_t *at = tile + place(bits, offset, width, run_at(coder, t, c), &shift);
            uint8_t keep = (uint8_t) ~(mask << shift);
            for (uint32_t k = 0; k < length; k++)
                at[k * step] =
                    (uint8_t)((at[k * step] & keep) | ((uint32_t)code[c + k] >> low & mask) << shift);
        }
        offset += 64 * width;
        low += width;
    }
}

/* Writes d_pad codes. */
void quire_get_codes_c(const quire_coder *coder, const uint8_t *tile, uint32_t t, uint8_t *code)
{
    uint32_t bits = coder->codec->info.bits, offset = 0, low = 0, shift;
    uint32_t length = run_length(coder->side), step = run_step(coder->side);
    quire_bit_planes p = quire_bit_planes_of(bits);
    for (uint32_t i = 0; i < p.n; i++) {
        uint32_t width = p.width[i], mask = (1u << width) - 1;
        for (uint32_t c = 0; c < coder->d_pad; c += length) {
            const uint8_t *at = tile + place(bits, offset, width, run_at(coder, t, c), &shift);
            for (uint32_t k = 0; k < length; k++)
                code[c + k] =
                    (uint8_t)((i ? code[c + k] : 0u) | ((uint32_t)at[k * step] >> shift & mask) << low);
        }
        offset += 64 * width;
        low += width;
    }
}

static inline size_t float_index(const quire_coder *coder, uint32_t t, uint32_t c)
{
    if (coder->side == QUIRE_K) return ((size_t)(t / 16) * coder->d_pad + c) * 16 + t % 16;
    return ((size_t)(c / 16) * QUIRE_TILE_ROWS + t) * 16 + c % 16;
}

void quire_put_values_c(const quire_coder *coder, uint8_t *tile, uint32_t t, const float *value)
{
    for (uint32_t c = 0; c < coder->d; c++)
        quire_store_value(coder->codec->float_form, tile, float_index(coder, t, c), value[c]);
}

void quire_put_four_values_c(const quire_coder *coder, uint8_t *tile, uint32_t t, const float *const value[4])
{
    for (uint32_t i = 0; i < 4; i++) quire_put_values_c(coder, tile, t + i, value[i]);
}

void quire_get_values_c(const quire_coder *coder, const uint8_t *tile, uint32_t t, float *value)
{
    for (uint32_t c = 0; c < coder->d; c++)
        value[c] = quire_load_value(coder->codec->float_form, tile, float_index(coder, t, c));
}

void quire_tile_put(const quire_tile_format *f, void *tile, uint32_t t, const quire_coded_row *row)
{
    assert(t < QUIRE_TILE_ROWS);
    const quire_coder *coder = &f->coder;
    const quire_place_kernels *kernels = quire_place_kernels_for(coder->d);
    uint8_t *bytes = (uint8_t *)tile;
    if (coder->codec->values == QUIRE_VALUES_FLOAT) {
        kernels->put_values[coder->side](coder, bytes, t, row->value);
        return;
    }
    kernels->put_codes[coder->side](coder, bytes, t, row->code);
    for (uint32_t g = 0; g < coder->n_groups; g++) {
        size_t at = ((size_t)g * QUIRE_TILE_ROWS + t) * 2;
        quire_store16(bytes + f->code_bytes + at, row->scale[g]);
        if (coder->codec->has_bias) quire_store16(bytes + f->bias_offset + at, row->bias[g]);
    }
}

void quire_tile_get(const quire_tile_format *f, const void *tile, uint32_t t, quire_coded_row *row)
{
    assert(t < QUIRE_TILE_ROWS);
    const quire_coder *coder = &f->coder;
    const quire_place_kernels *kernels = quire_place_kernels_for(coder->d);
    const uint8_t *bytes = (const uint8_t *)tile;
    if (coder->codec->values == QUIRE_VALUES_FLOAT) {
        kernels->get_values[coder->side](coder, bytes, t, row->value);
        return;
    }
    kernels->get_codes[coder->side](coder, bytes, t, row->code);
    for (uint32_t g = 0; g < coder->n_groups; g++) {
        size_t at = ((size_t)g * QUIRE_TILE_ROWS + t) * 2;
        row->scale[g] = quire_load16(bytes + f->code_bytes + at);
        if (coder->codec->has_bias) row->bias[g] = quire_load16(bytes + f->bias_offset + at);
    }
}

uint32_t quire_tile_expand(const quire_tile_format *f, const void *tile, uint32_t t, float *y)
{
    quire_coded_row row;
    quire_tile_get(f, tile, t, &row);
    quire_expand_row(&f->coder, &row, y);
    return quire_row_mean(&f->coder, &row);
}

void quire_tile_clear(const quire_tile_format *f, void *tile, uint32_t row, uint32_t n)
{
    quire_coded_row zero;
    memset(&zero, 0, sizeof zero);
    for (uint32_t t = row; t < QUIRE_TILE_ROWS && t - row < n; t++) quire_tile_put(f, tile, t, &zero);
}

bool quire_tile_finite(const quire_tile_format *f, const void *tile)
{
    const quire_codec *codec = f->coder.codec;
    const uint8_t *bytes = (const uint8_t *)tile;
    if (codec->values == QUIRE_VALUES_FLOAT) {
        size_t n = (size_t)QUIRE_TILE_ROWS * f->coder.d_pad;
        for (size_t i = 0; i < n; i++) {
            float x = quire_load_value(codec->float_form, bytes, i);
            if ((quire_bits_of(x) & 0x7f800000u) == 0x7f800000u) return false;
        }
        return true;
    }
    for (size_t at = f->code_bytes; at < f->tile_bytes; at += 2)
        if (!quire_f16_is_finite(quire_load16(bytes + at))) return false;
    return true;
}
