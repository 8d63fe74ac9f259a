/* SPDX-License-Identifier: MIT */
/* K-shift as llama.cpp builds it, through its scheduler: ROPE in place, or CPY to f32, ROPE, CPY back. */
#include "scene.h"
#include "tests.h"

#include <math.h>
#include <string.h>

enum { HADAMARD = 64 };

typedef struct shift_case {
    int d, heads, first, n_rot, mode, cells,
        streams;           /* n_rot values of each head, from `first` on, are rotated */
    bool factors, rotated; /* rotated: the host keeps K multiplied by a Hadamard matrix */
} shift_case;

/* The n_rot values of each head: [n_rot, heads, rows]. */
static void take(const shift_case *c, int rows, const float *all, float *part)
{
    size_t d = (size_t)c->d, n = (size_t)c->n_rot;
    for (size_t i = 0; i < (size_t)(rows * c->heads); i++)
        memcpy(part + i * n, all + i * d + c->first, n * sizeof(float));
}

static gg_tensor *hadamard(gg_context *ctx, gg_tensor *x, gg_tensor *rot, const shift_case *c, int rows)
{
    if (!rot) return x;
    x = gg.reshape_2d(ctx, x, HADAMARD, (int64_t)c->n_rot * c->heads * rows / HADAMARD);
    return gg.reshape_3d(ctx, gg.mul_mat(ctx, rot, x), c->n_rot, c->heads, rows);
}

static void set_hadamard(gg_tensor *rot)
{
    float m[HADAMARD * HADAMARD];
    for (int i = 0; i < HADAMARD * HADAMARD; i++) {
        unsigned both = (unsigned)(i / HADAMARD) & (unsigned)(i % HADAMARD), odd = 0;
        for (; both; both &= both - 1) odd ^= 1;
        m[i] = odd ? -0.125f : 0.125f;
    }
    gg.backend_tensor_set(rot, m, 0, sizeof m);
}

static gg_tensor *rope(gg_context *ctx, gg_tensor *x, gg_tensor *shift, gg_tensor *factors,
                       const shift_case *c, bool in_place)
{
    return (in_place ? gg.rope_ext_inplace : gg.rope_ext)(ctx, x, shift, factors, c->n_rot, c->mode, 4096,
                                                          10000, 1, 0, 1, 32, 1);
}

static void set_inputs(const shift_case *c, gg_tensor *shift, gg_tensor *factors, gg_tensor *rot,
                       const int32_t *by)
{
    float f[512];
    for (int i = 0; i < c->n_rot / 2; i++) f[i] = 1 + 0.02f * (float)i;
    gg.backend_tensor_set(shift, by, 0, gg.nbytes(shift));
    if (factors) gg.backend_tensor_set(factors, f, 0, gg.nbytes(factors));
    if (rot) set_hadamard(rot);
}

/* What the CPU makes of the values that the cache holds. */
static void shift_on_cpu(const shift_case *c, int rows, const int32_t *by, float *part)
{
    kit_job job;
    kit_job_begin(&job, kit.cpu_dev, kit.cpu);
    gg_tensor *x = kit_job_input(&job, F32, c->n_rot, c->heads, rows, 1),
              *shift = kit_job_input(&job, I32, rows, 1, 1, 1);
    gg_tensor *factors = c->factors ? kit_job_input(&job, F32, c->n_rot / 2, 1, 1, 1) : NULL;
    gg_tensor *rot = c->rotated ? kit_job_input(&job, F32, HADAMARD, HADAMARD, 1, 1) : NULL;
    gg_tensor *y = hadamard(job.ops, x, rot, c, rows);
    y = hadamard(job.ops, rope(job.ops, y, shift, factors, c, false), rot, c, rows);
    kit_job_add(&job, y);
    if (kit_job_ready(&job)) {
        set_inputs(c, shift, factors, rot, by);
        gg.backend_tensor_set(x, part, 0, gg.nbytes(x));
        kit_check(kit_job_run(&job) == GG_SUCCESS, "the CPU's rotation fails");
        gg.backend_tensor_get(y, part, 0, gg.nbytes(y));
    }
    kit_job_end(&job);
}

