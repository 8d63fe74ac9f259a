/* SPDX-License-Identifier: MIT */
/* core: what operating systems do in different ways. Instruction sets are in cpu.c. */
#ifndef QUIRE_CORE_SYSTEM_H
#define QUIRE_CORE_SYSTEM_H

#include <stddef.h>

/* A private anonymous mapping, at an address of the system's choice or in the place of what is at `at`. The system is asked not to count
 * it as used before it is touched. access: PROT_NONE, ... NULL: none. */
void *quire_system_map(void *at, size_t bytes, int access);

/* Gives the memory of whole OS pages of a private anonymous mapping back to the system, at once. They stay accessible and read as
 * zero. If the system refuses, nothing changes. */
void quire_system_discard(void *ptr, size_t bytes);
/* The same by a new mapping in the place of the old one, readable and writable: where madvise() leaves memory with the process until
 * somebody else needs it. */
void quire_system_map_anew(void *ptr, size_t bytes);

/* For a thread that will compute while somebody waits for the result: on processors with cores of different speed, the fast ones. */
void quire_system_prefer_fast_core(void);

#endif
