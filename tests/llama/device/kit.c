/* SPDX-License-Identifier: MIT */
/* Checks, random numbers, types, graphs. */
#define _POSIX_C_SOURCE 200809L

#include "kit.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

_Thread_local kit_state kit;

enum { MAX_PRINTED = 15, MAX_NODES = 512 };

static _Thread_local char label[512];

/* ------------------------------------------------------------------ checks */

static void set_threads(gg_device *dev, gg_backend *backend, int n)
{
    void *f = gg.backend_reg_get_proc_address(gg.backend_dev_backend_reg(dev), "ggml_backend_set_n_threads");
    void (*set)(gg_backend *, int);
    if (!kit_check(f != NULL, "no ggml_backend_set_n_threads")) return;
    memcpy(&set, &f, sizeof set);
    set(backend, n);
}

void kit_threads(int n)
{
    set_threads(kit.dev, kit.backend, n);
}

static int type_ids[N_TYPES];

bool kit_open(const char *dir, const char *backends, const char *plugin, bool local)
{
    if (!gg_open(dir, backends, local)) return false;
    for (int t = 0; t < N_TYPES; t++) {
        type_ids[t] = -1;
        for (int i = 0; i < 31 && type_ids[t] < 0; i++) {
            const char *name = gg.type_name(i);
            if (name && strcmp(name, kit_type_name((kit_type)t)) == 0) type_ids[t] = i;
        }
        if (type_ids[t] < 0) {
            fprintf(stderr, "this ggml has no type %s\n", kit_type_name((kit_type)t));
            return false;
        }
    }
    if (!gg.backend_load(plugin)) {
        fprintf(stderr, "%s was not loaded\n", plugin);
        return false;
    }
    kit.dev = gg.backend_dev_by_name("QUIRE0");
    kit.cpu_dev = gg.backend_dev_by_name("CPU");
    if (!kit.dev || !kit.cpu_dev) {
        fprintf(stderr, "no device %s\n", kit.dev ? "CPU" : "QUIRE0");
        return false;
    }
    kit.backend = gg.backend_dev_init(kit.dev, NULL);
    kit.cpu = gg.backend_dev_init(kit.cpu_dev, NULL);
    kit.buft = gg.backend_dev_buffer_type(kit.dev);
    kit.cpu_buft = gg.backend_dev_buffer_type(kit.cpu_dev);
    if (!kit.backend || !kit.cpu || !kit.buft || !kit.cpu_buft) {
        fprintf(stderr, "a backend could not be made\n");
        return false;
    }
    set_threads(kit.cpu_dev, kit.cpu, 2);
    kit_threads(2);
    return true;
}

void kit_close(void)
{
    gg.backend_free(kit.backend);
    gg.backend_free(kit.cpu);
}

void kit_label(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(label, sizeof label, format, args);
    va_end(args);
}

bool kit_check(bool ok, const char *format, ...)
{
    kit.counts->checks++;
    if (ok || ++kit.counts->failures > MAX_PRINTED) return ok;
    va_list args;
    va_start(args, format);
    fprintf(stderr, "    %s: ", label);
    vfprintf(stderr, format, args);
    fputs(kit.counts->failures == MAX_PRINTED ? "\n    (further failures are counted only)\n" : "\n", stderr);
    va_end(args);
    return false;
}

void kit_say(const char *format, ...)
{
    if (kit.counts->failures > MAX_PRINTED) return;
    va_list args;
    va_start(args, format);
    fputs("        ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
}

void kit_note(const char *format, ...)
{
    if (!kit.verbose) return;
    va_list args;
    va_start(args, format);
    fprintf(stderr, "    %s: ", label);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
}

bool kit_same(const void *got, const void *expected, size_t n, const char *what)
{
    const uint8_t *a = got, *b = expected;
    size_t first = n, differ = 0;
    for (size_t i = n; i-- > 0;) {
        if (a[i] == b[i]) continue;
        first = i;
        differ++;
    }
    return kit_check(differ == 0, "%s: %zu of %zu bytes differ, first at %zu: %02x, expected %02x", what,
                     differ, n, first, first < n ? a[first] : 0, first < n ? b[first] : 0);
}

void *kit_alloc(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size);
    if (!p) {
        fprintf(stderr, "out of memory\n");
        abort();
    }
    return p;
}

/* ----------------------------------------------------------------- numbers */

static _Thread_local uint64_t state;

void kit_seed(uint64_t seed)
{
    state = seed * 0x9e3779b97f4a7c15u + 1;
}

