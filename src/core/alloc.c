/* SPDX-License-Identifier: MIT */
/* core: memory. */
#define _GNU_SOURCE
#include "core/reserve.h"

#include <stdlib.h>
#include <sys/mman.h>

#define ALIGNMENT 64

static void *default_alloc(void *ctx, size_t bytes)
{
    (void)ctx;
    void *ptr = NULL;
    return posix_memalign(&ptr, ALIGNMENT, bytes) ? NULL : ptr;
}

static void default_free(void *ctx, void *ptr, size_t bytes)
{
    (void)ctx;
    (void)bytes;
    free(ptr);
}

static void *default_reserve(void *ctx, size_t bytes)
{
    (void)ctx;
    /* Not accessible yet: with vm.overcommit_memory = 2 the kernel counts all memory that can be written as used, touched or
     * not, and MAP_NORESERVE does not change that. quire_memory_open() makes parts of it accessible. */
    void *ptr = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (ptr == MAP_FAILED) return NULL;
#ifdef MADV_NOHUGEPAGE
    /* A huge page is up to twenty of ours: touching one row would make 2 MiB resident. */
    (void)madvise(ptr, bytes, MADV_NOHUGEPAGE);
#endif
    return ptr;
}

static void default_release(void *ctx, void *ptr, size_t bytes)
{
    (void)ctx;
    munmap(ptr, bytes);
}

static void default_discard(void *ctx, void *ptr, size_t bytes)
{
    (void)ctx;
    (void)madvise(ptr, bytes, MADV_DONTNEED);
}

bool quire_memory_is_default(const quire_allocator *a)
{
    return a->reserve == default_reserve;
}

bool quire_memory_open(const quire_allocator *a, void *ptr, size_t bytes)
{
    return !quire_memory_is_default(a) || !mprotect(ptr, bytes, PROT_READ | PROT_WRITE);
}

quire_status quire_allocator_read(quire_allocator *out, const quire_allocator *allocator)
{
    quire_allocator a = {.size = sizeof a};
    quire_status status = allocator ? quire_read_sized(&a, sizeof a, allocator) : QUIRE_OK;
    if (status) return status;
    if (!a.alloc || !a.free) {
        a.alloc = default_alloc;
        a.free = default_free;
    }
    if (!a.reserve || !a.release || !a.discard) {
        a.reserve = default_reserve;
        a.release = default_release;
        a.discard = default_discard;
    }
    *out = a;
    return QUIRE_OK;
}

void *quire_alloc_raw(const quire_allocator *a, size_t bytes)
{
    if (bytes >= SIZE_MAX / 2) return NULL;
    return a->alloc(a->ctx, bytes ? bytes : 1);
}

void *quire_alloc(const quire_allocator *a, size_t bytes)
{
    void *ptr = quire_alloc_raw(a, bytes);
    if (ptr) memset(ptr, 0, bytes ? bytes : 1);
    return ptr;
}

void quire_free(const quire_allocator *a, void *ptr, size_t bytes)
{
    if (ptr) a->free(a->ctx, ptr, bytes ? bytes : 1);
}

static bool grow(const quire_allocator *a, void *array_ptr, uint32_t *cap, uint32_t used, uint32_t need,
                 size_t size, bool is_zeroed)
{
    if (need <= *cap) return true;
    uint64_t grown = (uint64_t)*cap + *cap / 2 + 8;
    uint32_t new_cap = grown < need ? need : grown > UINT32_MAX ? UINT32_MAX : (uint32_t)grown;
    size_t bytes = quire_bytes(new_cap, size), kept = (size_t)used * size;
    uint8_t *fresh = (uint8_t *)quire_alloc_raw(a, bytes);
    if (!fresh) return false;
    void *old;
    memcpy(&old, array_ptr, sizeof old);
    if (used) memcpy(fresh, old, kept);
    if (is_zeroed) memset(fresh + kept, 0, bytes - kept);
    quire_free(a, old, (size_t)*cap * size);
    memcpy(array_ptr, &fresh, sizeof fresh);
    *cap = new_cap;
    return true;
}

bool quire_grow(const quire_allocator *a, void *array_ptr, uint32_t *cap, uint32_t used, uint32_t need,
                size_t size)
{
    return grow(a, array_ptr, cap, used, need, size, true);
}

bool quire_grow_raw(const quire_allocator *a, void *array_ptr, uint32_t *cap, uint32_t used, uint32_t need,
                    size_t size)
{
    return grow(a, array_ptr, cap, used, need, size, false);
}
