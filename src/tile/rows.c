/* SPDX-License-Identifier: MIT */
/* tile: rows of a caller's memory into tiles and back, in every form. */
#include "tile/place_kernels.h"

#include "core/float_mode.h"

/* A float codec's own bytes are its values. */
static quire_form effective_form(const quire_tile_format *f, quire_form form)
{
    const quire_codec *codec = f->coder.codec;
    return form == QUIRE_NATIVE && codec->values == QUIRE_VALUES_FLOAT ? codec->float_form : form;
}

quire_row_address quire_rows_one(const quire_tile_format *f, quire_form form, quire_form scale_form)
{
    const quire_coder *coder = &f->coder;
    form = effective_form(f, form);
    if (quire_form_is_float(form)) return (quire_row_address){coder->d * quire_value_bytes(form), 0};
    if (form == QUIRE_NATIVE) return (quire_row_address){quire_row_bytes(coder), 0};
    return (quire_row_address){quire_row_code_bytes(coder), coder->n_groups * quire_value_bytes(scale_form)};
}

static bool form_fits(const quire_tile_format *f, const quire_rows *rows)
{
    if (quire_form_is_float(rows->form)) return true;
    return !rows->codec || strcmp(rows->codec, f->coder.codec->info.name) == 0;
}

/* A stride of 0 becomes `dense`. False: n of them would overlap in `row` bytes. */
static bool fill_stride(size_t *stride, size_t dense, size_t row, uint32_t n)
{
    if (!*stride) *stride = dense;
    return n < 2 || *stride >= row;
}

/* Bytes of a whole sequence, heads inside of tokens or tokens inside of heads. */
static size_t seq_bytes(size_t token_stride, uint32_t n_tokens, size_t head_stride, uint32_t n_heads)
{
    size_t by_token = token_stride * n_tokens, by_head = head_stride * n_heads;
    return by_token > by_head ? by_token : by_head;
}

quire_status quire_rows_check(const quire_tile_format *f, uint32_t n_heads, uint32_t n_tokens,
                              quire_rows *rows)
{
    if (!rows->data) return QUIRE_EINVAL;
    if (!quire_form_is_float(rows->form) && rows->form != QUIRE_NATIVE) {
        const quire_codec *codec = f->coder.codec;
        if (rows->form != QUIRE_MLX || !quire_form_is_float(rows->scale_form) || !rows->scales)
            return QUIRE_EINVAL;
        if (!rows->biases && !(codec->info.flags & QUIRE_CODEC_MLX_VLM)) return QUIRE_EINVAL;
        if (!quire_codec_has_mlx(codec)) return QUIRE_EUNSUPPORTED;
    }
    if (!form_fits(f, rows)) return QUIRE_EMISMATCH;
    quire_row_address one = quire_rows_one(f, rows->form, rows->scale_form);
    bool apart = fill_stride(&rows->head_stride, one.data, one.data, n_heads);
    apart &= fill_stride(&rows->token_stride, one.data * n_heads, one.data, n_tokens);
    apart &= fill_stride(&rows->scale_head_stride, one.scales, one.scales, n_heads);
    apart &= fill_stride(&rows->scale_token_stride, one.scales * n_heads, one.scales, n_tokens);
    if (!rows->seq_stride)
        rows->seq_stride = seq_bytes(rows->token_stride, n_tokens, rows->head_stride, n_heads);
    if (!rows->scale_seq_stride)
        rows->scale_seq_stride =
            seq_bytes(rows->scale_token_stride, n_tokens, rows->scale_head_stride, n_heads);
    return apart ? QUIRE_OK : QUIRE_EINVAL;
}

quire_status quire_rows_read(quire_rows *own, const quire_rows *rows)
{
    return quire_read_sized(own, sizeof *own, rows);
}

quire_rows quire_rows_of(const quire_rows_out *out)
{
    return (quire_rows){
        .size = sizeof(quire_rows),
        .form = out->form,
        .scale_form = out->scale_form,
        .data = out->data,
        .scales = out->scales,
        .biases = out->biases,
        .token_stride = out->token_stride,
        .head_stride = out->head_stride,
        .seq_stride = out->seq_stride,
        .scale_token_stride = out->scale_token_stride,
        .scale_head_stride = out->scale_head_stride,
        .scale_seq_stride = out->scale_seq_stride,
        .codec = out->codec,
    };
}

