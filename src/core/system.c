/* SPDX-License-Identifier: MIT */
/* core: Linux, macOS, FreeBSD, and what they have in common. */
#if defined(__APPLE__)
#define _DARWIN_C_SOURCE /* pthread_set_qos_class_self_np() */
#else
#define _GNU_SOURCE
#endif
#include "core/system.h"

#include <sys/mman.h>

void *quire_system_map(void *at, size_t bytes, int access)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
#if defined(MAP_NORESERVE) /* FreeBSD has no such flag */
    flags |= MAP_NORESERVE;
#endif
    void *ptr = mmap(at, bytes, access, at ? flags | MAP_FIXED : flags, -1, 0);
    return ptr == MAP_FAILED ? NULL : ptr;
}

void quire_system_map_anew(void *ptr, size_t bytes)
{
    (void)quire_system_map(ptr, bytes, PROT_READ | PROT_WRITE);
}

void quire_system_discard(void *ptr, size_t bytes)
{
#if defined(__linux__)
    (void)madvise(ptr, bytes, MADV_DONTNEED);
#else
    /* Elsewhere that is a hint, which may leave the memory and the bytes in it where they are. Of macOS's other advices, MADV_FREE keeps
     * the memory counted as used, and MADV_FREE_REUSABLE wants to be told before the memory is used again. */
    quire_system_map_anew(ptr, bytes);
#endif
}

#if defined(__APPLE__)

#include <pthread.h>

void quire_system_prefer_fast_core(void)
{
    (void)pthread_set_qos_class_self_np(QOS_CLASS_USER_INTERACTIVE, 0);
}

#else

void quire_system_prefer_fast_core(void) {}

#endif
