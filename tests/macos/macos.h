/* SPDX-License-Identifier: MIT */
/* What the parts of the loader share. */
#ifndef QUIRE_TESTS_MACOS_H
#define QUIRE_TESTS_MACOS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__aarch64__)
#define MACOS_PAGE ((size_t)16384)
#else
#define MACOS_PAGE ((size_t)4096)
#endif

/* Of trampolines.S: the exported names, and where the functions are. */
extern const char *const macos_names[];
extern void *macos_table[];

/* The function that stands for one of libSystem; there must be one. */
void *macos_import(const char *name);

void macos_require(bool right, const char *sentence, const char *detail);

#endif
