/* SPDX-License-Identifier: MIT */
/*
 * Ops on the cache that the device has no code for, through ggml's scheduler with device and CPU, compared with the same
 * graphs on the CPU alone: in the first graph of all, and when the cache is in tiles already. Whatever a graph does with
 * the cache, the results are the CPU's.
 */
#include "scene.h"
#include "tests.h"

#include <stdio.h>
#include <string.h>

enum {
    D = 64,
    HEADS = 2,
    ROW = D * HEADS,
    N_CELLS = 256,
    N_WRITE = 40,
    N_Q = 3,
    MAX_INPUTS = 16,
    MAX_OUT = 4
};

/* One of the two hosts that are compared, and the graph that it is given next. */
typedef struct world {
    bool with_device;
    cache c;
    kit_job job;
    struct {
        gg_tensor *t;
        kit_type type;
        int n, below; /* integers: 0 .. below-1, all different */
    } input[MAX_INPUTS];
    int n_inputs;
    gg_tensor *out[MAX_OUT];
    int n_out;
    float *got; /* all outputs of all graphs, one after the other */
    size_t n_got;
} world;

static gg_tensor *input(world *w, kit_type t, int64_t n0, int64_t n1, int64_t n2, int below)
{
    gg_tensor *x = kit_job_input(&w->job, t, n0, n1, n2, 1);
    w->input[w->n_inputs].t = x;
    w->input[w->n_inputs].type = t;
    w->input[w->n_inputs].n = (int)(n0 * n1 * n2);
    w->input[w->n_inputs++].below = below;
    return x;
}

static void output(world *w, gg_tensor *t)
{
    t = gg.cast(w->job.ops, t, kit_type_id(F32));
    kit_job_add(&w->job, t);
    w->out[w->n_out++] = t;
}

static void fill(world *w, int i)
{
    int n = w->input[i].n;
    size_t bytes = gg.nbytes(w->input[i].t);
    float *x = KIT_NEW(float, n);
    int64_t *large = KIT_NEW(int64_t, N_CELLS * ROW);
    int32_t *small = KIT_NEW(int32_t, n);
    void *from = x;
    random_rows(x, n, 1, K);
    for (int j = 0; j < w->input[i].below; j++) large[j] = j;
    kit_shuffle(large, w->input[i].below);
    for (int j = 0; j < n; j++) small[j] = (int32_t)large[j];
    if (w->input[i].type == I64) from = large;
    if (w->input[i].type == I32) from = small;
    uint16_t *half = KIT_NEW(uint16_t, n);
    gg.fp32_to_fp16_row(x, half, n);
    if (w->input[i].type == F16) from = half;
    gg.backend_tensor_set(w->input[i].t, from, 0, bytes);
    free(x);
    free(large);
    free(small);
    free(half);
}

static void begin(world *w)
{
    w->n_inputs = w->n_out = 0;
    kit_job_begin(&w->job, w->with_device ? kit.dev : kit.cpu_dev, w->with_device ? kit.backend : kit.cpu);
}

static void compute(world *w)
{
    gg_backend *both[2] = {kit.backend, kit.cpu};
    w->job.sched = gg.backend_sched_new(w->with_device ? both : both + 1, NULL, w->with_device ? 2 : 1, 2048,
                                        false, false);
    if (kit_check(gg.backend_sched_alloc_graph(w->job.sched, w->job.graph), "no memory for a graph")) {
        for (int i = 0; i < w->n_inputs; i++) fill(w, i);
        kit_check(kit_job_run(&w->job) == GG_SUCCESS, "%s: a graph fails",
                  w->with_device ? "device and CPU" : "CPU");
        for (int i = 0; i < w->n_out; i++) {
            size_t n = gg.nbytes(w->out[i]) / sizeof(float);
            w->got = realloc(w->got, (w->n_got + n) * sizeof(float));
            gg.backend_tensor_get(w->out[i], w->got + w->n_got, 0, n * sizeof(float));
            w->n_got += n;
        }
    }
    kit_job_end(&w->job);
}

/* ---------------------------------------------------------------------- ops */

static gg_tensor *heads_of(world *w, int first, int n)
{
    kit_type t = w->c.s.k;
    return gg.view_3d(w->job.ops, w->c.side[K][0], D, HEADS, n, kit_row_bytes(t, D), w->c.bytes[K],
                      w->c.bytes[K] * (size_t)first);
}

static gg_tensor *op_cont(world *w)
{
    return gg.cont(w->job.ops, gg.permute(w->job.ops, heads_of(w, 0, N_CELLS), 0, 2, 1, 3));
}

static gg_tensor *op_cont_transposed(world *w)
{
    gg_tensor *rows = gg.view_2d(w->job.ops, w->c.side[K][0], ROW, 77, w->c.bytes[K], 0);
    return gg.cont(w->job.ops, gg.transpose(w->job.ops, rows));
}

