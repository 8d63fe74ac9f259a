/* SPDX-License-Identifier: MIT */
/* The part of macOS's libSystem that the library calls, made of Linux's: numbers that differ are translated, pages have the size of a Mac's, and what a Mac
 * would refuse ends the program. QUIRE_MACOS_FEATURES in the environment has the names for which sysctlbyname() says 1. */
#define _GNU_SOURCE
#include "macos.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

static atomic_uint n_renewed, n_preferred;

__attribute__((destructor)) static void report(void)
{
    fprintf(stderr, "renewed %u preferred %u\n", atomic_load(&n_renewed), atomic_load(&n_preferred));
}

/* ------------------------------------------------------------------- memory */

static size_t rounded(size_t bytes)
{
    return (bytes + MACOS_PAGE - 1) / MACOS_PAGE * MACOS_PAGE;
}

static void require_page(const void *ptr, const char *call)
{
    macos_require((uintptr_t)ptr % MACOS_PAGE == 0,
                  "an address that is not a multiple of the page size was given to", call);
}

static void *mac_mmap(void *ptr, size_t bytes, int protection, int flags, int fd, int64_t offset)
{
    enum { PRIVATE = 0x2, FIXED = 0x10, NO_RESERVE = 0x40, ANONYMOUS = 0x1000 };
    macos_require((flags & ~(FIXED | NO_RESERVE)) == (PRIVATE | ANONYMOUS) && fd == -1 && !offset,
                  "flags of mmap", "");
    int ours = MAP_PRIVATE | MAP_ANONYMOUS | (flags & NO_RESERVE ? MAP_NORESERVE : 0);
    bytes = rounded(bytes);
    if (flags & FIXED) {
        require_page(ptr, "mmap");
        atomic_fetch_add(&n_renewed, 1);
        return mmap(ptr, bytes, protection, ours | MAP_FIXED, -1, 0);
    }
    uint8_t *space = mmap(NULL, bytes + MACOS_PAGE, protection, ours, -1, 0);
    if (space == MAP_FAILED) return MAP_FAILED;
    size_t before = rounded((uintptr_t)space) - (uintptr_t)space;
    if (before) munmap(space, before);
    if (before < MACOS_PAGE) munmap(space + before + bytes, MACOS_PAGE - before);
    return space + before;
}

static int mac_munmap(void *ptr, size_t bytes)
{
    require_page(ptr, "munmap");
    return munmap(ptr, rounded(bytes));
}

static int mac_mprotect(void *ptr, size_t bytes, int protection)
{
    require_page(ptr, "mprotect");
    return mprotect(ptr, rounded(bytes), protection);
}

static void mac_bzero(void *ptr, size_t bytes)
{
    memset(ptr, 0, bytes);
}

static void mac_memset_pattern16(void *ptr, const void *pattern, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += 16)
        memcpy((uint8_t *)ptr + at, pattern, bytes - at < 16 ? bytes - at : 16);
}

static void *mac_memcpy_chk(void *to, const void *from, size_t bytes, size_t room)
{
    macos_require(bytes <= room, "memcpy beyond the end", "");
    return memcpy(to, from, bytes);
}

/* ------------------------------------------------------------------- system */

static long mac_sysconf(int name)
{
    macos_require(name == 29, "sysconf of something else than the page size", "");
    return (long)MACOS_PAGE;
}

static int mac_sysctlbyname(const char *name, void *value, size_t *bytes, const void *fresh,
                            size_t fresh_bytes)
{
    const char *at = getenv("QUIRE_MACOS_FEATURES");
    size_t n = strlen(name);
    macos_require(!fresh && !fresh_bytes && *bytes == 4, "arguments of sysctlbyname:", name);
    for (; at && *at; at += strcspn(at, ","), at += *at == ',') {
        if (strcspn(at, ",") != n || strncmp(at, name, n) != 0) continue;
        memcpy(value, &(int32_t){1}, 4);
        return 0;
    }
    errno = ENOENT;
    return -1;
}

