/* SPDX-License-Identifier: MIT */
#include "files/rows_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LAYERS = 4096, MAX_HEADS = 4096, MAX_D = 1024 };

uint32_t rows_width(const quire_layer *l, int kind)
{
    return kind == ROWS_K   ? l->n_kv_heads * l->d_k
           : kind == ROWS_V ? l->n_kv_heads * l->d_v
                            : l->n_q_heads * l->d_k;
}

static bool words(FILE *in, uint32_t *w, size_t n)
{
    return fread(w, sizeof *w, n, in) == n;
}

static bool is_shape(const quire_layer *l)
{
    return l->n_q_heads && l->n_q_heads <= MAX_HEADS && l->n_kv_heads && l->n_q_heads % l->n_kv_heads == 0 &&
           l->d_k && l->d_k <= MAX_D && l->d_v && l->d_v <= MAX_D;
}

static bool read_head(rows_file *f, FILE *in)
{
    char magic[8];
    uint32_t head[2], w[5];
    if (fread(magic, 1, 8, in) != 8 || memcmp(magic, "QUIREROW", 8) || !words(in, head, 2) || head[0] != 1 ||
        !head[1] || head[1] > MAX_LAYERS)
        return false;
    f->layers = calloc(head[1], sizeof *f->layers);
    if (!f->layers) return false;
    f->n_layers = head[1];
    for (uint32_t i = 0; i < f->n_layers; i++) {
        if (!words(in, w, 5)) return false;
        f->layers[i].shape =
            (quire_layer){.n_q_heads = w[0], .n_kv_heads = w[1], .d_k = w[2], .d_v = w[3], .window = w[4]};
        if (!is_shape(&f->layers[i].shape)) return false;
    }
    return true;
}

/* Room for the next row, doubled when full. */
static float *next_row(rows_layer *l, int kind)
{
    uint32_t n = l->n[kind], width = rows_width(&l->shape, kind);
    if ((n & (n - 1)) == 0) {
        float *more = realloc(l->values[kind], (n ? 2 * (size_t)n : 1) * width * sizeof *more);
        if (!more) return NULL;
        l->values[kind] = more;
    }
    return l->values[kind] + (size_t)n * width;
}

/* Rows come in the order of their positions; the first that does not belongs to the next sequence. */
static bool read_rows(rows_file *f, FILE *in, uint32_t max_tokens)
{
    uint32_t head[3];
    while (words(in, head, 3)) {
        if (head[0] >= f->n_layers || head[1] >= ROWS_KINDS) return false;
        rows_layer *l = &f->layers[head[0]];
        uint32_t width = rows_width(&l->shape, (int)head[1]);
        if (head[2] < l->n[head[1]]) return true;
        if (head[2] >= max_tokens) {
            if (fseek(in, (long)(width * sizeof(float)), SEEK_CUR)) return false;
            continue;
        }
        if (head[2] != l->n[head[1]]) return false;
        float *row = next_row(l, (int)head[1]);
        if (!row) return false;
        if (fread(row, sizeof *row, width, in) != width) return true;
        l->n[head[1]]++;
    }
    return true;
}

bool rows_file_read(rows_file *f, const char *path, uint32_t max_tokens, char *message, size_t size)
{
    *f = (rows_file){0};
    FILE *in = fopen(path, "rb");
    if (!in) {
        snprintf(message, size, "%s: %s", path, strerror(errno));
        return false;
    }
    bool right = read_head(f, in) && read_rows(f, in, max_tokens);
    fclose(in);
    for (uint32_t i = 0; right && i < f->n_layers; i++)
        for (int kind = 0; kind < ROWS_KINDS; kind++) {
            uint32_t n = f->layers[i].n[kind];
            if (n && (!f->n_tokens || n < f->n_tokens)) f->n_tokens = n;
        }
    if (right && f->n_tokens) return true;
    snprintf(message, size, "%s: the file is not a file of recorded rows, or is damaged", path);
    return false;
}

void rows_file_free(rows_file *f)
{
    for (uint32_t i = 0; i < f->n_layers; i++)
        for (int kind = 0; kind < ROWS_KINDS; kind++) free(f->layers[i].values[kind]);
    free(f->layers);
    *f = (rows_file){0};
}