static gg_tensor *op_dup(world *w)
{
    return gg.dup(w->job.ops, heads_of(w, 3, 100));
}

static gg_tensor *op_concat(world *w)
{
    gg_tensor *all = gg.view_2d(w->job.ops, w->c.side[K][0], ROW, N_CELLS, w->c.bytes[K], 0);
    return gg.concat(w->job.ops, all, input(w, F16, ROW, 9, 1, 0), 1);
}

static gg_tensor *op_get_rows(world *w)
{
    return gg.get_rows(w->job.ops, w->c.side[K][0], input(w, I32, 30, 1, 1, N_CELLS));
}

static gg_tensor *op_get_rows_of_heads(world *w)
{
    gg_tensor *rows =
        gg.view_2d(w->job.ops, w->c.side[K][0], D, N_CELLS * HEADS, kit_row_bytes(w->c.s.k, D), 0);
    return gg.get_rows(w->job.ops, rows, input(w, I32, 50, 1, 1, N_CELLS * HEADS));
}

static gg_tensor *op_set_values(world *w)
{
    gg_tensor *each = gg.reshape_2d(w->job.ops, w->c.side[K][0], 1, N_CELLS * ROW);
    gg_tensor *new_values = input(w, F32, 1, 500, 1, 0);
    gg_tensor *set = gg.set_rows(w->job.ops, each, new_values, input(w, I64, 500, 1, 1, N_CELLS * ROW));
    return gg.reshape_2d(w->job.ops, set, ROW, N_CELLS);
}

static gg_tensor *op_copy_into(world *w)
{
    return gg.cpy(w->job.ops, input(w, F32, D, HEADS, 20, 0), heads_of(w, 30, 20));
}

static gg_tensor *op_copy_within(world *w)
{
    return gg.cpy(w->job.ops, heads_of(w, 0, 20), heads_of(w, 100, 20));
}

static gg_tensor *op_copy_part(world *w)
{
    gg_tensor *half =
        gg.view_2d(w->job.ops, w->c.side[K][0], 32, 50, w->c.bytes[K], kit_row_bytes(w->c.s.k, 64));
    return gg.cpy(w->job.ops, half, input(w, F32, 32, 50, 1, 0));
}

static gg_tensor *op_across_rows(world *w)
{
    gg_tensor *line = gg.view_1d(w->job.ops, w->c.side[K][0], 5 * ROW + 64, kit_row_bytes(w->c.s.k, 32));
    return gg.cont(w->job.ops, line);
}

static gg_tensor *op_floats_across_rows(world *w)
{
    gg_tensor *line = gg.view_1d(w->job.ops, w->c.side[K][0], 5 * ROW + 64, kit_row_bytes(w->c.s.k, 32));
    return gg.cast(w->job.ops, line, kit_type_id(F32));
}

static gg_tensor *op_floats_transposed(world *w)
{
    gg_tensor *rows = gg.view_2d(w->job.ops, w->c.side[K][0], ROW, 77, w->c.bytes[K], 0);
    return gg.cast(w->job.ops, gg.transpose(w->job.ops, rows), kit_type_id(F32));
}

static gg_tensor *op_mul_mat(world *w)
{
    gg_tensor *k = gg.permute(w->job.ops, heads_of(w, 0, N_CELLS), 0, 2, 1, 3);
    return gg.mul_mat(w->job.ops, k, input(w, F32, D, N_Q, HEADS, 0));
}

static gg_tensor *op_add(world *w)
{
    return gg.add(w->job.ops, heads_of(w, 0, 60), input(w, F32, D, HEADS, 60, 0));
}

static gg_tensor *op_add_inplace(world *w)
{
    return gg.add_inplace(w->job.ops, heads_of(w, 10, 60), input(w, F32, D, HEADS, 60, 0));
}

/* K as one head where the other graphs have two. */
static gg_tensor *op_other_heads(world *w)
{
    gg_tensor *q = input(w, F32, ROW, N_Q, 1, 0), *of[2];
    for (int x = K; x <= V; x++)
        of[x] = gg.view_3d(w->job.ops, w->c.side[x][0], ROW, N_CELLS, 1, w->c.bytes[x],
                           w->c.bytes[x] * N_CELLS, 0);
    return gg.flash_attn_ext(w->job.ops, q, of[K], of[V], NULL, 0.1f, 0, 0);
}