static quire_row_address row_address(const quire_rows *r, size_t seq, size_t token, size_t head)
{
    return (quire_row_address){
        .data = seq * r->seq_stride + token * r->token_stride + head * r->head_stride,
        .scales = seq * r->scale_seq_stride + token * r->scale_token_stride + head * r->scale_head_stride,
    };
}

quire_rows quire_rows_at(const quire_rows *dense, size_t seq, size_t token, size_t head)
{
    quire_row_address at = row_address(dense, seq, token, head);
    quire_rows r = *dense;
    r.data = (const uint8_t *)r.data + at.data;
    if (r.scales) r.scales = (const uint8_t *)r.scales + at.scales;
    if (r.biases) r.biases = (const uint8_t *)r.biases + at.scales;
    return r;
}

quire_rows_out quire_rows_out_at(const quire_rows_out *out, const quire_rows *dense, size_t seq, size_t token,
                                 size_t head)
{
    quire_row_address at = row_address(dense, seq, token, head);
    return (quire_rows_out){
        .size = sizeof(quire_rows_out),
        .form = out->form,
        .scale_form = out->scale_form,
        .data = (uint8_t *)out->data + at.data,
        .scales = out->scales ? (uint8_t *)out->scales + at.scales : NULL,
        .biases = out->biases ? (uint8_t *)out->biases + at.scales : NULL,
        .token_stride = dense->token_stride,
        .head_stride = dense->head_stride,
        .seq_stride = dense->seq_stride,
        .scale_token_stride = dense->scale_token_stride,
        .scale_head_stride = dense->scale_head_stride,
        .scale_seq_stride = dense->scale_seq_stride,
        .codec = out->codec,
    };
}

static quire_status read_row(const quire_tile_format *f, const quire_calibration *cal, const quire_rows *rows,
                             quire_row_address at, quire_coded_row *row, quire_counts *counts)
{
    const uint8_t *data = (const uint8_t *)rows->data + at.data;
    quire_form form = effective_form(f, rows->form);
    if (quire_form_is_float(form)) {
        quire_encode_values(&f->coder, cal, form, data, row, counts);
        return QUIRE_OK;
    }
    if (form == QUIRE_NATIVE) return quire_row_unpack(&f->coder, data, row);
    const uint8_t *scales = (const uint8_t *)rows->scales + at.scales;
    const uint8_t *biases = rows->biases ? (const uint8_t *)rows->biases + at.scales : NULL;
    quire_status status = quire_row_from_mlx(&f->coder, data, scales, biases, rows->scale_form, row);
    if (status != QUIRE_EMISMATCH) return status;
    float x[QUIRE_MAX_D];
    quire_mlx_row_values(&f->coder, data, scales, biases, rows->scale_form, x);
    quire_encode_row(&f->coder, cal, x, row, counts);
    if (counts) counts->recoded++;
    return QUIRE_OK;
}

static bool range_is_valid(const quire_tile_format *f, uint32_t head, const void *tile, uint32_t row,
                           uint32_t n)
{
    return tile && quire_tile_is_aligned(tile) && head < f->n_heads && row <= QUIRE_TILE_ROWS &&
           n <= QUIRE_TILE_ROWS - row;
}

/* Rows of a float form. */
typedef struct value_rows {
    quire_form form;
    const uint8_t *data;
    size_t stride;
} value_rows;

/* Values that stay values need no coded row: putting them into the tile rounds them. */
static void encode_floats(const quire_coder *coder, uint8_t *tile, uint32_t row, uint32_t n,
                          const value_rows *rows, quire_counts *counts)
{
    const quire_place_kernels *kernels = quire_place_kernels_for(coder->d);
    const uint8_t *data = rows->data;
    float y[4][QUIRE_MAX_D];
    const float *x[4];
    for (uint32_t t = row, run; t < row + n; t += run) {
        run = t % 4 == 0 && row + n - t >= 4 ? 4 : 1;
        for (uint32_t k = 0; k < run; k++, data += rows->stride)
            x[k] = quire_clean_row(coder, rows->form, data, y[k], counts);
        if (run == 4)
            kernels->put_four_values[coder->side](coder, tile, t, x);
        else
            kernels->put_values[coder->side](coder, tile, t, x[0]);
    }
}

