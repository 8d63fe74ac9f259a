/* SPDX-License-Identifier: MIT */
/* bench: ggml's own FLASH_ATTN_EXT on the CPU, over the same shapes. K and V lie as llama.cpp keeps them: rows of a token
 * side by side, one tensor per layer and side; a batch is one node per sequence. */
#include "bench/ggml.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define POOL_BLOCKS 16u /* different pieces of 64 tokens per side */
#define HALF_MINUS_INFINITY 0xfc00u
#define ALIGNMENT 64u

typedef struct ggml_case {
    bench_ggml *g;
    int k_type, v_type;
    size_t k_row, v_row;    /* bytes of a row of one head; v_row 0: V is in K */
    uint8_t *memory;        /* caches of all layers, then queries, masks and outputs */
    const uint8_t **layers; /* where each cache begins */
    size_t memory_bytes, used;
    ggml_buffer *buffer;
    ggml_context *ctx;
    ggml_cgraph **graphs;  /* one per layer */
    ggml_tensor **k, **v;  /* of layer 0, by sequence */
    ggml_tensor **outputs; /* of layer 0, by sequence */
    quire_tile_format *k_format, *v_format;
    uint8_t *tile; /* to decode rows with */
} ggml_case;

static size_t padded(size_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* ------------------------------------------------------------------- sizes */

static size_t cache_bytes(const bench_shape *s, size_t k_row, size_t v_row)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < s->n_seqs; i++)
        bytes +=
            padded(k_row * s->n_kv_heads * s->lengths[i]) + padded(v_row * s->n_kv_heads * s->lengths[i]);
    return bytes;
}

/* Queries, masks and the outputs of every layer. */
static size_t other_bytes(const bench_shape *s, uint32_t n_layers)
{
    size_t rows = (size_t)s->n_queries * s->n_q_heads, bytes = 0;
    for (uint32_t i = 0; i < s->n_seqs; i++)
        bytes += padded(rows * s->d * sizeof(float)) + padded((size_t)s->lengths[i] * s->n_queries * 2) +
                 n_layers * padded(rows * s->d_v * sizeof(float));
    return bytes;
}

size_t bench_ggml_bytes(const bench_shape *s)
{
    size_t k_row = quire_codec_row_bytes(s->codecs.k, s->d);
    size_t v_row = s->v_in_k ? 0 : quire_codec_row_bytes(s->codecs.v, s->d_v);
    size_t layer = cache_bytes(s, k_row, v_row);
    uint32_t n_layers = bench_n_layers(s, layer);
    return layer * n_layers + other_bytes(s, n_layers);
}

/* ---------------------------------------------------------------- contents */

/* Pieces of 64 tokens, all heads, quantized by ggml. */
static uint8_t *make_blocks(const bench_case *c, quire_side side, size_t row)
{
    const ggml_case *x = (const ggml_case *)c->self;
    const bench_shape *s = &c->shape;
    uint32_t d = side == QUIRE_K ? s->d : s->d_v;
    size_t per_block = (size_t)QUIRE_PAGE_TOKENS * s->n_kv_heads;
    float *head = (float *)malloc(sizeof(float) * QUIRE_PAGE_TOKENS * d);
    float *rows = (float *)malloc(sizeof(float) * per_block * d);
    uint8_t *blocks = (uint8_t *)malloc(POOL_BLOCKS * per_block * row);
    for (uint32_t i = 0; head && rows && blocks && i < POOL_BLOCKS; i++) {
        for (uint32_t h = 0; h < s->n_kv_heads; h++) {
            bench_fill_rows(s, side, h, i + 1, head, QUIRE_PAGE_TOKENS);
            for (uint32_t t = 0; t < QUIRE_PAGE_TOKENS; t++)
                memcpy(rows + ((size_t)t * s->n_kv_heads + h) * d, head + (size_t)t * d, sizeof(float) * d);
        }
        x->g->ggml_quantize_chunk(side == QUIRE_K ? x->k_type : x->v_type, rows, blocks + i * per_block * row,
                                  0, (int64_t)per_block, d, NULL);
    }
    if (!head || !rows) {
        free(blocks);
        blocks = NULL;
    }
    free(head);
    free(rows);
    return blocks;
}

