/* SPDX-License-Identifier: MIT */
/* Prompt-cache files of mlx-lm: reading. */
#include "files/mlx_cache.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static bool refuse(char *message, size_t size, uint32_t layer, const char *what)
{
    snprintf(message, size, "layer %u: %s", layer, what);
    return false;
}

/* -------------------------------------------------------------------- numbers */

static const st_tensor *find(const mlx_cache *c, uint32_t layer, const char *rest)
{
    char name[64];
    snprintf(name, sizeof name, "%u.%s", layer, rest);
    return safetensors_find(&c->file, name);
}

/* Layout B keeps numbers as tensors without dimensions. */
static bool number_in_tensor(const mlx_cache *c, uint32_t layer, uint32_t field, uint64_t *out)
{
    char name[16];
    int64_t wide = -1;
    int32_t narrow;
    snprintf(name, sizeof name, "%u", field);
    const st_tensor *t = find(c, layer, name);
    if (!t || t->rank > 1 || t->bytes != st_type_bytes(t->type)) return false;
    if (t->type == ST_I64) memcpy(&wide, t->data, sizeof wide);
    if (t->type == ST_I32 || t->type == ST_U32) {
        memcpy(&narrow, t->data, sizeof narrow);
        wide = narrow;
    }
    *out = (uint64_t)wide;
    return wide >= 0 && wide <= INT32_MAX;
}

/* Layout A keeps them as strings of the metadata. */
static bool number_in_text(const mlx_cache *c, uint32_t layer, uint32_t field, uint64_t *out)
{
    char key[32], *end;
    snprintf(key, sizeof key, "0.%u.%u", layer, field);
    const char *text = safetensors_metadata(&c->file, key);
    if (!text || *text < '0' || *text > '9') return false;
    errno = 0;
    *out = strtoull(text, &end, 10);
    return !errno && !*end && *out <= INT32_MAX;
}

static bool has_field(const mlx_cache *c, uint32_t layer, uint32_t field)
{
    char key[32];
    snprintf(key, sizeof key, "0.%u.%u", layer, field);
    return safetensors_metadata(&c->file, key);
}

/* ---------------------------------------------------------------------- sides */

static bool is_float(st_type type)
{
    return type == ST_F16 || type == ST_BF16 || type == ST_F32;
}

static const char *float_codec(st_type type)
{
    return type == ST_F16 ? "f16" : type == ST_BF16 ? "bf16" : "f32";
}

static bool same_rows(const st_tensor *a, const st_tensor *b)
{
    return a->rank == 4 && b->rank == 4 && !memcmp(a->shape, b->shape, 3 * sizeof a->shape[0]);
}

static bool read_float_side(mlx_side *s)
{
    if (!is_float(s->data->type) || s->data->rank != 4 || s->data->shape[3] < 1 || s->data->shape[3] > 1024)
        return false;
    s->d = (uint32_t)s->data->shape[3];
    snprintf(s->codec, sizeof s->codec, "%s", float_codec(s->data->type));
    return true;
}

/* Bits follow from the shapes, so files with other bits for V than for K need no rule of their own. */
static bool read_quantized_side(mlx_side *s, uint64_t group)
{
    if (!s->scales || !s->biases || s->data->type != ST_U32 || !is_float(s->scales->type) ||
        s->scales->type != s->biases->type || !same_rows(s->data, s->scales) ||
        !same_rows(s->data, s->biases) || s->scales->shape[3] != s->biases->shape[3])
        return false;
    uint64_t n_groups = s->scales->shape[3], words = s->data->shape[3];
    if (group > 128 || n_groups < 1 || n_groups > 1024 || words > 1024 || n_groups * group > 1024)
        return false;
    s->group = (uint32_t)group;
    s->d = (uint32_t)(n_groups * group);
    if (!s->d || words * 32 % s->d) return false;
    s->bits = (uint32_t)(words * 32 / s->d);
    snprintf(s->codec, sizeof s->codec, "a%ug%u", s->bits, s->group);
    return quire_codec_find(s->codec);
}