/* Each head as a stream of its own, with its own mask, as a model does that selects rows for each head. */
static gg_tensor *op_heads_apart(world *w)
{
    enum { GROUP = 3 };
    gg_context *ops = w->job.ops;
    size_t q_row = D * sizeof(float), q_head = q_row * N_Q, mask_row = N_CELLS * 2,
           mask_head = mask_row * N_Q;
    gg_tensor *of[2], *q = input(w, F32, D, N_Q, GROUP * HEADS, 0),
                      *mask = input(w, F16, N_CELLS, N_Q, HEADS, 0);
    for (int x = K; x <= V; x++) {
        of[x] = gg.view_3d(ops, w->c.side[x][0], D, HEADS, N_CELLS,
                           kit_row_bytes(x == K ? w->c.s.k : w->c.s.v, D), w->c.bytes[x], 0);
        of[x] = gg.permute(ops, of[x], 0, 3, 1, 2);
    }
    q = gg.view_4d(ops, q, D, N_Q, GROUP, HEADS, q_row, q_head, q_head * GROUP, 0);
    mask = gg.view_4d(ops, mask, N_CELLS, N_Q, 1, HEADS, mask_row, mask_head, mask_head, 0);
    return gg.flash_attn_ext(ops, q, of[K], of[V], mask, 0.1f, 0, 0);
}

static const struct odd_op {
    const char *name;
    gg_tensor *(*build)(world *);
    bool floats_only;
    bool has_code; /* of its own in the device: the layer stays in tiles */
} ops[] = {
    {"CONT of permuted heads", op_cont, false, false},
    {"CONT of transposed rows", op_cont_transposed, true, false},
    {"DUP", op_dup, false, false},
    {"CONCAT", op_concat, true, false},
    {"GET_ROWS", op_get_rows, false, true},
    {"GET_ROWS of single heads", op_get_rows_of_heads, false, true},
    {"SET_ROWS of single values", op_set_values, true, false},
    {"CPY into the cache", op_copy_into, false, false},
    {"CPY within the cache", op_copy_within, false, false},
    {"CPY of parts of rows", op_copy_part, false, false},
    {"CONT across rows", op_across_rows, false, false},
    {"CPY to f32 across rows", op_floats_across_rows, false, false},
    {"CPY to f32 of transposed rows", op_floats_transposed, true, false},
    {"MUL_MAT", op_mul_mat, false, false},
    {"ADD", op_add, false, false},
    {"ADD in place", op_add_inplace, false, false},
    {"FLASH_ATTN_EXT with other heads", op_other_heads, false, false},
    {"FLASH_ATTN_EXT, each head apart", op_heads_apart, false, true},
};

/* ------------------------------------------------------------------- graphs */

static void add_write(world *w)
{
    for (int l = 0; l < w->c.s.layers; l++)
        for (int x = K; x <= V; x++) {
            gg_tensor *rows = input(w, F32, ROW, N_WRITE, 1, 0);
            gg_tensor *cells = input(w, I64, N_WRITE, 1, 1, N_CELLS);
            kit_job_add(&w->job, gg.set_rows(w->job.ops, w->c.side[x][l], rows, cells));
        }
}

static void add_attention(world *w, int n_layers)
{
    for (int l = 0; l < n_layers; l++) {
        gg_tensor *q = input(w, F32, D, N_Q, HEADS, 0), *of[2];
        for (int x = K; x <= V; x++)
            of[x] =
                gg.permute(w->job.ops, cache_view(&w->c, w->job.ops, l, (side)x, N_CELLS, 0, 1), 0, 2, 1, 3);
        gg_tensor *out = gg.flash_attn_ext(w->job.ops, q, of[K], of[V], NULL, 0.1f, 0, 0);
        kit_job_add(&w->job, out);
        w->out[w->n_out++] = out;
    }
}

/* tiles: the op comes when the cache has been written and attended; else in the very first graph. */
static void play_world(world *w, const struct odd_op *op, bool tiles)
{
    if (tiles) {
        begin(w);
        add_write(w);
        add_attention(w, w->c.s.layers);
        compute(w);
    }
    for (int i = 0; i < 2; i++) {
        begin(w);
        add_write(w);
        if (!i && !tiles) add_attention(w, w->c.s.layers);
        output(w, op->build(w));
        compute(w);
        begin(w);
        add_write(w);
        add_attention(w, w->c.s.layers);
        compute(w);
    }
}

static void read_all(world *w)
{
    begin(w);
    for (int l = 0; l < w->c.s.layers; l++)
        for (int x = K; x <= V; x++)
            output(w, gg.view_2d(w->job.ops, w->c.side[x][l], ROW, N_CELLS, w->c.bytes[x], 0));
    compute(w);
}

static void compare(const world w[2])
{
    if (!kit_check(w[0].n_got == w[1].n_got, "%zu and %zu values", w[0].n_got, w[1].n_got)) return;
    double e = kit_nmse_f(w[0].got, w[1].got, w[0].n_got), allowed = kit.policy ? 5e-3 : 5e-5;
    kit_note("error %.2e", e);
    kit_check(e < allowed, "error %.2e against the CPU alone", e);
}

