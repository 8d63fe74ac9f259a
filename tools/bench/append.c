/* SPDX-License-Identifier: MIT */
/* bench: rows into tiles that are in the cache, one at a time as decode does and 64 at a time as prefill does. */
#include "bench/bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MIN_ROWS 1024u /* per measured call and side */

/* One side: its rows, [head][64][d], and its tiles, [head]. */
typedef struct append_side {
    quire_tile_format *format;
    uint32_t d;
    float *rows;
    uint8_t *tiles, *expected; /* as the C code encodes them */
    size_t tile_bytes;
} append_side;

typedef struct append_case {
    append_side side[2]; /* side[1].format NULL: V is in K */
    uint32_t passes;
} append_case;

static bool encode_all(const bench_case *c, append_side *a, uint32_t n_at_once)
{
    for (uint32_t t = 0; t < QUIRE_PAGE_TOKENS; t += n_at_once)
        for (uint32_t h = 0; h < c->shape.n_kv_heads; h++)
            if (quire_tile_encode(a->format, h, a->tiles + h * a->tile_bytes, t, n_at_once,
                                  &(quire_rows){.size = sizeof(quire_rows),
                                                .form = QUIRE_F32,
                                                .data = a->rows + ((size_t)h * QUIRE_PAGE_TOKENS + t) * a->d},
                                  NULL))
                return false;
    return true;
}

/* Seconds per row, or NAN if it failed. */
static double time_rows(const bench_case *c, append_side *a, uint32_t n_at_once)
{
    const append_case *x = (const append_case *)c->self;
    double start = bench_now();
    for (uint32_t i = 0; i < x->passes; i++)
        if (!encode_all(c, a, n_at_once)) return (double)NAN;
    return (bench_now() - start) / ((double)x->passes * QUIRE_PAGE_TOKENS * c->shape.n_kv_heads);
}

/* The result is that of 1000 rows, half of them K. */
static bool run(bench_case *c, uint32_t layer, bench_times *times)
{
    append_case *x = (append_case *)c->self;
    (void)layer;
    double rows = 0, pages = 0;
    int n = 0;
    for (; n < 2 && x->side[n].format; n++) {
        rows += times->part[n] = time_rows(c, &x->side[n], 1);
        pages += time_rows(c, &x->side[n], QUIRE_PAGE_TOKENS);
    }
    times->part[BENCH_PART_PAGE] = pages / n;
    times->all = rows / n * 1000;
    return !isnan(rows + pages);
}

/* The share of bytes that are not those the C code writes. */
static bool check(bench_case *c, double *err)
{
    append_case *x = (append_case *)c->self;
    size_t different = 0, total = 0;
    for (int i = 0; i < 2 && x->side[i].format; i++) {
        append_side *a = &x->side[i];
        memset(a->tiles, 0, c->shape.n_kv_heads * a->tile_bytes);
        if (!encode_all(c, a, 1)) return false;
        for (size_t b = 0; b < c->shape.n_kv_heads * a->tile_bytes; b++, total++)
            different += a->tiles[b] != a->expected[b];
    }
    *err = (double)different / (double)total;
    return true;
}

static void destroy(bench_case *c)
{
    append_case *x = (append_case *)c->self;
    for (int i = 0; i < 2; i++) {
        quire_tile_format_destroy(x->side[i].format);
        free(x->side[i].rows);
        free(x->side[i].tiles);
        free(x->side[i].expected);
    }
    free(x);
}

static const bench_impl impl = {.name = "quire", .run = run, .check = check, .destroy = destroy};

static bool make_side(const bench_shape *s, quire_side side, append_side *a)
{
    uint32_t n = s->n_kv_heads;
    if (!a->format) return true;
    a->d = side == QUIRE_K ? s->d : s->d_v;
    a->tile_bytes = quire_tile_bytes(a->format);
    a->rows = (float *)malloc(sizeof(float) * n * QUIRE_PAGE_TOKENS * a->d);
    a->tiles = (uint8_t *)aligned_alloc(64, n * a->tile_bytes);
    a->expected = (uint8_t *)aligned_alloc(64, n * a->tile_bytes);
    if (!a->rows || !a->tiles || !a->expected) return false;
    memset(a->tiles, 0, n * a->tile_bytes);
    for (uint32_t h = 0; h < n; h++)
        bench_fill_rows(s, side, h, 7, a->rows + (size_t)h * QUIRE_PAGE_TOKENS * a->d, QUIRE_PAGE_TOKENS);
    return true;
}

bench_case *bench_append_create(const bench_shape *s, bench_team *team, char *message, size_t size)
{
    bench_case *c = bench_case_begin(&impl, sizeof(append_case), s, team, message, size);
    if (!c) return NULL;
    append_case *x = (append_case *)c->self;
    c->n_layers = 1;
    x->passes = (MIN_ROWS + QUIRE_PAGE_TOKENS * s->n_kv_heads - 1) / (QUIRE_PAGE_TOKENS * s->n_kv_heads);
    if (!bench_formats(s, &x->side[0].format, &x->side[1].format, message, size)) goto fail;
    snprintf(message, size, "out of memory");
    if (!make_side(s, QUIRE_K, &x->side[0]) || !make_side(s, QUIRE_V, &x->side[1])) goto fail;
    quire_isa_use("c");
    for (int i = 0; i < 2 && x->side[i].format; i++) {
        append_side *a = &x->side[i];
        if (!encode_all(c, a, QUIRE_PAGE_TOKENS)) goto fail;
        memcpy(a->expected, a->tiles, s->n_kv_heads * a->tile_bytes);
    }
    quire_isa_use(NULL);
    return c;
fail:
    quire_isa_use(NULL);
    bench_case_destroy(c);
    return NULL;
}