/* 16 rows from row t on. */
static void encode_sixteen(const quire_tile_format *f, const quire_calibration *cal, uint8_t *tile,
                           uint32_t t, const value_rows *rows, const uint8_t *data, quire_counts *counts)
{
    quire_coded_rows coded;
    uint32_t left = quire_encode_rows(&f->coder, rows->form, data, rows->stride, &coded);
    if (left != 0xffff) {
        quire_place_kernels_for(f->coder.d)->put_rows[f->coder.side](&f->coder, tile, t, &coded);
        for (uint32_t i = 0; i < QUIRE_ROWS_AT_ONCE; i++)
            quire_store16(tile + f->code_bytes + (size_t)(t + i) * 2, coded.scale[i]);
    }
    for (; left; left &= left - 1) {
        uint32_t i = (uint32_t)__builtin_ctz(left);
        quire_coded_row row;
        quire_encode_values(&f->coder, cal, rows->form, data + i * rows->stride, &row, counts);
        quire_tile_put(f, tile, t + i, &row);
    }
}

QUIRE_APART static void encode_values(const quire_tile_format *f, uint32_t head, uint8_t *tile, uint32_t row,
                                      uint32_t n, const value_rows *rows, quire_counts *counts)
{
    if (f->coder.codec->values == QUIRE_VALUES_FLOAT) {
        encode_floats(&f->coder, tile, row, n, rows, counts);
        return;
    }
    quire_calibration cal = quire_tile_format_head(f, head);
    quire_coded_row coded;
    bool takes_rows = n >= QUIRE_ROWS_AT_ONCE && quire_takes_rows(&f->coder);
    for (uint32_t i = 0, run; i < n; i += run) {
        const uint8_t *data = rows->data + i * rows->stride;
        run = 1;
        if (takes_rows && (row + i) % QUIRE_ROWS_AT_ONCE == 0 && n - i >= QUIRE_ROWS_AT_ONCE) {
            encode_sixteen(f, &cal, tile, row + i, rows, data, counts);
            run = QUIRE_ROWS_AT_ONCE;
            continue;
        }
        quire_encode_values(&f->coder, &cal, rows->form, data, &coded, counts);
        quire_tile_put(f, tile, row + i, &coded);
    }
}

bool quire_rows_are_damaged(const quire_tile_format *f, uint32_t n_heads, uint32_t n_tokens,
                            const quire_rows *dense)
{
    if (effective_form(f, dense->form) != QUIRE_NATIVE) return false;
    quire_scale_places scales = quire_scale_places_of(&f->coder);
    for (uint32_t t = 0; t < n_tokens; t++)
        for (uint32_t h = 0; h < n_heads; h++) {
            const uint8_t *row = (const uint8_t *)dense->data + row_address(dense, 0, t, h).data;
            if (!quire_scales_are_finite(scales, row)) return true;
        }
    return false;
}

QUIRE_APART static quire_status encode_codes(const quire_tile_format *f, uint32_t head, void *tile,
                                             uint32_t row, uint32_t n, const quire_rows *dense,
                                             quire_counts *counts)
{
    quire_calibration cal = quire_tile_format_head(f, head);
    quire_coded_row coded;
    for (uint32_t i = 0; i < n; i++) {
        quire_status status = read_row(f, &cal, dense, row_address(dense, 0, i, 0), &coded, counts);
        if (status) return status;
        quire_tile_put(f, tile, row + i, &coded);
    }
    return QUIRE_OK;
}

quire_status quire_tile_write(const quire_tile_format *f, uint32_t head, void *tile, uint32_t row, uint32_t n,
                              const quire_rows *rows, quire_counts *counts)
{
    if (!range_is_valid(f, head, tile, row, n)) return QUIRE_EINVAL;
    if (quire_form_is_float(rows->form)) {
        /* What quire_rows_check() would do here, without a copy: that costs more than all checks of a short call. */
        value_rows values = {rows->form, (const uint8_t *)rows->data, rows->token_stride};
        size_t one = f->coder.d * quire_value_bytes(rows->form);
        if (!values.data || !fill_stride(&values.stride, one, one, n)) return QUIRE_EINVAL;
        uint32_t mode = quire_float_mode_enter();
        encode_values(f, head, (uint8_t *)tile, row, n, &values, counts);
        quire_float_mode_leave(mode);
        return QUIRE_OK;
    }
    quire_rows dense = *rows;
    quire_status status = quire_rows_check(f, 1, n, &dense);
    if (status) return status;
    if (quire_rows_are_damaged(f, 1, n, &dense)) return QUIRE_EFORMAT; /* before the first row is written */
    uint32_t mode = quire_float_mode_enter();
    status = encode_codes(f, head, tile, row, n, &dense, counts);
    quire_float_mode_leave(mode);
    return status;
}

