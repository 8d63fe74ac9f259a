/* SPDX-License-Identifier: MIT */
/* An allocator that knows how much it has given out, now and at most. Reserved address space does not count. */
#ifndef QUIRE_TESTS_PEAK_ALLOC_H
#define QUIRE_TESTS_PEAK_ALLOC_H

#include "quire/quire.h"

struct peak_alloc {
    size_t blocks, bytes, peak;
};

/* For one thread. Page memory comes from the library's own default. */
quire_allocator peak_allocator(struct peak_alloc *p);

#endif
