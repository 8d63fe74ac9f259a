/* SPDX-License-Identifier: MIT */
/* Small prompt-cache files of mlx-lm in memory, made with the writer under test; tests/mlx compares with the real ones. */
#ifndef QUIRE_TESTS_MLX_BYTES_H
#define QUIRE_TESTS_MLX_BYTES_H

#include "files/mlx_cache.h"

#include <stdlib.h>
#include <string.h>

typedef struct mlx_bytes {
    char *data;
    size_t n;
} mlx_bytes;

/* As it is in the file: with a header of one's own. */
static inline mlx_bytes mlx_file(const char *header, size_t n_data)
{
    size_t n = strlen(header);
    mlx_bytes b = {(char *)calloc(1, 8 + n + n_data), 8 + n + n_data};
    if (!b.data) abort();
    for (int i = 0; i < 8; i++) b.data[i] = (char)(n >> 8 * i);
    memcpy(b.data + 8, header, n);
    for (size_t i = 0; i < n_data; i++) b.data[8 + n + i] = (char)(i * 7 % 32);
    return b;
}

/* One layer of 2 heads, 5 tokens, head size 32, f16, in layout A. */
#define MLX_PLAIN_A                                                              \
    "{\"__metadata__\":{\"0.0\":\"\",\"1.model\":\"m\",\"2.0\":\"KVCache\"},"    \
    "\"0.0\":{\"dtype\":\"F16\",\"shape\":[1,2,5,32],\"data_offsets\":[0,640]}," \
    "\"0.1\":{\"dtype\":\"F16\",\"shape\":[1,2,5,32],\"data_offsets\":[640,1280]}}"
enum { MLX_PLAIN_BYTES = 1280 };

/* Another file out of one; data NULL: it was refused. */
static inline mlx_bytes mlx_converted(const mlx_bytes *from, mlx_layout layout, const char *k, const char *v)
{
    mlx_bytes to = {NULL, 0};
    char message[256];
    mlx_cache c;
    mlx_convert_options o = {.layout = layout, .codecs = {k, v}};
    if (!mlx_cache_read(&c, (const uint8_t *)from->data, from->n, message, sizeof message)) return to;
    FILE *f = open_memstream(&to.data, &to.n);
    bool right = f && mlx_cache_write(&c, &o, f, NULL, message, sizeof message);
    if (f && fclose(f)) abort();
    mlx_cache_free(&c);
    if (!right) {
        free(to.data);
        to = (mlx_bytes){NULL, 0};
    }
    return to;
}

#endif
