/* SPDX-License-Identifier: MIT */
#include "llama/vram.h"

/*
 * What llama.cpp reserves on a GPU for computing is mostly the logits of a batch. For layers that are not there it may
 * copy the weights of one to compute a long prompt with them. Other intermediate results, and what a driver takes for
 * itself, are the rest.
 */
#define OTHERS (300.0 * 1024 * 1024)
enum { BATCH = 512, STEP = 256 };

bool vram_is_known(const model *m)
{
    return m->weights.n_tokens && m->weights.embedding > 0;
}

static double output_bytes(const model *m)
{
    return m->weights.output + (m->weights.has_output ? 0 : m->weights.embedding);
}

static double largest_layer(const model *m)
{
    double most = 0;
    for (uint32_t i = 0; i < m->n_blocks && i < GGUF_MAX_LAYERS; i++)
        if (m->weights.layer[i] > most) most = m->weights.layer[i];
    return most;
}

vram_need vram_need_of(const model *m, const model_use *use, uint32_t ngl)
{
    uint32_t first = vram_first(m, ngl), batch = use->batch ? use->batch : BATCH;
    double tokens = (double)use->tokens * (use->is_shared ? 1 : use->sequences);
    vram_need n = {.kv = model_kv_bytes_from(m, NULL, use, first)};
    if (ngl) n.weights = output_bytes(m);
    for (uint32_t i = first; i < m->n_blocks && i < GGUF_MAX_LAYERS; i++) n.weights += m->weights.layer[i];
    n.reserve = 4.0 * batch * m->weights.n_tokens + 2.0 * batch * tokens + OTHERS;
    /* Without -ngl the output's weights may be copied too. */
    n.reserve += largest_layer(m) > output_bytes(m) || ngl ? largest_layer(m) : output_bytes(m);
    return n;
}

static bool fits(const model *m, const model_use *use, uint32_t ngl, double bytes)
{
    vram_need n = vram_need_of(m, use, ngl);
    return vram_bytes(&n) <= bytes;
}

uint32_t vram_layers(const model *m, const model_use *use, double bytes)
{
    for (uint32_t ngl = vram_all(m); ngl; ngl--)
        if (fits(m, use, ngl, bytes)) return ngl;
    return 0;
}

uint64_t vram_tokens(const model *m, const model_use *use, uint32_t ngl, double bytes)
{
    model_use one = *use;
    uint64_t low = 0, high = (UINT64_C(1) << 31) / STEP;
    while (low < high) {
        uint64_t middle = low + (high - low + 1) / 2;
        one.tokens = middle * STEP;
        if (fits(m, &one, ngl, bytes))
            low = middle;
        else
            high = middle - 1;
    }
    return low * STEP;
}
