/* SPDX-License-Identifier: MIT */
/* unroll: LANES_UNROLL(n) before a loop of n rounds whose sums are to stay in registers. */
#ifndef QUIRE_KERNELS_UNROLL_H
#define QUIRE_KERNELS_UNROLL_H

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define LANES_CHECKED
#endif
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LANES_CHECKED
#endif

/* A build that checks every access would take minutes over one file, and need not be fast. */
#define LANES_PRAGMA(x) _Pragma(#x)
#if defined(LANES_CHECKED)
#define LANES_UNROLL(n)
#elif defined(__clang__)
#define LANES_UNROLL(n) LANES_PRAGMA(clang loop unroll(full))
#else
#define LANES_UNROLL(n) LANES_PRAGMA(GCC unroll n)
#endif

#endif
