/* SPDX-License-Identifier: MIT */
/* page: where the tiles of a group's layers lie in a page. */
#include "page/page.h"

void quire_page_layout_finish(quire_page_layout *layout)
{
    quire_hash h;
    quire_hash_begin(&h);
    quire_hash_u64(&h, layout->n_layers);
    size_t at = 0;
    for (uint32_t i = 0; i < layout->n_layers; i++) {
        quire_page_layer *l = &layout->layer[i];
        l->offset = at;
        l->head_stride = l->k->tile_bytes + (l->v ? l->v->tile_bytes : 0);
        at += l->head_stride * l->n_heads;
        quire_hash_u64(&h, l->n_heads);
        quire_hash_u64(&h, l->k->fingerprint);
        quire_hash_u64(&h, l->v ? l->v->fingerprint : 0);
    }
    layout->bytes = at;
    layout->fingerprint = quire_hash_end(&h);
}
