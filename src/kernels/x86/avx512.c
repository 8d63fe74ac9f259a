/* SPDX-License-Identifier: MIT */
/* kernels: AVX-512 with VNNI and VBMI. */
#include "core/cpu.h"

#if defined(QUIRE_X86)

#include "kernels/x86/vnni_avx512.h"

LANES_FN void dot_k(const quire_source *k, uint32_t from, uint32_t to, const quire_queries *q, uint32_t first,
                    uint32_t n, const k_sink *sink, void *memory, const uint32_t bits, const bool table)
{
    (void)memory;
    size_t stride = q->plane_stride;
    planes p = {q->plane + 2 * first * stride + from, q->fine + first * stride + from, stride};
    if (k->expanded && sink->fine)
        vnni_k(k, from, to, &p, n, 3, (packing){true, bits, table}, sink);
    else if (k->expanded)
        vnni_k(k, from, to, &p, n, 2, (packing){true, bits, table}, sink);
    else if (sink->fine)
        vnni_k(k, from, to, &p, n, 3, (packing){false, bits, table}, sink);
    else
        vnni_k(k, from, to, &p, n, 2, (packing){false, bits, table}, sink);
}

LANES_FN void dot_v(const quire_source *v, uint32_t from, uint32_t to, const int8_t *plane, uint32_t n,
                    const v_sink *sink, void *memory, const uint32_t bits, const bool table)
{
    (void)memory;
    if (v->expanded)
        vnni_v(v, from, to, plane, n, (packing){true, bits, table}, sink);
    else
        vnni_v(v, from, to, plane, n, (packing){false, bits, table}, sink);
}

#include "kernels/program.h"

#include "kernels/float_program.h"

PROGRAM_FAMILIES(PROGRAM_FAMILY)
PROGRAM_FAMILIES(UNPACK_FAMILY)

const quire_kernels quire_kernels_avx512 = {
    .load = load_queries,
    PROGRAM_ROLES,
    .expand_from = {8, 8, 8, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5},
    .whole_channels = 32,
};

#endif
