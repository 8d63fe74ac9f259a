/* SPDX-License-Identifier: MIT */
/* core: reserved address space, and which part of it can be used. */
#ifndef QUIRE_CORE_RESERVE_H
#define QUIRE_CORE_RESERVE_H

#include "core/core.h"

/* Whether reserved address space comes from the library itself, not from functions of the caller. */
bool quire_memory_is_default(const quire_allocator *a);
/* Makes whole OS pages of reserved address space accessible. False: the system has no memory for them. Address space of the
 * caller's own functions is accessible from the beginning. */
bool quire_memory_open(const quire_allocator *a, void *ptr, size_t bytes);

/* Huge OS pages, in the library's own address space only, which begins at a multiple of their size if it is that large. */
#define QUIRE_HUGE_PAGE ((size_t)2 << 20)
#if defined(__linux__)
#define QUIRE_HUGE_SETTINGS "/sys/kernel/mm/transparent_hugepage"
#else
#define QUIRE_HUGE_SETTINGS ""
#endif
/* Whether the system's settings in this folder allow them; yes, if they cannot be read. MADV_COLLAPSE does not ask. On systems other
 * than Linux: no. */
bool quire_huge_is_allowed(const char *settings);
/* Makes one huge page of 2 MiB at a multiple of 2 MiB. All of it becomes resident; what is there is copied. 0, or an error of errno:
 * EINVAL if the system (before Linux 6.1) or the process does not have huge pages. */
int quire_memory_collapse(void *region, size_t os_page);
/* To be called before a part of a huge page is discarded: otherwise the system keeps all of it until memory is short. */
void quire_memory_split(void *part, size_t bytes);

#endif
