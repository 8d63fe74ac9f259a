/* SPDX-License-Identifier: MIT */
/*
 * row_kernels: the loops over a row that have variants by instruction set. The C versions (ending in _c, in the files of
 * their families) are the definition: every variant gives the same bits, which tests/unit/encode_variants.c compares.
 */
#ifndef QUIRE_CODEC_ROW_KERNELS_H
#define QUIRE_CODEC_ROW_KERNELS_H

#include "codec/registry.h"
#include "core/cpu.h"

/*
 * d values of a float form. NaN becomes 0, what lies outside of +-limit saturates; both are counted. Returns y, or data
 * itself if that is the same.
 */
typedef const float *quire_row_load_fn(quire_form form, const void *data, uint32_t d, float limit, float *y,
                                       quire_counts *counts);

/* d finite values to a float form; what it cannot hold becomes its largest value. */
typedef void quire_row_store_fn(quire_form form, const float *x, uint32_t d, void *data);

/*
 * From x to y, which may be the same: signs of `before`, Walsh-Hadamard in blocks of n (a power of two that divides d),
 * signs of `after`. A sign is bit i % 64 of word i / 64; NULL: none.
 */
typedef void quire_row_hadamard_fn(const float *x, float *y, uint32_t d, uint32_t n, const uint64_t *before,
                                   const uint64_t *after);

/* A rotated row of an r or tq codec and its table. */
typedef struct quire_row_work {
    const float *x;
    uint32_t d, bits;
    const int8_t *table;
} quire_row_work;

#define QUIRE_N_STARTS 5u /* scales that are tried at once: one after the other would be one long chain */

/* row_scaled.c: the five starts as parts of the scale that a normal row of this energy, x.x, would have. */
extern const float quire_row_starts[QUIRE_N_STARTS];
float quire_first_scale(float energy, uint32_t d, uint32_t bits);
/* row_scaled.c: whether the scale that is stored is the one with the least error. */
bool quire_row_shrinks(const quire_coder *coder);

/* Below, c(s) is x / s rounded to entries of the table. */

typedef struct quire_row_dots {
    float xc, cc; /* x.c and c.c */
} quire_row_dots;

/* The codes of c(s). */
typedef quire_row_dots quire_row_assign_fn(const quire_row_work *w, float s, uint8_t *code);
/* Each scale becomes the one that fits its c best: s' = x.c(s) / c(s).c(s). error, unless NULL, gets |x - s' c(s)|^2. */
typedef void quire_row_refit_fn(const quire_row_work *w, float s[QUIRE_N_STARTS], float *error);
/* Codes of a tv row of unit length, rotated: how many of 2^bits - 1 middles lie below each value. */
typedef void quire_row_count_middles_fn(const float *x, uint32_t d, const float *middle, uint32_t bits,
                                        uint8_t *code);
/* quire_lane_dot() */
typedef float quire_row_dot_fn(const float *a, const float *b, uint32_t n);

/* y = weight * (x - mean); mean NULL: none is taken out. */
typedef void quire_row_weigh_fn(const float *x, const float *mean, const float *weight, uint32_t d, float *y);
/* The squared length of that. */
typedef float quire_row_distance_fn(const float *x, const float *mean, const float *weight, uint32_t d);
/* x = x / weight */
typedef void quire_row_unweigh_fn(float *x, const float *weight, uint32_t d);
/* x = x + mean * factor */
typedef void quire_row_add_mean_fn(float *x, const float *mean, float factor, uint32_t d);

/* Codes to values: quire_expand_row(). */
typedef void quire_row_expand_fn(const quire_coder *coder, const quire_coded_row *row, float *y);

/*
 * 16 rows, the first at data, each `stride` bytes after the one before it. Bit t of what is returned: row t was not coded, and
 * has to be coded alone; a few are left over in every thousand, and those that need counting. Reads no more than the rows.
 */
typedef uint32_t quire_row_encode_rows_fn(const quire_coder *coder, quire_form form, const uint8_t *data,
                                          size_t stride, quire_coded_rows *out);
/* Whether encode_rows() takes rows of this coder. */
typedef bool quire_row_takes_rows_fn(const quire_coder *coder);

typedef struct quire_row_kernels {
    quire_row_load_fn *load;
    quire_row_store_fn *store;
    quire_row_hadamard_fn *hadamard;
    quire_encode_fn *encode_float, *encode_affine, *encode_q8_0, *encode_q5_1, *encode_q5_0, *encode_q4_1,
        *encode_q4_0, *encode_r8;
    quire_row_assign_fn *assign;
    quire_row_refit_fn *refit;
    quire_row_count_middles_fn *count_middles;
    quire_row_dot_fn *dot;
    quire_row_weigh_fn *weigh;
    quire_row_distance_fn *distance;
    quire_row_unweigh_fn *unweigh;
    quire_row_add_mean_fn *add_mean;
    quire_row_expand_fn *expand;
    quire_row_takes_rows_fn *takes_rows; /* NULL: none */
    quire_row_encode_rows_fn *encode_rows;
} quire_row_kernels;

quire_row_load_fn quire_load_c;                              /* encode.c */
quire_row_store_fn quire_store_c;                            /* encode.c */
quire_row_expand_fn quire_expand_c;                          /* encode.c */
quire_row_hadamard_fn quire_hadamard_c;                      /* rotate.c */
quire_encode_fn quire_encode_float_c, quire_encode_affine_c; /* float.c, affine.c */
quire_encode_fn quire_encode_q8_0_c, quire_encode_q5_1_c, quire_encode_q5_0_c, quire_encode_q4_1_c,
    quire_encode_q4_0_c;                          /* ggml.c */
quire_encode_fn quire_encode_r8_c;                /* row_scaled.c */
quire_row_assign_fn quire_assign_c;               /* row_scaled.c */
quire_row_refit_fn quire_refit_c;                 /* row_scaled.c */
quire_row_count_middles_fn quire_count_middles_c; /* tv.c */
quire_row_dot_fn quire_dot_c;                     /* row_scaled.c */
quire_row_weigh_fn quire_weigh_c;                 /* calibrate.c */
quire_row_distance_fn quire_distance_c;           /* calibrate.c */
quire_row_unweigh_fn quire_unweigh_c;             /* calibrate.c */
quire_row_add_mean_fn quire_add_mean_c;           /* calibrate.c */

#if defined(QUIRE_X86)
quire_row_takes_rows_fn quire_takes_rows_avx512;
quire_row_encode_rows_fn quire_encode_rows_avx512;
extern const quire_row_kernels quire_row_kernels_avx2, quire_row_kernels_avx512;
#elif defined(QUIRE_ARM)
extern const quire_row_kernels quire_row_kernels_neon;
#endif

/* Those in use. Variants take whole vectors of 16 values; other head sizes are rare and take C. */
const quire_row_kernels *quire_row_kernels_for(uint32_t d);

#endif
