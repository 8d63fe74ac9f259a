/* SPDX-License-Identifier: MIT */
/* epilogue: what becomes of the integer sums of an engine: scores, or additions to accumulators. See score_tmpl.h. */
#ifndef QUIRE_KERNELS_EPILOGUE_H
#define QUIRE_KERNELS_EPILOGUE_H

#include "kernels/scales.h"

/* Products of one part of K become scores: zero point, scale, bias. */
typedef struct k_epilogue {
    const key_scales *scales;
    /* Of the zero point. With a bias: of rows without r, what r gives with codes in the middle of their range. */
    int32_t offset[QUIRE_STRIP_ROWS], r_offset[QUIRE_STRIP_ROWS];
    float weight[QUIRE_STRIP_ROWS]; /* of the bias */
    float r_unit[QUIRE_STRIP_ROWS]; /* what r counts: 1/256, or 0 in rows that do not need it */
    float *scores;
    uint32_t with_r; /* 0: no row needs r, and the engine need not make its sums */
    vm add;          /* all: to what the parts before gave; else none */
    bool has_bias;
} k_epilogue;

/* Sums of row i for the 16 tokens from 16 j on; that of r only with_r. */
SIMD_FN void store_scores(const k_epilogue *to, uint32_t i, uint32_t j, vi dot, vi r_dot, const bool with_r)
{
    float *at = to->scores + i * QUIRE_TILE_ROWS + j * 16;
    dot = vi_add(dot, vi_set1(to->offset[i]));
    vf product = vi_to_float(dot);
    if (with_r) {
        if (!to->has_bias) r_dot = vi_add(r_dot, vi_set1(to->r_offset[i]));
        product = vf_fma(vi_to_float(r_dot), vf_set1(to->r_unit[i]), product);
    }
    vf s = vf_fma(product, vf_load(to->scales->scale + j * 16), vf_keep(to->add, vf_load(at)));
    if (to->has_bias) s = vf_fma(vf_load(to->scales->bias + j * 16), vf_set1(to->weight[i]), s);
    vf_store(at, s);
}

/* Products of one group of V are added to accumulators. */
typedef struct v_epilogue {
    float *acc;
    size_t stride;
    float unit[QUIRE_STRIP_ROWS];
    int32_t offset[QUIRE_STRIP_ROWS]; /* of the shifts: 0 if the engine's codes have them */
} v_epilogue;

/* Sum of row i for the 16 channels from 16 block on. */
SIMD_FN void add_values(const v_epilogue *to, uint32_t i, uint32_t block, vi dot)
{
    float *at = to->acc + i * to->stride + block * 16;
    dot = vi_add(dot, vi_set1(to->offset[i]));
    vf_store(at, vf_fma(vi_to_float(dot), vf_set1(to->unit[i]), vf_load(at)));
}

/*
 * The loops of an engine for one way of packing codes. They do not depend on what the codes mean, so the families that pack
 * alike share them. memory: what the caller of score() or mix() gave.
 */
typedef struct code_loops code_loops;

typedef void dot_k_fn(const quire_source *k, uint32_t from, uint32_t to, const quire_queries *q,
                      uint32_t first, uint32_t n, const k_epilogue *epilogue, void *memory,
                      const code_loops *loops);
typedef void dot_v_fn(const quire_source *v, uint32_t from, uint32_t to, const int8_t *z, uint32_t n,
                      const v_epilogue *epilogue, void *memory, const code_loops *loops);

struct code_loops {
    uint32_t bits;
    bool table;
    dot_k_fn *dot_k;
    dot_v_fn *dot_v;
    const void *multiply; /* what the engine has for this way of packing */
};

#endif
