/* SPDX-License-Identifier: MIT */
/*
 * A KV cache on the device, made, written and read as llama.cpp does it, and attention over it: on the device, on
 * the CPU backend, and in double precision.
 */
#ifndef QUIRE_TESTS_DEVICE_CACHE_H
#define QUIRE_TESTS_DEVICE_CACHE_H

#include "kit.h"

enum { MAX_LAYERS = 4, MAX_STREAMS = 4 };

typedef struct shape {
    kit_type k, v;
    int d_k, d_v, heads, gqa; /* heads: of K and V; gqa: query heads for each of them */
    int cells, streams, layers;
    bool v_in_k; /* no V tensor: V is the first d_v values of each head of K */
} shape;

/* K and V of one type, a query head for each of theirs, one layer. */
shape shape_of(kit_type t, int d_k, int d_v, int heads, int cells, int streams);

typedef enum side { K, V } side;

typedef struct cache {
    shape s;
    gg_context *ctx;
    gg_buffer *buffer;
    gg_tensor *side[2][MAX_LAYERS];                /* [row, cells, streams] */
    gg_tensor *stream[2][MAX_LAYERS][MAX_STREAMS]; /* views of them */
    int row[2];                                    /* values */
    size_t bytes[2];                               /* of a row */
} cache;

/* "k q8_0 v f16 d 128/128 ..." for labels. */
const char *shape_text(const shape *s);

/* Allocates and clears. first_layer: number in the names of the tensors. False (a failure): no memory. */
bool cache_alloc(cache *c, const shape *s, gg_buft *buft, int first_layer);
/* Shows the device the graph of a step, as reserving does. False (a failure): it refuses a node. */
bool cache_reserve(cache *c);
/* Both, on the device. */
bool cache_open(cache *c, const shape *s);
void cache_close(cache *c);

kit_type cache_type(const cache *c, side x);
int cache_rows(const cache *c); /* cells of all streams */

/* Rows for SET_ROWS: n rows of both sides. Cell numbers count through the streams. */
typedef struct batch {
    int n;
    const int64_t *cell;
    const float *k, *v; /* v NULL with v_in_k */
} batch;

typedef struct attention {
    int n_q, n_kv, first_stream, streams; /* n_q: queries of each stream */
    float scale, max_bias, softcap;
    const float *q;       /* [stream][query][head][d_k] */
    const uint16_t *mask; /* f16 [stream][mask head][query][n_kv], or NULL */
    int mask_heads;       /* 0 means 1 */
    const float *sinks;   /* [head] or NULL */
    int most;             /* cells that a query sees, at most; 0: the device is told nothing */
} attention;

size_t attention_out(const shape *s, const attention *a); /* floats: [stream][query][head][d_v] */

/* One graph, as a step of llama.cpp has it: store the batch (or NULL), then attend (or NULL). The status of computing. */
int cache_step(cache *c, int layer, const batch *b, const attention *a, float *out);
int cache_write(cache *c, int layer, const batch *b);

/* Nodes of it, for tests that want to see the device's answers. */
gg_tensor *cache_view(cache *c, gg_context *ctx, int layer, side x, int n_kv, int first_stream, int streams);

/* Bytes of rows, through get and set. */
void cache_get(cache *c, int layer, side x, int row, int n, void *bytes);
void cache_set(cache *c, int layer, side x, int row, int n, const void *bytes);

/* Values of all rows as the cache holds them. By get and the CPU's decoding; with a policy by CPY to f32 on the device. */
bool cache_values(cache *c, int layer, side x, float *values);
bool cache_values_copied(cache *c, int layer, side x, float *values);

/* k, v: [stream][cell][head][d] of rows_k, rows_v values each; out in double precision. */
typedef struct values {
    const float *k, *v;
    int row_k, row_v, cells;
} values;
void attend_exactly(const shape *s, const attention *a, const values *x, double *out);

/* The same by the CPU backend, K and V as tensors of the types of the shape that hold these bytes, [row, cells, streams]. */
int attend_on_cpu(const shape *s, const attention *a, const void *k, const void *v, float *out);

/* Both values of the cache, then attention in double precision over them. */
bool cache_attend_exactly(cache *c, int layer, const attention *a, double *out);

#endif
