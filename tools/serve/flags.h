/* SPDX-License-Identifier: MIT */
/* flags: the command line of a llama-server as a user writes it, and as it is started behind this program. */
#ifndef QUIRE_TOOLS_SERVE_FLAGS_H
#define QUIRE_TOOLS_SERVE_FLAGS_H

#include "llama/host_config.h"

#include <stdbool.h>
#include <stdint.h>

enum { FLAGS_TEXT = 512 };

typedef struct serve_flags {
    char **argv; /* for the server, ended by NULL; from malloc(), its words too */
    int argc;
    const char *host; /* where the user wants it to listen */
    uint16_t port;
    const char *model;                  /* -m, or NULL */
    const char *prefix;                 /* --api-prefix, or "" */
    const char *api_key, *api_key_file; /* or NULL */
    uint32_t n_slots;
    uint64_t context;      /* cells of a slot, as llama.cpp rounds them; 0: unknown */
    char rope[FLAGS_TEXT]; /* what flags say about RoPE, or "" */
    bool swa_full;
} serve_flags;

typedef struct serve_place {
    const char *socket, *folder; /* where the server listens, and keeps slot files */
    bool has_tenants;            /* no rows are reused unless this program asks for it */
    bool with_device;            /* caches of all slots are touched lazily */
    const host_config *config;   /* what llama.cpp's files say, below variables and flags; or NULL */
    uint32_t trained; /* the context that the model was trained for, which counts without -c; 0: unknown */
} serve_place;

/* NULL, or a sentence that says why it cannot be: flags that make rows untrue, or that this program needs for itself. */
const char *flags_read(serve_flags *out, int argc, char **argv, const serve_place *place, char *message,
                       int size);
void flags_free(serve_flags *f);

#endif
