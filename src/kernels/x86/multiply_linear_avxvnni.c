/* SPDX-License-Identifier: MIT */
/* kernels: the products of engine_avxvnni.h with packed codes that are numbers. */
#include "core/cpu.h"

#if defined(QUIRE_X86)

#include "kernels/x86/engine_avxvnni.h"

LINEAR_PACKINGS(MULTIPLY)

#endif
