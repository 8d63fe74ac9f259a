/* SPDX-License-Identifier: MIT */
/* kernels: the products of engine_avx2.h with packed codes that are numbers. */
#include "core/cpu.h"

#if defined(QUIRE_X86)

#include "kernels/x86/engine_avx2.h"

LINEAR_PACKINGS(MULTIPLY)

#endif
