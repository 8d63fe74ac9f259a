/* SPDX-License-Identifier: MIT */
/* vram: what the layers that llama.cpp puts on a GPU take there. */
#ifndef QUIRE_TOOLS_VRAM_H
#define QUIRE_TOOLS_VRAM_H

#include "llama/model.h"

/* The reserve for computing, as messages name it. */
#define VRAM_RESERVE "the logits of a batch, one layer's weights, the mask, and 300 MiB"

typedef struct vram_need {
    double weights, kv, reserve; /* kv: in f16 */
} vram_need;

static inline double vram_bytes(const vram_need *n)
{
    return n->weights + n->kv + n->reserve;
}

/* Whether the file tells the sizes of the weights. */
bool vram_is_known(const model *m);
/* The layers that -ngl can count: those of the file, and the output as one more. */
static inline uint32_t vram_all(const model *m)
{
    return m->n_blocks + 1;
}

/* The first layer that is on the GPU. -ngl N takes the output, then layers from the last one on. */
static inline uint32_t vram_first(const model *m, uint32_t ngl)
{
    return ngl < vram_all(m) ? vram_all(m) - ngl : 0;
}

vram_need vram_need_of(const model *m, const model_use *use, uint32_t ngl);
/* The largest -ngl that these bytes have room for. */
uint32_t vram_layers(const model *m, const model_use *use, double bytes);
/* The largest use->tokens with which it has: a multiple of 256, at most 2^31; 0: none. */
uint64_t vram_tokens(const model *m, const model_use *use, uint32_t ngl, double bytes);

#endif
