/* SPDX-License-Identifier: MIT */
/*
 * Any bytes as a prompt-cache file of mlx-lm. Reading must refuse cleanly, or give a cache that can be written in both
 * layouts and read again.
 *
 * QUIRE_SEEDS=folder writes the seeds of corpus/mlx_cache anew.
 */
#define _POSIX_C_SOURCE 200809L /* open_memstream */
#include "support/fuzz.h"

#include "support/mlx_bytes.h"

static void save_seed(const char *folder, const char *name, const mlx_bytes *b)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    if (!b->data || !file || fwrite(b->data, 1, b->n, file) != b->n || fclose(file)) abort();
}

static void write_seeds(const char *folder)
{
    static const char ring[] =
        "{\"__metadata__\":{\"0.0.0\":\"1\",\"0.0.1\":\"5\",\"0.0.2\":\"9\",\"0.0.3\":\"3\",\"2.0\":\"RotatingKVCache\"},"
        "\"0.0\":{\"dtype\":\"F16\",\"shape\":[1,2,5,32],\"data_offsets\":[0,640]},"
        "\"0.1\":{\"dtype\":\"F16\",\"shape\":[1,2,5,32],\"data_offsets\":[640,1280]}}";
    mlx_bytes a = mlx_file(MLX_PLAIN_A, MLX_PLAIN_BYTES), b = mlx_converted(&a, MLX_LAYOUT_B, NULL, NULL),
              q = mlx_converted(&a, MLX_LAYOUT_B, "a4g32", "a4g32"),
              s = mlx_converted(&a, MLX_LAYOUT_A, "a8g32", "a2g32"), r = mlx_file(ring, MLX_PLAIN_BYTES),
              rb = mlx_converted(&r, MLX_LAYOUT_B, "bf16", "bf16");
    save_seed(folder, "plain_a", &a);
    save_seed(folder, "plain_b", &b);
    save_seed(folder, "quantized_b", &q);
    save_seed(folder, "split_a", &s);
    save_seed(folder, "ring_a", &r);
    save_seed(folder, "ring_b", &rb);
    mlx_bytes *all[] = {&a, &b, &q, &s, &r, &rb};
    for (size_t i = 0; i < 6; i++) free(all[i]->data);
}

static void convert(const mlx_bytes *from, mlx_layout layout, const char *codec)
{
    char message[256];
    mlx_cache c;
    mlx_bytes to = mlx_converted(from, layout, codec, codec);
    if (!to.data) return;
    if (!mlx_cache_read(&c, (const uint8_t *)to.data, to.n, message, sizeof message)) abort();
    mlx_cache_free(&c);
    free(to.data);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool seeds_written;
    char message[256];
    mlx_cache c;
    if (!seeds_written && getenv("QUIRE_SEEDS")) write_seeds(getenv("QUIRE_SEEDS"));
    seeds_written = true;
    if (!mlx_cache_read(&c, data, size, message, sizeof message)) return 0;
    mlx_cache_free(&c);
    mlx_bytes b = {(char *)malloc(size), size};
    if (!b.data) abort();
    memcpy(b.data, data, size);
    convert(&b, MLX_LAYOUT_A, NULL);
    convert(&b, MLX_LAYOUT_B, NULL);
    convert(&b, MLX_LAYOUT_A, "a4g32");
    convert(&b, MLX_LAYOUT_B, "f32");
    free(b.data);
    return 0;
}
