/* SPDX-License-Identifier: MIT */
/*
 * immintrin.h of the emulated library: found instead of the compiler's, so that kernels for AVX-512, AVX-VNNI and AMX run
 * on any processor with AVX2. Up to AVX2, FMA and F16C everything is the compiler's own; what kernels use beyond that is
 * modelled in models.h, models_lanes.h and tiles.h. A kernel that uses an intrinsic without a model does not compile here.
 */
#ifndef QUIRE_EMULATE_IMMINTRIN_H
#define QUIRE_EMULATE_IMMINTRIN_H

/* The parts of the compiler's header ask that it be included instead of them. With its guard defined they believe that it
 * was, and it stays out: it would declare the names that are modelled here. */
#define _IMMINTRIN_H_INCLUDED /* gcc */
#define __IMMINTRIN_H         /* clang */
#include <smmintrin.h>
#include <avxintrin.h>
#include <avx2intrin.h>
#include <fmaintrin.h>
#include <f16cintrin.h>

#include "../models.h"
#include "../models_lanes.h"
#include "../tiles.h"

/* Functions of kernels ask for the instruction set of their level. Here they get that of the models; with more, the
 * compiler could choose instructions that the machine lacks. */
#define target(list) target(MODEL_TARGET)

/* Kernels are compiled for each packing and number of rows by inlining everything with constants. With models that takes
 * a compiler minutes. Here loops are functions with ordinary arguments: the same operations in the same order. */
#define always_inline

#endif
