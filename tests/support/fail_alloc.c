/* SPDX-License-Identifier: MIT */
/* An allocator that refuses its n-th request and counts what is still held. */
#define _GNU_SOURCE
#include "support/fail_alloc.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static bool refuses(struct fail_alloc *f)
{
    return atomic_fetch_add(&f->calls, 1) + 1 == f->fail_at;
}

static void *count_in(struct fail_alloc *f, void *ptr, size_t bytes)
{
    if (!ptr) return NULL;
    atomic_fetch_add(&f->outstanding, 1);
    atomic_fetch_add(&f->bytes, bytes);
    return ptr;
}

static void count_out(struct fail_alloc *f, size_t bytes)
{
    atomic_fetch_sub(&f->outstanding, 1);
    atomic_fetch_sub(&f->bytes, bytes);
}

static void *fail_alloc(void *ctx, size_t bytes)
{
    struct fail_alloc *f = ctx;
    void *ptr = NULL;
    if (refuses(f) || posix_memalign(&ptr, 64, bytes)) return NULL;
    memset(ptr, 0xa5, bytes); /* nobody may count on zeros */
    return count_in(f, ptr, bytes);
}

static void fail_free(void *ctx, void *ptr, size_t bytes)
{
    if (!ptr) return;
    free(ptr);
    count_out(ctx, bytes);
}

static void *fail_reserve(void *ctx, size_t bytes)
{
    struct fail_alloc *f = ctx;
    if (refuses(f)) return NULL;
    void *ptr = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return count_in(f, ptr == MAP_FAILED ? NULL : ptr, bytes);
}

static void fail_release(void *ctx, void *ptr, size_t bytes)
{
    if (!ptr) return;
    munmap(ptr, bytes);
    count_out(ctx, bytes);
}

static void fail_discard(void *ctx, void *ptr, size_t bytes)
{
    (void)ctx;
    (void)madvise(ptr, bytes, MADV_DONTNEED);
}

void fail_alloc_init(struct fail_alloc *f, uint64_t fail_at)
{
    f->fail_at = fail_at;
    atomic_init(&f->calls, 0);
    atomic_init(&f->outstanding, 0);
    atomic_init(&f->bytes, 0);
}

quire_allocator fail_alloc_allocator(struct fail_alloc *f)
{
    return (quire_allocator){.size = sizeof(quire_allocator),
                             .ctx = f,
                             .alloc = fail_alloc,
                             .free = fail_free,
                             .reserve = fail_reserve,
                             .release = fail_release,
                             .discard = fail_discard};
}
