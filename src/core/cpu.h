/* SPDX-License-Identifier: MIT */
/* cpu: which instruction sets may be used. Each rung keeps its variants in a folder by family (x86/, arm/). */
#ifndef QUIRE_CORE_CPU_H
#define QUIRE_CORE_CPU_H

#include "core/core.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define QUIRE_X86 1
#endif
/* Older clang knows no target attributes here. Apple's counts one less. */
#if defined(__aarch64__) && defined(__GNUC__)
#if !defined(__clang__) || __clang_major__ >= 16 || \
    (defined(__apple_build_version__) && __clang_major__ >= 15)
#define QUIRE_ARM 1
#endif
#endif

/* For the body of a loop that waits for another thread: the core gives its execution units to the other thread on it, saves
 * power, and does not pay for wrongly speculated reads when the awaited value arrives. Nothing on machines without such an
 * instruction. */
static inline void quire_cpu_pause(void)
{
#if defined(QUIRE_X86)
    __builtin_ia32_pause();
#elif defined(QUIRE_ARM)
    __asm__ volatile("yield" ::: "memory");
#endif
}

/* In order of preference; a variant of a higher one may call functions of the lower ones of its family. */
typedef enum quire_isa {
    QUIRE_ISA_C,
    QUIRE_ISA_NEON,       /* any 64-bit ARM */
    QUIRE_ISA_DOTPROD,    /* NEON with the 8-bit dot product */
    QUIRE_ISA_I8MM,       /* DOTPROD with products of 8-bit matrices */
    QUIRE_ISA_AVX2,       /* with FMA and F16C */
    QUIRE_ISA_AVXVNNI,    /* AVX2 with the 8-bit dot product in 256 bits */
    QUIRE_ISA_AVX512VNNI, /* F, BW, DQ, VL, VNNI */
    QUIRE_ISA_AVX512VBMI, /* the same with VBMI */
    QUIRE_ISA_AMX,        /* AVX512 with 8-bit and bf16 tiles */
    QUIRE_N_ISAS
} quire_isa;

/* The one in use: the best this machine has, unless QUIRE_ISA in the environment or quire_isa_use() say less. */
quire_isa quire_isa_now(void);

#endif
