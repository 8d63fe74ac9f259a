/* SPDX-License-Identifier: MIT */
/*
 * place_rows_tmpl: rows of V codes, and of values, into and out of tiles. Included by the
 * files of place kernels after the header of their lanes and put_four_floats() and put_four_halves(). d is a multiple of 16.
 */

/* ------------------------------------------------------------------ V codes */

/*
 * 16 channels of row t are one line of 64 bytes, four bytes apart: as 16 lanes of 32 bits, each code is `shift` bits up.
 * The next 16 channels come 16 vectors, that is two blocks, later.
 */
typedef struct v_plane {
    size_t at;      /* of the first line */
    size_t step;    /* to the next 16 channels */
    uint32_t shift; /* of the code in its lane */
} v_plane;

SIMD_FN v_plane v_plane_of(uint32_t bits, uint32_t offset, uint32_t width, uint32_t t)
{
    uint32_t vector = t / 4, in_block = vector % 8 * width;
    return (v_plane){
        .at = (size_t)(vector / 8) * 64 * bits + offset + (in_block / 8) * 64,
        .step = (size_t)128 * bits,
        .shift = t % 4 * 8 + in_block % 8,
    };
}

SIMD_STATIC void put_codes_v(const quire_coder *coder, uint8_t *tile, uint32_t t, const uint8_t *code)
{
    uint32_t bits = coder->codec->info.bits, offset = 0, low = 0;
    quire_bit_planes p = quire_bit_planes_of(bits);
    for (uint32_t i = 0; i < p.n; i++) {
        uint32_t width = p.width[i];
        v_plane plane = v_plane_of(bits, offset, width, t);
        uint8_t *line = tile + plane.at;
        vi mask = vi_set1((int32_t)(((1u << width) - 1) << plane.shift));
        for (uint32_t c = 0; c < coder->d; c += 16, line += plane.step) {
            vi x = vi_shift_left(vi_shift_right(vi_load_u8(code + c), low), plane.shift);
            vi_store(line, vi_merge_bits(mask, vi_load(line), x));
        }
        offset += 64 * width;
        low += width;
    }
}

SIMD_STATIC void get_codes_v(const quire_coder *coder, const uint8_t *tile, uint32_t t, uint8_t *code)
{
    uint32_t bits = coder->codec->info.bits, offset = 0, low = 0;
    quire_bit_planes p = quire_bit_planes_of(bits);
    for (uint32_t i = 0; i < p.n; i++) {
        uint32_t width = p.width[i];
        v_plane plane = v_plane_of(bits, offset, width, t);
        const uint8_t *line = tile + plane.at;
        vi mask = vi_set1((int32_t)((1u << width) - 1));
        for (uint32_t c = 0; c < coder->d; c += 16, line += plane.step) {
            vi x = vi_shift_left(vi_and(vi_shift_right(vi_load(line), plane.shift), mask), low);
            if (low) x = vi_add(x, vi_load_u8(code + c));
            vi_store_u8(code + c, x);
        }
        offset += 64 * width;
        low += width;
    }
}

/* ------------------------------------------------------------------- values */

SIMD_FN void store_values(quire_form form, void *p, vf v)
{
    if (form == QUIRE_F32)
        vf_store((float *)p, v);
    else if (form == QUIRE_F16)
        vf_store_f16(p, v);
    else
        vf_store_bf16(p, v);
}

SIMD_FN vf load_values(quire_form form, const void *p)
{
    if (form == QUIRE_F32) return vf_load((const float *)p);
    return form == QUIRE_F16 ? vf_load_f16(p) : vf_load_bf16(p);
}

/* V: 16 channels side by side. */
SIMD_STATIC void put_values_v(const quire_coder *coder, uint8_t *tile, uint32_t t, const float *value)
{
    quire_form form = coder->codec->float_form;
    size_t bytes = 16 * quire_value_bytes(form);
    for (uint32_t c = 0; c < coder->d; c += 16)
        store_values(form, tile + (c / 16 * QUIRE_TILE_ROWS + t) * bytes, vf_load(value + c));
}

SIMD_STATIC void put_four_values_v(const quire_coder *coder, uint8_t *tile, uint32_t t,
                                   const float *const value[4])
{
    for (uint32_t i = 0; i < 4; i++) put_values_v(coder, tile, t + i, value[i]);
}

SIMD_STATIC void get_values_v(const quire_coder *coder, const uint8_t *tile, uint32_t t, float *value)
{
    quire_form form = coder->codec->float_form;
    size_t bytes = 16 * quire_value_bytes(form);
    for (uint32_t c = 0; c < coder->d; c += 16)
        vf_store(value + c, load_values(form, tile + (c / 16 * QUIRE_TILE_ROWS + t) * bytes));
}

/* K: one by one, 16 tokens apart. */
SIMD_STATIC void put_values_k(const quire_coder *coder, uint8_t *tile, uint32_t t, const float *value)
{
    quire_form form = coder->codec->float_form;
    size_t one = quire_value_bytes(form);
    uint8_t *at = tile + ((size_t)(t / 16) * coder->d * 16 + t % 16) * one;
    if (form == QUIRE_F32) {
        for (uint32_t c = 0; c < coder->d; c++) memcpy(at + c * 64, value + c, 4);
        return;
    }
    for (uint32_t c = 0; c < coder->d; c += 16, at += 512) {
        uint16_t half[16];
        store_values(form, half, vf_load(value + c));
        for (uint32_t i = 0; i < 16; i++) memcpy(at + i * 32, half + i, 2);
    }
}

SIMD_STATIC void put_four_values_k(const quire_coder *coder, uint8_t *tile, uint32_t t,
                                   const float *const value[4])
{
    quire_form form = coder->codec->float_form;
    uint8_t *at = tile + ((size_t)(t / 16) * coder->d * 16 + t % 16) * quire_value_bytes(form);
    if (form == QUIRE_F32) {
        put_four_floats(at, value, coder->d);
        return;
    }
    for (uint32_t c = 0; c < coder->d; c += 16, at += 512) {
        sixteen_halves half[4];
        for (uint32_t i = 0; i < 4; i++) store_values(form, half + i, vf_load(value[i] + c));
        put_four_halves(at, half);
    }
}

SIMD_STATIC void get_values_k(const quire_coder *coder, const uint8_t *tile, uint32_t t, float *value)
{
    quire_form form = coder->codec->float_form;
    size_t one = quire_value_bytes(form);
    const uint8_t *at = tile + ((size_t)(t / 16) * coder->d * 16 + t % 16) * one;
    if (form == QUIRE_F32) {
        for (uint32_t c = 0; c < coder->d; c++) memcpy(value + c, at + c * 64, 4);
        return;
    }
    for (uint32_t c = 0; c < coder->d; c += 16, at += 512) {
        uint16_t half[16];
        for (uint32_t i = 0; i < 16; i++) memcpy(half + i, at + i * 32, 2);
        vf_store(value + c, load_values(form, half));
    }
}
