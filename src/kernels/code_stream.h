/* SPDX-License-Identifier: MIT */
/* code_stream: how codes lie in memory when an inner loop reads them, which is compiled for each way. */
#ifndef QUIRE_KERNELS_CODE_STREAM_H
#define QUIRE_KERNELS_CODE_STREAM_H

#include "kernels/kernels.h"

/* Ways of packing: by the bits of a code, as it is (l) or looked up in a table (t). */
typedef enum quire_packing {
    QUIRE_PACKING_l2,
    QUIRE_PACKING_l3,
    QUIRE_PACKING_l4,
    QUIRE_PACKING_l5,
    QUIRE_PACKING_l6,
    QUIRE_PACKING_l8,
    QUIRE_PACKING_t2,
    QUIRE_PACKING_t3,
    QUIRE_PACKING_t4,
    QUIRE_PACKING_t5,
    QUIRE_PACKING_t6,
    QUIRE_N_PACKINGS
} quire_packing;

/* Ways of packing: bits, and whether a code is looked up in a table. */
#define CODE_PACKINGS(X) \
    X(l2, 2, false)      \
    X(l3, 3, false)      \
    X(l4, 4, false)      \
    X(l5, 5, false)      \
    X(l6, 6, false)      \
    X(l8, 8, false)      \
    X(t2, 2, true)       \
    X(t3, 3, true)       \
    X(t4, 4, true)       \
    X(t5, 5, true)       \
    X(t6, 6, true)

/* How code vectors lie in memory. */
typedef struct packing {
    bool expanded;
    uint32_t bits;
    bool table;
} packing;

#endif
