/* SPDX-License-Identifier: MIT */
/* Programs compiled with other headers than today's. Each does the same and gives the same outputs; whatever goes wrong aborts. */
#ifndef QUIRE_TESTS_FROZEN_CALLER_H
#define QUIRE_TESTS_FROZEN_CALLER_H

#define CALLER_OUTPUTS 128 /* 4 heads of 32 values */

void caller_of_0_2(float *attended);
void caller_older(float *attended);
void caller_newer(float *attended);

#endif
