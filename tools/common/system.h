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

/* Memory that this program can still get without swapping, also by the limits of its container, if
 * these are of cgroup version 2. 0: the system does not tell. */
uint64_t system_free_bytes(void);
/* The same without the pages of files that programs have mapped, such as a model's weights: these would have to be read again. */
uint64_t system_spare_bytes(void);
/*
 * What the limits of control groups (Linux, version 2) leave of memory: the smallest of the group and those above it; UINT64_MAX: there
 * is no limit. list: the text of /proc/self/cgroup. root: where the groups are mounted. keeps_mapped: see system_spare_bytes().
 */
uint64_t system_group_bytes(const char *list, const char *root, bool keeps_mapped);
/* All of the machine. 0: the system does not tell. */
uint64_t system_memory_bytes(void);

#endif
