/* SPDX-License-Identifier: MIT */
/*
 * budget: memory that slot files, and pages on the way to them, may take at a time. After a restart all clients come at once, and each of
 * their prompts may be gigabytes. Several threads may call everything here.
 */
#ifndef QUIRE_TOOLS_SERVE_BUDGET_H
#define QUIRE_TOOLS_SERVE_BUDGET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct budget budget;

/* most: in bytes; 0: three quarters of the memory that is free, each time anew. NULL: out of memory. */
budget *budget_create(uint64_t most);
void budget_destroy(budget *b);

/* Waits at most so long for others to give back. false: there is no room. */
bool budget_take(budget *b, size_t bytes, double wait_ms);
void budget_give(budget *b, size_t bytes);

#endif
