/* SPDX-License-Identifier: MIT */
/* limits: of this process: files that may be open, and so connections; memory that stays with it. */
#ifndef QUIRE_TOOLS_SERVE_LIMITS_H
#define QUIRE_TOOLS_SERVE_LIMITS_H

#include <stdint.h>

/* Raises the limit of open files as far as it may. Returns how many connections there may be at once. */
uint32_t limits_raise_files(void);
/* The same number for a limit that is known. */
uint32_t limits_connections(uint64_t files);
/* A line on stderr, if there can be fewer than usual. */
void limits_tell(uint32_t connections);
/* Before there are threads. */
void limits_keep_memory(void);

#endif