static void fill_rows(const bench_shape *s, const uint8_t *blocks, size_t row, uint64_t *state, uint32_t n,
                      uint8_t *to)
{
    size_t token = row * s->n_kv_heads;
    for (uint32_t t = 0; t < n; t += QUIRE_PAGE_TOKENS, to += token * QUIRE_PAGE_TOKENS) {
        uint32_t rest = n - t < QUIRE_PAGE_TOKENS ? n - t : QUIRE_PAGE_TOKENS;
        memcpy(to, blocks + bench_random(state) % POOL_BLOCKS * QUIRE_PAGE_TOKENS * token, token * rest);
    }
}

/* ------------------------------------------------------------------- graphs */

static ggml_tensor *place(ggml_case *x, ggml_tensor *a)
{
    if (!a || x->g->ggml_backend_tensor_alloc(x->buffer, a, x->memory + x->used) != GGML_SUCCESS) return NULL;
    x->used += padded(x->g->ggml_nbytes(a));
    return a;
}

static ggml_tensor *new_tensor(ggml_case *x, int type, uint32_t n0, uint32_t n1, uint32_t n2)
{
    return place(x, x->g->ggml_new_tensor_3d(x->ctx, type, n0, n1, n2));
}

/* [token][head][d] seen as [head][token][d] */
static ggml_tensor *by_head(ggml_case *x, ggml_tensor *a)
{
    return x->g->ggml_permute(x->ctx, a, 0, 2, 1, 3);
}

static ggml_tensor *make_mask(ggml_case *x, uint32_t length, uint32_t n_queries)
{
    ggml_tensor *mask = new_tensor(x, GGML_F16, length, n_queries, 1);
    if (!mask) return NULL;
    uint16_t *m = (uint16_t *)x->g->ggml_get_data(mask);
    for (uint32_t i = 0; i < n_queries; i++)
        for (uint32_t j = 0; j < length; j++)
            m[(size_t)i * length + j] = j <= length - n_queries + i ? 0 : HALF_MINUS_INFINITY;
    return mask;
}

/* The caches come first, so that each layer is one piece of memory. */
static bool make_caches(bench_case *c, ggml_tensor **k, ggml_tensor **v)
{
    ggml_case *x = (ggml_case *)c->self;
    const bench_shape *s = &c->shape;
    uint8_t *k_blocks = make_blocks(c, QUIRE_K, x->k_row);
    uint8_t *v_blocks = x->v_row ? make_blocks(c, QUIRE_V, x->v_row) : NULL;
    bool ok = k_blocks && (v_blocks || !x->v_row);
    uint64_t state = s->seed + 5;
    for (uint32_t i = 0; ok && i < c->n_layers * s->n_seqs; i++) {
        uint32_t n = s->lengths[i % s->n_seqs];
        k[i] = new_tensor(x, x->k_type, s->d, s->n_kv_heads, n);
        v[i] = x->v_row ? new_tensor(x, x->v_type, s->d_v, s->n_kv_heads, n)
                        : x->g->ggml_view_3d(x->ctx, k[i], s->d_v, s->n_kv_heads, n, x->k_row,
                                             x->k_row * s->n_kv_heads, 0);
        ok = k[i] && v[i];
        if (ok) fill_rows(s, k_blocks, x->k_row, &state, n, (uint8_t *)x->g->ggml_get_data(k[i]));
        if (ok && x->v_row) fill_rows(s, v_blocks, x->v_row, &state, n, (uint8_t *)x->g->ggml_get_data(v[i]));
    }
    free(k_blocks);
    free(v_blocks);
    return ok;
}

