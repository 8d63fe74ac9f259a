/* SPDX-License-Identifier: MIT */
/* code_stream: how codes lie in memory when an inner loop reads them, which is compiled for each way. */
#ifndef QUIRE_KERNELS_CODE_STREAM_H
#define QUIRE_KERNELS_CODE_STREAM_H

#include "kernels/kernels.h"

/* Ways of packing: name, bits of a code, and whether it is looked up in a table (t) or is a number (l). */
#define LINEAR_PACKINGS(X) \
    X(l2, 2, false)        \
    X(l3, 3, false)        \
    X(l4, 4, false)        \
    X(l5, 5, false)        \
    X(l6, 6, false)        \
    X(l8, 8, false)
#define TABLE_PACKINGS(X) \
    X(t2, 2, true)        \
    X(t3, 3, true)        \
    X(t4, 4, true)        \
    X(t5, 5, true)        \
    X(t6, 6, true)
#define CODE_PACKINGS(X) \
    LINEAR_PACKINGS(X)   \
    TABLE_PACKINGS(X)

#define PACKING_ENUM(name, bits, table) QUIRE_PACKING_##name,
typedef enum quire_packing { CODE_PACKINGS(PACKING_ENUM) QUIRE_N_PACKINGS } quire_packing;

/* How code vectors lie in memory. */
typedef struct packing {
    bool expanded;
    uint32_t bits;
    bool table;
} packing;

#endif
