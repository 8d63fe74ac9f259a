/* SPDX-License-Identifier: MIT */
/* cases: one small function for each intrinsic that kernels use above AVX2. cases.c is compiled twice, with the models and
 * with the processor's instructions, and check.c compares what the two write. */
#ifndef QUIRE_EMULATE_CASES_H
#define QUIRE_EMULATE_CASES_H

#include <stdbool.h>
#include <stdint.h>

/* What a processor must have to run the real one. */
typedef enum emulate_needs {
    NEEDS_F,
    NEEDS_BW,
    NEEDS_DQ,
    NEEDS_VBMI,
    NEEDS_VNNI,
    NEEDS_AVXVNNI,
    NEEDS_AMX,
    N_NEEDS
} emulate_needs;

/* Bytes of operands and of results: three tile registers, one. */
enum { EMULATE_IN = 3072, EMULATE_OUT = 1024 };

typedef struct emulate_case {
    const char *name;
    emulate_needs needs;
    bool any_nan; /* compilers swap operands of sums and products, and with them the NaN that comes out */
    void (*run)(const uint8_t *in, uint8_t *out);
} emulate_case;

#define EMULATE_MOST_CASES 160
extern const emulate_case quire_emulate_models[EMULATE_MOST_CASES],
    quire_emulate_instructions[EMULATE_MOST_CASES];

#endif
