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

#define QUIRE_FLOAT_MODE_CHANGED 0x80000000u /* in what was found, where neither processor has a bit */

#if defined(__SSE__)

/* Nearest even, all exceptions masked; denormals are kept, or count as zero. */
#define QUIRE_FLOAT_MODE_KEEP 0x1f80u
#define QUIRE_FLOAT_MODE_FLUSH 0x9fc0u

static inline uint32_t quire_float_mode_set(uint32_t mode)
{
    uint32_t found = __builtin_ia32_stmxcsr();
    if ((found & 0xffc0u) == mode) return found;
    __builtin_ia32_ldmxcsr(mode);
    return found | QUIRE_FLOAT_MODE_CHANGED;
}

static inline void quire_float_mode_leave(uint32_t found)
{
    if (found & QUIRE_FLOAT_MODE_CHANGED) __builtin_ia32_ldmxcsr(found & ~QUIRE_FLOAT_MODE_CHANGED);
}

#elif defined(__aarch64__)

#define QUIRE_FLOAT_MODE_KEEP 0u
#define QUIRE_FLOAT_MODE_FLUSH 0x1000000u

static inline uint32_t quire_float_mode_set(uint32_t mode)
{
    uint64_t found;
    __asm__ volatile("mrs %0, fpcr" : "=r"(found));
    if (found == mode) return (uint32_t)found;
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)mode));
    return (uint32_t)found | QUIRE_FLOAT_MODE_CHANGED;
}

static inline void quire_float_mode_leave(uint32_t found)
{
    uint64_t mode = found & ~QUIRE_FLOAT_MODE_CHANGED;
    if (found & QUIRE_FLOAT_MODE_CHANGED) __asm__ volatile("msr fpcr, %0" : : "r"(mode));
}

#else

#define QUIRE_FLOAT_MODE_KEEP 0u
#define QUIRE_FLOAT_MODE_FLUSH 0u

static inline uint32_t quire_float_mode_set(uint32_t mode)
{
    return mode;
}

static inline void quire_float_mode_leave(uint32_t found)
{
    (void)found;
}

#endif

/* The mode that bytes are defined in. */
static inline uint32_t quire_float_mode_enter(void)
{
    return quire_float_mode_set(QUIRE_FLOAT_MODE_KEEP);
}

/* The mode of fast attention: a weight too small to be normal is nothing, and no processor slows down over it. */
static inline uint32_t quire_float_mode_enter_fast(void)
{
    return quire_float_mode_set(QUIRE_FLOAT_MODE_FLUSH);
}

#endif
