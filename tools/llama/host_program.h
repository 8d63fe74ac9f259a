/* SPDX-License-Identifier: MIT */
/* host_program: whether a program on disk can load the device. */
#ifndef QUIRE_TOOLS_HOST_PROGRAM_H
#define QUIRE_TOOLS_HOST_PROGRAM_H

#include "common/place.h"

/*
 * The hosts that the device knows, as messages name them (docs/llama.cpp.md#hosts). llama-server --version prints version
 * and build. A source tree without llama.cpp's history does not know its build number, which is so of the 0.5.0 and the
 * 0.6.0 that were tested; b11063 is the last build of which it is known that its ggml is older (0.24.0).
 */
#define HOST_VERSIONS "ggml 0.25 to 0.27 (llama.cpp 0.5.0 to 0.7.0, where 0.7.0 is build b11669)"
#define HOST_BUILDS "builds up to b11063 have an older ggml, and llama-server --version prints the build"

enum { HOST_LIBRARIES = 8 };

typedef enum host_kind {
    HOST_UNKNOWN, /* a script, an interpreter, or no program of llama.cpp: only running it tells */
    HOST_STATIC,  /* ggml is a part of the program, so that nothing can bind to it */
    HOST_SHARED   /* it loads the libraries below */
} host_kind;

typedef struct host_program {
    char path[PLACE_SIZE];
    host_kind kind;
    char library[HOST_LIBRARIES][PLACE_SIZE]; /* ggml's, in the order of loading */
    int n_libraries;
} host_program;

/* name: a path, or a name in PATH. false: there is no such program. */
bool host_program_find(host_program *out, const char *name);
/*
 * Loads the libraries and the device in a process of their own and lets the device look at them, with the environment as
 * it is. false: it refuses, and message has its sentence.
 */
bool host_program_accepts(const host_program *host, const char *device, char *message, size_t size);

#endif
