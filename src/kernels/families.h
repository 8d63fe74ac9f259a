/* SPDX-License-Identifier: MIT */
/* families: the functions of every codec family, made of the templates, and the tables of them. */
#ifndef QUIRE_KERNELS_FAMILIES_H
#define QUIRE_KERNELS_FAMILIES_H

#include "kernels/mix_tmpl.h"
#include "kernels/score_tmpl.h"
#include "kernels/softmax_tmpl.h"

/* Names of the functions of float_tmpl.h. */
#ifndef FLOAT_NAME
#define FLOAT_NAME(role, form) role##_##form
#define FLOAT_CALL SIMD_CALL
#endif

/* What does not depend on how codes are packed is compiled twice: with biases and without. */
#define FAMILY_BODIES(kind, has_bias)                                                                       \
    SIMD_CALL void score_##kind(const quire_source *k, const quire_queries *q, uint32_t first, uint32_t n,  \
                                 uint32_t partial, float *scores, void *scratch, const code_loops *loops)    \
    {                                                                                                        \
        score_codes(k, q, first, n, partial, scores, scratch, loops, has_bias);                             \
    }                                                                                                        \
    SIMD_CALL void mix_##kind(const quire_source *v, uint32_t d_out, const float *p,                        \
                               const uint64_t *visible, const float *factor, uint32_t n, float *acc,         \
                               size_t stride, void *scratch, const code_loops *loops)                        \
    {                                                                                                        \
        mix_codes(v, d_out, p, visible, factor, n, acc, stride, scratch, loops, has_bias);                  \
    }

FAMILY_BODIES(biased, true)
FAMILY_BODIES(plain, false)

/* The loops of one way of packing. */
#define PACKING_LOOPS(name, bits, table)                                                                        \
    SIMD_CALL void dot_k_##name(const quire_source *k, uint32_t from, uint32_t to, const quire_queries *q,     \
                                 uint32_t first, uint32_t n, const k_epilogue *epilogue, void *memory)                  \
    {                                                                                                           \
        dot_k(k, from, to, q, first, n, epilogue, memory, bits, table);                                             \
    }                                                                                                           \
    SIMD_CALL void dot_v_##name(const quire_source *v, uint32_t from, uint32_t to, const int8_t *z,        \
                                 uint32_t n, const v_epilogue *epilogue, void *memory)                                  \
    {                                                                                                           \
        dot_v(v, from, to, z, n, epilogue, memory, bits, table);                                                \
    }
/* For the table of all of them. */
#define PACKING_LOOPS_SLOT(name, bits, table) [QUIRE_PACKING_##name] = {bits, dot_k_##name, dot_v_##name},
#define PACKING_LOOPS_TABLE {CODE_PACKINGS(PACKING_LOOPS_SLOT)}

/* The functions of one integer family. LOOPS is the table. */
#define INTEGER_FAMILY(name, packed, kind)                                                                      \
    SIMD_CALL void score_##name(const quire_source *k, const quire_queries *q, uint32_t first, uint32_t n,     \
                                 uint32_t partial, float *scores, void *scratch)                                \
    {                                                                                                           \
        score_##kind(k, q, first, n, partial, scores, scratch, &LOOPS[QUIRE_PACKING_##packed]);                                \
    }                                                                                                           \
    SIMD_CALL void mix_##name(const quire_source *v, uint32_t d_out, const float *p,                           \
                               const uint64_t *visible, const float *factor, uint32_t n, float *acc,            \
                               size_t stride, void *scratch)                                                    \
    {                                                                                                           \
        mix_##kind(v, d_out, p, visible, factor, n, acc, stride, scratch, &LOOPS[QUIRE_PACKING_##packed]);                     \
    }

/* Families, how they pack, and whether they have biases. */
#define INTEGER_FAMILIES(X) \
    X(a2, l2, biased)       \
    X(a3, l3, biased)       \
    X(a4, l4, biased)       \
    X(a5, l5, biased)       \
    X(a6, l6, biased)       \
    X(a8, l8, biased)       \
    X(z4, l4, plain)        \
    X(z5, l5, plain)        \
    X(z8, l8, plain)        \
    X(t2, t2, plain)        \
    X(t3, t3, plain)        \
    X(t4, t4, plain)        \
    X(t5, t5, plain)        \
    X(t6, t6, plain)

/* Slots of all families in order. */
#define FAMILY_SLOTS(role)                                                                                  \
    {                                                                                                        \
        FLOAT_NAME(role, f32), FLOAT_NAME(role, f16), FLOAT_NAME(role, bf16), role##_a2, role##_a3,          \
            role##_a4, role##_a5, role##_a6, role##_a8, role##_z4, role##_z5, role##_z8, role##_t2,          \
            role##_t3, role##_t4, role##_t5, role##_t6                                                       \
    }

/* The same for roles that differ by packing only. */
#define PACKING_SLOTS(role)                                                                                  \
    {                                                                                                        \
        FLOAT_NAME(role, f32), FLOAT_NAME(role, f16), FLOAT_NAME(role, bf16), role##_l2, role##_l3,          \
            role##_l4, role##_l5, role##_l6, role##_l8, role##_l4, role##_l5, role##_l8, role##_t2,          \
            role##_t3, role##_t4, role##_t5, role##_t6                                                       \
    }

/* For expand_from, which has one number for each family. */
#define NEVER (QUIRE_MAX_QUERY_ROWS + 1)
_Static_assert(QUIRE_N_FAMILIES == 17, "expand_from has one number for each");

/* What the tables of all instruction sets have in common. */
#define COMMON_ROLES                                                                             \
    .softmax_update = softmax_update, .add_bias_sums = add_bias_sums, .score = FAMILY_SLOTS(score), .mix = FAMILY_SLOTS(mix), \
    .expand = PACKING_SLOTS(expand), .transpose_k_to_v = PACKING_SLOTS(transpose)

#endif