/* The graph of llama.cpp, on both backends. */
static bool shift_on_device(cache *k, const shift_case *c, const int32_t *by)
{
    struct ggml_init_params params = {.mem_size = 64 * gg.tensor_overhead() + gg.graph_overhead(),
                                      .no_alloc = true};
    gg_context *ctx = gg.init(params);
    gg_graph *graph = gg.new_graph(ctx);
    kit_type t = k->s.k;
    int rows = cache_rows(k);
    gg_tensor *shift = gg.new_tensor_3d(ctx, kit_type_id(I32), rows, 1, 1), *factors = NULL, *rot = NULL;
    gg.set_input(shift);
    if (c->factors) gg.set_input(factors = gg.new_tensor_3d(ctx, kit_type_id(F32), c->n_rot / 2, 1, 1));
    if (c->rotated) gg.set_input(rot = gg.new_tensor_3d(ctx, kit_type_id(F32), HADAMARD, HADAMARD, 1));
    gg_tensor *cur = gg.view_3d(ctx, k->side[K][0], c->n_rot, c->heads, rows, kit_row_bytes(t, c->d),
                                k->bytes[K], kit_row_bytes(t, c->first));
    if (kit_is_float(t)) {
        cur = rope(ctx, cur, shift, factors, c, true);
    } else {
        gg_tensor *x = hadamard(ctx, gg.cast(ctx, cur, kit_type_id(F32)), rot, c, rows);
        x = hadamard(ctx, rope(ctx, x, shift, factors, c, false), rot, c, rows);
        cur = gg.cpy(ctx, x, cur);
    }
    gg.build_forward_expand(graph, cur);

    gg_backend *backends[2] = {kit.backend, kit.cpu};
    gg_sched *sched = gg.backend_sched_new(backends, NULL, 2, 2048, false, false);
    bool ok = kit_check(gg.backend_sched_alloc_graph(sched, graph), "the graph gets no memory");
    if (ok) {
        set_inputs(c, shift, factors, rot, by);
        ok = kit_check(gg.backend_sched_graph_compute(sched, graph) == GG_SUCCESS, "K-shift fails");
    }
    gg.backend_sched_free(sched);
    gg.free(ctx);
    return ok;
}

/* Rows without shift keep their bytes; of the others what is not rotated. */
static void check_bytes(const cache *k, const shift_case *c, const int32_t *by, const uint8_t *before,
                        const uint8_t *after)
{
    kit_type t = k->s.k;
    size_t row = k->bytes[K], head = kit_row_bytes(t, c->d), first = kit_row_bytes(t, c->first);
    size_t last = kit_row_bytes(t, c->first + c->n_rot);
    int moved = 0, cut = 0, zero = 0;
    for (int r = 0; r < cache_rows(k); r++) {
        const uint8_t *a = before + (size_t)r * row, *b = after + (size_t)r * row;
        zero += !by[r];
        moved += !by[r] && memcmp(a, b, row);
        for (int h = 0; h < c->heads && by[r] && !kit.policy; h++, a += head, b += head) {
            cut += memcmp(a, b, first) || memcmp(a + last, b + last, head - last);
        }
    }
    if (c->rotated)
        kit_note("%d of %d rows without shift changed", moved, zero);
    else
        kit_check(moved == 0, "%d of %d rows without shift have other bytes", moved, zero);
    kit_check(cut == 0, "values that are not rotated changed in %d heads", cut);
}

/*
 * expected: the CPU's values before they are stored again. Storing costs something: what the CPU's own encoding
 * costs, or with a policy about what the first encoding cost.
 */
static void check_values(const cache *k, const shift_case *c, const int32_t *by, const float *got,
                         const float *expected, double first_cost)
{
    int rows = cache_rows(k), n = c->n_rot * c->heads;
    uint8_t *bytes = kit_alloc((size_t)rows, kit_row_bytes(k->s.k, n));
    float *stored = KIT_NEW(float, rows *n), *a = KIT_NEW(float, rows *n), *b = KIT_NEW(float, rows *n),
          *e = KIT_NEW(float, rows *n);
    if (!kit.policy) {
        kit_encode(k->s.k, expected, bytes, n, rows);
        kit_decode(k->s.k, bytes, stored, n, rows);
    }
    int count = 0;
    for (int r = 0; r < rows; r++) {
        if (!by[r]) continue;
        size_t from = (size_t)r * (size_t)n, to = (size_t)count++ * (size_t)n,
               size = (size_t)n * sizeof(float);
        memcpy(a + to, got + from, size);
        memcpy(b + to, stored + from, size);
        memcpy(e + to, expected + from, size);
    }
    size_t all = (size_t)count * (size_t)n;
    double error = kit_nmse_f(a, e, all),
           allowed = kit.policy ? 2 * first_cost + 1e-6 : 1.02 * kit_nmse_f(b, e, all) + 1e-13;
    size_t same = 0;
    for (size_t i = 0; i < all; i++) same += a[i] == b[i];
    kit_note("error %.2e, allowed %.2e; %zu of %zu values are those of the CPU", error, allowed, same, all);
    kit_check(error <= allowed, "error %.3e, allowed %.3e", error, allowed);
    free(bytes);
    free(stored);
    free(a);
    free(b);
    free(e);
}

