/* SPDX-License-Identifier: MIT */
/* host_arguments: what the command line and the environment of a llama.cpp program say about its cache. */
#ifndef QUIRE_TOOLS_HOST_ARGUMENTS_H
#define QUIRE_TOOLS_HOST_ARGUMENTS_H

#include "llama/model.h"

typedef struct host_arguments {
    const char *model;           /* -m; NULL: none, or none that can be read now */
    bool has_models;             /* -m is a list (llama-bench) */
    const char *type_k, *type_v; /* -ctk, -ctv; NULL: a float */
    const char
        *obstacle; /* the argument that keeps the cache away from every device, or in plain memory; or NULL */
    model_use use; /* tokens: 0 if only the model tells */
    uint64_t ctx;  /* -c; 0: that of the model */
} host_arguments;

/* argv[0] is the program. */
void host_arguments_read(host_arguments *out, int argc, char **argv);
/* With the context that the model was trained for (0: unknown), which counts where -c is not given. */
void host_arguments_complete(host_arguments *a, uint32_t trained);

#endif