static bool make_graphs(bench_case *c)
{
    ggml_case *x = (ggml_case *)c->self;
    const bench_shape *s = &c->shape;
    if (!make_caches(c, x->k, x->v)) return false;
    size_t row = (size_t)s->n_queries * s->n_q_heads * s->d;
    for (uint32_t layer = 0; layer < c->n_layers; layer++)
        x->graphs[layer] = x->g->ggml_new_graph_custom(x->ctx, (size_t)s->n_seqs * 8 + 16, false);
    for (uint32_t i = 0; i < s->n_seqs; i++) {
        ggml_tensor *q = new_tensor(x, GGML_F32, s->d, s->n_q_heads, s->n_queries);
        ggml_tensor *mask = make_mask(x, s->lengths[i], s->n_queries);
        if (!q || !mask) return false;
        memcpy(x->g->ggml_get_data(q), c->q + row * i, row * sizeof(float));
        for (uint32_t layer = 0; layer < c->n_layers; layer++) {
            size_t at = (size_t)layer * s->n_seqs + i;
            ggml_tensor *out = place(x, x->g->ggml_flash_attn_ext(x->ctx, by_head(x, q), by_head(x, x->k[at]),
                                                                  by_head(x, x->v[at]), mask,
                                                                  1.0f / sqrtf((float)s->d), 0, 0));
            if (!out) return false;
            x->g->ggml_prec_set_acc(out, GGML_ACC_F32); /* as llama.cpp does */
            x->g->ggml_build_forward_expand(x->graphs[layer], out);
            if (!layer) x->outputs[i] = out;
        }
    }
    return true;
}

/* ------------------------------------------------------------------ as case */

/* ggml's time is measured at its best: other teams sleep, its own is awake and polls. */
static void before(bench_case *c)
{
    const ggml_case *x = (const ggml_case *)c->self;
    bench_wait_quiet();
    double start = bench_now();
    while (bench_now() - start < BENCH_WAKE_SECONDS)
        x->g->ggml_backend_graph_compute(x->g->backend, x->g->wake_graph);
}

static bool run(bench_case *c, uint32_t layer, bench_times *times)
{
    const ggml_case *x = (const ggml_case *)c->self;
    (void)times;
    return x->g->ggml_backend_graph_compute(x->g->backend, x->graphs[layer]) == GGML_SUCCESS;
}

/* Its own pool sleeps when it is told to; a team of OpenMP spins for some milliseconds and has to be waited for. */
static void after(bench_case *c)
{
    const ggml_case *x = (const ggml_case *)c->self;
    x->g->ggml_threadpool_pause(x->g->pool);
    bench_wait_quiet();
}

/* Quire's codecs of the same names hold ggml's blocks as they are, so its tiles decode them. */
static bool decode_rows(ggml_case *x, const quire_tile_format *format, size_t token, const uint8_t *rows,
                        uint32_t n, float *to)
{
    memset(x->tile, 0, quire_tile_bytes(format));
    return !quire_tile_encode(
               format, 0, x->tile, 0, n,
               &(quire_rows){
                   .size = sizeof(quire_rows), .form = QUIRE_NATIVE, .data = rows, .token_stride = token},
               NULL) &&
           !quire_tile_decode(
               format, 0, x->tile, 0, QUIRE_PAGE_TOKENS,
               &(quire_rows_out){.size = sizeof(quire_rows_out), .form = QUIRE_F32, .data = to});
}

static bool fetch(bench_case *c, uint32_t seq, uint32_t head, uint32_t tile, float *k, float *v)
{
    ggml_case *x = (ggml_case *)c->self;
    const bench_shape *s = &c->shape;
    uint32_t first = tile * QUIRE_PAGE_TOKENS, rest = s->lengths[seq] - first;
    uint32_t n = rest < QUIRE_PAGE_TOKENS ? rest : QUIRE_PAGE_TOKENS;
    size_t k_token = x->k_row * s->n_kv_heads, v_token = x->v_row * s->n_kv_heads;
    const uint8_t *at = (const uint8_t *)x->g->ggml_get_data(x->k[seq]) + first * k_token + head * x->k_row;
    if (!decode_rows(x, x->k_format, k_token, at, n, k)) return false;
    if (x->v_row) {
        at = (const uint8_t *)x->g->ggml_get_data(x->v[seq]) + first * v_token + head * x->v_row;
        return decode_rows(x, x->v_format, v_token, at, n, v);
    }
    for (uint32_t t = 0; t < QUIRE_PAGE_TOKENS; t++)
        memcpy(v + (size_t)t * s->d_v, k + (size_t)t * s->d, sizeof(float) * s->d_v);
    return true;
}

static const float *output(bench_case *c, uint32_t seq)
{
    const ggml_case *x = (const ggml_case *)c->self;
    return (const float *)x->g->ggml_get_data(x->outputs[seq]);
}