static void close_worlds(world w[2])
{
    for (int i = 0; i < 2; i++) {
        free(w[i].got);
        cache_close(&w[i].c);
    }
}

/* Whether the device still wants the rows of a layer. */
static bool stores(world *w, int layer)
{
    begin(w);
    gg_tensor *rows = input(w, F32, ROW, N_WRITE, 1, 0), *cells = input(w, I64, N_WRITE, 1, 1, N_CELLS);
    bool yes = gg.backend_dev_supports_op(kit.dev, gg.set_rows(w->job.ops, w->c.side[K][layer], rows, cells));
    kit_job_end(&w->job);
    return yes;
}

static void run_odd(const struct odd_op *op, kit_type t, bool tiles)
{
    shape s = shape_of(t, D, D, HEADS, N_CELLS, 1);
    world w[2] = {{.with_device = true}, {.with_device = false}};
    s.layers = 2;
    kit_label("%s, %s, %s", op->name, kit_type_name(t), tiles ? "in tiles" : "at first");
    for (int i = 0; i < 2; i++) {
        if (!cache_alloc(&w[i].c, &s, i ? kit.cpu_buft : kit.buft, 0)) return;
        kit_seed(77);
        play_world(&w[i], op, tiles);
        read_all(&w[i]);
    }
    compare(w);
    kit_check(stores(&w[0], 1), "the other layer is no longer in tiles");
    kit_check(stores(&w[0], 0) || !op->has_code, "the layer is no longer in tiles");
    close_worlds(w);
}

void test_odd_ops(void)
{
    for (int i = 0; i < (int)(sizeof ops / sizeof *ops); i++)
        for (int tiles = 0; tiles < 2; tiles++) {
            run_odd(&ops[i], F16, tiles);
            if (!ops[i].floats_only) run_odd(&ops[i], Q8_0, tiles);
        }
}

/* Rows are written, and the device is never asked about attention: the host computes it, or there is none. */
void test_unattended(void)
{
    shape s = shape_of(F16, D, D, HEADS, N_CELLS, 1);
    world w[2] = {{.with_device = true}, {.with_device = false}};
    kit_label("no attention");
    for (int i = 0; i < 2; i++) {
        if (!cache_alloc(&w[i].c, &s, i ? kit.cpu_buft : kit.buft, 0)) return;
        kit_seed(78);
        for (int n = 0; n < 3; n++) {
            begin(&w[i]);
            add_write(&w[i]);
            compute(&w[i]);
            read_all(&w[i]);
        }
    }
    compare(w);
    kit_check(gg.backend_buffer_is_host(w[0].c.buffer), "the cache is still no host memory");
    close_worlds(w);
}

static char log_text[4096];

static void note_log(int level, const char *text, void *user)
{
    (void)level;
    (void)user;
    strncat(log_text, text, sizeof log_text - strlen(log_text) - 1);
}

/* Attention that takes K from the cache and V from elsewhere. */
static void add_half_attention(world *w, int layer)
{
    gg_tensor *q = input(w, F32, D, N_Q, HEADS, 0);
    gg_tensor *k = gg.permute(w->job.ops, cache_view(&w->c, w->job.ops, layer, K, N_CELLS, 0, 1), 0, 2, 1, 3);
    gg_tensor *v = gg.cast(w->job.ops, input(w, F32, D, N_CELLS, HEADS, 0), kit_type_id(F16));
    gg_tensor *out = gg.flash_attn_ext(w->job.ops, q, k, v, NULL, 0.1f, 0, 0);
    kit_job_add(&w->job, out);
    w->out[w->n_out++] = out;
}

/* A layer of which only K is attended to is given back whole, and is not counted as one of the device. */
void test_one_side(void)
{
    shape s = shape_of(F16, D, D, HEADS, N_CELLS, 1);
    world w[2] = {{.with_device = true}, {.with_device = false}};
    kit_label("one side of a layer");
    s.layers = 2;
    gg.log_set(note_log, NULL);
    for (int i = 0; i < 2; i++) {
        if (!cache_alloc(&w[i].c, &s, i ? kit.cpu_buft : kit.buft, 0)) return;
        kit_seed(79);
        for (int n = 0; n < 2; n++) {
            begin(&w[i]);
            add_write(&w[i]);
            add_attention(&w[i], 1);
            add_half_attention(&w[i], 1);
            compute(&w[i]);
        }
        read_all(&w[i]);
    }
    compare(w);
    kit_check(stores(&w[0], 0) && !stores(&w[0], 1), "the wrong layers are in tiles");
    kit_check(strstr(log_text, "1 of 2 layers are stored as without Quire"), "the log does not say so: %s",
              log_text);
    kit_check(!strstr(log_text, "2 layers, ") && !strstr(log_text, "layer 1"), "the layer is counted: %s",
              log_text);
    close_worlds(w);
}
