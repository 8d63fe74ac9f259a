/* SPDX-License-Identifier: MIT */
/* Prompt-cache files of mlx-lm: writing, in another layout or other codecs. */
#include "files/mlx_cache.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = QUIRE_PAGE_TOKENS, MAX_LAYER_TENSORS = 12, MAX_LAYER_PAIRS = 16 };

typedef struct writer {
    const mlx_cache *c;
    const mlx_convert_options *o;
    quire_counts *counts;
    char *message;
    size_t size;
    /* Large tensors first, then numbers: all of them stay aligned then. */
    st_tensor *large, *numbers;
    size_t n_large, n_numbers;
    st_pair *pairs;
    size_t n_pairs;
    void **owned; /* everything that was allocated for them */
    size_t n_owned, n_marks;
} writer;

static bool fail(writer *w, const char *what)
{
    if (!*w->message) snprintf(w->message, w->size, "%s", what);
    return false;
}

static void *own(writer *w, size_t bytes)
{
    void *p = calloc(1, bytes ? bytes : 1);
    if (p) w->owned[w->n_owned++] = p;
    if (!p) fail(w, "out of memory");
    return p;
}

__attribute__((format(printf, 2, 3))) static const char *own_text(writer *w, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    char *copy = (char *)own(w, strlen(text) + 1);
    return copy ? strcpy(copy, text) : "";
}

/* --------------------------------------------------------------------- numbers */

static void add_pair(writer *w, const char *key, const char *value)
{
    w->pairs[w->n_pairs++] = (st_pair){key, value};
}

/* Layout A: text. */
static void add_field(writer *w, uint32_t layer, uint32_t field, uint64_t value)
{
    add_pair(w, own_text(w, "0.%u.%u", layer, field), own_text(w, "%" PRIu64, value));
}

/* Layout B: a tensor, and a mark that it is a number. */
static void add_number(writer *w, uint32_t layer, uint32_t field, uint64_t value)
{
    int32_t number = (int32_t)value;
    uint8_t *data = (uint8_t *)own(w, sizeof number);
    if (!data) return;
    memcpy(data, &number, sizeof number);
    const char *name = own_text(w, "%u.%u", layer, field);
    w->numbers[w->n_numbers++] =
        (st_tensor){.name = name, .type = ST_I32, .data = data, .bytes = sizeof number};
    w->n_marks++;
    add_pair(w, own_text(w, "2.%zu.0", w->n_marks), name);
    add_pair(w, own_text(w, "2.%zu.1", w->n_marks), "scalar");
}

/* ------------------------------------------------------------------------ rows */

/* One side of a layer on its way from codec to codec. */
typedef struct passage {
    const mlx_layer *l;
    quire_side side;
    const char *codec; /* to be */
    bool same;         /* codes or floats stay as they are */
    st_type scale_type;
    quire_tile_format *from, *to;
    st_tensor out[3]; /* data, scales, biases */
    uint32_t n_out;
    void *rows, *tile;
    float *values;
} passage;

static st_type float_type(const char *codec)
{
    return !strcmp(codec, "f32") ? ST_F32 : !strcmp(codec, "f16") ? ST_F16 : ST_BF16;
}

static quire_form form_of(st_type type)
{
    return type == ST_F32 ? QUIRE_F32 : type == ST_F16 ? QUIRE_F16 : QUIRE_BF16;
}

static bool make_output(writer *w, passage *p)
{
    const mlx_layer *l = p->l;
    const mlx_side *s = &l->sides[p->side];
    const quire_codec_info *info = quire_codec_find(p->codec);
    bool floats = info->flags & QUIRE_CODEC_FLOAT;
    uint64_t last[3] = {floats ? s->d : s->d * info->bits / 32, floats ? 0 : s->d / info->group,
                        floats ? 0 : s->d / info->group};
    p->n_out = floats ? 1 : 3;
    for (uint32_t i = 0; i < p->n_out; i++) {
        st_tensor *t = &p->out[i];
        *t = (st_tensor){.type = i        ? p->scale_type
                                 : floats ? float_type(p->codec)
                                          : ST_U32,
                         .rank = 4,
                         .shape = {l->n_seqs, l->n_heads, l->n_rows, last[i]}};
        t->bytes = (size_t)(l->n_seqs * l->n_heads * l->n_rows * last[i] * st_type_bytes(t->type));
        t->data = (const uint8_t *)own(w, t->bytes);
        if (!t->data) return false;
    }
    return true;
}

