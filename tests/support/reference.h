/* SPDX-License-Identifier: MIT */
/* What tests of attention share: random rows, attention in double precision, and caches to try it on. */
#ifndef QUIRE_TESTS_REFERENCE_H
#define QUIRE_TESTS_REFERENCE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "quire/quire.h"

#define REF_BOUND \
    5e-4 /* of attention, per output row: what rows like those of models have (docs/kernels.md) */
#define REF_FLOOR \
    1e-2 /* norms of expected rows below this count as this; V rows here have norms of 1 and more */

/* ThreadSanitizer slows kernels down some thirty times, and what it looks for does not depend on codecs: under it
 * loops over codecs may take one in REF_STRIDE. */
#if defined(__SANITIZE_THREAD__)
#define REF_STRIDE 8u
#else
#define REF_STRIDE 1u
#endif

#define REF_OK(call)                                                              \
    do {                                                                          \
        quire_status ref_status = (call);                                         \
        if (ref_status) fail_msg("%s: %s", #call, quire_status_name(ref_status)); \
    } while (0)

/* ------------------------------------------------------------ random numbers */

/* splitmix64: any seed is as good as any other. */
uint64_t ref_random(uint64_t *state);
uint32_t ref_below(uint64_t *state, uint32_t n); /* 0 to n - 1 */
double ref_uniform(uint64_t *state);             /* [0, 1) */
float ref_normal(uint64_t *state);
void ref_normals(uint64_t *state, float *x, size_t n, float size);

/*
 * K rows [n][heads][d] as models have them: each channel has a mean that is the same in every call, some channels
 * are far larger than the others, and one row in 13 lacks the mean as first tokens do. Queries are small where K is
 * large.
 */
void ref_k_rows(uint64_t *state, float *k, uint32_t n, uint32_t heads, uint32_t d);
void ref_q_rows(uint64_t *state, float *q, uint32_t n, uint32_t heads, uint32_t d);
/* A profile of such rows for every layer. */
quire_profile *ref_profile(const quire_geometry *geometry);

/* ---------------------------------------------------------------- attention */

/* One sequence: row j of k and v stands at position j, query i at first_query + i. All arrays are dense. */
typedef struct ref_job {
    uint32_t n_q_heads, n_kv_heads, d_k, d_v;
    uint32_t n_keys, n_queries, first_query;
    uint32_t window, ring_tokens, ring_sinks;
    const float *q, *k, *v;              /* v NULL: V is the first d_v channels of K */
    const quire_attend_options *options; /* NULL: none. PARTIAL means nothing here */
    const quire_mask *mask;              /* NULL: none */
} ref_job;

/* out [n_queries][n_q_heads][d_v]. lse [n_queries][n_q_heads] or NULL: log of the sum of exp(score), the term of
 * sink_logits not included; -inf if nothing is seen. */
void ref_attend(const ref_job *job, double *out, double *lse);

/* Norm of the difference by the norm of the expected row; infinite if the row is not finite. */
double ref_row_error(const float *out, const double *expected, uint32_t d);
/* The largest of n rows; its index goes to *row, which may be NULL. */
double ref_worst_error(const float *out, const double *expected, size_t n, uint32_t d, size_t *row);

/* ------------------------------------------------------------------- caches */

/* A plan and a pool for it. */
typedef struct ref_cache {
    quire_plan *plan;
    quire_pool *pool;
} ref_cache;

/* profile and executor may be NULL. */
ref_cache ref_open(const quire_geometry *geometry, const char *policy, const quire_profile *profile,
                   const quire_executor *executor);
void ref_close(ref_cache *cache);
quire_seq *ref_seq(const ref_cache *cache, const quire_seq_options *ring /* NULL: none */);

/* One step of a cache with one layer: append, attend if q is given, commit. v NULL: V is part of K. */
void ref_step(const ref_cache *cache, quire_seq *const *seqs, const uint32_t *n_tokens, uint32_t n_seqs,
              const float *k, const float *v, const float *q, float *out);

/* Decoded rows [first, first + n) of a layer, [n][heads][d]. */
void ref_export(const quire_seq *seq, uint32_t layer, quire_side side, uint32_t first, uint32_t n, float *to);

/* malloc that cannot fail; for arrays of floats and doubles. */
void *ref_alloc(size_t n, size_t size);

/* An executor of n_threads that runs everything on the calling thread, last task first. */
quire_executor ref_backwards(uint32_t n_threads);

#endif
