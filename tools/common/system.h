/* SPDX-License-Identifier: MIT */
/* system: what operating systems answer in different ways. */
#ifndef QUIRE_TOOLS_SYSTEM_H
#define QUIRE_TOOLS_SYSTEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Of the names of shared libraries. */
#if defined(__APPLE__)
#define SYSTEM_LIBRARY_END ".dylib"
#else
#define SYSTEM_LIBRARY_END ".so"
#endif

/* The path of this program. False: the system does not tell, or it is longer than size - 1. */
bool system_program_path(char *path, size_t size);

/* Memory that programs can still get without swapping, without the limits of a container. 0: the system does not tell. */
uint64_t system_free_bytes(void);
/* All of the machine. 0: the system does not tell. */
uint64_t system_memory_bytes(void);

#endif
