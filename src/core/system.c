/* SPDX-License-Identifier: MIT */
/* core: Linux, macOS, and what both have. */
#if defined(__APPLE__)
#define _DARWIN_C_SOURCE /* pthread_set_qos_class_self_np() */
#else
#define _GNU_SOURCE
#endif
#include "core/system.h"

#include <sys/mman.h>

void quire_system_map_anew(void *ptr, size_t bytes)
{
    (void)mmap(ptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
               -1, 0);
}

#if defined(__APPLE__)

#include <pthread.h>

/* Of macOS's advices, MADV_DONTNEED and MADV_FREE keep the memory counted as used, and MADV_FREE_REUSABLE wants to be told before the
 * memory is used again. */
void quire_system_discard(void *ptr, size_t bytes)
{
    quire_system_map_anew(ptr, bytes);
}

void quire_system_prefer_fast_core(void)
{
    (void)pthread_set_qos_class_self_np(QOS_CLASS_USER_INTERACTIVE, 0);
}

#else

void quire_system_discard(void *ptr, size_t bytes)
{
    (void)madvise(ptr, bytes, MADV_DONTNEED);
}

void quire_system_prefer_fast_core(void) {}

#endif