static bool open_passage(writer *w, passage *p)
{
    const mlx_side *s = &p->l->sides[p->side];
    quire_tile_format_options o = {.size = sizeof(quire_tile_format_options), .side = p->side, .d = s->d};
    size_t tile = 64;
    p->same = !strcmp(p->codec, s->codec);
    p->scale_type = s->bits ? s->scales->type : s->data->type;
    if (!make_output(w, p)) return false;
    if (quire_tile_format_create(&p->from, s->codec, &o) || quire_tile_format_create(&p->to, p->codec, &o))
        return fail(w, "out of memory");
    if (quire_tile_bytes(p->from) > tile) tile = quire_tile_bytes(p->from);
    if (quire_tile_bytes(p->to) > tile) tile = quire_tile_bytes(p->to);
    p->rows = malloc(mlx_rows_buffer_bytes(s, ROWS));
    p->tile = aligned_alloc(64, tile);
    p->values = (float *)malloc(sizeof(float) * ROWS * s->d);
    if (!p->rows || !p->tile || !p->values) return fail(w, "out of memory");
    memset(p->tile, 0, tile);
    return true;
}

static void close_passage(passage *p)
{
    quire_tile_format_destroy(p->from);
    quire_tile_format_destroy(p->to);
    free(p->rows);
    free(p->tile);
    free(p->values);
}

static uint8_t *out_row(const st_tensor *t, size_t row)
{
    return (uint8_t *)(size_t)t->data + row * (size_t)t->shape[3] * st_type_bytes(t->type);
}

static size_t out_stride(const st_tensor *t)
{
    return (size_t)t->shape[3] * st_type_bytes(t->type);
}

static void copy(const passage *p, const quire_rows *rows, size_t to, uint32_t n)
{
    memcpy(out_row(&p->out[0], to), rows->data, n * out_stride(&p->out[0]));
    if (p->n_out == 1) return;
    memcpy(out_row(&p->out[1], to), rows->scales, n * out_stride(&p->out[1]));
    memcpy(out_row(&p->out[2], to), rows->biases, n * out_stride(&p->out[2]));
}

/* Through the library: codes to values in one tile, values to codes in another. */
static quire_status recode(writer *w, passage *p, const quire_rows *rows, size_t to, uint32_t n)
{
    quire_rows values = {.size = sizeof(quire_rows), .form = QUIRE_F32, .data = p->values};
    quire_rows_out decoded = {.size = sizeof(quire_rows_out), .form = QUIRE_F32, .data = p->values};
    quire_rows_out out = {.size = sizeof(quire_rows_out),
                          .form = form_of(p->out[0].type),
                          .data = out_row(&p->out[0], to),
                          .token_stride = out_stride(&p->out[0])};
    quire_status status;
    if (p->n_out == 3) {
        out.form = QUIRE_MLX;
        out.scale_form = form_of(p->scale_type);
        out.scales = out_row(&p->out[1], to);
        out.biases = out_row(&p->out[2], to);
        out.scale_token_stride = out_stride(&p->out[1]);
    }
    status = quire_tile_encode(p->from, 0, p->tile, 0, n, rows, w->counts);
    if (!status) status = quire_tile_decode(p->from, 0, p->tile, 0, n, &decoded);
    quire_tile_clear(p->from, p->tile, 0, ROWS);
    if (!status) status = quire_tile_encode(p->to, 0, p->tile, 0, n, &values, w->counts);
    if (!status) status = quire_tile_decode(p->to, 0, p->tile, 0, n, &out);
    quire_tile_clear(p->to, p->tile, 0, ROWS);
    return status;
}

