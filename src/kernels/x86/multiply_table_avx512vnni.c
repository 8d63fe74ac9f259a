/* SPDX-License-Identifier: MIT */
/* kernels: the products of products_avx512.h with packed codes that are looked up in a table, sixteen entries at a time. */
#include "core/cpu.h"

#if defined(QUIRE_X86)

#include "kernels/x86/products_avx512.h"

TABLE_PACKINGS(VNNI)

#endif
