/* SPDX-License-Identifier: MIT */
/*
 * offload: which layers of a model llama.cpp computes on a GPU, and the arguments with which the others are Quire's.
 *
 * With -ngl N, llama.cpp gives the output and the last N - 1 layers to the GPUs; the others stay on the CPU with a plain
 * cache. If Quire's device is the first of the list, has the first layers by -ts, and -ngl is "all", every layer is where
 * it was, and the layers that were the CPU's have their cache in tiles. Their weights stay on the CPU, because Quire's
 * device takes none.
 */
#ifndef QUIRE_TOOLS_OFFLOAD_H
#define QUIRE_TOOLS_OFFLOAD_H

#include "llama/host_devices.h"

/* The values of a program's arguments, or of its environment; NULL: not given. */
typedef struct offload_arguments {
    const char *layers, *devices, *split, *mode, *main_gpu;
    bool fits;       /* llama.cpp may choose -ngl by itself */
    bool has_target; /* how much is to be left free, by device, and Quire's would be one more */
    bool has_rpc;    /* devices that only the program will see */
    bool is_bench;   /* llama-bench, whose lists have other separators */
} offload_arguments;

void offload_read(offload_arguments *out, int argc, char **argv);

typedef enum offload_state {
    OFFLOAD_NONE,     /* no GPU computes: nothing is to be changed */
    OFFLOAD_OWN,      /* the arguments divide the layers among Quire's device and others themselves */
    OFFLOAD_ARRANGED, /* with the arguments below */
    OFFLOAD_NOTHING   /* Quire gets no layer; reason says why */
} offload_state;

enum { OFFLOAD_LIST = HOST_DEVICES * HOST_DEVICE_NAME };

typedef struct offload {
    offload_state state;
    uint32_t ngl;                                    /* as it counts: at most the layers and the output */
    uint32_t n_own;                                  /* arranged: so many of the first layers are Quire's */
    double free;                                     /* bytes of all GPUs together */
    char devices[OFFLOAD_LIST], split[OFFLOAD_LIST]; /* arranged: for -dev, and -ts */
    char reason[512];
} offload;

/* n_blocks: the layers of the model; 0: unknown. */
void offload_arrange(offload *out, const host_devices *d, const offload_arguments *a, uint32_t n_blocks);

/*
 * Arranged: what to give to the program in place of all arguments and variables that place layers. An entry without a
 * value is only to be left out.
 */
typedef struct offload_option {
    const char *name, *variable, *value;
} offload_option;

enum { OFFLOAD_OPTIONS = 5 };
void offload_options(const offload *o, offload_option list[OFFLOAD_OPTIONS]);
/* argv with them; to be freed. NULL: no memory. */
char **offload_argv(const offload *o, int argc, char **argv);
/* Whether argv itself places layers, so that variables would be overruled. */
bool offload_is_placed(int argc, char **argv);

#endif
