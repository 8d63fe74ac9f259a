/* SPDX-License-Identifier: MIT */
/* Tensors that are no KV cache to the device: plain ggml memory, as test-backend-ops has it and as hosts without flash
 * attention need it. */
#include "scene.h"
#include "tests.h"

#include <math.h>
#include <string.h>

typedef struct raw_case {
    kit_type k, v;
    int d_k, d_v, heads, gqa, n_kv, n_q, streams;
    bool mask, mask_per_head, sinks, permuted;
    float max_bias, softcap;
} raw_case;

static const raw_case raw_cases[] = {
    {F16, F16, 64, 64, 2, 4, 256, 1, 1, true, false, false, false, 0, 0},
    {F16, F16, 128, 128, 2, 1, 113, 33, 3, true, false, true, true, 8, 0},
    {F32, F32, 40, 40, 3, 1, 100, 7, 1, true, true, false, false, 8, 10},
    {BF16, BF16, 80, 80, 2, 3, 512, 2, 2, false, false, false, true, 0, 0},
    {Q8_0, Q8_0, 128, 128, 1, 8, 512, 35, 1, true, false, false, false, 0, 10},
    {Q8_0, Q4_0, 96, 96, 2, 2, 200, 3, 2, true, false, true, true, 0, 0},
    {Q5_1, Q5_0, 192, 128, 2, 4, 113, 75, 1, true, false, false, false, 8, 0},
    {Q4_1, F16, 256, 256, 1, 4, 256, 1, 1, true, false, false, true, 0, 30},
    {IQ4_NL, IQ4_NL, 64, 64, 2, 4, 512, 3, 2, false, false, true, false, 0, 0},
    {F16, IQ4_NL, 64, 64, 4, 1, 65, 200, 1, true, true, false, true, 0, 0},
    {Q4_0, F32, 64, 64, 1, 8, 64, 5, 1, true, false, false, false, 0, 0},
};

/* Values of one side: [stream][cell][head][d], rounded to the type, and their bytes. */
static void raw_side(kit_type t, int d, const raw_case *r, side which, float *x, uint8_t *bytes)
{
    int n_rows = r->streams * r->n_kv * r->heads;
    random_rows(x, d, n_rows, which);
    kit_encode(t, x, bytes, d, n_rows);
    kit_decode(t, bytes, x, d, n_rows);
}

/* permuted: memory as in a cache, [d, head, cell, stream], else [d, cell, head, stream]. */
static gg_tensor *raw_tensor(kit_job *job, kit_type t, int d, const raw_case *r, gg_tensor **memory)
{
    if (!r->permuted) return *memory = kit_job_input(job, t, d, r->n_kv, r->heads, r->streams);
    *memory = kit_job_input(job, t, d, r->heads, r->n_kv, r->streams);
    return gg.permute(job->ops, *memory, 0, 2, 1, 3);
}

static void raw_fill(gg_tensor *memory, kit_type t, int d, const raw_case *r, const uint8_t *bytes)
{
    size_t row = kit_row_bytes(t, d), at = 0;
    for (int s = 0; s < r->streams; s++) {
        for (int j = 0; j < r->n_kv; j++) {
            for (int h = 0; h < r->heads; h++, at += row) {
                int to = r->permuted ? (s * r->n_kv + j) * r->heads + h : (s * r->heads + h) * r->n_kv + j;
                gg.backend_tensor_set(memory, bytes + at, (size_t)to * row, row);
            }
        }
    }
}

