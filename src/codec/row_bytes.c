/* SPDX-License-Identifier: MIT */
/* row_bytes: coded rows as the bytes of other programs, and back, without coding anew. */
#include "codec/registry.h"

#include <assert.h>

/* -------------------------------------------------------------- bit streams */

/* Code i is bits [i * bits, (i + 1) * bits), least significant first. */
size_t quire_row_code_bytes(const quire_coder *coder)
{
    return ((size_t)coder->d * coder->codec->info.bits + 31) / 32 * 4;
}

static void write_codes(const uint8_t *code, uint32_t d, uint32_t bits, uint8_t *bytes)
{
    uint64_t held = 0;
    uint32_t n_held = 0;
    if (bits == 8 && d % 4 == 0) { /* the stream is the codes */
        memcpy(bytes, code, d);
        return;
    }
    for (uint32_t i = 0; i < d; i++) {
        held |= (uint64_t)code[i] << n_held;
        n_held += bits;
        if (n_held < 32) continue;
        quire_store32(bytes, (uint32_t)held);
        bytes += 4;
        held >>= 32;
        n_held -= 32;
    }
    if (n_held) quire_store32(bytes, (uint32_t)held);
}

static void read_codes(const uint8_t *bytes, uint32_t d, uint32_t bits, uint8_t *code)
{
    uint64_t held = 0;
    uint32_t n_held = 0;
    if (bits == 8) {
        memcpy(code, bytes, d);
        return;
    }
    if (bits == 4 && d % 2 == 0) {
        for (uint32_t i = 0; i < d / 2; i++) {
            code[2 * i] = bytes[i] & 15;
            code[2 * i + 1] = bytes[i] >> 4;
        }
        return;
    }
    for (uint32_t i = 0; i < d; i++) {
        if (n_held < bits) {
            held |= (uint64_t)quire_load32(bytes) << n_held;
            bytes += 4;
            n_held += 32;
        }
        code[i] = (uint8_t)(held & ((1u << bits) - 1));
        held >>= bits;
        n_held -= bits;
    }
}

/* ------------------------------------------------------------------- native */

/*
 * The common form: the bit stream of the codes, filled up to words of four bytes, f16 scales, f16 biases. ggml's
 * blocks hold as many bytes in another order; they exist for head sizes of whole blocks only, all others use the
 * common form.
 */
static bool has_own_form(const quire_coder *coder)
{
    return coder->codec->pack && coder->d % (coder->n_groups ? coder->group : 1) == 0;
}

size_t quire_row_bytes(const quire_coder *coder)
{
    const quire_codec *codec = coder->codec;
    if (codec->values == QUIRE_VALUES_FLOAT) return coder->d * quire_value_bytes(codec->float_form);
    return quire_row_code_bytes(coder) + (size_t)coder->n_groups * (codec->has_bias ? 4 : 2);
}

void quire_row_pack(const quire_coder *coder, const quire_coded_row *row, uint8_t *bytes)
{
    const quire_codec *codec = coder->codec;
    if (has_own_form(coder)) {
        codec->pack(coder, row, bytes);
        return;
    }
    write_codes(row->code, coder->d, codec->info.bits, bytes);
    bytes += quire_row_code_bytes(coder);
    for (uint32_t g = 0; g < coder->n_groups; g++, bytes += 2) quire_store16(bytes, row->scale[g]);
    for (uint32_t g = 0; codec->has_bias && g < coder->n_groups; g++, bytes += 2)
        quire_store16(bytes, row->bias[g]);
}

static bool unpack_common(const quire_coder *coder, const uint8_t *bytes, quire_coded_row *row)
{
    const quire_codec *codec = coder->codec;
    bool finite = true;
    read_codes(bytes, coder->d, codec->info.bits, row->code);
    bytes += quire_row_code_bytes(coder);
    for (uint32_t g = 0; g < coder->n_groups; g++, bytes += 2) {
        row->scale[g] = quire_load16(bytes);
        finite &= quire_f16_is_finite(row->scale[g]);
    }
    for (uint32_t g = 0; codec->has_bias && g < coder->n_groups; g++, bytes += 2) {
        row->bias[g] = quire_load16(bytes);
        finite &= quire_f16_is_finite(row->bias[g]);
    }
    return finite;
}

