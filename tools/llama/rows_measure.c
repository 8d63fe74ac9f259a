/* SPDX-License-Identifier: MIT */
#include "llama/rows_measure.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------- tiles */

/* One side of a layer in tiles, tile after tile of a head within a page, and its values as they come back. */
typedef struct coded {
    quire_tile_format *format;
    char *tiles;
    size_t tile_bytes;
    float *values;
} coded;

static void coded_free(coded *c)
{
    quire_tile_format_destroy(c->format);
    free(c->tiles);
    free(c->values);
}

static uint32_t pages_of(const rows_case *c)
{
    return (c->file->n_tokens + QUIRE_PAGE_TOKENS - 1) / QUIRE_PAGE_TOKENS;
}

static uint32_t rows_in(const rows_case *c, uint32_t page)
{
    uint32_t left = c->file->n_tokens - page * QUIRE_PAGE_TOKENS;
    return left < QUIRE_PAGE_TOKENS ? left : QUIRE_PAGE_TOKENS;
}

static quire_status code_page(const rows_case *c, coded *to, uint32_t page, uint32_t d, const float *rows)
{
    const quire_layer *l = &c->file->layers[c->layer].shape;
    size_t stride = (size_t)l->n_kv_heads * d * sizeof *rows;
    quire_status status = QUIRE_OK;
    for (uint32_t h = 0; h < l->n_kv_heads && !status; h++) {
        size_t at = (size_t)page * QUIRE_PAGE_TOKENS * l->n_kv_heads * d + (size_t)h * d;
        char *tile = to->tiles + ((size_t)page * l->n_kv_heads + h) * to->tile_bytes;
        quire_rows in = {
            .size = sizeof(quire_rows), .form = QUIRE_F32, .data = rows + at, .token_stride = stride};
        quire_rows_out back = {.size = sizeof(quire_rows_out),
                               .form = QUIRE_F32,
                               .data = to->values + at,
                               .token_stride = stride};
        status = quire_tile_encode(to->format, h, tile, 0, rows_in(c, page), &in, NULL);
        if (!status) status = quire_tile_decode(to->format, h, tile, 0, rows_in(c, page), &back);
    }
    return status;
}

static quire_status code(const rows_case *c, coded *to, quire_side side, const char *codec)
{
    const rows_layer *l = &c->file->layers[c->layer];
    uint32_t d = side == QUIRE_K ? l->shape.d_k : l->shape.d_v;
    quire_tile_format_options options = {.size = sizeof(quire_tile_format_options),
                                         .side = side,
                                         .d = d,
                                         .profile = c->profile,
                                         .layer = c->layer};
    quire_status status = quire_tile_format_create(&to->format, codec, &options);
    if (status) return status;
    to->tile_bytes = quire_tile_bytes(to->format);
    size_t bytes = (size_t)pages_of(c) * l->shape.n_kv_heads * to->tile_bytes;
    to->tiles = aligned_alloc(64, bytes);
    to->values = malloc((size_t)c->file->n_tokens * l->shape.n_kv_heads * d * sizeof *to->values);
    if (!to->tiles || !to->values) return QUIRE_ENOMEM;
    memset(to->tiles, 0, bytes);
    for (uint32_t page = 0; page < pages_of(c) && !status; page++)
        status = code_page(c, to, page, d, l->values[side]);
    return status;
}

/* --------------------------------------------------------------- attention */

uint32_t rows_n_queries(const rows_case *c)
{
    return (c->file->n_tokens + c->every - 1) / c->every;
}

static uint32_t position(const rows_case *c,
                         uint32_t query) /* the last token asks, and every so many before it */
{
    return c->file->n_tokens - 1 - (rows_n_queries(c) - 1 - query) * c->every;
}

