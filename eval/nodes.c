/* SPDX-License-Identifier: MIT */
/*
 * Times the nodes of llama.cpp's graphs, op by op, at a depth that no prompt had to be computed for.
 *
 *   nodes BACKENDS MODEL DEPTH TYPE_K TYPE_V THREADS TOKENS
 *
 * BACKENDS is the folder of the host's backends; GGML_BACKEND_PATH adds the device.
 *
 * Cells are taken by decoding tokens of which no node is computed; then the caches are filled with random rows through
 * the host's own interface. After that tokens are decoded one by one: first whole, then
 * with every node on its own. Prints one line of JSON: the least time of a token in ms, the time of each op in ms per
 * token (the least of all tokens), declared and resident bytes of the cache. scripts/bench-models compiles and runs it.
 */
#include <ggml-backend.h>
#include <ggml.h>
#include <llama.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_CACHES = 512, ROWS = 256, WARM = 1 };

static enum { WHOLE, LOOK, SKIP, TIME } mode;
static struct ggml_tensor *cache[MOST_CACHES];
static int n_caches;
static double op_ms[GGML_OP_COUNT], started;
static int op_n[GGML_OP_COUNT];

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void notice(struct ggml_tensor *t)
{
    if (!t || strncmp(t->name, "cache_", 6)) return;
    for (int i = 0; i < n_caches; i++)
        if (cache[i] == t) return;
    if (n_caches < MOST_CACHES) cache[n_caches++] = t;
}

/* The host asks whether it should stop behind a node, and then whether it should go on. */
static bool on_node(struct ggml_tensor *t, bool asks, void *arg)
{
    (void)arg;
    if (mode == SKIP) {
        t->flags &= ~GGML_TENSOR_FLAG_COMPUTE;
        return !asks;
    }
    if (asks) t->flags |= GGML_TENSOR_FLAG_COMPUTE; /* a graph may be used again */
    if (mode == WHOLE) return !asks;
    if (mode == LOOK) {
        for (int i = 0; i < GGML_MAX_SRC; i++)
            if (t->src[i]) notice(t->src[i]->view_src ? t->src[i]->view_src : t->src[i]);
        return !asks;
    }
    if (asks) {
        started = now();
    } else {
        op_ms[t->op] += now() - started;
        op_n[t->op]++;
    }
    return true;
}

static void fail(const char *what)
{
    fprintf(stderr, "nodes: %s\n", what);
    exit(1);
}

static enum ggml_type type_of(const char *name)
{
    for (int i = 0; i < GGML_TYPE_COUNT; i++)
        if (ggml_type_name(i) && !strcmp(ggml_type_name(i), name)) return i;
    fail("no such type");
    return GGML_TYPE_F16;
}

static float gauss(void)
{
    double a = (rand() + 1.0) / (RAND_MAX + 2.0), b = rand() / (RAND_MAX + 1.0);
    return (float)(sqrt(-2 * log(a)) * cos(6.283185307 * b));
}

static void fill(struct ggml_tensor *t, int64_t depth)
{
    int64_t n = t->ne[0], rows = t->ne[1] < depth ? t->ne[1] : depth;
    size_t row_bytes = ggml_row_size(t->type, n);
    float *values = malloc((size_t)(n * ROWS) * sizeof *values);
    char *bytes = malloc(row_bytes * ROWS);
    if (!values || !bytes) fail("out of memory");
    for (int64_t i = 0; i < n * ROWS; i++) values[i] = gauss();
    if (t->type == GGML_TYPE_F32)
        memcpy(bytes, values, row_bytes * ROWS);
    else
        ggml_quantize_chunk(t->type, values, bytes, 0, ROWS, n, NULL);
    for (int64_t r = 0; r < rows; r += ROWS)
        ggml_backend_tensor_set(t, bytes, (size_t)r * row_bytes,
                                (size_t)(rows - r < ROWS ? rows - r : ROWS) * row_bytes);
    free(values);
    free(bytes);
}

