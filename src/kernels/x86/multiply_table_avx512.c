/* SPDX-License-Identifier: MIT */
/* kernels: the products of products_avx512.h with packed codes that are looked up in a table, with VBMI. */
#include "core/cpu.h"

#if defined(QUIRE_X86)

#define HAS_VBMI
#define SIMD_TARGET "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx2,fma,f16c,bmi2"
#include "kernels/x86/products_avx512.h"

TABLE_PACKINGS(VNNI)

#endif