quire_status quire_tile_encode(const quire_tile_format *f, uint32_t head, void *tile, uint32_t row,
                               uint32_t n, const quire_rows *rows, quire_counts *counts)
{
    quire_rows own;
    quire_counts own_counts, *to = NULL;
    if (!f || !rows) return QUIRE_EINVAL;
    if (rows->size != sizeof own) { /* a copy costs more than all checks of a short call */
        quire_status status = quire_rows_read(&own, rows);
        if (status) return status;
        rows = &own;
    }
    if (counts) {
        quire_status status = quire_read_sized(&own_counts, sizeof own_counts, counts);
        if (status) return status;
        to = &own_counts;
    }
    quire_status status = quire_tile_write(f, head, tile, row, n, rows, to);
    if (to) (void)quire_write_sized(counts, to, sizeof *to);
    return status;
}

static quire_status write_row(const quire_tile_format *f, const quire_calibration *cal,
                              const quire_coded_row *row, const quire_rows_out *rows, quire_row_address at)
{
    uint8_t *data = (uint8_t *)rows->data + at.data;
    quire_form form = effective_form(f, rows->form);
    if (quire_form_is_float(form)) {
        float x[QUIRE_MAX_D];
        quire_decode_row(&f->coder, cal, row, x);
        quire_store_row(&f->coder, form, x, data);
        return QUIRE_OK;
    }
    if (form == QUIRE_NATIVE) {
        quire_row_pack(&f->coder, row, data);
        return QUIRE_OK;
    }
    uint8_t *biases = rows->biases ? (uint8_t *)rows->biases + at.scales : NULL;
    return quire_row_to_mlx(&f->coder, row, data, (uint8_t *)rows->scales + at.scales, biases,
                            rows->scale_form);
}

QUIRE_APART static quire_status decode_rows(const quire_tile_format *f, uint32_t head, const void *tile,
                                            uint32_t row, uint32_t n, const quire_rows *dense,
                                            const quire_rows_out *rows)
{
    quire_calibration cal = quire_tile_format_head(f, head);
    quire_coded_row coded;
    for (uint32_t i = 0; i < n; i++) {
        quire_tile_get(f, tile, row + i, &coded);
        quire_status status = write_row(f, &cal, &coded, rows, row_address(dense, 0, i, 0));
        if (status) return status;
    }
    return QUIRE_OK;
}

quire_status quire_tile_read(const quire_tile_format *f, uint32_t head, const void *tile, uint32_t row,
                             uint32_t n, const quire_rows_out *rows)
{
    if (!range_is_valid(f, head, tile, row, n)) return QUIRE_EINVAL;
    quire_rows dense = quire_rows_of(rows);
    quire_status status = quire_rows_check(f, 1, n, &dense);
    if (status) return status;
    uint32_t mode = quire_float_mode_enter();
    status = decode_rows(f, head, tile, row, n, &dense, rows);
    quire_float_mode_leave(mode);
    return status;
}

quire_status quire_tile_decode(const quire_tile_format *f, uint32_t head, const void *tile, uint32_t row,
                               uint32_t n, const quire_rows_out *rows)
{
    quire_rows_out own;
    if (!f) return QUIRE_EINVAL;
    quire_status status = quire_read_sized(&own, sizeof own, rows);
    return status ? status : quire_tile_read(f, head, tile, row, n, &own);
}

QUIRE_APART static void gather_rows(const quire_tile_format *f, void *tile, uint32_t row, uint32_t n,
                                    const void *const *tiles, const uint8_t *rows)
{
    quire_coded_row coded;
    for (uint32_t i = 0; i < n; i++) {
        quire_tile_get(f, tiles[i], rows[i], &coded);
        quire_tile_put(f, tile, row + i, &coded);
    }
}

quire_status quire_tile_gather(const quire_tile_format *f, void *tile, uint32_t row, uint32_t n,
                               const void *const *tiles, const uint8_t *rows)
{
    if (!f || !range_is_valid(f, 0, tile, row, n) || (n && (!tiles || !rows))) return QUIRE_EINVAL;
    for (uint32_t i = 0; i < n; i++)
        if (!range_is_valid(f, 0, tiles[i], rows[i], 1)) return QUIRE_EINVAL;
    uint32_t mode = quire_float_mode_enter();
    gather_rows(f, tile, row, n, tiles, rows);
    quire_float_mode_leave(mode);
    return QUIRE_OK;
}