quire_scale_places quire_scale_places_of(const quire_coder *coder)
{
    uint32_t n = coder->codec->has_bias ? 2 : 1;
    assert(coder->codec->values != QUIRE_VALUES_FLOAT);
    if (has_own_form(coder)) /* ggml's blocks begin with the scale, then the bias */
        return (quire_scale_places){
            .n = n, .n_blocks = coder->n_groups, .stride = quire_row_bytes(coder) / coder->n_groups};
    return (quire_scale_places){
        .first = quire_row_code_bytes(coder), .n = n * coder->n_groups, .n_blocks = 1};
}

quire_status quire_row_unpack(const quire_coder *coder, const uint8_t *bytes, quire_coded_row *row)
{
    bool finite =
        has_own_form(coder) ? coder->codec->unpack(coder, bytes, row) : unpack_common(coder, bytes, row);
    quire_row_pad(coder, row);
    return finite ? QUIRE_OK : QUIRE_EFORMAT;
}

/* ---------------------------------------------------------------------- MLX */

static quire_status check_mlx(const quire_coder *coder, quire_form scale_form)
{
    if (!quire_codec_has_mlx(coder->codec)) return QUIRE_EUNSUPPORTED;
    return quire_form_is_float(scale_form) ? QUIRE_OK : QUIRE_EINVAL;
}

quire_status quire_row_to_mlx(const quire_coder *coder, const quire_coded_row *row, void *words, void *scales,
                              void *biases, quire_form scale_form)
{
    quire_status status = check_mlx(coder, scale_form);
    if (status != QUIRE_OK) return status;
    write_codes(row->code, coder->d, coder->codec->info.bits, (uint8_t *)words);
    for (uint32_t g = 0; g < coder->n_groups; g++) {
        quire_store_value(scale_form, scales, g, quire_f16_to_f32(row->scale[g]));
        if (coder->codec->has_bias) quire_store_value(scale_form, biases, g, quire_f16_to_f32(row->bias[g]));
    }
    return QUIRE_OK;
}

/*
 * Scale or bias g as f16. f32 is rounded, as encoding the same values would have done. bf16 is the last word about
 * the row, so it must fit exactly; it does in f16's normal range.
 */
static bool import_scale(quire_form form, const void *data, uint32_t g, uint16_t *out)
{
    float x = quire_load_value(form, data, g);
    *out = quire_f32_to_f16(x);
    if (!quire_f16_is_finite(*out)) return false;
    return form == QUIRE_F32 || quire_f16_to_f32(*out) == x;
}

quire_status quire_row_from_mlx(const quire_coder *coder, const void *words, const void *scales,
                                const void *biases, quire_form scale_form, quire_coded_row *row)
{
    quire_status status = check_mlx(coder, scale_form);
    if (status != QUIRE_OK) return status;
    for (uint32_t g = 0; g < coder->n_groups; g++) {
        if (!import_scale(scale_form, scales, g, &row->scale[g])) return QUIRE_EMISMATCH;
        if (coder->codec->has_bias && !import_scale(scale_form, biases, g, &row->bias[g]))
            return QUIRE_EMISMATCH;
    }
    read_codes((const uint8_t *)words, coder->d, coder->codec->info.bits, row->code);
    quire_row_pad(coder, row);
    return QUIRE_OK;
}

/* An infinite norm becomes the largest f16; decoding it as it is would give rows of NaN. */
static void norm_row_values(const quire_coder *coder, const uint8_t *code, float norm, float *x)
{
    if (norm != norm) norm = 0;
    if (norm > QUIRE_F16_MAX) norm = QUIRE_F16_MAX;
    if (norm < -QUIRE_F16_MAX) norm = -QUIRE_F16_MAX;
    for (uint32_t i = 0; i < coder->d; i++) x[i] = norm * (float)coder->codec->table[code[i]];
    quire_unrotate(coder, x);
    quire_apply_unit(coder, x);
}

void quire_mlx_row_values(const quire_coder *coder, const void *words, const void *scales, const void *biases,
                          quire_form scale_form, float *x)
{
    uint8_t code[QUIRE_MAX_D];
    read_codes((const uint8_t *)words, coder->d, coder->codec->info.bits, code);
    if (coder->codec->tv) {
        norm_row_values(coder, code, quire_load_value(scale_form, scales, 0), x);
        return;
    }
    for (uint32_t i = 0; i < coder->d; i++) {
        uint32_t g = i / coder->group;
        float s = quire_load_value(scale_form, scales, g), b = quire_load_value(scale_form, biases, g);
        x[i] = s * (float)code[i] + b;
    }
}
