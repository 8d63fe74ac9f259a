/* SPDX-License-Identifier: MIT */
/* packing: what an inner loop is compiled for. */
#ifndef QUIRE_KERNELS_PACKING_H
#define QUIRE_KERNELS_PACKING_H

#include "kernels/kernels.h"

/* How code vectors lie in memory. */
typedef struct packing {
    bool expanded;
    uint32_t bits;
    bool table;
} packing;

#endif
