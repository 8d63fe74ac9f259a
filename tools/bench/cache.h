/* SPDX-License-Identifier: MIT */
/* bench: KV caches in a pool. */
#ifndef QUIRE_TOOLS_BENCH_CACHE_H
#define QUIRE_TOOLS_BENCH_CACHE_H

#include "bench/bench.h"

/* Caches of one shape: n_caches times its sequences, in one pool. */
typedef struct bench_cache bench_cache;

/* Bytes of the pages that one cache needs, in *cache_bytes; false: the codecs do not fit the shape. */
bool bench_cache_size(const bench_shape *s, size_t *cache_bytes, char *message, size_t size);
bench_cache *bench_cache_create(const bench_shape *s, uint32_t n_caches, char *message, size_t size);
void bench_cache_destroy(bench_cache *c);

/* Tiles of a sequence of a cache; they stay where they are. */
const quire_tile_ref *bench_cache_tiles(const bench_cache *c, uint32_t cache, uint32_t seq);
/* Where the pages of all caches begin, cache after cache. */
const uint8_t *const *bench_cache_pages(const bench_cache *c, uint32_t *n_per_cache, size_t *page_bytes);

#endif
