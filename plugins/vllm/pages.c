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

/* The rows of one head of a page, in k or in v. */
static char *first_row(const quire_vllm_pages *p, void *rows, uint32_t d, uint32_t page, uint32_t head)
{
    return (char *)rows + ((size_t)page * QUIRE_PAGE_TOKENS * p->n_heads + head) * row_bytes(p, d);
}

quire_status quire_vllm_pages_encode(const quire_vllm_pages *p)
{
    if (!pages_are_known(p)) return QUIRE_EINVAL;
    size_t k_bytes = quire_tile_bytes(p->k_format), v_bytes = quire_tile_bytes(p->v_format);
    for (uint32_t page = 0; page < p->n_pages; page++) {
        char *tile = (char *)p->tiles + page * p->page_stride;
        memset(tile, 0, p->n_heads * (k_bytes + v_bytes));
        for (uint32_t head = 0; head < p->n_heads; head++, tile += k_bytes + v_bytes) {
            const quire_rows k = {.size = sizeof k,
                                  .form = (quire_form)p->form,
                                  .data = first_row(p, p->k, p->d_k, page, head),
                                  .token_stride = p->n_heads * row_bytes(p, p->d_k)};
            const quire_rows v = {.size = sizeof v,
                                  .form = (quire_form)p->form,
                                  .data = first_row(p, p->v, p->d_v, page, head),
                                  .token_stride = p->n_heads * row_bytes(p, p->d_v)};
            quire_status status = quire_tile_encode(p->k_format, head, tile, 0, QUIRE_PAGE_TOKENS, &k, NULL);
            if (!status)
                status = quire_tile_encode(p->v_format, head, tile + k_bytes, 0, QUIRE_PAGE_TOKENS, &v, NULL);
            if (status) return status;
        }
    }
    return QUIRE_OK;
}

quire_status quire_vllm_pages_decode(const quire_vllm_pages *p)
{
    if (!pages_are_known(p)) return QUIRE_EINVAL;
    size_t k_bytes = quire_tile_bytes(p->k_format), v_bytes = quire_tile_bytes(p->v_format);
    for (uint32_t page = 0; page < p->n_pages; page++) {
        const char *tile = (const char *)p->tiles + page * p->page_stride;
        for (uint32_t head = 0; head < p->n_heads; head++, tile += k_bytes + v_bytes) {
            const quire_rows_out k = {.size = sizeof k,
                                      .form = (quire_form)p->form,
                                      .data = first_row(p, p->k, p->d_k, page, head),
                                      .token_stride = p->n_heads * row_bytes(p, p->d_k)};
            const quire_rows_out v = {.size = sizeof v,
                                      .form = (quire_form)p->form,
                                      .data = first_row(p, p->v, p->d_v, page, head),
                                      .token_stride = p->n_heads * row_bytes(p, p->d_v)};
            quire_status status = quire_tile_decode(p->k_format, head, tile, 0, QUIRE_PAGE_TOKENS, &k);
            if (!status)
                status = quire_tile_decode(p->v_format, head, tile + k_bytes, 0, QUIRE_PAGE_TOKENS, &v);
            if (status) return status;
        }
    }
    return QUIRE_OK;
}
