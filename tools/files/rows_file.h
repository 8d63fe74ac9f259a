/* SPDX-License-Identifier: MIT */
/* rows_file: K, V and Q rows that the llama.cpp device recorded (docs/formats/recorded.md). */
#ifndef QUIRE_TOOLS_ROWS_FILE_H
#define QUIRE_TOOLS_ROWS_FILE_H

#include <quire/quire.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ROWS_K, ROWS_V, ROWS_Q, ROWS_KINDS };

typedef struct rows_layer {
    quire_layer shape;
    float *values[ROWS_KINDS]; /* [n_tokens][heads * d] */
    uint32_t n[ROWS_KINDS];    /* rows read */
} rows_layer;

/* The first sequence of a file. Layers without rows (windows) have n_tokens 0. */
typedef struct rows_file {
    uint32_t n_layers, n_tokens;
    rows_layer *layers;
} rows_file;

uint32_t rows_width(const quire_layer *shape, int kind); /* values of a row */

/* At most max_tokens tokens. false: message says why. Free it in any case. */
bool rows_file_read(rows_file *f, const char *path, uint32_t max_tokens, char *message, size_t size);
void rows_file_free(rows_file *f);

#endif
