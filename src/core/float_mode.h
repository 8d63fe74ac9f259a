/* SPDX-License-Identifier: MIT */
/*
 * float_mode: the arithmetic the formats are defined in. A host may have set another rounding, or flush denormals
 * (many inference programs do); bytes must not depend on that. Entered where the library begins to compute on a
 * thread, left as it was found. The work itself lies behind a call that is not inlined (QUIRE_APART), so that no
 * operation moves across.
 */
#ifndef QUIRE_CORE_FLOAT_MODE_H
#define QUIRE_CORE_FLOAT_MODE_H

#include <stdint.h>

#if defined(__GNUC__)
#define QUIRE_APART __attribute__((noinline))
#else
#define QUIRE_APART
#endif

#if defined(__SSE__)

static inline uint32_t quire_float_mode_enter(void)
{
    uint32_t found = __builtin_ia32_stmxcsr();
    /* Nearest even, denormals kept, all exceptions masked. */
    if ((found & 0xffc0u) != 0x1f80u) __builtin_ia32_ldmxcsr(0x1f80u);
    return found;
}

static inline void quire_float_mode_leave(uint32_t found)
{
    if ((found & 0xffc0u) != 0x1f80u) __builtin_ia32_ldmxcsr(found);
}

#elif defined(__aarch64__)

static inline uint32_t quire_float_mode_enter(void)
{
    uint64_t found;
    __asm__ volatile("mrs %0, fpcr" : "=r"(found));
    if (found) __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)0));
    return (uint32_t)found;
}

static inline void quire_float_mode_leave(uint32_t found)
{
    if (found) __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)found));
}

#else

static inline uint32_t quire_float_mode_enter(void)
{
    return 0;
}

static inline void quire_float_mode_leave(uint32_t found)
{
    (void)found;
}

#endif
#endif