static bool find_sides(const mlx_cache *c, uint32_t i, mlx_layer *l)
{
    static const char *const names[2][4] = {{"0", "0.0", "0.1", "0.2"}, {"1", "1.0", "1.1", "1.2"}};
    for (int side = 0; side < 2; side++) {
        mlx_side *s = &l->sides[side];
        const char *const *name = names[side];
        s->data = find(c, i, name[l->kind == MLX_QUANTIZED ? 1 : 0]);
        s->scales = l->kind == MLX_QUANTIZED ? find(c, i, name[2]) : NULL;
        s->biases = l->kind == MLX_QUANTIZED ? find(c, i, name[3]) : NULL;
        if (!s->data) return false;
    }
    return true;
}

/* --------------------------------------------------------------------- layers */

static bool read_shape(mlx_layer *l)
{
    const st_tensor *k = l->sides[QUIRE_K].data, *v = l->sides[QUIRE_V].data;
    if (!same_rows(k, v) || k->shape[0] < 1 || k->shape[0] > 65536 || k->shape[1] < 1 ||
        k->shape[1] > 65535 || k->shape[2] > INT32_MAX)
        return false;
    l->n_seqs = (uint32_t)k->shape[0];
    l->n_heads = (uint32_t)k->shape[1];
    l->n_buffer_rows = k->shape[2];
    return true;
}

static bool read_plain(const mlx_cache *c, uint32_t i, mlx_layer *l)
{
    l->offset = l->n_buffer_rows;
    return c->layout == MLX_LAYOUT_A || number_in_tensor(c, i, 2, &l->offset);
}

/* Layout A: offset, group, bits; with different bits a version comes first, and there are five. */
static bool read_quantized(const mlx_cache *c, uint32_t i, mlx_layer *l)
{
    uint64_t group;
    uint32_t first = has_field(c, i, 4) ? 1 : 0;
    bool found = c->layout == MLX_LAYOUT_B
                     ? number_in_tensor(c, i, 2, &l->offset) && number_in_tensor(c, i, 3, &group)
                     : number_in_text(c, i, first, &l->offset) && number_in_text(c, i, first + 1, &group);
    return found && read_quantized_side(&l->sides[QUIRE_K], group) &&
           read_quantized_side(&l->sides[QUIRE_V], group);
}

static bool read_rotating(const mlx_cache *c, uint32_t i, mlx_layer *l)
{
    bool found = c->layout == MLX_LAYOUT_B
                     ? number_in_tensor(c, i, 2, &l->offset) && number_in_tensor(c, i, 3, &l->keep) &&
                           number_in_tensor(c, i, 4, &l->max_size) && number_in_tensor(c, i, 5, &l->index)
                     : number_in_text(c, i, 0, &l->keep) && number_in_text(c, i, 1, &l->max_size) &&
                           number_in_text(c, i, 2, &l->offset) && number_in_text(c, i, 3, &l->index);
    return found && l->keep < l->max_size && l->index <= l->n_buffer_rows && l->index <= l->offset;
}

static bool read_layer(const mlx_cache *c, uint32_t i, mlx_layer *l, char *message, size_t size)
{
    static const char *const classes[] = {"KVCache", "QuantizedKVCache", "RotatingKVCache"};
    l->kind = MLX_OTHER;
    for (int kind = 0; kind < 3; kind++)
        if (!strcmp(l->class_name, classes[kind])) l->kind = (mlx_kind)kind;
    if (l->kind == MLX_OTHER) return true;
    if (!find_sides(c, i, l)) return refuse(message, size, i, "K or V is missing");
    if (l->sides[QUIRE_K].data->rank == 1 && !l->sides[QUIRE_K].data->bytes) {
        l->kind = MLX_EMPTY;
        return true;
    }
    if (!read_shape(l)) return refuse(message, size, i, "K and V are not rows of the same tokens");
    bool floats = l->kind == MLX_QUANTIZED ||
                  (read_float_side(&l->sides[QUIRE_K]) && read_float_side(&l->sides[QUIRE_V]));
    if (!floats) return refuse(message, size, i, "K and V are not f16, bf16 or f32");
    bool right = l->kind == MLX_PLAIN       ? read_plain(c, i, l)
                 : l->kind == MLX_QUANTIZED ? read_quantized(c, i, l)
                                            : read_rotating(c, i, l);
    if (!right) return refuse(message, size, i, "the stored numbers do not match the arrays");
    l->n_rows = l->offset < l->n_buffer_rows ? l->offset : l->n_buffer_rows;
    if (l->kind != MLX_ROTATING && l->offset > l->n_buffer_rows)
        return refuse(message, size, i, "the stored number of rows is larger than the array");
    return true;
}

