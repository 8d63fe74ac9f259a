/* SPDX-License-Identifier: MIT */
/* kernels: AVX-512 with VNNI and VBMI. */
#include "core/cpu.h"

#if defined(QUIRE_X86)

#include "kernels/x86/vnni_avx512.h"

/* dots: [n][2][64] */
LANES_FN const int32_t *dot_k(const quire_source *k, uint32_t from, uint32_t to, const quire_queries *q,
                              uint32_t first, uint32_t n, bool fine, void *memory, const uint32_t bits,
                              const bool table)
{
    int32_t *dots = (int32_t *)memory;
    size_t stride = q->plane_stride;
    planes p = {q->plane + 2 * first * stride + from, q->fine + first * stride + from, stride};
    sums at = {.a = dots, .stride = 128, .fine = 64, .fine_stride = 128};
    if (k->expanded && fine)
        vnni_k(k, from, to, &p, n, 3, (packing){true, bits, table}, true, at, 16);
    else if (k->expanded)
        vnni_k(k, from, to, &p, n, 2, (packing){true, bits, table}, true, at, 16);
    else if (fine)
        vnni_k(k, from, to, &p, n, 3, (packing){false, bits, table}, true, at, 16);
    else
        vnni_k(k, from, to, &p, n, 2, (packing){false, bits, table}, true, at, 16);
    return dots;
}

LANES_FN vi at_k(const int32_t *dots, uint32_t i, uint32_t j)
{
    return vi_load(dots + i * 128 + j * 16);
}

LANES_FN vi at_k_fine(const int32_t *dots, uint32_t i, uint32_t j)
{
    return vi_load(dots + i * 128 + 64 + j * 16);
}

/* dots: [n][4][16] */
LANES_FN const int32_t *dot_v(const quire_source *v, uint32_t from, uint32_t to, const int8_t *plane,
                              uint32_t n, void *memory, const uint32_t bits, const bool table)
{
    int32_t *dots = (int32_t *)memory;
    sums at = {.a = dots, .stride = 64};
    if (v->expanded)
        vnni_v(v, from, to, plane, n, (packing){true, bits, table}, true, at, 16);
    else
        vnni_v(v, from, to, plane, n, (packing){false, bits, table}, true, at, 16);
    return dots;
}

LANES_FN vi at_v(const int32_t *dots, uint32_t i, uint32_t b)
{
    return vi_load(dots + i * 64 + b * 16);
}

#include "kernels/program.h"

#include "kernels/float_program.h"

PROGRAM_FAMILIES(PROGRAM_FAMILY)
PROGRAM_FAMILIES(UNPACK_FAMILY)

const quire_kernels quire_kernels_avx512 = {
    .load = load_queries,
    .soften = soften,
    .settle = settle,
    .score = PROGRAM_SLOTS(score),
    .mix = PROGRAM_SLOTS(mix),
    .expand = PROGRAM_SLOTS(expand),
    .expand_from = {8, 8, 8, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5},
    .whole_channels = 32,
    .turn = PROGRAM_SLOTS(turn),

};

#endif