uint64_t kit_random(void)
{
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

int kit_below(int n)
{
    return (int)(kit_random() % (uint64_t)n);
}

float kit_normal(void)
{
    double u = ((double)(kit_random() >> 11) + 1) / 9007199254740993.0;
    double v = (double)(kit_random() >> 11) / 9007199254740992.0;
    return (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
}

void kit_shuffle(int64_t *x, int n)
{
    for (int i = n - 1; i > 0; i--) {
        int j = kit_below(i + 1);
        int64_t t = x[i];
        x[i] = x[j];
        x[j] = t;
    }
}

double kit_nmse(const float *got, const double *expected, size_t n)
{
    double error = 0, power = 0;
    for (size_t i = 0; i < n; i++) {
        double e = (double)got[i] - expected[i];
        error += e * e;
        power += expected[i] * expected[i];
    }
    if (isnan(error)) return INFINITY;
    return power > 0 ? error / power : error;
}

double kit_nmse_f(const float *got, const float *expected, size_t n)
{
    double *e = KIT_NEW(double, n);
    for (size_t i = 0; i < n; i++) e[i] = (double)expected[i];
    double result = kit_nmse(got, e, n);
    free(e);
    return result;
}

/* ------------------------------------------------------------------- types */

const char *kit_type_name(kit_type t)
{
    static const char *const names[N_TYPES] = {
        [F32] = "f32",       [F16] = "f16",   [BF16] = "bf16", [Q8_0] = "q8_0",
        [Q5_1] = "q5_1",     [Q5_0] = "q5_0", [Q4_1] = "q4_1", [Q4_0] = "q4_0",
        [IQ4_NL] = "iq4_nl", [I32] = "i32",   [I64] = "i64",
    };
    return names[t] ? names[t] : "";
}

int kit_type_id(kit_type t)
{
    return type_ids[t];
}

bool kit_is_float(kit_type t)
{
    return t == F32 || t == F16 || t == BF16;
}

size_t kit_row_bytes(kit_type t, int64_t n)
{
    return gg.row_size(kit_type_id(t), n);
}

static void convert(kit_type from, kit_type to, const void *x, void *y, int64_t row, int64_t n_rows)
{
    kit_job job;
    kit_job_begin(&job, kit.cpu_dev, kit.cpu);
    gg_tensor *a = kit_job_input(&job, from, row, n_rows, 1, 1);
    gg_tensor *b = gg.cast(job.ops, a, kit_type_id(to));
    kit_job_add(&job, b);
    if (kit_job_ready(&job)) {
        gg.backend_tensor_set(a, x, 0, gg.nbytes(a));
        kit_check(kit_job_run(&job) == GG_SUCCESS, "the CPU does not convert %s to %s", kit_type_name(from),
                  kit_type_name(to));
        gg.backend_tensor_get(b, y, 0, gg.nbytes(b));
    }
    kit_job_end(&job);
}

void kit_decode(kit_type t, const void *bytes, float *x, int64_t row, int64_t n_rows)
{
    convert(t, F32, bytes, x, row, n_rows);
}

void kit_encode(kit_type t, const float *x, void *bytes, int64_t row, int64_t n_rows)
{
    convert(F32, t, x, bytes, row, n_rows);
}

/* ------------------------------------------------------------------ graphs */

void kit_job_begin(kit_job *job, gg_device *dev, gg_backend *backend)
{
    struct ggml_init_params params = {.mem_size = MAX_NODES * gg.tensor_overhead() + gg.graph_overhead(),
                                      .no_alloc = true};
    *job = (kit_job){.dev = dev, .backend = backend, .in = gg.init(params), .ops = gg.init(params)};
    job->graph = gg.new_graph(job->ops);
    /* Without a tensor that takes memory a context would get no buffer, and its views none either. */
    gg.new_tensor_4d(job->in, kit_type_id(F32), 16, 1, 1, 1);
    gg.new_tensor_4d(job->ops, kit_type_id(F32), 16, 1, 1, 1);
}

gg_tensor *kit_job_input(kit_job *job, kit_type t, int64_t n0, int64_t n1, int64_t n2, int64_t n3)
{
    gg_tensor *x = gg.new_tensor_4d(job->in, kit_type_id(t), n0, n1, n2, n3);
    gg.set_input(x);
    return x;
}

void kit_job_add(kit_job *job, gg_tensor *node)
{
    gg.set_output(node);
    gg.build_forward_expand(job->graph, node);
}

int kit_job_refused(kit_job *job)
{
    int refused = 0;
    for (int i = 0; i < gg.graph_n_nodes(job->graph); i++) {
        gg_tensor *node = gg.graph_node(job->graph, i);
        if (gg.backend_dev_supports_op(job->dev, node)) continue;
        kit_note("node %d, %s, is refused", i, gg.op_desc(node));
        refused++;
    }
    return refused;
}

bool kit_job_ready(kit_job *job)
{
    static _Thread_local int turn;
    int refused = kit_job_refused(job);
    if (refused) kit_check(false, "%d nodes of the graph are refused", refused);
    if (refused) return false;
    if (kit.schedule && job->dev == kit.dev) {
        gg_backend *backends[2] = {kit.backend, kit.cpu};
        job->sched = gg.backend_sched_new(backends, NULL, 2, 2048, false, false);
        return kit_check(gg.backend_sched_alloc_graph(job->sched, job->graph), "no memory for a graph");
    }
    gg_buft *buft = job->dev == kit.dev ? kit.buft : kit.cpu_buft;
    job->buf_in = gg.backend_alloc_ctx_tensors_from_buft(job->in, turn++ % 2 ? kit.cpu_buft : buft);
    job->buf_ops = gg.backend_alloc_ctx_tensors_from_buft(job->ops, buft);
    return kit_check(job->buf_ops != NULL, "no memory for a graph");
}

int kit_job_run(kit_job *job)
{
    if (job->sched) return gg.backend_sched_graph_compute(job->sched, job->graph);
    return gg.backend_graph_compute(job->backend, job->graph);
}

void kit_job_end(kit_job *job)
{
    if (job->sched) gg.backend_sched_free(job->sched);
    if (job->buf_in) gg.backend_buffer_free(job->buf_in);
    if (job->buf_ops) gg.backend_buffer_free(job->buf_ops);
    gg.free(job->in);
    gg.free(job->ops);
}