static bool pass(writer *w, passage *p)
{
    const mlx_layer *l = p->l;
    if (!l->n_rows) return true; /* heads of nothing may be many */
    for (uint32_t head = 0; head < l->n_seqs * l->n_heads; head++)
        for (uint64_t row = 0; row < l->n_rows; row += ROWS) {
            uint32_t n = l->n_rows - row < ROWS ? (uint32_t)(l->n_rows - row) : ROWS;
            size_t to = (size_t)(head * l->n_rows + row);
            quire_rows rows = mlx_rows(l, p->side, head / l->n_heads, head % l->n_heads, row, n, p->rows);
            quire_status status = p->same ? QUIRE_OK : recode(w, p, &rows, to, n);
            if (status) return fail(w, quire_status_text(status));
            if (p->same) copy(p, &rows, to, n);
        }
    return true;
}

static bool write_side(writer *w, uint32_t layer, quire_side side, const char *codec)
{
    passage p = {.l = &w->c->layers[layer], .side = side, .codec = codec};
    bool right = open_passage(w, &p) && pass(w, &p);
    close_passage(&p);
    for (uint32_t i = 0; right && i < p.n_out; i++) {
        p.out[i].name = p.n_out == 1 ? own_text(w, "%u.%d", layer, (int)side)
                                     : own_text(w, "%u.%d.%u", layer, (int)side, i);
        w->large[w->n_large++] = p.out[i];
    }
    return right;
}

/* ---------------------------------------------------------------------- layers */

static void write_numbers(writer *w, uint32_t i, const quire_codec_info *k, const quire_codec_info *v)
{
    const mlx_layer *l = &w->c->layers[i];
    bool a = w->o->layout == MLX_LAYOUT_A;
    void (*add)(writer *, uint32_t, uint32_t, uint64_t) = a ? add_field : add_number;
    uint32_t at = a ? 0 : 2;
    if (l->kind == MLX_ROTATING) {
        uint64_t b_order[] = {l->offset, l->keep, l->max_size, l->index};
        uint64_t a_order[] = {l->keep, l->max_size, l->offset, l->index};
        for (uint32_t f = 0; f < 4; f++) add(w, i, at + f, a ? a_order[f] : b_order[f]);
    } else if (k->flags & QUIRE_CODEC_FLOAT) {
        if (a)
            add_pair(w, own_text(w, "0.%u", i), "");
        else
            add(w, i, at, l->offset);
    } else {
        if (k->bits != v->bits) add(w, i, at++, 2); /* the version of this form */
        add(w, i, at, l->offset);
        add(w, i, at + 1, k->group);
        add(w, i, at + 2, k->bits);
        if (k->bits != v->bits) add(w, i, at + 3, v->bits);
    }
}

/* What mlx-lm can hold. */
static const char *why_not(const writer *w, const mlx_layer *l, const quire_codec_info *k,
                           const quire_codec_info *v)
{
    bool k_floats = k->flags & QUIRE_CODEC_FLOAT, v_floats = v->flags & QUIRE_CODEC_FLOAT;
    if (l->kind == MLX_OTHER) return "only KVCache, QuantizedKVCache and RotatingKVCache can be converted";
    if (l->kind == MLX_EMPTY) return "the cache has no rows";
    if ((!k_floats && !(k->flags & QUIRE_CODEC_MLX)) || (!v_floats && !(v->flags & QUIRE_CODEC_MLX)))
        return "mlx-lm files can contain only f16, bf16, f32 and affine codecs such as a8g64";
    if (k_floats != v_floats) return "mlx-lm needs K and V to be both floats or both quantized";
    if (l->kind == MLX_ROTATING && !k_floats) return "mlx-lm has no quantized RotatingKVCache";
    if (!k_floats && k->group != v->group) return "mlx-lm needs the same group size for K and V";
    if (!k_floats && (l->sides[QUIRE_K].d % k->group || l->sides[QUIRE_V].d % v->group))
        return "mlx-lm needs a head size that is a multiple of the group size";
    if (!k_floats && k->bits != v->bits && w->o->layout == MLX_LAYOUT_B)
        return "layout b cannot store different bits for K and V; layout a can, but only patched versions of mlx-lm read that";
    return NULL;
}

