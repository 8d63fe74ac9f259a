/* SPDX-License-Identifier: MIT */
#include "pages.h"

#include <stdbool.h>
#include <string.h>

static bool pages_are_known(const quire_vllm_pages *p)
{
    return p && p->size == sizeof *p && !p->reserved && p->form <= QUIRE_BF16 && p->k_format && p->v_format &&
           p->tiles && (uintptr_t)p->tiles % 64 == 0 && p->page_stride % 64 == 0 && p->k && p->v &&
           p->page_stride / (quire_tile_bytes(p->k_format) + quire_tile_bytes(p->v_format)) >= p->n_heads;
}

static size_t row_bytes(const quire_vllm_pages *p, uint32_t d)
{
    return d * (p->form == QUIRE_F32 ? sizeof(float) : sizeof(uint16_t));
}

/* K or V: its rows, and the format of its tiles. */
typedef struct side {
    const quire_tile_format *format;
    void *rows;
    uint32_t d;
} side;

static quire_status code_tile(const quire_vllm_pages *p, const side *s, bool encodes, uint32_t page,
                              uint32_t head, char *tile)
{
    size_t row = row_bytes(p, s->d), stride = p->n_heads * row;
    char *first = (char *)s->rows + ((size_t)page * QUIRE_PAGE_TOKENS * p->n_heads + head) * row;
    quire_form form = (quire_form)p->form;
    if (encodes) {
        const quire_rows rows = {.size = sizeof rows, .form = form, .data = first, .token_stride = stride};
        return quire_tile_encode(s->format, head, tile, 0, QUIRE_PAGE_TOKENS, &rows, NULL);
    }
    const quire_rows_out rows = {.size = sizeof rows, .form = form, .data = first, .token_stride = stride};
    return quire_tile_decode(s->format, head, tile, 0, QUIRE_PAGE_TOKENS, &rows);
}

static quire_status code_pages(const quire_vllm_pages *p, bool encodes)
{
    if (!pages_are_known(p)) return QUIRE_EINVAL;
    const side k = {p->k_format, p->k, p->d_k}, v = {p->v_format, p->v, p->d_v};
    size_t k_bytes = quire_tile_bytes(p->k_format), pair = k_bytes + quire_tile_bytes(p->v_format);
    for (uint32_t page = 0; page < p->n_pages; page++) {
        char *tile = (char *)p->tiles + page * p->page_stride;
        if (encodes) memset(tile, 0, p->n_heads * pair);
        for (uint32_t head = 0; head < p->n_heads; head++, tile += pair) {
            quire_status status = code_tile(p, &k, encodes, page, head, tile);
            if (!status) status = code_tile(p, &v, encodes, page, head, tile + k_bytes);
            if (status) return status;
        }
    }
    return QUIRE_OK;
}

quire_status quire_vllm_pages_encode(const quire_vllm_pages *p)
{
    return code_pages(p, true);
}

quire_status quire_vllm_pages_decode(const quire_vllm_pages *p)
{
    return code_pages(p, false);
}
