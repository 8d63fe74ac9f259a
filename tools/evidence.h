/* SPDX-License-Identifier: MIT */
/* evidence: what policies cost on real models, against f16. Made by eval/evidence.py; do not edit. */
#ifndef QUIRE_TOOLS_EVIDENCE_H
#define QUIRE_TOOLS_EVIDENCE_H

typedef struct evidence {
    const char *policy, *model;
    double kld;  /* mean KL divergence */
    double top1; /* percent of tokens with the same likeliest choice; 0: not measured */
} evidence;

/* clang-format off */
static const evidence evidence_rows[] = {
    {"a4g64/a4g64", "smollm2-135m", 0.1246, 0},
    {"a8g64/a8g64", "smollm2-135m", 0.000332, 99.05},
    {"c:r4/r3", "smollm2-135m", 0.03115, 0},
    {"c:r5/r4", "smollm2-135m", 0.007568, 0},
    {"r4/r4", "smollm2-135m", 0.04297, 0},
    {"r5/r3", "smollm2-135m", 0.03226, 0},
    {"r6/r4", "smollm2-135m", 0.008001, 0},
    {"r8/r8", "smollm2-135m", 0.000183, 0},
};
/* clang-format on */

#define N_EVIDENCE (sizeof evidence_rows / sizeof evidence_rows[0])

#endif