static void run_raw(const raw_case *r)
{
    shape s = {.k = r->k,
               .v = r->v,
               .d_k = r->d_k,
               .d_v = r->d_v,
               .heads = r->heads,
               .gqa = r->gqa,
               .cells = r->n_kv};
    int heads_q = r->heads * r->gqa, rows = r->streams * r->n_kv * r->heads,
        mask_heads = r->mask_per_head ? heads_q : 1;
    kit_label("raw %s queries %d streams %d%s%s%s max_bias %.0f softcap %.0f", shape_text(&s), r->n_q,
              r->streams, r->permuted ? " permuted" : "", r->mask_per_head ? " mask per head" : "",
              r->sinks ? " sinks" : "", (double)r->max_bias, (double)r->softcap);

    float *k = KIT_NEW(float, rows * r->d_k), *v = KIT_NEW(float, rows * r->d_v);
    uint8_t *bytes_k = kit_alloc((size_t)rows, kit_row_bytes(r->k, r->d_k));
    uint8_t *bytes_v = kit_alloc((size_t)rows, kit_row_bytes(r->v, r->d_v));
    raw_side(r->k, r->d_k, r, K, k, bytes_k);
    raw_side(r->v, r->d_v, r, V, v, bytes_v);

    int n_q = r->streams * r->n_q * heads_q, n_mask = r->streams * mask_heads * r->n_q * r->n_kv;
    float *q = KIT_NEW(float, n_q * r->d_k), *sinks = KIT_NEW(float, heads_q), *m = KIT_NEW(float, n_mask);
    uint16_t *mask = KIT_NEW(uint16_t, n_mask);
    for (int i = 0; i < n_q * r->d_k; i++) q[i] = kit_normal();
    for (int i = 0; i < heads_q; i++) sinks[i] = kit_normal();
    for (int i = 0; i < n_mask; i++)
        m[i] = i % r->n_kv == 0 ? 0 : kit_below(3) == 0 ? -INFINITY : 2 * kit_normal();
    gg.fp32_to_fp16_row(m, mask, n_mask);
    attention a = {.n_q = r->n_q,
                   .n_kv = r->n_kv,
                   .streams = r->streams,
                   .scale = 1 / sqrtf((float)r->d_k),
                   .max_bias = r->max_bias,
                   .softcap = r->softcap,
                   .q = q,
                   .mask = r->mask ? mask : NULL,
                   .mask_heads = mask_heads,
                   .sinks = r->sinks ? sinks : NULL};

    kit_job job;
    kit_job_begin(&job, kit.dev, kit.backend);
    gg_tensor *memory_k, *memory_v, *tm = NULL, *ts = NULL;
    gg_tensor *tq = kit_job_input(&job, F32, r->d_k, heads_q, r->n_q, r->streams);
    gg_tensor *tk = raw_tensor(&job, r->k, r->d_k, r, &memory_k),
              *tv = raw_tensor(&job, r->v, r->d_v, r, &memory_v);
    if (r->mask) tm = kit_job_input(&job, F16, r->n_kv, r->n_q, mask_heads, r->streams);
    if (r->sinks) ts = kit_job_input(&job, F32, heads_q, 1, 1, 1);
    gg_tensor *out = gg.flash_attn_ext(job.ops, gg.permute(job.ops, tq, 0, 2, 1, 3), tk, tv, tm, a.scale,
                                       a.max_bias, a.softcap);
    if (ts) gg.flash_attn_ext_add_sinks(out, ts);
    kit_job_add(&job, out);
    if (kit_job_ready(&job)) {
        size_t n = attention_out(&s, &a);
        float *got = KIT_NEW(float, n);
        double *exact = KIT_NEW(double, n);
        gg.backend_tensor_set(tq, q, 0, gg.nbytes(tq));
        raw_fill(memory_k, r->k, r->d_k, r, bytes_k);
        raw_fill(memory_v, r->v, r->d_v, r, bytes_v);
        if (tm) gg.backend_tensor_set(tm, mask, 0, gg.nbytes(tm));
        if (ts) gg.backend_tensor_set(ts, sinks, 0, gg.nbytes(ts));
        kit_check(kit_job_run(&job) == GG_SUCCESS, "FLASH_ATTN_EXT fails");
        gg.backend_tensor_get(out, got, 0, gg.nbytes(out));
        values held = {
            .k = k, .v = v, .row_k = r->heads * r->d_k, .row_v = r->heads * r->d_v, .cells = r->n_kv};
        attend_exactly(&s, &a, &held, exact);
        double error = kit_nmse(got, exact, n), allowed = tolerance(&s);
        kit_note("error %.2e", error);
        kit_check(error < allowed, "error %.3e, allowed %.0e", error, allowed);
        free(got);
        free(exact);
    }
    kit_job_end(&job);
    free(k);
    free(v);
    free(bytes_k);
    free(bytes_v);
    free(q);
    free(sinks);
    free(m);
    free(mask);
}

void test_raw(void)
{
    for (int i = 0; i < (int)(sizeof raw_cases / sizeof *raw_cases); i++) {
        kit_seed(500 + (uint64_t)i);
        run_raw(&raw_cases[i]);
        run_raw(&raw_cases[i]); /* inputs in the other kind of buffer */
    }
}

