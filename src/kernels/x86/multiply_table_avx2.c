/* SPDX-License-Identifier: MIT */
/* kernels: the products of engine_avx2.h with packed codes that are looked up in a table. */
#include "core/cpu.h"

#if defined(QUIRE_X86)

#include "kernels/x86/engine_avx2.h"

TABLE_PACKINGS(MULTIPLY)

#endif
