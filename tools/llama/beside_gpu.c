/* SPDX-License-Identifier: MIT */
#include "llama/beside_gpu.h"

#include "llama/vram.h"

#include <stdio.h>
#include <string.h>

/* What llama.cpp leaves free on a device when it fits something to it (--fit-target). */
#define MARGIN (1024.0 * 1024 * 1024)

/*
 * Without -c, llama.cpp shortens the context until it fits into the GPU's memory. It adds up the memory of all devices
 * for that, and Quire's device says how much RAM there is: beside it, nothing would be shortened, and the start would
 * fail. So a context that is not given has to fit as it is.
 */
static bool fits_unshortened(const offload *o, const host_arguments *says, const model *m)
{
    host_arguments whole = *says;
    host_arguments_complete(&whole, m->context);
    if (!whole.use.tokens || !vram_is_known(m)) return false;
    vram_need need = vram_need_of(m, &whole.use, o->ngl);
    return vram_bytes(&need) + MARGIN <= o->free;
}

void beside_gpu_find(beside_gpu *out, const char *path, const char *plugin, int argc, char **argv,
                     const host_arguments *says, const model *m)
{
    host_devices devices;
    offload_arguments given;
    offload *o = &out->place;
    *out = (beside_gpu){.n_blocks = m ? m->n_blocks : 0, .is_placed = offload_is_placed(argc, argv)};
    offload_read(&given, argc, argv);
    if (!m && !given.layers) return; /* the program computes nothing, or nothing can be said */
    host_devices_find(&devices, path, plugin, argc, argv);
    offload_arrange(o, &devices, &given, out->n_blocks);
    if (o->state != OFFLOAD_ARRANGED || !given.fits || says->ctx) return;
    if (!given.has_target && fits_unshortened(o, says, m)) return;
    o->state = OFFLOAD_NOTHING;
    snprintf(
        o->reason, sizeof o->reason,
        "without -c llama.cpp shortens the context to what fits into the GPU's memory, which it does not do "
        "beside Quire; with -c N, Quire has the layers that are not on the GPU");
}

const char *beside_gpu_arguments(const beside_gpu *g, char text[BESIDE_GPU_TEXT])
{
    offload_option list[OFFLOAD_OPTIONS];
    size_t n = 0;
    offload_options(&g->place, list);
    for (int i = 0; i < OFFLOAD_OPTIONS; i++)
        if (list[i].value)
            n += (size_t)snprintf(text + n, BESIDE_GPU_TEXT - n, "%s%s %s", n ? " " : "", list[i].name,
                                  list[i].value);
    return text;
}

void beside_gpu_variables(const beside_gpu *g, void (*set)(void *ctx, const char *name, const char *value),
                          void *ctx)
{
    offload_option list[OFFLOAD_OPTIONS];
    offload_options(&g->place, list);
    for (int i = 0; i < OFFLOAD_OPTIONS; i++) set(ctx, list[i].variable, list[i].value);
}
