/* SPDX-License-Identifier: MIT */
/*
 * Attends to the rows of a prompt-cache file of mlx-lm: quire_mlx_attend FILE QUERIES OUT, both of f32; for each layer two
 * query heads per KV head, one query each, in the order of layers and heads.
 */
#include "files/mlx_cache.h"

#include <stdlib.h>
#include <string.h>

#define MUST(what)                                  \
    do {                                            \
        if (!(what)) {                              \
            fprintf(stderr, "failed: %s\n", #what); \
            exit(1);                                \
        }                                           \
    } while (0)

enum { Q_PER_KV = 2 };

static uint8_t *read_file(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    MUST(f && !fseek(f, 0, SEEK_END));
    *n = (size_t)ftell(f);
    rewind(f);
    uint8_t *bytes = (uint8_t *)malloc(*n + 1);
    MUST(bytes && fread(bytes, 1, *n, f) == *n);
    fclose(f);
    return bytes;
}

/* [tile][head], dense */
static char *make_tiles(const mlx_layer *l, quire_side side, quire_tile_format **format, uint32_t n_tiles)
{
    const mlx_side *s = &l->sides[side];
    quire_tile_format_options o = {.size = sizeof(quire_tile_format_options), .side = side, .d = s->d};
    MUST(!quire_tile_format_create(format, s->codec, &o));
    size_t bytes = quire_tile_bytes(*format);
    char *tiles = (char *)aligned_alloc(64, bytes * n_tiles * l->n_heads);
    void *buffer = malloc(mlx_rows_buffer_bytes(s, 64));
    MUST(tiles && buffer);
    memset(tiles, 0, bytes * n_tiles * l->n_heads);
    for (uint32_t t = 0; t < n_tiles; t++)
        for (uint32_t h = 0; h < l->n_heads; h++) {
            uint32_t n = l->n_rows - t * 64u < 64 ? (uint32_t)(l->n_rows - t * 64u) : 64;
            quire_rows rows = mlx_rows(l, side, 0, h, t * 64u, n, buffer);
            MUST(!quire_tile_encode(*format, h, tiles + (t * l->n_heads + h) * bytes, 0, n, &rows, NULL));
        }
    free(buffer);
    return tiles;
}

static void attend(const mlx_layer *l, const float *q, float *out)
{
    uint32_t n_tiles = (uint32_t)((l->n_rows + 63) / 64);
    quire_tile_format *k_format = NULL, *v_format = NULL;
    char *k = make_tiles(l, QUIRE_K, &k_format, n_tiles), *v = make_tiles(l, QUIRE_V, &v_format, n_tiles);
    quire_tile_ref *refs = (quire_tile_ref *)calloc(n_tiles, sizeof *refs);
    quire_workspace *w = NULL;
    MUST(refs && !quire_workspace_create(&w, NULL, NULL));
    for (uint32_t t = 0; t < n_tiles; t++)
        refs[t] = (quire_tile_ref){.k = k + t * l->n_heads * quire_tile_bytes(k_format),
                                   .v = v + t * l->n_heads * quire_tile_bytes(v_format),
                                   .k_format = k_format,
                                   .v_format = v_format,
                                   .first = t * 64,
                                   .n_rows = l->n_rows - t * 64u < 64 ? (uint32_t)(l->n_rows - t * 64u) : 64};
    quire_attend_job job = {.tile_stride = sizeof(quire_tile_ref),
                            .tiles = refs,
                            .n_tiles = n_tiles,
                            .n_q_heads = Q_PER_KV * l->n_heads,
                            .n_kv_heads = l->n_heads,
                            .d_k = l->sides[QUIRE_K].d,
                            .d_v = l->sides[QUIRE_V].d,
                            .n_queries = 1,
                            .q = q,
                            .out = out};
    quire_attend_options o = {.size = sizeof(quire_attend_options), .flags = QUIRE_ATTEND_BIDIRECTIONAL};
    MUST(!quire_attend(w, &o, &job, 1, sizeof(quire_attend_job)));
    quire_workspace_destroy(w);
    quire_tile_format_destroy(k_format);
    quire_tile_format_destroy(v_format);
    free(refs);
    free(k);
    free(v);
}

int main(int argc, char **argv)
{
    MUST(argc == 4);
    size_t n, n_q;
    char message[256] = "";
    mlx_cache c;
    uint8_t *bytes = read_file(argv[1], &n), *queries = read_file(argv[2], &n_q);
    MUST(mlx_cache_read(&c, bytes, n, message, sizeof message));
    FILE *f = fopen(argv[3], "wb");
    MUST(f);
    const float *q = (const float *)(const void *)queries;
    for (uint32_t i = 0; i < c.n_layers; i++) {
        const mlx_layer *l = &c.layers[i];
        size_t n_out = (size_t)Q_PER_KV * l->n_heads * l->sides[QUIRE_V].d;
        float *out = (float *)malloc(n_out * sizeof *out);
        MUST(out && l->kind < MLX_EMPTY);
        attend(l, q, out);
        MUST(fwrite(out, sizeof *out, n_out, f) == n_out);
        q += Q_PER_KV * l->n_heads * l->sides[QUIRE_K].d;
        free(out);
    }
    MUST(!fclose(f));
    mlx_cache_free(&c);
    free(bytes);
    free(queries);
    return 0;
}
