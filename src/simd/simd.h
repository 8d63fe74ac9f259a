/* SPDX-License-Identifier: MIT */
/*
 * simd: vector code is written in lanes: 16 floats or integers at a time, whatever the width of the registers. A .c file
 * includes the header of its instruction set (avx2.h, avx512.h, neon.h), which names SIMD_TARGET unless the file did, and
 * after it templates (*_tmpl.h) that are written in the functions of that header. The functions have the same names and, but
 * for vf_div_approx(), the same results everywhere.
 *
 *   vf   16 floats          vf_add(a, b)
 *   vi   16 int32_t         vi_add(a, b)
 *   vm   16 truths          vm_of_bits(bits)
 */
#ifndef QUIRE_SIMD_SIMD_H
#define QUIRE_SIMD_SIMD_H

#include "core/core.h"

/* How a function is compiled: always inlined; never inlined; as the compiler likes; visible to other files. */
#define SIMD_FN static inline __attribute__((always_inline, target(SIMD_TARGET)))
#define SIMD_CALL static __attribute__((noinline, target(SIMD_TARGET)))
#define SIMD_STATIC static __attribute__((target(SIMD_TARGET)))
#define SIMD_GLOBAL __attribute__((noinline, target(SIMD_TARGET)))

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SIMD_CHECKED
#endif
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SIMD_CHECKED
#endif

/* Before a loop of n rounds whose sums are to stay in registers. A build that checks every access would take minutes over
 * one file, and need not be fast. */
#define SIMD_PRAGMA(x) _Pragma(#x)
#if defined(SIMD_CHECKED)
#define SIMD_UNROLL(n)
#elif defined(__clang__)
#define SIMD_UNROLL(n) SIMD_PRAGMA(clang loop unroll(full))
#else
#define SIMD_UNROLL(n) SIMD_PRAGMA(GCC unroll n)
#endif

#endif