static int mac_clock_gettime(int id, struct timespec *out)
{
    macos_require(id == 0 || id == 6 || id == 16, "a clock", "");
    return clock_gettime(id == 0 ? CLOCK_REALTIME : id == 6 ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID, out);
}

static int mac_set_qos(unsigned qos, int priority)
{
    macos_require(qos == 0x21 && priority == 0, "quality of service", "");
    atomic_fetch_add(&n_preferred, 1);
    return 0;
}

#if defined(__aarch64__)
/* Unnamed arguments of a Mac all lie on the stack, and a va_list is their address. One of Linux whose registers are used up goes on
 * there too, in the same steps of 8 bytes. */
int mac_vsnprintf(char *out, size_t size, const char *format, void *arguments);
int mac_vsnprintf(char *out, size_t size, const char *format, void *arguments)
{
    va_list list;
    struct {
        void *stack, *general, *vector;
        int general_left, vector_left;
    } parts = {arguments, NULL, NULL, 0, 0};
    _Static_assert(sizeof list == sizeof parts, "va_list of AAPCS64");
    memcpy(&list, &parts, sizeof list);
    return vsnprintf(out, size, format, list);
}

void mac_snprintf(void);
__asm__(
    ".text\n.globl mac_snprintf\n.type mac_snprintf, %function\nmac_snprintf:\n    mov x3, sp\n    b mac_vsnprintf\n");
#else /* as on Linux */
#define mac_snprintf snprintf
#define mac_vsnprintf vsnprintf
#endif

static void stub_binder(void)
{
    macos_require(false, "a function was not bound", "");
}

/* -------------------------------------------------------------------- names */

#define SAME(name)                      \
    {                                   \
        "_" #name, (void *)(size_t)name \
    }

void *macos_import(const char *name)
{
    /* A mutex of a Mac has 64 bytes and a condition 48; those of Linux fit. */
    _Static_assert(sizeof(pthread_mutex_t) <= 64 && sizeof(pthread_cond_t) <= 48, "sizes");
    static const struct {
        const char *name;
        void *function;
    } known[] = {
        {"___memcpy_chk", (void *)mac_memcpy_chk},
        {"___bzero", (void *)mac_bzero}, /* of x86-64 */
        {"_bzero", (void *)mac_bzero},
        {"_clock_gettime", (void *)mac_clock_gettime},
        {"_memset_pattern16", (void *)mac_memset_pattern16},
        {"_mmap", (void *)mac_mmap},
        {"_mprotect", (void *)mac_mprotect},
        {"_munmap", (void *)mac_munmap},
        {"_pthread_set_qos_class_self_np", (void *)mac_set_qos},
        {"_snprintf", (void *)mac_snprintf},
        {"_sysconf", (void *)mac_sysconf},
        {"_sysctlbyname", (void *)mac_sysctlbyname},
        {"_vsnprintf", (void *)mac_vsnprintf},
        {"dyld_stub_binder", (void *)stub_binder},
        SAME(calloc),
        SAME(fmod),
        SAME(free),
        SAME(getenv),
        SAME(memchr),
        SAME(memcmp),
        SAME(memcpy),
        SAME(memmove),
        SAME(memset),
        SAME(posix_memalign),
        SAME(pthread_cond_broadcast),
        SAME(pthread_cond_destroy),
        SAME(pthread_cond_init),
        SAME(pthread_cond_signal),
        SAME(pthread_cond_wait),
        SAME(pthread_create),
        SAME(pthread_join),
        SAME(pthread_mutex_destroy),
        SAME(pthread_mutex_init),
        SAME(pthread_mutex_lock),
        SAME(pthread_mutex_trylock),
        SAME(pthread_mutex_unlock),
        SAME(rintf), /* of x86-64: 64-bit ARM has an instruction */
        SAME(sched_yield),
        SAME(strcmp),
        SAME(strlen),
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(known[i].name, name) == 0) return known[i].function;
    macos_require(false, "nothing stands for", name);
    return NULL;
}
