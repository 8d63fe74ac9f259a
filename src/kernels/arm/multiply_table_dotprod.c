/* SPDX-License-Identifier: MIT */
/* kernels: the products of engine_dotprod.h with packed codes that are looked up in a table. */
#include "core/cpu.h"

#if defined(QUIRE_ARM)

#include "kernels/arm/engine_dotprod.h"

TABLE_PACKINGS(MULTIPLY)

#endif