static quire_status attend(const rows_case *c, const coded *k, const coded *v, float *out)
{
    const rows_layer *l = &c->file->layers[c->layer];
    uint32_t n = rows_n_queries(c), n_pages = pages_of(c), heads = l->shape.n_kv_heads;
    quire_attend_options options = {.size = sizeof(quire_attend_options)};
    quire_tile_ref *refs = malloc(n_pages * sizeof *refs);
    quire_attend_job *jobs = calloc(n, sizeof *jobs);
    quire_status status = refs && jobs ? QUIRE_OK : QUIRE_ENOMEM;
    for (uint32_t i = 0; i < n_pages && !status; i++)
        refs[i] = (quire_tile_ref){.k = k->tiles + (size_t)i * heads * k->tile_bytes,
                                   .v = v->tiles + (size_t)i * heads * v->tile_bytes,
                                   .k_format = k->format,
                                   .v_format = v->format,
                                   .first = i * QUIRE_PAGE_TOKENS,
                                   .n_rows = rows_in(c, i)};
    for (uint32_t i = 0; i < n && !status; i++)
        jobs[i] = (quire_attend_job){.tile_stride = sizeof(quire_tile_ref),
                                     .tiles = refs,
                                     .n_tiles = n_pages,
                                     .n_q_heads = l->shape.n_q_heads,
                                     .n_kv_heads = heads,
                                     .d_k = l->shape.d_k,
                                     .d_v = l->shape.d_v,
                                     .n_queries = 1,
                                     .first_query = position(c, i),
                                     .q = l->values[ROWS_Q] +
                                          (size_t)position(c, i) * rows_width(&l->shape, ROWS_Q),
                                     .out = out + (size_t)i * l->shape.n_q_heads * l->shape.d_v};
    if (!status) status = quire_attend(c->workspace, &options, jobs, n, sizeof(quire_attend_job));
    free(refs);
    free(jobs);
    return status;
}

/* ------------------------------------------------------------------ errors */

static void add_squares(double *error, double *all, const float *values, const float *exact, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        double e = (double)values[i] - (double)exact[i];
        *error += e * e;
        *all += (double)exact[i] * (double)exact[i];
    }
}

/* Scores of one query head: the spread of q . (k' - k) over the keys it sees. */
static void add_scores(const rows_case *c, rows_error *e, const float *k, uint32_t query, uint32_t head)
{
    const rows_layer *l = &c->file->layers[c->layer];
    uint32_t d = l->shape.d_k, width = l->shape.n_kv_heads * d, n = position(c, query) + 1;
    uint32_t kv_head = head / (l->shape.n_q_heads / l->shape.n_kv_heads);
    const float *q = l->values[ROWS_Q] + ((size_t)(n - 1) * l->shape.n_q_heads + head) * d;
    double sum = 0, squares = 0;
    for (uint32_t j = 0; j < n; j++) {
        const float *exact = l->values[ROWS_K] + (size_t)j * width + kv_head * d;
        const float *coded_k = k + (size_t)j * width + kv_head * d;
        float s = 0;
        for (uint32_t i = 0; i < d; i++) s += q[i] * (coded_k[i] - exact[i]);
        sum += (double)s;
        squares += (double)s * (double)s;
    }
    e->score += (squares - sum * sum / n) / d; /* scores are divided by sqrt(d) */
    e->n_scores += n;
}

static quire_status attend_coded(const rows_case *c, const char *k_codec, const char *v_codec, coded *k,
                                 coded *v, float *out)
{
    quire_status status = code(c, k, QUIRE_K, k_codec);
    if (!status) status = code(c, v, QUIRE_V, v_codec);
    if (!status) status = attend(c, k, v, out);
    return status;
}

quire_status rows_exact(const rows_case *c, float *out)
{
    coded k = {0}, v = {0};
    quire_status status = attend_coded(c, "f32", "f32", &k, &v, out);
    coded_free(&k);
    coded_free(&v);
    return status;
}

quire_status rows_measure(const rows_case *c, rows_error *e, float *out)
{
    const rows_layer *l = &c->file->layers[c->layer];
    size_t n_tokens = c->file->n_tokens,
           n_out = (size_t)rows_n_queries(c) * l->shape.n_q_heads * l->shape.d_v;
    coded k = {0}, v = {0};
    float *own = out ? NULL : malloc(n_out * sizeof *own), *result = out ? out : own;
    quire_status status = result ? attend_coded(c, c->k, c->v, &k, &v, result) : QUIRE_ENOMEM;
    if (!status) {
        add_squares(&e->out, &e->out_all, result, c->exact, n_out);
        add_squares(&e->k, &e->k_all, k.values, l->values[ROWS_K], n_tokens * rows_width(&l->shape, ROWS_K));
        add_squares(&e->v, &e->v_all, v.values, l->values[ROWS_V], n_tokens * rows_width(&l->shape, ROWS_V));
        for (uint32_t i = 0; i < rows_n_queries(c); i++)
            for (uint32_t h = 0; h < l->shape.n_q_heads; h++) add_scores(c, e, k.values, i, h);
    }
    coded_free(&k);
    coded_free(&v);
    free(own);
    return status;
}