static void run_shift(kit_type t, const shift_case *c)
{
    shape s = {.k = t,
               .v = t,
               .d_k = c->d,
               .d_v = 64,
               .heads = c->heads,
               .gqa = 1,
               .cells = c->cells,
               .streams = c->streams,
               .layers = 1};
    kit_label("shift, n_rot %d mode %d%s%s, %s", c->n_rot, c->mode, c->factors ? " factors" : "",
              c->rotated ? " hadamard" : "", shape_text(&s));
    cache k;
    if (!cache_open(&k, &s)) {
        cache_close(&k);
        return;
    }
    int rows = cache_rows(&k);
    int64_t *cell = KIT_NEW(int64_t, rows);
    int32_t *by = KIT_NEW(int32_t, rows);
    float *in = KIT_NEW(float, rows *k.row[K]), *v = KIT_NEW(float, rows *k.row[V]);
    float *held = KIT_NEW(float, rows *k.row[K]), *expected = KIT_NEW(float, rows * c->heads * c->n_rot);
    float *got = KIT_NEW(float, rows * c->heads * c->n_rot);
    uint8_t *before = kit_alloc((size_t)rows, k.bytes[K]), *after = kit_alloc((size_t)rows, k.bytes[K]);
    for (int i = 0; i < rows; i++) cell[i] = i;
    for (int i = 0; i < rows; i++) by[i] = kit_below(2) ? -1 - kit_below(200) : 0;
    random_rows(in, k.row[K], rows, K);
    random_rows(v, k.row[V], rows, V);
    batch b = {.n = rows, .cell = cell, .k = in, .v = v};
    if (kit_check(cache_write(&k, 0, &b) == GG_SUCCESS, "SET_ROWS fails") && cache_values(&k, 0, K, held)) {
        double cost = kit_nmse_f(held, in, (size_t)(rows * k.row[K]));
        cache_get(&k, 0, K, 0, rows, before);
        take(c, rows, held, expected);
        shift_on_cpu(c, rows, by, expected);
        if (shift_on_device(&k, c, by) && cache_values(&k, 0, K, held)) {
            cache_get(&k, 0, K, 0, rows, after);
            take(c, rows, held, got);
            check_bytes(&k, c, by, before, after);
            check_values(&k, c, by, got, expected, cost);
        }
        /* A shift of nothing at all. */
        memset(by, 0, sizeof *by * (size_t)rows);
        cache_get(&k, 0, K, 0, rows, before);
        if (!c->rotated && shift_on_device(&k, c, by)) {
            cache_get(&k, 0, K, 0, rows, after);
            kit_same(after, before, (size_t)rows * k.bytes[K], "shift by 0");
        }
    }
    cache_close(&k);
    free(cell);
    free(by);
    free(in);
    free(v);
    free(held);
    free(expected);
    free(got);
    free(before);
    free(after);
}

static const shift_case shifts[] = {
    {64, 3, 0, 64, 0, 256, 1, false, false},    {128, 2, 0, 128, 2, 100, 3, true, false},
    {576, 1, 512, 64, 0, 128, 1, false, false}, /* MLA */
    {96, 2, 0, 32, 2, 300, 1, false, false},    /* part of the head */
    {64, 1, 0, 64, 2, 2300, 1, false, false},
};

void test_shift(void)
{
    for (int t = F32; t < N_CACHE_TYPES; t++) {
        for (int i = 0; i < (int)(sizeof shifts / sizeof *shifts); i++) {
            kit_seed((uint64_t)(t * 10 + i));
            run_shift((kit_type)t, &shifts[i]);
        }
    }
}

void test_shift_rotated(void)
{
    static const shift_case c = {128, 2, 0, 128, 2, 256, 2, false, true};
    for (int t = Q8_0; t < N_CACHE_TYPES; t++) {
        kit_seed((uint64_t)t + 60);
        run_shift((kit_type)t, &c);
    }
}

void test_policy_shift(void)
{
    static const kit_type types[] = {F16, BF16, F32, Q8_0};
    for (int t = 0; t < 4; t++) {
        for (int i = 0; i < (int)(sizeof shifts / sizeof *shifts); i++) {
            kit_seed((uint64_t)(t * 10 + i));
            run_shift(types[t], &shifts[i]);
        }
    }
}
