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

#endif
