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

/* most: in bytes; 0: three quarters of the memory that is free when nothing is taken, or less if others take of it. NULL: out of memory. */
budget *budget_create(uint64_t most);
void budget_destroy(budget *b);

/* How long to wait for others to give back; is_over may be NULL, and is asked ten times a second. */
typedef struct budget_wait {
    double ms;
    bool (*is_over)(void *ctx);
    void *ctx;
} budget_wait;

/* false: there is no room. */
bool budget_take(budget *b, size_t bytes, const budget_wait *wait /* NULL: it does not wait */);
/* What was taken has turned out to be so much more. */
void budget_add(budget *b, size_t bytes);
void budget_give(budget *b, size_t bytes);

#endif
