/* SPDX-License-Identifier: MIT */
/* host_program: whether a program on disk can load the device. */
#ifndef QUIRE_TOOLS_HOST_PROGRAM_H
#define QUIRE_TOOLS_HOST_PROGRAM_H

#include "place.h"

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
