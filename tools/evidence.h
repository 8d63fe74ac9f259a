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
    {"a2g32/a2g32", "gemma3-270m", 0.3857, 70.87},
    {"a2g32/a2g32", "smollm2-135m", 2.575, 24.56},
    {"a2g64/a2g64", "gemma3-270m", 0.4747, 66.81},
    {"a2g64/a2g64", "smollm2-135m", 3.897, 12.51},
    {"a3g32/a3g32", "gemma3-270m", 0.1933, 79.67},
    {"a3g32/a3g32", "smollm2-135m", 0.4226, 65.42},
    {"a3g64/a3g64", "gemma3-270m", 0.3602, 70.77},
    {"a3g64/a3g64", "smollm2-135m", 0.6141, 60.34},
    {"a4g32/a4g32", "gemma3-270m", 0.0366, 90.47},
    {"a4g32/a4g32", "smollm2-135m", 0.08157, 83.67},
    {"a4g64/a4g64", "gemma3-270m", 0.09966, 84.6},
    {"a4g64/a4g64", "smollm2-135m", 0.1072, 82.67},
    {"a5g32/a5g32", "gemma3-270m", 0.006014, 96.24},
    {"a5g32/a5g32", "smollm2-135m", 0.0169, 92.64},
    {"a5g64/a5g64", "gemma3-270m", 0.03647, 89.39},
    {"a5g64/a5g64", "smollm2-135m", 0.02439, 91.28},
    {"a6g32/a6g32", "gemma3-270m", 0.001499, 98.24},
    {"a6g32/a6g32", "smollm2-135m", 0.004064, 96.04},
    {"a6g64/a6g64", "gemma3-270m", 0.01158, 94.28},
    {"a6g64/a6g64", "smollm2-135m", 0.005329, 95.53},
    {"a8g32/a8g32", "gemma3-270m", 0.000121, 99.51},
    {"a8g32/a8g32", "smollm2-135m", 0.000245, 99.05},
    {"a8g64/a4g64", "gemma3-270m", 0.002454, 97.63},
    {"a8g64/a4g64", "smollm2-135m", 0.008918, 94.96},
    {"a8g64/a8g64", "gemma3-270m", 0.000806, 98.68},
    {"a8g64/a8g64", "smollm2-135m", 0.000332, 99.05},
    {"c:r2/r2", "smollm2-135m", 0.3512, 68.94},
    {"c:r3/r2", "gemma3-270m", 0.02942, 90.93},
    {"c:r3/r2", "smollm2-135m", 0.1449, 79.92},
    {"c:r3/r3", "gemma3-270m", 0.01831, 92.67},
    {"c:r3/r3", "smollm2-135m", 0.06578, 86.33},
    {"c:r4/r3", "gemma3-270m", 0.006673, 95.75},
    {"c:r4/r3", "smollm2-135m", 0.03148, 90.59},
    {"c:r4/r4", "gemma3-270m", 0.003615, 96.94},
    {"c:r4/r4", "smollm2-135m", 0.01449, 93.36},
    {"c:r5/r3", "smollm2-135m", 0.02454, 91.25},
    {"c:r5/r4", "gemma3-270m", 0.001727, 98.02},
    {"c:r5/r4", "smollm2-135m", 0.007472, 95.2},
    {"c:r6/r4", "gemma3-270m", 0.001216, 98.14},
    {"c:r6/r4", "smollm2-135m", 0.005444, 95.98},
    {"c:r6/r6", "smollm2-135m", 0.001144, 98},
    {"c:r8/r8", "gemma3-270m", 2e-05, 99.8},
    {"c:r8/r8", "smollm2-135m", 8.2e-05, 99.51},
    {"h:a4g32/h:a4g32", "gemma3-270m", 0.0656, 86.41},
    {"h:a4g32/h:a4g32", "smollm2-135m", 0.03871, 88.64},
    {"h:a4g64/h:a4g64", "gemma3-270m", 0.06186, 86.36},
    {"h:a4g64/h:a4g64", "smollm2-135m", 0.04829, 86.85},
    {"q4_0/q4_0", "gemma3-270m", 0.04535, 89.1},
    {"q4_0/q4_0", "smollm2-135m", 0.1227, 80.23},
    {"r2/r2", "smollm2-135m", 1.169, 44.23},
    {"r3/r3", "smollm2-135m", 0.1956, 75.81},
    {"r4,window=r4/r4,window=r4", "gemma3-270m", 0.1025, 83.75},
    {"r4/r3", "smollm2-135m", 0.0548, 86.53},
    {"r4/r4", "gemma3-270m", 0.05945, 87.83},
    {"r4/r4", "smollm2-135m", 0.03793, 89.52},
    {"r5/r3", "gemma3-270m", 0.01703, 92.79},
    {"r5/r3", "smollm2-135m", 0.02993, 90.58},
    {"r5/r3,window=r5/r3", "gemma3-270m", 0.04599, 89.49},
    {"r5/r4", "gemma3-270m", 0.01486, 93.92},
    {"r5/r4", "smollm2-135m", 0.01336, 93.72},
    {"r5/r5", "smollm2-135m", 0.009974, 93.84},
    {"r6/r4", "gemma3-270m", 0.006128, 95.43},
    {"r6/r4", "smollm2-135m", 0.006996, 95.53},
    {"r6/r4,window=r6/r4", "gemma3-270m", 0.01328, 94.23},
    {"r6/r6", "gemma3-270m", 0.005122, 96.43},
    {"r6/r6", "smollm2-135m", 0.002513, 97.12},
    {"r8,window=r8/r8,window=r8", "gemma3-270m", 0.000543, 98.92},
    {"r8/r4", "gemma3-270m", 0.001421, 98.19},
    {"r8/r4", "smollm2-135m", 0.004839, 96.36},
    {"r8/r8", "gemma3-270m", 0.000343, 99.07},
    {"r8/r8", "smollm2-135m", 0.000181, 99.31},
    {"tq3/tq3", "gemma3-270m", 0.2789, 71.9},
    {"tq3/tq3", "smollm2-135m", 0.2236, 74.54},
    {"tq4/tq4", "gemma3-270m", 0.08395, 84.31},
    {"tq4/tq4", "smollm2-135m", 0.05196, 87.68},
};
/* clang-format on */

#define N_EVIDENCE (sizeof evidence_rows / sizeof evidence_rows[0])

#endif
