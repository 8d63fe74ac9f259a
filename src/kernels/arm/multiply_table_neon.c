/* SPDX-License-Identifier: MIT */
/* kernels: the products of engine_neon.h with packed codes that are looked up in a table. */
#include "core/cpu.h"

#if defined(QUIRE_ARM)

#include "kernels/arm/engine_neon.h"

TABLE_PACKINGS(MULTIPLY)

#endif