/* Of the device's pages: only they are left out of core dumps. */
static double resident(void)
{
    char line[512];
    double kib = 0, total = 0, value;
    FILE *f = fopen("/proc/self/smaps", "r");
    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, "Rss: %lf", &value) == 1) kib = value;
        if (!strncmp(line, "VmFlags:", 8) && strstr(line, " dd")) total += kib * 1024;
    }
    if (f) fclose(f);
    return total;
}

static double decode(struct llama_context *ctx, llama_pos pos, int n)
{
    struct llama_batch batch = llama_batch_init(n, 0, 1);
    double begin = now();
    batch.n_tokens = n;
    for (int i = 0; i < n; i++) {
        batch.token[i] = 300 + (pos + i) % 50;
        batch.pos[i] = pos + i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = i + 1 == n;
    }
    if (llama_decode(ctx, batch)) fail("decode failed");
    llama_synchronize(ctx);
    double spent = now() - begin;
    llama_batch_free(batch);
    return spent;
}

static void quiet(enum ggml_log_level level, const char *text, void *arg)
{
    (void)arg;
    if (level == GGML_LOG_LEVEL_WARN || level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

int main(int argc, char **argv)
{
    if (argc != 8) fail("BACKENDS MODEL DEPTH TYPE_K TYPE_V THREADS TOKENS");
    int depth = atoi(argv[3]), threads = atoi(argv[6]), tokens = atoi(argv[7]), batch = 512;
    llama_log_set(quiet, NULL);
    ggml_backend_load_all_from_path(argv[1]);
    struct llama_model *model = llama_model_load_from_file(argv[2], llama_model_default_params());
    if (!model) fail("no model");
    struct llama_context_params p = llama_context_default_params();
    p.n_ctx = (uint32_t)(depth + 2 * (tokens + WARM) + 2 + 255) / 256 * 256;
    p.n_batch = p.n_ubatch = (uint32_t)batch;
    p.n_threads = p.n_threads_batch = threads;
    p.type_k = type_of(argv[4]);
    p.type_v = type_of(argv[5]);
    p.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    p.swa_full = false;
    p.cb_eval = on_node;
    struct llama_context *ctx = llama_init_from_model(model, p);
    if (!ctx) fail("no context");

    mode = LOOK;
    decode(ctx, 0, 1);
    mode = SKIP;
    for (int at = 1; at < depth; at += batch) decode(ctx, at, depth - at < batch ? depth - at : batch);
    double declared = 0;
    for (int i = 0; i < n_caches; i++) {
        fill(cache[i], depth);
        declared += (double)ggml_nbytes(cache[i]);
    }

    double least = 1e30, ms[GGML_OP_COUNT];
    int at = depth;
    mode = WHOLE;
    for (int i = 0; i < tokens + WARM; i++) {
        double spent = decode(ctx, at++, 1);
        if (i >= WARM && spent < least) least = spent;
    }
    mode = TIME;
    for (int o = 0; o < GGML_OP_COUNT; o++) ms[o] = 1e30;
    for (int i = 0; i < tokens + WARM; i++) {
        memset(op_ms, 0, sizeof op_ms);
        memset(op_n, 0, sizeof op_n);
        decode(ctx, at++, 1);
        for (int o = 0; i >= WARM && o < GGML_OP_COUNT; o++)
            if (op_ms[o] < ms[o]) ms[o] = op_ms[o];
    }
    printf(
        "{\"depth\": %d, \"k\": \"%s\", \"v\": \"%s\", \"threads\": %d, \"token_ms\": %.3f, \"caches\": %d, "
        "\"declared_bytes\": %.0f, \"resident_bytes\": %.0f, \"nodes\": {",
        depth, argv[4], argv[5], threads, least, n_caches, declared, resident());
    const char *comma = "";
    for (int o = 0; o < GGML_OP_COUNT; o++)
        if (op_n[o] && ms[o] >= 0.001) {
            printf("%s\"%s\": [%d, %.3f]", comma, ggml_op_name(o), op_n[o], ms[o]);
            comma = ", ";
        }
    printf("}}\n");
    llama_free(ctx);
    llama_model_free(model);
    return 0;
}
