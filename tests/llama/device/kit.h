/* SPDX-License-Identifier: MIT */
/*
 * What the tests of the device share: checks that are counted, random numbers, the types of a KV cache, and small graphs
 * that are built, allocated and run as llama.cpp does.
 */
#ifndef QUIRE_TESTS_DEVICE_KIT_H
#define QUIRE_TESTS_DEVICE_KIT_H

#include "api.h"

#include <stdlib.h>

/* ------------------------------------------------------------------ checks */

/* Counts of one sub-test. In memory that the parent process sees. */
typedef struct kit_counts {
    long checks, failures;
} kit_counts;

typedef struct kit_state {
    const char *policy; /* QUIRE_KV, or NULL: declared types keep their bytes */
    bool verbose;
    bool schedule; /* graphs of the device go through ggml's scheduler, which asks, splits and allocates */
    kit_counts *counts;
    gg_device *dev, *cpu_dev;
    gg_backend *backend, *cpu;
    gg_buft *buft, *cpu_buft;
} kit_state;

extern _Thread_local kit_state kit; /* a thread that a test makes fills in its own */

/* Opens host and plug-in and makes the backends. False: nothing can be tested. */
bool kit_open(const char *dir, const char *backends, const char *plugin, bool local);
void kit_close(void);

/* What is being tried: printed with failures. */
void kit_label(const char *format, ...) __attribute__((format(printf, 1, 2)));
bool kit_check(bool ok, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* More about the failure just printed. */
void kit_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Printed with -v only. */
void kit_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Equal bytes; says where they begin to differ. */
bool kit_same(const void *got, const void *expected, size_t n, const char *what);

/* Memory or the end of the program. */
void *kit_alloc(size_t n, size_t size);
#define KIT_NEW(type, n) ((type *)kit_alloc((size_t)(n), sizeof(type)))

/* Threads of the device, through the function that llama.cpp asks for. */
void kit_threads(int n);

/* ----------------------------------------------------------------- numbers */

void kit_seed(uint64_t seed);
uint64_t kit_random(void);
int kit_below(int n); /* 0 .. n-1 */
float kit_normal(void);
void kit_shuffle(int64_t *x, int n);

/* Sum of squared differences over sum of squared expectations. */
double kit_nmse(const float *got, const double *expected, size_t n);
double kit_nmse_f(const float *got, const float *expected, size_t n);

/* ------------------------------------------------------------------- types */

typedef enum kit_type {
    F32,
    F16,
    BF16,
    Q8_0,
    Q5_1,
    Q5_0,
    Q4_1,
    Q4_0,
    IQ4_NL,
    N_CACHE_TYPES,
    I32 = N_CACHE_TYPES,
    I64,
    N_TYPES
} kit_type;

const char *kit_type_name(kit_type t);
int kit_type_id(kit_type t); /* the number that this ggml has for it */
bool kit_is_float(kit_type t);
size_t kit_row_bytes(kit_type t, int64_t n);

/* Rows of a type to f32 and back, by the CPU backend. */
void kit_decode(kit_type t, const void *bytes, float *x, int64_t row, int64_t n_rows);
void kit_encode(kit_type t, const float *x, void *bytes, int64_t row, int64_t n_rows);

/* ------------------------------------------------------------------ graphs */

/* Inputs are in CPU memory or in a buffer of the device, by turns: both occur in a host. */
typedef struct kit_job {
    gg_device *dev;
    gg_backend *backend;
    gg_context *in, *ops;
    gg_buffer *buf_in, *buf_ops;
    gg_graph *graph;
    gg_sched *sched;
} kit_job;

void kit_job_begin(kit_job *job, gg_device *dev, gg_backend *backend);
gg_tensor *kit_job_input(kit_job *job, kit_type t, int64_t n0, int64_t n1, int64_t n2, int64_t n3);
void kit_job_add(kit_job *job, gg_tensor *node);
/* Number of nodes that the device refuses; asks about every node. */
int kit_job_refused(kit_job *job);
/* Asks the device about every node, then allocates. A refused node is a failure and false is returned. */
bool kit_job_ready(kit_job *job);
int kit_job_run(kit_job *job);
void kit_job_end(kit_job *job);

#endif
