/* SPDX-License-Identifier: MIT */
/* pages.h: rows of engines that keep their cache as plain floats, to and from the tiles of stored pages. */
#ifndef QUIRE_VLLM_PAGES_H
#define QUIRE_VLLM_PAGES_H

#include <quire/quire.h>

/*
 * One layer of n_pages pages. The K tile of page p and head h begins at tiles + p * page_stride + h * (bytes of a K and a V tile), its V
 * tile follows. Row t of page p and head h is row (p * 64 + t, h) of k and v, which are dense: [n_pages * 64][n_heads][d].
 */
typedef struct quire_vllm_pages {
    size_t size;
    const quire_tile_format *k_format, *v_format;
    void *tiles; /* aligned to 64 bytes, as page_stride is a multiple of 64 */
    size_t page_stride;
    void *k, *v;
    uint32_t n_pages, n_heads;
    uint32_t d_k, d_v;
    uint32_t form; /* of k and v: QUIRE_F32, QUIRE_F16 or QUIRE_BF16 */
    uint32_t reserved;
} quire_vllm_pages;

/* Rows to tiles; the tiles are zeroed first. Different pages may be encoded by different threads. */
QUIRE_API quire_status quire_vllm_pages_encode(const quire_vllm_pages *pages);
/* Tiles to rows. */
QUIRE_API quire_status quire_vllm_pages_decode(const quire_vllm_pages *pages);

#endif
