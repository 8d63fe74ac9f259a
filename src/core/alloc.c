/* SPDX-License-Identifier: MIT */
/* core: memory. */
#define _GNU_SOURCE
#include "core/reserve.h"
#include "core/system.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define ALIGNMENT 64

/* Headers are older than systems. */
#if defined(__linux__) && !defined(MADV_COLLAPSE)
#define MADV_COLLAPSE 25
#endif
#if defined(__linux__) && !defined(MADV_COLD)
#define MADV_COLD 20
#endif

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

/* Not accessible yet: with vm.overcommit_memory = 2 the kernel counts all memory that can be written as used, touched or
 * not, and MAP_NORESERVE does not change that. quire_memory_open() makes parts of it accessible. */
static uint8_t *map_space(size_t bytes)
{
    return (uint8_t *)quire_system_map(NULL, bytes, PROT_NONE);
}

/* Bytes that a reservation takes: whole huge pages, unless it is smaller than one. */
static size_t space_of(size_t bytes)
{
    return bytes < QUIRE_HUGE_PAGE ? bytes
                                   : (bytes + QUIRE_HUGE_PAGE - 1) / QUIRE_HUGE_PAGE * QUIRE_HUGE_PAGE;
}

/* At a multiple of the size of a huge page: more than needed, then cut at both ends. */
static uint8_t *map_aligned(size_t bytes)
{
    uint8_t *base = map_space(bytes + QUIRE_HUGE_PAGE);
    if (!base) return map_space(bytes);
    size_t before = (QUIRE_HUGE_PAGE - (uintptr_t)base % QUIRE_HUGE_PAGE) % QUIRE_HUGE_PAGE;
    uint8_t *ptr = base + before;
    if (before) munmap(base, before);
    munmap(ptr + bytes, QUIRE_HUGE_PAGE - before);
    return ptr;
}

static void *default_reserve(void *ctx, size_t bytes)
{
    (void)ctx;
    if (bytes >= SIZE_MAX / 2) return NULL;
    uint8_t *ptr = bytes < QUIRE_HUGE_PAGE ? map_space(bytes) : map_aligned(space_of(bytes));
#ifdef MADV_NOHUGEPAGE
    /* A huge page is up to twenty of ours: touching one row would make 2 MiB resident. quire_memory_collapse() makes exceptions. */
    if (ptr) (void)madvise(ptr, bytes, MADV_NOHUGEPAGE);
#endif
    return ptr;
}

static void default_release(void *ctx, void *ptr, size_t bytes)
{
    (void)ctx;
    munmap(ptr, space_of(bytes));
}

static void default_discard(void *ctx, void *ptr, size_t bytes)
{
    (void)ctx;
    quire_system_discard(ptr, bytes);
}

bool quire_memory_is_default(const quire_allocator *a)
{
    return a->reserve == default_reserve;
}

bool quire_memory_open(const quire_allocator *a, void *ptr, size_t bytes)
{
    return !quire_memory_is_default(a) || !mprotect(ptr, bytes, PROT_READ | PROT_WRITE);
}

#if defined(MADV_COLLAPSE) && defined(MADV_HUGEPAGE) && defined(MADV_NOHUGEPAGE)
#define CAN_COLLAPSE true
int quire_memory_collapse(void *region, size_t os_page)
{
    /* MADV_NOHUGEPAGE would forbid it. */
    if (madvise(region, QUIRE_HUGE_PAGE, MADV_HUGEPAGE)) return errno;
#ifdef MADV_POPULATE_WRITE
    /* If nothing is there yet, the first fault brings the huge page, and there is nothing to copy. */
    (void)madvise(region, os_page, MADV_POPULATE_WRITE);
#endif
    int error = 0;
    for (int i = 0; i < 2; i++) { /* a page that somebody else holds for a moment: once more */
        error = madvise(region, QUIRE_HUGE_PAGE, MADV_COLLAPSE) ? errno : 0;
        if (error != EAGAIN) break;
    }
    /* The huge page stays. But what is discarded and touched again gets small ones. */
    (void)madvise(region, QUIRE_HUGE_PAGE, MADV_NOHUGEPAGE);
    (void)os_page;
    return error;
}

/* Linux splits a huge page at once if a part of it is to become cold. MADV_DONTNEED only unmaps the part. */
void quire_memory_split(void *part, size_t bytes)
{
    (void)madvise(part, bytes, MADV_COLD);
}
#else
#define CAN_COLLAPSE false
int quire_memory_collapse(void *region, size_t os_page)
{
    (void)region;
    (void)os_page;
    return EINVAL;
}

void quire_memory_split(void *part, size_t bytes)
{
    (void)part;
    (void)bytes;
}
#endif

/* The word in brackets is the setting: "always [madvise] never". False: there is no such file. */
static bool read_setting(const char *folder, const char *name, char *word, size_t size)
{
    char path[256], line[128] = "";
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "re");
    if (!file) return false;
    if (!fgets(line, sizeof line, file)) line[0] = 0;
    fclose(file);
    const char *at = strchr(line, '[');
    size_t n = at ? strcspn(at + 1, "]") : 0;
    if (!at || n >= size) return false;
    memcpy(word, at + 1, n);
    word[n] = 0;
    return true;
}

bool quire_huge_is_allowed(const char *settings)
{
    char word[32];
    if (!CAN_COLLAPSE) return false;
    /* Since Linux 6.8 there is one for each size, which may leave it to the one for all. */
    if (read_setting(settings, "hugepages-2048kB/enabled", word, sizeof word) && strcmp(word, "inherit") != 0)
        return strcmp(word, "never") != 0;
    return !read_setting(settings, "enabled", word, sizeof word) || strcmp(word, "never") != 0;
}

quire_status quire_allocator_read(quire_allocator *out, const quire_allocator *allocator)
{
    quire_allocator a = {.size = sizeof a};
    quire_status status = allocator ? quire_read_sized(&a, sizeof a, allocator) : QUIRE_OK;
    if (status) return status;
    /* A part of a group is a mistake. Without the rest it could not be used, and its author would not notice. */
    bool owns_memory = a.alloc || a.free, owns_space = a.reserve || a.release || a.discard;
    if (owns_memory && !(a.alloc && a.free)) return QUIRE_EINVAL;
    if (owns_space && !(a.reserve && a.release && a.discard)) return QUIRE_EINVAL;
    if (!owns_memory) {
        a.alloc = default_alloc;
        a.free = default_free;
    }
    if (!owns_space) {
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
