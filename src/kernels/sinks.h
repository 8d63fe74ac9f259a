/* SPDX-License-Identifier: MIT */
/* sinks: where the integer products of an engine go. See program.h. */
#ifndef QUIRE_KERNELS_SINKS_H
#define QUIRE_KERNELS_SINKS_H

#include "kernels/scales.h"

/* Products of one part of K become scores: zero point, scale, bias. */
typedef struct k_sink {
    const key_scales *scales;
    int32_t offset[QUIRE_STRIP_ROWS],
        fine_offset[QUIRE_STRIP_ROWS]; /* of the zero point; those with a bias have none */
    float weight[QUIRE_STRIP_ROWS];    /* of the bias */
    float fine_unit[QUIRE_STRIP_ROWS]; /* what r counts: 1/256, or 0 in rows that do not need it */
    float *scores;
    uint32_t fine; /* 0: no row needs r, and the engine need not make its sums */
    vm add;        /* all: to what the parts before gave; else none */
    bool has_bias;
} k_sink;

/* Sums of row i for the 16 tokens from 16 j on; that of r only with_fine. */
LANES_FN void take_k(const k_sink *to, uint32_t i, uint32_t j, vi dot, vi fine, const bool with_fine)
{
    float *at = to->scores + i * QUIRE_TILE_ROWS + j * 16;
    if (!to->has_bias) dot = vi_add(dot, vi_set1(to->offset[i]));
    vf product = vi_to_float(dot);
    if (with_fine) {
        if (!to->has_bias) fine = vi_add(fine, vi_set1(to->fine_offset[i]));
        product = vf_fma(vi_to_float(fine), vf_set1(to->fine_unit[i]), product);
    }
    vf s = vf_fma(product, vf_load(to->scales->scale + j * 16), vf_keep(to->add, vf_load(at)));
    if (to->has_bias) s = vf_fma(vf_load(to->scales->bias + j * 16), vf_set1(to->weight[i]), s);
    vf_store(at, s);
}

/* Products of one group of V are added to accumulators. */
typedef struct v_sink {
    float *acc;
    size_t stride;
    float unit[QUIRE_STRIP_ROWS];
    int32_t offset[QUIRE_STRIP_ROWS]; /* of the shifts: 0 if the engine's codes have them */
} v_sink;

/* Sum of row i for the 16 channels from 16 block on. */
LANES_FN void take_v(const v_sink *to, uint32_t i, uint32_t block, vi dot)
{
    float *at = to->acc + i * to->stride + block * 16;
    dot = vi_add(dot, vi_set1(to->offset[i]));
    vf_store(at, vf_fma(vi_to_float(dot), vf_set1(to->unit[i]), vf_load(at)));
}

/*
 * The loops of an engine for one way of packing codes. They are large and do not depend on what the codes mean, so the
 * families that pack alike share them. memory: what the caller of score() or mix() gave.
 */
typedef struct code_loops {
    uint32_t bits;
    void (*dot_k)(const quire_source *k, uint32_t from, uint32_t to, const quire_queries *q, uint32_t first,
                  uint32_t n, const k_sink *sink, void *memory);
    void (*dot_v)(const quire_source *v, uint32_t from, uint32_t to, const int8_t *plane, uint32_t n,
                  const v_sink *sink, void *memory);
} code_loops;

#endif
