/* SPDX-License-Identifier: MIT */
/*
 * families: the functions of every codec family, made of the templates, and the tables of them. The file that includes this
 * has an engine: dot_k() and dot_v() (score_tmpl.h), and MULTIPLY_NAME(packing), what it has for a way of packing. It can
 * define
 *
 *   DOT_NAME      names of its dot_k() and dot_v(), if several files have them
 *   FLOAT_NAME    names of the functions of float_tmpl.h, if it shares them (shared.h)
 *   COMMON_NAME   names of the functions of softmax_tmpl.h and score_tmpl.h, likewise
 *   COMMON_ELSEWHERE   another file defines them
 *   OPERAND_NAME  names of the functions of queries_tmpl.h and mix_tmpl.h, which make the integers that the engine multiplies
 *   OPERAND_ELSEWHERE  another file defines them
 *   TABLE_MULTIPLY_NAME  MULTIPLY_NAME for codes that are looked up in a table, if it is another
 */
#ifndef QUIRE_KERNELS_FAMILIES_H
#define QUIRE_KERNELS_FAMILIES_H

#ifndef DOT_NAME
#define DOT_NAME(name) name
#endif
#ifndef FLOAT_NAME
#define FLOAT_NAME(name) name
#define FLOAT_CALL SIMD_CALL
#endif
#ifndef COMMON_NAME
#define COMMON_NAME(name) name
#define COMMON_CALL SIMD_CALL
#endif

#ifndef OPERAND_NAME
#define OPERAND_NAME(name) name
#define OPERAND_CALL SIMD_CALL
#endif
#ifndef TABLE_MULTIPLY_NAME
#define TABLE_MULTIPLY_NAME MULTIPLY_NAME
#endif

#ifndef OPERAND_ELSEWHERE
#include "kernels/mix_tmpl.h"
#include "kernels/queries_tmpl.h"
#endif
#ifndef COMMON_ELSEWHERE
#include "kernels/score_tmpl.h"
#include "kernels/softmax_tmpl.h"
#endif

SIMD_CALL void dot_k_codes(const quire_source *k, uint32_t from, uint32_t to, const quire_queries *q,
                           uint32_t first, uint32_t n, const k_epilogue *epilogue, void *memory,
                           const code_loops *loops)
{
    DOT_NAME(dot_k)(k, from, to, q, first, n, epilogue, memory, loops);
}

SIMD_CALL void dot_v_codes(const quire_source *v, uint32_t from, uint32_t to, const int8_t *z, uint32_t n,
                           const v_epilogue *epilogue, void *memory, const code_loops *loops)
{
    DOT_NAME(dot_v)(v, from, to, z, n, epilogue, memory, loops);
}

/* Loops by packing. */
#define LINEAR_SLOT(name, bits, table) {bits, table, dot_k_codes, dot_v_codes, &MULTIPLY_NAME(name)},
#define TABLE_SLOT(name, bits, table) {bits, table, dot_k_codes, dot_v_codes, &TABLE_MULTIPLY_NAME(name)},
#define PACKING_LOOPS                                           \
    {                                                           \
        LINEAR_PACKINGS(LINEAR_SLOT) TABLE_PACKINGS(TABLE_SLOT) \
    }

/* The functions of one integer family. LOOPS is the table. */
#define INTEGER_FAMILY(name, packed, kind)                                                                 \
    SIMD_CALL void score_##name(const quire_source *k, const quire_queries *q, uint32_t first, uint32_t n, \
                                uint32_t partial, float *scores, void *scratch)                            \
    {                                                                                                      \
        COMMON_NAME(score_##kind)                                                                          \
        (k, q, first, n, partial, scores, scratch, &LOOPS[QUIRE_PACKING_##packed]);                        \
    }                                                                                                      \
    SIMD_CALL void mix_##name(const quire_source *v, uint32_t d_out, const float *p,                       \
                              const uint64_t *visible, const float *factor, uint32_t n, float *acc,        \
                              size_t stride, void *scratch)                                                \
    {                                                                                                      \
        OPERAND_NAME(mix_##kind)                                                                           \
        (v, d_out, p, visible, factor, n, acc, stride, scratch, &LOOPS[QUIRE_PACKING_##packed]);           \
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
#define FAMILY_SLOTS(role)                                                                             \
    {                                                                                                  \
        FLOAT_NAME(role##_f32), FLOAT_NAME(role##_f16), FLOAT_NAME(role##_bf16), role##_a2, role##_a3, \
            role##_a4, role##_a5, role##_a6, role##_a8, role##_z4, role##_z5, role##_z8, role##_t2,    \
            role##_t3, role##_t4, role##_t5, role##_t6                                                 \
    }

/* The same for roles that differ by packing only. */
#define PACKING_SLOTS(role)                                                                            \
    {                                                                                                  \
        FLOAT_NAME(role##_f32), FLOAT_NAME(role##_f16), FLOAT_NAME(role##_bf16), role##_l2, role##_l3, \
            role##_l4, role##_l5, role##_l6, role##_l8, role##_l4, role##_l5, role##_l8, role##_t2,    \
            role##_t3, role##_t4, role##_t5, role##_t6                                                 \
    }

/* For expand_from, which has one number for each family. */
#define NEVER (QUIRE_MAX_QUERY_ROWS + 1)
_Static_assert(QUIRE_N_FAMILIES == 17, "expand_from has one number for each");

/* What the tables of all instruction sets have in common. */
#define COMMON_ROLES                                                                             \
    .softmax_update = COMMON_NAME(softmax_update), .add_bias_sums = OPERAND_NAME(add_bias_sums), \
    .score = FAMILY_SLOTS(score), .mix = FAMILY_SLOTS(mix), .expand = PACKING_SLOTS(expand),     \
    .transpose_k_to_v = PACKING_SLOTS(transpose)

#endif