/* ------------------------------------------------------------------- hosts without flash attention */

/*
 * Before anything is written the device sees a node that it does not run and that reads the cache: MUL_MAT on K, V
 * stored value by value. It then has to give the memory back to the CPU as it is.
 */
static void run_flip(kit_type t)
{
    shape s = {.k = t,
               .v = F16,
               .d_k = 64,
               .d_v = 64,
               .heads = 2,
               .gqa = 2,
               .cells = 256,
               .streams = 1,
               .layers = 1};
    kit_label("flip, %s", shape_text(&s));
    cache c;
    if (cache_alloc(&c, &s, kit.buft, 0)) {
        kit_job job;
        kit_job_begin(&job, kit.dev, kit.backend);
        gg_tensor *q = kit_job_input(&job, F32, s.d_k, 5, s.heads * s.gqa, 1);
        gg_tensor *k = gg.permute(job.ops, cache_view(&c, job.ops, 0, K, s.cells, 0, 1), 0, 2, 1, 3);
        gg_tensor *kq = gg.mul_mat(job.ops, k, q);
        gg_tensor *each = gg.reshape_2d(job.ops, c.side[V][0], 1, (int64_t)s.cells * c.row[V]);
        gg_tensor *values_v = kit_job_input(&job, F32, 1, 5 * c.row[V], 1, 1),
                  *where = kit_job_input(&job, I64, 5 * c.row[V], 1, 1, 1);
        gg_tensor *stored = gg.set_rows(job.ops, each, values_v, where);
        kit_job_add(&job, stored);
        kit_job_add(&job, kq);
        kit_check(!gg.backend_dev_supports_op(kit.dev, kq), "MUL_MAT is not refused");
        gg.backend_dev_supports_op(kit.dev, stored);
        kit_check(gg.backend_buffer_is_host(c.buffer), "the cache is still no host memory");
        kit_job_end(&job);

        /* The CPU writes and reads it. */
        int64_t cells[3] = {7, 200, 64};
        float *x = KIT_NEW(float, 3 * c.row[K]), *got = KIT_NEW(float, cache_rows(&c) * c.row[K]);
        uint8_t *bytes = kit_alloc(3, c.bytes[K]), *read = kit_alloc(1, c.bytes[K]);
        random_rows(x, c.row[K], 3, K);
        kit_encode(t, x, bytes, c.row[K], 3);
        kit_decode(t, bytes, x, c.row[K], 3);
        kit_job_begin(&job, kit.cpu_dev, kit.cpu);
        gg_tensor *rows = kit_job_input(&job, F32, c.row[K], 3, 1, 1),
                  *index = kit_job_input(&job, I64, 3, 1, 1, 1);
        gg_tensor *written = gg.set_rows(job.ops, c.side[K][0], rows, index);
        gg_tensor *f32 = gg.cast(job.ops, c.side[K][0], kit_type_id(F32));
        kit_job_add(&job, written);
        kit_job_add(&job, f32);
        if (kit_job_ready(&job)) {
            gg.backend_tensor_set(rows, x, 0, gg.nbytes(rows));
            gg.backend_tensor_set(index, cells, 0, gg.nbytes(index));
            kit_check(kit_job_run(&job) == GG_SUCCESS, "the CPU's graph fails");
            gg.backend_tensor_get(f32, got, 0, gg.nbytes(f32));
            for (int i = 0; i < 3; i++) {
                double e = kit_nmse_f(got + cells[i] * c.row[K], x + i * c.row[K], (size_t)c.row[K]);
                kit_check(e < 1e-3, "row %d as the CPU reads it: error %.2e", i, e);
                cache_get(&c, 0, K, (int)cells[i], 1, read);
                kit_decode(t, read, x, c.row[K], 1);
                kit_same(x, got + cells[i] * c.row[K], (size_t)c.row[K] * sizeof(float),
                         "get and the CPU's view of a row");
            }
        }
        kit_job_end(&job);
        free(x);
        free(got);
        free(bytes);
        free(read);
    }
    cache_close(&c);
}

void test_flip(void)
{
    kit_seed(321);
    run_flip(F16);
    run_flip(BF16);
    run_flip(Q8_0);
    run_flip(Q4_0);
}