/* ----------------------------------------------------------------------- file */

static const char *class_of(const mlx_cache *c, uint32_t layer)
{
    char key[32];
    snprintf(key, sizeof key, "%s.%u", c->layout == MLX_LAYOUT_B ? "1" : "2", layer);
    return safetensors_metadata(&c->file, key);
}

static bool read_layers(mlx_cache *c, char *message, size_t size)
{
    const char *mark = safetensors_metadata(&c->file, "2.0");
    if (!mark) {
        snprintf(message, size, "the file is not a prompt cache of mlx-lm");
        return false;
    }
    c->layout = *mark ? MLX_LAYOUT_A : MLX_LAYOUT_B;
    while (c->n_layers <= MLX_MAX_LAYERS && class_of(c, c->n_layers)) c->n_layers++;
    if (!c->n_layers || c->n_layers > MLX_MAX_LAYERS) {
        snprintf(message, size, "the file has no layers, or too many");
        return false;
    }
    c->layers = (mlx_layer *)calloc(c->n_layers, sizeof *c->layers);
    if (!c->layers) {
        snprintf(message, size, "out of memory");
        return false;
    }
    for (uint32_t i = 0; i < c->n_layers; i++) {
        c->layers[i].class_name = class_of(c, i);
        if (!read_layer(c, i, &c->layers[i], message, size)) return false;
    }
    return true;
}

bool mlx_cache_read(mlx_cache *out, const uint8_t *bytes, size_t n, char *message, size_t size)
{
    mlx_cache c = {.n_layers = 0};
    if (!safetensors_read(&c.file, bytes, n, message, size)) return false;
    if (!read_layers(&c, message, size)) {
        mlx_cache_free(&c);
        return false;
    }
    *out = c;
    return true;
}

void mlx_cache_free(mlx_cache *c)
{
    safetensors_free(&c->file);
    free(c->layers);
    *c = (mlx_cache){.n_layers = 0};
}

/* ----------------------------------------------------------------------- rows */

static size_t row_bytes(const st_tensor *t)
{
    return (size_t)t->shape[3] * st_type_bytes(t->type);
}

static quire_form form_of(st_type type)
{
    return type == ST_F32 ? QUIRE_F32 : type == ST_F16 ? QUIRE_F16 : QUIRE_BF16;
}

static size_t rounded(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

size_t mlx_rows_buffer_bytes(const mlx_side *s, uint32_t n)
{
    return rounded(n * row_bytes(s->data)) + (s->bits ? 2 * rounded(n * row_bytes(s->scales)) : 0);
}

static char *copy_rows(const st_tensor *t, size_t first, uint32_t n, char *to)
{
    size_t bytes = row_bytes(t);
    memcpy(to, t->data + first * bytes, n * bytes);
    return to + rounded(n * bytes);
}

quire_rows mlx_rows(const mlx_layer *l, quire_side side, uint32_t seq, uint32_t head, uint64_t row,
                    uint32_t n, void *buffer)
{
    const mlx_side *s = &l->sides[side];
    size_t first = (size_t)(((uint64_t)seq * l->n_heads + head) * l->n_buffer_rows + row);
    char *at = (char *)buffer, *next = copy_rows(s->data, first, n, at);
    quire_rows rows = {.size = sizeof(quire_rows),
                       .form = s->bits ? QUIRE_MLX : form_of(s->data->type),
                       .data = at,
                       .token_stride = row_bytes(s->data)};
    if (!s->bits) return rows;
    rows.scale_form = form_of(s->scales->type);
    rows.scale_token_stride = row_bytes(s->scales);
    rows.codec = s->codec;
    rows.scales = next;
    next = copy_rows(s->scales, first, n, next);
    rows.biases = next;
    copy_rows(s->biases, first, n, next);
    return rows;
}
