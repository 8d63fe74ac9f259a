// SPDX-License-Identifier: MIT
// FLASH_ATTN_EXT of a ggml library, that of llama.cpp or of ik_llama.cpp. A configuration is a type of ggml, or two: q8_0/q4_0.
#include "worker.h"

#include "ggml-backend.h"
#include "ggml.h"
#ifdef GGML_CPU_HEADER // llama.cpp; ik_llama.cpp has the functions of an older ggml
#include "ggml-alloc.h"
#include "ggml-cpu.h"
#define quantize(type, from, to, rows, d) ggml_quantize_chunk(type, from, to, 0, rows, d, NULL)
#define mask_rows(queries) (queries)
#else
#include "ggml-alloc.h"
#define quantize(type, from, to, rows, d) ggml_quantize_chunk(type, from, to, 0, rows, d, NULL, NULL)
#define mask_rows(queries) (((queries) + 31) / 32 * 32)
#endif

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct graph {
    ggml_backend_t backend;
    struct ggml_cgraph *graph;
} graph;

static enum ggml_type type_of(const char *name, size_t length)
{
    for (int i = 0; i < GGML_TYPE_COUNT; i++) {
        const char *known = ggml_type_name((enum ggml_type)i);
        if (known && strlen(known) == length && !strncmp(known, name, length)) return (enum ggml_type)i;
    }
    worker_fail(name, "is no type of this ggml");
    return GGML_TYPE_F32;
}

// Row by row: q8_KV keeps the scale of a row beside it.
static void fill(struct ggml_tensor *tensor, const float *rows, uint32_t n_tokens)
{
    tensor->data = worker_huge(ggml_nbytes(tensor));
    for (uint32_t i = 0; i < n_tokens; i++) {
        const float *from = rows + (size_t)i * WORKER_KV_HEADS * WORKER_D;
        char *to = (char *)tensor->data + (size_t)i * tensor->nb[2];
        if (tensor->type == GGML_TYPE_F16)
            ggml_fp32_to_fp16_row(from, (ggml_fp16_t *)to, WORKER_KV_HEADS * WORKER_D);
        else
            quantize(tensor->type, from, to, WORKER_KV_HEADS, WORKER_D);
    }
}

static void fill_mask(struct ggml_tensor *mask, const worker_rows *rows)
{
    ggml_fp16_t *values = mask->data, hidden = ggml_fp32_to_fp16(-INFINITY), seen = ggml_fp32_to_fp16(0);
    for (uint32_t i = 0; i < (uint32_t)mask->ne[1]; i++)
        for (uint32_t j = 0; j < rows->context; j++)
            values[(size_t)i * rows->context + j] =
                i < rows->queries && j <= rows->context - rows->queries + i ? seen : hidden;
}

static void run(void *object)
{
    graph *g = object;
    if (ggml_backend_graph_compute(g->backend, g->graph) != GGML_STATUS_SUCCESS)
        worker_fail("ggml", "the graph failed");
}

static worker_config make(const char *name, const worker_rows *rows, uint32_t n_threads)
{
    const char *slash = strchr(name, '/');
    enum ggml_type k_type = type_of(name, slash ? (size_t)(slash - name) : strlen(name));
    enum ggml_type v_type = slash ? type_of(slash + 1, strlen(slash + 1)) : k_type;
    struct ggml_init_params memory = {ggml_tensor_overhead() * 64 + ggml_graph_overhead(), NULL, true};
    struct ggml_context *c = ggml_init(memory);
    int64_t context = rows->context, queries = rows->queries;
    struct ggml_tensor *q = ggml_new_tensor_4d(c, GGML_TYPE_F32, WORKER_D, WORKER_Q_HEADS, queries, 1);
    struct ggml_tensor *k = ggml_new_tensor_4d(c, k_type, WORKER_D, WORKER_KV_HEADS, context, 1);
    struct ggml_tensor *v = ggml_new_tensor_4d(c, v_type, WORKER_D, WORKER_KV_HEADS, context, 1);
    struct ggml_tensor *mask = ggml_new_tensor_4d(c, GGML_TYPE_F16, context, mask_rows(queries), 1, 1);
    // K and V are laid out as in llama.cpp: [token][head][channel].
    struct ggml_tensor *seen[3] = {ggml_permute(c, q, 0, 2, 1, 3), ggml_permute(c, k, 0, 2, 1, 3),
                                   ggml_permute(c, v, 0, 2, 1, 3)};
    struct ggml_tensor *out =
        ggml_flash_attn_ext(c, seen[0], seen[1], seen[2], mask, 1.0f / sqrtf(WORKER_D), 0, 0);
    graph *g = calloc(1, sizeof *g);
    g->graph = ggml_new_graph(c);
    ggml_build_forward_expand(g->graph, out);
    g->backend = ggml_backend_cpu_init();
    ggml_backend_cpu_set_n_threads(g->backend, (int)n_threads);
    ggml_backend_alloc_ctx_tensors(c, g->backend);
    memcpy(q->data, rows->q, ggml_nbytes(q));
    fill(k, rows->k, rows->context);
    fill(v, rows->v, rows->context);
    seen[1]->data = k->data;
    seen[2]->data = v->data;
    fill_mask(mask, rows);
    return (worker_config){name, ggml_nbytes(k) + ggml_nbytes(v), "", out->data, g, run, NULL};
}

int main(int argc, char **argv)
{
    return worker_main(argc, argv, make);
}
