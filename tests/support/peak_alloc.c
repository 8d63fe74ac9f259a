/* SPDX-License-Identifier: MIT */
/* An allocator that knows how much it has given out. */
#define _POSIX_C_SOURCE 200809L
#include "support/peak_alloc.h"

#include <stdlib.h>

static void *peak_take(void *ctx, size_t bytes)
{
    struct peak_alloc *p = (struct peak_alloc *)ctx;
    void *ptr = NULL;
    if (posix_memalign(&ptr, 64, bytes)) return NULL;
    p->blocks++;
    p->bytes += bytes;
    if (p->bytes > p->peak) p->peak = p->bytes;
    return ptr;
}

static void peak_free(void *ctx, void *ptr, size_t bytes)
{
    struct peak_alloc *p = (struct peak_alloc *)ctx;
    if (!ptr) return;
    p->blocks--;
    p->bytes -= bytes;
    free(ptr);
}

quire_allocator peak_allocator(struct peak_alloc *p)
{
    return (quire_allocator){
        .size = sizeof(quire_allocator), .ctx = p, .alloc = peak_take, .free = peak_free};
}
