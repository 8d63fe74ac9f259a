/* SPDX-License-Identifier: MIT */
/*
 * An allocator that refuses its n-th request and counts what is still held. A test of running out of memory:
 *
 *   for (uint64_t n = 1;; n++) {
 *       struct fail_alloc f;
 *       fail_alloc_init(&f, n);
 *       quire_allocator a = fail_alloc_allocator(&f);
 *       ... the call under test ...
 *       if (f.calls < n) break;        // it asks less often than that: every request has failed once
 *       ... it must have said QUIRE_ENOMEM, and f.outstanding must be 0 ...
 *   }
 */
#ifndef QUIRE_TESTS_FAIL_ALLOC_H
#define QUIRE_TESTS_FAIL_ALLOC_H

#include "quire/quire.h"

#include <stdatomic.h>

/* Fields may be read at any time, from any thread. */
struct fail_alloc {
    uint64_t fail_at;             /* number of the call that fails, from 1; 0: none */
    _Atomic uint64_t calls;       /* of alloc and reserve together, the failed one included */
    _Atomic uint64_t outstanding; /* blocks not yet freed or released */
    _Atomic uint64_t bytes;       /* in them; not 0 with no block: something was freed with another size */
};

void fail_alloc_init(struct fail_alloc *f, uint64_t fail_at);

/* f must outlive everything that uses the allocator. Blocks from alloc() are filled with 0xa5. */
quire_allocator fail_alloc_allocator(struct fail_alloc *f);

#endif
