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
    {"a4g64/a4g64", "gemma3-270m", 0.09966, 84.6},
    {"a4g64/a4g64", "smollm2-135m", 0.1072, 82.67},
    {"a8g64/a4g64", "gemma3-270m", 0.002454, 97.63},
    {"a8g64/a4g64", "smollm2-135m", 0.008918, 94.96},
    {"a8g64/a8g64", "gemma3-270m", 0.000806, 98.68},
    {"a8g64/a8g64", "smollm2-135m", 0.000332, 99.05},
    {"c:r3/r2", "gemma3-270m", 0.02942, 90.93},
    {"c:r3/r2", "smollm2-135m", 0.1449, 79.92},
    {"c:r3/r3", "gemma3-270m", 0.01831, 92.67},
    {"c:r3/r3", "smollm2-135m", 0.06578, 86.33},
    {"c:r4/r3", "gemma3-270m", 0.006673, 95.75},
    {"c:r4/r3", "smollm2-135m", 0.03148, 90.59},
    {"c:r4/r4", "gemma3-270m", 0.003615, 96.94},
    {"c:r4/r4", "smollm2-135m", 0.01449, 93.36},
    {"c:r5/r4", "gemma3-270m", 0.001727, 98.02},
    {"c:r5/r4", "smollm2-135m", 0.007472, 95.2},
    {"c:r6/r4", "gemma3-270m", 0.001216, 98.14},
    {"c:r6/r4", "smollm2-135m", 0.005444, 95.98},
    {"c:r8/r8", "gemma3-270m", 2e-05, 99.8},
    {"c:r8/r8", "smollm2-135m", 8.2e-05, 99.51},
    {"r4/r4", "gemma3-270m", 0.05945, 87.83},
    {"r4/r4", "smollm2-135m", 0.03793, 89.52},
    {"r5/r3", "gemma3-270m", 0.01703, 92.79},
    {"r5/r3", "smollm2-135m", 0.02993, 90.58},
    {"r5/r4", "gemma3-270m", 0.01486, 93.92},
    {"r5/r4", "smollm2-135m", 0.01336, 93.72},
    {"r6/r4", "gemma3-270m", 0.006128, 95.43},
    {"r6/r4", "smollm2-135m", 0.006996, 95.53},
    {"r8/r4", "gemma3-270m", 0.001421, 98.19},
    {"r8/r4", "smollm2-135m", 0.004839, 96.36},
    {"r8/r8", "gemma3-270m", 0.000343, 99.07},
    {"r8/r8", "smollm2-135m", 0.000181, 99.31},
};
/* clang-format on */

#define N_EVIDENCE (sizeof evidence_rows / sizeof evidence_rows[0])

#endif