static bool write_layer(writer *w, uint32_t i)
{
    const mlx_layer *l = &w->c->layers[i];
    const char *codec[2];
    for (int side = 0; side < 2; side++) {
        codec[side] = w->o->codecs[side] ? w->o->codecs[side] : l->sides[side].codec;
        if (!*codec[side]) codec[side] = "f16"; /* refused below */
        if (!quire_codec_find(codec[side])) return fail(w, "unknown codec");
    }
    const quire_codec_info *k = quire_codec_find(codec[QUIRE_K]), *v = quire_codec_find(codec[QUIRE_V]);
    const char *why = why_not(w, l, k, v);
    if (why) {
        snprintf(w->message, w->size, "layer %u: %s", i, why);
        return false;
    }
    if (!write_side(w, i, QUIRE_K, codec[QUIRE_K]) || !write_side(w, i, QUIRE_V, codec[QUIRE_V]))
        return false;
    write_numbers(w, i, k, v);
    const char *name = l->kind == MLX_ROTATING        ? "RotatingKVCache"
                       : k->flags & QUIRE_CODEC_FLOAT ? "KVCache"
                                                      : "QuantizedKVCache";
    add_pair(w, own_text(w, "%s.%u", w->o->layout == MLX_LAYOUT_A ? "2" : "1", i), name);
    return !*w->message;
}

/* What the user of mlx-lm wrote beside the cache: 0.key in layout B, 1.key in layout A. */
static void copy_metadata(writer *w)
{
    char from = w->c->layout == MLX_LAYOUT_B ? '0' : '1';
    for (size_t i = 0; i < w->c->file.n_metadata; i++) {
        const st_pair *p = &w->c->file.metadata[i];
        if (p->key[0] != from || p->key[1] != '.') continue;
        size_t n = strlen(p->key) + 1;
        char *key = (char *)own(w, n);
        if (!key) return;
        memcpy(key, p->key, n);
        key[0] = w->o->layout == MLX_LAYOUT_B ? '0' : '1';
        add_pair(w, key, p->value);
    }
}

/* ------------------------------------------------------------------------ file */

static bool prepare(writer *w)
{
    size_t layers = w->c->n_layers, more = w->c->file.n_metadata;
    w->large = (st_tensor *)calloc(layers * 6 + layers * 6, sizeof *w->large);
    w->numbers = (st_tensor *)calloc(layers * 6, sizeof *w->numbers);
    w->pairs = (st_pair *)calloc(layers * MAX_LAYER_PAIRS + more + 1, sizeof *w->pairs);
    w->owned =
        (void **)calloc(layers * (MAX_LAYER_TENSORS + 6 + 3 * MAX_LAYER_PAIRS) + more + 1, sizeof *w->owned);
    return (w->large && w->numbers && w->pairs && w->owned) || fail(w, "out of memory");
}

static bool write_all(writer *w, FILE *file)
{
    copy_metadata(w);
    if (w->o->layout == MLX_LAYOUT_B) add_pair(w, "2.0", "");
    for (uint32_t i = 0; i < w->c->n_layers; i++) {
        if (!write_layer(w, i)) return false;
        if (w->o->progress) w->o->progress(w->o->ctx, i + 1);
    }
    memcpy(w->large + w->n_large, w->numbers, w->n_numbers * sizeof *w->numbers);
    return safetensors_write(file, w->large, w->n_large + w->n_numbers, w->pairs, w->n_pairs) ||
           fail(w, "the file could not be written");
}

bool mlx_cache_write(const mlx_cache *c, const mlx_convert_options *options, FILE *file, quire_counts *counts,
                     char *message, size_t size)
{
    writer w = {.c = c, .o = options, .counts = counts, .message = message, .size = size};
    *message = 0;
    bool right = prepare(&w) && write_all(&w, file);
    for (size_t i = 0; i < w.n_owned; i++) free(w.owned[i]);
    free(w.owned);
    free(w.large);
    free(w.numbers);
    free(w.pairs);
    return right;
}
