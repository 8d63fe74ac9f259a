/* SPDX-License-Identifier: MIT */
/* beside_gpu: what `quire run` changes where a program computes some layers on a GPU. */
#ifndef QUIRE_TOOLS_BESIDE_GPU_H
#define QUIRE_TOOLS_BESIDE_GPU_H

#include "llama/host_arguments.h"
#include "llama/offload.h"

typedef struct beside_gpu {
    offload place;
    uint32_t n_blocks;
    bool is_placed; /* the command line places layers itself */
} beside_gpu;

/* path: the program. says: with the context of -c, or 0. model NULL: unknown. */
void beside_gpu_find(beside_gpu *out, const char *path, const char *plugin, int argc, char **argv,
                     const host_arguments *says, const model *m);
/* The arguments, as in "-dev QUIRE0,Vulkan0 -ngl 999 -ts 15,16". */
enum { BESIDE_GPU_TEXT = 2 * OFFLOAD_LIST + 64 };
const char *beside_gpu_arguments(const beside_gpu *g, char text[BESIDE_GPU_TEXT]);
/* Calls set(ctx, name, value) for each variable; value NULL: to be unset. */
void beside_gpu_variables(const beside_gpu *g, void (*set)(void *ctx, const char *name, const char *value),
                          void *ctx);

#endif
