/* SPDX-License-Identifier: MIT */
/* kernels: the products of engine_dotprod.h with packed codes that are numbers. */
#include "core/cpu.h"

#if defined(QUIRE_ARM)

#include "kernels/arm/engine_dotprod.h"

LINEAR_PACKINGS(MULTIPLY)

#endif