static void destroy(bench_case *c)
{
    ggml_case *x = (ggml_case *)c->self;
    if (x->ctx) x->g->ggml_free(x->ctx);
    if (x->buffer) x->g->ggml_backend_buffer_free(x->buffer);
    bench_unmap(x->memory, x->memory_bytes);
    quire_tile_format_destroy(x->k_format);
    quire_tile_format_destroy(x->v_format);
    free(x->layers);
    free(x->graphs);
    free(x->k);
    free(x->v);
    free(x->outputs);
    free(x->tile);
    free(x);
}

static const bench_impl impl = {.name = "ggml",
                                .run = run,
                                .before = before,
                                .after = after,
                                .check = bench_check_attention,
                                .fetch = fetch,
                                .output = output,
                                .destroy = destroy};

static bool get_memory(bench_case *c)
{
    ggml_case *x = (ggml_case *)c->self;
    const bench_shape *s = &c->shape;
    size_t n = (size_t)c->n_layers * s->n_seqs;
    x->memory_bytes = c->layer_bytes * c->n_layers + other_bytes(s, c->n_layers);
    x->memory = (uint8_t *)bench_map(x->memory_bytes);
    x->layers = (const uint8_t **)malloc(sizeof *x->layers * c->n_layers);
    if (!x->memory || !x->layers) return false;
    for (uint32_t i = 0; i < c->n_layers; i++) x->layers[i] = x->memory + i * c->layer_bytes;
    c->pieces = x->layers;
    c->n_pieces = 1;
    c->piece_bytes = c->layer_bytes;
    x->graphs = (ggml_cgraph **)calloc(c->n_layers, sizeof *x->graphs);
    x->k = (ggml_tensor **)calloc(n, sizeof(ggml_tensor *));
    x->v = (ggml_tensor **)calloc(n, sizeof(ggml_tensor *));
    x->outputs = (ggml_tensor **)calloc(s->n_seqs, sizeof *x->outputs);
    size_t k_tile = quire_tile_bytes(x->k_format), v_tile = x->v_format ? quire_tile_bytes(x->v_format) : 0;
    x->tile = (uint8_t *)aligned_alloc(64, k_tile > v_tile ? k_tile : v_tile);
    c->q = bench_make_queries(s);
    if (!x->graphs || !x->k || !x->v || !x->outputs || !x->tile || !c->q) return false;
    x->buffer = x->g->ggml_backend_cpu_buffer_from_ptr(x->memory, x->memory_bytes);
    /* Per sequence and layer: K, V, three views and the output; per sequence: queries and mask. */
    size_t tensors = n * 8 + (size_t)s->n_seqs * 2 + 16;
    size_t graph = x->g->ggml_graph_overhead_custom((size_t)s->n_seqs * 8 + 16, false);
    x->ctx = x->g->ggml_init(
        (ggml_init_params){x->g->ggml_tensor_overhead() * tensors + graph * c->n_layers, NULL, true});
    return x->buffer && x->ctx;
}

bench_case *bench_ggml_create(bench_ggml *g, const bench_shape *s, bench_team *team, char *message,
                              size_t size)
{
    bench_case *c = bench_case_begin(&impl, sizeof(ggml_case), s, team, message, size);
    if (!c) return NULL;
    ggml_case *x = (ggml_case *)c->self;
    c->isa = g->isa;
    *x = (ggml_case){.g = g, .k_type = bench_ggml_type(s->codecs.k), .v_type = bench_ggml_type(s->codecs.v)};
    x->k_row = quire_codec_row_bytes(s->codecs.k, s->d);
    x->v_row = s->v_in_k ? 0 : quire_codec_row_bytes(s->codecs.v, s->d_v);
    if (!bench_formats(s, &x->k_format, &x->v_format, message, size)) goto fail;
    c->layer_bytes = cache_bytes(s, x->k_row, x->v_row);
    c->n_layers = bench_n_layers(s, c->layer_bytes);
    snprintf(message, size, "out of memory");
    if (!get_memory(c) || !make_graphs(c)) goto fail;
    return c;
fail:
    bench_case_destroy(c);
    return NULL;
}
