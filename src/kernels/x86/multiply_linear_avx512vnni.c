/* SPDX-License-Identifier: MIT */
/* kernels: the products of products_avx512.h with packed codes that are numbers. */
#include "core/cpu.h"

#if defined(QUIRE_X86)

#include "kernels/x86/products_avx512.h"

LINEAR_PACKINGS(VNNI)

#endif
